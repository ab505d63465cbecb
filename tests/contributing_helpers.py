"""Examples of docs/extending.md: list them, find their places, apply them."""

import ast
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from grid_helpers import PROJECT, copy_parts
from markdown_helpers import parsed, slug

PARTS = ("src", "workflow", ".test", "report", "envs", "docs", "config.yaml", "pyproject.toml")
CONTRIBUTING = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = (PROJECT / "docs/extending.md").read_text(encoding="utf-8")


# --- parsing the documents -----------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced block whose first line names its place."""

    file: str
    how: str
    """`whole`, `in X`, `before X`, `at the end` or `in part`."""
    text: str


def sections(text):
    """(language, content) of the fenced blocks below each heading, by the heading's anchor."""
    found, current = {}, None
    tokens = parsed(text)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open":
            current = found.setdefault(slug(following.content), [])
        elif token.type == "fence" and current is not None:
            current.append((token.info, token.content))
    return found


MARK = re.compile(r"(?:# |\{# )(?P<file>[\w./-]+\.\w+)(?:, (?P<how>[\w ]+?))?(?: #\})?")


def blocks_of(section):
    """The blocks of a section that name a file."""
    for _, content in SECTIONS[section]:
        first, _, rest = content.partition("\n")
        if mark := MARK.fullmatch(first):
            yield Block(mark["file"], mark["how"] or "whole", rest)


def copied_by(section):
    """(from, to) of every `cp` in a section."""
    for language, content in SECTIONS[section]:
        for line in content.splitlines() if language == "sh" else ():
            command, *arguments = shlex.split(line, comments=True) or [""]
            if command == "cp":
                yield arguments


def rows_of_the_table():
    """Glob patterns of the files to touch, by the section that a row links to."""
    table = CONTRIBUTING.partition("## What to touch")[2].partition("\n## ")[0]
    found = {}
    for line in table.splitlines():
        if row := re.match(r"\| \[.*?\]\(docs/extending\.md#(.*?)\) \| (.*?) \|", line):
            named = re.findall("`(.*?)`", row[2])
            found[row[1]] = {re.sub(r"\bNAME\b|\bSUFFIX\b", "*", name) for name in named}
    return found


SECTIONS = sections(EXAMPLES)
ROWS = rows_of_the_table()


# --- applying the examples -----------------------------------------------------------------------


def apply(section, folder):
    """Apply a section's copies and blocks to a copy of the project."""
    for source, target in copied_by(section):
        shutil.copy(folder / source, folder / target)
    for block in blocks_of(section):
        file = folder / block.file
        if block.how == "whole":
            assert not file.exists(), f"{block.file} is there already"
            file.write_text(block.text, encoding="utf-8")
        elif block.how == "in part":
            text = file.read_text(encoding="utf-8")
            for part in re.split(r"^ *\.\.\.\n", block.text, flags=re.MULTILINE):
                assert part in text, f"{block.file} does not hold:\n{part}"
        else:
            text = file.read_text(encoding="utf-8")
            file.write_text(inserted(text, block), encoding="utf-8")


def inserted(text, block):
    """Text of a file with a block inserted at its place."""
    if block.how == "at the end":
        return f"{text}\n\n{block.text}"
    where, name = block.how.split()
    if block.file.endswith(".yaml"):
        return in_yaml(text, name, block.text)
    (statement,) = (s for s in ast.parse(text).body if name in names_set_by(s))
    if where == "before":
        lines = text.splitlines(keepends=True)
        at = statement.lineno - 1
        return "".join([*lines[:at], block.text, "\n\n", *lines[at:]])
    return in_registry(text, statement, block.text)


def names_set_by(statement):
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def in_registry(text, statement, entry):
    """Text with the entry appended to the dict in `X = Registry({...})`."""
    entries = statement.value.args[0]
    lines = text.encode().splitlines(keepends=True)  # ast counts bytes
    end = sum(map(len, lines[: entries.end_lineno - 1])) + entries.end_col_offset - 1
    before, after = text.encode()[:end].decode(), text.encode()[end:].decode()
    kept = before.rstrip()
    if entries.lineno == entries.end_lineno:
        return f"{kept}, {entry.strip().removesuffix(',')}{after}"
    return f"{kept}\n{entry}{before[len(kept) :].lstrip(chr(10))}{after}"


def in_yaml(text, key, entry):
    """Text with the entry appended below a top-level key."""
    lines = text.splitlines(keepends=True)
    (start,) = (i for i, line in enumerate(lines) if re.match(rf"{key}:(?: \{{\}})?\s", line))
    lines[start] = lines[start].replace(" {}", "")
    rest = range(start + 1, len(lines))
    end = next((i for i in rest if re.match(r"[^\s#]", lines[i])), len(lines))
    while re.match(r"#|\s*$", lines[end - 1]):  # comments above the next key belong to it
        end -= 1
    return "".join([*lines[:end], entry, *lines[end:]])


def copy_of_project(folder):
    copy_parts(folder, PARTS)


def differing(folder):
    """Files of a copy that the project lacks or has with other content."""
    files = (file for part in PARTS for file in [folder / part, *(folder / part).rglob("*")])
    for file in filter(Path.is_file, files):
        original = PROJECT / file.relative_to(folder)
        if not (original.is_file() and original.read_bytes() == file.read_bytes()):
            yield file.relative_to(folder).as_posix()
