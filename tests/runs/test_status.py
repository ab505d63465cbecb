"""Status: counts, cells left, their estimated time by hand, and the text and JSON output."""

import json
import subprocess
import sys

import pytest

from fathom_study.config import Cell
from fathom_study.report.tables.terminal import print_status
from fathom_study.runs import estimate, status
from fathom_study.runs.run import STATUSES
from fathom_study.runs.status import status_of
from tests.support.runs import CPU_PLATFORM, GPU, GPU_PLATFORM, config_with, write_cell

LOSSES = [4.0, 2.0, 1.0]
STEPS = 3
STARTUP = 4.0
"""Seconds of a job in addition to its steps."""
OF_ANOTHER_TIME = {"fathom_study.train:train": "of another time"}


@pytest.fixture(autouse=True)
def assumed(monkeypatch):
    """Both backends are installed; a step takes 0.1 s for each layer, and a job STARTUP more."""
    monkeypatch.setattr(status, "installed_backends", lambda: ("mlx", "torch"))
    monkeypatch.setattr(estimate, "assumed_step_seconds", lambda spec: 0.1 * spec.depth)
    monkeypatch.setattr(estimate, "startup_seconds", lambda compute: STARTUP)


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
    result = status_of(config)
    assert result.counts == {
        "measured": 2, "imported": 1, "stale": 1, "corrupt": 1, "failed": 1, "missing": 6,
    }  # fmt: skip
    assert list(result.counts) == list(STATUSES)
    assert result.left == [c for c in config.cells() if c not in (cell(seed=0), cell(seed=1))]


def test_imported_cell_is_left_once_until_it_is_trained_here(config):
    another = {**GPU, "name": "Another GPU"}
    for platform, device in ((GPU_PLATFORM, GPU), ("cuda-another-gpu-testos", another)):
        write_cell(config, cell(), LOSSES, platform=platform, device=device)
    result = status_of(config)
    assert result.counts == {"imported": 2, "missing": 11}
    assert result.left.count(cell()) == 1
    write_cell(config, cell(), LOSSES)
    result = status_of(config)
    assert result.counts == {"measured": 1, "imported": 2, "missing": 11}
    assert result.left.count(cell()) == 0
    assert {run.platform for run in result.runs if run.cell == cell()} == {
        CPU_PLATFORM,
        GPU_PLATFORM,
        "cuda-another-gpu-testos",
    }


# --- estimated time --------------------------------------------------------------------------


def all_but(config, *left, seconds):
    """Write runs of every cell except `left`, each with a training time of `seconds`."""
    for one in config.cells():
        if one not in left:
            write_cell(config, one, LOSSES, seconds=seconds)


ASSUMED = 12 * STARTUP + STEPS * (6 * 0.4 + 6 * 0.8)
"""Seconds of all twelve cells without measurements: six of 4 layers, six of 8."""


def test_time_without_measurements_is_estimated_from_networks(config):
    result = status_of(config)
    assert (result.counts, result.left) == ({"missing": 12}, config.cells())
    assert (result.seconds, result.timed) == (pytest.approx(ASSUMED), 0)
    all_but(config, seconds=3.0)
    result = status_of(config)
    assert (result.left, result.seconds) == ([], 0)


def test_estimate_is_the_median_of_matching_cells(config):
    write_cell(config, cell(seed=0), LOSSES, seconds=1.5)
    write_cell(config, cell(seed=1), LOSSES, seconds=2.1)
    all_but(config, *(cell(seed=s) for s in range(3)), seconds=300.0)
    result = status_of(config)
    assert result.left == [cell(seed=2)]
    assert result.seconds == pytest.approx(STARTUP + 0.6 * STEPS)


def test_planning_loads_neither_training_nor_a_framework():
    """Loading them would delay every command and every start of Snakemake."""
    program = (
        "import sys; from fathom_study.runs import bundle, import_preview, status, validate;"
        "study = ('fathom_study.train', 'fathom_study.backends');"
        "print([m for m in sys.modules if m.startswith(study)"
        " or m in ('torch', 'mlx', 'fathom_study.runs.training', 'fathom_study.runs.replay')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# --- output ----------------------------------------------------------------------------------


def test_printed_status_has_counts_reasons_and_cells_left(config, capsys):
    write_cell(config, cell(), LOSSES, seconds=1.5)
    write_cell(config, cell(seed=1), LOSSES, code=OF_ANOTHER_TIME)
    print_status(status_of(config))
    text = capsys.readouterr().out
    assert "1 measured" in text
    assert "10 missing" in text
    assert "a/4L/mhc/torch/seed1: stale: code differs: fathom_study.train:train" in text
    # 11 starts; 3 steps each: 5 cells of 4 layers at 0.5 s and 6 cells of 8 layers at 1 s.
    assert text.splitlines()[:2] == [
        "11 of 12 cells left to run here: about 70 seconds on one core.",
        "The time is an estimate from 1 finished cell.",
    ]


def test_the_command_prints_the_json_and_nothing_else(config, tmp_path, fathom):
    write_cell(config, cell(), LOSSES)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    code, said, errors = fathom("status", "--json", "--config", tmp_path / "config.json")
    assert (code, errors) == (0, [])
    assert json.loads(said) == status_of(config).as_json()
