"""`causal`: every layer reads a convex mixture of all states so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fathom.models.connections.connection import Connection, Site
from fathom.models.connections.ingredients import Constraint, MatrixStart
from fathom.models.init import Parameter
from fathom.settings import Section

if TYPE_CHECKING:
    from fathom.models.ops import Array, Ops


class Causal(Section):
    """W = constraint(logits), [L, L]; layer i reads with W[i, :i+1] divided by its sum.

    h_{i+1} = inp + f(inp), and the output is the last state.
    """

    kind: Literal["causal"] = "causal"
    constraint: Constraint = "exp"
    start: MatrixStart = MatrixStart(diagonal=4.0, off_diagonal=0.0, noise=0.05)

    def at(self, site: Site) -> CausalConnection:
        """The scheme at its site."""
        return CausalConnection(self, site)


class History:
    """The states so far, and what finished blocks of them have put into layers to come."""

    def __init__(self, first: Array) -> None:
        self.states = [first]
        self.sums: dict[int, Array] = {}
        self.input: Array = None


@dataclass(frozen=True)
class CausalConnection(Connection):
    """Formula: `Causal`.

    Summing the whole history in every layer reads L²/2 states. Here every finished block of n
    states (n the largest power of two that divides their number) is put into the n layers that
    come next, by one product of an n×n block of weights with the stacked states. Every pair of
    state and later layer is met once, and each state is read log₂(L) times.
    """

    settings: Causal
    site: Site

    def parameters(self) -> dict[str, Parameter]:
        L = self.site.layers
        return {"connection.mixing": Parameter((L, L), self.settings.start.distribution())}

    def constrained(self, ops: Ops, params: dict[str, Array]) -> Array:
        """The positive matrix [L, L] whose prefixes are normalised."""
        return self.settings.constraint.matrix(ops, params["connection.mixing"])

    def coefficients(self, ops: Ops, params: dict[str, Array]) -> Array:
        """The weights [L, L]: row i sums to 1 over columns 0 … i and is zero beyond."""
        matrix = ops.tril(self.constrained(ops, params))
        return matrix / ops.sum(matrix, axis=-1, keepdims=True)

    def per_layer(self, ops: Ops, coefficients: Array) -> Sequence[Array]:
        return [coefficients] * self.site.layers

    def matrices(self, ops: Ops, params: dict[str, Array]) -> dict[str, Array]:
        """`mixing`, whose prefixes are normalised, and the `weights` that layers read with."""
        return {"mixing": self.constrained(ops, params), "weights": self.coefficients(ops, params)}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        L = self.site.layers
        return {"mixing": (L, L), "weights": (L, L)}

    def open(self, ops: Ops, x: Array) -> History:
        return History(x)

    def pre(self, ops: Ops, c: Array, streams: History) -> Array:
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
        streams.states.append(y if self.site.has_residual else streams.input + y)
        return streams

    def close(self, ops: Ops, params: dict[str, Array], streams: History) -> Array:
        return streams.states[-1]
