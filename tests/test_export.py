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
from fathom.report.citation import read_citation, zenodo_metadata
from fathom.report.verify import verify
from fathom.system.files import write_json
from run_helpers import (
    GPU,
    GPU_PLATFORM,
    STUDY,
    read_manifest,
    write_cell,
    write_manifest,
)  # fmt: skip

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
    "ended": "2026-01-01T10:00:07+00:00",
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
    for cell in config.cells():
        run = write_cell(config, cell, [4.0, 2.0, 1.0])
        write_manifest(run, {**read_manifest(run), **FACTS})
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


def test_a_training_is_an_action_with_the_facts_of_its_manifest(export):
    found = export()
    run = "results/runs/a/8L/mhc/torch/seed0"
    training = found[f"#train/{run}"]
    assert training["@type"] == "CreateAction"
    assert training["startTime"] == "2026-01-01T10:00:00+00:00"
    assert training["endTime"] == "2026-01-01T10:00:07+00:00"
    assert named(training["object"]) == {f"{run}/spec.json"}
    assert named(training["result"]) == {
        f"{run}/{name}" for name in ("metrics.jsonl", "mixing.safetensors", "manifest.json")
    }
    usage = [found[name] for name in named(training["resourceUsage"])]
    assert {(u["name"], u["value"], u["unitCode"]) for u in usage} == {
        ("seconds", 7.25, "SEC"),
        ("peak_host_memory_bytes", 1234, "AD"),
    }
    for fact in ("2.0.0 on cpu Test CPU", "threads: 2", "commit abc123"):
        assert fact in training["description"]
    assert named(training["instrument"]) == {"#fathom-train"}


def test_the_workflow_made_the_results_of_the_config(export):
    found = export()
    root = found["./"]
    assert named(root["mainEntity"]) == {"workflow/Snakefile"}
    action = found["#workflow-run"]
    assert named(action["instrument"]) == {"workflow/Snakefile"}
    assert named(action["object"]) == {"results/config.json"}
    assert named(action["result"]) == {
        "results/RESULTS.md", "results/index.html", "results/tables/cells.csv",
        "results/figures/a/torch/loss.png",
    }  # fmt: skip
    trainings = {f"#train/results/runs/a/{depth}L/mhc/torch/seed0" for depth in (4, 8)}
    assert named(root["mentions"]) == {"#workflow-run", *trainings}


def test_the_root_says_whose_it_is_and_under_which_licence(export):
    found = export()
    root = found["./"]
    assert root["name"] == "A study: results"
    assert root["datePublished"] == "2026-01-02"
    assert named(root["license"]) == {SPDX}
    assert {found[name]["name"] for name in named(root["author"])} == {"Jane Doe", "The lab"}
    assert found["https://orcid.org/0000-0002-1825-0097"]["@type"] == "Person"
    assert found["https://arxiv.org/abs/2512.24880"]["author"] == "Rick Roe"


def test_the_same_results_give_the_same_crate(export, project):
    first, second = export(), export(folder="again")
    assert first == second


def test_imported_runs_are_there(export):
    config = load_config(["config.yaml"])
    cell = config.cells()[0]
    write_cell(config, cell, [4.0, 2.0, 1.0], GPU_PLATFORM, GPU)
    assert f"#train/results/imported/{GPU_PLATFORM}/{cell.path()}" in export()


def test_results_elsewhere_are_put_below_results(export, project, tmp_path):
    overlay = tmp_path / "scale.yaml"
    overlay.write_text(yaml.safe_dump({"results": str(tmp_path / "far")}), encoding="utf-8")
    config = load_config(["config.yaml", overlay])
    write_cell(config, config.cells()[0], [4.0, 2.0, 1.0])
    write_results(config)
    found = export("--config", "config.yaml", "--config", str(overlay))
    assert "results/runs/a/4L/mhc/torch/seed0/manifest.json" in found
    assert "configs/scale.yaml" in found
    assert str(tmp_path) not in json.dumps(found)


# --- the kept result, which reports show beside these ---------------------------------------------

KEPT = {
    "RESULTS.md": "# Results\n",
    "COMPARISON.md": "# Comparison\n",
    "studies/a.md": "# a\n",
    "tables/verdicts.csv": "claim,verdict,qualifier,studies,control_study\n"
    "it-is-so,reproduced,,a,\nit-lasts,reproduced,,gone,\n",
    "tables/claims.csv": "claim,verdict\nit-is-so,reproduced\n",
    "tables/summary.csv": "study\na\n",
    "figures/overview/loss.png": "a picture",
}
NOT_CARRIED = (
    "tables/steps.csv.gz", "figures/overview/loss.svg", "runs/a/metrics.jsonl",
    "imported/x/metrics.jsonl", "bundles/a.tar.gz", "config.json",
)  # fmt: skip
WORDS = """\
{% for claim in ("it-is-so", "it-lasts") %}
- {{ reference.verdict(claim) }}
{% endfor %}
- [the same study]({{ reference.page("a") }})
"""


def with_reference(project, reference):
    """The project with a kept result in that folder, and a real report that shows it."""
    for name, text in [*KEPT.items(), *((name, "not carried") for name in NOT_CARRIED)]:
        (reference / name).parent.mkdir(parents=True, exist_ok=True)
        (reference / name).write_text(text, encoding="utf-8")
    studies = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
    (project / "config.yaml").write_text(yaml.safe_dump({**studies, "reference": str(reference)}))
    (project / "report/templates/RESULTS.md.j2").write_text(WORDS)
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
    problems = verify(config, published, Path("report/templates")).problems_of
    assert {path.parts[1] for path in problems} == {"figures"}  # which were not drawn


def test_a_kept_result_elsewhere_is_put_below_reference(export, project, tmp_path):
    with_reference(project, tmp_path / "kept")
    found = export()
    assert {f"reference/{name}" for name in KEPT} <= set(found)


# --- what is refused -----------------------------------------------------------------------------


def test_a_folder_with_something_in_it_stays_as_it_is(export, project, capsys):
    (project / "out").mkdir()
    (project / "out/mine").write_text("mine")
    line = refused(capsys, "--crate", "out")
    assert line == "out: is there already; name a new folder, or an empty one"
    assert [file.name for file in (project / "out").iterdir()] == ["mine"]


def test_an_empty_folder_is_filled(export, project):
    (project / "out").mkdir()
    assert "./" in export()


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


def test_without_a_run_a_line_says_what_makes_one(export, project, capsys):
    shutil.rmtree(project / "results")
    line = refused(capsys, "--crate", "out")
    assert line.startswith("results: has no run to archive; run: snakemake all")
    assert not (project / "out").exists()


def test_results_of_another_config_are_refused(export, capsys):
    line = refused(capsys, "--crate", "out", "--set", "studies.a.description=Another.")
    assert line.startswith("results/config.json: is not what this config gives")


def test_a_missing_report_is_named(export, project, capsys):
    (project / "results/RESULTS.md").unlink()
    assert refused(capsys, "--crate", "out").startswith("results/RESULTS.md: missing")


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
    assert repair == "fathom: fathom verify says what repairs this"
    assert not (project / "out").exists()


def test_two_config_files_of_one_name_are_refused(export, project, capsys, tmp_path):
    options = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "scale.yaml").write_text("seeds: null\n")
        options += ["--config", str(tmp_path / folder / "scale.yaml")]
    line = refused(capsys, "--crate", "out", "--config", "config.yaml", *options)
    assert "scale.yaml: has the name of" in line


def test_a_command_without_an_option_says_which_there_are(project, capsys):
    assert refused(capsys) == "nothing to export: give --crate FOLDER, --zenodo FILE, or both"


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
        "creators": [
            {"name": "Doe, Jane", "orcid": "0000-0002-1825-0097"},
            {"name": "The lab"},
        ],
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
    "licence: MIT": "CITATION.cff: top level: unknown key 'licence'; did you mean 'license'?",
    "date-released: yesterday": "CITATION.cff: date-released: string should match pattern",
    "authors: []": "CITATION.cff: authors: must list at least one value",
    "authors: [{affiliation: The lab}]": ("CITATION.cff: authors.0: give name, or family-names"),
    "authors: [{family-name: Doe}]": "CITATION.cff: authors.0: unknown key 'family-name'",
    "message: [": "CITATION.cff: line ",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_citation_is_one_line(project, capsys, mistake):
    key = mistake.partition(":")[0]
    kept = yaml.safe_load(CITATION)
    kept.pop(key, None)
    Path("CITATION.cff").write_text(f"{yaml.safe_dump(kept)}{mistake}\n", encoding="utf-8")
    assert refused(capsys, "--zenodo", "deposit.json").startswith(MISTAKES[mistake])
    assert not Path("deposit.json").exists()


def test_a_missing_citation_is_one_line(project, capsys):
    Path("CITATION.cff").unlink()
    line = refused(capsys, "--zenodo", "deposit.json")
    assert line.startswith("CITATION.cff: missing; run this in the folder of the project")


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
    schemas = "https://bioschemas.org/"
    workflow = f"{schemas}ComputationalWorkflow"
    terms |= {
        "ComputationalWorkflow": workflow,
        "FormalParameter": f"{schemas}FormalParameter",
        "input": f"{workflow}#input",
        "output": f"{workflow}#output",
    }
    del terms["sha256"]
    return {"@context": terms}


@pytest.mark.slow
def test_the_validator_finds_a_provenance_run_crate(export, project, validate):
    export()
    answer = validate(project / "out")
    assert answer["issues"] == []
    assert answer["checks"] > 80


@pytest.mark.slow
def test_the_validator_finds_what_is_wrong(export, project, validate):
    """Or its silence would say nothing."""
    export()
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
