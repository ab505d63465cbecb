"""Hash the code behind a result, module by module.

A result is stale when a module that it depends on has changed. From given roots the imports in a
module's source are followed, those inside functions too, to the other modules of the project. Each
has a hash of its source without comments, docstrings and blank lines.

Modules that are found by name at run time, such as a task, are roots of their own. Imports under
`TYPE_CHECKING` run nothing and do not count.

Uses the standard library only and imports none of the hashed modules: the workflow calls this at
every start. Each source is read once per process. Every version of Python gives the same digits.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from fathom.system.errors import UserError
from fathom.system.text import digits

PACKAGE = Path(__file__).parents[1]
SOURCES = PACKAGE.parent
"""The folder of the project's packages."""
PACKAGES = ("fathom", PACKAGE.name)

LEFT_OUT = {
    "fathom.connections.schemes",
    "fathom.settings",
    "fathom.system.errors",
    "fathom.system.text",
}
"""Modules that are neither hashed nor followed: they resolve and check settings, which the spec of
a run records, and word messages."""

BETWEEN = {tokenize.NL, tokenize.COMMENT}
STARTS = {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


class CodeError(UserError):
    """Code whose dependencies cannot be followed."""


@cache  # the same for thousands of cells
def module_hashes(*roots: str, sources: Path = SOURCES) -> dict[str, str]:
    """A hash of every module that the roots reach, themselves included.

    The hashes are 16 hexadecimal digits by the module's name, sorted. `sources` is the folder of
    the packages. Raises CodeError for a root or an import that is not in the sources.
    """
    hashes: dict[str, str] = {}
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name not in hashes and name not in LEFT_OUT:
            hashes[name], imported = _read(sources, name)
            pending += imported
    return dict(sorted(hashes.items()))


def code_hash(*roots: str) -> str:
    """`module_hashes` in sixteen hexadecimal digits."""
    return digits(json.dumps(module_hashes(*roots)))


@cache
def _read(sources: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """The hash of a module's source, and the modules of the project that it imports."""
    file = _file(sources, name)
    if file is None:
        raise CodeError(f"{name}: is not a module of {sources}")
    source = file.read_text(encoding="utf-8")
    imported = dict.fromkeys(_imports(ast.parse(source, str(file)), sources))
    return digits(without_comments(source)), tuple(imported)


def _file(sources: Path, name: str) -> Path | None:
    """The source of a module or of a package; None if there is none."""
    path = sources.joinpath(*name.split("."))
    files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((file for file in files if file.is_file()), None)


def without_comments(source: str) -> str:
    """A module's source without comments, docstrings, blank lines and trailing spaces."""
    lines = source.splitlines()
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    before = tokenize.ENCODING
    removed = []
    for token, after in pairwise(tokens):
        is_docstring = (
            token.type == tokenize.STRING and before in STARTS and after.type in STARTS | BETWEEN
        )
        if token.type == tokenize.COMMENT or is_docstring:
            removed.append((token.start, token.end))
        if token.type not in BETWEEN:
            before = token.type
    for (first, start), (last, end) in reversed(removed):
        lines[first - 1 : last] = [lines[first - 1][:start] + lines[last - 1][end:]]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _imports(node: ast.AST, sources: Path) -> Iterator[str]:
    """Modules of the project that the code of a node imports, with the packages they are in."""
    for part in ast.iter_child_nodes(node):
        match part:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for statement in part.orelse:
                    yield from _imports(statement, sources)
            case ast.Import():
                for alias in part.names:
                    yield from _with_packages(alias.name)
            case ast.ImportFrom(module=str(module), level=0):
                yield from _with_packages(module)
                for alias in part.names:
                    if module.partition(".")[0] in PACKAGES and _file(
                        sources, f"{module}.{alias.name}"
                    ):
                        yield f"{module}.{alias.name}"
            case _:
                yield from _imports(part, sources)


def _with_packages(name: str) -> Iterator[str]:
    """A module of the project, and the packages that Python loads before it."""
    parts = name.split(".")
    if parts[0] in PACKAGES:
        yield from (".".join(parts[: n + 1]) for n in range(len(parts)))


def git_version() -> dict[str, str | bool | None]:
    """The commit of the checkout that fathom runs from, and whether it has local changes."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(PACKAGE), *arguments]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None  # no git, or not a checkout: a result needs neither
        return result.stdout.strip()

    # A fathom installed inside somebody else's checkout has no commit of its own.
    if git("ls-files", "--error-unmatch", str(PACKAGE / "__init__.py")) is None:
        return {"commit": None, "dirty": None}
    status = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}
