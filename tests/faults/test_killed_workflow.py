"""A workflow that is killed goes on, and ends with the tables of one that was not.

Snakemake locks its folder while it runs. SIGKILL leaves the lock, so the next `snakemake` stops and
says so; `snakemake --unlock` removes it. Jobs that were running are then found to be incomplete and
run again, and trainings go on from their checkpoints.
"""

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from fault_helpers import kill, wait_until, whole_project

from fathom.config import installed_backends

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not installed_backends(), reason="neither torch nor mlx is installed"),
]

KILLS = 2
ALL = ("-m", "snakemake", "all", "--configfile", "faults.yaml", "--cores", "2")
TABLES = tuple("tables" if argument == "all" else argument for argument in ALL)
UNLOCK = ("-m", "snakemake", "--unlock")
LOCKED = "Directory cannot be locked"
WAY_OUT = "It can be removed with the --unlock argument"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A workflow up to its tables that nobody kills; and how many seconds it took."""
    project = whole_project(tmp_path_factory.mktemp("undisturbed"))
    start = time.monotonic()
    status, printed = project.run(*TABLES)
    assert status == 0, printed
    return project, time.monotonic() - start


def is_locked(project):
    locks = project.folder / ".snakemake/locks"
    return locks.is_dir() and any(locks.iterdir())


def processes_in(folder):
    """Every process that works in a folder, where the system shows this."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink() == folder:
                found.append(int(link.parent.name))
        except OSError:
            pass  # gone, or of somebody else
    return found


def measured(project):
    """When each cell that is trained was: the start and the end, by its path."""
    runs = (project.validate(cell) for cell in project.config.cells())
    return {
        run.cell.path(): (run.manifest.started, run.manifest.ended)
        for run in runs
        if run.status == "measured"
    }


def test_kills_of_the_whole_workflow_change_no_table(undisturbed, tmp_path):
    whole, seconds = undisturbed
    rng = random.Random(20260517)  # noqa: S311, nothing secret
    project = whole_project(tmp_path / "killed")
    kills, locks, finished, trained_again = 0, 0, {}, []
    while kills < KILLS:
        if not is_killed(project, rng.uniform(0, seconds)):
            assert tables_of(project, whole) == whole.tables()
            shutil.rmtree(project.folder)  # and begin from nothing
            project, finished = whole_project(tmp_path / "killed"), {}
            continue
        kills += 1
        trained_again.append(len(finished.items() - measured(project).items()))
        finished = measured(project)
        locks += unlock(project)

    status, printed = project.run(*ALL)
    assert status == 0, printed
    assert len(measured(project)) == len(project.config.cells())
    status, printed = project.run("-m", "fathom", "verify", "-c", "results/faults/config.json")
    assert status == 0, printed
    assert tables_of(project, whole) == whole.tables()
    trained_again.append(len(finished.items() - measured(project).items()))
    print(f"\n{kills} kills, {locks} locks; finished cells trained again: {trained_again}")
    assert max(trained_again) == 0  # even where Snakemake was killed before it noted the end


def tables_of(project, whole):
    """The tables that a whole workflow has: reports, which it does not make, add one."""
    return {name: rows for name, rows in project.tables().items() if name in whole.tables()}


def is_killed(project, seconds):
    """Run everything, and SIGKILL it all so many seconds later; False if it ends before."""
    process = project.start(*ALL)
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        wait_until_nobody_works_in(project.folder)
        return True
    assert process.returncode == 0, printed
    return False


def unlock(project):
    """Get out as a user is told to; returns whether there was a lock."""
    if not is_locked(project):
        return False
    status, printed = project.run(*UNLOCK)
    assert status == 0, printed
    assert not is_locked(project)
    return True


def wait_until_nobody_works_in(folder):
    end = time.monotonic() + 30
    while processes_in(folder):
        assert time.monotonic() < end, "a job outlives the workflow that was killed"
        time.sleep(0.05)


def test_a_workflow_in_a_folder_where_one_runs_stops_and_says_how_to_go_on(tmp_path):
    project = whole_project(tmp_path / "twice")
    backend = installed_backends()[0]
    tables = ("-m", "snakemake", "tables", *ALL[3:])
    few = ("--config", "seeds=[0]", f'backends=["{backend}"]')
    first = project.start(*tables, *few)
    wait_until(lambda: is_locked(project), first)
    status, printed = project.run(*tables, *few)
    assert status != 0
    assert first.poll() is None  # or there was nothing to collide with
    assert LOCKED in printed
    assert WAY_OUT in printed
    assert "Traceback" not in printed

    rest, _ = first.communicate(timeout=300)
    assert first.returncode == 0, rest
    assert not is_locked(project)
    assert len(measured(project)) == 1
