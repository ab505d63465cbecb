"""Rules: the kinds of test that a published claim can be put to.

`report/published.yaml` names, for every claim, rules of this file with their settings, so adding a
claim needs YAML alone, and a new rule is a class. A rule looks at one place (a backend on a
platform) at a time and gives a verdict with the numbers behind it. Definitions:
docs/definitions.md, "Verdicts".
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from pydantic import Field, model_validator
from scipy import stats

from fathom.analysis.effects import ROUNDING
from fathom.analysis.places import PLACE, Place
from fathom.analysis.tables import (
    CELL,
    CONFIDENCE,
    GROUP,
    MIN_SEEDS,
    interval,
    log10,
    spread,
)
from fathom.measures import POSITIVE, RUN_MEASURES, STEP_MEASURES
from fathom.settings import Positive, Registry, Section, listed

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
CONTRADICTED, NOT_MEASURED = "contradicted", "not measured"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, CONTRADICTED, NOT_MEASURED)

OVER_SEEDS, OVER_RUNS, NO_INTERVAL = "interval over seeds", "interval over runs", "no interval"
RUNS, STEPS = "count of runs", "count of steps"
"""What a verdict may rest on."""


def weakest(verdicts: Iterable[str]) -> str:
    """The verdict of several tests together: all must hold, and one that does not is enough."""
    found = set(verdicts)
    order = (CONTRADICTED, NOT_REPRODUCED, NOT_MEASURED, REPRODUCED)
    return next((verdict for verdict in order if verdict in found), NOT_MEASURED)


# --- what the rules look at ---------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """The runs that count, at one place."""

    cells: pd.DataFrame
    """A row per run, as in cells.csv."""
    steps: pd.DataFrame
    """A row per step of these runs, as in steps.csv.gz."""
    everywhere: pd.DataFrame
    """A row per run at any place."""

    @classmethod
    def at(cls, place: Place, cells: pd.DataFrame, steps: pd.DataFrame) -> Evidence:
        """What was measured at a place."""
        here = list(asdict(place).values())
        return cls(
            cells[(cells[PLACE] == here).all(axis=1)],
            steps[(steps[PLACE] == here).all(axis=1)],
            cells,
        )

    def without(self, studies: Collection[str], below: float) -> Evidence:
        """The same without these studies and without networks of fewer than `below` layers."""
        if not studies and below <= self.everywhere["depth"].min():
            return self
        return Evidence(
            *(
                table[~table["study"].isin(studies) & (table["depth"] >= below)]
                for table in (self.cells, self.steps, self.everywhere)
            )
        )

    def runs(
        self, studies: Sequence[str], variants: Sequence[str], depths: Sequence[int] | None
    ) -> pd.DataFrame:
        """The runs of these studies, variants and depths (None: all)."""
        return _chosen(self.cells, studies, variants, depths)

    def elsewhere(self, runs: pd.DataFrame) -> Iterator[pd.DataFrame]:
        """For every other place the runs there of the cells that `runs` are of."""
        others = self.everywhere.drop(self.cells.index)
        others = others[others[CELL].apply(tuple, axis=1).isin(runs[CELL].apply(tuple, axis=1))]
        return (found for _, found in others.groupby(PLACE, sort=False))

    def spread(
        self,
        studies: Sequence[str],
        variants: Sequence[str],
        value: Callable[[pd.DataFrame], pd.Series],
    ) -> float:
        """The largest standard deviation of a value over seeds, of any cell at any place.

        Of these studies and variants; NaN if no cell has MIN_SEEDS seeds.
        """
        runs = _chosen(self.everywhere, studies, variants, None)
        groups = value(runs).groupby([runs[name] for name in GROUP])
        return float(groups.std()[groups.count() >= MIN_SEEDS].max())


def _chosen(
    cells: pd.DataFrame,
    studies: Sequence[str],
    variants: Sequence[str],
    depths: Sequence[int] | None,
) -> pd.DataFrame:
    chosen = cells["study"].isin(studies) & cells["variant"].isin(variants)
    return cells[chosen & (cells["depth"].isin(depths) if depths else True)]


@dataclass(frozen=True)
class Judgement:
    """A verdict of one test at one place, with the numbers behind it."""

    verdict: str
    reason: str
    observed: float = math.nan
    ci95_half: float = math.nan
    published: float = math.nan
    seeds: int = 0
    """The fewest behind any part of it."""
    rests_on: str = ""
    """What it rests on, where that is not what its rule's verdicts rest on."""


@dataclass(frozen=True)
class Part:
    """What one cell, or two that are compared, say to a test."""

    name: str
    found: dict[str, float]
    """What `interval` says of its values."""
    verdict: str
    excess: float
    """How far its mean is on the wrong side; infinite if it is not finite."""
    seeds: int
    counted: bool = False
    """Whether the verdict is of runs one by one, and of no interval."""


def together(parts: Sequence[Part], reason: str, published: float = math.nan) -> Judgement:
    """The judgement of several parts, with the numbers of the least favourable one.

    `seeds` are those of the parts that give the verdict.
    """
    verdict = weakest(part.verdict for part in parts)
    decide = [part for part in parts if part.verdict == verdict]
    seeds = min(part.seeds for part in decide)
    if verdict == NOT_MEASURED:
        reason = f"{few(seeds)}; {reason}"
    found = least_favourable(parts).found
    counted = RUNS if all(part.counted for part in decide) else ""
    return Judgement(verdict, reason, found["mean"], found["ci95_half"], published, seeds, counted)


def least_favourable(parts: Sequence[Part]) -> Part:
    """The part that speaks most against the claim, or least for it."""
    return max(parts, key=lambda part: part.excess)


def few(seeds: int) -> str:
    """What is said of too few seeds."""
    return f"{'one seed' if seeds == 1 else f'{seeds} seeds'}: no verdict"


def fewest(runs: pd.DataFrame) -> int:
    """The fewest runs of any cell."""
    return int(runs.groupby(CELL).size().min())


def not_measured(what: str) -> Judgement:
    """The verdict where the cells that a test needs are not there."""
    return Judgement(NOT_MEASURED, f"no run of {what}")


def missing(
    runs: pd.DataFrame, variants: Sequence[str], depths: Sequence[int] | None
) -> Judgement | None:
    """The verdict if one of the variants was not run at all, or not at one of the named depths.

    A part of the cells cannot speak for all of them.
    """
    for variant in variants:
        there = set(runs.loc[runs["variant"] == variant, "depth"])
        lacking = sorted(set(depths or ()) - there)
        if lacking or not there:
            return not_measured(_cells(variant, lacking))
    return None


# --- the rules ---------------------------------------------------------------------------------


ORDER = 10
"""Without an interval a difference must be so many times the largest spread between seeds."""


class Rule(Section):
    """A named rule with its settings.

    Every subclass has a `kind`, by which published.yaml names it, and is in RULES.
    """

    rests_on: ClassVar[str]
    """What its verdicts rest on. One that rests on an interval can be wrong by chance."""

    known_measures: ClassVar[Collection[str]] = RUN_MEASURES
    """What its settings may name as measures."""

    studies: Annotated[list[str], Field(min_length=1, max_length=1)] = Field(
        description="where its cells are: each study is looked at by itself"
    )
    seeds: Positive = Field(
        MIN_SEEDS, description="so many seeds a verdict takes; 1: the source tells of one run"
    )
    ground: Annotated[dict[str, float], Field(default_factory=dict)]
    """The least sizes of a study that can be tested, where they are not those of the claim."""

    @abstractmethod
    def judge(self, evidence: Evidence) -> Judgement:
        """Look at one place."""

    def part(
        self,
        name: str,
        found: dict[str, float],
        excess: float,
        seeds: int,
        seen: Callable[[], float],
    ) -> Part:
        """What a mean says that is `excess` on the wrong side of a line (negative: on the right).

        Reproduced or contradicted if the interval leaves out the line. With fewer seeds than an
        interval takes: if the distance is more than ORDER times `seen`, the largest standard
        deviation between seeds, or not finite; else nothing is measured.
        """
        enough = seeds >= self.seeds
        if not math.isnan(found["ci95_half"]):
            reach = found["ci95_half"]
        else:
            reach = 0.0 if enough else _or_infinite(ORDER * seen())
        if excess == math.inf or excess > reach:
            verdict = CONTRADICTED
        elif excess < -reach:
            verdict = REPRODUCED
        else:
            verdict = NOT_REPRODUCED if enough else NOT_MEASURED
        return Part(name, found, verdict, excess, seeds, counted=math.isinf(excess))

    def too_few(self, runs: pd.DataFrame) -> Judgement | None:
        """The verdict of a count where a cell has fewer seeds than a verdict takes."""
        seeds = fewest(runs)
        if seeds >= self.seeds:
            return None
        return Judgement(NOT_MEASURED, few(seeds), seeds=seeds)


class LineInDepth(Rule):
    """A logarithmic measure grows along a line in depth, so the measure itself exponentially.

    Reproduced: the slope's interval is above zero and the line explains `r_squared` of the
    variance. Contradicted: the slope's interval is at or below zero. `measures` are tried in
    order, so that a run that diverged can give its last finite one.
    """

    kind: Literal["line_in_depth"]
    rests_on: ClassVar[str] = OVER_RUNS
    variant: str
    measures: list[str]
    r_squared: float = 0.99
    published: float = math.nan

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, [self.variant], None)
        value = _first_finite(runs, self.measures)
        points = pd.DataFrame({"depth": runs["depth"], "value": value}).dropna()
        depths = sorted(points["depth"].unique())
        if len(depths) < 3:
            return not_measured(f"{self.variant} at three depths with a finite {self.measures[0]}")
        fit = stats.linregress(points["depth"], points["value"])
        # Values that are all equal have no correlation, and a slope that is exactly zero.
        flat = points["value"].nunique() == 1
        r_squared = 0.0 if flat else fit.rvalue**2
        stderr = 0.0 if flat else fit.stderr
        half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(points) - 2)) * stderr
        seeds = int(runs["seed"].nunique())
        low, high = fit.slope - half, fit.slope + half
        if low > 0 and r_squared >= self.r_squared:
            verdict = REPRODUCED
        else:
            verdict = CONTRADICTED if high <= 0 else NOT_REPRODUCED
        reason = (
            f"slope {fit.slope:.4g} ± {half:.2g} per layer over {listed(depths)} layers, "
            f"R² {r_squared:.4f}"
        )
        return Judgement(verdict, reason, fit.slope, half, self.published, seeds)


class Near(Rule):
    """A measure is within `tolerance` of the published `value` at every depth.

    Reproduced: every run is. Contradicted: the interval over seeds lies outside at some depth.
    `measures` are tried in order, as in LineInDepth. The measure `beside` is told and decides
    nothing.
    """

    kind: Literal["near"]
    rests_on: ClassVar[str] = OVER_SEEDS
    variant: str
    depths: list[int] | None = None
    measures: list[str]
    value: float
    tolerance: float
    beside: str | None = None

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, [self.variant], self.depths)
        if gap := missing(runs, [self.variant], self.depths):
            return gap
        values = _first_finite(runs, self.measures)
        within = (values - self.value).abs() <= self.tolerance

        def excess(mean: float) -> float:
            return _or_infinite(abs(mean - self.value)) - self.tolerance

        def seen() -> float:
            of = lambda cells: _first_finite(cells, self.measures)  # noqa: E731
            return evidence.spread(self.studies, [self.variant], of)

        parts = _by_cell(self, runs, values, within, excess, seen)
        worst = least_favourable(parts)
        reason = (
            f"{within.sum()} of {len(runs)} runs within {self.tolerance:g} of {self.value:g}; "
            f"farthest {worst.name}: {_pm(worst.found)}"
        )
        if self.beside:
            reason += f"; {self.beside} beside it: {_pm(interval(runs[self.beside]))}"
        return together(parts, reason, self.value)


class Between(Rule):
    """A measure lies between `low` and `high` at every depth; a side that is not given is open.

    Reproduced: every run lies there. Contradicted: the interval over seeds lies outside at some
    depth.
    """

    kind: Literal["between"]
    rests_on: ClassVar[str] = OVER_SEEDS
    variant: str
    depths: list[int] | None = None
    measure: str
    low: float = -math.inf
    high: float = math.inf

    @model_validator(mode="after")
    def _has_a_side(self) -> Between:
        if not (self.low < self.high and math.isfinite(min(abs(self.low), abs(self.high)))):
            raise ValueError("between needs low, high or both, the first below the second")
        return self

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, [self.variant], self.depths)
        if gap := missing(runs, [self.variant], self.depths):
            return gap
        values = runs[self.measure]
        if values.isna().all():
            return not_measured(f"{self.variant} with a {self.measure}")
        within = (values >= self.low) & (values <= self.high)

        def excess(mean: float) -> float:
            return _or_infinite(max(self.low - mean, mean - self.high))

        def seen() -> float:
            return evidence.spread(self.studies, [self.variant], lambda cells: cells[self.measure])

        parts = _by_cell(self, runs, values, within, excess, seen)
        worst = least_favourable(parts)
        sides = [f"at least {self.low:g}"] if math.isfinite(self.low) else []
        sides += [f"at most {self.high:g}"] if math.isfinite(self.high) else []
        reason = (
            f"{within.sum()} of {len(runs)} runs of {self.variant} {' and '.join(sides)}; "
            f"least favourable {worst.name}: {_pm(worst.found)}"
        )
        return together(parts, reason)


def _by_cell(
    rule: Rule,
    runs: pd.DataFrame,
    values: pd.Series,
    within: pd.Series,
    excess: Callable[[float], float],
    seen: Callable[[], float],
) -> list[Part]:
    """A part for every depth: with enough seeds it is reproduced if every run is within."""
    parts = []
    for depth, group in values.groupby(runs["depth"]):
        found, seeds = interval(group), len(group)
        part = rule.part(f"at {depth} layers", found, excess(found["mean"]), seeds, seen)
        if part.verdict != CONTRADICTED and seeds >= rule.seeds:
            verdict = REPRODUCED if within[group.index].all() else NOT_REPRODUCED
            part = replace(part, verdict=verdict, counted=True)
        parts.append(part)
    return parts


class Fails(Rule):
    """No run learns: its final loss is not finite, or near the chance level.

    Reproduced: all fail. Contradicted: all learn.
    """

    kind: Literal["fails"]
    rests_on: ClassVar[str] = RUNS
    variant: str
    depths: list[int]
    published: float = math.nan

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, [self.variant], self.depths)
        if gap := missing(runs, [self.variant], self.depths):
            return gap
        if gap := self.too_few(runs):
            return gap
        counts = runs["outcome"].value_counts()
        learned = int(counts.get("learned", 0))
        verdict = {0: REPRODUCED, len(runs): CONTRADICTED}.get(learned, NOT_REPRODUCED)
        told = ", ".join(f"{n} {what}" for what, n in counts.items())
        found = interval(runs["loss_final"])
        return Judgement(
            verdict, f"of {len(runs)} runs: {told}", found["mean"], found["ci95_half"],
            self.published, fewest(runs),
        )  # fmt: skip


class DivergesAtOnce(Rule):
    """Loss or logits are not finite from the first step.

    Reproduced: in every run. Contradicted: in none.
    """

    kind: Literal["diverges_at_once"]
    rests_on: ClassVar[str] = RUNS
    variant: str
    depths: list[int]

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, [self.variant], self.depths)
        if gap := missing(runs, [self.variant], self.depths):
            return gap
        if gap := self.too_few(runs):
            return gap
        at_once = int((runs["first_nonfinite_step"] == 0).sum())
        verdict = {len(runs): REPRODUCED, 0: CONTRADICTED}.get(at_once, NOT_REPRODUCED)
        reason = f"not finite from the first step in {at_once} of {len(runs)} runs"
        return Judgement(verdict, reason, at_once, seeds=fewest(runs))


class NoEvents(Rule):
    """No step of any run has a non-finite loss or logit. Contradicted by one."""

    kind: Literal["no_events"]
    rests_on: ClassVar[str] = RUNS
    variants: list[str]

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, self.variants, None)
        if gap := missing(runs, self.variants, None):
            return gap
        events = int(runs["nonfinite_total"].sum())
        if not events and (gap := self.too_few(runs)):
            return gap
        verdict = CONTRADICTED if events else REPRODUCED
        reason = f"{events} events in {int(runs['steps'].sum())} steps of {len(runs)} runs"
        return Judgement(verdict, reason, events, 0.0, 0.0, fewest(runs))


class ConvergesBelow(Rule):
    """The final loss ends below `fraction` of the chance level, at every depth and variant.

    Reproduced: the interval over seeds lies below, everywhere. Contradicted: somewhere it lies
    above, or a run diverged; or a run failed where there is no interval.
    """

    kind: Literal["converges_below"]
    rests_on: ClassVar[str] = OVER_SEEDS
    variants: list[str]
    depths: list[int]
    fraction: float = 0.1
    published: float = math.nan

    def judge(self, evidence: Evidence) -> Judgement:
        return _beside_chance(self, evidence, "below")


class StaysAbove(Rule):
    """The final loss ends above `fraction` of the chance level, or is not finite: no convergence.

    Reproduced: the interval over seeds lies above, at every depth and variant. Contradicted:
    somewhere it lies below.
    """

    kind: Literal["stays_above"]
    rests_on: ClassVar[str] = OVER_SEEDS
    variants: list[str]
    depths: list[int]
    fraction: float = 0.1
    published: float = math.nan

    def judge(self, evidence: Evidence) -> Judgement:
        return _beside_chance(self, evidence, "above")


def _beside_chance(
    rule: ConvergesBelow | StaysAbove, evidence: Evidence, side: Literal["below", "above"]
) -> Judgement:
    """Whether final losses end on one side of a fraction of the chance level."""
    runs = evidence.runs(rule.studies, rule.variants, rule.depths)
    if gap := missing(runs, rule.variants, rule.depths):
        return gap
    sign = 1 if side == "below" else -1
    line = math.log10(rule.fraction)

    def ratio(cells: pd.DataFrame) -> pd.Series:
        return log10(cells["loss_final"] / cells["chance_loss"])

    def seen() -> float:
        return evidence.spread(rule.studies, rule.variants, ratio)

    parts, losses = [], {}
    for (depth, variant), group in runs.groupby(["depth", "variant"]):
        found, finite = interval(ratio(group)), group["loss_final"].notna()
        failed = not (finite.any() if side == "above" else finite.all())
        if len(group) < MIN_SEEDS:
            failed |= (group["outcome"] != "learned").any()
        excess = sign * (math.inf if failed else found["mean"] - line)
        name = f"{variant} at {depth} layers"
        losses[name] = spread(group["loss_final"], POSITIVE)
        # Runs that diverged are above: those that did not must be, too.
        seeds = len(group) if failed else int(finite.sum())
        parts.append(rule.part(name, found, excess, seeds, seen))
    wrong = [part.name for part in parts if part.verdict == CONTRADICTED]
    wrong += [part.name for part in parts if part.verdict == NOT_REPRODUCED]
    limit = rule.fraction * runs["chance_loss"].iloc[0]
    other = "above" if side == "below" else "below"
    held = f"{other} {limit:.3g}: {', '.join(wrong)}" if wrong else f"all {side} {limit:.3g}"
    name = least_favourable(parts).name
    loss = losses[name]
    ends = f" ({loss['low']:.2g} to {loss['high']:.2g})" if math.isfinite(loss["low"]) else ""
    told = "not finite" if math.isnan(loss["mean"]) else f"{loss['mean']:.3g}{ends}"
    reason = f"{held}; {'highest' if sign > 0 else 'lowest'}: {name}, {told}"
    judged = together(parts, reason, rule.published)
    return replace(judged, observed=loss["mean"], ci95_half=loss["high"] - loss["mean"])


class Ordered(Rule):
    """At every depth that both have, `lower` has less of a measure than each of `higher`.

    Seeds are compared pair by pair, since the same seed means the same batches: the interval is
    that of the mean difference, of log10 or, with `by: difference`, of the measure itself.
    Reproduced: it is below zero in every comparison. Contradicted: it is above zero in some, or
    every seed of `lower` diverged, of a loss, and none of the other. Else a side that diverged is
    not compared. Differences no larger than rounding are none.
    """

    kind: Literal["ordered"]
    rests_on: ClassVar[str] = OVER_SEEDS
    lower: str
    higher: list[str]
    depths: list[int] | None = Field(None, description="None: every depth that both have")
    measure: str
    by: Literal["ratio", "difference"] = Field(
        "ratio", description="difference: of measures that may be zero or negative"
    )

    def judge(self, evidence: Evidence) -> Judgement:
        variants = [self.lower, *self.higher]
        runs = evidence.runs(self.studies, variants, self.depths)
        if runs.empty:
            return not_measured(listed(self.studies))

        def seen() -> float:
            return evidence.spread(self.studies, variants, self._scaled)

        parts, skipped = [], []
        for other in self.higher:
            shared = _at_shared_depths(runs, (self.lower, other))["depth"]
            if shared.empty:
                return not_measured(f"{self.lower} and {other} at one depth")
        for depth in self.depths or sorted(runs["depth"].unique()):
            for other in self.higher:
                sides = [
                    evidence.runs(self.studies, [v], [depth]).set_index("seed")
                    for v in (self.lower, other)
                ]
                common = sides[0].index.intersection(sides[1].index)
                if self.depths is None and any(side.empty for side in sides):
                    continue
                if common.empty:
                    return not_measured(f"{self.lower} and {other} at {depth} layers")
                name = f"{other} at {depth} layers"
                low, high = (self._scaled(side.loc[common]) for side in sides)
                difference = low - high
                fails = self.measure == "loss_final" and low.isna().all() and high.notna().all()
                if difference.isna().any() and not fails:
                    skipped.append((name, len(common)))
                    continue
                found = interval(difference)
                excess = math.inf if fails else found["mean"]
                part = self.part(name, found, excess, len(common), seen)
                raw = [side.loc[common, self.measure] for side in sides]
                if (raw[0] - raw[1]).abs().max() < ROUNDING:
                    enough = found["n"] >= self.seeds
                    part = replace(part, verdict=NOT_REPRODUCED if enough else NOT_MEASURED)
                parts.append(part)
        names = ", ".join(name for name, _ in skipped)
        if not parts:
            return _nothing_to_compare(
                self, min(n for _, n in skipped), f"one side diverged: {names}"
            )
        told = []
        for verdict, words in (
            (REPRODUCED, f"{self.lower} below"),
            (CONTRADICTED, "above"),
            (NOT_REPRODUCED, "not apart from"),
        ):
            there = [part.name for part in parts if part.verdict == verdict]
            if there or verdict == REPRODUCED:
                told.append(f"{words} {', '.join(there) or 'none'}")
        told += [f"not compared, diverged: {names}"] if skipped else []
        worst = least_favourable(parts)
        what = "log10 ratio" if self.by == "ratio" else "difference"
        least = f"least favourable: {what} to {worst.name} {_pm(worst.found)}"
        if worst.found["sd"] > 0:  # neither of one run, nor of equal differences
            least += f", effect {worst.found['mean'] / worst.found['sd']:.2g} sd"
        return together(parts, "; ".join([*told, least]))

    def _scaled(self, runs: pd.DataFrame) -> pd.Series:
        """The measure, or its logarithm where ratios are compared."""
        return runs[self.measure] if self.by == "difference" else log10(runs[self.measure])


def _nothing_to_compare(rule: Rule, seeds: int, why: str) -> Judgement:
    """The verdict where every comparison has a side that diverged."""
    if seeds < rule.seeds:
        return Judgement(NOT_MEASURED, f"{few(seeds)}; {why}", seeds=seeds)
    why = f"nothing to compare, {why}"
    return Judgement(NOT_REPRODUCED, why, seeds=seeds, rests_on=RUNS)


class Falls(Rule):
    """At every depth and variant a positive measure is less at the end of a run than at its start.

    By the interval of log10 of the ratio of `last` to `first`, two run measures. Reproduced: it is
    below zero everywhere. Contradicted: it is above zero somewhere, or a run is not finite.
    """

    kind: Literal["falls"]
    rests_on: ClassVar[str] = OVER_SEEDS
    variants: list[str]
    depths: list[int]
    measures: Annotated[list[str], Field(min_length=2, max_length=2)] = Field(
        description="at the start and at the end"
    )

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, self.variants, self.depths)
        if gap := missing(runs, self.variants, self.depths):
            return gap
        start, end = self.measures

        def ratio(cells: pd.DataFrame) -> pd.Series:
            return log10(cells[end] / cells[start])

        def seen() -> float:
            return evidence.spread(self.studies, self.variants, ratio)

        parts = []
        for (depth, variant), group in runs.groupby(["depth", "variant"]):
            found = interval(ratio(group))
            excess = math.inf if found["n"] < len(group) else found["mean"]
            parts.append(self.part(f"{variant} at {depth} layers", found, excess, len(group), seen))
        worst = least_favourable(parts)
        reason = f"least favourable: log10 of end to start of {worst.name} {_pm(worst.found)}"
        return together(parts, reason)


class NotBelow(Rule):
    """A variant has no less of a measure than another one, at every depth that both have.

    Seeds are compared pair by pair: the interval is that of the mean difference. Contradicted: it
    is below zero at some depth. Reproduced: it is below zero at none. With fewer common seeds than
    an interval takes, nothing is measured.
    """

    kind: Literal["not_below"]
    rests_on: ClassVar[str] = OVER_SEEDS
    variant: str
    than: str
    depths: list[int] | None = None
    measure: str

    def judge(self, evidence: Evidence) -> Judgement:
        runs = _side_by_side(self, evidence)
        if isinstance(runs, Judgement):
            return runs
        lowest = None
        for depth, group in runs.groupby("depth"):
            one, other = (
                group[group["variant"] == name].set_index("seed")[self.measure]
                for name in (self.variant, self.than)
            )
            found = interval(one - other)
            if found["n"] < MIN_SEEDS:
                return not_measured(f"{self.variant} and {self.than} with {MIN_SEEDS} common seeds")
            top = found["mean"] + found["ci95_half"]
            if lowest is None or top < lowest[0]:
                lowest = (top, found, depth)
        top, found, depth = lowest
        reason = f"least favourable at {depth} layers: {self.variant} less {self.than} {_pm(found)}"
        return Judgement(
            CONTRADICTED if top < 0 else REPRODUCED,
            reason, found["mean"], found["ci95_half"], seeds=found["n"],
        )  # fmt: skip


def _at_shared_depths(runs: pd.DataFrame, variants: Sequence[str]) -> pd.DataFrame:
    """The runs at depths that all of these variants have."""
    depths = (set(runs.loc[runs["variant"] == variant, "depth"]) for variant in variants)
    return runs[runs["depth"].isin(set.intersection(*depths))]


def _side_by_side(rule: NotBelow | VariesMore, evidence: Evidence) -> pd.DataFrame | Judgement:
    """The runs that have the measure, at depths that both variants have; or why there are none."""
    both = [rule.variant, rule.than]
    runs = evidence.runs(rule.studies, both, rule.depths).dropna(subset=rule.measure)
    if gap := missing(runs, both, rule.depths):
        return gap
    runs = _at_shared_depths(runs, both)
    return not_measured(f"{rule.variant} and {rule.than} at one depth") if runs.empty else runs


FOR_SPREAD = 8
"""So many runs of two variants together can differ in their spread by more than chance."""


class VariesMore(Rule):
    """The runs of a variant differ more from seed to seed than those of another.

    At every depth that both have, by the test of Brown and Forsythe (of Levene, around medians),
    which does not take values to be normal. Reproduced: the standard deviation is the larger one,
    and the test tells the two apart.
    Contradicted: it tells them apart at some depth, and the standard deviation is the smaller one.
    Three runs a side can never be told apart: with fewer than FOR_SPREAD, nothing is measured.
    """

    kind: Literal["varies_more"]
    rests_on: ClassVar[str] = OVER_SEEDS
    variant: str
    than: str
    depths: list[int] | None = None
    measure: str

    def judge(self, evidence: Evidence) -> Judgement:
        runs = _side_by_side(self, evidence)
        if isinstance(runs, Judgement):
            return runs
        more, less, least, told = 0, 0, None, []
        for depth, group in runs.groupby("depth"):
            one, other = (
                group.loc[group["variant"] == name, self.measure]
                for name in (self.variant, self.than)
            )
            seeds = min(len(one), len(other))
            if seeds < MIN_SEEDS or len(one) + len(other) < FOR_SPREAD:
                return not_measured(
                    f"{self.variant} and {self.than} with {FOR_SPREAD} seeds together, of each at "
                    f"least {MIN_SEEDS}"
                )
            sd, other_sd = one.std(ddof=1), other.std(ddof=1)
            with np.errstate(divide="ignore", invalid="ignore"):  # values may all be equal
                p = float(stats.levene(one, other, center="median").pvalue)
            more += p < 1 - CONFIDENCE and sd > other_sd
            less += p < 1 - CONFIDENCE and sd < other_sd
            ratio = sd / other_sd if other_sd > 0 else math.nan
            told.append(f"{sd:.2g} of {len(one)} runs and {other_sd:.2g} of {len(other)}")
            told[-1] += f" at {depth} layers, p {p:.2g}"
            if least is None or seeds < least[1]:
                least = (ratio, seeds)
        whole = more == runs["depth"].nunique()
        verdict = CONTRADICTED if less else REPRODUCED if whole else NOT_REPRODUCED
        reason = f"standard deviations of {self.variant} and {self.than}: {'; '.join(told)}"
        return Judgement(verdict, reason, least[0], seeds=least[1])


class Reaches(Rule):
    """In some run a measure reaches `value`: what can happen, and need not.

    Reproduced: in at least one. Contradicted: in none, and at every depth the interval in which one
    more run would fall lies below.
    """

    kind: Literal["reaches"]
    rests_on: ClassVar[str] = OVER_SEEDS
    variant: str
    depths: list[int] | None = None
    measure: str
    value: float

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, [self.variant], self.depths).dropna(subset=self.measure)
        if gap := missing(runs, [self.variant], self.depths):
            return gap
        there = runs[self.measure] >= self.value
        possible = False
        for _, values in runs[self.measure].groupby(runs["depth"]):
            found = interval(values)
            # Of one more run, where ci95_half is of the mean: wider by √(n + 1).
            top = found["mean"] + found["ci95_half"] * math.sqrt(found["n"] + 1)
            possible |= not top < self.value
        if not there.any() and (gap := self.too_few(runs)):
            return gap
        verdict = REPRODUCED if there.any() else NOT_REPRODUCED if possible else CONTRADICTED
        largest = runs[self.measure].max()
        reason = f"{there.sum()} of {len(runs)} runs reach {self.value:g}; largest {largest:.3g}"
        rests_on = RUNS if verdict == REPRODUCED else ""
        return Judgement(verdict, reason, largest, seeds=fewest(runs), rests_on=rests_on)


class RisesWithDepth(Rule):
    """A variant has more of a measure at `deep` layers or more than another, or itself, at fewer.

    The largest depth of the one beside the smallest of the other (`than`), by the interval of the
    difference of means, with Welch's degrees of freedom. Reproduced: it is above zero.
    Contradicted: it is below zero. Without one of the two depths, nothing is measured.
    """

    kind: Literal["rises_with_depth"]
    rests_on: ClassVar[str] = OVER_SEEDS
    variant: str
    than: str
    measure: str
    deep: int

    def judge(self, evidence: Evidence) -> Judgement:
        high, deepest = self._at(evidence, self.variant, max)
        low, shallowest = self._at(evidence, self.than, min)
        if high.empty or deepest < self.deep:
            return not_measured(f"{self.variant} at {self.deep} layers or more")
        if low.empty or shallowest >= self.deep:
            return not_measured(f"{self.than} at fewer than {self.deep} layers")
        seeds = min(len(low), len(high))
        if seeds < MIN_SEEDS:
            return Judgement(NOT_MEASURED, few(seeds), seeds=seeds)
        found = welch(high, low)
        difference, half = found["mean"], found["ci95_half"]
        clear = abs(difference) > half
        verdict = NOT_REPRODUCED if not clear else REPRODUCED if difference > 0 else CONTRADICTED
        reason = (
            f"{self.variant} at {deepest} layers less {self.than} at {shallowest}: {_pm(found)}"
        )
        return Judgement(verdict, reason, difference, half, seeds=seeds)

    def _at(
        self, evidence: Evidence, variant: str, which: Callable[[pd.Series], int]
    ) -> tuple[pd.Series, int]:
        """The values of a variant at its largest or smallest depth, and that depth."""
        runs = evidence.runs(self.studies, [variant], None).dropna(subset=self.measure)
        depth = which(runs["depth"]) if len(runs) else 0
        return runs.loc[runs["depth"] == depth, self.measure], depth


class Correlates(Rule):
    """Over runs, two measures have a correlation of at least `at_least`.

    Pearson's, with the interval that Fisher's transformation gives. Reproduced: it lies above.
    Contradicted: it lies below. A measure that is the same in all runs has no correlation.
    """

    kind: Literal["correlates"]
    rests_on: ClassVar[str] = OVER_RUNS
    variants: list[str]
    measures: Annotated[list[str], Field(min_length=2, max_length=2)]
    at_least: float

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, self.variants, None).dropna(subset=self.measures)
        if gap := missing(runs, self.variants, None):
            return gap
        one, other = (runs[name] for name in self.measures)
        # Fisher's interval takes four points.
        if len(runs) < 4 or min(one.nunique(), other.nunique()) == 1:
            return not_measured("four runs whose measures differ")
        found = stats.pearsonr(one, other)
        r, (low, high) = float(found.statistic), found.confidence_interval(CONFIDENCE)
        verdict = NOT_REPRODUCED
        if low > self.at_least or high < self.at_least:
            verdict = REPRODUCED if low > self.at_least else CONTRADICTED
        reason = f"correlation {r:.2g} over {len(runs)} runs, from {low:.2g} to {high:.2g}"
        return Judgement(
            verdict, f"{reason}; needed: {self.at_least:g}", r, seeds=int(runs["seed"].nunique())
        )


EVERY_STEP = tuple(name for name, m in STEP_MEASURES.items() if m.when == "every step")


def _steps_of(
    rule: Monotone | Constant, evidence: Evidence
) -> tuple[pd.DataFrame, pd.DataFrame] | Judgement:
    """(every step of the rule's runs, the first of each), or why they cannot be judged."""
    s = _chosen(evidence.steps, rule.studies, [rule.variant], rule.depths)
    if gap := missing(s, [rule.variant], rule.depths):
        return gap
    if rule.measure not in s:
        return not_measured(f"{rule.variant} with a {rule.measure}")
    firsts = s[s["step"] == s["step"].min()]
    return rule.too_few(firsts) or (s, firsts)


class Monotone(Rule):
    """A measure is finite and never rises from one step to the next, in every run.

    Contradicted: it rises in every run.
    """

    kind: Literal["monotone"]
    rests_on: ClassVar[str] = STEPS
    known_measures: ClassVar[Collection[str]] = EVERY_STEP
    variant: str
    depths: list[int]
    measure: str

    def judge(self, evidence: Evidence) -> Judgement:
        found = _steps_of(self, evidence)
        if isinstance(found, Judgement):
            return found
        s, firsts = found
        rises, smooth = [], 0
        for _, run in s.groupby(["study", "depth", "seed"]):
            values = run.sort_values("step")[self.measure].replace([np.inf, -np.inf], np.nan)
            rises.append(int((values.diff() > 0).sum()))
            smooth += rises[-1] == 0 and bool(values.notna().all())
        if smooth == len(rises):
            verdict = REPRODUCED
        else:
            verdict = CONTRADICTED if all(rises) else NOT_REPRODUCED
        reason = f"never rises in {smooth} of {len(rises)} runs; at most {max(rises)} rises in one"
        return Judgement(verdict, reason, max(rises), math.nan, 0.0, fewest(firsts))


class Constant(Rule):
    """At every step a measure is within `tolerance` of what it was at the first, in every run.

    Contradicted: in no run.
    """

    kind: Literal["constant"]
    rests_on: ClassVar[str] = STEPS
    known_measures: ClassVar[Collection[str]] = EVERY_STEP
    variant: str
    depths: list[int]
    measure: str
    tolerance: float

    def judge(self, evidence: Evidence) -> Judgement:
        found = _steps_of(self, evidence)
        if isinstance(found, Judgement):
            return found
        s, firsts = found
        moves = []
        for _, run in s.groupby(["study", "depth", "seed"]):
            values = run.sort_values("step")[self.measure]
            moves.append(_or_infinite(float((values - values.iloc[0]).abs().max(skipna=False))))
        still = sum(move <= self.tolerance for move in moves)
        verdict = {len(moves): REPRODUCED, 0: CONTRADICTED}.get(still, NOT_REPRODUCED)
        reason = (
            f"within {self.tolerance:g} of its first value in {still} of {len(moves)} runs; "
            f"farthest {max(moves):.2g}"
        )
        return Judgement(verdict, reason, max(moves), math.nan, 0.0, fewest(firsts))


class SameAtEqualSteps(Rule):
    """Two studies end at the same loss once both are read at the same step.

    The studies may differ in size, so that a seed means other numbers in each: the interval is that
    of the difference of means of log10, with Welch's degrees of freedom. Reproduced: it lies
    within `tolerance` of zero. Contradicted: it lies outside, so that something other than the
    number of steps sets them apart.
    """

    kind: Literal["same_at_equal_steps"]
    rests_on: ClassVar[str] = OVER_SEEDS
    studies: Annotated[list[str], Field(min_length=2, max_length=2)]
    variants: list[str]
    depths: list[int]
    tolerance: float = Field(0.3, description="of log10: a factor of about two")

    def judge(self, evidence: Evidence) -> Judgement:
        parts, skipped, steps = [], [], []
        for depth in self.depths:
            for variant in self.variants:
                name = f"{variant} at {depth} layers"
                sides = [
                    _chosen(evidence.steps, [study], [variant], [depth]) for study in self.studies
                ]
                gaps = [s for s, side in zip(self.studies, sides, strict=True) if side.empty]
                if gaps:
                    return not_measured(f"{name} in {' and '.join(gaps)}")
                step = min(int(side["step"].max()) for side in sides)
                a, b = (np.log10(side.loc[side["step"] == step, "loss"]) for side in sides)
                seeds = min(len(a), len(b))
                if not np.isfinite([*a, *b]).all():
                    skipped.append((name, seeds))
                    continue
                found = welch(a, b)
                excess = abs(found["mean"]) - self.tolerance
                parts.append(self.part(name, found, excess, seeds, lambda: math.nan))
                steps.append(step)
        names = ", ".join(name for name, _ in skipped)
        if not parts:
            return _nothing_to_compare(self, min(n for _, n in skipped), f"diverged: {names}")
        told = []
        for words, *verdicts in (
            ("apart", CONTRADICTED), ("alike", REPRODUCED),
            ("undecided", NOT_REPRODUCED, NOT_MEASURED),
        ):  # fmt: skip
            there = [part.name for part in parts if part.verdict in verdicts]
            told += [f"{words}: {', '.join(there)}"] if there else []
        told += [f"not compared, diverged: {names}"] if skipped else []
        worst = least_favourable(parts)
        at = f"at step {steps[parts.index(worst)] + 1}, {'; '.join(told)}"
        return together(parts, f"{at}; widest: {worst.name}, log10 ratio {_pm(worst.found)}", 0.0)


class PlacesAgree(Rule):
    """Two backends or platforms end at the same loss, each study beside itself: one recipe.

    Seeds are compared pair by pair. In every cell the mean difference of log10 of the final loss is
    held against the standard deviation over the seeds of one place. Reproduced: its interval is
    within that. Contradicted: its interval is outside in some cell, or one side alone diverged.
    The other place is another backend or platform, and has all cells.
    """

    kind: Literal["places_agree"]
    rests_on: ClassVar[str] = OVER_SEEDS
    studies: Annotated[list[str], Field(min_length=1)]
    variants: list[str]
    depths: list[int]

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, self.variants, self.depths)
        if gap := self._gap(runs):
            return gap
        here = tuple(runs[["backend", "platform"]].iloc[0])
        parts = []
        for others in evidence.elsewhere(runs):
            place = Place(*others[PLACE].iloc[0])
            if (place.backend, place.platform) == here or self._gap(others):
                continue
            for (study, depth, variant), theirs in others.groupby(CELL, sort=False):
                same = (runs[CELL] == [study, depth, variant]).all(axis=1)
                a, b = (side.set_index("seed")["loss_final"] for side in (runs[same], theirs))
                common = a.index.intersection(b.index)
                if common.empty:
                    continue
                a, b = a[common], b[common]
                # The logarithm of the ratio: two that are nearly equal would lose its digits.
                found = interval(log10(a / b))
                excess = abs(found["mean"]) - float(log10(a).std(ddof=1))
                if (a.isna() != b.isna()).any():
                    excess = math.inf
                elif a.isna().all():  # at both places: all that is known is that both failed
                    excess = -math.inf
                elif math.isnan(excess):  # one seed
                    excess = 0.0
                name = f"{variant} at {depth} layers in {study}, beside {place.label}"
                seeds = len(common) if math.isinf(excess) else found["n"]
                parts.append(self.part(name, found, excess, seeds, lambda: math.nan))
        if not parts:
            return not_measured(f"{listed(self.studies)} at another place")
        worst = least_favourable(parts)
        alike = sum(part.verdict == REPRODUCED for part in parts)
        reason = (
            f"alike, within the spread over seeds, in {alike} of {len(parts)} cells; widest: "
            f"{worst.name}, log10 ratio {_pm(worst.found)}"
        )
        return together(parts, reason, 0.0)

    def _gap(self, runs: pd.DataFrame) -> Judgement | None:
        """What a place lacks of the cells, study by study."""
        for study in self.studies:
            if gap := missing(runs[runs["study"] == study], self.variants, self.depths):
                return gap
        return None


def welch(a: pd.Series, b: pd.Series) -> dict[str, float]:
    """The difference of two means, with its interval by Welch; as `interval` says it."""
    n, mean = min(len(a), len(b)), interval(a)["mean"] - interval(b)["mean"]
    half = math.nan
    if n >= MIN_SEEDS:
        of_a, of_b = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
        half = 0.0
        if of_a + of_b > 0:
            freedom = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
            half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom)) * math.sqrt(of_a + of_b)
    return {"n": n, "mean": mean, "sd": math.nan, "ci95_half": half}


def _first_finite(runs: pd.DataFrame, measures: Sequence[str]) -> pd.Series:
    """For each run the first of the measures that is finite; NaN if none is."""
    return runs[list(measures)].bfill(axis=1).iloc[:, 0]


def _cells(variant: str, depths: Sequence[int] | None) -> str:
    return f"{variant} at {listed(depths)} layers" if depths else variant


def _or_infinite(value: float) -> float:
    """What is not a number is farther than any number."""
    return math.inf if math.isnan(value) else value


def _pm(found: dict[str, float]) -> str:
    mean, half = found["mean"], found["ci95_half"]
    if math.isnan(mean):
        return "not finite"
    return f"{mean:.3g}" if math.isnan(half) else f"{mean:.3g} ± {half:.2g}"


RULES = Registry(
    {get_args(rule.model_fields["kind"].annotation)[0]: rule for rule in Rule.__subclasses__()}
)
"""By kind, as published.yaml names them."""
