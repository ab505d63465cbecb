"""`causal`: every layer reads a convex combination of all states so far."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from fathom.connections.connection import Connection, ConnectionContext, Scheme
from fathom.connections.constraints import Constraint
from fathom.init import Parameter
from fathom.operations.ops import Array, Arrays, Ops, Params
from fathom.settings import Number


class Causal(Scheme):
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
                "use exp or sinkhorn"
            )
        return self

    def at(self, context: ConnectionContext) -> CausalConnection:
        return CausalConnection(self, context)


class History(NamedTuple):
    """A pass up to a layer."""

    blocks: dict[int, Array]
    """By the number m of finished states: weights [n, n] of the last n of them in the next n
    layers; near the end there are fewer layers."""
    states: Arrays
    """All states so far, […, C] each."""
    sums: Arrays = ()
    """For this layer and each later one, the sum over finished blocks of states so far."""
    read: Array | None = None
    """Input of the layer."""


class CausalConnection(Connection):
    """Formula: `Causal`.

    Summing the whole history in every layer would read L²/2 states. Instead, every finished block
    of n states (n is the largest power of two that divides their number) is added to the next n
    layers by one product of an n×n block of weights with the stacked states. That covers every
    pair of state and later layer once, and reads each state log₂(L) times.

    The blocks are cut out by halving. The gradient of a slice is as large as the array it is cut
    from: L slices of the whole would take L³ numbers, halves of halves take 2 L².
    """

    settings: Causal

    def parameters(self) -> dict[str, Parameter]:
        L, constraint = self.context.layers, self.settings.constraint
        start = constraint.start.distribution(L)
        return {"connection.mixing": Parameter(constraint.shape(L), start)}

    def constrained(self, ops: Ops, params: Params) -> Array:
        """The positive matrix [L, L] whose row prefixes are normalised."""
        L, logits = self.context.layers, params["connection.mixing"]
        return self.settings.constraint.matrix(ops, logits[None], L, L)[0]

    def weights(self, ops: Ops, params: Params) -> Array:
        """The weights [L, L]: row i sums to 1 over columns 0 … i and is zero beyond."""
        matrix = ops.tril(self.constrained(ops, params))
        return matrix / (ops.sum(matrix, axis=-1, keepdims=True) + self.settings.added)

    def matrices(self, ops: Ops, params: Params) -> dict[str, Array]:
        """`mixing`, before row prefixes are normalised, and the `weights` that layers read with."""
        return {"mixing": self.constrained(ops, params), "weights": self.weights(ops, params)}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        L = self.context.layers
        return {"mixing": (L, L), "weights": (L, L)}

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> History:
        L = self.context.layers
        size = 1 << L.bit_length()  # the power of two above L
        return History(dict(cut_blocks(self.weights(ops, params), 0, size)), (x,))

    def read(self, ops: Ops, state: History, k: int) -> tuple[Array, History]:
        m = k + 1  # layer k mixes the first k + 1 states, so these serve layers from k on
        block = state.blocks[m]
        parts = ops.unstack(ops.tensordot(block, ops.stack(state.states[m - block.shape[1] : m])))
        x, *sums = (
            a if b is None else b if a is None else a + b for a, b in zip_longest(state.sums, parts)
        )
        return x, state._replace(sums=tuple(sums), read=x)

    def write(self, ops: Ops, state: History, k: int, y: Array) -> History:
        new = y if self.context.has_residual else state.read + y
        return state._replace(states=(*state.states, new), read=None)

    def close(self, ops: Ops, state: History) -> Array:
        return state.states[-1]


def cut_blocks(weights: Array, first: int, size: int) -> Iterator[tuple[int, Array]]:
    """Blocks of `History` by m, for m between `first` and `first` + `size`, a power of two.

    `weights`: weights of `size` states from `first` on in `size` layers from `first` − 1 on; fewer
    near the end. There is no layer −1.
    """
    half = size // 2
    if half == 0:
        return
    m, upper = first + half, half - (first == 0)
    if weights.shape[0] > upper:
        yield m, weights[upper:, :half]
        yield from cut_blocks(weights[upper:, half:], m, half)
    yield from cut_blocks(weights[:upper, :half], first, half)
