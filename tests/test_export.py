"""`fathom export`: a crate lists what is in it, as hand-made runs say; and what Zenodo asks for."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fathom import cli
from fathom.analysis.claims import load_published
from fathom.config import load_config
from fathom.report import kept
from fathom.report.citation import read_citation, zenodo_metadata
from fathom.report.verify import verify
from fathom.system.files import write_json
from run_helpers import GPU, GPU_PLATFORM, STUDY, read_manifest, write_cell, write_manifest

PROJECT = Path(__file__).parents[1]
CITATION = """\
cff-version: 1.2.0
message: Please cite.
title: A study
abstract: Of two networks.
authors:
  - {family-names: Doe, given-names: Jane, orcid: "https://orcid.org/0000-0002-1825-0097"}
  - {name: The lab}
version: 1.2.3
license: MIT
keywords: [depth, streams]
date-released: 2026-01-02
references:
  - type: article
    title: On streams
    authors: [{family-names: Roe, given-names: Rick}]
    identifiers: [{type: other, value: "arXiv:2512.24880"}]
    url: https://arxiv.org/abs/2512.24880
"""
CELLS = {"variants": ["mhc"], "depths": [4, 8], "backends": ["torch"], "seeds": [0]}
FACTS = {
    "started": "2026-01-01T10:00:00+00:00",
    "seconds": 7.25,
    "peak_host_memory_bytes": 1234,
    "threads": 2,
    "git": {"commit": "abc123"},
}
SPDX = "https://spdx.org/licenses/MIT"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project with results, made by hand, as the current folder."""
    folder = tmp_path / "project"
    for name, text in {
        "CITATION.cff": CITATION,
        "LICENSE": "MIT",
        "workflow/Snakefile": "rule all:\n",
        "src/fathom/a.py": "a = 1\n",
        "src/fathom/__pycache__/a.pyc": "compiled",
        "report/templates/RESULTS.md.j2": "words",
        "config.yaml": yaml.safe_dump({"studies": {"a": {**STUDY, **CELLS}}}),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    config = load_config(["config.yaml"])
    for cell, minute in zip(config.cells(), (0, 1), strict=True):
        run = write_cell(config, cell, [4.0, 2.0, 1.0])
        ended = f"2026-01-01T10:0{minute}:07+00:00"
        write_manifest(run, {**read_manifest(run), **FACTS, "ended": ended})
    write_results(config)
    return folder


def write_results(config):
    """What the workflow makes of runs, as far as an export looks at it."""
    folder = Path(config.report_folder)
    write_json(folder / "config.json", config.resolved())
    for name in ("tables/cells.csv", "figures/a/torch/loss.png", "RESULTS.md", "index.html"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")


@pytest.fixture
def export(project):
    """A function that writes a crate and returns its entities by their names."""
    pytest.importorskip("rocrate")

    def write(*options, folder="out"):
        cli.main(["export", "--crate", folder, *options])
        return entities(Path(folder))

    return write


def entities(crate):
    graph = json.loads((crate / "ro-crate-metadata.json").read_text())["@graph"]
    found = {entity["@id"]: entity for entity in graph}
    assert len(found) == len(graph)
    return found


def named(references):
    """The names in a property that holds one reference or several."""
    references = references if isinstance(references, list) else [references]
    return {reference["@id"] for reference in references}


def refused(capsys, *arguments):
    """The one line that a command is refused with."""
    with pytest.raises(SystemExit) as end:
        cli.main(["export", *arguments])
    assert end.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("fathom: ")


# --- what is in a crate --------------------------------------------------------------------------


def test_every_file_is_listed_with_its_hash_and_is_a_copy(export, project):
    found = export()
    listed = {name for name, e in found.items() if "sha256" in e}
    out = project / "out"
    there = {str(f.relative_to(out)) for f in out.rglob("*") if f.is_file()}
    assert listed == there - {"ro-crate-metadata.json"}
    assert named(found["./"]["hasPart"]) == listed
    for name in listed:
        content = (out / name).read_bytes()
        assert content == (project / name).read_bytes()
        assert found[name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert found[name]["contentSize"] == str(len(content))
    assert {
        "config.yaml", "LICENSE", "src/fathom/a.py", "results/config.json", "results/RESULTS.md",
        "results/index.html", "results/tables/cells.csv", "results/figures/a/torch/loss.png",
        "results/runs/a/4L/mhc/torch/seed0/manifest.json",
    } <= listed  # fmt: skip
    assert not any("__pycache__" in name for name in listed)


RUN = "results/runs/a/8L/mhc/torch/seed0"
RUN_FILES = ("metrics.jsonl", "mixing.safetensors", "manifest.json")
RESULTS = ("RESULTS.md", "index.html", "tables/cells.csv", "figures/a/torch/loss.png")
TRAININGS = {f"#train/results/runs/a/{depth}L/mhc/torch/seed0" for depth in (4, 8)}
DOE, ARXIV = "https://orcid.org/0000-0002-1825-0097", "https://arxiv.org/abs/2512.24880"
SNAPSHOT = {
    # entity: property: value, or the names that it refers to
    f"#train/{RUN}": {
        "@type": "CreateAction",
        "startTime": "2026-01-01T10:00:00+00:00",
        "endTime": "2026-01-01T10:01:07+00:00",
        "instrument": {"#fathom-train"},
        "object": {f"{RUN}/spec.json"},
        "result": {f"{RUN}/{name}" for name in RUN_FILES},
        "resourceUsage": {f"#seconds/{RUN}", f"#peak_host_memory_bytes/{RUN}"},
    },
    f"#seconds/{RUN}": {"value": 7.25, "unitCode": "SEC"},
    f"#peak_host_memory_bytes/{RUN}": {"value": 1234, "unitCode": "AD"},
    "#workflow-run": {
        "@type": "CreateAction",
        "instrument": {"workflow/Snakefile"},
        "object": {"results/config.json"},
        "result": {f"results/{name}" for name in RESULTS},
        "startTime": "2026-01-01T10:00:00+00:00",
        "endTime": "2026-01-01T10:01:07+00:00",
    },
    "workflow/Snakefile": {"hasPart": {"#fathom-train"}, "license": {SPDX}, "version": "1.2.3"},
    "./": {
        "name": "A study: results",
        "description": "Of two networks.",
        "datePublished": "2026-01-02",
        "keywords": "depth, streams",
        "mainEntity": {"workflow/Snakefile"},
        "mentions": {"#workflow-run", *TRAININGS},
        "license": {SPDX},
        "author": {DOE, "#author-2"},
        "citation": {ARXIV},
    },
    DOE: {"@type": "Person", "name": "Jane Doe"},
    "#author-2": {"@type": "Organization", "name": "The lab"},
    ARXIV: {"@type": "ScholarlyArticle", "name": "On streams", "author": "Rick Roe"},
    SPDX: {"@type": "CreativeWork", "name": "MIT"},
    "#torch-2.0.0": {"@type": "SoftwareApplication", "name": "torch", "version": "2.0.0"},
}


def test_the_crate_says_what_was_computed_how_and_by_whom(export):
    found = export()
    for name, facts in SNAPSHOT.items():
        told = {
            key: named(found[name][key]) if isinstance(value, set) else found[name][key]
            for key, value in facts.items()
        }
        assert told == facts, name
    description = found[f"#train/{RUN}"]["description"]
    for fact in ("2.0.0 on cpu Test CPU", "threads: 2", "commit abc123"):
        assert fact in description


def test_the_same_results_give_the_same_crate_in_an_empty_folder_too(export, project):
    (project / "again").mkdir()
    assert export() == export(folder="again")


def test_results_elsewhere_are_put_below_results(export, project, tmp_path):
    overlay = tmp_path / "scale.yaml"
    overlay.write_text(yaml.safe_dump({"results": str(tmp_path / "far")}), encoding="utf-8")
    config = load_config(["config.yaml", overlay])
    cell = config.cells()[0]
    write_cell(config, cell, [4.0, 2.0, 1.0])
    write_cell(config, cell, [4.0, 2.0, 1.0], GPU_PLATFORM, GPU)
    write_results(config)
    found = export("--config", "config.yaml", "--config", str(overlay))
    assert "results/runs/a/4L/mhc/torch/seed0/manifest.json" in found
    assert f"#train/results/imported/{GPU_PLATFORM}/{cell.path()}" in found
    assert "configs/scale.yaml" in found
    assert str(tmp_path) not in json.dumps(found)


# --- the kept result, which reports show beside these ---------------------------------------------

KEPT = {
    "RESULTS.md": "# Results\n",
    "COMPARISON.md": "# Comparison\n",
    "studies/a.md": "# a\n",
    "tables/verdicts.csv": "claim,verdict,qualifier,studies,control_study\n"
    "it-is-so,reproduced,,a,\nit-lasts,reproduced,,gone,\n",
    "tables/claims.csv": "claim,verdict,confidence,scale\nit-is-so,reproduced,,\n",
    "tables/summary.csv": "study\na\n",
    "figures/overview/loss.png": "a picture",
    "SHA256SUMS": "",
}
NOT_CARRIED = (
    "tables/studies/a/summary.csv", "figures/overview/loss.svg", "runs/a/metrics.jsonl",
    "imported/x/metrics.jsonl", "bundles/a.tar.gz", "config.json",
)  # fmt: skip
WORDS = """\
{% from "macros.j2" import reference_verdict %}
{% for claim in ("it-is-so", "it-lasts") %}
- {{ reference_verdict(claim) }}
{% endfor %}
- [the same study]({{ reference.link }}/studies/{{ reference.pages[0] }}.md)
"""


def with_reference(project, reference):
    """The project with a kept result in that folder, and a real report that shows it."""
    for name, text in [*KEPT.items(), *((name, "not carried") for name in NOT_CARRIED)]:
        (reference / name).parent.mkdir(parents=True, exist_ok=True)
        (reference / name).write_text(text, encoding="utf-8")
    kept.record(reference)
    studies = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
    (project / "config.yaml").write_text(yaml.safe_dump({**studies, "reference": str(reference)}))
    (project / "report/templates/RESULTS.md.j2").write_text(WORDS)
    shutil.copy(PROJECT / "report/templates/macros.j2", project / "report/templates")
    (project / "report/published.yaml").write_text(
        "{sources: {}, notes: [], values: [], claims: []}"
    )
    shutil.rmtree(project / "results/tables")
    config = load_config(["config.yaml"])
    write_json(Path("results/config.json"), config.resolved())
    for command in ("tables", "claims", "report"):
        cli.main([command])


def test_what_reports_show_of_a_kept_result_is_there_and_can_be_verified(
    export, project, monkeypatch
):
    with_reference(project, Path("results/reference"))
    found = export()
    carried = {name for name in found if name.startswith("results/reference/")}
    assert carried == {f"results/reference/{name}" for name in KEPT}
    assert not carried & named(found["#workflow-run"]["result"])

    report = project / "out/results/RESULTS.md"
    links = re.findall(r"\]\(([^)#]*)", report.read_text())
    assert links == ["reference/studies/a.md", "reference/RESULTS.md", "reference/studies/a.md"]
    assert all((report.parent / link).is_file() for link in links)

    monkeypatch.chdir(project / "out")
    config = load_config(["config.yaml"])
    published = load_published(Path("report/published.yaml"), config)
    checks = verify(config, published, Path("report/templates")).checks
    assert {check.kind for check in checks if check.problem} == {"figures"}  # none were drawn


def test_a_kept_result_elsewhere_is_put_below_reference(export, project, tmp_path):
    with_reference(project, tmp_path / "kept")
    found = export()
    assert {f"reference/{name}" for name in KEPT} <= set(found)


# --- what is refused -----------------------------------------------------------------------------


def fill_out(project):
    (project / "out").mkdir()
    (project / "out/mine").write_text("mine")


REFUSED = [
    (fill_out, [], "out: is there already; name a new folder, or an empty one"),
    (
        lambda project: shutil.rmtree(project / "results"), [],
        "results: has no run to archive; run: snakemake all",
    ),
    (lambda project: (project / "results/RESULTS.md").unlink(), [], "results/RESULTS.md: missing"),
    (
        lambda project: (project / "workflow/Snakefile").unlink(), [],
        "workflow/Snakefile: missing; run this in the folder of the project",
    ),
    (
        lambda project: None, ["--set", "studies.a.description=Another."],
        "results/config.json: is not what this config gives",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "options", "said"), REFUSED)
def test_what_cannot_be_archived_is_refused_in_one_line(
    export, project, capsys, damage, options, said
):
    damage(project)
    before = sorted(project.rglob("*"))
    assert refused(capsys, "--crate", "out", *options).startswith(said)
    assert sorted(project.rglob("*")) == before


def test_nothing_half_is_left_where_a_disk_is_full(export, project, capsys, monkeypatch):
    copied = []

    def copy(source, target):
        copied.append(target)
        if len(copied) == 3:
            raise OSError(28, "No space left on device", str(target))
        return shutil.copyfile(source, target)

    monkeypatch.setattr("rocrate.model.file.shutil.copy", copy)
    before = sorted(project.iterdir())
    assert refused(capsys, "--crate", "out").endswith("No space left on device")
    assert sorted(project.iterdir()) == before


def test_runs_that_do_not_count_are_named(export, project, capsys):
    """The tables say of them why they are left out: without them nobody could check that."""
    config = load_config(["config.yaml"])
    metrics = project / "results/runs/a/4L/mhc/torch/seed0/metrics.jsonl"
    metrics.write_text(metrics.read_text() + "\n")
    write_cell(config, config.cells()[1], [4.0, 2.0, 1.0], code={"fathom.train:train": "another"})
    with pytest.raises(SystemExit):
        cli.main(["export", "--crate", "out"])
    damaged, stale, repair = capsys.readouterr().err.splitlines()
    assert damaged.startswith("fathom: results/runs/a/4L/mhc/torch/seed0: corrupt: metrics.jsonl")
    assert stale.startswith("fathom: results/runs/a/8L/mhc/torch/seed0: stale: code differs")
    assert repair == "fathom: fathom verify says how to fix this"
    assert not (project / "out").exists()


def test_two_config_files_of_one_name_are_refused(export, project, capsys, tmp_path):
    options = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scale.yaml").write_text("seeds: null\n")
        options += ["--config", str(tmp_path / folder / "scale.yaml")]
    line = refused(capsys, "--crate", "out", "--config", "config.yaml", *options)
    assert "scale.yaml: has the name of" in line


def test_without_rocrate_a_line_names_the_extra(project, capsys, monkeypatch):
    for module in list(sys.modules):
        if module.startswith(("rocrate.", "fathom.report.crate")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "rocrate", None)
    line = refused(capsys, "--crate", "out")
    assert line == (
        "this needs rocrate, which is not installed here; pip install -e '.[archive]' brings it"
    )


# --- CITATION.cff and Zenodo ---------------------------------------------------------------------


def test_zenodo_gets_what_the_citation_says(project):
    cli.main(["export", "--zenodo", "deposit.json"])
    assert json.loads(Path("deposit.json").read_text()) == {
        "upload_type": "software",
        "title": "A study",
        "description": "Of two networks.",
        "creators": [{"name": "Doe, Jane", "orcid": "0000-0002-1825-0097"}, {"name": "The lab"}],
        "version": "1.2.3",
        "access_right": "open",
        "license": "MIT",
        "publication_date": "2026-01-02",
        "keywords": ["depth", "streams"],
        "related_identifiers": [
            {
                "identifier": "arXiv:2512.24880",
                "relation": "references",
                "resource_type": "publication",
            }
        ],
    }


MISTAKES = {
    "titel: x": "CITATION.cff: top level: unknown key 'titel'; did you mean 'title'?",
    "date-released: yesterday": "CITATION.cff: date-released: string should match pattern",
    "authors: []": "CITATION.cff: authors: must list at least one value",
    "authors: [{affiliation: The lab}]": ("CITATION.cff: authors.0: give name, or family-names"),
    "authors: [{family-name: Doe}]": "CITATION.cff: authors.0: unknown key 'family-name'",
    "message: [": "CITATION.cff: line ",
    "": "CITATION.cff: cannot be read (No such file or directory)",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_citation_is_one_line(project, capsys, mistake):
    key = mistake.partition(":")[0]
    kept = yaml.safe_load(CITATION)
    kept.pop(key, None)
    Path("CITATION.cff").write_text(f"{yaml.safe_dump(kept)}{mistake}\n", encoding="utf-8")
    if not mistake:
        Path("CITATION.cff").unlink()
    assert refused(capsys, "--zenodo", "deposit.json").startswith(MISTAKES[mistake])
    assert not Path("deposit.json").exists()


def test_the_citation_of_this_project_can_be_read():
    deposit = zenodo_metadata(read_citation(PROJECT / "CITATION.cff"))
    assert [work["identifier"] for work in deposit["related_identifiers"]] == [
        "arXiv:2512.24880",
        "arXiv:2409.19606",
    ]


# --- the validator -------------------------------------------------------------------------------

VALIDATOR = Path(sys.prefix, "validator/bin/python")


@pytest.fixture
def validate(tmp_path):
    """A function that returns roc-validator's answer: how many checks, and what is wrong."""
    if not VALIDATOR.exists():
        pytest.skip("roc-validator is not installed; make validator brings it")
    context = tmp_path / "context.json"
    context.write_text(json.dumps(terms_of_version_1_1()), encoding="utf-8")
    script = Path(__file__).with_name("validate_crate.py")

    def answer(crate):
        command = [VALIDATOR, script, crate, context]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return answer


def terms_of_version_1_1():
    """RO-Crate's terms: rocrate brings those of 1.3, and these are the ones that 1.1 has otherwise.

    So no address is asked for them.
    """
    import rocrate

    file = Path(rocrate.__file__).parent / "data/ro-crate.jsonld"
    terms = json.loads(file.read_text(encoding="utf-8"))["@context"]
    for name in ("ComputationalWorkflow", "FormalParameter"):
        terms[name] = f"https://bioschemas.org/{name}"
    for name in ("input", "output"):
        terms[name] = f"https://bioschemas.org/ComputationalWorkflow#{name}"
    del terms["sha256"]
    return {"@context": terms}


@pytest.mark.slow
def test_the_validator_finds_a_provenance_run_crate_and_what_is_wrong_with_a_damaged_one(
    export, project, validate
):
    export()
    answer = validate(project / "out")
    assert answer["issues"] == []
    assert answer["checks"] > 80
    file = project / "out/ro-crate-metadata.json"
    crate = json.loads(file.read_text())
    for entity in crate["@graph"]:
        if entity["@type"] == "CreateAction":
            del entity["instrument"]
    file.write_text(json.dumps(crate))
    (project / "out/LICENSE").unlink()
    issues = "\n".join(validate(project / "out")["issues"])
    assert "instrument" in issues
    assert "LICENSE" in issues
