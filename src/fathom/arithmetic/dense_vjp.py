"""Weighted sums of many sources with a custom VJP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fathom.operations.ops import Composed

if TYPE_CHECKING:
    from fathom.operations.ops import Array, Arrays, CustomVJP, Ops


class DenseReads(Composed):
    """Weights [N, W, I], I sources x [N, C] → (W reads Σ_i w_i x_i [N, C], the sources).

    The sources are returned for the next reader, as in `custom_vjp`.
    """

    def plain(self, ops: Ops, weights: Array, *sources: Array) -> Arrays:
        by_token = ops.transpose(ops.stack(sources), (1, 0, 2))
        reads = ops.transpose(ops.matmul(weights, by_token), (1, 0, 2))
        return (*ops.unstack(reads), *sources)

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import dense_loops

        return dense_loops.DenseReads()
