"""The update of a single stream with a custom VJP."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fathom.operations.ops import Array, Arrays, CustomVJP, Ops


@dataclass(frozen=True)
class OrthogonalUpdate(CustomVJP):
    """x, y [N, C] → (x + y − s x [N, C],), with the share s = x·y/(x·x + eps) of each row."""

    loops_from = 0

    eps: float

    def forward(self, ops: Ops, x: Array, y: Array) -> tuple[Arrays, Arrays]:
        inverse = 1 / (ops.sum(x * x, axis=-1, keepdims=True) + self.eps)
        share = ops.sum(x * y, axis=-1, keepdims=True) * inverse
        return (x + y - share * x,), (share[:, 0], inverse[:, 0])

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (x, y), (g,) = xs, gradients
        share, inverse = (one[:, None] for one in saved)
        along = ops.sum(g * x, axis=-1, keepdims=True) * inverse
        return (1 - share) * g - along * (y - 2 * share * x), g - along * x

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import one_stream_loops

        return one_stream_loops.OrthogonalUpdate(self.eps)
