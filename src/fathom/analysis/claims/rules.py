"""Rules: the kinds of test that a published claim can be put to.

`report/published.yaml` names, for every claim, rules of this file with their settings, so adding a
claim needs YAML alone, and a new rule is a class. A rule looks at one platform at a time and gives
a verdict with the numbers behind it. There are four engines, each with its rules below it:

- `Level`: the mean over seeds of each cell against a line or a band;
- `Count`: how many runs have a property;
- `Pair`: two sides compared, seed by seed or by means;
- `Relation`: a fit or a correlation over runs.

Definitions: docs/definitions.md, "Verdicts".
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from scipy.special import stdtrit  # of scipy.stats what few tests need is loaded where it is

from fathom import tasks
from fathom.analysis.claims import untestable
from fathom.analysis.established import ROUNDING, SMALLEST, share_of_chance
from fathom.analysis.platforms import DEVICES, FRAMEWORKS, Platform, device_of, labels_of
from fathom.analysis.tables import (
    CELL,
    CONFIDENCE,
    GROUP,
    MIN_SEEDS,
    differences,
    is_ratio,
    log10,
    mean_with_ci,
    select,
    t_interval,
    to_scale,
)
from fathom.config import BACKENDS, Config
from fathom.metrics import Score, tail_mean
from fathom.models.recipes import RECIPES
from fathom.settings import (
    Flag,
    Positive,
    Registry,
    Settings,
    join_values,
    one_of,
    short_repr,
    unknown,
)

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
CONTRADICTED, NOT_MEASURED = "contradicted", "not measured"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, CONTRADICTED, NOT_MEASURED)

OVER_SEEDS, OVER_RUNS, NO_INTERVAL = "interval over seeds", "interval over runs", "no interval"
RUNS, STEPS = "count of runs", "count of steps"
"""What a verdict may rest on."""

SCORE, NOT_SCORED = "score", "not scored"
"""The metric that stands for the score of the study, and the outcome of a run that has none."""

Metric = Annotated[str, one_of("metric", (SCORE, *tasks.run_metrics()))]
Metrics = Annotated[list[Metric], Field(min_length=1)]
Variants = Annotated[list[str], Field(min_length=1)]
EveryStepMetric = Annotated[
    str,
    one_of("metric", [n for n, m in tasks.step_metrics().items() if m.when == "every step"]),
]

MINIMUM_SETTINGS = ("depth", "steps", "width", "streams", "batch_size", "tokens_per_step")

Least = float | dict[str, float]
"""One number, or one for each recipe."""


def _as_minimum(value: object) -> object:
    """The value. Raises ValueError for anything else, and for a recipe that there is not."""
    by_recipe = value if isinstance(value, dict) else {next(iter(RECIPES)): value}
    for recipe, least in by_recipe.items():
        if recipe not in RECIPES:
            raise ValueError(unknown("recipe", recipe, RECIPES))
        if not isinstance(least, int | float) or isinstance(least, bool):
            raise ValueError(f"must be a number, but is {short_repr(least)}")
    if not by_recipe:
        raise ValueError("must be a number, or one for each recipe")
    return value


def _steps_alone_by_recipe(minimum: dict[str, Least]) -> dict[str, Least]:
    for name, value in minimum.items():
        if name != "steps" and isinstance(value, dict):
            raise ValueError(f"{name} must be one number: steps alone may differ by recipe")
    return minimum


MinimumScale = Annotated[
    dict[
        Annotated[str, one_of("minimum setting", MINIMUM_SETTINGS)],
        Annotated[Least, BeforeValidator(_as_minimum)],
    ],
    Field(default_factory=dict),
    AfterValidator(_steps_alone_by_recipe),
]

MIN_EFFECT_IN_SD = 10
"""Without an interval a difference must be so many times the largest standard deviation."""

TOO_SMALL = "too small to matter"

MIN_RUNS_FOR_SPREAD = 8
"""So many runs of two variants together can differ in their spread by more than chance."""


def combine_verdicts(verdicts: Iterable[str]) -> str:
    """The verdict of several tests together: all must hold, and one that does not is enough."""
    found = set(verdicts)
    order = (CONTRADICTED, NOT_REPRODUCED, NOT_MEASURED, REPRODUCED)
    return next((verdict for verdict in order if verdict in found), NOT_MEASURED)


def title_studies(config: Config, names: Iterable[str]) -> str:
    """What people read for studies, in a sentence: the label of each in quotes, or its name."""
    titles = (f"“{config.labels[name]}”" if name in config.labels else name for name in names)
    return ", ".join(titles)


# --- what the rules look at ---------------------------------------------------------------------


class NotMeasured(Exception):  # noqa: N818, a verdict and no error
    """A test cannot be made: runs that it needs are not there, or too few."""

    def __init__(self, reason: str, seeds: int = 0) -> None:
        super().__init__(reason)
        self.seeds = seeds


@dataclass(frozen=True)
class Evidence:
    """The runs that count, on one platform."""

    cells: pd.DataFrame
    """A row per run, as in cells.csv, with the column `untestable.SAME_AS`."""
    steps: pd.DataFrame
    """A row per step of these runs, as in steps.csv.gz."""
    everywhere: pd.DataFrame
    """A row per run on any platform."""
    scores: Mapping[str, Score]
    """What each study's results are judged by."""
    config: Config

    def label(self, variant: str) -> str:
        """What people read for a variant."""
        return self.config.labels.get(variant, variant)

    def studies(self, names: Iterable[str]) -> str:
        """What people read for studies, in a sentence."""
        return title_studies(self.config, names)

    def without(self, studies: Collection[str], below: float) -> Evidence:
        """The same without these studies and without networks of fewer than `below` layers."""
        if not studies and below <= self.everywhere["depth"].min():
            return self
        tables = (
            table[~table["study"].isin(studies) & (table["depth"] >= below)]
            for table in (self.cells, self.steps, self.everywhere)
        )
        return Evidence(*tables, self.scores, self.config)

    def on(self, device: str) -> Evidence:
        """The same without what ran here on another device."""
        cells = self.cells[self.cells["machine"].map(device_of) == device]
        axes = [*CELL, "seed"]
        ran = pd.MultiIndex.from_frame(cells[axes])
        steps = self.steps[pd.MultiIndex.from_frame(self.steps[axes]).isin(ran)]
        return replace(self, cells=cells, steps=steps)

    def on_others(self, runs: pd.DataFrame) -> Iterator[tuple[Platform, pd.DataFrame]]:
        """For every backend or machine but that of `runs`, all of its runs."""
        here = runs[["backend", "machine"]].iloc[0]
        others = self.everywhere.drop(self.cells.index)
        for name, found in others.groupby("platform", sort=False):
            # Imported runs of this very machine say nothing new.
            if (found[["backend", "machine"]].iloc[0] != here).any():
                yield Platform.parse(name), found

    def seed_sd(self, rule: Rule, value: Callable[[pd.DataFrame], pd.Series]) -> float:
        """The largest standard deviation of a value over seeds, of any cell on any platform.

        Of the rule's studies and variants; NaN if no cell has MIN_SEEDS seeds.
        """
        runs = select(self.everywhere, rule.studies, rule.named_variants)
        groups = value(runs).groupby([runs[name] for name in GROUP])
        return float(groups.std()[groups.count() >= MIN_SEEDS].max())


@dataclass(frozen=True)
class Judgement:
    """A verdict of one test on one platform, with the numbers behind it."""

    verdict: str
    reason: str
    observed: float = math.nan
    ci95_half: float = math.nan
    published: float = math.nan
    seeds: int = 0
    """The fewest behind any part of it."""
    rests_on: str = ""
    """What it rests on, where that is not what its rule's verdicts rest on."""
    undecided: bool = False
    """Whether nothing is established because intervals reach both sides: more seeds may tell."""


@dataclass(frozen=True)
class GroupResult:
    """The verdict of one cell, or of two that are compared."""

    name: str
    estimate: dict[str, float]
    """Mean and interval, as of `t_interval`."""
    verdict: str
    margin: float
    """How far its mean is on the wrong side; infinite if it is not finite."""
    seeds: int
    counted: bool = False
    """Whether the verdict is of runs one by one, and of no interval."""
    small: str = ""
    """Of a difference that is too small to matter: how small."""


def combine_results(
    results: Sequence[GroupResult],
    describe: Callable[[GroupResult], str],
    published: float = math.nan,
) -> Judgement:
    """The judgement of several groups, with the numbers of the weakest case.

    That is the one that speaks most against the claim, or least for it; `describe` gives the reason
    from it. `seeds` are those of the groups that give the verdict.
    """
    worst = max(results, key=lambda result: result.margin)
    verdict = combine_verdicts(result.verdict for result in results)
    decide = [result for result in results if result.verdict == verdict]
    seeds = min(result.seeds for result in decide)
    reason = f"{too_few(seeds)}; " if verdict == NOT_MEASURED else ""
    reason += describe(worst)
    counted = RUNS if all(result.counted for result in decide) else ""
    told = any(result.counted or result.small for result in decide)
    mean, half = worst.estimate["mean"], worst.estimate["ci95_half"]
    undecided = verdict == NOT_REPRODUCED and not told
    return Judgement(verdict, reason, mean, half, published, seeds, counted, undecided)


def verdict_of(holds: bool, fails: bool) -> str:
    """The verdict of a test of which both, or neither, side may be certain."""
    if fails:
        return CONTRADICTED
    return REPRODUCED if holds else NOT_REPRODUCED


def too_few(seeds: int) -> str:
    """What is said of too few seeds."""
    return f"{'one seed' if seeds == 1 else f'{seeds} seeds'}: no verdict"


class Rule(Settings):
    """A named rule with its settings.

    Every rule has a `kind`, by which published.yaml names it, and is in RULES.
    """

    rests_on: ClassVar[str] = OVER_SEEDS
    """What its verdicts rest on. One that rests on an interval can be wrong by chance."""

    studies: Annotated[list[str], Field(min_length=1, max_length=1)] = Field(
        description="where its cells are: each study is looked at by itself"
    )
    depths: list[int] | None = Field(None, description="of these; None: every depth that is there")
    seeds: Positive = Field(
        MIN_SEEDS, description="so many seeds a verdict takes; 1: the source tells of one run"
    )
    of_mixing: Flag = Field(
        False, description="whether what it looks at is said to come from H_res and its logits"
    )
    minimum_scale: MinimumScale
    """The least sizes of a study that can be tested, where they are not those of the claim."""

    @abstractmethod
    def judge(self, evidence: Evidence) -> Judgement:
        """Look at one platform. Raises NotMeasured."""

    @property
    def named_variants(self) -> list[str]:
        """Every variant that its settings name."""
        fields = ("variant", "variants", "lower", "higher", "than")
        found = [getattr(self, field, []) for field in fields]
        return [name for names in found for name in ([names] if isinstance(names, str) else names)]

    @property
    def named_metrics(self) -> list[str]:
        """Every run metric that its settings name, but for what decides nothing."""
        return [*getattr(self, "metrics", []), *filter(None, [getattr(self, "metric", None)])]

    def find(
        self, evidence: Evidence, *metrics: str, table: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """Its cells that have these metrics, or rows of another table; any score is one.

        Raises NotMeasured if they lack a variant, or one at a named depth: a part of the cells
        cannot speak for all of them.
        """
        table = evidence.cells if table is None else table
        rows = select(table, self.studies, self.named_variants, self.depths)
        with_metrics = f" with a {join_values(metrics)}" if metrics else ""
        for metric in metrics:
            rows = rows[rows["outcome"] != NOT_SCORED if metric == SCORE else rows[metric].notna()]
        for variant in self.named_variants:
            there = set(rows.loc[rows["variant"] == variant, "depth"])
            lacking = sorted(set(self.depths or ()) - there)
            if lacking or not there:
                where = f" at {join_values(lacking)} layers" if lacking else ""
                raise NotMeasured(f"no run of {evidence.label(variant)}{where}{with_metrics}")
        return rows

    def find_once(self, evidence: Evidence, *metrics: str) -> pd.DataFrame:
        """Likewise of cells, of which those that are the same runs are there once."""
        return untestable.each_once(self.find(evidence, *metrics))

    def fewest_seeds(self, runs: pd.DataFrame, *, any_will_do: bool = False) -> int:
        """Of any cell. Raises NotMeasured for fewer than a verdict takes, if any will not do."""
        seeds = int(runs.groupby(CELL).size().min())
        if seeds < self.seeds and not any_will_do:
            raise NotMeasured(too_few(seeds), seeds)
        return seeds

    def judge_group(
        self,
        name: str,
        estimate: dict[str, float],
        margin: float,
        seeds: int,
        seed_sd: float = math.nan,
    ) -> GroupResult:
        """The verdict of a mean that is `margin` on the wrong side of a line (negative: the right).

        Reproduced or contradicted if the interval leaves out the line. With fewer seeds than an
        interval takes: if the distance is more than MIN_EFFECT_IN_SD times `seed_sd`, the largest
        standard deviation between seeds, or not finite; else nothing is measured.
        """
        enough = seeds >= self.seeds
        reach = estimate["ci95_half"]
        if math.isnan(reach):
            reach = 0.0 if enough else _nan_to_inf(MIN_EFFECT_IN_SD * seed_sd)
        verdict = verdict_of(margin < -reach, margin > reach or margin == math.inf)
        if verdict == NOT_REPRODUCED and not enough:
            verdict = NOT_MEASURED
        return GroupResult(name, estimate, verdict, margin, seeds, counted=math.isinf(margin))


# --- levels -------------------------------------------------------------------------------------


class Level(Rule):
    """The mean over seeds of each cell against a line or a band, by its interval over seeds."""

    @abstractmethod
    def measure(self, runs: pd.DataFrame, score: Score) -> pd.Series:
        """What is compared with the line, for each run; NaN where a run has none."""

    @abstractmethod
    def judge_cell(self, name: str, runs: pd.DataFrame, seed_sd: float) -> GroupResult:
        """The verdict of the seeds of one cell, from their column `value`."""

    def judge_cells(self, runs: pd.DataFrame, evidence: Evidence) -> list[GroupResult]:
        """A verdict for every depth and variant."""
        value = partial(self.measure, score=evidence.scores[self.studies[0]])
        seed_sd = evidence.seed_sd(self, value)
        cells = runs.assign(value=value).groupby(["depth", "variant"])
        return [
            self.judge_cell(f"{evidence.label(variant)} at {depth} layers", seeds, seed_sd)
            for (depth, variant), seeds in cells
        ]


class Band(Level):
    """A metric lies between two numbers in every run of a variant, at every depth.

    Reproduced: every run lies there. Contradicted: the interval over seeds lies outside at some
    depth.
    """

    variant: str

    @abstractmethod
    def band(self) -> tuple[float, float, str]:
        """The lowest and the highest value that is right, and the band in words."""

    def judge_cell(self, name: str, runs: pd.DataFrame, seed_sd: float) -> GroupResult:
        estimate = t_interval(runs["value"])
        low, high, _ = self.band()
        margin = _nan_to_inf(max(low - estimate["mean"], estimate["mean"] - high))
        result = self.judge_group(name, estimate, margin, len(runs), seed_sd)
        if result.verdict == CONTRADICTED or len(runs) < self.seeds:
            return result
        verdict = REPRODUCED if runs["value"].between(low, high).all() else NOT_REPRODUCED
        return replace(result, verdict=verdict, counted=True)

    def judge(self, evidence: Evidence) -> Judgement:
        runs, score = self.find(evidence), evidence.scores[self.studies[0]]
        low, high, band = self.band()
        within = self.measure(runs, score).between(low, high).sum()
        text = f"{within} of {len(runs)} runs {band}; weakest case"
        return combine_results(
            self.judge_cells(runs, evidence), lambda w: f"{text} {w.name}: {_pm(w.estimate)}"
        )


class Near(Band):
    """A metric is within `tolerance` of the published `value` at every depth.

    Reproduced: every run is. Contradicted: the interval over seeds lies outside at some depth.
    `metrics` are tried in order, so that a run that diverged can give its last finite one. The
    metric `beside` is told and decides nothing.
    """

    kind: Literal["near"]
    metrics: Metrics
    value: float
    tolerance: float
    beside: Metric | None = None

    def band(self) -> tuple[float, float, str]:
        low, high = self.value - self.tolerance, self.value + self.tolerance
        return low, high, f"within {self.tolerance:g} of {self.value:g}"

    def measure(self, runs: pd.DataFrame, score: Score) -> pd.Series:
        return _first_finite(runs, self.metrics)

    def judge(self, evidence: Evidence) -> Judgement:
        judged = replace(super().judge(evidence), published=self.value)
        if not self.beside:
            return judged
        beside = _pm(t_interval(self.find(evidence)[self.beside]))
        return replace(judged, reason=f"{judged.reason}; {self.beside} beside it: {beside}")


class Between(Band):
    """A metric lies between `low` and `high` at every depth; a side that is not given is open.

    Reproduced: every run lies there. Contradicted: the interval over seeds lies outside at some
    depth.
    """

    kind: Literal["between"]
    metric: Metric
    low: float = -math.inf
    high: float = math.inf

    @model_validator(mode="after")
    def _has_a_side(self) -> Between:
        if not (self.low < self.high and math.isfinite(min(abs(self.low), abs(self.high)))):
            raise ValueError("between needs low, high or both, the first below the second")
        return self

    def band(self) -> tuple[float, float, str]:
        sides = [f"at least {self.low:g}"] if math.isfinite(self.low) else []
        sides += [f"at most {self.high:g}"] if math.isfinite(self.high) else []
        return self.low, self.high, " and ".join(sides)

    def measure(self, runs: pd.DataFrame, score: Score) -> pd.Series:
        return runs[self.metric]

    def judge(self, evidence: Evidence) -> Judgement:
        if self.find(evidence)[self.metric].isna().all():
            variant = evidence.label(self.variant)
            raise NotMeasured(f"no run of {variant} with a {self.metric}")
        return super().judge(evidence)


class BesideChance(Level):
    """The score ends on one side of a line that leaves `fraction` of the way to chance.

    That is of the way from a perfect score to the chance level: of a loss, that fraction of the
    chance level. `converges_below`: less than that is left. Reproduced: the interval over seeds
    lies there, at every depth and variant. Contradicted: somewhere it lies on the other side, or a
    run diverged; or a run failed where there is no interval. `stays_above`: more than that is left,
    or the score is not finite. Reproduced and contradicted likewise, but that a run diverged is not
    enough for either.
    """

    kind: Literal["converges_below", "stays_above"]
    variants: Variants
    fraction: Annotated[float, Field(gt=0)] = 0.1
    published: float = math.nan

    def measure(self, runs: pd.DataFrame, score: Score) -> pd.Series:
        left = (runs[SCORE] - score.perfect) / (runs["score_chance"] - score.perfect)
        return log10(left.where(runs["outcome"] != "diverged"))

    def judge_cell(self, name: str, runs: pd.DataFrame, seed_sd: float) -> GroupResult:
        estimate = t_interval(runs["value"])
        below = self.kind == "converges_below"
        finite = runs[SCORE].notna() & (runs["outcome"] != "diverged")
        # Runs that diverged are above: those that did not must be, too.
        failed = not (finite.all() if below else finite.any())
        if len(runs) < MIN_SEEDS:
            failed |= (runs["outcome"] != "learned").any()
        margin = math.inf if failed else estimate["mean"] - math.log10(self.fraction)
        seeds = len(runs) if failed else int(finite.sum())
        result = self.judge_group(name, estimate, margin if below else -margin, seeds, seed_sd)
        # The verdict is by what is left of the way; the numbers are the score itself.
        found = mean_with_ci(runs[SCORE], tasks.bounds_of(runs["score_metric"].iloc[0]))
        return replace(result, estimate={**found, "ci95_half": found["high"] - found["mean"]})

    def judge(self, evidence: Evidence) -> Judgement:
        runs, score = self.find_once(evidence, SCORE), evidence.scores[self.studies[0]]
        results = self.judge_cells(runs, evidence)
        limit = score.perfect + self.fraction * (runs["score_chance"].iloc[0] - score.perfect)
        sides = ["below", "above"]
        if (self.kind == "converges_below") != (score.better == "lower"):
            sides.reverse()
        wrong = [r.name for r in results if r.verdict in (CONTRADICTED, NOT_REPRODUCED)]
        where = (
            f"{sides[1]} {limit:.3g}: {', '.join(wrong)}"
            if wrong
            else f"all {sides[0]} {limit:.3g}"
        )

        def describe(worst: GroupResult) -> str:
            mean, low, high = (worst.estimate[part] for part in ("mean", "low", "high"))
            text = "not finite" if math.isnan(mean) else f"{mean:.3g}"
            text += f" ({low:.2g} to {high:.2g})" if math.isfinite(low) else ""
            return f"{where}; weakest case: {worst.name}, {text}"

        return combine_results(results, describe, self.published)


class Falls(Level):
    """At every depth and variant a positive metric is less at the end of a run than at its start.

    By the interval of log10 of the ratio of `last` to `first`, two run metrics. Reproduced: it is
    below zero everywhere. Contradicted: it is above zero somewhere, or a run is not finite.
    """

    kind: Literal["falls"]
    variants: Variants
    metrics: Annotated[list[Metric], Field(min_length=2, max_length=2)] = Field(
        description="at the start and at the end"
    )

    def measure(self, runs: pd.DataFrame, score: Score) -> pd.Series:
        start, end = self.metrics
        return log10(runs[end] / runs[start])

    def judge_cell(self, name: str, runs: pd.DataFrame, seed_sd: float) -> GroupResult:
        estimate = t_interval(runs["value"])
        margin = math.inf if estimate["n"] < len(runs) else estimate["mean"]
        return self.judge_group(name, estimate, margin, len(runs), seed_sd)

    def judge(self, evidence: Evidence) -> Judgement:
        results = self.judge_cells(self.find_once(evidence), evidence)
        what = "weakest case: log10 of end to start of"
        return combine_results(results, lambda w: f"{what} {w.name} {_pm(w.estimate)}")


# --- counts -------------------------------------------------------------------------------------


class Count(Rule):
    """How many runs have a property."""

    rests_on: ClassVar[str] = RUNS


class Fails(Count):
    """No run learns: it diverges, or its score stays near the chance level.

    Reproduced: all fail. Contradicted: all learn.
    """

    kind: Literal["fails"]
    variant: str
    published: float = math.nan

    def judge(self, evidence: Evidence) -> Judgement:
        runs = self.find(evidence, SCORE)
        seeds, score = self.fewest_seeds(runs), t_interval(runs[SCORE])
        outcomes = ", ".join(f"{n} {what}" for what, n in runs["outcome"].value_counts().items())
        reason, failed = f"of {len(runs)} runs: {outcomes}", runs["outcome"] != "learned"
        verdict = verdict_of(failed.all(), not failed.any())
        return Judgement(verdict, reason, score["mean"], score["ci95_half"], self.published, seeds)


class DivergesAtOnce(Count):
    """Loss or logits are not finite from the first step.

    Reproduced: in every run. Contradicted: in none.
    """

    kind: Literal["diverges_at_once"]
    variant: str

    def judge(self, evidence: Evidence) -> Judgement:
        runs = self.find(evidence)
        at_once = runs["first_nonfinite_step"] == 0
        reason = f"not finite from the first step in {at_once.sum()} of {len(runs)} runs"
        verdict = verdict_of(at_once.all(), not at_once.any())
        return Judgement(verdict, reason, at_once.sum(), seeds=self.fewest_seeds(runs))


class NoEvents(Count):
    """No step of any run has a non-finite loss or logit. Contradicted by one."""

    kind: Literal["no_events"]
    variants: Variants

    def judge(self, evidence: Evidence) -> Judgement:
        runs = self.find_once(evidence)
        events = int(runs["nonfinite_total"].sum())
        seeds = self.fewest_seeds(runs, any_will_do=events > 0)
        reason = f"{events} events in {int(runs['steps'].sum())} steps of {len(runs)} runs"
        return Judgement(CONTRADICTED if events else REPRODUCED, reason, events, 0.0, 0.0, seeds)


class Reaches(Count):
    """In some run a metric reaches `value`: what can happen, and need not.

    Reproduced: in at least one. Contradicted: in none, and at every depth the interval in which one
    more run would fall lies below.
    """

    rests_on: ClassVar[str] = OVER_SEEDS
    kind: Literal["reaches"]
    variant: str
    metric: Metric
    value: float

    def judge(self, evidence: Evidence) -> Judgement:
        runs = self.find(evidence, self.metric)
        there, largest = runs[self.metric] >= self.value, runs[self.metric].max()
        seeds = self.fewest_seeds(runs, any_will_do=there.any())
        tops = runs.groupby("depth")[self.metric].apply(_top_of_one_more)
        verdict = verdict_of(there.any(), not there.any() and (tops < self.value).all())
        reason = f"{there.sum()} of {len(runs)} runs reach {self.value:g}; largest {largest:.3g}"
        counted = RUNS if there.any() else ""
        return Judgement(verdict, reason, largest, seeds=seeds, rests_on=counted)


def _top_of_one_more(values: pd.Series) -> float:
    """The upper end of the interval in which one more run would fall; NaN without one.

    The interval of the mean is narrower by √(n + 1).
    """
    found = t_interval(values)
    return found["mean"] + found["ci95_half"] * math.sqrt(found["n"] + 1)


class EveryStep(Count):
    """A metric moves by no more than the `tolerance` of the rule over the steps, in every run."""

    rests_on: ClassVar[str] = STEPS
    reason: ClassVar[str]
    """What was found: how many runs are `still`, and how far the `farthest` moves."""
    variant: str
    metric: EveryStepMetric

    @abstractmethod
    def measure(self, values: pd.Series) -> float:
        """How far one run is from what is claimed; NaN where nothing can be said."""

    def judge(self, evidence: Evidence) -> Judgement:
        rows = self.find(evidence, table=evidence.steps)
        if self.metric not in rows:
            variant = evidence.label(self.variant)
            raise NotMeasured(f"no run of {variant} with a {self.metric}")
        seeds = self.fewest_seeds(rows[rows["step"] == rows["step"].min()])
        by_run = rows.sort_values("step").groupby(["study", "depth", "seed"])[self.metric]
        moves = by_run.apply(self.measure)
        still, farthest = moves <= self.tolerance, moves.fillna(0).max()
        verdict = verdict_of(still.all(), (moves > self.tolerance).all())
        runs = f"{still.sum()} of {len(moves)} runs"
        reason = self.reason.format(still=runs, farthest=farthest, tolerance=self.tolerance)
        return Judgement(verdict, reason, farthest, math.nan, 0.0, seeds)


class Monotone(EveryStep):
    """A metric is finite and never rises from one step to the next, in every run.

    Contradicted: it rises in every run.
    """

    kind: Literal["monotone"]
    tolerance: ClassVar[float] = 0.0
    reason: ClassVar[str] = "never rises in {still}; at most {farthest:.0f} rises in one"

    def measure(self, values: pd.Series) -> float:
        finite = values.replace([np.inf, -np.inf], np.nan)
        rises = int((finite.diff() > 0).sum())
        return rises if rises or finite.notna().all() else math.nan


class Constant(EveryStep):
    """At every step a metric is within `tolerance` of what it was at the first, in every run.

    Contradicted: in no run.
    """

    kind: Literal["constant"]
    tolerance: float
    reason: ClassVar[str] = (
        "within {tolerance:g} of its first value in {still}; farthest {farthest:.2g}"
    )

    def measure(self, values: pd.Series) -> float:
        return _nan_to_inf(float((values - values.iloc[0]).abs().max(skipna=False)))


# --- pairs --------------------------------------------------------------------------------------


class Pair(Rule):
    """Two sides compared, by the interval of the difference of their means.

    Of a positive metric the ratio is compared, by the difference of log10; of any other the
    difference.
    """

    metric: Metric = Field(SCORE, description="what is compared; by default the study's score")
    by: Literal["ratio", "difference"] | None = Field(
        None, description="difference: of a positive metric that may be zero"
    )

    def compares_ratios(self, evidence: Evidence) -> bool:
        """Whether values are compared by their ratio."""
        if self.by:
            return self.by == "ratio"
        score = evidence.scores[self.studies[0]].metric
        return is_ratio(score if self.metric == SCORE else self.metric)

    def scale(self, evidence: Evidence) -> Callable[[pd.DataFrame], pd.Series]:
        """What takes runs to the values that are compared."""
        ratio = self.compares_ratios(evidence)
        return lambda runs: to_scale(runs[self.metric], ratio=ratio)

    def tells_nothing(self, evidence: Evidence, one: pd.DataFrame, other: pd.DataFrame) -> str:
        """Why the runs of two variants, by seed, cannot be told apart by the metric; else empty."""
        if untestable.are_same(one, other):
            return untestable.EQUAL
        if self.metric == SCORE and untestable.compares_nothing(evidence.config, one, other):
            return untestable.INERT
        return ""

    def unless_small(
        self, result: GroupResult, other: pd.DataFrame, evidence: Evidence
    ) -> GroupResult:
        """The result, or none established where two scores differ by too little to matter.

        Its mean is of the difference to `other`, whose column `value` has what is compared.
        """
        if self.metric != SCORE or result.verdict not in (REPRODUCED, CONTRADICTED):
            return result
        score, chance = evidence.scores[self.studies[0]], other["score_chance"].iloc[0]
        ratio = self.compares_ratios(evidence)
        return unless_small(result, other["value"], score, chance, self.seeds, ratio=ratio)


def unless_small(
    result: GroupResult,
    others: pd.Series,
    score: Score,
    chance: float,
    seeds: int,
    *,
    ratio: bool,
) -> GroupResult:
    """The result, or none established where its mean is too small a difference to `others`.

    Both are on the scale on which scores are compared. A side that diverged is far off. With fewer
    than `seeds` nothing is known to be small.
    """
    mean, against = result.estimate["mean"], t_interval(others)["mean"]
    against, by = (10**against, "ratio") if ratio else (against, "difference")
    share = abs(share_of_chance(mean, against, score, chance, by))
    if math.isinf(result.margin) or not share < SMALLEST:
        return result
    verdict = NOT_REPRODUCED if result.seeds >= seeds else NOT_MEASURED
    small = f"{100 * share:.2g} % of the distance to chance"
    return replace(result, verdict=verdict, small=small)


def pairs_at_depths(
    runs: pd.DataFrame,
    one: str,
    others: Sequence[str],
    label: Callable[[str], str],
    depths: Sequence[int] | None = None,
) -> Iterator[tuple[int, str, pd.DataFrame, pd.DataFrame]]:
    """(depth, other, runs of `one` by seed, runs of the other) for every depth that both have.

    Raises NotMeasured where one of the others has none of them, or not each that is named.
    """
    by_cell = {key: found.set_index("seed") for key, found in runs.groupby(["variant", "depth"])}
    for other in others:
        both = f"{label(one)} and {label(other)}"
        has_one, has_other = ({d for v, d in by_cell if v == name} for name in (one, other))
        if not (common := has_one & has_other):
            raise NotMeasured(f"no run of {both} at one depth")
        if lacking := sorted(set(depths or ()) - common):
            raise NotMeasured(f"no run of {both} at {join_values(lacking)} layers")
    for depth, other in itertools.product(sorted(runs["depth"].unique()), others):
        if (one, depth) in by_cell and (other, depth) in by_cell:
            yield depth, other, by_cell[one, depth], by_cell[other, depth]


def combine_pairs(
    rule: Rule,
    results: Sequence[GroupResult],
    skipped: dict[str, int],
    words: dict[str, str],
    describe: Callable[[GroupResult], str],
    published: float = math.nan,
) -> Judgement:
    """The judgement of all comparisons; of none if every one has a side that diverged.

    `skipped` are the names of those that have one, with their seeds. The reason lists the names of
    each verdict behind its words, and describes the weakest case.
    """
    names = ", ".join(skipped)
    if not results:
        seeds, why = min(skipped.values()), f"one side diverged: {names}"
        if seeds < rule.seeds:
            raise NotMeasured(f"{too_few(seeds)}; {why}", seeds)
        why = f"nothing to compare, {why}"
        return Judgement(NOT_REPRODUCED, why, seeds=seeds, rests_on=RUNS)
    reasons = []
    for verdict, word in words.items():
        there = [r.name for r in results if r.verdict == verdict and not r.small]
        reasons += [f"{word} {', '.join(there)}"] if there else []
    small = [f"{result.name} ({result.small})" for result in results if result.small]
    reasons += [f"{TOO_SMALL}: {', '.join(small)}"] if small else []
    reasons += [f"not compared, diverged: {names}"] if skipped else []
    return combine_results(results, lambda w: "; ".join([*reasons, describe(w)]), published)


def loss_at(steps: pd.DataFrame, step: int) -> pd.Series:
    """By seed, the mean loss over the tenth of the steps that ends at a step."""
    upto = steps[steps["step"] <= step].sort_values("step")
    return upto.groupby("seed")["loss"].apply(lambda loss: tail_mean(loss.to_numpy()))


class Ordered(Pair):
    """At every depth that both have, `lower` has less of a metric than each of `higher`.

    Seeds are compared pair by pair, since the same seed means the same batches: the interval is
    that of the mean difference. Reproduced: it is below zero in every comparison. Contradicted: it
    is above zero in some, or, by the score, every seed of the side that should be better diverged
    and none of the other. Else a side that diverged is not compared. Differences no larger than
    rounding are none, and those of scores that are too small to matter establish nothing. A
    comparison that can tell nothing is not measured: of two variants that ran the same, or whose
    H_res, in which alone they differ, does nothing.
    """

    kind: Literal["ordered"]
    lower: str
    higher: Variants

    def judge(self, evidence: Evidence) -> Judgement:
        runs = select(evidence.cells, self.studies, self.named_variants, self.depths)
        if self.metric == SCORE:
            runs = runs[runs["outcome"] != NOT_SCORED]
        scale = self.scale(evidence)
        seed_sd = evidence.seed_sd(self, scale)
        results, skipped, ran, again, untold = [], {}, set(), [], {}
        values, label = runs.assign(value=scale), evidence.label
        pairs = pairs_at_depths(values, self.lower, self.higher, label, self.depths)
        for depth, other, *sides in pairs:
            name = f"{label(other)} at {depth} layers"
            common = sides[0].index.intersection(sides[1].index)
            if common.empty:
                raise NotMeasured(f"no run of {label(self.lower)} and {name}")
            lower, higher = (side.loc[common] for side in sides)
            runs_of_other = (depth, *higher[untestable.SAME_AS])
            if runs_of_other in ran:
                again.append(name)
                continue
            ran.add(runs_of_other)
            if why := self.tells_nothing(evidence, lower, higher):
                untold.setdefault(why, []).append(name)
                continue
            difference = lower["value"] - higher["value"]
            fails = self.metric == SCORE and self._better_diverged(lower, higher, evidence=evidence)
            if difference.isna().any() and not fails:
                skipped[name] = len(common)
                continue
            estimate = t_interval(difference)
            margin = math.inf if fails else estimate["mean"]
            result = self.judge_group(name, estimate, margin, len(common), seed_sd)
            if (lower[self.metric] - higher[self.metric]).abs().max() < ROUNDING:
                enough = estimate["n"] >= self.seeds
                verdict = NOT_REPRODUCED if enough else NOT_MEASURED
                result = replace(result, verdict=verdict, small="equal but for rounding")
            else:
                result = self.unless_small(result, higher, evidence)
            results.append(result)
        notes = [untestable.cannot(why, label(self.lower), *names) for why, names in untold.items()]
        if not (results or skipped):
            raise NotMeasured("; ".join(notes))
        notes += [f"the same run as another, and counted once: {', '.join(again)}"] if again else []
        words = {REPRODUCED: "below", CONTRADICTED: "above", NOT_REPRODUCED: "not apart from"}
        words = {verdict: f"{label(self.lower)} {word}" for verdict, word in words.items()}
        what = "log10 ratio" if self.compares_ratios(evidence) else "difference"

        def describe(worst: GroupResult) -> str:
            text = f"weakest case: {what} to {worst.name} {_pm(worst.estimate)}"
            if worst.estimate["sd"] > 0:  # neither of one run, nor of equal differences
                text += f", effect {worst.estimate['mean'] / worst.estimate['sd']:.2g} sd"
            return text

        judged = combine_pairs(self, results, skipped, words, describe)
        # Where a part cannot be told, the others speak against the claim, or for a part of it.
        verdict = combine_verdicts([judged.verdict, *([NOT_MEASURED] if untold else [])])
        return replace(judged, verdict=verdict, reason="; ".join([judged.reason, *notes]))

    def _better_diverged(self, *sides: pd.DataFrame, evidence: Evidence) -> bool:
        """Whether all of the side that should be better diverged, and none of the other."""
        lower_is_better = evidence.scores[self.studies[0]].better == "lower"
        better, worse = sides if lower_is_better else reversed(sides)
        return better["value"].isna().all() and worse["value"].notna().all()


class VariantThan(Pair):
    """A variant beside another one."""

    variant: str
    than: str

    def values(self, runs: pd.DataFrame, evidence: Evidence) -> pd.DataFrame:
        """The runs that have a finite value to compare."""
        return runs.assign(value=self.scale(evidence)).dropna(subset="value")

    def by_depth(self, evidence: Evidence) -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame]]:
        """(where, the runs of both by seed), for every depth where they can be told apart.

        Raises NotMeasured where there is none.
        """
        runs = self.values(self.find(evidence, self.metric), evidence)
        why, pairs, label = "", [], evidence.label
        for depth, _, *sides in pairs_at_depths(runs, self.variant, [self.than], label):
            if nothing := self.tells_nothing(evidence, *sides):
                why = untestable.cannot(nothing, label(self.variant), label(self.than))
            else:
                pairs.append((f"at {depth} layers", *sides))
        if not pairs:
            raise NotMeasured(why)
        yield from pairs


class NotBelow(VariantThan):
    """A variant has no less of a metric than another one, at every depth that both have.

    Seeds are compared pair by pair: the interval is that of the mean difference. Contradicted: it
    is below zero at some depth, of a score by as much as matters. Reproduced: it is below zero at
    none. With fewer common seeds than an interval takes, nothing is measured.
    """

    kind: Literal["not_below"]

    def judge(self, evidence: Evidence) -> Judgement:
        results = []
        variant, than = evidence.label(self.variant), evidence.label(self.than)
        for name, one, other in self.by_depth(evidence):
            found = t_interval(one["value"] - other["value"])
            if found["n"] < MIN_SEEDS:
                both = f"{variant} and {than}"
                raise NotMeasured(f"no run of {both} with {MIN_SEEDS} common seeds")
            margin = -(found["mean"] + found["ci95_half"])
            verdict = CONTRADICTED if margin > 0 else REPRODUCED
            result = GroupResult(name, found, verdict, margin, found["n"])
            if verdict == CONTRADICTED:
                result = self.unless_small(result, other, evidence)
            results.append(result)
        what = f"{variant} less {than}"
        return combine_results(
            results, lambda w: f"weakest case {w.name}: {what} {_pm(w.estimate)}{_because(w)}"
        )


class VariesMore(VariantThan):
    """The runs of a variant differ more from seed to seed than those of another.

    At every depth that both have, by the test of Brown and Forsythe (of Levene, around medians),
    which does not take values to be normal. Reproduced: the standard deviation is the larger one,
    and the test tells the two apart. Contradicted: it tells them apart at some depth, and the
    standard deviation is the smaller one. Three runs a side can never be told apart: with fewer
    than MIN_RUNS_FOR_SPREAD, nothing is measured.
    """

    kind: Literal["varies_more"]
    by: Literal["difference"] = "difference"

    def judge(self, evidence: Evidence) -> Judgement:
        both, results = " and ".join(map(evidence.label, (self.variant, self.than))), []
        for name, *sides in self.by_depth(evidence):
            one, other = (side["value"] for side in sides)
            seeds = min(len(one), len(other))
            if seeds < MIN_SEEDS or len(one) + len(other) < MIN_RUNS_FOR_SPREAD:
                raise NotMeasured(
                    f"no run of {both} with {MIN_RUNS_FOR_SPREAD} seeds "
                    f"together, of each at least {MIN_SEEDS}"
                )
            from scipy import stats

            sd, other_sd = one.std(ddof=1), other.std(ddof=1)
            with np.errstate(divide="ignore", invalid="ignore"):  # values may all be equal
                p = float(stats.levene(one, other, center="median").pvalue)
            told = p < 1 - CONFIDENCE
            verdict = verdict_of(told and sd > other_sd, told and sd < other_sd)
            ratio = sd / other_sd if other_sd > 0 else math.nan
            sides = f"{sd:.2g} of {len(one)} runs and {other_sd:.2g} of {len(other)}"
            estimate = {"mean": ratio, "ci95_half": math.nan}
            margin = -_nan_to_inf(ratio)
            results.append(
                GroupResult(f"{sides} {name}, p {p:.2g}", estimate, verdict, margin, seeds)
            )
        text = "; ".join(result.name for result in results)
        return combine_results(results, lambda _: f"standard deviations of {both}: {text}")


class RisesWithDepth(VariantThan):
    """A variant has more of a metric at `deep` layers or more than another, or itself, at fewer.

    The largest depth of the one beside the smallest of the other (`than`), by Welch's interval of
    the difference of means. Reproduced: it is above zero. Contradicted: it is below zero. Without
    one of the two depths, nothing is measured.
    """

    kind: Literal["rises_with_depth"]
    deep: int

    def judge(self, evidence: Evidence) -> Judgement:
        runs = select(evidence.cells, self.studies, self.named_variants, self.depths)
        runs = self.values(runs, evidence)
        high, low = (runs[runs["variant"] == name] for name in (self.variant, self.than))
        deepest, shallowest = high["depth"].max(), low["depth"].min()
        variant, than = evidence.label(self.variant), evidence.label(self.than)
        if not deepest >= self.deep:
            raise NotMeasured(f"no run of {variant} at {self.deep} layers or more")
        if not shallowest < self.deep:
            raise NotMeasured(f"no run of {than} at fewer than {self.deep} layers")
        high, low = high[high["depth"] == deepest], low[low["depth"] == shallowest]
        if (seeds := min(len(high), len(low))) < MIN_SEEDS:
            raise NotMeasured(too_few(seeds), seeds)
        found = welch(high["value"], low["value"])
        sides = f"{variant} at {deepest} layers less {than} at {shallowest}"
        result = self.judge_group(sides, found, -found["mean"], seeds)
        result = self.unless_small(result, low, evidence)
        return combine_results([result], lambda w: f"{sides}: {_pm(found)}{_because(w)}")


class SameAtEqualSteps(Rule):
    """Two studies have the same training loss once both are read at the same step.

    It is the last step that both have. A score is measured at the end of a run alone, so this is
    the mean loss over the tenth of the steps that ends there, of log10. The studies may differ in
    size, so that a seed means other numbers in each: Welch's interval of the difference of means.
    Reproduced: it lies within `tolerance` of zero. Contradicted: it lies outside, so that something
    other than the number of steps sets them apart.
    """

    kind: Literal["same_at_equal_steps"]
    studies: Annotated[list[str], Field(min_length=2, max_length=2)]
    variants: Variants
    depths: list[int]
    tolerance: float = Field(0.3, description="of log10: a factor of about two")

    def judge(self, evidence: Evidence) -> Judgement:
        results, skipped, steps = [], {}, {}
        for depth, variant in itertools.product(self.depths, self.variants):
            name = f"{evidence.label(variant)} at {depth} layers"
            rows = [select(evidence.steps, [s], [variant], [depth]) for s in self.studies]
            gaps = [s for s, side in zip(self.studies, rows, strict=True) if side.empty]
            if gaps:
                raise NotMeasured(f"no run of {name} in {evidence.studies(gaps)}")
            steps[name] = step = min(int(side["step"].max()) for side in rows)
            a, b = (np.log10(loss_at(side, step)) for side in rows)
            seeds = min(len(a), len(b))
            if not np.isfinite([*a, *b]).all():
                skipped[name] = seeds
                continue
            found = welch(a, b)
            margin = abs(found["mean"]) - self.tolerance
            results.append(self.judge_group(name, found, margin, seeds))
        words = {CONTRADICTED: "apart:", REPRODUCED: "alike:"}
        words |= {NOT_REPRODUCED: "undecided:", NOT_MEASURED: "undecided:"}

        def describe(worst: GroupResult) -> str:
            ratio = f"log10 ratio {_pm(worst.estimate)}"
            return f"widest: {worst.name}, at step {steps[worst.name] + 1}, {ratio}"

        return combine_pairs(self, results, skipped, words, describe, 0.0)


class PlatformsAgree(Rule):
    """Two backends or machines end at the same score, each study beside itself: one recipe.

    Seeds are compared pair by pair. In every cell the mean difference, of log10 where the score is
    compared by its ratio, is held against the standard deviation over the seeds of one platform.
    Reproduced: its interval is within that. Contradicted: its interval is outside in some cell, by
    as much as matters, or one side alone diverged. The other platform is another backend or
    machine, and has all cells.
    """

    kind: Literal["platforms_agree"]
    studies: Annotated[list[str], Field(min_length=1)]
    variants: Variants
    other_backend: Annotated[str, one_of("backend", BACKENDS)] | None = Field(
        None, description="that of the other platform; None: any"
    )
    other_device: Annotated[str, one_of("device", DEVICES)] | None = Field(
        None, description="that of the other platform; None: any"
    )

    def judge(self, evidence: Evidence) -> Judgement:
        runs = self._find_all(evidence, evidence.cells)
        results, labels = [], labels_of(evidence.everywhere["platform"])
        for platform, theirs in evidence.on_others(runs):
            if self.other_backend not in (None, platform.backend):
                continue
            if self.other_device:
                theirs = theirs[theirs["machine"].map(device_of) == self.other_device]
            try:
                theirs = self._find_all(evidence, theirs)
            except NotMeasured:
                continue
            common = theirs.merge(runs, on=[*CELL, "seed"], suffixes=("_there", "_here"))
            for (study, depth, variant), seeds in common.groupby(CELL, sort=False):
                where = f"{evidence.studies([study])}, beside {labels[platform.name]}"
                name = f"{evidence.label(variant)} at {depth} layers in {where}"
                score = evidence.scores[study]
                ratio, chance = is_ratio(score.metric), seeds["score_chance_here"].iloc[0]
                a, b = seeds[f"{SCORE}_here"], seeds[f"{SCORE}_there"]
                result = self._compare(name, a, b, ratio=ratio)
                if result.verdict == CONTRADICTED:
                    there = to_scale(b, ratio=ratio)
                    result = unless_small(result, there, score, chance, self.seeds, ratio=ratio)
                results.append(result)
        if not results:
            where = f" on {FRAMEWORKS[self.other_backend]}" if self.other_backend else ""
            where += f" on {DEVICES[self.other_device]}" if self.other_device else ""
            where = where or " on another platform"
            raise NotMeasured(f"no run of {evidence.studies(self.studies)}{where}")
        alike = sum(result.verdict == REPRODUCED for result in results)
        text = f"alike, within the spread over seeds, in {alike} of {len(results)} cells; widest:"
        return combine_results(
            results, lambda w: f"{text} {w.name}, {_pm(w.estimate)}{_because(w)}", 0.0
        )

    def _find_all(self, evidence: Evidence, runs: pd.DataFrame) -> pd.DataFrame:
        """Those of the runs that are of all studies. Raises NotMeasured if one lacks a cell."""
        of_each = (replace(evidence, cells=runs[runs["study"] == name]) for name in self.studies)
        return pd.concat([self.find_once(found, SCORE) for found in of_each])

    def _compare(self, name: str, a: pd.Series, b: pd.Series, *, ratio: bool) -> GroupResult:
        found = t_interval(differences(a, b, ratio=ratio))
        margin = abs(found["mean"]) - float(to_scale(a, ratio=ratio).std(ddof=1))
        if (a.isna() != b.isna()).any():
            margin = math.inf
        elif a.isna().all():  # on both: all that is known is that both failed
            margin = -math.inf
        elif math.isnan(margin):  # one seed
            margin = 0.0
        seeds = len(a) if math.isinf(margin) else found["n"]
        return self.judge_group(name, found, margin, seeds)


def welch(a: pd.Series, b: pd.Series) -> dict[str, float]:
    """The difference of two means with Welch's interval, as `t_interval` gives it."""
    n, mean, half = min(len(a), len(b)), t_interval(a)["mean"] - t_interval(b)["mean"], math.nan
    if n >= MIN_SEEDS:
        equal = a.nunique() == b.nunique() == 1  # no variance to take an interval from
        if not equal:
            from scipy import stats

            low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(CONFIDENCE)
        half = 0.0 if equal else float(high - low) / 2
    return {"n": n, "mean": mean, "sd": math.nan, "ci95_half": half}


# --- relations ----------------------------------------------------------------------------------


class Relation(Rule):
    """A fit or a correlation over runs."""

    rests_on: ClassVar[str] = OVER_RUNS


class LineInDepth(Relation):
    """A logarithmic metric grows along a line in depth, so the metric itself exponentially.

    Reproduced: the slope's interval is above zero and the line explains `r_squared` of the
    variance. Contradicted: the slope's interval is at or below zero. `metrics` are tried in
    order, so that a run that diverged can give its last finite one.
    """

    kind: Literal["line_in_depth"]
    variant: str
    metrics: Metrics
    r_squared: float = 0.99
    published: float = math.nan

    def judge(self, evidence: Evidence) -> Judgement:
        runs = select(evidence.cells, self.studies, [self.variant], self.depths)
        runs = runs.assign(value=_first_finite(runs, self.metrics)).dropna(subset="value")
        depths = sorted(runs["depth"].unique())
        if len(depths) < 3:
            metric = self.metrics[0]
            variant = evidence.label(self.variant)
            raise NotMeasured(f"no run of {variant} at three depths with a finite {metric}")
        from scipy import stats

        fit = stats.linregress(runs["depth"], runs["value"])
        # Values that are all equal have no correlation, and a slope that is exactly zero.
        flat = runs["value"].nunique() == 1
        r_squared, stderr = (0.0, 0.0) if flat else (fit.rvalue**2, fit.stderr)
        half = float(stdtrit(len(runs) - 2, 0.5 + CONFIDENCE / 2)) * stderr
        rises = fit.slope - half > 0 and r_squared >= self.r_squared
        verdict = verdict_of(rises, fit.slope + half <= 0)
        reason = (
            f"log10 rises by {fit.slope:.4g} ± {half:.2g} per layer over {join_values(depths)} "
            f"layers, R² {r_squared:.4f}"
        )
        seeds = int(runs["seed"].nunique())
        undecided = abs(fit.slope) < half
        return Judgement(
            verdict, reason, fit.slope, half, self.published, seeds, undecided=undecided
        )


class Correlates(Relation):
    """Over runs, two metrics have a correlation of at least `at_least`.

    Pearson's, with the interval that Fisher's transformation gives. Reproduced: it lies above.
    Contradicted: it lies below. A metric that is the same in all runs has no correlation.
    """

    kind: Literal["correlates"]
    variants: Variants
    metrics: Annotated[list[Metric], Field(min_length=2, max_length=2)]
    at_least: float

    def judge(self, evidence: Evidence) -> Judgement:
        runs = self.find_once(evidence, *self.metrics)
        one, other = (runs[name] for name in self.metrics)
        # Fisher's interval takes four points.
        if len(runs) < 4 or min(one.nunique(), other.nunique()) == 1:
            raise NotMeasured("no run of four runs whose metrics differ")
        from scipy import stats

        found = stats.pearsonr(one, other)
        r, (low, high) = float(found.statistic), found.confidence_interval(CONFIDENCE)
        verdict = verdict_of(low > self.at_least, high < self.at_least)
        reason = f"correlation {r:.2g} over {len(runs)} runs, from {low:.2g} to {high:.2g}"
        seeds = int(runs["seed"].nunique())
        reason += f"; needed: {self.at_least:g}"
        return Judgement(verdict, reason, r, seeds=seeds, undecided=verdict == NOT_REPRODUCED)


def _first_finite(runs: pd.DataFrame, metrics: Sequence[str]) -> pd.Series:
    """For each run the first of the metrics that is finite; NaN if none is."""
    return runs[list(metrics)].bfill(axis=1).iloc[:, 0]


def _nan_to_inf(value: float) -> float:
    """What is not a number is farther than any number."""
    return math.inf if math.isnan(value) else value


def _because(result: GroupResult) -> str:
    return f", {TOO_SMALL}: {result.small}" if result.small else ""


def _pm(found: dict[str, float]) -> str:
    mean, half = found["mean"], found["ci95_half"]
    if math.isnan(mean):
        return "not finite"
    return f"{mean:.3g}" if math.isnan(half) else f"{mean:.3g} ± {half:.2g}"


def _with_kind(rule: type[Rule]) -> Iterator[tuple[str, type[Rule]]]:
    if "kind" in rule.model_fields:
        yield from ((kind, rule) for kind in get_args(rule.model_fields["kind"].annotation))
    for preset in rule.__subclasses__():
        yield from _with_kind(preset)


RULES = Registry(_with_kind(Rule))
"""By kind, as published.yaml names them."""
