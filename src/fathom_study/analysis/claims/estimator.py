"""The base of all estimators: settings, and the comparison of an estimate with its band.

An estimator, of levels.py or comparisons.py, is a kind of test that `report/published.yaml` names
with its settings. Each makes estimates from the runs of one platform and compares them with its
band, from `low` to `high`.

Definitions: docs/definitions/verdicts.md.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import pandas as pd
from pydantic import BeforeValidator, Field, model_validator

from fathom.settings import Flag, Number, Positive, Settings, either, join_values, one_of
from fathom_study import tasks
from fathom_study.analysis.claims.evidence import (
    CONTRADICTED,
    DIVERGED,
    FEW_SEEDS,
    NO_RUN,
    NOT_MEASURED,
    NOT_REPRODUCED,
    REPRODUCED,
    Evidence,
    Judgement,
    NotMeasured,
    combine_verdicts,
)
from fathom_study.analysis.estimate import Band, Estimate
from fathom_study.analysis.statistics import MIN_SEEDS
from fathom_study.analysis.tables import GROUP, select
from fathom_study.models.recipes import RECIPES

OVER_SEEDS, OVER_RUNS, NO_INTERVAL = "interval over seeds", "interval over runs", "no interval"
RUNS, STEPS = "count of runs", "count of steps"
TURNS = "range of turns"
"""Kinds of evidence for a verdict."""

SCORE, NOT_SCORED = "score", "not scored"
"""The metric that stands for the score of the study, and the outcome of a run that has none."""

LEFT = "left"
"""The metric for the remaining share of the distance from chance to a perfect score."""

LEARNED, LOST = "learned", "diverged"
"""Outcomes of runs."""

MIN_EFFECT_IN_SD = 10
"""Half-width of an interval from too few seeds, in standard deviations over other cells' seeds."""


def listed(value: object) -> object:
    """The value, as a list of one unless it is a list."""
    return value if isinstance(value, list) else [value]


Metric = Annotated[str, one_of("metric", (SCORE, LEFT, *tasks.run_metrics()))]
Metrics = Annotated[list[Metric], BeforeValidator(listed), Field(min_length=1)]
Variants = Annotated[list[str], Field(min_length=1)]

MINIMUM_SETTINGS = ("depth", "steps", "width", "streams", "batch_size", "tokens_per_step")

ByRecipe = Annotated[dict[Annotated[str, one_of("recipe", RECIPES)], Number], Field(min_length=1)]
MinimumScale = Annotated[
    dict[Annotated[str, one_of("minimum setting", MINIMUM_SETTINGS)], either(Number, ByRecipe)],
    Field(default_factory=dict),
]
"""Minimum sizes by setting: one number, or one for each recipe."""


# --- an estimate against a band -----------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One estimate against the band."""

    estimate: Estimate
    verdict: str
    margin: float
    """The distance of the mean from the band, on the scale of the comparison."""
    variant: str
    depth: int
    seeds: int
    against: str = ""
    band: Band | None = None
    """The band in the unit of the estimate, if that is not the test's own unit."""
    counted: bool = False
    """Whether the verdict follows from single runs that failed."""
    equal: bool = False
    """Whether two sides differ by rounding alone."""


class Estimator(Settings):
    """A kind of test with its settings; `kind` is its name in published.yaml."""

    rests_on: ClassVar[str] = OVER_SEEDS
    """The default evidence of its verdicts; a judgement may name another."""

    studies: Annotated[list[str], Field(min_length=1, max_length=1)] = Field(
        description="the study that has its cells, in a list"
    )
    depths: list[int] | None = Field(None, description="depths to test; None: every depth present")
    low: float = -math.inf
    high: float = math.inf
    published: float = math.nan
    seeds: Positive = Field(
        MIN_SEEDS, description="number of seeds a verdict needs; 1: the source reports one run"
    )
    of_seeds: list[int] | None = Field(
        None,
        description="seeds that count, fixed before results were seen; None: all. Seeds added "
        "because the first left the test undecided do not count",
    )
    of_mixing: Flag = Field(
        False, description="whether the claim attributes its metric to H_res and its logits"
    )
    minimum_scale: MinimumScale
    """Minimum sizes of a study that can be tested; they override those of the claim."""

    @model_validator(mode="after")
    def _has_a_band(self) -> Estimator:
        if not self.low <= self.high or (math.isinf(self.low) and math.isinf(self.high)):
            raise ValueError(f"{self.kind} needs low, high or both; low must not be above high")
        return self

    @abstractmethod
    def judge(self, evidence: Evidence) -> Judgement:
        """The judgement of the runs of one platform. Raises NotMeasured."""

    @property
    def band(self) -> Band:
        """The values that the claim needs."""
        return Band(self.low, self.high)

    @property
    def study(self) -> str:
        """The study that has its cells."""
        return self.studies[0]

    @property
    def named_variants(self) -> list[str]:
        """Every variant that its settings name."""
        values = [getattr(self, field, []) for field in ("variant", "variants", "than")]
        return [name for names in values for name in ([names] if isinstance(names, str) else names)]

    @property
    def named_metrics(self) -> list[str]:
        """Every run metric that its settings name."""
        values = [getattr(self, field, None) for field in ("metric", "over")]
        return list(itertools.chain(*(listed(names) for names in values if names)))

    def select(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of its variants in its study, at its depths."""
        return select(table, self.studies, self.named_variants, self.depths)

    def find(self, table: pd.DataFrame, metric: str = "") -> pd.DataFrame:
        """The test's rows of a table: all of them, or those of cells that have this metric.

        Diverged runs count as scored. Raises NotMeasured if a variant is missing, or missing at a
        named depth: a part of the cells cannot speak for all of them.
        """
        rows = self.select(table)
        if metric in (SCORE, LEFT):
            rows = rows[rows["outcome"] != NOT_SCORED]
        elif metric:
            rows = rows[rows[metric].notna()]
        for variant in self.named_variants:
            there = set(rows.loc[rows["variant"] == variant, "depth"])
            lacking = sorted(set(self.depths or ()) - there)
            if lacking or not there:
                depth = join_values(lacking)
                raise NotMeasured(NO_RUN, variant=variant, depths=depth, metric=metric)
        return rows

    def seed_sd(self, evidence: Evidence, value: Callable[[pd.DataFrame], pd.Series]) -> float:
        """The largest standard deviation of a value over seeds, of any depth on any platform.

        NaN if no cell has MIN_SEEDS seeds.
        """
        runs = select(evidence.everywhere, self.studies, self.named_variants)
        groups = value(runs).groupby([runs[name] for name in GROUP])
        return float(groups.std()[groups.count() >= MIN_SEEDS].max())

    def weigh(self, estimate: Estimate, band: Band, seed_sd: float = math.nan) -> str:
        """The verdict of an estimate.

        With too few seeds its interval is mean ± MIN_EFFECT_IN_SD · `seed_sd`, the largest standard
        deviation over seeds; if that crosses the band, nothing is measured.
        """
        enough = estimate.n >= self.seeds
        if not enough or math.isnan(estimate.low):
            known = math.inf if math.isnan(seed_sd) else seed_sd
            reach = 0.0 if enough else MIN_EFFECT_IN_SD * known
            estimate = replace(estimate, low=estimate.mean - reach, high=estimate.mean + reach)
        if estimate.outside(band):
            return CONTRADICTED
        if estimate.inside(band):
            return REPRODUCED
        return NOT_REPRODUCED if enough else NOT_MEASURED

    def _about(self, case: Case) -> dict[str, Any]:
        """The fields of a judgement that identify a case."""
        of = {"variant": case.variant, "against": case.against}
        return of | {"depths": str(case.depth), "metric": self.named_metrics[0]}

    def combine(self, cases: Sequence[Case], skipped: Sequence[Case] = ()) -> Judgement:
        """The judgement of all cases, with the numbers of the weakest.

        `skipped` holds cases with a diverged side, which are not compared and decide nothing.
        """
        if not cases:
            seeds = min(case.seeds for case in skipped)
            verdict = NOT_REPRODUCED if seeds >= self.seeds else NOT_MEASURED
            numbers_of = {"cases": len(skipped), "seeds": seeds, "rests_on": RUNS}
            where = _names(skipped)
            return Judgement(
                verdict, gap=DIVERGED, gap_of=where, **self._about(skipped[0]), **numbers_of
            )
        worst = max(cases, key=lambda case: case.margin)
        verdict = combine_verdicts(case.verdict for case in cases)
        deciding = [case for case in cases if case.verdict == verdict]
        counted = any(case.counted or case.equal for case in deciding)
        gap = DIVERGED if skipped else FEW_SEEDS if verdict == NOT_MEASURED else ""
        return Judgement(
            verdict,
            undecided=verdict == NOT_REPRODUCED and not counted,
            **self._about(worst),
            **numbers(worst.estimate, worst.band or self.band),
            published=self.published,
            cases=len(cases) + len(skipped),
            holding=sum(case.verdict == REPRODUCED for case in cases),
            equal=sum(case.equal for case in cases),
            seeds=min(case.seeds for case in deciding),
            rests_on=RUNS if all(case.counted for case in deciding) else "",
            gap=gap,
            gap_of=_names(skipped),
        )


def numbers(estimate: Estimate, band: Band) -> dict[str, Any]:
    """The fields of a judgement that hold an estimate and its band."""
    low, high = (end if math.isfinite(end) else math.nan for end in (band.low, band.high))
    ends = {"low": estimate.low, "high": estimate.high, "needed_low": low, "needed_high": high}
    return {"observed": estimate.mean, "unit": estimate.unit, **ends}


def _names(skipped: Sequence[Case]) -> str:
    return ", ".join(dict.fromkeys(case.against or case.variant for case in skipped))
