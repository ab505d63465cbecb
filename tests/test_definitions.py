"""What docs/definitions.md says of metrics and connections is what the code has."""

import itertools
import re
import shutil
from pathlib import Path

import pytest

from fathom import cli, tasks
from fathom.metrics import runs, steps
from fathom.metrics.runs import RunMetric, last
from fathom.metrics.steps import StepMetric
from fathom.models.connections.components import (
    CLOSINGS,
    COEFFICIENTS,
    EXPANSIONS,
    GATES,
    WEIGHTS,
)
from fathom.models.connections.constraints import CONSTRAINTS
from fathom.report import definitions
from fathom.report.definitions import run_table, step_table, with_tables
from markdown_helpers import table


@pytest.fixture
def few(monkeypatch):
    """Registries of a few metrics."""
    steps = {
        "loss": StepMetric("loss (nats)", "what is |minimised|"),
        "left": StepMetric("l", "a side"),
        "start": StepMetric("s", "a side", when="first step"),
        "right": StepMetric("r", "a side"),
        "end": StepMetric("e", "the end", when="last step"),
    }
    runs = {
        "loss_final": RunMetric("loss", last, "loss of the last step"),
        "end": RunMetric("end", last, "as it is"),
        "end_again": RunMetric("end", last, "as it is"),
    }
    monkeypatch.setattr(definitions.tasks, "step_metrics", lambda: steps)
    monkeypatch.setattr(definitions.tasks, "run_metrics", lambda: runs)


STEPS = """\
| field | meaning |
|---|---|
| `loss` | what is \\|minimised\\| |
| `left`, `right` | a side |
| `start` | first step only: a side |
| `end` | last step only: the end |
"""

RUNS = """\
| column | meaning |
|---|---|
| `loss_final` | loss of the last step (from `loss`) |
| `end`, `end_again` | as it is (from `end`) |
"""


def test_tables_by_hand(few):
    assert step_table() == STEPS
    assert run_table() == RUNS


def test_only_what_stands_between_marks_is_replaced(few):
    text = (
        "# Title\n\n<!-- run metrics -->\nold\nlines\n<!-- end -->\nBetween.\n"
        "<!-- step metrics -->\n<!-- end -->\n| `loss` | a table of its own |\n"
    )
    written = with_tables(text)
    assert written == (
        f"# Title\n\n<!-- run metrics -->\n{RUNS}<!-- end -->\nBetween.\n"
        f"<!-- step metrics -->\n{STEPS}<!-- end -->\n| `loss` | a table of its own |\n"
    )
    assert with_tables(written) == written


# --- the document, and the command that keeps it -------------------------------------------------


@pytest.fixture
def files(pytestconfig, tmp_path):
    """Copies of definitions, of the schema of config.yaml, the page of schemes and README."""
    names = ("docs/definitions.md", "workflow/schemas/config.schema.json", "docs/schemes.md")
    names += ("README.md",)
    return [Path(shutil.copy(pytestconfig.rootpath / name, tmp_path)) for name in names]


@pytest.fixture
def schema(files, capsys):
    """A function that runs `fathom schema` on the copies: (exit status, its errors)."""
    names = ("--definitions", "--out", "--schemes", "--readme")
    options = zip(names, map(str, files), strict=True)
    command = ["schema", *itertools.chain(*options)]

    def run(*arguments):
        status = 0
        try:
            cli.main([*command, *arguments])
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr().err

    return run


NEW_STEP = StepMetric("its label", "what nobody has measured yet", when="last step")
NEW_RUN = RunMetric("loss", last, "what nobody has derived yet")


def test_the_document_is_current_and_names_every_measure(files, schema):
    assert schema("--check") == (0, "")
    text = files[0].read_text(encoding="utf-8")
    for name in (*tasks.step_metrics(), *tasks.run_metrics()):
        assert f"`{name}`" in text


@pytest.mark.parametrize(
    ("registry", "entry", "line"),
    [
        (
            steps.STEP_METRICS,
            NEW_STEP,
            "| `new` | last step only: what nobody has measured yet |",
        ),
        (runs.RUN_METRICS, NEW_RUN, "| `new` | what nobody has derived yet (from `loss`) |"),
    ],
    ids=["step", "run"],
)
def test_an_added_measure_is_missed_and_then_written(
    registry, entry, line, files, schema, monkeypatch
):
    document, *_ = files
    before = document.read_text(encoding="utf-8").splitlines()
    monkeypatch.setitem(registry, "new", entry)
    status, said = schema("--check")
    assert (status, said) == (
        1,
        f"fathom: {document} is out of date; run: fathom schema\n",
    )
    assert document.read_text(encoding="utf-8").splitlines() == before  # only looked at
    assert schema() == (0, "")
    assert schema("--check") == (0, "")
    after = document.read_text(encoding="utf-8").splitlines()
    assert [x for x in after if x not in before] == [line]
    assert [x for x in after if x != line] == before


@pytest.mark.parametrize(
    "position", [0, 1, 2, 3], ids=["definitions", "schema", "schemes", "readme"]
)
def test_a_line_altered_by_hand_is_missed(position, files, schema):
    text = files[position].read_text(encoding="utf-8")
    old = ("smallest finite loss", "description", "column means", "Framework or")[position]
    files[position].write_text(text.replace(old, "something else", 1), encoding="utf-8")
    status, said = schema("--check")
    assert (status, f"{files[position]} is out of date" in said) == (1, True)
    assert schema() == (0, "")
    assert files[position].read_text(encoding="utf-8") == text


def test_a_schema_that_is_not_there_is_missed(files, schema):
    files[1].unlink()
    assert schema("--check")[0] == 1


# --- the tables of connections -------------------------------------------------------------------


def listed(cells):
    """Names in cells of a table."""
    return [name for cell in cells for name in cell.split(", ")]


def test_every_component_is_in_the_table_of_slots(files):
    rows = table(files[0].read_text(encoding="utf-8"), "Connections", "##")
    registries = (EXPANSIONS, COEFFICIENTS, WEIGHTS, GATES, CLOSINGS)
    expected = [name for registry in registries for name in registry]
    assert sorted(listed(row[1] for row in rows)) == sorted([*expected, "a family of matrices"])


def test_every_constraint_is_in_its_table_with_its_settings(files):
    rows = table(files[0].read_text(encoding="utf-8"), "Constraints")
    assert listed(row[0] for row in rows) == list(CONSTRAINTS)
    for name, _, _, _, settings in rows:
        fields = set(CONSTRAINTS[name].model_fields) - {"kind", "start"}
        assert {part for part in re.findall(r"[a-z]+", settings) if part in fields} == fields
