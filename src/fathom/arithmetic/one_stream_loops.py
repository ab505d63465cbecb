"""The function of `one_stream_vjp` on the CPU, in loops compiled by numba.

Arrays are contiguous NumPy arrays of one float type.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fathom.operations.ops import Array, Arrays, CustomVJP, Ops
from fathom.system.compiled import compiled

Results = tuple[np.ndarray, ...]


@compiled
def orthogonal_update(x: np.ndarray, y: np.ndarray, eps: float) -> Results:
    """(x + y − s x [N, C], s [N], 1/(x·x + eps) [N])."""
    (N, C), kind = x.shape, x.dtype.type
    updated, shares, inverses = np.empty_like(x), np.empty(N, x.dtype), np.empty(N, x.dtype)
    for n in range(N):
        along, size = kind(0), kind(0)
        for c in range(C):
            along += x[n, c] * y[n, c]
            size += x[n, c] * x[n, c]
        inverses[n] = kind(1) / (size + kind(eps))
        shares[n] = along * inverses[n]
        share = shares[n]
        for c in range(C):
            updated[n, c] = x[n, c] + y[n, c] - share * x[n, c]
    return updated, shares, inverses


@compiled
def orthogonal_update_backward(
    x: np.ndarray, y: np.ndarray, shares: np.ndarray, inverses: np.ndarray, g: np.ndarray
) -> Results:
    """The gradients of x and y."""
    (N, C), kind = x.shape, x.dtype.type
    of_x, of_y = np.empty_like(x), np.empty_like(x)
    for n in range(N):
        along = kind(0)
        for c in range(C):
            along += g[n, c] * x[n, c]
        along *= inverses[n]
        twice, kept = kind(2) * shares[n], kind(1) - shares[n]
        for c in range(C):
            of_x[n, c] = kept * g[n, c] - along * (y[n, c] - twice * x[n, c])
            of_y[n, c] = g[n, c] - along * x[n, c]
    return of_x, of_y


@dataclass(frozen=True)
class OrthogonalUpdate(CustomVJP):
    """`one_stream_vjp.OrthogonalUpdate`."""

    eps: float

    def forward(self, ops: Ops, x: Array, y: Array) -> tuple[Arrays, Arrays]:
        updated, *saved = orthogonal_update(x, y, self.eps)
        return (updated,), tuple(saved)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        return orthogonal_update_backward(*xs, *saved, *gradients)
