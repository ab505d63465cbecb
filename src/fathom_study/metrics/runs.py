"""Metrics of a run, derived from its step metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from fathom.settings import Flag, Number, PlainText, Registry, Settings
from fathom_study.metrics.steps import MOST_SHARES, Row, StepMetric


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """A step metric's values in the rows that have it; NaN for a null."""
    values = [row[name] for row in rows if name in row]
    return np.array([math.nan if v is None else v for v in values], dtype=float)


Statistic = Callable[[np.ndarray], float | None]


@dataclass(frozen=True)
class RunMetric:
    """A number of a whole run."""

    of: str
    """The step metric that it is derived from."""
    statistic: Statistic
    """Function of that metric's values, in order; None or NaN if it is undefined."""
    definition: str
    """For docs/definitions."""
    averaged: bool = True
    """Whether summary.csv has its mean over seeds."""
    always: bool = True
    """Whether a missing value means that it was not finite (a report says NaN), rather than that
    the run has no such number (it says none)."""
    times: str | None = None
    """The step metric whose last value multiplies the statistic."""
    label: str = ""
    """Axis label, with the unit; if empty, the step metric's label and the definition."""


LOSS_TAIL = "loss_tail"
"""The run metric that replaces a score that was not measured."""

DIGITS = 9
"""Significant digits of numbers computed from runs; they are the same on every processor."""


def significant(value: float) -> float:
    """A number rounded to DIGITS: sums and logarithms differ in the 16th between libraries."""
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
    """Unsteadiness of a positive series: the standard deviation of log10(x_t / x_{t−1}).

    A smooth decay has the same small ratio throughout; a spiky series does not. None if any value
    is not finite and positive, or there are fewer than two ratios.
    """
    if len(values) < 3 or not (np.isfinite(values) & (values > 0)).all():
        return None
    return significant(float(np.diff(np.log10(values)).std(ddof=1)))


LEVEL_STEPS, SPIKE, RECOVERED = 10, 1.2, 1.1
"""Steps over which a level is the mean loss; ratios to it at which a spike begins and ends."""


def count_spikes(losses: np.ndarray) -> int:
    """Number of spikes in a run's positive training losses: see docs/definitions/stability.md.

    A loss that is not finite is above any level.
    """
    return _spikes(losses)[0]


def count_recovered(losses: np.ndarray) -> int:
    """Number of spikes from which the loss comes back."""
    return _spikes(losses)[1]


def _spikes(losses: np.ndarray) -> tuple[int, int]:
    """(spikes, recovered spikes)."""
    losses = np.where(np.isfinite(losses), losses, math.inf)
    level = np.full(len(losses), math.inf)
    if len(losses) > LEVEL_STEPS:
        means = np.lib.stride_tricks.sliding_window_view(losses[:-1], LEVEL_STEPS).mean(axis=1)
        level[LEVEL_STEPS:] = np.minimum.accumulate(means)
    spikes, recovered, is_up = 0, 0, False
    begins, ends = (losses > SPIKE * level).tolist(), (losses <= RECOVERED * level).tolist()
    for begin, end in zip(begins, ends, strict=True):
        if is_up and end:
            is_up, recovered = False, recovered + 1
        elif begin and not is_up:
            is_up, spikes = True, spikes + 1
    return spikes, recovered


def first_event(values: np.ndarray) -> float | None:
    """The position of the first value that is not zero."""
    positions = np.flatnonzero(values)
    return int(positions[0]) if len(positions) else None


OF_RUN = {
    "first step": (first, "as in the first row"),
    "evaluations": (last, "of the last evaluation"),
    "last step": (last, "as after training"),
}
"""By `when` of a step metric that is not of every step: the run's statistic and its definition."""


def of_run(name: str, metric: StepMetric) -> RunMetric:
    """The run metric of the same name as a step metric that is not of every step."""
    statistic, definition = OF_RUN[metric.when]
    return RunMetric(name, statistic, definition, always=not metric.optional)


def in_bits(statistic: Statistic) -> Statistic:
    """A statistic of nats, in bits."""

    def bits(values: np.ndarray) -> float | None:
        nats = statistic(values)
        return None if nats is None else nats / math.log(2)

    return bits


def median_after_first(values: np.ndarray) -> float | None:
    """The median without the first value, which includes compilation."""
    return float(np.median(values[1:] if len(values) > 1 else values)) if len(values) else None


WITH_FINAL_VALUE = (
    "amax_forward_log10", "amax_backward_log10", "row_error_log10", "column_error_log10",
    "amax_forward_largest_log10", "amax_backward_largest_log10", "H_res_distance",
    "stream_similarity", "stream_embedding_similarity", "gate_first", "gate_mean", "gate_largest",
    "base_row_error", "base_column_error", "base_diagonal",
)  # fmt: skip
"""Step metrics whose last value is a run metric, `NAME_final`."""

RUN_METRICS = Registry(
    {
        "loss_first": RunMetric("loss", first, "loss of the first step"),
        "loss_final": RunMetric("loss", last, "loss of the last step"),
        "loss_min": RunMetric("loss", smallest, "smallest finite loss"),
        LOSS_TAIL: RunMetric("loss", tail_mean, "mean loss of the last tenth of the steps"),
        "spikes": RunMetric(
            "loss",
            count_spikes,
            "number of spikes, see [Stability](stability.md)",
            averaged=False,
            always=False,
            label="spikes of the training loss",
        ),
        "spikes_recovered": RunMetric(
            "loss",
            count_recovered,
            "number of spikes from which the loss came back",
            averaged=False,
            always=False,
            label="spikes of the training loss that end",
        ),
        "grad_norm_first": RunMetric("grad_norm", first, "gradient norm of the first step"),
        "grad_norm_final": RunMetric("grad_norm", last, "gradient norm of the last step"),
        "grad_norm_max": RunMetric("grad_norm", largest, "largest finite gradient norm"),
        "grad_norm_log10_sd": RunMetric(
            "grad_norm",
            unsteadiness,
            label="unsteadiness of the gradient norm\n(standard deviation of log10 ratios)",
            definition="unsteadiness of the norm: the standard deviation (n − 1) of "
            "`log10(x_t / x_{t−1})` over steps. 0 for an exponential decay at any rate. No value "
            "with fewer than three steps, or if a norm is not finite or not positive",
        ),
        "seconds": RunMetric(
            "elapsed_seconds", last, "sum of `step_seconds`", label="time of all steps (s)"
        ),
        "gain_first": RunMetric("gain_proxy_log10_max_entry", first, "gain of the first step"),
        "gain_final": RunMetric("gain_proxy_log10_max_entry", last, "gain of the last step"),
        **{
            f"{name}_final": RunMetric(name, last, "of the last step", always=False)
            for name in WITH_FINAL_VALUE
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
            "absolute difference of the last and the first value. H_res moved at least this far "
            "from its start, in the mean over layers and entries; 0 if it learned nothing",
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
"""Run metrics by their column in cells.csv; summary.csv adds a suffix such as `_mean`."""


class Summary(Settings):
    """The numbers of a whole run that tables read."""

    diverged: Flag
    """The result of the task's test."""
    metrics: dict[PlainText, Number | None]
    """The run metrics that were measured; None: not finite, or undefined for these steps."""


def summarise(
    rows: Sequence[Row], run_metrics: Mapping[str, RunMetric]
) -> dict[str, float | int | None]:
    """The run metrics whose step metric is in the rows; None for a value that is not finite."""
    measured = set(chain.from_iterable(rows))
    values = {n: value_of(entry, rows) for n, entry in run_metrics.items() if entry.of in measured}
    return {n: None if v is None or not math.isfinite(v) else v for n, v in values.items()}


def value_of(metric: RunMetric, rows: Sequence[Row]) -> float | int | None:
    """A run's value of one metric; None if it has none."""
    value = metric.statistic(column(rows, metric.of))
    if metric.times is None or value is None:
        return value
    factor = last(column(rows, metric.times))
    return None if factor is None else value * factor
