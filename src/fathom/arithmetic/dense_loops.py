"""The function of `dense_vjp` on the CPU, in loops compiled by numba.

Arrays are contiguous NumPy arrays of one float type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fathom.operations.ops import CustomVJP
from fathom.system.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fathom.operations.ops import Array, Arrays, Ops

GROUP = 8
"""Number of sources of a loop. numba compiles a loop for each length of a tuple, so each tuple has
this length: sources are read from where they are, and no number of them needs another loop."""


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


class DenseReads(CustomVJP):
    """`dense_vjp.DenseReads`."""

    def forward(self, ops: Ops, weights: Array, *sources: Array) -> tuple[Arrays, Arrays]:
        N, W, _ = weights.shape
        reads = np.empty((W, N, sources[0].shape[1]), weights.dtype)
        for first, count, xs in groups(sources):
            add_reads(weights, first, count, xs, reads)
        return (*reads, *sources), ()

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        weights, *sources = xs
        W, of_weights = weights.shape[1], np.empty_like(weights)
        of_sources = np.empty((len(sources), *sources[0].shape), weights.dtype)
        ((_, _, of_reads),) = groups(gradients[:W])
        for (first, count, own), (_, _, given) in zip(
            groups(sources), groups(gradients[W:]), strict=True
        ):
            reads_backward(weights, first, count, own, of_reads, given, of_weights, of_sources)
        return (of_weights, *of_sources)


def groups(arrays: Sequence[np.ndarray]) -> Iterator[tuple[int, int, Arrays]]:
    """(Its first index, its size, GROUP arrays) of each group; the last array fills a group."""
    for first in range(0, len(arrays), GROUP):
        group = tuple(arrays[first : first + GROUP])
        yield first, len(group), group + group[-1:] * (GROUP - len(group))
