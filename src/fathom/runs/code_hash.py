"""Hash the code behind a result, definition by definition.

A result is stale when code that it depends on has changed in behaviour. Each definition at the top
of a module (a function, a class, an assignment) has a hash of its own. Starting from given roots,
names and attributes are followed to the other definitions of the package.

A hash covers the syntax tree without docstrings, comments, layout, annotations and the messages of
`raise` and `assert`, and the origin of each name: `exp` of `math` is not `exp` of `numpy`.

- A module that is used as a value counts as a whole. A whole package consists of the definitions
  of its `__init__` and its imports from inside the package.
- Other statements at the top, such as a call, count for every definition of their module, and those
  of a package for every module in it. Together they are the definition `"fathom.train:"`.
- `@f.vjp` above `g` may change the behaviour of `f`, so reaching `f` reaches `g`. Both must be in
  the same module.
- Reaching `X = Registry({...})` does not reach its entries. Code that uses an entry needs it as a
  root of its own, or all entries as `"module:X[*]"`.

Only the Python that fathom's own sources use is supported. Anything else that could hide a
dependency raises CodeError. Not followed are names found by a string (`getattr`, `eval`,
`importlib`), the class of an object passed as an argument, and import-time effects of a module
whose names are not used. Roots cover the first two. Ruff rejects redefined imports (F811).

Uses the standard library only and imports none of the hashed modules: the workflow calls this at
every start. Each source is read once per process. Every version of Python gives the same digits.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from types import CodeType

from fathom.system.errors import UserError

PACKAGE = Path(__file__).parents[1]

Chain = tuple[str, ...]
"""A name and attributes of it: `init.draw` is ("init", "draw")."""

NO_CODE = {"TYPE_CHECKING", "__name__ == '__main__'"}
"""Conditions of blocks that do not run when a module is imported."""

NOT_WRITTEN = {"annotation", "returns", "msg", "type_params", "type_comment", "ctx", "kind"}
"""Fields of the syntax tree that do not affect behaviour; `msg` is that of `assert`."""


class CodeError(UserError):
    """Code whose dependencies cannot be followed."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: code hashes cannot follow {problem}")


def definition_hashes(*roots: str, package: Path = PACKAGE) -> dict[str, str]:
    """A hash of every definition that the roots reach, themselves included.

    A root is a module, "fathom.train", or a definition in it, "fathom.train:objective". The hashes
    are 16 hexadecimal digits by "module:name", sorted. `package` is the folder of the sources.

    Raises CodeError, also for a root that is not in the sources.
    """
    return _sources(package).reached(roots)


def code_hash(*roots: str) -> str:
    """`definition_hashes` in sixteen hexadecimal digits."""
    return digits(json.dumps(definition_hashes(*roots)))


def digits(text: str) -> str:
    """A hash of a text in sixteen hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- one definition ------------------------------------------------------------------------------


class _Definition:
    """The syntax tree of a definition as text, and the names that it reads."""

    def __init__(self, statements: list[ast.stmt]) -> None:
        self.chains: set[Chain] = set()
        """The names that are read, with attributes."""
        self.bound: set[str] = set()
        """A superset of the names that are assigned here."""
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.text = "".join(map(self._write, statements))
        """The syntax tree; `ast.dump` and `ast.unparse` differ between versions of Python."""
        self._module = ast.Module(statements, type_ignores=[])

    def is_outer(self, name: str) -> bool:
        """Whether a name that is read belongs to the module and is not local to a function."""
        return name not in self.bound or name in self._outer  # compiling takes half of the time

    @cached_property
    def _outer(self) -> set[str]:
        return set(_outer_names(compile(self._module, "<definition>", "exec")))

    def _write(self, node: object) -> str:
        if not isinstance(node, ast.AST | list):
            self.bound.add(str(node).partition(".")[0])  # `import a.b` binds a
            return f"{node!a},"
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return ""  # a docstring
            case ast.Constant(value=value):
                return f"<{value!a}>"
            case list():
                return f"[{''.join(map(self._write, node))}]"
            case ast.Name() | ast.Attribute() if chain := _chain(node):
                if len(chain) > 1 or isinstance(node.ctx, ast.Load):
                    self.chains.add(chain)
                else:
                    self.bound.add(node.id)
                return f"{'.'.join(chain)},"
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                return self._write(ast.Assign(targets=[target], value=value))
            case ast.Raise():
                for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
                    call.args = [argument for argument in call.args if not _has_text(argument)]
                    call.keywords = [keyword for keyword in call.keywords if not _has_text(keyword)]
            case ast.Import() | ast.ImportFrom():
                self.imports.append(node)
        fields = [(name, getattr(node, name, None)) for name in node._fields]
        written = (
            f" {n}={self._write(v)}" for n, v in fields if n not in NOT_WRITTEN and v is not None
        )
        return f"({type(node).__name__}{''.join(written)})"


def _has_text(node: ast.AST) -> bool:
    """Whether an argument of an exception is its message, or contains a part of it."""
    return any(
        isinstance(part, ast.JoinedStr) or isinstance(getattr(part, "value", None), str)
        for part in ast.walk(node)
    )


def _chain(node: ast.AST) -> Chain | None:
    """`a.b.c` as ("a", "b", "c"); None for attributes of anything but a name."""
    if isinstance(node, ast.Attribute):
        above = _chain(node.value)
        return above and (*above, node.attr)
    return (node.id,) if isinstance(node, ast.Name) else None


def _outer_names(code: CodeType) -> Iterator[str]:
    """Names that are not local, and attributes: the compiler keeps them together."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _outer_names(constant)


# --- one module ----------------------------------------------------------------------------------


class _Module:
    """The definitions and imports of a module."""

    def __init__(self, name: str, file: Path) -> None:
        self.name, self.file = name, file
        self.definitions: dict[str, list[ast.stmt]] = {}
        """The statements that define each name; under "" those that define none."""
        self.imports: dict[str, Chain] = {}
        """Imported names, each with its module and its name there; a module has no such name."""
        self.registered: dict[str, set[str]] = {}
        """The definitions that are decorated with a definition, by its name."""
        for statement in ast.parse(file.read_bytes(), str(file)).body:
            self._read(statement)

    def at(self, node: ast.stmt) -> str:
        """File and line of a node."""
        return f"{self.file}:{node.lineno}"

    def _read(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import() | ast.ImportFrom():
                self.imports.update(self.imported(statement))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._define([statement.name], statement)
                for part in (n for d in statement.decorator_list for n in ast.walk(d)):
                    if isinstance(part, ast.Name) and part.id in self.definitions:
                        self.registered.setdefault(part.id, set()).add(statement.name)
            case ast.Assign():
                stored = [part for target in statement.targets for part in ast.walk(target)]
                names = [
                    part.id
                    for part in stored
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                ]
                # Without a name it sets attributes or items.
                self._define(names or [""], statement)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                self._define([name], statement)
            case ast.Expr(value=ast.Constant()):
                pass  # a docstring
            case ast.If(orelse=[]) if ast.unparse(statement.test) in NO_CODE:
                pass
            case ast.Expr() | ast.For():
                self._define([""], statement)
            case _:
                kind = f"{type(statement).__name__} at the top of a module"
                raise CodeError(self.at(statement), f"{kind}; put it into a function")

    def _define(self, names: list[str], statement: ast.stmt) -> None:
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Call) and ast.unparse(value.func).partition("[")[0] == "Registry":
            (name,) = names
            self.definitions[f"{name}[*]"] = [statement]
            empty = ast.Call(func=value.func, args=[], keywords=[])
            target = ast.Name(id=name, ctx=ast.Store())
            stub = ast.copy_location(ast.Assign(targets=[target], value=empty), statement)
            statement = ast.fix_missing_locations(stub)
        for name in names:
            self.definitions.setdefault(name, []).append(statement)

    def imported(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Chain]]:
        """Each name that the statement binds, with its origin."""
        for alias in node.names:
            if isinstance(node, ast.Import):  # `import a.b` binds a
                origin = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or origin, (origin,)
            elif alias.name == "*" or node.level:
                raise CodeError(self.at(node), "a star or relative import; name what is used")
            else:
                yield alias.asname or alias.name, (node.module, alias.name)


# --- the package ---------------------------------------------------------------------------------


class _Sources:
    """The modules of a package, read when they are needed.

    A place is a definition, "module:name", a module, or a name of another package.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._modules: dict[str, _Module | None] = {}
        self._definitions: dict[str, tuple[str, set[str]]] = {}

    def reached(self, roots: Iterable[str]) -> dict[str, str]:
        """The hash of every definition that the roots reach."""
        pending = [self._root(root) for root in roots]
        seen: set[str] = set()
        hashes: dict[str, str] = {}
        while pending:
            place = pending.pop()
            name, colon, definition = place.partition(":")
            module = self._module(name)
            if place in seen or module is None:
                continue
            seen.add(place)
            if not colon:
                pending += self._whole(module)
                continue
            if place not in self._definitions:
                self._definitions[place] = self._hash(module, definition)
            hashes[place], refers_to = self._definitions[place]
            pending += refers_to
        return dict(sorted(hashes.items()))

    def _root(self, root: str) -> str:
        name, colon, definition = root.partition(":")
        if self._module(name) is None:
            raise CodeError(root, f"{name}, which is not a module")
        return self._place(name, (definition,) if colon else (), root)

    def _module(self, name: str) -> _Module | None:
        """A module of the package; None for anything else."""
        if name not in self._modules:
            top, *parts = name.split(".")
            path = self.folder.joinpath(*parts)
            candidates = (path / "__init__.py", path.with_name(f"{path.name}.py"))
            files = [f for f in candidates if f.is_file()] if top == self.folder.name else []
            self._modules[name] = _Module(name, files[0]) if files else None
        return self._modules[name]

    def _whole(self, module: _Module) -> Iterator[str]:
        """The places that a module stands for when it counts as a whole."""
        yield from (f"{module.name}:{name}" for name in module.definitions if name[-1:] != "]")
        for name, origin in module.imports.items():
            if ".".join(origin).startswith(f"{module.name}."):
                yield self._place(module.name, (name,), str(module.file))

    def _hash(self, module: _Module, name: str) -> tuple[str, set[str]]:
        """The hash of a definition, and the places that it refers to."""
        statements = module.definitions[name]
        definition = _Definition(statements)
        local: dict[str, Chain] = {}
        for node in definition.imports:
            local.update(module.imported(node))

        means: dict[str, list[str]] = {}
        where = module.at(statements[0])
        for head, *attributes in definition.chains:
            origins = {local[head]} if head in local else set()
            known = head in module.definitions or head in module.imports
            if known and definition.is_outer(head):
                origins.add((module.name, head))
            places = {self._place(o[0], (*o[1:], *attributes), where) for o in origins}
            if places:
                means[".".join((head, *attributes))] = sorted(places)

        refers_to = {place for places in means.values() for place in places}
        refers_to |= {f"{module.name}:{other}" for other in module.registered.get(name, ())}
        for above in accumulate(module.name.split("."), "{}.{}".format):
            package = self._module(above)
            if package is not None and "" in package.definitions:
                refers_to.add(f"{above}:")
        return digits(definition.text + json.dumps(means, sort_keys=True)), refers_to

    def _place(self, name: str, chain: Chain, where: str) -> str:
        """The place that attributes of a module refer to."""
        module = self._module(name)
        if module is None:
            if name.partition(".")[0] == self.folder.name:
                raise CodeError(where, f"{name}, which is not a module")
            return ".".join((name, *chain[:1]))  # another package's
        if not chain:
            return name
        head, *rest = chain
        if head in module.definitions:
            return f"{name}:{head}"
        if module.imports.get(head, (name, head)) != (name, head):
            origin, *attributes = module.imports[head]
            return self._place(origin, (*attributes, *rest), where)
        if head.startswith("__"):
            return name  # such as its `__name__`: the module as a value
        if self._module(f"{name}.{head}") is None:
            raise CodeError(where, f"{head}, which {name} does not define")
        return self._place(f"{name}.{head}", tuple(rest), where)


@cache
def _sources(folder: Path) -> _Sources:
    return _Sources(folder)


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
