"""GELU and the softmax of causal attention in compiled loops, for MLX on the CPU.

There MLX computes exponentials one number at a time. NumPy's exponential is vectorised, and a loop
does the rest in one pass. Arrays are large (`ops.LARGE`), contiguous and float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from fathom.operations.ops import Array, Arrays, CustomVJP, Ops
from fathom.system.compiled import compiled


class Gelu(CustomVJP):
    """x → x Φ(x), with an absolute error of 1e-6."""

    def forward(self, ops: Ops, x: Array) -> tuple[Arrays, Arrays]:
        flat = x.reshape(-1)
        exponents = normal_exponents(flat)
        y, slope = gelu(flat, np.exp(exponents, out=exponents))
        return (y.reshape(x.shape),), (slope,)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (slope,), (g,) = saved, gradients
        return (multiply(g.reshape(-1), slope).reshape(g.shape),)


class CausalSoftmax(CustomVJP):
    """Scores [B, H, T, T] → the softmax of each row up to the diagonal, and zeros after it."""

    def forward(self, ops: Ops, scores: Array) -> tuple[Arrays, Arrays]:
        p = below_largest(scores.reshape(-1, *scores.shape[-2:]))
        np.exp(p, out=p)
        divide_by_sums(p)
        return (p.reshape(scores.shape),), (p,)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (p,), (g,) = saved, gradients
        return (softmax_backward(p, g.reshape(p.shape)).reshape(g.shape),)


FAR = 13.0
"""Beyond ±FAR, Φ is 0 or 1 to float32's last digit."""

SLOPE = 0.3275911 * math.sqrt(0.5)
TAIL = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""Φ(x) = 1 − e^(−x²/2) P(t) for x ≥ 0, with t = 1/(1 + SLOPE x).

2 P(t)/t is a polynomial with these coefficients, the highest first (Abramowitz and Stegun, 7.1.26:
an error below 1.5e-7 in erf).
"""


@compiled
def normal_exponents(x: np.ndarray) -> np.ndarray:
    """−x²/2 of x [N], with |x| limited to `FAR`."""
    exponents = np.empty_like(x)
    far = x.dtype.type(FAR)
    for n in range(len(x)):
        near = min(abs(x[n]), far)
        exponents[n] = x.dtype.type(-0.5) * near * near
    return exponents


@compiled
def gelu(x: np.ndarray, exponential: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(GELU, its derivative) at x [N]; `exponential` is e^(−x²/2)."""
    of = x.dtype.type
    value, slope = np.empty_like(x), np.empty_like(x)
    for n in range(len(x)):
        t = 1 / (of(SLOPE) * abs(x[n]) + 1)
        tail = of(TAIL[0]) * t + of(TAIL[1])
        tail = tail * t + of(TAIL[2])
        tail = tail * t + of(TAIL[3])
        tail = tail * t + of(TAIL[4])
        tail *= of(0.5) * t * exponential[n]
        cdf = 1 - tail if x[n] > 0 else tail
        density = exponential[n] * of(1 / math.sqrt(2 * math.pi))
        value[n] = x[n] * cdf
        slope[n] = cdf + min(max(x[n], of(-FAR)), of(FAR)) * density
    return value, slope


@compiled
def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a·b [N], without NumPy's warnings after training has diverged."""
    products = np.empty_like(a)
    for n in range(len(a)):
        products[n] = a[n] * b[n]
    return products


@compiled
def below_largest(scores: np.ndarray) -> np.ndarray:
    """Scores [N, T, T] up to the diagonal, minus the largest of their row; −∞ after it."""
    N, T, _ = scores.shape
    differences = np.full_like(scores, -np.inf)
    for n in range(N):
        for t in range(T):
            largest = scores[n, t, 0]
            for s in range(1, t + 1):
                largest = max(largest, scores[n, t, s])
            for s in range(t + 1):
                differences[n, t, s] = scores[n, t, s] - largest
    return differences


@compiled
def divide_by_sums(x: np.ndarray) -> None:
    """Divide each row of x [N, T, T] by its sum up to the diagonal."""
    N, T, _ = x.shape
    for n in range(N):
        for t in range(T):
            total = x.dtype.type(0)
            for s in range(t + 1):
                total += x[n, t, s]
            factor = 1 / total
            for s in range(t + 1):
                x[n, t, s] *= factor


@compiled
def softmax_backward(p: np.ndarray, g: np.ndarray) -> np.ndarray:
    """p (g − Σ p g) [N, T, T] of rows up to the diagonal, and zeros after it."""
    N, T, _ = p.shape
    of_scores = np.zeros_like(p)
    for n in range(N):
        for t in range(T):
            along = p.dtype.type(0)
            for s in range(t + 1):
                along += p[n, t, s] * g[n, t, s]
            for s in range(t + 1):
                of_scores[n, t, s] = p[n, t, s] * (g[n, t, s] - along)
    return of_scores
