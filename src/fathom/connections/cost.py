"""What a connection adds to a training step if all between two functions is one kernel.

Assumption: one kernel forward and one backward run between two wrapped functions. Each reads every
array that it needs once and writes its results once. Coefficients, gates and products with the
connection's parameters stay on the chip, and so does the norm at the start of a function. Memory
traffic of parameters, and of the input and output of the network, is neglected.

Units: C elements for each token, over a whole pass, forward and backward. The plain network moves 8
for each function: forward it reads x and y and writes x + y and the normed input of the next
function; backward it reads the gradients of both and x + y and writes one gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from numbers import Integral
from typing import NamedTuple

from fathom.connections.altup import AltUpConnection
from fathom.connections.causal import CausalConnection
from fathom.connections.connection import Connection
from fathom.connections.dense import DenseConnection
from fathom.connections.depth_attention import DepthAttentionConnection
from fathom.connections.frac import FracConnection
from fathom.connections.gated import UnmixedStreams
from fathom.connections.one_stream import OneStreamConnection
from fathom.connections.plain import PlainConnection
from fathom.connections.scaled import ScaledConnection
from fathom.connections.state_attention import StateAttentionConnection
from fathom.connections.streams import StreamConnection
from fathom.settings import ConfigError, Registry

PLAIN = 8
"""C elements that the plain network moves for each function."""

PER_BLOCK = 12
"""C² parameters of a plain transformer's block: 4 of attention, 8 of an MLP four times as wide."""

PER_PARAMETER = 6
"""Operations for each token and entry of a matrix: 2 forward and 4 backward."""

FLOATS = Registry({"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8})
"""Bytes of an element, by float type."""


class Machine(NamedTuple):
    """Speed of a machine."""

    rate: float
    """Operations a second that matrix products reach."""
    bandwidth: float
    """Bytes a second."""


MACHINES = Registry(
    {
        "h100": Machine(400e12, 3.35e12),
        "h200": Machine(400e12, 4.8e12),
        "a100": Machine(180e12, 2.0e12),
    }
)
"""Memory bandwidth as sold; a rate that large models in bfloat16 reach, 40 to 60 % of the peak."""


@dataclass(frozen=True)
class Cost:
    """Work of a connection in a training step, forward and backward, beyond the plain network's."""

    operations: int
    """Of products with the connection's matrices. Those of single elements take no time of their
    own: about 3 for each byte, and a machine does 20 or more while it moves one."""
    bytes: int

    def seconds(self, machine: Machine) -> float:
        """Operations and bytes one after the other."""
        return self.operations / machine.rate + self.bytes / machine.bandwidth


class Shares(NamedTuple):
    """What a connection adds to a step, as a share of the plain step."""

    operations: float
    bytes: float


def cost(connection: Connection, tokens: int, itemsize: int) -> Cost:
    """The extra work for `tokens` tokens and streams of `itemsize` bytes an element.

    Raises ConfigError for functions that add their input, for coefficients of images, and unless
    `tokens` is a whole number of at least 0.
    """
    context = connection.context
    if not isinstance(tokens, Integral) or tokens < 0:
        raise ConfigError(f"cost: tokens must be a number of tokens, but is {tokens!r:.80}")
    for key in ("has_residual", "pooled_axes"):
        if value := getattr(context, key):
            raise ConfigError(
                f"cost: {key} is {value}, but it is known only for functions without a residual "
                f"and coefficients of tokens; use {key}={type(value)()}"
            )
    extra = elements(connection) - PLAIN * context.layers
    return Cost(
        PER_PARAMETER * tokens * products(connection), tokens * extra * context.width * itemsize
    )


def over_transformer(connection: Connection, machine: Machine, itemsize: int = 2) -> Shares:
    """What it adds to a plain transformer's step: by its operations, and by its bytes."""
    context = connection.context
    step = transformer_operations(context.width, context.blocks) / machine.rate
    own = cost(connection, 1, itemsize)
    return Shares(own.operations / machine.rate / step, own.bytes / machine.bandwidth / step)


def transformer_operations(width: int, blocks: int) -> int:
    """Operations of a plain transformer's step for each token, forward and backward.

    Scores of attention, the embedding and the head are not counted.
    """
    return PER_PARAMETER * PER_BLOCK * width**2 * blocks


def products(connection: Connection) -> int:
    """Entries of its matrices that a token is multiplied with in a forward pass."""
    matrices = {n: math.prod(p.shape) for n, p in connection.parameters().items() if p.is_matrix}
    matrices.pop("connection.stream_embedding", None)  # added
    settings = connection.settings
    streams = getattr(settings, "streams", getattr(settings, "fractions", 1))
    by_prefix = {
        "connection.phi_": getattr(settings, "coefficients", None),
        "connection.readout_phi": getattr(getattr(settings, "close", None), "coefficients", None),
    }
    for prefix, coefficients in by_prefix.items():
        if getattr(coefficients, "per_stream", False):  # each stream with all rows
            of_each = {n: streams * size for n, size in matrices.items() if n.startswith(prefix)}
            matrices |= of_each
    if isinstance(connection, AltUpConnection):  # before a function and after it
        matrices["connection.router"] *= 2
    return sum(matrices.values())


# --- C elements for each token in a pass, by kind -------------------------------------------------


def _streams(S: int) -> int:
    """Between two functions, for S streams.

    Forward: reads S streams and y, writes S streams and the input. Backward: reads the gradients of
    these outputs, the S streams and y, writes the gradients of streams and y.
    """
    return 5 * S + 5


@singledispatch
def elements(connection: Connection) -> int:
    """C elements that a pass moves for each token. Raises ConfigError for an unknown kind."""
    raise ConfigError(f"cost: there is no formula for {type(connection).__name__}")


@elements.register
def _of_plain(connection: PlainConnection) -> int:
    return PLAIN * connection.context.layers


@elements.register(StreamConnection)
@elements.register(UnmixedStreams)
@elements.register(AltUpConnection)
def _of_streams(connection: StreamConnection | UnmixedStreams | AltUpConnection) -> int:
    """Of AltUp, predicted streams are what is kept; they are corrected and predicted at once."""
    return _streams(connection.settings.streams) * connection.context.layers


@elements.register
def _of_parts(connection: FracConnection) -> int:
    """m parts of C/m channels are one stream."""
    return _streams(1) * connection.context.layers


@elements.register
def _of_scaled(connection: ScaledConnection) -> int:
    """As plain with constant scales; learned ones need y and a gradient of y that is not x's.

    x_0, where it enters a block again, is read twice, and once more a gradient for it.
    """
    scale, context = connection.settings.scale.kind, connection.context
    own = PLAIN if scale in ("constant", "depth") else _streams(1)
    entries = connection.settings.initial.kind != "none"
    return own * context.layers + 3 * entries * context.blocks


@elements.register
def _of_rules(connection: OneStreamConnection) -> int:
    """As `scaled`, and each X_j that enters again as x_0 there.

    With two lanes, as two streams. A function that reads an X_j reads it, and its gradient is read.
    """
    rule, context = connection.rule, connection.context
    has_own_sum = rule.needs_own_sum and rule.read is None and rule.warm_up is None
    moved = (_streams(1) if has_own_sum else PLAIN) * context.layers
    if rule.read is None:
        return moved + 3 * len(connection.sources)
    first = context.per_block * min(connection.sources.values())
    late = [connection.place(k) for k in range(first, context.layers)]
    if connection.settings.rule == "two_lanes":
        return _streams(1) * first + _streams(2) * len(late)
    return moved + 3 * len(connection.sources) + 2 * sum(place.is_attention for place in late)


@elements.register
def _of_depth_attention(connection: DepthAttentionConnection) -> int:
    """Of I sources, one read at each of L places: 2 I + 5, with an open sum of a block 2 I + 7.

    Forward a read passes over its sources; backward the gradient of a source passes over those of
    its reads. An ordinary stream beside the sources adds 4. Reads of q, k and v share the forward
    pass.
    """
    s, L, moved = connection.settings, connection.context.layers, 0
    for k in range(1, L + 1):
        block, within = divmod(k, connection.group)
        sources = k + 1 if s.block_size is None else 1 + block + (within > 0)
        reads = 3 if k < L and connection.reads_apart(k) else 1
        moved += (1 + reads) * sources
        moved += 3 * reads + 2 if s.block_size is None else 2 * reads + 5
    return moved + 4 * s.stream * L


@elements.register
def _of_dense(connection: DenseConnection) -> int:
    """As plain, but the sum after block i, over i earlier outputs, takes 2 i + 11.

    Forward: reads these, x and y, writes the block's output, the sum and its norm. Backward: reads
    the gradients of i sums, of both outputs and the sum, and the block's output; writes two
    gradients. Weights that depend on the stream read the earlier outputs once more. Each further
    sum, of q, k and v, adds 2. With several sums the gradients of the i outputs are read and
    written once for all of them.
    """
    moved = PLAIN * connection.context.layers
    for i in connection.sums:
        is_dynamic = connection.settings.weights == "dynamic"
        further = 3 if connection.settings.apart and i < connection.context.blocks else 0
        moved += (1 + is_dynamic + min(1 + further, 2)) * i + 11 + 2 * further - PLAIN
    return moved


@elements.register
def _of_causal(connection: CausalConnection) -> int:
    """The sums of `dense` with static weights, before each function but the first."""
    L = connection.context.layers
    return PLAIN + sum(2 * i + 11 for i in range(1, L))


@elements.register
def _of_state_attention(connection: StateAttentionConnection) -> int:
    """4 i + 9 before function i, over i earlier streams.

    Forward: reads these and y, writes the stream and the input. Backward: reads the i streams, and
    for the gradient of a stream the gradients and the queries of its reads.
    """
    return PLAIN + sum(4 * i + 9 for i in range(1, connection.context.layers))
