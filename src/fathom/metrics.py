"""Metrics: what each is called, what it means, how it is drawn and how it is computed.

A step metric is a number of one training step, in a row of `metrics.jsonl`. Or it is a profile: a
number for each place along an axis, as the accuracy at each position, in `profiles.csv`. A run
metric is a number of a whole run, derived from its rows, in a column of `cells.csv` and (its mean
over seeds) of `summary.csv`. A score names the run metric that results are judged by. Here is what
all tasks have; a task declares its own in its file (`fathom.tasks.step_metrics()` has all of them).
The check of rows, the tables, axis labels and the tables in docs/definitions.md follow from these
entries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from typing import Any, Literal

import numpy as np

from fathom.models.gain import Gain, composite_gain
from fathom.settings import Registry

Row = dict[str, Any]
"""The metrics of one step."""

UNBOUNDED = (-math.inf, math.inf)
POSITIVE = (0.0, math.inf)
"""Of norms, losses, errors, times, counts: means and intervals over seeds are of the logarithm."""
SHARE = (0.0, 1.0)
COSINE = (-1.0, 1.0)


# --- step metrics ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """What the device measured in n steps, on the host, in float64."""

    loss: np.ndarray
    """[n]"""
    logits_finite: np.ndarray
    """[n]: whether every logit was."""
    grad_norms: np.ndarray
    """[n, P]: the L2 norm of the gradient of each parameter."""
    parameters: Sequence[str]
    """The P parameters' names."""
    reports: dict[str, np.ndarray]
    """What the network reported, [n, …]: see `fathom.models.connections.connection.MixingTrace`."""
    one_stream: bool
    """Whether nothing is mixed: the product of all mixing matrices is then the number one."""

    @cached_property
    def gain(self) -> Gain | None:
        """Gains [n] of the composite mixing; None where no such matrices mix the streams."""
        if "H_res" in self.reports:
            return composite_gain(self.reports["H_res"])
        if self.one_stream:
            return Gain(*(np.zeros(len(self.loss)) for _ in Gain._fields))
        return None

    @cached_property
    def gain_of_one(self) -> Gain | None:
        """Gains [n, T] at each position of one example; None where all have the same."""
        if "H_res_of_one" not in self.reports:
            return None
        return composite_gain(np.moveaxis(self.reports["H_res_of_one"], 1, 2))


ComputeSteps = Callable[[Steps], np.ndarray | None]
"""The values [n] of a metric of every step; None where a run has no such metric."""


@dataclass(frozen=True)
class StepMetric:
    """A number of one training step, or with `along` a profile."""

    label: str
    """For an axis, with the unit."""
    definition: str
    """For docs/definitions.md."""
    compute: Callable[[Any], Any] | None = None
    """Of every step: [n] values of n `Steps`. Of the first step: a number of a
    `fathom.tasks.Untrained` network. Otherwise: a number of a `fathom.tasks.Trained` one. None
    where a run has no such metric. Without a function the value comes from elsewhere: a report of
    that name, or the clock of the loop."""
    when: Literal["every step", "first step", "evaluations", "last step"] = "every step"
    whole: bool = False
    """A whole number; others are floats."""
    optional: bool = False
    """A run may have none: a row holds null, or lacks it."""
    bounds: tuple[float, float] = UNBOUNDED
    """Between which every value is by its nature, and so every interval over seeds. A run with a
    value outside is refused."""
    finite: bool = False
    """Whether every value is finite whatever becomes of the network, as a time or a share is. That
    of any other metric may be NaN or infinite once a run has diverged."""
    along: str = ""
    """Of a profile: the label of its axis, with the unit. `compute` then gives the numbers by their
    places, ascending; a row has each as `name[place]`. Only what is measured once can have one."""
    shown: str = ""
    """How a training shows it while it runs, as in 'loss {:.4g}'; empty: not at all."""

    @property
    def log(self) -> bool:
        """Whether it is drawn by its logarithm: if it is positive, and no count, which may be 0."""
        return self.bounds == POSITIVE and not self.whole

    def accepts(self, value: object) -> bool:
        """Whether a row may have the value."""
        if value is None:
            return self.optional
        low, high = self.bounds
        if self.whole:
            return type(value) is int and max(low, 0) <= value <= high and value < 2**53
        if type(value) is not float or LARGEST_VALUE < abs(value) < math.inf:
            return False
        if not math.isfinite(value) and self.finite:
            return False
        slack = ROUNDING if math.isfinite(high) else 0.0
        return math.isnan(value) or low - slack <= value <= high + slack

    @property
    def accepted(self) -> str:
        """What numbers a row may have, as in 'a finite number from 0 to inf'."""
        low, high = self.bounds
        kind = "whole " if self.whole else "finite " if self.finite else ""
        return f"a {kind}number from {max(low, 0) if self.whole else low:g} to {high:g}"


PLACE = re.compile(r"(\w+)\[([^][]+)\]")
"""The name of a number of a profile in a row: the metric's, and the place."""


def flat(name: str, metric: StepMetric, value: Any) -> Row:  # noqa: ANN401, what `compute` gives
    """What a row has of a metric: a number of its name, or one for each place of a profile."""
    if not metric.along or value is None:
        return {name: value}
    return {f"{name}[{place:g}]": float(number) for place, number in value.items()}


@lru_cache(4096)  # tables ask for every number of every row
def split_place(name: str) -> tuple[str, float | None]:
    """The metric and the place that a number in a row is of; None for no profile.

    Raises ValueError for a place that is no number.
    """
    found = PLACE.fullmatch(name)
    return (found[1], float(found[2])) if found else (name, None)


ROUNDING = 1e-5
"""How far a share or a cosine may pass its ends: float32 sums give 1.0000001."""

LARGEST_VALUE = 1e40
"""What a float32 network measures is less, even a norm over all its parameters, or is not finite.

Near the end of float64 no axis could be drawn.
"""


def loss(steps: Steps) -> np.ndarray:
    """The loss itself."""
    return steps.loss


def nonfinite_event(steps: Steps) -> np.ndarray:
    """1 where the loss or a logit is not finite, else 0."""
    return (~(np.isfinite(steps.loss) & steps.logits_finite)).astype(int)


def grad_norm(steps: Steps) -> np.ndarray:
    """L2 norm over all parameters."""
    return np.sqrt((steps.grad_norms**2).sum(axis=1))


def grad_norm_of(parameter: str) -> ComputeSteps:
    """The gradient norm of one parameter, in the runs that have it."""

    def norm(steps: Steps) -> np.ndarray | None:
        if parameter not in steps.parameters:
            return None
        return steps.grad_norms[:, list(steps.parameters).index(parameter)]

    return norm


def of_gain(name: str) -> ComputeSteps:
    """A field of the gain of the composite mixing."""

    def value(steps: Steps) -> np.ndarray | None:
        return None if steps.gain is None else getattr(steps.gain, name)

    return value


def of_gain_of_one(name: str) -> ComputeSteps:
    """The largest of a field of the gain over the positions of one example."""

    def value(steps: Steps) -> np.ndarray | None:
        return None if steps.gain_of_one is None else getattr(steps.gain_of_one, name).max(axis=1)

    return value


def of_report(name: str) -> Callable[[Callable[[np.ndarray], np.ndarray | None]], ComputeSteps]:
    """Makes a function of what the network reports by that name, [n, …], one of `Steps`.

    It has no value in runs without such a report.
    """

    def decorate(function: Callable[[np.ndarray], np.ndarray | None]) -> ComputeSteps:
        @wraps(function)  # its name is how the hash of the code finds it
        def compute(steps: Steps) -> np.ndarray | None:
            report = steps.reports.get(name)
            return None if report is None else function(report.astype(np.float64))

        return compute

    return decorate


@of_report("H_res")
def H_res_distance(H: np.ndarray) -> np.ndarray:  # noqa: N802, the paper's name
    """Mean |H_res − I| over layers and entries of [n, L, S, S]."""
    return np.abs(H - np.eye(H.shape[-1])).mean(axis=(1, 2, 3))


def readout_share_of(stream: int) -> ComputeSteps:
    """One stream's share of the output, in the runs that have it."""

    @of_report("readout_shares")
    def share(shares: np.ndarray) -> np.ndarray | None:
        return shares[:, stream] if stream < shares.shape[1] else None

    return share


@of_report("gates")
def gate_first(gates: np.ndarray) -> np.ndarray:
    """The gate of the first layer, of the gates [n, L] of all layers."""
    return gates[:, 0]


@of_report("gates")
def gate_mean(gates: np.ndarray) -> np.ndarray:
    """The mean over layers."""
    return gates.mean(axis=1)


@of_report("gates")
def gate_largest(gates: np.ndarray) -> np.ndarray:
    """The largest of all layers."""
    return gates.max(axis=1)


@of_report("base")
def base_row_error(base: np.ndarray) -> np.ndarray:
    """Mean |row sum − 1| of the matrices [n, 3, S, S] of the learned logits alone."""
    return np.abs(base.sum(axis=-1) - 1).mean(axis=(1, 2))


@of_report("base")
def base_column_error(base: np.ndarray) -> np.ndarray:
    """Mean |column sum − 1| of the same."""
    return np.abs(base.sum(axis=-2) - 1).mean(axis=(1, 2))


@of_report("base")
def base_diagonal(base: np.ndarray) -> np.ndarray:
    """Mean entry of the diagonal of the same."""
    return np.diagonal(base, axis1=-2, axis2=-1).mean(axis=(1, 2))


MATTERS = 0.01
"""A block matters if the score without it is worse by more than this share of the distance between
the score and that at chance."""


def score_without_block(trained: Any) -> Mapping[int, float] | None:  # noqa: ANN401, of a room above
    """By the number of the block, from 1; of studies that ask for it."""
    return trained.scores_without_block if trained.problem.spec.leave_out_blocks else None


def layers_that_matter(trained: Any) -> int | None:  # noqa: ANN401, likewise
    """How many, of studies that ask for it; None where the score is not finite."""
    return trained.layers_that_matter if trained.problem.spec.leave_out_blocks else None


BASE = (
    "of the matrices that the constraint makes of the learned logits alone, without a gate or a "
    "dynamic part; mean over the first, the middle and the last block"
)

MOST_SHARES = 8
"""So many streams have a metric of their share of the output each."""


STEP_METRICS = Registry(
    {
        "step": StepMetric("step", "number of the step, from 0", whole=True),
        "loss": StepMetric(
            "loss",
            "what training minimises, over the step's batch: the mean cross-entropy in nats, "
            "unless the task has a loss of its own",
            loss,
            bounds=POSITIVE,
            shown="loss {:.4g}",
        ),
        "grad_norm": StepMetric(
            "gradient norm (L2)",
            "L2 norm of all gradients together. The device gives one float32 norm per "
            "stacked parameter; the host squares and adds them in float64",
            grad_norm,
            bounds=POSITIVE,
            shown="grad norm {:.3g}",
        ),
        "nonfinite_event": StepMetric(
            "non-finite step",
            "1 if the loss or any logit is not finite, else 0. A gradient that is not finite "
            "is no event",
            nonfinite_event,
            whole=True,
            bounds=SHARE,
        ),
        **{
            f"grad_norm_{name}": StepMetric(
                f"gradient norm of {name} (L2)",
                "L2 norm of the gradient of the connection's parameter of that name, all layers",
                grad_norm_of(f"connection.{name}"),
                bounds=POSITIVE,
            )
            for name in (
                "H_pre",
                "H_post",
                "H_res",
                "mixing",
                "readout",
                "gate",
                "phi_pre",
                "phi_post",
                "phi_res",
                "b_pre",
                "b_post",
                "b_res",
                "alpha",
                "stream_embedding",
                "stream_scales",
                "readout_phi",
                "readout_alpha",
                "gain",
                "gate_down",
                "gate_up",
                "router_gain",
                "router",
                "predict",
                "correct",
                "open_projections",
                "close_projections",
                "stream_scale",
                "stream_bias",
                "output_scale",
                "output_bias",
                "input_scale",
                "input_bias",
            )
        },
        "stream_difference": StepMetric(
            "largest difference of streams",
            "largest `|x_s − x_0|` over streams and entries after the last layer, relative to the "
            "largest `|x|` there; 0: all streams are copies of one",
            bounds=POSITIVE,
        ),
        "stream_similarity": StepMetric(
            "similarity of streams",
            "mean cosine over pairs of streams and positions, after the last layer; 1: all point "
            "the same way",
            bounds=COSINE,
        ),
        **{
            f"readout_share_{stream}": StepMetric(
                f"share of stream {stream} in the output",
                "what the stream adds to the sum of streams that becomes the output, along that "
                "sum; the shares of all streams add up to 1",
                readout_share_of(stream),
            )
            for stream in range(MOST_SHARES)
        },
        "gain_proxy_log10_max_entry": StepMetric(
            "log10 of the largest entry\nof the product of H_res",
            "`log10` of the largest absolute entry of the composite; 0 for one stream",
            of_gain("max_entry"),
            shown="log10 gain {:.3g}",
        ),
        **{
            f"amax_{direction}_log10": StepMetric(
                f"log10 of the {direction} Amax gain",
                f"`log10` of the largest absolute {line} sum of the composite",
                of_gain(f"amax_{direction}"),
            )
            for direction, line in (("forward", "row"), ("backward", "column"))
        },
        **{
            f"{line}_error_log10": StepMetric(
                f"largest |log10 |{line} sum||\nof the product of H_res",
                f"how far the {line}s of the composite are from summing to one",
                of_gain(f"{line}_error"),
                bounds=POSITIVE,
            )
            for line in ("row", "column")
        },
        "amax_forward_largest_log10": StepMetric(
            "log10 of the largest forward Amax\nof a position",
            "dynamic connections: the largest forward Amax over the positions of the batch's first "
            "example, each with its own matrices",
            of_gain_of_one("amax_forward"),
        ),
        "amax_backward_largest_log10": StepMetric(
            "log10 of the largest backward Amax\nof a position",
            "the same, backward",
            of_gain_of_one("amax_backward"),
        ),
        **{
            f"base_{line}_error": StepMetric(
                f"mean |{line} sum − 1|\nof the learned matrices",
                f"mean |{line} sum − 1| {BASE}",
                error,
                bounds=POSITIVE,
            )
            for line, error in (("row", base_row_error), ("column", base_column_error))
        },
        "base_diagonal": StepMetric(
            "mean diagonal\nof the learned matrices",
            f"mean entry of the diagonal {BASE}",
            base_diagonal,
        ),
        "gate_first": StepMetric(
            "gate of the first layer",
            "g of the first function that a connection wraps, undisturbed",
            gate_first,
            bounds=SHARE,
        ),
        "gate_mean": StepMetric("mean gate", "g, mean over layers", gate_mean, bounds=SHARE),
        "gate_largest": StepMetric(
            "largest gate", "g, the largest of all layers", gate_largest, bounds=SHARE
        ),
        "stream_embedding_similarity": StepMetric(
            "similarity of the\nstream embedding",
            "mean cosine over pairs of the vectors that are added to the streams at first: a "
            "parameter, no activation",
            bounds=COSINE,
        ),
        "H_res_distance": StepMetric(
            "distance of H_res from the identity\n(mean |H_res − I|)",
            "distance of H_res from the identity: `|H_res − I|`, mean over layers and entries; "
            "where H_res is dynamic, of its means over positions. What it is at the first step is "
            "where the scheme starts, and nothing learned",
            H_res_distance,
            bounds=POSITIVE,
        ),
        "score_without_block": StepMetric(
            "score without the block",
            "the study's score of the network without one block: its functions add nothing; of "
            "studies with `leave_out_blocks`",
            score_without_block,
            when="last step",
            optional=True,
            along="block",
        ),
        "layers_that_matter": StepMetric(
            "layers that matter",
            f"how many blocks make the score worse by more than {100 * MATTERS:g} % of its "
            "distance to chance where they are left out",
            layers_that_matter,
            when="last step",
            whole=True,
            optional=True,
            bounds=(0.0, LARGEST_VALUE),  # a plain mean over seeds: not POSITIVE
        ),
        "nonfinite_total": StepMetric(
            "non-finite steps so far",
            "events up to and including this step",
            whole=True,
            bounds=POSITIVE,
        ),
        "step_seconds": StepMetric(
            "time of a step (s)", "wall time of the step; see below", bounds=POSITIVE, finite=True
        ),
        "elapsed_seconds": StepMetric(
            "time (s)",
            "sum of `step_seconds` so far, continued after an interruption",
            bounds=POSITIVE,
            finite=True,
        ),
    }
)
"""By the name that a row of `metrics.jsonl` has, in the order of a row."""

CLOCKS = ("step_seconds", "elapsed_seconds")
"""What the same training has otherwise whenever it is repeated."""


# --- run metrics -------------------------------------------------------------------------------


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """A step metric's values where rows have it; NaN for a null."""
    values = [row[name] for row in rows if name in row]
    return np.array([math.nan if v is None else v for v in values], dtype=float)


Statistic = Callable[[np.ndarray], float | None]


@dataclass(frozen=True)
class RunMetric:
    """A number of a whole run."""

    of: str
    """The step metric that it is derived from."""
    statistic: Statistic
    """From that metric's values, in order; None or NaN where there is no such number."""
    definition: str
    """For docs/definitions.md."""
    averaged: bool = True
    """Whether summary.csv has its mean over seeds."""
    always: bool = True
    """Whether its absence means that something was not finite, and not that a run has none: a
    report then says NaN, or none."""
    times: str | None = None
    """A step metric by whose last value the statistic is multiplied."""
    label: str = ""
    """For an axis, with the unit; without one, the step metric's label and the definition."""


LOSS_TAIL = "loss_tail"
"""The run metric that stands in for a score that was not measured."""

DIGITS = 9
"""Significant digits of what is computed from runs: as many as are the same on every processor."""


def significant(value: float) -> float:
    """A computed number without the digits that another processor may compute otherwise.

    Logarithms, powers and sums differ in the 16th digit from one library to the next.
    """
    return float(f"{value:.{DIGITS}g}")


def first(values: np.ndarray) -> float | None:
    """The first value."""
    return float(values[0]) if len(values) else None


def last(values: np.ndarray) -> float | None:
    """The last value."""
    return float(values[-1]) if len(values) else None


def moved(values: np.ndarray) -> float | None:
    """The amount by which the last value differs from the first."""
    return significant(abs(float(values[-1] - values[0]))) if len(values) else None


def tail_mean(values: np.ndarray) -> float | None:
    """The mean of the last tenth, at least of the last value."""
    return float(values[-max(1, len(values) // 10) :].mean()) if len(values) else None


def smallest(values: np.ndarray) -> float | None:
    """The smallest finite value."""
    return min((float(v) for v in values if math.isfinite(v)), default=None)


def largest(values: np.ndarray) -> float | None:
    """The largest finite value."""
    return max((float(v) for v in values if math.isfinite(v)), default=None)


def unsteadiness(values: np.ndarray) -> float | None:
    """How erratic a positive series is: the standard deviation of log10(x_t / x_{t−1}).

    A smooth decay has the same small ratio throughout; a spiky series does not. None if any value
    is not finite and positive, or there are fewer than two ratios.
    """
    if len(values) < 3 or not (np.isfinite(values) & (values > 0)).all():
        return None
    return significant(float(np.diff(np.log10(values)).std(ddof=1)))


def first_event(values: np.ndarray) -> float | None:
    """The position of the first value that is not zero."""
    found = np.flatnonzero(values)
    return int(found[0]) if len(found) else None


OF_RUN = {
    "first step": (first, "as in the first row"),
    "evaluations": (last, "of the last evaluation"),
    "last step": (last, "as after training"),
}
"""Which value of a metric that is not of every step is the run's, and how the docs say so."""


def of_run(name: str, metric: StepMetric) -> RunMetric:
    """The run metric that goes by the same name as a metric that is not of every step."""
    statistic, definition = OF_RUN[metric.when]
    return RunMetric(name, statistic, definition, always=not metric.optional)


def in_bits(statistic: Statistic) -> Statistic:
    """A statistic of nats, in bits."""

    def bits(values: np.ndarray) -> float | None:
        nats = statistic(values)
        return None if nats is None else nats / math.log(2)

    return bits


def median_after_first(values: np.ndarray) -> float:
    """The median without the first value, which includes compilation."""
    return float(np.median(values[1:] if len(values) > 1 else values))


RUN_METRICS = Registry(
    {
        "loss_first": RunMetric("loss", first, "loss of the first step"),
        "loss_final": RunMetric("loss", last, "loss of the last step"),
        "loss_min": RunMetric("loss", smallest, "smallest finite loss"),
        LOSS_TAIL: RunMetric("loss", tail_mean, "mean loss of the last tenth of the steps"),
        "grad_norm_first": RunMetric("grad_norm", first, "gradient norm of the first step"),
        "grad_norm_final": RunMetric("grad_norm", last, "gradient norm of the last step"),
        "grad_norm_max": RunMetric("grad_norm", largest, "largest finite gradient norm"),
        "grad_norm_log10_sd": RunMetric(
            "grad_norm",
            unsteadiness,
            label="unsteadiness of the gradient norm\n(standard deviation of log10 ratios)",
            definition="how unsteady the norm is: the standard deviation (n − 1) of "
            "`log10(x_t / x_{t−1})` over steps. 0 for an exponential decay, whatever its rate. "
            "None if a norm is not finite or not positive, or with fewer than three steps",
        ),
        "seconds": RunMetric(
            "elapsed_seconds", last, "sum of `step_seconds`", label="time of all steps (s)"
        ),
        "gain_first": RunMetric("gain_proxy_log10_max_entry", first, "gain of the first step"),
        "gain_final": RunMetric("gain_proxy_log10_max_entry", last, "gain of the last step"),
        **{
            f"{name}_final": RunMetric(name, last, "of the last step", always=False)
            for name in (
                "amax_forward_log10",
                "amax_backward_log10",
                "row_error_log10",
                "column_error_log10",
                "amax_forward_largest_log10",
                "amax_backward_largest_log10",
                "H_res_distance",
                "stream_similarity",
                "stream_embedding_similarity",
                "gate_first",
                "gate_mean",
                "gate_largest",
                "base_row_error",
                "base_column_error",
                "base_diagonal",
            )
        },
        **{
            f"readout_share_{stream}_final": RunMetric(
                f"readout_share_{stream}", last, "of the last step", averaged=False, always=False
            )
            for stream in range(MOST_SHARES)
        },
        "H_res_moved": RunMetric(
            "H_res_distance",
            moved,
            "the last less the first, as an amount: H_res has moved at least so far from where it "
            "started, mean over layers and entries; 0: it learned nothing",
            always=False,
            label="movement of H_res since the start\n(change of mean |H_res − I|)",
        ),
        "layers_that_matter": RunMetric(
            "layers_that_matter", last, "as after training", always=False
        ),
        "nonfinite_total": RunMetric(
            "nonfinite_total", last, "number of non-finite steps", label="non-finite steps"
        ),
        "first_nonfinite_step": RunMetric(
            "nonfinite_event",
            first_event,
            "the first non-finite step",
            averaged=False,
            always=False,
        ),
        "seconds_per_step": RunMetric(
            "step_seconds",
            median_after_first,
            "median of `step_seconds` without the first step",
            label="median time of a step (s)",
        ),
        "stream_difference_max": RunMetric(
            "stream_difference", largest, "largest at any step", always=False
        ),
        "stream_similarity_min": RunMetric(
            "stream_similarity", smallest, "smallest at any step", always=False
        ),
        **{
            f"grad_norm_{name}_max": RunMetric(
                f"grad_norm_{name}", largest, "largest at any step", always=False
            )
            for name in ("H_pre", "H_post", "H_res")
        },
    }
)
"""By the name of their column in cells.csv and, with `_mean` and so on, in summary.csv."""


def summarise(
    rows: Sequence[Row], run_metrics: Mapping[str, RunMetric]
) -> dict[str, float | int | None]:
    """Every run metric of a run; None where it has none, or it is not finite."""
    found = {name: _of_run(entry, rows) for name, entry in run_metrics.items()}
    return {n: None if v is None or not math.isfinite(v) else v for n, v in found.items()}


def _of_run(metric: RunMetric, rows: Sequence[Row]) -> float | int | None:
    value = metric.statistic(column(rows, metric.of))
    if metric.times is None or value is None:
        return value
    factor = last(column(rows, metric.times))
    return None if factor is None else value * factor


# --- scores and outcomes ------------------------------------------------------------------------


@dataclass(frozen=True)
class Oracle:
    """A level that theory or counting gives, to set a score beside."""

    label: str
    """As in 'a trigram model'."""
    level: float | str
    """The level, or the run metric that holds it."""


@dataclass(frozen=True)
class Score:
    """The one number of a run that its results are judged by."""

    metric: str
    """The run metric, measured on held-out data."""
    label: str
    """For an axis and a sentence, as in 'validation loss'."""
    unit: str
    """As in 'bits per character'; empty for a share."""
    chance: Callable[[Any], float]
    """From the spec: the score of a model that has learned nothing."""
    better: Literal["lower", "higher"] = "lower"
    perfect: float = 0.0
    """The best there can be, whatever the data."""
    oracle: Oracle | None = None

    def progress(self, value: float, chance: float) -> float:
        """How far a score is on the way from chance (0) to perfect (1); 0 where they are equal."""
        way = self.perfect - chance
        return (value - chance) / way if way else 0.0


def measure_score(rows: Sequence[Row], metric: RunMetric) -> float | None:
    """A run's value of the metric that it is judged by: NaN if not finite, None if not measured."""
    if not any(metric.of in row for row in rows):
        return None
    value = _of_run(metric, rows)
    return math.nan if value is None else value


def score_midway(rows: Sequence[Row], metric: RunMetric) -> float | None:
    """The score as it stood when half of the steps were done, or at the next evaluation.

    None if that is the last one, or not finite.
    """
    measured = [i for i, row in enumerate(rows, 1) if metric.of in row]
    midway = next((i for i in measured if 2 * i >= len(rows)), len(rows))
    value = measure_score(rows[:midway], metric) if midway < len(rows) else None
    return value if value is not None and math.isfinite(value) else None


OUTCOMES = ("learned", "at chance", "diverged", "not scored")

LEARNED = 0.05
"""A score that has come so far from chance to perfect counts as learned."""


def outcome(diverged: bool, score: Score, value: float | None, chance: float) -> str:
    """One of OUTCOMES: what became of a run.

    `diverged`: what its task says; `value`: its score, None where it was not measured. A score
    that is not finite is that of a diverged run.
    """
    if diverged or (value is not None and not math.isfinite(value)):
        return "diverged"
    if value is None:
        return "not scored"
    return "learned" if score.progress(value, chance) >= LEARNED else "at chance"
