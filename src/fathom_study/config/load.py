"""Reading a config: YAML or JSON files laid over each other, then validated; its resolved copy.

The profiles (`workflow/profiles`) call `check_start`, as Snakemake reads no other file of the
project before the config, and reports each error of the config in many lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from fathom.settings import NULLS, ConfigError, deep_merge, unknown, validate
from fathom.system.errors import UserError, fail, of_system
from fathom.system.packages import is_installed
from fathom.system.text import digits, load_json
from fathom_study.config.config import Config
from fathom_study.spec import BACKENDS
from fathom_study.system.files import write_text

DEFAULT = "config.yaml"
"""The config of the project, in the folder where a command starts."""


def load_config(files: Sequence[str | Path], overrides: Mapping[str, Any] | None = None) -> Config:
    """The config of YAML or JSON files, later ones over earlier ones, with `overrides` over all.

    Raises ConfigError, one line per problem, naming the files, and `options` for overrides.
    """
    if DEFAULT in map(str, files) and not Path(DEFAULT).exists():
        raise ConfigError(
            f"{DEFAULT} is not in this folder; change to the project's folder, or name another "
            "config"
        )
    merged: dict[str, Any] = {}
    overlays = [(str(file), _place(read_yaml(file), Path(file).parent)) for file in files]
    overlays += [("options", overrides)] if overrides else []
    for source, overlay in overlays:
        _check_names(source, overlay.get("studies"), merged.get("studies"))
        merged = deep_merge(merged, overlay)
    return check_config(merged, " + ".join(source for source, _ in overlays))


def _place(data: Any, folder: Path) -> Any:  # noqa: ANN401, any data
    """The data of a file in `folder`, with the path of each `module` as seen from here.

    A path without a file is kept: paths in results/config.json are relative to another folder.
    """
    if isinstance(data, list):
        return [_place(part, folder) for part in data]
    if not isinstance(data, dict):
        return data
    placed = {key: _place(part, folder) for key, part in data.items()}
    file, _, name = str(placed.get("module", "")).rpartition(":")
    if file and (folder / file).is_file():
        placed["module"] = f"{Path(os.path.relpath(folder / file)).as_posix()}:{name}"
    return placed


def _check_names(source: str, studies: object, known: object) -> None:
    """Raise ConfigError for a study that is dropped or changed but does not exist, as misspelt."""
    listed = known if isinstance(known, Mapping) else {}
    for name, study in studies.items() if isinstance(studies, Mapping) else ():
        if name in listed:
            continue
        problem = unknown("study", name, listed)
        if study in NULLS:
            raise ConfigError(f"{source}: studies.{name}: null drops it; {problem}")
        if listed and isinstance(study, Mapping) and "task" not in study:
            raise ConfigError(f"{source}: studies.{name}: {problem}; a new study needs its task")


def read_yaml(file: str | Path) -> dict[str, Any]:
    """The mapping in a YAML or .json file. Raises ConfigError with file, line and problem."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 ({error})") from error
    parse = parse_json if Path(file).suffix == ".json" else parse_yaml
    data = parse(text, f"{file}:")
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: must be a mapping with keys such as 'studies'")
    return data


def parse_json(text: str, source: str) -> Any:  # noqa: ANN401, any data
    """The data in a JSON text. Raises ConfigError, one line that begins with `source`."""
    try:
        return load_json(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} malformed JSON ({error})") from error


def parse_yaml(text: str, source: str) -> Any:  # noqa: ANN401, any data
    """The data in a YAML 1.2 text. Raises ConfigError, one line that begins with `source`."""
    try:
        data = YAML(typ="safe", pure=True).load(text)
        json.dumps(data, default=_refuse)  # also refuses an alias of its own parent
    # Values with a wrong tag and escapes such as \UFFFFFFFF raise other errors.
    except (YAMLError, ValueError, TypeError, LookupError, OverflowError, RecursionError) as e:
        mark = getattr(e, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = " ".join((getattr(e, "problem", None) or str(e)).split())
        raise ConfigError(f"{source}{line} malformed YAML ({problem[:200]})") from e
    return data


def _refuse(value: object) -> None:
    """Raise TypeError for a value that JSON does not have: a date, a set, bytes."""
    quote = "; put it in quotes, to make it text" if isinstance(value, date) else ""
    raise TypeError(f"{value} is a {type(value).__name__}{quote}")


def check_config(data: Mapping[str, Any], source: str = "config") -> Config:
    """A merged config, validated. Raises ConfigError, one line per problem, naming `source`."""
    config = validate(Config, data, source)
    config.check(source)
    return config


def installed_backends() -> tuple[str, ...]:
    """The backends whose framework is installed, found without importing one."""
    return tuple(name for name in BACKENDS if is_installed(name))


def resolved_text(config: Config) -> str:
    """The content of config.json."""
    return json.dumps(config.resolved(), indent=2, allow_nan=False) + "\n"


def is_resolved(config: Config) -> bool:
    """Whether config.json exists and has the content of this config."""
    file = Path(config.report_folder, "config.json")
    return file.is_file() and file.read_bytes() == resolved_text(config).encode()


def write_resolved(config: Config) -> str:
    """Path of a file with `resolved_text`, named after its hash, for the job that copies it."""
    text = resolved_text(config)
    file = Path(".snakemake/fathom-config", f"{digits(text)}.json")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    return str(file)


def check_start() -> None:
    """Exit with one line if Snakemake's cache or a file after `--configfile` cannot be used."""
    from platformdirs import user_cache_dir  # a package that Snakemake needs

    try:
        cache = Path(user_cache_dir("snakemake", "snakemake"), "snakemake/source-cache")
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(
            f"{of_system(error)}; Snakemake needs a cache in the home folder; choose a writable "
            'folder: export XDG_CACHE_HOME="$PWD/.snakemake"'
        )
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--configfile", "--configfiles", nargs="+", action="append", default=[])
    options.add_argument("--config", "-C", nargs="*", action="append", default=[])
    given, _ = options.parse_known_args(sys.argv[1:])
    for name, values in vars(given).items():
        if len(values) > 1:
            fail(f"--{name} is given {len(values)} times, but Snakemake uses only the last; "
                 f"write one: --{name} {' '.join(itertools.chain(*values))}")  # fmt: skip
    try:
        for file in itertools.chain(*given.configfile):
            read_yaml(file)
    except UserError as error:
        fail(str(error))
