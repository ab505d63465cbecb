"""`gated`: streams that are never mixed, read through a gate for each channel of each stream.

`UnmixedStreams` is what it shares with `gated_multi`.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fathom.arithmetic.gated_vjp import GatedMean, NormedStreams
from fathom.connections.component_types import SeveralStreams
from fathom.connections.components import Expansion
from fathom.connections.connection import (
    Connection,
    ConnectionContext,
    MixingTrace,
    Scheme,
    by_stream,
    rms_norm,
)
from fathom.init import Constant, Normal, Parameter
from fathom.operations.ops import Array, Ops, Params
from fathom.settings import ConfigError, Number


class Gated(Scheme):
    """x_s ← x_s + 2σ(W x̃/S)_s f((1/S) Σ_t a_t ∘ x̃_t), a = σ(U silu(D x̃/S)).

    x̃_s = (1 + g_s) ∘ RMSNorm(x_s), and x̃ is their concatenation. The output is read like f's
    input, with its own U, D and g. Reads are normed, so f omits its first norm, and the network its
    final norm.
    """

    kind: Literal["gated"] = "gated"
    streams: SeveralStreams = 4
    open: Expansion = "copies"
    per: Literal["channel", "stream"] = Field(
        "channel", description="each channel of each stream has a gate; or each stream has one"
    )
    rank: Annotated[Number, Field(gt=0, le=16)] = Field(
        0.15625, description="rank of the gates' logits over C; the rank is at least 1"
    )
    std: Annotated[Number, Field(ge=0)] = Field(
        0.02, description="initial standard deviation of D, U and W"
    )
    eps: Annotated[Number, Field(gt=0)] = Field(1e-6, description="added to the mean square")

    def at(self, context: ConnectionContext) -> GatedConnection:
        """The connection in a network. Raises ConfigError if f keeps its norm."""
        refuse_norms("gated", context)
        return GatedConnection(self, context)


def refuse_norms(kind: str, context: ConnectionContext) -> None:
    """Raise ConfigError if functions keep their own norms, since reads are normed."""
    if not context.optional_norms:
        raise ConfigError(
            f"{kind}: its reads are normed, so functions must omit their own norm, which this "
            "network's cannot; for blocks of a transformer use model.wrap: sublayer"
        )


class Reader(NamedTuple):
    """The parameters of one layer's read and write, or of the read of the output."""

    gain: Array
    """g [S·C]"""
    down: Array
    """D [rank, S·C]"""
    up: Array
    """U [S·C, rank], or [S, rank] with a gate for each stream"""
    phi_post: Array | None
    """W [S, S·C]; None for the output."""


class UnmixedState(NamedTuple):
    """A pass up to a layer: N sets of coefficients; M covers all other axes of a stream."""

    per_layer: tuple[Any, ...]
    """Parameters of each layer."""
    end: Any
    """Parameters of the output."""
    streams: Array
    """[N, S, M]"""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""
    post: Array | None = None
    """[N, S]: weights for the output of the layer that has read."""


class UnmixedStreams(Connection):
    """Base of connections whose functions read normed streams, and whose H_res is the identity."""

    reads_normed = True

    def write(self, ops: Ops, state: UnmixedState, k: int, y: Array) -> UnmixedState:
        N, S, M = state.streams.shape
        written = ops.reshape(state.post, (N, S, 1)) * ops.reshape(y, (N, 1, M))
        return state._replace(streams=state.streams + written, post=None)

    def trace(self, ops: Ops, params: Params, state: UnmixedState) -> MixingTrace:
        L, S = self.context.layers, self.settings.streams
        return MixingTrace(
            H_res=ops.broadcast(ops.constant(np.eye(S)), (L, S, S)),
            streams=by_stream(ops, state.streams, state.shape),
            embedding=params.get("connection.stream_embedding"),
        )

    def normed(self, ops: Ops, streams: Array, gain: Array) -> tuple[Array, Array, Array]:
        """(g_s ∘ RMSNorm over C of streams [N, S, M] as [N, S, P, C], what gates depend on, x).

        The second is the same with P 1; if positions are pooled, of the streams' means over them.
        The third are the streams, for their next reader.
        """
        (N, S, M), C = streams.shape, self.context.width
        if M == C:
            function = NormedStreams(self.settings.eps)
            normed, streams = ops.custom_vjp(function, streams, ops.reshape(gain, (S, C)))
            normed = ops.reshape(normed, (N, S, 1, C))
            return normed, normed, streams
        gain = ops.reshape(gain, (S, 1, C))
        x = ops.reshape(streams, (N, S, M // C, C))
        normed = rms_norm(ops, x, self.settings.eps) * gain
        means = ops.reshape(ops.mean(x, axis=2), (N, S, 1, C))
        return normed, rms_norm(ops, means, self.settings.eps) * gain, streams

    def gated(self, ops: Ops, logits: Array, normed: Array) -> Array:
        """Mean over S of σ(logits [N, S·C or S]) ∘ normed streams [N, S, P, C]."""
        N, S, P, C = normed.shape
        if P == 1 and logits.shape[1] == S * C:
            both = (ops.reshape(x, (N, S, C)) for x in (logits, normed))
            return ops.custom_vjp(GatedMean(), *both)[0]
        gates = ops.reshape(ops.sigmoid(logits), (N, S, 1, logits.shape[1] // S))
        return ops.mean(gates * normed, axis=1)


class GatedConnection(UnmixedStreams):
    """Formula: `Gated`."""

    settings: Gated

    def parameters(self) -> dict[str, Parameter]:
        """Parameters of reads [L + 1, …], the last one of the output, and W [L, …]."""
        s, L, C = self.settings, self.context.layers, self.context.width
        S, start = s.streams, Normal(s.std)
        rank, gates = max(1, round(s.rank * C)), S * C if s.per == "channel" else S
        return {
            "connection.gain": Parameter((L + 1, S * C), Constant(0.0)),
            "connection.gate_down": Parameter((L + 1, rank, S * C), start, is_matrix=True),
            "connection.gate_up": Parameter((L + 1, gates, rank), start, is_matrix=True),
            "connection.phi_post": Parameter((L, S, S * C), start, is_matrix=True),
            **s.open.parameters(S, self.context),
        }

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> UnmixedState:
        names = ("gain", "gate_down", "gate_up", "phi_post")
        stacks = (ops.unstack(params[f"connection.{name}"]) for name in names)
        *layers, end = (Reader(*layer) for layer in zip_longest(*stacks))
        opened = self.settings.open.streams(ops, params, x, self.settings.streams)
        return UnmixedState(tuple(layers), end, self.context.by_set(ops, opened), x.shape)

    def read(self, ops: Ops, state: UnmixedState, k: int) -> tuple[Array, UnmixedState]:
        reader = state.per_layer[k]
        m, normed, streams = self.gated_mean(ops, state, reader)
        logits = ops.linear(normed, reader.phi_post) / self.settings.streams
        return m, state._replace(streams=streams, post=2 * ops.sigmoid(logits))

    def close(self, ops: Ops, state: UnmixedState) -> Array:
        return self.gated_mean(ops, state, state.end)[0]

    def gated_mean(
        self, ops: Ops, state: UnmixedState, reader: Reader
    ) -> tuple[Array, Array, Array]:
        """((1/S) Σ_s a_s ∘ x̃_s […, C], x̃ [N, S·C] that gates are computed from, x).

        If positions are pooled, that x̃ is of the streams' means over them.
        """
        (N, S, _), C = state.streams.shape, self.context.width
        normed, pooled, streams = self.normed(ops, state.streams, 1 + reader.gain)
        pooled = ops.reshape(pooled, (N, S * C))
        hidden = ops.linear(pooled, reader.down) / S
        logits = ops.linear(hidden * ops.sigmoid(hidden), reader.up)
        return ops.reshape(self.gated(ops, logits, normed), state.shape), pooled, streams
