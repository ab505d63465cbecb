"""Gradients of the backends against finite differences of a float64 loss."""

from fathom import parity
from fathom.parity import STEADY, gradient_errors
from fathom.tasks import Problem

__all__ = ["STEADY", "assert_gradients", "first_step"]


def first_step(trainer, spec, batch, scheduled=STEADY):
    """What was measured in a trainer's first step, and the gradients of every parameter."""
    return parity.first_step(trainer, Problem(spec), batch, scheduled)


def assert_gradients(loss, params, found, rel, floor):
    """Hold the gradients of each backend, `found[backend][name]`, against those of `loss(params)`.

    Errors may be `rel` times the length, plus `floor`.
    """
    for error, backend, name in gradient_errors(loss, params, found, rel, floor):
        assert error <= rel, (backend, name)
