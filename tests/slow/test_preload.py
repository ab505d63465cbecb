"""A job in a preloaded process ends like a job that loads the framework itself."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fathom_study import preload
from fathom_study.config import installed_backends
from tests.support.commands import finished, wait_until
from tests.support.runs import numbers_of, read_manifest
from tests.support.specs import make_spec

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks a loaded framework"),
    pytest.mark.skipif(not installed_backends(), reason="neither torch nor mlx is installed"),
]

COMPUTE = '{"device": "cpu", "checkpoint_steps": 10}'


@contextmanager
def started():
    """(process that started preloaded processes as the workflow does, their folder)."""
    program = (
        "import os, sys; from fathom_study import preload;"
        f"preload.start({installed_backends()!r}, 'auto');"
        "print(os.environ[preload.FOLDER], flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True
    ) as process:
        yield process, Path(process.stdout.readline().strip())


@pytest.fixture(scope="module")
def shared():
    """Preloaded processes for all tests that leave them alive: one per framework."""
    with started() as server:
        yield server


@pytest.fixture
def sockets(shared, monkeypatch):
    """The folder of the shared preloaded processes, which jobs find."""
    _, folder = shared
    monkeypatch.setenv(preload.FOLDER, str(folder))
    return folder


@pytest.fixture
def keeper(monkeypatch):
    """(process, folder) of preloaded processes for a test of their end."""
    with started() as (process, folder):
        monkeypatch.setenv(preload.FOLDER, str(folder))
        yield process, folder


@pytest.fixture
def spec():
    """A spec of the backend that starts fastest: mlx, if it is installed."""
    return make_spec(backend=min(installed_backends()))


def command(spec, folder):
    job = ["-m", "fathom_study", "job", spec.json(), "--out", str(folder), "--compute", COMPUTE]
    return [sys.executable, *job]


def train(spec, folder):
    return finished(*command(spec, folder))


def environment(folder):
    manifest = read_manifest(folder)
    return {name: manifest[name] for name in ("code", "git", "device", "threads", "numpy")}


def loaded(folder, backend):
    """Whether the preloaded process of a backend has loaded it: more than 50 MB in memory."""
    (process,) = processes_naming(f"{folder}/{backend}")
    return process.memory_info().rss > 50e6


def processes_naming(text):
    """All processes with a text in their command line."""
    every = psutil.process_iter(["cmdline"])
    return [process for process in every if text in " ".join(process.info["cmdline"] or ())]


@pytest.mark.parametrize("name", installed_backends())
def test_preloaded_run_equals_the_run_of_a_new_process(sockets, tmp_path, monkeypatch, name):
    spec = make_spec(backend=name)
    result = train(spec, tmp_path / "preload")
    assert result.returncode == 0, result.stderr
    assert loaded(sockets, name)  # so the job itself did not train
    assert "step 3/3" in result.stderr

    # In a new process: modules loaded before MLX decide its BLAS, and so the last digits.
    monkeypatch.delenv(preload.FOLDER)
    assert train(spec, tmp_path / "own").returncode == 0
    assert numbers_of(tmp_path / "preload") == numbers_of(tmp_path / "own")
    assert environment(tmp_path / "preload") == environment(tmp_path / "own")

    (process,) = processes_naming(f"{sockets}/{name}")
    assert process.num_threads() == 1  # a fork keeps no other thread


@pytest.fixture
def long_job(sockets, spec, tmp_path):
    """(job in the middle of its training, path that names its preloaded process)."""
    job = subprocess.Popen(
        command(spec.model_copy(update={"steps": 100_000}), tmp_path),
        stderr=subprocess.PIPE, text=True,
        # Tests that a shell started in the background ignore Ctrl-C, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    wait_until(lambda: list(tmp_path.glob(".partial/*")), seconds=30)
    return job, f"{sockets}/{spec.backend}"


def test_killing_a_job_ends_its_training(long_job, spec, tmp_path):
    job, naming = long_job
    assert len(processes_naming(naming)) == 2  # the preloaded process and its fork
    job.kill()
    job.communicate()
    wait_until(lambda: len(processes_naming(naming)) == 1, seconds=30)
    assert train(spec, tmp_path / "next").returncode == 0  # and the preloaded process goes on


def test_killing_a_training_fails_its_job(long_job):
    job, naming = long_job
    max(processes_naming(naming), key=psutil.Process.create_time).kill()
    _, printed = job.communicate(timeout=30)
    assert job.returncode == preload.KILLED
    assert "ended unexpectedly" in printed


def test_ctrl_c_is_one_line_and_ends_the_training_too(long_job):
    job, naming = long_job
    job.send_signal(signal.SIGINT)
    _, printed = job.communicate(timeout=30)
    assert job.returncode == 130
    assert "Traceback" not in printed
    assert printed.splitlines()[-1].startswith("fathom: interrupted")
    wait_until(lambda: len(processes_naming(naming)) == 1, seconds=30)


@pytest.mark.parametrize("end", ["leaves", "is killed"])
def test_preloaded_processes_end_with_their_parent(keeper, spec, tmp_path, end):
    process, folder = keeper
    assert train(spec, tmp_path).returncode == 0
    if end == "leaves":
        process.stdin.close()
    else:
        process.kill()
    wait_until(lambda: not processes_naming(str(folder)))
    assert not folder.exists()


def test_internal_error_prints_a_traceback(monkeypatch, capsys):
    """A job whose process ends without an answer would be reported as killed."""
    monkeypatch.setattr("fathom_study.cli.main", lambda arguments: 1 / 0)
    assert preload.status_of(["job"]) == 1
    assert capsys.readouterr().err.endswith("ZeroDivisionError: division by zero\n")
