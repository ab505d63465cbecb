"""The functions of `depth_vjp` on the CPU, in loops compiled by numba.

A loop computes all reads of a token together. Between its passes it stores only one number per
read, head and source. Arrays are contiguous NumPy arrays of one float type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fathom.arithmetic.loops import norm_scales
from fathom.operations.ops import Array, Arrays, CustomVJP, Ops
from fathom.system.compiled import compiled

Results = tuple[np.ndarray, ...]


@compiled
def softmax_read(
    queries: np.ndarray,
    v: np.ndarray,
    s: np.ndarray,
    read: np.ndarray,
    log_sum: np.ndarray,
    values_normed: bool,
) -> Results:
    """(Reads [R, N, H, c], logarithms [R, H, N], products [N, R, H, I], p [N, R, H, I + 1]).

    Queries are [R, H, c], sources [I, N, H, c]. `read` and `log_sum` are of other sources; their
    length is R, or 0 if there are none.
    """
    (R, H, C), (I, N, _, _), kind = queries.shape, v.shape, v.dtype.type  # noqa: E741
    has_others = len(read) > 0
    reads, log_sums = np.empty((R, N, H, C), v.dtype), np.empty((R, H, N), v.dtype)
    products = np.empty((N, R, H, I), v.dtype)
    p = np.empty((N, R, H, I + 1), v.dtype)
    for n in range(N):
        for r in range(R):
            for h in range(H):
                largest = log_sum[r, h, n] if has_others else kind(-np.inf)
                for i in range(I):
                    product = kind(0)
                    for c in range(C):
                        product += queries[r, h, c] * v[i, n, h, c]
                    products[n, r, h, i] = product
                    p[n, r, h, i] = product * s[i, n]
                    largest = max(largest, p[n, r, h, i])
                total = np.exp(log_sum[r, h, n] - largest) if has_others else kind(0)
                p[n, r, h, I] = total
                for i in range(I):
                    p[n, r, h, i] = np.exp(p[n, r, h, i] - largest)
                    total += p[n, r, h, i]
                log_sums[r, h, n] = largest + np.log(total)
                share = kind(1) / total
                p[n, r, h, I] *= share
                weight = p[n, r, h, I]
                for c in range(C):
                    reads[r, n, h, c] = weight * read[r, n, h, c] if has_others else kind(0)
                for i in range(I):
                    p[n, r, h, i] *= share
                    weight = p[n, r, h, i] * s[i, n] if values_normed else p[n, r, h, i]
                    for c in range(C):
                        reads[r, n, h, c] += weight * v[i, n, h, c]
    return reads, log_sums, products, p


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
    (R, H, C), (I, N, _, _), kind = queries.shape, v.shape, v.dtype.type  # noqa: E741
    has_others = len(read) > 0
    of_queries, of_v, of_s = np.zeros_like(queries), of_v.copy(), np.zeros_like(s)
    of_read = np.empty_like(read)
    of_other = np.empty((len(read), H, N), v.dtype)
    of_values = np.empty(I, v.dtype)
    for n in range(N):
        for r in range(R):
            for h in range(H):
                along = -of_log_sum[r, h, n]
                for i in range(I):
                    product = kind(0)
                    for c in range(C):
                        product += g[r, n, h, c] * v[i, n, h, c]
                    of_values[i] = product
                    along += p[n, r, h, i] * (product * s[i, n] if values_normed else product)
                if has_others:
                    product, share = kind(0), p[n, r, h, I]
                    for c in range(C):
                        product += g[r, n, h, c] * read[r, n, h, c]
                        of_read[r, n, h, c] = share * g[r, n, h, c]
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
                    for c in range(C):
                        of_v[i, n, h, c] += weight * g[r, n, h, c] + of_product * queries[r, h, c]
                    for c in range(C):
                        of_queries[r, h, c] += of_product * v[i, n, h, c]
    return of_queries, of_v, of_s, of_read, of_other


@compiled
def inverse_rms_backward(
    x: np.ndarray, scale: np.ndarray, of_scale: np.ndarray, of_x: np.ndarray
) -> np.ndarray:
    """The gradient of x [N, C]; `scale` [N] is 1/√(mean of x² + eps)."""
    N, C = x.shape
    gradient = np.empty_like(x)
    for n in range(N):
        factor = of_scale[n] * scale[n] * scale[n] * scale[n] / x.dtype.type(C)
        for c in range(C):
            gradient[n, c] = of_x[n, c] - factor * x[n, c]
    return gradient


@dataclass(frozen=True)
class InverseRms(CustomVJP):
    """`depth_vjp.InverseRms`."""

    eps: float

    def forward(self, ops: Ops, x: Array) -> tuple[Arrays, Arrays]:
        scale = np.empty(len(x), x.dtype)
        norm_scales(x, self.eps, scale)
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
        (R, C), N = queries.shape, v.shape[1]
        read, log_sum = others or absent(v)
        reads, log_sums, products, p = softmax_read(
            *self.by_head(queries, v), s, *self.by_head(read), log_sum, self.values_normed
        )
        return (reads.reshape(R, N, C), log_sums, v), (products, p)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        queries, v, s, *others = xs
        of_read, of_log_sum, of_v = gradients
        read, _ = others or absent(v)
        of_queries, of_v, of_s, of_other, of_other_sum = softmax_read_backward(
            *self.by_head(queries, v), s, *self.by_head(read), *saved,
            *self.by_head(of_read), of_log_sum, *self.by_head(of_v), self.values_normed,
        )  # fmt: skip
        result = of_queries.reshape(queries.shape), of_v.reshape(v.shape), of_s
        return (*result, of_other.reshape(read.shape), of_other_sum) if others else result

    def by_head(self, *xs: np.ndarray) -> list[np.ndarray]:
        """[…, C] → […, H, C/H]."""
        return [x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads) for x in xs]


def absent(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Empty read and logarithms, for no other sources."""
    return np.empty((0, *v.shape[1:]), v.dtype), np.empty((0, 0, 0), v.dtype)
