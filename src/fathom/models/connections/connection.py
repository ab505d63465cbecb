"""What every residual scheme offers to a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fathom.models.init import Parameter
    from fathom.models.ops import Array, Ops


@dataclass(frozen=True)
class Site:
    """What a network says of the places where it puts a connection."""

    layers: int
    """L, how many functions are wrapped."""
    width: int
    """C, channels of a stream, its last axis."""
    pooled_axes: int
    """How many axes before the channels a dynamic connection averages over: 2 for an image, so
    that its coefficients hold for a whole image; 0 for a sequence, one set for each token."""
    has_residual: bool
    """Whether a wrapped function adds its input to its output by itself."""


class Connection(ABC):
    """A residual scheme at its site. It wraps any function f and knows nothing of what f is.

        streams = open(x)                                the embedded input becomes the streams
        y       = f(pre(c, streams))                     a layer reads from the streams …
        streams = update(c, streams, y)                  … and writes to them
        x       = close(params, streams)                 the streams become the output

    Shapes: a stream is […, C], whatever f takes; streams are [S, …, C]; coefficients are [L, …].
    """

    one_stream: bool = False
    """Whether there is nothing to mix."""

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """Its parameters by name, `connection.*`, stacked over layers."""

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Any:  # noqa: ANN401
        """What can be computed for all layers at once, [L, …]; None where nothing can."""
        return None

    @abstractmethod
    def per_layer(self, ops: Ops, coefficients: Any) -> Sequence[Any]:  # noqa: ANN401
        """The coefficients of each layer, from those of all."""

    def H_res(self, coefficients: Any) -> Array | None:  # noqa: ANN401, N802
        """Mixing matrices of all layers, [L, S, S]; None where no such matrices mix streams."""
        return None

    def matrices(self, ops: Ops, params: dict[str, Array]) -> dict[str, Array]:
        """What mixes, as matrices to keep after training, by name; none by default."""
        return {}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of `matrices`, without computing any."""
        return {}

    @abstractmethod
    def open(self, ops: Ops, x: Array) -> Any:  # noqa: ANN401
        """The embedded input […, C] → the first layer's streams."""

    @abstractmethod
    def pre(self, ops: Ops, c: Any, streams: Any) -> Array:  # noqa: ANN401
        """Streams → the layer's input […, C]."""

    @abstractmethod
    def update(self, ops: Ops, c: Any, streams: Any, y: Array) -> Any:  # noqa: ANN401
        """Streams and the layer's output → the next layer's streams."""

    @abstractmethod
    def close(self, ops: Ops, params: dict[str, Array], streams: Any) -> Array:  # noqa: ANN401
        """The last layer's streams → the output […, C]."""


def stream_spread(ops: Ops, streams: Array) -> tuple[Array, Array]:
    """How far the streams [S, …, C] are from being one: (difference, cosine), two scalars.

    The largest |x_s − x_0| over all streams and entries, relative to the largest |x|; and the
    mean cosine, over positions, of each stream with the first. Identical streams give 0 and 1.
    Everything is divided by the largest |x| first, so that squares do not overflow before x does.
    """
    x = streams / ops.max(ops.abs(streams))
    first = x[:1]
    difference = ops.max(ops.abs(x - first))
    dot = ops.sum(x * first, axis=-1)
    norms = ops.sqrt(ops.sum(x * x, axis=-1) * ops.sum(first * first, axis=-1))
    return difference, ops.mean(ops.reshape((dot / ops.maximum(norms, 1e-30))[1:], (-1,)), axis=0)
