"""What several commands share: their options, and how these become a config."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fathom.config import Compute, Config, ConfigError, load_config, merge, parse_yaml
from fathom.config.load import MAX_LEVELS
from fathom.settings import AnySection, checked, shown

ConfigFiles = Annotated[
    list[Path],
    typer.Option("--config", "-c", help="Config files; later ones are laid over earlier ones."),
]
Overrides = Annotated[
    list[str],
    typer.Option("--set", help="KEY=VALUE laid over the files, as in depths=[12] (repeatable)."),
]
Patterns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATTERN]...", help="Which cells, as in 'depth-mlx/48L/*' or '*/torch/*'; or all."
    ),
]
PublishedFile = Annotated[
    Path, typer.Option("--published", help="Published figures to set beside ours.")
]
TemplatesFolder = Annotated[Path, typer.Option("--templates", help="Folder of the templates.")]
DEFAULT_CONFIG = [Path("config.yaml")]
REFERENCE_CONFIG = [*DEFAULT_CONFIG, Path("workflow/presets/reference.yaml")]
PUBLISHED = Path("report/published.yaml")
TEMPLATES = Path("report/templates")
PAPER = Path("report/paper")
PAGE = Path("report/page")


def example(command: str) -> str:
    """What ends the help of a command: an example, on a line of its own however long."""
    return f"\b\nExample:\n  {command}"


def read_config(files: Sequence[Path], overrides: Sequence[str] = ()) -> Config:
    """The config of the files, with KEY=VALUE laid over them. Raises ConfigError."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or key.count(".") > MAX_LEVELS:
            raise ConfigError(f"--set {shown(override)}: write KEY=VALUE, as in depths=[12]")
        value = parse_yaml(text, f"--set {shown(override)}:")
        for part in reversed(key.split(".")):
            value = {part: value}
        merge(values, value)
    if DEFAULT_CONFIG[0] in files and not DEFAULT_CONFIG[0].exists():
        raise ConfigError(
            "config.yaml is not in this folder; go to the folder of the project, or name a config "
            "with --config FILE"
        )
    return load_config(files, values)


def workflow_command(files: Sequence[Path], overrides: Sequence[str] = ()) -> str:
    """The command line of the workflow that reads the same config."""
    overlays = [str(file) for file in files if file != DEFAULT_CONFIG[0]]
    settings = []
    for override in overrides:
        key, _, value = override.partition("=")
        first, *inner = key.split(".")
        for part in reversed(inner):  # Snakemake knows no dots
            value = f"{{{part}: {value}}}"
        settings.append(f"{first}={value}")
    command = ["snakemake", "all"]
    command += ["--configfile", *overlays] if overlays else []
    command += [] if DEFAULT_CONFIG[0] in files else ["--replace-workflow-config"]
    command += ["--config", *settings] if settings else []
    return shlex.join(command)


def changed(compute: Compute, **changes: str | int | None) -> Compute:
    """The section with every change that is not None. Raises ConfigError naming the option."""
    given = {key: value for key, value in changes.items() if value is not None}
    options = " ".join(f"--{key} {value}" for key, value in given.items())
    return checked(Compute, {**compute.model_dump(), **given}, options or "compute")


def from_json(model: type[AnySection], text: str, source: str) -> AnySection:
    """A section that is given as JSON. Raises ConfigError, a line for each problem.

    `source`: the option or the argument, which a line begins with.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} {shown(text)}: is not JSON ({error})") from error
    return checked(model, data, source)
