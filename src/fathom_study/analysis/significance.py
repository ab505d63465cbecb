"""Verdicts of comparisons: better or worse by Holm's correction, equivalent, or undecided.

Definitions: docs/definitions/effects.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from fathom_study.analysis.statistics import MIN_SEEDS, Interval, t_quantile
from fathom_study.metrics.scores import Spread

Test = TypeVar("Test")

BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
"""Verdicts of two trainings by their scores."""

SIGNIFICANCE_LEVEL = 0.05
"""Family-wise error rate: the chance that a question gets any wrong answer by the draw of seeds."""

MOST_SEEDS = 100
"""Maximum number of seeds that is reported as needed: no one would train more."""

FLOAT32_TOLERANCE = 1e-5
"""Largest difference over seeds that another order of float32 sums explains."""


class Mean(NamedTuple):
    """A mean difference over seeds, and the t distribution of its error."""

    n: int
    """The number of seeds."""
    value: float
    error: float
    """The standard error; NaN below MIN_SEEDS seeds."""
    df: float
    """Degrees of freedom."""

    @property
    def p(self) -> float:
        """The two-sided p-value of a mean of zero; NaN without an error.

        Values without any spread: 1 if all are zero, else 0.
        """
        if math.isnan(self.error):
            return math.nan
        if self.error == 0:
            return float(self.value == 0)
        from scipy.special import stdtr

        return float(2 * stdtr(self.df, -abs(self.value) / self.error))

    def ends(self, level: float) -> tuple[float, float]:
        """The ends of the two-sided interval that excludes zero if p is below `level`."""
        half = t_quantile(self.df, 1 - level / 2) * self.error if self.error else self.error
        return self.value - half, self.value + half


def moderate(interval: Interval, spread: Spread | None) -> Mean:
    """The mean of differences with the moderated t of Smyth (2004), "Linear models", section 4.

    The variance is the mean of that over seeds and that of `spread`, weighted by their degrees of
    freedom. Without `spread` it is Student's t.
    """
    n, df = interval.n, interval.n - 1.0
    variance = interval.sd * interval.sd if n >= MIN_SEEDS else math.nan
    if spread is not None:
        variance = (spread.df * spread.sd**2 + df * variance) / (spread.df + df)
        df += spread.df
    return Mean(n, interval.mean, math.sqrt(variance / n) if n else math.nan, df)


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


class Corrected(NamedTuple):
    """A test after the correction for the family of its question."""

    p_holm: float
    level: float
    """The level at which an interval excludes zero if p_holm is below SIGNIFICANCE_LEVEL."""
    tests: int
    """The number of tests in the family."""


def correct(p_values: Mapping[Test, float], looks: Mapping[Test, int]) -> dict[Test, Corrected]:
    """Tests corrected for their number and for the looks at their seeds.

    Each look spends an equal part of SIGNIFICANCE_LEVEL (Bonferroni). Holm's procedure rejects what
    is below the level divided by the number of tests that it does not reject, so one level holds
    for all intervals of a family. Tests without a p-value are left out.
    """
    # NaN comes first: min(1.0, NaN) is 1.
    p_holm = holm({test: min(p * looks[test], 1.0) for test, p in p_values.items()})
    kept = sum(p >= SIGNIFICANCE_LEVEL for p in p_holm.values())
    level = SIGNIFICANCE_LEVEL / max(1, kept)
    return {test: Corrected(p, level / looks[test], len(p_holm)) for test, p in p_holm.items()}


def score_verdict(p_holm: float, *, is_better: bool, is_equivalent: bool) -> str:
    """The verdict of two trainings, given the corrected p of equal scores."""
    if p_holm < SIGNIFICANCE_LEVEL:
        return BETTER if is_better else WORSE
    return EQUIVALENT if is_equivalent else UNDECIDED


def seeds_to_decide(mean: Mean, level: float) -> int | None:
    """The fewest seeds at which a difference would be significant at a two-sided level.

    Assumes the same mean, standard deviation and weight of a known spread. None if MOST_SEEDS are
    not enough.
    """
    sd, known = mean.error * math.sqrt(mean.n), mean.df - (mean.n - 1)
    for n in range(MIN_SEEDS, MOST_SEEDS + 1):
        if abs(mean.value) > t_quantile(known + n - 1, 1 - level / 2) * sd / math.sqrt(n):
            return n
    return None
