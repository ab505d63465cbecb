"""config.yaml as checked models, and its expansion into cells.

Everything that a user can get wrong in a config is refused here, in one line that names the study,
the key and the fix.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from fathom import datasets, tasks
from fathom.config.cells import Cell, Optimizer, Spec, TaskSection
from fathom.models.connections.schemes import SCHEMES, Scheme, overlaid, resolve
from fathom.models.recipes import RECIPES, AnyRecipe, Recipe
from fathom.settings import (
    ALTERNATIVE,
    ConfigError,
    Flag,
    Folder,
    Label,
    NonNegative,
    Nullable,
    Number,
    Positive,
    Section,
    Text,
    Unique,
    among,
    as_written,
    checked,
    distinct,
    lines_of,
    one_of,
    shown,
    unknown,
)


def _backends() -> tuple[str, ...]:
    """The modules of backends that can train: not the oracle, nor what a backend is helped by."""
    files = (Path(__file__).parents[1] / "backends").glob("[a-z]*.py")
    return tuple(sorted(f.stem for f in files if f.stem != "numpy" and "_" not in f.stem))


BACKENDS = _backends()
"""Every backend that can train, each named after the framework it imports: a file is enough."""

Backend = Annotated[str, one_of("backend", BACKENDS)]

AXES = ("variants", "depths", "backends", "seeds")
"""What can be cut; without its s the name of an axis in a cell and in an exclusion."""

MAX_CELLS = 20_000
"""The most cells of a config, excluded ones too: a workflow of so many takes minutes to plan."""

MAX_DEPTH = 10_000
MAX_BATCH = 1_000_000
MAX_PARAMETERS = 10**10
"""The most numbers that a network may have: with AdamW's they fill 160 GB."""

MAX_FLOPS = 10**16
"""The most operations of a forward pass: minutes on the fastest device there is."""

TAKEN = frozenset(
    {
        # Rules of the workflow, as a study is one too; and folders beside those of studies.
        "all", "bench", "claims", "data", "figures", "page", "paper", "replay", "report", "reports",
        "resolve", "tables", "train", "verify",
        "cells", "overview",
    }
)  # fmt: skip
"""Names that no study can have."""

Depth = Annotated[Positive, Field(le=MAX_DEPTH)]
BatchSize = Annotated[Positive, Field(le=MAX_BATCH)]


def _labelled(value: object) -> object:
    """A variant is written as a name, or as `label: settings`."""
    if isinstance(value, str):
        return {value: value}
    if isinstance(value, Mapping) and len(value) == 1:
        return value
    raise ValueError("must be a name, or one label with its settings")


ONE_SIZE = f"{ALTERNATIVE}one"
BY_DEPTH, BY_VARIANT = f"{ALTERNATIVE}by depth", f"{ALTERNATIVE}by variant"
A_NAME, SETTINGS = f"{ALTERNATIVE}name", f"{ALTERNATIVE}settings"


def _with_written_keys(value: Any) -> Any:  # noqa: ANN401, whatever a connection is given
    """The keys `on` and `off` of a start as they are written: YAML reads them as flags."""
    if not isinstance(value, Mapping):
        return value
    return {as_written(key, ("on", "off")): _with_written_keys(part) for key, part in value.items()}


NameOrSettings = Annotated[
    Annotated[str, Tag(A_NAME)] | Annotated[dict[str, Any], Tag(SETTINGS)],
    Discriminator(lambda value: SETTINGS if isinstance(value, Mapping) else A_NAME),
    BeforeValidator(_with_written_keys),
]
Pair = Annotated[list[Label], Field(min_length=2, max_length=2)]
VariantEntry = Annotated[dict[Label, NameOrSettings], BeforeValidator(_labelled)]


def _in_words(recipe: Recipe) -> str:
    return ", ".join(f"{name} {value}" for name, value in recipe.model_dump().items())


def _split(value: str | Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A variant's connection, and what it has of its own beside that."""
    if isinstance(value, str):
        return value, {}
    own = {key: value[key] for key in Training.model_fields if key in value}
    return {key: part for key, part in value.items() if key not in own}, own


def _unique_labels(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    distinct([label for entry in entries for label in entry])
    return entries


def _several(value: object) -> object:
    """One value, or a list of them; nothing is none."""
    if value is None:
        return []
    return value if isinstance(value, list | tuple) else [value]


class Training(Section):
    """What a variant may have of its own beside its connection, laid over the study's."""

    recipe: NameOrSettings = Field({}, description="another recipe's name, or settings that differ")
    optimizer: dict[str, Any] = Field({}, description="settings that differ")


class Exclusion(Section):
    """Combinations of axis values that a study leaves out; an absent axis matches all.

    Each axis has one value or a list.
    """

    depth: Annotated[tuple[Positive, ...], BeforeValidator(_several)] = ()
    variant: Annotated[tuple[Label, ...], BeforeValidator(_several)] = ()
    backend: Annotated[tuple[Backend, ...], BeforeValidator(_several)] = ()
    seed: Annotated[tuple[NonNegative, ...], BeforeValidator(_several)] = ()

    @model_validator(mode="after")
    def _names_an_axis(self) -> Exclusion:
        if not self.named:
            raise ValueError("must name at least one of depth, variant, backend, seed")
        return self

    @property
    def named(self) -> dict[str, tuple[Any, ...]]:
        """The values that it names, by axis."""
        return {axis: values for axis, values in self.model_dump().items() if values}


class Contrast(Section):
    """A question, and the variants that answer it: each one set against another."""

    asks: Text
    pairs: Annotated[list[Pair], Field(min_length=1)]


class Study(TaskSection):
    """One experiment: what is trained, by which recipe, over which axes, for how long."""

    description: Text = Field("", description="one sentence for the report")
    recipe: AnyRecipe = Field(description="the name of a recipe, or its settings")
    variants: Annotated[list[VariantEntry], AfterValidator(_unique_labels)] = Field(
        description="names of connections, or label: {connection: name, setting: value}; the "
        "settings may have recipe and optimizer, laid over the study's"
    )
    streams: Positive = Field(4, description="S, residual streams of the variants that have them")
    depths: Annotated[list[Depth], Unique]
    backends: Annotated[list[Backend], Unique]
    seeds: Annotated[list[NonNegative], Unique]
    exclude: tuple[Exclusion, ...] = ()
    steps: Positive
    batch_size: Annotated[
        Annotated[BatchSize, Tag(ONE_SIZE)] | Annotated[dict[Depth, BatchSize], Tag(BY_DEPTH)],
        Discriminator(lambda value: BY_DEPTH if isinstance(value, Mapping) else ONE_SIZE),
    ] = Field(description="B: one number, or one for each depth, as in {12: 32, 24: 24}")
    accumulate: Annotated[
        Annotated[Positive, Tag(ONE_SIZE)] | Annotated[dict[Label, Positive], Tag(BY_VARIANT)],
        Discriminator(lambda value: BY_VARIANT if isinstance(value, Mapping) else ONE_SIZE),
    ] = Field(
        1,
        description="batches whose gradients are averaged into one step: one number, or some "
        "variants' own, as in {v2: 4}",
    )
    evaluate_every: Annotated[Positive | None, Nullable] = Field(
        None, description="steps from one evaluation to the next; null: after the last alone"
    )
    optimizer: Optimizer
    weights: Flag = Field(False, description="keep the last parameters of every run")
    contrasts: tuple[Contrast, ...] = Field(
        (), description="questions, each with the variants to compare, seed by seed"
    )

    @model_validator(mode="after")
    def _contrasts_name_variants(self) -> Study:
        for i, contrast in enumerate(self.contrasts):
            for label in itertools.chain(*contrast.pairs):
                if label not in self.labels:
                    problem = unknown("variant", label, self.labels)
                    raise ValueError(f"contrasts.{i}.pairs: {problem}")
        return self

    @model_validator(mode="after")
    def _every_depth_has_a_batch_size(self) -> Study:
        for depth in self.depths:
            self.batch_size_at(depth)
        return self

    @model_validator(mode="after")
    def _variants_have_recipes(self) -> Study:
        for label in self._own:
            self.recipe_of(label)
        return self

    @model_validator(mode="after")
    def _warms_up_within_its_steps(self) -> Study:
        for warmup_steps in {self.optimizer_of(label).warmup_steps for label in self.labels}:
            if warmup_steps >= self.steps:
                raise ValueError(
                    f"optimizer.warmup_steps is {warmup_steps} of {self.steps} steps; it must be "
                    "below steps"
                )
        return self

    @model_validator(mode="after")
    def _accumulates_for_variants(self) -> Study:
        named = self.accumulate if isinstance(self.accumulate, dict) else {}
        for label in named:
            if label not in self.labels:
                raise ValueError(f"accumulate: {unknown('variant', label, self.labels)}")
        return self

    @model_validator(mode="after")
    def _evaluates_within_its_steps(self) -> Study:
        every = self.evaluate_every
        if every is not None and every > self.steps:
            raise ValueError(
                f"evaluate_every is {every} of {self.steps} steps; it must not be above steps"
            )
        return self

    def values(self, axis: str) -> list[Any]:
        """What the study lists on one of AXES."""
        return self.labels if axis == "variants" else getattr(self, axis)

    def leaves_out(self, cell: Cell) -> bool:
        """Whether an exclusion has the cell's value on every axis that it names."""
        return any(
            tuple(getattr(cell, axis) for axis in axes) in combinations
            for axes, combinations in self._left_out.items()
        )

    @cached_property
    def _left_out(self) -> dict[tuple[str, ...], set[tuple[Any, ...]]]:
        """The exclusions' values by the axes that they name: a look-up for each cell."""
        found: dict[tuple[str, ...], set[tuple[Any, ...]]] = {}
        for exclusion in self.exclude:
            named = exclusion.named
            found.setdefault(tuple(named), set()).update(itertools.product(*named.values()))
        return found

    @property
    def labels(self) -> list[str]:
        """The variants' labels, in order."""
        return list(self.connections)

    @cached_property
    def _parts(self) -> dict[str, tuple[Any, dict[str, Any]]]:
        """Each variant's connection, and what it has of its own beside that, by label, in order."""
        return {label: _split(value) for entry in self.variants for label, value in entry.items()}

    @cached_property
    def connections(self) -> dict[str, Any]:
        """Name or settings of each variant's connection, by the variant's label, in order."""
        return {label: connection for label, (connection, _) in self._parts.items()}

    @cached_property
    def _own(self) -> dict[str, Training]:
        """What variants have of their own, by label; those that have nothing are absent."""
        return {
            label: checked(Training, own, f"variants.{label}")
            for label, (_, own) in self._parts.items()
            if own
        }

    def recipe_of(self, variant: str) -> Recipe:
        """The recipe that a variant is trained by. Raises ConfigError."""
        if variant not in self._own:
            return self.recipe_settings
        own = self._own[variant].recipe
        if isinstance(own, str):
            return RECIPES.find("recipe", own)
        settings = overlaid(self.recipe_settings.model_dump(), own)
        return checked(Recipe, settings, f"variants.{variant}.recipe")

    def optimizer_of(self, variant: str) -> Optimizer:
        """The optimiser of a variant. Raises ConfigError."""
        if variant not in self._own:
            return self.optimizer
        settings = overlaid(self.optimizer.model_dump(), self._own[variant].optimizer)
        return checked(Optimizer, settings, f"variants.{variant}.optimizer")

    @property
    def recipe_name(self) -> str:
        """The recipe's name, or its settings in words."""
        return self.recipe if isinstance(self.recipe, str) else _in_words(self.recipe)

    def recipe_name_of(self, variant: str) -> str:
        """Likewise, of a variant: that of a recipe with the same settings, if there is one."""
        recipe = self.recipe_of(variant)
        if recipe == self.recipe_settings:
            return self.recipe_name
        return next((name for name, known in RECIPES.items() if known == recipe), _in_words(recipe))

    def connection_name(self, variant: str) -> str:
        """The name of the connection that a variant is, or is made of; its label without one."""
        value = self.connections.get(variant, variant)
        return value if isinstance(value, str) else str(value.get("connection", variant))

    @property
    def recipe_settings(self) -> Recipe:
        """The recipe itself."""
        return RECIPES[self.recipe] if isinstance(self.recipe, str) else self.recipe

    @property
    def dataset(self) -> str | None:
        """The data set that it needs; None without one."""
        return tasks.load(self.task).dataset(self.model)

    @property
    def figures(self) -> str:
        """The family of its figures: for several rates, for contrasts, or its task's."""
        if len({self.optimizer_of(label).lr for label in self.labels}) > 1:
            return "rates"
        return "contrasts" if self.contrasts else tasks.presentation(self.task).figures

    @property
    def report(self) -> str:
        """The template of its part of the report, likewise."""
        return "contrasts" if self.contrasts else tasks.presentation(self.task).report

    def batches_of(self, variant: str) -> int:
        """How many make a step of a variant."""
        if isinstance(self.accumulate, dict):
            return self.accumulate.get(variant, 1)
        return self.accumulate

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
    mlx_blas: Annotated[Literal["auto", "off"], among("auto", "off")] = Field(
        "auto", description="whether MLX on Linux takes matrix products from a faster library"
    )
    preload: Flag = Field(
        True, description="whether local jobs of one thread on Linux share a loaded framework"
    )
    data: Folder = Field("data", description="folder for data sets")
    threads: Positive = Field(1, description="CPU threads of a cell")
    checkpoint_seconds: Annotated[Number, Field(gt=0)] = Field(
        30.0, description="a killed training loses at most so many seconds"
    )
    checkpoint_steps: Annotated[Positive | None, Nullable] = Field(
        None, description="likewise, in steps"
    )
    mem_mb: Positive = Field(2000, description="memory of a job, MB")
    runtime: Positive = Field(60, description="time limit of a job, minutes")
    gpu: NonNegative = Field(0, description="GPUs of a job")


MAX_CUT_NAME = 100
"""The longest name of a cut's folder, before a hash stands for the rest."""


class Config(Section):
    """The whole of config.yaml."""

    results: Folder = Field("results", description="folder for everything that is computed")
    reference: Annotated[Folder | None, Nullable] = Field(
        None, description="folder of a kept result, whose verdicts are shown before those made here"
    )
    train: Flag = Field(
        True, description="false: nothing is trained here, and only imported runs count"
    )
    connections: dict[Label, NameOrSettings] = Field(
        {}, description="connections of your own, by name: settings over those of another"
    )
    studies: Annotated[dict[Text, Study], Field(min_length=1)]
    variants: Annotated[Annotated[list[Label], Unique] | None, Nullable] = Field(
        None, description="keep only these variants, in every study"
    )
    depths: Annotated[Annotated[list[Positive], Unique] | None, Nullable] = Field(
        None, description="likewise"
    )
    backends: Annotated[Annotated[list[Backend], Unique] | None, Nullable] = Field(
        None, description="likewise"
    )
    seeds: Annotated[Annotated[list[NonNegative], Unique] | None, Nullable] = Field(
        None, description="likewise"
    )
    compute: Compute = Compute()
    assume_backends: Flag = Field(
        False, description="plan for all backends, installed here or not (the jobs run elsewhere)"
    )

    @model_validator(mode="after")
    def _names_make_folders(self) -> Config:
        for name in self.studies:
            if not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", name):
                raise ValueError(
                    f"study name {shown(name)} must be lower-case letters, digits and hyphens"
                )
            if name in TAKEN:
                raise ValueError(f"study name {name!r} is taken by the workflow; use another")
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

    def resolved(self) -> dict[str, Any]:
        """All that results depend on, as data: not where or how jobs compute."""
        return self.model_dump(mode="json", exclude={"compute", "assume_backends"})

    def check_trains(self) -> None:
        """Raise ConfigError if nothing is to be trained here."""
        if not self.train:
            raise ConfigError("the config says train: false, so no cell is trained here")

    def check(self, source: str) -> None:
        """What no section can check alone. Raises ConfigError, one line per problem."""
        # Each may rely on what those before have found to be right.
        for find in (self._misnamed, self._too_many, self._unconnected, self._too_large):
            problems = lines_of(find(source))
            if problems:
                raise ConfigError(problems)
        if not self.cells():
            raise ConfigError(f"{source}: no cells: the cut axes and the exclusions leave none")

    def _misnamed(self, source: str) -> Iterator[str]:
        """Values that are cut or excluded and that no study has."""
        named = [(axis, "", value) for axis, values in self.cut.items() for value in values]
        named += [
            (f"{axis}s", f"studies.{name}.exclude.{i}.", value)
            for name, study in self.studies.items()
            for i, exclusion in enumerate(study.exclude)
            for axis, values in exclusion.named.items()
            for value in values
        ]
        known = {axis: {v for s in self.studies.values() for v in s.values(axis)} for axis in AXES}
        for axis, place, value in named:
            if value not in known[axis]:
                kind = axis.removesuffix("s")
                problem = unknown(kind, value, sorted(known[axis]))
                yield f"{source}: {place}{kind if place else axis}: {problem}; no study has it"

    def _too_many(self, source: str) -> Iterator[str]:
        """A grid that no workflow can plan."""
        cells = sum(math.prod(map(len, self._axes(study))) for study in self.studies.values())
        if cells > MAX_CELLS:
            yield f"{source}: {cells} cells are more than {MAX_CELLS}; keep fewer {', '.join(AXES)}"

    def _unconnected(self, source: str) -> Iterator[str]:
        """Variants that stand for no connection."""
        for name, study in self.studies.items():
            for label in study.labels:
                try:
                    self.connection(name, label, source)
                except ConfigError as error:
                    yield from str(error).splitlines()

    def _too_large(self, source: str) -> Iterator[str]:
        """Batches that the data set cannot fill, and networks that no machine can hold."""
        for name, study in self.studies.items():
            dataset, (_, depths, *_) = study.dataset, self._axes(study)
            examples = datasets.training_examples(dataset) if dataset else math.inf
            largest = max(map(study.batch_size_at, depths), default=0)
            if largest > examples:
                yield (
                    f"{source}: studies.{name}.batch_size: {largest} is more than the {examples} "
                    f"examples of {dataset}"
                )
            for depth, label, parameters, flops in self._sizes(name):
                if parameters > MAX_PARAMETERS or flops > MAX_FLOPS:
                    yield (
                        f"{source}: studies.{name}: {label} at {depth} layers has {parameters:.1e} "
                        f"parameters, and a batch takes {flops:.1e} operations; at most "
                        f"{MAX_PARAMETERS:.0e} and {MAX_FLOPS:.0e} can be planned"
                    )
                    break  # a size of the study is that of all its networks

    def _sizes(self, name: str) -> Iterator[tuple[int, str, int, float]]:
        """(depth, variant, parameters, operations of a forward pass) of a study's networks."""
        study = self.studies[name]
        labels, depths, *_ = self._axes(study)
        for depth, label in itertools.product(depths, labels):
            network = tasks.load(study.task).network(
                study.model, depth, study.recipe_of(label), self.connection(name, label)
            )
            shapes = (parameter.shape for parameter in network.parameters().values())
            flops = network.forward_flops(study.batch_size_at(depth))
            yield depth, label, sum(map(math.prod, shapes)), flops

    def connection(self, study_name: str, variant: str, source: str = "config") -> Scheme:
        """What a variant of a study connects its layers with.

        A variant that the study does not list must be a connection's name. Raises ConfigError.
        """
        key = (study_name, variant)
        if key not in self._resolved:
            study = self.studies[study_name]
            published = tasks.load(study.task).Network.names
            general = {name: row for name, row in SCHEMES.items() if name not in published}
            names = ChainMap(self.connections, general, published)
            place = ("studies", study_name, "variants", variant)
            value = study.connections.get(variant, variant)
            self._resolved[key] = resolve(value, names, study.streams, source, place)
        return self._resolved[key]

    def plain(self, study_name: str) -> str | None:
        """The first variant of a study that is a plain residual network; None without one."""
        labels = self.studies[study_name].labels
        plain = (label for label in labels if self.connection(study_name, label).kind == "plain")
        return next(plain, None)

    @cached_property
    def _resolved(self) -> dict[tuple[str, str], Scheme]:
        """Schemes by (study, variant): thousands of cells share a few."""
        return {}

    def cells(self) -> list[Cell]:
        """Every cell that the studies, their exclusions and the cut axes leave, in order."""
        grid = (
            Cell(name, depth, variant, backend, seed)
            for name, study in self.studies.items()
            for variants, depths, backends, seeds in [self._axes(study)]
            for depth, variant, backend, seed in itertools.product(
                depths, variants, backends, seeds
            )
        )
        return [cell for cell in grid if not self.studies[cell.study].leaves_out(cell)]

    def _axes(self, study: Study) -> list[list[Any]]:
        """The values of AXES that a study keeps."""
        return [_kept(study.values(axis), self.cut.get(axis)) for axis in AXES]

    def spec(self, cell: Cell) -> Spec:
        """Every number that the cell's training uses. Raises ConfigError."""
        study = self.studies[cell.study]
        numbers = {
            **asdict(cell),
            "task": study.task,
            "recipe": study.recipe_of(cell.variant),
            "connection": self.connection(cell.study, cell.variant),
            "steps": study.steps,
            "batch_size": study.batch_size_at(cell.depth),
            "model": study.model,
            "accumulate": study.batches_of(cell.variant),
            "evaluate_every": study.evaluate_every,
            "optimizer": study.optimizer_of(cell.variant),
            "weights": study.weights,
        }
        return checked(Spec, numbers, str(cell))


def _kept(values: Sequence[Any], cut: Collection[Any] | None) -> list[Any]:
    if cut is None:
        return list(values)
    kept = set(cut)
    return [value for value in values if value in kept]
