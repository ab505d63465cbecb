"""config.yaml as validated models, and its expansion into cells.

Whatever a user can get wrong in a config is refused here, in one line with the study, the key and
the fix.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import ChainMap, Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from functools import cached_property
from operator import not_
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fathom import datasets, tasks
from fathom.models.connections.schemes import SCHEMES, Scheme, name_behind, resolve
from fathom.models.recipes import RECIPES, AnyRecipe, Recipe
from fathom.settings import (
    NO_BOOL,
    NULLS,
    QUOTED,
    ConfigError,
    File,
    Flag,
    Folder,
    Label,
    NonNegative,
    Nullable,
    Number,
    OneLine,
    Positive,
    Settings,
    Text,
    Unique,
    deep_merge,
    distinct,
    either,
    join_problems,
    join_values,
    one_of,
    short_repr,
    unknown,
    validate,
)
from fathom.spec import Backend, Cell, Depth, Optimizer, Spec

AXES = ("variants", "depths", "backends", "seeds")
"""The axes of a study. Without its s, each is a field of a cell and of an exclusion."""

MAX_CELLS = 20_000
"""The most cells of a config, excluded ones included: planning so many takes minutes."""

CONTROL_DEPTHS = 3
"""The fewest depths of the plain network that make a curve to read depths from."""

MAX_BATCH = 1_000_000
MAX_PARAMETERS = 10**10
"""The most parameters of a network: with AdamW's moments they fill 160 GB."""

MAX_FLOPS = 10**16
"""The most operations of a forward pass: minutes on the fastest device."""

RESERVED_NAMES = frozenset(
    {
        # Rules of the workflow, because a study's name is a target too, and folders of results.
        "all", "claims", "data", "figures", "page", "paper", "replay", "report", "reports",
        "resolve", "tables", "train", "verify",
        "cells", "overview",
    }
)  # fmt: skip
"""Names that no study can have."""


def _check_study_name(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", name):
        raise ValueError("the name of a study must be lower-case letters, digits and hyphens")
    if name in RESERVED_NAMES:
        raise ValueError("this name is taken by the workflow; use another")
    return name


def _parse_words(value: Any) -> Any:  # noqa: ANN401, a connection as it was written
    """The keys `on` and `off` of an initial value: YAML reads them as flags."""
    if not isinstance(value, Mapping):
        return value
    return {_parse_word(key): _parse_words(part) for key, part in value.items()}


def _parse_word(value: object) -> object:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _parse_variant(value: object) -> object:
    """A variant is written as a name, or as `label: settings`."""
    if isinstance(value, str):
        return {value: value}
    if isinstance(value, Mapping) and len(value) == 1:
        return value
    if isinstance(value, bool):
        raise ValueError(f"must be text, but YAML reads {value}; put it in quotes")
    raise ValueError("must be a name, or one label with its settings")


def _drop_null(value: object) -> object:
    """An overlay drops a study by giving it as null."""
    if not isinstance(value, Mapping):
        return value
    return {name: study for name, study in value.items() if study not in NULLS}


def _parse_values(value: object) -> object:
    """One value, or a list of them; null is an empty list."""
    if value is None:
        return []
    return value if isinstance(value, list | tuple) else [value]


def _check_labels(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    distinct([label for entry in entries for label in entry])
    return entries


def _in_words(settings: Mapping[str, Any]) -> str:
    return join_values(f"{name} {value}" for name, value in settings.items())


BatchSize = Annotated[int, Field(gt=0, le=MAX_BATCH), NO_BOOL]
StudyName = Annotated[Text, AfterValidator(_check_study_name)]
NameOrSettings = Annotated[either(str, dict[str, Any]), BeforeValidator(_parse_words)]
VariantEntry = Annotated[dict[Label, NameOrSettings], BeforeValidator(_parse_variant)]
PartName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$"), QUOTED]
Factor = Annotated[Number, Field(ge=0.01, lt=10)]
Named = Annotated[str, Field(pattern=r"^[a-z0-9_-]+$", max_length=64), QUOTED]
Pair = Annotated[list[Label], Field(min_length=2, max_length=2)]
Values = BeforeValidator(_parse_values)


class VariantSettings(Settings):
    """What a variant may change beside its connection, laid over the study's settings."""

    recipe: NameOrSettings = Field({})
    optimizer: dict[str, Any] = Field({})
    model: dict[str, Any] = Field({})
    steps: Positive | None = None


class Exclusion(Settings):
    """Combinations of axis values that a study leaves out; an axis without a value matches all."""

    depth: Annotated[tuple[Positive, ...], Values] = Field((), description="one depth or a list")
    variant: Annotated[tuple[Label, ...], Values] = Field((), description="one variant or a list")
    backend: Annotated[tuple[Backend, ...], Values] = Field((), description="one backend or a list")
    seed: Annotated[tuple[NonNegative, ...], Values] = Field((), description="one seed or a list")

    @model_validator(mode="after")
    def _names_an_axis(self) -> Exclusion:
        if not self.named:
            raise ValueError("must name at least one of depth, variant, backend, seed")
        return self

    @cached_property
    def named(self) -> dict[str, tuple[Any, ...]]:
        """The excluded values by axis, of the axes it names."""
        return {axis: values for axis, values in self.model_dump().items() if values}


class Contrast(Settings):
    """A question, and the pairs of variants that answer it."""

    question: OneLine = Field(description="as the report prints it")
    pairs: Annotated[list[Pair], Field(min_length=1)] = Field(
        description="[variant, against]: each pair is compared seed by seed"
    )


class Study(Settings):
    """One experiment: what is trained, by which recipe, over which axes, for how long."""

    task: Annotated[str, one_of("task", tasks.TASKS)] = Field(description="what is learned")
    model: SerializeAsAny[Settings] = Field(description="settings of the task's network and data")
    description: OneLine = Field("", description="one sentence for the report")
    recipe: AnyRecipe = Field(description="the name of a recipe, or its settings")
    variants: Annotated[list[VariantEntry], AfterValidator(_check_labels)] = Field(
        description="names of connections, or label: {connection: name, setting: value}; recipe, "
        "optimizer, model and steps among the settings are laid over the study's own"
    )
    extra_variants: tuple[VariantEntry, ...] = Field(
        (),
        exclude_if=not_,
        description="further variants, written as `variants` are: an overlay adds its own to a "
        "study, and each is compared with the study's plain network",
    )
    streams: Positive = Field(4, description="S, residual streams of variants that have streams")
    depths: Annotated[list[Depth], Unique] = Field(description="L, layers")
    plain_depths: tuple[Depth, ...] = Field(
        (),
        exclude_if=not_,
        description="further depths, of the first plain network alone: a scale to read depths by",
    )
    backends: Annotated[list[Backend], Unique] = Field(description="frameworks to train on")
    seeds: Annotated[list[NonNegative], Unique] = Field(
        description="of initial parameters and batches; three or more give intervals"
    )
    exclude: tuple[Exclusion, ...] = Field((), description="combinations to leave out")
    steps: Positive = Field(description="optimiser steps of a run")
    batch_size: either(BatchSize, dict[Depth, BatchSize]) = Field(
        description="B: one number, or one for each depth, as in {12: 32, 24: 24}"
    )
    accumulate: either(Positive, dict[Label, Positive]) = Field(
        1,
        description="batches whose gradients are averaged into one step: one number for all "
        "variants, or numbers for some, as in {v2: 4}",
    )
    evaluate_every: Annotated[Positive | None, Nullable] = Field(
        None, description="steps from one evaluation to the next; null: only after the last"
    )
    optimizer: Optimizer
    weights: Flag = Field(False, description="keep the trained parameters of every run")
    leave_out_blocks: Flag = Field(
        False,
        exclude_if=not_,
        description="after the last step measure the score without each block: takes as many "
        "evaluations as there are layers",
    )
    contrasts: tuple[Contrast, ...] = Field(
        (), description="questions, each with the pairs of variants to compare"
    )
    ladder: dict[Label, Annotated[list[Factor], Unique]] = Field(
        {},
        exclude_if=not_,
        description="factors of its steps at which a plain variant is trained too, each with its "
        "whole schedule, as in {baseline: [0.5, 2]}: a scale to read step multipliers by",
    )
    part: Annotated[PartName | None, Nullable] = Field(
        None,
        description="name of this study's own part of the report, report/templates/parts/NAME.j2",
    )
    score: tasks.JUDGED_BY = Field(
        "held_out",
        description="what results are judged by: the task's score on held-out data, or the mean "
        "training loss over the last tenth of the steps, for runs recorded without that score",
    )

    @field_validator("model", mode="plain")
    @classmethod
    def _is_its_tasks(cls, value: object, info: ValidationInfo) -> object:
        """The task validates it. An unknown task has its own error."""
        task = info.data.get("task")
        return value if task is None else tasks.load(task).Model.model_validate(value)

    @model_validator(mode="after")
    def _can_be_trained(self) -> Study:
        listed = [label for entry in (*self.variants, *self.extra_variants) for label in entry]
        for label in self.extra_labels:
            if listed.count(label) > 1:
                raise ValueError(f"extra_variants: {label} is there already; give it another label")
        named = {
            f"contrasts.{i}.pairs": itertools.chain(*contrast.pairs)
            for i, contrast in enumerate(self.contrasts)
        }
        named["accumulate"] = self.accumulate if isinstance(self.accumulate, dict) else ()
        named["ladder"] = self.ladder
        for key, labels in named.items():
            for label in labels:
                if label not in self.labels:
                    raise ValueError(f"{key}: {unknown('variant', label, self.labels)}")
        listed = [label for entry in self.variants for label in entry]
        rungs = [rung for base in self.ladder for rung in self.rungs(base).values() if rung != base]
        if twice := [label for label, n in Counter([*listed, *rungs]).items() if n > 1]:
            raise ValueError(
                f"ladder: needs the label {twice[0]} for one of its trainings, which is taken; "
                "rename that variant, or take factors further apart"
            )
        for depth in self.values("depths"):
            self.batch_size_at(depth)
        for label in self.labels:
            study = self.of(label)
            _ = study.recipe_settings  # refused if there is no such recipe
            if study.dataset != self.dataset:
                raise ValueError(
                    f"variants.{label}.model: needs other data than the study; make it a study of "
                    "its own"
                )
            key = f"variants.{label}." if self._own(label).model_fields_set else ""
            if tasks.load(study.task).classes(study.model) == 1:
                raise ValueError(
                    f"{key}model: has 1 class to predict, so chance is a perfect score; make vocab "
                    "2 or more"
                )
            if study.optimizer.warmup_steps >= study.steps:
                raise ValueError(
                    f"{key}optimizer.warmup_steps is {study.optimizer.warmup_steps} of "
                    f"{study.steps} steps; it must be below steps"
                )
            if (self.evaluate_every or 0) > study.steps:
                raise ValueError(
                    f"{key}evaluate_every is {self.evaluate_every} of {study.steps} steps; it must "
                    "not be above steps"
                )
        return self

    def values(self, axis: str) -> list[Any]:
        """The study's values on one of AXES."""
        if axis == "depths":
            return list(dict.fromkeys([*self.plain_depths, *self.depths]))
        return self.labels if axis == "variants" else getattr(self, axis)

    def excludes(self, cell: Cell) -> bool:
        """Whether an exclusion has the cell's value on every axis that it names."""
        return any(
            all(getattr(cell, axis) in values for axis, values in exclusion.named.items())
            for exclusion in self.exclude
        )

    @property
    def labels(self) -> list[str]:
        """The variants' labels, in order."""
        return list(self.connections)

    @property
    def extra_labels(self) -> list[str]:
        """The labels of `extra_variants`, in order."""
        return [label for entry in self.extra_variants for label in entry]

    @cached_property
    def connections(self) -> dict[str, Any]:
        """The name or settings of each variant's connection, by label, in order."""
        return {label: connection for label, (connection, _) in self._parsed_variants.items()}

    @cached_property
    def _parsed_variants(self) -> dict[str, tuple[Any, VariantSettings]]:
        """Each variant's connection and what it changes beside that, by label, in order."""
        found = {}
        entries = [*self.variants, *self.extra_variants]
        for label, value in itertools.chain(*(entry.items() for entry in entries)):
            given = value if isinstance(value, Mapping) else {"connection": value}
            own = {key: given[key] for key in VariantSettings.model_fields if key in given}
            rest = {key: setting for key, setting in given.items() if key not in own}
            connection = rest if isinstance(value, Mapping) else value
            found[label] = connection, validate(VariantSettings, own, place=("variants", label))
        for base in [label for label in found if label in self.ladder]:
            connection, own = found[base]
            for factor, label in self.rungs(base).items():
                if factor != 1:
                    steps = max(1, round(factor * (own.steps or self.steps)))
                    found[label] = connection, own.model_copy(update={"steps": steps})
        return found

    def rungs(self, base: str) -> dict[float, str]:
        """Labels of a variant's ladder by the factor of its steps, ascending; 1 is the variant."""
        factors = sorted({1.0, *self.ladder.get(base, ())})
        return {f: base if f == 1 else f"{base}_x{round(100 * f):03d}" for f in factors}

    def trains_alike(self, variant: str, other: str) -> bool:
        """Whether two variants may differ in connection and model alone."""
        one, another = ({**self.changes(label), "model": None} for label in (variant, other))
        return one == another

    def _own(self, variant: str) -> VariantSettings:
        """What a variant changes; nothing if the study does not list it."""
        return self._parsed_variants.get(variant, (None, VariantSettings()))[1]

    def of(self, variant: str) -> Study:
        """The study with what a variant changes. Raises ConfigError."""
        own = self._own(variant)
        changed: dict[str, Any] = {"steps": own.steps or self.steps}
        if isinstance(self.accumulate, dict):
            changed["accumulate"] = self.accumulate.get(variant, 1)
        for key in ("recipe", "optimizer", "model"):
            changes = getattr(own, key)
            if isinstance(changes, str):  # a recipe's name
                changed[key] = changes
            elif changes:
                settings = self.recipe_settings if key == "recipe" else getattr(self, key)
                merged = deep_merge(settings.model_dump(exclude_unset=True), changes)
                changed[key] = validate(type(settings), merged, place=("variants", variant, key))
        return self.model_copy(update=changed)

    @property
    def size_changes(self) -> dict[str, str]:
        """What variants change of model and steps, in words, by label; others are absent."""
        found = {}
        for label in self.labels:
            own = self._own(label)
            if changes := own.model | ({"steps": own.steps} if own.steps else {}):
                found[label] = _in_words(changes)
        return found

    def changes(self, variant: str) -> dict[str, Any]:
        """What a variant changes of the study's settings beside its connection, as data."""
        own = self._own(variant).model_dump(exclude_unset=True)
        is_own = isinstance(self.accumulate, dict) and variant in self.accumulate
        return own | ({"accumulate": self.accumulate[variant]} if is_own else {})

    def changes_plain(self, variant: str) -> bool:
        """Whether a variant changes a setting under which the plain network is another one."""
        changes = self.changes(variant)
        model = changes.pop("model", {}).keys() - tasks.load(self.task).Model.of_connections
        return bool(changes or model)

    @property
    def recipe_name(self) -> str:
        """The name of the recipe that has these settings, or the settings in words."""
        recipe = self.recipe_settings
        names = (name for name, known in RECIPES.items() if known == recipe)
        return next(names, _in_words(recipe.model_dump()))

    def connection_name(self, variant: str) -> str:
        """The name of a variant's connection, or of the one it is based on; else its label."""
        value = self.connections.get(variant, variant)
        return value if isinstance(value, str) else str(value.get("connection", variant))

    @property
    def recipe_settings(self) -> Recipe:
        """The recipe's settings. Raises ConfigError."""
        return RECIPES.find("recipe", self.recipe) if isinstance(self.recipe, str) else self.recipe

    @property
    def dataset(self) -> str | None:
        """The name of the data set that it trains on; None if it needs none."""
        return tasks.load(self.task).dataset(self.model)

    def batch_size_at(self, depth: int) -> int:
        """B at the given depth. Raises ConfigError if the study does not say."""
        if not isinstance(self.batch_size, dict):
            return self.batch_size
        if depth not in self.batch_size:
            raise ConfigError(f"batch_size has no entry for depth {depth}; add one")
        return self.batch_size[depth]


DROP_NULL = BeforeValidator(
    _drop_null,
    json_schema_input_type=Annotated[dict[StudyName, Study | None], Field(min_length=1)],
)


class Compute(Settings):
    """How a training job computes and which resources it requests. Results do not depend on it."""

    device: Literal["auto", "cpu", "cuda", "mps", "gpu"] = Field(
        "auto", description="auto: the fastest here; cuda and mps are torch's, gpu is mlx's"
    )
    mlx_blas: Annotated[Literal["auto", "off"], BeforeValidator(_parse_word)] = Field(
        "auto", description="MLX on Linux: auto uses a faster BLAS library if there is one"
    )
    preload: Flag = Field(
        True, description="local jobs on Linux share a loaded framework, or what reports need"
    )
    data: Folder = Field("data", description="folder of data sets")
    threads: Annotated[int, Field(gt=0, le=4096), NO_BOOL] = Field(
        1, description="CPU threads of a training"
    )
    checkpoint_seconds: Annotated[Number, Field(gt=0)] = Field(
        30.0, description="seconds between checkpoints: the most that a killed training loses"
    )
    checkpoint_steps: Annotated[Positive | None, Nullable] = Field(
        None, description="steps between checkpoints; null: by time alone"
    )
    mem_mb: Positive = Field(2000, description="memory of a job, MB")
    runtime: Positive = Field(60, description="time limit of a job, minutes")
    gpu: NonNegative = Field(0, description="GPUs of a job")


def common_depth(depths: Iterable[int]) -> int:
    """The depth that occurs most, the deepest of several; 0 of none."""
    times = Counter(depths)
    return max(times, key=lambda depth: (times[depth], depth), default=0)


def kept(value: Any) -> Any:  # noqa: ANN401, types
    """The type of the values of an axis that a config keeps."""
    return Annotated[Annotated[list[value], Unique] | None, Nullable]


KEPT = "keep only these {}, in every study; null: all"

MAX_SUBSET_NAME = 100
"""The longest name of a subset's folder; of a longer one the rest becomes a hash."""


class Config(Settings):
    """The whole of config.yaml."""

    results: Folder = Field("results", description="folder of everything that is computed")
    reference: Annotated[Folder | None, Nullable] = Field(
        None, description="folder of a kept result, whose verdicts reports show first; null: none"
    )
    step_times: Annotated[File | None, Nullable] = Field(
        None,
        exclude_if=not_,
        description="table of `benchmarks/steps.py studies`, by which training times are compared; "
        "null: by the clocks of runs",
    )
    train: Flag = Field(True, description="false: train nothing; only imported runs count")
    connections: dict[Label, NameOrSettings] = Field(
        {}, description="connections of your own, by name: settings laid over another connection's"
    )
    labels: dict[Named, OneLine] = Field(
        {}, exclude_if=not_, description="what people read for the name of a variant or a study"
    )
    studies: Annotated[dict[StudyName, Study], Field(min_length=1), DROP_NULL] = Field(
        description="experiments, by name; in an overlay null drops one"
    )
    variants: kept(Label) = Field(None, description=KEPT.format("variants"))
    depths: kept(Positive) = Field(None, description=KEPT.format("depths"))
    backends: kept(Backend) = Field(None, description=KEPT.format("backends"))
    seeds: kept(NonNegative) = Field(None, description=KEPT.format("seeds"))
    compute: Compute = Compute()
    assume_backends: Flag = Field(
        False, description="plan for every backend, installed here or not: jobs run elsewhere"
    )

    @model_validator(mode="after")
    def _label_ladders(self) -> Config:
        """Labels of the trainings of ladders, as in 'plain, 2 × the steps'."""
        found = {
            rung: f"{self.labels.get(base, base)}, {factor:g} × the steps"
            for study in self.studies.values()
            for base in study.ladder
            for factor, rung in study.rungs(base).items()
            if rung != base
        }
        return self.model_copy(update={"labels": found | self.labels}) if found else self

    @property
    def subset(self) -> dict[str, list[Any]]:
        """The values kept, by axis, of the axes that keep only some; empty for the whole grid."""
        return {axis: values for axis in AXES if (values := getattr(self, axis)) is not None}

    @property
    def report_folder(self) -> str:
        """Folder of tables, figures and reports: `results`, or a folder inside it for a subset.

        Runs are in `results/runs` in both cases, so no cell is trained twice, and the report of a
        subset does not replace that of the whole grid.
        """
        if not self.subset:
            return self.results
        name = "+".join("-".join(map(str, [axis, *values])) for axis, values in self.subset.items())
        if len(name) > MAX_SUBSET_NAME:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            name = f"{name[:MAX_SUBSET_NAME]}-{digest}"
        return f"{self.results}/cuts/{name}"

    def resolved(self) -> dict[str, Any]:
        """Everything that results depend on, as data: without where and how jobs compute."""
        return self.model_dump(mode="json", exclude={"compute", "assume_backends"})

    def check_trains(self, studies: Collection[str] | None = None) -> None:
        """Raise ConfigError if these studies, or any, cannot be trained here. Reads no data."""
        if not self.train:
            raise ConfigError("the config says train: false, so no cell is trained here")
        chosen = {name: self.studies[name] for name in studies or self.studies}
        missing = {n: tasks.load(s.task).unavailable(s.model) for n, s in chosen.items()}
        problems = (f"studies.{name}.{why}" for name, why in missing.items() if why)
        if lines := join_problems(problems):
            raise ConfigError(lines)

    def check(self, source: str) -> None:
        """Check what no part of the config can alone. Raises ConfigError, one line per problem."""
        # Each of these relies on what the ones before have checked.
        for find in (
            self._misnamed,
            self._unconnected,
            self._unladdered,
            self._too_many,
            self._unfit,
            self._too_large,
        ):
            if problems := join_problems(find(source)):
                raise ConfigError(problems)

    def _misnamed(self, source: str) -> Iterator[str]:
        """Kept or excluded values that no study has."""
        named = [(axis, axis, value) for axis, values in self.subset.items() for value in values]
        named += [
            (f"{axis}s", f"studies.{name}.exclude.{i}.{axis}", value)
            for name, study in self.studies.items()
            for i, exclusion in enumerate(study.exclude)
            for axis, values in exclusion.named.items()
            for value in values
        ]
        known = {axis: {v for s in self.studies.values() for v in s.values(axis)} for axis in AXES}
        for axis, key, value in named:
            if value not in known[axis]:
                problem = unknown(axis.removesuffix("s"), value, sorted(known[axis]))
                yield f"{source}: {key}: {problem}; no study has it"

    def _too_many(self, source: str) -> Iterator[str]:
        """A grid that is too large to plan, or empty."""
        cells = sum(math.prod(map(len, self._axes(study))) for study in self.studies.values())
        if cells > MAX_CELLS:
            axes = join_values(AXES)
            yield f"{source}: {cells} cells are more than {MAX_CELLS}; keep fewer {axes}"
        elif not self.cells():
            yield f"{source}: no cells: the kept values and the exclusions leave none"

    def _unconnected(self, source: str) -> Iterator[str]:
        """Variants whose connection does not exist or has wrong settings."""
        for name, study in self.studies.items():
            for label in study.labels:
                try:
                    self.connection(name, label, source)
                except ConfigError as error:
                    yield from str(error).splitlines()

    def _unladdered(self, source: str) -> Iterator[str]:
        """Ladders of what is no plain network."""
        for name, study in self.studies.items():
            for label in study.ladder:
                if self.connection(name, label).kind != "plain":
                    yield (
                        f"{source}: studies.{name}.ladder: {label} is no plain network, by which "
                        "step multipliers are read; name one that is"
                    )

    def _unfit(self, source: str) -> Iterator[str]:
        """Variants whose connection the study's network cannot take."""
        for name, study in self.studies.items():
            for label in study.labels:
                own, scheme = study.of(label), self.connection(name, label)
                network = tasks.load(study.task).network(
                    own.model, study.depths[0], own.recipe_settings, scheme
                )
                try:
                    _ = network.connection
                except ConfigError as error:
                    yield f"{source}: studies.{name}.variants.{label}: {error}"

    def _too_large(self, source: str) -> Iterator[str]:
        """Batches that the data set cannot fill, and networks too large for any machine."""
        for name, study in self.studies.items():
            sizes = dict.fromkeys((cell.depth, cell.variant) for cell in self._grid(name))
            examples = datasets.training_examples(study.dataset) if study.dataset else math.inf
            largest = max((study.batch_size_at(depth) for depth, _ in sizes), default=0)
            if largest > examples:
                yield (
                    f"{source}: studies.{name}.batch_size: {largest} is more than the {examples} "
                    f"examples of {study.dataset}"
                )
            for depth, label in sizes:
                own, scheme = study.of(label), self.connection(name, label)
                network = tasks.load(study.task).network(
                    own.model, depth, own.recipe_settings, scheme
                )
                parameters = sum(math.prod(p.shape) for p in network.parameters().values())
                flops = network.forward_flops(study.batch_size_at(depth))
                if parameters > MAX_PARAMETERS or flops > MAX_FLOPS:
                    yield (
                        f"{source}: studies.{name}: {label} at {depth} layers has {parameters:.1e} "
                        f"parameters, and a batch takes {flops:.1e} operations; at most "
                        f"{MAX_PARAMETERS:.0e} and {MAX_FLOPS:.0e} can be planned"
                    )
                    break  # one line per study

    def connection(self, study_name: str, variant: str, source: str = "config") -> Scheme:
        """The connection of a study's variant. Raises ConfigError.

        A label that the study does not list must be the name of a connection.
        """
        key = (study_name, variant)
        if key not in self._resolved:
            study, names = self.studies[study_name], self._names(study_name)
            place = ("studies", study_name, "variants", variant)
            value = study.connections.get(variant, variant)
            self._resolved[key] = resolve(value, names, study.streams, source, place)
        return self._resolved[key]

    def same_work(self, study_name: str) -> dict[str, str]:
        """Of each variant of a study, the first whose steps are the same work.

        It may have another recipe, rate or number of steps, but not another network or batch.
        """
        study = self.studies[study_name]
        work = {
            label: (self.connection(study_name, label), of.model, of.accumulate)
            for label, of in ((label, study.of(label)) for label in study.labels)
        }
        return {label: next(n for n in work if work[n] == work[label]) for label in work}

    def scheme_name(self, study_name: str, variant: str) -> str:
        """The named scheme that a variant's settings are laid over; empty without one."""
        value = self.studies[study_name].connections[variant]
        return name_behind(value, self._names(study_name))

    def _names(self, study_name: str) -> Mapping[str, Any]:
        """What the name of a connection stands for in a study."""
        published = tasks.load(self.studies[study_name].task).Network.names
        general = {name: row for name, row in SCHEMES.items() if name not in published}
        return ChainMap(self.connections, general, published)

    def plain(self, study_name: str) -> str | None:
        """The first variant of a study that is a plain residual network; None without one."""
        labels = self.studies[study_name].labels
        plain = (label for label in labels if self.connection(study_name, label).kind == "plain")
        return next(plain, None)

    def depth_control(self, study_name: str) -> str | None:
        """The plain network of a study whose depths other variants are set beside, by its label.

        It is the first plain residual network among the variants that change nothing else of the
        study, if cells of it have CONTROL_DEPTHS depths or more; None without one, without another
        such variant, or where depths of the task do not compare.
        """
        study, depths = self.studies[study_name], defaultdict(set)
        if not tasks.load(study.task).depths_compare:
            return None
        for cell in self._grid(study_name):
            depths[cell.variant].add(cell.depth)
        alike = [label for label in depths if not study.changes_plain(label)]
        plain = (label for label in alike if self.connection(study_name, label).kind == "plain")
        control = next(plain, None)
        if control is None or len(alike) < 2 or len(depths[control]) < CONTROL_DEPTHS:
            return None
        return control

    @cached_property
    def _resolved(self) -> dict[tuple[str, str], Scheme]:
        """Schemes by (study, variant), each resolved once: thousands of cells share a few."""
        return {}

    def cells(self) -> list[Cell]:
        """The cells of all studies, without those excluded or not kept, in order."""
        return [cell for name in self.studies for cell in self._grid(name)]

    def _grid(self, name: str) -> Iterator[Cell]:
        """The cells of one study."""
        study, plain = self.studies[name], self.plain(name)
        variants, depths, backends, seeds = self._axes(study)
        for depth, variant, backend, seed in itertools.product(depths, variants, backends, seeds):
            cell = Cell(name, depth, variant, backend, seed)
            is_planned = depth in study.depths or variant == plain
            if is_planned and not study.excludes(cell):
                yield cell

    def select_cells(self, patterns: Sequence[str]) -> list[Cell]:
        """The cells whose path matches a pattern such as 'depth-mlx/48L/*'; all without patterns.

        Raises ConfigError, one line per pattern that matches none.
        """
        cells = self.cells()
        matches = {p: {cell for cell in cells if fnmatch(cell.path(), p)} for p in patterns}
        if idle := [pattern for pattern, found in matches.items() if not found]:
            form = "a pattern is like 'depth-mlx/48L/*'"
            raise ConfigError(
                join_problems(f"no cell matches {short_repr(p)}; {form}" for p in idle)
            )
        selected = set().union(*matches.values()) if patterns else set(cells)
        return [cell for cell in cells if cell in selected]

    def _axes(self, study: Study) -> list[list[Any]]:
        """The values on each of AXES that are kept of a study."""
        kept = self.subset
        return [
            [v for v in study.values(axis) if axis not in kept or v in kept[axis]] for axis in AXES
        ]

    def spec(self, cell: Cell) -> Spec:
        """Every number that the cell's training uses. Raises ConfigError."""
        study = self.studies[cell.study].of(cell.variant)
        numbers = {
            **asdict(cell),
            "task": study.task,
            "recipe": study.recipe_settings,
            "connection": self.connection(cell.study, cell.variant),
            "steps": study.steps,
            "batch_size": study.batch_size_at(cell.depth),
            "model": study.model,
            "accumulate": study.accumulate,
            "evaluate_every": study.evaluate_every,
            "optimizer": study.optimizer,
            "weights": study.weights,
            "leave_out_blocks": study.leave_out_blocks,
        }
        return validate(Spec, numbers, str(cell))
