"""A connection around a network without one of its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fathom.connections.connection import Apart, Connection, MixingTrace, State

if TYPE_CHECKING:
    from fathom.init import Parameter
    from fathom.operations.ops import Array, Ops


class LeftOut(Connection):
    """Another connection, in which the functions of one block add nothing.

    Their outputs are replaced by zero, or by their inputs if the functions have their own residual.
    Streams are still mixed.
    """

    def __init__(self, whole: Connection, block: int) -> None:
        """`block`: index of the block, from 0."""
        self.whole, self.block = whole, block
        self.context = whole.context
        self.is_plain, self.reads_normed = whole.is_plain, whole.reads_normed

    def parameters(self) -> dict[str, Parameter]:
        return self.whole.parameters()

    def open(
        self, ops: Ops, params: dict[str, Array], x: Array, noise: Array | None = None
    ) -> State:
        return None, self.whole.open(ops, params, x, noise)

    def reads_apart(self, k: int) -> bool:
        return self.whole.reads_apart(k)

    def read(self, ops: Ops, state: State, k: int) -> tuple[Array | Apart, State]:
        x, inner = self.whole.read(ops, state[1], k)
        return x, (x.q if isinstance(x, Apart) else x, inner)

    def write(self, ops: Ops, state: State, k: int, y: Array) -> State:
        x, inner = state
        if k // self.context.per_block == self.block:
            y = x if self.context.has_residual else 0 * x
        return None, self.whole.write(ops, inner, k, y)

    def close(self, ops: Ops, state: State) -> Array:
        return self.whole.close(ops, state[1])

    def trace(self, ops: Ops, params: dict[str, Array], state: State) -> MixingTrace | None:
        return self.whole.trace(ops, params, state[1])
