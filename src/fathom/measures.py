"""Every measure: what it is called, what it means, how it is drawn and how it is computed.

A step measure is a number of one training step, in a row of `metrics.jsonl`. A run measure is a
number of a whole run, derived from its rows, in a column of `cells.csv` and (its mean over seeds)
of `summary.csv`. An entry here is all that a measure needs beside the function that computes it:
the check of rows, the tables, axis labels and the table in docs/definitions.md follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fathom.models.gain import Gain, composite_gain
from fathom.settings import Registry

Row = dict[str, Any]
"""The measures of one step."""

UNBOUNDED = (-math.inf, math.inf)
POSITIVE = (0.0, math.inf)
"""Of norms, losses, errors, times, counts: means and intervals over seeds are of the logarithm."""
SHARE = (0.0, 1.0)
COSINE = (-1.0, 1.0)


# --- step measures ------------------------------------------------------------------------------


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
    """What the network reported, [n, …]: see `fathom.models.connections.connection.Mixed`."""
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


@dataclass(frozen=True)
class StepMeasure:
    """A number of one training step."""

    label: str
    """For an axis, with the unit."""
    definition: str
    """For docs/definitions.md."""
    compute: Callable[[Steps], np.ndarray | None] | None = None
    """[n] values of n steps; None where a run has no such measure. Without a function the value
    comes from elsewhere: a report of that name, the task, or the clock of the loop."""
    when: Literal["every step", "first step", "evaluations", "last step"] = "every step"
    whole: bool = False
    """A whole number; others are floats."""
    optional: bool = False
    """A row may hold it without a value (null)."""
    bounds: tuple[float, float] = UNBOUNDED
    """Between which every value is by its nature, and so every interval over seeds."""
    shown: str = ""
    """How a training shows it while it runs, as in 'loss {:.4g}'; empty: not at all."""

    @property
    def log(self) -> bool:
        """Whether it is drawn by its logarithm: if it is positive, and no count, which may be 0."""
        return self.bounds == POSITIVE and not self.whole


def loss(steps: Steps) -> np.ndarray:
    """The loss itself."""
    return steps.loss


def nonfinite_event(steps: Steps) -> np.ndarray:
    """1 where the loss or a logit is not finite, else 0."""
    return (~(np.isfinite(steps.loss) & steps.logits_finite)).astype(int)


def grad_norm(steps: Steps) -> np.ndarray:
    """L2 norm over all parameters."""
    return np.sqrt((steps.grad_norms**2).sum(axis=1))


def grad_norm_of(parameter: str) -> Callable[[Steps], np.ndarray | None]:
    """The gradient norm of one parameter, in the runs that have it."""

    def norm(steps: Steps) -> np.ndarray | None:
        if parameter not in steps.parameters:
            return None
        return steps.grad_norms[:, list(steps.parameters).index(parameter)]

    return norm


def of_gain(name: str) -> Callable[[Steps], np.ndarray | None]:
    """A field of the gain of the composite mixing."""

    def value(steps: Steps) -> np.ndarray | None:
        return None if steps.gain is None else getattr(steps.gain, name)

    return value


def of_gain_of_one(name: str) -> Callable[[Steps], np.ndarray | None]:
    """The largest of a field of the gain over the positions of one example."""

    def value(steps: Steps) -> np.ndarray | None:
        return None if steps.gain_of_one is None else getattr(steps.gain_of_one, name).max(axis=1)

    return value


def H_res_distance(steps: Steps) -> np.ndarray | None:  # noqa: N802, the paper's name
    """Mean |H_res − I| over layers and entries."""
    if "H_res" not in steps.reports:
        return None
    H = steps.reports["H_res"].astype(np.float64)
    return np.abs(H - np.eye(H.shape[-1])).mean(axis=(1, 2, 3))


def readout_share_of(stream: int) -> Callable[[Steps], np.ndarray | None]:
    """One stream's share of the output, in the runs that have it."""

    def share(steps: Steps) -> np.ndarray | None:
        shares = steps.reports.get("readout_shares")
        return None if shares is None or stream >= shares.shape[1] else shares[:, stream]

    return share


def of_gates(statistic: Callable[[np.ndarray], np.ndarray]) -> Callable[[Steps], np.ndarray | None]:
    """A statistic of the gates [n, L] of all layers, in the runs that have them."""

    def value(steps: Steps) -> np.ndarray | None:
        gates = steps.reports.get("gates")
        return None if gates is None else statistic(gates.astype(np.float64))

    return value


def of_base(statistic: Callable[[np.ndarray], np.ndarray]) -> Callable[[Steps], np.ndarray | None]:
    """The mean of a statistic of the matrices [n, 3, S, S] of the learned logits alone."""

    def value(steps: Steps) -> np.ndarray | None:
        base = steps.reports.get("base")
        return None if base is None else statistic(base.astype(np.float64)).mean(axis=(1, 2))

    return value


BASE = (
    "of the matrices that the constraint makes of the learned logits alone, without a gate or a "
    "dynamic part; mean over the first, the middle and the last block"
)

MOST_SHARES = 8
"""So many streams have a measure of their share of the output each."""


STEP_MEASURES = Registry(
    {
        "step": StepMeasure("step", "number of the step, from 0", whole=True),
        "loss": StepMeasure(
            "loss (nats)",
            "mean cross-entropy of the step's batch, in nats",
            loss,
            bounds=POSITIVE,
            shown="loss {:.4g}",
        ),
        "grad_norm": StepMeasure(
            "gradient norm (L2)",
            "L2 norm of all gradients together. The device gives one float32 norm per "
            "stacked parameter; the host squares and adds them in float64",
            grad_norm,
            bounds=POSITIVE,
            shown="grad norm {:.3g}",
        ),
        "nonfinite_event": StepMeasure(
            "non-finite step",
            "1 if the loss or any logit is not finite, else 0. A gradient that is not finite "
            "is no event",
            nonfinite_event,
            whole=True,
        ),
        **{
            f"grad_norm_{name}": StepMeasure(
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
            )
        },
        "grad_norm_stem": StepMeasure(
            "gradient norm of the\nfirst weight (L2)",
            "L2 norm of the gradient of the stem's weight",
            grad_norm_of("stem.weight"),
            bounds=POSITIVE,
        ),
        "stream_difference": StepMeasure(
            "largest difference of streams",
            "largest `|x_s − x_0|` over streams and entries after the last layer, relative to the "
            "largest `|x|` there; 0: all streams are copies of one",
            bounds=POSITIVE,
        ),
        "stream_similarity": StepMeasure(
            "similarity of streams",
            "mean cosine over pairs of streams and positions, after the last layer; 1: all point "
            "the same way",
            bounds=COSINE,
        ),
        **{
            f"readout_share_{stream}": StepMeasure(
                f"share of stream {stream} in the output",
                "what the stream adds to the sum of streams that becomes the output, along that "
                "sum; the shares of all streams add up to 1",
                readout_share_of(stream),
            )
            for stream in range(MOST_SHARES)
        },
        "gain_proxy_log10_max_entry": StepMeasure(
            "log10 of the largest entry\nof the product of H_res",
            "`log10` of the largest absolute entry of the composite; 0 for one stream",
            of_gain("max_entry"),
            shown="log10 gain {:.3g}",
        ),
        "amax_forward_log10": StepMeasure(
            "log10 of the forward Amax gain",
            "`log10` of the largest absolute row sum of the composite",
            of_gain("amax_forward"),
        ),
        "amax_backward_log10": StepMeasure(
            "log10 of the backward Amax gain",
            "`log10` of the largest absolute column sum of the composite",
            of_gain("amax_backward"),
        ),
        "row_error_log10": StepMeasure(
            "largest |log10 |row sum||\nof the product of H_res",
            "how far the rows of the composite are from summing to one",
            of_gain("row_error"),
            bounds=POSITIVE,
        ),
        "column_error_log10": StepMeasure(
            "largest |log10 |column sum||\nof the product of H_res",
            "how far the columns of the composite are from summing to one",
            of_gain("column_error"),
            bounds=POSITIVE,
        ),
        "amax_forward_largest_log10": StepMeasure(
            "log10 of the largest forward Amax\nof a position",
            "dynamic connections: the largest forward Amax over the positions of the batch's first "
            "example, each with its own matrices",
            of_gain_of_one("amax_forward"),
        ),
        "amax_backward_largest_log10": StepMeasure(
            "log10 of the largest backward Amax\nof a position",
            "the same, backward",
            of_gain_of_one("amax_backward"),
        ),
        "base_row_error": StepMeasure(
            "mean |row sum − 1|\nof the learned matrices",
            f"mean |row sum − 1| {BASE}",
            of_base(lambda base: np.abs(base.sum(axis=-1) - 1)),
            bounds=POSITIVE,
        ),
        "base_column_error": StepMeasure(
            "mean |column sum − 1|\nof the learned matrices",
            f"mean |column sum − 1| {BASE}",
            of_base(lambda base: np.abs(base.sum(axis=-2) - 1)),
            bounds=POSITIVE,
        ),
        "base_diagonal": StepMeasure(
            "mean diagonal\nof the learned matrices",
            f"mean entry of the diagonal {BASE}",
            of_base(lambda base: np.diagonal(base, axis1=-2, axis2=-1)),
        ),
        "gate_first": StepMeasure(
            "gate of the first layer",
            "g of the first function that a connection wraps, undisturbed",
            of_gates(lambda gates: gates[:, 0]),
            bounds=SHARE,
        ),
        "gate_mean": StepMeasure(
            "mean gate",
            "g, mean over layers",
            of_gates(lambda gates: gates.mean(axis=1)),
            bounds=SHARE,
        ),
        "gate_largest": StepMeasure(
            "largest gate",
            "g, the largest of all layers",
            of_gates(lambda gates: gates.max(axis=1)),
            bounds=SHARE,
        ),
        "stream_embedding_similarity": StepMeasure(
            "similarity of the\nstream embedding",
            "mean cosine over pairs of the vectors that are added to the streams at first: a "
            "parameter, no activation",
            bounds=COSINE,
        ),
        "H_res_distance": StepMeasure(
            "mean |H_res − I|",
            "mean over layers and entries; where H_res is dynamic, of its means over positions",
            H_res_distance,
            bounds=POSITIVE,
        ),
        "activation_max_log10": StepMeasure(
            "log10 of the largest activation",
            "`log10` of the largest activation that enters any block",
            when="first step",
        ),
        "overflow_layer": StepMeasure(
            "first block whose norm overflows",
            "the first block, from 0, whose input has, in float64, a variance above the largest "
            "float32, so that its first layer norm overflows; null if there is none",
            when="first step",
            whole=True,
            optional=True,
            bounds=POSITIVE,
        ),
        "overflow_activation_log10": StepMeasure(
            "log10 of the largest activation there",
            "`log10` of the largest activation that enters that block",
            when="first step",
            optional=True,
        ),
        "overflow_depth": StepMeasure(
            "first block with a non-finite input",
            "in a network of 100 layers, otherwise the cell's, at its initial parameters and "
            "on its first batch, the first block, from 0, with an input not finite; null if none",
            when="first step",
            whole=True,
            optional=True,
            bounds=POSITIVE,
        ),
        **{
            f"{name}_bpc": StepMeasure(
                f"{name} (bits per character)",
                f"bits per character of the held-out text for a {name} model, counted on the "
                "training text",
                when="first step",
                bounds=POSITIVE,
            )
            for name in ("unigram", "bigram", "trigram")
        },
        "validation_loss": StepMeasure(
            "validation loss (nats)",
            "mean cross-entropy on the held-out windows, in nats",
            when="evaluations",
            shown="validation {:.4g}",
            bounds=POSITIVE,
        ),
        "characters_per_byte": StepMeasure(
            "characters per byte",
            "of the held-out text in UTF-8",
            when="last step",
            bounds=POSITIVE,
        ),
        "nonfinite_total": StepMeasure(
            "non-finite steps so far",
            "events up to and including this step",
            whole=True,
            bounds=POSITIVE,
        ),
        "step_seconds": StepMeasure(
            "time of a step (s)", "wall time of the step; see below", bounds=POSITIVE
        ),
        "elapsed_seconds": StepMeasure(
            "time (s)",
            "sum of `step_seconds` so far, continued after an interruption",
            bounds=POSITIVE,
        ),
        "test_accuracy": StepMeasure(
            "test accuracy",
            "share of all test images whose largest logit is their class; logits that are not "
            "finite name none",
            when="last step",
            shown="test accuracy {:.4f}",
            bounds=SHARE,
        ),
        "mixing_row_error": StepMeasure(
            "largest |row sum − 1|",
            "causal connections: largest distance from 1 of a row's sum of the whole matrix",
            when="last step",
            bounds=POSITIVE,
        ),
        "mixing_column_error": StepMeasure(
            "largest |column sum − 1|",
            "the same of a column's sum",
            when="last step",
            bounds=POSITIVE,
        ),
        "weights_column_error": StepMeasure(
            "largest |column sum − 1|\nof the weights read with",
            "causal connections: the same of the weights that layers read with, whose rows sum "
            "to one",
            when="last step",
            bounds=POSITIVE,
        ),
        "weights_difference": StepMeasure(
            "largest difference from unconstrained weights",
            "causal connections: the largest difference of a weight that layers read with from "
            "what exp alone makes of the same logits; 0 without a constraint",
            when="last step",
            bounds=POSITIVE,
        ),
    }
)
"""By the name that a row of `metrics.jsonl` has, in the order of a row."""


# --- run measures -------------------------------------------------------------------------------


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """A step measure's values where rows have it; NaN for a null."""
    values = [row[name] for row in rows if name in row]
    return np.array([math.nan if v is None else v for v in values], dtype=float)


Statistic = Callable[[np.ndarray], float | None]


@dataclass(frozen=True)
class RunMeasure:
    """A number of a whole run."""

    of: str
    """The step measure that it is derived from."""
    statistic: Statistic
    """From that measure's values, in order; None or NaN where there is no such number."""
    definition: str
    """For docs/definitions.md."""
    averaged: bool = True
    """Whether summary.csv has its mean over seeds."""
    always: bool = True
    """Whether its absence means that something was not finite, and not that a run has none: a
    report then says NaN, or none."""
    times: str | None = None
    """A step measure by whose last value the statistic is multiplied."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Those of the step measure: a statistic of what is positive is positive."""
        return STEP_MEASURES[self.of].bounds


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


def in_bits(statistic: Statistic) -> Statistic:
    """A statistic of nats, in bits."""

    def bits(values: np.ndarray) -> float | None:
        nats = statistic(values)
        return None if nats is None else nats / math.log(2)

    return bits


def median_after_first(values: np.ndarray) -> float:
    """The median without the first value, which includes compilation."""
    return float(np.median(values[1:] if len(values) > 1 else values))


RUN_MEASURES = Registry(
    {
        "loss_first": RunMeasure("loss", first, "loss of the first step"),
        "loss_final": RunMeasure("loss", last, "loss of the last step"),
        "loss_min": RunMeasure("loss", smallest, "smallest finite loss"),
        "grad_norm_first": RunMeasure("grad_norm", first, "gradient norm of the first step"),
        "grad_norm_final": RunMeasure("grad_norm", last, "gradient norm of the last step"),
        "grad_norm_max": RunMeasure("grad_norm", largest, "largest finite gradient norm"),
        "grad_norm_log10_sd": RunMeasure(
            "grad_norm",
            unsteadiness,
            "how unsteady the norm is: the standard deviation (n − 1) of "
            "`log10(x_t / x_{t−1})` over steps. 0 for an exponential decay, whatever its rate. "
            "None if a norm is not finite or not positive, or with fewer than three steps",
        ),
        "test_accuracy": RunMeasure(
            "test_accuracy", last, "accuracy on the test set after training"
        ),
        "mixing_row_error": RunMeasure(
            "mixing_row_error",
            last,
            "largest distance of a row sum from one after training",
            always=False,
        ),
        "mixing_column_error": RunMeasure(
            "mixing_column_error",
            last,
            "largest distance of a column sum from one after training",
            always=False,
        ),
        "weights_column_error": RunMeasure(
            "weights_column_error", last, "as after training", always=False
        ),
        "weights_difference": RunMeasure(
            "weights_difference", last, "as after training", always=False
        ),
        "grad_norm_stem_max": RunMeasure(
            "grad_norm_stem", largest, "largest finite gradient norm of the first weight"
        ),
        "seconds": RunMeasure("elapsed_seconds", last, "sum of `step_seconds`"),
        "gain_first": RunMeasure("gain_proxy_log10_max_entry", first, "gain of the first step"),
        "gain_final": RunMeasure("gain_proxy_log10_max_entry", last, "gain of the last step"),
        **{
            f"{name}_final": RunMeasure(name, last, "of the last step", always=False)
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
            f"{name}_bpc": RunMeasure(f"{name}_bpc", first, "as in the first row", always=False)
            for name in ("unigram", "bigram", "trigram")
        },
        "validation_bpc": RunMeasure(
            "validation_loss",
            in_bits(last),
            "bits per character of the last evaluation",
        ),
        "validation_bpc_min": RunMeasure(
            "validation_loss", in_bits(smallest), "the same of the best evaluation"
        ),
        "validation_bpb": RunMeasure(
            "validation_loss",
            in_bits(last),
            "bits per byte of the last evaluation",
            times="characters_per_byte",
        ),
        "characters_per_byte": RunMeasure("characters_per_byte", last, "as after training"),
        **{
            f"readout_share_{stream}_final": RunMeasure(
                f"readout_share_{stream}", last, "of the last step", averaged=False, always=False
            )
            for stream in range(MOST_SHARES)
        },
        "nonfinite_total": RunMeasure("nonfinite_total", last, "number of non-finite steps"),
        "first_nonfinite_step": RunMeasure(
            "nonfinite_event",
            first_event,
            "the first non-finite step",
            averaged=False,
            always=False,
        ),
        "seconds_per_step": RunMeasure(
            "step_seconds", median_after_first, "median of `step_seconds` without the first step"
        ),
        "activation_max_log10": RunMeasure("activation_max_log10", first, "as in the first row"),
        "overflow_layer": RunMeasure("overflow_layer", first, "as in the first row", always=False),
        "overflow_activation_log10": RunMeasure(
            "overflow_activation_log10", first, "as in the first row", always=False
        ),
        "overflow_depth": RunMeasure("overflow_depth", first, "as in the first row", always=False),
        "stream_difference_max": RunMeasure(
            "stream_difference", largest, "largest at any step", always=False
        ),
        "stream_similarity_min": RunMeasure(
            "stream_similarity", smallest, "smallest at any step", always=False
        ),
        **{
            f"grad_norm_{name}_max": RunMeasure(
                f"grad_norm_{name}", largest, "largest at any step", always=False
            )
            for name in ("H_pre", "H_post", "H_res")
        },
    }
)
"""By the name of their column in cells.csv and, with `_mean` and so on, in summary.csv."""

AVERAGED = tuple(name for name, measure in RUN_MEASURES.items() if measure.averaged)
"""The columns of summary.csv: what is averaged over seeds."""


def summarise(rows: Sequence[Row]) -> dict[str, float | int | None]:
    """Every run measure of a run; None where it has none, or it is not finite."""
    found = {name: _of_run(entry, rows) for name, entry in RUN_MEASURES.items()}
    return {name: value if _is_finite(value) else None for name, value in found.items()}


def _of_run(measure: RunMeasure, rows: Sequence[Row]) -> float | int | None:
    value = measure.statistic(column(rows, measure.of))
    if measure.times is None or value is None:
        return value
    factor = last(column(rows, measure.times))
    return None if factor is None else value * factor


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


LARGEST_VALUE = 1e40
"""What a float32 network measures is less, even a norm over all its parameters, or is not finite.

Near the end of float64 no axis could be drawn.
"""


def is_step_value(name: str, value: object) -> bool:
    """Whether a row may have the value under the name."""
    measure = STEP_MEASURES.get(name)
    if measure is None:
        return False
    if value is None:
        return measure.optional
    if measure.whole:
        return type(value) is int and 0 <= value < 2**53
    return type(value) is float and not LARGEST_VALUE < abs(value) < math.inf


# --- outcome ------------------------------------------------------------------------------------

EXPLODED_GRADIENT = 1e6
"""A gradient norm of the image network's first weight above this counts as diverged."""

AT_CHANCE = 0.95
"""A final loss above this fraction of the chance level counts as not having learned."""


def outcome(rows: Sequence[Row], chance_loss: float) -> str:
    """`diverged` (not a number, or an exploded gradient), `at chance` (not learned) or `learned`.

    `chance_loss`: the loss, in nats, of a model that has learned nothing.
    """
    final_loss = rows[-1]["loss"]
    stem_norms = [row["grad_norm_stem"] for row in rows if "grad_norm_stem" in row]
    if not (math.isfinite(final_loss) and max(stem_norms, default=0.0) <= EXPLODED_GRADIENT):
        return "diverged"
    return "at chance" if final_loss > AT_CHANCE * chance_loss else "learned"
