"""Reads of streams through gates, as two functions with compiled loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fathom.operations.ops import LARGE, CustomVJP

if TYPE_CHECKING:
    from fathom.operations.ops import Array, Arrays, Ops


@dataclass(frozen=True)
class NormedStreams(CustomVJP):
    """x [N, S, C], gain g [S, C] → (g ∘ RMSNorm(x) over C, x)."""

    is_composed = True
    loops_from = LARGE

    eps: float
    """Added to the mean square."""

    def forward(self, ops: Ops, *xs: Array) -> tuple[Arrays, Arrays]:
        return self.plain(ops, *xs), ()

    def plain(self, ops: Ops, x: Array, gain: Array) -> Arrays:
        squares = ops.sum(x * x, axis=-1, keepdims=True)  # l2_norm has no gradient at zero
        return x / ops.sqrt(squares / x.shape[-1] + self.eps) * gain, x

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import gated_loops

        return gated_loops.NormedStreams(self.eps)


class GatedMean(CustomVJP):
    """Logits [N, S, C], x [N, S, C] → (mean over S of σ(logits) ∘ x [N, C],)."""

    is_composed = True
    loops_from = LARGE

    def forward(self, ops: Ops, *xs: Array) -> tuple[Arrays, Arrays]:
        return self.plain(ops, *xs), ()

    def plain(self, ops: Ops, logits: Array, x: Array) -> Arrays:
        return (ops.mean(ops.sigmoid(logits) * x, axis=1),)

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import gated_loops

        return gated_loops.GatedMean()
