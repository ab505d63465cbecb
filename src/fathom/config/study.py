"""config.yaml as checked models, and its expansion into cells.

Everything that a user can get wrong in a config is refused here, in one line that names the study,
the key and the fix.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from fathom import tasks
from fathom.config.cells import Cell, Optimizer, Spec, TaskSection
from fathom.models.connections.schemes import SCHEMES, Scheme, resolve
from fathom.models.recipes import RECIPES, AnyRecipe, Recipe
from fathom.settings import (
    ALTERNATIVE,
    ConfigError,
    Flag,
    Label,
    NonNegative,
    Number,
    Positive,
    Section,
    Unique,
    checked,
    distinct,
    one_of,
    unknown,
)


def _backends() -> tuple[str, ...]:
    """The modules of backends that can train: not the oracle, nor what a backend is helped by."""
    files = (Path(__file__).parents[1] / "backends").glob("[a-z]*.py")
    return tuple(sorted(f.stem for f in files if f.stem != "numpy" and "_" not in f.stem))


BACKENDS = _backends()
"""Every backend that can train, each named after the framework it imports: a file is enough."""

Backend = Annotated[str, one_of("backend", BACKENDS)]


def _labelled(value: object) -> object:
    """A variant is written as a name, or as `label: settings`."""
    if isinstance(value, str):
        return {value: value}
    if isinstance(value, Mapping) and len(value) == 1:
        return value
    raise ValueError("must be a name, or one label with its settings")


ONE_SIZE, BY_DEPTH = f"{ALTERNATIVE}one", f"{ALTERNATIVE}by depth"
A_NAME, SETTINGS = f"{ALTERNATIVE}name", f"{ALTERNATIVE}settings"

NameOrSettings = Annotated[
    Annotated[str, Tag(A_NAME)] | Annotated[dict[str, Any], Tag(SETTINGS)],
    Discriminator(lambda value: SETTINGS if isinstance(value, Mapping) else A_NAME),
]
VariantEntry = Annotated[dict[Label, NameOrSettings], BeforeValidator(_labelled)]


def _unique_labels(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    distinct([label for entry in entries for label in entry])
    return entries


class Exclusion(Section):
    """A combination of axis values that a study leaves out; an absent axis matches all."""

    depth: Positive | None = None
    variant: Label | None = None
    backend: Backend | None = None
    seed: NonNegative | None = None

    @model_validator(mode="after")
    def _names_an_axis(self) -> Exclusion:
        if not self.model_dump(exclude_none=True):
            raise ValueError("must name at least one of depth, variant, backend, seed")
        return self

    def matches(self, cell: Cell) -> bool:
        """Whether every axis that is named has the cell's value."""
        named = self.model_dump(exclude_none=True)
        return all(getattr(cell, axis) == value for axis, value in named.items())


class Study(TaskSection):
    """One experiment: what is trained, by which recipe, over which axes, for how long."""

    description: str = Field("", description="one sentence for the report")
    recipe: AnyRecipe = Field(description="the name of a recipe, or its settings")
    variants: Annotated[list[VariantEntry], AfterValidator(_unique_labels)] = Field(
        description="names of connections, or label: {connection: name, setting: value}"
    )
    streams: Positive = Field(4, description="S, residual streams of the variants that have them")
    depths: Annotated[list[Positive], Unique]
    backends: Annotated[list[Backend], Unique]
    seeds: Annotated[list[NonNegative], Unique]
    exclude: tuple[Exclusion, ...] = ()
    steps: Positive
    batch_size: Annotated[
        Annotated[Positive, Tag(ONE_SIZE)] | Annotated[dict[Positive, Positive], Tag(BY_DEPTH)],
        Discriminator(lambda value: BY_DEPTH if isinstance(value, Mapping) else ONE_SIZE),
    ] = Field(description="B: one number, or one for each depth, as in {12: 32, 24: 24}")
    optimizer: Optimizer
    weights: Flag = Field(False, description="keep the last parameters of every run")

    @model_validator(mode="after")
    def _every_depth_has_a_batch_size(self) -> Study:
        for depth in self.depths:
            self.batch_size_at(depth)
        return self

    @property
    def labels(self) -> list[str]:
        """The variants' labels, in order."""
        return [label for entry in self.variants for label in entry]

    @property
    def recipe_name(self) -> str:
        """The recipe's name, or its settings in words."""
        if isinstance(self.recipe, str):
            return self.recipe
        return ", ".join(f"{name} {value}" for name, value in self.recipe.model_dump().items())

    @property
    def recipe_settings(self) -> Recipe:
        """The recipe itself."""
        return RECIPES[self.recipe] if isinstance(self.recipe, str) else self.recipe

    def batch_size_at(self, depth: int) -> int:
        """B at the given depth. Raises ConfigError if the study does not say."""
        if not isinstance(self.batch_size, dict):
            return self.batch_size
        if depth not in self.batch_size:
            raise ConfigError(f"batch_size has no entry for depth {depth}; add one")
        return self.batch_size[depth]


class Compute(Section):
    """How a training job computes and what it asks for: nothing here is part of a result."""

    device: Literal["auto", "cpu", "cuda", "mps", "gpu"] = Field(
        "auto", description="auto takes the fastest present; cuda and mps: torch; gpu: mlx"
    )
    mlx_blas: Literal["auto", "off"] = Field(
        "auto", description="whether MLX on Linux takes matrix products from a faster library"
    )
    preload: bool = Field(
        True, description="whether local jobs of one thread on Linux share a loaded framework"
    )
    data: Annotated[str, Field(min_length=1)] = Field("data", description="folder for data sets")
    threads: Positive = Field(1, description="CPU threads of a cell")
    checkpoint_seconds: Annotated[Number, Field(gt=0)] = Field(
        30.0, description="a killed training loses at most so many seconds"
    )
    checkpoint_steps: Positive | None = Field(None, description="likewise, in steps")
    mem_mb: Positive = Field(2000, description="memory of a job, MB")
    runtime: Positive = Field(60, description="time limit of a job, minutes")
    gpu: NonNegative = Field(0, description="GPUs of a job")


AXES = ("variants", "depths", "backends", "seeds")
"""What can be cut."""

MAX_CUT_NAME = 100
"""The longest name of a cut's folder, before a hash stands for the rest."""


class Config(Section):
    """The whole of config.yaml."""

    results: Annotated[str, Field(min_length=1)] = Field(
        "results", description="folder for everything that is computed"
    )
    connections: dict[Label, NameOrSettings] = Field(
        {}, description="connections of your own, by name: settings over those of another"
    )
    studies: Annotated[dict[str, Study], Field(min_length=1)]
    variants: Annotated[list[Label], Unique] | None = Field(
        None, description="keep only these variants, in every study"
    )
    depths: Annotated[list[Positive], Unique] | None = Field(None, description="likewise")
    backends: Annotated[list[Backend], Unique] | None = Field(None, description="likewise")
    seeds: Annotated[list[NonNegative], Unique] | None = Field(None, description="likewise")
    compute: Compute = Compute()
    assume_backends: Flag = Field(
        False, description="plan for all backends, installed here or not (the jobs run elsewhere)"
    )

    @model_validator(mode="after")
    def _names_make_folders(self) -> Config:
        for name in self.studies:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                raise ValueError(
                    f"study name {name!r} must be lower-case letters, digits and hyphens"
                )
        return self

    @property
    def cut(self) -> dict[str, list[Any]]:
        """The axes of which only some values are kept, with these: empty for the whole grid."""
        return {axis: values for axis in AXES if (values := getattr(self, axis)) is not None}

    @property
    def report_folder(self) -> str:
        """Folder of tables, figures and reports: `results`, or for a cut one of its own inside.

        Runs are in `results/runs` whatever is cut, so no cell is trained twice, and no report of
        the whole grid is replaced by one of a part.
        """
        if not self.cut:
            return self.results
        name = "+".join("-".join(map(str, [axis, *values])) for axis, values in self.cut.items())
        if len(name) > MAX_CUT_NAME:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            name = f"{name[:MAX_CUT_NAME]}-{digest}"
        return f"{self.results}/cuts/{name}"

    def check(self, source: str) -> None:
        """What no section can check alone. Raises ConfigError, one line per problem."""
        labels = {label for study in self.studies.values() for label in study.labels}
        problems = [
            f"{source}: {where}: {unknown('variant', label, sorted(known))}"
            for where, label, known in self._named_variants(labels)
            if label not in known
        ]
        for name, study in self.studies.items():
            for label in study.labels:
                try:
                    self.connection(name, label, source)
                except ConfigError as error:
                    problems += str(error).splitlines()
        if not problems and not self.cells():
            problems = [f"{source}: no cells: the cut axes and the exclusions leave none"]
        if problems:
            raise ConfigError("\n".join(problems))

    def _named_variants(self, labels: set[str]) -> Iterator[tuple[str, str, set[str]]]:
        """(place, variant, the variants that there are): wherever one is named by its label."""
        for label in self.variants or ():
            yield "variants", label, labels
        for name, study in self.studies.items():
            for i, exclusion in enumerate(study.exclude):
                if exclusion.variant is not None:
                    yield f"studies.{name}.exclude.{i}.variant", exclusion.variant, labels

    def connection(self, study_name: str, variant: str, source: str = "config") -> Scheme:
        """What a variant of a study connects its layers with.

        A variant that the study does not list must be a connection's name. Raises ConfigError.
        """
        key = (study_name, variant)
        if key not in self._resolved:
            study = self.studies[study_name]
            own = {label: value for entry in study.variants for label, value in entry.items()}
            published = tasks.load(study.task).Network.names
            general = {name: row for name, row in SCHEMES.items() if name not in published}
            names = {**published, **general, **self.connections}
            place = ("studies", study_name, "variants", variant)
            value = own.get(variant, variant)
            self._resolved[key] = resolve(value, names, study.streams, source, place)
        return self._resolved[key]

    @cached_property
    def _resolved(self) -> dict[tuple[str, str], Scheme]:
        """Schemes by (study, variant): thousands of cells share a few."""
        return {}

    def cells(self) -> list[Cell]:
        """Every cell that the studies, their exclusions and the cut axes leave, in order."""
        grid = (
            Cell(name, depth, variant, backend, seed)
            for name, study in self.studies.items()
            for depth, variant, backend, seed in itertools.product(
                _kept(study.depths, self.depths),
                _kept(study.labels, self.variants),
                _kept(study.backends, self.backends),
                _kept(study.seeds, self.seeds),
            )
        )
        return [c for c in grid if not any(e.matches(c) for e in self.studies[c.study].exclude)]

    def spec(self, cell: Cell) -> Spec:
        """Every number that the cell's training uses. Raises ConfigError."""
        study = self.studies[cell.study]
        numbers = {
            **asdict(cell),
            "task": study.task,
            "recipe": study.recipe_settings,
            "connection": self.connection(cell.study, cell.variant),
            "steps": study.steps,
            "batch_size": study.batch_size_at(cell.depth),
            "model": study.model,
            "optimizer": study.optimizer,
            "weights": study.weights,
        }
        return checked(Spec, numbers, str(cell))


def _kept(values: Sequence[Any], cut: Sequence[Any] | None) -> list[Any]:
    return [v for v in values if cut is None or v in cut]
