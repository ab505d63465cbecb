"""What the tests of faults share: folders to work in, and commands that can be killed."""

import csv
import functools
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

import fathom
from fathom.config import installed_backends, load_config
from fathom.runs.folder import run_folder
from fathom.runs.validate import validate_run
from run_helpers import TINY

PROJECT = Path(__file__).parents[2]
PACKAGE = Path(fathom.__file__).parent
RUN_FILES = {"spec.json", "metrics.jsonl", "mixing.safetensors", "manifest.json", "verdict.json"}
STUDY = {**TINY, "variants": ["mhc"], "backends": list(installed_backends()), "steps": 600}
SECONDS = 300
"""No command here takes as long, unless it hangs."""


@dataclass
class Project:
    """A folder with a config, in which fathom and Snakemake are called as a user calls them."""

    folder: Path
    config_file: str = "config.yaml"

    @property
    def config(self):
        """As fathom reads it, with results that can be found from any folder."""
        files = dict.fromkeys([self.folder / "config.yaml", self.folder / self.config_file])
        return load_config(list(files), {"results": str(self.results)})

    @property
    def results(self):
        text = (self.folder / self.config_file).read_text(encoding="utf-8")
        return self.folder / yaml.safe_load(text)["results"]

    def start(self, *arguments):
        """`python ARGUMENTS` in a process group of its own, to be killed with all its jobs."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell lets what it starts in the background ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments):
        """(exit status, what was printed) of `python ARGUMENTS`, left to finish."""
        process = self.start(*arguments)
        printed, _ = process.communicate(timeout=SECONDS)
        return process.returncode, printed

    def run_forked(self, *arguments):
        """The same in a fork of a process that has loaded the quickest backend."""
        return server().run(arguments, self.folder)

    def train_all(self, *arguments):
        """Train what is left; nothing may go wrong."""
        status, printed = self.run_forked("-m", "fathom", "train-all", *arguments)
        assert status == 0, printed
        return printed

    def cell_folder(self, cell):
        return run_folder(self.results, cell)

    def validate(self, cell):
        return validate_run(self.cell_folder(cell), self.config.spec(cell))

    def manifest(self, cell):
        return json.loads((self.cell_folder(cell) / "manifest.json").read_text(encoding="utf-8"))

    def numbers(self, cell):
        """The rows of a run, without the times, and its matrices."""
        folder = self.cell_folder(cell)
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        mixing = (folder / "mixing.safetensors").read_bytes()
        return [without_times(json.loads(line)) for line in lines], mixing

    def tables(self):
        """Every table by name, as rows of text, without the times."""
        folder = self.results / "tables"
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        return {str(file.relative_to(folder)): rows_of(file) for file in files}


def without_times(row):
    return {name: value for name, value in row.items() if "seconds" not in name}


def rows_of(table):
    content = table.read_bytes()
    text = (gzip.decompress(content) if table.suffix == ".gz" else content).decode()
    return [without_times(row) for row in csv.DictReader(text.splitlines())]


def tiny_project(folder, results="results", checkpoint_steps=10, **study):
    """A project with one cell for each backend, to be trained by `train-all`."""
    data = {
        "results": str(results),
        "studies": {"small": {**STUDY, **study}},
        "compute": {"device": "cpu", "checkpoint_steps": checkpoint_steps},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return Project(folder)


def whole_project(folder):
    """A copy of the real project, with a small grid of its own, for Snakemake."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "src/fathom", ignore=ignored)
    for part in ("workflow", "report", "envs"):
        shutil.copytree(PROJECT / part, folder / part, ignore=ignored)
    shutil.copy(PROJECT / "config.yaml", folder)
    study = {
        **{k: STUDY[k] for k in ("variants", "depths", "batch_size", "model")},
        "steps": 100,
        "seeds": [0, 1],
    }
    named = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["studies"]
    grid = {
        "results": "results/faults",
        "reference": None,
        "studies": {**dict.fromkeys(named), "depth-mlx": study},
        "compute": {"device": "cpu", "checkpoint_steps": 10},
    }
    (folder / "faults.yaml").write_text(yaml.safe_dump(grid), encoding="utf-8")
    return Project(folder, "faults.yaml")


class Server:
    """A process that has a backend loaded, and runs one command line after the other."""

    def __init__(self):
        self.output = Path(tempfile.mkdtemp()) / "output"
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forking_server.py"), quickest_backend()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, arguments, folder):
        """(exit status, what was printed), as of `Project.run`."""
        request = {"arguments": arguments, "folder": str(folder), "output": str(self.output)}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        status = int(self.process.stdout.readline())
        return status, self.output.read_text(encoding="utf-8", errors="replace")


@functools.cache
def server():
    """Of this process of pytest; it ends when its standard input is closed, with this one."""
    return Server()


def the_cell(project):
    """The one cell of a project."""
    (cell,) = project.config.cells()
    return cell


def quickest_backend():
    """For what no backend has a part in: MLX starts in less than half the time of PyTorch."""
    installed = installed_backends()
    return "mlx" if "mlx" in installed else installed[0]


def wait_until(condition, process):
    """Wait for something that a process does; fails if it ends before."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.005)


def kill(process):
    """SIGKILL for a process and every job that it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=SECONDS)
