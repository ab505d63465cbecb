"""Learning tasks. A task is one file, found by its name.

It defines the settings of its model, the network, the data set, batches, the loss, its metrics and
its score, the test for divergence, and the presentation of its results. No other file names a task.
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
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors

from fathom import init
from fathom.connections.connection import Apart, mixing_reports
from fathom.connections.schemes import Scheme
from fathom.operations.ops import Array, Ops
from fathom.settings import ConfigError, Registry, Settings, unknown, validate
from fathom.system.text import digits
from fathom_study.batch import Batch
from fathom_study.datasets import DataError
from fathom_study.metrics.runs import LOSS_TAIL, RUN_METRICS, RunMetric, Summary, of_run, summarise
from fathom_study.metrics.scores import Score, measure_score, outcome
from fathom_study.metrics.steps import CLOCKS, MATTERS, STEP_METRICS, Row, StepMetric, flat
from fathom_study.models.network import Network, Output, inference_inputs, recording, without_block
from fathom_study.models.recipes import Recipe
from fathom_study.spec import Initial, Spec

TASKS = tuple(sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py")))
"""Names of all tasks; a new task is a new file."""

NOISE_STREAM = 0x6E6F697365
"""Keeps random numbers of connections apart from those of batches and initial parameters."""


# --- networks to measure ------------------------------------------------------------------------


@dataclass(frozen=True)
class Untrained:
    """A problem's network before the first step."""

    problem: Problem
    ops: Ops
    params: dict[str, np.ndarray]

    @cached_property
    def block_inputs(self) -> list[np.ndarray]:
        """The input of each block in a forward pass on the first batch, in float64.

        Inputs of q, k and v apart are one array, three times as long.
        """
        inputs = self.problem.block_inputs(self.ops, self.params)
        parts = [x if isinstance(x, Apart) else (x,) for x in inputs]
        arrays = [[self.ops.to_numpy(part) for part in of_one] for of_one in parts]
        return [np.concatenate(of_one).astype(np.float64) for of_one in arrays]


Inference = Callable[
    [Callable[[dict[str, Array], dict[str, Array]], Array], Mapping[str, np.ndarray]], np.ndarray
]
"""`Trainer.infer`: a function of (parameters, arrays by name), computed without gradients."""


@dataclass(frozen=True)
class Trained:
    """A problem's network after the last step, or at an evaluation before it."""

    problem: Problem
    ops: Ops
    infer: Inference
    _values: dict[str, Any] = field(default_factory=dict, init=False)

    def value(self, name: str) -> Any:  # noqa: ANN401, result of `compute`
        """A step metric of this network, computed once, as other metrics may use it."""
        if name not in self._values:
            self._values[name] = self.problem.step_metrics[name].compute(self)
        return self._values[name]

    def logits(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The network's output for some inputs, without dropout."""
        network = self.problem.network
        return self.infer(lambda params, x: network.forward(self.ops, params, x).logits, inputs)

    def mean_loss(self, batches: Iterable[Batch]) -> float:
        """The task's mean loss over all batches, weighted by the batches' weights."""
        task, network = self.problem.task, self.problem.network

        def loss(params: dict[str, Array], arrays: dict[str, Array]) -> Array:
            batch = Batch.of_arrays(arrays)
            return task.loss(self.ops, network.forward(self.ops, params, batch.inputs), batch)

        def total(batch: Batch) -> float:
            return batch.weight * float(self.infer(loss, batch.arrays(np.asarray)))

        return self._mean(total, batches)

    def named(self, batch: Batch) -> np.ndarray:
        """The class of the largest logit for each target; −1 where logits are not finite."""
        logits = self.logits(batch.inputs)
        return np.where(np.isfinite(logits).all(axis=-1), logits.argmax(axis=-1), -1)

    def accuracy(self, batches: Iterable[Batch]) -> float:
        """The weighted share of targets whose largest logit is their class; NaN counts as wrong."""

        def right(batch: Batch) -> float:
            is_right = self.named(batch) == batch.targets
            return float(is_right.sum() if batch.weights is None else batch.weights[is_right].sum())

        return self._mean(right, batches)

    def score(self) -> float:
        """The task's score, measured on held-out data; NaN if not finite."""
        problem = self.problem
        metric = run_metrics()[score_of(problem.spec.task).metric]
        measured = (name for name in (metric.of, metric.times) if name)
        value = measure_score([{name: self.value(name) for name in measured}], metric)
        return math.nan if value is None else value

    @cached_property
    def scores_without_block(self) -> dict[int, float]:
        """The score of the network without each block, by block number from 1."""
        context = self.problem.network.connection.context
        scores = {}
        for block in range(context.layers // context.per_block):
            problem = copy.copy(self.problem)
            problem.network = without_block(problem.network, block)
            scores[block + 1] = replace(self, problem=problem).score()
        return scores

    @property
    def layers_that_matter(self) -> int | None:
        """Number of blocks that matter, by MATTERS; None if the score itself is not finite."""
        whole, judged_by = self.score(), score_of(self.problem.spec.task)
        if not math.isfinite(whole):
            return None
        border = MATTERS * abs(judged_by.chance(self.problem.spec) - whole)
        scores = self.scores_without_block.values()
        # Not finite is worse.
        return sum(not judged_by.sign * (value - whole) <= border for value in scores)

    def _mean(self, total_of: Callable[[Batch], float], batches: Iterable[Batch]) -> float:
        total = weight = 0.0
        for batch in batches:
            batch.check(self.problem.task.classes(self.problem.spec.model))
            total += total_of(batch)
            weight += batch.weight
        return total / weight

    def of_parameters(self, function: Callable[[dict[str, Array]], Array]) -> np.ndarray:
        """The value of a function of the parameters alone, in float64."""
        return self.infer(lambda params, _: function(params), {}).astype(np.float64)


Batches = Callable[[Spec], Iterable[Batch]]
"""A spec's held-out data."""


def mean_loss_on(held_out: Batches) -> Callable[[Trained], float]:
    """The metric of the mean loss on held-out data."""
    return lambda trained: trained.mean_loss(held_out(trained.problem.spec))


def accuracy_on(held_out: Batches) -> Callable[[Trained], float]:
    """The metric of the accuracy on held-out data."""
    return lambda trained: trained.accuracy(held_out(trained.problem.spec))


# --- presentation -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Run metrics that a study's page shows together, each by depth, variant and platform."""

    title: str
    metrics: tuple[str, ...]
    note: str = ""
    """Text below the title, to complete the metrics' definitions."""


@dataclass(frozen=True)
class Presentation:
    """How reports present a task. Training reads none of it."""

    unit: str
    """Unit over which the loss is averaged, in the singular: token, image."""
    sizes: Callable[[Any], str]
    """Function of the task's Model: its sizes, in the letters of docs/definitions."""
    depth_unit: str = "layer"
    """Unit of its networks' depth, in the singular, as readers know it."""
    loss_unit: str = "nats"
    """The unit of the loss, for axes; a task with its own loss sets it."""
    tables: tuple[Table, ...] = ()
    """Tables after the table of the score, which every study has."""
    figures: tuple[str, ...] = ("loss", "score", "grad_norm")
    """Names of figures or metrics; a step metric is drawn against step, a run metric by depth."""
    compared: tuple[str, ...] = ()
    """Run metrics that COMPARISON.md compares besides the score."""
    line: str = ""
    """Run metric with the score that a run must pass to have used its layers; empty: every run that
    learned has used them."""
    comparison: Mapping[str, Any] | None = None
    """Initial settings of a study of `fathom compare`; None if it does not support the task."""


# --- tasks --------------------------------------------------------------------------------------


class Task(ABC):
    """Interface of a task that training uses.

    Its file also has a `SCORE`, by which results are judged, and a `PRESENTATION`. Training reads
    neither, but an edit of these also changes the file's hash, and its imported runs are replayed.
    """

    Model: ClassVar[type[Settings]]
    """The settings under `model:` in a study of this task."""
    Network: ClassVar[type[Network]]
    """The class of the network, which resolves the published names of variants."""
    step_metrics: ClassVar[Mapping[str, StepMetric]] = Registry()
    """Its own step metrics; the argument of `compute` depends on `when` (see StepMetric)."""
    depths_compare: ClassVar[bool] = True
    """Whether networks of all depths have the same problem; false if depth is its length."""
    run_metrics: ClassVar[Mapping[str, RunMetric]] = Registry()
    """Its own run metrics, derived from step metrics. A step metric that is measured once needs no
    entry: it is a run metric of the same name."""

    def dataset(self, model: Any) -> str | None:  # noqa: ANN401, its own Model
        """The name of the module in `datasets` that fetches its data; None: no data."""
        return None

    def unavailable(self, model: Any) -> str:  # noqa: ANN401, its own Model
        """Why data for training are missing, in one line; empty if no reason is known.

        It reads no data, as planning calls it for every study.
        """
        return ""

    def network(self, model: Any, depth: int, recipe: Recipe, scheme: Scheme) -> Network:  # noqa: ANN401, its own Model
        """The network of these sizes, with its connection."""
        return self.Network(model, depth, recipe, scheme)

    @abstractmethod
    def batch(self, spec: Spec, step: int) -> Batch:
        """The batch of a step: a pure function of the spec's seed and the step."""

    def classes(self, model: Any) -> int | None:  # noqa: ANN401, its own Model
        """Number of classes V, if targets are class numbers from 0 to V − 1; None for others."""
        return None

    def loss(self, ops: Ops, output: Output, batch: Batch) -> Array:
        """The training loss, a scalar: by default the weighted mean cross-entropy, in nats.

        `batch`: on the device. A task whose loss can be negative declares its own metric `loss`,
        with its bounds.
        """
        return ops.cross_entropy(output.logits, batch.targets, batch.weights)

    def chance_loss(self, spec: Spec) -> float:
        """The loss of a model that has learned nothing: by default ln V, of equal probabilities.

        A task with its own loss overrides this; NaN if there is no such level.
        """
        classes = self.classes(spec.model)
        return math.nan if classes is None else math.log(classes)

    def diverged(self, rows: Sequence[Row]) -> bool:
        """Whether a run counts as diverged: by default, if its last loss is not finite."""
        return not math.isfinite(rows[-1]["loss"])


@cache
def load(name: str) -> Task:
    """The task in the file of that name: its only subclass of Task."""
    module = _module(name)
    (task_class,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Task)
        and value.__module__ == module.__name__
    )
    return task_class()


def example_batch(spec: Spec) -> Batch:
    """A first batch that needs no files: the module's `noise_batch`, if any, else `batch`."""
    noise_batch = getattr(_module(spec.task), "noise_batch", None)
    return noise_batch(spec) if noise_batch else load(spec.task).batch(spec, 0)


def presentation(name: str) -> Presentation:
    """The presentation of the task in the file of that name."""
    return _module(name).PRESENTATION


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"fathom_study.tasks.{name}")


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
    """Every step metric: the metrics that all tasks share, then the metrics of each task."""
    return ChainMap(_own("step_metrics"), STEP_METRICS)


@cache
def run_metrics(of: tuple[str, ...] = TASKS) -> Mapping[str, RunMetric]:
    """Every run metric of these tasks, in the same order: the columns of cells.csv."""
    own = _own("step_metrics", of).items()
    once = {n: of_run(n, m) for n, m in own if m.when != "every step" and not m.along}
    return ChainMap(_own("run_metrics", of), once, RUN_METRICS)


@cache
def _own(
    kind: Literal["step_metrics", "run_metrics"], of: tuple[str, ...] = TASKS
) -> dict[str, Any]:
    """The metrics that these tasks declare. Tasks may share a metric, but not a name for two."""
    metrics: dict[str, Any] = {}
    for task in of:
        for name, metric in getattr(load(task), kind).items():
            if metrics.setdefault(name, metric) is not metric:
                raise ValueError(f"task {task}: another task has a metric {name!r}; rename one")
    return metrics


@cache
def averaged() -> dict[str, tuple[float, float]]:
    """Bounds of the run metrics whose mean over seeds is in summary.csv, by name."""
    return {name: bounds_of(name) for name, metric in run_metrics().items() if metric.averaged}


def bounds_of(run_metric: str) -> tuple[float, float]:
    """Bounds of every value of a run metric: the bounds of its step metric."""
    return step_metrics()[run_metrics()[run_metric].of].bounds


@cache
def times() -> tuple[str, ...]:
    """The run metrics that come from a clock; they have separate tables."""
    return tuple(n for n, m in run_metrics().items() if {m.of, m.times} & {*CLOCKS})


JUDGED_BY = Literal["held_out", "training_loss"]
"""Kinds of scores by which a study's results may be judged."""


def score_of(task: str, judged_by: JUDGED_BY = "held_out") -> Score:
    """The score by which results of a task are judged.

    `training_loss`, the mean loss over the last tenth of the steps, is for runs that were recorded
    before their task measured its score.
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


def summary_of(spec: Spec, rows: Sequence[Row]) -> Summary:
    """The summary of a run from its rows, of every step."""
    return Summary(diverged=load(spec.task).diverged(rows), metrics=summarise(rows, run_metrics()))


def outcome_of(
    spec: Spec, summary: Summary, judged_by: JUDGED_BY = "held_out"
) -> tuple[str, float | None]:
    """(one of OUTCOMES, the score) of a run: NaN if it is not finite, None if not measured."""
    score = score_of(spec.task, judged_by)
    value = None
    if score.metric in summary.metrics:
        measured = summary.metrics[score.metric]
        value = math.nan if measured is None else measured
    return outcome(summary.diverged, score, value, score.chance(spec)), value


# --- problems -----------------------------------------------------------------------------------


def trained_parameters(initial: Initial, like: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters of a trained plain network, for a network with parameters `like` these."""
    try:
        content = Path(initial.weights).read_bytes()
        values = load_safetensors(content)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{initial.weights}: cannot be read ({error})") from error
    if digits(content) != initial.digest:
        raise DataError(f"{initial.weights} differs from that of this training; convert it again")
    wanted = {n: p.shape for n, p in like.items() if not n.startswith("connection.")}
    if wanted != {name: value.shape for name, value in values.items()}:
        raise DataError(f"{initial.weights}: is not of the plain network of this spec")
    return values


class Problem:
    """Task, network, initial parameters, batches and loss of a spec, built once."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.task = load(spec.task)
        self.network = self.task.network(spec.model, spec.depth, spec.recipe, spec.connection)
        self.step_metrics = STEP_METRICS | self.task.step_metrics

    def initial_parameters(self) -> dict[str, np.ndarray]:
        """Float32 parameters by name: the same numbers for every backend.

        Raises DataError if the spec starts from a file that is missing, or another by now.
        """
        drawn = init.draw(self.network.parameters(), self.spec.seed)
        return drawn | trained_parameters(self.spec.initial, drawn) if self.spec.initial else drawn

    def batches(self, step: int) -> list[Batch]:
        """The batches of one step, with the connection's noise, if any. Raises TaskError."""
        spec, connection = self.spec, self.network.connection
        batches = []
        for number in range(step * spec.accumulate, (step + 1) * spec.accumulate):
            batch = self.task.batch(spec, number)
            batch.check(self.task.classes(spec.model))
            rng = np.random.default_rng([spec.seed, NOISE_STREAM, number])
            noise = connection.sample_noise(rng, step / spec.steps)
            if noise is not None:
                batch = replace(batch, inputs={**batch.inputs, "noise": noise})
            batches.append(batch)
        return batches

    def objective(self, ops: Ops) -> Callable[[dict[str, Array], Batch], tuple[Array, dict]]:
        """Function of (parameters, a batch on the device): (loss, reports for metrics)."""

        def loss_and_report(
            params: dict[str, Array], batch: Batch
        ) -> tuple[Array, dict[str, Array]]:
            output = self.network.forward(ops, params, batch.inputs)
            report = {"logits_finite": ops.all_finite(output.logits)}
            if output.mixed is not None:
                report |= mixing_reports(ops, output.mixed)
            return self.task.loss(ops, output, batch), report

        return loss_and_report

    def block_inputs(self, ops: Ops, params: dict[str, np.ndarray]) -> list[Array]:
        """The input of each block in a forward pass on the first batch, without dropout."""
        arrays = {name: ops.asarray(value) for name, value in params.items()}
        inputs = inference_inputs(self.task.batch(self.spec, 0).inputs)
        block_inputs: list[Array] = []
        on_device = {name: ops.asarray(value) for name, value in inputs.items()}
        recording(self.network, block_inputs).forward(ops, arrays, on_device)
        return block_inputs

    def at_start(self, ops: Ops, params: dict[str, np.ndarray]) -> Row:
        """The metrics of the untrained network; None for a metric without a value."""
        untrained = Untrained(self, ops, params)
        return self._measure("first step", lambda name: self.step_metrics[name].compute(untrained))

    def at_evaluation(self, ops: Ops, infer: Inference, *, is_last: bool) -> Row:
        """The metrics of an evaluation, and of the last step if `is_last`, that have a value."""
        trained = Trained(self, ops, infer)
        row = self._measure("evaluations", trained.value)
        if is_last:
            row |= self._measure("last step", trained.value)
        return {name: value for name, value in row.items() if value is not None}

    @np.errstate(all="ignore")  # infinities and NaN are valid measurements of a diverged network
    def _measure(self, when: str, value_of: Callable[[str], Any]) -> Row:
        row: Row = {}
        for name, metric in self.step_metrics.items():
            if metric.when == when:
                row |= flat(name, metric, value_of(name))
        return row
