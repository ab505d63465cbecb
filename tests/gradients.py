"""Gradients of the backends against finite differences of a float64 loss."""

import numpy as np

from fathom import parity
from fathom.parity import STEADY, gradient_errors
from fathom.tasks import Problem

__all__ = ["STEADY", "assert_gradients", "first_step"]


def first_step(trainer, spec, batch, scheduled=STEADY):
    """What was measured in a trainer's first step, and the gradients of every parameter."""
    return parity.first_step(trainer, Problem(spec), batch, scheduled)


def assert_gradients(loss, params, found, rel, floor, together=()):
    """Hold the gradients of each backend, `found[backend][name]`, against those of `loss(params)`.

    Errors may be `rel` times the length, plus `floor`. Two losses are computed for each parameter;
    for those named in `together` as if they were one.
    """
    of_joined = loss
    if together:
        of_joined = lambda joined: loss(_split(joined, together, params))  # noqa: E731
        found = {backend: _join(gradients, together) for backend, gradients in found.items()}
    joined = _join(params, together) if together else params
    for error, backend, name in gradient_errors(of_joined, joined, found, rel, floor):
        assert error <= rel, (backend, name)


def _join(arrays, names):
    """The arrays, but these as one vector, whose name is empty."""
    vector = np.concatenate([np.ravel(arrays[name]) for name in names])
    return {name: array for name, array in arrays.items() if name not in names} | {"": vector}


def _split(joined, names, like):
    """The inverse of `_join`, to the shapes of `like`."""
    ends = np.cumsum([like[name].size for name in names])
    parts = dict(zip(names, np.split(joined[""], ends[:-1]), strict=True))
    return {n: parts[n].reshape(v.shape) if n in parts else joined[n] for n, v in like.items()}
