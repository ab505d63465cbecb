"""The workflow on a real Slurm cluster of one node, with the project's own profile.

One workflow is interrupted, started again, loses its jobs, and makes the tables and reports of a
local one. The cluster has no accounting and no GPUs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from fathom_study.config import installed_backends
from tests.cluster.single_node import working_in
from tests.support.commands import wait_until
from tests.support.project import copy_project, only
from tests.support.runs import read_csv, read_manifest, without_times

pytestmark = [
    pytest.mark.skipif("torch" not in installed_backends(), reason="torch is not installed"),
    pytest.mark.skipif(
        find_spec("snakemake_executor_plugin_slurm") is None,
        reason="snakemake-executor-plugin-slurm is not installed",
    ),
]

STEPS = 800
GRID = only(
    {
        "depth-mlx": {
            "variants": ["hc", "mhc"], "depths": [2], "seeds": [0], "backends": ["torch"],
            "exclude": [],
        },
        "depth-torch": {"steps": STEPS, "backends": ["torch"]},
    },
    compute={"checkpoint_steps": 20},
)  # fmt: skip
"""A cut of the smoke preset; the one cell of depth-torch is long enough to be killed."""

LONG = "depth-torch/2L/mhc/torch/seed0"
ALL = ("tables", "report", "--configfile", ".test/config/config.yaml", "grid.yaml")
ON_THE_CLUSTER = (
    "--workflow-profile", "slurm", "--group-components", "cells=2",
    "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "1",
    "--latency-wait", "5",  # one disk; a job that is cancelled may wait this long for its files
)  # fmt: skip
SECONDS = 300
"""Timeout of every wait; only a process that hangs exceeds it."""


@dataclass
class Workflow:
    folder: Path
    environment: dict[str, str]

    def start(self, *arguments):
        log = (self.folder / "log").open("ab")
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *ALL, *arguments],
            cwd=self.folder, env=self.environment, stdout=log, stderr=log,
            # Background processes of a shell ignore Ctrl-C, which these tests send.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def finish(self, process):
        assert process.wait(timeout=SECONDS) == 0, self.log()

    def log(self):
        """Output of Snakemake, then the logs of the Slurm jobs, which train the cells."""
        jobs = sorted(self.folder.glob(".snakemake/slurm_logs/*/*.log"))
        return "\n".join(
            f"== {file.relative_to(self.folder)}\n{file.read_text()}"
            for file in (self.folder / "log", *jobs)
        )

    @property
    def results(self):
        return self.folder / "results/smoke"

    def run(self, cell):
        return self.results / "runs" / cell

    def wait_for_checkpoint(self, process):
        """Wait until the long cell writes a new checkpoint."""
        since, end = time.time(), time.monotonic() + SECONDS
        while not self.last_checkpoint() > since:
            assert process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def last_checkpoint(self):
        try:
            return (self.run(LONG) / ".partial/checkpoint.safetensors").stat().st_mtime
        except FileNotFoundError:
            return 0.0


def copy_of_project(folder, environment):
    copy_project(folder, GRID)
    return Workflow(folder, environment)


@pytest.fixture(scope="module")
def workflow(cluster):
    """Workflow on the cluster; it asks for another partition than the default."""
    folder = cluster.folder / "project"
    folder.mkdir()
    return copy_of_project(folder, {**cluster.environment, "SBATCH_PARTITION": "other"})


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """(workflow, process) of a local run, at the same time as those on the cluster."""
    workflow = copy_of_project(tmp_path_factory.mktemp("local"), dict(os.environ))
    process = workflow.start("--workflow-profile", "ci", "--cores", "1")
    yield workflow, process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def interrupted(cluster, workflow):
    """Send Ctrl-C while a cell trains. Returns the submitted jobs; none is left."""
    process = workflow.start(*ON_THE_CLUSTER)
    workflow.wait_for_checkpoint(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=SECONDS) != 0
    # Slurm gives jobs a moment to end.
    wait_until(lambda: not cluster.waiting_or_running(), seconds=60)
    wait_until(lambda: not working_in(workflow.folder), seconds=60)
    return cluster.submitted()


@pytest.fixture(scope="module")
def finished(cluster, workflow, interrupted, local):
    """Run the same command again and cancel its jobs once. Returns the submitted jobs."""
    process = workflow.start(*ON_THE_CLUSTER)
    workflow.wait_for_checkpoint(process)
    cluster.ask("scancel", *cluster.waiting_or_running())
    workflow.finish(process)
    return cluster.submitted()[len(interrupted) :]


def test_cells_share_jobs_whose_time_limits_add_up(interrupted):
    """config.yaml asks for 10 minutes, 2000 MB and a CPU for each cell."""
    asked = sorted(
        (job["TimeLimit"], job["MinMemoryNode"], job["NumCPUs"], job["Partition"])
        for job in interrupted
    )
    assert asked == [("00:10:00", "2000M", "1", "other"), ("00:20:00", "2000M", "1", "other")]


def test_cancelled_jobs_run_again_and_resume_from_their_checkpoint(workflow, finished):
    states = [job["JobState"] for job in finished]
    assert "CANCELLED" in states
    assert states[-1] == "COMPLETED"
    first, second = read_manifest(workflow.run(LONG))[
        "resumed_at_steps"
    ]  # after Ctrl-C, and after scancel
    assert 0 < first < second < STEPS


def test_tables_and_reports_equal_a_local_run(workflow, finished, local):
    """Equal bytes of reports and learned numbers, equal columns of rows except times."""
    there, process = local
    there.finish(process)
    names = files_of(there)
    assert files_of(workflow) == names
    assert {"RESULTS.md", "COMPARISON.md", "tables/cells.csv", "tables/claims.csv"} <= set(names)
    for name in names:
        assert content(workflow.results / name) == content(there.results / name), name


def files_of(workflow):
    """Tables, reports, and the runs that they were made from.

    Manifests are left out, since they say when and how often a training ran and how much memory it
    used; so are verdicts, since they name a manifest by its hash.
    """
    patterns = ("*.md", "studies/*.md", "tables/*.csv*", "tables/studies/*/*", "runs/*/*/*/*/*/*")
    result = [file for pattern in patterns for file in workflow.results.glob(pattern)]
    left_out = ("manifest.json", "verdict.json")
    return sorted(str(f.relative_to(workflow.results)) for f in result if f.name not in left_out)


def content(file):
    if file.suffix == ".jsonl":
        return without_times(map(json.loads, file.read_text().splitlines()))
    return without_times(read_csv(file)) if ".csv" in file.name else file.read_bytes()
