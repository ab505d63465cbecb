"""Status: counts, what is left, and how long that takes by hand."""

import subprocess
import sys

import pytest

from fathom.config import Cell
from fathom.runs import estimate, status
from fathom.runs.run import STATUSES
from fathom.runs.status import status_of
from run_helpers import CPU_PLATFORM, GPU, GPU_PLATFORM, config_with, write_cell

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
    monkeypatch.setattr(estimate, "assumed_step_seconds", lambda spec: 0.1 * spec.depth)


@pytest.fixture
def config(tmp_path):
    """Twelve cells: one study, depths 4 and 8, hc and mhc, torch, three seeds."""
    return config_with(tmp_path, depths=[4, 8], variants=["hc", "mhc"], backends=["torch"])


def cell(depth=4, variant="mhc", backend="torch", seed=0, study="a"):
    return Cell(study, depth, variant, backend, seed)


# --- counts ----------------------------------------------------------------------------------


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


def test_a_cell_may_have_several_runs_and_is_left_once_until_it_is_trained_here(config):
    another = {**GPU, "name": "Another GPU"}
    for platform, device in ((GPU_PLATFORM, GPU), ("cuda-another-gpu-testos", another)):
        write_cell(config, cell(), LOSSES, platform=platform, device=device)
    found = status_of(config)
    assert found.counts == {"imported": 2, "missing": 11}
    assert found.left.count(cell()) == 1
    write_cell(config, cell(), LOSSES)
    found = status_of(config)
    assert found.counts == {"measured": 1, "imported": 2, "missing": 11}
    assert found.left.count(cell()) == 0
    assert {run.platform for run in found.runs if run.cell == cell()} == {
        CPU_PLATFORM,
        GPU_PLATFORM,
        "cuda-another-gpu-testos",
    }


# --- what is left ----------------------------------------------------------------------------


def test_what_is_missing_stale_or_broken_is_left_and_what_is_current_is_not(config):
    found = status_of(config)
    assert (found.counts, found.left) == ({"missing": 12}, config.cells())
    write_cell(config, cell(), LOSSES)
    write_cell(config, cell(seed=1), LOSSES, code=OF_ANOTHER_TIME)
    damaged = write_cell(config, cell(seed=2), LOSSES)
    (damaged / "mixing.safetensors").unlink()
    assert status_of(config).left == [c for c in config.cells() if c != cell()]


# --- how long it takes -----------------------------------------------------------------------


def all_but(config, *left, seconds):
    """Runs of every cell but these, which took so many seconds."""
    for one in config.cells():
        if one not in left:
            write_cell(config, one, LOSSES, seconds=seconds)


ASSUMED = 12 * STARTUP + STEPS * (6 * 0.4 + 6 * 0.8)
"""What all twelve cells take if nothing is known: six of 4 layers, six of 8."""


def test_where_nothing_was_measured_the_time_is_what_the_networks_let_assume(config):
    found = status_of(config)
    assert (found.seconds, found.timed) == (pytest.approx(ASSUMED), 0)
    all_but(config, seconds=3.0)
    found = status_of(config)
    assert (found.left, found.seconds) == ([], 0)


def test_a_cell_takes_as_long_as_the_median_of_matching_cells(config):
    write_cell(config, cell(seed=0), LOSSES, seconds=1.5)
    write_cell(config, cell(seed=1), LOSSES, seconds=2.1)
    all_but(config, *(cell(seed=s) for s in range(3)), seconds=300.0)
    found = status_of(config)
    assert found.left == [cell(seed=2)]
    assert found.seconds == pytest.approx(STARTUP + 0.6 * STEPS)


def test_planning_loads_neither_training_nor_a_framework():
    """Every command and every start of Snakemake would wait for it."""
    program = (
        "import sys; from fathom.runs import bundle, import_preview, status, validate;"
        "print([m for m in sys.modules if m.startswith(('fathom.train', 'fathom.backends'))"
        " or m in ('torch', 'mlx', 'fathom.runs.training', 'fathom.runs.replay')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("[]\n", "")


# --- for machines ------------------------------------------------------------------------
