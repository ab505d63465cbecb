"""The function of `dense_vjp` on the CPU: matrix products, and loops compiled by numba.

Arrays are contiguous NumPy arrays of one float type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fathom.arithmetic.loops import exponentials, norm_scales
from fathom.operations.ops import Array, Arrays, CustomVJP, Ops, groups
from fathom.system.compiled import compiled

GROUP = 8
"""Number of sources of a loop. numba compiles a loop for each length of a tuple, so each tuple has
this length: sources are read from where they are, and no number of them needs another loop."""

PEAK = 1 / math.sqrt(2 * math.pi)
"""The normal density at 0."""


@compiled
def add_reads(weights: np.ndarray, first: int, count: int, xs: Arrays, reads: np.ndarray) -> None:
    """Add the sources `first` to `first + count` to the reads [W, N, C]. Weights are [N, W, I]."""
    W, N, C = reads.shape
    for n in range(N):
        if first == 0:
            reads[:, n] = 0
        for i in range(count):
            x = xs[i]
            for w in range(W):
                weight = weights[n, w, first + i]
                for c in range(C):
                    reads[w, n, c] += weight * x[n, c]


@compiled
def reads_backward(
    weights: np.ndarray,
    first: int,
    count: int,
    xs: Arrays,
    of_reads: Arrays,
    given: Arrays,
    of_weights: np.ndarray,
    of_xs: np.ndarray,
) -> None:
    """Set the gradients of these sources [I, N, C], from those `given`, and of their weights."""
    (N, W, _), C = weights.shape, of_xs.shape[2]
    for n in range(N):
        for i in range(count):
            x, of_x, k = xs[i], given[i], first + i
            for c in range(C):
                of_xs[k, n, c] = of_x[n, c]
            for w in range(W):
                g, weight, product = of_reads[w], weights[n, w, k], weights.dtype.type(0)
                for c in range(C):
                    product += g[n, c] * x[n, c]
                    of_xs[k, n, c] += weight * g[n, c]
                of_weights[n, w, k] = product


@compiled
def scale_rows(x: np.ndarray, scales: np.ndarray) -> None:
    """Multiply row n of x [N, K] by `scales[n]`."""
    N, K = x.shape
    for n in range(N):
        for k in range(K):
            x[n, k] *= scales[n]


@compiled
def hidden_backward(
    h: np.ndarray,
    y: np.ndarray,
    bells: np.ndarray,
    scales: np.ndarray,
    of_y: np.ndarray,
    along: np.ndarray,
) -> None:
    """Replace the gradient of y = gelu(h) [N, K] by that of h over the scales of the norm.

    `bells` is e^(−h²/2). `along` [N] becomes the factor of x in the gradient of x, times C.
    """
    (N, K), kind, peak = h.shape, h.dtype.type, h.dtype.type(PEAK)
    for n in range(N):
        total = kind(0)
        for k in range(K):
            is_zero = kind(h[n, k] == 0)
            below = (y[n, k] + is_zero * kind(0.5)) / (h[n, k] + is_zero)
            of_h = of_y[n, k] * (below + peak * h[n, k] * bells[n, k])
            total += of_h * h[n, k]
            of_y[n, k] = of_h * scales[n]
        along[n] = total * scales[n] * scales[n]


@compiled
def add_through_norm(
    x: np.ndarray, along: np.ndarray, of_normed: np.ndarray, of_x: np.ndarray
) -> None:
    """Add the gradient of x [N, C] that its norm passes on."""
    N, C = x.shape
    for n in range(N):
        factor = along[n] / x.dtype.type(C)
        for c in range(C):
            of_x[n, c] += of_normed[n, c] - factor * x[n, c]


@dataclass(frozen=True)
class DynamicReads(CustomVJP):
    """`dense_vjp.DynamicReads`."""

    eps: float

    def forward(
        self, ops: Ops, a: Array, V: Array, D: Array, *sources: Array
    ) -> tuple[Arrays, Arrays]:
        x, (W, I) = sources[-1], a.shape  # noqa: E741
        N, C = x.shape
        scales, reads = np.empty(N, x.dtype), np.empty((W, N, C), x.dtype)
        norm_scales(x, self.eps, scales)
        h = ops.matmul(x, V.T)
        scale_rows(h, scales)
        y = ops.gelu(h)
        weights = ops.matmul(y, D.T).reshape(N, W, I)
        weights += a
        for first, count, xs in groups(sources, GROUP):
            add_reads(weights, first, count, xs, reads)
        return (*reads, *sources), (scales, h, y, weights)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (_, V, D, *sources), (scales, h, y, weights) = xs, saved
        (N, W, _), x = weights.shape, sources[-1]
        of_weights = np.empty_like(weights)
        of_sources = np.empty((len(sources), *x.shape), x.dtype)
        ((_, _, of_reads),) = groups(gradients[:W], GROUP)
        for (first, count, own), (_, _, given) in zip(
            groups(sources, GROUP), groups(gradients[W:], GROUP), strict=True
        ):
            reads_backward(weights, first, count, own, of_reads, given, of_weights, of_sources)
        by_token = of_weights.reshape(N, len(D))
        of_D, of_h = ops.matmul(by_token.T, y), ops.matmul(by_token, D)
        bells = h * h
        bells *= -0.5
        exponentials(bells)
        along = np.empty_like(scales)
        hidden_backward(h, y, bells, scales, of_h, along)
        add_through_norm(x, along, ops.matmul(of_h, V), of_sources[-1])
        return (of_weights.sum(axis=0), ops.matmul(of_h.T, x), of_D, *of_sources)
