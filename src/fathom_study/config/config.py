"""The whole of config.yaml, validated, and its expansion into cells and specs.

Errors of the user in a config are refused here, in `study.py` or in `entries.py`, each in one line
with the study, the key and the fix.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
from collections import ChainMap, Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from functools import cached_property
from operator import not_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from fathom.connections.module import ModuleConnection
from fathom.connections.schemes import SCHEMES, Scheme, name_behind, resolve
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
    Unique,
    join_problems,
    join_values,
    short_repr,
    unknown,
    validate,
)
from fathom_study import datasets, tasks
from fathom_study.config.entries import NameOrSettings, StudyName
from fathom_study.config.study import AXES, Study
from fathom_study.spec import Backend, Cell, Spec

if TYPE_CHECKING:
    from fathom_study.models.network import Network

MAX_CELLS = 20_000
"""Maximum number of cells of a config, with excluded ones: planning them takes minutes."""

CONTROL_DEPTHS = 3
"""Minimum number of depths of the plain network for a curve of effective depths."""


def _drop_null(value: object) -> object:
    """The studies without those that an overlay sets to null."""
    if not isinstance(value, Mapping):
        return value
    return {name: study for name, study in value.items() if study not in NULLS}


Named = Annotated[str, Field(pattern=r"^[a-z0-9_-]+$", max_length=64), QUOTED]


DROP_NULL = BeforeValidator(
    _drop_null, json_schema_input_type=Annotated[dict[StudyName, Study | None], Field(min_length=1)]
)


class Compute(Settings):
    """How a training job computes and which resources it requests. Results do not depend on it."""

    device: Literal["auto", "cpu", "cuda", "mps", "gpu"] = Field(
        "auto", description="auto: the fastest device present; cuda, mps: PyTorch; gpu: MLX"
    )
    mlx_blas: Literal["auto", "off"] = Field(
        "auto", description="MLX on Linux: auto uses a faster BLAS library if there is one"
    )
    preload: Flag = Field(
        True, description="trainings of the workflow on Linux fork from a loaded framework"
    )
    data: Folder = Field("data", description="folder of data sets")
    threads: Annotated[int, Field(gt=0, le=4096), NO_BOOL] = Field(
        1, description="CPU threads of a training"
    )
    checkpoint_seconds: Annotated[Number, Field(gt=0)] = Field(
        30.0, description="seconds between checkpoints: the maximum that a killed training loses"
    )
    checkpoint_steps: Annotated[Positive | None, Nullable] = Field(
        None, description="steps between checkpoints; null: only by time"
    )
    mem_mb: Positive = Field(2000, description="memory of a job, MB")
    runtime: Positive = Field(60, description="time limit of a job, minutes")
    gpu: NonNegative = Field(0, description="GPUs of a job")

    @property
    def shares_process(self) -> bool:
        """Whether local trainings of the workflow fork from a process with a loaded framework."""
        return self.preload and sys.platform == "linux" and self.threads == 1


def common_depth(depths: Iterable[int]) -> int:
    """The most common depth, the deepest on a tie; 0 for no depths."""
    times = Counter(depths)
    return max(times, key=lambda depth: (times[depth], depth), default=0)


def count_parameters(network: Network) -> int:
    """Number of learned parameters of a network."""
    return sum(math.prod(parameter.shape) for parameter in network.parameters().values())


def kept(value: Any) -> Any:  # noqa: ANN401, types
    """The type of a setting that lists the values of an axis to keep."""
    return Annotated[Annotated[list[value], Unique] | None, Nullable]


KEPT = "keep only these {}, in every study; null: all"

MAX_SUBSET_NAME = 100
"""Maximum length of the name of a subset's folder; a longer name is cut and ends with a hash."""


class Config(Settings):
    """The whole of config.yaml."""

    results: Folder = Field("results", description="output folder")
    reference: Annotated[Folder | None, Nullable] = Field(
        None,
        description="folder of a reference result; reports show its verdicts first; null: none",
    )
    board: Annotated[Folder | None, Nullable] = Field(
        None,
        exclude_if=not_,
        description="folder of submissions, board/TRACK/NAME; with it the report has BOARD.md",
    )
    step_times: Annotated[File | None, Nullable] = Field(
        None,
        exclude_if=not_,
        description="table of step times from `benchmarks/steps.py studies`, for training times; "
        "null: use the clocks of runs",
    )
    train: Flag = Field(True, description="false: train nothing; only imported runs count")
    connections: dict[Label, NameOrSettings] = Field(
        {}, description="your own connections, by name: settings that override another connection's"
    )
    labels: dict[Named, OneLine] = Field(
        {}, exclude_if=not_, description="display names of variants, studies and machines"
    )
    studies: Annotated[dict[StudyName, Study], Field(min_length=1), DROP_NULL] = Field(
        description="experiments, by name; null in an overlay drops one"
    )
    variants: kept(Label) = Field(None, description=KEPT.format("variants"))
    depths: kept(Positive) = Field(None, description=KEPT.format("depths"))
    backends: kept(Backend) = Field(None, description=KEPT.format("backends"))
    seeds: kept(NonNegative) = Field(None, description=KEPT.format("seeds"))
    compute: Compute = Compute()
    assume_backends: Flag = Field(
        False, description="plan for every backend, installed or not, because jobs run elsewhere"
    )

    @model_validator(mode="after")
    def _label_added(self) -> Config:
        """Add labels of trainings at other rates and of ladders, as in 'plain, 2 × the steps'."""
        at_rates = {
            label: f"{self.labels.get(base, base)} at rate {rate:g}"
            for study in self.studies.values()
            for base, family in study.rate_families.items()
            for rate, label in family.items()
            if label != base
        }
        labels = at_rates | self.labels
        added = at_rates | {
            rung: f"{labels.get(base, base)}, {factor:g} × the steps"
            for study in self.studies.values()
            for base in study.ladder
            for factor, rung in study.rungs(base).items()
            if rung != base
        }
        return self.model_copy(update={"labels": added | self.labels}) if added else self

    @property
    def subset(self) -> dict[str, list[Any]]:
        """The kept values by axis, for axes that keep only some; empty for the whole grid."""
        return {axis: values for axis in AXES if (values := getattr(self, axis)) is not None}

    @property
    def report_folder(self) -> str:
        """Folder of tables, figures and reports: `results`, or a folder inside it for a subset.

        Runs are in `results/runs` in both cases, so no cell is trained twice, and the report of a
        subset does not replace the report of the whole grid.
        """
        if not self.subset:
            return self.results
        name = "+".join("-".join(map(str, [axis, *values])) for axis, values in self.subset.items())
        if len(name) > MAX_SUBSET_NAME:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            name = f"{name[:MAX_SUBSET_NAME]}-{digest}"
        return f"{self.results}/cuts/{name}"

    def resolved(self) -> dict[str, Any]:
        """The settings that results depend on, as data; without `compute` and `assume_backends`."""
        return self.model_dump(mode="json", exclude={"compute", "assume_backends"})

    def check_trains(self, studies: Collection[str] | None = None, *, apart: bool = False) -> None:
        """Raise ConfigError if these studies, or any, cannot be trained here. Reads no data.

        `apart`: into a folder where runs do not count, which `train: false` allows.
        """
        if not (self.train or apart):
            raise ConfigError("the config has train: false; set train: true to train cells")
        chosen = {name: self.studies[name] for name in studies or self.studies}
        missing = {n: tasks.load(s.task).unavailable(s.model) for n, s in chosen.items()}
        problems = (f"studies.{name}.{why}" for name, why in missing.items() if why)
        if lines := join_problems(problems):
            raise ConfigError(lines)

    def check(self, source: str) -> None:
        """Check that the parts of the config fit. Raises ConfigError, one line per problem."""
        # Each check relies on those before it.
        for find in (
            self._misnamed,
            self._unconnected,
            self._unladdered,
            self._unlike_sizes,
            self._too_many,
            self._unfit,
            self._too_large_batches,
        ):
            if problems := join_problems(find(source)):
                raise ConfigError(problems)

    def _misnamed(self, source: str) -> Iterator[str]:
        """Problems: kept or excluded values that no study has."""
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
        """Problems: a grid too large to plan, or empty."""
        cells = sum(math.prod(map(len, self._axes(study))) for study in self.studies.values())
        if cells > MAX_CELLS:
            axes = join_values(AXES)
            yield f"{source}: {cells} cells are more than {MAX_CELLS}; use fewer {axes}"
        elif not self.cells():
            yield f"{source}: no cells: keep more values, or exclude fewer"

    def _unconnected(self, source: str) -> Iterator[str]:
        """Problems: variants whose connection does not exist or has wrong settings."""
        for name, study in self.studies.items():
            for label in study.labels:
                try:
                    self.connection(name, label, source)
                except ConfigError as error:
                    yield from str(error).splitlines()

    def _unladdered(self, source: str) -> Iterator[str]:
        """Problems: ladders of variants that are not plain networks."""
        for name, study in self.studies.items():
            for label in study.ladder:
                if self.connection(name, label).kind != "plain":
                    yield (
                        f"{source}: studies.{name}.ladder: {label} is not a plain network, which "
                        "step multipliers need; name one that is"
                    )

    def _unlike_sizes(self, source: str) -> Iterator[str]:
        """Problems: sizes of networks for different tasks, which cannot be compared."""
        sizes = {name: study.task for name, study in self.studies.items() if study.plain_at_size}
        first = next(iter(sizes), "")
        for name, task in sizes.items():
            if task != sizes[first]:
                yield (
                    f"{source}: studies.{name}.plain_at_size: its task is {task}, but {first} has "
                    f"{sizes[first]}; all sizes need the same task, so remove this"
                )

    def _unfit(self, source: str) -> Iterator[str]:
        """Problems: variants whose connection does not fit the study's network."""
        for name, study in self.studies.items():
            for label in study.labels:
                try:
                    connection, *_ = [
                        self.network(name, depth, label).connection for depth in study.depths
                    ]
                    if isinstance(connection, ModuleConnection):
                        self._check_module(name, label, connection)
                except ConfigError as error:
                    yield f"{source}: studies.{name}.variants.{label}: {error}"

    def _check_module(self, study_name: str, variant: str, connection: ModuleConnection) -> None:
        """Raise ConfigError for a module on another backend, or with unknown parameters."""
        module = connection.settings
        cells = (cell for cell in self.cells_of(study_name) if cell.variant == variant)
        if others := {cell.backend for cell in cells} - {*module.backends}:
            raise ConfigError(
                f"{module.module} is a PyTorch module and cannot train on {join_values(others)}; "
                "use backends: [torch], or exclude these cells"
            )
        connection.parameters()

    def _too_large_batches(self, source: str) -> Iterator[str]:
        """Problems: batches larger than the data set."""
        for name, study in self.studies.items():
            examples = datasets.training_examples(study.dataset) if study.dataset else math.inf
            depths = {cell.depth for cell in self.cells_of(name)}
            largest = max(map(study.batch_size_at, depths), default=0)
            if largest > examples:
                yield (
                    f"{source}: studies.{name}.batch_size: {largest} is more than the {examples} "
                    f"examples of {study.dataset}; reduce it"
                )

    def connection(self, study_name: str, variant: str, source: str = "config") -> Scheme:
        """The connection of a variant; other labels must name a connection. Raises ConfigError."""
        key = (study_name, variant)
        if key not in self._resolved:
            study, names = self.studies[study_name], self._names(study_name)
            place = ("studies", study_name, "variants", variant)
            value = study.connections.get(variant, variant)
            self._resolved[key] = resolve(value, names, study.streams, source, place)
        return self._resolved[key]

    def network(self, study_name: str, depth: int, variant: str) -> Network:
        """The network of a study's variant at a depth. Raises ConfigError."""
        own, scheme = self.studies[study_name].of(variant), self.connection(study_name, variant)
        return tasks.load(own.task).network(own.model, depth, own.recipe_settings, scheme)

    def same_work(self, study_name: str) -> dict[str, str]:
        """For each variant of a study, the first variant whose steps do the same work.

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
        """The connections of a study by name: the config's own, general ones, published ones."""
        published = tasks.load(self.studies[study_name].task).Network.names
        general = {name: row for name, row in SCHEMES.items() if name not in published}
        return ChainMap(self.connections, general, published)

    def plain(self, study_name: str) -> str | None:
        """The first plain residual network of a study, one without changes if there is any."""
        study = self.studies[study_name]
        plain = [
            label for label in study.labels if self.connection(study_name, label).kind == "plain"
        ]
        return min(plain, key=study.changes_plain, default=None)

    def depth_control(self, study_name: str) -> str | None:
        """The label of the plain network to which a study compares the depths of other variants.

        It is the first plain residual network among the variants that change nothing else of the
        study, if its cells have CONTROL_DEPTHS depths or more; None without one, without another
        such variant, or if depths of the task do not compare.
        """
        study, depths = self.studies[study_name], defaultdict(set)
        if not tasks.load(study.task).depths_compare:
            return None
        for cell in self.cells_of(study_name):
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
        return [cell for name in self.studies for cell in self.cells_of(name)]

    def cells_of(self, study_name: str) -> list[Cell]:
        """The cells of one study, in order."""
        study, plain = self.studies[study_name], self.plain(study_name)
        variants, depths, backends, seeds = self._axes(study)
        grid = itertools.product(depths, variants, backends, seeds)
        cells = (Cell(study_name, *values) for values in grid)
        planned = (cell for cell in cells if cell.depth in study.depths or cell.variant == plain)
        return [cell for cell in planned if not study.excludes(cell)]

    def select_cells(self, patterns: Sequence[str]) -> list[Cell]:
        """The cells whose path matches a pattern such as 'depth-mlx/48L/*'; all without patterns.

        Raises ConfigError, one line per pattern that matches none.
        """
        cells = self.cells()
        matches = {p: {cell for cell in cells if fnmatch(cell.path(), p)} for p in patterns}
        if idle := [pattern for pattern, matched in matches.items() if not matched]:
            form = "use a pattern like 'depth-mlx/48L/*'"
            raise ConfigError(
                join_problems(f"no cell matches {short_repr(p)}; {form}" for p in idle)
            )
        selected = set().union(*matches.values()) if patterns else set(cells)
        return [cell for cell in cells if cell in selected]

    def _axes(self, study: Study) -> list[list[Any]]:
        """The kept values of a study on each of AXES."""
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
