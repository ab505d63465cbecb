"""List modules of released models that look like a residual connection and are unknown here.

    python tests/peers/new_releases.py FOLDER

FOLDER holds the packages transformers and mlx_lm; `make new-releases` puts their newest releases
there. A module is found by the names in its code. Exits with 1 if a module is in neither
`fathom schemes` nor tests/peers/releases.yaml. Nothing is imported from FOLDER.
"""

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fathom.connections.schemes import ABOUT
from fathom_study.config import read_yaml

KNOWN = Path(__file__).with_name("releases.yaml")

PACKAGES = {"transformers": "*/modeling_*.py", "mlx_lm": "*.py"}
"""Glob pattern of the modules of each package, below its folder `models`."""

NAMES = re.compile(
    r"hyper_?(conn|head)"
    r"|residual_?(stream|scal|gate|mult|mix|weight|att|alpha|beta|lambda|factor)|resid_lambda"
    r"|att(n|ention)_?res(idual)?(_|$|[A-Z])"
    r"|depth_?(attn|attention|mix|scal)|scale_depth|deep_?norm"
    r"|alt_?up|laurel|embed_skip|initial_hidden|(^|_)mhc|alpha_factor"
    r"|(^|_)lambdas?(_|$|\d)|skip_(weight|scale|gain)",
    re.IGNORECASE,
)
"""Pattern for names of classes, arguments, variables and attributes."""


@functools.cache
def is_telling(name: str) -> bool:
    """Whether a name looks like a residual connection's."""
    return NAMES.search(name) is not None


def names_in(tree: ast.AST) -> Iterator[str]:
    """Every name in a module's code."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.Name(id=name) | ast.arg(arg=name):
                yield name
            case ast.Attribute(attr=name):
                yield name


def noticed(folder: Path) -> dict[str, list[str]]:
    """The four most frequent matching names of each package.module."""
    result: dict[str, Counter[str]] = {}
    for package, pattern in PACKAGES.items():
        for file in sorted((folder / package / "models").glob(pattern)):
            module = file.parent.name if "/" in pattern else file.stem
            text = file.read_text(encoding="utf-8")
            # Most modules have no such word, and parsing takes ten times as long as this.
            if any(map(is_telling, {*re.findall(r"\w+", text)})):
                counts = result.setdefault(f"{package}.{module}", Counter())
                counts.update(filter(is_telling, names_in(ast.parse(text))))
    return {name: [word for word, _ in c.most_common(4)] for name, c in result.items() if c}


def known() -> set[str]:
    """Every package.module that has a scheme here, or was read and has none."""
    ours = {module for about in ABOUT.values() for module in about.releases}
    read = read_yaml(KNOWN)
    return ours | {
        f"{package}.{module}"
        for packages in read.values()
        for package, modules in packages.items()
        for module in modules.split()
    }


def main(folder: Path) -> None:
    """Print each new module with its matching names; exit with 1 if there is one."""
    result = noticed(folder)
    if not result:
        sys.exit(f"{folder}: no models of transformers or mlx_lm; run make new-releases")
    new = {module: names for module, names in result.items() if module not in known()}
    for module, names in new.items():
        print(f"{module}: {', '.join(names)}")
    if new:
        sys.exit(f"{len(new)} to read: make each a scheme, or say in {KNOWN.name} why not")
    print(f"all {len(result)} modules that look like a residual connection are known")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
