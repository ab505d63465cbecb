"""README.md: how many cells it counts, and what it says of studies, schemes, texts and tasks of
one's own works."""

import re
from pathlib import Path

import pandas as pd
import pytest

from command_helpers import shell
from contributing_helpers import copy_of_project, sections
from fathom.config import installed_backends

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
TABLES = PROJECT / "results" / "reference" / "tables"


def test_the_cells_of_the_reference_are_counted() -> None:
    cells = pd.read_csv(TABLES / "cells.csv")
    said = re.search(r"([0-9]+) of ([0-9]+) cells are trained", README)
    there = int((cells["status"] == "imported").sum())
    if said is None:
        assert there == len(cells)
    else:
        assert [int(n) for n in said.groups()] == [there, len(cells)]


# --- of one's own --------------------------------------------------------------------------------

OWN = {name: blocks for name, blocks in sections(README).items() if name.startswith("your-own-")}


@pytest.mark.slow
@pytest.mark.skipif("torch" not in installed_backends(), reason="the sections train on PyTorch")
@pytest.mark.parametrize("name", [f"your-own-{of}" for of in ("study", "scheme", "text", "task")])
def test_what_a_section_says_works(name, tmp_path, monkeypatch) -> None:
    copy_of_project(tmp_path)
    (tmp_path / "my-texts").mkdir()
    (tmp_path / "my-texts/a.txt").write_text("A text of my own, again and again.\n" * 500)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "src"))
    for language, content in OWN[name]:
        first, _, rest = content.partition("\n")
        if language == "sh":
            shell(content, tmp_path)
        else:
            (tmp_path / first.removeprefix("# ")).write_text(rest)
    assert not (tmp_path / "results/runs").exists()  # those of config.yaml
    runs = list((tmp_path / "results").rglob("manifest.json"))
    assert len(runs) == (6 if name == "your-own-study" else 1)
