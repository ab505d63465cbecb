"""The interface between a residual connection and a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import numpy as np

    from fathom.models.init import Parameter
    from fathom.models.ops import Array, Layers, Ops


@dataclass(frozen=True)
class ConnectionContext:
    """What a connection is told about the network that uses it."""

    layers: int
    """L, how many functions are wrapped: blocks, or twice as many sub-layers."""
    width: int
    """C, channels of a stream, its last axis."""
    pooled_axes: int
    """How many axes before the channels a dynamic connection averages over: 2 for images, with one
    set of coefficients per image; 0 for sequences, with one set per token."""
    has_residual: bool
    """Whether a wrapped function adds its input to its output."""
    per_block: int = 1
    """How many wrapped functions make a block."""


class Connection(ABC):
    """A residual connection in a network. It wraps any functions f and knows nothing about them.

    Shapes: inputs and outputs of f are […, C], parameters are stacked over layers, [L, …].
    """

    is_plain: ClassVar[bool] = False
    """Whether there is a single stream: the product of all mixing is then the number one."""

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """Its parameters by name, `connection.*`, stacked over layers."""

    @abstractmethod
    def through(
        self, ops: Ops, params: dict[str, Array], x: Array, layers: Layers, noise: Array | None
    ) -> tuple[Array, MixingTrace | None]:
        """Pass the embedded input through all L layers: (output […, C], how streams were mixed).

        `noise`: from `sample_noise`; None outside of training. There is no trace of one stream.
        """

    def sample_noise(self, rng: np.random.Generator, progress: float) -> np.ndarray | None:
        """Random numbers for one training step; None if the connection uses none.

        `progress`: the share of steps that are done.
        """
        return None

    def matrices(self, ops: Ops, params: dict[str, Array]) -> dict[str, Array]:
        """Mixing matrices to save after training, by name; none by default."""
        return {}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of `matrices`, without computing any."""
        return {}


@dataclass(frozen=True)
class MixingTrace:
    """How a pass mixed its streams, for the metrics."""

    H_res: Array
    """[L, S, S]: the mixing matrices; dynamic ones averaged over all positions."""
    H_res_of_one: Array | None
    """[L, T, S, S]: the matrices at each position of the first example; None if static."""
    streams: Array
    """[S, …, C]: the last streams."""
    weights: Array
    """[S]: the weights of their sum in the output."""
    base: Array | None
    """[3, S, S]: the constraint of the learned logits alone, without gate and dynamic part, in the
    first, the middle and the last block; None without logits."""
    gates: Array | None
    """[L]: g without noise; None without a gate."""
    embedding: Array | None
    """[S, C]: the learned stream embedding; None without one."""


def stream_spread(ops: Ops, streams: Array) -> tuple[Array, Array]:
    """How much the streams [S, …, C] differ: (difference, similarity), two scalars.

    The largest |x_s − x_0| over all streams and entries, relative to the largest |x|; and the
    mean cosine over positions and pairs of streams. Identical streams give 0 and 1.
    The streams are divided by the largest |x| first, so squares do not overflow before x does.
    """
    S, C = streams.shape[0], streams.shape[-1]
    x = ops.reshape(streams / ops.max(ops.abs(streams)), (S, -1, C))
    difference = ops.max(ops.abs(x - x[:1]))
    unit = x / ops.maximum(ops.l2_norm(x), 1e-15)
    # Σ_{s≠t} x_s·x_t = |Σ_s x_s|² − Σ_s |x_s|²; a stream of zeros has cosine 0 with any other.
    total = ops.sum(unit, axis=0)
    pairs = ops.sum(total * total, axis=-1) - ops.sum(ops.sum(unit * unit, axis=-1), axis=0)
    return difference, ops.mean(pairs, axis=0) / (S * (S - 1))


def readout_shares(ops: Ops, streams: Array, weights: Array) -> Array:
    """[S]: each stream's share of the output o = Σ_s w_s x_s, ⟨w_s x_s, o⟩ / ⟨o, o⟩.

    Inner products are means over positions; the shares sum to one.
    """
    S = streams.shape[0]
    x = ops.reshape(streams / ops.max(ops.abs(streams)), (S, -1))
    parts = ops.reshape(weights, (S, 1)) * x
    along = ops.sum(parts * ops.sum(parts, axis=0), axis=-1)
    return along / ops.sum(along, axis=0)


def mixing_reports(ops: Ops, mixed: MixingTrace) -> dict[str, Array]:
    """Measurements of a pass for the metrics, by name; of a single stream only its matrices."""
    report = {"H_res": mixed.H_res}
    if mixed.H_res_of_one is not None:
        report["H_res_of_one"] = mixed.H_res_of_one
    streams, weights = map(ops.stop_gradient, (mixed.streams, mixed.weights))
    if streams.shape[0] > 1:
        difference, similarity = stream_spread(ops, streams)
        report |= {
            "stream_difference": difference,
            "stream_similarity": similarity,
            "readout_shares": readout_shares(ops, streams, weights),
        }
    constants = {"base": mixed.base, "gates": mixed.gates}
    report |= {name: value for name, value in constants.items() if value is not None}
    if mixed.embedding is not None:
        S, C = mixed.embedding.shape
        vectors = ops.reshape(ops.stop_gradient(mixed.embedding), (S, 1, C))
        _, report["stream_embedding_similarity"] = stream_spread(ops, vectors)
    return report
