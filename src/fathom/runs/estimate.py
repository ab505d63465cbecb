"""How long training takes before it is done: from operations, corrected by what was timed here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from fathom import backends, datasets, tasks
from fathom.config import Compute, Spec
from fathom.optimizers import pace
from fathom.train import batches_of, trainer_for

STARTUP_SECONDS = 4.0
"""Roughly what a job takes beside its steps: interpreter, framework, first step."""

LAYER_SECONDS = 1.5e-3
OPERATIONS_PER_SECOND = 3e10
"""A guess at one CPU core: a layer's own time in a step, and the rate of its products.

In the depth studies of the default scale PyTorch took 0.4 to 0.8 of what these give, MLX 1.2 to
2.1; dynamic connections in small networks took up to nine times as much.
"""


TIMED_STEPS = 6
TIMING_SECONDS = 5.0


def operations_of_step(spec: Spec) -> float:
    """Floating-point operations of all matrix products, forward and twice that backward."""
    forward = tasks.network_of(spec).forward_flops(spec.batch_size)
    return 3 * forward * spec.accumulate


def assumed_step_seconds(spec: Spec) -> float:
    """What a step would take on one core of an ordinary CPU."""
    of_layers = LAYER_SECONDS * spec.depth * spec.accumulate
    return of_layers + operations_of_step(spec) / OPERATIONS_PER_SECOND


def assumed_seconds(specs: Iterable[Spec]) -> float:
    """What all these trainings would take there, one after the other."""
    return sum(spec.steps * assumed_step_seconds(spec) for spec in specs)


def timed_step_seconds(spec: Spec, compute: Compute) -> float:
    """Seconds of a training step here: the median of a few, but for the first, which may compile.

    After TIMING_SECONDS no other step begins. Writes nothing. Raises BackendError or DataError as
    the training would.
    """
    os.environ[datasets.ENVIRONMENT] = compute.data
    backend = backends.connect(spec.backend, compute.device, compute.threads, compute.mlx_blas)
    trainer = trainer_for(spec, backend, tasks.initial_parameters(spec))
    seconds: list[float] = []
    for step in range(min(TIMED_STEPS, spec.steps)):
        started = time.perf_counter()
        trainer.step(batches_of(spec, step), pace(spec, step))
        trainer.collect()  # waits for the device
        seconds.append(time.perf_counter() - started)
        if sum(seconds) > TIMING_SECONDS:
            break
    return median(seconds[1:] or seconds)


def timed_seconds(specs: Sequence[Spec], step_seconds: Mapping[str, float]) -> float:
    """What all these trainings take one after the other, from timed steps.

    `step_seconds`: of each backend, what a step of the first of its specs took.
    """
    first = {spec.backend: spec for spec in reversed(specs)}
    rate = {name: step_seconds[name] / assumed_step_seconds(spec) for name, spec in first.items()}
    return sum(rate[spec.backend] * assumed_seconds([spec]) for spec in specs)


def duration(seconds: float) -> str:
    """As in '40 seconds', '12 minutes', '2.5 hours', '3.1 days'."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"
