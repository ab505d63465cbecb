"""`altup`: all streams are predicted from all, then corrected by the output of f."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field

from fathom.connections.component_types import SeveralStreams
from fathom.connections.connection import (
    Connection,
    ConnectionContext,
    MixingTrace,
    by_stream,
    root_mean_square,
)
from fathom.init import Constant, Normal, Parameter
from fathom.settings import Number, Settings

if TYPE_CHECKING:
    from fathom.operations.ops import Array, Arrays, Ops


class AltUp(Settings):
    """x̄ = (I + P) x, y = x̄_0 + f(x̄_0); x_s ← x̄_s + (1 + (B r(y))_s)(y − x̄_0).

    r(z) = tanh(R (γ ∘ RMSNorm(z))/C), and P = A r(x_0) as a matrix. Streams start as x and as
    projections of x. The output is the mean of x_0 and of projections of the others. Projections
    are scaled to the root mean square of x and of x_0.
    """

    kind: Literal["altup"] = "altup"
    streams: SeveralStreams = 4
    std: Annotated[Number, Field(ge=0)] = Field(
        0.02, description="initial standard deviation of R, A, B and the projections"
    )
    eps: Annotated[Number, Field(gt=0)] = Field(1e-6, description="added to the mean square")

    def at(self, context: ConnectionContext) -> AltUpConnection:
        """The connection in a network."""
        return AltUpConnection(self, context)


LEAST_SQUARE = 1e-5
"""Minimum mean square of a projection when it is scaled."""

SMALLEST_SQUARE = 2.0**-126
"""Minimum mean square of a token; the smallest normal number of float32."""


class Router(NamedTuple):
    """The parameters of one layer."""

    gain: Array
    """γ [C]"""
    weight: Array
    """R [S, C]"""
    predict: Array
    """A [S·S, S]"""
    correct: Array
    """B [S, S]"""


class AltUpState(NamedTuple):
    """A pass up to a layer: N sets of coefficients; M covers all other axes of a stream."""

    routers: tuple[Router, ...]
    projections: Array
    """[S − 1, C, C], of the output"""
    streams: Array
    """[N, S, M]; after the layer has read, the prediction"""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""
    passed: Arrays = ()
    """I + P [N, S, S] of every layer that has read, for the trace: without gradients."""


@dataclass(frozen=True)
class AltUpConnection(Connection):
    """Formula: `AltUp`."""

    settings: AltUp
    context: ConnectionContext

    def parameters(self) -> dict[str, Parameter]:
        L, C, S = self.context.layers, self.context.width, self.settings.streams
        start = Normal(self.settings.std)
        shapes = {
            "router": (L, S, C),
            "predict": (L, S * S, S),
            "correct": (L, S, S),
            "open_projections": (S - 1, C, C),
            "close_projections": (S - 1, C, C),
        }
        return {
            "connection.router_gain": Parameter((L, C), Constant(1.0)),
            **{f"connection.{n}": Parameter(s, start, is_matrix=True) for n, s in shapes.items()},
        }

    def open(
        self, ops: Ops, params: dict[str, Array], x: Array, noise: Array | None = None
    ) -> AltUpState:
        names = ("router_gain", "router", "predict", "correct")
        stacks = (ops.unstack(params[f"connection.{name}"]) for name in names)
        weights = ops.unstack(params["connection.open_projections"])
        opened = ops.stack([x, *(projected(ops, x, weight, x) for weight in weights)])
        return AltUpState(
            tuple(Router(*layer) for layer in zip(*stacks, strict=True)),
            params["connection.close_projections"],
            self.context.by_set(ops, opened),
            x.shape,
        )

    def read(self, ops: Ops, state: AltUpState, k: int) -> tuple[Array, AltUpState]:
        N, S, _ = state.streams.shape
        router = state.routers[k]
        routed = self.routed(ops, router, state.streams[:, 0])
        P = ops.reshape(ops.linear(routed, router.predict), (N, S, S))
        H = ops.identity_like(P) + P
        predicted = ops.matmul(H, state.streams)
        passed = (*state.passed, ops.stop_gradient(H))
        m = ops.reshape(predicted[:, 0], state.shape)
        return m, state._replace(streams=predicted, passed=passed)

    def write(self, ops: Ops, state: AltUpState, k: int, y: Array) -> AltUpState:
        (N, S, M), router = state.streams.shape, state.routers[k]
        first, y = state.streams[:, 0], ops.reshape(y, (N, M))
        whole, added = (y, y - first) if self.context.has_residual else (first + y, y)
        weights = 1 + ops.linear(self.routed(ops, router, whole), router.correct)
        written = ops.reshape(weights, (N, S, 1)) * ops.reshape(added, (N, 1, M))
        return state._replace(streams=state.streams + written)

    def close(self, ops: Ops, state: AltUpState) -> Array:
        first, *others = by_stream(ops, state.streams, state.shape)
        weights = ops.unstack(state.projections)
        parts = [projected(ops, *pair, first) for pair in zip(others, weights, strict=True)]
        return ops.mean(ops.stack([first, *parts]), axis=0)

    def trace(self, ops: Ops, params: dict[str, Array], state: AltUpState) -> MixingTrace:
        S = self.settings.streams
        of_first = (state.shape[0], -1, S, S)
        return MixingTrace(
            H_res=ops.stack([ops.mean(H, axis=0) for H in state.passed]),
            H_res_of_one=ops.stack([ops.reshape(H, of_first)[0] for H in state.passed]),
            streams=by_stream(ops, state.streams, state.shape),
            weights=None,
            base=None,
            gates=None,
            embedding=None,
        )

    def routed(self, ops: Ops, router: Router, z: Array) -> Array:
        """r(z) [N, S] of z [N, M]; if positions are pooled, of the mean of z over them."""
        (N, M), C = z.shape, self.context.width
        if M > C:
            z = ops.mean(ops.reshape(z, (N, M // C, C)), axis=1)
        normed = z / root_mean_square(ops, z, self.settings.eps) * router.gain
        return ops.tanh(ops.linear(normed / C, router.weight))


def projected(ops: Ops, x: Array, weight: Array, like: Array) -> Array:
    """x Wᵀ […, C], scaled at each position to the root mean square of `like`."""
    y = ops.linear(x, weight)
    size = ops.sqrt(ops.maximum(ops.sum(y * y, axis=-1, keepdims=True) / y.shape[-1], LEAST_SQUARE))
    squares = ops.sum(like * like, axis=-1, keepdims=True) / like.shape[-1]
    # The root has no gradient at zero, the value of padded tokens.
    return y * (ops.sqrt(ops.maximum(squares, SMALLEST_SQUARE)) / size)
