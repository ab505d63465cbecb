"""Residual schemes: Sinkhorn, and what the initial symmetry does to the streams of mhc."""

from fractions import Fraction

import numpy as np
import pytest

from fathom.backends.numpy import NumpyOps
from fathom.models import language
from fathom.models.connections import sinkhorn
from fathom.models.ops import stacked_layers
from fathom.train import connection_of, initial_parameters

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


@pytest.mark.parametrize("seed", range(5))
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


@pytest.mark.parametrize("streams", [2, 4, 5])
def test_initial_H_res_of_mhc_is_the_analytic_matrix(backend, make_spec, streams):
    # exp(2I − 1) is circulant and symmetric: all its rows and columns have one sum already.
    diagonal = np.e / (np.e + (streams - 1) / np.e)
    off_diagonal = (1 / np.e) / (np.e + (streams - 1) / np.e)
    expected = np.where(np.eye(streams) == 1, diagonal, off_diagonal)
    spec = make_spec(variant="mhc", streams=streams, depth=3)
    H_res = initial_coefficients(backend.ops, spec).H_res
    assert np.asarray(H_res) == pytest.approx(np.stack([expected] * 3), abs=FLOAT32)


@pytest.mark.parametrize("variant", ["hc", "mhc"])
def test_initial_layers_read_the_mean_of_the_streams_and_write_to_each_once(
    backend, make_spec, variant
):
    # A softmax of 2I − 1 is doubly stochastic: column means 1/S, column sums 1.
    coefficients = initial_coefficients(backend.ops, make_spec(variant=variant, streams=4))
    assert np.asarray(coefficients.read) == pytest.approx(np.full((3, 4), 0.25), abs=FLOAT32)
    assert np.asarray(coefficients.write) == pytest.approx(np.ones((3, 4)), abs=FLOAT32)


def test_initial_H_res_of_hc_is_the_exponential_of_its_logits(backend, make_spec):
    expected = np.where(np.eye(4) == 1, np.e, 1 / np.e)
    H_res = initial_coefficients(backend.ops, make_spec(variant="hc")).H_res
    assert np.asarray(H_res) == pytest.approx(np.stack([expected] * 3), rel=FLOAT32)


def initial_coefficients(ops, spec):
    params = {name: ops.asarray(value) for name, value in initial_parameters(spec).items()}
    return connection_of(spec).coefficients(ops, params)


def stream_differences(ops, spec, params, inputs):
    """After every layer: the largest difference between two streams, and the largest entry."""
    connection = connection_of(spec)
    params = {name: ops.asarray(value) for name, value in params.items()}
    blocks = stacked_layers(ops, params)
    coefficients = connection.per_layer(ops, connection.coefficients(ops, params), len(blocks))
    x = ops.embedding(params["embedding.token"], ops.asarray(inputs))
    streams = connection.open(ops, x + params["embedding.position"])
    differences = []
    for layer, c in zip(blocks, coefficients, strict=True):
        y = language.block(ops, layer, connection.read(ops, c, streams), spec.model.heads)
        streams = connection.update(ops, c, streams, y)
        values = np.asarray(streams).astype(np.float64)
        differences.append((np.ptp(values, axis=0).max(), np.abs(values).max()))
    return differences


def test_the_streams_of_mhc_stay_identical_from_the_initial_parameters(
    backend, make_spec, first_batch
):
    spec = make_spec(variant="mhc", depth=12)
    inputs, _ = first_batch(spec)
    for difference, size in stream_differences(backend.ops, spec, initial_parameters(spec), inputs):
        # Each stream is the same sum taken in another order: a few roundings per layer.
        assert difference <= 1e-6 * size


def test_the_streams_of_mhc_part_once_the_weights_are_not_symmetric(
    backend, make_spec, first_batch, parameters_off_symmetry
):
    spec = make_spec(variant="mhc", depth=3)
    inputs, _ = first_batch(spec)
    params = parameters_off_symmetry(spec)
    difference, size = stream_differences(backend.ops, spec, params, inputs)[-1]
    assert difference > 1e-2 * size


@pytest.mark.parametrize("recipe", ["mlx", "torch"])
def test_identical_streams_leave_the_mixing_of_mhc_without_gradient(
    backend, make_spec, first_batch, start, recipe
):
    spec = make_spec(variant="mhc", depth=12, recipe=recipe, batch_size=8)
    norms = first_grad_norms(backend, spec, first_batch, start)
    # Exactly zero but for rounding: the other gradients are of order 0.1 to 1.
    assert norms["connection.H_pre"] < 1e-8
    assert norms["connection.H_post"] < 1e-8
    assert norms["connection.H_res"] < 1e-8
    assert norms["head.weight"] > 0.1


def test_in_hc_only_the_scale_of_H_res_has_a_gradient(backend, make_spec, first_batch, start):
    spec = make_spec(variant="hc", depth=3, batch_size=8)
    norms = first_grad_norms(backend, spec, first_batch, start)
    assert norms["connection.H_res"] > 1e-4
    assert norms["connection.H_pre"] < 1e-8
    assert norms["connection.H_post"] < 1e-8


def first_grad_norms(backend, spec, first_batch, start):
    trainer = start(backend, spec)
    inputs, targets = first_batch(spec)
    trainer.step((inputs,), targets, spec.optimizer.lr)
    return dict(zip(initial_parameters(spec), trainer.collect()["grad_norms"][0], strict=True))
