"""The functions of `gated_vjp` on the CPU, in loops compiled by numba.

Arrays are contiguous NumPy arrays of one float type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fathom.arithmetic.loops import exponentials, norm_scales
from fathom.operations.ops import Array, Arrays, CustomVJP, Ops
from fathom.system.compiled import compiled


@compiled
def normed(x: np.ndarray, gain: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """(g ∘ x / RMS [N, S, C], 1/RMS [N·S])."""
    N, S, C = x.shape
    result, scales = np.empty_like(x), np.empty(N * S, x.dtype)
    norm_scales(x.reshape(N * S, C), eps, scales)
    for n in range(N):
        for s in range(S):
            scale = scales[n * S + s]
            for c in range(C):
                result[n, s, c] = scale * x[n, s, c] * gain[s, c]
    return result, scales


@compiled
def normed_backward(
    x: np.ndarray, gain: np.ndarray, scales: np.ndarray, g: np.ndarray, of_x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of x and of the gain; `of_x` is that of x as an output."""
    N, S, C = x.shape
    result, of_gain = np.empty_like(x), np.zeros_like(gain)
    for n in range(N):
        for s in range(S):
            scale, along = scales[n * S + s], x.dtype.type(0)
            for c in range(C):
                product = g[n, s, c] * x[n, s, c]
                of_gain[s, c] += scale * product
                along += product * gain[s, c]
            along *= scale * scale * scale / x.dtype.type(C)
            for c in range(C):
                through = scale * g[n, s, c] * gain[s, c] - along * x[n, s, c]
                result[n, s, c] = of_x[n, s, c] + through
    return result, of_gain


@compiled
def gated_mean(logits: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Means [N, C], gates [N, S, C])."""
    N, S, C = x.shape
    means, gates = np.zeros((N, C), x.dtype), np.empty_like(x)
    share = x.dtype.type(1) / x.dtype.type(S)
    for n in range(N):
        for s in range(S):
            for c in range(C):
                gates[n, s, c] = -logits[n, s, c]
        exponentials(gates[n])
        for s in range(S):
            for c in range(C):
                gates[n, s, c] = 1 / (1 + gates[n, s, c])
                means[n, c] += share * gates[n, s, c] * x[n, s, c]
    return means, gates


@compiled
def gated_mean_backward(
    x: np.ndarray, gates: np.ndarray, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of logits and of x."""
    N, S, C = x.shape
    of_logits, of_x = np.empty_like(x), np.empty_like(x)
    share = x.dtype.type(1) / x.dtype.type(S)
    for n in range(N):
        for s in range(S):
            for c in range(C):
                of_x[n, s, c] = share * gates[n, s, c] * g[n, c]
                of_logits[n, s, c] = of_x[n, s, c] * x[n, s, c] * (1 - gates[n, s, c])
    return of_logits, of_x


@dataclass(frozen=True)
class NormedStreams(CustomVJP):
    """`gated_vjp.NormedStreams`."""

    eps: float

    def forward(self, ops: Ops, x: Array, gain: Array) -> tuple[Arrays, Arrays]:
        result, scales = normed(x, gain, self.eps)
        return (result, x), (scales,)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        return normed_backward(*xs, *saved, *gradients)


class GatedMean(CustomVJP):
    """`gated_vjp.GatedMean`."""

    def forward(self, ops: Ops, logits: Array, x: Array) -> tuple[Arrays, Arrays]:
        means, gates = gated_mean(logits, x)
        return (means,), (gates,)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        _, x = xs
        return gated_mean_backward(x, *saved, *gradients)
