"""Controls that change the values of attention: no connections, since the residual path stays.

`residual`: the values of later layers are mixed with those of the first, by a share for each token
and head (arXiv:2410.17897, in the form of x-transformers). `embeddings`: every second layer adds a
vector that it learns for each token of the vocabulary, times a gate for each head (nanochat).
Formulas: docs/definitions/language-model.md.
"""

from __future__ import annotations

from typing import Literal

from fathom.init import Constant, Parameter
from fathom.operations.ops import Array, Ops
from fathom_study.models.recipes import Recipe

Values = Literal["own", "residual", "embeddings"]

GATE_CHANNELS = 32
"""Channels of the input that the gate of a value embedding reads, the first ones."""


def embedded_layers(L: int) -> range:
    """Layers with value embeddings, from 0: the last one, and every second before it."""
    return range((L - 1) % 2, L, 2)


def value_parameters(
    kind: Values, recipe: Recipe, L: int, V: int, D: int, H: int
) -> dict[str, Parameter]:
    """Parameters `values.*`, stacked over the layers that have them.

    L layers, V tokens of the vocabulary, D channels, H heads.
    """
    if kind == "residual" and L > 1:
        return {
            "values.share.weight": Parameter((L - 1, H, D), recipe.weights(D), is_matrix=True),
            "values.share.bias": Parameter((L - 1, H), recipe.biases(D)),
        }
    if kind == "embeddings":
        N, zeros = len(embedded_layers(L)), Constant(0.0)
        gate = (N, H, min(D, GATE_CHANNELS))
        return {
            "values.embedding": Parameter((N, V, D), recipe.weights(D), is_matrix=True),
            "values.gate.weight": Parameter(gate, zeros, is_matrix=True),
        }
    return {}


def add_values(
    ops: Ops, kind: Values, params: dict[str, Array], layers: list[dict[str, Array]], tokens: Array
) -> None:
    """Add what `mix_values` needs to the parameters of each layer; `tokens` [B, T]."""
    if kind == "residual" and len(layers) > 1:
        names, chosen = ("values.share.weight", "values.share.bias"), layers[1:]
    elif kind == "embeddings":
        names = ("values.embedding", "values.gate.weight")
        chosen = [layers[i] for i in embedded_layers(len(layers))]
    else:
        return
    for layer, *own in zip(chosen, *(ops.unstack(params[name]) for name in names), strict=True):
        layer.update(zip(names, own, strict=True))
        if kind == "embeddings":
            layer["values.embedding"] = ops.embedding(layer["values.embedding"], tokens)


def mix_values(
    ops: Ops, kind: Values, layer: dict[str, Array], x: Array, v: Array, first: list[Array]
) -> Array:
    """The values that attention reads, [B, H, T, D/H], from the layer's own v.

    x: the normed input of attention, [B, T, D]. first: the values of the pass's first layer, which
    adds them here.
    """
    if kind == "residual":
        if not first:
            first.append(v)
            return v
        share = _per_head(ops, x, layer["values.share.weight"], layer["values.share.bias"])
        return v + share * (first[0] - v)
    if "values.gate.weight" in layer:
        weight = layer["values.gate.weight"]
        gate = _per_head(ops, x[..., : weight.shape[-1]], weight)
        B, H, T, d = v.shape
        embedded = ops.reshape(layer["values.embedding"], (B, T, H, d))
        return v + 2 * gate * ops.transpose(embedded, (0, 2, 1, 3))
    return v


def _per_head(ops: Ops, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """σ of a linear layer of x [B, T, D], as [B, H, T, 1]."""
    gates = ops.sigmoid(ops.linear(x, weight, bias))
    return ops.transpose(ops.reshape(gates, (*gates.shape, 1)), (0, 2, 1, 3))


def value_products(kind: Values, L: int, D: int, H: int) -> int:
    """Multiplications of the matrix products that these controls add."""
    if kind == "residual":
        return (L - 1) * D * H
    return len(embedded_layers(L)) * min(D, GATE_CHANNELS) * H if kind == "embeddings" else 0
