"""docs/artifact.md: its numbers are the config's, and its commands do what it says."""

import re
from collections import Counter
from pathlib import Path

import pytest

from command_helpers import shell
from fathom.config import installed_backends
from fathom.report.figures import figures_of
from markdown_helpers import parsed

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs/artifact.md"
ROW = r"^\| `([a-z0-9-]+)` \| `([a-z]+)` \| (\d+) \| (\d+|–) \| (\d+|–) \|$"


def rows():
    """(study, family, trainings, seconds) of the table."""
    found = re.findall(ROW, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [
        (study, family, int(trainings), int(seconds))
        for study, family, trainings, seconds, _ in found
    ]


def commands(containing):
    """The block of shell commands that has these words."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = [t.content for t in parsed(text) if t.type == "fence" and t.info == "sh"]
    (block,) = [block for block in blocks if containing in block]
    return block


def test_the_table_has_every_study_with_its_trainings_and_figures(default_config):
    trainings = Counter(cell.study for cell in default_config.cells())
    assert {study: number for study, _, number, _ in rows()} == trainings
    families = {name: study.figures for name, study in default_config.studies.items()}
    assert {study: family for study, family, *_ in rows()} == families


def test_the_sums_are_those_of_the_table():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    trainings, seconds = (sum(row[column] for row in rows()) for column in (2, 3))
    assert f"all {trainings} trainings, {seconds} s" in text


@pytest.mark.slow
@pytest.mark.skipif("torch" not in installed_backends(), reason="the page trains on PyTorch")
def test_one_figure_is_drawn_as_the_page_says(tmp_path):
    for name in ("config.yaml", "report"):
        (tmp_path / name).symlink_to(PROJECT / name)
    shell(commands("train-all"), tmp_path)
    drawn = {file.stem for file in (tmp_path / "figures").glob("*.png")}
    assert drawn == set(figures_of("sweep"))
    assert all(file.stat().st_size > 5000 for file in (tmp_path / "figures").glob("*.png"))
