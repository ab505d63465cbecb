"""The rows that have a name, and how a row is put together from names and settings.

Sources: docs/definitions.md, "Connections".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fathom.models.connections.causal import Causal
from fathom.models.connections.ingredients import one_of_registry
from fathom.models.connections.plain import Plain
from fathom.models.connections.streams import Streams
from fathom.settings import ConfigError, Registry, Section, checked, shown, unknown

KINDS = Registry({"plain": Plain, "streams": Streams, "causal": Causal})
AnyConnection = one_of_registry("kind of connection", KINDS)

Scheme = Plain | Streams | Causal

# The two kinds of start that the image study has: weights 5 on the first stream, and the rest …
_FIRST_STREAM = {"on": 5.0, "off": 0.0}  # … at zero (for a softmax) or …
_ONLY_FIRST_STREAM = {"on": 5.0, "off": -5.0}  # … at −5 (raw, or for σ).

_DEMO = {
    "kind": "streams",
    "open": "copies",
    "pre": "row_softmax_mean",
    "post": "row_softmax_sum",
    "H_res": "exp",
    "H_res_start": {"diagonal": 1.0, "off_diagonal": -1.0},
    "close": "mean",
}
_STATIC = {
    "kind": "streams",
    "open": "first_only",
    "pre": {"kind": "softmax", "start": _FIRST_STREAM},
    "post": {"kind": "softmax", "start": _FIRST_STREAM},
    "H_res": "raw",
    "H_res_start": {"diagonal": 4.0, "off_diagonal": 0.0, "noise": 0.05},
    "close": {"kind": "readout", "map": {"kind": "softmax", "start": _FIRST_STREAM}},
}
_DYNAMIC = {
    "kind": "streams",
    "open": "first_only",
    "coefficients": "dynamic",
    "pre": {"kind": "raw", "start": _ONLY_FIRST_STREAM},
    "post": {"kind": "raw", "start": _ONLY_FIRST_STREAM},
    "H_res": "raw",
    "H_res_start": {"diagonal": 5.0, "off_diagonal": -5.0, "noise": 0.01},
    "close": {"kind": "readout", "map": {"kind": "raw", "start": _ONLY_FIRST_STREAM}},
}

SCHEMES: Registry[Mapping[str, Any]] = Registry(
    {
        "plain": {"kind": "plain"},
        # The mHC demo's. H_pre and H_post are S×S there, and act through S numbers each.
        "hc_demo": _DEMO,
        "mhc_demo": {**_DEMO, "H_res": "sinkhorn"},
        # Surviving Depth's.
        "hc_causal": {"kind": "causal", "constraint": "exp"},
        "mhc_causal": {"kind": "causal", "constraint": {"kind": "sinkhorn", "floor": 1e-6}},
        "hc_static": _STATIC,
        "mhc_static": {**_STATIC, "H_res": "sinkhorn", "gate": "learned"},
        "hc_dynamic": _DYNAMIC,
        "mhc_dynamic": {
            **_DYNAMIC,
            "pre": {"kind": "sigmoid", "start": _ONLY_FIRST_STREAM},
            "post": {"kind": "sigmoid", "scale": 2.0, "start": _ONLY_FIRST_STREAM},
            "H_res": {"kind": "sinkhorn", "clip": 10.0},
            "close": {"kind": "readout", "map": {"kind": "sigmoid", "start": _ONLY_FIRST_STREAM}},
        },
        # The HC paper's without its dynamic part, which starts at zero: layer l reads stream
        # l mod S and writes to all, so at first the network is the residual network.
        "hc_paper_static": {
            "kind": "streams",
            "open": "copies",
            "pre": {"kind": "raw", "start": {"on": 1.0, "off": 0.0, "stream": "cycle"}},
            "post": {"kind": "raw", "start": {"on": 1.0, "off": 1.0}},
            "H_res": "raw",
            "H_res_start": {"diagonal": 1.0},
            "close": "sum",
        },
    }
)
"""Schemes by the name that config.yaml may use, on any network."""


MAX_CHAIN = 20
"""How many connections may be defined by one another, each by the next."""


def resolve(
    value: str | Mapping[str, Any],
    names: Mapping[str, Any],
    streams: int,
    source: str,
    place: Sequence[str] = (),
) -> Scheme:
    """The scheme that a name, or a mapping of settings, stands for.

    `value`: a name; or settings laid over those of the scheme that `connection` names; or a whole
    row, with its `kind`. `names`: what each name stands for, likewise. `streams`: S where the row
    does not say. Raises ConfigError naming `source`, the `place` in it and the key.
    """
    try:
        row = dict(_row(value, names, ()))
        kind = str(row.setdefault("kind", "streams"))
        section = KINDS.find("kind of connection", kind)
    except ConfigError as error:
        raise ConfigError(f"{source}: {'.'.join(place)}: {error}") from error
    if section is Streams:
        row.setdefault("streams", streams)
    return checked(section, row, source, place)


def _row(
    value: str | Mapping[str, Any], names: Mapping[str, Any], seen: tuple[str, ...]
) -> Mapping[str, Any]:
    if isinstance(value, str):
        if value in seen:
            raise ConfigError(f"connection '{value}' is defined by itself")
        if len(seen) == MAX_CHAIN:
            raise ConfigError(f"connection '{seen[0]}' is defined by more than {MAX_CHAIN} others")
        if value not in names:
            raise ConfigError(unknown("connection", value, names))
        return _row(names[value], names, (*seen, value))
    if not isinstance(value, Mapping):
        raise ConfigError(f"connection must be a name, or settings, but is {shown(value)}")
    if "connection" not in value:
        return value
    base = _row(value["connection"], names, seen)
    return overlaid(base, {k: v for k, v in value.items() if k != "connection"})


def overlaid(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`overlay` over `base`: settings of the same kind key by key, anything else whole."""
    merged = dict(base)
    for key, value in overlay.items():
        before = merged.get(key)
        before = {"kind": before} if isinstance(before, str) else before
        is_mapping = isinstance(value, Mapping) and isinstance(before, Mapping)
        if is_mapping and value.get("kind", before.get("kind")) == before.get("kind"):
            merged[key] = overlaid(before, value)
        else:
            merged[key] = value
    return merged


def sections_of(scheme: Scheme) -> list[Section]:
    """The scheme and every ingredient in it: whose code a run with it depends on."""
    found: list[Section] = []
    pending: list[Any] = [scheme]
    while pending:
        value = pending.pop()
        if isinstance(value, Section):
            found.append(value)
            pending += [getattr(value, name) for name in type(value).model_fields]
    return found
