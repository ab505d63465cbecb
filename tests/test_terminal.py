"""What `fathom status` shows to people, and the JSON that it prints for machines."""

import json
import subprocess
import sys

import pytest
import yaml

from fathom.config import Cell
from fathom.report.terminal import print_status
from fathom.runs import estimate, status
from fathom.runs.status import status_of
from run_helpers import CPU, STUDY, config_with, write_cell

LOSSES = [4.0, 2.0, 1.0]
GRID = {"depths": [4, 8], "variants": ["hc", "mhc"], "backends": ["torch"]}


@pytest.fixture
def config(tmp_path):
    """Twelve cells: one study, depths 4 and 8, hc and mhc, torch, three seeds."""
    return config_with(tmp_path, **GRID)


@pytest.fixture
def printed(config, capsys, monkeypatch):
    """A function that gives what is shown, where both backends count as installed.

    A step is assumed to be as long as there are layers, so that times can be counted by hand.
    """

    def show(**options):
        print_status(status_of(config), **options)
        return capsys.readouterr().out

    monkeypatch.setattr(status, "installed_backends", lambda: ("mlx", "torch"))
    monkeypatch.setattr(estimate, "assumed_step_seconds", lambda spec: spec.depth * 1e-6)
    return show


def cell(depth=4, seed=0):
    return Cell("a", depth, "mhc", "torch", seed)


def test_people_see_counts_reasons_and_what_is_left(config, printed):
    write_cell(config, cell(), LOSSES, seconds=1.5)
    write_cell(config, cell(seed=1), LOSSES, code={"fathom.train:train": "of another time"})
    text = printed()
    assert "1 measured" in text
    assert "10 missing" in text
    assert "a/4L/mhc/torch/seed1: stale: code differs: fathom.train:train" in text
    # 11 starts, and 3 steps each of 0.5 s at 4 layers and 1 s at 8: 5 cells and 6.
    assert text.splitlines()[:2] == [
        "11 of 12 cells left to run here: about 70 seconds on one core.",
        "The time is an estimate from 1 finished cells.",
    ]


def test_no_terminal_obeys_what_stands_in_a_run_folder(config, printed):
    obeyed = "\x1b]0;fine\x07\x1b[2J\u202e"
    write_cell(config, cell(), LOSSES, code={f"fathom.train:{obeyed}": "0"})
    write_cell(config, cell(seed=1), LOSSES, device={**CPU, "name": obeyed})
    shown = printed()
    assert "a/4L/mhc/torch/seed0: corrupt: manifest.json: code." in shown
    assert "a/4L/mhc/torch/seed1: corrupt: manifest.json: device.name: must not hold" in shown
    assert all(character.isprintable() or character == "\n" for character in shown)


def fathom_status(folder, *arguments):
    """(exit status, standard output, standard error) of `fathom status` on that grid."""
    file = folder / "config.yaml"
    data = {"results": str(folder), "studies": {"a": {**STUDY, **GRID}}}
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    command = [sys.executable, "-m", "fathom", "status", "-c", str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_command_prints_the_json_and_nothing_else(config, tmp_path):
    write_cell(config, cell(), LOSSES)
    code, said, errors = fathom_status(tmp_path, "--json")
    assert (code, errors) == (0, "")
    assert json.loads(said) == status_of(config).as_json()
