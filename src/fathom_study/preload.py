"""Processes that have loaded a framework, and fork for every job.

Loading PyTorch takes longer than training a small cell. So a workflow on one Linux machine starts a
process for each backend, and a fork of it does the work of a job:

    snakemake ── fathom job ──(socket)── loaded process
                                              └── fork: trains, prints to the job's own log

The job waits for the fork and exits with its status. If the job is killed, the fork ends; if the
workflow is killed, the loaded process ends. A job that finds no loaded process trains by itself,
with the same results. This module imports only the standard library, because the process of a job
has to start quickly.

This works only on Linux and for jobs of one thread (`Compute.shares_process`): a fork keeps only
the thread that forked, and no backend starts threads on import for such jobs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

FOLDER = "FATHOM_PRELOAD"
"""Environment variable: folder of the sockets, each named after its backend."""

MESSAGE_BYTES = 1 << 20

KILLED = 128 + 9
"""Exit status of a job whose fork ended without one, the same as of a killed process."""


# --- the workflow's side -----------------------------------------------------------------------


def start(backends: Sequence[str], mlx_blas: str) -> None:
    """Start a process for each backend, for later jobs to find; it ends with this process."""
    folder = tempfile.mkdtemp(prefix="fathom-")  # accessible to this user only
    os.environ[FOLDER] = folder
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    for backend in backends:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(f"{folder}/{backend}")
            except OSError:  # such as a path too long for a socket: jobs will find none
                continue
            listener.listen(128)
            arguments = (listener.getsockname(), listener.fileno(), os.getpid(), mlx_blas)
            subprocess.Popen(
                [sys.executable, "-m", "fathom_study.preload", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C reaches only the jobs
            )


# --- the job's side ----------------------------------------------------------------------------


def run_job(arguments: Sequence[str]) -> int | None:
    """Run `fathom job SPEC …` in a fork of a loaded process: its exit status; None without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(f"{os.environ[FOLDER]}/{json.loads(arguments[1])['backend']}")
            request = json.dumps([list(arguments), str(Path.cwd()), dict(os.environ)])
            socket.send_fds(connection, [request.encode()], [0, 1, 2])
        except (OSError, LookupError, ValueError, TypeError):
            # There is no process, the environment is too long for a message, or the spec cannot be
            # read, which the job will report.
            return None
        status = connection.recv(1)
    if not status:
        print("fathom: the loaded process has ended unexpectedly", file=sys.stderr)
    return status[0] if status else KILLED


# --- the loaded process --------------------------------------------------------------------------


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks for every job; the first one loads the framework."""

    max_children = 1000  # Snakemake limits the jobs at once

    def __init__(self, address: str, listener: int, parent: int, mlx_blas: str) -> None:
        super().__init__(address, Job, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=listener)
        self.parent, self.mlx_blas, self.is_loaded = parent, mlx_blas, False

    def verify_request(self, request: object, client_address: object) -> bool:
        """Load the framework for the first job."""
        if not self.is_loaded:
            load_backend(Path(self.server_address).name, self.mlx_blas)
            gc.freeze()  # forks share pages that the garbage collector does not touch
            self.is_loaded = True
        return True

    def service_actions(self) -> None:
        """Every half second: reap forks, and end if the workflow has ended."""
        super().service_actions()
        if os.getppid() != self.parent:
            raise SystemExit


class Job(socketserver.BaseRequestHandler):
    """A job, in its fork."""

    request: socket.socket

    def handle(self) -> None:
        """Run the command as the process at the other end of the socket, and send its status."""
        message, files, _, _ = socket.recv_fds(self.request, MESSAGE_BYTES, 3)
        if not message:  # the job was killed
            return
        arguments, folder, environment = json.loads(message)
        for standard, file in enumerate(files):
            os.dup2(file, standard)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        threading.Thread(target=self.end_with_job, daemon=True).start()
        self.request.send(bytes([status_of(arguments)]))

    def end_with_job(self) -> None:
        """Exit when the job closes its end of the socket, which means that it was killed."""
        with contextlib.suppress(OSError):
            self.request.recv(1)
        os._exit(1)


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


def status_of(arguments: Sequence[str]) -> int:
    """Run a command of fathom; returns its exit status, with everything printed."""
    from fathom_study import cli

    status = 0
    try:
        cli.main(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001, any error, reported as Python itself does
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def main() -> None:
    """Run the loaded process: `fathom_study.preload SOCKET LISTENER PARENT MLX_BLAS`."""
    address, listener, parent, mlx_blas = sys.argv[1:]
    try:
        Server(address, int(listener), int(parent), mlx_blas).serve_forever()
    finally:
        Path(address).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the other backend's process still uses it
            Path(address).parent.rmdir()


if __name__ == "__main__":
    main()
