"""Functions of connections on the CPU, in loops compiled by numba.

PyTorch, MLX and NumPy run each function as several operations. Most of their time goes into calls
and into writing and reading intermediate arrays. A loop passes over the memory once.

The classes implement `custom_vjp`, which has the formulas; the loops of Sinkhorn's passes are
used by `sinkhorn`. Arrays are contiguous NumPy arrays of one float type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fathom.operations.ops import CustomVJP
from fathom.system.compiled import compiled, compiled_in_order

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fathom.operations.ops import Array, Arrays, Ops


def load() -> None:
    """Trigger numba's loading at the first call of any function, a few tenths of a second."""
    one = np.ones((1, 1, 1), np.float32)
    row_products(one[0], one)


# --- norms and sums over streams -----------------------------------------------------------------


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


@compiled
def add_rows(a: np.ndarray, b: np.ndarray, factors: np.ndarray, x: np.ndarray) -> np.ndarray:
    """a + b − factors·x [N, F], with one factor for each row [N, 1]."""
    N, F = x.shape
    sums = np.empty_like(x)
    for n in range(N):
        factor = factors[n, 0]
        for f in range(F):
            sums[n, f] = a[n, f] + b[n, f] - factor * x[n, f]
    return sums


@compiled
def weighted_sum(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Σ_s w_s x_s: [N, S], [N, S, M] → [N, M]."""
    N, S, M = x.shape
    sums = np.empty((N, M), x.dtype)
    for n in range(N):
        weight = weights[n, 0]
        for m in range(M):
            sums[n, m] = weight * x[n, 0, m]
        for s in range(1, S):
            weight = weights[n, s]
            for m in range(M):
                sums[n, m] += weight * x[n, s, m]
    return sums


@compiled
def row_products(row: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Σ_m r_m x_sm: [N, M], [N, S, M] → [N, S]."""
    N, S, M = x.shape
    products = np.empty((N, S), x.dtype)
    for n in range(N):
        for s in range(S):
            total = x.dtype.type(0)
            for m in range(M):
                total += row[n, m] * x[n, s, m]
            products[n, s] = total
    return products


@compiled
def add_to_streams(x: np.ndarray, weights: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x_s + w_s y: [N, S, M], [N, S], [N, M] → [N, S, M]."""
    N, S, M = x.shape
    streams = np.empty_like(x)
    for n in range(N):
        for s in range(S):
            weight = weights[n, s]
            for m in range(M):
                streams[n, s, m] = x[n, s, m] + weight * y[n, m]
    return streams


@compiled
def mix(H: np.ndarray, weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """H x + w y: [N, S, S], [N, S], [N, S, M], [N, M] → [N, S, M]."""
    N, S, M = x.shape
    streams = np.empty_like(x)
    for n in range(N):
        for i in range(S):
            weight = weights[n, i]
            for m in range(M):
                streams[n, i, m] = weight * y[n, m]
            for j in range(S):
                weight = H[n, i, j]
                for m in range(M):
                    streams[n, i, m] += weight * x[n, j, m]
    return streams


@compiled
def mix_backward(H: np.ndarray, x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients g xᵀ [N, S, S] of H and Hᵀ g [N, S, M] of x; H x has the gradient g [N, S, M]."""
    N, S, M = x.shape
    of_H, of_x = np.empty_like(H), np.empty_like(x)
    for n in range(N):
        for i in range(S):
            for j in range(S):
                total = x.dtype.type(0)
                for m in range(M):
                    total += g[n, i, m] * x[n, j, m]
                of_H[n, i, j] = total
        for j in range(S):
            weight = H[n, 0, j]
            for m in range(M):
                of_x[n, j, m] = weight * g[n, 0, m]
            for i in range(1, S):
                weight = H[n, i, j]
                for m in range(M):
                    of_x[n, j, m] += weight * g[n, i, m]
    return of_H, of_x


@dataclass(frozen=True)
class NormedProduct(CustomVJP):
    """`custom_vjp.NormedProduct`."""

    eps: float

    def forward(self, ops: Ops, x: Array, phi: Array) -> tuple[Arrays, Arrays]:
        scale = norm_scales(x, self.eps)
        product = ops.matmul(x, phi.T) * scale
        return (product, x), (scale, product)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (x, phi), (scale, product), (of_product, of_x) = xs, saved, gradients
        scaled = of_product * scale
        along_x = row_products(scaled, product[:, None]) * scale / x.shape[1]
        along_phi = ops.matmul(scaled, phi)
        return add_rows(of_x, along_phi, along_x, x), ops.matmul(scaled.T, x)


class WeightedSum(CustomVJP):
    """`custom_vjp.WeightedSum`."""

    def forward(self, ops: Ops, weights: Array, x: Array) -> tuple[Arrays, Arrays]:
        return (weighted_sum(weights, x), x), ()

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (weights, x), (of_sum, of_x) = xs, gradients
        return row_products(of_sum, x), add_to_streams(of_x, weights, of_sum)


class Mixing(CustomVJP):
    """`custom_vjp.Mixing`."""

    def forward(
        self, ops: Ops, H: Array, weights: Array, x: Array, y: Array
    ) -> tuple[Arrays, Arrays]:
        return (mix(H, weights, x, y),), ()

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (H, weights, x, y), (g,) = xs, gradients
        of_H, of_x = mix_backward(H, x, g)
        return of_H, row_products(y, g), of_x, weighted_sum(weights, g)


class Adding(CustomVJP):
    """`custom_vjp.Adding`."""

    def forward(self, ops: Ops, weights: Array, x: Array, y: Array) -> tuple[Arrays, Arrays]:
        return (add_to_streams(x, weights, y),), ()

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (weights, _, y), (g,) = xs, gradients
        return row_products(y, g), g, weighted_sum(weights, g)


# --- Sinkhorn's passes ----------------------------------------------------------------------------
# For matrices K [S, S, N]; the first pass divides rows. Sums are added in the order of
# `sinkhorn.Passes`, so that the scales have the same digits.


@compiled_in_order
def _add_product(total: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """total += a·b, all [N], in a separate loop that the compiler can vectorise."""
    for n in range(len(total)):
        total[n] += a[n] * b[n]


@compiled_in_order
def scales_of_passes(K: np.ndarray, passes: int, floor: float, added: float) -> np.ndarray:
    """Scales [passes + 1, S, N]: ones, then the result of each pass."""
    S, _, N = K.shape
    low, more = K.dtype.type(floor), K.dtype.type(added)
    scales = np.ones((passes + 1, S, N), K.dtype)
    inverses = np.ones((2, S, N), K.dtype)  # of the last pass over each side
    total = np.empty(N, K.dtype)
    for t in range(passes):
        for i in range(S):
            total[:] = 0
            for j in range(S):
                _add_product(total, K[i, j] if t % 2 == 0 else K[j, i], scales[t, j])
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
    last, other = scales[passes], scales[passes - 1]
    u, v = (last, other) if passes % 2 else (other, last)
    of_K = np.empty_like(K)
    of_scales = np.zeros((2, S, N), K.dtype)  # of rows and of columns
    of_inverses = np.zeros((2, S, N), K.dtype)
    product = np.empty(N, K.dtype)
    for i in range(S):
        for j in range(S):
            given, entry, of_entry, left, right = g[i, j], K[i, j], of_K[i, j], u[i], v[j]
            for n in range(N):
                product[n] = given[n] * entry[n]
                of_entry[n] = given[n] * left[n] * right[n]
            _add_product(of_scales[0, i], product, right)
            _add_product(of_scales[1, j], product, left)
    for t in range(passes - 1, -1, -1):
        side = t % 2
        of_sums = of_scales[1 - side]
        if t < passes - 1:  # the second-to-last scale also scales the output
            of_sums[:] = 0
        for i in range(S):
            of_inverse, of_scale, scale = of_inverses[side, i], of_scales[side, i], scales[t + 1, i]
            for n in range(N):
                of_inverse[n] = more * of_inverse[n] - of_scale[n] * scale[n] * scale[n]
            for j in range(S):
                row, column = (i, j) if side == 0 else (j, i)
                _add_product(of_K[row, column], of_inverse, scales[t, j])
                _add_product(of_sums[j], K[row, column], of_inverse)
    return of_K
