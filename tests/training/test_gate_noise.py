"""Gate noise in training: its distribution, its schedule, and gradients through it."""

from functools import partial

import numpy as np
import pytest

from fathom.connections.components import GATES
from fathom.operations.numpy_ops import NumpyOps
from fathom_study import tasks
from tests.support import naive
from tests.support.gradients import assert_gradients, first_step
from tests.support.specs import (
    assert_depends_on_seed_and_step,
    make_spec,
    parameters_off_symmetry,
    trainer_on,
)

# This τ and start mix streams, so that gates matter.
MIXED = {"gate": {"noise": True}, "H_res": {"tau": 1, "start": {"off_diagonal": -1}}}
STATIC, DYNAMIC = ({"connection": f"mhc_gated_{kind}", **MIXED} for kind in ("static", "dynamic"))


noisy = partial(make_spec, connection=STATIC, wrap="sublayer", depth=2)


def noise_of(spec, step):
    """Gate noise of a step, [batches, layers, 3]."""
    return np.stack([batch.inputs["noise"] for batch in tasks.Problem(spec).batches(step)])


# --- distribution --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "share"), [(0, 0.02), (0.05, 0.11), (0.1, 0.2), (0.5, 0.2), (0.999, 0.2)]
)
def test_shares_ranges_and_independence_of_noise(progress, share):
    gate, many = GATES["learned"](noise=True), 40_000
    drawn = gate.sample_noise(np.random.default_rng(3), many, progress)
    assert drawn.shape == (many, 3)
    assert drawn.dtype == np.float32
    is_drawn, values, factors = drawn.T
    assert set(is_drawn) == {0, 1}
    # Six standard deviations of the share over `many` draws.
    assert is_drawn.mean() == pytest.approx(share, abs=6 * np.sqrt(share / many))
    for samples, low, high in ((values, 0.1, 0.9), (factors, 0.7, 1.3)):
        assert low <= samples.min() < low + 0.001
        assert high - 0.001 < samples.max() <= high * (1 + 1e-6)
        assert samples.mean() == pytest.approx((low + high) / 2, abs=0.01)
        assert samples.var() == pytest.approx((high - low) ** 2 / 12, rel=0.03)
    # The indicator, value and factor are uncorrelated.
    assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.03


def test_gates_by_hand(backend):
    """Gates g are ½, ½, ½, 0.01, 0.9 and 0.9."""
    ops, gate = backend.ops, GATES["learned"](noise=True)
    g = np.array([0.5, 0.5, 0.5, 0.01, 0.9, 0.9])
    params = {"connection.gate": ops.asarray(np.log(g / (1 - g)))}
    noise = [[1, 0.3, 1.3], [0, 0.3, 1.2], [0, 0.3, 0.8], [0, 0.9, 1.3], [0, 0.1, 1.1], [1, 0.2, 1]]
    gates = ops.to_numpy(gate.values(ops, params, ops.asarray(np.array(noise))))
    # Drawn, times 1.2, times 0.8, clipped to 0.1, clipped to 0.9, drawn.
    assert gates == pytest.approx([0.3, 0.6, 0.4, 0.1, 0.9, 0.2], abs=1e-6)
    undisturbed = ops.to_numpy(gate.values(ops, params, None))
    assert undisturbed == pytest.approx(g, abs=1e-6)


# --- schedule ------------------------------------------------------------------------------------


def test_noise_depends_on_seed_and_step_alone():
    def drawn(step, **changes):
        return {"noise": noise_of(noisy(steps=20, **changes), step)}

    assert drawn(0)["noise"].shape == (1, 4, 3)
    others = {"backend": "mlx", "width": 8, "batch_size": 3, "lr": 0.5}
    assert_depends_on_seed_and_step(drawn, **others)


def test_the_share_rises_over_the_first_tenth_of_the_steps():
    """400 gates in each step: 2 % of them are drawn at first, 11 % half-way, then 20 %."""
    spec = noisy(steps=40, depth=200)
    shares = [noise_of(spec, step)[0, :, 0].mean() for step in (0, 2, 4, 39)]
    for share, expected in zip(shares, (0.02, 0.11, 0.2, 0.2), strict=True):
        assert share == pytest.approx(expected, abs=4 * np.sqrt(expected / 400))


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("connection", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_gradients_with_noise_equal_the_oracle(backends_here, connection):
    spec = noisy(connection=connection, beta1=0.0, batch_size=2, length=5, width=8)
    params, (batch,) = parameters_off_symmetry(spec), tasks.Problem(spec).batches(0)
    # No gate at a bound, where left and right slopes differ.
    params["connection.gate"] = np.linspace(-1, 1, 4).astype(np.float32)
    ops = NumpyOps()

    def loss(exact, noise=True):
        inputs = {**batch.inputs, "noise": batch.inputs["noise"].astype(float) if noise else None}
        output = tasks.Problem(spec).network.forward(ops, exact, inputs)
        return ops.cross_entropy(output.logits, batch.targets)

    exact, gradients = {name: ops.asarray(value) for name, value in params.items()}, {}
    for name, backend in backends_here.items():
        measured, gradients[name] = first_step(trainer_on(backend, spec, params), spec, batch)
        assert measured["loss"] == pytest.approx(loss(exact), rel=1e-6)
        learned = naive.sigmoid(params["connection.gate"].astype(float))
        assert measured["gates"] == pytest.approx(learned, rel=1e-6)  # without noise
    assert abs(loss(exact) - loss(exact, noise=False)) > 1e-5
    assert_gradients(loss, params, gradients, rel=3e-5, floor=1e-6)
