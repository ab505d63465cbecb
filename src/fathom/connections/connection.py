"""The interface between a residual connection and a network."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fathom.init import Parameter
from fathom.operations.ops import Array, CustomVJP, Layers, Ops, Params
from fathom.settings import Settings

State = Any
"""State that a connection passes from verb to verb: arrays, or tuples and named tuples of them.
Each connection has its own type."""


@dataclass(frozen=True)
class ConnectionContext:
    """Facts about the network that a connection depends on."""

    layers: int
    """L, number of wrapped functions: one per block, or one per sub-layer."""
    width: int
    """C, channels of a stream, its last axis."""
    pooled_axes: int
    """Number of axes before the channels over which a dynamic connection averages: 2 for images,
    with one set of coefficients per image; 0 for sequences, with one set per token."""
    has_residual: bool
    """Whether a wrapped function adds its input to its output."""
    per_block: int = 1
    """Number of wrapped functions in a block."""
    optional_norms: bool = False
    """Whether the network omits the first norm of each wrapped function, and its own final norm, if
    the connection has `reads_normed`."""
    takes_apart: bool = False
    """Whether the first function of a block is an attention, which also accepts `Apart`."""

    @property
    def blocks(self) -> int:
        """Number of blocks of wrapped functions."""
        return self.layers // self.per_block

    def sets(self, shape: Sequence[int]) -> int:
        """N, number of sets of dynamic coefficients for an input of shape […, C]."""
        return math.prod(shape[: len(shape) - 1 - self.pooled_axes])

    def set_size(self, shape: Sequence[int]) -> int:
        """M, number of entries of an input of shape […, C] that share a set of coefficients."""
        return math.prod(shape[len(shape) - 1 - self.pooled_axes :])

    def by_set(self, ops: Ops, streams: Array) -> Array:
        """Streams [S, …, C] → [N, S, M]: M covers the axes that share a set of coefficients."""
        S, *shape = streams.shape
        grouped = ops.reshape(streams, (S, self.sets(shape), self.set_size(shape)))
        return ops.transpose(grouped, (1, 0, 2))


class Scheme(Settings):
    """Settings of a connection; a subclass for each kind, in the registry `schemes.KINDS`."""

    def at(self, context: ConnectionContext) -> Connection:
        """The connection in a network. Raises ConfigError if the network does not suit it."""
        raise NotImplementedError

    def without_starts(self) -> dict[str, Any]:
        """The settings, for JSON, without those that only say where parameters start."""
        return self.model_dump(mode="json")


class Apart(NamedTuple):
    """The inputs of an attention's queries, keys and values, […, C] each."""

    q: Array
    k: Array
    v: Array


@dataclass(frozen=True)
class Connection(ABC):
    """A residual connection in a network. It wraps any functions f and knows nothing about them.

    A pass consists of four verbs, each of which passes a state to the next: `open`, then `read` and
    `write` for k = 0 … L − 1 in this order, then `close`. No verb changes the state that it
    receives.

    Shapes: inputs and outputs of f are […, C], parameters are stacked over layers, [L, …].
    """

    settings: Scheme
    context: ConnectionContext

    is_plain: ClassVar[bool] = False
    """Whether there is a single stream, so that the product of all mixing matrices is one."""
    reads_normed: ClassVar[bool] = False
    """Whether the inputs of functions and the output are already normed."""

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """Its parameters by name, `connection.*`, stacked over layers."""

    @abstractmethod
    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> State:
        """Begin a pass with the embedded input […, C], and prepare values from the parameters.

        `noise`: from `sample_noise`; None outside of training.
        """

    def reads_apart(self, k: int) -> bool:
        """Whether function k reads `Apart`; only if the context has `takes_apart`."""
        return False

    @abstractmethod
    def read(self, ops: Ops, state: State, k: int) -> tuple[Array | Apart, State]:
        """(Input of function k, […, C], or its inputs as `Apart`; the state)."""

    @abstractmethod
    def write(self, ops: Ops, state: State, k: int, y: Array) -> State:
        """The state after function k returned y, […, C]."""

    @abstractmethod
    def close(self, ops: Ops, state: State) -> Array:
        """The output […, C] of a complete pass."""

    def trace(self, ops: Ops, params: Params, state: State) -> MixingTrace | None:
        """How a complete pass mixed its streams; None without mixing matrices."""
        return None

    def through(
        self, ops: Ops, params: Params, x: Array, layers: Layers, noise: Array | None
    ) -> tuple[Array, MixingTrace | None]:
        """A whole pass through the L functions: (output […, C], how streams were mixed)."""
        state = self.open(ops, params, x, noise)
        for k, layer in zip(range(self.context.layers), layers, strict=True):
            read, state = self.read(ops, state, k)
            state = self.write(ops, state, k, layer(read))
        return self.close(ops, state), self.trace(ops, params, state)

    def sample_noise(self, rng: np.random.Generator, progress: float) -> np.ndarray | None:
        """Random numbers for one training step; None if the connection uses none.

        `progress`: fraction of the steps that are done.
        """
        return None

    def matrices(self, ops: Ops, params: Params) -> dict[str, Array]:
        """Mixing matrices to save after training, by name; none by default."""
        return {}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of `matrices`, without computing them."""
        return {}


@dataclass(frozen=True)
class MixingTrace:
    """How a pass mixed its streams, for the metrics."""

    H_res: Array
    """[L, S, S]: the mixing matrices; dynamic ones averaged over all positions."""
    streams: Array
    """[S, …, C]: the final streams."""
    H_res_of_one: Array | None = None
    """[L, T, S, S]: the matrices at each position of the first example; None if static."""
    weights: Array | None = None
    """[S], or [S, N] for N sets in the order of positions: weights of the streams in the output;
    None if the output is not a weighted sum of the streams."""
    base: Array | None = None
    """[3, S, S]: H_res of the learned logits alone, without gate and dynamic part, in the first,
    the middle and the last block; None without logits."""
    gates: Array | None = None
    """[L]: g without noise; None without a gate."""
    embedding: Array | None = None
    """[S, C]: the learned stream embedding; None without one."""


def by_stream(ops: Ops, streams: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `by_set`, [N, S, M] → [S, …, C]; `shape`: […, C]."""
    streams = ops.transpose(streams, (1, 0, 2))
    return ops.reshape(streams, (streams.shape[0], *shape))


def batch_of(shape: tuple[int, ...]) -> int:
    """Examples of an input […, C]: its first axis is the batch; [C] is one example."""
    return shape[0] if len(shape) > 1 else 1


def by_example(ops: Ops, matrices: Array, shape: tuple[int, ...], S: int) -> Array:
    """The matrices of an input's N sets as [B, N / B, S, S]; `shape`: […, C]."""
    return ops.reshape(matrices, (batch_of(shape), -1, S, S))


def by_row(ops: Ops, function: CustomVJP, *xs: Array) -> Array:
    """The result […, C] of a function of rows [N, C], from xs […, C]."""
    *batch, C = xs[0].shape
    rows = (ops.reshape(x, (math.prod(batch), C)) for x in xs)
    return ops.reshape(ops.custom_vjp(function, *rows)[0], (*batch, C))


def rms_norm(ops: Ops, x: Array, eps: float) -> Array:
    """x/√(mean of x² + eps), the mean over the last axis."""
    squares = ops.sum(x * x, axis=-1, keepdims=True)  # l2_norm has no gradient at zero
    return x / ops.sqrt(squares / x.shape[-1] + eps)


def stream_spread(ops: Ops, streams: Array) -> tuple[Array, Array]:
    """Difference of the streams [S, …, C]: (difference, similarity), two scalars.

    The largest |x_s − x_0| over all streams and entries, relative to the largest |x|; and the
    mean cosine over positions and pairs of streams. Identical streams give 0 and 1.
    The streams are divided by the largest |x| first, so squares do not overflow before x does.
    """
    S, C = streams.shape[0], streams.shape[-1]
    x = ops.reshape(streams / ops.largest_size(streams), (S, -1, C))
    difference = ops.largest_size(x - x[:1])
    by_position = ops.transpose(x, (1, 0, 2))
    products = ops.matmul(by_position, ops.transpose(by_position, (0, 2, 1)))
    squares = ops.sum(products * ops.identity_like(products), axis=-1, keepdims=True)
    # A stream of zeros has cosine 0 with any other.
    inverse = 1 / ops.sqrt(ops.maximum(squares, 1e-30))
    cosines = products * inverse * ops.transpose(inverse, (0, 2, 1))
    totals = ops.sum(ops.sum(cosines, axis=-1), axis=-1)
    own = ops.sum(ops.sum(cosines * ops.identity_like(products), axis=-1), axis=-1)
    return difference, ops.mean(totals - own, axis=0) / (S * (S - 1))


def readout_shares(ops: Ops, streams: Array, weights: Array) -> Array:
    """[S]: each stream's share of the output o = Σ_s w_s x_s, ⟨w_s x_s, o⟩ / ⟨o, o⟩.

    `weights` [S] or [S, N]. Inner products are means over positions; the shares sum to one.
    """
    S, N = (*weights.shape, 1)[:2]
    x = ops.reshape(streams / ops.largest_size(streams), (S, N, -1))
    parts = ops.reshape(ops.reshape(weights, (S, N, 1)) * x, (S, -1))
    along = ops.sum(parts * ops.sum(parts, axis=0), axis=-1)
    return along / ops.sum(along, axis=0)


def mixing_reports(ops: Ops, mixed: MixingTrace) -> dict[str, Array]:
    """Measurements of a pass for the metrics, by name; for a single stream only the matrices."""
    report = {"H_res": mixed.H_res}
    if mixed.H_res_of_one is not None:
        report["H_res_of_one"] = mixed.H_res_of_one
    streams = ops.stop_gradient(mixed.streams)
    if streams.shape[0] > 1:
        difference, similarity = stream_spread(ops, streams)
        report |= {"stream_difference": difference, "stream_similarity": similarity}
        if mixed.weights is not None:
            weights = ops.stop_gradient(mixed.weights)
            report["readout_shares"] = readout_shares(ops, streams, weights)
    constants = {"base": mixed.base, "gates": mixed.gates}
    report |= {name: value for name, value in constants.items() if value is not None}
    if mixed.embedding is not None:
        S, C = mixed.embedding.shape
        vectors = ops.reshape(ops.stop_gradient(mixed.embedding), (S, 1, C))
        _, report["stream_embedding_similarity"] = stream_spread(ops, vectors)
    return report
