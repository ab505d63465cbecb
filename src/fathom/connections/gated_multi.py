"""`gated_multi`: streams that are never mixed, with learned and computed gates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fathom.connections.component_types import SeveralStreams
from fathom.connections.connection import (
    Connection,
    ConnectionContext,
    MixingTrace,
    by_stream,
    root_mean_square,
)
from fathom.init import Constant, Parameter, Stacked, Uniform
from fathom.settings import ConfigError, Number, Settings

if TYPE_CHECKING:
    from fathom.operations.ops import Array, Ops


class GatedMulti(Settings):
    """x_s ← x_s + 2σ(α W h + v)_s f((1/S) Σ_t a_t ∘ x̃_t), a = σ(α U h + u), h = silu(D x̃/S).

    x̃_s = g_s ∘ RMSNorm(x_s), and x̃ is their concatenation. u starts at 1 for stream l mod S of
    function l. The output is the RMS norm of the sum of streams, with a gain. Reads are normed, so
    f omits its first norm, and the network its final norm.
    """

    kind: Literal["gated_multi"] = "gated_multi"
    streams: SeveralStreams = 4
    rank: Annotated[Number, Field(gt=0, le=16)] = Field(
        0.15625, description="rank of D over C; it is at least 1"
    )
    alpha: Number = 0.01
    eps: Annotated[Number, Field(gt=0)] = Field(1e-6, description="added to the mean square")

    def at(self, context: ConnectionContext) -> GatedMultiConnection:
        """The connection in a network. Raises ConfigError if f keeps its norm."""
        if not context.optional_norms:
            raise ConfigError(
                "gated_multi: its reads are normed, so functions must omit their own norm, which "
                "this network's cannot; for blocks of a transformer use model.wrap: sublayer"
            )
        return GatedMultiConnection(self, context)


class Gates(NamedTuple):
    """The parameters of one function."""

    gain: Array
    """g [S, C]"""
    read_bias: Array
    """u [S, C]"""
    write_bias: Array
    """v [S]"""
    down: Array
    """D [rank, S·C]"""
    up_read: Array
    """U [S·C, rank]"""
    up_write: Array
    """W [S, rank]"""
    gate_scale: Array
    """α"""


class GatedMultiState(NamedTuple):
    """A pass up to a function: N sets of coefficients; M covers all other axes of a stream."""

    per_layer: tuple[Gates, ...]
    end_gain: Array
    """[C]"""
    streams: Array
    """[N, S, M]"""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""
    post: Array | None = None
    """[N, S]: weights for the output of the function that has read."""


@dataclass(frozen=True)
class GatedMultiConnection(Connection):
    """Formula: `GatedMulti`."""

    reads_normed = True

    settings: GatedMulti
    context: ConnectionContext

    def parameters(self) -> dict[str, Parameter]:
        s, L, C = self.settings, self.context.layers, self.context.width
        S, rank = s.streams, max(1, round(s.rank * C))
        own = [Stacked(tuple(Constant(float(t == k % S)) for t in range(S))) for k in range(L)]
        down = Uniform(1 / math.sqrt(S * C))
        zero = Constant(0.0)
        return {
            "connection.gain": Parameter((L, S, C), Constant(1.0)),
            "connection.read_bias": Parameter((L, S, C), Stacked(tuple(own))),
            "connection.write_bias": Parameter((L, S), zero),
            "connection.down": Parameter((L, rank, S * C), down, is_matrix=True),
            "connection.up_read": Parameter((L, S * C, rank), zero, is_matrix=True),
            "connection.up_write": Parameter((L, S, rank), zero, is_matrix=True),
            "connection.gate_scale": Parameter((L,), Constant(s.alpha)),
            "connection.stream_embedding": Parameter((S, C), zero, is_matrix=True),
            "connection.end_gain": Parameter((C,), Constant(1.0)),
        }

    def open(
        self, ops: Ops, params: dict[str, Array], x: Array, noise: Array | None = None
    ) -> GatedMultiState:
        stacks = (ops.unstack(params[f"connection.{name}"]) for name in Gates._fields)
        embeddings = ops.unstack(params["connection.stream_embedding"])
        return GatedMultiState(
            tuple(Gates(*layer) for layer in zip(*stacks, strict=True)),
            params["connection.end_gain"],
            self.context.by_set(ops, ops.stack([x + embedding for embedding in embeddings])),
            x.shape,
        )

    def read(self, ops: Ops, state: GatedMultiState, k: int) -> tuple[Array, GatedMultiState]:
        (N, S, M), C, p = state.streams.shape, self.context.width, state.per_layer[k]
        x = ops.reshape(state.streams, (N, S, M // C, C))
        normed = pooled = self.normed(ops, x, p.gain)
        if x.shape[2] > 1:
            means = ops.reshape(ops.mean(x, axis=2), (N, S, 1, C))
            pooled = self.normed(ops, means, p.gain)
        hidden = ops.linear(ops.reshape(pooled, (N, S * C)), p.down) / S
        hidden = p.gate_scale * hidden * ops.sigmoid(hidden)
        logits = ops.reshape(ops.linear(hidden, p.up_read), (N, S, C)) + p.read_bias
        gates = ops.reshape(ops.sigmoid(logits), (N, S, 1, C))
        post = 2 * ops.sigmoid(ops.linear(hidden, p.up_write) + p.write_bias)
        m = ops.reshape(ops.mean(gates * normed, axis=1), state.shape)
        return m, state._replace(post=post)

    def write(self, ops: Ops, state: GatedMultiState, k: int, y: Array) -> GatedMultiState:
        N, S, M = state.streams.shape
        written = ops.reshape(state.post, (N, S, 1)) * ops.reshape(y, (N, 1, M))
        return state._replace(streams=state.streams + written, post=None)

    def close(self, ops: Ops, state: GatedMultiState) -> Array:
        x = ops.reshape(ops.sum(state.streams, axis=1), state.shape)
        return x / root_mean_square(ops, x, self.settings.eps) * state.end_gain

    def trace(self, ops: Ops, params: dict[str, Array], state: GatedMultiState) -> MixingTrace:
        L, S = self.context.layers, self.settings.streams
        return MixingTrace(
            H_res=ops.broadcast(ops.constant(np.eye(S)), (L, S, S)),
            H_res_of_one=None,
            streams=by_stream(ops, state.streams, state.shape),
            weights=None,
            base=None,
            gates=None,
            embedding=params["connection.stream_embedding"],
        )

    def normed(self, ops: Ops, x: Array, gain: Array) -> Array:
        """[N, S, P, C] → g_s ∘ RMSNorm over C."""
        gain = ops.reshape(gain, (x.shape[1], 1, x.shape[3]))
        return x / root_mean_square(ops, x, self.settings.eps) * gain
