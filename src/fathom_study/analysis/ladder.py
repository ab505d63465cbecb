"""Step multipliers: a score read on the ladder of a plain network, and equivalence by it.

Definitions: docs/definitions/worth.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from fathom_study.analysis.statistics import (
    FARTHEST,
    MIN_SEEDS,
    Interval,
    finite_scores,
    t_interval,
    to_scale,
)

DELTA = 0.05
"""Two trainings are equivalent if their step multipliers differ by less than this share."""


def read_ladder(rungs: Mapping[float, str], runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A plain network's scores by seed; a column for each trained factor of its steps, ascending.

    `rungs`: labels of its trainings by factor; `runs`: rows of cells.csv by label, indexed by seed.
    """
    there = {factor: finite_scores(runs[label]) for factor, label in rungs.items() if label in runs}
    return pd.DataFrame(there)[sorted(there)].dropna()


Ladders = Mapping[str, pd.DataFrame]
"""Ladders by plain network, each as returned by `read_ladder`."""


def ladder_at(chosen: Mapping[int, str], ladders: Ladders) -> pd.DataFrame:
    """The ladder of each seed's chosen plain network, without seeds that have no ladder.

    It has the factors that all of these ladders have; others would lack a score at some seed.
    """
    scores = {
        seed: ladders[label].loc[seed]
        for seed, label in chosen.items()
        if label in ladders and seed in ladders[label].index
    }
    return pd.DataFrame(scores).T.dropna(axis="columns")


def log_multiplier(ladder: Mapping[float, float], score: float, sign: int) -> float:
    """ln of the factor of its steps at which a plain network reaches a score.

    `ladder`: scores by ascending factor; between two, the score is a straight line over the
    logarithm of the steps. `sign` is 1 where lower scores are better, else −1. −inf: the plain
    network ends better after the fewest steps; inf: it ends worse after the most.
    """
    points = [(math.log(factor), sign * (plain - score)) for factor, plain in ladder.items()]
    if points[0][1] < 0:
        return -math.inf
    for (start, above), (end, below) in itertools.pairwise(points):
        if above == 0:
            return start
        if below <= 0:
            return start + (end - start) * above / (above - below)
    return points[-1][0] if points[-1][1] == 0 else math.inf


def read_differences(
    ladder: pd.DataFrame, theirs: pd.Series, ends: Iterable[float], sign: int, *, ratio: bool
) -> list[float]:
    """ln of the step multiplier of a network over another, for each difference of their scores.

    Read on the mean ladder: unlike `log_multipliers` it needs no score at any seed, so ends of an
    interval can be read. `ladder`, `theirs`: at the same seeds; `ends`: on the scale of `to_scale`,
    as is `ratio`. Infinite beyond the ladder. A better score never gives less than 0.
    """

    def read(change: float, scores: pd.Series) -> float:
        mean = t_interval(to_scale(scores, ratio=ratio)).mean + change
        return math.pow(10.0, min(mean, FARTHEST)) if ratio else mean

    means = {factor: read(0.0, scores) for factor, scores in ladder.items()}
    start, logs = log_multiplier(means, read(0.0, theirs), sign), []
    for end in ends:
        log = log_multiplier(means, read(end, theirs), sign)
        change = log - start if math.isfinite(log) else log
        logs.append(max(0.0, change) if sign * end < 0 else min(0.0, change))
    return logs


def log_multipliers(ladder: pd.DataFrame, scores: pd.Series, sign: int) -> pd.Series:
    """ln m by seed, for the seeds that both have. `ladder`: as returned by `read_ladder`."""
    seeds = ladder.index.intersection(scores.index)
    logs = [log_multiplier(dict(ladder.loc[seed]), scores[seed], sign) for seed in seeds]
    return pd.Series(logs, seeds, dtype=float)


def compare_multipliers(one: pd.Series, other: pd.Series) -> Interval | None:
    """The mean of ln(m / m') over common seeds, given ln m and ln m' by seed.

    None if a seed is outside its ladder, or if there are fewer than MIN_SEEDS seeds.
    """
    seeds = one.index.intersection(other.index)
    one, other = one[seeds], other[seeds]
    if len(seeds) < MIN_SEEDS or not np.isfinite([one, other]).all():
        return None
    return t_interval(one - other)
