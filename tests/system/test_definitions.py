"""docs/definitions agrees with the code, and its index with its pages."""

import re
import shutil
from pathlib import Path

import pytest

from fathom.connections.components import CLOSINGS, COEFFICIENTS, EXPANSIONS, GATES, WEIGHTS
from fathom.connections.constraints import CONSTRAINTS
from fathom_study import tasks
from tests.support.markdown import inline, slug, table
from tests.support.project import PROJECT

LONGEST = 250
"""Lines of a page."""

# --- the documents, and the command that updates them --------------------------------------------


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
        "docs/definitions/metrics.md",
        "docs/definitions/summary.md",
        "docs/definitions/README.md",
        "workflow/schemas/config.schema.json",
        "docs/schemes.md",
        "README.md",
    )
    return [Path(name) for name in names]


def test_documents_are_current_and_name_every_metric(files, fathom):
    assert fathom("schema", "--check")[::2] == (0, [])
    text = "".join(file.read_text(encoding="utf-8") for file in files[:2])
    for name in (*tasks.step_metrics(), *tasks.run_metrics()):
        assert f"`{name}`" in text


def test_hand_edited_lines_are_detected_and_restored(files, fathom):
    kept = [file.read_text(encoding="utf-8") for file in files]
    old = (
        "share of all test images", "smallest finite loss", "Break-even overhead", "description",
        "column means", "Framework or",
    )  # fmt: skip
    for file, text, words in zip(files, kept, old, strict=True):
        file.write_text(text.replace(words, "something else", 1), encoding="utf-8")
    status, _, errors = fathom("schema", "--check")
    assert status == 1
    assert [f for f in files if f"{f} is out of date" not in "\n".join(errors)] == []
    assert fathom("schema")[::2] == (0, [])
    assert [file.read_text(encoding="utf-8") for file in files] == kept


# --- pages and index -----------------------------------------------------------------------------


def test_every_heading_is_in_the_index():
    folder = PROJECT / "docs/definitions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    links = {token.attrGet("href") for token in inline(index)}
    for page in set(folder.glob("*.md")) - {folder / "README.md"}:
        title, *below = re.findall("^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert {page.name, *(f"{page.name}#{slug(heading)}" for heading in below)} <= links, title


@pytest.mark.parametrize("folder", ["definitions", "extending"])
def test_pages_are_short(folder):
    files = sorted((PROJECT / "docs" / folder).glob("*.md"))
    lengths = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}
    assert "README.md" in lengths


# --- the tables of connections -------------------------------------------------------------------


CONNECTIONS = PROJECT / "docs/definitions/connections.md"


def listed(cells):
    """Names in cells of a table."""
    return [name for cell in cells for name in cell.split(", ")]


def test_every_component_is_in_the_table_of_slots():
    rows = table(CONNECTIONS.read_text(encoding="utf-8"), "Connections", "#")
    registries = (EXPANSIONS, COEFFICIENTS, WEIGHTS, GATES, CLOSINGS)
    expected = [name for registry in registries for name in registry]
    assert sorted(listed(row[1] for row in rows)) == sorted([*expected, "a family of matrices"])


def test_every_constraint_is_in_its_table_with_its_settings():
    rows = table(CONNECTIONS.read_text(encoding="utf-8"), "Constraints", "##")
    assert listed(row[0] for row in rows) == list(CONSTRAINTS)
    for name, _, _, _, settings in rows:
        fields = set(CONSTRAINTS[name].model_fields) - {"kind", "start"}
        assert {part for part in re.findall(r"[a-z]+", settings) if part in fields} == fields
