"""A killed workflow resumes, and ends with the tables of an uninterrupted one.

Snakemake locks its folder while it runs. SIGKILL leaves the lock, so the next `snakemake` stops and
reports it; `snakemake --unlock` removes it. Jobs that were running are then incomplete and run
again, and trainings resume from their checkpoints.
"""

import random
import shutil
import subprocess
import time

import pytest

from fathom_study.config import installed_backends
from tests.cluster.single_node import working_in
from tests.faults.projects import kill, whole_project
from tests.support.commands import wait_until

pytestmark = pytest.mark.skipif(not installed_backends(), reason="needs torch or mlx")

KILLS = 2
TABLES = ("-m", "snakemake", "tables", "--configfile", "grid.yaml", "--cores", "2")


def is_locked(project):
    locks = project.folder / ".snakemake/locks"
    return locks.is_dir() and any(locks.iterdir())


def measured(project):
    """{path: (start, end) of training} of each measured cell."""
    runs = (project.validate(cell) for cell in project.config.cells())
    return {
        run.cell.path(): (run.manifest.started, run.manifest.ended)
        for run in runs
        if run.status == "measured"
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(project, seconds) of an uninterrupted workflow."""
    project = whole_project(tmp_path_factory.mktemp("whole"))
    start = time.monotonic()
    status, printed = project.run(*TABLES)
    assert status == 0, printed
    assert not is_locked(project)
    assert len(measured(project)) == len(project.config.cells())
    return project, time.monotonic() - start


def test_kills_of_the_workflow_do_not_change_tables(whole, tmp_path):
    undisturbed, seconds = whole
    rng = random.Random(20260517)  # noqa: S311, nothing secret
    project = whole_project(tmp_path / "killed")
    kills, finished, trained_again = 0, {}, []
    while kills < KILLS:
        if not is_killed(project, rng.uniform(0, seconds / 2)):
            assert project.tables() == undisturbed.tables()
            shutil.rmtree(project.folder)  # start again from nothing
            project, finished = whole_project(tmp_path / "killed"), {}
            continue
        kills += 1
        trained_again.append(len(finished.items() - measured(project).items()))
        finished = measured(project)
        status, printed = project.run("-m", "snakemake", "--unlock")  # as users are told
        assert (status, is_locked(project)) == (0, False), printed

    status, printed = project.run(*TABLES)
    assert status == 0, printed
    assert len(measured(project)) == len(project.config.cells())
    assert project.tables() == undisturbed.tables()
    trained_again.append(len(finished.items() - measured(project).items()))
    print(f"\nfinished cells trained again: {trained_again}")
    assert max(trained_again) == 0  # even if Snakemake died before it recorded the end


def is_killed(project, seconds):
    """Run the workflow, and SIGKILL it after `seconds`; False if it ends before."""
    process = project.start(*TABLES)
    wait_until(lambda: is_locked(project), process)
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        wait_until(lambda: not working_in(project.folder), seconds=30)
        return True
    assert process.returncode == 0, printed
    return False
