"""Parity: compare a training step of a backend with the float64 oracle.

The oracle is forward only, so gradients are compared with directional differences of its loss.
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
"""No schedule; with momentum 0, Muon's average is the gradient itself."""

H = 1e-6
"""Step h of central differences, whose rounding error is 1e-10."""

KINK = 1e-5
"""Minimum distance of a ReLU's input from zero, relative to the root mean square of its layer: h,
and the error n·2⁻²⁴ of a float32 sum of up to n = 150 products. Below, a device may be on the other
side, and one of the 20 000 units on images changes a gradient by up to 2e-3 of its length."""

ALLOWED = {"loss": 1e-5, "gradients": 1e-4, "update": 1e-3}
"""Maximum errors of a device: relative errors of the loss and of each parameter's gradient, and
errors of the updated parameters in learning rates. Float32 rounds by 6e-8: a loss some tens of
times in each of ten layers, and a gradient ten times as often. An update divides a gradient by its
size, for another factor of ten. Products in ten bits, as in TensorFloat-32, have errors of 1e-3."""

FLOOR = 1e-6
"""Error of a gradient in which few order-one terms cancel: some roundings of 6e-8."""


class KinkDistances(NumpyOps):
    """The oracle's ops, which record the minimum relative distance of ReLU inputs from zero."""

    def __init__(self) -> None:
        self.nearest = math.inf

    def relu(self, x: np.ndarray) -> np.ndarray:
        self.nearest = min(self.nearest, np.abs(x).min() / np.sqrt(np.square(x).mean()))
        return super().relu(x)


def parameters_off_kinks(problem: Problem, batch: Batch) -> Params:
    """`parameters_off_symmetry` of the first seed without a ReLU near its kink, or of the last."""
    for seed in range(12345, 12365):
        params, ops = parameters_off_symmetry(problem, seed), KinkDistances()
        exact = {name: ops.asarray(value) for name, value in params.items()}
        problem.network.forward(ops, exact, batch.inputs)
        if ops.nearest > KINK:
            break
    return params


def parameters_off_symmetry(problem: Problem, seed: int = 12345) -> Params:
    """Initial parameters, each plus random noise.

    At the initial values, mixing matrices are symmetric, streams equal and many biases zero, so a
    transposed matrix or a missing bias would change nothing.
    """

    def amount(name: str) -> float:
        # Large enough to matter, and too small for 24 layers of hc to overflow float32.
        return 0.5 if name.startswith("connection.") else 0.2

    rng = np.random.default_rng(seed)
    return {
        name: (value + amount(name) * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in problem.initial_parameters().items()
    }


def oracle_loss(problem: Problem, params: Params, batch: Batch) -> float:
    """The float64 loss at the given parameters."""
    ops = NumpyOps()
    exact = {name: ops.asarray(value) for name, value in params.items()}
    output = problem.network.forward(ops, exact, batch.inputs)
    return float(problem.task.loss(ops, output, batch))


def first_step(
    trainer: Trainer, problem: Problem, batch: Batch, scheduled: ScheduledValues = STEADY
) -> tuple[dict[str, np.ndarray], Params]:
    """(Measurements of a trainer's first step, the gradient of each parameter by name).

    Averages start at zero: AdamW's is 1 − β1 times the clipped gradient, Muon's 1 − momentum times.
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

    The slope of the loss along a correct gradient is the gradient's length. The slope along a
    random direction through all parameters also reveals missing parts. `floor / rel` is added to
    each length, so that an absolute error of `floor` is always within `rel`.
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
    """Optimiser settings of a problem."""
    return optimizer_config(problem.spec, problem.network.parameters())


def update_error(
    problem: Problem, params: Params, state: Params, scheduled: ScheduledValues
) -> float:
    """Maximum error of parameters after a first step, relative to float64, in learning rates.

    The float64 step uses the clipped gradients, recovered from `m` in `state`.
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
    """(Errors by the keys of ALLOWED, parameter with the largest gradient error) of one step."""
    problem, batch, scheduled = Problem(spec), example_batch(spec), schedule_at(spec, 0)
    params = parameters_off_kinks(problem, batch)
    trainer = trainer_for(problem, backend, params)
    measured, gradients = first_step(trainer, problem, batch, scheduled)
    expected = oracle_loss(problem, params, batch)
    # A scalar's gradient may be a sum of order-one terms that cancel, one for each entry of a
    # stream: their n independent roundings add up to √n·2⁻²⁴.
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
