"""The named residual schemes of schemes.toml, and the resolution of names and settings to schemes.

docs/schemes.md lists them; `fathom schema` generates its tables from this module.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class About(NamedTuple):
    """Facts about a named scheme; schemes.toml describes them."""

    source: str
    formula: str
    starts_plain: bool = False
    releases: Sequence[str] = ()


_ROWS = tomllib.loads(Path(__file__).with_name("schemes.toml").read_text(encoding="utf-8"))

ABOUT: Registry[About] = Registry(
    {
        name: About(**{key: value for key, value in row.items() if key in About._fields})
        for name, row in _ROWS.items()
    }
)
"""Facts about each named scheme."""

_SETTINGS = {
    name: {key: value for key, value in row.items() if key not in About._fields}
    for name, row in _ROWS.items()
}


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


SCHEMES: Registry[Mapping[str, Any]] = Registry(
    {name: _expand(row, _SETTINGS, ()) for name, row in _SETTINGS.items()}
)
"""Settings of schemes by name, for any network."""


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
