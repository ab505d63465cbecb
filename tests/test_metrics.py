"""The gain of a product of mixing matrices, against exact arithmetic."""

import math

import numpy as np
import pytest

from fathom.metrics import composite_gain
from fathom.train import connection_of, initial_parameters

# Rescaling rounds once per factor and once per product: 500 layers stay far below this.
ROUNDING = 1e-11


def exact_product(matrices):
    """The product of integer matrices, later ones on the left, in Python's unbounded integers."""
    size = len(matrices[0])
    product = [[int(i == j) for j in range(size)] for i in range(size)]
    for matrix in matrices:
        product = [
            [sum(int(matrix[i][k]) * product[k][j] for k in range(size)) for j in range(size)]
            for i in range(size)
        ]
    return product


def exact_gain(product):
    """(max entry, amax forward, amax backward), as log10 of Python integers of any length."""
    return (
        math.log10(max(abs(entry) for row in product for entry in row)),
        math.log10(max(abs(sum(row)) for row in product)),
        math.log10(max(abs(sum(column)) for column in zip(*product, strict=True))),
    )


def random_integers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-9, 10, shape)


@pytest.mark.parametrize("depth", [1, 2, 7, 30])
def test_equals_the_exact_integer_product(depth):
    matrices = random_integers(depth, 4, 4, seed=depth)
    assert composite_gain(matrices) == pytest.approx(
        exact_gain(exact_product(matrices)), abs=ROUNDING
    )


def test_500_layers_beyond_the_range_of_float64():
    matrices = random_integers(500, 4, 4)
    product = exact_product(matrices)
    expected = exact_gain(product)
    assert expected[0] > np.log10(np.finfo(np.float64).max)  # or this would test nothing
    assert composite_gain(matrices) == pytest.approx(expected, abs=ROUNDING)


def test_500_layers_below_the_range_of_float64():
    matrices = random_integers(500, 4, 4)
    shrunk = [value - 500 * 30 for value in exact_gain(exact_product(matrices))]
    # A factor of 1e-30 is not a float64: its rounding, 1e-16, counts 500 times.
    assert composite_gain(matrices * 1e-30) == pytest.approx(shrunk, abs=ROUNDING)


def test_equals_the_plain_float64_product_at_small_depth():
    matrices = np.random.default_rng(1).normal(size=(5, 4, 4))
    product = np.linalg.multi_dot(matrices[::-1])
    gain = composite_gain(matrices)
    assert gain.max_entry == pytest.approx(np.log10(np.abs(product).max()), abs=ROUNDING)
    assert gain.amax_forward == pytest.approx(np.log10(abs(product.sum(1)).max()), abs=ROUNDING)
    assert gain.amax_backward == pytest.approx(np.log10(abs(product.sum(0)).max()), abs=ROUNDING)


def test_later_layers_stand_on_the_left_and_forward_means_rows():
    first, second = [[1, 1], [0, 1]], [[1, 0], [5, 1]]
    # second · first = [[1, 1], [5, 6]]: rows 2 and 11, columns 6 and 7.
    # first · second = [[6, 1], [5, 1]]: rows 7 and 6, columns 11 and 2.
    assert composite_gain([first, second]) == pytest.approx(np.log10([6, 11, 7]))


def test_amax_sums_keep_their_signs():
    # Rows −1 and 3, columns −2 and 4; sums of absolute values would be 7 and 7, 6 and 8.
    assert composite_gain([[[-4, 3], [2, 1]]]) == pytest.approx(np.log10([4, 3, 4]))


def test_float32_matrices_are_multiplied_in_float64():
    matrices = np.random.default_rng(2).uniform(0.1, 1, (40, 4, 4)).astype(np.float32)
    product = np.linalg.multi_dot(matrices.astype(np.float64)[::-1])
    assert composite_gain(matrices).max_entry == pytest.approx(
        np.log10(product.max()), abs=ROUNDING
    )


def test_a_zero_product_has_gain_minus_infinity():
    nilpotent = [[0, 1], [0, 0]]
    assert composite_gain([nilpotent, nilpotent]) == (-np.inf, -np.inf, -np.inf)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_broken_matrix_has_no_gain(broken, layer):
    matrices = np.ones((3, 2, 2))
    matrices[layer, 0, 1] = broken
    assert np.isnan(composite_gain(matrices)).all()


def test_an_infinity_times_zero_is_still_no_gain():
    assert np.isnan(composite_gain([[[0.0, 0.0], [0.0, 0.0]], [[np.inf, 1.0], [1.0, 1.0]]])).all()


def test_every_product_of_a_batch_is_taken_by_itself():
    matrices = random_integers(2, 3, 6, 4, 4)
    gain = composite_gain(matrices)
    assert gain.max_entry.shape == gain.amax_forward.shape == gain.amax_backward.shape == (2, 3)
    for index in np.ndindex(2, 3):
        expected = exact_gain(exact_product(matrices[index]))
        assert [values[index] for values in gain] == pytest.approx(expected, abs=ROUNDING)


def test_a_broken_matrix_leaves_the_rest_of_its_batch_alone():
    matrices = np.ones((2, 3, 2, 2))
    matrices[0, 1] = np.nan
    # The product of three 2×2 matrices of ones is 4 everywhere.
    assert composite_gain(matrices).max_entry == pytest.approx([np.nan, np.log10(4)], nan_ok=True)


@pytest.mark.parametrize(
    ("variant", "depth", "published"),
    [("hc", 12, 6.39), ("hc", 24, 13.37), ("hc", 48, 27.35)]
    + [("mhc", depth, -0.602) for depth in (12, 24, 48)],
)
def test_initial_gain_is_the_constant_of_the_initialisation(make_spec, variant, depth, published):
    from fathom.backends.numpy import NumpyOps

    spec = make_spec(variant=variant, depth=depth)
    ops = NumpyOps()
    exact = {name: ops.asarray(value) for name, value in initial_parameters(spec).items()}
    H_res = connection_of(spec).coefficients(ops, exact).H_res
    # The published constants have two or three decimals.
    assert composite_gain(H_res).max_entry == pytest.approx(published, abs=0.01)


@pytest.mark.parametrize("depth", [12, 24, 48])
def test_initial_gain_of_hc_by_hand(depth):
    # exp(2I − 1) has eigenvalues e + 3/e (the uniform vector) and e − 1/e (the other three), so
    # the largest entry of its power, on the diagonal, is (λ^L + 3 μ^L) / 4.
    H_res = np.tile(np.exp(2 * np.eye(4) - 1), (depth, 1, 1))
    largest = ((np.e + 3 / np.e) ** depth + 3 * (np.e - 1 / np.e) ** depth) / 4
    assert composite_gain(H_res).max_entry == pytest.approx(np.log10(largest), abs=ROUNDING)
