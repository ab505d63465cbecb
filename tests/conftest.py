"""What the tests share: both backends on the CPU, held against the float64 oracle."""

import functools
import os

# As `backends.load` sets it. A test that imports PyTorch itself would otherwise leave its BLAS a
# thread per core, and MLX's small products would wait for one another: ten times the CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jinja2
import pytest
from hypothesis import settings

from fathom import backends
from fathom.config import BACKENDS, installed_backends, load_config
from gradients import assert_gradients, first_step
from param_helpers import oracle_loss, parameters_off_symmetry, trainer_on

# The same examples on every run, and no limit on the time of one: machines differ, tests must not.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

LONGEST = (
    "test_cluster.py", "test_killed_workflow.py", "test_killed_cells.py", "test_workflow.py",
    "test_browser.py", "test_contributing.py", "test_replay_rule.py", "test_rendered_alone.py",
    "test_report.py", "test_cli.py", "test_figures.py", "test_verify.py", "test_tasks_text.py",
    "test_paper.py", "test_config_fuzz.py",
)  # fmt: skip
"""Of the long tests and of the fast ones; the cluster waits most, so it is worth an early start."""


def pytest_addoption(parser):
    alone = "only tests that a missing framework can change; of a function's cases one per backend"
    parser.addoption("--alone", action="store_true", help=alone)


CONNECT = {"backend", "both_backends", "backends_here", "connect_cpu", "framework", "torch"}
"""Fixtures that skip a test whose framework is missing."""
DEPEND = {"installed_backends", "run_cell"}
"""Names in a module of tests that train, or that ask what is installed."""


def connects(item):
    return bool(CONNECT.intersection(item.fixturenames))


def backend_of(item):
    """The backend that a case is of, by its parameters; empty where they name none."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    framework = getattr(params.get("framework"), "name", "")
    named = (params.get("backend"), params.get("name"), framework)
    return next((name for name in named if name in BACKENDS), "")


def can_differ_without_a_framework(items):
    """All else computes in NumPy; that it imports without a framework, collecting it shows.

    No module of one framework imports the other (test_rooms.py), so its numbers are those of the
    fast tests. One case of a function shows that what it calls is there.
    """
    seen = set()
    for item in items:
        case = (item.path, item.originalname, backend_of(item))
        if connects(item):
            # Of a framework that is missing: skipped anyway.
            is_first = case not in seen and backend_of(item) in ("", *installed_backends())
            seen.add(case)
            if is_first:
                yield item
        elif DEPEND & vars(item.module).keys():
            yield item


def pytest_collection_modifyitems(config, items):
    """The files that take longest come first: xdist hands out whole files, in this order."""
    rank = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    if config.getoption("--alone"):
        kept = list(can_differ_without_a_framework(items))
        chosen = set(kept)
        others = [item for item in items if item not in chosen]
        if not kept or not others:
            raise pytest.UsageError(f"--alone selects {len(kept)} of {len(items)} tests")
        config.hook.pytest_deselected(items=others)
        items[:] = kept


class CompiledTemplates(jinja2.BytecodeCache):
    """By file and content. A hundred tests fill the same templates; to compile one takes longer."""

    def __init__(self):
        self.code = {}

    def load_bytecode(self, bucket):
        bucket.code = self.code.get(self.key(bucket))

    def dump_bytecode(self, bucket):
        self.code[self.key(bucket)] = bucket.code

    @staticmethod
    def key(bucket):
        """Reports and the paper compile the same template, and the paper's code finalizes."""
        environment = bucket.environment
        return bucket.key, bucket.checksum, environment.autoescape, environment.finalize


@pytest.fixture(scope="session", autouse=True)
def compiled_templates():
    """Each process compiles a template once."""
    with pytest.MonkeyPatch.context() as patch:
        kept = functools.partial(jinja2.Environment, bytecode_cache=CompiledTemplates())
        patch.setattr(jinja2, "Environment", kept)
        yield


@pytest.fixture(autouse=True)
def data_folder(monkeypatch):
    """A training says in the environment where data sets are: put back afterwards."""
    monkeypatch.setenv("FATHOM_DATA", os.environ.get("FATHOM_DATA", ""))


def connect_to_cpu(name):
    """The backend on the CPU; skips the test where its framework is not installed."""
    # Not importorskip: MLX must not be imported before fathom has chosen its BLAS.
    if name not in installed_backends():
        pytest.skip(f"{name} is not installed")
    return backends.connect(name, "cpu")


@pytest.fixture(params=BACKENDS)
def backend(request):
    """Each backend in turn."""
    return connect_to_cpu(request.param)


@pytest.fixture(scope="session")
def connect_cpu():
    """A function from a backend's name to the backend, for tests of one of them."""
    return connect_to_cpu


@pytest.fixture
def both_backends():
    """Both at once, by name: for tests that hold one against the other."""
    return {name: connect_to_cpu(name) for name in BACKENDS}


@pytest.fixture
def backends_here():
    """All that are installed, by name: for tests that hold each against the same numbers."""
    found = {name: connect_to_cpu(name) for name in installed_backends()}
    return found or pytest.skip("no framework is installed")


@pytest.fixture
def fathom(capsys):
    """A function that runs a command here: (exit status, output, lines of errors)."""
    from command_helpers import exit_status  # it loads every command

    def run(*arguments):
        capsys.readouterr()
        status = exit_status([*map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err.splitlines()

    return run


@pytest.fixture(scope="session")
def default_config(pytestconfig):
    """The config.yaml of the repository."""
    return load_config([pytestconfig.rootpath / "config.yaml"])


@pytest.fixture
def check_first_step(backends_here):
    """A function that holds the first step on each backend against the oracle: loss and gradients.

    It gives (what was measured, gradients) by backend.
    """

    def check(spec, batch, rel=3e-5, floor=1e-6, loss=1e-6, together=()):
        params = parameters_off_symmetry(spec)
        found = {
            name: first_step(trainer_on(backend, spec, params), spec, batch)
            for name, backend in backends_here.items()
        }
        expected = oracle_loss(spec, params, batch)
        for name, (measured, _) in found.items():
            assert measured["loss"] == pytest.approx(expected, rel=loss), name
        gradients = {name: of_backend for name, (_, of_backend) in found.items()}
        of_params = lambda p: oracle_loss(spec, p, batch)  # noqa: E731
        assert_gradients(of_params, params, gradients, rel, floor, together)
        return found

    return check


@pytest.fixture(scope="session")
def shipped(pytestconfig, default_config):
    """(published figures that networks of any size may speak for, templates) of the repository."""
    from fathom.analysis.claims import load_published  # it loads SciPy
    from tables_helpers import groundless

    report = pytestconfig.rootpath / "report"
    published = load_published(report / "published.yaml", default_config)
    return groundless(published), report / "templates"
