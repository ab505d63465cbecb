"""Preloaded processes that fork for every job.

Loading PyTorch takes longer than training a small cell, and loading matplotlib as long as a figure.
So a workflow on one Linux machine starts a process for each backend and one for reports. A fork of
such a process does the work of a job:

    snakemake ── fathom job ──(socket)── loaded process
                                              └── fork: works, prints to the job's own log

The job waits for the fork and exits with its status. If the job is killed, the fork ends. If the
workflow is killed, the loaded process's standard input is closed, and it ends. A job that finds no
loaded process loads everything itself, with the same results. This module imports only the
standard library, because the process of a job has to start quickly.

This works only on Linux and for jobs of one thread (`Compute.shares_process`): a fork keeps only
the thread that forked, and no backend starts threads on import for such jobs.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

FOLDER = "FATHOM_PRELOAD"
"""Environment variable: folder of the sockets, each named after its backend or REPORTS."""

REPORTS = "reports"
"""Name of the process for the commands in OF_REPORTS."""
OF_REPORTS = (
    "tables", "claims", "figures", "overview-figures", "cell-figures", "report", "page", "paper",
    "verify",
)  # fmt: skip
MODULES = (
    "fathom_study.report.drawing.draw", "fathom_study.report.pages.render",
    "fathom_study.report.integrity.verify", "fathom_study.report.pages.paper",
    "fathom_study.report.pages.sections",
    "fathom_study.analysis.attribution", "fathom_study.analysis.effects",
    "fathom_study.analysis.effective_depth",
    "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "vl_convert", "typst",
    "scipy.stats",
)  # fmt: skip
"""Modules that the process for reports loads, if installed."""

DELEGATED = ("job", "replay", *OF_REPORTS)
"""Commands that look for a loaded process."""

MESSAGE_BYTES = 1 << 20
ACCEPTED, STARTED = b"accepted", b"started"

KILLED = 128 + 9
"""Exit status of a job whose fork ended without one, the same as of a killed process."""

ANSWER_SECONDS, LOADING_SECONDS = 10, 60
"""Maximum seconds that a job waits to be accepted, and then for the framework to be loaded."""


# --- the workflow's side -----------------------------------------------------------------------


def start(backends: Sequence[str], mlx_blas: str) -> None:
    """Start a process for each backend, and one for reports, for later jobs to find.

    They load nothing until the first job connects, and end with the calling process, even if it is
    killed.
    """
    folder = tempfile.mkdtemp(prefix="fathom-")  # accessible to this user only
    os.environ[FOLDER] = folder
    for name in (*backends, REPORTS):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(f"{folder}/{name}")
            except OSError:  # such as a path too long for a socket: jobs will find none
                continue
            listener.listen(128)
            watched, _ = os.pipe()  # its other end is closed when this process ends
            arguments = (f"{folder}/{name}", str(listener.fileno()), mlx_blas)
            source = str(Path(__file__).parents[1])
            path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
            subprocess.Popen(
                [sys.executable, "-m", "fathom_study.preload", *arguments],
                stdin=watched,
                pass_fds=[listener.fileno()],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C reaches only the jobs
            )
            os.close(watched)


# --- the job's side ----------------------------------------------------------------------------


def run_job(arguments: Sequence[str]) -> NoReturn:
    """Run one of the DELEGATED commands in a fork of a loaded process, or else here; then exit."""
    status = delegate(arguments)
    leave(run() if status is None else status)


def delegate(arguments: Sequence[str]) -> int | None:
    """Run one of the DELEGATED commands in a fork of a loaded process; returns its exit status.

    Returns None, with nothing done, if there is no such process.
    """
    request = {
        "arguments": list(arguments),
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(f"{os.environ[FOLDER]}/{process_for(arguments)}")
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
            if connection.recv(len(ACCEPTED)) != ACCEPTED:
                return None
            connection.settimeout(LOADING_SECONDS)
            if connection.recv(len(STARTED)) != STARTED:
                return None
            connection.settimeout(None)
        except (OSError, LookupError, ValueError, TypeError):
            # There is no process, it has ended or does not answer; the environment is too long for
            # a message; or the spec cannot be read, which the job will report.
            return None
        status = connection.recv(1)
    if not status:
        print("fathom: the loaded process has ended unexpectedly", file=sys.stderr)
    return status[0] if status else KILLED


def process_for(arguments: Sequence[str]) -> str:
    """Name of the process for a command. Raises LookupError or ValueError if there is none."""
    command, *rest = arguments
    if command in OF_REPORTS:
        return REPORTS
    return rest[0] if command == "replay" else json.loads(rest[0])["backend"]


# --- the loaded process --------------------------------------------------------------------------


def main() -> None:
    """Run the loaded process: `fathom_study.preload SOCKET LISTENER MLX_BLAS`.

    LISTENER is the file descriptor of the listening socket.
    """
    address, listener, mlx_blas = Path(sys.argv[1]), *sys.argv[2:]
    with socket.socket(fileno=int(listener)) as listening:
        job = serve(listening, address.name, mlx_blas)
    if job is not None:
        serve_job(job)
    address.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another backend's process still uses it, or has removed it
        address.parent.rmdir()


@cache  # once
def load(name: str, mlx_blas: str) -> None:
    """Load the modules that jobs of a backend, or commands of reports, need."""
    if name == REPORTS:
        for module in MODULES:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module)
    else:
        load_backend(name, mlx_blas)
    gc.freeze()  # forks share pages that the garbage collector does not touch


def load_backend(backend: str, mlx_blas: str) -> None:
    """Load the modules that training needs, and compute their code hashes."""
    from fathom.arithmetic import loops
    from fathom_study import backends, tasks
    from fathom_study.runs import code_hash, progress, training  # noqa: F401

    backends.load(backend, threads=1, mlx_blas=mlx_blas)
    loops.load()
    for task in tasks.TASKS:
        tasks.load(task)
    rooms = ("fathom_study.tasks.", "fathom_study.models.", "fathom.connections.")
    learned = (name for name in sys.modules if name.startswith(rooms))
    code_hash.module_hashes("fathom_study.train", f"fathom_study.backends.{backend}", *learned)


def serve(listener: socket.socket, name: str, mlx_blas: str) -> socket.socket | None:
    """Fork for every connection until standard input is closed; the first one loads everything.

    Returns the connection in a fork, and None in the process itself at the end.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the forks
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        connection, _ = listener.accept()
        with contextlib.suppress(OSError):  # the job was killed
            connection.send(ACCEPTED)
        load(name, mlx_blas)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return connection
        connection.close()


def serve_job(job: socket.socket) -> NoReturn:
    """Run the command of the job at the other end of the socket; exit then, or when it ends."""
    message, descriptors, _, _ = socket.recv_fds(job, MESSAGE_BYTES, 3)
    request = json.loads(message)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    try:
        job.send(STARTED)
    except OSError:  # the job was killed, or has given up
        leave(1)
    threading.Thread(target=_end_with, args=[job], daemon=True).start()
    status = run()
    flush()  # the job closes its end once it has the status
    job.send(bytes([status]))
    leave(status)


def _end_with(job: socket.socket) -> None:
    """Exit when the job closes its end of the socket, which means that it was killed."""
    with contextlib.suppress(OSError):
        job.recv(1)
    os._exit(1)


# --- both --------------------------------------------------------------------------------------


def run() -> int:
    """Run this process's command; returns its exit status."""
    from fathom_study import cli

    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001, any error, reported as Python itself does
        traceback.print_exc()
        return 1
    return 0


def leave(status: int) -> NoReturn:
    """Exit at once: unloading a framework in good order takes half a second."""
    flush()
    os._exit(status)


def flush() -> None:
    """Flush standard output and standard error."""
    sys.stdout.flush()
    sys.stderr.flush()


if __name__ == "__main__":
    main()
