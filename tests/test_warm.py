"""A job that a warm process does for it ends as one that loads the framework itself."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fathom import warm
from fathom.study import installed_backends

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks a loaded framework"),
    pytest.mark.skipif(not installed_backends(), reason="neither torch nor mlx is installed"),
]

COMPUTE = '{"device": "cpu", "checkpoint_steps": 10}'


@pytest.fixture
def keeper(monkeypatch):
    """A process that started warm processes, as the workflow does; (process, their folder)."""
    program = (
        "import os, sys; from fathom import warm;"
        f"warm.start({installed_backends()!r}, 1, 'auto');"
        "print(os.environ[warm.FOLDER], flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = process.stdout.readline().strip()
    monkeypatch.setenv(warm.FOLDER, folder)
    yield process, Path(folder)
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.fixture(params=installed_backends())
def spec(request, make_spec):
    return make_spec(backend=request.param)


def command(spec, folder):
    job = ["-m", "fathom", "job", spec.json(), "--out", str(folder), "--compute", COMPUTE]
    return [sys.executable, *job]


def train(spec, folder):
    return subprocess.run(command(spec, folder), capture_output=True, text=True, check=False)


def numbers(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(x).items() if "seconds" not in k} for x in lines]


def environment(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    return {name: manifest[name] for name in ("code", "git", "device", "threads", "numpy")}


def loaded(folder, backend):
    """Whether the warm process of a backend has loaded it: it then holds far more memory."""
    (process,) = processes_naming(f"{folder}/{backend}")
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") > 50e6


def processes_naming(text):
    """Every process with a text in its command line."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            pass  # gone
    return found


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_run_is_the_one_of_a_job_that_loads_the_framework_itself(
    keeper, spec, tmp_path, monkeypatch
):
    _, folder = keeper
    assert not loaded(folder, spec.backend)
    result = train(spec, tmp_path / "warm")
    assert result.returncode == 0, result.stderr
    assert loaded(folder, spec.backend)  # so it was not the job itself that trained
    assert "step 3/3" in result.stderr

    monkeypatch.delenv(warm.FOLDER)
    assert train(spec, tmp_path / "cold").returncode == 0
    assert numbers(tmp_path / "warm") == numbers(tmp_path / "cold")
    assert environment(tmp_path / "warm") == environment(tmp_path / "cold")


def test_an_error_is_the_jobs_own(keeper, spec, tmp_path):
    (tmp_path / "file").write_text("")
    result = train(spec, tmp_path / "file/run")
    assert result.returncode == 1
    assert result.stderr.startswith("fathom: ")
    assert "Not a directory" in result.stderr


def test_a_job_that_is_killed_takes_its_training_along(keeper, spec, tmp_path):
    _, folder = keeper
    long = spec.model_copy(update={"steps": 100_000})
    job = subprocess.Popen(command(long, tmp_path), stderr=subprocess.DEVNULL)
    wait_until(lambda: list(tmp_path.glob(".partial/*")))
    naming = f"{folder}/{spec.backend}"
    assert len(processes_naming(naming)) == 2  # the warm process and its fork
    job.kill()
    job.wait()
    wait_until(lambda: len(processes_naming(naming)) == 1)
    assert train(spec, tmp_path / "next").returncode == 0  # and the warm process goes on


def test_a_training_that_is_killed_fails_its_job(keeper, spec, tmp_path):
    _, folder = keeper
    long = spec.model_copy(update={"steps": 100_000})
    job = subprocess.Popen(command(long, tmp_path), stderr=subprocess.PIPE, text=True)
    wait_until(lambda: list(tmp_path.glob(".partial/*")))
    fork = max(processes_naming(f"{folder}/{spec.backend}"))
    os.kill(fork, signal.SIGKILL)
    _, printed = job.communicate(timeout=30)
    assert job.returncode == 1
    assert "ended unexpectedly" in printed


def test_the_process_that_forks_has_one_thread(keeper, spec, tmp_path):
    _, folder = keeper
    assert train(spec, tmp_path).returncode == 0
    (process,) = processes_naming(f"{folder}/{spec.backend}")
    assert len(list(Path(f"/proc/{process}/task").iterdir())) == 1


@pytest.mark.parametrize("end", ["leaves", "is killed"])
def test_the_warm_processes_end_with_the_one_that_started_them(keeper, spec, tmp_path, end):
    process, folder = keeper
    assert train(spec, tmp_path).returncode == 0
    if end == "leaves":
        process.stdin.close()
    else:
        process.kill()
    wait_until(lambda: not processes_naming(str(folder)))
    assert not folder.exists()


def test_a_job_whose_warm_process_is_gone_trains_by_itself(keeper, spec, tmp_path):
    process, folder = keeper
    process.stdin.close()
    wait_until(lambda: not folder.exists())
    assert train(spec, tmp_path).returncode == 0
    assert len(numbers(tmp_path)) == 3


def test_where_no_socket_can_be_made_jobs_train_by_themselves(spec, tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100) / ("e" * 100)  # a socket's path has 108 bytes at most
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setenv(warm.FOLDER, "")  # so that it is as before afterwards
    warm.start([spec.backend], 1, "auto")
    assert Path(os.environ[warm.FOLDER]).parent == deep
    assert train(spec, tmp_path / "run").returncode == 0


def test_jobs_of_several_threads_get_no_warm_process(monkeypatch):
    monkeypatch.delenv(warm.FOLDER, raising=False)
    warm.start(installed_backends(), 2, "auto")
    assert warm.FOLDER not in os.environ


def test_without_a_warm_process_nothing_is_delegated(spec, monkeypatch):
    monkeypatch.delenv(warm.FOLDER, raising=False)
    assert warm.delegate(["job", spec.json()]) is None


@pytest.mark.parametrize("arguments", [["job"], ["job", "{"], ["job", "[]"], ["job", "{}"]])
def test_a_spec_that_cannot_be_read_is_left_to_the_job(keeper, arguments):
    assert warm.delegate(arguments) is None
