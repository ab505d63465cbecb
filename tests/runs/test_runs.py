"""Trainings: their files, resuming after an interruption."""

import hashlib
import json
import math
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from fathom.operations.numpy_ops import NumpyOps
from fathom_study.backends import BackendError, memory_errors
from fathom_study.config import Compute
from fathom_study.datasets import fashion_mnist
from fathom_study.runs import training
from fathom_study.runs.folder import PARTIAL, RunError, read_rows
from fathom_study.runs.training import environment, run_cell, same_digits
from fathom_study.runs.validate import validate_run
from fathom_study.system.files import locked
from fathom_study.tasks import Problem, outcome_of, summary_of
from fathom_study.train import trainer_for
from tests.support.datasets import put_idx, random_images
from tests.support.runs import ARRIVED, RUN_FILES, flipped, interrupt_at, numbers_of, read_manifest
from tests.support.specs import make_spec

CPU = Compute(device="cpu")
CHECKPOINTS = Compute(device="cpu", checkpoint_steps=1)
STEPS = 12
"""Rows arrive after 1, 11 and 12 steps: a training reads the device every ten."""


# --- a run ---------------------------------------------------------------------------------------


def spec_on(backend, **changes):
    """A spec of a few steps on a backend."""
    return make_spec(backend=backend.device.framework, **{"steps": STEPS, **changes})


def files_in(folder):
    return {file.name for file in folder.iterdir()}


def assert_same_numbers(folder, other):
    """Assert equal metrics of every step and equal final matrices, bit for bit."""
    assert repr(numbers_of(folder)) == repr(numbers_of(other))  # repr: NaN equals NaN
    for rows in (read_rows(folder), read_rows(other)):  # elapsed time goes on too
        elapsed = np.cumsum([row["step_seconds"] for row in rows])
        assert [row["elapsed_seconds"] for row in rows] == pytest.approx(elapsed)


def test_a_run_and_its_manifest(backend, tmp_path):
    spec, seen = spec_on(backend), []
    said = run_cell(spec, tmp_path / "run", CHECKPOINTS, lambda chunk: seen.extend(chunk.rows))
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    assert files_in(tmp_path / "run") == ARRIVED
    result = validate_run(tmp_path / "run", spec)
    assert (result.status, result.reason) == ("measured", "")
    rows = read_rows(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert repr(seen) == repr(rows)
    assert said == outcome_of(spec, summary_of(spec, rows))[0]

    manifest = read_manifest(tmp_path / "run")
    assert manifest["cell"] == spec.cell.path()
    assert manifest["spec_hash"] == spec.hash()
    assert manifest["device"]["framework"] == spec.backend
    assert manifest["device"]["kind"] == "cpu"
    assert manifest["resumed_at_steps"] == []
    assert manifest["seconds"] == pytest.approx(sum(row["step_seconds"] for row in rows), abs=1e-3)
    assert set(manifest["files"]) == set(RUN_FILES) - {"manifest.json"}
    for name, recorded in manifest["files"].items():
        content = (tmp_path / "run" / name).read_bytes()
        assert recorded["sha256"] == hashlib.sha256(content).hexdigest()
        assert recorded["bytes"] == len(content)
    kept = json.loads((tmp_path / "run/spec.json").read_text(encoding="utf-8"))
    assert kept == json.loads(spec.json())


@pytest.mark.parametrize("variant", ["baseline", "hc", "mhc_causal"])
def test_mixing_is_of_the_final_parameters(backend, tmp_path, variant):
    """Compared in float64 with the matrices of the weights that the run keeps."""
    spec = spec_on(backend, variant=variant, weights=True, steps=5)
    run_cell(spec, tmp_path, CPU)
    weights, mixing = (load_file(tmp_path / f"{n}.safetensors") for n in ("weights", "mixing"))
    problem = Problem(spec)
    connection = problem.network.connection
    ops = NumpyOps()
    exact = connection.matrices(ops, {n: ops.asarray(v) for n, v in weights.items()})
    initial = connection.matrices(
        ops, {n: ops.asarray(v) for n, v in problem.initial_parameters().items()}
    )
    assert mixing.keys() == exact.keys()
    for name, matrix in mixing.items():
        np.testing.assert_allclose(matrix, exact[name], rtol=1e-5, atol=1e-7)
        assert not np.allclose(matrix, initial[name], rtol=1e-5, atol=1e-7)


def test_a_training_that_diverges_is_kept_as_strict_json(connect_cpu, tmp_path):
    spec = spec_on(connect_cpu("torch"), variant="hc", depth=48, steps=3)
    assert run_cell(spec, tmp_path, CPU) == "diverged"
    for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        assert json.loads(line, parse_constant=pytest.fail)["nonfinite"]["loss"] == "nan"
    rows = read_rows(tmp_path)
    assert all(math.isnan(row["loss"]) for row in rows)
    assert [row["nonfinite_total"] for row in rows] == [1, 2, 3]
    assert validate_run(tmp_path, spec).status == "measured"


def test_two_processes_do_not_train_one_run(connect_cpu, tmp_path, monkeypatch):
    """The second waits a moment, then is refused; the files of the first are untouched."""
    spec, partial = spec_on(connect_cpu("torch")), tmp_path / PARTIAL
    partial.mkdir()
    (partial / "checkpoint.safetensors").write_bytes(b"of the first")
    monkeypatch.setattr(training, "OTHER_SECONDS", 0.1)
    with locked(tmp_path):
        with pytest.raises(RunError, match="another process") as refused:
            run_cell(spec, tmp_path, CPU)
        assert str(tmp_path) in str(refused.value)
        assert (partial / "checkpoint.safetensors").read_bytes() == b"of the first"
    run_cell(spec, tmp_path, CPU)
    assert validate_run(tmp_path, spec).status == "measured"


@pytest.mark.parametrize(("name", "device"), [("torch", "gpu"), ("mlx", "cuda")])
def test_impossible_device_is_refused_before_it_writes(connect_cpu, tmp_path, name, device):
    spec = spec_on(connect_cpu(name))
    with pytest.raises(BackendError, match=f"{name} has no device '{device}' here"):
        run_cell(spec, tmp_path / "run", Compute(device=device))
    assert list(tmp_path.iterdir()) == []


def test_an_array_that_does_not_fit_into_memory_is_an_error_of_the_user(connect_cpu):
    connect_cpu("torch")
    import torch

    with pytest.raises(BackendError, match="out of memory; reduce batch_size"), memory_errors():
        torch.ones(2**50)
    with pytest.raises(RuntimeError, match="size"), memory_errors():
        torch.ones(2) @ torch.ones(3)


# --- interruptions -------------------------------------------------------------------------------


def interrupted(spec, folder, steps=11, compute=CHECKPOINTS):
    """Leave in `folder` the files of a training that is interrupted after `steps` steps."""
    with pytest.raises(KeyboardInterrupt):
        run_cell(spec, folder, compute, interrupt_at(steps))
    assert files_in(folder) == {".partial"}


@pytest.mark.parametrize(
    ("variant", "recipe"), [("baseline", "mlx-defaults"), ("mhc", "torch-defaults")]
)
def test_resumed_training_equals_an_uninterrupted_one(backend, tmp_path, variant, recipe):
    spec = spec_on(backend, variant=variant, recipe=recipe, weight_decay=0.1)
    run_cell(spec, tmp_path / "whole", CPU)
    interrupted(spec, tmp_path / "broken")
    run_cell(spec, tmp_path / "broken", CHECKPOINTS)
    assert_same_numbers(tmp_path / "broken", tmp_path / "whole")
    # Rows come after 1 and 11 steps: the interruption at 11 fell back to the save at 1.
    assert read_manifest(tmp_path / "broken")["resumed_at_steps"] == [1]
    assert files_in(tmp_path / "broken") == ARRIVED


DAMAGES = {
    "cut off": lambda content: content[: len(content) // 2],
    "overwritten": lambda content: b"this is no checkpoint" * 100,
    "a flipped bit": flipped,  # inside the last array: it stays well-formed
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, connect_cpu):
    """A folder with two trainings on torch: a whole one and an interrupted one."""
    connect_cpu("torch")
    folder = tmp_path_factory.mktemp("whole")
    run_cell(make_spec(steps=STEPS), folder / "run", CPU)
    interrupted(make_spec(steps=STEPS), folder / "interrupted")
    return folder


@pytest.mark.parametrize("damage", [*DAMAGES.values(), None], ids=[*DAMAGES, "removed"])
def test_a_damaged_checkpoint_is_left_unused(connect_cpu, tmp_path, whole, damage):
    spec = spec_on(connect_cpu("torch"))
    shutil.copytree(whole / "interrupted", tmp_path / "broken")
    (file,) = (tmp_path / "broken/.partial").iterdir()
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))
    run_cell(spec, tmp_path / "broken", CPU)
    assert_same_numbers(tmp_path / "broken", whole / "run")
    assert read_manifest(tmp_path / "broken")["resumed_at_steps"] == []


@pytest.mark.parametrize("change", [{"lr": 0.02}, {"steps": 13}])
def test_a_checkpoint_of_another_spec_is_left_unused(connect_cpu, tmp_path, whole, change):
    backend = connect_cpu("torch")
    interrupted(spec_on(backend, **change), tmp_path)
    run_cell(spec_on(backend), tmp_path, CPU)
    assert_same_numbers(tmp_path, whole / "run")
    assert read_manifest(tmp_path)["resumed_at_steps"] == []


def test_a_checkpoint_of_other_code_is_left_unused(connect_cpu, tmp_path, monkeypatch):
    spec = spec_on(connect_cpu("torch"))
    interrupted(spec, tmp_path)
    another = {"fathom_study.train:train": "changed"}
    with monkeypatch.context() as patch:
        patch.setattr("fathom_study.runs.training.training_code", lambda spec: another)
        run_cell(spec, tmp_path, CPU)
    manifest = read_manifest(tmp_path)
    assert (manifest["resumed_at_steps"], manifest["code"]) == ([], another)


ELSEWHERE = {
    "threads": ("threads", 2, "threads 2 → 1"),
    "numpy": ("numpy", "0.1", "numpy 0.1 → "),
    "compiler": ("arithmetic", {"numba": "0.1"}, "arithmetic.numba 0.1 → "),
}


@pytest.mark.parametrize(("name", "value", "said"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_other_checkpoints(connect_cpu, tmp_path, whole, monkeypatch, capsys, name, value, said):
    """Digits depend on the environment, and a manifest can only name one."""
    spec = spec_on(connect_cpu("torch"))
    with monkeypatch.context() as patch:
        patch.setattr(
            "fathom_study.runs.training.environment", lambda *on: {**environment(*on), name: value}
        )
        interrupted(spec, tmp_path)
    run_cell(spec, tmp_path, CPU)
    assert_same_numbers(tmp_path, whole / "run")
    manifest = read_manifest(tmp_path)
    assert (manifest["resumed_at_steps"], manifest["threads"]) == ([], 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fathom: {tmp_path}/.partial/checkpoint.safetensors: is not used, ")
    assert said in line


def test_targets_of_compilers_and_kernels_are_in_the_environment(connect_cpu, monkeypatch):
    """Targets of numba and ATen: a run resumed under another has other last digits."""
    backend = connect_cpu("torch")
    usual = environment(backend, 1)
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    generic = environment(backend, 1)
    assert generic["arithmetic"] == {**usual["arithmetic"], "NUMBA_CPU_NAME": "generic"}
    assert not same_digits(usual, generic)
    # An older run without these records is compared by its own records alone.
    assert same_digits({**usual, "arithmetic": {}}, generic)


# --- evaluating again ----------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path, monkeypatch):
    """`Compute` with a small set of random images in place of the official ones."""
    arrays = random_images(20, 60)
    digests = put_idx(tmp_path / "data/fashion-mnist", fashion_mnist.FILES, *arrays)
    monkeypatch.setattr(fashion_mnist, "FILES", digests)
    return Compute(device="cpu", data=str(tmp_path / "data"))


def test_saved_weights_are_those_of_the_measurements_after_training(backend, images, tmp_path):
    spec = spec_on(
        backend, task="fashion", variant="mhc_causal", depth=2, steps=4, batch_size=5, weights=True
    )
    folder = tmp_path / "run"
    run_cell(spec, folder, images)
    assert files_in(folder) == {*ARRIVED, "weights.safetensors"}
    assert validate_run(folder, spec).status == "measured"
    last = read_rows(folder)[-1]
    names = (
        "test_accuracy", "mixing_row_error", "mixing_column_error", "weights_column_error",
        "weights_difference",
    )  # fmt: skip
    recorded = {name: last[name] for name in names}
    problem, weights = Problem(spec), load_file(folder / "weights.safetensors")
    trainer = trainer_for(problem, backend, weights)
    again = problem.at_evaluation(backend.ops, trainer.infer, is_last=True)
    assert again == recorded  # to the last digit
