"""Reads of streams through gates, as two functions with compiled loops."""

from __future__ import annotations

from dataclasses import dataclass

from fathom.operations.ops import Array, Arrays, Composed, CustomVJP, Ops


@dataclass(frozen=True)
class NormedStreams(Composed):
    """x [N, S, C], gain g [S, C] → (g ∘ RMSNorm(x) over C, x)."""

    eps: float
    """Added to the mean square."""

    def plain(self, ops: Ops, x: Array, gain: Array) -> Arrays:
        squares = ops.sum(x * x, axis=-1, keepdims=True)  # l2_norm has no gradient at zero
        return x / ops.sqrt(squares / x.shape[-1] + self.eps) * gain, x

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import gated_loops

        return gated_loops.NormedStreams(self.eps)


class GatedMean(Composed):
    """Logits [N, S, C], x [N, S, C] → (mean over S of σ(logits) ∘ x [N, C],)."""

    def plain(self, ops: Ops, logits: Array, x: Array) -> Arrays:
        return (ops.mean(ops.sigmoid(logits) * x, axis=1),)

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import gated_loops

        return gated_loops.GatedMean()
