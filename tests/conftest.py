"""Shared fixtures: both backends on the CPU, compared with the float64 oracle."""

import functools
import os

# As in `backends.load`. Without it, a test that imports PyTorch itself gives BLAS one thread per
# core, and MLX's small products wait for one another: ten times the CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jinja2
import pytest
from hypothesis import settings

from fathom_study import backends
from fathom_study.config import BACKENDS, installed_backends, load_config
from tests.support.gradients import assert_gradients, first_step
from tests.support.specs import oracle_loss, parameters_off_symmetry, trainer_on

# The same examples on every run, without a deadline: machines differ, tests must not.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

LONGEST = (
    "test_cluster.py", "test_killed_workflow.py", "test_killed_cells.py", "test_workflow.py",
    "test_browser.py", "test_contributing.py", "test_replay_rule.py",
    "test_report.py", "test_cli.py", "test_figures.py", "test_verify.py", "test_tasks_text.py",
    "test_paper.py", "test_config_fuzz.py",
)  # fmt: skip
"""Slowest files of the long and the fast tests. The cluster mostly waits, so it starts first."""


def pytest_addoption(parser):
    alone = "only tests that a missing framework can change; of a function's cases one per backend"
    parser.addoption("--alone", action="store_true", help=alone)


CONNECT = {
    "backend", "backends_here", "connect_cpu", "framework", "on_torch", "fresh", "untouched",
}  # fmt: skip
"""Fixtures that depend on the installed frameworks."""
DEPEND = {"installed_backends", "run_cell"}
"""Names in test modules that train or that depend on the installed frameworks."""


def connects(item):
    return bool(CONNECT.intersection(item.fixturenames))


def backend_of(item):
    """Backend named by the parameters of a test case; empty if they name none."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    framework = getattr(params.get("framework"), "name", "")
    named = (params.get("backend"), params.get("name"), framework)
    return next((name for name in named if name in BACKENDS), "")


def can_differ_without_a_framework(items):
    """Tests that a missing framework can change: one case per function and backend.

    Other tests compute in NumPy; collecting them shows that they import. Modules of one framework
    do not import the other (test_rooms.py), so numbers stay the same; one case shows the imports.
    """
    seen = set()
    for item in items:
        case = (item.path, item.originalname, backend_of(item))
        if connects(item):
            # Cases of a missing framework are skipped anyway.
            is_first = case not in seen and backend_of(item) in ("", *installed_backends())
            seen.add(case)
            if is_first:
                yield item
        elif DEPEND & vars(item.module).keys():
            yield item


def pytest_collection_modifyitems(config, items):
    """Put the slowest files first: xdist hands out whole files in order. Apply --alone."""
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
    """Cache by file and content: a hundred tests fill the same templates; compiling is slower."""

    def __init__(self):
        self.code = {}

    def load_bytecode(self, bucket):
        bucket.code = self.code.get(self.key(bucket))

    def dump_bytecode(self, bucket):
        self.code[self.key(bucket)] = bucket.code

    @staticmethod
    def key(bucket):
        """Cache key with options, because only the paper's code of a shared template finalizes."""
        environment = bucket.environment
        return bucket.key, bucket.checksum, environment.autoescape, environment.finalize


@pytest.fixture(scope="session", autouse=True)
def compiled_templates():
    """Compile each template once per process."""
    with pytest.MonkeyPatch.context() as patch:
        kept = functools.partial(jinja2.Environment, bytecode_cache=CompiledTemplates())
        patch.setattr(jinja2, "Environment", kept)
        yield


@pytest.fixture(autouse=True)
def data_folder(monkeypatch):
    """Restore FATHOM_DATA after each test, because trainings set it."""
    monkeypatch.setenv("FATHOM_DATA", os.environ.get("FATHOM_DATA", ""))


def connect_to_cpu(name):
    """The backend on the CPU; skips the test if its framework is not installed."""
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
    """Function that returns a backend by name, for tests of a single backend."""
    return connect_to_cpu


@pytest.fixture
def backends_here():
    """Installed backends by name, for tests that compare each with the same numbers."""
    result = {name: connect_to_cpu(name) for name in installed_backends()}
    return result or pytest.skip("no framework is installed")


@pytest.fixture
def fathom(capsys):
    """Function that runs a command in this process: (exit status, stdout, lines of stderr)."""
    from tests.support.commands import exit_status  # it loads every command

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
    """Function that compares loss and gradients of each backend's first step with the oracle.

    It returns (measurements, gradients) by backend.
    """

    def check(spec, batch, rel=3e-5, floor=1e-6, loss=1e-6, together=()):
        params = parameters_off_symmetry(spec)
        result = {
            name: first_step(trainer_on(backend, spec, params), spec, batch)
            for name, backend in backends_here.items()
        }
        expected = oracle_loss(spec, params, batch)
        for name, (measured, _) in result.items():
            assert measured["loss"] == pytest.approx(expected, rel=loss), name
        gradients = {name: of_backend for name, (_, of_backend) in result.items()}
        of_params = lambda p: oracle_loss(spec, p, batch)  # noqa: E731
        assert_gradients(of_params, params, gradients, rel, floor, together)
        return result

    return check


@pytest.fixture(scope="session")
def shipped(pytestconfig, default_config):
    """(published data without minimum scales, templates) of the repository."""
    from fathom_study.analysis.claims import load_published  # it loads SciPy
    from tests.support.tables import groundless

    report = pytestconfig.rootpath / "report"
    published = load_published(report / "published.yaml", default_config)
    return groundless(published), report / "templates"
