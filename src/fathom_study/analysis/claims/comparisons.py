"""The estimator of two variants, also of their times, by steps that were timed in turns.

Definitions: docs/definitions/verdicts.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import pandas as pd
from pydantic import BeforeValidator, Field

from fathom.settings import Flag, join_values
from fathom_study import tasks
from fathom_study.analysis.claims import untestable
from fathom_study.analysis.claims.estimator import (
    NOT_SCORED,
    SCORE,
    TURNS,
    Case,
    Estimator,
    Metric,
    listed,
)
from fathom_study.analysis.claims.evidence import (
    CLOCK,
    CONTRADICTED,
    DIVERGED,
    NO_RUN,
    NOT_MEASURED,
    NOT_REPRODUCED,
    Evidence,
    Judgement,
    NotMeasured,
    combine_verdicts,
)
from fathom_study.analysis.estimate import LOG10, Band, Estimate, estimate_difference, estimate_mean
from fathom_study.analysis.significance import FLOAT32_TOLERANCE
from fathom_study.analysis.statistics import is_ratio, to_scale
from fathom_study.analysis.step_times import StepTime, StepTimes


class Difference(Estimator):
    """A variant minus each of `than` lies in the band, at every depth that both have.

    Seeds are compared pair by pair. `spread` compares the distances from the median instead, by
    Welch's interval: whether runs of the variant differ more from seed to seed. Sides that diverged
    or differ by rounding, and variants that are one run: docs/definitions/verdicts.md.
    """

    kind: Literal["difference"]
    variant: str
    than: Annotated[list[str], BeforeValidator(listed), Field(min_length=1)]
    metric: Metric = Field(SCORE, description="metric to compare; by default the study's score")
    by: Literal["ratio", "difference"] | None = Field(
        None, description="difference: for a positive metric that may be zero"
    )
    spread: Flag = False

    def judge(self, evidence: Evidence) -> Judgement:
        ratio = self.by == "ratio" if self.by else is_ratio(self._run_metric(evidence))
        runs = self.select(evidence.cells)
        if self.metric == SCORE:
            runs = runs[runs["outcome"] != NOT_SCORED]

        def scale(rows: pd.DataFrame) -> pd.Series:
            return to_scale(rows[self.metric], ratio=ratio)

        sd = math.nan if self.spread else self.seed_sd(evidence, scale)
        cases, skipped, ran, gaps = [], [], set(), {}
        runs = runs.assign(value=scale)
        for depth, other, *sides in self._pairs(runs):
            runs_of_other = (depth, *sides[1][untestable.SAME_AS])
            if runs_of_other in ran:  # the same runs under another name count once
                continue
            ran.add(runs_of_other)
            if gap := untestable.no_power(evidence.config, self.metric == SCORE, *sides):
                gaps.setdefault(gap, {self.variant: None})[other] = None
                continue
            case = self._compare(depth, other, *sides, sd, evidence, unit=LOG10 if ratio else "")
            (skipped if case.verdict == DIVERGED else cases).append(case)
        gap, about = next(((g, ", ".join(names)) for g, names in gaps.items()), ("", ""))
        if not (cases or skipped):
            raise NotMeasured(gap, gap_of=about)
        judged = self.combine(cases, skipped)
        if not gap:
            return judged
        # If a part decides nothing, the rest can contradict the claim but not reproduce it.
        verdict = combine_verdicts([judged.verdict, NOT_MEASURED])
        return replace(judged, verdict=verdict, gap=gap, gap_of=about)

    def _run_metric(self, evidence: Evidence) -> str:
        """The compared metric, by its name in tables."""
        return evidence.scores[self.study].metric if self.metric == SCORE else self.metric

    def _pairs(self, runs: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame, pd.DataFrame]]:
        """(depth, other, our runs by seed, theirs by seed) for every depth that both have.

        Raises NotMeasured if another variant has no such depth, or lacks one that is named.
        """
        by_cell = {key: rows.set_index("seed") for key, rows in runs.groupby(["variant", "depth"])}
        for other in self.than:
            ours, theirs = ({d for v, d in by_cell if v == name} for name in (self.variant, other))
            lacking = sorted(set(self.depths or ()) - (ours & theirs))
            if lacking or not ours & theirs:
                depth, both = join_values(lacking), f"{self.variant}, {other}"
                raise NotMeasured(NO_RUN, variant=both, depths=depth, metric=self.metric)
        for depth, other in itertools.product(sorted(runs["depth"].unique()), self.than):
            if (self.variant, depth) in by_cell and (other, depth) in by_cell:
                sides = by_cell[self.variant, depth], by_cell[other, depth]
                common = sides[0].index.intersection(sides[1].index)
                if common.empty:
                    both = f"{self.variant}, {other}"
                    raise NotMeasured(NO_RUN, variant=both, depths=str(depth), metric=self.metric)
                yield depth, other, *(sides if self.spread else (s.loc[common] for s in sides))

    def _compare(
        self,
        depth: int,
        other: str,
        one: pd.DataFrame,
        two: pd.DataFrame,
        seed_sd: float,
        evidence: Evidence,
        unit: str,
    ) -> Case:
        """The case of one pair; its verdict is DIVERGED if a side diverged."""
        case = partial(Case, variant=self.variant, against=other, depth=depth)
        if self.spread:
            sides = (side["value"].dropna() for side in (one, two))
            distances = ((side - side.median()).abs() for side in sides)
            estimate = estimate_difference(*distances, "spread")
        else:
            estimate = estimate_mean(one["value"] - two["value"], unit)
            if unit != LOG10:
                bounds = tasks.bounds_of(self._run_metric(evidence))
                ends = (end - two["value"].mean() for end in bounds)
                estimate = estimate.clipped(Band(*ends))  # what is possible beside the other side
            n, is_score = len(one), self.metric == SCORE
            if is_score and self._better_diverged(evidence, one, two):
                return case(estimate, CONTRADICTED, math.inf, seeds=n, counted=True)
            if estimate.n < n:
                return case(estimate, DIVERGED, math.nan, seeds=n)
        margin, verdict = self.band.margin(estimate.mean), self.weigh(estimate, self.band, seed_sd)
        case = case(estimate, verdict, margin, seeds=estimate.n)
        if self.spread or self.band.margin(0.0) < 0:  # the claim allows equal sides
            return case
        if (one[self.metric] - two[self.metric]).abs().max() < FLOAT32_TOLERANCE:
            verdict = NOT_REPRODUCED if estimate.n >= self.seeds else NOT_MEASURED
            return replace(case, verdict=verdict, equal=True)
        return case

    def _better_diverged(self, evidence: Evidence, one: pd.DataFrame, two: pd.DataFrame) -> bool:
        """Whether every run of the side that should be better diverged, and none of the other."""
        lower, higher = (one, two) if math.isfinite(self.high) else (two, one)
        is_lower = evidence.scores[self.study].better == "lower"
        better, worse = (lower, higher) if is_lower else (higher, lower)
        return better["value"].isna().all() and worse["value"].notna().all()


# --- time ----------------------------------------------------------------------------------------

PER_STEP = "seconds_per_step"
"""The run metric that is judged by timed steps."""


def judge_step_times(test: Estimator, times: StepTimes, platform: str) -> Judgement:
    """The judgement of a difference in time per step on a platform.

    The interval of a ratio is the widest that the ranges over turns allow: it excludes 1 if the
    slowest turn of one variant was faster than the fastest of the other. Raises NotMeasured for any
    other test of a time, and if a variant was not timed.
    """
    if not isinstance(test, Difference) or test.metric != PER_STEP or test.spread:
        raise NotMeasured(CLOCK)
    of = {
        (depth, variant): time
        for (study, depth, variant, where), time in times.items()
        if study == test.study and where == platform and not math.isnan(time.seconds)
    }
    depths = test.depths or sorted({depth for depth, _ in of})
    if not depths or any(key not in of for key in itertools.product(depths, test.named_variants)):
        raise NotMeasured(CLOCK)
    return replace(test.combine([*_cases(test, depths, of)]), rests_on=TURNS)


def _cases(
    test: Difference, depths: list[int], of: dict[tuple[int, str], StepTime]
) -> Iterator[Case]:
    for depth, other in itertools.product(depths, test.than):
        one, two = of[depth, test.variant], of[depth, other]
        ends = (one.seconds / two.seconds, one.low / two.high, one.high / two.low)
        turns = min(one.turns, two.turns)
        ratio = Estimate(*map(math.log10, ends), turns, LOG10)
        verdict = test.weigh(replace(ratio, n=max(turns, test.seeds)), test.band)
        margin = test.band.margin(ratio.mean)
        yield Case(ratio, verdict, margin, test.variant, depth, turns, against=other)
