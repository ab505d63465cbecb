"""What connections are made of, and what the initial symmetry does to the streams of mhc."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

import naive
from fathom import tasks
from fathom.backends import Objective
from fathom.backends.numpy import NumpyOps
from fathom.config import Optimizer
from fathom.models import init
from fathom.models.connections.connection import Site, stream_spread
from fathom.models.connections.ingredients import (
    CONSTRAINTS,
    GATES,
    OPENINGS,
    WEIGHTS,
    Dynamic,
    sinkhorn,
)
from fathom.models.connections.schemes import SCHEMES, resolve
from fathom.models.network import through_layers
from fathom.models.recipes import RECIPES

FLOAT32 = 1e-6
"""A few roundings of float32, each 6e-8, on numbers of order one."""


def random_positive(*shape, seed=0):
    """Positive matrices with entries spread over two decades."""
    return np.exp(np.random.default_rng(seed).uniform(-2.5, 2.5, shape))


def doubly_stochastic(matrix):
    """diag(r) A diag(c) with unit rows and columns, by iterating on r and c in float64."""
    c = np.ones(len(matrix))
    for _ in range(5000):
        r = 1 / (matrix @ c)
        c = 1 / (matrix.T @ r)
    return r[:, None] * matrix * c


@pytest.mark.parametrize("seed", range(3))
def test_sinkhorn_converges_to_the_doubly_stochastic_scaling(seed):
    matrix = random_positive(4, 4, seed=seed)
    expected = doubly_stochastic(matrix)
    assert expected.sum(axis=0) == pytest.approx(1, abs=1e-13)
    assert expected.sum(axis=1) == pytest.approx(1, abs=1e-13)
    assert sinkhorn(NumpyOps(), matrix, 2000) == pytest.approx(expected, abs=1e-12)


def test_sinkhorn_only_scales_rows_and_columns():
    matrix = random_positive(4, 4)
    log_ratio = np.log(sinkhorn(NumpyOps(), matrix, 3) / matrix)
    # u_i + v_j, a sum over rows and columns, has nothing left once both means are taken off.
    rest = log_ratio - log_ratio.mean(axis=0) - log_ratio.mean(axis=1, keepdims=True)
    assert rest + log_ratio.mean() == pytest.approx(0, abs=1e-14)


def test_one_iteration_by_hand_rows_then_columns():
    # Rows: [1/3, 2/3], [3/7, 4/7]; their columns sum to 16/21 and 26/21.
    expected = [[Fraction(7, 16), Fraction(7, 13)], [Fraction(9, 16), Fraction(6, 13)]]
    result = sinkhorn(NumpyOps(), np.array([[1.0, 2.0], [3.0, 4.0]]), 1)
    assert result == pytest.approx(np.array(expected, dtype=float), abs=1e-15)


def test_sinkhorn_ends_on_columns():
    result = sinkhorn(NumpyOps(), random_positive(50, 4, 4), 20)
    column_error = np.abs(result.sum(axis=-2) - 1).max()
    row_error = np.abs(result.sum(axis=-1) - 1).max()
    assert column_error < 1e-15  # four roundings of float64
    assert 1e-12 < row_error < 1e-2  # near, but what 20 iterations leave is no rounding


@pytest.mark.parametrize("entry", [1e-9, 0.3, 1.0, 2e4])
def test_sinkhorn_of_one_stream_is_one_exactly_and_has_no_gradient(entry, connect_cpu):
    torch = connect_cpu("torch")
    logit = torch.ops.asarray(np.array([[[entry]]])).requires_grad_()
    result = sinkhorn(torch.ops, logit, 20)
    result.sum().backward()
    assert (result.item(), logit.grad.item()) == (1.0, 0.0)


def test_sinkhorn_on_each_backend(backend):
    matrices = random_positive(6, 4, 4).astype(np.float32)
    expected = sinkhorn(NumpyOps(), matrices.astype(np.float64), 20)
    result = np.asarray(sinkhorn(backend.ops, backend.ops.asarray(matrices), 20))
    assert result == pytest.approx(expected, abs=FLOAT32)
    assert result.sum(axis=-2, dtype=np.float64) == pytest.approx(1, abs=FLOAT32)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        # An all-zero row stays zero instead of becoming 0/0; the other row takes the columns.
        ([[0, 0], [1, 3]], [[0, 0], [1, 1]]),
        # Row sums below 1e-12 count as 1e-12: rows [0.01, 0.01], [0.5, 0.5].
        ([[1e-14, 1e-14], [1, 1]], [[0.01 / 0.51] * 2, [0.5 / 0.51] * 2]),
        # So do column sums: rows [1, 1e-14] twice, columns 2 and 2e-14.
        ([[1, 1e-14], [1, 1e-14]], [[0.5, 0.01], [0.5, 0.01]]),
    ],
)
def test_sums_are_clamped_at_1e_12(backend, matrix, expected):
    matrix = np.array(matrix, dtype=np.float32)
    result = np.asarray(sinkhorn(backend.ops, backend.ops.asarray(matrix), 1))
    assert result == pytest.approx(np.array(expected), abs=FLOAT32)


def test_a_matrix_of_zeros_stays_finite(backend):
    result = sinkhorn(backend.ops, backend.ops.asarray(np.zeros((2, 2), np.float32)), 20)
    assert (np.asarray(result) == 0).all()


# --- ingredients by hand --------------------------------------------------------------------------

LOGITS = np.array([[0.5, -1.0, 2.0], [0.0, 3.0, -2.0], [1.0, 1.0, -0.5]])
ROWS = np.array([naive.softmax(row) for row in LOGITS])
SUM = sum(np.exp(LOGITS[1]))


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("raw", {}, LOGITS),
        ("softmax", {}, ROWS),
        ("sigmoid", {}, naive.sigmoid(LOGITS)),
        ("sigmoid", {"scale": 2.0}, 2 * naive.sigmoid(LOGITS)),
        ("row_softmax_mean", {}, sum(ROWS) / 3),
        ("row_softmax_sum", {}, sum(ROWS)),
    ],
)
def test_maps_to_weights_by_hand(backend, name, settings, expected):
    mapped = WEIGHTS[name](**settings).weights(backend.ops, backend.ops.asarray(LOGITS))
    assert backend.ops.to_numpy(mapped) == pytest.approx(expected, abs=FLOAT32)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("raw", {}, LOGITS),
        ("exp", {}, np.exp(LOGITS)),
        ("sinkhorn", {}, naive.sinkhorn(np.exp(LOGITS))),
        ("sinkhorn", {"iterations": 3}, naive.sinkhorn(np.exp(LOGITS), 3)),
        # Beyond ±1 a logit counts as ±1.
        ("sinkhorn", {"clip": 1.0}, naive.sinkhorn(np.exp(LOGITS.clip(-1, 1)))),
        # Rows sum to 9.4, 21.2 and 6.0, and columns then to less than 10.
        ("sinkhorn", {"floor": 10.0, "iterations": 1}, np.exp(LOGITS) / [[10], [SUM], [10]] / 10),
    ],
)
def test_constraints_by_hand(backend, name, settings, expected):
    matrix = CONSTRAINTS[name](**settings).matrix(backend.ops, backend.ops.asarray(LOGITS))
    assert backend.ops.to_numpy(matrix) == pytest.approx(expected, rel=3 * FLOAT32, abs=FLOAT32)


def test_openings_by_hand(backend):
    x = np.array([[1.0, 2.0]])
    opened = {
        name: backend.ops.to_numpy(opening().streams(backend.ops, backend.ops.asarray(x), 3))
        for name, opening in OPENINGS.items()
    }
    assert opened["copies"].tolist() == [[[1, 2]], [[1, 2]], [[1, 2]]]
    assert opened["first_only"].tolist() == [[[1, 2]], [[0, 0]], [[0, 0]]]


def test_the_gate_by_hand(backend):
    ops, gate = backend.ops, GATES["learned"](start=0.2)
    (parameter,) = init.draw(gate.parameters(2), seed=0).values()
    assert naive.sigmoid(parameter.astype(float)) == pytest.approx([0.2, 0.2])
    logits = np.log([1 / 3, 3.0])  # g = 1/4, 3/4
    gated = gate.gated(ops, ops.asarray(logits), ops.asarray(np.ones((2, 2, 2))))
    expected = np.array([[[1, 0.25], [0.25, 1]], [[1, 0.75], [0.75, 1]]])
    assert ops.to_numpy(gated) == pytest.approx(expected, abs=FLOAT32)
    per_token = gate.gated(ops, ops.asarray(logits)[0], ops.asarray(np.ones((3, 5, 2, 2))))
    everywhere = np.broadcast_to(expected[0], (3, 5, 2, 2))
    assert ops.to_numpy(per_token) == pytest.approx(everywhere, abs=FLOAT32)


def test_the_spread_of_streams_by_hand(backend):
    ops = backend.ops
    # Cosines with the first: 0, −1. The largest difference is 3 − (−4), the largest entry −4.
    streams = ops.asarray(np.array([[[3.0, 0.0]], [[0.0, 2.0]], [[-4.0, 0.0]]]))
    spread = [float(ops.to_numpy(value)) for value in stream_spread(ops, streams)]
    assert spread == pytest.approx([7 / 4, -1 / 2])
    same = [float(ops.to_numpy(v)) for v in stream_spread(ops, ops.repeat(streams[0], 3) * 1e30)]
    assert same == pytest.approx([0, 1])  # squares of 1e30 are beyond float32


# --- dynamic connections: a set of weights for each unit ------------------------------------------

UNITS = [
    pytest.param((2, 3), 0, id="tokens"),  # [B, T]: each token is a unit
    pytest.param((2, 3, 4), 2, id="images"),  # [B, H, W]: each image is
]


def by_units(x, middle, pooled):
    """[S, …, C] → [S, U, N, C]: units, and the positions that are averaged over."""
    kept = middle[: len(middle) - pooled]
    return x.reshape(x.shape[0], math.prod(kept), -1, x.shape[-1])


@pytest.mark.parametrize(("middle", "pooled"), UNITS)
def test_the_summary_of_streams_is_that_of_each_unit(backend, middle, pooled):
    streams = 3 * np.random.default_rng(0).standard_normal((4, *middle, 5)) + 1
    units = by_units(streams, middle, pooled)
    expected = [naive.summary(units[:, u]) for u in range(units.shape[1])]
    for ops, tolerance in ((NumpyOps(), 1e-13), (backend.ops, 3 * FLOAT32)):
        found = ops.to_numpy(Dynamic().summary(ops, ops.asarray(streams), pooled))
        assert found.shape == (*middle[: len(middle) - pooled], 20)
        assert found.reshape(-1, 20) == pytest.approx(np.array(expected), abs=tolerance)


@pytest.mark.parametrize("scheme", ["hc_dynamic", "mhc_dynamic"])
@pytest.mark.parametrize(("middle", "pooled"), UNITS)
def test_a_dynamic_connection_computes_the_weights_of_each_unit(backend, scheme, middle, pooled):
    connection = at_site(scheme, pooled_axes=pooled)
    params, rng = moved(connection), np.random.default_rng(1)
    exact = naive.connection_of({k: v.astype(np.float64) for k, v in params.items()})
    streams, y = rng.standard_normal((4, *middle, 5)), rng.standard_normal((*middle, 5))
    x_units, y_units = by_units(streams, middle, pooled), by_units(y[None], middle, pooled)[0]
    read, closed, written = np.zeros_like(y_units), np.zeros_like(y_units), np.zeros_like(x_units)
    for u in range(len(y_units)):
        unit = x_units[:, u]
        (pre,), (post,), H = naive.coefficients(scheme, exact, 1, unit)
        weights = naive.readout(scheme, exact, unit)
        for s in range(4):
            read[u] += pre[s] * unit[s]
            closed[u] += weights[s] * unit[s]
            written[s, u] = post[s] * y_units[u] + sum(H[s, r] * unit[r] for r in range(4))

    for ops, tolerance in ((NumpyOps(), 1e-12), (backend.ops, 1e-5)):
        arrays = {name: ops.asarray(value) for name, value in params.items()}
        x, layer_output = ops.asarray(streams), ops.asarray(y)
        c = connection.per_layer(ops, connection.coefficients(ops, arrays))[1]
        found = (
            connection.pre(ops, c, x),
            connection.update(ops, c, x, layer_output),
            connection.close(ops, arrays, x),
        )
        for value, expected in zip(found, (read, written, closed), strict=True):
            values = ops.to_numpy(value).reshape(expected.shape)
            assert values == pytest.approx(expected, abs=tolerance * np.abs(expected).max())


def at_site(scheme, layers=2, width=5, pooled_axes=0, has_residual=False, streams=4):
    """A named scheme around functions of any kind."""
    site = Site(layers, width, pooled_axes, has_residual)
    return resolve(scheme, SCHEMES, streams, "test").at(site)


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
    found, *_ = through_layers(ops, connection, params, x, layers)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_gradients_through_finished_blocks_equal_those_of_the_plain_sum(backend):
    depth, ops = 33, backend.ops
    connection, layers = at_site("mhc_causal", depth), tanh_layers(ops, depth)
    x = np.random.default_rng(5).standard_normal((2, 5)).astype(np.float32)

    def blocks(params, x):
        return through_layers(ops, connection, params, x, layers)[0]

    def plain(params, x):
        return plain_sum(connection.coefficients(ops, params), x, layers, has_residual=False)

    def gradient(function):
        def objective(params, inputs, targets):
            return Objective(ops.cross_entropy(function(params, *inputs), targets), {})

        hyper, recipe = Optimizer(lr=1e-3, beta1=0.0), RECIPES["mlx-defaults"]
        trainer = backend.trainer(moved(connection), objective, hyper, recipe)
        trainer.step((x,), np.array([1, 3], np.int32), hyper.lr)
        return trainer.state()["m.connection.mixing"]

    expected = gradient(plain)
    assert np.abs(expected).max() > 1e-3
    assert gradient(blocks) == pytest.approx(expected, abs=1e-5 * float(np.abs(expected).max()))


def test_causal_weights_are_convex_and_look_at_the_past_only():
    connection = at_site("mhc_causal", 9)
    params = {name: value.astype(np.float64) for name, value in moved(connection).items()}
    weights = connection.coefficients(NumpyOps(), params)
    assert weights.sum(axis=1) == pytest.approx(np.ones(9))
    assert (weights >= 0).all()
    assert (np.triu(weights, k=1) == 0).all()


# --- one stream -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("has_residual", "factor"), [(True, 9), (False, 16)])
def test_plain_adds_its_input_where_a_layer_does_not(backend, has_residual, factor):
    """f(x) = 3x, twice: 9x where f has its residual inside, and 16x where not."""
    ops, connection = backend.ops, at_site("plain", has_residual=has_residual)
    x = ops.asarray(np.ones((2, 5)))
    out, H_res, streams = through_layers(ops, connection, {}, x, [lambda x: 3 * x] * 2)
    assert connection.parameters() == {}
    assert connection.one_stream
    assert H_res is None
    assert ops.to_numpy(out).tolist() == ops.to_numpy(streams).tolist() == [[factor] * 5] * 2


# --- the initial streams of mhc are one stream ----------------------------------------------------


@pytest.mark.parametrize("streams", [2, 4, 5])
def test_initial_H_res_of_mhc_is_the_analytic_matrix(make_spec, streams):
    # exp(2I − 1) is circulant and symmetric: all its rows and columns have one sum already.
    diagonal = np.e / (np.e + (streams - 1) / np.e)
    off_diagonal = (1 / np.e) / (np.e + (streams - 1) / np.e)
    expected = np.where(np.eye(streams) == 1, diagonal, off_diagonal)
    matrices = initial_matrices(make_spec(variant="mhc", streams=streams))
    assert matrices["H_res"] == pytest.approx(np.stack([expected] * 3), abs=1e-15)


@pytest.mark.parametrize("variant", ["hc", "mhc"])
def test_initial_layers_read_the_mean_of_the_streams_and_write_to_each_once(make_spec, variant):
    # A softmax of 2I − 1 is doubly stochastic: column means 1/S, column sums 1.
    matrices = initial_matrices(make_spec(variant=variant, streams=4))
    assert matrices["H_pre"] == pytest.approx(np.full((3, 4), 0.25), abs=1e-15)
    assert matrices["H_post"] == pytest.approx(np.ones((3, 4)), abs=1e-15)


def test_initial_H_res_of_hc_is_the_exponential_of_its_logits(make_spec):
    expected = np.where(np.eye(4) == 1, np.e, 1 / np.e)
    H_res = initial_matrices(make_spec(variant="hc"))["H_res"]
    assert H_res == pytest.approx(np.stack([expected] * 3), rel=1e-15)


def initial_matrices(spec):
    ops = NumpyOps()
    params = {name: ops.asarray(value) for name, value in tasks.initial_parameters(spec).items()}
    return tasks.network_of(spec).connection.matrices(ops, params)


def first_spread(backend, spec, params, first_batch, start):
    """(largest difference of streams, mean cosine) in the first step, and gradient norms."""
    trainer = start(backend, spec, params)
    trainer.step(*first_batch(spec), spec.optimizer.lr)
    measured = trainer.collect()
    norms = dict(zip(params, measured["grad_norms"][0], strict=True))
    return measured["stream_difference"][0], measured["stream_cosine"][0], norms


@pytest.mark.parametrize("recipe", ["mlx-defaults", "torch-defaults"])
def test_from_its_initial_parameters_the_streams_of_mhc_stay_one(
    backend, make_spec, first_batch, start, recipe
):
    spec = make_spec(variant="mhc", depth=12, recipe=recipe, batch_size=8)
    initial = tasks.initial_parameters(spec)
    difference, cosine, norms = first_spread(backend, spec, initial, first_batch, start)
    # Each stream is the same sum taken in another order: a few roundings per layer.
    assert difference <= FLOAT32
    assert cosine == pytest.approx(1, abs=FLOAT32)
    # So how they are mixed has no gradient, but for rounding; the others are of order 0.1 to 1.
    assert norms["connection.H_pre"] < 1e-8
    assert norms["connection.H_post"] < 1e-8
    assert norms["connection.H_res"] < 1e-8
    assert norms["head.weight"] > 0.1


def test_the_streams_of_mhc_part_once_the_weights_are_not_symmetric(
    backend, make_spec, first_batch, parameters_off_symmetry, start
):
    spec = make_spec(variant="mhc", depth=3)
    params = parameters_off_symmetry(spec)
    difference, cosine, norms = first_spread(backend, spec, params, first_batch, start)
    assert difference > 1e-2
    assert cosine < 1 - 1e-5
    assert min(norms[f"connection.{name}"] for name in ("H_pre", "H_post", "H_res")) > 1e-5


def test_in_hc_only_the_scale_of_H_res_has_a_gradient(backend, make_spec, first_batch, start):
    spec = make_spec(variant="hc", depth=3, batch_size=8)
    initial = tasks.initial_parameters(spec)
    *_, norms = first_spread(backend, spec, initial, first_batch, start)
    assert norms["connection.H_res"] > 1e-4
    assert norms["connection.H_pre"] < 1e-8
    assert norms["connection.H_post"] < 1e-8
