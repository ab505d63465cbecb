"""Estimate training times from operations, corrected by runs that were timed here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import median

from fathom_study.config import BACKENDS, Cell, Compute, Config, Spec
from fathom_study.runs.run import Run, group_of
from fathom_study.tasks import Problem

STARTUP_SECONDS, PRELOADED_SECONDS = 4.0, 1.0
"""Approximate overhead of a training job: interpreter, framework, first step; the first step alone
if it forks from a loaded process."""

LAYER_SECONDS = 1.5e-3
OPERATIONS_PER_SECOND = 3e10
"""Assumed speed of one CPU core: overhead of a layer in a step, and rate of matrix products.

In the depth studies of the default scale PyTorch took 0.4 to 0.8 times this estimate, MLX 1.2 to
2.1 times; dynamic connections in small networks took up to nine times.
"""


def operations_of_step(spec: Spec) -> float:
    """Floating-point operations of all matrix products, forward and twice that backward."""
    forward = Problem(spec).network.forward_flops(spec.batch_size)
    return 3 * forward * spec.accumulate


def assumed_step_seconds(spec: Spec) -> float:
    """Seconds per step on one core of an ordinary CPU."""
    of_layers = LAYER_SECONDS * spec.depth * spec.accumulate
    return of_layers + operations_of_step(spec) / OPERATIONS_PER_SECOND


def assumed_seconds(spec: Spec) -> float:
    """Seconds of a training on that core."""
    return spec.steps * assumed_step_seconds(spec)


def estimate_from_runs(
    config: Config, timed: Sequence[Run], left: Sequence[Cell]
) -> dict[Cell, float]:
    """Seconds to train each of the remaining cells, from runs that were timed here.

    The estimate is the median time of matching cells (study, depth, variant, backend). Without one,
    it is the assumed time times the median ratio of measured to assumed times of its backend.
    """

    @cache  # the same for all seeds and backends
    def assumed(study: str, depth: int, variant: str) -> float:
        return assumed_seconds(config.spec(Cell(study, depth, variant, BACKENDS[0], 0)))

    seconds: dict[str, list[float]] = {}
    """Seconds per training, by group."""
    rates: dict[str, list[float]] = {}
    """Measured over assumed seconds, by backend."""
    for run in timed if left else ():
        cell, took = run.cell, run.manifest.seconds
        seconds.setdefault(group_of(cell), []).append(took)
        rate = took / assumed(cell.study, cell.depth, cell.variant)
        rates.setdefault(cell.backend, []).append(rate)

    def estimate(cell: Cell) -> float:
        if matching := seconds.get(group_of(cell)):
            return median(matching)
        rate = median(rates.get(cell.backend, [1.0]))
        return rate * assumed(cell.study, cell.depth, cell.variant)

    return {cell: startup_seconds(config.compute) + estimate(cell) for cell in left}


def startup_seconds(compute: Compute) -> float:
    """Overhead of a training job on this machine."""
    return PRELOADED_SECONDS if compute.shares_process else STARTUP_SECONDS


def basis_of(timed: int) -> str:
    """What an estimate rests on; `timed`: number of finished cells behind it."""
    if timed:
        return f"an estimate from {timed} finished cell{'s' if timed > 1 else ''}"
    return "a guess from the size of the networks: nothing was timed here yet"
