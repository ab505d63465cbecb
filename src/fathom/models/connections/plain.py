"""`plain`: a single stream, the ordinary residual network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fathom.models.connections.connection import Connection, ConnectionContext
from fathom.settings import Settings

if TYPE_CHECKING:
    from fathom.models.init import Parameter
    from fathom.models.ops import Array, Layers, Ops


class Plain(Settings):
    """x ← x + f(x); x ← f(x) where f has its own residual."""

    kind: Literal["plain"] = "plain"

    def at(self, context: ConnectionContext) -> PlainConnection:
        """The connection in a network."""
        return PlainConnection(context)


@dataclass(frozen=True)
class PlainConnection(Connection):
    """Formula: `Plain`."""

    is_plain = True

    context: ConnectionContext

    def parameters(self) -> dict[str, Parameter]:
        return {}

    def through(
        self, ops: Ops, params: dict[str, Array], x: Array, layers: Layers, noise: Array | None
    ) -> tuple[Array, None]:
        for layer in layers:
            x = layer(x) if self.context.has_residual else x + layer(x)
        return x, None
