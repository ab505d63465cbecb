"""The pre-norm transformer of the token task: embedding, blocks in a connection, head.

Every block has its own two residuals; the connection wraps the whole block, as published.
Formulas: docs/definitions.md, "Language model".
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from fathom.models.connections import Connection
from fathom.models.init import Constant, Normal, Parameter, Uniform
from fathom.models.ops import Array, Ops, stacked_layers
from fathom.recipes import Recipe


class Dimensions(Protocol):
    """The sizes of the network."""

    vocab: int
    length: int
    width: int
    heads: int
    hidden: int


class Output(NamedTuple):
    """What a forward pass leaves for the loss and the metrics."""

    logits: Array
    """[B, T, V]."""
    H_res: Array | None
    """[L, S, S], or None where the connection does not mix streams."""
    streams: Array
    """What the last layer leaves to the connection: [S, B, T, D], or [B, T, D] without streams."""


def parameters(
    dims: Dimensions, depth: int, recipe: Recipe, connection: Connection
) -> dict[str, Parameter]:
    """Declare every parameter; those of the blocks are stacked over layers, [L, …]."""
    V, T, D, F, L = dims.vocab, dims.length, dims.width, dims.hidden, depth

    # Both frameworks draw a linear layer's weight and bias from U(±1/√fan_in).
    fan_in_D, fan_in_F = Uniform(1 / math.sqrt(D)), Uniform(1 / math.sqrt(F))
    ones, zeros = Constant(1.0), Constant(0.0)
    packed_xavier = recipe.attention == "packed_xavier"
    qkv = Uniform(math.sqrt(6 / (4 * D))) if packed_xavier else fan_in_D
    attention_bias = zeros if packed_xavier else fan_in_D
    embedding_std = 1.0 if recipe.embedding == "unit" else 1 / math.sqrt(D)

    return {
        "embedding.token": Parameter((V, D), Normal(embedding_std)),
        "embedding.position": Parameter((T, D), Normal(0.01)),
        "block.norm1.weight": Parameter((L, D), ones),
        "block.norm1.bias": Parameter((L, D), zeros),
        "block.qkv.weight": Parameter((L, 3 * D, D), qkv),
        "block.qkv.bias": Parameter((L, 3 * D), attention_bias),
        "block.attention_out.weight": Parameter((L, D, D), fan_in_D),
        "block.attention_out.bias": Parameter((L, D), attention_bias),
        "block.norm2.weight": Parameter((L, D), ones),
        "block.norm2.bias": Parameter((L, D), zeros),
        "block.up.weight": Parameter((L, F, D), fan_in_D),
        "block.up.bias": Parameter((L, F), fan_in_D),
        "block.down.weight": Parameter((L, D, F), fan_in_F),
        "block.down.bias": Parameter((L, D), fan_in_F),
        "norm.weight": Parameter((D,), ones),
        "norm.bias": Parameter((D,), zeros),
        "head.weight": Parameter((V, D), fan_in_D),
        **connection.parameters(depth, D),
    }


def attention(ops: Ops, layer: dict[str, Array], x: Array, heads: int) -> Array:
    """Causal multi-head self-attention, [B, T, D] → [B, T, D]."""
    B, T, D = x.shape
    q, k, v = (
        ops.transpose(ops.reshape(part, (B, T, heads, D // heads)), (0, 2, 1, 3))
        for part in ops.split(ops.linear(x, layer["qkv.weight"], layer["qkv.bias"]), 3)
    )
    out = ops.reshape(ops.transpose(ops.causal_attention(q, k, v), (0, 2, 1, 3)), (B, T, D))
    return ops.linear(out, layer["attention_out.weight"], layer["attention_out.bias"])


def mlp(ops: Ops, layer: dict[str, Array], x: Array) -> Array:
    """Two linear layers with a GELU between, [B, T, D] → [B, T, D]."""
    hidden = ops.gelu(ops.linear(x, layer["up.weight"], layer["up.bias"]))
    return ops.linear(hidden, layer["down.weight"], layer["down.bias"])


def block(ops: Ops, layer: dict[str, Array], x: Array, heads: int) -> Array:
    """One pre-norm transformer block with its own residuals, [B, T, D] → [B, T, D]."""
    normed = ops.layer_norm(x, layer["norm1.weight"], layer["norm1.bias"])
    x = x + attention(ops, layer, normed, heads)
    normed = ops.layer_norm(x, layer["norm2.weight"], layer["norm2.bias"])
    return x + mlp(ops, layer, normed)


def forward(
    ops: Ops,
    dims: Dimensions,
    connection: Connection,
    params: dict[str, Array],
    tokens: Array,
    entering: list[Array] | None = None,
) -> Output:
    """Logits [B, T, V] for tokens [B, T], and the mixing matrices on the way.

    What enters each block, [B, T, D], is appended to `entering`.
    """
    x = ops.embedding(params["embedding.token"], tokens) + params["embedding.position"]
    blocks = stacked_layers(ops, params)
    coefficients = connection.coefficients(ops, params)

    streams = connection.open(ops, x)
    for layer, c in zip(blocks, connection.per_layer(ops, coefficients, len(blocks)), strict=True):
        x = connection.read(ops, c, streams)
        if entering is not None:
            entering.append(x)
        streams = connection.update(ops, c, streams, block(ops, layer, x, dims.heads))
    x = connection.close(ops, params, streams)

    x = ops.layer_norm(x, params["norm.weight"], params["norm.bias"])
    logits = ops.linear(x, params["head.weight"])
    return Output(logits, connection.mixing(ops, coefficients), streams)
