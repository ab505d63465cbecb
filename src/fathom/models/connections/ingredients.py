"""What stream schemes are made of: each ingredient a class with its settings and its formula.

An ingredient is written in config.yaml as its name, or as a mapping with `kind` and settings. A
new one is a class here and its line in the registry of its slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BeforeValidator, Field, SerializeAsAny, WrapValidator

from fathom.models.init import Constant, Distribution, Normal, OneStream, Parameter, ScaledIdentity
from fathom.settings import NonNegative, Number, Positive, Registry, Section, unknown

if TYPE_CHECKING:
    from fathom.models.connections.connection import Site
    from fathom.models.ops import Array, Ops


def one_of_registry(what: str, registry: Registry[type[Section]]) -> Any:  # noqa: ANN401, a type
    """The type of a slot: one of the registry's sections, by name or as a mapping with `kind`."""

    def parse(value: object, _: object) -> Section:
        if isinstance(value, Section):
            return value
        settings = {"kind": value} if isinstance(value, str) else value
        if not isinstance(settings, Mapping) or not isinstance(settings.get("kind"), str):
            raise ValueError(f"must be the name of a {what}, or a mapping with 'kind'")
        kind = settings["kind"]
        if kind not in registry:
            raise ValueError(unknown(what, kind, registry))
        return registry[kind].model_validate(settings)

    # The union is what the schema and the serialiser see; `parse` gives clearer errors.
    return Annotated[
        SerializeAsAny[Union[tuple(registry.values())]],  # noqa: UP007, made at run time
        WrapValidator(parse),
    ]


# --- initial values -----------------------------------------------------------------------------


def _a_stream(value: object) -> object:
    """Checked before the union, which would name each of its sides."""
    if value != "cycle" and (type(value) is not int or value < 0):
        raise ValueError(f"must be a whole number from 0, or cycle, but is {value!r}")
    return value


class VectorStart(Section):
    """Initial logits of S weights: `on` for one stream, `off` for the others."""

    on: Number = 0.0
    off: Number = 0.0
    stream: Annotated[NonNegative | Literal["cycle"], BeforeValidator(_a_stream)] = Field(
        0, description="which stream is on; cycle: layer l has stream l mod S"
    )

    def distribution(self) -> Distribution:
        """The same for every layer, but for the cycle."""
        return OneStream(self.on, self.off, None if self.stream == "cycle" else self.stream)


class MatrixStart(Section):
    """Initial logits of a square matrix, plus N(0, noise²) everywhere."""

    diagonal: Number = 0.0
    off_diagonal: Number = 0.0
    noise: Annotated[Number, Field(ge=0)] = 0.0

    def distribution(self) -> Distribution:
        """The same for every layer, but for the noise."""
        return ScaledIdentity(self.diagonal - self.off_diagonal, self.off_diagonal, self.noise)


# --- open: the embedded input becomes the streams -----------------------------------------------


class Copies(Section):
    """Every stream begins as the input."""

    kind: Literal["copies"] = "copies"

    def streams(self, ops: Ops, x: Array, S: int) -> Array:
        """[…, C] → [S, …, C]."""
        return ops.repeat(x, S)


class FirstOnly(Section):
    """The first stream begins as the input, the others as zero."""

    kind: Literal["first_only"] = "first_only"

    def streams(self, ops: Ops, x: Array, S: int) -> Array:
        """[…, C] → [S, …, C]."""
        return ops.stack([x, *[0 * x] * (S - 1)])


OPENINGS = Registry({"copies": Copies, "first_only": FirstOnly})
Opening = one_of_registry("opening", OPENINGS)


# --- pre and post: S weights with which streams are read, and written to ------------------------


class Weights(Section):
    """S weights per layer from logits; `start` is their initial value, or b's where dynamic."""

    start: VectorStart = VectorStart()

    def shape(self, S: int) -> tuple[int, ...]:
        """Shape of one layer's logits."""
        return (S,)

    def weights(self, ops: Ops, logits: Array) -> Array:
        """Logits [..., S] → weights [..., S]."""
        raise NotImplementedError


class RawWeights(Weights):
    """The logits themselves."""

    kind: Literal["raw"] = "raw"

    def weights(self, ops: Ops, logits: Array) -> Array:
        return logits


class SoftmaxWeights(Weights):
    """Softmax over streams."""

    kind: Literal["softmax"] = "softmax"

    def weights(self, ops: Ops, logits: Array) -> Array:
        return ops.softmax(logits)


class SigmoidWeights(Weights):
    """scale · σ(logit) for each stream by itself."""

    kind: Literal["sigmoid"] = "sigmoid"
    scale: Annotated[Number, Field(gt=0)] = 1.0

    def weights(self, ops: Ops, logits: Array) -> Array:
        return ops.sigmoid(logits) * self.scale


class RowSoftmaxMean(Weights):
    """Column means of the row softmaxes of an S×S matrix: the demo's H_pre.

    As published, the layer reads the mean of the rows of H_pre x: S numbers serve for S×S.
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


# --- the constraint of H_res --------------------------------------------------------------------


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


class Raw(Section):
    """The logits themselves."""

    kind: Literal["raw"] = "raw"

    def matrix(self, ops: Ops, logits: Array) -> Array:
        """Logits [..., S, S] → matrices of that shape."""
        return logits


class Exp(Section):
    """exp(logits): positive, unbounded."""

    kind: Literal["exp"] = "exp"

    def matrix(self, ops: Ops, logits: Array) -> Array:
        """Logits [..., S, S] → matrices of that shape."""
        return ops.exp(logits)


class Sinkhorn(Section):
    """Sinkhorn(exp(logits)), nearly doubly stochastic: columns are divided by their sums last."""

    kind: Literal["sinkhorn"] = "sinkhorn"
    iterations: Positive = Field(20, description="passes over rows and columns")
    floor: Annotated[Number, Field(gt=0)] = Field(1e-12, description="sums are kept above it")
    clip: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="logits are limited to ± this"
    )

    def matrix(self, ops: Ops, logits: Array) -> Array:
        """Logits [..., S, S] → matrices of that shape."""
        bounded = logits if self.clip is None else ops.clip(logits, self.clip)
        return sinkhorn(ops, ops.exp(bounded), self.iterations, self.floor)


CONSTRAINTS = Registry({"raw": Raw, "exp": Exp, "sinkhorn": Sinkhorn})
Constraint = one_of_registry("constraint", CONSTRAINTS)


# --- gate ---------------------------------------------------------------------------------------


class NoGate(Section):
    """H_res as it is."""

    kind: Literal["none"] = "none"

    def parameters(self, layers: int) -> dict[str, Parameter]:
        """None."""
        return {}

    def gated(self, ops: Ops, logits: Array | None, H: Array) -> Array:
        """[…, S, S] → the same."""
        return H


class LearnedGate(Section):
    """(1 − g) I + g H, with g = σ(·) of one number per layer."""

    kind: Literal["learned"] = "learned"
    start: Annotated[Number, Field(gt=0, lt=1)] = Field(0.01, description="g at first")

    def parameters(self, layers: int) -> dict[str, Parameter]:
        """The gate's logit, [L]."""
        return {"connection.gate": Parameter((layers,), Constant(-math.log(1 / self.start - 1)))}

    def gated(self, ops: Ops, logits: Array | None, H: Array) -> Array:
        """Logits [L] and matrices [L, S, S], or one logit and all of its layer: gated matrices."""
        g = ops.reshape(ops.sigmoid(logits), (-1, 1, 1))
        return ops.identity_like(H) * (1 - g) + g * H


GATES = Registry({"none": NoGate, "learned": LearnedGate})
Gate = one_of_registry("gate", GATES)


# --- coefficients from the streams --------------------------------------------------------------


class Static(Section):
    """Learned numbers, the same for every input."""

    kind: Literal["static"] = "static"


class Dynamic(Section):
    """H̃ = α·(x̄ φ) + b: x̄ is the mean of the streams over the pooled axes, RMS-normalised over S·C.

    φ starts at N(0, 1/(S·C)).
    """

    kind: Literal["dynamic"] = "dynamic"
    alpha: Number = Field(0.01, description="α at first")
    eps: Annotated[Number, Field(ge=0)] = Field(1e-6, description="added to the mean square")

    def phi(self, S: int, site: Site) -> Distribution:
        """Where φ starts."""
        return Normal(1 / math.sqrt(S * site.width))

    def summary(self, ops: Ops, streams: Array, pooled_axes: int) -> Array:
        """x̄: [S, …, C] → […, S·C] without the pooled axes, of unit mean square."""
        S, *middle, C = streams.shape
        kept = middle[: len(middle) - pooled_axes]
        means = streams
        if pooled_axes:
            means = ops.mean(ops.reshape(streams, (S, *kept, -1, C)), axis=-2)
        order = (*range(1, len(kept) + 1), 0, len(kept) + 1)
        flat = ops.reshape(ops.transpose(means, order), (*kept, S * C))
        square = ops.sum(flat * flat, axis=-1, keepdims=True) / (S * C)
        return flat / ops.sqrt(square + self.eps)


COEFFICIENTS = Registry({"static": Static, "dynamic": Dynamic})
AnyCoefficients = one_of_registry("kind of coefficients", COEFFICIENTS)


# --- close: the streams become the output -------------------------------------------------------


class Mean(Section):
    """The mean over streams."""

    kind: Literal["mean"] = "mean"


class Sum(Section):
    """The sum over streams."""

    kind: Literal["sum"] = "sum"


class Readout(Section):
    """A learned weight for each stream; where coefficients are dynamic, computed from the streams.

    `map` turns logits into weights; its `start` is their initial value.
    """

    kind: Literal["readout"] = "readout"
    map: AnyWeights = "softmax"


CLOSINGS = Registry({"mean": Mean, "sum": Sum, "readout": Readout})
Closing = one_of_registry("closing", CLOSINGS)
