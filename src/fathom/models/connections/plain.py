"""`plain`: a single stream, the ordinary residual network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fathom.models.connections.connection import Connection, ConnectionContext
from fathom.settings import Settings

if TYPE_CHECKING:
    from fathom.models.init import Parameter
    from fathom.models.ops import Array, Ops


class Plain(Settings):
    """x ← x + f(x); x ← f(x) where f has its own residual."""

    kind: Literal["plain"] = "plain"

    def at(self, context: ConnectionContext) -> PlainConnection:
        """The connection in a network."""
        return PlainConnection(context)


@dataclass(frozen=True)
class PlainConnection(Connection):
    """Formula: `Plain`."""

    context: ConnectionContext

    @property
    def is_plain(self) -> bool:
        return True

    def parameters(self) -> dict[str, Parameter]:
        return {}

    def coefficients(self, ops: Ops, params: dict[str, Array], noise: Array | None = None) -> None:
        return None

    def per_layer(self, ops: Ops, coefficients: None) -> Sequence[None]:
        return [None] * self.context.layers

    def open(self, ops: Ops, coefficients: None, x: Array) -> Array:
        return x

    def read(self, ops: Ops, c: None, streams: Array) -> tuple[Array, Array]:
        return streams, streams

    def write(self, ops: Ops, c: None, streams: Array, y: Array) -> Array:
        return y if self.context.has_residual else streams + y

    def close(self, ops: Ops, coefficients: None, streams: Array) -> Array:
        return streams
