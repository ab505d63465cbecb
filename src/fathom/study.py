"""config.yaml as checked models, and its expansion into cells.

The workflow imports this file at every start, so it imports no array library. Everything a user
can get wrong in a config is refused here, in one line that names the study, the key and the fix.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import itertools
import json
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    Tag,
    ValidationError,
    model_validator,
)

from fathom.models.connections import VARIANTS
from fathom.recipes import RECIPES


def _files(package: str) -> tuple[str, ...]:
    """The public modules of a sub-package, listed without importing any."""
    return tuple(sorted(f.stem for f in (Path(__file__).parent / package).glob("[a-z]*.py")))


TASKS = _files("tasks")
"""Every task: adding one adds a file."""

BACKENDS = tuple(name for name in _files("backends") if name != "numpy")
"""Every backend that can train (the oracle cannot), each named after the framework it imports."""


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one line per problem."""


# --- the kinds of value that a config holds ----------------------------------------------------


def _number(value: object) -> object:
    """YAML 1.1 reads 2e-3 as text: accept it as the number it looks like, but refuse a bool."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _whole(value: object) -> object:
    """`snakemake --config 'seeds=[0]'` gives ['0']: accept digits as the number they spell."""
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]+", value) else value


def _flag(value: object) -> object:
    """`snakemake --config assume_backends=true` gives 'true'."""
    return value == "true" if value in ("true", "false") else value


def _known(kind: str, names: Iterable[str]) -> AfterValidator:
    known = sorted(names)

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(
                f"unknown {kind} {name!r}{_nearest(name, known)} (known: {', '.join(known)})"
            )
        return name

    return AfterValidator(check)


def _nearest(name: str, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""


def _axis(values: list[Any]) -> list[Any]:
    if not values:
        raise ValueError("must list at least one value")
    duplicates = sorted({str(v) for v in values if values.count(v) > 1})
    if duplicates:
        raise ValueError(f"lists {', '.join(duplicates)} more than once")
    return values


# Names of alternatives, which error messages leave out.
PLAIN, BY_DEPTH = "plain", "by depth"

Whole = Annotated[StrictInt, BeforeValidator(_whole)]
Flag = Annotated[StrictBool, BeforeValidator(_flag)]
Positive = Annotated[Whole, Field(gt=0)]
Seed = Annotated[Whole, Field(ge=0)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Variant = Annotated[str, _known("variant", VARIANTS)]
Backend = Annotated[str, _known("backend", BACKENDS)]
RecipeName = Annotated[str, _known("recipe", RECIPES)]
TaskName = Annotated[str, _known("task", TASKS)]
Unique = AfterValidator(_axis)


class Section(BaseModel):
    """A mapping of the config: immutable, and unknown keys are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: object) -> object:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}{_nearest(str(key), cls.model_fields)}")
        return data


AnySection = TypeVar("AnySection", bound=Section)


class LanguageModel(Section):
    """Sizes of the transformer and of its connection."""

    task: Literal["tokens"] = "tokens"

    vocab: Positive = Field(description="V, number of distinct tokens")
    length: Positive = Field(description="T, tokens in a sequence")
    width: Positive = Field(description="D, channels of a stream")
    heads: Positive = Field(description="H, attention heads; must divide width")
    hidden: Positive = Field(description="F, channels between the MLP's two layers")
    streams: Positive = Field(4, description="S, residual streams of hc and mhc")
    sinkhorn_iterations: Positive = Field(20, description="row-and-column passes of mhc")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> LanguageModel:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by heads {self.heads}; "
                f"make width a multiple of {self.heads}"
            )
        return self


class VisionModel(Section):
    """Sizes of the convolutional network and of its connection."""

    task: Literal["fashion"] = "fashion"
    width: Positive = Field(description="W, channels")
    streams: Positive = Field(1, description="S, residual streams of the stream variants")
    sinkhorn_iterations: Positive = Field(20, description="row-and-column passes of mhc variants")
    dropout: Annotated[Number, Field(ge=0, lt=1)] = Field(0.1, description="share dropped")
    normalise: Flag = Field(
        False, description="subtract the mean of all pixels, divide by their sd"
    )
    augment: Flag = Field(False, description="crop with a border of two pixels at random")

    @model_validator(mode="after")
    def _groups_divide_width(self) -> VisionModel:
        groups = min(32, max(1, self.width // 4))
        if self.width % groups:
            raise ValueError(f"width {self.width} is not divisible by its {groups} groups; use 64")
        return self


class Optimizer(Section):
    """AdamW. Whether it corrects its bias is the recipe's affair."""

    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="cosine: from lr to zero over the steps after the warm-up"
    )
    warmup_steps: Annotated[Whole, Field(ge=0)] = Field(0, description="of linear warm-up")

    lr: Annotated[Number, Field(gt=0)] = Field(description="learning rate")
    beta1: Annotated[Number, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[Number, Field(ge=0, lt=1)] = 0.999
    eps: Annotated[Number, Field(gt=0)] = 1e-8
    weight_decay: Annotated[Number, Field(ge=0)] = Field(0.0, description="decoupled decay")


Model = Annotated[LanguageModel | VisionModel, Field(discriminator="task")]


def _with_task(data: object) -> object:
    """A study names its task once; its model, which differs from task to task, is told."""
    if isinstance(data, Mapping) and isinstance(data.get("model"), Mapping):
        return {**data, "model": {**data["model"], "task": data.get("task")}}
    return data


class Exclusion(Section):
    """A combination of axis values that a study leaves out; an absent axis matches all."""

    depth: Positive | None = None
    variant: Variant | None = None
    backend: Backend | None = None
    seed: Seed | None = None

    @model_validator(mode="after")
    def _names_an_axis(self) -> Exclusion:
        if not self.model_dump(exclude_none=True):
            raise ValueError("must name at least one of depth, variant, backend, seed")
        return self

    def matches(self, cell: Cell) -> bool:
        """Whether every axis that is named has the cell's value."""
        named = self.model_dump(exclude_none=True)
        return all(getattr(cell, axis) == value for axis, value in named.items())


class Study(Section):
    """One experiment: what is trained, by which recipe, over which axes, for how long."""

    description: str = Field("", description="one sentence for the report")
    task: TaskName
    recipe: RecipeName
    variants: Annotated[list[Variant], Unique]
    depths: Annotated[list[Positive], Unique]
    backends: Annotated[list[Backend], Unique]
    seeds: Annotated[list[Seed], Unique]
    exclude: list[Exclusion] = []
    steps: Positive
    batch_size: Annotated[
        Annotated[Positive, Tag(PLAIN)] | Annotated[dict[Positive, Positive], Tag(BY_DEPTH)],
        Discriminator(lambda value: BY_DEPTH if isinstance(value, Mapping) else PLAIN),
    ] = Field(description="B: one number, or one for each depth, as in {12: 32, 24: 24}")
    model: Model
    optimizer: Optimizer

    _name_the_model = model_validator(mode="before")(_with_task)

    @model_validator(mode="after")
    def _variants_fit_the_task(self) -> Study:
        for variant in self.variants:
            task = VARIANTS[variant].task
            if task != self.task:
                raise ValueError(f"variant '{variant}' is for task {task}, not {self.task}")
        return self

    @model_validator(mode="after")
    def _every_depth_has_a_batch_size(self) -> Study:
        for depth in self.depths:
            self.batch_size_at(depth)
        return self

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
    gpu: Annotated[Whole, Field(ge=0)] = Field(0, description="GPUs of a job")


class Config(Section):
    """The whole of config.yaml."""

    results: Annotated[str, Field(min_length=1)] = Field(
        "results", description="folder for everything that is computed"
    )
    studies: Annotated[dict[str, Study], Field(min_length=1)]
    variants: Annotated[list[Variant], Unique] | None = Field(
        None, description="keep only these variants, in every study"
    )
    depths: Annotated[list[Positive], Unique] | None = Field(None, description="likewise")
    backends: Annotated[list[Backend], Unique] | None = Field(None, description="likewise")
    seeds: Annotated[list[Seed], Unique] | None = Field(None, description="likewise")
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

    def cells(self) -> list[Cell]:
        """Every cell that the studies, their exclusions and the cut axes leave, in order."""
        grid = (
            Cell(name, depth, variant, backend, seed)
            for name, study in self.studies.items()
            for depth, variant, backend, seed in itertools.product(
                _kept(study.depths, self.depths),
                _kept(study.variants, self.variants),
                _kept(study.backends, self.backends),
                _kept(study.seeds, self.seeds),
            )
        )
        return [c for c in grid if not any(e.matches(c) for e in self.studies[c.study].exclude)]

    def spec(self, cell: Cell) -> Spec:
        """Every number that the cell's training uses."""
        study = self.studies[cell.study]
        numbers = {
            **asdict(cell),
            "task": study.task,
            "recipe": study.recipe,
            "steps": study.steps,
            "batch_size": study.batch_size_at(cell.depth),
            "model": study.model,
            "optimizer": study.optimizer,
        }
        return checked(Spec, numbers, str(cell))


def _kept(values: Sequence[Any], cut: Sequence[Any] | None) -> list[Any]:
    return [v for v in values if cut is None or v in cut]


# --- cells -------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Cell:
    """One point of the grid: what one training job computes."""

    study: str
    depth: int
    variant: str
    backend: str
    seed: int

    def path(self) -> str:
        """Its folder below the folder of runs."""
        return f"{self.study}/{self.depth}L/{self.variant}/{self.backend}/seed{self.seed}"

    @classmethod
    def parse(cls, path: str) -> Cell:
        """The inverse of `path`. Raises ValueError on anything that `path` does not write."""
        match = re.fullmatch(
            r"([a-z][a-z0-9-]*)/([1-9][0-9]*)L/([a-z0-9_]+)/([a-z]+)/seed(0|[1-9][0-9]*)", path
        )
        if not match:
            raise ValueError(f"'{path}' is not study/depthL/variant/backend/seedN")
        study, depth, variant, backend, seed = match.groups()
        return cls(study, int(depth), variant, backend, int(seed))

    def __str__(self) -> str:
        return self.path()


class Spec(Section):
    """Every number that one run depends on; equal specs mean equal computations."""

    study: str
    depth: Positive
    variant: Variant
    backend: Backend
    seed: Seed
    task: TaskName
    recipe: RecipeName
    steps: Positive
    batch_size: Positive
    model: Model
    optimizer: Optimizer

    _name_the_model = model_validator(mode="before")(_with_task)

    @property
    def cell(self) -> Cell:
        """The cell that this spec belongs to."""
        return Cell(self.study, self.depth, self.variant, self.backend, self.seed)

    def json(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))

    def hash(self) -> str:
        """Sixteen hexadecimal digits that change whenever any number does."""
        return hashlib.sha256(self.json().encode()).hexdigest()[:16]


# --- reading a config --------------------------------------------------------------------------


def load_config(files: Sequence[str | Path], overrides: Mapping[str, Any] | None = None) -> Config:
    """Read YAML files, later ones over earlier ones, then `overrides`, as Snakemake does."""
    merged: dict[str, Any] = {}
    for file in files:
        merge(merged, read_yaml(file))
    merge(merged, overrides or {})
    return check_config(merged, " + ".join(str(f) for f in files))


def read_yaml(file: str | Path) -> dict[str, Any]:
    """A YAML mapping. Raises ConfigError with the file, the line and the problem."""
    try:
        data = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = " ".join((getattr(error, "problem", None) or str(error)).split())
        raise ConfigError(f"{file}:{where} malformed YAML ({problem})") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: must be a mapping with keys such as 'studies'")
    return data


def merge(base: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    """Lay `overlay` over `base` in place: mappings key by key, anything else whole."""
    for key, value in overlay.items():
        if isinstance(value, Mapping):
            if not isinstance(base.get(key), dict):
                base[key] = {}
            merge(base[key], value)
        else:
            base[key] = value


def check_config(data: Mapping[str, Any], source: str = "config") -> Config:
    """Validate a merged config. Raises ConfigError, one line per problem, naming `source`."""
    config = checked(Config, data, source)
    if not config.cells():
        raise ConfigError(f"{source}: no cells: the cut axes and the exclusions leave none")
    return config


def checked(model: type[AnySection], data: object, source: str) -> AnySection:
    """Validate any section. Raises ConfigError, one line per problem, naming `source`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error, source))) from error


def _problems(error: ValidationError, source: str) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False):
        if problem["type"] == "union_tag_invalid":
            continue  # a model of an unknown task: the task itself is refused in a line of its own
        loc = problem["loc"]
        parts = [
            str(part)
            for before, part in zip((None, *loc), loc, strict=False)
            # Names of alternatives are no part of the place.
            if part not in (PLAIN, BY_DEPTH) and not (before == "model" and part in TASKS)
        ]
        place = ".".join(parts)
        message = problem["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if problem["type"] not in ("missing", "value_error"):
            message += f", but is {reprlib.repr(problem['input'])}"
        lines.append(f"{source}: {place or 'top level'}: {message}")
    return lines


def installed_backends() -> tuple[str, ...]:
    """The backends whose framework is here, found without importing any."""
    return tuple(name for name in BACKENDS if importlib.util.find_spec(name) is not None)
