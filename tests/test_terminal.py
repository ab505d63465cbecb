"""What `fathom status` shows to people, and the JSON that it prints for machines."""

import json
import re
import subprocess
import sys

import pytest
import yaml

from fathom.config import Cell
from fathom.report.terminal import LOOKS, MAX_STATUS_LINES, print_status
from fathom.runs import estimate, status
from fathom.runs.run import STATUSES
from fathom.runs.status import status_of
from fathom.system.text import format_duration
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


def test_people_see_a_line_for_each_study_and_every_cell_where_they_ask(config, printed):
    write_cell(config, cell(), LOSSES)
    folded, whole = printed(), printed(every_cell=True)
    rows = [[part.strip() for part in line.split("│")[1:-1]] for line in folded.splitlines()]
    (row,) = [row for row in rows if row]
    assert row[:3] == ["a", "1", "11"]
    assert "seeds" not in folded
    assert "torch (seeds 0, 1, 2)" in whole
    for text in (folded, whole):
        assert text.startswith("11 of 12 cells left to run here: about ")


def test_of_many_reasons_the_first_are_shown_and_the_others_counted(config, printed):
    for one in config.cells():
        write_cell(config, one, LOSSES, code={"fathom.train:train": "of another time"})
    folded, whole = printed(), printed(every_cell=True)
    assert folded.count("code differs") == MAX_STATUS_LINES == 10
    assert "… and 2 more lines like these" in folded
    assert whole.count("code differs") == 12


def test_people_see_one_sign_for_each_seed(config, printed):
    write_cell(config, cell(seed=1), LOSSES)
    missing, measured = LOOKS["missing"][0], LOOKS["measured"][0]
    text = printed(every_cell=True)
    (four,) = re.findall(r"^.*\b4 .*mhc.*$", text, re.MULTILINE)
    (eight,) = re.findall(r"^.*\b8 .*mhc.*$", text, re.MULTILINE)
    assert f"{missing} {measured} {missing}" in four
    assert f"{missing} {missing} {missing}" in eight


def test_no_terminal_obeys_what_stands_in_a_run_folder(config, printed):
    obeyed = "\x1b]0;fine\x07\x1b[2J\u202e"
    write_cell(config, cell(), LOSSES, code={f"fathom.train:{obeyed}": "0"})
    write_cell(config, cell(seed=1), LOSSES, device={**CPU, "name": obeyed})
    shown = printed()
    assert "a/4L/mhc/torch/seed0: corrupt: manifest.json: code." in shown
    assert "a/4L/mhc/torch/seed1: corrupt: manifest.json: device.name: must not hold" in shown
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_people_see_that_nothing_is_left(config, printed):
    for one in config.cells():
        write_cell(config, one, LOSSES)
    assert printed().startswith("Nothing is left to run here.\n")


def test_people_see_that_a_time_is_a_guess_where_nothing_was_timed(printed):
    first, second, *_ = printed().splitlines()
    assert first == "12 of 12 cells left to run here: about 48 seconds on one core."
    assert second == (
        "The time is a guess from the size of the networks: nothing was timed here yet."
    )


def test_every_status_has_a_sign_of_its_own():
    assert set(LOOKS) == set(STATUSES)
    assert len({sign for sign, _ in LOOKS.values()}) == len(STATUSES)


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


def test_the_command_refuses_a_study_that_is_not_there(tmp_path):
    code, said, errors = fathom_status(tmp_path, "b")
    assert (code, said) == (1, "")
    assert errors == "fathom: unknown study 'b' (known: a)\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.6, "5 seconds"), (89, "89 seconds"), (120, "2 minutes"), (5399, "90 minutes"),
     (5400, "1.5 hours"), (172799, "48.0 hours"), (172800, "2.0 days")],
)  # fmt: skip
def test_the_time_that_is_left_in_words(seconds, text):
    assert format_duration(seconds) == text
