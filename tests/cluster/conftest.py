"""A single-node Slurm cluster for the tests of this folder."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.single_node import PROGRAM, missing_programs


@dataclass
class Cluster:
    folder: Path
    environment: dict[str, str]

    def ask(self, *command):
        """Output of a Slurm command."""
        return subprocess.check_output(command, env=self.environment, text=True)

    def waiting_or_running(self):
        return self.ask("squeue", "--noheader", "--format=%A").split()

    def submitted(self):
        """Fields of every job, also of ended ones, in the order of submission."""
        result = self.ask("scontrol", "show", "jobs", "--oneliner")
        jobs = (line.split() for line in result.splitlines() if line.startswith("JobId="))
        return [dict(word.partition("=")[::2] for word in words) for words in jobs]


@pytest.fixture(scope="session")
def cluster():
    """The cluster; skips where Slurm is not installed."""
    if names := missing_programs():
        pytest.skip(f"not installed: {', '.join(names)} (Debian: slurm-wlm and munge)")
    # Not in pytest's folder: the path of a socket may have 107 characters, and munge requires that
    # other users can reach it.
    folder = Path(tempfile.mkdtemp(prefix="fathom-slurm-"))
    folder.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, PROGRAM, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches pytest alone, which then closes stdin
    )
    try:
        assert process.stdout.readline() == "ready\n"
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        settings = {"PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}
        yield Cluster(folder, {**os.environ, **settings})
    finally:
        process.stdin.close()
        assert process.wait(timeout=120) == 0
    assert not folder.exists()
