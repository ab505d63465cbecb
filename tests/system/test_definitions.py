"""docs/definitions.md agrees with the metrics and connections of the code."""

import re
import shutil
from pathlib import Path

import pytest

from fathom.connections.components import CLOSINGS, COEFFICIENTS, EXPANSIONS, GATES, WEIGHTS
from fathom.connections.constraints import CONSTRAINTS
from fathom_study import tasks
from tests.support.markdown import table

# --- the document, and the command that updates it -----------------------------------------------


@pytest.fixture
def files(pytestconfig, tmp_path, monkeypatch):
    """Copies of the definitions, config schema, schemes page and README."""
    root = pytestconfig.rootpath
    for name in ("docs", "workflow"):
        shutil.copytree(root / name, tmp_path / name)
    shutil.copy(root / "README.md", tmp_path)
    for name in ("benchmarks", "config.yaml", "report", "results", "src"):
        (tmp_path / name).symlink_to(root / name)
    monkeypatch.chdir(tmp_path)
    names = (
        "docs/definitions.md",
        "workflow/schemas/config.schema.json",
        "docs/schemes.md",
        "README.md",
    )
    return [Path(name) for name in names]


def test_documents_are_current_and_name_every_metric(files, fathom):
    assert fathom("schema", "--check")[::2] == (0, [])
    text = files[0].read_text(encoding="utf-8")
    for name in (*tasks.step_metrics(), *tasks.run_metrics()):
        assert f"`{name}`" in text


def test_hand_edited_lines_are_detected_and_restored(files, fathom):
    kept = [file.read_text(encoding="utf-8") for file in files]
    old = "smallest finite loss", "description", "column means", "Framework or"
    for file, text, words in zip(files, kept, old, strict=True):
        file.write_text(text.replace(words, "something else", 1), encoding="utf-8")
    status, _, errors = fathom("schema", "--check")
    assert status == 1
    assert [f for f in files if f"{f} is out of date" not in "\n".join(errors)] == []
    assert fathom("schema")[::2] == (0, [])
    assert [file.read_text(encoding="utf-8") for file in files] == kept


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
