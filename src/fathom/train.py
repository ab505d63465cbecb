"""The one training loop: batches, steps, metrics.

It writes nothing. It yields rows of metrics as they come off the device, and offers the state
from which it can go on; `fathom.runs` keeps both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fathom.backends import Backend, Trainer
from fathom.metrics.steps import Row, Steps
from fathom.optimizers import optimizer_config, schedule_at
from fathom.tasks import Problem

CHUNK_STEPS = 10
"""Steps between two looks at the device: metrics come back, and a checkpoint may be taken."""


@dataclass(frozen=True)
class Resume:
    """Where an interrupted training stood: the trainer's state and every row up to it."""

    state: dict[str, np.ndarray]
    rows: list[Row]


@dataclass(frozen=True)
class Chunk:
    """What the loop hands over every few steps."""

    rows: list[Row]
    trainer: Trainer


def trainer_for(problem: Problem, backend: Backend, params: dict[str, np.ndarray]) -> Trainer:
    """The problem's trainer, at the given parameters."""
    config = optimizer_config(problem.spec, problem.network.parameters())
    return backend.trainer(params, problem.objective(backend.ops), config)


def take_step(problem: Problem, trainer: Trainer, step: int) -> None:
    """One step of the optimiser, on the step's batches."""
    trainer.step(problem.batches(step), schedule_at(problem.spec, step))


def train(problem: Problem, backend: Backend, resume: Resume | None = None) -> Iterator[Chunk]:
    """Train one cell, yielding its rows as they come; with `resume`, go on from there.

    The first chunk is a single step, so that its compilation does not blur the steps after it;
    likewise after an interruption.
    Non-finite numbers do not stop it: diverged training is data.
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
    """The metrics of each step from what the device measured (see `Trainer.collect`)."""
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
        with np.errstate(all="ignore"):  # of diverged steps too
            values = compute(steps)
        if values is not None:
            kind = int if metric.whole else np.float64
            columns[name] = values.astype(kind)
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))
