"""The hash of the code behind a result: it covers what training loads, and only that."""

import os
import shutil
import subprocess
import sys

import pytest

from fathom.provenance import PACKAGE, imported_files, training_modules

TRAIN_AND_LIST_MODULES = """
import sys
from fathom import backends
from fathom.study import Spec
from fathom.train import train

spec = Spec.model_validate_json(sys.argv[1])
for chunk in train(spec, backends.connect(spec.backend, "cpu")):
    assert chunk.rows
print("\\n".join(name for name in sys.modules if name.partition(".")[0] == "fathom"))
"""

PRINT_HASH = """
from fathom import provenance
print(provenance.code_hash(*provenance.training_modules("tokens", "torch")))
print(provenance.PACKAGE)
"""


def in_fresh_python(code, *arguments, path=None):
    """Standard output of a new interpreter, which looks for modules in `path` first."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if path:
        environment["PYTHONPATH"] = str(path)
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.splitlines()


@pytest.fixture(params=["torch", "mlx"])
def closure(request):
    """The modules of fathom behind a training on each backend, as read from the sources."""
    return set(imported_files(*training_modules("tokens", request.param)))


def test_the_closure_is_what_a_training_loads(backend, make_spec):
    spec = make_spec(backend=backend.device.framework, steps=2)
    loaded = set(in_fresh_python(TRAIN_AND_LIST_MODULES, spec.json()))
    assert set(imported_files(*training_modules(spec.task, spec.backend))) == loaded


def test_the_closure_leaves_out_what_cannot_change_a_number(closure):
    rooms = ("figures", "report", "tables", "cli", "runs", "progress", "files", "provenance")
    assert not closure & {f"fathom.{room}" for room in rooms}


def test_the_closure_has_what_a_number_comes_from(closure):
    assert closure >= {
        "fathom",
        "fathom.train",
        "fathom.metrics",
        "fathom.study",
        "fathom.recipes",
        "fathom.tasks",
        "fathom.tasks.tokens",
        "fathom.models.init",
        "fathom.models.connections",
        "fathom.models.language",
        "fathom.backends",
    }


def test_a_backend_does_not_depend_on_the_other():
    assert "fathom.backends.mlx" not in imported_files(*training_modules("tokens", "torch"))
    assert "fathom.backends.torch" not in imported_files(*training_modules("tokens", "mlx"))


# --- the hash of a copy of the package -----------------------------------------------------------


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, to edit."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=ignored)
    return tmp_path / PACKAGE.name


def hash_of(copy):
    value, package = in_fresh_python(PRINT_HASH, path=copy.parent)
    assert package == str(copy)  # or this would be the hash of something else
    return value


def edit(copy, file):
    path = copy / file
    assert path.is_file()
    path.write_text(path.read_text(encoding="utf-8") + "\n# edited\n", encoding="utf-8")


def test_the_hash_does_not_depend_on_where_the_package_lies(copy):
    (here, _) = in_fresh_python(PRINT_HASH)
    assert hash_of(copy) == here


@pytest.mark.parametrize(
    "file",
    [
        "__init__.py",
        "train.py",
        "metrics.py",
        "recipes.py",
        "tasks/tokens.py",
        "models/connections.py",
        "models/language.py",
        "backends/__init__.py",
        "backends/torch.py",
    ],
)
def test_the_hash_changes_with_a_file_that_training_imports(copy, file):
    before = hash_of(copy)
    edit(copy, file)
    assert hash_of(copy) != before


@pytest.mark.parametrize("file", ["cli.py", "runs.py", "backends/mlx.py", "backends/numpy.py"])
def test_the_hash_does_not_change_with_any_other_file(copy, file):
    before = hash_of(copy)
    edit(copy, file)
    assert hash_of(copy) == before


def test_the_hash_changes_with_a_module_that_is_newly_imported(copy):
    before = hash_of(copy)
    (copy / "extra.py").write_text("", encoding="utf-8")
    assert hash_of(copy) == before
    metrics = copy / "metrics.py"
    text = metrics.read_text(encoding="utf-8")
    metrics.write_text(f"{text}\nfrom fathom import extra\n", encoding="utf-8")
    with_import = hash_of(copy)
    edit(copy, "extra.py")
    assert len({before, with_import, hash_of(copy)}) == 3


def test_the_hash_changes_with_the_package_of_an_imported_module(copy):
    (copy / "extra").mkdir()
    for name in ("__init__.py", "inner.py"):
        (copy / "extra" / name).write_text("value = 1\n", encoding="utf-8")
    metrics = copy / "metrics.py"
    text = metrics.read_text(encoding="utf-8")
    metrics.write_text(f"{text}\nfrom fathom.extra.inner import value\n", encoding="utf-8")
    before = hash_of(copy)
    edit(copy, "extra/__init__.py")  # importing extra.inner runs this first
    assert hash_of(copy) != before
