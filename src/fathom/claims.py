"""Published figures and statements against the tables: from numbers to verdicts.

`report/published.yaml` names, for every claim, tests from this file with their settings, so adding
a claim needs YAML alone. A test looks at one place (a backend on a platform) at a time and gives a
verdict with the numbers behind it. Rules: docs/definitions.md, "Verdicts".
"""

from __future__ import annotations

import difflib
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pandas as pd
from pydantic import AfterValidator, Field, field_validator, model_validator
from scipy import stats

from fathom.models.connections import VARIANTS
from fathom.study import BACKENDS, Config, ConfigError, Section, checked, read_yaml
from fathom.tables import MEASURES, PLACE, Place, interval, read_table, save_tables

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
CONTRADICTED, NOT_MEASURED = "contradicted", "not measured"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, CONTRADICTED, NOT_MEASURED)

CONFIDENCE = 0.95
MIN_SEEDS = 3
"""Below this many seeds there is no interval, and a verdict says so."""


# --- what the tests look at ---------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """The runs that count, at one place."""

    cells: pd.DataFrame
    """A row per run, as in cells.csv."""
    steps: pd.DataFrame
    """A row per step of these runs, as in steps.csv.gz."""

    @classmethod
    def at(cls, place: Place, cells: pd.DataFrame, steps: pd.DataFrame) -> Evidence:
        """What was measured at a place."""
        here = list(asdict(place).values())
        return cls(
            cells[(cells[PLACE] == here).all(axis=1)], steps[(steps[PLACE] == here).all(axis=1)]
        )

    def runs(
        self, studies: Sequence[str], variants: Sequence[str], depths: Sequence[int] | None
    ) -> pd.DataFrame:
        """The runs of these studies, variants and depths (None: all)."""
        c = self.cells
        chosen = c["study"].isin(studies) & c["variant"].isin(variants)
        return c[chosen & (c["depth"].isin(depths) if depths else True)]


@dataclass(frozen=True)
class Judgement:
    """A verdict of one test at one place, with the numbers behind it."""

    verdict: str
    reason: str
    observed: float = math.nan
    half: float = math.nan
    published: float = math.nan
    seeds: int = 0


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


# --- the tests ----------------------------------------------------------------------------------


class Test(Section):
    """A named test with its settings; `studies` says where its cells are."""

    studies: Annotated[list[str], Field(min_length=1)]

    @abstractmethod
    def judge(self, evidence: Evidence) -> Judgement:
        """Look at one place."""


class LineInDepth(Test):
    """A logarithmic measure grows along a line in depth, so the measure itself exponentially.

    Reproduced: the slope's interval is above zero and the line explains `r_squared` of the
    variance. Contradicted: the slope's interval is at or below zero. `measures` are tried in
    order, so that a run that diverged can give its last finite one.
    """

    kind: Literal["line_in_depth"]
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
            f"slope {fit.slope:.4g} ± {half:.2g} per layer over {_listed(depths)} layers, "
            f"R² {r_squared:.4f}"
        )
        return Judgement(verdict, reason, fit.slope, half, self.published, seeds)


class Near(Test):
    """A measure is within `tolerance` of the published `value` at every depth.

    Reproduced: every run is. Contradicted: the interval over seeds lies outside at some depth.
    `measures` are tried in order, as in LineInDepth.
    """

    kind: Literal["near"]
    variant: str
    depths: list[int] | None = None
    measures: list[str]
    value: float
    tolerance: float

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, [self.variant], self.depths)
        if gap := missing(runs, [self.variant], self.depths):
            return gap
        values = _first_finite(runs, self.measures)
        outside, farthest = [], None
        for depth, group in values.groupby(runs["depth"]):
            found = interval(group)
            distance = abs(found["mean"] - self.value)
            half = 0.0 if math.isnan(found["half"]) else found["half"]
            if math.isnan(distance) or distance - half > self.tolerance:
                outside.append(depth)
            if farthest is None or not distance <= farthest[0]:
                farthest = (distance, found, depth)
        within = (values - self.value).abs() <= self.tolerance
        _, found, depth = farthest
        verdict = REPRODUCED if within.all() else CONTRADICTED if outside else NOT_REPRODUCED
        reason = (
            f"{within.sum()} of {len(runs)} runs within {self.tolerance:g} of {self.value:g}; "
            f"farthest at {depth} layers: {_pm(found['mean'], found['half'])}"
        )
        seeds = int(runs["seed"].nunique())
        return Judgement(verdict, reason, found["mean"], found["half"], self.value, seeds)


class Fails(Test):
    """No run learns: its final loss is not finite, or near a guesser's.

    Reproduced: all fail. Contradicted: all learn.
    """

    kind: Literal["fails"]
    variant: str
    depths: list[int]
    published: float = math.nan

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, [self.variant], self.depths)
        if gap := missing(runs, [self.variant], self.depths):
            return gap
        counts = runs["outcome"].value_counts()
        learned = int(counts.get("learned", 0))
        verdict = {0: REPRODUCED, len(runs): CONTRADICTED}.get(learned, NOT_REPRODUCED)
        told = ", ".join(f"{n} {what}" for what, n in counts.items())
        found = interval(runs["loss_final"])
        seeds = int(runs["seed"].nunique())
        return Judgement(
            verdict, f"of {len(runs)} runs: {told}", found["mean"], found["half"],
            self.published, seeds,
        )  # fmt: skip


class DivergesAtOnce(Test):
    """Loss or logits are not finite from the first step.

    Reproduced: in every run. Contradicted: in none.
    """

    kind: Literal["diverges_at_once"]
    variant: str
    depths: list[int]

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, [self.variant], self.depths)
        if gap := missing(runs, [self.variant], self.depths):
            return gap
        at_once = int((runs["first_nonfinite_step"] == 0).sum())
        verdict = {len(runs): REPRODUCED, 0: CONTRADICTED}.get(at_once, NOT_REPRODUCED)
        reason = f"not finite from the first step in {at_once} of {len(runs)} runs"
        return Judgement(verdict, reason, at_once, seeds=int(runs["seed"].nunique()))


class NoEvents(Test):
    """No step of any run has a non-finite loss or logit. Contradicted by one."""

    kind: Literal["no_events"]
    variants: list[str]

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, self.variants, None)
        if gap := missing(runs, self.variants, None):
            return gap
        events = int(runs["nonfinite_total"].sum())
        verdict = CONTRADICTED if events else REPRODUCED
        reason = f"{events} events in {int(runs['steps'].sum())} steps of {len(runs)} runs"
        return Judgement(verdict, reason, events, 0.0, 0.0, int(runs["seed"].nunique()))


class ConvergesBelow(Test):
    """The final loss ends below `fraction` of a guesser's, at every depth and variant.

    Reproduced: the interval over seeds lies below, everywhere. Contradicted: somewhere it lies
    above, or a run diverged.
    """

    kind: Literal["converges_below"]
    variants: list[str]
    depths: list[int]
    fraction: float = 0.1
    published: float = math.nan

    def judge(self, evidence: Evidence) -> Judgement:
        runs = evidence.runs(self.studies, self.variants, self.depths)
        if gap := missing(runs, self.variants, self.depths):
            return gap
        above, unclear, worst = [], [], None
        for (depth, variant), group in runs.groupby(["depth", "variant"]):
            ratio = interval(group["loss_final"] / group["chance_loss"])
            name = f"{variant} at {depth} layers"
            half = 0.0 if math.isnan(ratio["half"]) else ratio["half"]
            if ratio["n"] < len(group) or ratio["mean"] - half > self.fraction:
                above.append(name)
            elif ratio["mean"] + half > self.fraction:
                unclear.append(name)
            if worst is None or not ratio["mean"] <= worst[0]:
                worst = (ratio["mean"], name, interval(group["loss_final"]))
        verdict = CONTRADICTED if above else NOT_REPRODUCED if unclear else REPRODUCED
        _, name, found = worst
        limit = self.fraction * runs["chance_loss"].iloc[0]
        held = f"above {limit:.3g}: {', '.join(above + unclear)}" if above + unclear else (
            f"all below {limit:.3g}"
        )  # fmt: skip
        reason = f"{held}; highest: {name}, {_pm(found['mean'], found['half'])}"
        seeds = int(runs["seed"].nunique())
        return Judgement(verdict, reason, found["mean"], found["half"], self.published, seeds)


class Ordered(Test):
    """At every depth `lower` has less of a measure than each of `higher`.

    Seeds are compared pair by pair, since the same seed means the same batches: the interval is
    that of the mean difference of log10. Reproduced: it is below zero in every comparison.
    Contradicted: it is above zero in some. A side that diverged is not compared.
    """

    kind: Literal["ordered"]
    lower: str
    higher: list[str]
    depths: list[int] | None = Field(None, description="None: every depth of the studies")
    measure: str

    def judge(self, evidence: Evidence) -> Judgement:
        clear, against, unclear, skipped = [], [], [], []
        largest = None
        seeds = 0
        runs = evidence.runs(self.studies, [self.lower, *self.higher], self.depths)
        if runs.empty:
            return not_measured(_listed(self.studies))
        for depth in self.depths or sorted(runs["depth"].unique()):
            for other in self.higher:
                name = f"{other} at {depth} layers"
                low, high = (
                    evidence.runs(self.studies, [v], [depth]).set_index("seed")[self.measure]
                    for v in (self.lower, other)
                )
                common = low.index.intersection(high.index)
                if common.empty:
                    return not_measured(f"{self.lower} and {other} at {depth} layers")
                difference = np.log10(low[common]) - np.log10(high[common])
                if difference.isna().any():
                    skipped.append(name)
                    continue
                found = interval(difference)
                seeds = max(seeds, found["n"])
                half = 0.0 if math.isnan(found["half"]) else found["half"]
                sides = clear, against, unclear
                sides[0 if found["mean"] < -half else 1 if found["mean"] > half else 2].append(name)
                if largest is None or found["mean"] > largest[0]["mean"]:
                    largest = (found, name)
        if largest is None:
            why = f"one side diverged: {', '.join(skipped)}"
            return Judgement(NOT_REPRODUCED, f"nothing to compare, {why}")
        verdict = CONTRADICTED if against else NOT_REPRODUCED if unclear else REPRODUCED
        found, name = largest
        parts = [f"{self.lower} below {', '.join(clear) or 'none'}"]
        parts += [f"above {', '.join(against)}"] if against else []
        parts += [f"not apart from {', '.join(unclear)}"] if unclear else []
        parts += [f"not compared, diverged: {', '.join(skipped)}"] if skipped else []
        least = f"least favourable: log10 ratio to {name} {_pm(found['mean'], found['half'])}"
        if found["sd"] > 0:  # neither of one run, nor of equal differences
            least += f", effect {found['mean'] / found['sd']:.2g} sd"
        parts.append(least)
        return Judgement(verdict, "; ".join(parts), found["mean"], found["half"], seeds=seeds)


class Monotone(Test):
    """A measure is finite and never rises from one step to the next, in every run.

    Contradicted: it rises in every run.
    """

    kind: Literal["monotone"]
    variant: str
    depths: list[int]
    measure: str

    def judge(self, evidence: Evidence) -> Judgement:
        s = evidence.steps
        chosen = s["study"].isin(self.studies) & (s["variant"] == self.variant)
        s = s[chosen & s["depth"].isin(self.depths)]
        if gap := missing(s, [self.variant], self.depths):
            return gap
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
        seeds = int(s["seed"].nunique())
        return Judgement(verdict, reason, max(rises), math.nan, 0.0, seeds)


class SameAtEqualSteps(Test):
    """Two studies end at the same loss once both are read at the same step.

    Reproduced: the interval of the mean log10 ratio, seed by seed, holds zero. Contradicted: it
    does not, so that something other than the number of steps sets them apart.
    """

    kind: Literal["same_at_equal_steps"]
    variants: list[str]
    depths: list[int]

    @model_validator(mode="after")
    def _two_studies(self) -> SameAtEqualSteps:
        if len(self.studies) != 2:
            raise ValueError("same_at_equal_steps compares exactly two studies")
        return self

    def judge(self, evidence: Evidence) -> Judgement:
        s = evidence.steps
        apart, same, skipped, widest, seeds = [], [], [], None, 0
        for depth in self.depths:
            for variant in self.variants:
                name = f"{variant} at {depth} layers"
                cell = s[(s["depth"] == depth) & (s["variant"] == variant)]
                sides = [cell[cell["study"] == study] for study in self.studies]
                if any(side.empty for side in sides):
                    return not_measured(f"{name} in {' and '.join(self.studies)}")
                step = min(int(side["step"].max()) for side in sides)
                a, b = (side[side["step"] == step].set_index("seed")["loss"] for side in sides)
                a, b = (side.replace([np.inf, -np.inf], np.nan) for side in (a, b))
                ratio = (np.log10(a) - np.log10(b)).dropna()
                if len(ratio) < min(len(a), len(b)):
                    skipped.append(name)
                    continue
                found = interval(ratio)
                seeds = max(seeds, found["n"])
                half = 0.0 if math.isnan(found["half"]) else found["half"]
                (apart if abs(found["mean"]) > half else same).append(name)
                if widest is None or abs(found["mean"]) > abs(widest[0]["mean"]):
                    widest = (found, name, step)
        if widest is None:
            return Judgement(NOT_REPRODUCED, f"nothing to compare, diverged: {', '.join(skipped)}")
        found, name, step = widest
        reason = f"at step {step + 1}, apart: {', '.join(apart) or 'none'}"
        reason += f"; alike: {', '.join(same) or 'none'}"
        reason += f"; widest: {name}, log10 ratio {_pm(found['mean'], found['half'])}"
        verdict = CONTRADICTED if apart else REPRODUCED
        return Judgement(verdict, reason, found["mean"], found["half"], 0.0, seeds)


AnyTest = Annotated[
    LineInDepth | Near | Fails | DivergesAtOnce | NoEvents | ConvergesBelow | Ordered | Monotone
    | SameAtEqualSteps,
    Field(discriminator="kind"),
]  # fmt: skip


def _first_finite(runs: pd.DataFrame, measures: Sequence[str]) -> pd.Series:
    """For each run the first of the measures that is finite; NaN if none is."""
    return runs[list(measures)].bfill(axis=1).iloc[:, 0]


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _cells(variant: str, depths: Sequence[int] | None) -> str:
    return f"{variant} at {_listed(depths)} layers" if depths else variant


def _pm(mean: float, half: float) -> str:
    if math.isnan(mean):
        return "not finite"
    return f"{mean:.3g}" if math.isnan(half) else f"{mean:.3g} ± {half:.2g}"


# --- report/published.yaml ----------------------------------------------------------------------


OneLine = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
"""Text that YAML may fold: a line break would end a row of the report's tables."""


class Source(Section):
    """A document that published figures or statements."""

    title: OneLine
    platform: str
    backend: str | None = Field(None, description="the backend here that stands for its platform")


class Figures(Section):
    """One published table: variant → depth → value."""

    source: str
    study: str
    measure: str
    scale: dict[str, float | dict[int, float]]
    cells: dict[str, dict[int, float]]


class Claim(Section):
    """A published statement and the tests that it has to pass."""

    id: str
    source: str
    says: OneLine
    holds: Literal["at home", "everywhere"] = Field(
        "at home", description="whether the source's own backend decides, or all of them"
    )
    scale: Annotated[dict[str, float | dict[int, float]], Field(default_factory=dict)]
    tests: Annotated[list[AnyTest], Field(default_factory=list)]
    """None where what they need is not built yet."""

    @field_validator("tests", mode="before")
    @classmethod
    def _kinds_exist(cls, tests: object) -> object:
        known = [
            get_args(t.model_fields["kind"].annotation)[0] for t in get_args(get_args(AnyTest)[0])
        ]
        for test in tests if isinstance(tests, list) else ():
            kind = test.get("kind") if isinstance(test, dict) else None
            if isinstance(kind, str) and kind not in known:
                raise ValueError(_unknown("kind", kind, known))
        return tests


class Note(Section):
    """A contradiction inside a source, in our words."""

    source: str
    says: OneLine


class Published(Section):
    """All of report/published.yaml."""

    notes: list[Note]
    sources: dict[str, Source]
    values: list[Figures]
    claims: list[Claim]


SCALE_SETTINGS = (
    "depth", "dropout",
    "vocab", "length", "width", "heads", "hidden", "streams", "sinkhorn_iterations",
    "steps", "batch_size", "lr", "weight_decay",
)  # fmt: skip
"""What may stand in a `scale`: the numbers of a study that a published run may differ in."""

STEP_MEASURES = (
    "loss", "grad_norm", "grad_norm_stem", "gain_proxy_log10_max_entry", "nonfinite_total",
    "amax_forward_log10", "amax_backward_log10", "nonfinite_event", "step_seconds",
    "stream_difference", "stream_cosine",
)  # fmt: skip
"""Columns of steps.csv.gz, which only the test `monotone` reads."""


def load_published(file: Path) -> Published:
    """Read and check report/published.yaml. Raises ConfigError naming the file and the entry."""
    published = checked(Published, read_yaml(file), str(file))
    problems = list(_misnamed(published))
    if problems:
        raise ConfigError("\n".join(f"{file}: {problem}" for problem in problems))
    return published


def _misnamed(published: Published) -> Iterator[str]:
    """A line for every name that stands for nothing, and every id that is there twice."""
    for name, source in published.sources.items():
        if source.backend is not None:
            yield from _strange(f"sources.{name}", "backend", [source.backend], BACKENDS)
    entries: list[tuple[str, Figures | Claim | Note]] = [
        *((f"values.{i}", entry) for i, entry in enumerate(published.values)),
        *((f"claim '{claim.id}'", claim) for claim in published.claims),
        *((f"notes.{i}", entry) for i, entry in enumerate(published.notes)),
    ]
    for where, entry in entries:
        yield from _strange(where, "source", [entry.source], published.sources)
        if not isinstance(entry, Note):
            yield from _strange(where, "scale setting", entry.scale, SCALE_SETTINGS)
        if isinstance(entry, Figures):
            yield from _strange(where, "measure", [entry.measure], MEASURES)
            yield from _strange(where, "variant", entry.cells, VARIANTS)
        for test in entry.tests if isinstance(entry, Claim) else ():
            known = STEP_MEASURES if isinstance(test, Monotone) else MEASURES
            yield from _strange(where, "measure", _named(test, "measure", "measures"), known)
            variants = _named(test, "variant", "variants", "lower", "higher")
            yield from _strange(where, "variant", variants, VARIANTS)
    ids = [claim.id for claim in published.claims]
    for name in dict.fromkeys(ids):
        if ids.count(name) > 1:
            yield f"claim '{name}': {ids.count(name)} claims have the same id"


def _named(test: Test, *fields: str) -> list[str]:
    """The names that a test has in those of these fields that are its own: one each, or a list."""
    found = [getattr(test, field, []) for field in fields]
    return [name for names in found for name in ([names] if isinstance(names, str) else names)]


def _strange(where: str, what: str, names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    known = list(known)
    for name in names:
        if name not in known:
            yield f"{where}: {_unknown(what, name, known)}"


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"unknown {what} '{name}'" + (f"; did you mean '{near[0]}'?" if near else "")


def write_claims(config: Config, published: Published, folder: Path) -> None:
    """Write published.csv, claims.csv and verdicts.csv beside the tables they are made from."""
    cells, steps, summary = (
        read_table(folder / name) for name in ("cells.csv", "steps.csv.gz", "summary.csv")
    )
    claims = claims_table(config, cells, steps, published)
    tables = {
        "published.csv": published_table(config, summary, published),
        "claims.csv": claims,
        "verdicts.csv": verdicts_table(claims),
    }
    save_tables(tables, folder)


# --- verdicts -----------------------------------------------------------------------------------


def claims_table(
    config: Config, cells: pd.DataFrame, steps: pd.DataFrame, published: Published
) -> pd.DataFrame:
    """A row per claim, test and place, with verdict, numbers and reason."""
    counted = cells[cells["status"].isin(["measured", "imported"])]
    places = [Place(*row) for row in counted[PLACE].drop_duplicates().itertuples(index=False)]
    rows = []
    for claim in published.claims:
        base = {"claim": claim.id, "source": claim.source, "says": claim.says}
        home = published.sources[claim.source].backend
        if not claim.tests:
            reason = "what it needs is not part of this project yet"
            rows.append({**base, "verdict": NOT_MEASURED, "reason": reason, "decides": True})
        for test in claim.tests:
            known = [config.studies[name] for name in test.studies if name in config.studies]
            scale = _scale_of(claim, known)
            recipes = ", ".join(dict.fromkeys(study.recipe for study in known))
            judged = [(p, test.judge(Evidence.at(p, counted, steps))) for p in places]
            # A source without a backend here has no home: it is decided everywhere.
            homes = {p for p in places if claim.holds == "everywhere" or home in (None, p.backend)}
            # Where no home was measured there is one line, not one for each place.
            seen = [(p, j) for p, j in judged if j.verdict != NOT_MEASURED]
            if not homes & {p for p, _ in seen}:
                gaps = [j for p, j in judged if p in homes]
                nowhere = gaps[0] if gaps else not_measured(_listed(test.studies))
                seen.append((Place("", "", ""), nowhere))
            for place, judgement in seen:
                decides = place in homes or not place.backend
                rows.append(
                    {
                        **base,
                        "test": test.kind,
                        "studies": _listed(test.studies),
                        "recipe": recipes,
                        **asdict(place),
                        **asdict(judgement),
                        "scale": scale,
                        "decides": decides,
                    }
                )
    columns = ["claim", "source", "says", "test", "studies", "recipe", *PLACE, "verdict"]
    columns += ["observed", "half", "published", "seeds", "scale", "decides", "reason"]
    return pd.DataFrame(rows, columns=columns)


def verdicts_table(claims: pd.DataFrame) -> pd.DataFrame:
    """A row per claim: the verdict of the rows that decide it.

    Contradicted if one of them is, else not reproduced if one of them is, else reproduced if one
    is, else not measured. `qualifier` says what a reader must know beside it.
    """
    rows = []
    for claim, tests in claims.groupby("claim", sort=False):
        deciding = tests[tests["decides"].astype(bool)]
        found = set(deciding["verdict"])
        order = (CONTRADICTED, NOT_REPRODUCED, REPRODUCED, NOT_MEASURED)
        verdict = next((v for v in order if v in found), NOT_MEASURED)
        measured = deciding[deciding["verdict"] != NOT_MEASURED]
        qualifiers = []
        if not measured.empty and (measured["scale"].fillna("") != "").any():
            qualifiers.append("at another scale")
        seeds = int(measured["seeds"].min()) if not measured.empty else 0
        if 0 < seeds < MIN_SEEDS:
            qualifiers.append("one run" if seeds == 1 else f"{seeds} runs")
        if not measured.empty and (deciding["verdict"] == NOT_MEASURED).any():
            qualifiers.append("in part")
        others = tests[~tests["decides"].astype(bool)]
        elsewhere = sorted(set(others["verdict"]) - {verdict, NOT_MEASURED})
        rows.append(
            {
                "claim": claim,
                "source": tests["source"].iloc[0],
                "says": tests["says"].iloc[0],
                "verdict": verdict,
                "qualifier": ", ".join(qualifiers),
                "elsewhere": ", ".join(elsewhere),
                "tests": len(measured),
            }
        )
    columns = ["claim", "source", "says", "verdict", "qualifier", "elsewhere", "tests"]
    return pd.DataFrame(rows, columns=columns)


def _scale_of(claim: Claim, studies: Sequence[Any]) -> str:
    """How the studies of a test differ from the published scale; empty if none does."""
    found = [scale_difference(claim.scale, s.model_dump(), s.depths) for s in studies]
    return "; ".join(dict.fromkeys(text for text in found if text))


# --- published figures beside ours --------------------------------------------------------------


def published_table(config: Config, summary: pd.DataFrame, published: Published) -> pd.DataFrame:
    """A row per published value and place that measured its cell, with our mean and half-width.

    `scale` says how our study differs from the published one; it is empty where they agree.
    `deviates` says whether the published value lies outside our interval (both finite or not).
    """
    rows = []
    for entry in published.values:
        study = config.studies.get(entry.study)
        depths = sorted({depth for by_depth in entry.cells.values() for depth in by_depth})
        scale = scale_difference(entry.scale, study.model_dump(), depths) if study else ""
        for variant, by_depth in entry.cells.items():
            for depth, value in by_depth.items():
                base = {
                    "source": entry.source,
                    "study": entry.study,
                    "measure": entry.measure,
                    "variant": variant,
                    "depth": depth,
                    "published": value,
                    "scale": scale,
                }
                cell = [entry.study, depth, variant]
                found = summary[(summary[["study", "depth", "variant"]] == cell).all(axis=1)]
                if found.empty:
                    rows.append(base)
                for _, row in found.iterrows():
                    mean, half = (row[f"{entry.measure}_{part}"] for part in ("mean", "half"))
                    rows.append(
                        {
                            **base,
                            **row[PLACE],
                            "mean": mean,
                            "half": half,
                            "n": row["n"],
                            "diverged": row["diverged"],
                            "deviates": deviates(value, mean, half),
                        }
                    )
    columns = ["source", "study", "measure", "variant", "depth", "published", *PLACE]
    columns += ["mean", "half", "n", "diverged", "deviates", "scale"]
    return pd.DataFrame(rows, columns=columns)


def deviates(published: float, mean: float, half: float) -> bool:
    """Whether a published value is outside our interval, or only one of the two is finite.

    Half a unit of the last printed digit is allowed for rounding. Without an interval a value
    deviates by more than that alone.
    """
    if not (math.isfinite(published) and math.isfinite(mean)):
        return math.isfinite(published) != math.isfinite(mean)
    rounding = 0.5 * 10.0 ** int(Decimal(repr(published)).as_tuple().exponent)
    return abs(published - mean) > (0.0 if math.isnan(half) else half) + rounding


def scale_difference(published: dict[str, Any], ours: dict[str, Any], depths: Iterable[int]) -> str:
    """How our scale differs, as in 'width 32 for 256, steps 100 for 800'; empty if it does not.

    A setting may be one number or one for each depth; it is compared at the given depths.
    """
    depths = list(depths)
    flat = {**ours, **ours["model"], **ours["optimizer"]}
    flat["depth"] = dict(zip(depths, depths, strict=True))
    differences = []
    for name, value in published.items():
        here, there = (_at_depths(v, depths) for v in (flat.get(name), value))
        if here != there:
            differences.append(f"{name} {here} for {there}")
    return ", ".join(differences)


def _at_depths(value: float | dict[int, float], depths: Iterable[int]) -> str:
    values = [value.get(d) if isinstance(value, dict) else value for d in depths]
    texts = ["none" if v is None else f"{v:g}" for v in values]
    return texts[0] if len(set(texts)) == 1 else "/".join(texts)
