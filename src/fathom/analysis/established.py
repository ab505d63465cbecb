"""When a difference between two scores counts: it is told from none, and it is large enough.

Definitions: docs/definitions.md, "Effects".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scipy.special import stdtr, stdtrit  # scipy.stats takes longer to load than a small report

from fathom.metrics.scores import Score

SMALLEST_EFFECT = 0.01
"""The smallest effect that matters, as a share of the distance from chance to a perfect score."""

SIGNIFICANCE_LEVEL = 0.05
"""The chance that any of a study's effects is established where none is."""

MOST_SEEDS = 100
"""More seeds than this are not said to be needed: no one would train them."""

FLOAT32_TOLERANCE = 1e-5
"""Largest difference that another order of float32 sums explains, if no seed exceeds it."""


def share_of_chance(effect: float, against: float, score: Score, chance: float, by: str) -> float:
    """A difference to a score `against`, as a share of the distance from chance to perfect.

    `effect` is the difference itself, or of log10 where scores are compared `by` ratio. NaN where
    chance is perfect.
    """
    difference = against * math.expm1(effect * math.log(10)) if by == "ratio" else effect
    way = abs(score.perfect - chance)
    return difference / way if way else math.nan


def p_value(estimate: Mapping[str, float]) -> float:
    """The two-sided p of a mean of zero by Student's t; `estimate` is the result of `t_interval`.

    NaN where there is no interval. Equal values have no spread: 0, or 1 if all of them are zero.
    """
    if math.isnan(estimate["ci95_half"]):
        return math.nan
    n, mean, sd = (estimate[name] for name in ("n", "mean", "sd"))
    if sd == 0:
        return float(mean == 0)
    return float(2 * stdtr(n - 1, -abs(mean) * math.sqrt(n) / sd))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number, in the same order (Holm 1979); NaN counts as none.

    Where those below a level are taken for effects, the chance that any of them is none stays below
    the level, however the tests depend on each other.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    found, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        found[i] = largest
    return found


def seeds_to_tell(mean: float, sd: float, smallest: float, tests: int) -> int | None:
    """The fewest seeds at which a difference could be told, if its mean and deviation stayed.

    Told means established against `tests` other contrasts, or shown to be below `smallest`; both
    mean and deviation are in its unit. None if MOST_SEEDS are not enough.
    """
    for n in range(3, MOST_SEEDS + 1):
        error = sd / math.sqrt(n)
        if abs(mean) >= smallest and abs(mean) > quantile(n, tests) * error:
            return n
        if abs(mean) + quantile(n, 1) * error < smallest:
            return n
    return None


def quantile(n: int, tests: int) -> float:
    """The two-sided quantile of Student's t for n values, at SIGNIFICANCE_LEVEL / tests."""
    return float(stdtrit(n - 1, 1 - SIGNIFICANCE_LEVEL / tests / 2))


def one_sided_quantile(n: int) -> float:
    """The one-sided quantile of Student's t for n values, at SIGNIFICANCE_LEVEL."""
    return float(stdtrit(n - 1, 1 - SIGNIFICANCE_LEVEL))
