"""`streams`: S residual streams under one equation, composed of components."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fathom.arithmetic.custom_vjp import Adding, Mixing, MixingAndSum, WeightedSum
from fathom.connections.components import (
    AnyCoefficients,
    AnyWeights,
    Closing,
    DynamicPerStream,
    Expansion,
    FromStreams,
    Gate,
    Readout,
)
from fathom.connections.connection import (
    Connection,
    ConnectionContext,
    MixingTrace,
    by_stream,
)
from fathom.connections.constraints import Constraint
from fathom.init import Parameter
from fathom.settings import Positive, Settings

if TYPE_CHECKING:
    from fathom.operations.ops import Array, Arrays, Ops


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
    read: Literal["direct", "late"] = Field(
        "direct",
        exclude_if=lambda value: value == "direct",
        description="late: layer l reads with the pre of layer l − 1, computed from the streams "
        "that l − 1 found; the first layer reads stream 0",
    )

    @model_validator(mode="after")
    def _starts_name_streams(self) -> Streams:
        """Raises ValueError with the key of a start on a stream that does not exist."""
        maps = {"pre": self.pre, "post": self.post}
        if isinstance(self.close, Readout):
            maps["close.map"] = self.close.map
        for key, weights in maps.items():
            stream = getattr(weights.start, "stream", 0)
            if isinstance(stream, str):
                if key == "close.map":
                    raise ValueError(
                        f"close.map.start.stream: {stream} is for layers; use a number"
                    )
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
        if shape and isinstance(stream, int) and stream >= shape[-1]:
            raise ValueError(
                f"H_res.start.stream is {stream}, but the last of {shape[-1]} logits is "
                f"{shape[-1] - 1}"
            )
        return self

    @model_validator(mode="after")
    def _each_stream_has_a_coefficient(self) -> Streams:
        """Raises ValueError if the logits cannot be computed stream by stream."""
        S, close, parts = self.streams, self.close, []
        if isinstance(self.coefficients, DynamicPerStream):
            parts += [("pre", self.pre, [(S,)]), ("post", self.post, [(S,)])]
            parts += [("H_res", self.H_res, [(S, S), ()])]
        if isinstance(close, Readout) and isinstance(close.coefficients, DynamicPerStream):
            parts += [("close.map", close.map, [(S,)])]
        for key, component, wanted in parts:
            if component.shape(S) not in wanted:
                raise ValueError(
                    f"{key}: {component.kind} has no logits per stream, which "
                    "coefficients: dynamic_per_stream needs; use coefficients: dynamic"
                )
        return self

    @model_validator(mode="after")
    def _there_are_dynamic_weights(self) -> Streams:
        """Raises ValueError for settings that need dynamic coefficients."""
        if isinstance(self.coefficients, FromStreams):
            return self
        values = {"read": self.read, "close": self.close.kind}
        if isinstance(self.close, Readout) and isinstance(self.close.coefficients, FromStreams):
            values["close.coefficients"] = self.close.coefficients.kind
        for key, value in values.items():
            if key == "close.coefficients" or value in ("late", "last_pre"):
                raise ValueError(
                    f"{key}: {value} needs weights that depend on the streams; use coefficients: "
                    "dynamic"
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
        shapes = {"pre": s.pre.shape(S), "post": s.post.shape(S), "res": s.H_res.shape(S)}
        return {part: shape for part, shape in shapes.items() if shape}

    def sizes(self) -> dict[str, int]:
        """Number of one layer's logits, by part."""
        return {part: math.prod(shape) for part, shape in self.shapes().items()}

    def starts(self) -> dict[str, Parameter]:
        """Initial logits of all layers [L, …], by part."""
        s, L = self.settings, self.context.layers
        starts = {"pre": s.pre.start, "post": s.post.start, "res": s.H_res.start}
        return {
            part: Parameter(
                (L, *shape), starts[part].distribution(s.streams, self.context.per_block)
            )
            for part, shape in self.shapes().items()
        }

    def shared_parameters(self) -> dict[str, Parameter]:
        """Parameters of the expansion, the gate and the closing."""
        s, S = self.settings, self.settings.streams
        expansion = s.open.parameters(S, self.context)
        closing = s.close.parameters(S, self.context)
        return {**closing, **s.gate.parameters(self.context.layers), **expansion}

    def sample_noise(self, rng: np.random.Generator, progress: float) -> np.ndarray | None:
        return self.settings.gate.sample_noise(rng, self.context.layers, progress)

    def ungated(self, ops: Ops, logits: Array | None) -> Array:
        """Logits [N, …] → H_res [N, S, S] before the gate; [1, S, S] without logits."""
        return self.settings.H_res.matrix(ops, logits, self.settings.streams, self.context.layers)

    def select_reported(self, ops: Ops, of_layers: Array) -> Array:
        """[L, …] → [3, …]: the first layers of the first, the middle and the last block."""
        firsts = range(0, self.context.layers, self.context.per_block)
        return ops.stack([of_layers[firsts[k]] for k in (0, len(firsts) // 2, -1)])

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
    """A pass up to a layer. M covers all axes of a stream."""

    coefficients: StaticCoefficients
    per_layer: Arrays
    """A [S+1, S+1] of each layer."""
    streams: Array
    """[S, M]"""
    m: Array
    """[M]: the layer's input, or the output."""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""


class StaticStreams(StreamConnection):
    """Coefficients do not depend on the input, and are computed for all layers at once.

    A write computes the new streams and the next layer's input in one product.
    """

    def parameters(self) -> dict[str, Parameter]:
        logits = {f"connection.H_{part}": p for part, p in self.starts().items()}
        return {**logits, **self.shared_parameters()}

    def coefficients(
        self, ops: Ops, params: dict[str, Array], noise: Array | None = None
    ) -> StaticCoefficients:
        """Coefficients of all layers, from the parameters and the gate's noise alone."""
        s, L, S = self.settings, self.context.layers, self.settings.streams
        g = s.gate.values(ops, params, noise)
        ungated = self.ungated(ops, params.get("connection.H_res"))
        return StaticCoefficients(
            pre=s.pre.weights(ops, params["connection.H_pre"]),
            post=s.post.weights(ops, params["connection.H_post"]),
            H_res=ops.broadcast(s.gate.apply(ops, g, ungated), (L, S, S)),
            ungated=ungated,
            close=s.close.weights(ops, params, S),
        )

    def open(
        self, ops: Ops, params: dict[str, Array], x: Array, noise: Array | None = None
    ) -> StaticState:
        c = self.coefficients(ops, params, noise)
        streams = self.settings.open.streams(ops, params, x, self.settings.streams)
        streams = ops.reshape(streams, (len(streams), -1))
        per_layer = tuple(ops.unstack(c.per_layer(ops)))
        return StaticState(c, per_layer, streams, ops.tensordot(c.pre[0], streams), x.shape)

    def read(self, ops: Ops, state: StaticState, k: int) -> tuple[Array, StaticState]:
        return ops.reshape(state.m, state.shape), state

    def write(self, ops: Ops, state: StaticState, k: int, y: Array) -> StaticState:
        y = ops.reshape(y, (-1,))
        streams, m = ops.custom_vjp(MixingAndSum(), state.per_layer[k], state.streams, y)
        return state._replace(streams=streams, m=m)

    def close(self, ops: Ops, state: StaticState) -> Array:
        return ops.reshape(state.m, state.shape)

    def trace(self, ops: Ops, params: dict[str, Array], state: StaticState) -> MixingTrace:
        c = state.coefficients
        return MixingTrace(
            H_res=c.H_res,
            H_res_of_one=None,
            base=self.select_reported(ops, c.ungated) if "connection.H_res" in params else None,
            streams=ops.reshape(state.streams, (-1, *state.shape)),
            **self.mixed_by_parameters(ops, params),
        )

    def matrices(self, ops: Ops, params: dict[str, Array]) -> dict[str, Array]:
        """`H_pre` [L, S], `H_post` [L, S] and `H_res` [L, S, S]."""
        c = self.coefficients(ops, params)
        return {"H_pre": c.pre, "H_post": c.post, "H_res": c.H_res}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        L, S = self.context.layers, self.settings.streams
        return {"H_pre": (L, S), "H_post": (L, S), "H_res": (L, S, S)}


# --- dynamic --------------------------------------------------------------------------------------


class Dynamics(NamedTuple):
    """The parameters of one layer of dynamic streams; None if absent."""

    phi: Array
    """[rows of all parts, inputs], times α where H̃ is linear in it."""
    alpha: Array | None
    """[logits of all parts], if φ does not include it."""
    g: Array | None
    """Gate, a scalar."""
    b: Array
    """[logits of all parts]"""

    @classmethod
    def of_closing(cls, params: dict[str, Array]) -> Dynamics:
        """Parameters of a read-out that depends on the streams."""
        phi, b = (params[f"connection.readout{part}"] for part in ("_phi", ""))
        return cls(phi, params.get("connection.readout_alpha"), None, b)


class DynamicState(NamedTuple):
    """A pass up to a layer: N sets of coefficients; M covers all other axes of a stream."""

    per_layer: tuple[Dynamics, ...]
    close: Array | Dynamics | None
    """[S]: weights of the streams in the output, or the parameters to compute them; None: the last
    `pre`."""
    streams: Array
    """[N, S, M]"""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""
    pre: Array | None
    """[N, S]: weights `pre` of the last layer that has read. Before the first layer reads: one for
    stream 0 if layers read late, else None."""
    mixing: Arrays = ()
    """H_res [N, S, S] and post [N, S] of the layer that has read and not written yet."""
    passed: Arrays = ()
    """H_res of every layer that has read, for the trace: without gradients."""


class DynamicStreams(StreamConnection):
    """Coefficients are computed from the streams, layer by layer."""

    def parameters(self) -> dict[str, Parameter]:
        s = self.settings
        return {
            **s.coefficients.parameters(self.shapes(), s.streams, self.context),
            **{f"connection.b_{part}": p for part, p in self.starts().items()},
            **self.shared_parameters(),
        }

    def per_layer(self, ops: Ops, coefficients: dict[str, Array | None]) -> tuple[Dynamics, ...]:
        """The parameters, and the gates `g`, of each layer."""
        L, sizes = self.context.layers, self.sizes()
        phi = ops.concatenate([coefficients[f"connection.phi_{part}"] for part in sizes], axis=1)
        bs = [ops.reshape(coefficients[f"connection.b_{part}"], (L, -1)) for part in sizes]
        b = ops.concatenate(bs, axis=1)
        alpha, g = (coefficients.get(name) for name in ("connection.alpha", "g"))
        if alpha is not None:
            # Repeat each α for each of its logits.
            of_logits = [part for part, size in sizes.items() for _ in range(size)]
            each = [sizes] if self.settings.coefficients.one_alpha else [[part] for part in sizes]
            belongs = [[float(part in parts) for part in of_logits] for parts in each]
            alpha = ops.matmul(alpha, ops.constant(np.array(belongs)))
            if self.settings.coefficients.is_linear:
                # α (x̄ φᵀ) is x̄ (α φ)ᵀ, which takes one product for all layers.
                phi, alpha = ops.reshape(alpha, (L, -1, 1)) * phi, None
        absent = [None] * L
        stacks = (absent if x is None else ops.unstack(x) for x in (phi, alpha, g, b))
        return tuple(Dynamics(*layer) for layer in zip(*stacks, strict=True))

    def open(
        self, ops: Ops, params: dict[str, Array], x: Array, noise: Array | None = None
    ) -> DynamicState:
        s, S, shape = self.settings, self.settings.streams, x.shape
        g = s.gate.values(ops, params, noise)
        streams = self.context.by_set(ops, s.open.streams(ops, params, x, S))
        close = s.close.weights(ops, params, S)
        if close is None and isinstance(s.close, Readout):
            close = Dynamics.of_closing(params)
        is_late = s.read == "late"
        return DynamicState(
            self.per_layer(ops, {**params, "g": g}),
            close,
            streams,
            shape,
            ops.broadcast(ops.constant(np.eye(S)[0]), (streams.shape[0], S)) if is_late else None,
        )

    def read(self, ops: Ops, state: DynamicState, k: int) -> tuple[Array, DynamicState]:
        s, c = self.settings, state.per_layer[k]
        logits, streams = self.logits(ops, c, state.streams)
        pre, post = s.pre.weights(ops, logits["pre"]), s.post.weights(ops, logits["post"])
        H = s.gate.apply(ops, c.g, self.ungated(ops, logits.get("res")))
        H = ops.broadcast(H, (streams.shape[0], s.streams, s.streams))
        m, streams = ops.custom_vjp(WeightedSum(), state.pre if s.read == "late" else pre, streams)
        passed = (*state.passed, ops.stop_gradient(H))
        state = state._replace(streams=streams, pre=pre, mixing=(H, post), passed=passed)
        return ops.reshape(m, state.shape), state

    def write(self, ops: Ops, state: DynamicState, k: int, y: Array) -> DynamicState:
        (H, post), streams = state.mixing, state.streams
        N, _, M = streams.shape
        y = ops.reshape(y, (N, M))
        if self.settings.H_res.is_identity and self.settings.gate.kind == "none":
            (streams,) = ops.custom_vjp(Adding(), post, streams, y)
        else:
            (streams,) = ops.custom_vjp(Mixing(), H, post, streams, y)
        return state._replace(streams=streams, mixing=())

    def close(self, ops: Ops, state: DynamicState) -> Array:
        output, _ = ops.custom_vjp(WeightedSum(), *self.closing(ops, state))
        return ops.reshape(output, state.shape)

    def closing(self, ops: Ops, state: DynamicState) -> Arrays:
        """(The weights [N, S] of the streams in the output, the streams [N, S, M])."""
        N, S, _ = state.streams.shape
        if state.close is None:
            return state.pre, state.streams
        if not isinstance(state.close, Dynamics):
            return ops.broadcast(state.close, (N, S)), state.streams
        readout = self.settings.close
        logits, streams = self.computed(ops, readout.coefficients, state.close, state.streams)
        logits = ops.reshape(logits, (N, *readout.map.shape(S)))
        return readout.map.weights(ops, logits), streams

    def trace(self, ops: Ops, params: dict[str, Array], state: DynamicState) -> MixingTrace:
        S, shape, logits = self.settings.streams, state.shape, params.get("connection.b_res")
        by_example = (shape[0], -1, S, S)
        of_parameters = self.mixed_by_parameters(ops, params)
        if of_parameters["weights"] is None:
            weights, _ = self.closing(ops, state)
            of_parameters["weights"] = ops.transpose(weights, (1, 0))
        return MixingTrace(
            H_res=ops.stack([ops.mean(H, axis=0) for H in state.passed]),
            H_res_of_one=ops.stack([ops.reshape(H, by_example)[0] for H in state.passed]),
            base=None if logits is None else self.ungated(ops, self.select_reported(ops, logits)),
            streams=by_stream(ops, state.streams, shape),
            **of_parameters,
        )

    def logits(self, ops: Ops, c: Dynamics, x: Array) -> tuple[dict[str, Array], Array]:
        """(H̃ [N, …] by part, the streams [N, S, M])."""
        logits, x = self.computed(ops, self.settings.coefficients, c, x)
        parts = zip(self.shapes().items(), ops.split(logits, self.sizes().values()), strict=True)
        return {
            part: ops.reshape(values, (x.shape[0], *shape)) for (part, shape), values in parts
        }, x

    def computed(self, ops: Ops, dynamic: FromStreams, c: Dynamics, x: Array) -> Arrays:
        """(H̃ [N, logits], the streams [N, S, M])."""
        (N, S, M), C = x.shape, self.context.width
        if M == C:
            return dynamic.logits(ops, c.phi, c.alpha, c.b, x)
        means = ops.mean(ops.reshape(x, (N, S, M // C, C)), axis=2)
        logits, _ = dynamic.logits(ops, c.phi, c.alpha, c.b, means)
        return logits, x
