"""The hash of the code behind a result: edits that change it, and code that is refused."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fathom import tasks
from fathom.config import load_config
from fathom.runs.code_hash import PACKAGE, CodeError, code_hash, definition_hashes
from fathom.runs.training_code import training_code, training_roots
from fathom.train import train
from param_helpers import make_spec

PROJECT = PACKAGE.parents[1]


@pytest.fixture
def hashes(tmp_path):
    """Function that writes a package `p` from {module: source} and hashes code below its roots.

    Every call writes a new folder, because a process reads sources once.
    """

    def of(sources, *roots):
        package = tmp_path / str(len([*tmp_path.iterdir()])) / "p"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        for name, source in sources.items():
            file = package / f"{name}.py"
            file.parent.mkdir(exist_ok=True)
            (file.parent / "__init__.py").touch()
            file.write_text(textwrap.dedent(source), encoding="utf-8")
        return definition_hashes(*roots, package=package)

    return of


# --- one definition ------------------------------------------------------------------------------

SAME = {
    "layout": ("def f(x): return (x+1)", "def f(\n    x,\n):\n    return x + 1  # one more"),
    "annotations": ("def f(x: int, *y: str) -> int: return x", "def f(x, *y): return x"),
    "field's annotation": ("class f:\n x: int\n y: int = 1", "class f:\n x: str\n y = 1"),
    "docstring": ("def f(x):\n 'old'\n return x", "def f(x):\n 'new'\n return x"),
    "no docstring": ("class f:\n x = 1", "class f:\n 'new'\n x = 1\n 'of x'"),
    "message": ("def f(): raise Stop(1, 'old')", "def f(): raise Stop(1, 'a ' 'new')"),
    "f-string": ("def f(x): raise ValueError(f'{x}')", "def f(x): raise ValueError(f'{g(x)!r}')"),
    "assertion": ("def f(x): assert x, 'old'", "def f(x): assert x, 'new'"),
    "unused": ("def f(x): return x.g", "import math\ndef g(): pass\ndef f(x): return x.g"),
    "local namesake": ("def f(g): return g", "def g(): pass\ndef f(g): return g"),
}

DIFFERENT = {
    "operator": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "f-string": ("def f(x): return f'{x}'", "def f(x): return f'{x!r}'"),
    "default": ("def f(x=1): return x", "def f(x=2): return x"),
    "decorator": ("@a\ndef f(): pass", "@b\ndef f(): pass"),
    "field's default": ("class f:\n x: int = 1", "class f:\n x: int = 2"),
    "order": ("def f():\n a()\n b()", "def f():\n b()\n a()"),
    "indentation": ("def f(x):\n if x:\n  a()\n b()", "def f(x):\n if x:\n  a()\n  b()"),
    "exception's value": ("def f(): raise Stop(1, 'm')", "def f(): raise Stop(2, 'm')"),
    "condition": ("def f(x): assert x", "def f(x): assert not x"),
    "imported from": ("from math import exp\nf = exp", "from numpy import exp\nf = exp"),
    "module behind a name": ("import numpy as m\nf = m.e", "import math as m\nf = m.e"),
    "swapped names": (
        "from p.b import g as x, h as y\nf = x - y",
        "from p.b import h as x, g as y\nf = x - y",
    ),
    "moved elsewhere": ("from p.b import g\nf = g", "from p.c import g\nf = g"),
}

OTHERS = {"b": "def g(): pass\ndef h(): pass", "c": "def g(): pass"}


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [(*edit, table is SAME) for table in (SAME, DIFFERENT) for edit in table.values()],
    ids=[*SAME, *(f"{name}, a change" for name in DIFFERENT)],
)
def test_hash_changes_only_with_behaviour(hashes, before, after, is_same):
    a, b = (hashes({"m": source, **OTHERS}, "p.m:f")["p.m:f"] for source in (before, after))
    assert len(a) == 16
    assert (a == b) is is_same


# --- reached definitions -------------------------------------------------------------------------

LIBRARY = {
    "q/b": "def g(): return k\ndef unused(): pass\nk = 1\n",
    "q/c": "from p.q.b import g\nfrom p.q import b\n",
    "table": "X = Registry({'a': a, 'b': b})\ndef a(): pass\ndef b(): pass\ndef use(): X['a']\n",
}

G = {"q.b:g", "q.b:k"}

REACHED = {
    # ways to a name of another module
    "a name": ("from p.q.b import g\ndef f(): g()", G),
    "a module's name": ("from p.q import b\ndef f(): b.g()", G),
    "re-exported": ("from p.q.c import g\ndef f(): g()", G),
    # registries
    "a registry": ("from p.table import use\nf = use", {"table:use", "table:X"}),
    # decorators that register
    "a decorator": (
        "@custom\ndef f(): pass\n@f.vjp\ndef g(): h()\n@f.jvp(rule=1)\ndef i(): pass\n"
        "def h(): pass\n@other.vjp\ndef unused(): pass",
        {"m:g", "m:h", "m:i"},
    ),
    # uses of a name, and code that does not use it
    **{
        use: (f"def g(): pass\n{use}", {"m:g"})
        for use in (
            "def f(x=g): pass",
            "@g\ndef f(): pass",
            "class f(g): pass",
            "class f:\n def h(self): return g",
            "f = [g for x in y]",
            "def f(): raise g('message')",
            "def f(x):\n match x:\n  case g(): pass",
        )
    },
    **{
        use: (f"def g(): pass\n{use}", set())
        for use in (
            "def f(x: g) -> g: pass",
            "def f(): raise ValueError(f'{g()}')",
            "def f(g): return g",
            "def f(): return [g for g in x]",
            "def f():\n import g.h\n return g",
            "def f():\n try: x()\n except E as g: return g",
            "def f(x):\n match x:\n  case {**g}: return g",
            "def f(x): return x.g(g=1)",
        )
    },
}


@pytest.mark.parametrize(("source", "others"), REACHED.values(), ids=REACHED)
def test_names_are_followed_to_their_definitions(hashes, source, others):
    reached = hashes({**LIBRARY, "m": source}, "p.m:f")
    assert reached.keys() == {"p.m:f", *(f"p.{place}" for place in others)}


# --- refused code --------------------------------------------------------------------------------


REFUSED = {
    "from p.q.b import *\nf = g": (1, "a star or relative import"),
    "f = [1]\nf += [2]": (2, "AugAssign"),
    "if x:\n f = 1\nelse:\n f = 2": (1, "If"),
    "try:\n from p.q.b import g\nexcept ImportError:\n g = None\nf = g": (1, "Try"),
    "from p.q import b\ndef f(): b.none()": (2, "none, which p.q.b does not define"),
    "from p.none import g\nf = g": (2, "p.none, which is not a module"),
}


@pytest.mark.parametrize(("source", "line", "problem"), [(s, *r) for s, r in REFUSED.items()])
def test_code_that_could_hide_a_dependency_is_refused(hashes, source, line, problem):
    with pytest.raises(CodeError, match=rf"p/m\.py:{line}: code hashes cannot follow {problem}"):
        hashes({**LIBRARY, "m": source}, "p.m:f")


# --- the real package ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roots():
    """Roots of all trainings of the config, by backend."""
    config, found = load_config([PROJECT / "config.yaml"]), {}
    for cell in config.cells():
        found.setdefault(cell.backend, set()).update(training_roots(config.spec(cell)))
    return {backend: tuple(sorted(names)) for backend, names in found.items()}


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, to edit before it is hashed."""
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=ignored)


def test_every_module_can_be_followed():
    """A refusal then meets the author of the code, not a user who trains."""
    files = [f.relative_to(PACKAGE.parent).with_suffix("") for f in PACKAGE.rglob("*.py")]
    modules = [".".join(file.parts).removesuffix(".__init__") for file in files]
    assert len(definition_hashes(*modules)) > 500


def test_hashes_include_every_function_that_a_training_calls(backend):
    """The profiler lists the functions called; the hashes must include all of them."""
    spec = make_spec(backend=backend.device.framework, steps=2)
    ran = set()

    def note(frame, event, _):
        name = frame.f_code.co_qualname.partition(".")[0]
        file = Path(frame.f_code.co_filename)
        # Generated methods of a dataclass have no file. Compiled code has no globals.
        if event == "call" and file.is_relative_to(PACKAGE) and not name.startswith("<"):
            module = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
            ran.add(f"{module.removesuffix('.__init__')}:{name}")

    problem = tasks.Problem(spec)  # not profiled: an import runs class bodies
    sys.setprofile(note)
    try:
        for _ in train(problem, backend):
            pass
    finally:
        sys.setprofile(None)
    assert len(ran) > 20
    assert ran <= training_code(spec).keys()


def test_copy_in_another_folder_has_the_same_hashes(copy, roots):
    everything = {*roots["torch"], *roots["mlx"]}
    assert definition_hashes(*everything, package=copy) == definition_hashes(*everything)


@pytest.mark.parametrize("backend", ["torch", "mlx"])
def test_training_depends_on_its_backend_but_not_on_analysis_or_report(roots, backend):
    modules = {place.partition(":")[0] for place in definition_hashes(*roots[backend])}
    both = {"fathom.backends.torch", "fathom.backends.mlx"}
    assert modules & both == {f"fathom.backends.{backend}"}
    rooms = {module.split(".")[1] for module in modules}
    assert not rooms & {"runs", "analysis", "report", "cli", "preload"}


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_python_gives_the_same_hash(version):
    """Runs carry their hashes to other machines."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-V"], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    roots = ("fathom.train", "fathom.tasks.tokens", "fathom.backends.mlx", "fathom.config.study")
    code = f"from fathom.runs.code_hash import code_hash; print(code_hash(*{roots}))"
    result = subprocess.run(
        [python, "-c", code],
        env={"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == code_hash(*roots)
