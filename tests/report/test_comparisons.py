"""Comparisons of two variants in words, against sentences written by hand."""

import math

import pandas as pd
import pytest

from fathom_study.report.tables.effect_words import (
    describe_effect,
    effect_with_interval,
    format_spread,
    size_of,
)
from fathom_study.report.tables.terminal import print_undecided
from tests.support.runs import config_with


def row(verdict, effect, low=math.nan, high=math.nan, unit="%", seeds=5, tests=1, wider=0):
    """A row of effects.csv whose corrected interval is wider by this at each end."""
    return {
        "verdict": verdict, "effect": effect, "low": low, "high": high, "unit": unit,
        "seeds": seeds, "tests": tests, "corrected_low": low - wider,
        "corrected_high": high + wider,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (row("worse", 3.14, 2.2, 4.04), "worse by 3.1 % (95 % interval +2.2 % to +4.0 %)"),
        (row("better", -2.098, -2.43, -1.77), "better by 2.1 % (95 % interval −2.4 % to −1.8 %)"),
        (row("undecided", 0.4, -3.2, 4.1), "undecided: 95 % interval −3 % to +4 %"),
        # The 95 % interval excludes zero, that of the verdict does not.
        (row("undecided", -1.09, -1.66, -0.51, tests=12, wider=1),
         "undecided: −2.7 % to +0.5 %, corrected for 12 tests"),
        (row("better", -3.1, -3.6, -2.6, tests=12, wider=1),
         "better by 3.1 % (−4.6 % to −1.6 %, corrected for 12 tests)"),
        (row("undecided", 1.234, seeds=2), "undecided: +1.2 %, 2 seeds"),
        (row("undecided", -1.234, seeds=1), "undecided: −1.2 %, one seed"),
        # An end that would be printed as zero has one more digit.
        (row("undecided", -4.0, -8.1, 0.11), "undecided: 95 % interval −8 % to +0.1 %"),
        (row("equivalent", 0.1, -0.3, 0.5),
         "equivalent within 5 % of the steps: 95 % interval −0.3 % to +0.5 %"),
        (row("the same", 1e-7, 0.9e-7, 1.1e-7), "the same up to rounding"),
        (row("worse", 1639.0, 274.1, 7984.0),
         "worse by a factor of 17 (95 % interval +274 % to × 81)"),
        (row("better", 12.9, 3.7, 22.1, "points"),
         "better by 13 points (95 % interval +4 to +22 points)"),
        (row("higher", 0.31, 0.2, 0.42, ""), "higher by 0.31 (95 % interval +0.20 to +0.42)"),
        (row("better", -90.0, -90.0, -90.0), "better by 90 % (95 % interval −90 % to −90 %)"),
    ],
)  # fmt: skip
def test_verdict_is_described_with_its_interval(given, words):
    assert describe_effect(given) == words


def test_effect_is_described_with_its_metric_and_interval():
    given = row("worse", 3.14, 2.2, 4.04)
    words = "worse by 3.1 % in loss (95 % interval +2.2 % to +4.0 %)"
    assert describe_effect(given, "loss") == words
    chosen = describe_effect(given | {"after_looking": "seeds"}, "loss")
    assert chosen == f"{words}, seeds added after looking"
    assert effect_with_interval(given) == "+3.1 % (+2.2 % to +4.0 %)"
    assert effect_with_interval(row("undecided", -1.234)) == "−1.2 %"


@pytest.mark.parametrize(
    ("seed_sd", "unit", "words"),
    [(0.357, "%", "0.36 %"), (274.0, "%", "270 %"), (83100.0, "%", "× 830"),
     (0.61, "points", "0.61 points"), (0.0042, "", "0.0042"), (math.nan, "%", "")],
)  # fmt: skip
def test_spread_has_the_unit_of_its_effect(seed_sd, unit, words):
    assert format_spread({"seed_sd": seed_sd, "unit": unit}) == words


def test_halved_and_doubled_losses_have_the_same_size():
    assert size_of(row("better", -50.0)) == pytest.approx(size_of(row("worse", 100.0)))
    assert size_of(row("worse", -3.0, unit="points")) == 3
    assert size_of(row("better", -100.0)) == math.inf


@pytest.mark.parametrize(
    ("seeds", "needed", "words"),
    [
        (1, math.nan, "1 seed, a verdict needs at least 3"),
        (2, math.nan, "2 seeds, a verdict needs at least 3"),
        (3, 7.0, "3 seeds, 4 more may decide it"),
        (3, math.nan, "3 seeds, no feasible number is expected to decide it"),
    ],
)
def test_undecided_contrast_names_the_seeds_that_may_decide_it(seeds, needed, words, capsys):
    place = {"study": "a", "platform": "torch", "depth": 4, "variant": "mhc", "against": "hc"}
    effects = pd.DataFrame(
        [row("undecided", 1.2, seeds=seeds) | place | {"seeds_needed": needed}],
    )
    print_undecided(effects, config_with())
    assert capsys.readouterr().out.endswith(f"mhc against hc: +1.2 %; {words}\n")
