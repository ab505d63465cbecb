"""A killed cell resumes, and ends with the numbers of an uninterrupted one."""

import os
import shutil
import signal
import subprocess

import psutil
import pytest

from tests.faults.projects import quickest_backend, the_cell, tiny_project
from tests.support.commands import wait_until
from tests.support.runs import ARRIVED


def assert_same_numbers(project, other):
    cell = the_cell(project)
    run = project.validate(cell)
    assert (run.status, run.reason) == ("measured", "")
    assert project.numbers(cell) == other.numbers(cell)


# --- kills at every written file -----------------------------------------------------------------

DIE_AT_RENAME = """
import os, signal, sys
from pathlib import Path
from fathom_study.__main__ import main

left, moment = int(sys.argv[1]), sys.argv[2]
rename = Path.replace

def rename_or_die(self, target):
    global left
    left -= 1
    if left == 0 and moment == "before":
        os.truncate(self, self.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    rename(self, target)
    if left == 0 and moment == "after":
        os.kill(os.getpid(), signal.SIGKILL)

Path.replace = rename_or_die
sys.argv = ["fathom", "train-all"]
main()
"""
"""Program that dies at the n-th rename of a file: before it, with half the file, or after."""

COMPLETE = 2 + 4
FILES_WRITTEN = COMPLETE + 1
"""Files of a training of 25 steps: checkpoints after 11 and 21, 4 of the run, and its verdict."""


def test_kill_at_any_file_leaves_no_partial_run_and_no_mixture_with_an_older_run(tmp_path):
    """A stale run is replaced; numbers equal those of an uninterrupted training."""
    backend = quickest_backend()
    old, whole = (
        tiny_project(tmp_path / name, backends=[backend], steps=steps)
        for name, steps in (("old", 15), ("whole", 25))
    )
    for project in (old, whole):
        project.train_all()
    moments = [*((k, "before") for k in range(1, FILES_WRITTEN + 1)), (FILES_WRITTEN, "after")]
    for rename, moment in moments:
        shutil.copytree(old.folder, tmp_path / f"{rename} {moment}")
        project = tiny_project(tmp_path / f"{rename} {moment}", backends=[backend], steps=25)
        cell = the_cell(project)
        assert project.validate(cell).status == "stale"
        status, printed = project.run("-c", DIE_AT_RENAME, str(rename), moment)
        assert status == -signal.SIGKILL, printed
        named = rename - (moment == "before")
        # The old run loses its manifest before the first file of the new one has its name.
        expected = "stale" if rename <= 2 else "failed" if named < COMPLETE else "measured"
        assert project.validate(cell).status == expected
        project.train_all()
        assert_same_numbers(project, whole)
        left = {file.name for file in project.cell_folder(cell).iterdir()}
        # A run that was complete before the kill is not touched again: it may lack its verdict,
        # and keep a temporary file of the verdict.
        if expected == "measured":
            left = {name for name in left if name[0] != "."} | {"verdict.json"}
        assert left == ARRIVED
    # No further file is renamed.
    project = tiny_project(tmp_path / "last", backends=[backend], steps=25)
    status, _ = project.run("-c", DIE_AT_RENAME, str(FILES_WRITTEN + 1), moment)
    assert status == 0


# --- workers of train-all ------------------------------------------------------------------------


@pytest.fixture
def both(tmp_path):
    """A project of two long cells, which two workers train at once."""
    return tiny_project(tmp_path, seeds=[0, 1], backends=[quickest_backend()], steps=400)


def workers_of(process):
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def begin_both(project):
    """Start `train-all --jobs 2` and wait for a checkpoint of both cells."""
    process = project.start("-m", "fathom_study", "train-all", "--jobs", "2")
    folders = [project.cell_folder(cell) for cell in project.config.cells()]
    checkpoints = [folder / ".partial/checkpoint.safetensors" for folder in folders]
    wait_until(lambda: all(file.exists() for file in checkpoints), process)
    return process


def test_killed_worker_is_reported_in_one_line_per_cell(both):
    """The kill is that of a system out of memory."""
    process = begin_both(both)
    workers_of(process)[0].kill()
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in printed
    failures = [line for line in printed.splitlines() if line.startswith("fathom: ")]
    assert len(failures) == 2
    assert all(f"{cell}: " in printed for cell in both.config.cells())
    both.train_all()
    for cell in both.config.cells():
        assert len(both.manifest(cell)["resumed_at_steps"]) == 1


def test_no_cell_begins_after_ctrl_c(tmp_path):
    project = tiny_project(tmp_path, seeds=[0, 1, 2, 3], backends=[quickest_backend()], steps=600)
    folders = [project.cell_folder(cell) for cell in project.config.cells()]
    process = project.start("-m", "fathom_study", "train-all", "--jobs", "2")

    def begun():
        return sum((folder / ".partial/checkpoint.safetensors").exists() for folder in folders)

    wait_until(lambda: begun() == 2, process)
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "Traceback" not in printed
    assert begun() == 2
    assert not any((folder / "manifest.json").exists() for folder in folders)


def test_workers_do_not_outlive_a_killed_train_all(both):
    """Else they would train in the same folders as the workers of the next `train-all`."""
    process = begin_both(both)
    workers = workers_of(process)
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    try:
        process.communicate(timeout=30)  # ends when no process holds the pipe
    except subprocess.TimeoutExpired:
        for worker in filter(psutil.Process.is_running, workers):
            worker.kill()
        raise
