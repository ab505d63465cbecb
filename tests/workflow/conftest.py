"""A copy of the project in which the real Snakemake runs the real rules on a tiny grid."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PARTS = ("src", "workflow", "report", "envs", "config.yaml")
SMOKE = ("--configfile", "workflow/presets/smoke.yaml")
# Smaller still than the preset: 2 studies, 2 depths, 2 backends.
GRID = ("--config", "seeds=[0]", 'variants=["hc","mhc"]')


@dataclass
class Workflow:
    folder: Path

    def snakemake(self, *arguments, environment=None):
        return subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments],
            cwd=self.folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )

    def smoke(self, *arguments, grid=GRID):
        result = self.snakemake(*arguments, *SMOKE, *grid)
        assert result.returncode == 0, result.stdout + result.stderr
        return result

    def planned(self, *arguments):
        """(rule, first output without the results folder) of every job that a dry-run lists."""
        text = self.smoke("-n", *arguments).stdout
        jobs, rule = [], None
        for line in text.splitlines():
            words = line.split()
            if line.startswith(("rule ", "localrule ")):
                rule = words[1].rstrip(":")
            elif rule and words[:1] == ["output:"]:
                first = words[1].rstrip(",").removeprefix("results/smoke/")
                jobs.append((rule, first))
                rule = None
        return sorted(jobs)

    def edit(self, file, old, new):
        path = self.folder / file
        text = path.read_text()
        assert old in text, f"{file} no longer holds {old!r}"
        path.write_text(text.replace(old, new))


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The smoke grid, run once."""
    workflow = copy_of_project(tmp_path_factory.mktemp("finished"))
    workflow.smoke("all")
    return workflow


@pytest.fixture
def workflow(finished, tmp_path):
    """A copy of the finished grid, for a test to change."""
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    return Workflow(tmp_path / "copy")


@pytest.fixture(scope="session")
def untouched(tmp_path_factory):
    """The project before anything ran; for dry-runs only."""
    return copy_of_project(tmp_path_factory.mktemp("untouched"))


@pytest.fixture
def fresh(tmp_path):
    """A copy before anything ran, for a test to change."""
    return copy_of_project(tmp_path)


def copy_of_project(folder):
    for part in PARTS:
        source = PROJECT / part
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, folder / part, ignore=ignore)
        else:
            shutil.copy(source, folder / part)
    return Workflow(folder)
