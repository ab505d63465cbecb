"""Presets: the named residual schemes, and the resolution of names and settings to schemes.

docs/schemes.md lists them; `fathom schema` generates its tables from this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fathom.connections.altup import AltUp
from fathom.connections.causal import Causal
from fathom.connections.component_types import one_of_registry
from fathom.connections.connection import Scheme
from fathom.connections.dense import Dense
from fathom.connections.depth_attention import DepthAttention
from fathom.connections.frac import Frac
from fathom.connections.gated import Gated
from fathom.connections.gated_multi import GatedMulti
from fathom.connections.module import TorchModule
from fathom.connections.one_stream import OneStream
from fathom.connections.plain import Plain
from fathom.connections.rules import RULES
from fathom.connections.scaled import Scaled
from fathom.connections.state_attention import StateAttention
from fathom.connections.streams import Streams
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
        "one_stream": OneStream,
        "gated_multi": GatedMulti,
        "state_attention": StateAttention,
        "module": TorchModule,
    }
)
AnyConnection = one_of_registry("kind of connection", KINDS)

# Initial logits of the image study: 5 for the first stream, and for the others:
_FIRST_STREAM = {"on": 5.0, "off": 0.0}  # 0, before a softmax
_ONLY_FIRST_STREAM = {"on": 5.0, "off": -5.0}  # −5, raw or before σ
# Layer l initially uses stream l mod S.
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
    # Static and with σ, also in hc.
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
_MHC_AVERAGED = {
    "open": "copies",
    "coefficients": {"kind": "dynamic", "phi": 0.02},
    "pre": "sigmoid",
    "post": {"kind": "sigmoid", "scale": 2.0},
    "H_res": {"kind": "sinkhorn", "last": "rows"},
    "close": "sum",
}
# Function k, attention and MLP counted apart, reads stream k mod S and writes 1 to all streams. The
# logits of H_res are 6 I − 3: a diagonal of 0.993.
_MHC_PAPER = {
    **_MHC_AVERAGED,
    "coefficients": {"kind": "dynamic", "phi": 0.0},
    "pre": {"kind": "sigmoid", "start": {"on": 3.0, "off": -3.0, "stream": "cycle"}},
    "H_res": {"kind": "sinkhorn", "last": "rows", "start": {"diagonal": 3.0, "off_diagonal": -3.0}},
}
_MHC_CYCLE = {
    **_MHC_AVERAGED,
    "pre": {"kind": "sigmoid", "start": _A_STREAM_EACH},
    "post": {"kind": "sigmoid", "scale": 2.0, "start": _A_STREAM_EACH},
    "H_res": {"kind": "sinkhorn", "last": "rows", "start": {"off_diagonal": -8.0}},
}
_MHC_LITE = {
    "open": "copies",
    "coefficients": {"kind": "dynamic", "phi": 0.0},
    "pre": {"kind": "sigmoid", "start": _A_STREAM_EACH},
    "post": {"kind": "sigmoid", "scale": 2.0, "start": _A_STREAM_EACH},
    "H_res": "permutations",
    "close": "sum",
}
# A new model in transformers and mlx-lm: α 1, b 0, and ε added to σ and to sums.
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
        # The mHC paper, with the start of its appendix A.6 as PaddleFleet cites it.
        "mhc_paper": _MHC_PAPER,
        # The start of a reproduction (hyper-connection-factory): all functions read and write
        # the average of all streams.
        "mhc_averaged": _MHC_AVERAGED,
        # Function k reads and writes mostly stream k mod S, and H_res starts near the identity.
        "mhc_cycle": _MHC_CYCLE,
        "mhc_identity_cycle": {**_MHC_CYCLE, "H_res": "identity"},
        # A constant H_res: streams are never mixed, or fully averaged.
        "mhc_identity": {**_MHC_AVERAGED, "H_res": "identity"},
        "mhc_uniform": {**_MHC_AVERAGED, "H_res": "uniform"},
        # Doubly stochastic by construction.
        "mhc_lite": _MHC_LITE,
        "krom_hc": {**_MHC_LITE, "H_res": "kronecker"},
        "circulant_mhc": {
            **_MHC_AVERAGED,
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
        # From an orthogonal matrix.
        "orthostochastic_mhc": {**_MHC_AVERAGED, "H_res": "orthostochastic"},
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
        # In released models, with the initial values of a new model there.
        "deepseek_v4": {
            **_DEEPSEEK,
            "close": {
                "kind": "readout",
                "map": _DEEPSEEK["pre"],
                "coefficients": _DEEPSEEK["coefficients"],
            },
        },
        # Its initial values are not published; these are from deepseek_v4.
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
        "minimax": {"kind": "scaled", "scale": {"kind": "constant"}, "norm": "gain"},
        "dory": {"kind": "scaled", "scale": "interpolated", "norm": "sphere"},
        "laurel": {"kind": "scaled", "scale": "laurel"},
        "frac": {"kind": "frac"},
        **{name: {"kind": "one_stream", "rule": name} for name in RULES},
        "muddformer_last": {"kind": "dense", "weights": "dynamic", "apart": True, "last": 2},
        "gmr_cyclic": {"kind": "gated_multi"},
        "attn_res_state": {"kind": "state_attention"},
    }
)
"""Settings of schemes by name, for any network."""


def resolve(
    value: str | Mapping[str, Any],
    names: Mapping[str, Any],
    streams: int,
    source: str,
    place: Sequence[str] = (),
) -> Scheme:
    """The scheme that a name or a mapping of settings stands for.

    `value`: a name; settings merged over those of the scheme in its key `connection`; or all
    settings of a scheme, with its `kind`. `names`: the `value` of each name, in one of these forms.
    `streams`: S, if the settings have none. Raises ConfigError naming `source`, the `place` in it
    and the key.
    """
    try:
        settings = dict(_expand(value, names, ()))
        kind = str(settings.setdefault("kind", "module" if "module" in settings else "streams"))
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
    """All settings that a value stands for; `seen`: names that led to it."""
    if isinstance(value, str):
        if value in seen:
            raise ConfigError(f"connection '{value}' is defined by itself; name another")
        if value not in names:
            raise ConfigError(unknown("connection", value, names))
        return _expand(names[value], names, (*seen, value))
    if not isinstance(value, Mapping):
        raise ConfigError(f"connection must be a name, or settings, but is {short_repr(value)}")
    if not value:
        raise ConfigError("names no connection; add one, such as connection: plain")
    if "connection" not in value:
        return value
    base = _expand(value["connection"], names, seen)
    own = {key: setting for key, setting in value.items() if key != "connection"}
    return deep_merge(base, own, kinds=True)


def name_behind(value: str | Mapping[str, Any], names: Mapping[str, Any]) -> str:
    """The last name that a value leads to, such as 'mhc_paper'; empty if it has no name.

    `value` and `names`: as in `resolve`, which must have accepted them.
    """
    name = ""
    while isinstance(value, str) or "connection" in value:
        if isinstance(value, str):
            name, value = value, names[value]
        else:
            value = value["connection"]
    return name


def settings_of(scheme: Scheme) -> list[Settings]:
    """The scheme and every component in it: a run depends on their code."""
    components: list[Settings] = []
    pending: list[Any] = [scheme]
    while pending:
        value = pending.pop()
        if isinstance(value, Settings):
            components.append(value)
            pending += [getattr(value, name) for name in type(value).model_fields]
    return components
