"""Verdicts of comparisons: better or worse by Holm's correction, equivalent, or undecided.

Definitions: docs/definitions/effects.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fathom_study.analysis.statistics import Interval, t_quantile

Test = TypeVar("Test")

BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
"""Verdicts of two trainings by their scores."""

SIGNIFICANCE_LEVEL = 0.05
"""Family-wise error rate: the chance that a study reports any effect where there is none."""

MOST_SEEDS = 100
"""Maximum number of seeds that is reported as needed: no one would train more."""

FLOAT32_TOLERANCE = 1e-5
"""Largest difference over seeds that another order of float32 sums explains."""


def p_value(interval: Interval) -> float:
    """The two-sided p-value of Student's t for a mean of zero.

    NaN without an interval. For equal values, which have no spread: 1 if all are zero, else 0.
    """
    if math.isnan(interval.half):
        return math.nan
    if interval.sd == 0:
        return float(interval.mean == 0)
    from scipy.special import stdtr

    return float(
        2 * stdtr(interval.n - 1, -abs(interval.mean) * math.sqrt(interval.n) / interval.sd)
    )


def holm(p_values: Mapping[Test, float]) -> dict[Test, float]:
    """p-values by test, corrected for their number (Holm 1979); tests without one are left out.

    Controls the family-wise error rate under any dependence of the tests.
    """
    tests = [test for test, p in p_values.items() if not math.isnan(p)]
    corrected, largest = {}, 0.0
    for rank, test in enumerate(sorted(tests, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(tests) - rank) * p_values[test]))
        corrected[test] = largest
    return corrected


def family_on(
    platform: str, rows: Sequence[Mapping[str, Any]], pair: Sequence[str]
) -> list[Mapping[str, Any]]:
    """The rows of a study that one correction on a platform counts: each pair once.

    One Holm family over all platforms: on a machine with few of a study's pairs, these would else
    escape the correction. A pair has its row on this platform, or its first elsewhere if it has no
    p here. `pair`: the columns that identify a pair.
    """
    by_pair: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["platform"] != platform):
        if not math.isnan(row["p"]):
            by_pair.setdefault(tuple(row[name] for name in pair), row)
    return list(by_pair.values())


def score_verdict(p_holm: float, *, is_better: bool, is_equivalent: bool) -> str:
    """The verdict of two trainings, given the corrected p of equal scores."""
    if p_holm < SIGNIFICANCE_LEVEL:
        return BETTER if is_better else WORSE
    return EQUIVALENT if is_equivalent else UNDECIDED


def seeds_to_decide(mean: float, sd: float, tests: int) -> int | None:
    """The fewest seeds at which a difference would be significant as one of `tests` contrasts.

    Assumes the same mean and standard deviation. None if MOST_SEEDS are not enough.
    """
    for n in range(3, MOST_SEEDS + 1):
        if abs(mean) > quantile(n, tests) * sd / math.sqrt(n):
            return n
    return None


def quantile(n: int, tests: int) -> float:
    """The two-sided quantile of Student's t for n values, at SIGNIFICANCE_LEVEL / tests."""
    return t_quantile(n - 1, 1 - SIGNIFICANCE_LEVEL / tests / 2)


def one_sided_quantile(n: int) -> float:
    """The one-sided quantile of Student's t for n values, at SIGNIFICANCE_LEVEL."""
    return t_quantile(n - 1, 1 - SIGNIFICANCE_LEVEL)
