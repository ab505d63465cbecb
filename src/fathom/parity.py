"""Parity: a training step of a backend, compared with the float64 oracle.

The oracle is forward only, so gradients are held against differences of its loss along directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fathom.backends import Backend, Trainer
from fathom.backends.numpy import NumpyOps
from fathom.batch import Batch
from fathom.optimizers import OptimizerConfig, ScheduledValues, muon, optimizer_config, schedule_at
from fathom.spec import Spec
from fathom.tasks import Problem, example_batch
from fathom.train import trainer_for

Params = dict[str, np.ndarray]

STEADY = ScheduledValues(rate=1.0, momentum=0.0)
"""No schedule; with this momentum Muon's average is the gradient itself."""

H = 1e-6
"""Differences over ±h err by 1e-10 from rounding."""

KINK = 1e-5
"""How near its kink no ReLU may be, relative to the root mean square of its layer: h, and the error
n·2⁻²⁴ of a float32 sum of up to n = 150 products. Within, a device may be on the other side, and
one unit of the 20 000 on images moves a gradient by up to 2e-3 of its length."""

ALLOWED = {"loss": 1e-5, "gradients": 1e-4, "update": 1e-3}
"""Of a device: errors of the loss and of each parameter's gradient, relative to their size, and of
the updated parameters in learning rates. Float32 rounds by 6e-8: a loss by ten layers of some tens
of roundings each, a gradient ten times as often, and an update, which divides a gradient by its own
size, ten times that. Products in ten bits, as of TensorFloat-32, err by 1e-3."""

FLOOR = 1e-6
"""What cancellation leaves of few order-one terms in a gradient: some roundings of 6e-8."""


class KinkDistances(NumpyOps):
    """The oracle's ops, which note how near its kink each ReLU came."""

    def __init__(self) -> None:
        self.nearest = math.inf

    def relu(self, x: np.ndarray) -> np.ndarray:
        self.nearest = min(self.nearest, np.abs(x).min() / np.sqrt(np.square(x).mean()))
        return super().relu(x)


def parameters_off_kinks(problem: Problem, batch: Batch) -> Params:
    """`parameters_off_symmetry` by the first seed with no ReLU near its kink, or the last."""
    for seed in range(12345, 12365):
        params, ops = parameters_off_symmetry(problem, seed), KinkDistances()
        exact = {name: ops.asarray(value) for name, value in params.items()}
        problem.network.forward(ops, exact, batch.inputs)
        if ops.nearest > KINK:
            break
    return params


def parameters_off_symmetry(problem: Problem, seed: int = 12345) -> Params:
    """Initial parameters, each moved at random.

    At their initial values the mixing matrices are symmetric, the streams equal and many biases
    zero: a transposed matrix or a forgotten bias would change nothing there.
    """

    def amount(name: str) -> float:
        # Far enough to matter, and not so far that 24 layers of hc overflow float32.
        return 0.5 if name.startswith("connection.") else 0.2

    rng = np.random.default_rng(seed)
    return {
        name: (value + amount(name) * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in problem.initial_parameters().items()
    }


def oracle_loss(problem: Problem, params: Params, batch: Batch) -> float:
    """The float64 loss on given parameters."""
    ops = NumpyOps()
    exact = {name: ops.asarray(value) for name, value in params.items()}
    output = problem.network.forward(ops, exact, batch.inputs)
    return float(problem.task.loss(ops, output, batch))


def first_step(
    trainer: Trainer, problem: Problem, batch: Batch, scheduled: ScheduledValues = STEADY
) -> tuple[dict[str, np.ndarray], Params]:
    """What a trainer measured in its first step, and the gradients of every parameter.

    Averages began at zero: AdamW's holds 1 − β1 of the clipped gradient, Muon's 1 − momentum.
    """
    trainer.step([batch], scheduled)
    measured = {name: values[0] for name, values in trainer.collect().items()}
    state, update = trainer.state(), _optimizer_config(problem)
    norm = math.sqrt(np.square(measured["grad_norms"], dtype=np.float64).sum())
    clipped = 1.0 if update.clip is None else min(1.0, update.clip / (norm + 1e-6))
    return measured, {
        name: state[f"m.{name}"].astype(np.float64) / (clipped * (1 - kept))
        for group in update.groups
        for kept in [scheduled.momentum if group.rule == "muon" else update.beta1]
        for name in group.names
    }


def gradient_errors(
    loss: Callable[[Params], float],
    params: Params,
    found: Mapping[str, Params],
    rel: float,
    floor: float = FLOOR,
) -> Iterator[tuple[float, str, str]]:
    """(relative error, backend, parameter) of gradients `found[backend][name]` of `loss(params)`.

    The slope along a gradient's own direction is its length, if it is the gradient; along a random
    direction through all parameters it also sees what is missing. To each length `floor / rel` is
    added, so that an error of `floor` is within `rel` of anything.
    """

    def slope_along(directions: Params) -> float:
        up, down = (
            loss({**exact, **{n: exact[n] + h * d for n, d in directions.items()}}) for h in (H, -H)
        )
        return (up - down) / (2 * H)

    rng = np.random.default_rng(1)
    exact = {name: value.astype(np.float64) for name, value in params.items()}
    first = next(iter(found.values()))
    joint = {name: rng.standard_normal(value.shape) for name, value in exact.items()}
    joint = {name: value / np.linalg.norm(value) for name, value in joint.items()}
    for name in exact:
        size = np.linalg.norm(first[name])
        direction = first[name] / size if size > floor else joint[name]
        slope = slope_along({name: direction})
        for backend, gradients in found.items():
            length, along = np.linalg.norm(gradients[name]), (gradients[name] * direction).sum()
            error = max(abs(along - slope), abs(length - slope) if size > floor else 0)
            yield error / (length + floor / rel), backend, name
    slope = slope_along(joint)
    for backend, gradients in found.items():
        along = sum((gradients[name] * joint[name]).sum() for name in exact)
        length = math.sqrt(sum((gradients[name] ** 2).sum() for name in exact))
        yield abs(along - slope) / (length + floor / rel), backend, "all together"


def _optimizer_config(problem: Problem) -> OptimizerConfig:
    """Which rule and rate each parameter has."""
    return optimizer_config(problem.spec, problem.network.parameters())


def update_error(
    problem: Problem, params: Params, state: Params, scheduled: ScheduledValues
) -> float:
    """How far a first step's `state` is from the optimiser's in float64, in learning rates.

    By the gradients that it kept in `m`, as they were clipped.
    """
    errors, update = [], _optimizer_config(problem)
    for group in update.groups:
        lr = group.lr * scheduled.rate
        for name in group.names:
            p, m = params[name].astype(np.float64), state[f"m.{name}"].astype(np.float64)
            if group.rule == "muon":
                g, kept = m / (1 - scheduled.momentum), scheduled.momentum
                after, _ = muon(NumpyOps(), p, g, 0 * g, lr, kept, group.parts)
            else:
                g = m / (1 - update.beta1)
                m, v = (g, g**2) if update.bias_correction else (m, g**2 * (1 - update.beta2))
                after = p * (1 - lr * group.decay) - lr * m / (np.sqrt(v) + update.eps)
            errors.append(np.abs(state[f"param.{name}"] - after).max() / lr)
    return float(np.max(errors))


def check_step(backend: Backend, spec: Spec) -> tuple[dict[str, float], str]:
    """(the errors that ALLOWED bounds, whose gradient is furthest off) of a step on a device."""
    problem, batch, scheduled = Problem(spec), example_batch(spec), schedule_at(spec, 0)
    params = parameters_off_kinks(problem, batch)
    trainer = trainer_for(problem, backend, params)
    measured, gradients = first_step(trainer, problem, batch, scheduled)
    expected = oracle_loss(problem, params, batch)
    # A scalar's gradient may be what cancellation leaves of a term for each number of a stream:
    # n independent roundings of order-one terms add up to √n·2⁻²⁴.
    n = sum(np.size(x) for x in batch.inputs.values()) * problem.network.connection.context.width
    errors = gradient_errors(
        lambda p: oracle_loss(problem, p, batch),
        params,
        {"": gradients},
        ALLOWED["gradients"],
        max(FLOOR, math.sqrt(n) * 2**-24),
    )
    of_gradients, _, worst = max(errors, key=lambda error: (math.isnan(error[0]), error))
    return {
        "loss": float(abs(measured["loss"] / expected - 1)),
        "gradients": float(of_gradients),
        "update": update_error(problem, params, trainer.state(), scheduled),
    }, worst
