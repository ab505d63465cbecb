"""`causal`: every layer reads a convex combination of all states so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from fathom.models.connections.connection import Connection, ConnectionContext
from fathom.models.connections.constraints import Constraint
from fathom.models.init import Parameter
from fathom.settings import Number, Settings

if TYPE_CHECKING:
    from fathom.models.ops import Array, Ops


class Causal(Settings):
    """W = constraint(logits), [L, L]; layer i reads with W[i, :i+1] divided by its sum.

    h_{i+1} = inp + f(inp), and the output is the last state.
    """

    kind: Literal["causal"] = "causal"
    constraint: Constraint = "exp"
    added: Annotated[Number, Field(ge=0)] = Field(1e-6, description="added to the sum of a prefix")

    @model_validator(mode="after")
    def _each_pair_of_layers_has_a_logit(self) -> Causal:
        """Raises ValueError for a constraint without [L, L] logits."""
        if self.constraint.shape(3) != (3, 3):
            raise ValueError(
                f"constraint: {self.constraint.kind} has no logit for each pair of layers; "
                "take exp or sinkhorn"
            )
        return self

    def at(self, context: ConnectionContext) -> CausalConnection:
        """The connection in a network."""
        return CausalConnection(self, context)


class History:
    """The states so far, and what finished blocks of them contribute to later layers."""

    def __init__(self, first: Array) -> None:
        self.states = [first]
        self.sums: dict[int, Array] = {}
        self.input: Array = None


@dataclass(frozen=True)
class CausalConnection(Connection):
    """Formula: `Causal`.

    Summing the whole history in every layer would read L²/2 states. Instead, every finished block
    of n states (n is the largest power of two that divides their number) is added to the next n
    layers by one product of an n×n block of weights with the stacked states. That covers every
    pair of state and later layer once, and reads each state log₂(L) times.
    """

    settings: Causal
    context: ConnectionContext

    def parameters(self) -> dict[str, Parameter]:
        L, constraint = self.context.layers, self.settings.constraint
        start = constraint.start.distribution(L)
        return {"connection.mixing": Parameter(constraint.shape(L), start)}

    def constrained(self, ops: Ops, params: dict[str, Array]) -> Array:
        """The positive matrix [L, L] whose row prefixes are normalised."""
        L, logits = self.context.layers, params["connection.mixing"]
        return self.settings.constraint.matrix(ops, logits[None], L, L)[0]

    def coefficients(self, ops: Ops, params: dict[str, Array], noise: Array | None = None) -> Array:
        """The weights [L, L]: row i sums to 1 over columns 0 … i and is zero beyond."""
        matrix = ops.tril(self.constrained(ops, params))
        return matrix / (ops.sum(matrix, axis=-1, keepdims=True) + self.settings.added)

    def per_layer(self, ops: Ops, coefficients: Array) -> Sequence[Array]:
        return [coefficients] * self.context.layers

    def matrices(self, ops: Ops, params: dict[str, Array]) -> dict[str, Array]:
        """`mixing`, before row prefixes are normalised, and the `weights` that layers read with."""
        return {"mixing": self.constrained(ops, params), "weights": self.coefficients(ops, params)}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        L = self.context.layers
        return {"mixing": (L, L), "weights": (L, L)}

    def open(self, ops: Ops, coefficients: Array, x: Array) -> History:
        return History(x)

    def read(self, ops: Ops, c: Array, streams: History) -> tuple[Array, History]:
        m = len(streams.states)
        n = m & -m
        # Layer i mixes the first i + 1 states, so these m states serve layers from m − 1 on.
        last = min(m - 1 + n, c.shape[0])
        block = c[m - 1 : last, m - n : m]
        parts = ops.unstack(ops.tensordot(block, ops.stack(streams.states[m - n : m])))
        for layer, part in enumerate(parts, start=m - 1):
            earlier = streams.sums.get(layer)
            streams.sums[layer] = part if earlier is None else earlier + part
        streams.input = streams.sums.pop(m - 1)
        return streams.input, streams

    def write(self, ops: Ops, c: Array, streams: History, y: Array) -> History:
        streams.states.append(y if self.context.has_residual else streams.input + y)
        return streams

    def close(self, ops: Ops, coefficients: Array, streams: History) -> Array:
        return streams.states[-1]
