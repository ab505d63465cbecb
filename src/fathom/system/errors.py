"""Errors that the user can fix: how commands report them and exit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from fathom.system.text import printable

PACKAGES = {
    ".": ("numpy", "pooch", "pydantic", "ruamel", "safetensors", "tqdm", "typer"),
    ".[torch]": ("numba", "torch"),
    ".[workflow]": (
        "PIL", "jinja2", "markdown_it", "matplotlib", "pandas", "scipy", "snakemake",
        "typst", "vl_convert",
    ),
}  # fmt: skip
"""Modules by pip argument; pyproject.toml has the versions."""


class UserError(Exception):
    """An error that the user can fix. Each line of the message names a place and the fix."""


def fail(message: str) -> NoReturn:
    """Print the message, each line after the program's name, and exit with status 1."""
    say(message)
    raise SystemExit(1)


def of_system(error: OSError) -> str:
    """The file and the system's message, as in 'results/x.csv: No space left on device'.

    For a broken link, its target.
    """
    of_link = broken_link(error.filename) if isinstance(error, FileExistsError) else ""
    return of_link or f"{error.filename or 'writing'}: {error.strerror or error}"


def broken_link(path: str | Path) -> str:
    """The message for a path with a broken link in it; empty for any other."""
    for part in (Path(path), *Path(path).parents):
        if part.is_symlink() and not part.exists():
            to = part.readlink()
            return f"{part}: is a link to {to}, which does not exist; create it, or remove the link"
    return ""


def fail_for_missing(error: ModuleNotFoundError) -> NoReturn:
    """Exit with the command that installs the missing package; re-raises for an unknown package."""
    package = (error.name or "").partition(".")[0]
    source = next((source for source, brought in PACKAGES.items() if package in brought), None)
    if source is None:
        raise error
    fail(f"this needs {package}, which is not installed here; run: pip install -e '{source}'")


def fail_for_interrupt() -> NoReturn:
    """Exit with status 130, as a shell expects after Ctrl-C."""
    say("interrupted; a training resumes from its last checkpoint")
    raise SystemExit(130)


def say(message: str) -> None:
    """Print the message on stderr, each line after the program's name."""
    for line in message.rstrip("\n").split("\n"):
        print(f"fathom: {printable(line)}", file=sys.stderr)
