"""Options that several commands share, and how they become a config."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fathom.settings import deep_merge, short_repr, unknown, validate
from fathom_study.config import Compute, Config, ConfigError, load_config, parse_yaml
from fathom_study.system.files import file_to_write


def _path(name: str, kind: str) -> Path:
    if not str(name):
        raise typer.BadParameter(f"is empty; name a {kind}")
    return Path(name)


def _name_of_folder(name: str) -> Path:
    return _path(name, "folder")


def _name_of_file(name: str) -> Path:
    file = _path(name, "file")
    file_to_write(file)
    return file


def output_file(*names: str, **settings: Any) -> Any:  # noqa: ANN401, an option of typer
    """An option for a file to write; a folder or a device is refused before the work starts."""
    return Option(*names, parser=_name_of_file, **{"metavar": "FILE", **settings})


def output_folder(*names: str, **settings: Any) -> Any:  # noqa: ANN401, an option of typer
    """An option for a folder to write into."""
    return Option(*names, parser=_name_of_folder, metavar="FOLDER", **settings)


ConfigFiles = Annotated[
    list[Path],
    Option("--config", "-c", help="Config files; later ones override earlier ones."),
]
Overrides = Annotated[
    list[str],
    Option("--set", help="KEY=VALUE that overrides the files, such as depths=[12] (repeatable)."),
]
Patterns = Annotated[
    list[str] | None,
    Argument(
        metavar="[PATTERN]...",
        help="Cells, such as 'depth-mlx/48L/*' or '*/torch/*'; by default all.",
    ),
]
Scheme = Annotated[
    str, Argument(help="A scheme, or its settings such as '{connection: hc_paper}'.")
]
Streams = Annotated[int, Option(min=1, help="Streams, if the settings have none.")]
Replace = Annotated[bool, Option("--replace", help="Train even if the folder contains a run.")]
Device = Annotated[str | None, Option(help="auto, cpu, cuda, mps or gpu.")]
Threads = Annotated[int | None, Option(min=1, help="CPU threads.")]
Jobs = Annotated[int, Option(min=1, help="Number of cells to train at once.")]
RunFolder = Annotated[Path, Argument(help="A run folder.")]
FigureFolder = Annotated[Path, output_folder(help="Folder for the figures.")]
PublishedFile = Annotated[Path, Option("--published", help="Published values to compare with.")]
TemplatesFolder = Annotated[Path, Option("--templates", help="Folder of the templates.")]
DEFAULT_CONFIG = [Path("config.yaml")]
DATA = Path(Compute.model_fields["data"].default)
PUBLISHED = Path("report/published.yaml")
TEMPLATES = Path("report/templates")
PAPER = Path("report/paper")
PAGE = Path("report/page")


def example(command: str) -> str:
    """The end of a command's help: an example on one line, however long."""
    return f"\b\nExample:\n  {command}"


def read_config(files: Sequence[Path], overrides: Sequence[str] = ()) -> Config:
    """The config of the files, overridden by each KEY=VALUE. Raises ConfigError."""
    values: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise ConfigError(f"--set {short_repr(override)}: write KEY=VALUE, such as depths=[12]")
        value = parse_yaml(text, f"--set {short_repr(override)}:")
        for part in reversed(key.split(".")):
            value = {part: value}
        values = deep_merge(values, value)
    return load_config(files, values)


def options_of(files: Sequence[Path]) -> list[str]:
    """The options that name these config files; none for the default."""
    return [] if files == DEFAULT_CONFIG else [f"--config={file}" for file in files]


def end_with(result: str | Path, after: str) -> None:
    """Name the result and the next step on stderr, at the end of a command."""
    typer.echo(f"made {result}; next: {after}", err=True)


def check_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError for the first name that is not among the known ones."""
    listed = list(dict.fromkeys(known))
    for name in names:
        if name not in listed:
            raise ConfigError(unknown(kind, name, listed))


def workflow_command(files: Sequence[Path], overrides: Sequence[str] = ()) -> str:
    """The command line of the workflow with the same config."""
    overlays = [str(file) for file in files if file != DEFAULT_CONFIG[0]]
    settings = []
    for override in overrides:
        key, _, value = override.partition("=")
        first, *inner = key.split(".")
        for part in reversed(inner):  # Snakemake does not split keys at dots
            value = f"{{{part}: {value}}}"
        settings.append(f"{first}={value}")
    command = ["snakemake", "all"]
    command += ["--configfile", *overlays] if overlays else []
    command += [] if DEFAULT_CONFIG[0] in files else ["--replace-workflow-config"]
    command += ["--config", *settings] if settings else []
    return shlex.join(command)


def changed(compute: Compute, **changes: str | int | None) -> Compute:
    """The settings with every change that is not None. Raises ConfigError naming the option."""
    given = {key: value for key, value in changes.items() if value is not None}
    options = " ".join(f"--{key} {value}" for key, value in given.items())
    return validate(Compute, {**compute.model_dump(), **given}, options or "compute")
