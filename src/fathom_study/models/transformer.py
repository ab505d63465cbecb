"""The pre-norm transformer: embedding, layers in a connection, head.

The connection wraps whole blocks with their two residuals, as in the demos; or attention and MLP
separately, without residuals, as in the papers.
Formulas: docs/definitions/language-model.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from fathom.connections.connection import Apart, Connection, ConnectionContext, rms_norm
from fathom.init import Constant, Distribution, Normal, Parameter, Uniform
from fathom.operations.ops import Array, Ops
from fathom.settings import Flag, Nullable, Number, Positive, Settings
from fathom_study.models.network import Network, Output, norm_parameters, stacked_layers
from fathom_study.models.values import (
    Values,
    add_values,
    mix_values,
    value_parameters,
    value_products,
)


class TransformerParts(Settings):
    """Sizes and parts of the transformer without V: a task may derive `vocab` from others."""

    connection_settings: ClassVar[frozenset[str]] = frozenset({"wrap"})

    length: Positive = Field(description="T, tokens in a sequence")
    width: Positive = Field(description="D, channels of a stream")
    heads: Positive = Field(description="H, attention heads; must divide width")
    hidden: Positive = Field(description="F, channels between the MLP's two layers")
    wrap: Literal["block", "sublayer"] = Field(
        "block",
        description="what a connection wraps: whole blocks, which have residuals of their own; or "
        "attention and MLP one by one, without",
    )
    norm: Literal["layer", "rms"] = Field(
        "layer", description="layer norm with gain and bias, or RMS norm without"
    )
    positions: Literal["learned", "rotary"] = Field(
        "learned", description="added to the embedding, or turning queries and keys"
    )
    embedding_norm: Flag = Field(False, description="RMS norm of the embedding")
    qk_norm: Flag = Field(False, description="RMS norm of queries and keys")
    biases: Flag = Field(True, description="of linear layers")
    activation: Literal["gelu", "relu2"] = Field("gelu", description="of the MLP; relu2: ReLU²")
    logit_cap: Annotated[Annotated[Number, Field(gt=0)] | None, Nullable] = Field(
        None, description="c of c·tanh(logits / c); null: none"
    )
    values: Values = Field(
        "own",
        exclude_if=lambda kind: kind == "own",
        description="a control that changes attention's values and no connection: mixed with the "
        "first layer's (residual), or with a vector learned for each token (embeddings)",
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> TransformerParts:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by heads {self.heads}; "
                f"make width a multiple of {self.heads}"
            )
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(
                f"width {self.width} over heads {self.heads} is odd, but rotary positions need "
                "pairs; use another number of heads"
            )
        return self


class TransformerModel(TransformerParts):
    """Sizes and parts of the transformer."""

    vocab: Positive = Field(description="V, number of distinct tokens")


def sizes(model: TransformerParts) -> str:
    """The sizes as text, in the symbols of docs/definitions."""
    return f"V {model.vocab}, T {model.length}, D {model.width}, H {model.heads}, F {model.hidden}"


class Transformer(Network):
    """Tokens [B, T] → logits [B, T, V]."""

    model: TransformerParts

    @cached_property
    def connection(self) -> Connection:
        """Wraps blocks or sub-layers; dynamic coefficients are one set per token."""
        per_block = 1 if self.model.wrap == "block" else 2
        context = ConnectionContext(
            layers=per_block * self.depth,
            width=self.model.width,
            pooled_axes=0,
            has_residual=self.model.wrap == "block",
            per_block=per_block,
            optional_norms=self.model.wrap == "sublayer",
            takes_apart=self.model.wrap == "sublayer",
        )
        return self.scheme.at(context)

    def parameters(self) -> dict[str, Parameter]:
        model, recipe, L = self.model, self.recipe, self.depth
        V, T, D, F = model.vocab, model.length, model.width, model.hidden
        zeros, packed = Constant(0.0), recipe.attention == "packed_xavier"
        qkv = Uniform(math.sqrt(6 / (4 * D))) if packed else recipe.weights(D)
        attention_bias = zeros if packed else recipe.biases(D)
        embedding = Normal(1.0 if recipe.embedding == "unit" else 1 / math.sqrt(D))
        head = Normal(0.001) if recipe.head == "small" else recipe.weights(D)

        def matrix(shape: tuple[int, ...], start: Distribution) -> Parameter:
            return Parameter(shape, start, is_matrix=True)

        def linear(
            name: str,
            shape: tuple[int, int],
            start: Distribution,
            bias: Distribution,
            parts: int = 1,
        ) -> dict[str, Parameter]:
            weight = Parameter((L, *shape), start, is_matrix=True, parts=parts)
            biases = {f"{name}.bias": Parameter((L, shape[0]), bias)} if model.biases else {}
            return {f"{name}.weight": weight, **biases}

        positions = {"embedding.position": matrix((T, D), Normal(0.01))}
        outs = recipe.output_weights
        return {
            "embedding.token": matrix((V, D), embedding),
            **(positions if model.positions == "learned" else {}),
            **self._norm("block.norm1", (L, D)),
            **linear("block.qkv", (3 * D, D), qkv, attention_bias, parts=3),
            **linear("block.attention_out", (D, D), outs(D, L), attention_bias),
            **self._norm("block.norm2", (L, D)),
            **linear("block.up", (F, D), recipe.weights(D), recipe.biases(D)),
            **linear("block.down", (D, F), outs(F, L), recipe.biases(F)),
            **self._norm("norm", (D,)),
            "head.weight": matrix((V, D), head),
            **value_parameters(model.values, recipe, L, V, D, model.heads),
            **self.connection.parameters(),
        }

    def _norm(self, name: str, shape: tuple[int, ...]) -> dict[str, Parameter]:
        """Gain and bias of a layer norm; nothing for an RMS norm, or without a norm."""
        has_none = self.model.norm == "rms" or self.connection.reads_normed
        return {} if has_none else norm_parameters(name, shape)

    def forward(self, ops: Ops, params: dict[str, Array], inputs: Mapping[str, Array]) -> Output:
        """Inputs: `tokens`, int32 [B, T]."""
        tokens, model = inputs["tokens"], self.model
        x = ops.embedding(params["embedding.token"], tokens)
        if model.positions == "learned":
            x = x + params["embedding.position"][: tokens.shape[1]]
        if model.embedding_norm:
            x = rms_norm(ops, x, RMS_EPS)
        is_normed = {"is_normed": True} if self.connection.reads_normed else {}
        attend = partial(attention, first_values=[])
        parts = (partial(block, attend),) if model.wrap == "block" else (attend, mlp)
        stack = stacked_layers(ops, params)
        add_values(ops, model.values, params, stack, tokens)
        layers = [
            partial(part, ops, layer, model, **is_normed) for layer in stack for part in parts
        ]
        x, mixed = self.connection.through(ops, params, x, layers, inputs.get("noise"))
        x = x if is_normed else norm(ops, x, params, "norm")
        logits = ops.linear(x, params["head.weight"])
        if model.logit_cap is not None:
            logits = ops.tanh(logits / model.logit_cap) * model.logit_cap
        return Output(logits, mixed)

    def forward_flops(self, batch_size: int) -> float:
        model = self.model
        V, T, D, F = model.vocab, model.length, model.width, model.hidden
        per_token = self.depth * (4 * D**2 + 2 * D * F + 2 * T * D)
        per_token += value_products(model.values, self.depth, D, model.heads)
        return 2 * batch_size * T * (per_token + D * V)


def attention(
    ops: Ops,
    layer: dict[str, Array],
    model: TransformerParts,
    x: Array | Apart,
    *,
    first_values: list[Array],
    is_normed: bool = False,
) -> Array:
    """Norm, unless x is normed; then causal multi-head self-attention: [B, T, D] → the same.

    first_values: the values of the pass's first layer, as `mix_values` takes them.
    """
    inputs = x if isinstance(x, Apart) else (x,)
    normed = [part if is_normed else norm(ops, part, layer, "norm1") for part in inputs]
    B, T, D = normed[0].shape
    q, k, v = (
        ops.transpose(ops.reshape(part, (B, T, model.heads, D // model.heads)), (0, 2, 1, 3))
        for part in queries_keys_values(ops, layer, normed)
    )
    v = mix_values(ops, model.values, layer, normed[0], v, first_values)
    if model.positions == "rotary":
        q, k = apply_rope(ops, q), apply_rope(ops, k)
    if model.qk_norm:
        q, k = (rms_norm(ops, each, RMS_EPS) for each in (q, k))
    out = ops.reshape(ops.transpose(ops.causal_attention(q, k, v), (0, 2, 1, 3)), (B, T, D))
    return ops.linear(out, layer["attention_out.weight"], layer.get("attention_out.bias"))


def queries_keys_values(
    ops: Ops, layer: dict[str, Array], normed: Sequence[Array]
) -> Sequence[Array]:
    """q, k and v, [B, T, D] each, from one normed input or from three."""
    weight, bias = layer["qkv.weight"], layer.get("qkv.bias")
    D = weight.shape[1]
    if len(normed) == 1:
        return ops.split(ops.linear(*normed, weight, bias), (D, D, D))
    weights = ops.unstack(ops.reshape(weight, (3, D, D)))
    biases = [None] * 3 if bias is None else ops.unstack(ops.reshape(bias, (3, D)))
    return [ops.linear(*part) for part in zip(normed, weights, biases, strict=True)]


def mlp(
    ops: Ops, layer: dict[str, Array], model: TransformerParts, x: Array, *, is_normed: bool = False
) -> Array:
    """Norm, unless x is normed; then two linear layers and an activation: [B, T, D] → the same."""
    x = x if is_normed else norm(ops, x, layer, "norm2")
    hidden = ops.linear(x, layer["up.weight"], layer.get("up.bias"))
    if model.activation == "relu2":
        hidden = ops.relu(hidden)
        hidden = hidden * hidden
    else:
        hidden = ops.gelu(hidden)
    return ops.linear(hidden, layer["down.weight"], layer.get("down.bias"))


def block(
    attend: Callable[..., Array],
    ops: Ops,
    layer: dict[str, Array],
    model: TransformerParts,
    x: Array,
) -> Array:
    """One pre-norm transformer block with its two residuals, [B, T, D] → [B, T, D]."""
    x = x + attend(ops, layer, model, x)
    return x + mlp(ops, layer, model, x)


def norm(ops: Ops, x: Array, params: dict[str, Array], name: str) -> Array:
    """Layer norm with the parameters `name`; RMS norm if there are none."""
    if f"{name}.weight" not in params:
        return rms_norm(ops, x, RMS_EPS)
    return ops.layer_norm(x, params[f"{name}.weight"], params[f"{name}.bias"])


RMS_EPS = float(np.finfo(np.float32).eps)
"""Added to the mean square."""


ROTARY_BASE = 10_000
"""The slowest pair of channels rotates by about 1 / ROTARY_BASE per token."""


@cache  # used in every layer of every step
def rope_tables(T: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin) of the rotation angles [T, d/2]."""
    angles = np.outer(np.arange(T), ROTARY_BASE ** (-np.arange(0, d, 2) / d))
    return np.cos(angles), np.sin(angles)


def apply_rope(ops: Ops, x: Array) -> Array:
    """Rotary positions of [B, H, T, d]: rotate channels i and i + d/2 by t · base^(−2i/d)."""
    *_, T, d = x.shape
    cos, sin = map(ops.constant, rope_tables(T, d))
    a, b = ops.split(x, (d // 2, d // 2))
    return ops.concatenate([a * cos + b * sin, b * cos - a * sin], axis=3)
