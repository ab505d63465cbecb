"""`causal`: every layer reads a convex combination of all states so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from fathom.models.connections.connection import Connection, ConnectionContext
from fathom.models.connections.constraints import Constraint
from fathom.models.init import Parameter
from fathom.settings import Number, Settings

if TYPE_CHECKING:
    from fathom.models.ops import Array, Layers, Ops


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

    def weights(self, ops: Ops, params: dict[str, Array]) -> Array:
        """The weights [L, L]: row i sums to 1 over columns 0 … i and is zero beyond."""
        matrix = ops.tril(self.constrained(ops, params))
        return matrix / (ops.sum(matrix, axis=-1, keepdims=True) + self.settings.added)

    def matrices(self, ops: Ops, params: dict[str, Array]) -> dict[str, Array]:
        """`mixing`, before row prefixes are normalised, and the `weights` that layers read with."""
        return {"mixing": self.constrained(ops, params), "weights": self.weights(ops, params)}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        L = self.context.layers
        return {"mixing": (L, L), "weights": (L, L)}

    def through(
        self, ops: Ops, params: dict[str, Array], x: Array, layers: Layers, noise: Array | None
    ) -> tuple[Array, None]:
        weights = self.weights(ops, params)
        states, sums = [x], {}
        for i, layer in enumerate(layers):
            m = i + 1
            n = m & -m
            # Layer i mixes the first i + 1 states, so these m states serve layers from i on.
            block = weights[i : min(i + n, len(layers)), m - n : m]
            parts = ops.unstack(ops.tensordot(block, ops.stack(states[m - n : m])))
            for later, part in enumerate(parts, start=i):
                sums[later] = sums[later] + part if later in sums else part
            x = sums.pop(i)
            states.append(layer(x) if self.context.has_residual else x + layer(x))
        return states[-1], None
