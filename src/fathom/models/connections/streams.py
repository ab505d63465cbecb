"""`streams`: S residual streams under one equation, composed of components."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fathom.models.connections.components import (
    AnyCoefficients,
    AnyWeights,
    Closing,
    DynamicPerStream,
    Expansion,
    Gate,
    Readout,
)
from fathom.models.connections.connection import Connection, ConnectionContext, MixingTrace
from fathom.models.connections.constraints import Constraint
from fathom.models.connections.custom_vjp import Mixing, MixingAndSum, WeightedSum
from fathom.models.init import Parameter
from fathom.settings import Positive, Settings

if TYPE_CHECKING:
    from fathom.models.ops import Array, Ops


class Streams(Settings):
    """x ← H_res x + H_postᵀ f(H_pre x)."""

    kind: Literal["streams"] = "streams"
    streams: Positive = Field(4, description="S")
    open: Expansion = "copies"
    coefficients: AnyCoefficients = "static"
    pre: AnyWeights = "softmax"
    post: AnyWeights = "softmax"
    H_res: Constraint = "exp"
    gate: Gate = "none"
    close: Closing = "mean"

    @model_validator(mode="after")
    def _starts_name_streams(self) -> Streams:
        """Raises ValueError with the key of a start on a stream that does not exist."""
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

    @model_validator(mode="after")
    def _there_are_such_matrices(self) -> Streams:
        """Raises ValueError for an H_res or a start that does not exist for S streams."""
        if refusal := self.H_res.refusal(self.streams):
            raise ValueError(f"H_res: {self.H_res.kind}: {refusal}")
        stream, shape = getattr(self.H_res.start, "stream", 0), self.H_res.shape(self.streams)
        if shape and stream != "cycle" and stream >= shape[-1]:
            raise ValueError(
                f"H_res.start.stream is {stream}, but the last of {shape[-1]} logits is "
                f"{shape[-1] - 1}"
            )
        return self

    @model_validator(mode="after")
    def _each_stream_has_a_coefficient(self) -> Streams:
        """Raises ValueError if the logits cannot be computed stream by stream."""
        if not isinstance(self.coefficients, DynamicPerStream):
            return self
        S = self.streams
        for key, shape, wanted in (
            ("pre", self.pre.shape(S), [(S,)]),
            ("post", self.post.shape(S), [(S,)]),
            ("H_res", self.H_res.shape(S), [(S, S), ()]),
        ):
            if shape not in wanted:
                raise ValueError(
                    f"{key}: {getattr(self, key).kind} has no logits of each stream, which "
                    "coefficients: dynamic_per_stream needs; take coefficients: dynamic"
                )
        return self

    def at(self, context: ConnectionContext) -> StreamConnection:
        """The connection in a network."""
        is_static = self.coefficients.kind == "static"
        return (StaticStreams if is_static else DynamicStreams)(self, context)


@dataclass(frozen=True)
class StreamConnection(Connection):
    """Common base of static and dynamic streams. Formula: `Streams`."""

    settings: Streams
    context: ConnectionContext

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one layer's logits, by part; parts without logits are left out."""
        s, S = self.settings, self.settings.streams
        found = {"pre": s.pre.shape(S), "post": s.post.shape(S), "res": s.H_res.shape(S)}
        return {part: shape for part, shape in found.items() if shape}

    def sizes(self) -> dict[str, int]:
        """Number of one layer's logits, by part."""
        return {part: math.prod(shape) for part, shape in self.shapes().items()}

    def starts(self) -> dict[str, Parameter]:
        """Initial logits of all layers [L, …], by part."""
        s, L = self.settings, self.context.layers
        found = {"pre": s.pre.start, "post": s.post.start, "res": s.H_res.start}
        return {
            part: Parameter((L, *shape), found[part].distribution(s.streams))
            for part, shape in self.shapes().items()
        }

    def shared_parameters(self) -> dict[str, Parameter]:
        """Parameters of the expansion, the gate and the closing."""
        s, S = self.settings, self.settings.streams
        expansion = s.open.parameters(S, self.context)
        return {**s.close.parameters(S), **s.gate.parameters(self.context.layers), **expansion}

    def sample_noise(self, rng: np.random.Generator, progress: float) -> np.ndarray | None:
        if not self.uses_noise:
            return None
        return self.settings.gate.sample_noise(rng, self.context.layers, progress)

    @property
    def uses_noise(self) -> bool:
        return self.settings.gate.noise

    def ungated(self, ops: Ops, logits: Array | None) -> Array:
        """Logits [N, …] → H_res [N, S, S] before the gate; [1, S, S] without logits."""
        return self.settings.H_res.matrix(ops, logits, self.settings.streams, self.context.layers)

    def select_reported(self, ops: Ops, of_layers: Array) -> Array:
        """[L, …] → [3, …]: the first, the middle and the last block."""
        return ops.stack([of_layers[k] for k in self.context.reported_layers])

    def mixed_by_parameters(self, ops: Ops, params: dict[str, Array]) -> dict[str, Array | None]:
        """Fields of `MixingTrace` that depend on the parameters alone."""
        s = self.settings
        return {
            "weights": s.close.weights(ops, params, s.streams),
            "gates": s.gate.values(ops, params, None),
            "embedding": params.get("connection.stream_embedding"),
        }


# --- static ---------------------------------------------------------------------------------------


class StaticCoefficients(NamedTuple):
    """The coefficients of static streams."""

    params: Mapping[str, Array]
    pre: Array
    """[L, S]: the weights of the streams in f's input."""
    post: Array
    """[L, S]: the weights of f's output in the streams."""
    H_res: Array
    """[L, S, S]: the mixing of the streams."""
    ungated: Array
    """[L, S, S]: H_res before the gate; [1, S, S] without logits."""
    close: Array
    """[S]: the weights of the streams in the output."""

    def per_layer(self, ops: Ops) -> Array:
        """A [L, S+1, S+1] with [x'; m'] = A [x; y]; m' is the next layer's input, or the output.

        The upper rows are [H_res, post], the last row is their product with the next weights.
        """
        L, S = self.pre.shape
        following = ops.concatenate([self.pre[1:], self.close[None]], axis=0)
        above = ops.concatenate([self.H_res, ops.reshape(self.post, (L, S, 1))], axis=2)
        below = ops.matmul(ops.reshape(following, (L, 1, S)), above)
        return ops.concatenate([above, below], axis=1)


class StaticState(NamedTuple):
    """Streams, and the next layer's input."""

    x: Array
    """[S, M]: M covers all axes of a stream."""
    m: Array
    """[M]"""
    shape: tuple[int, ...]
    """The shape of a stream."""


class StaticStreams(StreamConnection):
    """Coefficients are learned numbers, computed for all layers at once."""

    def parameters(self) -> dict[str, Parameter]:
        logits = {f"connection.H_{part}": p for part, p in self.starts().items()}
        return {**logits, **self.shared_parameters()}

    def coefficients(
        self, ops: Ops, params: dict[str, Array], noise: Array | None = None
    ) -> StaticCoefficients:
        s, L, S = self.settings, self.context.layers, self.settings.streams
        g = s.gate.values(ops, params, noise)
        ungated = self.ungated(ops, params.get("connection.H_res"))
        return StaticCoefficients(
            params=params,
            pre=s.pre.weights(ops, params["connection.H_pre"]),
            post=s.post.weights(ops, params["connection.H_post"]),
            H_res=ops.broadcast(s.gate.apply(ops, g, ungated), (L, S, S)),
            ungated=ungated,
            close=s.close.weights(ops, params, S),
        )

    def per_layer(self, ops: Ops, coefficients: StaticCoefficients) -> Sequence[Array]:
        return ops.unstack(coefficients.per_layer(ops))

    def open(self, ops: Ops, coefficients: StaticCoefficients, x: Array) -> StaticState:
        S = self.settings.streams
        streams = self.settings.open.streams(ops, coefficients.params, x, S)
        flat = ops.reshape(streams, (S, -1))
        return StaticState(flat, ops.tensordot(coefficients.pre[0], flat), x.shape)

    def read(self, ops: Ops, c: Array, streams: StaticState) -> tuple[Array, StaticState]:
        return ops.reshape(streams.m, streams.shape), streams

    def write(self, ops: Ops, c: Array, streams: StaticState, y: Array) -> StaticState:
        x, m = ops.custom_vjp(MixingAndSum(), c, streams.x, ops.reshape(y, (-1,)))
        return streams._replace(x=x, m=m)

    def close(self, ops: Ops, coefficients: StaticCoefficients, streams: StaticState) -> Array:
        return ops.reshape(streams.m, streams.shape)

    def mixed(
        self, ops: Ops, coefficients: StaticCoefficients, streams: StaticState
    ) -> MixingTrace | None:
        params, ungated = coefficients.params, coefficients.ungated
        return MixingTrace(
            H_res=coefficients.H_res,
            H_res_of_one=None,
            base=self.select_reported(ops, ungated) if "connection.H_res" in params else None,
            streams=ops.reshape(streams.x, (-1, *streams.shape)),
            **self.mixed_by_parameters(ops, params),
        )

    def matrices(self, ops: Ops, params: dict[str, Array]) -> dict[str, Array]:
        """`H_pre` [L, S], `H_post` [L, S] and `H_res` [L, S, S]."""
        found = self.coefficients(ops, params)
        return {"H_pre": found.pre, "H_post": found.post, "H_res": found.H_res}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        L, S = self.context.layers, self.settings.streams
        return {"H_pre": (L, S), "H_post": (L, S), "H_res": (L, S, S)}


# --- dynamic --------------------------------------------------------------------------------------


class Dynamics(NamedTuple):
    """The parameters of one layer of dynamic streams; None if absent."""

    phi: Array
    """[rows of all parts, inputs]"""
    alpha: Array | None
    """[logits of all parts]"""
    g: Array | None
    """Its gate, a scalar."""
    b: Array
    """[logits of all parts]"""


class DynamicState(NamedTuple):
    """Streams; between `read` and `write` also the coefficients for `write`."""

    x: Array
    """[N, S, M]: N sets of coefficients; M covers all other axes of a stream."""
    post: Array | None
    """[N, S]"""
    H_res: Array | None
    """[N, S, S]"""
    shape: tuple[int, ...]
    """The shape of a stream."""
    passed: tuple[Array, ...]
    """H_res of the layers so far."""


class DynamicStreams(StreamConnection):
    """Coefficients are computed from the streams, layer by layer."""

    def parameters(self) -> dict[str, Parameter]:
        s = self.settings
        return {
            **s.coefficients.parameters(self.shapes(), s.streams, self.context),
            **{f"connection.b_{part}": p for part, p in self.starts().items()},
            **self.shared_parameters(),
        }

    def coefficients(
        self, ops: Ops, params: dict[str, Array], noise: Array | None = None
    ) -> dict[str, Array | None]:
        return {**params, "g": self.settings.gate.values(ops, params, noise)}

    def per_layer(self, ops: Ops, coefficients: dict[str, Array]) -> Sequence[Dynamics]:
        L, sizes = self.context.layers, self.sizes()
        phi = ops.concatenate([coefficients[f"connection.phi_{part}"] for part in sizes], axis=1)
        bs = [ops.reshape(coefficients[f"connection.b_{part}"], (L, -1)) for part in sizes]
        b = ops.concatenate(bs, axis=1)
        alpha, g = (coefficients.get(name) for name in ("connection.alpha", "g"))
        if alpha is not None:
            # Repeat each part's α for each of its logits.
            belongs = np.repeat(np.eye(len(sizes)), list(sizes.values()), axis=1)
            alpha = ops.matmul(alpha, ops.constant(belongs))
        absent = [None] * L
        stacks = (absent if x is None else ops.unstack(x) for x in (phi, alpha, g, b))
        return [Dynamics(*layer) for layer in zip(*stacks, strict=True)]

    def open(self, ops: Ops, coefficients: dict[str, Array], x: Array) -> DynamicState:
        S = self.settings.streams
        streams = self.settings.open.streams(ops, coefficients, x, S)
        N = self.sets(x.shape)
        by_set = ops.transpose(ops.reshape(streams, (S, N, -1)), (1, 0, 2))
        return DynamicState(by_set, None, None, x.shape, ())

    def sets(self, shape: Sequence[int]) -> int:
        """N, the number of sets of coefficients for a stream of this shape."""
        return math.prod(shape[: len(shape) - 1 - self.context.pooled_axes])

    def read(self, ops: Ops, c: Dynamics, streams: DynamicState) -> tuple[Array, DynamicState]:
        s = self.settings
        found, x = self.logits(ops, c, streams.x)
        pre, post = s.pre.weights(ops, found["pre"]), s.post.weights(ops, found["post"])
        N, S, _ = x.shape
        H = s.gate.apply(ops, c.g, self.ungated(ops, found.get("res")))
        H = ops.broadcast(H, (N, S, S))
        m, x = ops.custom_vjp(WeightedSum(), pre, x)
        state = DynamicState(x, post, H, streams.shape, (*streams.passed, ops.stop_gradient(H)))
        return ops.reshape(m, streams.shape), state

    def logits(self, ops: Ops, c: Dynamics, x: Array) -> tuple[dict[str, Array], Array]:
        """(H̃ [N, …] by part, the streams [N, S, M])."""
        N, S, M = x.shape
        dynamic, C = self.settings.coefficients, self.context.width
        if M == C:
            found, x = dynamic.logits(ops, c.phi, c.alpha, c.b, x)
        else:
            means = ops.mean(ops.reshape(x, (N, S, -1, C)), axis=2)
            found, _ = dynamic.logits(ops, c.phi, c.alpha, c.b, means)
        parts = zip(self.shapes().items(), ops.split(found, self.sizes().values()), strict=True)
        return {part: ops.reshape(values, (N, *shape)) for (part, shape), values in parts}, x

    def write(self, ops: Ops, c: Dynamics, streams: DynamicState, y: Array) -> DynamicState:
        x = streams.x
        rows = ops.reshape(y, (x.shape[0], -1))
        (x,) = ops.custom_vjp(Mixing(), streams.H_res, streams.post, x, rows)
        return streams._replace(x=x, post=None, H_res=None)

    def close(self, ops: Ops, coefficients: dict[str, Array], streams: DynamicState) -> Array:
        N, S, _ = streams.x.shape
        weights = self.settings.close.weights(ops, coefficients, S)
        found, _ = ops.custom_vjp(WeightedSum(), ops.broadcast(weights, (N, S)), streams.x)
        return ops.reshape(found, streams.shape)

    def mixed(
        self, ops: Ops, coefficients: dict[str, Array], streams: DynamicState
    ) -> MixingTrace | None:
        S = self.settings.streams
        by_example = (streams.shape[0], -1, S, S)
        logits = coefficients.get("connection.b_res")
        return MixingTrace(
            H_res=ops.stack([ops.mean(H, axis=0) for H in streams.passed]),
            H_res_of_one=ops.stack([ops.reshape(H, by_example)[0] for H in streams.passed]),
            base=None if logits is None else self.ungated(ops, self.select_reported(ops, logits)),
            streams=ops.reshape(ops.transpose(streams.x, (1, 0, 2)), (S, *streams.shape)),
            **self.mixed_by_parameters(ops, coefficients),
        )
