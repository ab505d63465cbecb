"""The convolutional network of the image study: stem, blocks in a connection, head.

Blocks have no residual: the connection adds it. Formulas: docs/definitions/images.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from fathom.init import Constant, Normal, Parameter
from fathom.operations.ops import Array, Ops
from fathom.settings import Registry
from fathom_study.models.network import Network, Output, norm_parameters, stacked_layers

CLASSES = 10
SIDE = 14
"""Height and width of the activations after the stem."""


def groups_of(width: int) -> int:
    """Number of groups of consecutive channels in a group norm."""
    return min(32, max(1, width // 4))


# The published command line has `hc` and `mhc`. The source's README of 19 and 21 January describes
# static versions. The published results are of the dynamic ones, of 25 January, so a bare name
# means these.
NAMES = Registry({"resnet": "plain", "hc": "hc_dynamic", "mhc": "mhc_dynamic"})
"""The connections that published names of variants stand for on this network."""


class ConvNet(Network):
    """Images [B, 28, 28, 1] → logits [B, 10]."""

    names = NAMES
    pooled_axes = 2  # one set of dynamic coefficients per image

    def parameters(self) -> dict[str, Parameter]:
        """He-normal weights, divided by √L in a block's second convolution; zero biases.

        The source draws these, so the recipe does not change them.
        """
        W, L = self.model.width, self.depth
        he_stem, he_block, he_head = (Normal(math.sqrt(2 / fan_in)) for fan_in in (9, 9 * W, W))
        zeros, has_norms = Constant(0.0), not self.connection.reads_normed
        return {
            "stem.weight": Parameter((W, 3, 3, 1), he_stem, is_matrix=True),
            "stem.bias": Parameter((W,), zeros),
            **(norm_parameters("block.norm1", (L, W)) if has_norms else {}),
            "block.conv1.weight": Parameter((L, W, 3, 3, W), he_block, is_matrix=True),
            "block.conv1.bias": Parameter((L, W), zeros),
            **norm_parameters("block.norm2", (L, W)),
            "block.conv2.weight": Parameter(
                (L, W, 3, 3, W), Normal(he_block.std / math.sqrt(L)), is_matrix=True
            ),
            "block.conv2.bias": Parameter((L, W), zeros),
            **(norm_parameters("norm", (W,)) if has_norms else {}),
            "head.weight": Parameter((CLASSES, W), he_head, is_matrix=True),
            "head.bias": Parameter((CLASSES,), zeros),
            **self.connection.parameters(),
        }

    def forward(self, ops: Ops, params: dict[str, Array], inputs: Mapping[str, Array]) -> Output:
        """Inputs: `images` [B, 28, 28, 1]; optional `keep` [L, B, 14, 14, W], the dropout mask."""
        x = ops.conv2d(inputs["images"], params["stem.weight"], params["stem.bias"], stride=2)
        layers = stacked_layers(ops, params)
        keeps = ops.unstack(inputs["keep"]) if "keep" in inputs else [None] * len(layers)
        blocks = [
            partial(block, ops, layer, dropout=self.model.dropout, keep=keep)
            for layer, keep in zip(layers, keeps, strict=True)
        ]
        x, mixed = self.connection.through(ops, params, x, blocks, inputs.get("noise"))
        B, *_, W = x.shape
        x = ops.relu(norm(ops, x, params, "norm"))
        pooled = ops.mean(ops.reshape(x, (B, -1, W)), axis=1)
        logits = ops.linear(pooled, params["head.weight"], params["head.bias"])
        return Output(logits, mixed)

    def forward_flops(self, batch_size: int) -> float:
        W = self.model.width
        per_position = 9 * W + self.depth * 2 * 9 * W**2
        return 2 * batch_size * (SIDE**2 * per_position + W * CLASSES)


def block(
    ops: Ops, layer: dict[str, Array], x: Array, *, dropout: float, keep: Array | None
) -> Array:
    """GN → ReLU → conv → dropout → GN → ReLU → conv, [B, H, W, C] → the same.

    The first norm is omitted if the connection's reads are normed: it then has no parameters.
    """
    x = ops.relu(norm(ops, x, layer, "norm1"))
    x = ops.conv2d(x, layer["conv1.weight"], layer["conv1.bias"])
    if keep is not None:
        x = x * keep / (1 - dropout)
    x = ops.relu(norm(ops, x, layer, "norm2"))
    return ops.conv2d(x, layer["conv2.weight"], layer["conv2.bias"])


def norm(ops: Ops, x: Array, params: dict[str, Array], name: str) -> Array:
    """Group norm with the parameters `name`; x unchanged if there are none."""
    if f"{name}.weight" not in params:
        return x
    groups = groups_of(x.shape[-1])
    return ops.group_norm(x, groups, params[f"{name}.weight"], params[f"{name}.bias"])
