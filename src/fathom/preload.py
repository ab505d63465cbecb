"""Processes that have a framework loaded, and fork for every job that asks.

Loading PyTorch takes longer than a small cell trains. So a workflow on one Linux machine starts a
process for each backend, and a job lets a fork of it do the work:

    snakemake ── fathom job ──(socket)── loaded process
                                              └── fork: trains, prints to the job's own log

The job waits, and ends with the fork's exit status. Whoever kills the job ends the fork; whoever
kills the workflow closes the loaded process's standard input, at which it ends. A job that finds no
loaded process loads the framework itself: the results are the same, so it is only ever a matter of
time. Standard library only, for the job's own process is to start quickly.

Only on Linux, and for jobs of one thread: nothing that a backend loads then starts a thread before
it computes, and a fork keeps no thread but the one that forked.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

FOLDER = "FATHOM_PRELOAD"
"""Environment variable: where the sockets are, one for each backend, named after it."""

MESSAGE_BYTES = 1 << 20
STARTED = b"started"


# --- the workflow's side -----------------------------------------------------------------------


def start(backends: Sequence[str], threads: int, mlx_blas: str) -> None:
    """Start a process for each backend; jobs started from here on will find them.

    They load nothing until the first job asks, and end when the calling process does, however it
    does. Does nothing on systems other than Linux, nor for jobs of several threads.
    """
    if sys.platform != "linux" or threads > 1:
        return
    folder = tempfile.mkdtemp(prefix="fathom-")  # nobody else can enter it
    os.environ[FOLDER] = folder
    for backend in backends:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(f"{folder}/{backend}")
            except OSError:  # a path too long for a socket, say: jobs will find none
                continue
            listener.listen(128)
            watched, _ = os.pipe()  # whose other end is closed by the end of this process alone
            arguments = (f"{folder}/{backend}", str(listener.fileno()), mlx_blas)
            source = str(Path(__file__).parents[1])
            subprocess.Popen(
                [sys.executable, "-m", "fathom.preload", *arguments],
                stdin=watched,
                pass_fds=[listener.fileno()],
                env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the jobs
            )
            os.close(watched)


# --- the job's side ----------------------------------------------------------------------------


def run_job(arguments: Sequence[str]) -> NoReturn:
    """Run the command `job SPEC …` where its framework is loaded already, or else here; exit."""
    status = delegate(arguments)
    leave(run() if status is None else status)


def delegate(arguments: Sequence[str]) -> int | None:
    """Let a fork of the loaded process run the command `job SPEC …`; its exit status.

    None where there is no such process, and nothing has been done.
    """
    folder = os.environ.get(FOLDER)
    backend = _backend_of(arguments)
    if folder is None or backend is None:
        return None
    request = {
        "arguments": list(arguments),
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(f"{folder}/{backend}")
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
            if connection.recv(len(STARTED)) != STARTED:
                return None
        except OSError:  # it has ended, or the environment does not fit into a message
            return None
        status = connection.recv(1)
    if not status:
        print("fathom: the process that trained has ended unexpectedly", file=sys.stderr)
    return status[0] if status else 1


def _backend_of(arguments: Sequence[str]) -> str | None:
    """The backend in `job SPEC …`; None if the spec cannot be read, which the job will report."""
    try:
        return str(json.loads(arguments[1])["backend"])
    except (IndexError, ValueError, TypeError, KeyError, RecursionError):
        return None


# --- the loaded process --------------------------------------------------------------------------


def main() -> None:
    """The loaded process: `fathom.preload SOCKET LISTENER MLX_BLAS`.

    LISTENER is the file descriptor that listens at the socket.
    """
    address, listener, mlx_blas = Path(sys.argv[1]), *sys.argv[2:]
    with socket.socket(fileno=int(listener)) as listening:
        job = serve(listening, lambda: load(address.name, mlx_blas))
    if job is not None:
        take_the_place_of(job)
    address.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another backend's process is still there, or was faster
        address.parent.rmdir()


def load(backend: str, mlx_blas: str) -> None:
    """Load what a job of the backend needs, and note the hashes of that very code."""
    from fathom import backends, tasks
    from fathom.runs import progress, provenance, training  # noqa: F401

    backends.load(backend, threads=1, mlx_blas=mlx_blas)
    for task in tasks.TASKS:
        tasks.load(task)
    provenance.definition_hashes("fathom.train", f"fathom.backends.{backend}")
    gc.freeze()  # forks share the memory of what nobody touches


def serve(listener: socket.socket, load: Callable[[], None]) -> socket.socket | None:
    """Fork for every connection until standard input is closed, then return None.

    In a fork, return its connection.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for forks
    loaded = False
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        connection, _ = listener.accept()
        if not loaded:
            load()
            loaded = True
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return connection
        connection.close()


def take_the_place_of(job: socket.socket) -> NoReturn:
    """Run what the job at the other end was asked to, and end when it ends."""
    message, descriptors, _, _ = socket.recv_fds(job, MESSAGE_BYTES, 3)
    request = json.loads(message)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    job.send(STARTED)
    threading.Thread(target=_end_with, args=[job], daemon=True).start()
    status = run()
    job.send(bytes([status]))
    leave(status)


def _end_with(job: socket.socket) -> None:
    """Wait until the job closes its end, which is to be killed: it has nothing more to say."""
    with contextlib.suppress(OSError):
        job.recv(1)
    os._exit(1)


# --- both --------------------------------------------------------------------------------------


def run() -> int:
    """The exit status of this process's command, run here."""
    from fathom import cli

    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def leave(status: int) -> NoReturn:
    """Exit at once: to take a framework apart in good order would be half a second more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
