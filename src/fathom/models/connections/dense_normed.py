"""`dense_normed`: `dense` with dynamic weights and norms around its sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fathom.models.connections.connection import Apart, ConnectionContext, root_mean_square
from fathom.models.connections.dense import Dense, DenseState, DynamicDense
from fathom.models.connections.depth_attention import refuse_without_attention
from fathom.models.init import Constant, Parameter
from fathom.settings import Flag

if TYPE_CHECKING:
    from fathom.models.ops import Array, Ops


class NormedDense(Dense):
    """Y_i = X_i + h_i ∘ r(Z_i), Z_i = Σ_{j ≤ i} a_ij (g_j ∘ r(X_j)); q, k and v read X_i + Z_i.

    Each of the four Z_i has its own weights. Weights of each token are computed as in `dense`, but
    start at zero; g starts at 1, h at 0.001.
    """

    kind: Literal["dense_normed"] = "dense_normed"
    weights: Literal["dynamic"] = "dynamic"
    apart: Flag = True

    def at(self, context: ConnectionContext) -> NormedDenseConnection:
        """The connection in a network. Raises ConfigError if q, k and v have one input."""
        if self.apart:
            refuse_without_attention("dense_normed", "apart: false", context)
        return NormedDenseConnection(self, context)


@dataclass(frozen=True)
class NormedDenseConnection(DynamicDense):
    """Formula: `NormedDense`. The outputs in the state are g ∘ r(X)."""

    settings: NormedDense

    def parameters(self) -> dict[str, Parameter]:
        L, C = self.blocks, self.context.width
        weights = {
            name: Parameter(p.shape, Constant(0.0)) if name.startswith("connection.weights_") else p
            for name, p in super().parameters().items()
        }
        return weights | {
            "connection.source_gain": Parameter((L + 1, C), Constant(1.0)),
            "connection.sum_gain": Parameter((L, C), Constant(1e-3)),
        }

    def open(
        self, ops: Ops, params: dict[str, Array], x: Array, noise: Array | None = None
    ) -> DenseState:
        gain = params["connection.source_gain"][0]
        return DenseState(params, (gain * self.normed(ops, x),), x)

    def summed(self, ops: Ops, state: DenseState, i: int) -> DenseState:
        # Unlike in `DynamicDense`, where weights come from the source as it is summed, they come
        # from r(X_i) without the source's gain.
        params, shape, ways = state.params, state.x.shape, self.reads(i)
        N, C = math.prod(shape[:-1]), self.context.width
        weights, hidden, dynamic = (
            params[f"connection.{name}_{i}"] for name in ("weights", "hidden", "dynamic")
        )
        normed = self.normed(ops, state.x)
        outputs = (*state.outputs[:-1], params["connection.source_gain"][i] * normed)
        hidden = ops.gelu(ops.linear(ops.reshape(normed, (N, C)), hidden))
        weights = ops.reshape(ops.linear(hidden, dynamic), (N, ways, i + 1)) + weights
        stacked = ops.reshape(ops.stack(outputs), (i + 1, N, C))
        sums = ops.matmul(weights, ops.transpose(stacked, (1, 0, 2)))
        *own, last = (ops.reshape(y, shape) for y in ops.unstack(ops.transpose(sums, (1, 0, 2))))
        x = state.x + params["connection.sum_gain"][i - 1] * self.normed(ops, last)
        apart = Apart(*(state.x + y for y in own)) if own else None
        return state._replace(outputs=outputs, x=x, apart=apart)

    def normed(self, ops: Ops, x: Array) -> Array:
        """r(x) = RMSNorm(x)."""
        return x / root_mean_square(ops, x, self.settings.eps)
