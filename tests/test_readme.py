"""README.md: what it links to a row of the reference's tables is what that row says, and what it
says of studies, schemes, texts and tasks of one's own works."""

import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import yaml

from command_helpers import shell
from contributing_helpers import copy_of_project, sections
from fathom import tasks
from fathom.config import installed_backends
from fathom.report.formatting import number, percent, plus_minus, with_interval

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
TABLES = PROJECT / "results" / "reference" / "tables"

LINKED = re.compile(r"\[([^\]]*)\]\(results/reference/tables/([a-z_]+)\.csv#L([0-9]+)\)")
VERDICTS = ["reproduced", "not reproduced", "contradicted", "not measured"]


def of_a_group(row: pd.Series) -> set[str]:
    """How a report writes each metric of a row of the summary, with its interval and without."""
    found = set()
    for metric in ("score", *tasks.averaged()):
        parts = [f"{metric}_{part}" for part in ("mean", "low", "high", "n")]
        if set(parts) <= set(row.index):
            mean, low, high, finite = row[parts]
            found |= {with_interval(mean, low, high, finite, row["n"]), number(mean)}
    return found


def of_an_effect(row: pd.Series) -> set[str]:
    """How a report writes an effect."""
    return {plus_minus(row["effect"], row["ci95_half"], row["seeds"], row["seeds"])}


def of_a_factor(row: pd.Series) -> set[str]:
    """How a report writes a share of variance."""
    return {percent(row["median"])}


SAYS = {"summary": of_a_group, "effects": of_an_effect, "variance_summary": of_a_factor}


def test_a_group_says_its_mean_and_its_interval() -> None:
    parts = {"mean": 0.5, "low": 0.42, "high": 0.58, "n": 3}
    row = pd.Series({f"loss_final_{part}": value for part, value in parts.items()} | {"n": 3})
    assert of_a_group(row) == {"0.500 ± 0.080", "0.5"}


def test_what_leads_to_a_row_is_what_the_row_says() -> None:
    links = LINKED.findall(README)
    assert len(links) >= 10, "the findings lead to the tables that they rest on"
    for text, table, line in links:
        row = pd.read_csv(TABLES / f"{table}.csv").iloc[int(line) - 2]  # the header is the first
        assert text in SAYS[table](row), (text, table, line)


def test_the_scorecard_counts_the_verdicts_of_the_reference() -> None:
    sources = yaml.safe_load((PROJECT / "report" / "published.yaml").read_text(encoding="utf-8"))
    titles = {name: source["title"] for name, source in sources["sources"].items()}
    verdicts = pd.read_csv(TABLES / "verdicts.csv")
    header, _, *rows = re.findall(r"^\|(.*)\|$", README.partition("## What it found")[2], re.M)
    assert [cell.strip() for cell in header.split("|")][1:] == VERDICTS
    shown: Counter[tuple[str, str]] = Counter()
    for row in rows[: verdicts["source"].nunique()]:
        source, *counts = (cell.strip() for cell in row.split("|"))
        shown.update({(source, v): int(n) for v, n in zip(VERDICTS, counts, strict=True)})
    pairs = zip(verdicts["source"].map(titles), verdicts["verdict"], strict=True)
    assert +shown == Counter(pairs)


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


def test_there_is_a_short_section_for_each_thing_of_ones_own() -> None:
    assert [name.removeprefix("your-own-") for name in OWN] == ["study", "scheme", "text", "task"]
    for blocks in OWN.values():
        for _, content in blocks:  # without the line that names the file
            assert len([line for line in content.splitlines() if line[:2] != "# "]) <= 6


@pytest.mark.slow
@pytest.mark.skipif("torch" not in installed_backends(), reason="the sections train on PyTorch")
@pytest.mark.parametrize("name", OWN)
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
    runs = list((tmp_path / "results/runs").rglob("manifest.json"))
    assert len(runs) == (6 if name == "your-own-study" else 1)
