"""The models of report/published.yaml: sources, values, thresholds, claims and notes, checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from decimal import Decimal
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from fathom import tasks
from fathom.analysis.claims.rules import RULES, Rule
from fathom.config import BACKENDS, Config, Optimizer, read_yaml
from fathom.models.connections.schemes import SCHEMES
from fathom.settings import ConfigError, Settings, short_repr, unknown, validate

AnyRule = Annotated[reduce(or_, RULES.values()), Field(discriminator="kind")]

SCALE_SETTINGS = {"depth", "steps", "batch_size", "streams", "tokens_per_step"}.union(
    Optimizer.model_fields, *(tasks.load(name).Model.model_fields for name in tasks.TASKS)
)
"""What may stand in a `scale`: the numbers of a study that a published run may differ in."""

MINIMUM_SETTINGS = ("depth", "steps", "width", "streams", "batch_size", "tokens_per_step")
"""What may stand in a `minimum_scale`."""

OneLine = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]
"""Text that YAML may fold: a line break would end a row of the report's tables."""


class Source(Settings):
    """A document that published figures or statements."""

    title: OneLine
    author: OneLine | None = Field(None, description="whoever published it")
    url: OneLine | None = Field(None, description="where")
    platform: str
    backend: str | None = Field(None, description="the backend here that stands for its platform")


class Value(NamedTuple):
    """A published number, or the range of those of several runs."""

    low: float
    high: float


def _as_range(value: object) -> object:
    """A number is a range of one; `[0.43, 0.77]` is a range of several runs."""
    ends = value if isinstance(value, list | tuple) else [value, value]
    numbers = [end for end in ends if isinstance(end, int | float) and not isinstance(end, bool)]
    if len(numbers) != 2 or len(ends) != 2 or numbers[0] > numbers[1]:
        raise ValueError(
            f"must be a number, or a range as in [0.4, 0.8], but is {short_repr(value)}"
        )
    return tuple(numbers)


ANY: Literal["any"] = "any"
"""Stands for every depth: of a value that the source gives for none, or for another than ours."""


class Figures(Settings):
    """One published table: variant → depth → value."""

    source: str
    study: str
    metric: str
    scale: dict[str, float | dict[int, float]]
    cells: dict[str, dict[int | Literal["any"], Annotated[Value, BeforeValidator(_as_range)]]]


class Bound(Settings):
    """Which values of a metric a source calls good, or bad."""

    above: float = -math.inf
    below: float = math.inf
    at: Annotated[list[float], Field(default_factory=list)]
    """Single values as printed: what rounds to one of them is one of them."""

    @model_validator(mode="after")
    def _bounds_something(self) -> Bound:
        has_sides = math.isfinite(self.above) or math.isfinite(self.below)
        if has_sides == bool(self.at) or self.above >= self.below:
            raise ValueError("must have above, below or both, above being less; or else at")
        return self

    def holds(self, value: float) -> bool:
        """Whether a value is one of these."""
        if self.at:
            return any(abs(value - one) <= rounding(one) for one in self.at)
        return self.above <= value <= self.below

    @property
    def text(self) -> str:
        """In words, as in 'below 0.2'."""
        if self.at:
            return " or ".join(f"{one}" for one in self.at)
        if math.isfinite(self.above) and math.isfinite(self.below):
            return f"{self.above:g} to {self.below:g}"
        return f"below {self.below:g}" if math.isfinite(self.below) else f"above {self.above:g}"


def rounding(printed: float) -> float:
    """Half a unit of the last digit of a number as it is printed."""
    return 0.5 * 10.0 ** int(Decimal(repr(printed)).as_tuple().exponent)


class Threshold(Settings):
    """What a source calls a good and a bad value of a metric."""

    source: str
    studies: list[str]
    metric: str
    good: Bound
    bad: Bound


class Claim(Settings):
    """A published statement and the tests that it has to pass."""

    id: str
    source: str
    statement: OneLine
    scope: Literal["at home", "everywhere"] = Field(
        "at home", description="whether the source's own backend decides, or all of them"
    )
    scale: Annotated[dict[str, float | dict[int, float]], Field(default_factory=dict)]
    minimum_scale: Annotated[dict[str, float], Field(default_factory=dict)]
    """The least sizes of a study that can speak for the claim; of a depth, of the networks."""
    tests: Annotated[list[AnyRule], Field(default_factory=list)]
    untested: OneLine = Field(
        "what it needs is not part of this project yet", description="why there are no tests"
    )
    control: str | None = Field(
        None, description="a study in which its tests are made again; these decide nothing"
    )

    def minimum_scale_of(self, test: Rule) -> dict[str, float]:
        """The claim's, under that of the test where it has one."""
        return {**self.minimum_scale, **test.minimum_scale}

    @field_validator("tests", mode="before")
    @classmethod
    def _kinds_exist(cls, tests: object) -> object:
        for test in tests if isinstance(tests, list) else ():
            kind = test.get("kind") if isinstance(test, dict) else None
            if isinstance(kind, str) and kind not in RULES:
                raise ValueError(unknown("kind", kind, RULES))
        return tests


class Note(Settings):
    """What a reader of a source must know, in our words: a contradiction, a convention, context."""

    source: str
    statement: OneLine


class Published(Settings):
    """All of report/published.yaml."""

    notes: list[Note]
    sources: dict[str, Source]
    values: list[Figures]
    thresholds: Annotated[list[Threshold], Field(default_factory=list)]
    claims: list[Claim]


def load_published(file: Path, config: Config) -> Published:
    """Read and check report/published.yaml. Raises ConfigError naming the file and the entry.

    It may speak of every variant that the config's studies have, and of every named connection;
    and of any variant of a study that the config does not have.
    """
    published = validate(Published, read_yaml(file), str(file))
    problems = list(_misnamed(published, config))
    if problems:
        raise ConfigError("\n".join(f"{file}: {problem}" for problem in problems))
    return published


def _variants(config: Config) -> set[str]:
    networks = (tasks.load(name).Network for name in tasks.TASKS)
    labels = (study.labels for study in config.studies.values())
    return {*SCHEMES, *config.connections}.union(*(n.names for n in networks), *labels)


def _misnamed(published: Published, config: Config) -> Iterator[str]:
    """A line for every name that stands for nothing, and every id that is there twice."""
    for name, source in published.sources.items():
        if source.backend is not None:
            yield from _strange(f"sources.{name}", "backend", [source.backend], BACKENDS)
    entries: list[tuple[str, Figures | Threshold | Claim | Note]] = [
        *((f"values.{i}", entry) for i, entry in enumerate(published.values)),
        *((f"thresholds.{i}", entry) for i, entry in enumerate(published.thresholds)),
        *((f"claim '{claim.id}'", claim) for claim in published.claims),
        *((f"notes.{i}", entry) for i, entry in enumerate(published.notes)),
    ]
    variants = _variants(config)
    for where, entry in entries:
        yield from _strange(where, "source", [entry.source], published.sources)
        if isinstance(entry, Figures | Claim):
            yield from _strange(where, "scale setting", entry.scale, SCALE_SETTINGS)
        if isinstance(entry, Claim):
            yield from _strange(where, "minimum setting", entry.minimum_scale, MINIMUM_SETTINGS)
        if isinstance(entry, Figures | Threshold):
            yield from _strange(where, "metric", [entry.metric], tasks.averaged())
        if isinstance(entry, Figures) and entry.study in config.studies:
            yield from _strange(where, "variant", entry.cells, variants)
        for test in entry.tests if isinstance(entry, Claim) else ():
            yield from _strange(where, "minimum setting", test.minimum_scale, MINIMUM_SETTINGS)
            yield from _strange(where, "metric", test.named_metrics, test.known_metrics)
            if any(study in config.studies for study in test.studies):
                yield from _strange(where, "variant", test.named_variants, variants)
    ids = [claim.id for claim in published.claims]
    for name in dict.fromkeys(ids):
        if ids.count(name) > 1:
            yield f"claim '{name}': {ids.count(name)} claims have the same id"


def _strange(where: str, what: str, names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    return (f"{where}: {unknown(what, name, known)}" for name in names if name not in known)
