"""The verdict of every pair of trainings by its scores, the same in every table.

Definitions: docs/definitions/effects.md.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fathom_study import tasks
from fathom_study.analysis.ladder import DELTA, read_differences
from fathom_study.analysis.pairs import Key, Pair, beside_plain, contrasted, pairs_of
from fathom_study.analysis.significance import (
    FLOAT32_TOLERANCE,
    SIGNIFICANCE_LEVEL,
    UNDECIDED,
    Corrected,
    Mean,
    correct,
    moderate,
    score_verdict,
    seeds_to_decide,
)
from fathom_study.analysis.statistics import (
    FARTHEST,
    MIN_SEEDS,
    Interval,
    differences,
    is_ratio,
    t_interval,
)
from fathom_study.analysis.tables import counted, scores_of
from fathom_study.config import Cell, Config
from fathom_study.metrics.scores import Score
from fathom_study.metrics.steps import SHARE

SCORE = "score"
"""The metric by which runs are judged."""

HIGHER, LOWER, ALIKE = "higher", "lower", "the same"
"""Verdicts on metrics other than the score; ALIKE: on any metric if sides differ by rounding."""

PERCENT, POINTS = "%", "points"
"""Units of effects: the change of a positive score, and percentage points of a share."""

NOT_OF_A_QUESTION = ("study", "variant", "backend", "seed", "weights", "leave_out_blocks")
"""Settings of a plain network that do not tell questions about it apart; nor does its rate."""


class Change(NamedTuple):
    """The difference of two sides in a metric, over common seeds."""

    metric: str
    unit: str
    on_scale: Interval
    """On the scale of `to_scale`."""
    mean: float
    """In `unit`, as are the ends of its 95 % interval."""
    low: float
    high: float
    theirs: pd.Series
    """The values of the second side at the common seeds."""
    is_rounding: bool
    """Whether the two sides differ by rounding at every seed."""


def compare(pair: Pair, score: Score, metric: str = SCORE) -> Change:
    """The change of a run metric, or of the score, from the second side of a pair to the first."""
    ours, theirs = (pd.to_numeric(side[metric]) for side in (pair.ours, pair.theirs))
    metric, unit = (score.metric, unit_of(score)) if metric == SCORE else (metric, "")
    interval = t_interval(differences(ours, theirs, ratio=unit == PERCENT))
    largest = (ours - theirs).abs().max()
    theirs = theirs[(ours - theirs).dropna().index]
    low, high = clipped((interval.low, interval.high), theirs, metric, unit)
    is_rounding = interval.n >= MIN_SEEDS and bool(largest < FLOAT32_TOLERANCE)
    mean = in_unit(interval.mean, unit)
    return Change(metric, unit, interval, mean, low, high, theirs, is_rounding)


def clipped(
    ends: tuple[float, float], theirs: pd.Series, metric: str, unit: str
) -> tuple[float, float]:
    """The ends of an interval in a unit, within the bounds of the metric given their mean."""
    low, high = (in_unit(end, unit) for end in ends)
    if unit != PERCENT:  # both ends of a ratio are possible
        bounds = (in_unit(end - theirs.mean(), unit) for end in tasks.bounds_of(metric))
        low, high = (float(end) for end in np.clip([low, high], *bounds))
    return low, high


def unit_of(score: Score) -> str:
    """The unit of an effect on a score: PERCENT, POINTS or its own."""
    if is_ratio(score.metric):
        return PERCENT
    return POINTS if tasks.bounds_of(score.metric) == SHARE else score.unit


def in_unit(effect: float, unit: str) -> float:
    """An effect, or a standard deviation, converted from the scale of `to_scale` to its unit."""
    if unit == PERCENT:
        return 100 * math.expm1(min(effect, FARTHEST) * math.log(10))
    return 100 * effect if unit == POINTS else effect


# --- verdicts -------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """A pair's test, corrected for its family, and what follows from it; columns of effects.csv."""

    p: float
    p_holm: float = math.nan
    tests: float = math.nan
    """The number of tests in the family."""
    corrected_low: float = math.nan
    """The effect's interval at the level of the family, in the unit of `unit_of`."""
    corrected_high: float = math.nan
    steps_low: float = math.nan
    """The same interval as step multipliers; 0 or infinite beyond the ladder."""
    steps_high: float = math.nan
    verdict: str = UNDECIDED
    seeds_needed: float = math.nan


class _Compared(NamedTuple):
    key: Key
    pair: Pair
    score: Score | None
    """None for another metric."""
    change: Change
    mean: Mean
    looks: int

    @property
    def test(self) -> tuple[str, ...]:
        """The same for pairs whose runs are equal bit for bit; text, since NaN is not NaN."""
        return (str(self.key.depth), *map(str, self.change.on_scale), str(self.change.theirs.sum()))

    @property
    def runs(self) -> tuple[str, ...]:
        """The cells that are compared."""
        return (*self.pair.ours["key"], "against", *self.pair.theirs["key"], self.key.platform)


Verdicts = Mapping[Key, Verdict]


def verdicts_of(config: Config, cells: pd.DataFrame, metric: str = SCORE) -> Verdicts:
    """The verdict by a metric of every contrast; by the score also of every variant against plain.

    Tests are corrected within their family, over all studies and platforms. Runs that two families
    compare have the verdict of the larger p_holm.
    """
    compared: dict[Key, _Compared] = {}
    families: dict[str, list[_Compared]] = defaultdict(list)
    for one in _compared(config, counted(cells), metric):
        if compared.setdefault(one.key, one) is one:
            families[_family(config, one.key, one.pair)].append(one)
    strictest: dict[tuple[str, ...], Verdict] = {}
    for family in families.values():
        for platform in dict.fromkeys(one.key.platform for one in family):
            tests = _tests_on(platform, family)
            p_values = {one.test: one.mean.p for one in tests}
            corrected = correct(p_values, {one.test: one.looks for one in tests})
            for one in family:
                if one.key.platform == platform:
                    verdict = _judge(one, corrected.get(one.test))
                    before = strictest.get(one.runs, verdict)
                    strictest[one.runs] = max(before, verdict, key=lambda one: one.p_holm)
    # A pair whose best rate is the one rate has the same runs in two families.
    return {key: strictest[one.runs] for key, one in compared.items()}


def _compared(config: Config, cells: pd.DataFrame, metric: str) -> Iterator[_Compared]:
    scores = scores_of(config)
    for study, settings in config.studies.items():
        score, looks = scores[study], len(settings.looks) or 1
        is_score = metric == SCORE
        # It was measured on the task's own data, and a user's text may differ.
        spread = score.spread if is_score and settings.dataset else None
        for source in (contrasted, beside_plain) if is_score else (contrasted,):
            for key, pair in pairs_of(config, study, cells, source):
                found = compare(pair, score, metric)
                mean = moderate(found.on_scale, spread)
                yield _Compared(key, pair, score if is_score else None, found, mean, looks)


def _family(config: Config, key: Key, pair: Pair) -> str:
    """The question that a pair answers, at one size."""
    if config.connection(key.study, key.against).kind != "plain":
        return json.dumps([key.study, key.depth, pair.question])
    spec = config.spec(Cell.parse(pair.theirs.iloc[0]["key"])).model_dump(mode="json")
    spec["optimizer"].pop("lr")
    asked = {name: value for name, value in spec.items() if name not in NOT_OF_A_QUESTION}
    return json.dumps([key.rate, asked], sort_keys=True)


def _tests_on(platform: str, compared: Iterable[_Compared]) -> list[_Compared]:
    """The tests of a family that one correction on a platform counts: each pair once.

    One family over all platforms: on a machine with few of its pairs, these would else escape the
    correction. A pair has its test on this platform, or its first elsewhere if it has no p here.
    """
    by_pair: dict[tuple[Any, ...], _Compared] = {}
    for one in sorted(compared, key=lambda one: one.key.platform != platform):
        if not math.isnan(one.mean.p):
            by_pair.setdefault(one.key._replace(platform=""), one)
    return list(by_pair.values())


def _judge(one: _Compared, corrected: Corrected | None) -> Verdict:
    p = one.mean.p
    if one.change.is_rounding:
        return Verdict(p, verdict=ALIKE)
    if corrected is None:  # too few seeds
        return Verdict(p)
    p_holm, tests = corrected.p_holm, corrected.tests
    needed = seeds_to_decide(one.mean, corrected.level)
    ends = one.mean.ends(corrected.level)
    interval = clipped(ends, one.change.theirs, one.change.metric, one.change.unit)
    is_higher = one.mean.value > 0
    if one.score is None:
        verdict = UNDECIDED if p_holm >= SIGNIFICANCE_LEVEL else HIGHER if is_higher else LOWER
        return Verdict(p, p_holm, tests, *interval, verdict=verdict)
    low, high = _as_multipliers(one, one.score, ends)
    verdict = score_verdict(
        p_holm,
        is_better=is_higher == (one.score.better == "higher"),
        is_equivalent=low > 1 / (1 + DELTA) and high < 1 + DELTA,
    )
    seeds_needed = math.nan if needed is None else needed
    return Verdict(p, p_holm, tests, *interval, low, high, verdict, seeds_needed)


def _as_multipliers(one: _Compared, score: Score, ends: tuple[float, float]) -> tuple[float, float]:
    """The ends of a difference as step multipliers of `variant` over `against`, ascending."""
    ladder = one.pair.ladder
    seeds = ladder.index.intersection(one.change.theirs.index)
    if not one.pair.base or len(ladder.columns) < 2 or seeds.empty:
        return math.nan, math.nan
    theirs, ratio = one.change.theirs[seeds], one.change.unit == PERCENT
    logs = read_differences(ladder.loc[seeds], theirs, ends, score.sign, ratio=ratio)
    low, high = sorted(logs)
    return math.exp(low), math.exp(high)
