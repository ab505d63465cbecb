"""Quoting on the command lines of rules, and strange names of files and folders."""

import json
import re
import sys

import pytest

from tests.support.commands import finished
from tests.support.project import PROJECT, copy_project, only
from tests.workflow.conftest import SMOKE

RULES = [*sorted((PROJECT / "workflow").rglob("*.smk")), PROJECT / "workflow/Snakefile"]
STRANGE = """it's "a" $(touch pwned) `touch pwned` * ; & %s \\ # é"""


def shell_commands(text):
    """(indent, text) of every `shell:` in a file of rules."""
    return re.findall(r"^( +)shell:\n((?:\1 +.*\n)+)", text, re.M)


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.name)
def test_everything_on_a_command_line_is_quoted(file):
    text = file.read_text()
    commands = [command for _, command in shell_commands(text)]
    assert len(commands) == len(re.findall(r"^ +shell:", text, re.M))
    for command in commands:
        fields = re.findall(r"\{(.*?)\}", command)
        assert fields
        assert [field for field in fields if not field.endswith(":q")] == []


def test_project_interpreter_results_and_temporary_folder_may_have_any_name(tmp_path):
    """All jobs of a cell, its tables, figures and reports, and of the checks after it."""
    project, python, scratch = (tmp_path / f"{name} {STRANGE}" for name in ("a", "b", "c"))
    for folder in (project, scratch):
        folder.mkdir()
    python.symlink_to(sys.prefix)
    study = {"variants": ["mhc"], "backends": ["torch"], "description": "The {x}."}
    copy_project(project, only({"depth-torch": study}, results=STRANGE))
    command = ("-m", "snakemake", "all", "verify", "cell_figures", *SMOKE)
    done = finished(python / "bin/python", *command, folder=project, TMPDIR=str(scratch))
    assert done.returncode == 0, done.stdout + done.stderr
    results = project / STRANGE
    assert (results / "runs/depth-torch/2L/mhc/torch/seed0/metrics.jsonl").stat().st_size > 0
    assert (results / "RESULTS.md").read_text().startswith("# Results")
    assert (results / "logs/verify.log").read_text().startswith("verified: ")
    figures = [
        *results.glob("figures/depth-torch/torch/*.png"),
        *results.glob("figures/cells/**/*.png"),
    ]
    assert len(figures) > 2
    assert all(figure.stat().st_size > 5000 for figure in figures)
    kept = json.loads((results / "config.json").read_text())
    assert kept["results"] == STRANGE
    assert kept["studies"]["depth-torch"]["description"] == "The {x}."
    assert not list(tmp_path.rglob("pwned"))
