"""Estimators of two sides: variants, studies or platforms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, Field, model_validator

from fathom import tasks
from fathom.analysis.claims import untestable
from fathom.analysis.claims.estimator import (
    NOT_SCORED,
    SCORE,
    Case,
    Estimator,
    Metric,
    Variants,
    listed,
)
from fathom.analysis.claims.evidence import (
    CONTRADICTED,
    DIVERGED,
    NO_RUN,
    NOT_MEASURED,
    NOT_REPRODUCED,
    REPRODUCED,
    Evidence,
    Judgement,
    NotMeasured,
    combine_verdicts,
)
from fathom.analysis.estimate import LOG10, Band, estimate_difference, estimate_mean
from fathom.analysis.platforms import DEVICES, FRAMEWORKS, device_of
from fathom.analysis.significance import FLOAT32_TOLERANCE
from fathom.analysis.statistics import differences, is_ratio, log10, to_scale
from fathom.analysis.tables import CELL, select
from fathom.config import BACKENDS
from fathom.metrics.runs import tail_mean
from fathom.settings import Flag, join_values, one_of


class Difference(Estimator):
    """A variant minus each of `than` lies in the band, at every depth that both have.

    Seeds are compared pair by pair, since the same seed means the same batches. A positive metric
    is compared by the logarithm of the ratio, any other by the difference. `spread` compares the
    distances from the median instead, as the test of Brown and Forsythe does, by Welch's interval:
    whether runs of the variant differ more from seed to seed.

    A side that diverged is not compared. But the claim is contradicted if every seed of the side
    that should be better diverged, and none of the other. Differences below rounding establish no
    order. Two variants with equal runs, or that differ in an H_res without effect, are not
    compared.
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
        study = self.studies[0]
        score = evidence.scores[study].metric if study in evidence.scores else SCORE
        metric = score if self.metric == SCORE else self.metric
        ratio = self.by == "ratio" if self.by else is_ratio(metric)
        runs = select(evidence.cells, self.studies, self.named_variants, self.depths)
        if self.metric == SCORE:
            runs = runs[runs["outcome"] != NOT_SCORED]

        def scale(rows: pd.DataFrame) -> pd.Series:
            return to_scale(rows[self.metric], ratio=ratio)

        sd = math.nan if self.spread else evidence.seed_sd(self.studies, self.named_variants, scale)
        cases, skipped, ran, gaps = [], [], set(), {}
        runs = runs.assign(value=scale)
        for depth, other, *sides in self._pairs(runs):
            runs_of_other = (depth, *sides[1][untestable.SAME_AS])
            if runs_of_other in ran:  # the same runs under another name count once
                continue
            ran.add(runs_of_other)
            if gap := untestable.tells_nothing(evidence.config, self.metric == SCORE, *sides):
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

    def _pairs(self, runs: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame, pd.DataFrame]]:
        """(depth, other, our runs by seed, theirs by seed) for every depth that both have.

        Raises NotMeasured if another variant has no such depth, or lacks one that is named.
        """
        by_cell = {
            key: found.set_index("seed") for key, found in runs.groupby(["variant", "depth"])
        }
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
            found = estimate_difference(
                *((side - side.median()).abs() for side in sides), self.metric, "spread"
            )
        else:
            found = estimate_mean(one["value"] - two["value"], self.metric, unit)
            if unit != LOG10:
                score = evidence.scores[self.studies[0]].metric
                metric = score if self.metric == SCORE else self.metric
                found = found.clipped(possible_differences(metric, two["value"].mean()))
            n, is_score = len(one), self.metric == SCORE
            if is_score and self._better_diverged(evidence, one, two):
                return case(found, CONTRADICTED, math.inf, seeds=n, counted=True)
            if found.n < n:
                return case(found, DIVERGED, math.nan, seeds=n)
        margin, verdict = self.band.margin(found.mean), self.weigh(found, self.band, seed_sd)
        case = case(found, verdict, margin, seeds=found.n)
        if self.spread or self.band.margin(0.0) < 0:  # the claim allows equal sides
            return case
        if (one[self.metric] - two[self.metric]).abs().max() < FLOAT32_TOLERANCE:
            verdict = NOT_REPRODUCED if found.n >= self.seeds else NOT_MEASURED
            return replace(case, verdict=verdict, equal=True)
        return case

    def _better_diverged(self, evidence: Evidence, one: pd.DataFrame, two: pd.DataFrame) -> bool:
        """Whether every run of the side that should be better diverged, and none of the other."""
        lower, higher = (one, two) if math.isfinite(self.high) else (two, one)
        is_lower = evidence.scores[self.studies[0]].better == "lower"
        better, worse = (lower, higher) if is_lower else (higher, lower)
        return better["value"].isna().all() and worse["value"].notna().all()


class Agreement(Estimator):
    """The difference of one variant between two studies, or two platforms, lies in the band.

    Across studies: the training loss at the last step that both have, by Welch's interval of the
    difference of log10. It is the mean over the tenth of the steps that ends there, since a score
    is measured at the end of a run alone. Studies may differ in size, so seeds are not paired.

    Across platforms: the score, seed by seed, in each study. The other platform is another backend
    or machine, and has all cells. The claim is contradicted if one side alone diverged.

    The default band is a factor of two, in log10.
    """

    kind: Literal["agreement"]
    across: Literal["studies", "platforms"]
    studies: Annotated[list[str], Field(min_length=1)]
    variants: Variants
    low: float = -0.3
    high: float = 0.3
    other_backend: Annotated[str, one_of("backend", BACKENDS)] | None = None
    other_device: Annotated[str, one_of("device", DEVICES)] | None = None

    @model_validator(mode="after")
    def _two_studies(self) -> Agreement:
        if self.across == "studies" and (len(self.studies) != 2 or not self.depths):
            raise ValueError("agreement across studies needs two studies, and depths")
        return self

    def judge(self, evidence: Evidence) -> Judgement:
        of = self._studies if self.across == "studies" else self._platforms
        cases = list(of(evidence))
        skipped = [case for case in cases if case.verdict == DIVERGED]
        return self.combine([case for case in cases if case.verdict != DIVERGED], skipped)

    def _studies(self, evidence: Evidence) -> Iterator[Case]:
        for depth, variant in itertools.product(self.depths or (), self.variants):
            sides = [select(evidence.steps, [study], [variant], [depth]) for study in self.studies]
            if gaps := [s for s, side in zip(self.studies, sides, strict=True) if side.empty]:
                where = {"gap_of": ", ".join(gaps), "depths": str(depth)}
                raise NotMeasured(NO_RUN, variant=variant, **where)
            step = min(int(side["step"].max()) for side in sides)
            a, b = (log10(loss_at(side, step)) for side in sides)
            found = estimate_difference(a, b, "loss", LOG10)
            finite = np.isfinite([*a, *b]).all()
            verdict = self.weigh(found, self.band) if finite else DIVERGED
            margin, seeds = self.band.margin(found.mean), min(len(a), len(b))
            yield Case(found, verdict, margin, variant, depth, seeds, against=self.studies[1])

    def _platforms(self, evidence: Evidence) -> Iterator[Case]:
        ours, found = self._all_studies(evidence, evidence.cells), False
        for platform, theirs in evidence.on_others(ours):
            if self.other_backend not in (None, platform.backend):
                continue
            if self.other_device:
                theirs = theirs[theirs["machine"].map(device_of) == self.other_device]
            try:
                theirs = self._all_studies(evidence, theirs)
            except NotMeasured:
                continue
            both = theirs.merge(ours, on=[*CELL, "seed"], suffixes=("_there", "_here"))
            for (study, depth, variant), seeds in both.groupby(CELL, sort=False):
                found = True
                yield self._on_two(evidence, study, depth, variant, platform.name, seeds)
        if not found:
            names = [FRAMEWORKS.get(self.other_backend), DEVICES.get(self.other_device)]
            where = " ".join(filter(None, names)) or "another platform"
            raise NotMeasured(NO_RUN, gap_of=where)

    def _all_studies(self, evidence: Evidence, runs: pd.DataFrame) -> pd.DataFrame:
        """The runs of all studies. Raises NotMeasured if one lacks a cell."""
        of_each = (replace(evidence, cells=runs[runs["study"] == name]) for name in self.studies)
        return pd.concat(
            [untestable.drop_duplicate_cells(self.find(each, SCORE)) for each in of_each]
        )

    def _on_two(
        self, evidence: Evidence, study: str, depth: int, variant: str, platform: str,
        seeds: pd.DataFrame,
    ) -> Case:  # fmt: skip
        a, b = seeds[f"{SCORE}_here"], seeds[f"{SCORE}_there"]
        metric = evidence.scores[study].metric
        ratio = is_ratio(metric)
        found = estimate_mean(differences(a, b, ratio=ratio), SCORE, LOG10 if ratio else "")
        if not ratio:
            found = found.clipped(possible_differences(metric, b.mean()))
        case = partial(Case, variant=variant, depth=depth, against=platform)
        if (a.isna() != b.isna()).any():
            return case(found, CONTRADICTED, math.inf, seeds=len(a), counted=True)
        if a.isna().all():  # both diverged, and agree in that
            verdict = REPRODUCED if len(a) >= self.seeds else NOT_MEASURED
            return case(found, verdict, -math.inf, seeds=len(a), counted=True)
        verdict = self.weigh(found, self.band)
        return case(found, verdict, self.band.margin(found.mean), seeds=found.n)


def possible_differences(metric: str, against: float) -> Band:
    """The range of possible differences of a metric from the other side's mean."""
    least, most = tasks.bounds_of(metric)
    return Band(least - against, most - against)


def loss_at(steps: pd.DataFrame, step: int) -> pd.Series:
    """The mean loss by seed, over the tenth of the steps that ends at a step."""
    upto = steps[steps["step"] <= step].sort_values("step")
    return upto.groupby("seed")["loss"].apply(lambda loss: tail_mean(loss.to_numpy()))
