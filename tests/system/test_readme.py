"""README.md: its size, its numbers, its examples; and the pages of docs on a user's own work."""

import re

import pandas as pd
import pytest

from fathom_study.analysis.platforms import Platform
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

LABELS = {"baseline": "plain", "mhc": "mHC", "hc": "HC", "altup": "AltUp"}
CPU = Platform.parse("torch-cpu-amd-epyc-linux")


def row(variant, multiplier, low, high, verdict, **changes):
    return {
        "study": "released", "platform": CPU, "depth": 12, "variant": variant,
        "against": "baseline", "rate": "one rate", "seeds": 5,
        "on_ladder": 5, "outside": 0, "answer": "at",
        "multiplier": multiplier, "corrected_low": low, "corrected_high": high, "least": 0.5,
        "most": 2.0, "pays_here": "", "pays_operations": "", "pays_fused": "", "cost_fused": NAN,
        "verdict": verdict, "break_even": multiplier - 1, "width": 64.0, "cost": 1.5,
        "wider": NAN, "cost_wider": NAN, "operations": NAN, "machine": "cpu",
    } | changes  # fmt: skip


ROWS = [
    row("mhc", 1.25, 1.2, 1.3, "better", wider=128.0, cost_wider=1.1, pays_here="costs more"),
    row("hc", 0.8, 0.5, 1.0, "worse", cost=NAN, after_looking="seeds"),
    row("altup", 1.01, 0.9, 1.1, "undecided", rate="best rates"),
]


SIZES = [
    {"study": "released", "parameters": 614784, "channels": channels, "layers": 12, "steps": steps}
    for channels, steps in ((32.0, 1000), (64.0, 1000), (64.0, 4000))
]


def block(name, rows):
    """A block of README for these rows of worth.csv."""
    environment = environment_of(PROJECT / "report/templates", LABELS)
    nothing = {"rows": [], "summary": []}
    environment.globals |= {
        "worth": WorthPresenter("released", "text", "What is it worth?", rows, {}),
        "scale": ScalePresenter(SIZES, [], []), "kept": "KEPT",
        "within": "within 5 %", "confidence": 95, "absent": "–",
        "measured": [], "stability": [], "verdicts": nothing, "attribution": nothing,
    }  # fmt: skip
    return getattr(environment.get_template("readme.j2").module, f"{name}_block")()


def test_the_table_of_worth_in_percent() -> None:
    text = block("worth", ROWS)
    table = [line for line in text.splitlines() if line.startswith("|")]
    # 1 − 1/1.25, 1 − 1/1.2, 1 − 1/1.3; 1 − 1/0.8, 1 − 1/0.5
    assert table[2:] == [
        "| mHC | 20 % (17 to 23 %) | 50 % more: costs more | 10 % more | 5 |",
        "| HC, seeds chosen after looking | −25 % (−100 to 0 %) | – | – | 5 |",
    ]
    # A column without values is left out.
    table = [line for line in block("worth", ROWS[1:2]).splitlines() if line.startswith("|")]
    assert [line.count("|") for line in table] == [4] * 3


def test_connections_with_a_verdict_are_in_the_block_of_worth() -> None:
    text = block("worth", ROWS)
    assert text.startswith("## What is it worth?\n")
    assert "Undecided is one other, 1 % (−11 to 9 %) of the steps ([all rows]" in text
    more = [*ROWS, row("mhc", 1.0, 0.9, 1.1, "undecided", seeds=7)]
    assert "Undecided are 2 others, from 0 % (−11 to 9 %) to 1 % (−11 to 9 %) of" in block(
        "worth", more
    )
    assert "(KEPT/studies/released.md)" in text
    equal = [*ROWS, row("altup", 1.01, 0.99, 1.03, "equivalent")]
    assert "Equivalent within 5 %: AltUp.\n" in block("worth", equal)
    assert "best rate" not in block("worth", ROWS[:2])
    best = [row("mhc", 1.2, 1.1, 1.3, "better", rate="best rates")]
    assert "*Each at its best rate*" in block("worth", best)
    said = " ".join(text.split())
    assert said.endswith("32 and 64 channels; 1000 and 4000 steps.")
    assert "12 layers;" not in said  # all sizes have them
