"""The models of report/published.yaml: sources, values, thresholds, claims and notes, checked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fathom.connections.schemes import SCHEMES
from fathom.settings import (
    ConfigError,
    Flag,
    OneLine,
    Positive,
    Settings,
    one_of,
    unknown,
    validate,
)
from fathom_study import tasks
from fathom_study.analysis.claims.comparisons import Difference
from fathom_study.analysis.claims.estimator import LEFT, SCORE, Estimator, MinimumScale
from fathom_study.analysis.claims.levels import Count, Level, Slope
from fathom_study.analysis.platforms import DEVICES
from fathom_study.config import BACKENDS, Config, Optimizer, read_yaml
from fathom_study.metrics.steps import STEP_METRICS

ESTIMATORS = (Level, Count, Difference, Slope)
AnyTest = Annotated[reduce(or_, ESTIMATORS), Field(discriminator="kind")]

SCALE_SETTINGS = {"depth", "steps", "batch_size", "streams", "tokens_per_step"}.union(
    Optimizer.model_fields, *(tasks.load(name).Model.model_fields for name in tasks.TASKS)
)
Scale = dict[Annotated[str, one_of("scale setting", SCALE_SETTINGS)], float | dict[int, float]]
"""Settings in which a study may differ from a published run, with the published values."""

AveragedMetric = Annotated[str, one_of("metric", tasks.averaged())]


class Source(Settings):
    """A document that published figures or statements."""

    title: OneLine
    author: OneLine | None = Field(None, description="person or organisation")
    url: OneLine | None = Field(None, description="its address")
    platform: str
    backend: Annotated[str, one_of("backend", BACKENDS)] | None = Field(
        None, description="the backend here that matches its platform"
    )


class Value(NamedTuple):
    """A published number, or the range over several runs."""

    low: float
    high: float


def _as_range(value: object) -> object:
    """The value as a range: a number from itself to itself, `[0.43, 0.77]` over several runs."""
    return value if isinstance(value, list | tuple) else [value, value]


def _in_order(value: Value) -> Value:
    if value.low > value.high:
        raise ValueError("must be a number, or a range as in [0.4, 0.8]")
    return value


OneOrRange = Annotated[Value, BeforeValidator(_as_range), AfterValidator(_in_order)]


ANY: Literal["any"] = "any"
"""Stands for every depth, for a value that the source gives for no depth or for another one."""


class Entry(Settings):
    """An entry with a source."""

    source: str

    @property
    def named_studies(self) -> set[str]:
        """The studies of this project that the entry is about."""
        return set()


class Figures(Entry):
    """One published table: variant → depth → value."""

    study: str
    metric: AveragedMetric
    scale: Scale
    cells: Annotated[dict[str, dict[int | Literal["any"], OneOrRange]], Field(min_length=1)]

    @property
    def named_studies(self) -> set[str]:
        return {self.study}


class SizePoint(Settings):
    """A published result at one size, relative to the plain network."""

    parameters: Positive
    below: float
    """Nats by which its held-out loss is below the plain network's."""
    spread: float = 0
    """Spread printed after ±; 0 if none is printed."""
    seeds: Positive = 1


class Sizes(Entry):
    """Published differences to a plain network over sizes."""

    data: OneLine
    points: Annotated[dict[str, list[SizePoint]], Field(min_length=1)]
    """Published networks, by the variant here that stands for each."""


class Bound(Settings):
    """Values of a metric that a source calls good, or bad."""

    above: float = -math.inf
    below: float = math.inf
    at: Annotated[list[float], Field(default_factory=list)]
    """Single values as printed: a value counts if it rounds to one of them."""

    @model_validator(mode="after")
    def _bounds_something(self) -> Bound:
        has_sides = math.isfinite(self.above) or math.isfinite(self.below)
        if has_sides == bool(self.at) or self.above >= self.below:
            raise ValueError("must have above, below or both, with above < below; or at")
        return self

    def holds(self, value: float) -> bool:
        """Whether a value lies within the bound."""
        if self.at:
            return any(abs(value - one) <= rounding(one) for one in self.at)
        return self.above <= value <= self.below

    @property
    def text(self) -> str:
        """The bound in words, as in 'below 0.2'."""
        if self.at:
            return " or ".join(f"{one}" for one in self.at)
        if math.isfinite(self.above) and math.isfinite(self.below):
            return f"{self.above:g} to {self.below:g}"
        return f"below {self.below:g}" if math.isfinite(self.below) else f"above {self.above:g}"


def rounding(printed: float) -> float:
    """Half a unit of the last digit of a number as it is printed."""
    return 0.5 * 10.0 ** int(Decimal(repr(printed)).as_tuple().exponent)


class Threshold(Entry):
    """A source's ranges of good and bad values of a metric."""

    studies: list[str]
    metric: AveragedMetric
    good: Bound
    bad: Bound

    @property
    def named_studies(self) -> set[str]:
        return {*self.studies}


class Claim(Entry):
    """A published statement and the tests that it has to pass."""

    id: str
    statement: OneLine
    scope: Literal["at home", "everywhere"] = Field(
        "at home", description="whether the source's own backend decides, or all of them"
    )
    scale: Annotated[Scale, Field(default_factory=dict)]
    minimum_scale: MinimumScale
    """Minimum sizes of a study that can test the claim; a depth applies to single networks."""
    device: Annotated[str, one_of("device", DEVICES)] | None = Field(
        None, description="the device that it is about; None: no device in particular"
    )
    past_oracle: Flag = Field(
        False, description="whether only networks that beat the task's oracle count as support: "
        "others have learned too little to show what networks learn"
    )  # fmt: skip
    tests: Annotated[list[AnyTest], Field(default_factory=list)]
    remark: OneLine = Field("", description="what else a reader of the verdict must know")
    untested: OneLine = Field(
        "what it needs is not part of this project yet", description="why there are no tests"
    )
    control: str | None = Field(
        None, description="a study that repeats its tests; these decide nothing"
    )

    @property
    def named_studies(self) -> set[str]:
        return {test.study for test in self.tests}

    def minimum_scale_of(self, test: Estimator, recipe: str = "") -> dict[str, float]:
        """The minimum scale of the claim, overridden by that of the test.

        A size by recipe is that of `recipe`, or the largest if it lists no such recipe.
        """
        least = {**self.minimum_scale, **test.minimum_scale}
        return {
            name: value.get(recipe, max(value.values())) if isinstance(value, dict) else value
            for name, value in least.items()
        }


class Note(Entry):
    """A note to readers of a source: a contradiction, a convention, context."""

    statement: OneLine


class Overhead(Settings):
    """The cost of a design according to its authors."""

    words: OneLine
    url: OneLine = Field(description="address of their statement")


class Worth(Settings):
    """The opening statement of reports, about a study with a ladder."""

    title: OneLine
    study: str
    task: OneLine = Field(description="its task in a word, as in 'On text, …'")
    overheads: Annotated[dict[str, Overhead], Field(default_factory=dict)]
    """Overheads by variant; a study need not have all of them."""


class Published(Settings):
    """The content of report/published.yaml."""

    notes: list[Note]
    sources: dict[str, Source]
    values: list[Figures]
    sizes: Annotated[list[Sizes], Field(default_factory=list)]
    """Shown beside studies with `plain_at_size`."""
    thresholds: Annotated[list[Threshold], Field(default_factory=list)]
    claims: list[Claim]
    worth: Worth | None = None


def load_published(file: Path, config: Config) -> Published:
    """The entries of report/published.yaml about the config's studies.

    The whole file is checked. It may name every variant of the config's studies, every named
    connection, and any variant of a study that the config lacks. Raises ConfigError naming the file
    and the entry.
    """
    published = validate(Published, read_yaml(file), str(file))
    problems = list(_misnamed(published, config))
    if problems:
        raise ConfigError("\n".join(f"{file}: {problem}" for problem in problems))
    return _touched(published, config)


def _touched(published: Published, config: Config) -> Published:
    """Entries that name a study of the config, and entries of kept sources that name no study."""
    studies = {*config.studies}
    has_sizes = any(study.plain_at_size for study in config.studies.values())
    sizes = published.sizes if has_sizes else []
    entries = (*published.values, *published.thresholds, *published.claims)
    gone = {entry.source for entry in entries}
    gone -= {entry.source for entry in entries if entry.named_studies & studies}
    of_sizes = {entry.source for entry in published.sizes}
    others = {entry.source for entry in (*entries, *published.notes)}
    gone = gone - of_sizes if has_sizes else gone | (of_sizes - others)

    def stays(entry: Entry) -> bool:
        return bool(
            entry.named_studies & studies or not (entry.named_studies or entry.source in gone)
        )

    keys = ("values", "thresholds", "claims", "notes")
    kept = {key: list(filter(stays, getattr(published, key))) for key in keys}
    kept["sizes"] = sizes
    sources = {name: source for name, source in published.sources.items() if name not in gone}
    return published.model_copy(update={**kept, "sources": sources})


def _misnamed(published: Published, config: Config) -> Iterator[str]:
    """A line per unknown source, variant or metric and per duplicate id."""
    networks = (tasks.load(name).Network for name in tasks.TASKS)
    labels = (study.compared for study in config.studies.values())
    variants = {*SCHEMES, *config.connections}.union(*(n.names for n in networks), *labels)
    entries: list[tuple[str, Figures | Sizes | Threshold | Claim | Note]] = [
        *((f"values.{i}", entry) for i, entry in enumerate(published.values)),
        *((f"sizes.{i}", entry) for i, entry in enumerate(published.sizes)),
        *((f"thresholds.{i}", entry) for i, entry in enumerate(published.thresholds)),
        *((f"claim '{claim.id}'", claim) for claim in published.claims),
        *((f"notes.{i}", entry) for i, entry in enumerate(published.notes)),
    ]
    for where, entry in entries:
        if entry.source not in published.sources:
            yield f"{where}: {unknown('source', entry.source, published.sources)}"
        named: list[str] = []
        measured: list[tuple[str, str]] = []
        if isinstance(entry, Figures) and entry.study in config.studies:
            named += entry.cells
            measured.append((entry.study, entry.metric))
        if isinstance(entry, Sizes):
            named += entry.points
        for test in entry.tests if isinstance(entry, Claim) else ():
            if test.study in config.studies:
                named += test.named_variants
                measured += ((test.study, metric) for metric in test.named_metrics)
        yield from (
            f"{where}: {unknown('variant', n, variants)}" for n in named if n not in variants
        )
        for study, metric in measured:
            task = config.studies[study].task
            of_steps = STEP_METRICS | tasks.load(task).step_metrics
            if metric not in (SCORE, LEFT, *tasks.run_metrics((task,)), *of_steps):
                yield f"{where}: the task of {study}, {task}, has no metric '{metric}'"
    for name, count in Counter(claim.id for claim in published.claims).items():
        if count > 1:
            yield f"claim '{name}': {count} claims have the same id"
