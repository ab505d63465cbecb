"""The process of a check that executes a submitted file: contract, counts, one training.

python -m fathom_study.board.child JOB.json

It limits itself before it loads the file. Its parent trusts nothing that it writes.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from fathom.connections.module import OwnCode
from fathom.settings import Number, Positive, Settings, validate
from fathom.system.errors import UserError, fail
from fathom_study.config import Compute, parse_spec, read_yaml
from fathom_study.runs.contract import plain_problem, without_data
from fathom_study.runs.training import run_cell
from fathom_study.system.files import write_json
from fathom_study.tasks import Problem

COUNTS, RUN = "counts.json", "run"
"""Written here: operations and bytes of a step; the folder of the training."""

MEMORY, FILE_SIZE = 16 * 2**30, 2**28
"""Limits, bytes: address space, of which PyTorch reserves a few GB; size of each written file."""


class Counts(Settings):
    """Operations and bytes of a step over the plain network's; null if they cannot be counted."""

    operations: Number | None = None
    bytes: Number | None = None


class Job(Settings):
    """What a child has to do."""

    spec: dict[str, object]
    threads: Positive
    device: str
    data: str
    seconds: Positive
    """Limit of its processor time."""


def limit(job: Job) -> None:
    """Set the limits of this process, which it cannot raise again."""
    seconds = job.seconds * job.threads
    limits = {"RLIMIT_FSIZE": FILE_SIZE, "RLIMIT_CPU": seconds, "RLIMIT_CORE": 0}
    if job.device == "cpu":  # CUDA reserves more addresses than any machine has memory
        limits["RLIMIT_AS"] = MEMORY
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))


def main(file: str) -> None:
    """Do a job, and write its results into this folder."""
    job = validate(Job, read_yaml(file), file)
    limit(job)
    from fathom_study.backends.torch_counting import work_over  # it loads PyTorch

    spec = parse_spec(job.spec, file)
    problem = without_data(Problem(spec))
    with OwnCode(spec.connection.module):
        try:
            operations, of_bytes = work_over(problem, plain_problem(problem))
            counts = Counts(operations=operations, bytes=of_bytes)
        except (RuntimeError, NotImplementedError):  # it reads numbers, which have no count
            counts = Counts()
    write_json(Path(COUNTS), counts.model_dump())
    compute = Compute(data=job.data, device=job.device, threads=job.threads)
    run_cell(spec, Path(RUN), compute)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except UserError as error:
        fail(str(error))
    except MemoryError:
        fail("needs more memory than the limit of the check")
