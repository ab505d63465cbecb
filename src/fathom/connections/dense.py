"""`dense`: before each block, a weighted sum of the outputs of all blocks so far."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fathom.arithmetic.dense_vjp import DynamicReads
from fathom.connections.connection import Apart, Connection, ConnectionContext, Scheme
from fathom.connections.depth_attention import refuse_without_attention
from fathom.init import Constant, Normal, OneStream, Parameter
from fathom.operations.ops import Array, Arrays, Ops, Params
from fathom.settings import Flag, Nullable, Number, Positive


class Dense(Scheme):
    """Y_i = Σ_{j ≤ i} a_ij X_j after block i, X_{i+1} = block(Y_i), the output Y_L.

    X_0 is the embedded input, and Y_0 = X_0; blocks have ordinary residuals. Dynamic weights of
    each token are a_i + W_i gelu(V_i r(X_i)), r(x) = RMSNorm(x). All start at a_ii = 1, else 0.
    """

    kind: Literal["dense"] = "dense"
    weights: Literal["static", "dynamic"] = "static"
    apart: Flag = Field(
        False,
        description="whether a block's attention reads q, k and v with weights of their own, "
        "beside those of the residual",
    )
    last: Annotated[Positive | None, Nullable] = Field(
        None,
        exclude_if=lambda value: value is None,
        description="n: only the last n sums, the output among them; other blocks read the stream. "
        "null: all",
    )
    multiple: Positive = Field(
        64, description="dynamic: rows of V are a multiple of it, above the number of weights"
    )
    expand_last: Positive = Field(4, description="dynamic: factor of the rows of the last V")
    eps: Annotated[Number, Field(gt=0)] = Field(1e-6, description="added to the mean square")

    @model_validator(mode="after")
    def _static_weights_are_one_set(self) -> Dense:
        if self.apart and self.weights == "static":
            raise ValueError("apart: q, k and v need weights: dynamic; use false")
        return self

    def at(self, context: ConnectionContext) -> DenseConnection:
        """The connection in a network. Raises ConfigError if q, k and v have one input."""
        if self.apart:
            refuse_without_attention("dense", "apart: false", context)
        return (StaticDense if self.weights == "static" else DynamicDense)(self, context)


class DenseState(NamedTuple):
    """A pass up to a layer."""

    params: Params
    outputs: Arrays
    """X_j […, C]; those that were summed are [N, C]"""
    x: Array
    """[…, C]: the residual of the block that is open."""
    apart: Apart | None = None
    """Inputs of its attention, if they differ from x."""


class DenseConnection(Connection):
    """Formula: `Dense`."""

    settings: Dense

    @cached_property
    def sums(self) -> range:
        """Each i of which the weighted sum of X_0 … X_i is taken."""
        last, end = self.settings.last, self.context.blocks + 1
        return range(1 if last is None else max(1, end - last), end)

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> DenseState:
        return DenseState(params, (x,), x)

    def read(self, ops: Ops, state: DenseState, k: int) -> tuple[Array | Apart, DenseState]:
        read = state.x if state.apart is None else state.apart
        return read, state._replace(apart=None)

    def write(self, ops: Ops, state: DenseState, k: int, y: Array) -> DenseState:
        x = y if self.context.has_residual else state.x + y
        state = state._replace(x=x)
        block, within = divmod(k + 1, self.context.per_block)
        if within:
            return state
        state = state._replace(outputs=(*state.outputs, x))
        return self.summed(ops, state, block) if block in self.sums else state

    def close(self, ops: Ops, state: DenseState) -> Array:
        return state.x

    def summed(self, ops: Ops, state: DenseState, i: int) -> DenseState:
        """State with the input of block i, or for i = L the output, from the outputs X_0 … X_i."""
        raise NotImplementedError


class StaticDense(DenseConnection):
    """Weights are learned, the same for all tokens."""

    def parameters(self) -> dict[str, Parameter]:
        return {
            f"connection.weights_{i}": Parameter((1, i + 1), OneStream(1.0, 0.0, i))
            for i in self.sums
        }

    def summed(self, ops: Ops, state: DenseState, i: int) -> DenseState:
        weights = state.params[f"connection.weights_{i}"]
        (x,) = ops.unstack(ops.tensordot(weights, ops.stack(state.outputs)))
        return state._replace(x=x)

    def matrices(self, ops: Ops, params: Params) -> dict[str, Array]:
        """`weights` [L, L + 1], zero where there is no output yet."""
        L, rows = self.context.blocks, []
        for i in range(1, L + 1):
            if i not in self.sums:
                rows.append(ops.constant(np.eye(L + 1)[i]))
                continue
            row = params[f"connection.weights_{i}"][0]
            rows.append(ops.concatenate([row, ops.constant(np.zeros(L - i))], axis=0))
        return {"weights": ops.stack(rows)}

    def matrix_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weights": (self.context.blocks, self.context.blocks + 1)}


class DynamicDense(DenseConnection):
    """Weights are computed for each token from the last output."""

    def reads_apart(self, k: int) -> bool:
        block, within = divmod(k, self.context.per_block)
        return self.settings.apart and within == 0 and block in self.sums

    def reads(self, i: int) -> int:
        """Number of weighted sums after block i: of the residual, and of q, k and v."""
        return 4 if self.settings.apart and i < self.context.blocks else 1

    def parameters(self) -> dict[str, Parameter]:
        s, C, parameters = self.settings, self.context.width, {}
        for i in self.sums:
            shape = (self.reads(i), i + 1)
            count = math.prod(shape)
            rows = count * (s.expand_last if i == self.context.blocks else 1)
            rows = (rows // s.multiple + 1) * s.multiple
            start = Normal(1 / math.sqrt(C))
            parameters |= {
                f"connection.weights_{i}": Parameter(shape, OneStream(1.0, 0.0, i)),
                f"connection.hidden_{i}": Parameter((rows, C), start, is_matrix=True),
                f"connection.dynamic_{i}": Parameter((count, rows), Constant(0.0), is_matrix=True),
            }
        return parameters

    def summed(self, ops: Ops, state: DenseState, i: int) -> DenseState:
        shape, ways = state.x.shape, self.reads(i)
        N, C = math.prod(shape[:-1]), self.context.width
        weights, hidden, dynamic = (
            state.params[f"connection.{name}_{i}"] for name in ("weights", "hidden", "dynamic")
        )
        sources = (ops.reshape(x, (N, C)) for x in state.outputs)
        reads = DynamicReads(self.settings.eps)
        results = ops.custom_vjp(reads, weights, hidden, dynamic, *sources)
        *own, x = (ops.reshape(y, shape) for y in results[:ways])
        return state._replace(
            x=x, outputs=tuple(results[ways:]), apart=Apart(*own) if own else None
        )
