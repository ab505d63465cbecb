"""Functions of connections on the CPU, in loops compiled by numba.

PyTorch, MLX and NumPy run each function as several operations. Most of their time goes into calls
and into writing and reading intermediate arrays. A loop passes over the memory once.

Parts of `boundary_loops`, and Sinkhorn's passes for `sinkhorn`. Arrays are NumPy arrays of one
float type.
"""

from __future__ import annotations

import numpy as np

from fathom.system.compiled import compiled, compiled_in_order


def load() -> None:
    """Trigger numba's loading at the first call of any function, a few tenths of a second."""
    one = np.ones((1, 1, 1), np.float32)
    row_products(one[0], one, one[0].copy())


# --- norms ----------------------------------------------------------------------------------------


@compiled
def norm_scales(x: np.ndarray, eps: float) -> np.ndarray:
    """1/√(mean of x² + eps) [N, 1] of the rows of x [N, F]."""
    N, F = x.shape
    scales = np.empty((N, 1), x.dtype)
    for n in range(N):
        total = x.dtype.type(0)
        for f in range(F):
            total += x[n, f] * x[n, f]
        scales[n, 0] = 1 / np.sqrt(total / x.dtype.type(F) + x.dtype.type(eps))
    return scales


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
