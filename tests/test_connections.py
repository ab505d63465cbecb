"""What connections are made of, and what the initial symmetry does to the streams of mhc."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest

import naive
from fathom.backends.numpy import NumpyOps
from fathom.models import init
from fathom.models.connections.components import GATES
from fathom.models.connections.connection import (
    ConnectionContext,
    readout_shares,
    stream_spread,
)
from fathom.models.connections.schemes import SCHEMES, resolve
from fathom.models.network import through_layers
from gradients import STEADY, first_step
from param_helpers import parameters_of

FLOAT32 = 1e-6
"""A few roundings of float32, each 6e-8, on numbers of order one."""


# --- components by hand ---------------------------------------------------------------------------


def test_the_gate_by_hand(backend):
    ops, gate = backend.ops, GATES["learned"](start=0.2)
    (parameter,) = init.draw(gate.parameters(2), seed=0).values()
    assert naive.sigmoid(parameter.astype(float)) == pytest.approx([0.2, 0.2])
    g = gate.values(ops, {"connection.gate": ops.asarray(np.log([1 / 3, 3.0]))}, noise=None)
    assert ops.to_numpy(g) == pytest.approx([1 / 4, 3 / 4])
    gated = gate.apply(ops, g, ops.asarray(np.ones((2, 2, 2))))
    expected = np.array([[[1, 0.25], [0.25, 1]], [[1, 0.75], [0.75, 1]]])
    assert ops.to_numpy(gated) == pytest.approx(expected, abs=FLOAT32)
    per_token = gate.apply(ops, g[0], ops.asarray(np.ones((15, 2, 2))))
    everywhere = np.broadcast_to(expected[0], (15, 2, 2))
    assert ops.to_numpy(per_token) == pytest.approx(everywhere, abs=FLOAT32)


def test_the_spread_of_streams_by_hand(backend):
    ops = backend.ops
    # Cosines of the three pairs: 0, −1 and 0. The first and third differ by 7; the largest is 4.
    streams = ops.asarray(np.array([[[3.0, 0.0]], [[0.0, 2.0]], [[-4.0, 0.0]]]))
    spread = [float(ops.to_numpy(value)) for value in stream_spread(ops, streams)]
    assert spread == pytest.approx([7 / 4, -1 / 3])
    same = [
        float(ops.to_numpy(v))
        for v in stream_spread(ops, ops.broadcast(streams[0], (3, *streams[0].shape)) * 1e30)
    ]
    assert same == pytest.approx([0, 1])  # squares of 1e30 are beyond float32
    silent = ops.asarray(np.array([[[3.0, 0.0]], [[0.0, 0.0]]]))
    assert float(ops.to_numpy(stream_spread(ops, silent)[1])) == 0


def test_similarity_is_the_mean_over_positions_and_pairs(backend):
    x = np.random.default_rng(0).standard_normal((4, 2, 3, 5))
    cosines = [
        x[s][i] @ x[t][i] / np.linalg.norm(x[s][i]) / np.linalg.norm(x[t][i])
        for i in np.ndindex(2, 3)
        for s in range(4)
        for t in range(s)
    ]
    ops = backend.ops
    found = float(ops.to_numpy(stream_spread(ops, ops.asarray(x))[1]))
    assert found == pytest.approx(np.mean(cosines), abs=FLOAT32)


# --- dynamic connections: a set of weights for each unit ------------------------------------------

UNITS = [
    pytest.param((2, 3), 0, id="tokens"),  # [B, T]: each token is a unit
    pytest.param((2, 3, 4), 2, id="images"),  # [B, H, W]: each image is
]


def by_units(x, middle, pooled):
    """[S, …, C] → [S, U, N, C]: units, and the positions that are averaged over."""
    kept = middle[: len(middle) - pooled]
    return x.reshape(x.shape[0], math.prod(kept), -1, x.shape[-1])


@pytest.mark.parametrize(
    "scheme", ["hc_dynamic", "mhc_dynamic", "hc_paper", "krom_hc", "mhc_uniform", "hy_v4"]
)
@pytest.mark.parametrize(("middle", "pooled"), UNITS)
def test_a_dynamic_connection_computes_the_weights_of_each_unit(backend, scheme, middle, pooled):
    connection = at_site(scheme, pooled_axes=pooled)
    params, rng = moved(connection), np.random.default_rng(1)
    exact = naive.connection_of({k: v.astype(np.float64) for k, v in params.items()})
    streams, ys = rng.standard_normal((4, *middle, 5)), rng.standard_normal((2, *middle, 5))
    x_units, y_units = by_units(streams.copy(), middle, pooled), by_units(ys, middle, pooled)
    reads, mixing = np.zeros_like(y_units), np.zeros((2, x_units.shape[1], 4, 4))
    closed, readout = np.zeros_like(y_units[0]), []
    for u in range(len(closed)):
        for layer in range(2):
            unit = x_units[:, u].copy()
            (pre,), (post,), H = naive.coefficients(scheme, exact, layer, unit, layers=2)
            mixing[layer, u] = H
            for s in range(4):
                reads[layer, u] += pre[s] * unit[s]
                x_units[s, u] = post[s] * y_units[layer, u]
                x_units[s, u] += sum(H[s, r] * unit[r] for r in range(4))
        is_computed = "readout_phi" in exact
        weights = (naive.computed_readout if is_computed else naive.readout)(
            scheme, exact, x_units[:, u] if is_computed else 4
        )
        closed[u] = sum(weights[s] * x_units[s, u] for s in range(4))
        readout.append(weights)
    readout = np.transpose(readout) if is_computed else readout[0]

    given = connection.settings.model_copy(update={"open": Given(streams)})
    connection = dataclasses.replace(connection, settings=given)
    for ops, tolerance in ((NumpyOps(), 1e-12), (backend.ops, 3e-5)):
        arrays = {name: ops.asarray(value) for name, value in params.items()}
        layers, read = [partial(lambda y, _: y, ops.asarray(y)) for y in ys], []
        out, mixed = through_layers(
            ops, connection, arrays, ops.asarray(ys[0]), layers, block_inputs=read
        )
        for value, expected in (
            (ops.stack(read), reads),
            (mixed.streams, x_units),
            (out, closed),
            (mixed.H_res, mixing.mean(axis=1)),
            (mixed.H_res_of_one, mixing[:, : len(closed) // 2]),  # of the first of two examples
            (mixed.weights, readout),
        ):
            values = ops.to_numpy(value).reshape(np.shape(expected))
            assert values == pytest.approx(np.array(expected), rel=tolerance, abs=tolerance)


def test_shares_of_weights_that_differ_by_position(backend):
    ops, rng = backend.ops, np.random.default_rng(0)
    streams, weights = rng.standard_normal((3, 2, 5, 4)), rng.random((3, 2 * 5))
    parts = streams * weights.reshape(3, 2, 5, 1)
    expected = [(part * sum(parts)).sum() / (sum(parts) ** 2).sum() for part in parts]
    found = ops.to_numpy(readout_shares(ops, ops.asarray(streams), ops.asarray(weights)))
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_gate_for_each_stream_is_one_for_all_its_channels():
    """`per: stream` is `per: channel` where the rows of U are the same for a stream's channels."""
    ops, x = NumpyOps(), np.random.default_rng(4).standard_normal((2, 5))
    by_stream = at_site({"connection": "qwen4_exp", "per": "stream"})
    params = {name: ops.asarray(value) for name, value in moved(by_stream).items()}
    repeated = {**params, "connection.gate_up": params["connection.gate_up"].repeat(5, axis=1)}
    found = [
        through_layers(ops, connection, values, x, tanh_layers(ops, 2))[0]
        for connection, values in ((by_stream, params), (at_site("qwen4_exp"), repeated))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-13)


@dataclasses.dataclass(frozen=True)
class Given:
    """An opening whose streams are given, whatever the input."""

    streams_given: np.ndarray

    def parameters(self, S, context):
        return {}

    def streams(self, ops, params, x, S):
        return ops.asarray(self.streams_given)


def at_site(scheme, layers=2, width=5, pooled_axes=0, has_residual=False, streams=4):
    """A named scheme around functions of any kind."""
    context = ConnectionContext(
        layers, width, pooled_axes, has_residual, optional_norms=not has_residual
    )
    return resolve(scheme, SCHEMES, streams, "test").at(context)


def moved(connection):
    """A connection's initial parameters, each moved at random."""
    rng = np.random.default_rng(2)
    return {
        name: (value + 0.5 * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in init.draw(connection.parameters(), seed=0).items()
    }


# --- causal connections: sums over finished blocks ------------------------------------------------


def tanh_layers(ops, depth, width=5):
    """Functions [2, C] → [2, C], each with a matrix of its own."""
    weights = np.random.default_rng(3).standard_normal((depth, width, width)) / math.sqrt(width)
    return [partial(tanh_layer, ops, ops.asarray(w)) for w in weights]


def tanh_layer(ops, weight, x):
    return ops.tanh(ops.linear(x, weight))


def plain_sum(weights, x, layers, has_residual):
    """Every layer sums its whole history, state by state."""
    states = [x]
    for i, layer in enumerate(layers):
        read = weights[i, 0] * states[0]
        for j in range(1, i + 1):
            read = read + weights[i, j] * states[j]
        states.append(layer(read) if has_residual else read + layer(read))
    return states[-1]


@pytest.mark.parametrize("has_residual", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3, 7, 8, 33])
def test_sums_over_finished_blocks_equal_the_plain_sum(depth, has_residual):
    ops = NumpyOps()
    connection = at_site("mhc_causal", depth, has_residual=has_residual)
    params = {name: ops.asarray(value) for name, value in moved(connection).items()}
    x, layers = np.random.default_rng(4).standard_normal((2, 5)), tanh_layers(ops, depth)
    weights = naive.causal_weights("mhc_causal", naive.connection_of(params))
    expected = plain_sum(weights, x, layers, has_residual)
    found, _ = through_layers(ops, connection, params, x, layers)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_many_parts_are_unstacked_in_their_order_with_their_gradients(connect_cpu):
    ops = connect_cpu("mlx").ops
    import mlx.core as mx

    x = np.random.default_rng(0).standard_normal((131, 2)).astype(np.float32)
    factors = np.arange(131.0, dtype=np.float32)
    parts = ops.unstack(ops.asarray(x))
    assert np.array_equal(np.stack([np.array(part) for part in parts]), x)
    again = mx.grad(lambda x: mx.sum(mx.stack(ops.unstack(x)) * mx.array(factors)[:, None]))
    assert np.array_equal(np.array(again(mx.array(x))), np.stack([factors] * 2, axis=1))


# --- one stream -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("has_residual", "factor"), [(True, 9), (False, 16)])
def test_plain_adds_its_input_where_a_layer_does_not(backend, has_residual, factor):
    """f(x) = 3x, twice: 9x where f has its residual inside, and 16x where not."""
    ops, connection = backend.ops, at_site("plain", has_residual=has_residual)
    x = ops.asarray(np.ones((2, 5)))
    out, mixed = through_layers(ops, connection, {}, x, [lambda x: 3 * x] * 2)
    assert connection.parameters() == {}
    assert connection.is_plain
    assert mixed is None
    assert ops.to_numpy(out).tolist() == [[factor] * 5] * 2


# --- the initial streams of mhc are one stream ----------------------------------------------------


def first_spread(backend, spec, params, first_batch, start):
    """(largest difference of streams, mean cosine) in the first step, and gradient norms."""
    trainer = start(backend, spec, params)
    trainer.step([first_batch(spec)], STEADY)
    measured = trainer.collect()
    norms = dict(zip(params, measured["grad_norms"][0], strict=True))
    return measured["stream_difference"][0], measured["stream_similarity"][0], norms


@pytest.mark.parametrize("recipe", ["mlx-defaults", "torch-defaults"])
def test_from_its_initial_parameters_the_streams_of_mhc_stay_one(
    backend, make_spec, first_batch, start, recipe
):
    spec = make_spec(variant="mhc", depth=12, recipe=recipe, batch_size=8)
    initial = parameters_of(spec)
    difference, cosine, norms = first_spread(backend, spec, initial, first_batch, start)
    # Each stream is the same sum taken in another order: a few roundings per layer.
    assert difference <= FLOAT32
    assert cosine == pytest.approx(1, abs=FLOAT32)
    # So how they are mixed has no gradient, but for rounding; the others are of order 0.1 to 1.
    assert norms["connection.H_pre"] < 1e-8
    assert norms["connection.H_post"] < 1e-8
    assert norms["connection.H_res"] < 1e-8
    assert norms["head.weight"] > 0.1


def test_in_hc_only_the_scale_of_H_res_has_a_gradient(backend, make_spec, first_batch, start):
    spec = make_spec(variant="hc", depth=3, batch_size=8)
    initial = parameters_of(spec)
    *_, norms = first_spread(backend, spec, initial, first_batch, start)
    assert norms["connection.H_res"] > 1e-4
    assert norms["connection.H_pre"] < 1e-8
    assert norms["connection.H_post"] < 1e-8


# --- what starts promise --------------------------------------------------------------------------


@pytest.fixture
def at_start(make_spec, first_batch, oracle_forward):
    """A function to the oracle's output of a variant at its own start."""

    def forward(variant, connection=None, **changes):
        spec = make_spec(variant=variant, connection=connection, wrap="sublayer", **changes)
        return oracle_forward(spec, parameters_of(spec), first_batch(spec).inputs)

    return forward


@pytest.mark.parametrize("streams", [1, 3, 4])
@pytest.mark.parametrize("scheme", ["hc_paper", "hc_paper_static"])
def test_hc_as_its_paper_starts_it_is_the_pre_norm_network(at_start, scheme, streams):
    """A stream is read, all are written to, none are mixed: each one is the pre-norm network's.

    Their sum is S times it, which the last layer norm takes off, but for its eps of 1e-5 beside
    a variance of order one.
    """
    expected = at_start("baseline").logits
    mean = at_start("own", {"connection": scheme, "close": "mean"}, streams=streams).logits
    assert mean == pytest.approx(expected, abs=1e-12)
    assert at_start(scheme, streams=streams).logits == pytest.approx(expected, abs=1e-4)


# --- every parameter is learned -------------------------------------------------------------------

WITHOUT_GRADIENT = {
    # Their logits divided by 0.05 underflow: H_res is the identity, whatever they are.
    "mhc_gated_static": {"H_res", "gate"},
}
OF_ALL_LAYERS = {
    "readout", "readout_phi", "readout_alpha", "stream_embedding", "stream_scales",
    "open_projections", "close_projections", "input_scale", "input_bias",
}  # fmt: skip
WITHOUT_PARAMETERS = ("plain", "scaled", "depth_scaled")


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in WITHOUT_PARAMETERS])
def test_every_parameter_of_a_connection_is_learned_once_streams_differ(
    connect_cpu, make_spec, parameters_off_symmetry, first_batch, start, scheme
):
    """Of the layers between the first and the last.

    The first one finds copies: how it weighs them is a factor that its norm takes off. What the
    last one only moves from stream to stream is the same in the sum.
    """
    spec = make_spec(variant=scheme, wrap="sublayer", depth=2, beta1=0.0)
    trainer = start(connect_cpu("torch"), spec, parameters_off_symmetry(spec))
    _, gradients = first_step(trainer, spec, first_batch(spec))
    found = naive.connection_of(gradients)
    assert found
    if "alpha" in found:
        found |= {f"alpha {k}": column for k, column in enumerate(found.pop("alpha").T)}
    for name, gradient in found.items():
        layers = gradient if name in OF_ALL_LAYERS else gradient[1:-1]
        sizes = np.abs(layers.reshape(len(layers), -1)).max(axis=1)
        if name in WITHOUT_GRADIENT.get(scheme, ()):
            assert (sizes == 0).all(), name
        else:
            assert (sizes > 1e-7).all(), (name, sizes)
