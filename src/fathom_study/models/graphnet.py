"""The graph convolutional network: embedding, convolutions in a connection, head.

Blocks have no residual: the connection adds it. Formulas: docs/definitions/graph.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fathom.connections.connection import MixingTrace
from fathom.init import Parameter
from fathom.operations.ops import Array, Ops
from fathom.settings import Registry
from fathom_study.models.network import (
    Network,
    Output,
    layer_norm,
    norm_parameters,
    stacked_layers,
)

# A residual network of graph convolutions is DeepGCNs' ResGCN (arXiv:1904.03751). No source has hc
# and mhc on graphs: the names stand for the same connections as on the transformer.
NAMES = Registry({"resgcn": "plain", "hc": "hc_demo", "mhc": "mhc_demo"})
"""The connections that published names of variants stand for on this network."""


class GraphNet(Network):
    """Nodes [B, n, channels] and links [B, n, n] → logits [B, n, q]."""

    names = NAMES

    def parameters(self) -> dict[str, Parameter]:
        model, recipe, L = self.model, self.recipe, self.depth
        q, W, F, C = model.communities, model.width, model.hidden, model.channels
        has_norms = not self.connection.reads_normed
        return {
            "embedding.weight": Parameter((W, C), recipe.weights(C), is_matrix=True),
            **(norm_parameters("block.norm", (L, W)) if has_norms else {}),
            "block.up.weight": Parameter((L, F, W), recipe.weights(W), is_matrix=True),
            "block.up.bias": Parameter((L, F), recipe.biases(W)),
            "block.down.weight": Parameter((L, W, F), recipe.output_weights(F, L), is_matrix=True),
            "block.down.bias": Parameter((L, W), recipe.biases(F)),
            **(norm_parameters("norm", (W,)) if has_norms else {}),
            "head.weight": Parameter((q, W), recipe.weights(W), is_matrix=True),
            **self.connection.parameters(),
        }

    def forward(self, ops: Ops, params: dict[str, Array], inputs: Mapping[str, Array]) -> Output:
        """Inputs: `nodes` [B, n, channels]; `links` [B, n, n], normalised."""
        x, mixed = self.features(ops, params, inputs)
        return Output(ops.linear(layer_norm(ops, x, params, "norm"), params["head.weight"]), mixed)

    def features(
        self, ops: Ops, params: dict[str, Array], inputs: Mapping[str, Array]
    ) -> tuple[Array, MixingTrace | None]:
        """(Output of the last layer [B, n, W], how its streams were mixed)."""
        x = ops.linear(inputs["nodes"], params["embedding.weight"])
        layers = [
            partial(convolution, ops, layer, inputs["links"])
            for layer in stacked_layers(ops, params)
        ]
        return self.connection.through(ops, params, x, layers, inputs.get("noise"))

    def forward_flops(self, batch_size: int) -> float:
        """Floating-point operations of the dense products with links and weights."""
        model = self.model
        n, q, W, F = model.nodes, model.communities, model.width, model.hidden
        return 2 * batch_size * n * (self.depth * (n * W + 2 * W * F) + W * (model.channels + q))


def convolution(ops: Ops, layer: dict[str, Array], links: Array, x: Array) -> Array:
    """Norm, sum over linked nodes, then two linear layers with a ReLU: [B, n, W] → the same.

    The norm is omitted if the connection's reads are normed: it then has no parameters.
    """
    x = ops.matmul(links, layer_norm(ops, x, layer, "norm"))
    hidden = ops.relu(ops.linear(x, layer["up.weight"], layer["up.bias"]))
    return ops.linear(hidden, layer["down.weight"], layer["down.bias"])
