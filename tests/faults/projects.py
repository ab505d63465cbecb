"""Helpers for fault tests: project folders, and commands that can be killed."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fathom_study.config import installed_backends, load_config, read_yaml
from fathom_study.runs.folder import run_folder
from fathom_study.runs.validate import validate_run
from tests.support.project import copy_project, only
from tests.support.runs import TINY, numbers_of, read_csv, read_manifest, without_times

STUDY = {**TINY, "variants": ["mhc"], "backends": list(installed_backends()), "steps": 600}
SECONDS = 300
"""Time limit for a command, which only a hang exceeds."""


@dataclass
class Project:
    """A folder with a config, in which fathom and Snakemake are called as a user calls them."""

    folder: Path
    config_file: str = "config.yaml"

    @property
    def config(self):
        """The config as fathom reads it, with an absolute path to the results."""
        files = dict.fromkeys([self.folder / "config.yaml", self.folder / self.config_file])
        return load_config(list(files), {"results": str(self.results)})

    @property
    def results(self):
        return self.folder / read_yaml(self.folder / self.config_file)["results"]

    def start(self, *arguments):
        """Start `python ARGUMENTS` in a new process group, to be killed with all its jobs."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell makes its background processes ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments):
        """(exit status, output) of `python ARGUMENTS`, run to its end."""
        process = self.start(*arguments)
        printed, _ = process.communicate(timeout=SECONDS)
        return process.returncode, printed

    def train_all(self, *arguments):
        """Train all remaining cells, without an error."""
        status, printed = self.run("-m", "fathom_study", "train-all", *arguments)
        assert status == 0, printed
        return printed

    def cell_folder(self, cell):
        return run_folder(self.results, cell)

    def validate(self, cell):
        return validate_run(self.cell_folder(cell), self.config.spec(cell))

    def manifest(self, cell):
        return read_manifest(self.cell_folder(cell))

    def numbers(self, cell):
        return numbers_of(self.cell_folder(cell))

    def tables(self):
        """Every table by name, as rows of text, without the times."""
        folder = self.results / "tables"
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        return {str(f.relative_to(folder)): without_times(read_csv(f)) for f in files}


def tiny_project(folder, results="results", checkpoint_steps=10, **study):
    """A project with one cell for each backend, to be trained by `train-all`."""
    data = {
        "results": str(results),
        "studies": {"small": {**STUDY, **study}},
        "compute": {"device": "cpu", "checkpoint_steps": checkpoint_steps},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(data), encoding="utf-8")
    return Project(folder)


def whole_project(folder):
    """A copy of the real project, with a small grid of its own, for Snakemake."""
    study = {
        **{k: STUDY[k] for k in ("variants", "depths", "batch_size", "model")},
        "steps": 100, "seeds": [0, 1], "exclude": [],
    }  # fmt: skip
    compute = {"device": "cpu", "checkpoint_steps": 10}
    copy_project(
        folder,
        only({"depth-mlx": study}, results="results/faults", reference=None, compute=compute),
    )
    return Project(folder, "grid.yaml")


def the_cell(project):
    """The one cell of a project."""
    (cell,) = project.config.cells()
    return cell


def quickest_backend():
    """The backend for tests that need any: MLX starts in less than half the time of PyTorch."""
    installed = installed_backends()
    return "mlx" if "mlx" in installed else installed[0]


def kill(process):
    """Send SIGKILL to a process and every job that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=SECONDS)
