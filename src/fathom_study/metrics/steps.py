"""Metrics of a training step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np

from fathom.settings import Registry
from fathom_study.models.gain import Gain, composite_gain

Row = dict[str, Any]
"""The metrics of one step."""

UNBOUNDED = (-math.inf, math.inf)
POSITIVE = (0.0, math.inf)
"""Bounds of norms, losses, errors, times, counts: statistics over seeds are of the logarithm."""
SHARE = (0.0, 1.0)
COSINE = (-1.0, 1.0)


@dataclass(frozen=True)
class Steps:
    """Measurements of n steps by the device, on the host, in float64."""

    loss: np.ndarray
    """[n]"""
    logits_finite: np.ndarray
    """[n]: whether every logit is finite."""
    grad_norms: np.ndarray
    """[n, P]: the L2 norm of the gradient of each parameter."""
    parameters: Sequence[str]
    """The P parameters' names."""
    reports: dict[str, np.ndarray]
    """Reports of the network, [n, …]: see `fathom.connections.connection.MixingTrace`."""
    one_stream: bool
    """Whether nothing is mixed; the product of all mixing matrices is then the number one."""

    @cached_property
    def gain(self) -> Gain | None:
        """Gains [n] of the composite mixing; None if no such matrices mix the streams."""
        if "H_res" in self.reports:
            return composite_gain(self.reports["H_res"])
        if self.one_stream:
            return Gain(*(np.zeros(len(self.loss)) for _ in Gain._fields))
        return None

    @cached_property
    def gain_of_one(self) -> Gain | None:
        """Gains [n, T] at each position of one example; None if all positions have the same."""
        if "H_res_of_one" not in self.reports:
            return None
        return composite_gain(np.moveaxis(self.reports["H_res_of_one"], 1, 2))


ComputeSteps = Callable[[Steps], np.ndarray | None]
"""The values [n] of a metric of every step; None if a run has no such metric."""


@dataclass(frozen=True)
class StepMetric:
    """A number of one training step, or with `along` a profile."""

    label: str
    """Axis label, with the unit."""
    definition: str
    """For docs/definitions."""
    compute: Callable[[Any], Any] | None = None
    """For every step: n values [n] from `Steps`. For the first step: a number from a
    `tasks.Untrained` network. Otherwise: a number from a `tasks.Trained` network. It returns
    None if a run has no such metric. Without a function, the value is a report of that name or
    comes from the clock of the loop."""
    when: Literal["every step", "first step", "evaluations", "last step"] = "every step"
    whole: bool = False
    """A whole number; others are floats."""
    optional: bool = False
    """A run may have none: a row holds null, or lacks it."""
    bounds: tuple[float, float] = UNBOUNDED
    """Bounds of every possible value, and so of every interval over seeds. A run with a value
    outside is refused."""
    finite: bool = False
    """Whether every value is finite even after divergence, as a time or a share is. Values of any
    other metric may be NaN or infinite once a run has diverged."""
    along: str = ""
    """Axis label of a profile, with the unit. `compute` then returns the numbers by place,
    ascending; a row has each as `name[place]`. Only metrics measured once can be profiles."""
    shown: str = ""
    """Format for the progress of a training, as in 'loss {:.4g}'; empty: not shown."""

    @property
    def log(self) -> bool:
        """Whether it is drawn by its logarithm: if positive and not a count, which may be 0."""
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
        slack = BOUNDS_TOLERANCE if math.isfinite(high) else 0.0
        return math.isnan(value) or low - slack <= value <= high + slack

    @property
    def accepted(self) -> str:
        """The numbers that a row may have, as in 'a finite number from 0 to inf'."""
        low, high = self.bounds
        kind = "whole " if self.whole else "finite " if self.finite else ""
        return f"a {kind}number from {max(low, 0) if self.whole else low:g} to {high:g}"


held_out_loss = partial(StepMetric, when="evaluations", bounds=POSITIVE)
held_out_accuracy = partial(StepMetric, when="evaluations", bounds=SHARE, finite=True)
"""Metrics of a task's loss and accuracy on held-out data."""

PLACE = re.compile(r"(\w+)\[([^][]+)\]")
"""Name in a row of a number of a profile: the metric's name and the place."""


def flat(name: str, metric: StepMetric, value: Any) -> Row:  # noqa: ANN401, result of `compute`
    """Entries of a metric in a row: one under its name, or one for each place of a profile."""
    if not metric.along or value is None:
        return {name: value}
    return {f"{name}[{place:g}]": float(number) for place, number in value.items()}


@lru_cache(4096)  # tables call it for every number of every row
def split_place(name: str) -> tuple[str, float | None]:
    """(metric, place) of a number in a row; the place is None unless it is part of a profile.

    Raises ValueError for a place that is not a number.
    """
    match = PLACE.fullmatch(name)
    return (match[1], float(match[2])) if match else (name, None)


BOUNDS_TOLERANCE = 1e-5
"""Tolerance at finite bounds: float32 sums give a share of 1.0000001."""

LARGEST_VALUE = 1e40
"""Upper bound of finite float32 measurements, also of norms; beyond it no axis could be drawn."""


def grad_norm_of(parameter: str) -> ComputeSteps:
    """The gradient norm of one parameter, in the runs that have it."""

    def norm(steps: Steps) -> np.ndarray | None:
        if parameter not in steps.parameters:
            return None
        return steps.grad_norms[:, list(steps.parameters).index(parameter)]

    return norm


def of_gain(name: str) -> ComputeSteps:
    """A field of the gain of the composite mixing."""
    return lambda steps: None if steps.gain is None else getattr(steps.gain, name)


def of_gain_of_one(name: str) -> ComputeSteps:
    """The maximum of a field of the gain over the positions of one example."""

    def value(steps: Steps) -> np.ndarray | None:
        return None if steps.gain_of_one is None else getattr(steps.gain_of_one, name).max(axis=1)

    return value


def of_report(name: str, function: Callable[[np.ndarray], np.ndarray | None]) -> ComputeSteps:
    """A function of the network's report `name`, [n, …] in float64, in the runs that have it."""

    def value(steps: Steps) -> np.ndarray | None:
        report = steps.reports.get(name)
        return None if report is None else function(report.astype(np.float64))

    return value


def readout_share_of(stream: int) -> ComputeSteps:
    """One stream's share of the output, in the runs that have it."""
    return of_report(
        "readout_shares", lambda shares: shares[:, stream] if stream < shares.shape[1] else None
    )


def base_error(axis: int) -> ComputeSteps:
    """Mean |sum − 1| along an axis of the matrices [n, 3, S, S] of the learned logits alone."""
    return of_report("base", lambda base: np.abs(base.sum(axis=axis) - 1).mean(axis=(1, 2)))


MATTERS = 0.01
"""A block matters if the score without it is worse by more than this share of the distance between
the score and chance."""


def score_without_block(trained: Any) -> Mapping[int, float] | None:  # noqa: ANN401, upper layer
    """Score without each block, by block number from 1; None without `leave_out_blocks`."""
    return trained.scores_without_block if trained.problem.spec.leave_out_blocks else None


def layers_that_matter(trained: Any) -> int | None:  # noqa: ANN401, upper layer
    """Number of blocks that matter; None without `leave_out_blocks` or a finite score."""
    return trained.layers_that_matter if trained.problem.spec.leave_out_blocks else None


BASE = (
    "of the matrices that the constraint makes from the learned logits alone, without a gate or a "
    "dynamic part; mean over the first, the middle and the last block"
)

MOST_SHARES = 8
"""Number of streams that have a metric of their share of the output."""

MEASURED_PARAMETERS = (
    "H_pre", "H_post", "H_res", "mixing", "readout", "gate", "phi_pre", "phi_post", "phi_res",
    "b_pre", "b_post", "b_res", "alpha", "stream_embedding", "readout_phi",
    "readout_alpha", "gain", "gate_down", "gate_up", "router_gain", "router", "predict", "correct",
    "open_projections", "close_projections", "stream_scale", "stream_bias", "output_scale",
    "output_bias", "input_scale", "input_bias",
)  # fmt: skip
"""Parameters of connections whose gradient norm is a metric each."""

STEP_METRICS = Registry(
    {
        "step": StepMetric("step", "number of the step, from 0", whole=True),
        "loss": StepMetric(
            "loss",
            "training loss on the step's batch: the mean cross-entropy in nats, unless the task "
            "has a loss of its own",
            lambda steps: steps.loss,
            bounds=POSITIVE,
            shown="loss {:.4g}",
        ),
        "grad_norm": StepMetric(
            "gradient norm (L2)",
            "L2 norm of all gradients together. The device gives one float32 norm per "
            "stacked parameter; the host squares and adds them in float64",
            lambda steps: np.sqrt((steps.grad_norms**2).sum(axis=1)),
            bounds=POSITIVE,
            shown="grad norm {:.3g}",
        ),
        "nonfinite_event": StepMetric(
            "non-finite step",
            "1 if the loss or any logit is not finite, else 0. A non-finite gradient does not "
            "count",
            lambda steps: (~(np.isfinite(steps.loss) & steps.logits_finite)).astype(int),
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
            for name in MEASURED_PARAMETERS
        },
        "stream_difference": StepMetric(
            "largest difference of streams",
            "largest `|x_s − x_0|` over streams and entries after the last layer, relative to the "
            "largest `|x|` there; 0: all streams are copies of one",
            bounds=POSITIVE,
        ),
        "stream_similarity": StepMetric(
            "similarity of streams",
            "mean cosine similarity over pairs of streams and positions, after the last layer; 1: "
            "all streams have the same direction",
            bounds=COSINE,
        ),
        **{
            f"readout_share_{stream}": StepMetric(
                f"share of stream {stream} in the output",
                "share of the stream's term in the output o, a sum over streams: "
                "`⟨term, o⟩ / ⟨o, o⟩`; the shares of all streams sum to 1",
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
                f"largest `|log10 |{line} sum||` of the composite; 0 if every {line} sums to one",
                of_gain(f"{line}_error"),
                bounds=POSITIVE,
            )
            for line in ("row", "column")
        },
        "amax_forward_largest_log10": StepMetric(
            "log10 of the largest forward Amax\nof a position",
            "dynamic connections: `log10` of the largest forward Amax over the positions of the "
            "batch's first example; each position has its own matrices",
            of_gain_of_one("amax_forward"),
        ),
        "amax_backward_largest_log10": StepMetric(
            "log10 of the largest backward Amax\nof a position",
            "dynamic connections: `log10` of the largest backward Amax over these positions",
            of_gain_of_one("amax_backward"),
        ),
        **{
            f"base_{line}_error": StepMetric(
                f"mean |{line} sum − 1|\nof the learned matrices",
                f"mean |{line} sum − 1| {BASE}",
                base_error(axis),
                bounds=POSITIVE,
            )
            for line, axis in (("row", -1), ("column", -2))
        },
        "base_diagonal": StepMetric(
            "mean diagonal\nof the learned matrices",
            f"mean diagonal entry {BASE}",
            of_report("base", lambda b: np.diagonal(b, axis1=-2, axis2=-1).mean(axis=(1, 2))),
        ),
        "gate_first": StepMetric(
            "gate of the first layer",
            "g of the first wrapped function, without noise",
            of_report("gates", lambda gates: gates[:, 0]),
            bounds=SHARE,
        ),
        "gate_mean": StepMetric(
            "mean gate",
            "g, mean over layers",
            of_report("gates", lambda gates: gates.mean(axis=1)),
            bounds=SHARE,
        ),
        "gate_largest": StepMetric(
            "largest gate",
            "g, maximum over layers",
            of_report("gates", lambda gates: gates.max(axis=1)),
            bounds=SHARE,
        ),
        "stream_embedding_similarity": StepMetric(
            "similarity of the\nstream embedding",
            "mean cosine similarity over pairs of the vectors that are added to the initial "
            "streams: of parameters, not of activations",
            bounds=COSINE,
        ),
        "H_res_distance": StepMetric(
            "distance of H_res from the identity\n(mean |H_res − I|)",
            "distance of H_res from the identity: `|H_res − I|`, mean over layers and entries; "
            "a dynamic H_res is first averaged over positions. Its value at the first step is the "
            "start of the scheme, which is not learned",
            of_report("H_res", lambda H: np.abs(H - np.eye(H.shape[-1])).mean(axis=(1, 2, 3))),
            bounds=POSITIVE,
        ),
        "score_without_block": StepMetric(
            "score without the block",
            "the study's score without one block, whose functions then add nothing; only in "
            "studies with `leave_out_blocks`",
            score_without_block,
            when="last step",
            optional=True,
            along="block",
        ),
        "layers_that_matter": StepMetric(
            "layers that matter",
            f"number of blocks without which the score is worse by more than {100 * MATTERS:g} % "
            "of its distance to chance",
            layers_that_matter,
            when="last step",
            whole=True,
            optional=True,
            bounds=(0.0, LARGEST_VALUE),  # a plain mean over seeds: not POSITIVE
        ),
        "nonfinite_total": StepMetric(
            "non-finite steps so far",
            "number of non-finite steps up to and including this one",
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
"""Step metrics by their name in a row of `metrics.jsonl`, in the order of a row."""

CLOCKS = ("step_seconds", "elapsed_seconds")
"""Step metrics that differ between repetitions of the same training."""
