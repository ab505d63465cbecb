"""Commands, options, targets, links, anchors and numbers of trainings in the documents exist."""

import itertools
import re
import shlex
import tomllib
from collections import Counter
from functools import cache

import pytest

from fathom_study import cli
from fathom_study.config import read_yaml
from tests.support.markdown import anchors, inline, parsed
from tests.system.examples import PROJECT, ROWS, blocks_of

DOCUMENTS = [PROJECT / name for name in ("CONTRIBUTING.md", "README.md", "config/README.md")]
DOCUMENTS += sorted((PROJECT / "docs").rglob("*.md"))


def in_documents(test):
    return pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)(test)


def codes(text):
    """Contents of inline code spans."""
    return [token.content for token in inline(text) if token.type == "code_inline"]


def shell_lines(text):
    """Lines of fenced blocks of shell commands, without comments."""
    for token in parsed(text):
        if token.type == "fence" and token.info in ("sh", "bash"):
            whole = token.content.replace("\\\n", "")
            yield from (line.partition("  #")[0].strip() for line in whole.splitlines())


def commands(text, program):
    """Arguments of every call of a program, up to an ellipsis (…)."""
    for line in [*codes(text), *shell_lines(text)]:
        for part in line.split("&&"):
            words = shlex.split(part) if part.count("'") % 2 == 0 else part.split()
            if words and words[0] == program:
                yield words[1 : words.index("…") if "…" in words else None]


# --- commands ------------------------------------------------------------------------------------


@cache
def studies():
    """Names of studies in config.yaml, the presets and the examples of CONTRIBUTING."""
    files = [PROJECT / "config.yaml", *(PROJECT / "workflow/presets").glob("*.yaml")]
    names = {name for f in files for name in read_yaml(f)["studies"]}
    for section in ROWS:
        for block in blocks_of(section):
            if (block.file, block.how) == ("config.yaml", "in studies"):
                names |= set(re.findall(r"^  ([a-z0-9-]+):$", block.text, re.MULTILINE))
    return names


@in_documents
def test_every_command_of_fathom_exists_with_its_options(document):
    known = studies()
    for words in commands(document.read_text(encoding="utf-8"), "fathom"):
        command, said = cli.commands(), "fathom"
        while words and hasattr(command, "commands"):
            said = f"{said} {words[0]}"
            assert words[0] in command.commands, said
            command, words = command.commands[words[0]], words[1:]
        options = {o for p in command.params for o in [*p.opts, *p.secondary_opts]} | {"--help"}
        unknown = [w for w in words if re.match("--?[a-z]", w) and w not in options]
        assert unknown == [], said
        if said in ("fathom train", "fathom status") and words[:1]:
            assert words[0] in known, f"{said} {words[0]}"


def targets():
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@in_documents
def test_every_target_of_make_exists(document):
    for words in commands(document.read_text(encoding="utf-8"), "make"):
        assert {word for word in words if "=" not in word} <= targets(), words


# --- environments --------------------------------------------------------------------------------

IN_CONDA = {
    "matplotlib": "matplotlib-base",
    "snakemake": "snakemake-minimal",
    "torch": "pytorch",
    "typst": "typst-py",
}


def required():
    """(lower bounds in pyproject.toml by conda name, names of the required packages)."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [
        *project["dependencies"],
        *itertools.chain(*project["optional-dependencies"].values()),
    ]
    bounds = dict(re.match(r"([\w.-]+)(?:\[\w+\])?(>=[\d.]+)", line).groups() for line in listed)
    core = {re.match(r"[\w.-]+", line)[0] for line in project["dependencies"]}
    return {IN_CONDA.get(name, name): version for name, version in bounds.items()}, core


@pytest.mark.parametrize("file", sorted((PROJECT / "envs").glob("*.yaml")), ids=lambda f: f.name)
def test_a_conda_environment_has_the_core_and_the_ranges_of_pyproject(file):
    versions, core = required()
    entries = read_yaml(file)["dependencies"]
    listed = dict(line.split() for line in entries if isinstance(line, str) and " " in line)
    assert core <= set(listed)
    differing = {n: v for n, v in listed.items() if n in versions and v != versions[n]}
    assert differing == {}
    assert set(listed) - set(versions) <= {"python", "rich"}  # typer brings rich


# --- links ---------------------------------------------------------------------------------------


RENDERED = sorted((PROJECT / "results/reference").rglob("*.md"))
WITH_LINKS = [*DOCUMENTS, *RENDERED, *sorted((PROJECT / "report/templates").rglob("*.j2"))]


@pytest.mark.parametrize("document", WITH_LINKS, ids=lambda d: d.name)
def test_every_link_target_exists(document):
    text = document.read_text(encoding="utf-8")
    if document.suffix == ".j2":  # only its links to documents are fixed
        places = re.findall(r"(?:\{\{ docs \}\}|docs ~ \")(/[\w/-]+\.md(?:#[\w-]+)?)", text)
        text = "".join(f"[x](../../docs{place}) " for place in places)
        document = PROJECT / "report/templates/RESULTS.md"
    for token in inline(text):
        target = token.attrGet("href") or token.attrGet("src")
        if not target or re.match("[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), target
        if line := re.fullmatch("L([0-9]+)", anchor):  # a line of a table
            assert int(line[1]) <= len(file.read_text(encoding="utf-8").splitlines()), target
        elif anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


def test_the_lists_of_documents_have_every_page():
    """A list is the README.md of docs, or of a folder there."""
    docs = PROJECT / "docs"
    lists = sorted(docs.rglob("README.md"))
    links = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in lists
        for token in inline(page.read_text(encoding="utf-8"))
        if (target := token.attrGet("href"))
    }
    assert {*docs.rglob("*.md"), PROJECT / "config/README.md"} - {docs / "README.md"} <= links


# --- numbers of trainings -------------------------------------------------------------------------

ARTIFACT = PROJECT / "docs/artifact.md"
TRAININGS = r"^\| `([a-z0-9-]+)` \| (\d+) \|$"


def block_with(words):
    """The only block of shell commands of docs/artifact.md with these words."""
    text = ARTIFACT.read_text(encoding="utf-8")
    blocks = [t.content for t in parsed(text) if t.type == "fence" and t.info == "sh"]
    (block,) = [block for block in blocks if words in block]
    return block


def test_table_has_every_study_and_the_total(default_config):
    text = ARTIFACT.read_text(encoding="utf-8")
    rows = {study: int(n) for study, n in re.findall(TRAININGS, text, re.MULTILINE)}
    assert rows == Counter(cell.study for cell in default_config.cells())
    assert f"all {sum(rows.values())} trainings" in " ".join(text.split())
