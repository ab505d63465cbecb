"""`state_attention`: functions read a softmax over earlier streams; the last is the query."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fathom.connections.connection import Connection, ConnectionContext, Scheme, rms_norm
from fathom.connections.scales import unstacked
from fathom.init import Constant, Parameter, Uniform
from fathom.operations.ops import Array, Arrays, Ops, Params
from fathom.settings import Number, Positive


class StateAttention(Scheme):
    """X_{k+1} = X_k + f(Σ_i p_i X_i), p = softmax_{i ≤ k}(q·(g ∘ r(X_i))/√C), for each token.

    q = a ∘ r(X_k + U D (b ∘ r(X_k))), r(x) = RMSNorm(x); X_0 is the embedded input.
    """

    kind: Literal["state_attention"] = "state_attention"
    rank: Positive = Field(64, description="rank of U D, at most half the width")
    eps: Annotated[Number, Field(gt=0)] = Field(1e-6, description="added to the mean square")

    def at(self, context: ConnectionContext) -> StateAttentionConnection:
        return StateAttentionConnection(self, context)


class StateAttentionState(NamedTuple):
    """A pass up to a function, with N tokens."""

    per_layer: tuple[dict[str, Array], ...]
    """Parameters of the reads; the first function has none."""
    sources: Arrays
    """X_i [N, C]"""
    keys: Arrays
    """r(X_i) [N, C]"""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""
    read: Array | None = None
    """Input of the function, if the function has its own residual."""


class StateAttentionConnection(Connection):
    """Formula: `StateAttention`."""

    settings: StateAttention

    def parameters(self) -> dict[str, Parameter]:
        """Parameters of the reads of all functions but the first, which reads X_0."""
        reads, C = self.context.layers - 1, self.context.width
        if not reads:
            return {}
        rank = min(self.settings.rank, max(1, C // 2))
        gain, down = Parameter((reads, C), Constant(1.0)), Uniform(1 / math.sqrt(C))
        return {
            "connection.key_gain": gain,
            "connection.query_gain": gain,
            "connection.input_gain": gain,
            "connection.down": Parameter((reads, rank, C), down, is_matrix=True),
            "connection.up": Parameter((reads, C, rank), Constant(0.0), is_matrix=True),
        }

    def open(
        self, ops: Ops, params: Params, x: Array, noise: Array | None = None
    ) -> StateAttentionState:
        layers = unstacked(ops, params, list(self.parameters()), self.context.layers - 1)
        state = StateAttentionState(tuple(layers), (), (), x.shape)
        return self.with_stream(ops, state, ops.reshape(x, (-1, self.context.width)))

    def read(
        self, ops: Ops, state: StateAttentionState, k: int
    ) -> tuple[Array, StateAttentionState]:
        read = state.sources[0] if k == 0 else self.attended(ops, state, k)
        read = ops.reshape(read, state.shape)
        return read, state._replace(read=read if self.context.has_residual else None)

    def write(self, ops: Ops, state: StateAttentionState, k: int, y: Array) -> StateAttentionState:
        if state.read is not None:
            y = y - state.read
        last = state.sources[-1]
        return self.with_stream(ops, state, last + ops.reshape(y, last.shape))

    def close(self, ops: Ops, state: StateAttentionState) -> Array:
        return ops.reshape(state.sources[-1], state.shape)

    def with_stream(self, ops: Ops, state: StateAttentionState, x: Array) -> StateAttentionState:
        """The state with a further stream [N, C]."""
        keys = ()
        if len(state.keys) < self.context.layers:
            keys = (*state.keys, rms_norm(ops, x, self.settings.eps))
        return state._replace(sources=(*state.sources, x), keys=keys, read=None)

    def attended(self, ops: Ops, state: StateAttentionState, k: int) -> Array:
        """Σ_i p_i X_i [N, C] for function k > 0."""
        p = state.per_layer[k - 1]
        low = ops.linear(state.keys[-1] * p["connection.input_gain"], p["connection.down"])
        stream = state.sources[-1] + ops.linear(low, p["connection.up"])
        query = rms_norm(ops, stream, self.settings.eps)
        query = query * p["connection.query_gain"] * p["connection.key_gain"]
        products = ops.sum(ops.stack(state.keys) * query, axis=-1)
        shares = ops.softmax(ops.transpose(products, (1, 0)) / math.sqrt(query.shape[-1]))
        N, count = shares.shape
        weights = ops.reshape(ops.transpose(shares, (1, 0)), (count, N, 1))
        return ops.sum(ops.stack(state.sources) * weights, axis=0)
