"""Reading a config: YAML files laid over each other, then checked."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fathom.config.study import BACKENDS, Config
from fathom.settings import ConfigError, checked


def load_config(files: Sequence[str | Path], overrides: Mapping[str, Any] | None = None) -> Config:
    """Read YAML files, later ones over earlier ones, then `overrides`, as Snakemake does."""
    merged: dict[str, Any] = {}
    for file in files:
        merge(merged, read_yaml(file))
    merge(merged, overrides or {})
    return check_config(merged, " + ".join(str(f) for f in files))


def read_yaml(file: str | Path) -> dict[str, Any]:
    """A YAML mapping. Raises ConfigError with the file, the line and the problem."""
    try:
        data = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = " ".join((getattr(error, "problem", None) or str(error)).split())
        raise ConfigError(f"{file}:{where} malformed YAML ({problem})") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: must be a mapping with keys such as 'studies'")
    return data


def merge(base: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    """Lay `overlay` over `base` in place: mappings key by key, anything else whole."""
    for key, value in overlay.items():
        if isinstance(value, Mapping):
            if not isinstance(base.get(key), dict):
                base[key] = {}
            merge(base[key], value)
        else:
            base[key] = value


def check_config(data: Mapping[str, Any], source: str = "config") -> Config:
    """Validate a merged config. Raises ConfigError, one line per problem, naming `source`."""
    config = checked(Config, data, source)
    config.check(source)
    return config


def installed_backends() -> tuple[str, ...]:
    """The backends whose framework is here, found without importing any."""
    return tuple(name for name in BACKENDS if _is_installed(name))


def _is_installed(framework: str) -> bool:
    """Whether a distribution brings the module: a folder that one has left behind is not enough."""
    module = importlib.util.find_spec(framework)
    if module is None:
        return False
    try:
        importlib.metadata.distribution(framework)
    except importlib.metadata.PackageNotFoundError:
        # It may be that of another name, as for a build of one's own. But a folder without a file
        # of its own can be shared: mlx-cpu has files in that of mlx, which it does not bring.
        return module.origin is not None and (
            framework in importlib.metadata.packages_distributions()
        )
    return True
