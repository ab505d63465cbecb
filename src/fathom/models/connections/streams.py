"""`streams`: S residual streams under one equation, composed of ingredients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field, model_validator

from fathom.models.connections.connection import Connection, Site
from fathom.models.connections.ingredients import (
    AnyCoefficients,
    AnyWeights,
    Closing,
    Constraint,
    Gate,
    MatrixStart,
    Mean,
    Opening,
    Readout,
)
from fathom.models.init import Constant, Parameter
from fathom.settings import Positive, Section

if TYPE_CHECKING:
    from fathom.models.ops import Array, Ops


class Streams(Section):
    """x ← H_res x + H_postᵀ f(H_pre x)."""

    kind: Literal["streams"] = "streams"
    streams: Positive = Field(4, description="S")
    open: Opening = "copies"
    coefficients: AnyCoefficients = "static"
    pre: AnyWeights = "softmax"
    post: AnyWeights = "softmax"
    H_res: Constraint = "exp"
    H_res_start: MatrixStart = Field(MatrixStart(), description="initial logits of H_res")
    gate: Gate = "none"
    close: Closing = "mean"

    @model_validator(mode="after")
    def _starts_name_streams(self) -> Streams:
        """Raises ValueError that names the key of a start on a stream that there is not."""
        maps = {"pre": self.pre, "post": self.post}
        if isinstance(self.close, Readout):
            maps["close.map"] = self.close.map
        for key, weights in maps.items():
            stream = getattr(weights.start, "stream", 0)
            if stream == "cycle":
                if key == "close.map":
                    raise ValueError("close.map.start.stream: cycle is for layers; name a stream")
            elif stream >= self.streams:
                raise ValueError(
                    f"{key}.start.stream is {stream}, but the last of {self.streams} streams is "
                    f"{self.streams - 1}"
                )
        return self

    def at(self, site: Site) -> StreamConnection:
        """The scheme at its site."""
        is_dynamic = self.coefficients.kind == "dynamic"
        return (DynamicStreams if is_dynamic else StaticStreams)(self, site)


class Coefficients(NamedTuple):
    """What static streams do, for all layers [L, …] or for one […]."""

    pre: Array
    """[S]: the weights with which the streams are summed into f's input."""
    post: Array
    """[S]: the weights with which f's output is added to the streams."""
    H_res: Array
    """[S, S]: the mixing of the streams among themselves."""


@dataclass(frozen=True)
class StreamConnection(Connection):
    """What static and dynamic streams share. Formula: `Streams`."""

    settings: Streams
    site: Site

    def per_layer(self, ops: Ops, coefficients: NamedTuple) -> Sequence[NamedTuple]:
        absent = [None] * self.site.layers
        parts = (absent if part is None else ops.unstack(part) for part in coefficients)
        return [type(coefficients)(*layer) for layer in zip(*parts, strict=True)]

    def open(self, ops: Ops, x: Array) -> Array:
        return self.settings.open.streams(ops, x, self.settings.streams)

    def close(self, ops: Ops, params: dict[str, Array], streams: Array) -> Array:
        match self.settings.close:
            case Readout() as readout:
                return self.read_out(ops, params, readout, streams)
            case Mean():
                return ops.mean(streams, axis=0)
            case _:
                return ops.sum(streams, axis=0)


class StaticStreams(StreamConnection):
    """Coefficients are learned numbers: those of all layers are computed at once."""

    def parameters(self) -> dict[str, Parameter]:
        s, L, S = self.settings, self.site.layers, self.settings.streams
        found = {
            "connection.H_pre": Parameter((L, *s.pre.shape(S)), s.pre.start.distribution()),
            "connection.H_post": Parameter((L, *s.post.shape(S)), s.post.start.distribution()),
            "connection.H_res": Parameter((L, S, S), s.H_res_start.distribution()),
        }
        if isinstance(s.close, Readout):
            start = s.close.map.start.distribution()
            found["connection.readout"] = Parameter(s.close.map.shape(S), start)
        return {**found, **s.gate.parameters(L)}

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Coefficients:
        s = self.settings
        return Coefficients(
            pre=s.pre.weights(ops, params["connection.H_pre"]),
            post=s.post.weights(ops, params["connection.H_post"]),
            H_res=s.gate.gated(
                ops,
                params.get("connection.gate"),
                s.H_res.matrix(ops, params["connection.H_res"]),
            ),
        )

    def H_res(self, coefficients: Coefficients) -> Array:  # noqa: N802, the paper's name
        return coefficients.H_res

    def matrices(self, ops: Ops, params: dict[str, Array]) -> dict[str, Array]:
        """`H_pre` [L, S], `H_post` [L, S] and `H_res` [L, S, S]."""
        found = self.coefficients(ops, params)
        return {"H_pre": found.pre, "H_post": found.post, "H_res": found.H_res}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        L, S = self.site.layers, self.settings.streams
        return {"H_pre": (L, S), "H_post": (L, S), "H_res": (L, S, S)}

    def pre(self, ops: Ops, c: Coefficients, streams: Array) -> Array:
        return ops.tensordot(c.pre, streams)

    def update(self, ops: Ops, c: Coefficients, streams: Array, y: Array) -> Array:
        return ops.tensordot(c.H_res, streams) + ops.outer(c.post, y)

    def read_out(
        self, ops: Ops, params: dict[str, Array], readout: Readout, streams: Array
    ) -> Array:
        """The streams weighted by learned numbers, […, C]."""
        return ops.tensordot(readout.map.weights(ops, params["connection.readout"]), streams)


class Dynamics(NamedTuple):
    """The learned numbers of a dynamic connection, for all layers [L, …] or for one […]."""

    phi_pre: Array
    phi_post: Array
    phi_res: Array
    b_pre: Array
    b_post: Array
    b_res: Array
    alpha: Array
    gate: Array | None
    """Absent where there is none."""


class DynamicStreams(StreamConnection):
    """Coefficients are computed from the streams, layer by layer: `Dynamic`."""

    def parameters(self) -> dict[str, Parameter]:
        s, L, S = self.settings, self.site.layers, self.settings.streams
        phi, n = s.coefficients.phi(S, self.site), S * self.site.width
        pre, post = s.pre.shape(S), s.post.shape(S)
        found = {
            "connection.phi_pre": Parameter((L, math.prod(pre), n), phi),
            "connection.phi_post": Parameter((L, math.prod(post), n), phi),
            "connection.phi_res": Parameter((L, S * S, n), phi),
            "connection.b_pre": Parameter((L, *pre), s.pre.start.distribution()),
            "connection.b_post": Parameter((L, *post), s.post.start.distribution()),
            "connection.b_res": Parameter((L, S, S), s.H_res_start.distribution()),
            "connection.alpha": Parameter((L, 3), Constant(s.coefficients.alpha)),
        }
        if isinstance(s.close, Readout):
            start, shape = s.close.map.start.distribution(), s.close.map.shape(S)
            found["connection.phi_readout"] = Parameter((math.prod(shape), n), phi)
            found["connection.b_readout"] = Parameter(shape, start)
            found["connection.alpha_readout"] = Parameter((1,), Constant(s.coefficients.alpha))
        return {**found, **s.gate.parameters(L)}

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Dynamics:
        return Dynamics(*(params.get(f"connection.{name}") for name in Dynamics._fields))

    def summary(self, ops: Ops, streams: Array) -> Array:
        """x̄ […, S·C] of the streams, without the pooled axes."""
        return self.settings.coefficients.summary(ops, streams, self.site.pooled_axes)

    def logits(self, ops: Ops, x: Array, phi: Array, alpha: Array, b: Array) -> Array:
        """H̃ = α·(x̄ φ) + b of the shape of b, for every x̄ […, S·C]."""
        shape = (*x.shape[:-1], *b.shape)
        return ops.reshape(ops.linear(x, phi), shape) * alpha + b

    def axes(self, streams: Array) -> tuple[str, str]:
        """Letters for the axes between stream and channel: (those kept, those pooled)."""
        middle = ascii_lowercase[: len(streams.shape) - 2]
        kept = len(middle) - self.site.pooled_axes
        return middle[:kept], middle[kept:]

    def weighted(self, ops: Ops, weights: Array, streams: Array) -> Array:
        """Sum of the streams with weights […, S]: [S, …, C] → […, C]."""
        kept, pooled = self.axes(streams)
        return ops.einsum(f"{kept}s,s{kept}{pooled}z->{kept}{pooled}z", weights, streams)

    def pre(self, ops: Ops, c: Dynamics, streams: Array) -> Array:
        logits = self.logits(ops, self.summary(ops, streams), c.phi_pre, c.alpha[0], c.b_pre)
        return self.weighted(ops, self.settings.pre.weights(ops, logits), streams)

    def update(self, ops: Ops, c: Dynamics, streams: Array, y: Array) -> Array:
        s = self.settings
        x = self.summary(ops, streams)
        kept, pooled = self.axes(streams)
        post = s.post.weights(ops, self.logits(ops, x, c.phi_post, c.alpha[1], c.b_post))
        H = s.H_res.matrix(ops, self.logits(ops, x, c.phi_res, c.alpha[2], c.b_res))
        H = s.gate.gated(ops, c.gate, H)
        mixed = ops.einsum(f"{kept}rs,s{kept}{pooled}z->r{kept}{pooled}z", H, streams)
        return mixed + ops.einsum(f"{kept}s,{kept}{pooled}z->s{kept}{pooled}z", post, y)

    def read_out(
        self, ops: Ops, params: dict[str, Array], readout: Readout, streams: Array
    ) -> Array:
        """The streams weighted by numbers computed from them, […, C]."""
        phi, b, alpha = (params[f"connection.{n}_readout"] for n in ("phi", "b", "alpha"))
        logits = self.logits(ops, self.summary(ops, streams), phi, alpha, b)
        return self.weighted(ops, readout.map.weights(ops, logits), streams)
