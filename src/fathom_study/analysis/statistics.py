"""Means, intervals and differences of metrics over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from fathom_study import tasks
from fathom_study.metrics.steps import POSITIVE, UNBOUNDED

CONFIDENCE = 0.95
"""Confidence of every interval."""

MIN_SEEDS = 3
"""Minimum number of values for an interval."""


class Interval(NamedTuple):
    """The mean of some values with its 95 % interval, NaN below MIN_SEEDS values."""

    n: int
    mean: float
    sd: float
    half: float
    """Half of the interval's width."""

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half


def t_quantile(df: float, p: float) -> float:
    """The p-quantile of Student's t with `df` degrees of freedom."""
    # Not at the top: planning a workflow needs no quantile. scipy.stats takes a second to load.
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def t_interval(values: pd.Series | np.ndarray) -> Interval:
    """The mean of the finite values with Student's interval."""
    finite = _finite(values).tolist()
    n = len(finite)
    mean = _sum(finite) / n if n else math.nan
    sd = math.sqrt(_sum((v - mean) * (v - mean) for v in finite) / (n - 1)) if n > 1 else math.nan
    half = math.nan
    if n >= MIN_SEEDS:
        half = t_quantile(n - 1, 0.5 + CONFIDENCE / 2) * sd / math.sqrt(n)
    return Interval(n, mean, sd, half)


def is_ratio(metric: str) -> bool:
    """Whether two values of a run metric are compared by their ratio, not their difference."""
    return tasks.bounds_of(metric) == POSITIVE


def to_scale(values: pd.Series, *, ratio: bool) -> pd.Series:
    """Values on the scale of comparison: log10 if they are compared by their ratio."""
    return log10(values) if ratio else pd.to_numeric(values)


def log10(values: pd.Series) -> pd.Series:
    """log10 of a run metric; NaN where it is missing or zero.

    Computed by the C library: the last digit of NumPy's log10 depends on the processor, and a
    difference of logarithms may have few other digits.
    """
    numbers = pd.to_numeric(values)
    positive = numbers.where(numbers > 0).astype(float)
    return positive.map(math.log10, na_action="ignore")


def finite_scores(runs: pd.DataFrame) -> pd.Series:
    """The scores of the runs that have one, with the index of `runs`. A diverged run has none."""
    return pd.to_numeric(runs["score"]).dropna()


def differences(one: pd.Series, other: pd.Series, *, ratio: bool) -> pd.Series:
    """Differences of values on the scale of `to_scale`.

    The logarithm of the ratio keeps digits that a difference of near-equal logarithms loses.
    """
    one, other = pd.to_numeric(one), pd.to_numeric(other)
    if not ratio:
        return one - other
    return log10(one.where(one > 0) / other.where(other > 0))


def _finite(values: pd.Series | np.ndarray) -> np.ndarray:
    """The values that are not NaN. A NumPy array: small pandas series take ten times as long."""
    numbers = np.asarray(values, dtype=float)
    return numbers[~np.isnan(numbers)]


def _sum(values: Iterable[float]) -> float:
    """The sum, rounded once, so that it does not depend on the order of additions.

    Otherwise processors would agree in no digit of the spread of nearly equal values.
    """
    given = list(values)
    return math.fsum(given) if all(map(math.isfinite, given)) else sum(given)


FARTHEST = 200
"""Maximum distance from the mean in powers of ten: no axis has room for more."""


def mean_with_ci(values: pd.Series, bounds: tuple[float, float] = UNBOUNDED) -> dict[str, float]:
    """n, mean and sd of the finite values of a metric, and the ends of its 95 % interval.

    For a positive metric the mean is geometric, and the interval is that of the logarithm. For
    other metrics, and if a value is 0, which has no logarithm, both are arithmetic. The interval
    is clipped to `bounds`. Below MIN_SEEDS values its ends are NaN.
    """
    finite = _finite(values)
    plain = t_interval(finite)
    mean = plain.mean
    if plain.n and bounds == POSITIVE and (finite > 0).all():
        # Relative to the first value, so that the mean of equal values is exact; see also `log10`.
        unit = float(finite[0])
        ratios = (finite / unit).tolist()
        log_interval = t_interval(np.array([math.log10(v) if v else -math.inf for v in ratios]))
        logs = np.clip(
            [log_interval.low, log_interval.mean, log_interval.high], -FARTHEST, FARTHEST
        )
        low, mean, high = (unit * math.pow(10.0, log) for log in logs)
    else:
        low, high = (float(np.clip(end, *bounds)) for end in (plain.low, plain.high))
    return {"n": plain.n, "mean": mean, "sd": plain.sd, "low": low, "high": high}
