"""What the tests share: a small cell, both backends on the CPU, and the float64 oracle."""

import functools
import os

# As `backends.load` sets it. A test that imports PyTorch itself would otherwise leave its BLAS a
# thread per core, and MLX's small products would wait for one another: ten times the CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jinja2
import numpy as np
import pytest
from hypothesis import settings

from fathom import backends, tasks
from fathom.config import BACKENDS, check_config, installed_backends, load_config

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


@pytest.fixture(scope="session")
def default_config(pytestconfig):
    """The config.yaml of the repository."""
    return load_config([pytestconfig.rootpath / "config.yaml"])


@pytest.fixture(scope="session")
def make_spec():
    """A small spec; every number can be changed by its name, whichever section it stands in.

    `variant` is the name of a connection; or give `connection`, its settings.
    """

    def make(**changes):
        cell = {"study": "small", "depth": 3, "variant": "mhc", "backend": "torch", "seed": 0}
        top = {
            "task": "tokens", "recipe": "torch-defaults", "streams": 4, "steps": 3,
            "batch_size": 4, "weights": False, "accumulate": 1, "evaluate_every": None,
            "leave_out_blocks": False,
        }  # fmt: skip
        study = {
            **top,
            "model": dict(MODELS[changes.get("task", "tokens")]),
            "optimizer": dict(OPTIMIZER),
        }
        label, connection = changes.pop("variant", "mhc"), changes.pop("connection", None)
        for name, value in changes.items():
            sections = ((cell, cell), (top, study), (OPTIMIZER, study["optimizer"]))
            found = (to for known, to in sections if name in known)
            next(found, study["model"])[name] = value
        variant = label if connection is None else {label: connection}
        axes = {f"{axis}s": [cell[axis]] for axis in ("depth", "backend", "seed")}
        config = check_config(
            {"studies": {cell["study"]: {**study, **axes, "variants": [variant]}}}
        )
        return config.spec(config.cells()[0])

    return make


TRANSFORMER = {
    "length": 8, "width": 16, "heads": 4, "hidden": 32, "wrap": "block", "norm": "layer",
    "positions": "learned", "embedding_norm": False, "qk_norm": False, "biases": True,
    "activation": "gelu", "logit_cap": None,
}  # fmt: skip
MODELS = {
    "tokens": {"vocab": 32, **TRANSFORMER},
    "text": {**TRANSFORMER, "corpus": None, "validation_windows": 5},
    "state": {"group": "S3", **TRANSFORMER},
    "recall": {"vocab": 16, **TRANSFORMER, "length": 9},
    "fashion": {"width": 8, "dropout": 0.1, "normalise": False, "augment": False},
    "flow": {"density": "two_moons", "width": 8, "hidden": 12},
    "graph": {
        "nodes": 12, "communities": 2, "degree": 2.5, "edge_signal": 1.5, "features": 3,
        "feature_signal": 1.0, "labelled": 0.25, "graphs": "fresh", "held_out": 5,
        "width": 8, "hidden": 10,
    },
    "unrolled": {
        "kind": "copy", "symbols": 10, "gap": "blank", "pairs": 4, "width": 8, "hidden": 6,
        "held_out": 512,
    },
}  # fmt: skip
OPTIMIZER = {
    "lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0,
    "schedule": "constant", "warmup_steps": 0, "final_share": 0.2, "decay": "all", "clip": None,
    "muon": None,
}  # fmt: skip


@pytest.fixture(scope="session")
def first_batch():
    """A batch of the spec; images and characters are noise, so that no files are needed."""
    return tasks.example_batch


@pytest.fixture(scope="session")
def parameters_off_symmetry():
    """Initial parameters of a spec, each moved at random."""
    from fathom.parity import parameters_off_symmetry

    return lambda spec: parameters_off_symmetry(tasks.Problem(spec))


@pytest.fixture(scope="session")
def oracle_forward():
    """The spec's float64 forward pass on given parameters: its Output."""
    from fathom.backends.numpy import NumpyOps

    def forward(spec, params, inputs):
        ops = NumpyOps()
        exact = {name: ops.asarray(value) for name, value in params.items()}
        return tasks.Problem(spec).network.forward(ops, exact, inputs)

    return forward


@pytest.fixture(scope="session")
def oracle_loss():
    """The spec's float64 loss on given parameters."""
    from fathom.parity import oracle_loss

    return lambda spec, params, batch: oracle_loss(tasks.Problem(spec), params, batch)


@pytest.fixture
def check_oracle(parameters_off_symmetry, oracle_forward, oracle_loss):
    """A function that holds the oracle's outputs and loss on a batch against the textbook's."""
    import naive

    def check(spec, batch, loss=naive.cross_entropy):
        params = parameters_off_symmetry(spec)
        expected = naive.NETWORKS[spec.task](spec, params, **batch.inputs)
        # Both are float64: only the order of their sums differs.
        found = oracle_forward(spec, params, batch.inputs).logits
        assert found == pytest.approx(expected, abs=1e-11 * np.abs(expected).max())
        asked = slice(None) if batch.weights is None else batch.weights == 1
        exact = loss(expected[asked], batch.targets[asked])
        assert oracle_loss(spec, params, batch) == pytest.approx(exact, rel=1e-11)

    return check


@pytest.fixture(scope="session")
def start():
    """A trainer for the spec on a backend, at its initial parameters or at given ones."""
    from fathom.train import trainer_for

    def trainer(backend, spec, params=None):
        problem = tasks.Problem(spec)
        return trainer_for(
            problem, backend, problem.initial_parameters() if params is None else params
        )

    return trainer


@pytest.fixture
def check_first_step(parameters_off_symmetry, oracle_loss, backends_here, start):
    """A function that holds the first step on each backend against the oracle: loss and gradients.

    It gives (what was measured, gradients) by backend.
    """
    from gradients import assert_gradients, first_step

    def check(spec, batch, rel=3e-5, floor=1e-6, loss=1e-6, together=()):
        params = parameters_off_symmetry(spec)
        found = {
            name: first_step(start(backend, spec, params), spec, batch)
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
