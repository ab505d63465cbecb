"""The hash of the code behind a result: it follows meaning, definition by definition."""

import ast
import shutil
import subprocess
import sys
import textwrap

import pytest

from fathom import tasks
from fathom.config import load_config
from fathom.runs.code import training_code
from fathom.runs.code import training_roots as training_code_roots
from fathom.runs.provenance import (
    PACKAGE,
    code_hash,
    definition_hashes,
    git_version,
)
from fathom.train import train


@pytest.fixture
def hashes(tmp_path):
    """A function: write a package `p` from {module: source}, hash what the roots reach in it.

    Every call writes a folder of its own, since sources are read once in a process.
    """
    count = 0

    def of(sources, *roots):
        nonlocal count
        count += 1
        package = tmp_path / str(count) / "p"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        for name, source in sources.items():
            file = package / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            (file.parent / "__init__.py").touch()
            file.write_text(textwrap.dedent(source), encoding="utf-8")
        return definition_hashes(*roots, package=package)

    return of


@pytest.fixture
def reached(hashes):
    """As `hashes`, but only the names of what is reached."""
    return lambda sources, *roots: set(hashes(sources, *roots))


# --- what of a definition has meaning ----------------------------------------------------------

SAME = {
    "layout": ("def f(x): return (x+1)", "def f(\n    x,\n):\n    return x + 1  # one more"),
    "number": ("def f(): return 1000.0", "def f(): return 1e3"),
    "quotes": ("def f(): return 'a' 'b'", 'def f(): return "ab"'),
    "docstring": ('def f():\n "old"\n return 1', 'def f():\n "new"\n return 1'),
    "no docstring": ('def f():\n "old"\n return 1', "def f():\n return 1"),
    "only a docstring": ('def f():\n "old"', "def f():\n pass"),
    "class docstring": ('class f:\n "old"\n x = 1', "class f:\n x = 1"),
    "method docstring": ('class f:\n def g(self):\n  "old"', 'class f:\n def g(self):\n  "new"'),
    "attribute docstring": ('class f:\n x = 1\n "old"', 'class f:\n x = 1\n "new"'),
    "module docstring": ('"old"\ndef f(): pass', '"new"\ndef f(): pass'),
    "constant docstring": ('f = 1\n"old"', 'f = 1\n"new"'),
    "annotations": ("def f(x: int, *y: str) -> int: return x", "def f(x, *y): return x"),
    "annotated constant": ("f: int = 1", "f = 1"),
    "annotated variable": ("def f():\n x: int = 1\n return x", "def f():\n x = 1\n return x"),
    "annotated attribute": ("def f(x):\n x.y: int = 1", "def f(x):\n x.y = 1"),
    "bare annotation": ("def f():\n x: int\n return 1", "def f():\n return 1"),
    "bare annotation in a method": (
        "class f:\n def g(self):\n  x: int",
        "class f:\n def g(self):\n  pass",
    ),
    "field's annotation": ("class f:\n x: int", "class f:\n x: str"),
    "default's annotation": ("class f:\n x: int = 1", "class f:\n x = 1"),
    "message": ("def f(): raise ValueError('old')", "def f(): raise ValueError('new')"),
    "f-string": ("def f(x): raise ValueError(f'{x}')", "def f(x): raise ValueError(f'{g(x)!r}')"),
    "made message": (
        "def f(x): raise ValueError('\\n'.join(lines(x)))",
        "def f(x): raise ValueError('; '.join(sorted(x)))",
    ),
    "message by name": ("def f(): raise E(text='old')", "def f(): raise E(text='new')"),
    "assertion": ("def f(x): assert x, 'old'", "def f(x): assert x, 'new'"),
    "type checking": (
        "def f(): return 1",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import q\ndef f(): return 1",
    ),
    "type checking inside": (
        "def f(): return 1",
        "def f():\n if typing.TYPE_CHECKING:\n  import q\n return 1",
    ),
    "main": ("def f(): pass", "def f(): pass\nif __name__ == '__main__':\n f()"),
    "unused import": ("def f(): pass", "import math\ndef f(): pass"),
    "unused function": ("def f(x): return x.g", "def f(x): return x.g\ndef g(): pass"),
    "unused class": ("def f(): pass", "class C: pass\ndef f(): pass"),
    "local namesake": ("def f(g): return g", "def g(): pass\ndef f(g): return g"),
    "moved up": ("def g(): pass\ndef f(): g()", "def f(): g()\ndef g(): pass"),
}

DIFFERENT = {
    "operator": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "constant": ("f = 1", "f = 2"),
    "kind of number": ("f = 1", "f = 1.0"),
    "truth": ("f = 1", "f = True"),
    "text or bytes": ("f = 'a'", "f = b'a'"),
    "name or text": ("f = [a]", "f = ['a']"),
    "text": ("def f(): return 'old'", "def f(): return 'new'"),
    "f-string": ("def f(x): return f'{x}'", "def f(x): return f'{x!r}'"),
    "default": ("def f(x=1): return x", "def f(x=2): return x"),
    "keyword-only": ("def f(x, y): pass", "def f(x, *, y): pass"),
    "argument's place": ("def f(x, y): pass", "def f(y, x): pass"),
    "decorator": ("@a\ndef f(): pass", "@b\ndef f(): pass"),
    "base class": ("class f(A): pass", "class f(B): pass"),
    "metaclass": ("class f(A): pass", "class f(A, metaclass=B): pass"),
    "class attribute": ("class f: pass", "class f:\n x = 1"),
    "new field": ("class f:\n x: int", "class f:\n x: int\n y: int"),
    "field after a method": (
        "class f:\n def g(self): pass\n",
        "class f:\n def g(self): pass\n x: int",
    ),
    "order of fields": ("class f:\n x: int\n y: int", "class f:\n y: int\n x: int"),
    "field's default": ("class f:\n x: int = 1", "class f:\n x: int = 2"),
    "method": ("class f:\n def g(self): return 1", "class f:\n def g(self): return 2"),
    "nested function": (
        "def f():\n def g(): return 1\n return g",
        "def f():\n def g(): return 2\n return g",
    ),
    "async": ("def f(): pass", "async def f(): pass"),
    "return": ("def f():\n return g()", "def f():\n g()"),
    "nothing": ("def f(): return {**x}", "def f(): return {None: x}"),
    "order": ("def f():\n a()\n b()", "def f():\n b()\n a()"),
    "indentation": ("def f(x):\n if x:\n  a()\n b()", "def f(x):\n if x:\n  a()\n  b()"),
    "exception": ("def f(): raise KeyError('m')", "def f(): raise OSError('m')"),
    "exception's value": ("def f(): raise Stop(1, 'm')", "def f(): raise Stop(2, 'm')"),
    "exception's setting": ("def f(): raise Stop(at=1)", "def f(): raise Stop(at=2)"),
    "condition": ("def f(x): assert x", "def f(x): assert not x"),
    "text after raise": (
        "def f(x):\n if x: raise E('m')\n return g('old')",
        "def f(x):\n if x: raise E('m')\n return g('new')",
    ),
    "caught": ("def f():\n try: g()\n except A: pass", "def f():\n try: g()\n except B: pass"),
    "pattern": (
        "def f(x):\n match x:\n  case None: g()",
        "def f(x):\n match x:\n  case True: g()",
    ),
    "second definition": ("f = 1", "f = 1\nf = 2"),
    "added to": ("f = [1]", "f = [1]\nf += [2]"),
    "what is added to": ("f = [1]\nf += [3]", "f = [2]\nf += [3]"),
    "one of two": ("e, f = 1, 2", "e, f = 1, 3"),
    "imported from": (
        "from math import exp\ndef f(): exp(1)",
        "from numpy import exp\ndef f(): exp(1)",
    ),
    "imported name": ("from math import e as x\nf = x", "from math import pi as x\nf = x"),
    "module behind a name": ("import numpy as m\nf = m.e", "import math as m\nf = m.e"),
    "import inside": (
        "def f():\n from math import e\n return e",
        "def f():\n from numpy import e\n return e",
    ),
    "shadowed builtin": ("def f(x): return max(x)", "def max(x): pass\ndef f(x): return max(x)"),
    "no longer there": ("def f(x): return max(x)\ndef max(x): pass", "def f(x): return max(x)"),
    "other branch": (
        "if TYPE_CHECKING:\n pass\nelse:\n f = 1",
        "if TYPE_CHECKING:\n pass\nelse:\n f = 2",
    ),
}


def of_f(hashes, source):
    return hashes({"m": source}, "p.m:f")["p.m:f"]


@pytest.mark.parametrize(("before", "after"), SAME.values(), ids=SAME)
def test_the_hash_does_not_change_with_what_has_no_meaning(hashes, before, after):
    assert of_f(hashes, before) == of_f(hashes, after)


@pytest.mark.parametrize(("before", "after"), DIFFERENT.values(), ids=DIFFERENT)
def test_the_hash_changes_with_meaning(hashes, before, after):
    assert of_f(hashes, before) != of_f(hashes, after)


def test_a_hash_is_sixteen_hexadecimal_digits(hashes):
    digits = of_f(hashes, "def f(): pass")
    assert len(digits) == 16
    assert int(digits, 16) >= 0


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_python_gives_the_same_digits(version):
    """A run carries its hashes from one machine to another."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-V"], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    roots = ("fathom.train", "fathom.tasks.tokens", "fathom.backends.mlx", "fathom.config.study")
    code = f"from fathom.runs.provenance import code_hash; print(code_hash(*{roots}))"
    result = subprocess.run(
        [python, "-c", code],
        env={"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == code_hash(*roots)


# --- what is reached ---------------------------------------------------------------------------


def test_names_of_the_same_module_are_followed(reached):
    source = """
        def f(x):
            return g(x) + C.value

        def g(x):
            return [K * y for y in x]

        class C(Base):
            def value(self):
                return lambda: deep

        class Base: ...

        K, OTHER = 1, 2
        deep = 3
        unused = 4
    """
    assert reached({"m": source}, "p.m:f") == {
        f"p.m:{x}" for x in ("f", "g", "C", "Base", "K", "deep")
    }


def test_a_module_as_root_is_all_that_it_defines(reached):
    source = "import math\nx, *y = 1, 2\ndef f(): pass\nclass C: pass\nz: int = 3\nw: int\n"
    assert reached({"m": source}, "p.m") == {f"p.m:{name}" for name in ("x", "y", "f", "C", "z")}


def test_only_the_edited_definition_has_another_hash(hashes):
    source = "def f(): return g()\ndef g(): return {}\ndef h(): return 1\n"
    before = hashes({"m": source.format(1)}, "p.m")
    after = hashes({"m": source.format(2)}, "p.m")
    assert before.keys() == after.keys() == {"p.m:f", "p.m:g", "p.m:h"}
    assert {name for name in before if before[name] != after[name]} == {"p.m:g"}


def test_a_moved_definition_is_another_one(hashes):
    a = "from p.b import g\ndef f(): return g()\n"
    before = hashes({"a": a, "b": "def g(): pass"}, "p.a:f")
    after = hashes({"a": a, "b": "from p.c import g", "c": "def g(): pass"}, "p.a:f")
    assert before.keys() == {"p.a:f", "p.b:g"}
    assert after.keys() == {"p.a:f", "p.c:g"}
    assert before["p.a:f"] != after["p.a:f"]


def test_swapped_names_are_another_meaning(hashes):
    rest = {"b": "def g(): pass\ndef h(): pass\n"}
    use = "def f(): return x() - y()\n"
    before = hashes({"a": "from p.b import g as x, h as y\n" + use, **rest}, "p.a:f")
    after = hashes({"a": "from p.b import h as x, g as y\n" + use, **rest}, "p.a:f")
    assert before.keys() == after.keys()
    assert before["p.a:f"] != after["p.a:f"]


IMPORTS = {
    "a name": ("from p.q.b import g", "g()"),
    "another name for it": ("from p.q.b import g as h", "h()"),
    "a module's name": ("from p.q import b", "b.g()"),
    "a module under another name": ("import p.q.b as c", "c.g()"),
    "the whole path": ("import p.q.b", "p.q.b.g()"),
    "its package": ("from p import q", "q.b.g()"),
    "relative, a name": ("from .q.b import g", "g()"),
    "relative, a module": ("from .q import b", "b.g()"),
    "relative, a package": ("from . import q", "q.b.g.x"),
    "re-exported": ("from p.q.c import g", "g()"),
    "re-exported by its module": ("from p.q import c", "c.g()"),
    "re-exported module": ("from p.q.c import b as x", "x.g()"),
    "a star": ("from p.q.b import *", "g()"),
    "a star of a star": ("from p.q.d import *", "g()"),
    "with a condition": ("if x:\n from p.q.b import g\nelse:\n from q import g", "g()"),
    "in an attempt": ("try:\n from p.q.b import g\nexcept ImportError:\n g = None", "g()"),
    "inside": ("", "from p.q.b import g; g()"),
    "module inside": ("", "from p.q import b; b.g()"),
    "path inside": ("", "import p.q.b; p.q.b.g()"),
    "inside a nested function": (
        "",
        "return lambda: h()\ndef h():\n from p.q.b import g\n return g",
    ),
    "as a global": ("from p.q.b import g", "global g; g = 1"),
    "a base's attribute": ("from p.q import b", "return b.g.x.y[0].z"),
}


@pytest.mark.parametrize(("statement", "use"), IMPORTS.values(), ids=IMPORTS)
def test_an_import_is_followed_to_the_definition(reached, statement, use):
    sources = {
        "a": f"{statement}\ndef f(): {use}\n",
        "q/b": "def g(): return k\ndef unused(): pass\nk = 1\n",
        "q/c": "from p.q.b import g\nfrom . import b\n",
        "q/d": "from ..q.b import *\n",
    }
    found = {name for name in reached(sources, "p.a:f") if not name.startswith("p.a:")}
    assert found == {"p.q.b:g", "p.q.b:k"}


def test_a_star_brings_no_private_names(reached):
    sources = {"a": "from p.b import *\ndef f(): return _g()\n", "b": "def _g(): pass\n"}
    assert reached(sources, "p.a:f") == {"p.a:f"}


def test_a_package_re_exports(reached):
    sources = {
        "a": "from p import q\ndef f(): return q.g()\n",
        "q/g": "def g(): return 1\ndef unused(): pass\n",  # a module and a function of one name
        "q/__init__": "from .g import g\n",
    }
    assert reached(sources, "p.a:f") == {"p.a:f", "p.q.g:g"}
    assert reached(sources, "p.q:g") == {"p.q.g:g"}
    assert reached(sources, "p.q") == {"p.q.g:g"}


@pytest.mark.parametrize("use", ["h(b)", "b.unknown()", "b", "getattr(b, x)"])
def test_a_module_that_is_handed_on_counts_whole(reached, use):
    sources = {
        "a": f"from p import b\ndef f(): {use}\n",
        "b": "from p import c\ndef g(): pass\nk = 1\n",
        "c": "def unused(): pass\n",
    }
    assert reached(sources, "p.a:f") == {"p.a:f", "p.b:g", "p.b:k"}


@pytest.mark.parametrize(
    "unused",
    [
        "def f(x: g) -> g: pass",
        "def f():\n x: g = 1",
        "class f:\n x: g",
        "def f(): raise ValueError(f'{g()}')",
        "def f(): raise ValueError('\\n'.join(g()))",
        "def f(): assert x, g",
        "def f(g): return g",
        "def f():\n g = 1\n return lambda: g",
        "def f(): return [g for g in x]",
        "def f(x): return x.g(g=1)",
        "def f():\n if TYPE_CHECKING:\n  g()",
        "class f:\n g = 1",
    ],
)
def test_what_is_no_use_of_a_name_is_not_followed(reached, unused):
    assert reached({"m": f"def g(): pass\n{unused}\n"}, "p.m:f") == {"p.m:f"}


@pytest.mark.parametrize(
    "use",
    [
        "def f(x=g): pass",
        "@g\ndef f(): pass",
        "@dataclass(order=g)\nclass f: pass",
        "class f(g): pass",
        "class f:\n x = g",
        "class f:\n def h(self): return g",
        "f = [g for x in y]",
        "f = lambda: g",
        "f: int = g",
        "def f(): raise g('message')",
        "def f(): raise Stop(g, 'message')",
        "def f():\n try: h()\n except g: pass",
        "def f():\n def h(): return g",
        "def f(): return f'{g}'",
        "def f(): h(**g)",
        "def f(x):\n match x:\n  case g(): pass",
    ],
)
def test_any_use_of_a_name_is_followed(reached, use):
    assert reached({"m": f"def g(): pass\n{use}\n"}, "p.m:f") == {"p.m:f", "p.m:g"}


def test_circles_of_imports_come_to_an_end(reached):
    sources = {
        "a": "from p.b import g\nfrom p.b import lost\ndef f(): return g(), lost\n",
        "b": "from p import a\nfrom p.a import lost\ndef g(): return a.f()\n",
    }
    assert {"p.a:f", "p.b:g"} <= reached(sources, "p.a:f")


@pytest.mark.parametrize("root", ["p.none", "p.m:none", "q.m", "math", "p.m:X[none]"])
def test_a_root_that_is_not_there_is_refused(hashes, root):
    with pytest.raises(LookupError, match=rf"^'?{root.split('[')[0]}"):
        hashes({"m": "X = Registry({})"}, root)


# --- statements that are no definition ---------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "setup(x)",
        "if x:\n  g = 1",
        "for x in y:\n  g = x",
        "del x",
        "with x:\n  g = 1",
        "try:\n  g = x\nfinally: pass",
        "x.y = 1",
        "x['y'] = 1",
    ],
)
def test_any_other_statement_belongs_to_the_whole_module(hashes, statement):
    source = "def f(): pass\n"
    plain = hashes({"m": source}, "p.m:f")
    with_statement = hashes({"m": f"{statement}\n{source}"}, "p.m:f")
    edited = hashes({"m": f"{statement.replace('x', 'z')}\n{source}"}, "p.m:f")
    assert with_statement.keys() == edited.keys() == {"p.m:f", "p.m:"}
    assert with_statement["p.m:f"] == plain["p.m:f"]
    assert with_statement["p.m:"] != edited["p.m:"]


def test_such_a_statement_is_followed(reached):
    source = "def f(): pass\ndef g(): pass\ndef h(): pass\nif g():\n import p.b\n p.b.k()\n"
    assert reached({"m": source, "b": "def k(): pass\nx = 1"}, "p.m:f") == {
        "p.m:f",
        "p.m:g",
        "p.m:",
        "p.b:k",
    }


@pytest.mark.parametrize(
    "statement",
    [
        "'docstring'",
        "...",
        "x: int",
        "import math",
        "from p import b",
        "if __name__ == '__main__':\n  f()",
        "if TYPE_CHECKING:\n  import b",
    ],
)
def test_some_statements_do_nothing(reached, statement):
    assert reached({"m": f"def f(): pass\n{statement}\n"}, "p.m:f") == {"p.m:f"}


@pytest.mark.parametrize("binding", ["def g(): pass", "class g: pass", "g = 1"])
def test_a_name_that_it_binds_leads_to_it(reached, binding):
    sources = {"a": "from p.b import g\ndef f(): g()", "b": f"if x:\n {binding}\nunused = 1"}
    assert reached(sources, "p.a:f") == {"p.a:f", "p.b:"}


def test_one_of_a_package_belongs_to_its_modules(reached):
    sources = {"q/b": "def f(): pass", "q/__init__": "setup()\ndef g(): pass", "c": "setup()"}
    assert reached(sources, "p.q.b:f") == {"p.q.b:f", "p.q:"}


# --- decorators that register, and registries --------------------------------------------------


def test_who_reaches_a_name_reaches_what_it_decorates(reached):
    source = """
        @custom
        def f(x): return len(x) + k

        k = 1

        @f.vjp
        def f_vjp(x): return g(x)

        @f.jvp(rule=1)
        def f_jvp(x): pass

        def g(x): pass

        @other.vjp
        def unused(x): pass

        def h(x): return f(x)
    """
    assert reached({"m": source}, "p.m:h") == {
        f"p.m:{x}" for x in ("h", "f", "f_vjp", "f_jvp", "g", "k")
    }


REGISTRY = """
    from p.settings import Registry

    def a(): return A
    def b(): pass
    A = 1

    TABLE = Registry({{{entries}}})

    def use(name): return TABLE[name]
"""
SETTINGS = {"settings": "class Registry(dict): pass"}


def table(entries, form="Registry("):
    source = REGISTRY.format(entries=entries).replace("= Registry(", f"= {form}")
    return {"m": source, **SETTINGS}


@pytest.mark.parametrize("form", ["Registry(", "Registry[int]("])
def test_the_entries_of_a_registry_are_no_part_of_it(hashes, form):
    before = hashes(table("'a': a", form), "p.m:use")
    assert before.keys() == {"p.m:use", "p.m:TABLE", "p.settings:Registry"}
    assert hashes(table("'a': a, 'b': b", form), "p.m:use") == before
    assert hashes(table("", form), "p.m:use") == before


def test_an_annotated_registry_is_one(reached):
    source = "TABLE: Registry[str] = Registry({'a': a})\ndef a(): pass\n"
    assert reached({"m": source}, "p.m:TABLE") == {"p.m:TABLE"}


def test_a_module_that_counts_whole_leaves_out_entries(reached):
    assert reached({"m": "X = Registry({'a': 1})", "b": "from p import m\nf = m"}, "p.b:f") == {
        "p.b:f",
        "p.m:X",
    }


def test_one_entry_of_a_registry_is_a_root(hashes):
    root = "p.m:TABLE[a]"
    before = hashes(table("'a': a"), root)
    assert before.keys() == {root, "p.m:a", "p.m:A"}
    assert hashes(table("'b': b, 'a': a"), root) == before
    assert hashes(table("'a': b"), root)[root] != before[root]
    assert hashes(table("'a': 1"), root)[root] != hashes(table("'a': 2"), root)[root]


def test_all_entries_of_a_registry_are_a_root(hashes):
    root = "p.m:TABLE[*]"
    before = hashes(table("'a': a"), root)
    after = hashes(table("'a': a, 'b': b"), root)
    assert before.keys() == {root, "p.m:a", "p.m:A", "p.settings:Registry"}
    assert after.keys() == before.keys() | {"p.m:b"}
    assert before[root] != after[root]


def test_what_registers_by_a_decorator_is_an_entry(reached):
    source = "TABLE = Registry()\n@TABLE.add('a')\ndef a(): pass\n"
    assert reached({"m": source}, "p.m:TABLE") == {"p.m:TABLE"}
    assert reached({"m": source}, "p.m:TABLE[*]") == {
        "p.m:TABLE[*]",
        "p.m:a",
        "p.m:TABLE",  # the decorator of a names it
    }


def test_any_other_table_counts_with_its_entries(reached):
    assert reached({"m": "T = {'a': a}\ndef a(): pass"}, "p.m:T") == {"p.m:T", "p.m:a"}


# --- the real package --------------------------------------------------------------------------


PROJECT = PACKAGE.parents[1]


def training_roots(backend):
    """All that a training on the backend can start from."""
    config = load_config([PROJECT / "config.yaml"])
    specs = (config.spec(cell) for cell in config.cells() if cell.backend == backend)
    return tuple(sorted({root for spec in specs for root in training_code_roots(spec)}))


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, to edit before it is hashed."""
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=ignored)


def file_of(package, place):
    """The source of the module in which a place lies."""
    path = package.parent.joinpath(*place.partition(":")[0].split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_what_a_training_runs_is_reached(backend, make_spec):
    """The interpreter says what runs; nothing that computes may be missing in the hashes."""
    spec = make_spec(backend=backend.device.framework, steps=2)
    ran = set()

    def note(frame, event, _):
        name = frame.f_code.co_qualname.partition(".")[0]
        module = frame.f_globals.get("__name__", "")
        # Methods that a dataclass generates stand in no file.
        own = frame.f_code.co_filename.startswith(str(PACKAGE))
        if event == "call" and own and not name.startswith("<"):
            ran.add(f"{module}:{name}")

    tasks.load(spec.task)  # before, as an import runs the bodies of classes
    sys.setprofile(note)
    try:
        for _ in train(spec, backend):
            pass
    finally:
        sys.setprofile(None)
    reached = training_code(spec)
    assert len(ran) > 20
    assert ran <= reached.keys()


def test_the_digits_do_not_depend_on_where_the_package_lies(copy):
    roots = training_roots("torch")
    assert definition_hashes(*roots, package=copy) == definition_hashes(*roots)


def is_text(node):
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def reworded(source):
    """A source with a word before every docstring and message, and how many there were."""
    texts = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            texts.append(node.value)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            texts += node.exc.args
    texts = sorted(filter(is_text, texts), key=lambda t: (t.lineno, t.col_offset), reverse=True)
    lines = source.encode().splitlines(keepends=True)
    for text in texts:
        line, column = lines[text.lineno - 1], text.col_offset
        # Two texts side by side are one, in a docstring as well.
        lines[text.lineno - 1] = line[:column] + b'"Reworded: " ' + line[column:]
    return b"".join(lines).decode() + "\n# A comment.\n", len(texts)


@pytest.mark.parametrize("backend_name", ["torch", "mlx"])
def test_rewording_changes_no_hash(copy, backend_name):
    roots = training_roots(backend_name)
    total = 0
    for file in copy.rglob("*.py"):
        source, count = reworded(file.read_text(encoding="utf-8"))
        file.write_text(source, encoding="utf-8")
        total += count
    assert total > 300
    assert definition_hashes(*roots, package=copy) == definition_hashes(*roots)


def test_an_edit_changes_the_hash_of_what_it_edits_and_no_other(copy):
    roots = training_roots("torch")
    before = definition_hashes(*roots)
    place = next(place for place in before if place.lower().endswith(":sinkhorn"))
    file, name = file_of(copy, place), place.partition(":")[2]
    source = file.read_text(encoding="utf-8")
    node = next(n for n in ast.parse(source).body if getattr(n, "name", None) == name)
    last = node.body[-1]
    lines = source.splitlines(keepends=True)
    lines.insert(last.lineno - 1, f"{' ' * last.col_offset}edited = 1\n")
    # What nothing uses changes nothing.
    file.write_text("".join(lines) + "\n\ndef unused():\n    return 1\n", encoding="utf-8")
    after = definition_hashes(*roots, package=copy)
    assert after.keys() == before.keys()
    assert {p for p in before if before[p] != after[p]} == {place}


def test_a_backend_does_not_depend_on_the_other(copy):
    roots = training_roots("torch")
    (copy / "backends" / "mlx.py").write_text("edited = 1\n", encoding="utf-8")
    assert definition_hashes(*roots, package=copy) == definition_hashes(*roots)


@pytest.mark.parametrize("backend_name", ["torch", "mlx"])
def test_a_training_does_not_depend_on_what_shows_its_results(backend_name):
    places = definition_hashes(*training_roots(backend_name))
    rooms = {place.partition(":")[0].split(".")[1] for place in places}
    assert not rooms & {"runs", "analysis", "report", "cli", "bench", "preload"}


def test_the_commit_is_that_of_the_checkout():
    git = shutil.which("git")
    if git is None or not (PACKAGE.parents[1] / ".git").exists():
        pytest.skip("not a checkout")
    command = [git, "-C", str(PACKAGE), "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert git_version()["commit"] == head
