"""Estimators of single variants: the mean of a metric, the number of runs, a line over depth."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import model_validator

from fathom.settings import join_values, unknown
from fathom_study import tasks
from fathom_study.analysis.claims import untestable
from fathom_study.analysis.claims.estimator import (
    LEARNED,
    LEFT,
    LOST,
    OVER_RUNS,
    OVER_SEEDS,
    RUNS,
    SCORE,
    STEPS,
    Case,
    Estimator,
    Metric,
    Metrics,
    Variants,
    numbers,
)
from fathom_study.analysis.claims.evidence import (
    CONTRADICTED,
    FEW_SEEDS,
    NO_RUN,
    NOT_MEASURED,
    NOT_REPRODUCED,
    REPRODUCED,
    Evidence,
    Judgement,
    NotMeasured,
)
from fathom_study.analysis.estimate import LOG10, Band, Estimate, estimate_mean, predict_one_more
from fathom_study.analysis.statistics import CONFIDENCE, log10, t_quantile
from fathom_study.analysis.tables import CELL
from fathom_study.metrics.scores import Score

LEAST_LEFT = 1e-9
"""Share left that stands for a perfect score, since zero has no logarithm."""

EVERY_STEP = [name for name, metric in tasks.step_metrics().items() if metric.when == "every step"]


class Level(Estimator):
    """The mean of a metric over seeds lies in the band, for every depth and variant.

    Several metrics are tried in order, so that a diverged run can give its last finite one. `over`
    takes the logarithm of the ratio to another metric. A diverged run without a value contradicts
    the claim. For `left` so does every run that did not learn, unless the band is open above: then
    it is inside, and the others decide. A run without the metric does not count.
    """

    kind: Literal["level"]
    variants: Variants
    metric: Metrics
    over: Metric | None = None

    @property
    def is_log(self) -> bool:
        """Whether the band is of ratios, which are judged by their logarithms."""
        return self.metric == [LEFT] or self.over is not None

    def measure(self, evidence: Evidence, runs: pd.DataFrame) -> pd.Series:
        """The value of each run to compare with the band; NaN if it has none."""
        if self.metric == [LEFT]:
            return log10(share_left(evidence.scores[self.study], runs).clip(lower=LEAST_LEFT))
        values = runs[self.metric].bfill(axis=1).iloc[:, 0]
        return log10(values / runs[self.over]) if self.over else values

    def judge(self, evidence: Evidence) -> Judgement:
        runs = untestable.drop_duplicate_cells(
            self.find(evidence.cells, LEFT if self.metric == [LEFT] else "")
        )
        value = partial(self.measure, evidence)
        runs = runs.assign(value=value)
        sd = self.seed_sd(evidence, value)
        cells = runs.groupby(["depth", "variant"])
        return self.combine([self._case(evidence, *key, seeds, sd) for key, seeds in cells])

    def _case(
        self, evidence: Evidence, depth: int, variant: str, seeds: pd.DataFrame, seed_sd: float
    ) -> Case:
        what, is_left = self.metric[0], self.metric == [LEFT]
        lost = seeds["outcome"] != LEARNED if is_left else seeds["value"].isna()
        lost &= is_left | (seeds["outcome"] == LOST)
        finite = seeds["value"].dropna()
        if finite.empty and not lost.any():
            raise NotMeasured(NO_RUN, variant=variant, depths=str(depth), metric=what)
        unit = LOG10 if self.is_log else ""
        shown, judged = (estimate_mean(values, unit) for values in (finite, finite[~lost]))
        if self.is_log:
            ends = (math.log10(end) if 0 < end < math.inf else end for end in (self.low, self.high))
            band = Band(*ends)
        else:
            band, possible = self.band, Band(*tasks.bounds_of(what))
            shown, judged = shown.clipped(possible), judged.clipped(possible)
        inside, n = is_left and band.high == math.inf, len(seeds)
        case = partial(Case, variant=variant, depth=depth, band=band)
        if lost.any() and not inside:
            case = case(shown, CONTRADICTED, math.inf, seeds=n, counted=True)
        elif lost.all():
            verdict = REPRODUCED if n >= self.seeds else NOT_MEASURED
            case = case(shown, verdict, -math.inf, seeds=n, counted=True)
        else:
            verdict = self.weigh(judged, band, seed_sd)
            case = case(judged, verdict, band.margin(judged.mean), seeds=judged.n)
        if not is_left:
            return case
        return _as_scores(case, evidence.scores[self.study], seeds["score_chance"].iloc[0])


def share_left(score: Score, runs: pd.DataFrame) -> pd.Series:
    """The remaining share of the distance from chance to a perfect score, by run."""
    left = pd.to_numeric(runs[SCORE]) - score.perfect
    return left / (runs["score_chance"] - score.perfect)


def _as_scores(case: Case, of: Score, chance: float) -> Case:
    """The case of a log10 share left, converted to scores."""
    perfect, possible = of.perfect, Band(*tasks.bounds_of(of.metric))

    def score(left: float) -> float:
        return perfect + 10**left * (chance - perfect) if math.isfinite(left) else math.nan

    ends = [score(end) for end in (case.band.low, case.band.high)]
    if chance < perfect:
        ends.reverse()
    shown = case.estimate.mapped(score).clipped(possible)
    return replace(case, estimate=shown, band=Band(*ends))


class Count(Estimator):
    """The metric lies in the band, run by run.

    Reproduced: in all runs. Contradicted: in none. `one_decides`: one run outside contradicts
    (`against`), or one inside reproduces (`for`) a claim that something can happen. Such a claim is
    contradicted if the prediction interval of one more run lies outside in every cell. `over_steps`
    counts the steps at which a metric rises (`rises`), or takes its largest distance from the first
    step (`moves`). Values that are not finite lie outside. `left` is 1, the whole distance, for
    every run that did not learn.
    """

    kind: Literal["count"]
    variants: Variants
    metric: str
    over_steps: Literal["rises", "moves"] | None = None
    one_decides: Literal["for", "against"] | None = None

    @model_validator(mode="after")
    def _has_such_a_metric(self) -> Count:
        known = EVERY_STEP if self.over_steps else (LEFT, *tasks.run_metrics())
        if self.metric not in known:
            raise ValueError(unknown("metric", self.metric, known))
        return self

    def measure(self, evidence: Evidence) -> pd.DataFrame:
        """A row for each run, with its `value`."""
        if self.over_steps:
            rows = self.find(evidence.steps)
            # An extreme between the kept steps of a thinned run is not known.
            by_run = rows.groupby([*CELL, "seed"])["step"]
            rows = rows[by_run.transform("count") > by_run.transform("max")]
            if self.metric not in rows or rows.empty:
                variant = ", ".join(self.variants)
                raise NotMeasured(NO_RUN, variant=variant, metric=self.metric)
            of = rises if self.over_steps == "rises" else moves
            values = rows.sort_values("step").groupby([*CELL, "seed"])[self.metric].apply(of)
            return values.rename("value").reset_index()
        if self.metric == "first_nonfinite_step":  # NaN: the event never occurred
            runs = untestable.drop_duplicate_cells(self.find(evidence.cells))
            return runs.assign(value=runs[self.metric].fillna(math.inf))
        runs = untestable.drop_duplicate_cells(self.find(evidence.cells, self.metric))
        if self.metric == LEFT:
            left = share_left(evidence.scores[self.study], runs)
            return runs.assign(value=left.where(runs["outcome"] == LEARNED, 1.0))
        return runs.assign(value=runs[self.metric])

    def judge(self, evidence: Evidence) -> Judgement:
        runs = self.measure(evidence)
        margins = runs["value"].map(self.band.margin)
        inside, total = int((margins <= 0).sum()), len(runs)
        seeds = int(runs.groupby(CELL).size().min())
        decisive = {"for": inside > 0, "against": inside < total}.get(self.one_decides or "", False)
        if seeds < self.seeds and not decisive:
            raise NotMeasured(FEW_SEEDS, seeds=seeds)
        rests_on = STEPS if self.over_steps else RUNS
        if decisive:
            verdict = REPRODUCED if self.one_decides == "for" else CONTRADICTED
        elif self.one_decides == "for":
            tops = runs.groupby(CELL)["value"].apply(predict_one_more)
            cannot = all(top.outside(self.band) for top in tops)
            verdict, rests_on = CONTRADICTED if cannot else NOT_REPRODUCED, OVER_SEEDS
        else:
            verdict = {total: REPRODUCED, 0: CONTRADICTED}.get(inside, NOT_REPRODUCED)
        weakest = runs.loc[margins.idxmin() if self.one_decides == "for" else margins.idxmax()]
        value = weakest[SCORE] if self.metric == LEFT else weakest["value"]
        estimate = Estimate(float(value), math.nan, math.nan, total, self.over_steps or "")
        return Judgement(
            verdict,
            undecided=verdict == NOT_REPRODUCED and self.one_decides == "for",
            variant=weakest["variant"],
            depths=str(weakest["depth"]),
            metric=self.metric,
            **numbers(estimate, self.band),
            published=self.published,
            cases=total,
            holding=inside,
            seeds=seeds,
            rests_on=rests_on,
        )


def rises(values: pd.Series) -> float:
    """Number of steps at which a metric rises; NaN if it never rises and is not always finite."""
    finite = values.replace([np.inf, -np.inf], np.nan)
    count = int((finite.diff() > 0).sum())
    return count if count or finite.notna().all() else math.nan


def moves(values: pd.Series) -> float:
    """The largest distance of a metric from its first value; not finite if the metric is not."""
    return float((values - values.iloc[0]).abs().max(skipna=False))


class Slope(Estimator):
    """The slope of a metric over depth lies in the band, and a line explains it.

    For a logarithm, a line means exponential growth. Metrics are tried in order, so that a run that
    diverged can give its last finite one. Reproduced only if the line explains `r_squared` of the
    variance.
    """

    rests_on: ClassVar[str] = OVER_RUNS
    kind: Literal["slope"]
    variant: str
    metric: Metrics
    r_squared: float = 0.99

    def judge(self, evidence: Evidence) -> Judgement:
        runs = self.select(evidence.cells)
        runs = runs.assign(value=runs[self.metric].bfill(axis=1).iloc[:, 0]).dropna(subset="value")
        depths, metric = sorted(runs["depth"].unique()), self.metric[0]
        if len(depths) < 3:
            raise NotMeasured(NO_RUN, variant=self.variant, metric=metric, depths="three")
        from scipy import stats

        fit = stats.linregress(runs["depth"], runs["value"])
        # Equal values have no correlation and a slope of exactly zero.
        flat = runs["value"].nunique() == 1
        r_squared, stderr = (0.0, 0.0) if flat else (fit.rvalue**2, fit.stderr)
        half = t_quantile(len(runs) - 2, 0.5 + CONFIDENCE / 2) * stderr
        slope = Estimate(fit.slope, fit.slope - half, fit.slope + half, len(runs))
        rises = slope.inside(self.band) and r_squared >= self.r_squared
        bends = slope.inside(self.band) and not rises
        falls = slope.outside(self.band) or flat
        return Judgement(
            CONTRADICTED if falls else REPRODUCED if rises else NOT_REPRODUCED,
            undecided=not (rises or falls or bends),
            variant=self.variant,
            depths=join_values(depths),
            metric=metric,
            **numbers(slope, self.band),
            r_squared=r_squared,
            published=self.published,
            cases=1,
            holding=int(rises),
            seeds=int(runs["seed"].nunique()),
        )
