"""`gated_multi`: streams that are never mixed, with learned and computed gates."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fathom.connections.component_types import SeveralStreams
from fathom.connections.connection import ConnectionContext, Scheme, rms_norm
from fathom.connections.gated import UnmixedState, UnmixedStreams, refuse_norms
from fathom.init import Constant, Parameter, Stacked, Uniform
from fathom.operations.ops import Array, Ops, Params
from fathom.settings import Number


class GatedMulti(Scheme):
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
        refuse_norms("gated_multi", context)
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


class GatedMultiConnection(UnmixedStreams):
    """Formula: `GatedMulti`."""

    settings: GatedMulti

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

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> UnmixedState:
        stacks = (ops.unstack(params[f"connection.{name}"]) for name in Gates._fields)
        embeddings = ops.unstack(params["connection.stream_embedding"])
        return UnmixedState(
            tuple(Gates(*layer) for layer in zip(*stacks, strict=True)),
            params["connection.end_gain"],
            self.context.by_set(ops, ops.stack([x + embedding for embedding in embeddings])),
            x.shape,
        )

    def read(self, ops: Ops, state: UnmixedState, k: int) -> tuple[Array, UnmixedState]:
        (N, S, _), C, p = state.streams.shape, self.context.width, state.per_layer[k]
        normed, pooled, streams = self.normed(ops, state.streams, p.gain)
        hidden = ops.linear(ops.reshape(pooled, (N, S * C)), p.down) / S
        hidden = p.gate_scale * hidden * ops.sigmoid(hidden)
        logits = ops.linear(hidden, p.up_read) + ops.reshape(p.read_bias, (S * C,))
        post = 2 * ops.sigmoid(ops.linear(hidden, p.up_write) + p.write_bias)
        m = ops.reshape(self.gated(ops, logits, normed), state.shape)
        return m, state._replace(streams=streams, post=post)

    def close(self, ops: Ops, state: UnmixedState) -> Array:
        x = ops.reshape(ops.sum(state.streams, axis=1), state.shape)
        return rms_norm(ops, x, self.settings.eps) * state.end
