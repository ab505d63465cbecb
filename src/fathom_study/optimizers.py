"""Update rule and learning rate of each parameter, the same for all backends.

AdamW is each framework's own implementation. Muon is implemented here with array primitives.
Definitions: docs/definitions/training.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fathom.arithmetic.newton_schulz import newton_schulz
from fathom.init import Parameter

if TYPE_CHECKING:
    from fathom.operations.ops import Array, Ops
    from fathom_study.spec import Spec


@dataclass(frozen=True)
class ParamGroup:
    """Parameters with the same update rule and hyperparameters."""

    names: tuple[str, ...]
    rule: Literal["adamw", "muon"]
    lr: float
    """Learning rate, before the schedule."""
    decay: float
    """Decoupled weight decay."""
    parts: int = 1
    """Number of matrices stacked along the rows of each parameter, for Muon."""


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimiser settings for a trainer."""

    groups: tuple[ParamGroup, ...]
    beta1: float
    beta2: float
    eps: float
    bias_correction: bool
    """Whether AdamW divides its moments by 1 − β^t."""
    clip: float | None
    """Maximum norm of all gradients together; None: no clipping."""


@dataclass(frozen=True)
class ScheduledValues:
    """Optimiser values that change from step to step."""

    rate: float
    """Factor of every learning rate."""
    momentum: float
    """Momentum of Muon."""


def optimizer_config(spec: Spec, parameters: Mapping[str, Parameter]) -> OptimizerConfig:
    """Optimiser settings of a spec, with each parameter of its network in one group."""
    optimizer = spec.optimizer
    by_kind: dict[tuple[str, float, float, int], list[str]] = {}
    for name, parameter in parameters.items():
        by_kind.setdefault(_kind(name, parameter, spec), []).append(name)
    return OptimizerConfig(
        groups=tuple(ParamGroup(tuple(names), *kind) for kind, names in by_kind.items()),
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        eps=optimizer.eps,
        bias_correction=spec.recipe.bias_correction,
        clip=optimizer.clip,
    )


def _kind(name: str, parameter: Parameter, spec: Spec) -> tuple[str, float, float, int]:
    """(rule, learning rate, decay, parts) of one parameter."""
    optimizer, muon = spec.optimizer, spec.optimizer.muon
    decays = parameter.decays and (optimizer.decay == "all" or parameter.is_matrix)
    decay = optimizer.weight_decay if decays else 0.0
    if muon is None:
        return "adamw", optimizer.lr * parameter.rate, decay, 1
    # One matrix per layer, stacked over layers: three axes.
    if name.startswith(("block.", "connection.")) and len(parameter.shape) == 3:
        return "muon", muon.lr * parameter.rate, 0.0, parameter.parts
    lr = parameter.rate * (muon.head_lr if name.startswith("head.") else optimizer.lr)
    return "adamw", lr * math.sqrt(muon.reference_width / spec.model.width), decay, 1


def schedule_at(spec: Spec, step: int) -> ScheduledValues:
    """Values at a step: linear warm-up, then the schedule; Muon's momentum rises linearly."""
    muon, momentum = spec.optimizer.muon, 0.0
    if muon is not None:
        done = min(1.0, step / muon.momentum_steps)
        momentum = muon.first_momentum + done * (muon.momentum - muon.first_momentum)
    return ScheduledValues(_rate(spec, step), momentum)


def _rate(spec: Spec, step: int) -> float:
    optimizer = spec.optimizer
    if step < optimizer.warmup_steps:
        return (step + 1) / optimizer.warmup_steps
    done = (step - optimizer.warmup_steps) / max(1, spec.steps - optimizer.warmup_steps)
    if optimizer.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if optimizer.schedule == "constant":
        return 1.0
    return min(1.0, (spec.steps - step) / (optimizer.final_share * spec.steps))


def clip_coefficient(ops: Ops, norms: Array, largest: float) -> Array:
    """Factor that limits the joint norm of gradients with norms [P] to `largest`."""
    norm = ops.l2_norm(norms)[0]
    return 1 / ops.maximum((norm + 1e-6) / largest, 1.0)


# --- Muon ---------------------------------------------------------------------------------------

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton–Schulz iteration: steep at zero, so that five steps bring all singular
values near one, and no closer."""

ITERATIONS = 5


def orthogonalize(ops: Ops, G: Array) -> Array:
    """G [N, rows, columns] with its singular values moved near one."""
    _, rows, columns = G.shape
    if rows <= columns:
        return newton_schulz(ops, G, COEFFICIENTS, ITERATIONS)
    # With the smaller side first, the products are smaller.
    X = newton_schulz(ops, ops.transpose(G, (0, 2, 1)), COEFFICIENTS, ITERATIONS)
    return ops.transpose(X, (0, 2, 1))


def muon(
    ops: Ops,
    parameter: Array,
    gradient: Array,
    average: Array,
    lr: Array,
    momentum: Array,
    parts: int = 1,
) -> tuple[Array, Array]:
    """(Parameter, average of gradients) after a step of Muon; each [N, parts · rows, columns].

    Each part of the Nesterov momentum is orthogonalised, and the result is scaled by
    lr·√max(1, rows/columns).
    """
    N, height, columns = parameter.shape
    rows = height // parts
    average = average * momentum + gradient * (1 - momentum)
    ahead = average * momentum + gradient * (1 - momentum)
    change = orthogonalize(ops, ops.reshape(ahead, (N * parts, rows, columns)))
    lr = lr * math.sqrt(max(1.0, rows / columns))
    return parameter - ops.reshape(change, parameter.shape) * lr, average
