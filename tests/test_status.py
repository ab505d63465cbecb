"""Status: counts, what is left, and how long that takes by hand."""

import json

import pytest

from fathom.config import Cell
from fathom.runs import status
from fathom.runs.inspect import STATUSES
from fathom.runs.status import status_of
from run_helpers import (
    CPU_PLATFORM,
    GPU,
    GPU_PLATFORM,
    config_with,
    read_manifest,
    write_cell,
    write_manifest,
)

LOSSES = [4.0, 2.0, 1.0]
STEPS = 3
STARTUP = 4.0
"""Seconds that a job takes beside its steps."""
OF_ANOTHER_TIME = {"fathom.train:train": "of another time"}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Both backends count as installed, wherever the tests run."""
    monkeypatch.setattr(status, "installed_backends", lambda: ("mlx", "torch"))


@pytest.fixture(autouse=True)
def assumed(monkeypatch):
    """A step is assumed to take a tenth of a second for each layer."""
    monkeypatch.setattr(status, "assumed_step_seconds", lambda spec: 0.1 * spec.depth)


@pytest.fixture
def config(tmp_path):
    """Twelve cells: one study, depths 4 and 8, hc and mhc, torch, three seeds."""
    return config_with(tmp_path, depths=[4, 8], variants=["hc", "mhc"], backends=["torch"])


def cell(depth=4, variant="mhc", backend="torch", seed=0, study="a"):
    return Cell(study, depth, variant, backend, seed)


# --- counts ----------------------------------------------------------------------------------


def test_without_any_run_all_is_missing(config):
    found = status_of(config)
    assert found.counts == {"missing": 12}
    assert found.left == config.cells()


def test_every_status_is_counted(config):
    write_cell(config, cell(seed=0), LOSSES)
    write_cell(config, cell(seed=1), LOSSES)
    write_cell(config, cell(seed=2), LOSSES, code=OF_ANOTHER_TIME)
    damaged = write_cell(config, cell(8), LOSSES)
    (damaged / "mixing.safetensors").unlink()
    unfinished = write_cell(config, cell(8, seed=1), LOSSES)
    (unfinished / "manifest.json").unlink()
    (unfinished / ".partial").mkdir()
    write_cell(config, cell(8, seed=2), LOSSES, platform=GPU_PLATFORM, device=GPU)
    counts = status_of(config).counts
    assert counts == {
        "measured": 2, "imported": 1, "stale": 1, "corrupt": 1, "failed": 1, "missing": 6,
    }  # fmt: skip
    assert list(counts) == list(STATUSES)


def test_a_cell_that_was_trained_here_and_imported_has_two_runs(config):
    write_cell(config, cell(), LOSSES)
    write_cell(config, cell(), LOSSES, platform=GPU_PLATFORM, device=GPU)
    found = status_of(config)
    assert found.counts == {"measured": 1, "imported": 1, "missing": 11}
    assert [run.platform for run in found.runs if run.cell == cell()] == [
        CPU_PLATFORM,
        GPU_PLATFORM,
    ]


def test_only_the_named_studies_are_counted(tmp_path):
    config = config_with(tmp_path, ("a", "b"), depths=[4], variants=["mhc"], backends=["torch"])
    write_cell(config, cell(study="b"), LOSSES)
    assert status_of(config).counts == {"measured": 1, "missing": 5}
    found = status_of(config, ["b"])
    assert found.counts == {"measured": 1, "missing": 2}
    assert {run.cell.study for run in found.runs} == {"b"}
    assert {left.study for left in found.left} == {"b"}


# --- what is left ----------------------------------------------------------------------------


def test_what_is_current_is_not_left(config):
    write_cell(config, cell(), LOSSES)
    assert status_of(config).left == [c for c in config.cells() if c != cell()]


def test_what_is_stale_or_broken_is_left(config):
    write_cell(config, cell(), LOSSES, code=OF_ANOTHER_TIME)
    damaged = write_cell(config, cell(seed=1), LOSSES)
    (damaged / "mixing.safetensors").unlink()
    assert status_of(config).left == config.cells()


def test_a_cell_is_left_once_however_many_runs_were_imported(config):
    another = {**GPU, "name": "Another GPU"}
    for platform, device in ((GPU_PLATFORM, GPU), ("cuda-another-gpu-testos", another)):
        write_cell(config, cell(), LOSSES, platform=platform, device=device)
    found = status_of(config)
    assert found.counts["imported"] == 2
    assert found.left.count(cell()) == 1


def test_cells_of_a_backend_that_is_not_installed_are_not_left(config, monkeypatch):
    monkeypatch.setattr(status, "installed_backends", lambda: ("mlx",))
    found = status_of(config)
    assert found.left == []
    assert found.seconds == 0


# --- how long it takes -----------------------------------------------------------------------


def all_but(config, *left, seconds):
    """Runs of every cell but these, which took so many seconds."""
    for one in config.cells():
        if one not in left:
            write_cell(config, one, LOSSES, seconds=seconds)


def test_nothing_left_takes_no_time(config):
    all_but(config, seconds=3.0)
    found = status_of(config)
    assert (found.left, found.seconds) == ([], 0)


ASSUMED = 12 * STARTUP + STEPS * (6 * 0.4 + 6 * 0.8)
"""What all twelve cells take if nothing is known: six of 4 layers, six of 8."""


def test_where_nothing_was_measured_the_time_is_what_the_networks_let_assume(config):
    found = status_of(config)
    assert (found.seconds, found.timed) == (pytest.approx(ASSUMED), 0)


def test_a_cell_takes_as_long_as_the_median_of_its_like(config):
    write_cell(config, cell(seed=0), LOSSES, seconds=1.5)
    write_cell(config, cell(seed=1), LOSSES, seconds=2.1)
    all_but(config, *(cell(seed=s) for s in range(3)), seconds=300.0)
    found = status_of(config)
    assert found.left == [cell(seed=2)]
    assert found.seconds == pytest.approx(STARTUP + 0.6 * STEPS)


def test_without_its_like_a_cell_is_as_much_slower_than_assumed_as_the_median(config):
    # A step takes what is assumed at 4 layers of hc, twice that at 8, and 3 times at 4 of mhc.
    for one, seconds in ((cell(4, "hc"), 0.4), (cell(8, "hc"), 1.6), (cell(4, "mhc"), 1.2)):
        write_cell(config, one, LOSSES, seconds=STEPS * seconds)
    # Left are two more of each, and three of mhc at 8.
    steps = 2 * 0.4 + 2 * 1.6 + 2 * 1.2 + 3 * (2 * 0.8)
    assert status_of(config).seconds == pytest.approx(9 * STARTUP + STEPS * steps)


def test_a_backend_that_was_never_measured_takes_what_is_assumed(tmp_path):
    config = config_with(tmp_path, depths=[4], variants=["mhc"], seeds=[0])
    write_cell(config, cell(), LOSSES, seconds=300.0)
    found = status_of(config)
    assert found.left == [cell(backend="mlx")]
    assert found.seconds == pytest.approx(STARTUP + STEPS * 0.4)


def test_runs_from_elsewhere_and_stale_ones_do_not_say_how_fast_it_is_here(config):
    write_cell(config, cell(), LOSSES, platform=GPU_PLATFORM, device=GPU)
    write_cell(config, cell(seed=1), LOSSES, code=OF_ANOTHER_TIME)
    found = status_of(config)
    assert found.timed == 0
    assert found.seconds == pytest.approx(ASSUMED)


def test_a_study_of_more_steps_takes_longer(tmp_path):
    config = config_with(
        tmp_path, ("a", "b"), depths=[4], variants=["mhc"], backends=["torch"], seeds=[0],
        b={"steps": 1000},
    )  # fmt: skip
    write_cell(config, cell(), LOSSES, seconds=1.5)
    found = status_of(config)
    assert found.left == [cell(study="b")]
    assert found.seconds == pytest.approx(STARTUP + 0.5 * 1000)


def test_a_run_that_does_not_say_how_long_it_took_counts_for_nothing(tmp_path):
    config = config_with(tmp_path, depths=[4], variants=["mhc"], backends=["torch"], seeds=[0, 1])
    folder = write_cell(config, cell(), LOSSES)
    manifest = read_manifest(folder)
    del manifest["seconds"]
    write_manifest(folder, manifest)
    found = status_of(config)
    assert found.counts == {"measured": 1, "missing": 1}
    assert (found.seconds, found.timed) == (pytest.approx(STARTUP + STEPS * 0.4), 0)


# --- for machines ------------------------------------------------------------------------


def test_the_shape_of_the_json(config):
    write_cell(config, cell(), LOSSES)
    write_cell(config, cell(seed=1), LOSSES, code=OF_ANOTHER_TIME)
    data = json.loads(json.dumps(status_of(config, ()).as_json(), allow_nan=False))
    assert set(data) == {"counts", "left", "estimated_seconds", "estimated_from_cells", "runs"}
    assert data["counts"] == {"measured": 1, "stale": 1, "missing": 10}
    assert len(data["left"]) == 11
    assert data["estimated_from_cells"] == 1
    assert "a/4L/mhc/torch/seed1" in data["left"]
    by_cell = {run["cell"]: run for run in data["runs"]}
    assert len(by_cell) == 12
    assert by_cell["a/4L/mhc/torch/seed0"] == {
        "cell": "a/4L/mhc/torch/seed0",
        "platform": CPU_PLATFORM,
        "status": "measured",
        "reason": "",
        "replay": "",
    }
    assert by_cell["a/4L/mhc/torch/seed1"]["reason"] == "code differs: fathom.train:train"
    assert by_cell["a/8L/hc/torch/seed2"]["status"] == "missing"
