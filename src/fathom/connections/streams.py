"""`streams`: S residual streams under one equation, composed of components."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fathom.arithmetic.boundary import Boundary
from fathom.arithmetic.custom_vjp import MixingAndSum
from fathom.connections.components import (
    AnyCoefficients,
    AnyWeights,
    Closing,
    DynamicPerStream,
    Expansion,
    FromStreams,
    Gate,
    LastPre,
    RawWeights,
    Readout,
)
from fathom.connections.connection import (
    Connection,
    ConnectionContext,
    MixingTrace,
    Scheme,
    batch_of,
    by_example,
    by_stream,
)
from fathom.connections.constraints import Constraint
from fathom.init import Parameter
from fathom.operations.ops import Array, Arrays, Ops, Params
from fathom.settings import Positive


class Streams(Scheme):
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
            if isinstance(stream, str) and key == "close.map":
                raise ValueError(f"close.map.start.stream: {stream} is for layers; use a number")
            if isinstance(stream, int) and stream >= self.streams:
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
        is_static = self.coefficients.kind == "static"
        return (StaticStreams if is_static else DynamicStreams)(self, context)


class StreamConnection(Connection):
    """Common base of static and dynamic streams. Formula: `Streams`."""

    settings: Streams

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one layer's logits, by part; parts without logits are left out."""
        s, S = self.settings, self.settings.streams
        shapes = {"pre": s.pre.shape(S), "post": s.post.shape(S), "res": s.H_res.shape(S)}
        return {part: shape for part, shape in shapes.items() if shape}

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

    def close(self, ops: Ops, state: StaticState | DynamicState) -> Array:
        return ops.reshape(state.m, state.shape)

    def ungated(self, ops: Ops, logits: Array | None) -> Array:
        """Logits [N, …] → H_res [N, S, S] before the gate; [1, S, S] without logits."""
        return self.settings.H_res.matrix(ops, logits, self.settings.streams, self.context.layers)

    def select_reported(self, ops: Ops, of_layers: Array) -> Array:
        """[L, …] → [3, …]: the first layers of the first, the middle and the last block."""
        firsts = range(0, self.context.layers, self.context.per_block)
        return ops.stack([of_layers[firsts[k]] for k in (0, len(firsts) // 2, -1)])

    def mixed_by_parameters(self, ops: Ops, params: Params) -> dict[str, Array | None]:
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
        self, ops: Ops, params: Params, noise: Array | None = None
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

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> StaticState:
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

    def trace(self, ops: Ops, params: Params, state: StaticState) -> MixingTrace:
        c = state.coefficients
        return MixingTrace(
            H_res=c.H_res,
            base=self.select_reported(ops, c.ungated) if "connection.H_res" in params else None,
            streams=ops.reshape(state.streams, (-1, *state.shape)),
            **self.mixed_by_parameters(ops, params),
        )

    def matrices(self, ops: Ops, params: Params) -> dict[str, Array]:
        """`H_pre` [L, S], `H_post` [L, S] and `H_res` [L, S, S]."""
        c = self.coefficients(ops, params)
        return {"H_pre": c.pre, "H_post": c.post, "H_res": c.H_res}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        L, S = self.context.layers, self.settings.streams
        return {"H_pre": (L, S), "H_post": (L, S), "H_res": (L, S, S)}


# --- dynamic --------------------------------------------------------------------------------------


class Dynamics(NamedTuple):
    """The parameters of one layer of dynamic streams, or of a read-out."""

    phi: Array
    """[rows of all parts, inputs]"""
    b: Array
    """[logits of all parts]"""
    alpha: Array
    """[logits of all parts]"""
    g: Array | None = None
    """Gate, a scalar; None without one."""


class DynamicState(NamedTuple):
    """A pass up to a layer: N sets of coefficients; M covers all other axes of a stream."""

    per_layer: tuple[Dynamics, ...]
    """The parameters of each layer, and of the output's weights."""
    streams: Array
    """[N, S, M]"""
    m: Array | None
    """[N, M]: the layer's input, or the output; None after the layer has read."""
    coefficients: Array
    """[N, ·]: pre, post and H_res, unless it is the identity, of the layer that has read."""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""
    passed: Arrays = ()
    """H_res [N, S·S] of every layer, for the trace: without gradients."""


class DynamicStreams(StreamConnection):
    """Coefficients are computed from the streams, layer by layer.

    A write computes the new streams, the next layer's coefficients and its input as one function.
    """

    def parameters(self) -> dict[str, Parameter]:
        s = self.settings
        return {
            **s.coefficients.parameters(self.shapes(), s.streams, self.context),
            **{f"connection.b_{part}": p for part, p in self.starts().items()},
            **self.shared_parameters(),
        }

    @cached_property
    def between(self) -> Boundary:
        """The function between two layers."""
        s = self.settings
        has_gate = s.gate.kind != "none"
        # With one stream, x/x is exactly one, and u x v only up to rounding.
        is_computed = s.H_res.form is not None and not has_gate and s.streams > 1
        return Boundary(
            s.streams, self.context.width, s.coefficients, s.pre, s.post,
            s.H_res if is_computed else None,
            mixes=has_gate or not s.H_res.is_identity, late=s.read == "late",
        )  # fmt: skip

    @cached_property
    def opening(self) -> Boundary:
        """The function before the first layer."""
        return replace(self.between, writes=False)

    @cached_property
    def closing(self) -> Boundary:
        """The function after the last layer."""
        close, computed, pre = self.settings.close, None, RawWeights()
        if isinstance(close, Readout) and isinstance(close.coefficients, FromStreams):
            computed, pre = close.coefficients, close.map
        is_last_pre = isinstance(close, LastPre)
        return replace(
            self.between, computed=computed, pre=pre, post=None, H=None, late=is_last_pre
        )

    def per_layer(self, ops: Ops, params: Params, g: Array | None) -> tuple[Dynamics, ...]:
        """The parameters, and the gate of `g` [L], of each layer."""
        L = self.context.layers
        sizes = {part: math.prod(shape) for part, shape in self.shapes().items()}
        phi = ops.concatenate([params[f"connection.phi_{part}"] for part in sizes], axis=1)
        bs = [ops.reshape(params[f"connection.b_{part}"], (L, -1)) for part in sizes]
        b = ops.concatenate(bs, axis=1)
        coefficients, alpha = self.settings.coefficients, params.get("connection.alpha")
        if alpha is None:
            alpha = ops.constant(np.ones((L, 1 if coefficients.one_alpha else len(sizes))))
        alpha = coefficients.repeated(ops, alpha, list(sizes.values()))
        stacks = ([None] * L if x is None else ops.unstack(x) for x in (phi, b, alpha, g))
        return tuple(Dynamics(*layer) for layer in zip(*stacks, strict=True))

    def of_closing(self, ops: Ops, params: Params) -> Dynamics:
        """The parameters of the output's weights."""
        s, S = self.settings, self.settings.streams
        if self.closing.computed:
            b = ops.reshape(params["connection.readout"], (-1,))
            alpha = params.get("connection.readout_alpha")
            alpha = ops.constant(np.ones(1)) if alpha is None else alpha
            return Dynamics(params["connection.readout_phi"], b, ops.broadcast(alpha, b.shape))
        weights = s.close.weights(ops, params, S)
        absent = ops.constant(np.zeros((0, S * self.context.width)))
        weights = absent[:, 0] if weights is None else weights
        return Dynamics(absent, weights, weights)

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> DynamicState:
        s, S = self.settings, self.settings.streams
        layers = self.per_layer(ops, params, s.gate.values(ops, params, noise))
        streams = self.context.by_set(ops, s.open.streams(ops, params, x, S))
        N, _, M = streams.shape
        # A late first layer reads stream 0.
        weights = ops.broadcast(ops.constant(np.eye(S)[0]), (N, S))
        state = DynamicState((*layers, self.of_closing(ops, params)), streams, x, weights, x.shape)
        return self.passed(ops, state, self.opening, ops.constant(np.zeros((0, M))), 0)

    def passed(
        self, ops: Ops, state: DynamicState, boundary: Boundary, y: Array, k: int
    ) -> DynamicState:
        """The state with the streams, the coefficients and the input of function k."""
        c, before = state.per_layer[k], state.coefficients
        streams, m, after = ops.custom_vjp(boundary, state.streams, y, before, c.phi, c.b, c.alpha)
        state = state._replace(streams=streams, m=m)
        if boundary.post is None:
            return state if boundary.late else state._replace(coefficients=after)
        S, N = self.settings.streams, after.shape[0]
        if boundary.mixes and boundary.H is None:
            pre, post, logits = ops.split(after, (S, S, after.shape[1] - 2 * S))
            shape = self.settings.H_res.shape(S)
            logits = ops.reshape(logits, (N, *shape)) if shape else None
            H = self.settings.gate.apply(ops, c.g, self.ungated(ops, logits))
            H = ops.reshape(ops.broadcast(H, (N, S, S)), (N, S * S))
            after = ops.concatenate([pre, post, H], axis=1)
        H = (ops.stop_gradient(after[:, 2 * S :]),) if boundary.mixes else ()
        return state._replace(coefficients=after, passed=(*state.passed, *H))

    def read(self, ops: Ops, state: DynamicState, k: int) -> tuple[Array, DynamicState]:
        return ops.reshape(state.m, state.shape), state._replace(m=None)

    def write(self, ops: Ops, state: DynamicState, k: int, y: Array) -> DynamicState:
        N, _, M = state.streams.shape
        boundary = self.closing if k + 1 == self.context.layers else self.between
        return self.passed(ops, state, boundary, ops.reshape(y, (N, M)), k + 1)

    def trace(self, ops: Ops, params: Params, state: DynamicState) -> MixingTrace:
        L, S, shape = self.context.layers, self.settings.streams, state.shape
        logits = params.get("connection.b_res")
        of_parameters = self.mixed_by_parameters(ops, params)
        if of_parameters["weights"] is None:
            of_parameters["weights"] = ops.transpose(state.coefficients[:, :S], (1, 0))
        by_layer = [by_example(ops, H, shape, S) for H in state.passed]
        if by_layer:
            mean = ops.stack([ops.mean(ops.mean(H, axis=0), axis=0) for H in by_layer])
            of_one = ops.stack([H[0] for H in by_layer])
        else:  # the identity
            identity = ops.constant(np.eye(S))
            mean = ops.broadcast(identity, (L, S, S))
            of_one = ops.broadcast(identity, (L, len(state.streams) // batch_of(shape), S, S))
        return MixingTrace(
            H_res=mean,
            H_res_of_one=of_one,
            base=None if logits is None else self.ungated(ops, self.select_reported(ops, logits)),
            streams=by_stream(ops, state.streams, shape),
            **of_parameters,
        )
