"""The convolutional network of the image study: stem, residual blocks in a connection, head.

Blocks have no residual of their own: the connection brings it. Images are [B, H, W, C].
Formulas: docs/definitions.md, "Vision model".
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from fathom.models.connections import Connection
from fathom.models.init import Constant, Normal, Parameter
from fathom.models.ops import Array, Ops, stacked_layers
from fathom.recipes import Recipe

CLASSES = 10
SIDE = 14
"""Height and width of the activations after the stem."""


class Dimensions(Protocol):
    """The sizes of the network."""

    width: int
    dropout: float


class Output(NamedTuple):
    """What a forward pass leaves for the loss and the metrics."""

    logits: Array
    """[B, 10]."""
    H_res: Array | None
    """[L, S, S], or None where no such matrices mix the streams."""


def groups_of(width: int) -> int:
    """Groups of consecutive channels in a group norm."""
    return min(32, max(1, width // 4))


def parameters(
    dims: Dimensions, depth: int, recipe: Recipe, connection: Connection
) -> dict[str, Parameter]:
    """Declare every parameter; those of the blocks are stacked over layers, [L, …].

    He-normal weights, the second convolution of a block scaled by 1/√L, biases zero. The recipe
    has no say in initialisation here.
    """
    W, L = dims.width, depth
    he_stem, he_block, he_head = (Normal(math.sqrt(2 / fan_in)) for fan_in in (9, 9 * W, W))
    ones, zeros = Constant(1.0), Constant(0.0)
    return {
        "stem.weight": Parameter((W, 3, 3, 1), he_stem),
        "stem.bias": Parameter((W,), zeros),
        "block.norm1.weight": Parameter((L, W), ones),
        "block.norm1.bias": Parameter((L, W), zeros),
        "block.conv1.weight": Parameter((L, W, 3, 3, W), he_block),
        "block.conv1.bias": Parameter((L, W), zeros),
        "block.norm2.weight": Parameter((L, W), ones),
        "block.norm2.bias": Parameter((L, W), zeros),
        "block.conv2.weight": Parameter((L, W, 3, 3, W), Normal(he_block.std / math.sqrt(L))),
        "block.conv2.bias": Parameter((L, W), zeros),
        "norm.weight": Parameter((W,), ones),
        "norm.bias": Parameter((W,), zeros),
        "head.weight": Parameter((CLASSES, W), he_head),
        "head.bias": Parameter((CLASSES,), zeros),
        **connection.parameters(depth, W),
    }


def block(
    ops: Ops, layer: dict[str, Array], x: Array, dims: Dimensions, keep: Array | None
) -> Array:
    """GN → ReLU → conv → dropout → GN → ReLU → conv, [B, H, W, C] → the same."""
    groups = groups_of(dims.width)
    x = ops.relu(ops.group_norm(x, groups, layer["norm1.weight"], layer["norm1.bias"]))
    x = ops.conv2d(x, layer["conv1.weight"], layer["conv1.bias"])
    if keep is not None:
        x = x * keep / (1 - dims.dropout)
    x = ops.relu(ops.group_norm(x, groups, layer["norm2.weight"], layer["norm2.bias"]))
    return ops.conv2d(x, layer["conv2.weight"], layer["conv2.bias"])


def forward(
    ops: Ops,
    dims: Dimensions,
    connection: Connection,
    params: dict[str, Array],
    images: Array,
    keep: Array | None = None,
    entering: list[Array] | None = None,
) -> Output:
    """Logits [B, 10] for images [B, 28, 28, 1].

    `keep` [L, B, 14, 14, W] says which activations dropout keeps; without it, all are. What enters
    each block, [B, 14, 14, W], is appended to `entering`, and otherwise not held on to.
    """
    x = ops.conv2d(images, params["stem.weight"], params["stem.bias"], stride=2)
    blocks = stacked_layers(ops, params)
    coefficients = connection.coefficients(ops, params)
    per_layer = connection.per_layer(ops, coefficients, len(blocks))
    keeps = [None] * len(blocks) if keep is None else ops.unstack(keep)

    streams = connection.open(ops, x)
    for layer, c, kept in zip(blocks, per_layer, keeps, strict=True):
        x = connection.read(ops, c, streams)
        if entering is not None:
            entering.append(x)
        streams = connection.update(ops, c, streams, block(ops, layer, x, dims, kept))
    x = connection.close(ops, params, streams)

    x = ops.relu(
        ops.group_norm(x, groups_of(dims.width), params["norm.weight"], params["norm.bias"])
    )
    B, *_, W = x.shape
    pooled = ops.mean(ops.reshape(x, (B, -1, W)), axis=1)
    logits = ops.linear(pooled, params["head.weight"], params["head.bias"])
    return Output(logits, connection.mixing(ops, coefficients))
