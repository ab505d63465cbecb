"""README.md: its size, its numbers, its examples; and the pages of docs on a user's own work."""

import re

import pandas as pd
import pytest

from fathom_study.config import installed_backends
from fathom_study.report.pages.render import environment_of
from fathom_study.report.tables.size_words import ScalePresenter
from fathom_study.report.tables.worth_words import WorthPresenter
from tests.system.examples import PROJECT, sections

README = (PROJECT / "README.md").read_text(encoding="utf-8")
TABLES = PROJECT / "results" / "reference" / "tables"
NAN = float("nan")


def test_the_cells_of_the_reference_are_counted() -> None:
    cells = pd.read_csv(TABLES / "cells.csv")
    said = re.search(r"([0-9]+) of ([0-9]+) cells are trained", README)
    there = int((cells["status"] == "imported").sum())
    if said is None:
        assert there == len(cells)
    else:
        assert [int(n) for n in said.groups()] == [there, len(cells)]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 130
    own = re.sub(r"<!-- [a-z]+ -->.*?<!-- end -->", "", README, flags=re.DOTALL)
    assert [line for line in own.splitlines() if len(line) > 300] == []


def test_times_of_commands_equal_the_measured_times() -> None:
    """benchmarks/commands.csv was measured by hand, in fresh clones on an idle machine."""
    table = pd.read_csv(PROJECT / "benchmarks/commands.csv").set_index("command")
    seconds = table["seconds"]
    for name in ("README.md", "docs/artifact.md", "docs/installing.md"):
        text = (PROJECT / name).read_text(encoding="utf-8")
        assert f" {seconds['make all'] / 60:.0f} minutes on two cores" in text, name
    quick = seconds["fathom judge my_connection.py:TwoStreams --quick"]
    assert f"`--quick` takes {quick:.0f} seconds" in README


@pytest.mark.skipif("torch" not in installed_backends(), reason="the example is of PyTorch")
def test_the_librarys_example_runs() -> None:
    (library,) = (text for language, text in sections(README)["fathom"] if language == "python")
    names: dict = {}
    exec(library, names)  # noqa: S102, README's own
    assert names["x"].shape == (8, 64, 128)
    names["x"].sum().backward()
    assert all(branch.weight.grad.abs().max() > 0 for branch in names["branches"])


# --- worth ---------------------------------------------------------------------------------------


def row(variant, multiplier, low, high, verdict, **changes):
    return {
        "variant": variant, "design": variant, "against": "baseline", "depth": 12, "seeds": 5,
        "rate": "one rate", "answer": "at",
        "multiplier": multiplier, "corrected_low": low, "corrected_high": high, "least": 0.5,
        "most": 2.0, "pays_here": "", "pays_operations": "", "pays_fused": "", "width": 64.0,
        "cost": NAN, "cost_wider": NAN, "operations": NAN, "cost_fused": NAN, "wider": NAN,
        "verdict": verdict,
    } | changes  # fmt: skip


def test_worth_in_words_that_the_kept_result_does_not_need() -> None:
    rows = [
        row("hc", 0.8, 0.5, 1.0, "worse", after_looking="seeds"),
        row("altup", 1.01, 0.9, 1.1, "undecided"),
        row("mhc", 1.01, 0.99, 1.03, "equivalent"),
    ]
    environment = environment_of(PROJECT / "report/templates", {})
    worth = WorthPresenter("released", "text", "What is it worth?", rows, {}, "baseline")
    nothing = {"rows": [], "summary": []}
    environment.globals |= {
        "worth": worth, "scale": ScalePresenter([], [], []), "within": "within 5 %",
        "kept": "KEPT", "confidence": 95, "absent": "–",
        "measured": [], "stability": [], "verdicts": nothing, "attribution": nothing,
    }  # fmt: skip
    text = environment.get_template("readme.j2").module.worth_block()
    # Columns without values are left out.
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        "| hc | −25 % (−100 to 0 %) | 5 |"
    ]
    assert "Seeds added after looking: 1 of these 1 rows." in text
    assert "Undecided is one other, 1 % (−11 to 9 %) of the steps ([all rows]" in text
    assert "Equivalent within 5 %: mhc.\n" in text
    assert "best rate" not in text
