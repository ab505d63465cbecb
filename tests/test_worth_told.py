"""What reports say first of worth: words and numbers that follow from rows, by hand."""

import math

import pandas as pd
import pytest

from fathom.analysis.claims.published import Worth
from fathom.report.worth import advice, depth_multiplier, overhead, present_worth, steps_saved

NAN = math.nan
ABOVE = Worth(
    title="What is it worth?",
    study="a",
    task="text",
    overheads={"mhc": {"words": "little", "url": "https://example.org"}},
)
LABELS = {"mhc": "mHC, cyclic read"}


def row(variant="mhc", multiplier=1.25, low=1.2, high=1.3, **changes):
    values = {
        "study": "a", "platform": "torch", "depth": 12, "variant": variant, "against": "baseline",
        "rate": "one rate", "seeds": 5, "answer": "at", "verdict": "better",
        "multiplier": multiplier, "low": low, "high": high, "least": 0.5, "most": 2.0,
        "break_even": multiplier - 1, "width": 64.0, "cost": 1.7, "wider": NAN, "cost_wider": NAN,
    }  # fmt: skip
    return values | changes


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (row(), "20 % (17 to 23 %)"),  # 1 − 1/1.25, 1 − 1/1.2, 1 − 1/1.3
        (row(multiplier=0.8, low=0.5, high=1.0), "−25 % (−100 to 0 %)"),
        (row(low=NAN, high=NAN), "20 %"),
        (row(answer="beyond", multiplier=1.9, low=NAN), "beyond 50 %"),  # twice the steps, no more
        (row(answer="below", multiplier=0.6, low=NAN), "below −100 %"),  # half of them, no fewer
        (row(answer="both", multiplier=1.25, low=NAN), "outside 20 %"),
    ],
)
def test_steps_saved_are_those_of_the_plain_networks_longer_training(given, told):
    assert steps_saved(given) == told


@pytest.mark.parametrize(
    ("cost", "told"), [(1.7, "70 % more"), (0.9, "10 % less"), (1.0, "0 % more"), (NAN, "")]
)
def test_a_cost_in_words(cost, told):
    assert overhead(cost) == told


SAVES = "On text, mHC, cyclic read saves 20 % (17 to 23 %) of the steps and pays where a step costs"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([row()], f"{SAVES} less than 25 % more; here it costs 70 % more."),
        (
            [row(wider=128.0, cost_wider=1.3)],
            f"{SAVES} less than 25 % more; here it costs 70 % more, with 128 channels it costs "
            "30 % more.",
        ),
        ([row(cost=NAN)], f"{SAVES} less than 25 % more."),
        # The largest multiplier of those that are known to end better, at one rate for all.
        (
            [
                row("hc", 1.5, verdict="undecided"),
                row("hc", 1.4, rate="best rates"),
                row(),
                row("hc", 1.1),
            ],
            f"{SAVES} less than 25 % more; here it costs 70 % more.",
        ),
        ([row(verdict="undecided")], "On text, no connection is known to save steps of training."),
        (
            [row(multiplier=2, answer="beyond", low=NAN, cost=NAN)],
            "On text, mHC, cyclic read saves at least 50 % of the steps and pays where a step "
            "costs less than 100 % more.",
        ),
    ],
)
def test_the_advice_follows_from_the_rows(rows, told):
    assert advice(rows, "text", LABELS) == told


def test_what_is_told_is_of_one_study_platform_and_depth_the_largest_multiplier_first():
    rows = [
        row("hc", 0.9),
        row(),
        row("v1", 1.1),
        row("v1", 2.0, depth=24),
        row("v1", 2.0, study="b"),
        row("v1", 2.0, platform="mlx"),
        row("v1", 2.0, seeds=2),
        row("v1", 2.0, answer=""),
    ]
    found = present_worth(ABOVE, pd.DataFrame(rows), LABELS)
    assert [(one["variant"], one["line"]) for one in found.rows] == [
        ("mhc", 3),
        ("v1", 4),
        ("hc", 2),
    ]
    assert found.advice.startswith("On text, mHC, cyclic read saves 20 %")
    assert found.overheads == {"mhc": ("little", "https://example.org")}


def test_without_a_ladder_nothing_is_told():
    assert present_worth(ABOVE, pd.DataFrame([row(answer="")]), {}) is None
    assert present_worth(ABOVE, pd.DataFrame(), {}) is None
    assert present_worth(None, pd.DataFrame([row()]), {}) is None


@pytest.mark.parametrize(
    ("answer", "low", "high", "told"),
    [
        ("at", 0.25, 0.75, "0.5 (0.25 to 0.75)"),
        ("at", 0, 0.75, "0.5 (below 0.75)"),
        ("at", 0.25, math.inf, "0.5 (from 0.25)"),
        ("at", 0, math.inf, "0.5 (open at both ends)"),
        ("at", NAN, NAN, "0.5"),
        ("beyond", NAN, NAN, "beyond 0.5"),
        ("not told", NAN, NAN, "not told"),
        ("", NAN, NAN, ""),
    ],
)
def test_a_depth_multiplier_in_words(answer, low, high, told):
    given = {"depth_answer": answer, "depth_multiplier": 0.5, "depth_low": low, "depth_high": high}
    assert depth_multiplier(given) == told
