"""Reads over depth on the CPU, as loops that numba compiles: those of `depth_vjp`.

A loop reads each source of a token once for all reads, and stores nothing between its passes but
one number for each source. Arrays are contiguous NumPy arrays of one float type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fathom.models.connections.loops import norm_scales
from fathom.models.ops import CustomVJP
from fathom.system.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fathom.models.ops import Array, Arrays, Ops

Results = tuple[np.ndarray, ...]


@compiled
def softmax_read(
    queries: np.ndarray,
    v: np.ndarray,
    s: np.ndarray,
    read: np.ndarray,
    log_sum: np.ndarray,
    heads: int,
    values_normed: bool,
) -> Results:
    """(Reads [R, N, C], logarithms [R, H, N], products [N, R, H, I], p [N, R, H, I + 1]).

    `read` and `log_sum` are those of other sources, of length R, or 0 if there are none.
    """
    (R, C), (I, N, _), kind = queries.shape, v.shape, v.dtype.type  # noqa: E741
    width, has_others = C // heads, len(read) > 0
    found, log_sums = np.empty((R, N, C), v.dtype), np.empty((R, heads, N), v.dtype)
    products = np.empty((N, R, heads, I), v.dtype)
    p = np.empty((N, R, heads, I + 1), v.dtype)
    for n in range(N):
        for r in range(R):
            for h in range(heads):
                first, last = h * width, (h + 1) * width
                largest = log_sum[r, h, n] if has_others else kind(-np.inf)
                for i in range(I):
                    product = kind(0)
                    for c in range(first, last):
                        product += queries[r, c] * v[i, n, c]
                    products[n, r, h, i] = product
                    p[n, r, h, i] = product * s[i, n]
                    largest = max(largest, p[n, r, h, i])
                total = math.exp(log_sum[r, h, n] - largest) if has_others else kind(0)
                p[n, r, h, I] = total
                for i in range(I):
                    p[n, r, h, i] = math.exp(p[n, r, h, i] - largest)
                    total += p[n, r, h, i]
                log_sums[r, h, n] = largest + math.log(total)
                share = kind(1) / kind(total)
                p[n, r, h, I] *= share
                for c in range(first, last):
                    found[r, n, c] = p[n, r, h, I] * read[r, n, c] if has_others else kind(0)
                for i in range(I):
                    p[n, r, h, i] *= share
                    weight = p[n, r, h, i] * s[i, n] if values_normed else p[n, r, h, i]
                    for c in range(first, last):
                        found[r, n, c] += weight * v[i, n, c]
    return found, log_sums, products, p


@compiled
def softmax_read_backward(
    queries: np.ndarray,
    v: np.ndarray,
    s: np.ndarray,
    read: np.ndarray,
    products: np.ndarray,
    p: np.ndarray,
    g: np.ndarray,
    of_log_sum: np.ndarray,
    of_v: np.ndarray,
    values_normed: bool,
) -> Results:
    """The gradients of queries, v, s, and of the read and the logarithms of other sources."""
    (R, C), (I, N, _), heads = queries.shape, v.shape, p.shape[2]  # noqa: E741
    kind, width, has_others = v.dtype.type, C // heads, len(read) > 0
    of_queries, of_v, of_s = np.zeros_like(queries), of_v.copy(), np.zeros_like(s)
    of_read = np.empty_like(read)
    of_other = np.empty((len(read), heads, N), v.dtype)
    of_values = np.empty(I, v.dtype)
    for n in range(N):
        for r in range(R):
            for h in range(heads):
                first, last = h * width, (h + 1) * width
                along = -of_log_sum[r, h, n]
                for i in range(I):
                    product = kind(0)
                    for c in range(first, last):
                        product += g[r, n, c] * v[i, n, c]
                    of_values[i] = product
                    along += p[n, r, h, i] * (product * s[i, n] if values_normed else product)
                if has_others:
                    product, share = kind(0), p[n, r, h, I]
                    for c in range(first, last):
                        product += g[r, n, c] * read[r, n, c]
                        of_read[r, n, c] = share * g[r, n, c]
                    along += share * product
                    of_other[r, h, n] = share * (product - along)
                for i in range(I):
                    weight, of_p = p[n, r, h, i], of_values[i]
                    if values_normed:
                        of_s[i, n] += weight * of_p
                        of_p *= s[i, n]
                    of_logit = weight * (of_p - along)
                    of_s[i, n] += of_logit * products[n, r, h, i]
                    of_product = of_logit * s[i, n]
                    if values_normed:
                        weight *= s[i, n]
                    for c in range(first, last):
                        of_v[i, n, c] += weight * g[r, n, c] + of_product * queries[r, c]
                        of_queries[r, c] += of_product * v[i, n, c]
    return of_queries, of_v, of_s, of_read, of_other


@compiled
def inverse_rms_backward(
    x: np.ndarray, scale: np.ndarray, of_scale: np.ndarray, of_x: np.ndarray
) -> np.ndarray:
    """The gradient of x [N, C], whose 1/√(mean of x² + eps) is `scale` [N]."""
    N, C = x.shape
    found = np.empty_like(x)
    for n in range(N):
        factor = of_scale[n] * scale[n] * scale[n] * scale[n] / x.dtype.type(C)
        for c in range(C):
            found[n, c] = of_x[n, c] - factor * x[n, c]
    return found


@dataclass(frozen=True)
class InverseRms(CustomVJP):
    """`depth_vjp.InverseRms`."""

    eps: float

    def forward(self, ops: Ops, x: Array) -> tuple[Arrays, Arrays]:
        scale = norm_scales(x, self.eps).reshape(-1)
        return (scale, x), (scale,)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (x,), (scale,), (of_scale, of_x) = xs, saved, gradients
        return (inverse_rms_backward(x, scale, of_scale, of_x),)


@dataclass(frozen=True)
class SoftmaxRead(CustomVJP):
    """`depth_vjp.SoftmaxRead`."""

    heads: int
    values_normed: bool

    def forward(
        self, ops: Ops, queries: Array, v: Array, s: Array, *others: Array
    ) -> tuple[Arrays, Arrays]:
        read, log_sum = others or absent(v)
        found, log_sums, products, p = softmax_read(
            queries, v, s, read, log_sum, self.heads, self.values_normed
        )
        return (found, log_sums, v), (products, p)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        queries, v, s, *others = xs
        read, _ = others or absent(v)
        found = softmax_read_backward(queries, v, s, read, *saved, *gradients, self.values_normed)
        return found if others else found[:3]


def absent(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The read and the logarithms of no other sources."""
    nothing = np.empty((0, 0, 0), v.dtype)
    return nothing, nothing
