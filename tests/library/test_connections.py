"""Components of connections, and effects of the initial symmetry on the streams of mhc."""

import math

import numpy as np
import pytest

from fathom import init
from fathom.connections.connection import readout_shares, stream_spread
from fathom.connections.schemes import ABOUT, SCHEMES
from fathom.operations.numpy_ops import NumpyOps
from tests.library.frameworks import connection_of
from tests.support import naive

WIDTH = 5

# --- components by hand ---------------------------------------------------------------------------


def test_spread_of_streams_by_hand(backend):
    ops = backend.ops
    # Cosines of the three pairs: 0, −1 and 0 at the first of two positions, then 1. The first and
    # third differ by 7; the maximum is 4.
    first = np.array([[3.0, 0.0], [0.0, 2.0], [-4.0, 0.0]])
    streams = ops.asarray(np.stack([first, np.ones((3, 2))], axis=1))
    spread = [float(ops.to_numpy(value)) for value in stream_spread(ops, streams)]
    assert spread == pytest.approx([7 / 4, (-1 / 3 + 1) / 2])
    same = [
        float(ops.to_numpy(v))
        for v in stream_spread(ops, ops.broadcast(streams[0], (3, *streams[0].shape)) * 1e30)
    ]
    assert same == pytest.approx([0, 1])  # squares of 1e30 overflow float32
    silent = ops.asarray(np.array([[[3.0, 0.0]], [[0.0, 0.0]]]))
    assert float(ops.to_numpy(stream_spread(ops, silent)[1])) == 0


# --- dynamic connections: a set of weights for each unit ------------------------------------------

UNITS = [
    pytest.param((2, 3), 0, id="tokens"),  # [B, T]: each token is a unit
    pytest.param((2, 3, 4), 2, id="images"),  # [B, H, W]: each image is
]


@pytest.mark.parametrize("scheme", ["mhc_dynamic", "hc_paper", "krom_hc", "hy_v4"])
@pytest.mark.parametrize(("middle", "pooled"), UNITS)
def test_dynamic_connection_reports_metrics_of_its_units(backend, scheme, middle, pooled):
    """H_res averaged over units, H_res of the first of two examples, and readout weights."""
    connection = connection_of(scheme, 2, WIDTH, pooled_axes=pooled)
    params, x = moved(connection), np.random.default_rng(1).standard_normal((*middle, 5))
    exact = naive.connection_of({k: v.astype(np.float64) for k, v in params.items()})
    U = math.prod(middle[: len(middle) - pooled])
    first = naive.opened(scheme, exact, x.reshape(U, -1, 5), 4)
    H = np.array([naive.coefficients(scheme, exact, 0, first[:, u], layers=2)[2] for u in range(U)])
    for ops, tolerance in ((NumpyOps(), 1e-12), (backend.ops, 3e-5)):
        arrays = {name: ops.asarray(value) for name, value in params.items()}
        _, mixed = connection.through(ops, arrays, ops.asarray(x), tanh_layers(ops, 2), None)
        last = ops.to_numpy(mixed.streams).astype(np.float64).reshape(4, U, -1, 5)
        computed = [naive.computed_readout(scheme, exact, last[:, u]) for u in range(U)
                    if "readout_phi" in exact]  # fmt: skip
        weights = np.transpose(computed) if computed else naive.readout(scheme, exact, 4)
        for value, expected in (
            (mixed.H_res[0], H.mean(axis=0)),
            (mixed.H_res_of_one[0], H[: U // 2]),
            (mixed.weights, weights),
        ):
            values = ops.to_numpy(value).reshape(np.shape(expected))
            assert values == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_shares_of_weights_that_differ_by_position(backend):
    ops, rng = backend.ops, np.random.default_rng(0)
    streams, weights = rng.standard_normal((3, 2, 5, 4)), rng.random((3, 2 * 5))
    parts = streams * weights.reshape(3, 2, 5, 1)
    expected = [(part * sum(parts)).sum() / (sum(parts) ** 2).sum() for part in parts]
    for scale in (1, 1e30):  # the squares overflow float32
        arrays = map(ops.asarray, (streams * scale, weights))
        assert ops.to_numpy(readout_shares(ops, *arrays)) == pytest.approx(expected, rel=1e-5)


def test_gate_per_stream_equals_one_gate_for_all_its_channels():
    """`per: stream` equals `per: channel` with equal rows of U for a stream's channels."""
    ops, x = NumpyOps(), np.random.default_rng(4).standard_normal((2, 5))
    by_stream = connection_of({"connection": "qwen4_exp", "per": "stream"}, 2, WIDTH)
    params = {name: ops.asarray(value) for name, value in moved(by_stream).items()}
    repeated = {**params, "connection.gate_up": params["connection.gate_up"].repeat(5, axis=1)}
    by_channel = connection_of("qwen4_exp", 2, WIDTH)
    outputs = [
        connection.through(ops, values, x, tanh_layers(ops, 2), None)[0]
        for connection, values in ((by_stream, params), (by_channel, repeated))
    ]
    assert outputs[0] == pytest.approx(outputs[1], rel=1e-13)


def moved(connection):
    """A connection's initial parameters, each moved at random."""
    rng = np.random.default_rng(2)
    return {
        name: (value + 0.5 * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in init.draw(connection.parameters(), seed=0).items()
    }


# --- causal connections: sums over finished blocks ------------------------------------------------


def tanh_layers(ops, depth, width=WIDTH):
    """Functions [2, C] → [2, C], each with its own matrix."""
    weights = np.random.default_rng(3).standard_normal((depth, width, width)) / math.sqrt(width)
    return [lambda x, w=w: ops.tanh(ops.linear(x, w)) for w in map(ops.asarray, weights)]


@pytest.mark.parametrize("has_residual", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3, 7, 8, 33])
def test_sums_over_finished_blocks_equal_the_plain_sum(depth, has_residual):
    ops = NumpyOps()
    connection = connection_of("mhc_causal", depth, WIDTH, has_residual=has_residual)
    params = {name: ops.asarray(value) for name, value in moved(connection).items()}
    x, layers = np.random.default_rng(4).standard_normal((2, 5)), tanh_layers(ops, depth)
    exact = naive.connection_of(params)
    expected = naive.through("mhc_causal", exact, x, layers, 4, has_residual)
    output, _ = connection.through(ops, params, x, layers, None)
    assert output == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_unstack_keeps_order_and_gradients_of_many_parts(connect_cpu):
    ops = connect_cpu("mlx").ops
    import mlx.core as mx

    x = np.random.default_rng(0).standard_normal((131, 2)).astype(np.float32)
    factors = np.arange(131.0, dtype=np.float32)
    parts = ops.unstack(ops.asarray(x))
    assert np.array_equal(np.stack([np.array(part) for part in parts]), x)
    again = mx.grad(lambda x: mx.sum(mx.stack(ops.unstack(x)) * mx.array(factors)[:, None]))
    assert np.array_equal(np.array(again(mx.array(x))), np.stack([factors] * 2, axis=1))


# --- which schemes start as the plain network -----------------------------------------------------


TOGETHER = {name: {"connection": name, "apart": off} for name, off in
            (("inkling2", None), ("muddformer", False), ("muddformer_last", False))}  # fmt: skip
"""Settings of schemes with separate q, k and v, for functions with one input."""


def start_of(settings, eps):
    """The output of eight untrained layers and a last norm, in float64."""
    ops, depth, width = NumpyOps(), 8, 16
    connection = connection_of(settings, depth, width)
    params = {n: ops.asarray(v) for n, v in init.draw(connection.parameters(), seed=0).items()}

    def normed(x):
        return x if connection.reads_normed else x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)

    layers = [lambda x, f=f: f(normed(x)) for f in tanh_layers(ops, depth, width)]
    x = np.random.default_rng(4).standard_normal((2, 3, width))
    return normed(connection.through(ops, params, x, layers, None)[0])


@pytest.mark.parametrize(
    ("settings", "starts_plain", "eps"),
    [
        *((TOGETHER.get(name, name), ABOUT[name].starts_plain, 0) for name in SCHEMES),
        # Without reads it equals the plain network even if no norm removes a factor.
        ({"connection": "delta_attn_res", "gate": 0}, True, 1),
    ],
    ids=str,
)
def test_starts_plain_matches_the_untrained_network(settings, starts_plain, eps):
    plain = start_of("plain", eps)
    distance = np.abs(start_of(settings, eps) - plain).max() / np.abs(plain).max()
    # float64 rounding of 8 layers, or more than any float32 rounding.
    assert distance < 1e-13 if starts_plain else distance > 1e-5
