"""The pre-norm transformer of the token task: embedding, blocks in a connection, head.

Every block has its own two residuals; the connection wraps the whole block, as published.
Formulas: docs/definitions.md, "Language model".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from fathom.models.connections.connection import Connection, Site
from fathom.models.connections.schemes import Scheme
from fathom.models.init import Constant, Normal, Parameter, Uniform
from fathom.models.network import Network, Output, stacked_layers, through_layers
from fathom.models.ops import Array, Ops
from fathom.models.recipes import Recipe
from fathom.settings import Registry


class Sizes(Protocol):
    """The sizes of the network."""

    vocab: int
    length: int
    width: int
    heads: int
    hidden: int


NAMES = Registry({"baseline": "plain", "hc": "hc_demo", "mhc": "mhc_demo"})
"""What the published names of variants stand for on this network."""


@dataclass(frozen=True)
class Transformer(Network):
    """Tokens [B, T] → logits [B, T, V]."""

    names = NAMES

    sizes: Sizes
    depth: int
    recipe: Recipe
    scheme: Scheme

    @cached_property
    def connection(self) -> Connection:
        """Around every block, which has its residuals inside; one set of weights per token."""
        site = Site(layers=self.depth, width=self.sizes.width, pooled_axes=0, has_residual=True)
        return self.scheme.at(site)

    def parameters(self) -> dict[str, Parameter]:
        sizes, recipe = self.sizes, self.recipe
        V, T, D, F, L = sizes.vocab, sizes.length, sizes.width, sizes.hidden, self.depth

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
            **self.connection.parameters(),
        }

    def forward(
        self,
        ops: Ops,
        params: dict[str, Array],
        *inputs: Array,
        entering: list[Array] | None = None,
    ) -> Output:
        (tokens,) = inputs
        x = ops.embedding(params["embedding.token"], tokens) + params["embedding.position"]
        blocks = [
            partial(block, ops, layer, heads=self.sizes.heads)
            for layer in stacked_layers(ops, params)
        ]
        x, H_res, streams = through_layers(ops, self.connection, params, x, blocks, entering)
        x = ops.layer_norm(x, params["norm.weight"], params["norm.bias"])
        return Output(ops.linear(x, params["head.weight"]), H_res, streams)

    def forward_flops(self, batch_size: int) -> float:
        V, T, D, F = (getattr(self.sizes, n) for n in ("vocab", "length", "width", "hidden"))
        per_token = self.depth * (4 * D**2 + 2 * D * F + 2 * T * D)
        return 2 * batch_size * T * (per_token + D * V)


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
