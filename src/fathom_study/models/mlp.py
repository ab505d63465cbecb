"""A deep residual MLP that maps a point and a time to a velocity.

Blocks have no residual: the connection adds it. Formulas: docs/definitions/flow.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fathom.init import Parameter
from fathom.operations.ops import Array, Ops
from fathom_study.models.network import (
    Network,
    Output,
    layer_norm,
    norm_parameters,
    stacked_layers,
)

POINT = 2
"""Number of coordinates of a point and of a velocity."""


class VelocityMLP(Network):
    """Points [B, 2] at times [B, 1] → velocities [B, 2]."""

    def parameters(self) -> dict[str, Parameter]:
        W, F, L, recipe = self.model.width, self.model.hidden, self.depth, self.recipe
        inputs, has_norms = POINT + 1, not self.connection.reads_normed
        return {
            "embedding.weight": Parameter((W, inputs), recipe.weights(inputs), is_matrix=True),
            "embedding.bias": Parameter((W,), recipe.biases(inputs)),
            **(norm_parameters("block.norm", (L, W)) if has_norms else {}),
            "block.up.weight": Parameter((L, F, W), recipe.weights(W), is_matrix=True),
            "block.up.bias": Parameter((L, F), recipe.biases(W)),
            "block.down.weight": Parameter((L, W, F), recipe.output_weights(F, L), is_matrix=True),
            "block.down.bias": Parameter((L, W), recipe.biases(F)),
            **(norm_parameters("norm", (W,)) if has_norms else {}),
            "head.weight": Parameter((POINT, W), recipe.weights(W), is_matrix=True),
            "head.bias": Parameter((POINT,), recipe.biases(W)),
            **self.connection.parameters(),
        }

    def forward(self, ops: Ops, params: dict[str, Array], inputs: Mapping[str, Array]) -> Output:
        """Inputs: `points` [B, 2], `times` [B, 1]. The output's `logits` are velocities."""
        given = ops.concatenate([inputs["points"], inputs["times"]], axis=1)
        x = ops.linear(given, params["embedding.weight"], params["embedding.bias"])
        layers = [partial(block, ops, layer) for layer in stacked_layers(ops, params)]
        x, mixed = self.connection.through(ops, params, x, layers, inputs.get("noise"))
        x = layer_norm(ops, x, params, "norm")
        return Output(ops.linear(x, params["head.weight"], params["head.bias"]), mixed)

    def forward_flops(self, batch_size: int) -> float:
        W, F = self.model.width, self.model.hidden
        return 2 * batch_size * ((POINT + 1) * W + self.depth * 2 * W * F + W * POINT)


def block(ops: Ops, layer: dict[str, Array], x: Array) -> Array:
    """Norm, then two linear layers with SiLU, z·σ(z), between them: [B, W] → the same."""
    x = layer_norm(ops, x, layer, "norm")
    hidden = ops.linear(x, layer["up.weight"], layer["up.bias"])
    return ops.linear(hidden * ops.sigmoid(hidden), layer["down.weight"], layer["down.bias"])
