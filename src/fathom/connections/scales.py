"""Components of `scaled`: how a single stream is updated."""

from __future__ import annotations

import math
from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from fathom.arithmetic.gated_vjp import NormedStreams
from fathom.connections.component_types import one_of_registry
from fathom.connections.connection import ConnectionContext, rms_norm
from fathom.init import Constant, CyclicRows, Normal, OneStream, Parameter
from fathom.operations.ops import Array, Ops, Params
from fathom.settings import Flag, Number, Registry, Settings

Layer = dict[str, Array]
"""Arrays or numbers with which one layer computes its sum, by name."""

Eps = Annotated[Number, Field(gt=0)]


def unstacked(ops: Ops, params: Params, names: list[str], layers: int) -> list[Layer]:
    """The stacked parameters of these names, layer by layer."""
    if not names:
        return [{} for _ in range(layers)]
    stacks = zip(*(ops.unstack(params[name]) for name in names), strict=True)
    return [dict(zip(names, layer, strict=True)) for layer in stacks]


# --- scale: the sum of the stream and what a function returns ------------------------------------


class Scale(Settings):
    """How a layer's output is added to the stream."""

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        """Its parameters `connection.*` of the layers, [L, …] each; none by default."""
        return {}

    def opening(self, context: ConnectionContext) -> dict[str, Parameter]:
        """Its parameters `connection.*` of the first stream, [C] each; none by default."""
        return {}

    def per_layer(self, ops: Ops, params: Params, context: ConnectionContext) -> list[Layer]:
        """Arrays of each layer for `sum`; its parameters by default."""
        return unstacked(ops, params, list(self.parameters(context)), context.layers)

    def opened(self, params: Layer, x: Array) -> Array:
        """The first stream […, C], from the embedded input."""
        return x

    def sum(self, ops: Ops, layer: Layer, x: Array, y: Array) -> Array:
        """The stream […, C] after a layer, from the stream x before it and its output y."""
        raise NotImplementedError


class ConstantScale(Scale):
    """a x + c y."""

    kind: Literal["constant"] = "constant"
    c: Number = 1.0
    over_depth: Flag = Field(False, description="whether c is divided by √(number of blocks)")
    a: Number = Field(1.0, exclude_if=lambda value: value == 1)

    def per_layer(self, ops: Ops, params: Params, context: ConnectionContext) -> list[Layer]:
        c = self.c / math.sqrt(context.blocks) if self.over_depth else self.c
        return [{"added": c}] * context.layers

    def sum(self, ops: Ops, layer: Layer, x: Array, y: Array) -> Array:
        kept = x if self.a == 1 else x * self.a
        return kept + y * layer["added"]


class DepthScale(Scale):
    """√((n − 1)/n) x + y/√n, where n counts the embedded input and all outputs up to y.

    So the variance stays one, if these are independent and have variance one.
    """

    kind: Literal["depth"] = "depth"

    def per_layer(self, ops: Ops, params: Params, context: ConnectionContext) -> list[Layer]:
        counts = range(2, context.layers + 2)
        return [{"kept": math.sqrt((n - 1) / n), "added": 1 / math.sqrt(n)} for n in counts]

    def sum(self, ops: Ops, layer: Layer, x: Array, y: Array) -> Array:
        return y * layer["added"] + x * layer["kept"]


class LearnedScale(Scale):
    """γ ∘ (x + β) + η ∘ (y + δ), each learned per channel; the embedded input has a γ and a β."""

    kind: Literal["learned"] = "learned"
    only: Literal["stream_scale"] | None = Field(
        None,
        exclude_if=not_,
        description="stream_scale: γ alone is learned, and the embedded input has none",
    )

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        shape = (context.layers, context.width)
        if self.only:
            return {"connection.stream_scale": Parameter(shape, Constant(1.0))}
        return {
            f"connection.{side}_{part}": Parameter(shape, start)
            for side in ("stream", "output")
            for part, start in (("scale", Constant(1.0)), ("bias", Constant(0.0)))
        }

    def opening(self, context: ConnectionContext) -> dict[str, Parameter]:
        if self.only:
            return {}
        return {
            "connection.input_scale": Parameter((context.width,), Constant(1.0)),
            "connection.input_bias": Parameter((context.width,), Constant(0.0)),
        }

    def opened(self, params: Layer, x: Array) -> Array:
        if self.only:
            return x
        return (x + params["connection.input_bias"]) * params["connection.input_scale"]

    def sum(self, ops: Ops, layer: Layer, x: Array, y: Array) -> Array:
        if self.only:
            return ops.add_product(y, layer["connection.stream_scale"], x)
        kept, added = (
            (value + layer[f"connection.{side}_bias"]) * layer[f"connection.{side}_scale"]
            for side, value in (("stream", x), ("output", y))
        )
        return added + kept


class LayerScale(Scale):
    """x + a y, with one learned scalar a per layer, initially 1."""

    kind: Literal["layer"] = "layer"

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        return {"connection.output_scale": Parameter((context.layers, 1), Constant(1.0))}

    def sum(self, ops: Ops, layer: Layer, x: Array, y: Array) -> Array:
        return x + y * layer["connection.output_scale"]


class GainScale(Scale):
    """x + g y, with one learned scalar g per layer, initially 1/√L."""

    kind: Literal["gain"] = "gain"

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        L = context.layers
        return {"connection.output_gain": Parameter((L,), Constant(1 / math.sqrt(L)))}

    def sum(self, ops: Ops, layer: Layer, x: Array, y: Array) -> Array:
        return x + layer["connection.output_gain"] * y


class LaurelScale(Scale):
    """a y + b (x + U D x), (a, b) = 2 softmax(w); D is [r, C], U [C, r]."""

    kind: Literal["laurel"] = "laurel"
    weights: Flag = Field(True, description="whether a and b are learned; otherwise they are 1")
    rank: Annotated[Number, Field(ge=0, le=1)] = Field(
        0.0625, description="r over C, and r is at least 1; 0: without U and D"
    )

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        L, C = context.layers, context.width
        parameters = {}
        if self.weights:
            parameters["connection.weights"] = Parameter((L, 2), Constant(0.0))
        if self.rank:
            r = max(1, round(self.rank * C))
            down = CyclicRows(1 / math.sqrt(r * C))
            parameters["connection.down"] = Parameter((L, r, C), down, is_matrix=True)
            parameters["connection.up"] = Parameter((L, C, r), Constant(0.0), is_matrix=True)
        return parameters

    def per_layer(self, ops: Ops, params: Params, context: ConnectionContext) -> list[Layer]:
        if self.weights:
            both = 2 * ops.softmax(params["connection.weights"])
            params = {**params, "connection.weights": both}
        return super().per_layer(ops, params, context)

    def sum(self, ops: Ops, layer: Layer, x: Array, y: Array) -> Array:
        if self.rank:
            low = ops.linear(x, layer["connection.down"])
            x = x + ops.linear(low, layer["connection.up"])
        if not self.weights:
            return x + y
        a, b = (layer["connection.weights"][i] for i in range(2))
        return a * y + b * x


class GatedScale(Scale):
    """√max(1 − β², floor) ∘ x + β ∘ ŷ, β = σ(w/T) per channel.

    ŷ is the RMS norm of y, or of (1 + g) ∘ y for the last function of a block.
    """

    kind: Literal["gated"] = "gated"
    temperature: Annotated[Number, Field(gt=0)] = Field(0.3, description="T")
    floor: Annotated[Number, Field(ge=0)] = 1e-3
    std: Annotated[Number, Field(ge=0)] = Field(0.02, description="initial standard deviation of w")
    eps: Eps = Field(1e-8, description="added to the mean square of y")

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        L, C = context.layers, context.width
        return {
            "connection.gate": Parameter((L, C), Normal(self.std)),
            "connection.output_gain": Parameter((context.blocks, C), Constant(0.0)),
        }

    def per_layer(self, ops: Ops, params: Params, context: ConnectionContext) -> list[Layer]:
        w = params["connection.gate"] / self.temperature
        beta = ops.sigmoid(w)
        # 1 − β² as (1 − β)(1 + β), where 1 − β keeps its precision.
        kept = ops.sqrt(ops.maximum(ops.sigmoid(-w) * (1 + beta), self.floor))
        layers = unstacked(ops, {"kept": kept, "added": beta}, ["kept", "added"], context.layers)
        gains = ops.unstack(1 + params["connection.output_gain"])
        for block, gain in enumerate(gains):
            layers[(block + 1) * context.per_block - 1]["gain"] = gain
        return layers

    def sum(self, ops: Ops, layer: Layer, x: Array, y: Array) -> Array:
        y = y * layer["gain"] if "gain" in layer else y
        normed = rms_norm(ops, y, self.eps)
        return layer["kept"] * x + layer["added"] * normed


class InterpolatedScale(Scale):
    """x + |λ| ∘ (ŷ − x) per channel, ŷ = y/√(Σ y² + eps)."""

    kind: Literal["interpolated"] = "interpolated"
    start: Annotated[Number, Field(gt=0)] = Field(0.05, description="|λ| at first")
    stored: Annotated[Number, Field(gt=0)] = Field(
        0.0177, description="of the learned numbers at first: λ is each times start/stored"
    )
    eps: Eps = 1e-6

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        shape = (context.layers, context.width)
        return {"connection.rate": Parameter(shape, Constant(self.stored))}

    def per_layer(self, ops: Ops, params: Params, context: ConnectionContext) -> list[Layer]:
        rates = ops.abs(params["connection.rate"] * (self.start / self.stored))
        return super().per_layer(ops, {"connection.rate": rates}, context)

    def sum(self, ops: Ops, layer: Layer, x: Array, y: Array) -> Array:
        return ops.add_product(x, layer["connection.rate"], on_sphere(ops, y, self.eps) - x)


SCALES = Registry(
    {
        "constant": ConstantScale,
        "depth": DepthScale,
        "layer": LayerScale,
        "learned": LearnedScale,
        "gain": GainScale,
        "laurel": LaurelScale,
        "gated": GatedScale,
        "interpolated": InterpolatedScale,
    }
)
AnyScale = one_of_registry("scale", SCALES)


# --- norm: of the stream itself, before each function reads it -----------------------------------


class NoNorm(Settings):
    """The stream unchanged; functions have their own norms."""

    kind: Literal["none"] = "none"

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        """None. Other kinds: [L + 1, …], one for each function and one for the output."""
        return {}

    def normed(self, ops: Ops, gain: Array | None, x: Array) -> Array:
        """The stream […, C] after the norm."""
        return x

    def shown(self, x: Array) -> Array:
        """The normed stream […, C] as functions read it, and as the output."""
        return x


class GainNorm(NoNorm):
    """g ∘ x/√(mean x² + eps), with one gain per function and one for the output."""

    kind: Literal["gain"] = "gain"
    eps: Eps = 1e-5

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        shape = (context.layers + 1, context.width)
        return {"connection.norm_gain": Parameter(shape, Constant(1.0))}

    def normed(self, ops: Ops, gain: Array, x: Array) -> Array:
        one = ops.reshape(x, (math.prod(x.shape[:-1]), 1, x.shape[-1]))
        normed, _ = ops.custom_vjp(NormedStreams(self.eps), one, gain[None])
        return ops.reshape(normed, x.shape)


class SphereNorm(NoNorm):
    """x/√(Σ x² + eps); functions read it times √C, the scale of an RMS norm."""

    kind: Literal["sphere"] = "sphere"
    eps: Eps = 1e-6

    def normed(self, ops: Ops, gain: None, x: Array) -> Array:
        return on_sphere(ops, x, self.eps)

    def shown(self, x: Array) -> Array:
        return x * math.sqrt(x.shape[-1])


def on_sphere(ops: Ops, x: Array, eps: float) -> Array:
    """x/√(Σ x² + eps), a vector of length 1."""
    return x / ops.sqrt(ops.sum(x * x, axis=-1, keepdims=True) + eps)


NORMS = Registry({"none": NoNorm, "gain": GainNorm, "sphere": SphereNorm})
AnyNorm = one_of_registry("norm", NORMS)


# --- initial: the embedded input, used again in blocks -------------------------------------------


class NoInitial(Settings):
    """The embedded input is only the start of the stream."""

    kind: Literal["none"] = "none"

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        """None. Other kinds: [blocks, …]."""
        return {}

    def opened(self, ops: Ops, x: Array) -> Array:
        """The first stream x_0 […, C], from the embedded input."""
        return x

    def read(self, weights: Array | None, x: Array, first: Array) -> Array:
        """The input […, C] of the first function of a block, from the stream and x_0."""
        return x

    def written(self, weights: Array | None, x: Array, first: Array) -> Array:
        """The stream […, C] after the last function of a block."""
        return x


class InitialNormed(NoInitial):
    """Base class: the stream starts as the RMS norm of the embedded input."""

    eps: Eps = Field(1e-6, description="added to its mean square")

    def opened(self, ops: Ops, x: Array) -> Array:
        return rms_norm(ops, x, self.eps)


class InitialRead(InitialNormed):
    """The first function of a block reads λ_0 x + λ_1 x_0; λ is learned, initially (1, 0)."""

    kind: Literal["read"] = "read"

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        return {"connection.initial": Parameter((context.blocks, 2), OneStream(1.0, 0.0))}

    def read(self, weights: Array, x: Array, first: Array) -> Array:
        return weights[0] * x + weights[1] * first


class InitialWritten(InitialNormed):
    """After each block, s x_0 is added to the stream; s is learned, initially 0."""

    kind: Literal["write"] = "write"

    def parameters(self, context: ConnectionContext) -> dict[str, Parameter]:
        return {"connection.initial": Parameter((context.blocks,), Constant(0.0))}

    def written(self, weights: Array, x: Array, first: Array) -> Array:
        return x + weights * first


INITIALS = Registry({"none": NoInitial, "read": InitialRead, "write": InitialWritten})
AnyInitial = one_of_registry("use of the embedded input", INITIALS)
