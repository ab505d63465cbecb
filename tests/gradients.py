"""Gradients of the backends against finite differences of a float64 loss."""

from fathom.parity import STEADY, first_step, gradient_errors

__all__ = ["STEADY", "assert_gradients", "first_step"]


def assert_gradients(loss, params, found, rel, floor):
    """Hold the gradients of each backend, `found[backend][name]`, against those of `loss(params)`.

    Errors may be `rel` times the length, plus `floor`.
    """
    for error, backend, name in gradient_errors(loss, params, found, rel, floor):
        assert error <= rel, (backend, name)
