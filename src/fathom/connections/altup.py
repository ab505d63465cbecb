"""`altup`: all streams are predicted from all, then corrected by the output of f."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fathom.arithmetic.forms import PredictionForm
from fathom.arithmetic.prediction import Prediction
from fathom.connections.component_types import SeveralStreams
from fathom.connections.connection import (
    Connection,
    ConnectionContext,
    MixingTrace,
    Scheme,
    by_example,
    by_stream,
)
from fathom.init import Constant, Normal, Parameter
from fathom.operations.ops import Array, Arrays, Ops, Params
from fathom.settings import Number


class AltUp(Scheme):
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
        return AltUpConnection(self, context)


LEAST_SQUARE = 1e-5
"""Minimum mean square of a projection when it is scaled."""

SMALLEST_SQUARE = 2.0**-126
"""Minimum mean square of a token; the smallest normal number of float32."""


class Router(NamedTuple):
    """The parameters of one layer."""

    route: Array
    """R ∘ γ/C [S, C]"""
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
    """[N, S, M]: the prediction, and at the end the streams."""
    m: Array
    """[N, M]: the layer's input."""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""
    passed: Arrays = ()
    """I + P [N, S·S] of every layer, for the trace: without gradients."""


class AltUpConnection(Connection):
    """Formula: `AltUp`."""

    settings: AltUp

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

    @cached_property
    def between(self) -> Prediction:
        """The function between two layers."""
        context = self.context
        form = PredictionForm(context.width, float(self.settings.eps), context.has_residual)
        return Prediction(form)

    @cached_property
    def opening(self) -> Prediction:
        """The function before the first layer."""
        return Prediction(self.between.form._replace(writes=False))

    @cached_property
    def closing(self) -> Prediction:
        """The function after the last layer."""
        return Prediction(self.between.form._replace(reads=False))

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> AltUpState:
        L, C = self.context.layers, self.context.width
        gain = ops.reshape(params["connection.router_gain"], (L, 1, C))
        routes = params["connection.router"] * gain / C
        stacks = (routes, params["connection.predict"], params["connection.correct"])
        routers = tuple(Router(*layer) for layer in zip(*map(ops.unstack, stacks), strict=True))
        weights = ops.unstack(params["connection.open_projections"])
        opened = ops.stack([x, *(projected(ops, x, weight, x) for weight in weights)])
        streams = self.context.by_set(ops, opened)
        state = AltUpState(routers, params["connection.close_projections"], streams, x, x.shape)
        y = ops.constant(np.zeros((0, streams.shape[2])))
        return self.passed(ops, state, self.opening, y, 0, 0)

    def passed(
        self, ops: Ops, state: AltUpState, function: Prediction, y: Array, k: int, following: int
    ) -> AltUpState:
        """The state after layer k returned y, and before the following layer reads."""
        of, ahead = state.routers[k], state.routers[following]
        streams, m, H = ops.custom_vjp(
            function, state.streams, y, of.route, of.correct, ahead.route, ahead.predict
        )
        passed = (*state.passed, ops.stop_gradient(H)) if function.form.reads else state.passed
        return state._replace(streams=streams, m=m, passed=passed)

    def read(self, ops: Ops, state: AltUpState, k: int) -> tuple[Array, AltUpState]:
        return ops.reshape(state.m, state.shape), state

    def write(self, ops: Ops, state: AltUpState, k: int, y: Array) -> AltUpState:
        N, _, M = state.streams.shape
        is_last = k + 1 == self.context.layers
        function, following = (self.closing, k) if is_last else (self.between, k + 1)
        return self.passed(ops, state, function, ops.reshape(y, (N, M)), k, following)

    def close(self, ops: Ops, state: AltUpState) -> Array:
        first, *others = by_stream(ops, state.streams, state.shape)
        weights = ops.unstack(state.projections)
        parts = [projected(ops, *pair, first) for pair in zip(others, weights, strict=True)]
        return ops.mean(ops.stack([first, *parts]), axis=0)

    def trace(self, ops: Ops, params: Params, state: AltUpState) -> MixingTrace:
        S = self.settings.streams
        by_layer = [by_example(ops, H, state.shape, S) for H in state.passed]
        return MixingTrace(
            H_res=ops.stack([ops.mean(ops.mean(H, axis=0), axis=0) for H in by_layer]),
            H_res_of_one=ops.stack([H[0] for H in by_layer]),
            streams=by_stream(ops, state.streams, state.shape),
        )


def projected(ops: Ops, x: Array, weight: Array, like: Array) -> Array:
    """x Wᵀ […, C], scaled at each position to the root mean square of `like`."""
    y = ops.linear(x, weight)
    size = ops.sqrt(ops.maximum(ops.sum(y * y, axis=-1, keepdims=True) / y.shape[-1], LEAST_SQUARE))
    squares = ops.sum(like * like, axis=-1, keepdims=True) / like.shape[-1]
    # The root has no gradient at zero, the value of padded tokens.
    return y * (ops.sqrt(ops.maximum(squares, SMALLEST_SQUARE)) / size)
