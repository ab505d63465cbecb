"""Estimates, means with their intervals, and the bands that they are compared with.

Every judged quantity becomes an estimate first. Its interval lies inside the band, outside it, or
across an end of it, which decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from fathom_study.analysis.statistics import CONFIDENCE, MIN_SEEDS, t_interval


@dataclass(frozen=True)
class Band:
    """The values from `low` to `high`; an infinite end is open."""

    low: float = -math.inf
    high: float = math.inf

    def margin(self, value: float) -> float:
        """The distance of a value from the band; negative inside, infinite for NaN."""
        return math.inf if math.isnan(value) else max(self.low - value, value - self.high)


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; `low` and `high` are NaN if there are too few values."""

    mean: float
    low: float
    high: float
    n: int
    """The number of values, or of seeds."""
    unit: str = ""
    """LOG10 or another derived quantity, such as `spread`; empty: the metric's own unit."""

    def inside(self, band: Band) -> bool:
        """Whether the whole interval lies in the band."""
        return band.low <= self.low and self.high <= band.high

    def outside(self, band: Band) -> bool:
        """Whether the whole interval lies on one side of the band."""
        return self.high < band.low or self.low > band.high

    def clipped(self, possible: Band) -> Estimate:
        """The estimate with its interval clipped to the possible values."""
        low, high = max(self.low, possible.low), min(self.high, possible.high)
        return replace(self, low=low, high=high)

    def mapped(self, scale: Callable[[float], float]) -> Estimate:
        """The estimate on another scale, a monotonic function of this one, in the metric's unit."""
        low, high = sorted((scale(self.low), scale(self.high)))
        return replace(self, mean=scale(self.mean), low=low, high=high, unit="")


LOG10 = "log10"


def estimate_mean(values: pd.Series, unit: str = "") -> Estimate:
    """The mean of the finite values with Student's interval."""
    interval = t_interval(values)
    return Estimate(interval.mean, interval.low, interval.high, interval.n, unit)


def estimate_difference(a: pd.Series, b: pd.Series, unit: str) -> Estimate:
    """The difference of the means of unpaired values with Welch's interval; n: the smaller side."""
    n, mean, half = min(len(a), len(b)), t_interval(a).mean - t_interval(b).mean, math.nan
    if n >= MIN_SEEDS:
        equal = a.nunique() == b.nunique() == 1  # no variance for an interval
        if not equal:
            from scipy import stats  # imported here: loading it takes longer than a report

            low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE)
        half = 0.0 if equal else float(high - low) / 2
    return Estimate(mean, mean - half, mean + half, n, unit)


def predict_one_more(values: pd.Series) -> Estimate:
    """The mean with the prediction interval of one more value: √(n + 1) times that of the mean."""
    estimate = estimate_mean(values)
    half = (estimate.high - estimate.mean) * math.sqrt(estimate.n + 1)
    return replace(estimate, low=estimate.mean - half, high=estimate.mean + half)
