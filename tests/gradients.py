"""Gradients of the backends against finite differences of a float64 loss."""

import numpy as np

from fathom import parity
from fathom.parity import STEADY, gradient_errors
from fathom.tasks import Problem

__all__ = ["STEADY", "assert_gradients", "first_step"]


def first_step(trainer, spec, batch, scheduled=STEADY):
    """Measurements of a trainer's first step, and the gradients of every parameter."""
    return parity.first_step(trainer, Problem(spec), batch, scheduled)


def assert_gradients(loss, params, found, rel, floor, together=()):
    """Compare the gradients of each backend, `found[backend][name]`, with those of `loss(params)`.

    Errors may be `rel` times the gradient's norm, plus `floor`. Each parameter takes two
    evaluations of the loss; the parameters in `together` count as one.
    """
    of_joined = loss
    if together:
        of_joined = lambda joined: loss(_split(joined, together, params))  # noqa: E731
        found = {backend: _join(gradients, together) for backend, gradients in found.items()}
    joined = _join(params, together) if together else params
    for error, backend, name in gradient_errors(of_joined, joined, found, rel, floor):
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
