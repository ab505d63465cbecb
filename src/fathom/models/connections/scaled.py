"""`scaled`: a single stream, where the stream or what is added to it has a scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from fathom.models.connections.component_types import one_of_registry
from fathom.models.connections.connection import Connection, ConnectionContext
from fathom.models.init import Constant, Parameter
from fathom.settings import ConfigError, Flag, Number, Registry, Settings

if TYPE_CHECKING:
    from fathom.models.ops import Array, Ops

Layer = dict[str, "Array"]
"""The parameters of one layer, [C] or [1] each."""


class Scale(Settings):
    """How a layer's output is added to the stream."""

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        """Its parameters `connection.*` of the layers, [L, C] or [L, 1]; none by default."""
        return {}

    def opening(self, context: ConnectionContext) -> dict[str, Parameter]:
        """Its parameters `connection.*` of the first stream, [C] each; none by default."""
        return {}

    def opened(self, params: Layer, x: Array) -> Array:
        """The first stream […, C], from the embedded input."""
        return x

    def sum(self, context: ConnectionContext, k: int, layer: Layer, x: Array, y: Array) -> Array:
        """The stream […, C] after layer k, which read x and returned y."""
        raise NotImplementedError


class ConstantScale(Scale):
    """x + c y."""

    kind: Literal["constant"] = "constant"
    c: Number = 1.0
    over_depth: Flag = Field(False, description="whether c is divided by √(number of blocks)")

    def sum(self, context: ConnectionContext, k: int, layer: Layer, x: Array, y: Array) -> Array:
        blocks = context.layers // context.per_block
        return x + y * (self.c / math.sqrt(blocks) if self.over_depth else self.c)


class DepthScale(Scale):
    """√((n − 1)/n) x + y/√n, where the embedded input counts as one and n counts all that is added.

    So the variance stays one, if that of each part is one and they are independent.
    """

    kind: Literal["depth"] = "depth"

    def sum(self, context: ConnectionContext, k: int, layer: Layer, x: Array, y: Array) -> Array:
        n = k + 2
        return y * (1 / math.sqrt(n)) + x * math.sqrt((n - 1) / n)


class LayerScale(Scale):
    """x + a y, with one learned number a per layer, from 1."""

    kind: Literal["layer"] = "layer"

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        return {"connection.output_scale": Parameter((context.layers, 1), Constant(1.0))}

    def sum(self, context: ConnectionContext, k: int, layer: Layer, x: Array, y: Array) -> Array:
        return x + y * layer["connection.output_scale"]


class LearnedScale(Scale):
    """γ ∘ (x + β) + η ∘ (y + δ), each learned per channel; the embedded input has a γ and a β."""

    kind: Literal["learned"] = "learned"

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        return {
            f"connection.{side}_{part}": Parameter((context.layers, context.width), start)
            for side in ("stream", "output")
            for part, start in (("scale", Constant(1.0)), ("bias", Constant(0.0)))
        }

    def opening(self, context: ConnectionContext) -> dict[str, Parameter]:
        return {
            "connection.input_scale": Parameter((context.width,), Constant(1.0)),
            "connection.input_bias": Parameter((context.width,), Constant(0.0)),
        }

    def opened(self, params: Layer, x: Array) -> Array:
        return (x + params["connection.input_bias"]) * params["connection.input_scale"]

    def sum(self, context: ConnectionContext, k: int, layer: Layer, x: Array, y: Array) -> Array:
        kept, added = (
            (value + layer[f"connection.{side}_bias"]) * layer[f"connection.{side}_scale"]
            for side, value in (("stream", x), ("output", y))
        )
        return added + kept


SCALES = Registry(
    {
        "constant": ConstantScale,
        "depth": DepthScale,
        "layer": LayerScale,
        "learned": LearnedScale,
    }
)
AnyScale = one_of_registry("scale", SCALES)


class Scaled(Settings):
    """x ← x + f(x), with a scale on either side of the sum."""

    kind: Literal["scaled"] = "scaled"
    scale: AnyScale = "constant"

    def at(self, context: ConnectionContext) -> ScaledConnection:
        """The connection in a network. Raises ConfigError where f adds its input itself."""
        if context.has_residual:
            raise ConfigError(
                "scaled: a block adds to its input itself, and has no sum left to scale; take "
                "model.wrap: sublayer"
            )
        return ScaledConnection(self, context)


class ScaledState(NamedTuple):
    """A pass up to a layer."""

    per_layer: tuple[Layer, ...]
    x: Array
    """[…, C]"""


@dataclass(frozen=True)
class ScaledConnection(Connection):
    """Formula: `Scaled` and its scale."""

    settings: Scaled
    context: ConnectionContext

    def parameters(self) -> dict[str, Parameter]:
        scale = self.settings.scale
        return {**scale.parameters(self.context), **scale.opening(self.context)}

    def open(
        self, ops: Ops, params: dict[str, Array], x: Array, noise: Array | None = None
    ) -> ScaledState:
        scale, L = self.settings.scale, self.context.layers
        names = list(scale.parameters(self.context))
        stacks = zip(*(ops.unstack(params[name]) for name in names), strict=True)
        per_layer = tuple(dict(zip(names, layer, strict=True)) for layer in stacks) or ({},) * L
        return ScaledState(per_layer, scale.opened(params, x))

    def read(self, ops: Ops, state: ScaledState, k: int) -> tuple[Array, ScaledState]:
        return state.x, state

    def write(self, ops: Ops, state: ScaledState, k: int, y: Array) -> ScaledState:
        x = self.settings.scale.sum(self.context, k, state.per_layer[k], state.x, y)
        return state._replace(x=x)

    def close(self, ops: Ops, state: ScaledState) -> Array:
        return state.x
