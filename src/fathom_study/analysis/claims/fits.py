"""The estimator of a line over depth."""

from __future__ import annotations

from typing import ClassVar, Literal

from fathom.settings import join_values
from fathom_study.analysis.claims.estimator import (
    OVER_RUNS,
    Estimator,
    Metrics,
    numbers,
)
from fathom_study.analysis.claims.evidence import (
    CONTRADICTED,
    NO_RUN,
    NOT_REPRODUCED,
    REPRODUCED,
    Evidence,
    Judgement,
    NotMeasured,
)
from fathom_study.analysis.estimate import Estimate
from fathom_study.analysis.statistics import CONFIDENCE, t_quantile
from fathom_study.analysis.tables import select


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
        runs = select(evidence.cells, self.studies, [self.variant], self.depths)
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
        slope = Estimate(metric, fit.slope, fit.slope - half, fit.slope + half, len(runs))
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
