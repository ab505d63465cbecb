"""Parameters of connections from the weights of released models.

A release's own files may have other names than transformers or MLX give its parameters; both work.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fathom.operations.ops import Array, Ops, Params
from fathom.settings import Registry, join_values


class Names(NamedTuple):
    """Names of a connection's parameters in a release. `{}` stands for the number of a layer."""

    layers: Mapping[str, tuple[str, ...]]
    """By our name, the names in one layer of the release, stacked over all layers."""
    last: Mapping[str, str] = {}
    """By our name, the name of one more array at the end of the stack."""
    once: Mapping[str, str | tuple[str, ...]] = {}
    """By our name, the name of an array outside of layers, or of several to stack."""
    functions: int = 2
    """Number of wrapped functions in a layer of the release."""
    unread: int = 0
    """Number of first functions without parameters; a release may have some without effect."""
    has_rows: bool = False
    """Whether an array is one or several rows [C], which are joined: [rows, C]."""
    made: Callable[[Ops, Params], Params] = lambda ops, params: params
    """Converts the arrays found under these names to our parameters."""
    in_files: Mapping[str, str | Callable[[re.Match[str]], str]] = {}
    """Substitutions, by pattern, from names in the release's own files to these names."""


def _split_maps(ops: Ops, params: Params) -> Params:
    """Split fn, base and scale of all layers into φ, b and α of pre, post and H_res."""
    fn, base = params.pop("fn"), params.pop("base")
    L, alpha = fn.shape[0], params.pop("scale")
    parts = ("pre", "post", "res")[: alpha.shape[1]]
    # S² + 2 S rows with H_res, 2 S without.
    S = math.isqrt(fn.shape[1] + 1) - 1 if "res" in parts else fn.shape[1] // 2
    ends = {"pre": (0, S), "post": (S, 2 * S), "res": (2 * S, 2 * S + S * S)}
    for part in parts:
        first, end = ends[part]
        params[f"phi_{part}"] = fn[:, first:end]
        params[f"b_{part}"] = base[:, first:end]
    if "res" in parts:
        params["b_res"] = ops.reshape(params["b_res"], (L, S, S))
    return {**params, "alpha": alpha}


def _flat_gains(ops: Ops, params: Params) -> Params:
    """Flatten scalars that a release stores as arrays with one entry."""
    return {name: ops.reshape(value, (value.shape[0],)) for name, value in params.items()}


_DEEPSEEK = {
    r"\bhc_(attn|ffn)_(fn|base|scale)$": r"\1_hc.\2",
    r"\bhc_head_(fn|base|scale)$": r"hc_head.hc_\1",
}
_HUNYUAN = {
    r"\bhc_attn_layer\.(hc_pre\.)?hc_": "attn_hc.",
    r"\bhc_mlp_layer\.(hc_pre\.)?hc_": "ffn_hc.",
    r"\bhc_head\.hc_head_": "hc_head.hc_",
}


def _each(template: str, *parts: str) -> tuple[str, ...]:
    """A template with each part in place of its star."""
    return tuple(template.replace("*", part) for part in parts)


def _hyper(head: bool, in_files: Mapping[str, str] = _DEEPSEEK) -> Names:
    """Names in transformers' DeepSeek modules, also for GLM and Hunyuan."""
    parts = ("fn", "base", "scale")
    layers = {part: _each(f"layers.{{}}.*_hc.{part}", "attn", "ffn") for part in parts}
    names = {"readout_phi": "fn", "readout": "base", "readout_alpha": "scale"}
    once = {ours: f"hc_head.hc_{theirs}" for ours, theirs in names.items()} if head else {}
    return Names(layers, once=once, made=_split_maps, in_files=in_files)


_QWEN4 = {
    "gain": "hc_norm.weight",
    "gate_down": "input_mix_weight_down.weight",
    "gate_up": "input_mix_weight_up.weight",
    "phi_post": "block_inject_weight.weight",
}
_ALTUP = {
    "router_gain": "router_norm.weight",
    "router": "modality_router.weight",
    "predict": "prediction_coefs.weight",
    "correct": "correction_coefs.weight",
}
_ZAYA = {"output": "hidden_states", "stream": "residual"}
_KIMI_K3 = {"query": "proj.weight", "key_gain": "norm.weight"}

RELEASES = Registry(
    {
        "deepseek_v4": _hyper(head=True),
        "deepseek_v41": _hyper(head=False),
        "glm5_next": _hyper(head=False),
        "hy_v4": _hyper(head=True, in_files=_HUNYUAN),
        "qwen4_exp": Names(
            {
                ours: _each(f"layers.{{}}.*_hyper_connection.{theirs}", "attn", "mlp")
                for ours, theirs in _QWEN4.items()
            },
            last={
                ours: f"hyper_connection_mixer.{theirs}"
                for ours, theirs in _QWEN4.items()
                if ours != "phi_post"
            },
        ),
        "altup": Names(
            {ours: (f"layers.{{}}.altup.{theirs}",) for ours, theirs in _ALTUP.items()},
            once={
                "open_projections": _each("altup_projections.*.weight", "0", "1", "2"),
                "close_projections": _each("altup_unembed_projections.*.weight", "0", "1", "2"),
            },
            functions=1,
        ),
        "residual_scaled": Names(
            {
                f"{ours}_{part}": _each(
                    f"layers.{{}}.post_*_residual_scale.{theirs}_{part}", "attention", "mlp"
                )
                for ours, theirs in _ZAYA.items()
                for part in ("scale", "bias")
            },
            once={f"input_{part}": f"input_hidden_states_{part}" for part in ("scale", "bias")},
        ),
        "muse_spark": Names(
            {
                "gate": _each("layers.{}.post_*_residual_gate.gate", "attention", "feedforward"),
                "output_gain": ("layers.{}.post_feedforward_layernorm.weight",),
            }
        ),
        "doge": Names({"stream_scale": _each("layers.{}.*_residual", "input", "post_attention")}),
        "talkie": Names(
            {
                "output_gain": _each("blocks.{}.*_gain.a_g", "attn", "mlp"),
                "initial": ("blocks.{}.embed_skip.a_g",),
            },
            made=_flat_gains,
        ),
        "neomme": Names({"initial": ("layers.{}.lambdas",)}),
        "minimax": Names(
            {"norm_gain": _each("layers.{}.*_layernorm.weight", "input", "post_attention")},
            last={"norm_gain": "norm.weight"},
        ),
        "dory": Names(
            {"rate": ("layers.{}.lambda_1", "layers.{}.lambda_2")},
            in_files={  # attention and MLP are layers of their own
                r"\blayers\.(\d+)\.attn_alpha$": lambda m: f"layers.{int(m[1]) // 2}.lambda_1",
                r"\blayers\.(\d+)\.mlp_alpha$": lambda m: f"layers.{int(m[1]) // 2}.lambda_2",
            },
        ),
        "attn_res_block": Names(
            {
                ours: _each(f"layers.{{}}.*_res_{theirs}", "self_attention", "mlp")
                for ours, theirs in _KIMI_K3.items()
            },
            last={ours: f"output_attn_res_{theirs}" for ours, theirs in _KIMI_K3.items()},
            unread=1,
            has_rows=True,
            in_files={r"_res\.(proj|norm)_weight$": r"_res_\1.weight"},
        ),
        "inkling2": Names(
            {"query": _each("layers.{}.*_input.query", "attention", "mlp")},
            last={"query": "final_input.query"},
            unread=1,
            has_rows=True,
            in_files={  # the first attention has no query
                r"\battn_res\.attn_queries\.(\d+)$": (
                    lambda m: f"layers.{int(m[1]) + 1}.attention_input.query"
                ),
                r"\battn_res\.mlp_queries\.(\d+)$": r"layers.\1.mlp_input.query",
                r"\battn_res\.output_query$": "final_input.query",
            },
        ),
    }
)
"""Names for each released scheme that has parameters."""

EXTRA = re.compile(r"(?:.*\.)?(?:mtp(?:_layers)?\.|layers\.\d+\.(?=(?:shared_head|eh_proj)\.))")
"""Beginning of the names of a block that predicts further tokens, beside the layers of a model."""


def check_release(scheme: str) -> None:
    """Raise ValueError unless weights of a release are known for the scheme."""
    if scheme not in RELEASES:
        known = join_values(RELEASES)
        raise ValueError(f"no weights of a release are known for {scheme!r} (known: {known})")


def of_release(
    ops: Ops, scheme: str, weights: Mapping[str, Array], layers: int, prefix: str | None = None
) -> Params:
    """A scheme's parameters, by our names, from a release's state dict.

    `layers`: number of wrapped functions. `prefix`: prefix of the names, such as `model.`; None:
    the only one present. Blocks that predict further tokens are left out. Raises ValueError for
    weights of another model. `check_release` knows the schemes.
    """
    names = RELEASES[scheme]
    extra = {match[0] for key in weights if (match := EXTRA.match(key))} - {prefix}
    weights = {
        _renamed(key, names): value
        for key, value in weights.items()
        if not key.startswith(tuple(extra))
    }
    first = next(iter(names.layers.values()))[names.unread]
    prefix = _prefix_of(first.format(0), weights) if prefix is None else prefix
    blocks = layers // names.functions
    if f"{prefix}{first.format(blocks)}" in weights or layers % names.functions:
        count = sum(f"{prefix}{first.format(i)}" in weights for i in range(len(weights)))
        raise ValueError(
            f"the weights have {count} layers, each of {names.functions} functions; build the "
            f"connection with layers={count * names.functions}"
        )

    def taken(name: str) -> Array:
        if f"{prefix}{name}" not in weights:
            raise ValueError(f"the weights lack {prefix}{name}")
        return weights[f"{prefix}{name}"]

    params = {}
    for name, templates in names.layers.items():
        keys = [t.format(i) for i in range(blocks) for t in templates][names.unread :]
        keys += [names.last[name]] if name in names.last else []
        arrays = [*map(taken, keys)]
        if names.has_rows:
            rows = [ops.reshape(array, (-1, array.shape[-1])) for array in arrays]
            params[name] = ops.concatenate(rows, axis=0)
        else:
            params[name] = ops.stack(arrays)
    for name, key in names.once.items():
        params[name] = taken(key) if isinstance(key, str) else ops.stack([*map(taken, key)])
    return names.made(ops, params)


def _renamed(key: str, names: Names) -> str:
    """The name of an array in a file, as transformers or MLX name it."""
    for pattern, name in names.in_files.items():
        key = re.sub(pattern, name, key)
    return key


def _prefix_of(name: str, weights: Mapping[str, Array]) -> str:
    """Prefix of the name in the only key that ends with it. Raises ValueError."""
    prefixes = [
        key.removesuffix(name) for key in weights if key == name or key.endswith(f".{name}")
    ]
    if len(prefixes) != 1:
        several = f"several {name}; name one of the prefixes {join_values(map(repr, prefixes))}"
        raise ValueError(f"the weights have {several if prefixes else f'no {name}'}")
    return prefixes[0]
