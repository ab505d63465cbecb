"""Gradients of the backends against finite differences of a float64 loss."""

import numpy as np
import pytest

from fathom.optimizers import ScheduledValues

STEADY = ScheduledValues(rate=1.0, momentum=0.0)
"""No schedule; with this momentum Muon's average is the gradient itself."""

H = 1e-6
"""Differences over ±h err by 1e-10 from rounding; a ReLU rarely has its kink so near."""


def first_step(trainer, spec, batch):
    """What a trainer measured in its first step, and the gradients of every parameter.

    These are AdamW's first moments, as β1 is 0, and Muon's averages.
    """
    assert spec.optimizer.beta1 == 0
    trainer.step([batch], STEADY)
    measured = {name: values[0] for name, values in trainer.collect().items()}
    gradients = {
        name.removeprefix("m."): value.astype(np.float64)
        for name, value in trainer.state().items()
        if name.startswith("m.")
    }
    return measured, gradients


def assert_gradients(loss, params, found, rel, floor):
    """Hold the gradients of each backend, `found[backend][name]`, against those of `loss(params)`.

    The slope along a gradient's own direction is its length, if it is the gradient; along a random
    direction through all parameters it also sees what is missing. Errors may be `rel` times the
    length, plus `floor`.
    """
    rng = np.random.default_rng(1)
    exact = {name: value.astype(np.float64) for name, value in params.items()}
    first = next(iter(found.values()))
    joint = {name: unit(rng.standard_normal(value.shape)) for name, value in exact.items()}
    for name in exact:
        size = np.linalg.norm(first[name])
        direction = first[name] / size if size > floor else joint[name]
        slope = difference(loss, exact, {name: direction})
        for backend, gradients in found.items():
            error = rel * np.linalg.norm(gradients[name]) + floor
            along = (gradients[name] * direction).sum()
            assert along == pytest.approx(slope, abs=error), (backend, name)
            if size > floor:
                length = np.linalg.norm(gradients[name])
                assert length == pytest.approx(slope, abs=error), (backend, name)
    slope = difference(loss, exact, joint)
    for backend, gradients in found.items():
        along = sum((gradients[name] * joint[name]).sum() for name in exact)
        size = np.sqrt(sum((gradients[name] ** 2).sum() for name in exact))
        assert along == pytest.approx(slope, abs=rel * size + floor), backend


def difference(loss, params, directions):
    up, down = (
        loss({**params, **{n: params[n] + sign * H * d for n, d in directions.items()}})
        for sign in (1, -1)
    )
    return (up - down) / (2 * H)


def unit(x):
    return x / np.linalg.norm(x)
