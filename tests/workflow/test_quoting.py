"""What a rule puts on a command line, and names that the workflow has for itself."""

import json
import re

import pytest

from conftest import SMOKE
from fathom.config.study import RESERVED_NAMES
from grid_helpers import PROJECT

pytestmark = pytest.mark.slow

RULES = [*sorted((PROJECT / "workflow").rglob("*.smk")), PROJECT / "workflow/Snakefile"]
STRANGE = """it's "a" $(touch pwned) `touch pwned` * ; & %s \\ # b"""


def shell_commands(text):
    """The text of every `shell:` of a file of rules."""
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


def test_no_study_has_the_name_of_a_rule():  # which have an underscore, or are reserved
    rules = {
        name for file in RULES for name in re.findall(r"^ *rule (\w+):", file.read_text(), re.M)
    }
    assert {name for name in rules if "_" not in name} <= RESERVED_NAMES


def test_a_folder_may_have_any_name(workflow):
    """A cell, the tables and a figure, made in it by the real rules."""
    results = workflow.folder / STRANGE
    (workflow.folder / "results/smoke").rename(results)
    workflow.edit("workflow/presets/smoke.yaml", "results/smoke", json.dumps(STRANGE))
    workflow.edit(
        "workflow/presets/smoke.yaml",
        "  depth-torch:\n",
        "  depth-torch:\n    description: The {x}.\n",
    )
    (results / "config.json").unlink()
    metrics = results / "runs/depth-torch/2L/mhc/torch/seed0/metrics.jsonl"
    figure = next((results / "figures/depth-torch/torch").glob("*.png"))
    for file in (metrics, figure):
        file.unlink()
    wanted = (results / "config.json", metrics, figure)
    result = workflow.snakemake(*(str(f.relative_to(workflow.folder)) for f in wanted), *SMOKE)
    assert result.returncode == 0, result.stdout + result.stderr
    assert metrics.stat().st_size > 0
    assert figure.stat().st_size > 10_000
    kept = json.loads((results / "config.json").read_text())
    assert kept["results"] == STRANGE
    assert kept["studies"]["depth-torch"]["description"] == "The {x}."
    assert not list(workflow.folder.rglob("pwned"))
    assert not (workflow.folder / "results/smoke").exists()
