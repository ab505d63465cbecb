"""How a command ends when something is wrong that its user can mend."""

from __future__ import annotations

import sys
from typing import NoReturn

from fathom.system.text import printable

PACKAGES = {
    ".": ("numpy", "pydantic", "safetensors", "typer", "yaml"),
    ".[workflow]": (
        "PIL",
        "jinja2",
        "markdown_it",
        "matplotlib",
        "pandas",
        "plotly",
        "pooch",
        "scipy",
        "snakemake",
        "typst",
    ),
    ".[archive]": ("rocrate",),
}
"""What to give to pip, and the modules that it brings; pyproject.toml has the versions."""


class UserError(Exception):
    """Something that the user can mend: each line of the message names a place and the fix."""


def fail(message: str) -> NoReturn:
    """Print each line of the message as the program's own and exit with status 1."""
    _print(message)
    raise SystemExit(1)


def fail_for_system(error: OSError) -> NoReturn:
    """Exit with what the system said, as in 'results/x.csv: No space left on device'."""
    fail(f"{error.filename or 'writing'}: {error.strerror or error}")


def fail_for_missing(error: ModuleNotFoundError) -> NoReturn:
    """Exit with what installs the missing package. Raises the error again for one of another's."""
    package = (error.name or "").partition(".")[0]
    source = next((source for source, brought in PACKAGES.items() if package in brought), None)
    if source is None:
        raise error
    fail(f"this needs {package}, which is not installed here; pip install -e '{source}' brings it")


def fail_for_interrupt() -> NoReturn:
    """Exit as a shell expects after Ctrl-C."""
    _print("interrupted; a training goes on from its last checkpoint")
    raise SystemExit(130)


def _print(message: str) -> None:
    for line in message.rstrip("\n").split("\n"):
        print(f"fathom: {printable(line)}", file=sys.stderr)
