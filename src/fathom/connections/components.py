"""Components of stream connections, except for the constraint of H_res (`constraints`).

A component is a class with its settings and its formula. In config.yaml it is a name, or a mapping
with `kind` and settings. To add one, add a class here and a line in the registry of its slot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import not_
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fathom.arithmetic.custom_vjp import NormedProduct
from fathom.arithmetic.forms import RAW, SIGMOID, SOFTMAX, WeightForm
from fathom.connections.component_types import MatrixStart, VectorStart, one_of_registry
from fathom.connections.connection import ConnectionContext
from fathom.init import Constant, Normal, Orthogonal, Parameter
from fathom.operations.ops import Array, Ops, Params
from fathom.settings import Flag, Nullable, Number, Registry, Settings

# --- open: expand the embedded input to streams --------------------------------------------------


class Open(Settings):
    """The embedded input […, C] → streams [S, …, C]."""

    def parameters(self, S: int, context: ConnectionContext) -> dict[str, Parameter]:
        """Its parameters `connection.*`; none by default."""
        return {}

    def streams(self, ops: Ops, params: Params, x: Array, S: int) -> Array:
        """The streams [S, …, C] from the embedded input."""
        raise NotImplementedError


class Copies(Open):
    """Every stream starts as the input."""

    kind: Literal["copies"] = "copies"

    def streams(self, ops: Ops, params: Params, x: Array, S: int) -> Array:
        return ops.broadcast(x, (S, *x.shape))


class FirstOnly(Open):
    """The first stream starts as the input, the others as zero."""

    kind: Literal["first_only"] = "first_only"

    def streams(self, ops: Ops, params: Params, x: Array, S: int) -> Array:
        return ops.stack([x, *[0 * x] * (S - 1)])


class StreamEmbedding(Open):
    """Copies, each plus a learned vector; the vectors start orthonormal, times `scale`."""

    kind: Literal["stream_embedding"] = "stream_embedding"
    scale: Number = 0.02

    def parameters(self, S: int, context: ConnectionContext) -> dict[str, Parameter]:
        start = Orthogonal(self.scale)
        return {"connection.stream_embedding": Parameter((S, context.width), start, is_matrix=True)}

    def streams(self, ops: Ops, params: Params, x: Array, S: int) -> Array:
        vectors, axes = params["connection.stream_embedding"], [1] * (len(x.shape) - 1)
        return ops.broadcast(x, (S, *x.shape)) + ops.reshape(vectors, (S, *axes, -1))


EXPANSIONS = Registry(
    {"copies": Copies, "first_only": FirstOnly, "stream_embedding": StreamEmbedding}
)
Expansion = one_of_registry("expansion", EXPANSIONS)


# --- pre and post: S weights for reading from streams and writing to them ------------------------


class Weights(Settings):
    """S weights per layer from logits; `start`: initial logits, or initial b if dynamic."""

    start: VectorStart = VectorStart()

    form: ClassVar[WeightForm | None] = None
    """The map as numbers, for compiled loops; None if they do not compute it."""

    def shape(self, S: int) -> tuple[int, ...]:
        """Shape of one layer's logits."""
        return (S,)

    def weights(self, ops: Ops, logits: Array) -> Array:
        """Logits [..., S] → weights [..., S]."""
        raise NotImplementedError


class RawWeights(Weights):
    """The logits themselves."""

    form = WeightForm(RAW)

    kind: Literal["raw"] = "raw"

    def weights(self, ops: Ops, logits: Array) -> Array:
        return logits


class SoftmaxWeights(Weights):
    """Softmax over streams."""

    form = WeightForm(SOFTMAX)

    kind: Literal["softmax"] = "softmax"

    def weights(self, ops: Ops, logits: Array) -> Array:
        return ops.softmax(logits)


class SigmoidWeights(Weights):
    """scale · σ(logit) + added, for each stream separately."""

    kind: Literal["sigmoid"] = "sigmoid"
    scale: Annotated[Number, Field(gt=0)] = 1.0
    added: Annotated[Number, Field(ge=0)] = 0.0

    @property
    def form(self) -> WeightForm:
        return WeightForm(SIGMOID, self.scale, self.added)

    def weights(self, ops: Ops, logits: Array) -> Array:
        weights = ops.sigmoid(logits)
        if self.scale != 1:
            weights = weights * self.scale
        return weights + self.added if self.added else weights


class RowSoftmaxMean(Weights):
    """Column means of the row softmaxes of an S×S matrix: the demo's H_pre.

    As published, the layer reads the mean of the rows of H_pre x, so S numbers replace S×S.
    """

    kind: Literal["row_softmax_mean"] = "row_softmax_mean"
    start: MatrixStart = MatrixStart(diagonal=1.0, off_diagonal=-1.0)

    def shape(self, S: int) -> tuple[int, ...]:
        return (S, S)

    def weights(self, ops: Ops, logits: Array) -> Array:
        return ops.mean(ops.softmax(logits), axis=-2)


class RowSoftmaxSum(RowSoftmaxMean):
    """Column sums of the row softmaxes of an S×S matrix: the demo's H_post.

    As published, the layer's output goes to every row of H_postᵀ.
    """

    kind: Literal["row_softmax_sum"] = "row_softmax_sum"

    def weights(self, ops: Ops, logits: Array) -> Array:
        return ops.sum(ops.softmax(logits), axis=-2)


WEIGHTS = Registry(
    {
        "raw": RawWeights,
        "softmax": SoftmaxWeights,
        "sigmoid": SigmoidWeights,
        "row_softmax_mean": RowSoftmaxMean,
        "row_softmax_sum": RowSoftmaxSum,
    }
)
AnyWeights = one_of_registry("map to weights", WEIGHTS)


# --- gate ---------------------------------------------------------------------------------------


class NoGate(Settings):
    """H_res unchanged."""

    kind: Literal["none"] = "none"

    def parameters(self, layers: int) -> dict[str, Parameter]:
        return {}

    def values(self, ops: Ops, params: Params, noise: Array | None) -> None:
        return None

    def sample_noise(self, rng: np.random.Generator, layers: int, progress: float) -> None:
        return None

    def apply(self, ops: Ops, g: Array | None, H: Array) -> Array:
        """H […, S, S], unchanged."""
        return H


class LearnedGate(Settings):
    """(1 − g) I + g H, with g = σ(logit) and one learned logit per layer.

    With noise, training perturbs every layer's g in every step. With a probability that rises from
    0.02 to 0.2 over the first tenth of the steps, g is replaced by a sample of U(0.1, 0.9);
    otherwise it is multiplied by a sample of U(0.7, 1.3) and limited to [0.1, 0.9].
    """

    kind: Literal["learned"] = "learned"
    start: Annotated[Number, Field(gt=0, lt=1)] = Field(0.01, description="g at first")
    noise: Flag = Field(False, description="whether training perturbs g")

    def parameters(self, layers: int) -> dict[str, Parameter]:
        """The gate's logits [L]."""
        return {"connection.gate": Parameter((layers,), Constant(-math.log(1 / self.start - 1)))}

    def values(self, ops: Ops, params: Params, noise: Array | None) -> Array:
        """g [L]; `noise` [L, 3]: see `sample_noise`."""
        g = ops.sigmoid(params["connection.gate"])
        if noise is None:
            return g
        is_drawn, value, factor = (noise[:, k] for k in range(3))
        perturbed = ops.clip(g * factor - 0.5, 0.4) + 0.5
        return is_drawn * value + (1 - is_drawn) * perturbed

    def sample_noise(
        self, rng: np.random.Generator, layers: int, progress: float
    ) -> np.ndarray | None:
        """[L, 3]: whether g is replaced (1 or 0), its replacement, and its factor otherwise.

        `progress`: fraction of the steps that are done. None without noise.
        """
        if not self.noise:
            return None
        share = 0.02 + 0.18 * min(1.0, progress / 0.1)
        is_drawn = rng.random(layers) < share
        values, factors = rng.uniform(0.1, 0.9, layers), rng.uniform(0.7, 1.3, layers)
        return np.stack([is_drawn, values, factors], axis=1).astype(np.float32)

    def apply(self, ops: Ops, g: Array, H: Array) -> Array:
        """Gate the matrices [L, S, S] with g [L], or all matrices of a layer with its one g."""
        g = ops.reshape(g, (-1, 1, 1))
        return ops.identity_like(H) * (1 - g) + g * H


GATES = Registry({"none": NoGate, "learned": LearnedGate})
Gate = one_of_registry("gate", GATES)


# --- coefficients: learned, or computed from the streams -----------------------------------------


class Static(Settings):
    """Learned coefficients, the same for every input."""

    kind: Literal["static"] = "static"


class FromStreams(Settings):
    """Coefficients H̃ computed from the streams, with static logits b.

    Parameters: φ of each part (pre, post, res), and one α per part or one for all.
    """

    alpha: Annotated[Number | None, Nullable] = Field(
        0.01, description="initial α; null: no α, as if it were one"
    )
    phi: Annotated[Number, Field(ge=0)] | None = Field(
        None, description="initial standard deviation of φ; null: 1/√(inputs of φ)"
    )
    phi_per_input: Flag = Field(
        False, exclude_if=not_, description="whether φ's deviation is `phi`/√(inputs of φ)"
    )
    one_alpha: Flag = Field(False, exclude_if=not_, description="whether all parts share one α")
    eps: Annotated[Number, Field(gt=0)] = Field(1e-6, description="added to the mean square")

    per_stream: ClassVar[bool] = False
    """Whether each stream is normed, and determines its own logits through a tanh."""

    def groups(self, S: int) -> int:
        """Number of groups of streams; each is normed, and determines its own logits."""
        return S if self.per_stream else 1

    def product(self, ops: Ops, phi: Array, x: Array) -> tuple[Array, Array]:
        """Streams [N, S, C], φ → (the normalised streams times φᵀ, [N, rows, …]; the streams)."""
        (N, S, C), G = x.shape, self.groups(x.shape[1])
        rows = ops.reshape(x, (N * G, S * C // G))
        product, again = ops.custom_vjp(NormedProduct(self.eps), rows, phi)
        if self.per_stream:
            by_stream = ops.reshape(ops.tanh(product), (N, S, phi.shape[0]))
            product = ops.transpose(by_stream, (0, 2, 1))
        return product, ops.reshape(again, x.shape)

    def parameters(
        self, shapes: dict[str, tuple[int, ...]], S: int, context: ConnectionContext
    ) -> dict[str, Parameter]:
        """Parameters for parts with logits of the given shapes, stacked over layers."""
        L = context.layers
        parameters = {
            f"connection.phi_{part}": self.phi_of((L,), shape, S, context)
            for part, shape in shapes.items()
        }
        if self.alpha is not None:
            alpha = Constant(self.alpha)
            count = 1 if self.one_alpha else len(shapes)
            parameters["connection.alpha"] = Parameter((L, count), alpha)
        return parameters

    def phi_of(
        self, stacked: tuple[int, ...], shape: tuple[int, ...], S: int, context: ConnectionContext
    ) -> Parameter:
        """φ [*stacked, rows, inputs] for logits of that shape."""
        G = self.groups(S)
        n = S * context.width // G
        deviation = 1.0 if self.phi is None else self.phi
        per_input = self.phi is None or self.phi_per_input
        start = Normal(deviation / math.sqrt(n) if per_input else deviation)
        return Parameter((*stacked, math.prod(shape) // G, n), start, is_matrix=True)

    def repeated(self, ops: Ops, alpha: Array, sizes: Sequence[int]) -> Array:
        """α [L, parts or 1] once for each logit, [L, logits]; `sizes`: numbers of logits."""
        belongs = np.eye(len(sizes)).repeat(sizes, axis=1)
        belongs = np.ones((1, sum(sizes))) if self.one_alpha else belongs
        return ops.matmul(alpha, ops.constant(belongs))

    def logits(
        self, ops: Ops, phi: Array, alpha: Array | None, b: Array, x: Array
    ) -> tuple[Array, Array]:
        """(H̃ of all parts, concatenated, [N, logits]; the streams [N, S, C]).

        Of one layer: `phi` [rows of all parts, …], `alpha` [logits] or None, `b` [logits].
        """
        product, x = self.product(ops, phi, x)
        values = ops.reshape(product, (x.shape[0], b.shape[0]))
        return b + values if alpha is None else ops.add_product(b, alpha, values), x


class Dynamic(FromStreams):
    """H̃ = α·(x̄ φ) + b: x̄ is the mean over the pooled axes, RMS-normalised over S·C."""

    kind: Literal["dynamic"] = "dynamic"


class DynamicPerStream(FromStreams):
    """H̃ = α·tanh(θ x̄ᵀ) + b: x̄_s is the mean of stream s, RMS-normalised over its C channels.

    Stream s determines entry s of pre and post, and column s of H_res. θ is called φ here.
    """

    kind: Literal["dynamic_per_stream"] = "dynamic_per_stream"
    per_stream = True


COEFFICIENTS = Registry(
    {"static": Static, "dynamic": Dynamic, "dynamic_per_stream": DynamicPerStream}
)
AnyCoefficients = one_of_registry("kind of coefficients", COEFFICIENTS)


# --- close: reduce the streams to the output -----------------------------------------------------


class Close(Settings):
    """The output is a weighted sum of the streams."""

    def parameters(self, S: int, context: ConnectionContext) -> dict[str, Parameter]:
        """Its parameters `connection.*`; none by default."""
        return {}

    def weights(self, ops: Ops, params: Params, S: int) -> Array | None:
        """Weights [S]; None if they depend on the streams."""
        raise NotImplementedError


class Mean(Close):
    """The mean over streams."""

    kind: Literal["mean"] = "mean"

    def weights(self, ops: Ops, params: Params, S: int) -> Array:
        return ops.constant(np.full(S, 1 / S))


class Sum(Close):
    """The sum over streams."""

    kind: Literal["sum"] = "sum"

    def weights(self, ops: Ops, params: Params, S: int) -> Array:
        return ops.constant(np.ones(S))


class Readout(Close):
    """The weights are `map` of logits, which start at the map's `start`.

    As in layers, the logits are learned or computed from the streams: `coefficients`.
    """

    kind: Literal["readout"] = "readout"
    map: AnyWeights = "softmax"
    coefficients: AnyCoefficients = Field(
        Static(), exclude_if=lambda value: value.kind == "static", description="of its logits"
    )

    def parameters(self, S: int, context: ConnectionContext) -> dict[str, Parameter]:
        """Learned logits; or b, φ and α of computed logits."""
        shape, computed = self.map.shape(S), self.coefficients
        parameters = {"connection.readout": Parameter(shape, self.map.start.distribution(S))}
        if isinstance(computed, FromStreams):
            parameters["connection.readout_phi"] = computed.phi_of((), shape, S, context)
            if computed.alpha is not None:
                parameters["connection.readout_alpha"] = Parameter((1,), Constant(computed.alpha))
        return parameters

    def weights(self, ops: Ops, params: Params, S: int) -> Array | None:
        if isinstance(self.coefficients, FromStreams):
            return None
        return self.map.weights(ops, params["connection.readout"])


class LastPre(Close):
    """The weights `pre` of the last layer."""

    kind: Literal["last_pre"] = "last_pre"

    def weights(self, ops: Ops, params: Params, S: int) -> None:
        return None


CLOSINGS = Registry({"mean": Mean, "sum": Sum, "readout": Readout, "last_pre": LastPre})
Closing = one_of_registry("closing", CLOSINGS)
