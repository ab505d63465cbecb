"""Presets: the residual schemes that have a name, and how names and settings become a scheme.

docs/schemes.md lists them; `fathom schema` makes its tables from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fathom.models.connections.altup import AltUp
from fathom.models.connections.causal import Causal
from fathom.models.connections.component_types import one_of_registry
from fathom.models.connections.dense import Dense
from fathom.models.connections.depth_attention import DepthAttention
from fathom.models.connections.frac import Frac
from fathom.models.connections.gated import Gated
from fathom.models.connections.plain import Plain
from fathom.models.connections.scaled import Scaled
from fathom.models.connections.streams import Streams
from fathom.settings import (
    ConfigError,
    Registry,
    Settings,
    deep_merge,
    short_repr,
    unknown,
    validate,
)

KINDS = Registry(
    {
        "plain": Plain,
        "streams": Streams,
        "causal": Causal,
        "gated": Gated,
        "altup": AltUp,
        "scaled": Scaled,
        "depth_attention": DepthAttention,
        "dense": Dense,
        "frac": Frac,
    }
)
AnyConnection = one_of_registry("kind of connection", KINDS)

Scheme = Plain | Streams | Causal | Gated | AltUp | Scaled | DepthAttention | Dense | Frac

# Initial logits of the image study: 5 for the first stream, and for the others …
_FIRST_STREAM = {"on": 5.0, "off": 0.0}  # … 0, before a softmax,
_ONLY_FIRST_STREAM = {"on": 5.0, "off": -5.0}  # … or −5, raw or before σ.
# Layer l starts with stream l mod S.
_A_STREAM_EACH = {"on": 1.0, "off": -1.0, "stream": "cycle"}

_DEMO_START = {"diagonal": 1.0, "off_diagonal": -1.0}
_DEMO = {"open": "copies", "pre": "row_softmax_mean", "post": "row_softmax_sum", "close": "mean"}
_STATIC_START = {"diagonal": 4.0, "off_diagonal": 0.0, "noise": 0.05}
_STATIC = {
    "open": "first_only",
    "pre": {"kind": "softmax", "start": _FIRST_STREAM},
    "post": {"kind": "softmax", "start": _FIRST_STREAM},
    "close": {"kind": "readout", "map": {"kind": "softmax", "start": _FIRST_STREAM}},
}
_DYNAMIC_START = {"diagonal": 5.0, "off_diagonal": -5.0, "noise": 0.01}
_DYNAMIC = {
    "open": "first_only",
    "coefficients": "dynamic",
    # Static and through σ, in hc too.
    "close": {"kind": "readout", "map": {"kind": "sigmoid", "start": _ONLY_FIRST_STREAM}},
}
# The source adds a constant to every sum; others keep sums above a floor.
_ADDED = {"floor": 0.0, "added": 1e-6}

_HC_PAPER = {
    "open": "copies",
    "pre": {"kind": "raw", "start": {"on": 1.0, "off": 0.0, "stream": "cycle"}},
    "post": {"kind": "raw", "start": {"on": 1.0, "off": 1.0}},
    "H_res": {"kind": "raw", "start": {"diagonal": 1.0}},
    "close": "sum",
}
_MHC_PAPER = {
    "open": "copies",
    "coefficients": {"kind": "dynamic", "phi": 0.02},
    "pre": "sigmoid",
    "post": {"kind": "sigmoid", "scale": 2.0},
    "H_res": {"kind": "sinkhorn", "last": "rows"},
    "close": "sum",
}
_MHC_LITE = {
    "open": "copies",
    "coefficients": {"kind": "dynamic", "phi": 0.0},
    "pre": {"kind": "sigmoid", "start": _A_STREAM_EACH},
    "post": {"kind": "sigmoid", "scale": 2.0, "start": _A_STREAM_EACH},
    "H_res": "permutations",
    "close": "sum",
}
# What transformers and mlx-lm give a new model: α 1, b 0, and ε added to σ and to sums.
_EPSILON = 1e-6
_DEEPSEEK = {
    "open": "copies",
    "coefficients": {"kind": "dynamic", "alpha": 1.0, "phi": 0.02},
    "pre": {"kind": "sigmoid", "added": _EPSILON},
    "post": {"kind": "sigmoid", "scale": 2.0},
    "H_res": "kernel_sinkhorn",
}
_HUNYUAN = {"kind": "dynamic", "alpha": 0.01, "phi": 0.006, "eps": 1e-5}
_HUNYUAN_READ = {"kind": "sigmoid", "added": _EPSILON, "start": {"on": "share", "off": "share"}}
_GATED = {
    "open": "stream_embedding",
    "post": "softmax",
    "gate": {"kind": "learned", "start": 0.00995},  # σ(−4.6)
    "close": "sum",
}

SCHEMES: Registry[Mapping[str, Any]] = Registry(
    {
        "plain": {"kind": "plain"},
        # The mHC demo. Its H_pre and H_post are S×S, but only S numbers of each have an effect.
        "hc_demo": {**_DEMO, "H_res": {"kind": "exp", "start": _DEMO_START}},
        "mhc_demo": {**_DEMO, "H_res": {"kind": "sinkhorn", "start": _DEMO_START}},
        # Surviving Depth.
        "hc_causal": {"kind": "causal", "constraint": {"kind": "exp", "start": _STATIC_START}},
        "mhc_causal": {
            "kind": "causal",
            "constraint": {"kind": "sinkhorn", "start": _STATIC_START, **_ADDED},
        },
        "hc_static": {**_STATIC, "H_res": {"kind": "raw", "start": _STATIC_START}},
        "mhc_static": {
            **_STATIC,
            "H_res": {"kind": "sinkhorn", "start": _STATIC_START, **_ADDED},
            "gate": "learned",
        },
        "hc_dynamic": {
            **_DYNAMIC,
            "pre": {"kind": "raw", "start": _ONLY_FIRST_STREAM},
            "post": {"kind": "raw", "start": _ONLY_FIRST_STREAM},
            "H_res": {"kind": "raw", "start": _DYNAMIC_START},
        },
        "mhc_dynamic": {
            **_DYNAMIC,
            "pre": {"kind": "sigmoid", "start": _ONLY_FIRST_STREAM},
            "post": {"kind": "sigmoid", "scale": 2.0, "start": _ONLY_FIRST_STREAM},
            "H_res": {"kind": "sinkhorn", "clip": 10.0, "start": _DYNAMIC_START, **_ADDED},
        },
        # The HC paper. Layer l reads stream l mod S and writes to all, so the untrained network is
        # the ordinary residual network. The dynamic part starts at zero.
        "hc_paper_static": _HC_PAPER,
        "hc_paper": {**_HC_PAPER, "coefficients": {"kind": "dynamic_per_stream", "phi": 0.0}},
        # The mHC paper. It does not say where φ and b start; these are the values of a reproduction
        # (hyper-connection-factory).
        "mhc_paper": _MHC_PAPER,
        "mhc_kernels": {
            **_MHC_PAPER,
            "pre": {"kind": "sigmoid", "added": 1e-6},
            "H_res": "kernel_sinkhorn",
        },
        # A constant H_res: streams are never mixed, or fully averaged.
        "mhc_identity": {**_MHC_PAPER, "H_res": "identity"},
        "mhc_uniform": {**_MHC_PAPER, "H_res": "uniform"},
        # Doubly stochastic by construction.
        "mhc_lite": _MHC_LITE,
        "krom_hc": {**_MHC_LITE, "H_res": "kronecker"},
        "circulant_mhc": {
            **_MHC_PAPER,
            "coefficients": {
                "kind": "dynamic",
                "phi": 0.02,
                "phi_per_input": True,
                "one_alpha": True,
            },
            "pre": {"kind": "sigmoid", "start": {"on": "share", "off": "share"}},
            "H_res": "circulant",
            "close": "mean",
        },
        # From orthogonal matrices.
        "orthostochastic_mhc": {**_MHC_PAPER, "H_res": "orthostochastic"},
        "cayley_mhc": {
            **_MHC_PAPER,
            "coefficients": {"kind": "dynamic", "phi": 0.0},
            "pre": "softmax",
            "post": "softmax",
            "H_res": "cayley",
        },
        # The hyper-parameter study.
        "mhc_gated_static": {
            **_GATED,
            "pre": {"kind": "softmax", "start": {"on": 0.0, "off": -8.0, "stream": "cycle_blocks"}},
            "H_res": {"kind": "log_sinkhorn", "tau": 0.05, "start": {"off_diagonal": -8.0}},
        },
        "mhc_gated_dynamic": {
            **_GATED,
            "coefficients": {"kind": "dynamic", "alpha": None, "phi": 0.01},
            "pre": {"kind": "softmax", "start": {"on": 1.0}},
            "H_res": {"kind": "log_sinkhorn", "tau": 0.05, "start": {"off_diagonal": -3.0}},
        },
        # Streams that differ before the first layer.
        "mhc_scaled": {**_MHC_PAPER, "open": "learned_scales"},
        # In released models, with the start that a new model has there.
        "deepseek_v4": {
            **_DEEPSEEK,
            "close": {
                "kind": "readout",
                "map": _DEEPSEEK["pre"],
                "coefficients": _DEEPSEEK["coefficients"],
            },
        },
        # Its start is not published: as in deepseek_v4.
        "deepseek_v41": {
            **_DEEPSEEK,
            "coefficients": {**_DEEPSEEK["coefficients"], "eps": 1e-20},
            "close": "last_pre",
            "read": "late",
        },
        "glm5_next": {
            **_DEEPSEEK,
            "coefficients": {**_DEEPSEEK["coefficients"], "eps": 1e-5},
            "close": "mean",
        },
        "hy_v4": {
            "open": "copies",
            "coefficients": _HUNYUAN,
            "pre": _HUNYUAN_READ,
            "post": {"kind": "sigmoid", "scale": 2.0, "added": _EPSILON},
            "H_res": "identity",
            "close": {"kind": "readout", "map": _HUNYUAN_READ, "coefficients": _HUNYUAN},
        },
        "qwen4_exp": {"kind": "gated"},
        "altup": {"kind": "altup"},
        # One stream.
        "scaled": {"kind": "scaled", "scale": {"kind": "constant", "c": 1.4, "over_depth": True}},
        "depth_scaled": {"kind": "scaled", "scale": "depth"},
        "residual_scaled": {"kind": "scaled", "scale": "learned"},
        # Sources instead of streams. A source of Kimi K3 is the sum of 12 layers, one of Inkling 2
        # of 6: more layers than there are here.
        "attn_res": {"kind": "depth_attention"},
        "attn_res_block": {"kind": "depth_attention", "block_size": 2, "eps": 1e-5},
        "inkling2": {
            "kind": "depth_attention",
            "block_size": 2,
            "values": "normed",
            "gain": False,
            "scaled": True,
            "apart": 6,
        },
        "mhar": {"kind": "depth_attention", "heads": 4},
        "delta_attn_res": {"kind": "depth_attention", "stream": True},
        "denseformer": {"kind": "dense"},
        "muddformer": {"kind": "dense", "weights": "dynamic", "apart": True},
        "muse_spark": {"kind": "scaled", "scale": "gated"},
        "doge": {"kind": "scaled", "scale": {"kind": "learned", "only": "stream_scale"}},
        "talkie": {
            "kind": "scaled",
            "scale": "gain",
            "initial": {"kind": "write", "eps": 2.0**-23},
        },
        "neomme": {
            "kind": "scaled",
            "scale": {"kind": "constant", "c": 0.5**0.5, "over_depth": True},
            "initial": "read",
        },
        "minimax": {"kind": "scaled", "norm": "gain"},
        "dory": {"kind": "scaled", "scale": "interpolated", "norm": "sphere"},
        # Published with a formula and a start, in no release as they stand.
        "laurel": {"kind": "scaled", "scale": "laurel"},
        "laurel_rw": {"kind": "scaled", "scale": {"kind": "laurel", "rank": 0.0}},
        "laurel_lr": {"kind": "scaled", "scale": {"kind": "laurel", "weights": False}},
        "frac": {"kind": "frac"},
        "frac_static": {"kind": "frac", "coefficients": "static"},
    }
)
"""Settings of schemes by name, for any network."""


class About(NamedTuple):
    """What is told of a scheme that has a name."""

    source: str
    formula: str
    """What sets it apart. A are logits; the other letters are those of docs/definitions.md."""


_JANUARY, _JANUARY_25 = "Surviving Depth, 19 and 21 January", "Surviving Depth, 25 January"
_HC_SOURCE = "HC, arXiv 2409.19606, as the mHC paper restates it"
_EQUAL = "H_pre = A, H_post = A, H_res = A"
_ROWS = "H_pre = column means and H_post = column sums of row softmaxes of A, H_res = "
_HISTORY = "x_{l+1} = y + f(y), y = Σ_k W_lk x_k / (Σ_k W_lk + 1e-6) over k ≤ l, W = "
_SOFTMAX = "H_pre = softmax(A), H_post = softmax(A), H_res = "
_SIGMOID = "H_pre = σ(A), H_post = 2σ(A), H_res = "
_OF_X = "; A = α·(φ x̄) + b"
_KERNELS = f"H_pre = σ(A) + 1e-6, H_post = 2σ(A), H_res = Sinkhorn(softmax(A) + ε){_OF_X}"
_READ = "read = Σ_i a_i v_i, a = softmax_i(w·(g ∘ r(v_i)))"
_READ_OUT = "the output is read with an H_pre of its own"
ABOUT: Registry[About] = Registry(
    {
        "plain": About("the pre-norm network", "x ← x + f(x)"),
        "hc_demo": About("mHC-demo", f"{_ROWS}exp(A)"),
        "mhc_demo": About("mHC-demo", f"{_ROWS}Sinkhorn(exp(A))"),
        "hc_causal": About("Surviving Depth", f"{_HISTORY}exp(A)"),
        "mhc_causal": About("Surviving Depth", f"{_HISTORY}Sinkhorn(exp(A))"),
        "hc_static": About(_JANUARY, f"{_SOFTMAX}A"),
        "mhc_static": About(_JANUARY, f"{_SOFTMAX}(1 − g) I + g Sinkhorn(exp(A))"),
        "hc_dynamic": About(_JANUARY_25, _EQUAL + _OF_X),
        "mhc_dynamic": About(_JANUARY_25, f"{_SIGMOID}Sinkhorn(exp(clip(A))){_OF_X}"),
        "hc_paper_static": About(_HC_SOURCE, _EQUAL),
        "hc_paper": About(_HC_SOURCE, f"{_EQUAL}; A = α·tanh(φ x̄_s) + b"),
        "mhc_paper": About("mHC, arXiv 2512.24880", f"{_SIGMOID}Sinkhorn(exp(A)){_OF_X}"),
        "mhc_kernels": About("DeepSeek's kernels (TileKernels)", _KERNELS),
        "mhc_identity": About("iHC, arXiv 2607.28611", f"{_SIGMOID}I{_OF_X}"),
        "mhc_uniform": About("a control of ours", f"{_SIGMOID}1/S everywhere{_OF_X}"),
        "mhc_lite": About(
            "mhc-lite, arXiv 2601.05732",
            f"{_SIGMOID}Σ_r softmax(A)_r P_r over all permutations P_r{_OF_X}",
        ),
        "krom_hc": About(
            "KromHC", f"{_SIGMOID}⊗_k [[p, 1−p], [1−p, p]], (p, 1−p) = softmax(A_k){_OF_X}"
        ),
        "circulant_mhc": About("C-mHC", f"{_SIGMOID}(1−γ) I + γ Σ_k softmax(A)_k shiftᵏ{_OF_X}"),
        "orthostochastic_mhc": About(
            "an implementation of mHC (mHC-manifold-constrained-hyper-connections)",
            f"{_SIGMOID}squared entries of NewtonSchulz(A), nearly orthogonal{_OF_X}",
        ),
        "cayley_mhc": About(
            "JPmHC, arXiv 2602.18308", f"{_SOFTMAX}Cayley(A − Aᵀ), nearly orthogonal{_OF_X}"
        ),
        "mhc_gated_static": About(
            "the hyper-parameter study", f"{_SOFTMAX}(1 − g) I + g Sinkhorn(exp(A/τ))"
        ),
        "mhc_gated_dynamic": About(
            "the hyper-parameter study", f"{_SOFTMAX}(1 − g) I + g Sinkhorn(exp(A/τ)); A = φ x̄ + b"
        ),
        "mhc_scaled": About(
            "LSS, on stream collapse", f"{_SIGMOID}Sinkhorn(exp(A)){_OF_X}; x_s = c_s ∘ x at first"
        ),
        "deepseek_v4": About("DeepSeek V4, in transformers", f"{_KERNELS}; {_READ_OUT}"),
        "deepseek_v41": About(
            "DeepSeek V4.1, in mlx-lm",
            f"{_KERNELS}; layer l reads with the H_pre of l − 1, and the output is read with the "
            "last",
        ),
        "glm5_next": About("GLM-5-next, in transformers", _KERNELS),
        "hy_v4": About(
            "Hunyuan V4, in transformers",
            f"H_pre = σ(A) + 1e-6, H_post = 2σ(A) + 1e-6, H_res = I{_OF_X}; {_READ_OUT}",
        ),
        "qwen4_exp": About(
            "Qwen4-exp, in transformers",
            "x_s ← x_s + 2σ(W x̃/S)_s f((1/S) Σ_t a_t ∘ x̃_t), a = σ(U silu(D x̃/S)), "
            "x̃_s = (1 + g_s) ∘ RMSNorm(x_s); f without its norm",
        ),
        "altup": About(
            "AltUp as in Gemma 3n, in transformers",
            "x̄ = (I + P) x, y = x̄_0 + f(x̄_0), x_s ← x̄_s + (1 + (B r(y))_s)(y − x̄_0), "
            "r(z) = tanh(R RMSNorm(z)/C), P = A r(x_0)",
        ),
        "scaled": About("MiniCPM 3, in transformers", "x ← x + c f(x), c = 1.4/√blocks"),
        "depth_scaled": About("Beam, in transformers", "x ← √((l + 1)/(l + 2)) x + f(x)/√(l + 2)"),
        "residual_scaled": About(
            "ZAYA1, in transformers", "x ← γ ∘ (x + β) + η ∘ (f(x) + δ), all learned"
        ),
        "attn_res": About("Attention Residuals, arXiv 2603.15031", f"{_READ}, v_{{k+1}} = f(read)"),
        "attn_res_block": About(
            "Kimi K3, in mlx-lm",
            f"{_READ}: blocks' sums and the sum p that is open, p ← p + f(read)",
        ),
        "inkling2": About(
            "Inkling 2, in transformers",
            "read = Σ_i a_i r(v_i), a = softmax_i(w·r(v_i)/√C): as attn_res_block; in every sixth "
            "block q, k and v are read apart",
        ),
        "mhar": About(
            "MHAR, arXiv 2607.27230", "as attn_res, with a softmax for each of 4 groups of channels"
        ),
        "delta_attn_res": About(
            "Delta Attention Residuals, arXiv 2605.18855",
            f"x ← x + f(x + read), {_READ}, v_{{k+1}} = f(x + read)",
        ),
        "denseformer": About(
            "DenseFormer, arXiv 2402.02622", "X_{i+1} = block(Y_i), Y_i = Σ_j a_ij X_j over j ≤ i"
        ),
        "muddformer": About(
            "MUDDFormer, arXiv 2502.12170",
            "as denseformer, with weights a_i + W gelu(V r(X_i)) of each token, for q, k, v and "
            "the residual",
        ),
        "muse_spark": About(
            "Muse Spark, in transformers and mlx-lm",
            "x ← √max(1 − β², 1e-3) ∘ x + β ∘ RMSNorm(f(x)), β = σ(w/0.3); an MLP's output is "
            "scaled by 1 + g before its norm",
        ),
        "doge": About("Doge, in transformers", "x ← γ ∘ x + f(x)"),
        "talkie": About(
            "Talkie, in mlx-lm",
            "x ← x + g f(x), and after each block x ← x + s x_0; x_0 = RMSNorm(embedding)",
        ),
        "neomme": About(
            "NeoMME, in transformers",
            "x ← x + f(x)/√L, where the first f of a block reads λ_0 x + λ_1 x_0; "
            "x_0 = RMSNorm(embedding)",
        ),
        "minimax": About(
            "MiniMax, in transformers",
            "x̂ = g ∘ RMSNorm(x), x ← a x̂ + c f(x̂), a = c = 1; f without its norm",
        ),
        "dory": About(
            "Dory, in transformers (nGPT, arXiv 2410.01131)",
            "x̂ = √C x/‖x‖, x ← x̂ + |λ| ∘ (√C f(x̂)/‖f(x̂)‖ − x̂); f without its norm",
        ),
        "laurel": About(
            "LAuReL, arXiv 2411.07501",
            "x ← a f(x) + b (x + U D x), (a, b) = 2 softmax(w), D [C/16, C]",
        ),
        "laurel_rw": About("LAuReL-RW", "x ← a f(x) + b x, (a, b) = 2 softmax(w)"),
        "laurel_lr": About("LAuReL-LR", "x ← f(x) + x + U D x, D [C/16, C]"),
        "frac": About(
            "Frac-Connections, arXiv 2503.14125",
            "x of two parts x_s [C/2]: x_s ← Σ_t (H_res)_st x_t + (H_post)_s f(H_pre x)_s, H_pre "
            "is 2 × 2; A = α·tanh(φ x̄_s) + b",
        ),
        "frac_static": About("Frac-Connections, arXiv 2503.14125", "as frac, of learned numbers"),
    }
)
"""Of each of them, in the same order."""


def resolve(
    value: str | Mapping[str, Any],
    names: Mapping[str, Any],
    streams: int,
    source: str,
    place: Sequence[str] = (),
) -> Scheme:
    """The scheme that a name or a mapping of settings stands for.

    `value`: a name; settings laid over those of the scheme under its key `connection`; or all
    settings of a scheme, with its `kind`. `names`: what each name stands for, in one of these
    forms. `streams`: S, where the settings have none. Raises ConfigError naming `source`, the
    `place` in it and the key.
    """
    try:
        settings = dict(_expand(value, names, ()))
        kind = str(settings.setdefault("kind", "streams"))
        model = KINDS.find("kind of connection", kind)
    except ConfigError as error:
        where = ": ".join(filter(None, (source, ".".join(place))))
        raise ConfigError(f"{where}: {error}") from error
    if "streams" in model.model_fields:
        settings.setdefault("streams", streams)
    return validate(model, settings, source, place)


def _expand(
    value: str | Mapping[str, Any], names: Mapping[str, Any], seen: tuple[str, ...]
) -> Mapping[str, Any]:
    """All settings that a value stands for, where `seen` names have led to it."""
    if isinstance(value, str):
        if value in seen:
            raise ConfigError(f"connection '{value}' is defined by itself")
        if value not in names:
            raise ConfigError(unknown("connection", value, names))
        return _expand(names[value], names, (*seen, value))
    if not isinstance(value, Mapping):
        raise ConfigError(f"connection must be a name, or settings, but is {short_repr(value)}")
    if "connection" not in value:
        return value
    base = _expand(value["connection"], names, seen)
    own = {key: setting for key, setting in value.items() if key != "connection"}
    return deep_merge(base, own, kinds=True)


def name_behind(value: str | Mapping[str, Any], names: Mapping[str, Any]) -> str:
    """The last name that a value leads to, as in 'mhc_paper'; empty if it is settings alone.

    `value` and `names` as in `resolve`, which has found no problem with them.
    """
    name = ""
    while isinstance(value, str) or "connection" in value:
        name = value if isinstance(value, str) else value["connection"]
        value = names[name]
    return name


def settings_of(scheme: Scheme) -> list[Settings]:
    """The scheme and every component in it: a run depends on their code."""
    found: list[Settings] = []
    pending: list[Any] = [scheme]
    while pending:
        value = pending.pop()
        if isinstance(value, Settings):
            found.append(value)
            pending += [getattr(value, name) for name in type(value).model_fields]
    return found
