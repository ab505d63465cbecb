"""Tasks: what is learned. A task is one file, found by its name.

It owns everything that is its own: the settings of its model, the network, the data set it needs,
batches, the loss, its metrics and its score, when a run counts as diverged, and how its results are
presented. No other file names a task.
"""

from __future__ import annotations

import copy
import importlib
import math
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np

from fathom.batch import Batch
from fathom.metrics.runs import LOSS_TAIL, RUN_METRICS, RunMetric, of_run
from fathom.metrics.scores import Score, measure_score, outcome
from fathom.metrics.steps import CLOCKS, MATTERS, STEP_METRICS, Row, StepMetric, flat
from fathom.models import init
from fathom.models.connections.connection import mixing_reports
from fathom.models.connections.schemes import Scheme
from fathom.models.network import Network, Output, inference_inputs, without_block
from fathom.models.ops import Array, Ops
from fathom.models.recipes import Recipe
from fathom.settings import ConfigError, Registry, Settings, unknown, validate
from fathom.spec import Spec

TASKS = tuple(sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py")))
"""Every task: adding one adds a file."""

NOISE_STREAM = 0x6E6F697365
"""Keeps what connections draw apart from batches and initial parameters."""


# --- what a task may measure with ---------------------------------------------------------------


@dataclass(frozen=True)
class Untrained:
    """A problem's network before the first step."""

    problem: Problem
    ops: Ops
    params: dict[str, np.ndarray]

    @cached_property
    def block_inputs(self) -> list[np.ndarray]:
        """What enters each block in a forward pass on the first batch, in float64."""
        inputs = self.problem.block_inputs(self.ops, self.params)
        return [self.ops.to_numpy(x).astype(np.float64) for x in inputs]


Inference = Callable[
    [Callable[[dict[str, Array], dict[str, Array]], Array], Mapping[str, np.ndarray]], np.ndarray
]
"""`Trainer.infer`: a function of (parameters, arrays by name), computed without gradients."""


@dataclass(frozen=True)
class Trained:
    """A problem's network as it is: after the last step, or at an evaluation before it."""

    problem: Problem
    ops: Ops
    infer: Inference
    _values: dict[str, Any] = field(default_factory=dict, init=False)

    def value(self, name: str) -> Any:  # noqa: ANN401, what `compute` gives
        """A step metric of this network. It is computed once, as others may be made of it."""
        if name not in self._values:
            self._values[name] = self.problem.step_metrics[name].compute(self)
        return self._values[name]

    def logits(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The network's output for some inputs, nothing dropped."""
        network = self.problem.network
        return self.infer(lambda params, x: network.forward(self.ops, params, x).logits, inputs)

    def mean_loss(self, batches: Iterable[Batch]) -> float:
        """The task's loss, weighted as the batches' weights say, over all of them."""
        task, network = self.problem.task, self.problem.network

        def loss(params: dict[str, Array], arrays: dict[str, Array]) -> Array:
            batch = Batch.of_arrays(arrays)
            return task.loss(self.ops, network.forward(self.ops, params, batch.inputs), batch)

        def total(batch: Batch) -> float:
            return batch.weight * float(self.infer(loss, batch.arrays(np.asarray)))

        return self._mean(total, batches)

    def accuracy(self, batches: Iterable[Batch]) -> float:
        """The weighted share of targets whose largest logit is their class; NaN names none."""

        def right(batch: Batch) -> float:
            logits = self.logits(batch.inputs)
            named = np.where(np.isfinite(logits).all(axis=-1), logits.argmax(axis=-1), -1)
            is_right = named == batch.targets
            return float(is_right.sum() if batch.weights is None else batch.weights[is_right].sum())

        return self._mean(right, batches)

    def score(self) -> float:
        """What the task's results are judged by, measured on held-out data; NaN if not finite."""
        problem = self.problem
        metric = run_metrics()[score_of(problem.spec.task).metric]
        measured = (name for name in (metric.of, metric.times) if name)
        value = measure_score([{name: self.value(name) for name in measured}], metric)
        return math.nan if value is None else value

    @cached_property
    def scores_without_block(self) -> dict[int, float]:
        """The score of the network without each block, by the number of the block, from 1."""
        context = self.problem.network.connection.context
        found = {}
        for block in range(context.layers // context.per_block):
            problem = copy.copy(self.problem)
            problem.network = without_block(problem.network, block)
            found[block + 1] = replace(self, problem=problem).score()
        return found

    @property
    def layers_that_matter(self) -> int | None:
        """How many blocks make the score worse by more than MATTERS where they are left out.

        None where the score itself is not finite.
        """
        whole, judged_by = self.score(), score_of(self.problem.spec.task)
        if not math.isfinite(whole):
            return None
        sign = 1 if judged_by.better == "lower" else -1
        border = MATTERS * abs(judged_by.chance(self.problem.spec) - whole)
        found = self.scores_without_block.values()
        # Not finite is worse.
        return sum(not sign * (value - whole) <= border for value in found)

    def _mean(self, total_of: Callable[[Batch], float], batches: Iterable[Batch]) -> float:
        total = weight = 0.0
        for batch in batches:
            batch.check(self.problem.task.classes(self.problem.spec.model))
            total += total_of(batch)
            weight += batch.weight
        return total / weight

    def of_parameters(self, function: Callable[[dict[str, Array]], Array]) -> np.ndarray:
        """A function of the parameters alone, in float64."""
        return self.infer(lambda params, _: function(params), {}).astype(np.float64)


@dataclass(frozen=True)
class Samples:
    """Points [N, 2] that a network generates, and as many of what it should generate."""

    generated: np.ndarray
    true: np.ndarray


# --- presentation -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Run metrics that a study's page shows together, each by depth, variant and platform."""

    title: str
    metrics: tuple[str, ...]
    note: str = ""
    """Said below the title, where the metrics' definitions do not say enough."""


@dataclass(frozen=True)
class Presentation:
    """How a task is shown. Nothing here is part of a result, so an edit makes no run stale."""

    unit: str
    """What the loss is a mean over, in the singular: token, image."""
    sizes: Callable[[Any], str]
    """From the task's Model: its sizes, in the letters of docs/definitions.md."""
    depth_unit: str = "layer"
    """What the depth of its networks counts, in the singular, as readers know it."""
    loss_unit: str = "nats"
    """The unit of the loss, for axes: a task with a loss of its own says it."""
    tables: tuple[Table, ...] = ()
    """After that of the score, which every study has."""
    figures: tuple[str, ...] = ("loss", "score", "grad_norm")
    """Names of figures, or of metrics: one of steps is drawn against step, one of runs by depth."""
    compared: tuple[str, ...] = ()
    """Run metrics that COMPARISON.md sets side by side, beside the score."""
    line: str = ""
    """Run metric: the score that a run has to pass to have used its layers; empty: every run that
    learned has."""
    comparison: Mapping[str, Any] | None = None
    """A study's settings that `fathom compare` starts from; None: there is no such comparison."""


# --- tasks --------------------------------------------------------------------------------------


class Task(ABC):
    """What training asks of a task.

    Its file also has a `SCORE`, by which results are judged, and a `PRESENTATION`. Neither is part
    of a result, so an edit of these makes no run stale.
    """

    Model: ClassVar[type[Settings]]
    """The settings under `model:` in a study of this task."""
    Network: ClassVar[type[Network]]
    """The kind of network, which knows what the published names of variants stand for."""
    step_metrics: ClassVar[Mapping[str, StepMetric]] = Registry()
    """Its own numbers of a step: what `compute` takes depends on `when` (see StepMetric)."""
    depths_compare: ClassVar[bool] = True
    """Whether networks of other depths have the same problem: not where depth is its length."""
    run_metrics: ClassVar[Mapping[str, RunMetric]] = Registry()
    """Its own numbers of a run, derived from those of steps. Those that are measured once need no
    entry: the run has them by the same name."""

    def dataset(self, model: Any) -> str | None:  # noqa: ANN401, its own Model
        """The name of the module in `fathom.datasets` that fetches what it needs; None: nothing."""
        return None

    def unavailable(self, model: Any) -> str:  # noqa: ANN401, its own Model
        """Why training would be refused for want of data, in one line; empty if nothing is known.

        It reads no data: planning asks it for every study.
        """
        return ""

    def alphabet(self, model: Any) -> str | None:  # noqa: ANN401, its own Model
        """The character of every class, in order; None where classes are no characters."""
        return None

    def network(self, model: Any, depth: int, recipe: Recipe, scheme: Scheme) -> Network:  # noqa: ANN401, its own Model
        """The network of these sizes, with its connection."""
        return self.Network(model, depth, recipe, scheme)

    @abstractmethod
    def batch(self, spec: Spec, step: int) -> Batch:
        """The batch of a step: a pure function of the spec's seed and the step."""

    def classes(self, model: Any) -> int | None:  # noqa: ANN401, its own Model
        """V, where targets are class numbers from 0 to V − 1; None for any other targets."""
        return None

    def loss(self, ops: Ops, output: Output, batch: Batch) -> Array:
        """What training minimises, a scalar: by default the weighted mean cross-entropy, in nats.

        `batch`: on the device. A loss that can be negative is declared, with its bounds, as a
        metric `loss` of the task's own.
        """
        return ops.cross_entropy(output.logits, batch.targets, batch.weights)

    def chance_loss(self, spec: Spec) -> float:
        """The loss of a model that has learned nothing: by default ln V, all classes alike.

        A task with a loss of its own says what it is; NaN where there is no such level.
        """
        classes = self.classes(spec.model)
        return math.nan if classes is None else math.log(classes)

    def diverged(self, rows: Sequence[Row]) -> bool:
        """Whether a run counts as diverged: by default, if its last loss is not finite."""
        return not math.isfinite(rows[-1]["loss"])

    def reports(self, ops: Ops, output: Output) -> dict[str, Array]:
        """Small arrays to measure in every step, by the name of their metric; none by default."""
        return {}

    def samples(self, trained: Trained) -> Samples | None:
        """What a network that generates points has learned to generate, for a figure.

        None for any other.
        """
        return None


@cache
def load(name: str) -> Task:
    """The task in the file of that name: its only subclass of Task."""
    module = _module(name)
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    )
    return found()


def example_batch(spec: Spec) -> Batch:
    """A first batch that needs no files: where `batch` reads some, the `noise_batch` beside it."""
    noise_batch = getattr(_module(spec.task), "noise_batch", None)
    return noise_batch(spec) if noise_batch else load(spec.task).batch(spec, 0)


def presentation(name: str) -> Presentation:
    """How the task in the file of that name is shown."""
    return _module(name).PRESENTATION


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"fathom.tasks.{name}")


def parse_spec(data: Mapping[str, Any], source: str) -> Spec:
    """A spec from JSON, its model checked by its task. Raises ConfigError naming `source`."""
    task = data.get("task") if isinstance(data, Mapping) else data
    if task not in TASKS:
        raise ConfigError(f"{source}: task: {unknown('task', task, TASKS)}")
    model = validate(load(task).Model, data.get("model"), source, ("model",))
    return validate(Spec, {**data, "model": model}, source)


# --- metrics and scores of all tasks ------------------------------------------------------------


@cache
def step_metrics() -> Mapping[str, StepMetric]:
    """Every metric of a step: those that all tasks have, then those of each task."""
    return ChainMap(_own("step_metrics"), STEP_METRICS)


@cache
def run_metrics(of: tuple[str, ...] = TASKS) -> Mapping[str, RunMetric]:
    """Every metric of a run of these tasks, likewise: the columns of cells.csv."""
    own = _own("step_metrics", of).items()
    once = {n: of_run(n, m) for n, m in own if m.when != "every step" and not m.along}
    return ChainMap(_own("run_metrics", of), once, RUN_METRICS)


@cache
def _own(
    kind: Literal["step_metrics", "run_metrics"], of: tuple[str, ...] = TASKS
) -> dict[str, Any]:
    """The metrics that these tasks declare. Two may share one, but not a name for two."""
    found: dict[str, Any] = {}
    for task in of:
        for name, metric in getattr(load(task), kind).items():
            if found.setdefault(name, metric) is not metric:
                raise ValueError(f"task {task}: another task has a metric {name!r}; rename one")
    return found


@cache
def averaged() -> dict[str, tuple[float, float]]:
    """The run metrics of which summary.csv has the mean over seeds, with their bounds."""
    return {name: bounds_of(name) for name, metric in run_metrics().items() if metric.averaged}


def bounds_of(run_metric: str) -> tuple[float, float]:
    """Between which every value of a run metric is: those of the step metric it comes from."""
    return step_metrics()[run_metrics()[run_metric].of].bounds


@cache
def times() -> tuple[str, ...]:
    """The run metrics that come from a clock: they have tables of their own."""
    return tuple(n for n, m in run_metrics().items() if {m.of, m.times} & {*CLOCKS})


JUDGED_BY = Literal["held_out", "training_loss"]
"""What a study's results may be judged by."""


def score_of(task: str, judged_by: JUDGED_BY = "held_out") -> Score:
    """What results of a task are judged by.

    `training_loss` is for runs that were recorded before their task measured its score: the mean
    loss over the last tenth of the steps.
    """
    if judged_by == "held_out":
        return _module(task).SCORE
    shown = presentation(task)
    return Score(
        metric=LOSS_TAIL,
        label="late training loss",
        unit=f"{shown.loss_unit} per {shown.unit}",
        chance=load(task).chance_loss,
    )


def outcome_of(
    spec: Spec, rows: Sequence[Row], judged_by: JUDGED_BY = "held_out"
) -> tuple[str, float | None]:
    """(one of OUTCOMES, the score) of a run's rows; a score is None where it was not measured."""
    score = score_of(spec.task, judged_by)
    value = measure_score(rows, run_metrics()[score.metric])
    return outcome(load(spec.task).diverged(rows), score, value, score.chance(spec)), value


# --- problems -----------------------------------------------------------------------------------


class Problem:
    """What a spec asks for, built once: task, network, initial parameters, batches and loss."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.task = load(spec.task)
        self.network = self.task.network(spec.model, spec.depth, spec.recipe, spec.connection)
        self.step_metrics = STEP_METRICS | self.task.step_metrics

    def initial_parameters(self) -> dict[str, np.ndarray]:
        """Float32 parameters by name: the same numbers for every backend."""
        return init.draw(self.network.parameters(), self.spec.seed)

    def batches(self, step: int) -> list[Batch]:
        """The batches of one optimiser step, with what the connection draws for each.

        Raises TaskError for targets that are no classes.
        """
        spec, connection = self.spec, self.network.connection
        found = []
        for number in range(step * spec.accumulate, (step + 1) * spec.accumulate):
            batch = self.task.batch(spec, number)
            batch.check(self.task.classes(spec.model))
            rng = np.random.default_rng([spec.seed, NOISE_STREAM, number])
            noise = connection.sample_noise(rng, step / spec.steps)
            if noise is not None:
                batch = replace(batch, inputs={**batch.inputs, "noise": noise})
            found.append(batch)
        return found

    def objective(self, ops: Ops) -> Callable[[dict[str, Array], Batch], tuple[Array, dict]]:
        """The loss of (parameters, a batch on the device), with what metrics need of the pass."""

        def loss_and_report(
            params: dict[str, Array], batch: Batch
        ) -> tuple[Array, dict[str, Array]]:
            output = self.network.forward(ops, params, batch.inputs)
            report = {"logits_finite": ops.all_finite(output.logits)}
            if output.mixed is not None:
                report |= mixing_reports(ops, output.mixed)
            report |= self.task.reports(ops, output)
            return self.task.loss(ops, output, batch), report

        return loss_and_report

    def block_inputs(self, ops: Ops, params: dict[str, np.ndarray]) -> list[Array]:
        """What enters each block in a forward pass on the first batch, nothing dropped."""
        arrays = {name: ops.asarray(value) for name, value in params.items()}
        inputs = inference_inputs(self.task.batch(self.spec, 0).inputs)
        found: list[Array] = []
        on_device = {name: ops.asarray(value) for name, value in inputs.items()}
        self.network.forward(ops, arrays, on_device, block_inputs=found)
        return found

    def at_start(self, ops: Ops, params: dict[str, np.ndarray]) -> Row:
        """The metrics of the untrained network; null where one has no value."""
        untrained = Untrained(self, ops, params)
        return self._measure("first step", lambda name: self.step_metrics[name].compute(untrained))

    def at_evaluation(self, ops: Ops, infer: Inference, *, is_last: bool) -> Row:
        """The metrics of the network as it is; absent where it has no such thing.

        `is_last`: after the last step, which has more of them.
        """
        trained = Trained(self, ops, infer)
        found = self._measure("evaluations", trained.value)
        if is_last:
            found |= self._measure("last step", trained.value)
        return {name: value for name, value in found.items() if value is not None}

    @np.errstate(all="ignore")  # of a diverged network, infinities and NaN are what is measured
    def _measure(self, when: str, value_of: Callable[[str], Any]) -> Row:
        found: Row = {}
        for name, metric in self.step_metrics.items():
            if metric.when == when:
                found |= flat(name, metric, value_of(name))
        return found
