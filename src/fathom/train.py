"""The one training loop: batches, steps, metrics.

It writes nothing. It yields rows of metrics as they come off the device, and offers the state
from which it can go on; `fathom.runs` keeps both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fathom import tasks
from fathom.backends import Backend, Objective, ObjectiveFunction, Trainer
from fathom.metrics import composite_gain
from fathom.models import init, language, vision
from fathom.models.connections import VARIANTS, CausalConnection, Connection, stream_spread
from fathom.models.ops import Array, Ops
from fathom.recipes import RECIPES
from fathom.study import Spec

NETWORKS = {"tokens": language, "fashion": vision}
"""The network of each task: a module with `parameters` and `forward`."""

ONE_STREAM = ("baseline", "resnet")

GAIN_NAMES = {
    "max_entry": "gain_proxy_log10_max_entry",
    "amax_forward": "amax_forward_log10",
    "amax_backward": "amax_backward_log10",
}

# Keeps dropout's random numbers apart from those of batches and initial parameters.
DROPOUT_STREAM = 0x64726F70

PUBLISHED_DEPTH = 100
"""Layers of the source's first image network; the default scale has fewer."""

CHUNK_STEPS = 10
"""Steps between two looks at the device: metrics come back, and a checkpoint may be taken."""

Row = dict[str, Any]
"""The metrics of one step, as `metrics.jsonl` holds them."""


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


def connection_of(spec: Spec) -> Connection:
    """The spec's residual scheme."""
    return VARIANTS[spec.variant](spec.model.streams, spec.model.sinkhorn_iterations)


def initial_parameters(spec: Spec) -> dict[str, np.ndarray]:
    """Float32 parameters by name: the same numbers for every backend."""
    network = NETWORKS[spec.task]
    declared = network.parameters(spec.model, spec.depth, RECIPES[spec.recipe], connection_of(spec))
    return init.draw(declared, spec.seed)


def objective(spec: Spec, ops: Ops) -> ObjectiveFunction:
    """The spec's loss as a function of (parameters, inputs, targets), with what metrics need."""
    connection, network = connection_of(spec), NETWORKS[spec.task]

    def loss_and_report(
        params: dict[str, Array], inputs: tuple[Array, ...], targets: Array
    ) -> Objective:
        output = network.forward(ops, spec.model, connection, params, *inputs)
        report = {"logits_finite": ops.all_finite(output.logits)}
        if output.H_res is not None:
            report["H_res"] = output.H_res
        if output.H_res is not None and spec.task == "tokens":
            spread = stream_spread(ops, ops.constant(output.streams))
            report["stream_difference"], report["stream_cosine"] = spread
        return Objective(ops.cross_entropy(output.logits, targets), report)

    return loss_and_report


def training_batch(spec: Spec, step: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """What the network takes, and the targets: the same on every backend, dropout included."""
    inputs, targets = tasks.load(spec.task).batch(spec, step)
    if spec.task != "fashion" or not spec.model.dropout:
        return (inputs,), targets
    rng = np.random.default_rng([spec.seed, DROPOUT_STREAM, step])
    shape = (spec.depth, spec.batch_size, vision.SIDE, vision.SIDE, spec.model.width)
    # Sixteen random bits each: exact to 1e-5, at a quarter of the cost of a float.
    bits = np.frombuffer(rng.bytes(2 * math.prod(shape)), np.uint16).reshape(shape)
    return (inputs, bits >= round(spec.model.dropout * 65536)), targets


def learning_rate(spec: Spec, step: int) -> float:
    """Linear warm-up, then constant or a half cosine to zero at the last step's end."""
    optimizer = spec.optimizer
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    if optimizer.schedule == "constant":
        return optimizer.lr
    done = (step - optimizer.warmup_steps) / max(1, spec.steps - optimizer.warmup_steps)
    return optimizer.lr * 0.5 * (1 + math.cos(math.pi * done))


def at_end(spec: Spec, ops: Ops, trainer: Trainer) -> Row:
    """What is measured once, with the last parameters: test accuracy, and sums of the mixing.

    `mixing_row_error` and `mixing_column_error`: the largest |sum − 1| over rows and columns of
    the matrix that causal layers read prefixes of; absent for other connections.
    """
    found: Row = {"test_accuracy": test_accuracy(spec, ops, trainer)}
    connection = connection_of(spec)
    if isinstance(connection, CausalConnection):
        nothing = np.zeros(1, np.float32)
        matrix = trainer.infer(
            lambda params, _: connection.positive(ops, params["connection.mixing"]), nothing
        ).astype(np.float64)
        found["mixing_row_error"] = float(np.abs(matrix.sum(axis=1) - 1).max())
        found["mixing_column_error"] = float(np.abs(matrix.sum(axis=0) - 1).max())
    return found


def test_accuracy(spec: Spec, ops: Ops, trainer: Trainer, batch: int = 100) -> float:
    """The share of all test images that the network names rightly; NaN logits name nothing."""
    images, labels = tasks.load(spec.task).test_set(spec)
    connection = connection_of(spec)

    def logits(params: dict[str, Array], x: Array) -> Array:
        return vision.forward(ops, spec.model, connection, params, x).logits

    right = 0
    for first in range(0, len(images), batch):
        found = trainer.infer(logits, images[first : first + batch])
        named = np.where(np.isfinite(found).all(axis=1), found.argmax(axis=1), -1)
        right += int((named == labels[first : first + batch]).sum())
    return right / len(images)


def block_inputs(spec: Spec, ops: Ops, params: dict[str, np.ndarray]) -> list[Array]:
    """What enters each block in a forward pass on the first step's batch, without dropout."""
    inputs, _ = tasks.load(spec.task).batch(spec, 0)
    arrays = {name: ops.asarray(value) for name, value in params.items()}
    forward = NETWORKS[spec.task].forward
    entering: list[Array] = []
    forward(ops, spec.model, connection_of(spec), arrays, ops.asarray(inputs), entering=entering)
    return entering


def largest_activations(spec: Spec, ops: Ops, params: dict[str, np.ndarray]) -> Row:
    """How large activations are in the first step's forward pass, and where a layer norm overflows.

    `activation_max_log10`: over what enters each block. `overflow_layer`: the first block whose
    input has, in float64, a variance beyond the largest float32, so that its first layer norm
    overflows; None if there is none. `overflow_activation_log10`: the largest activation there.
    """
    entering = [ops.to_numpy(x).astype(np.float64) for x in block_inputs(spec, ops, params)]
    largest = [float(np.log10(np.abs(x).max())) for x in entering]
    limit = np.finfo(np.float32).max
    over = [layer for layer, x in enumerate(entering) if x.var(axis=-1).max() > limit]
    finite = [value for value in largest if np.isfinite(value)]
    return {
        "activation_max_log10": max(finite, default=np.nan),
        "overflow_layer": over[0] if over else None,
        "overflow_activation_log10": largest[over[0]] if over else None,
    }


def where_untrained_overflows(spec: Spec, ops: Ops) -> Row:
    """After how many layers the connection alone leads out of float32, at the published depth.

    `overflow_depth`: in a network of PUBLISHED_DEPTH layers that is otherwise the cell's, at its
    initial parameters and on its first batch, the first block, from 0, whose input is not finite;
    None if all are.
    """
    deep = spec.model_copy(update={"depth": PUBLISHED_DEPTH})
    entering = block_inputs(deep, ops, initial_parameters(deep))
    finite = [bool(ops.to_numpy(ops.all_finite(x))) for x in entering]
    return {"overflow_depth": None if all(finite) else finite.index(False)}


def train(spec: Spec, backend: Backend, resume: Resume | None = None) -> Iterator[Chunk]:
    """Train one cell, yielding its rows as they come; with `resume`, go on from there.

    The first chunk is a single step, so that its compilation does not blur the steps after it;
    likewise after an interruption.
    Non-finite numbers do not stop it: diverged training is data.
    """
    params = initial_parameters(spec)
    trainer = backend.trainer(
        params, objective(spec, backend.ops), spec.optimizer, RECIPES[spec.recipe]
    )
    first, elapsed, nonfinite_total = 0, 0.0, 0
    at_start = {}
    if resume is None:
        at_start = (
            largest_activations(spec, backend.ops, params)
            if spec.task == "tokens"
            else where_untrained_overflows(spec, backend.ops)
        )
    else:
        trainer.load_state(resume.state)
        last = resume.rows[-1]
        first = last["step"] + 1
        elapsed, nonfinite_total = last["elapsed_seconds"], last["nonfinite_total"]

    names = list(params)
    size = 1
    while first < spec.steps:
        steps = range(first, min(first + size, spec.steps))
        size = CHUNK_STEPS
        start = time.perf_counter()
        for step in steps:
            trainer.step(*training_batch(spec, step), learning_rate(spec, step))
        measured = trainer.collect()
        seconds = (time.perf_counter() - start) / len(steps)

        rows = []
        for step, metrics in zip(steps, step_metrics(spec, measured, names), strict=True):
            elapsed += seconds
            nonfinite_total += metrics["nonfinite_event"]
            rows.append(
                {
                    "step": step,
                    **metrics,
                    **(at_start if step == 0 else {}),
                    "nonfinite_total": nonfinite_total,
                    "step_seconds": seconds,
                    "elapsed_seconds": elapsed,
                }
            )
        if steps.stop == spec.steps and spec.task == "fashion":
            rows[-1] |= at_end(spec, backend.ops, trainer)
        yield Chunk(rows, trainer)
        first = steps.stop


def step_metrics(spec: Spec, measured: dict[str, np.ndarray], names: list[str]) -> Iterator[Row]:
    """Metrics of each step from what the device measured (docs/definitions.md, "Metrics").

    `measured`: see `Trainer.collect`; `names`: the parameters, in the order of `grad_norms`.
    """
    loss = measured["loss"].astype(np.float64)
    norms = measured["grad_norms"].astype(np.float64)
    event = ~(np.isfinite(loss) & measured["logits_finite"].astype(bool))
    columns: dict[str, np.ndarray] = {
        "loss": loss,
        "grad_norm": np.sqrt((norms**2).sum(axis=1)),
        "nonfinite_event": event.astype(int),
    }
    for i, name in enumerate(names):
        if name.startswith("connection."):
            columns[f"grad_norm_{name.removeprefix('connection.')}"] = norms[:, i]
        if name == "stem.weight":
            columns["grad_norm_stem"] = norms[:, i]
    for name in ("stream_difference", "stream_cosine"):
        if name in measured:
            columns[name] = measured[name].astype(np.float64)
    if "H_res" in measured:
        gain = composite_gain(measured["H_res"])
        gains = {name: getattr(gain, name) for name in gain._fields}
    elif spec.variant not in ONE_STREAM:  # mixed by something that has no such product
        gains = {}
    else:  # one stream that nothing mixes: the product is the 1×1 identity
        gains = dict.fromkeys(("max_entry", "amax_forward", "amax_backward"), np.zeros(len(loss)))
    columns |= {GAIN_NAMES[name]: values for name, values in gains.items()}
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))
