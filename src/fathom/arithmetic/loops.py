"""Functions of connections on the CPU, in loops compiled by numba.

PyTorch, MLX and NumPy run each function as several operations. Most of their time goes into calls
and into writing and reading intermediate arrays. A loop passes over the memory once.

Parts of `boundary_loops`, and Sinkhorn's passes for `sinkhorn`. Arrays are NumPy arrays of one
float type.
"""

from __future__ import annotations

import math

import numpy as np

from fathom.system.compiled import compiled, compiled_in_order


def load() -> None:
    """Trigger numba's loading at the first call of any function, a few tenths of a second."""
    one = np.ones((1, 1, 1), np.float32)
    row_products(one[0], one, one[0].copy())


# --- exponentials --------------------------------------------------------------------------------
# numba calls the C library for each number. These loops are vectorised, in the written order, so
# that all machines compute the same digits. float64 is for tests alone.

SHIFT = 1.5 * 2.0**23
"""Added to a small number, its last bits are the nearest integer."""
SHIFT_BITS = int(np.float32(SHIFT).view(np.int32))
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
# Coefficients of polynomials, the highest first (Cephes: expf, tanhf).
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 0.16666665459, 0.5)
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -0.333332819422)


@compiled_in_order
def _exp(x: np.float32) -> np.float32:
    """e^x with an error below a unit in the last place; NaN stays NaN."""
    of = np.float32
    x = of(-104) if x < of(-104) else x
    x = of(89) if x > of(89) else x
    shifted = of(x * of(math.log2(math.e)) + of(SHIFT))
    power, whole = shifted.view(np.int32) - np.int32(SHIFT_BITS), shifted - of(SHIFT)
    rest = x - whole * of(LN2_HIGH) - whole * of(LN2_LOW)
    p = of(EXP[0])
    for k in range(1, len(EXP)):
        p = p * rest + of(EXP[k])
    p = p * (rest * rest) + rest + of(1)
    # 2^power in two factors: one would overflow before the product does.
    half, bias, shift = power >> np.int32(1), np.int32(127), np.int32(23)
    first = np.int32((half + bias) << shift).view(np.float32)
    second = np.int32((power - half + bias) << shift).view(np.float32)
    return p * first * second


@compiled_in_order
def _tanh(x: np.float32) -> np.float32:
    """Tanh of x with an error of two units in the last place; NaN stays NaN."""
    of = np.float32
    size, square = abs(x), x * x
    p = of(TANH[0])
    for k in range(1, len(TANH)):
        p = p * square + of(TANH[k])
    large = of(1) - of(2) / (_exp(size + size) + of(1))
    large = -large if x < of(0) else large
    return p * square * x + x if size < of(0.625) else large


@compiled_in_order
def exponentials(x: np.ndarray) -> None:
    """Replace x [K, T] by e^x."""
    for k in range(len(x)):
        row = x[k]
        if x.itemsize == 4:
            for t in range(len(row)):
                row[t] = _exp(np.float32(row[t]))
        else:
            for t in range(len(row)):
                row[t] = np.exp(row[t])


@compiled_in_order
def tangents(x: np.ndarray, bent: np.ndarray) -> None:
    """Tanh of x: [K, T] → [K, T]."""
    for k in range(len(x)):
        row, result = x[k], bent[k]
        if x.itemsize == 4:
            for t in range(len(row)):
                result[t] = _tanh(np.float32(row[t]))
        else:
            for t in range(len(row)):
                result[t] = np.tanh(row[t])


# --- norms ----------------------------------------------------------------------------------------


@compiled
def norm_scales(x: np.ndarray, eps: float, scales: np.ndarray) -> None:
    """1/√(mean of x² + eps) of the rows of x: [N, F] → [N]."""
    N, F = x.shape
    for n in range(N):
        total = x.dtype.type(0)
        for f in range(F):
            total += x[n, f] * x[n, f]
        scales[n] = 1 / np.sqrt(total / x.dtype.type(F) + x.dtype.type(eps))


# --- streams: of T sets, written to the last argument ---------------------------------------------


@compiled
def weighted_sum(weights: np.ndarray, x: np.ndarray, sums: np.ndarray) -> None:
    """Σ_s w_s x_s: [T, S], [T, S, M] → [T, M]."""
    T, S, M = x.shape
    for n in range(T):
        weight = weights[n, 0]
        for m in range(M):
            sums[n, m] = weight * x[n, 0, m]
        for s in range(1, S):
            weight = weights[n, s]
            for m in range(M):
                sums[n, m] += weight * x[n, s, m]


@compiled
def row_products(row: np.ndarray, x: np.ndarray, products: np.ndarray) -> None:
    """Σ_m r_m x_sm: [T, M], [T, S, M] → [T, S]."""
    T, S, M = x.shape
    for n in range(T):
        for s in range(S):
            total = x.dtype.type(0)
            for m in range(M):
                total += row[n, m] * x[n, s, m]
            products[n, s] = total


@compiled
def add_to_streams(x: np.ndarray, weights: np.ndarray, y: np.ndarray, streams: np.ndarray) -> None:
    """x_s + w_s y: [T, S, M], [T, S], [T, M] → [T, S, M]."""
    T, S, M = x.shape
    for n in range(T):
        for s in range(S):
            weight = weights[n, s]
            for m in range(M):
                streams[n, s, m] = x[n, s, m] + weight * y[n, m]


@compiled
def mix(
    H: np.ndarray, weights: np.ndarray, x: np.ndarray, y: np.ndarray, streams: np.ndarray
) -> None:
    """H x + w y: [T, S·S], [T, S], [T, S, M], [T, M] → [T, S, M]."""
    T, S, M = x.shape
    for n in range(T):
        for i in range(S):
            weight = weights[n, i]
            for m in range(M):
                streams[n, i, m] = weight * y[n, m]
            for j in range(S):
                weight = H[n, i * S + j]
                for m in range(M):
                    streams[n, i, m] += weight * x[n, j, m]


@compiled
def mix_backward(
    H: np.ndarray, x: np.ndarray, g: np.ndarray, of_H: np.ndarray, of_x: np.ndarray
) -> None:
    """Gradients g xᵀ [T, S·S] of H and Hᵀ g [T, S, M] of x; H x has the gradient g [T, S, M]."""
    T, S, M = x.shape
    for n in range(T):
        for i in range(S):
            for j in range(S):
                total = x.dtype.type(0)
                for m in range(M):
                    total += g[n, i, m] * x[n, j, m]
                of_H[n, i * S + j] = total
        for j in range(S):
            weight = H[n, j]
            for m in range(M):
                of_x[n, j, m] = weight * g[n, 0, m]
            for i in range(1, S):
                weight = H[n, i * S + j]
                for m in range(M):
                    of_x[n, j, m] += weight * g[n, i, m]


# --- matrix products of a tile --------------------------------------------------------------------
# Faster than BLAS for the few rows of φ: a block of sums stays in registers.

NEAR = 8
"""Rows that stay in the cache while the other factor passes."""


@compiled
def add_product(a: np.ndarray, b: np.ndarray, product: np.ndarray) -> None:
    """Add a b: [I, J], [J, F], to [I, F]."""
    (I, F), J = product.shape, len(b)  # noqa: E741
    pairs, fours = I - I % 2, J - J % 4
    for first in range(0, pairs, NEAR):
        for j in range(0, fours, 4):
            for i in range(first, min(first + NEAR, pairs), 2):
                p, q, r, s = a[i, j], a[i, j + 1], a[i, j + 2], a[i, j + 3]
                t, u, v, w = a[i + 1, j], a[i + 1, j + 1], a[i + 1, j + 2], a[i + 1, j + 3]
                for f in range(F):
                    k, l, m, n = b[j, f], b[j + 1, f], b[j + 2, f], b[j + 3, f]  # noqa: E741
                    product[i, f] += p * k + q * l + r * m + s * n
                    product[i + 1, f] += t * k + u * l + v * m + w * n
    for i in range(I):
        for j in range(fours if i < pairs else 0, J):
            p = a[i, j]
            for f in range(F):
                product[i, f] += p * b[j, f]


@compiled
def product_with_rows(a: np.ndarray, b: np.ndarray, product: np.ndarray) -> None:
    """a bᵀ: [I, F], [J, F] → [I, J]."""
    (I, F), J, zero = a.shape, len(b), a.dtype.type(0)  # noqa: E741
    pairs, fours = I - I % 2, J - J % 4
    for first in range(0, pairs, NEAR):
        for j in range(0, fours, 4):
            for i in range(first, min(first + NEAR, pairs), 2):
                p, q, r, s, t, u, v, w = zero, zero, zero, zero, zero, zero, zero, zero
                for f in range(F):
                    x, y = a[i, f], a[i + 1, f]
                    k, l, m, n = b[j, f], b[j + 1, f], b[j + 2, f], b[j + 3, f]  # noqa: E741
                    p += x * k
                    q += x * l
                    r += x * m
                    s += x * n
                    t += y * k
                    u += y * l
                    v += y * m
                    w += y * n
                product[i, j], product[i, j + 1] = p, q
                product[i, j + 2], product[i, j + 3] = r, s
                product[i + 1, j], product[i + 1, j + 1] = t, u
                product[i + 1, j + 2], product[i + 1, j + 3] = v, w
    for i in range(I):
        for j in range(fours if i < pairs else 0, J):
            total = zero
            for f in range(F):
                total += a[i, f] * b[j, f]
            product[i, j] = total


# --- normed products of a tile --------------------------------------------------------------------
# Of T sets with G rows each, and R rows of φ. A result has the sets last: entry r·G + g of a set.


@compiled
def normed_products(
    rows: np.ndarray, phi: np.ndarray, eps: float, scales: np.ndarray, values: np.ndarray
) -> None:
    """RMSNorm(rows) φᵀ: [T·G, W], [R, W] → scales of the norm [T·G] and values [R·G, T]."""
    (I, R), T = (len(rows), len(phi)), values.shape[1]  # noqa: E741
    G, products = I // T, np.empty((I, R), rows.dtype)
    product_with_rows(rows, phi, products)
    norm_scales(rows, eps, scales)
    for r in range(R):
        for g in range(G):
            for t in range(T):
                values[r * G + g, t] = products[t * G + g, r] * scales[t * G + g]


@compiled
def normed_products_backward(
    rows: np.ndarray, phi: np.ndarray, scales: np.ndarray, values: np.ndarray,
    of_values: np.ndarray, of_rows: np.ndarray, of_phi: np.ndarray,
) -> None:  # fmt: skip
    """Add the gradients of rows and φ, from the gradient of values."""
    (I, W), R, T = rows.shape, len(phi), values.shape[1]  # noqa: E741
    G = I // T
    along, of_products = np.zeros((G, T), rows.dtype), np.empty((R, I), rows.dtype)
    for r in range(R):
        for g in range(G):
            k = r * G + g
            for t in range(T):
                along[g, t] += of_values[k, t] * values[k, t]
                of_products[r, t * G + g] = of_values[k, t] * scales[t * G + g]
    for i in range(I):
        factor = along[i % G, i // G] * scales[i] * scales[i] / rows.dtype.type(W)
        for w in range(W):
            of_rows[i, w] -= factor * rows[i, w]
    add_product(of_products.T, phi, of_rows)
    add_product(of_products, rows, of_phi)


# --- Sinkhorn's passes ----------------------------------------------------------------------------
# For matrices K [S, S, N]; the first pass divides rows. Sums are added in the order of
# `sinkhorn.Passes`, so that the scales have the same digits.


@compiled_in_order
def _sums(a: np.ndarray, b: np.ndarray, sums: np.ndarray) -> None:
    """Σ_s a_s·b_s: [S, N], [S, N] → [N]; for four terms, in one loop that stores no partial sum."""
    S, N = a.shape
    if S == 4:
        for n in range(N):
            sums[n] = a[0, n] * b[0, n] + a[1, n] * b[1, n] + a[2, n] * b[2, n] + a[3, n] * b[3, n]
        return
    for n in range(N):
        sums[n] = a[0, n] * b[0, n]
    for s in range(1, S):
        for n in range(N):
            sums[n] += a[s, n] * b[s, n]


@compiled_in_order
def _by_side(K: np.ndarray) -> np.ndarray:
    """(Rows, columns) of K [S, S, N]: [2, S, S, N]."""
    sides = np.empty((2, *K.shape), K.dtype)
    for i in range(len(K)):
        for j in range(len(K)):
            sides[0, i, j] = K[i, j]
            sides[1, j, i] = K[i, j]
    return sides


@compiled_in_order
def scales_of_passes(K: np.ndarray, passes: int, floor: float, added: float) -> np.ndarray:
    """Scales [passes + 1, S, N]: ones, then the result of each pass."""
    S, _, N = K.shape
    low, more = K.dtype.type(floor), K.dtype.type(added)
    sides, scales = _by_side(K), np.ones((passes + 1, S, N), K.dtype)
    inverses = np.ones((2, S, N), K.dtype)  # of the last pass over each side
    total = np.empty(N, K.dtype)
    for t in range(passes):
        for i in range(S):
            _sums(sides[t % 2, i], scales[t], total)
            inverse, scale = inverses[t % 2, i], scales[t + 1, i]
            for n in range(N):
                before = inverse[n]
                least = low * before
                # A sum that is NaN stays NaN.
                inverse[n] = (least if total[n] < least else total[n]) + more * before
                scale[n] = 1 / inverse[n]
    return scales


@compiled_in_order
def passes_backward(K: np.ndarray, scales: np.ndarray, g: np.ndarray, added: float) -> np.ndarray:
    """The gradient of K [S, S, N], from the gradient `g` of the normalised matrices."""
    S, _, N = K.shape
    passes, more = len(scales) - 1, K.dtype.type(added)
    u, v = scales[passes - 1 + passes % 2], scales[passes - passes % 2]
    sides, total = _by_side(K), np.empty(N, K.dtype)
    products, of_K = np.empty_like(K), np.empty_like(K)
    for i in range(S):
        for j in range(S):
            for n in range(N):
                products[i, j, n] = g[i, j, n] * K[i, j, n]
                of_K[i, j, n] = g[i, j, n] * u[i, n] * v[j, n]
    by_side, of_scales = _by_side(products), np.empty((2, S, N), K.dtype)  # of rows and of columns
    for i in range(S):
        _sums(by_side[0, i], v, of_scales[0, i])
        _sums(by_side[1, i], u, of_scales[1, i])
    of_inverses = np.zeros((2, S, N), K.dtype)
    for t in range(passes - 1, -1, -1):
        side = t % 2
        for i in range(S):
            of_inverse, of_scale, scale = of_inverses[side, i], of_scales[side, i], scales[t + 1, i]
            for n in range(N):
                of_inverse[n] = more * of_inverse[n] - of_scale[n] * scale[n] * scale[n]
        for j in range(S):
            _sums(sides[1 - side, j], of_inverses[side], total)
            # The second-to-last scale also scales the output.
            of_scale, has_more = of_scales[1 - side, j], t == passes - 1
            for n in range(N):
                of_scale[n] = of_scale[n] + total[n] if has_more else total[n]
            scale = scales[t, j]
            for i in range(S):
                of_inverse = of_inverses[side, i]
                of_entry = of_K[j, i] if side else of_K[i, j]
                for n in range(N):
                    of_entry[n] += of_inverse[n] * scale[n]
    return of_K
