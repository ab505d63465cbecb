"""`fathom check-device`: steps that agree, differ or cannot run."""

import numpy as np
import pytest

from fathom import parity
from fathom.config import BACKENDS, load_config
from fathom.models.connections.schemes import SCHEMES
from fathom.tasks import Problem, example_batch
from param_helpers import NOT_AROUND

CHECK = "benchmarks/check.yaml"
FEW = """
studies:
  few:
    task: tokens
    recipe: torch-defaults
    variants: [plain, mhc_lite]
    streams: 3
    depths: [2]
    backends: [torch, mlx]
    seeds: [0]
    steps: 1
    batch_size: 2
    model: {vocab: 8, length: 3, width: 4, heads: 2, hidden: 8}
    optimizer: {lr: 0.01, clip: 0.1, muon: {}}
"""


@pytest.fixture
def check(tmp_path, backend, fathom):
    """Function that checks the backend on the CPU: (exit status, output, lines of errors)."""
    (tmp_path / "few.yaml").write_text(FEW)
    name = backend.device.framework
    options = ["--backend", name, "--device", "cpu", "--config", tmp_path / "few.yaml"]
    return lambda: fathom("check-device", *options)


def test_every_scheme_is_checked_on_every_network(pytestconfig):
    config = load_config([pytestconfig.rootpath / CHECK])
    page = (pytestconfig.rootpath / "docs/contribute-runs.md").read_text(encoding="utf-8")
    studies = config.studies
    for network, refused in NOT_AROUND.items():
        assert set(studies[network].labels) == set(SCHEMES) - refused, network
    assert {s.optimizer.muon is None for s in studies.values()} == {True, False}
    assert {s.optimizer.clip is None for s in studies.values()} == {True, False}
    for backend in BACKENDS:
        steps = sum(cell.backend == backend for cell in config.cells())
        assert f"\nall {steps} steps agree" in page, backend


@pytest.mark.parametrize("study", ["images", "clipped"])
def test_the_last_variant_of_a_study_agrees(pytestconfig, backend, study):
    config = load_config([pytestconfig.rootpath / CHECK])
    (*_, cell) = (cell for cell in config.cells() if cell.study == study)
    errors, _ = parity.check_step(backend, config.spec(cell))
    assert all(10 * errors[key] < allowed for key, allowed in parity.ALLOWED.items()), errors


def test_no_relu_of_the_check_is_near_its_kink(pytestconfig):
    """Near a kink a device may round to the other side; mhc_demo's first draw is near one."""
    config = load_config([pytestconfig.rootpath / CHECK])
    cell = next(c for c in config.cells() if (c.study, c.variant) == ("images", "mhc_demo"))
    problem, batch = Problem(config.spec(cell)), example_batch(config.spec(cell))

    def nearest(params):
        ops = parity.KinkDistances()
        problem.network.forward(ops, {n: ops.asarray(v) for n, v in params.items()}, batch.inputs)
        return ops.nearest

    assert nearest(parity.parameters_off_symmetry(problem)) < parity.KINK
    assert nearest(parity.parameters_off_kinks(problem, batch)) > parity.KINK


@pytest.mark.parametrize("kind", ["loss", "gradients", "not a number"])
def test_failed_step_is_reported_with_its_error(check, backend, monkeypatch, kind):
    """The loss is 0.2 % too large or NaN, or its gradient alone is 0.2 % too large."""
    right = type(backend.ops).cross_entropy

    def wrong(ops, *given):
        loss = right(ops, *given)
        if kind == "gradients":
            return loss * 1.002 - ops.stop_gradient(loss) * 0.002
        return loss * (1.002 if kind == "loss" else np.nan)

    monkeypatch.setattr(type(backend.ops), "cross_entropy", wrong)
    status, said, errors = check()
    assert status == 1
    named = [
        line for line in said.splitlines() if line.startswith(("few/plain: ", "few/mhc_lite: "))
    ]
    assert len(named) == 2
    size = "nan" if kind == "not a number" else "2.0e-03"
    assert ("loss off by" if kind == "loss" else "gradients off by") + f" {size}" in named[0]
    assert "2 of 2 steps fail here" in errors[-1]
    assert "issue in the project's tracker" in errors[-1]


def test_step_that_cannot_run_is_reported_and_the_others_continue(check, backend, monkeypatch):
    def missing(*given):
        raise NotImplementedError("no kernel for this device\nand a long explanation")

    monkeypatch.setattr(type(backend.ops), "tensordot", missing)
    status, said, errors = check()
    assert status == 1
    assert "few/mhc_lite: NotImplementedError: no kernel for this device\n" in said
    assert "few/plain" not in said
    assert "1 of 2 steps fail here" in errors[-1]


def test_wrong_options_give_one_error(fathom, monkeypatch, pytestconfig, tmp_path, connect_cpu):
    connect_cpu("torch")
    monkeypatch.chdir(pytestconfig.rootpath)
    few = tmp_path / "few.yaml"
    few.write_text(FEW.replace("backends: [torch, mlx]", "backends: [mlx]"))
    for options, said in (
        (["--backend", "x"], "unknown backend 'x'"),
        (["--backend", "torch", "--device", "gpu"], "torch has no device 'gpu' here"),
        (["--config", few], "few.yaml: has no cell of backend torch"),
    ):
        status, _, (line,) = fathom("check-device", *options)
        assert (status, said in line) == (1, True), line
