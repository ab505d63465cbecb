"""A Slurm cluster of this one machine, as long as standard input stays open.

    python single_node.py FOLDER

Keys, settings, state and logs are in FOLDER. Prints "ready" when the node takes jobs. When standard
input is closed, also by the death of the process that started this one, everything that works in
FOLDER ends: the daemons, jobs, and workflows that submit them. Then FOLDER is removed.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

PROGRAM = Path(__file__)
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
SECONDS = 60
"""Timeout of a daemon's start and end; only one that hangs exceeds it."""

# No accounting, no cgroups. Two partitions; `main` is the default. A job is a group of processes:
# a tree (proctrack/linuxproc) loses processes that outlive their shell, such as a Snakemake that
# is told to end while it holds the lock that its signal handler takes. Ended jobs stay listed for
# longer than the tests last (MinJobAge, seconds), as nothing else records them.
SETTINGS = """\
ClusterName=tested
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=2
MinJobAge=7200
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=64000
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=other Nodes={host} MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Programs of Slurm and munge that are not installed."""
    return [name for name in NEEDED if not path_of(name)]


def path_of(name: str) -> str | None:
    """The path of a program; daemons lie in folders outside the PATH of some users."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def start(folder: Path) -> list[subprocess.Popen]:
    """Start the daemons; their node takes jobs a moment later."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    settings = SETTINGS.format(
        folder=folder, host=host, user=getpass.getuser(), ports=free_ports(2)
    )
    (folder / "slurm.conf").write_text(settings)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    # Snakemake hides SLURM_CONF, like all SLURM variables, from the srun in its jobs.
    srun = folder / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {path_of("srun")} "$@"\n')
    srun.chmod(0o755)
    files = {"key": "key", "log": "log", "pid": "pid", "seed": "seed"}
    options = [f"--{name}-file={folder}/munge.{end}" for name, end in files.items()]
    munge = daemon(folder, "munged", "-F", f"--socket={folder}/munge.socket", *options)
    wait_until((folder / "munge.socket").exists, [munge])
    slurm = [daemon(folder, name, "-D") for name in ("slurmctld", "slurmd")]
    return [munge, *slurm]


def daemon(folder: Path, name: str, *options: str) -> subprocess.Popen:
    """Start a daemon in the foreground, so that the returned process is its own."""
    with (folder / f"{name}.out").open("wb") as out:
        return subprocess.Popen(
            [path_of(name), *options], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )


def takes_jobs() -> bool:
    """Whether the one node is idle."""
    command = ("sinfo", "--noheader", "--partition=main", "--format=%T")
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return asked.stdout.strip() == "idle"


def wait_until(condition: Callable[[], bool], daemons: list[subprocess.Popen]) -> None:
    """Wait for a condition. Raises RuntimeError if a daemon ends, or after SECONDS."""
    end = time.monotonic() + SECONDS
    while not condition():
        ended = [daemon.args[0] for daemon in daemons if daemon.poll() is not None]
        if ended or time.monotonic() > end:
            raise RuntimeError(f"ended: {ended}" if ended else f"nothing after {SECONDS} s")
        time.sleep(0.1)


def working_in(folder: Path) -> list[psutil.Process]:
    """The other processes whose working folder is this one or lies in it."""
    return [
        process
        for process in psutil.process_iter(["cwd"])  # None: of another user
        if process.pid != os.getpid() and Path(process.info["cwd"] or "").is_relative_to(folder)
    ]


def end_all(folder: Path) -> None:
    """Send SIGKILL to all processes in the folder. Raises RuntimeError if one survives."""
    end = time.monotonic() + SECONDS
    while processes := working_in(folder):
        if time.monotonic() > end:
            raise RuntimeError(f"processes {processes} do not end")
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                process.kill()
        time.sleep(0.1)


def main() -> None:
    """Run the cluster, and show the end of its logs if it does not start."""
    folder = Path(sys.argv[1]).resolve()
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    try:
        wait_until(takes_jobs, start(folder))
        print("ready", flush=True)
        sys.stdin.read()
    except RuntimeError:
        for file in sorted([*folder.glob("*.out"), *folder.glob("*.log")]):
            print(f"--- {file.name}", file.read_text()[-1000:], sep="\n", file=sys.stderr)
        raise
    finally:
        end_all(folder)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
