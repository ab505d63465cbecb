"""What a user's own connection does with its streams, and which named scheme it equals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from fathom.connections.module import OwnCode
from fathom.connections.schemes import SCHEMES, resolve
from fathom.operations.ops import Array
from fathom.settings import ConfigError
from fathom_study.backends import Backend
from fathom_study.runs.contract import (
    TOLERANCE,
    Check,
    first_logits,
    relative,
    with_noise,
    without_data,
)
from fathom_study.tasks import Problem
from fathom_study.train import take_step, trainer_for

WATCHED_STEPS = 8
"""Steps after which streams that started as copies should differ."""


def describe(problem: Problem, backend: Backend) -> Iterator[Check]:
    """Checks beside the contract: H_res, streams, and the named scheme that is the same."""
    with OwnCode(problem.network.connection.settings.module):
        problem = without_data(problem)
        initial = problem.initial_parameters()
        perturbed = with_noise(initial)
        if reach := _reach(problem, backend, perturbed):
            yield _mixing(reach)
            yield from _streams(problem, backend, initial)
        yield _same_function(problem, backend, perturbed, reach.streams if reach else 4)


class Reach(NamedTuple):
    """How far the numbers reach from which a module computes the H_res of its `trace`."""

    streams: int
    numbers: int
    """Numbers of the parameters that H_res has a gradient to."""
    used: int
    """Those of them that the output has a gradient to, too."""


def _reach(problem: Problem, backend: Backend, params: dict[str, np.ndarray]) -> Reach | None:
    """Reach in a pass around tanh of each channel; None for a module without `trace`."""
    connection, ops, rng = problem.network.connection, backend.ops, np.random.default_rng(0)
    context = connection.context
    draw = lambda *shape: ops.asarray(rng.standard_normal(shape).astype(np.float32))  # noqa: E731
    own = {
        name: ops.asarray(p).requires_grad_()
        for name, p in params.items()
        if name.startswith("connection.")
    }
    branches = [
        partial(lambda a, x: ops.tanh(a * x), draw(context.width)) for _ in range(context.layers)
    ]
    if context.has_residual:
        branches = [lambda x, f=f: x + f(x) for f in branches]
    x = draw(2, *[3] * max(1, context.pooled_axes), context.width)
    output, mixed = connection.through(ops, own, x, branches, None)
    if mixed is None:
        return None

    def reached(y: Array) -> np.ndarray:
        """Which numbers of all parameters change y."""
        for p in own.values():
            p.grad = None
        if y.requires_grad:  # not if `trace` detaches it
            (y * draw(*y.shape)).sum().backward(retain_graph=True)
        gradients = [p * 0 if p.grad is None else p.grad for p in own.values()]
        return np.concatenate([np.zeros(0), *(ops.to_numpy(g).ravel() for g in gradients)]) != 0

    of_mixing, of_output = reached(mixed.H_res), reached(output)
    return Reach(len(mixed.streams), int(of_mixing.sum()), int((of_mixing & of_output).sum()))


def _mixing(reach: Reach) -> Check:
    """Whether the H_res that `trace` returns is applied, and has a gradient."""
    if not reach.numbers:
        return Check("H_res", "no parameter changes it, or `trace` detaches it")
    # A layer or two may have none: moves between streams do not change their last sum.
    if 2 * reach.used < reach.numbers:
        why = (
            f"{reach.numbers - reach.used} of the {reach.numbers} numbers that `trace` "
            "computes it from have no effect on the output; is it applied to the streams?"
        )
        return Check("H_res", why, flagged=True)
    return Check("H_res", "changes the output, and has gradients")


def _streams(problem: Problem, backend: Backend, initial: dict[str, np.ndarray]) -> Iterator[Check]:
    """Whether training makes streams differ."""
    trainer = trainer_for(problem, backend, initial)
    steps = min(WATCHED_STEPS, problem.spec.steps)
    for step in range(steps):
        take_step(problem, trainer, step)
    spread = trainer.collect().get("stream_difference")
    if spread is None:
        return
    first, last = float(spread[0]), float(spread[-1])
    if last < TOLERANCE:
        yield Check("streams", f"are copies of each other, also after {steps} steps", flagged=True)
    else:
        begin = "start as copies" if first < TOLERANCE else f"differ by {first:.2g} of the largest"
        yield Check("streams", f"{begin}, after {steps} steps differ by {last:.2g}")


def _same_function(
    problem: Problem, backend: Backend, params: dict[str, np.ndarray], streams: int
) -> Check:
    """The named scheme with parameters of these shapes that computes the same from them."""
    own = {n: p for n, p in params.items() if n.startswith("connection.")}
    rest = {n: p for n, p in params.items() if n not in own}
    logits = first_logits(problem, backend, params)
    for name in SCHEMES:
        try:
            scheme = resolve(name, SCHEMES, streams, "")
            other = without_data(Problem(problem.spec.model_copy(update={"connection": scheme})))
        except ConfigError:  # this network does not suit it
            continue
        values = _renamed(
            own, {n: p.shape for n, p in other.network.connection.parameters().items()}
        )
        if (
            values is not None
            and relative(first_logits(other, backend, rest | values), logits) < TOLERANCE
        ):
            return Check("same function", f"{name}, at perturbed parameters")
    return Check("same function", "no named scheme with parameters of these shapes")


def _renamed(
    own: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray] | None:
    """The parameters by other names, those of one shape in order; None for other shapes."""
    if own.keys() == shapes.keys():
        return dict(own) if all(own[n].shape == shape for n, shape in shapes.items()) else None
    by_shape = sorted(own.values(), key=lambda p: p.shape)
    names = sorted(shapes, key=shapes.__getitem__)
    if [p.shape for p in by_shape] != [shapes[n] for n in names]:
        return None
    return dict(zip(names, by_shape, strict=True))
