"""Which code a result depends on, and which version of the project made it.

A result is stale when the code that made it has changed, and only then: an edit of a figure must
not retrain a network. So a hash covers just the modules that a module imports, found by reading
the sources, without importing them. Standard library only: the workflow calls it at every start.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent


def training_modules(task: str, backend: str) -> tuple[str, ...]:
    """The modules from which the training of a cell starts."""
    return ("fathom.train", f"fathom.tasks.{task}", f"fathom.backends.{backend}")


def code_hashes(*modules: str) -> dict[str, str]:
    """A hash of every module of fathom that the given ones import, themselves included."""
    return {name: _hash(file) for name, file in sorted(imported_files(*modules).items())}


def code_hash(*modules: str) -> str:
    """`code_hashes` in sixteen hexadecimal digits."""
    text = json.dumps(code_hashes(*modules))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


@cache
def imported_files(*modules: str) -> dict[str, Path]:
    """Every module of fathom that the given ones import, themselves included, with its file."""
    found: dict[str, Path] = {}
    pending = list(modules)
    while pending:
        name = pending.pop()
        file = _file_of(name)
        if name in found or file is None:
            continue
        found[name] = file
        pending += _imports(file)
        pending.append(name.rpartition(".")[0])  # importing a module runs its package first
    return found


def _file_of(module: str) -> Path | None:
    """The source of a module of fathom; None for anything else, as a name in a module."""
    package, *parts = module.split(".")
    if package != PACKAGE.name:
        return None
    path = PACKAGE.joinpath(*parts)
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in candidates if file.is_file()), None)


@cache
def _imports(file: Path) -> tuple[str, ...]:
    names = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


def git_version() -> dict[str, str | bool | None]:
    """The commit of the checkout that fathom runs from, and whether it has local changes."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(PACKAGE), *arguments]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None  # no git, or not a checkout: a result can do without
        return result.stdout.strip()

    # A fathom installed inside somebody else's checkout has no commit of its own.
    if git("ls-files", "--error-unmatch", str(PACKAGE / "__init__.py")) is None:
        return {"commit": None, "dirty": None}
    status = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}
