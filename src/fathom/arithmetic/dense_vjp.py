"""Weighted sums of many sources, with weights of each token, with a custom VJP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fathom.arithmetic.custom_vjp import NormedProduct
from fathom.arithmetic.sinkhorn import has_triton
from fathom.operations.ops import Array, Arrays, Composed, CustomVJP, Ops


@dataclass(frozen=True)
class DynamicReads(Composed):
    """I sources x [N, C] → (W reads Σ_i w_i x_i [N, C], the sources).

    Weights w [N, W, I] are a [W, I] + D gelu(V r) with V [K, C] and D [W·I, K]; r is the RMS norm
    of the last source. Inputs are a, V, D, and the sources. The sources are returned for the next
    reader, as in `custom_vjp`.
    """

    loops_from = math.inf  # MLX's arrays on the host have no fast GELU

    eps: float
    """Added to the mean square."""

    def plain(self, ops: Ops, a: Array, V: Array, D: Array, *sources: Array) -> Arrays:
        *earlier, last = sources
        product, last = ops.custom_vjp(NormedProduct(self.eps), last, V)
        weights = ops.linear(ops.gelu(product), D)
        weights = ops.reshape(weights, (last.shape[0], *a.shape)) + a
        sources = (*earlier, last)
        by_token = ops.transpose(ops.stack(sources), (1, 0, 2))
        reads = ops.transpose(ops.matmul(weights, by_token), (1, 0, 2))
        return (*ops.unstack(reads), *sources)

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import dense_loops

        return dense_loops.DynamicReads(self.eps)

    def fused(self, *shapes: Sequence[int]) -> CustomVJP | None:
        if not has_triton():
            return None
        from fathom.operations import triton_reads

        has_kernel = triton_reads.HAS_TUPLES and shapes[0][0] in (1, 2, 4, 8)
        return triton_reads.DynamicReads(self.eps) if has_kernel else None
