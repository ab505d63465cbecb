"""Residual schemes: how a network's streams feed a layer and take its output back.

A connection wraps any function f and knows nothing of what f is. It declares its parameters,
turns them into coefficients for all layers at once, and offers four moves:

    streams = open(x)                          the embedded input becomes the streams
    y       = f(read(c, streams))              a layer reads from the streams …
    streams = update(c, streams, y)            … and writes to them
    x       = close(params, streams)           the streams become the output

Shapes: a stream is […], whatever f takes; streams are [S, …]; coefficients are [L, …].
Formulas: docs/definitions.md, "Connections".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fathom.models.init import Constant, Normal, OneStream, Parameter, ScaledIdentity

TYPE_CHECKING = False
if TYPE_CHECKING:  # kept out of start-up: the workflow imports this file for the variants' names
    from fathom.models.ops import Array, Ops


def sinkhorn(ops: Ops, matrix: Array, iterations: int, floor: float = 1e-12) -> Array:
    """Divide rows, then columns, by their sums, `iterations` times.

    `matrix` [..., S, S] must be positive. The result's columns sum to 1 (they come last), its
    rows nearly so. Sums are kept at `floor` or above.
    """
    if matrix.shape[-1] == 1:
        iterations = min(iterations, 1)  # [[1]] after one pass; others leave that exactly as it is
    for _ in range(iterations):
        matrix = matrix / ops.maximum(ops.sum(matrix, axis=-1, keepdims=True), floor)
        matrix = matrix / ops.maximum(ops.sum(matrix, axis=-2, keepdims=True), floor)
    return matrix


class Coefficients(NamedTuple):
    """What a stream-mixing connection does, for all layers [L, …] or for one […]."""

    read: Array
    """[S]: the weights with which the streams are summed into f's input."""
    write: Array
    """[S]: the weights with which f's output is added to the streams."""
    H_res: Array
    """[S, S]: the mixing of the streams among themselves."""


def stream_spread(ops: Ops, streams: Array) -> tuple[Array, Array]:
    """How far the streams [S, …, D] are from being one: (difference, cosine), two scalars.

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


@dataclass(frozen=True)
class Connection(ABC):
    """What every residual scheme offers."""

    streams: int
    sinkhorn_iterations: int

    task: ClassVar[str] = "tokens"
    """Whose layers it fits: those of the task's network have a residual of their own, or not."""

    def parameters(self, depth: int, width: int) -> dict[str, Parameter]:
        """Its own parameters, stacked over `depth` layers of `width` channels; none by default."""
        return {}

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Coefficients | None:
        """What can be computed for all layers at once, [L, …]; None where nothing can."""
        return None

    def mixing(self, ops: Ops, coefficients: Coefficients | None) -> Array | None:
        """H_res of all layers, [L, S, S]; None where streams are not mixed by such matrices."""
        return None

    def per_layer(
        self, ops: Ops, coefficients: Coefficients | None, depth: int
    ) -> Sequence[Coefficients | None]:
        """The coefficients of each layer."""
        if coefficients is None:
            return [None] * depth
        parts = zip(*map(ops.unstack, coefficients), strict=True)
        return [type(coefficients)(*layer) for layer in parts]

    @abstractmethod
    def open(self, ops: Ops, x: Array) -> Array:
        """The embedded input […] → the first layer's streams."""

    @abstractmethod
    def read(self, ops: Ops, c: Coefficients | None, streams: Array) -> Array:
        """Streams → the layer's input […]."""

    @abstractmethod
    def update(self, ops: Ops, c: Coefficients | None, streams: Array, y: Array) -> Array:
        """Streams and the layer's output → the next layer's streams."""

    @abstractmethod
    def close(self, ops: Ops, params: dict[str, Array], streams: Array) -> Array:
        """The last layer's streams → the output […]."""


class Sequential(Connection):
    """`baseline`: layers in sequence, one stream. The layer brings its own residual."""

    def open(self, ops: Ops, x: Array) -> Array:
        return x

    def read(self, ops: Ops, c: Coefficients | None, streams: Array) -> Array:
        return streams

    def update(self, ops: Ops, c: Coefficients | None, streams: Array, y: Array) -> Array:
        return y

    def close(self, ops: Ops, params: dict[str, Array], streams: Array) -> Array:
        return streams


class HyperConnection(Connection):
    """`hc`: S streams, mixed by an unconstrained positive matrix, H_res = exp(logits).

    H_pre and H_post are row-softmaxes of their logits. As published, the layer reads the mean of
    the rows of H_pre x and its output goes to every row of H_postᵀ: that is, column means and
    column sums, so S numbers each serve for the S×S matrices.
    """

    def parameters(self, depth: int, width: int) -> dict[str, Parameter]:
        logits = Parameter((depth, self.streams, self.streams), ScaledIdentity(2.0, -1.0))
        return {f"connection.{name}": logits for name in ("H_pre", "H_post", "H_res")}

    def constrained(self, ops: Ops, logits: Array) -> Array:
        """H_res [L, S, S] from its logits."""
        return ops.exp(logits)

    def mixing(self, ops: Ops, coefficients: Coefficients) -> Array:
        return coefficients.H_res

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Coefficients:
        return Coefficients(
            read=ops.mean(ops.softmax(params["connection.H_pre"]), axis=-2),
            write=ops.sum(ops.softmax(params["connection.H_post"]), axis=-2),
            H_res=self.constrained(ops, params["connection.H_res"]),
        )

    def open(self, ops: Ops, x: Array) -> Array:
        return ops.repeat(x, self.streams)

    def read(self, ops: Ops, c: Coefficients, streams: Array) -> Array:
        return ops.tensordot(c.read, streams)

    def update(self, ops: Ops, c: Coefficients, streams: Array, y: Array) -> Array:
        return ops.tensordot(c.H_res, streams) + ops.outer(c.write, y)

    def close(self, ops: Ops, params: dict[str, Array], streams: Array) -> Array:
        return ops.mean(streams, axis=0)


class ManifoldHyperConnection(HyperConnection):
    """`mhc`: as `hc`, with H_res = Sinkhorn(exp(logits)), nearly doubly stochastic."""

    def constrained(self, ops: Ops, logits: Array) -> Array:
        return sinkhorn(ops, ops.exp(logits), self.sinkhorn_iterations)


# --- the image study: layers without a residual of their own -----------------------------------


class Residual(Sequential):
    """`resnet`: x ← x + f(x), one stream."""

    task: ClassVar[str] = "fashion"

    def update(self, ops: Ops, c: Coefficients | None, streams: Array, y: Array) -> Array:
        return streams + y


class History:
    """The states so far, and what finished blocks of them have put into layers to come."""

    def __init__(self, first: Array) -> None:
        self.states = [first]
        self.sums: dict[int, Array] = {}
        self.input: Array = None


class CausalConnection(Connection):
    """`hc_causal`: layer i reads a convex mixture of all states so far.

    W = exp(logits), [L, L]; the weights of layer i are W[i, :i+1] over their sum, and
    h_{i+1} = inp + f(inp).

    Summing the whole history in every layer reads L²/2 states. Here every finished block of n
    states (n the largest power of two that divides their number) is put into the n layers that
    come next, by one product of an n×n block of weights with the stacked states. Every pair of
    state and later layer is met once, and each state is read log₂(L) times.
    """

    task: ClassVar[str] = "fashion"

    def parameters(self, depth: int, width: int) -> dict[str, Parameter]:
        logits = Parameter((depth, depth), ScaledIdentity(4.0, noise=0.05))
        return {"connection.mixing": logits}

    def positive(self, ops: Ops, logits: Array) -> Array:
        """The matrix [L, L] whose prefixes are normalised."""
        return ops.exp(logits)

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Array:
        """The weights [L, L]: row i sums to 1 over columns 0 … i and is zero beyond."""
        matrix = ops.tril(self.positive(ops, params["connection.mixing"]))
        return matrix / ops.sum(matrix, axis=-1, keepdims=True)

    def per_layer(self, ops: Ops, coefficients: Array, depth: int) -> Sequence[Array]:
        return [coefficients] * depth

    def open(self, ops: Ops, x: Array) -> History:
        return History(x)

    def read(self, ops: Ops, c: Array, streams: History) -> Array:
        m = len(streams.states)
        n = m & -m
        # Layer i mixes the first i + 1 states, so m states are for layer m − 1 onwards.
        last = min(m - 1 + n, c.shape[0])
        block = c[m - 1 : last, m - n : m]
        parts = ops.unstack(ops.tensordot(block, ops.stack(streams.states[m - n : m])))
        for layer, part in enumerate(parts, start=m - 1):
            earlier = streams.sums.get(layer)
            streams.sums[layer] = part if earlier is None else earlier + part
        streams.input = streams.sums.pop(m - 1)
        return streams.input

    def update(self, ops: Ops, c: Array, streams: History, y: Array) -> History:
        streams.states.append(streams.input + y)
        return streams

    def close(self, ops: Ops, params: dict[str, Array], streams: History) -> Array:
        return streams.states[-1]


class PlainCausalConnection(CausalConnection):
    """As published: every layer sums the whole history. For comparison; no study uses it."""

    def read(self, ops: Ops, c: Array, streams: History) -> Array:
        m = len(streams.states)
        streams.input = ops.tensordot(c[m - 1, :m], ops.stack(streams.states))
        return streams.input


class CausalManifoldConnection(CausalConnection):
    """`mhc_causal`: the same with W = Sinkhorn(exp(logits)), sums kept at 1e-6 or above."""

    def positive(self, ops: Ops, logits: Array) -> Array:
        return sinkhorn(ops, ops.exp(logits), self.sinkhorn_iterations, floor=1e-6)


class StaticStreams(HyperConnection):
    """`hc_static`: one stream is read and written at first; H_res = its raw logits.

    Read-in, write-out and read-out are softmaxes over streams, with logits 5 on stream 0 and 0
    elsewhere; streams start as (x, 0, …, 0).
    """

    task: ClassVar[str] = "fashion"

    def parameters(self, depth: int, width: int) -> dict[str, Parameter]:
        first = OneStream(on=5.0, off=0.0)
        S = self.streams
        return {
            "connection.H_pre": Parameter((depth, S), first),
            "connection.H_post": Parameter((depth, S), first),
            "connection.H_res": Parameter((depth, S, S), ScaledIdentity(4.0, noise=0.05)),
            "connection.readout": Parameter((S,), first),
        }

    def constrained(self, ops: Ops, logits: Array) -> Array:
        return logits

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Coefficients:
        return Coefficients(
            read=ops.softmax(params["connection.H_pre"]),
            write=ops.softmax(params["connection.H_post"]),
            H_res=self.constrained(ops, params["connection.H_res"]),
        )

    def open(self, ops: Ops, x: Array) -> Array:
        return ops.stack([x, *[0 * x] * (self.streams - 1)])

    def close(self, ops: Ops, params: dict[str, Array], streams: Array) -> Array:
        return ops.tensordot(ops.softmax(params["connection.readout"]), streams)


class StaticManifoldStreams(StaticStreams):
    """`mhc_static`: H_res = (1 − α)·I + α·Sinkhorn(exp(logits)), α = σ(·), 0.01 at first."""

    def parameters(self, depth: int, width: int) -> dict[str, Parameter]:
        alpha = Parameter((depth,), Constant(-math.log(1 / 0.01 - 1)))
        return {**super().parameters(depth, width), "connection.alpha": alpha}

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Coefficients:
        found = super().coefficients(ops, params)
        mixed = sinkhorn(ops, ops.exp(params["connection.H_res"]), self.sinkhorn_iterations)
        alpha = ops.reshape(ops.sigmoid(params["connection.alpha"]), (-1, 1, 1))
        return found._replace(H_res=ops.identity_like(mixed) * (1 - alpha) + alpha * mixed)


class PaperStreams(StaticStreams):
    """`hc_paper`: hc as its paper starts it, without the dynamic part, which starts at zero.

    Layer k reads stream k mod S and writes to all; H_res = I. Streams start as copies and end as
    a sum, so at first the network is the residual network.
    """

    def parameters(self, depth: int, width: int) -> dict[str, Parameter]:
        S = self.streams
        return {
            "connection.H_pre": Parameter((depth, S), OneStream(1.0, 0.0, stream=None)),
            "connection.H_post": Parameter((depth, S), Constant(1.0)),
            "connection.H_res": Parameter((depth, S, S), ScaledIdentity(1.0)),
        }

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Coefficients:
        return Coefficients(
            read=params["connection.H_pre"],
            write=params["connection.H_post"],
            H_res=params["connection.H_res"],
        )

    def open(self, ops: Ops, x: Array) -> Array:
        return ops.repeat(x, self.streams)

    def close(self, ops: Ops, params: dict[str, Array], streams: Array) -> Array:
        return ops.sum(streams, axis=0)


class Dynamics(NamedTuple):
    """The learned numbers of a dynamic connection, for all layers [L, …] or for one."""

    phi_pre: Array
    phi_post: Array
    phi_res: Array
    b_pre: Array
    b_post: Array
    b_res: Array
    alpha: Array


class DynamicStreams(Connection):
    """`hc_dynamic`: coefficients computed from the streams, image by image; raw values.

    x̄ is the spatial mean of the streams, RMS-normalised over S·W numbers; H̃ = α·(x̄ φ) + b for
    each of pre, post and res, and for the read-out at the end. α starts at 0.01, φ at
    N(0, 1/(S·W)), b at ±5 on and off stream 0, and at 5·I − 5·(1 − I) plus a little noise for res.
    """

    task: ClassVar[str] = "fashion"

    KINDS = ("pre", "post", "res")

    def parameters(self, depth: int, width: int) -> dict[str, Parameter]:
        S, n = self.streams, self.streams * width
        phi, first = Normal(1 / math.sqrt(n)), OneStream(on=5.0, off=-5.0)
        return {
            "connection.phi_pre": Parameter((depth, S, n), phi),
            "connection.phi_post": Parameter((depth, S, n), phi),
            "connection.phi_res": Parameter((depth, S * S, n), phi),
            "connection.b_pre": Parameter((depth, S), first),
            "connection.b_post": Parameter((depth, S), first),
            "connection.b_res": Parameter((depth, S, S), ScaledIdentity(10.0, -5.0, noise=0.01)),
            "connection.alpha": Parameter((depth, 3), Constant(0.01)),
            "connection.phi_readout": Parameter((S, n), phi),
            "connection.b_readout": Parameter((S,), first),
            "connection.alpha_readout": Parameter((1,), Constant(0.01)),
        }

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Dynamics:
        return Dynamics(*(params[f"connection.{name}"] for name in Dynamics._fields))

    def squash(self, ops: Ops, kind: str, values: Array) -> Array:
        """Coefficients from H̃: raw here."""
        return values

    def summary(self, ops: Ops, streams: Array) -> Array:
        """x̄: [S, B, H, W, C] → [B, S·C], of unit mean square."""
        S, B, H, W, C = streams.shape
        means = ops.mean(ops.reshape(streams, (S, B, H * W, C)), axis=2)
        flat = ops.reshape(ops.transpose(means, (1, 0, 2)), (B, S * C))
        square = ops.sum(flat * flat, axis=-1, keepdims=True) / (S * C)
        return flat / ops.sqrt(square + 1e-6)

    def open(self, ops: Ops, x: Array) -> Array:
        return ops.stack([x, *[0 * x] * (self.streams - 1)])

    def read(self, ops: Ops, c: Dynamics, streams: Array) -> Array:
        pre = ops.linear(self.summary(ops, streams), c.phi_pre) * c.alpha[0] + c.b_pre
        return ops.einsum("bs,sbhwc->bhwc", self.squash(ops, "pre", pre), streams)

    def update(self, ops: Ops, c: Dynamics, streams: Array, y: Array) -> Array:
        S = self.streams
        x = self.summary(ops, streams)
        post = self.squash(ops, "post", ops.linear(x, c.phi_post) * c.alpha[1] + c.b_post)
        res = ops.reshape(ops.linear(x, c.phi_res), (-1, S, S)) * c.alpha[2] + c.b_res
        mixed = ops.einsum("brs,sbhwc->rbhwc", self.squash(ops, "res", res), streams)
        return mixed + ops.einsum("bs,bhwc->sbhwc", post, y)

    def close(self, ops: Ops, params: dict[str, Array], streams: Array) -> Array:
        phi, b, alpha = (params[f"connection.{n}_readout"] for n in ("phi", "b", "alpha"))
        weights = ops.linear(self.summary(ops, streams), phi) * alpha + b
        return ops.einsum("bs,sbhwc->bhwc", self.squash(ops, "pre", weights), streams)


class DynamicManifoldStreams(DynamicStreams):
    """`mhc_dynamic`: σ for reading, 2σ for writing, Sinkhorn (logits within ±10) for mixing."""

    def squash(self, ops: Ops, kind: str, values: Array) -> Array:
        if kind == "res":
            return sinkhorn(ops, ops.exp(ops.clip(values, 10.0)), self.sinkhorn_iterations)
        return ops.sigmoid(values) * (2.0 if kind == "post" else 1.0)


VARIANTS: dict[str, type[Connection]] = {
    "baseline": Sequential,
    "hc": HyperConnection,
    "mhc": ManifoldHyperConnection,
    "resnet": Residual,
    "hc_causal": CausalConnection,
    "mhc_causal": CausalManifoldConnection,
    "hc_static": StaticStreams,
    "mhc_static": StaticManifoldStreams,
    "hc_dynamic": DynamicStreams,
    "mhc_dynamic": DynamicManifoldStreams,
    "hc_paper": PaperStreams,
}
"""Every residual scheme by the name that config.yaml uses. A new variant is a class and a line."""
