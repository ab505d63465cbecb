"""`depth_attention`: functions read a softmax over the outputs of earlier functions."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from fathom.arithmetic.depth_vjp import InverseRms, SoftmaxRead
from fathom.connections.connection import Apart, Connection, ConnectionContext, Scheme
from fathom.init import Constant, Parameter
from fathom.operations.ops import Array, Arrays, Ops, Params
from fathom.settings import ConfigError, Flag, Nullable, Number, Positive


class DepthAttention(Scheme):
    """read = Σ_i p_i v_i, p = softmax_i(w·(g ∘ r(v_i))), r(v) = RMSNorm(v), for each token.

    v_0 is the embedded input. Every function but the first has a w and a g, and so has the output.
    """

    kind: Literal["depth_attention"] = "depth_attention"
    block_size: Annotated[Positive | None, Nullable] = Field(
        None,
        description="blocks of the network whose outputs' sum is one source, beside the sum that "
        "is open; null: every function's output is a source",
    )
    heads: Positive = Field(1, description="H: each group of C/H channels has a softmax of its own")
    values: Literal["raw", "normed"] = Field("raw", description="what is summed: v, or r(v)")
    gain: Flag = Field(True, description="whether there is a g")
    scaled: Flag = Field(False, description="whether logits are multiplied by 1/√(C/H)")
    stream: Flag = Field(
        False, description="whether reads are added to the ordinary stream, which is the output"
    )
    gate: Annotated[Number | None, Nullable] = Field(
        None,
        description="with `stream`: initial value of a learned factor of each read; null: none",
    )
    apart: Annotated[Positive | None, Nullable] = Field(
        None,
        description="n: the attention of every n-th block, but for the first, reads q, k and v "
        "apart, each with a w; null: none does",
    )
    eps: Annotated[Number, Field(gt=0)] = Field(1e-6, description="added to the mean square")

    @model_validator(mode="after")
    def _only_a_stream_has_a_gate(self) -> DepthAttention:
        """Raises ValueError for settings that exclude each other."""
        if self.stream and self.block_size is not None:
            raise ValueError("block_size: with stream: true every output is a source; use null")
        if self.gate is not None and not self.stream:
            raise ValueError("gate: reads have a factor only with stream: true; use null")
        return self

    def at(self, context: ConnectionContext) -> DepthAttentionConnection:
        """The connection in a network. Raises ConfigError if the network does not suit it."""
        if context.width % self.heads:
            raise ConfigError(
                f"depth_attention: width {context.width} is not divisible by heads {self.heads}; "
                "use heads: 1"
            )
        if self.apart is not None:
            refuse_without_attention("depth_attention", "apart: null", context)
        return DepthAttentionConnection(self, context)


def refuse_without_attention(kind: str, fix: str, context: ConnectionContext) -> None:
    """Raise ConfigError if no function takes separate inputs of q, k and v."""
    if not context.takes_apart:
        raise ConfigError(
            f"{kind}: q, k and v are read apart, but functions of this network have one input; "
            f"use {fix}, or let each block begin with an attention of three inputs: "
            "model.wrap: sublayer in a study, takes_apart=True and per_block=2 in your own model"
        )


GROUP = 4
"""Number of functions whose reads share one product, if each output is a source."""


class DepthState(NamedTuple):
    """A pass up to a layer, with N tokens.

    Functions form groups: those of a block whose sum is a source, or `GROUP` functions. All reads
    of a group from the sources finished before it are computed at once. Each is later merged with
    the open sources, in its turn.
    """

    queries: Array | None
    """[R, C] of all reads, with g and the scale of logits; None without reads."""
    gates: Arrays
    """Scalar factor of each function's read; empty without a gate."""
    values: Array
    """[I, N, C]: finished sources."""
    scales: Array
    """[I, N]: 1 over the root mean square of finished sources."""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""
    ahead: tuple[Arrays, Arrays] = ((), ())
    """For the group: reads [N, C] of finished sources, and log-sums [H, N] of their softmax."""
    open: Array | None = None
    """[J, N, C]: sources since the group began, or the sum of a block so far."""
    open_scales: Array | None = None
    """[J, N]: 1 over the root mean square of open sources."""
    stream: Array | None = None
    """[N, C]; None without a stream."""
    read: Array | None = None
    """[N, C]: input of the function, if the function has its own residual."""


class DepthAttentionConnection(Connection):
    """Formula: `DepthAttention`."""

    settings: DepthAttention

    @cached_property
    def rows(self) -> list[range]:
        """Parameter rows of each function's reads, and last of the output's read."""
        L, ranges, first = self.context.layers, [], 0
        counts = [0, *(3 if self.reads_apart(k) else 1 for k in range(1, L))]
        for count in [*counts, 0 if self.settings.stream else 1]:
            ranges.append(range(first, first + count))
            first += count
        return ranges

    @cached_property
    def group(self) -> int:
        """Number of functions in a group."""
        size = self.settings.block_size
        return GROUP if size is None else size * self.context.per_block

    @cached_property
    def softmax(self) -> SoftmaxRead:
        return SoftmaxRead(self.settings.heads, self.settings.values == "normed")

    def reads_apart(self, k: int) -> bool:
        """Whether function k begins a block with separate reads of q, k and v."""
        block, within = divmod(k, self.context.per_block)
        every = self.settings.apart
        return every is not None and k > 0 and within == 0 and (block + 1) % every == 0

    def parameters(self) -> dict[str, Parameter]:
        s, shape = self.settings, (self.rows[-1].stop, self.context.width)
        parameters = {}
        if shape[0]:
            parameters["connection.query"] = Parameter(shape, Constant(0.0))
            if s.gain:
                parameters["connection.key_gain"] = Parameter(shape, Constant(1.0))
        if s.gate is not None:
            parameters["connection.gate"] = Parameter((self.context.layers,), Constant(s.gate))
        return parameters

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> DepthState:
        s, C = self.settings, self.context.width
        queries = params.get("connection.query")
        if queries is not None and s.gain:
            queries = queries * params["connection.key_gain"]
        if queries is not None and s.scaled:
            queries = queries * math.sqrt(s.heads / C)
        gates = () if s.gate is None else tuple(ops.unstack(params["connection.gate"]))
        first = ops.reshape(x, (math.prod(x.shape[:-1]), C))
        values, scales = self.scaled(ops, first[None])
        stream = first if s.stream else None
        return DepthState(queries, gates, values, scales, x.shape, stream=stream)

    def read(self, ops: Ops, state: DepthState, k: int) -> tuple[Array | Apart, DepthState]:
        if k % self.group == 0:
            state = self.begin_group(ops, state, k)
        reads, state = self.merged(ops, state, k)
        if state.gates:
            reads = [x * state.gates[k] for x in reads]
        if state.stream is not None:
            reads = [x + state.stream for x in reads]
        if self.context.has_residual:
            state = state._replace(read=reads[0])
        shaped = [ops.reshape(x, state.shape) for x in reads]
        return Apart(*shaped) if self.reads_apart(k) else shaped[0], state

    def write(self, ops: Ops, state: DepthState, k: int, y: Array) -> DepthState:
        s, is_last = self.settings, k + 1 == self.context.layers
        N, C = state.values.shape[1:]
        y = ops.reshape(y, (N, C))
        if self.context.has_residual:
            y = y - state.read
        state = state._replace(read=None)
        if state.stream is not None:
            state = state._replace(stream=state.stream + y)
            if is_last:
                return state
        if state.open is None:
            new, scales = self.scaled(ops, y[None])
        elif s.block_size is not None:
            new, scales = self.scaled(ops, state.open + y)
        else:
            new, scale = self.scaled(ops, y[None])
            new = ops.concatenate([state.open, new], axis=0)
            scales = ops.concatenate([state.open_scales, scale], axis=0)
        return state._replace(open=new, open_scales=scales)

    def close(self, ops: Ops, state: DepthState) -> Array:
        if state.stream is not None:
            return ops.reshape(state.stream, state.shape)
        (read,), _ = self.merged(ops, state, self.context.layers)
        return ops.reshape(read, state.shape)

    def scaled(self, ops: Ops, v: Array) -> tuple[Array, Array]:
        """(Sources [1, N, C], 1 over their root mean square [1, N])."""
        _, N, C = v.shape
        scale, flat = ops.custom_vjp(InverseRms(self.settings.eps), ops.reshape(v, (N, C)))
        return flat[None], scale[None]

    def begin_group(self, ops: Ops, state: DepthState, k: int) -> DepthState:
        """Finish the open sources, and compute all reads of the group beginning with function k."""
        values, scales = state.values, state.scales
        if state.open is not None:
            values = ops.concatenate([values, state.open], axis=0)
            scales = ops.concatenate([scales, state.open_scales], axis=0)
        ahead = ((), ())
        first, last = self.rows[k].start, self.rows[self.last_of_group(k)].stop
        if first < last:
            queries = state.queries[first:last]
            reads, sums, values = ops.custom_vjp(self.softmax, queries, values, scales)
            ahead = tuple(ops.unstack(reads)), tuple(ops.unstack(sums))
        return state._replace(
            values=values, scales=scales, ahead=ahead, open=None, open_scales=None
        )

    def last_of_group(self, k: int) -> int:
        """Index of the last read in function k's group; the last group includes the output."""
        L, end = self.context.layers, k - k % self.group + self.group
        return L if end >= L else end - 1

    def merged(self, ops: Ops, state: DepthState, k: int) -> tuple[list[Array], DepthState]:
        """(One or three reads [N, C] of function k, or one of the output; the state)."""
        rows = self.rows[k]
        if not rows:  # the first function reads its only source unchanged
            return [ops.reshape(state.values, state.values.shape[1:])], state
        count, (reads, sums) = len(rows), state.ahead
        own, own_sums, rest = reads[:count], sums[:count], (reads[count:], sums[count:])
        if state.open is None:
            return list(own), state._replace(ahead=rest)
        queries = state.queries[rows.start : rows.stop]
        merged, _, opened = ops.custom_vjp(
            self.softmax,
            queries,
            state.open,
            state.open_scales,
            ops.stack(own),
            ops.stack(own_sums),
        )
        return list(ops.unstack(merged)), state._replace(ahead=rest, open=opened)
