"""The hash of the code behind a result: edits that change it, and the modules that it covers."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fathom_study import tasks
from fathom_study.config import load_config
from fathom_study.runs.code_hash import (
    LEFT_OUT,
    SOURCES,
    CodeError,
    code_hash,
    module_hashes,
    without_comments,
)
from fathom_study.runs.training_code import training_code
from fathom_study.train import train
from tests.support.specs import make_spec

PROJECT = SOURCES.parent

SAME = {
    "comment": ("x = 1", "# one\nx = 1  # more"),
    "blank lines": ("x = 1\ny = 2", "x = 1   \n\n\ny = 2\n"),
    "docstrings": (
        "class f:\n    x = 1\n    def g(self): return 1",
        "'of m'\nclass f:\n    '''of\n    f'''\n    x = 1\n    'of x'\n    def g(self): return 1",
    ),
}

DIFFERENT = {
    "operator": ("def f(x): return x + 1", "def f(x): return x - 1"),
    "string": ("x = 'a  b'", "x = 'a b'"),
    "f-string": ("def f(x): return f'{x}'", "def f(x): return f'{x!r}'"),
    "a sign that is no comment": ("x = '# a'", "x = '# b'"),
    "order": ("def f():\n a()\n b()", "def f():\n b()\n a()"),
    "indentation": ("def f(x):\n if x:\n  a()\n b()", "def f(x):\n if x:\n  a()\n  b()"),
    "imported from": ("from math import exp", "from numpy import exp"),
    "argument": ("f(\n    'a',\n)", "f(\n    'b',\n)"),
}


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [(*edit, table is SAME) for table in (SAME, DIFFERENT) for edit in table.values()],
    ids=[*SAME, *(f"{name}, a change" for name in DIFFERENT)],
)
def test_hash_changes_only_with_the_code(before, after, is_same):
    assert (without_comments(before) == without_comments(after)) is is_same


MODULES = {
    "fathom/__init__": "",
    "fathom/q/__init__": "",
    "fathom/q/b": "from fathom import c\n",
    "fathom/c": "import math\n",
    "fathom/unused": "",
}
B = {"fathom", "fathom.q", "fathom.q.b", "fathom.c"}
REACHED = {
    "a name": ("from fathom.q.b import g", B),
    "a module": ("from fathom.q import b", B),
    "import": ("import fathom.q.b", B),
    "in a function": ("def f():\n    from fathom.q.b import g", B),
    "for type checkers": ("if TYPE_CHECKING:\n    from fathom.q.b import g", set()),
    "of another package": ("import numpy", set()),
}


@pytest.mark.parametrize(("source", "others"), REACHED.values(), ids=REACHED)
def test_imports_are_followed(tmp_path, source, others):
    for name, text in {**MODULES, "m": source}.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert module_hashes("m", sources=tmp_path).keys() == {"m", *others}


def test_an_import_that_is_not_there_is_refused(tmp_path):
    (tmp_path / "m.py").write_text("from fathom.none import x", encoding="utf-8")
    with pytest.raises(CodeError, match=r"^fathom\.none: is not a module of "):
        module_hashes("m", sources=tmp_path)


# --- the project's own code ----------------------------------------------------------------------


def test_hashes_include_every_module_whose_functions_a_training_calls(backend):
    """The profiler lists the functions called."""
    spec = make_spec(backend=backend.device.framework, steps=2)
    ran = set()

    def note(frame, event, _):
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(SOURCES) and frame.f_code.co_name[0] != "<":
            module = ".".join(file.relative_to(SOURCES).with_suffix("").parts)
            ran.add(module.removesuffix(".__init__"))

    problem = tasks.Problem(spec)  # not profiled: it reads settings
    sys.setprofile(note)
    try:
        for _ in train(problem, backend):
            pass
    finally:
        sys.setprofile(None)
    assert len(ran) > 10
    assert ran - LEFT_OUT <= training_code(spec).keys()


@pytest.mark.parametrize("backend", ["torch", "mlx"])
def test_training_depends_on_its_backend_but_not_on_analysis_or_report(backend):
    config = load_config([PROJECT / "config.yaml"])
    modules = set()
    for cell in config.cells():
        if cell.backend == backend:
            modules.update(training_code(config.spec(cell)))
    both = {"fathom_study.backends.torch", "fathom_study.backends.mlx"}
    assert modules & both == {f"fathom_study.backends.{backend}"}
    rooms = {module.split(".")[1] for module in modules if module.startswith("fathom_study.")}
    assert not rooms & {"runs", "analysis", "report", "cli", "preload"}


def test_a_copy_in_another_folder_has_the_same_hashes(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    copy = shutil.copytree(SOURCES, tmp_path / "src", ignore=ignored)
    assert module_hashes("fathom_study.cli", sources=copy) == module_hashes("fathom_study.cli")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_python_gives_the_same_hash(version):
    """Runs carry their hashes to other machines."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-V"], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    roots = ("fathom_study.cli", "fathom_study.tasks.text", "fathom_study.backends.mlx")
    code = f"from fathom_study.runs.code_hash import code_hash; print(code_hash(*{roots}))"
    result = subprocess.run(
        [python, "-c", code],
        env={"PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == code_hash(*roots)
