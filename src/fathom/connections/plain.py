"""`plain`: a single stream, the ordinary residual network."""

from __future__ import annotations

from typing import Literal

from fathom.connections.connection import Connection, ConnectionContext, Scheme
from fathom.init import Parameter
from fathom.operations.ops import Array, Ops, Params


class Plain(Scheme):
    """x ← x + f(x); x ← f(x) where f has its own residual."""

    kind: Literal["plain"] = "plain"

    def at(self, context: ConnectionContext) -> PlainConnection:
        return PlainConnection(self, context)


class PlainConnection(Connection):
    """Formula: `Plain`. The state is x."""

    is_plain = True

    def parameters(self) -> dict[str, Parameter]:
        return {}

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> Array:
        return x

    def read(self, ops: Ops, state: Array, k: int) -> tuple[Array, Array]:
        return state, state

    def write(self, ops: Ops, state: Array, k: int, y: Array) -> Array:
        return y if self.context.has_residual else state + y

    def close(self, ops: Ops, state: Array) -> Array:
        return state
