"""Gradients of the backends against finite differences of a float64 loss.

The oracle is forward only, so gradients are compared with directional differences of its loss.
"""

import math

import numpy as np

from fathom_study.optimizers import ScheduledValues, optimizer_config
from fathom_study.tasks import Problem
from fathom_study.train import step_rows

STEADY = ScheduledValues(rate=1.0, momentum=0.0)
"""No schedule; with momentum 0, Muon's average is the gradient itself."""

H = 1e-6
"""Step h of central differences, whose rounding error is 1e-10."""


def first_step(trainer, spec, batch):
    """(Measurements of a trainer's first step, the gradient of each parameter by name).

    Averages start at zero: AdamW's is 1 − β1 times the clipped gradient, Muon's 1 − momentum times.
    """
    trainer.step([batch], STEADY)
    measured = {name: values[0] for name, values in trainer.collect().items()}
    state, update = trainer.state(), optimizer_config(spec, Problem(spec).network.parameters())
    norm = math.sqrt(np.square(measured["grad_norms"], dtype=np.float64).sum())
    clipped = 1.0 if update.clip is None else min(1.0, update.clip / (norm + 1e-6))
    return measured, {
        name: state[f"m.{name}"].astype(np.float64) / (clipped * (1 - kept))
        for group in update.groups
        for kept in [STEADY.momentum if group.rule == "muon" else update.beta1]
        for name in group.names
    }


def first_row(trainer, problem, batches):
    """The metrics of a trainer's first step, as metrics.jsonl has them."""
    trainer.step(batches, STEADY)
    (row,) = step_rows(problem, trainer.collect())
    return row


def assert_gradients(loss, params, result, rel, floor, together=()):
    """Compare the gradients of each backend, `result[backend][name]`, with those of `loss(params)`.

    Errors may be `rel` times the gradient's norm, plus `floor`. Each parameter takes two
    evaluations of the loss; the parameters in `together` count as one.
    """
    of_joined = loss
    if together:
        of_joined = lambda joined: loss(_split(joined, together, params))  # noqa: E731
        result = {backend: _join(gradients, together) for backend, gradients in result.items()}
    joined = _join(params, together) if together else params
    for error, backend, name in gradient_errors(of_joined, joined, result, rel, floor):
        assert error <= rel, (backend, name)


def _join(arrays, names):
    """The arrays, with the named ones joined into one vector under the empty name."""
    vector = np.concatenate([np.ravel(arrays[name]) for name in names])
    return {name: array for name, array in arrays.items() if name not in names} | {"": vector}


def _split(joined, names, like):
    """The inverse of `_join`, to the shapes of `like`."""
    ends = np.cumsum([like[name].size for name in names])
    parts = dict(zip(names, np.split(joined[""], ends[:-1]), strict=True))
    return {n: parts[n].reshape(v.shape) if n in parts else joined[n] for n, v in like.items()}


def gradient_errors(loss, params, result, rel, floor):
    """(relative error, backend, parameter) of gradients `result[backend][name]` of `loss(params)`.

    The slope of the loss along a correct gradient is the gradient's length. The slope along a
    random direction through all parameters also reveals missing parts. `floor / rel` is added to
    each length, so that an absolute error of `floor` is always within `rel`.
    """

    def slope_along(directions):
        up, down = (
            loss({**exact, **{n: exact[n] + h * d for n, d in directions.items()}}) for h in (H, -H)
        )
        return (up - down) / (2 * H)

    rng = np.random.default_rng(1)
    exact = {name: value.astype(np.float64) for name, value in params.items()}
    first = next(iter(result.values()))
    joint = {name: rng.standard_normal(value.shape) for name, value in exact.items()}
    joint = {name: value / np.linalg.norm(value) for name, value in joint.items()}
    for name in exact:
        size = np.linalg.norm(first[name])
        direction = first[name] / size if size > floor else joint[name]
        slope = slope_along({name: direction})
        for backend, gradients in result.items():
            length, along = np.linalg.norm(gradients[name]), (gradients[name] * direction).sum()
            error = max(abs(along - slope), abs(length - slope) if size > floor else 0)
            yield error / (length + floor / rel), backend, name
    slope = slope_along(joint)
    for backend, gradients in result.items():
        along = sum((gradients[name] * joint[name]).sum() for name in exact)
        length = math.sqrt(sum((gradients[name] ** 2).sum() for name in exact))
        yield abs(along - slope) / (length + floor / rel), backend, "all together"
