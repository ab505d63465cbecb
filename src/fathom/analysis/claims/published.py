"""The models of report/published.yaml: sources, published values, claims and notes, checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from fathom import tasks
from fathom.analysis.claims.rules import RULES, Rule
from fathom.config import BACKENDS, Config, Optimizer, read_yaml
from fathom.measures import AVERAGED
from fathom.models.connections.schemes import SCHEMES
from fathom.settings import ConfigError, Section, checked, unknown

AnyRule = Annotated[reduce(or_, RULES.values()), Field(discriminator="kind")]

SCALE_SETTINGS = {"depth", "steps", "batch_size", "streams"}.union(
    Optimizer.model_fields, *(tasks.load(name).Model.model_fields for name in tasks.TASKS)
)
"""What may stand in a `scale`: the numbers of a study that a published run may differ in."""

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
    tests: Annotated[list[AnyRule], Field(default_factory=list)]
    """None where what they need is not built yet."""

    @field_validator("tests", mode="before")
    @classmethod
    def _kinds_exist(cls, tests: object) -> object:
        for test in tests if isinstance(tests, list) else ():
            kind = test.get("kind") if isinstance(test, dict) else None
            if isinstance(kind, str) and kind not in RULES:
                raise ValueError(unknown("kind", kind, RULES))
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


def load_published(file: Path, config: Config) -> Published:
    """Read and check report/published.yaml. Raises ConfigError naming the file and the entry.

    It may speak of every variant that the config's studies have, and of every named connection.
    """
    published = checked(Published, read_yaml(file), str(file))
    problems = list(_misnamed(published, _variants(config)))
    if problems:
        raise ConfigError("\n".join(f"{file}: {problem}" for problem in problems))
    return published


def _variants(config: Config) -> set[str]:
    networks = (tasks.load(name).Network for name in tasks.TASKS)
    labels = (study.labels for study in config.studies.values())
    return {*SCHEMES, *config.connections}.union(*(n.names for n in networks), *labels)


def _misnamed(published: Published, known_variants: Collection[str]) -> Iterator[str]:
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
            yield from _strange(where, "measure", [entry.measure], AVERAGED)
            yield from _strange(where, "variant", entry.cells, known_variants)
        for test in entry.tests if isinstance(entry, Claim) else ():
            measures = _named(test, "measure", "measures")
            yield from _strange(where, "measure", measures, test.known_measures)
            variants = _named(test, "variant", "variants", "lower", "higher")
            yield from _strange(where, "variant", variants, known_variants)
    ids = [claim.id for claim in published.claims]
    for name in dict.fromkeys(ids):
        if ids.count(name) > 1:
            yield f"claim '{name}': {ids.count(name)} claims have the same id"


def _named(test: Rule, *fields: str) -> list[str]:
    """The names that a test has in those of these fields that are its own: one each, or a list."""
    found = [getattr(test, field, []) for field in fields]
    return [name for names in found for name in ([names] if isinstance(names, str) else names)]


def _strange(where: str, what: str, names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    return (f"{where}: {unknown(what, name, known)}" for name in names if name not in known)
