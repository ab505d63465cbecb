"""The training loop: batches, steps, metrics.

The loop writes no files. It yields rows of metrics as the device returns them, and the trainer,
whose state is needed to resume; `fathom_study.runs` saves both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fathom_study.backends import Backend, Trainer
from fathom_study.metrics.steps import Row, Steps
from fathom_study.optimizers import optimizer_config, schedule_at
from fathom_study.tasks import Problem

CHUNK_STEPS = 10
"""Steps between two transfers of metrics from the device; a checkpoint may follow each."""


@dataclass(frozen=True)
class Resume:
    """Point at which training was interrupted: the trainer's state and all rows so far."""

    state: dict[str, np.ndarray]
    rows: list[Row]


@dataclass(frozen=True)
class Chunk:
    """Metrics of the latest steps, and the trainer after them."""

    rows: list[Row]
    trainer: Trainer


def trainer_for(problem: Problem, backend: Backend, params: dict[str, np.ndarray]) -> Trainer:
    """Trainer of a problem, starting at the given parameters."""
    config = optimizer_config(problem.spec, problem.network.parameters())
    return backend.trainer(params, problem.objective(backend.ops), config)


def take_step(problem: Problem, trainer: Trainer, step: int) -> None:
    """Take one optimiser step on the batches of that step."""
    trainer.step(problem.batches(step), schedule_at(problem.spec, step))


def train(problem: Problem, backend: Backend, resume: Resume | None = None) -> Iterator[Chunk]:
    """Train one cell and yield its rows as they arrive; with `resume`, continue from there.

    The first chunk, also after an interruption, is a single step, so that compilation does not
    distort the timing of later steps.
    Non-finite values do not stop training: diverged training is data.
    """
    spec = problem.spec
    params = problem.initial_parameters()
    trainer = trainer_for(problem, backend, params)
    first, elapsed, nonfinite_total = 0, 0.0, 0
    of_first_step = {}
    if resume is None:
        of_first_step = problem.at_start(backend.ops, params)
    else:
        trainer.load_state(resume.state)
        last = resume.rows[-1]
        first = last["step"] + 1
        elapsed, nonfinite_total = last["elapsed_seconds"], last["nonfinite_total"]

    every = spec.evaluate_every or spec.steps
    size = 1
    while first < spec.steps:
        until_evaluation = first + every - first % every
        steps = range(first, min(first + size, until_evaluation, spec.steps))
        size = CHUNK_STEPS
        start = time.perf_counter()
        for step in steps:
            take_step(problem, trainer, step)
        measured = trainer.collect()
        seconds = (time.perf_counter() - start) / len(steps)

        rows = []
        for step, values in zip(steps, step_rows(problem, measured), strict=True):
            elapsed += seconds
            nonfinite_total += values["nonfinite_event"]
            rows.append(
                {
                    "step": step,
                    **values,
                    **(of_first_step if step == 0 else {}),
                    "nonfinite_total": nonfinite_total,
                    "step_seconds": seconds,
                    "elapsed_seconds": elapsed,
                }
            )
        is_last = steps.stop == spec.steps
        if is_last or steps.stop % every == 0:
            rows[-1] |= problem.at_evaluation(backend.ops, trainer.infer, is_last=is_last)
        yield Chunk(rows, trainer)
        first = steps.stop


def step_rows(problem: Problem, measured: dict[str, np.ndarray]) -> Iterator[Row]:
    """Metrics of each step from the device's measurements (see `Trainer.collect`)."""
    network, measured = problem.network, {**measured}
    steps = Steps(
        loss=measured.pop("loss").astype(np.float64),
        logits_finite=measured.pop("logits_finite").astype(bool),
        grad_norms=measured.pop("grad_norms").astype(np.float64),
        parameters=list(network.parameters()),
        reports=measured,
        one_stream=network.connection.is_plain,
    )
    columns = {}
    for name, metric in problem.step_metrics.items():
        if metric.when != "every step":
            continue
        compute = metric.compute or (lambda steps, name=name: steps.reports.get(name))
        with np.errstate(all="ignore"):  # diverged steps may overflow
            values = compute(steps)
        if values is not None:
            kind = int if metric.whole else np.float64
            columns[name] = values.astype(kind)
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))
