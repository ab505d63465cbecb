"""A copy of the project in which the real Snakemake runs the real rules on a tiny grid."""

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.commands import finished as ended
from tests.support.forks import run_module
from tests.support.project import copy_project, only

SMOKE = ("--configfile", ".test/config/config.yaml", "grid.yaml")
# Smaller still than the preset: 10 cells of two studies.
GRID = only(
    {"depth-mlx": {"variants": ["hc", "mhc"], "seeds": [0], "exclude": []}, "depth-torch": {}}
)


def own_lines(result):
    """Lines printed by fathom itself, in a run without a traceback."""
    assert "Traceback" not in result.stderr
    lines = (result.stdout + result.stderr).splitlines()
    return [line for line in lines if line.startswith("fathom:")]


TARGETS = {"everything", "all", "tables", "figures", "cell_figures", "report", "data"}


def jobs_in(log):
    """(rule, name) of every job in Snakemake's log that makes something."""
    jobs = re.findall(r"^Job [0-9]+: (\S+) ?(.*)$", log, re.M)
    return [(rule, name) for rule, name in jobs if rule not in TARGETS and "-" not in rule]


@dataclass
class Workflow:
    folder: Path
    said: str = ""
    """Standard error of the run that made the folder."""

    def snakemake(self, *arguments, environment=None):
        """Run the real Snakemake, in a new process if `environment` is given."""
        folder = self.folder.resolve()
        if environment is None:
            return run_module("snakemake", *arguments, folder=folder)
        command = (sys.executable, "-m", "snakemake", *arguments)
        return ended(*command, folder=folder, **environment)

    def smoke(self, *arguments):
        result = self.snakemake(*arguments, *SMOKE)
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    def planned(self, *arguments):
        """(rule, name) of every job that a dry-run lists."""
        return sorted(jobs_in(self.smoke("-n", *arguments).stdout))

    def edit(self, file, old, new):
        path = self.folder / file
        text = path.read_text()
        assert old in text, f"{file} no longer holds {old!r}"
        path.write_text(text.replace(old, new))


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The finished smoke grid, run once by the first pytest worker that needs it."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with FileLock(shared / "finished.lock"):
        made, said = shared / "made", shared / "said"
        if not said.exists():
            shutil.rmtree(made, ignore_errors=True)  # left unfinished by another worker
            said.write_text(copy_of_project(made).smoke("all").stderr)
        folder = shutil.copytree(made, own / "finished", symlinks=True)
    return Workflow(folder, said.read_text())


@pytest.fixture
def workflow(finished, tmp_path):
    """A copy of the finished grid, for a test to change."""
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    return Workflow(tmp_path / "copy")


@pytest.fixture(scope="session")
def untouched(tmp_path_factory):
    """The project before any run; for dry-runs only."""
    return copy_of_project(tmp_path_factory.mktemp("untouched"))


@pytest.fixture
def fresh(tmp_path):
    """A copy before any run, for a test to change."""
    return copy_of_project(tmp_path)


def copy_of_project(folder):
    copy_project(folder, GRID)
    return Workflow(folder)
