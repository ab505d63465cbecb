"""Train a cell into its run folder, and evaluate it again."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from filelock import Timeout

import fathom
from fathom.connections.module import own_code
from fathom.system.errors import say
from fathom.system.text import printable
from fathom_study import backends, datasets, tasks
from fathom_study.backends import Backend, memory_errors
from fathom_study.config import Compute, Spec
from fathom_study.runs import code_hash
from fathom_study.runs.checkpoint import Checkpoint
from fathom_study.runs.contract import check_contract
from fathom_study.runs.folder import PARTIAL, RunError, write_run
from fathom_study.runs.training_code import training_code
from fathom_study.runs.validate import receive_run
from fathom_study.system.files import locked
from fathom_study.system.hardware import operating_system, peak_host_memory_bytes, processor
from fathom_study.tasks import Problem
from fathom_study.train import Chunk, take_step, train, trainer_for

ARITHMETIC_VERSION = 9
"""Incremented when a change of our operations alters only last digits.

2: Sinkhorn runs in NumPy. 3: loops are compiled, and α is a factor of φ. 4: products beside them
are PyTorch's. 5: MLX's GELU, attention and mixing are loops. 6: of large arrays alone. 7: one loop
between two functions. 8: one for an orthogonal update, and for a norm of the stream with gains. 9:
one for the weighted sums of a dense connection.
"""

TARGETS = (
    "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_OPT", "NUMBA_DISABLE_JIT",
    "NUMBA_LOOP_VECTORIZE", "NUMBA_SLP_VECTORIZE", "OPENBLAS_CORETYPE", "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
)  # fmt: skip
"""Environment variables that choose instructions, and so last digits."""

OTHER_SECONDS = 10.0
"""Seconds to wait for an ending process that still holds the run."""

TIMED_STEPS = 8
TIMING_SECONDS = 5.0


def run_cell(
    spec: Spec,
    folder: Path,
    compute: Compute | None = None,
    on_chunk: Callable[[Chunk], None] = lambda chunk: None,
) -> str:
    """Train a cell into `folder`, resuming from a matching checkpoint; returns its outcome.

    `on_chunk` is called with the rows as they come. Only `.partial/` is written before the training
    is over. Raises BackendError if the framework, the device or memory is missing, RunError if
    another process trains into `folder`, ConfigError for a user's own connection that breaks its
    contract.
    """
    compute = compute or Compute()
    started = datetime.now(UTC)
    code = training_code(spec)
    backend = connect(spec, compute)
    here = environment(backend, compute.threads)
    prefix = f"FATHOM_{spec.backend.upper()}_"  # switches that may fuse operations
    switches = {name: value for name, value in os.environ.items() if name.startswith(prefix)}
    digits = {name: here[name] for name in DIGITS}
    identity = {"spec": spec.hash(), "code": code, **digits, "environment": switches}
    with _alone(folder), own_code(spec.connection), memory_errors():
        checkpoint = Checkpoint(folder, identity)
        resume = checkpoint.resume()
        rows = list(resume.rows) if resume else []
        problem = Problem(spec)
        if resume is None:
            check_contract(problem, backend)
        for chunk in train(problem, backend, resume):
            rows += chunk.rows
            on_chunk(chunk)
            if len(rows) < spec.steps and checkpoint.is_due(len(rows), compute):
                checkpoint.save(rows, chunk.trainer.state())

        params = chunk.trainer.parameters()
        facts = {
            "code": code,
            **here,
            "started": started.isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(rows[-1]["elapsed_seconds"], 3),
            "resumed_at_steps": checkpoint.resumed_at,
            "peak_host_memory_bytes": peak_host_memory_bytes(),
            "peak_device_memory_bytes": backend.peak_memory_bytes(),
        }
        mixing = learned_mixing(problem, backend, params)
        write_run(folder, spec, rows, mixing, params if spec.weights else None, facts)
        try:
            receive_run(folder, spec.cell)
        except RunError as error:  # without a verdict, readers of the run check it
            say(f"the run was written, but its check fails: {error}")
        shutil.rmtree(folder / PARTIAL, ignore_errors=True)
    return tasks.outcome_of(spec, tasks.summary_of(spec, rows))[0]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from training into `folder`. Raises RunError if one is doing so."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, OTHER_SECONDS))
        except Timeout:
            raise RunError(
                f"{folder}: another process is training it; wait for that, or stop it"
            ) from None
        yield


def learned_mixing(
    problem: Problem, backend: Backend, params: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The connection's matrices at the given parameters, float32 by name."""
    ops = backend.ops
    arrays = {name: ops.asarray(value) for name, value in params.items()}
    matrices = problem.network.connection.matrices(ops, arrays)
    return {name: np.array(ops.to_numpy(matrix)) for name, matrix in matrices.items()}


def environment(backend: Backend, threads: int) -> dict[str, Any]:
    """Versions, system and device, without anything that identifies a user or a machine."""
    return {
        "fathom": fathom.__version__,
        "git": code_hash.git_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "os": printable(operating_system()),
        "cpu": printable(processor()),
        "device": {
            name: value and printable(value) for name, value in asdict(backend.device).items()
        },
        "threads": threads,
        "arithmetic": arithmetic(backend),
        "rounding": ARITHMETIC_VERSION,
    }


def arithmetic(backend: Backend) -> dict[str, str]:
    """Versions of compilers, instructions of kernels, and environment variables that set either."""
    values = backend.arithmetic()
    for package in ("numba", "llvmlite"):
        with suppress(metadata.PackageNotFoundError):
            values[package] = metadata.version(package)
    values |= {name: os.environ[name] for name in TARGETS if name in os.environ}
    return {name: printable(value) for name, value in values.items()}


DIGITS = ("cpu", "device", "numpy", "threads", "arithmetic", "rounding")
"""The part of an environment, or of a manifest, that last digits depend on."""


def same_digits(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two environments or manifests give the same last digits, as far as both are known."""
    known = [name for name in DIGITS if name != "arithmetic" or (one[name] and other[name])]
    return all(one[name] == other[name] for name in known)


def connect(spec: Spec, compute: Compute) -> Backend:
    """Connect to the spec's backend and set the folder of data sets. Raises BackendError."""
    os.environ[datasets.ENVIRONMENT] = compute.data
    return backends.connect(spec.backend, compute.device, compute.threads, compute.mlx_blas)


def first_loss(problem: Problem, backend: Backend) -> float:
    """The loss of the first step's batches, before the step."""
    trainer = trainer_for(problem, backend, problem.initial_parameters())
    take_step(problem, trainer, 0)
    return float(trainer.collect()["loss"][0])


def time_problem(problem: Problem, backend: Backend) -> float:
    """Seconds of a training step here: the median of the last three of up to TIMED_STEPS steps.

    The first may compile; on CUDA the first three go without the graph that the fourth records.
    Starts no further step after TIMING_SECONDS, and writes nothing. Raises BackendError or
    DataError as training would.
    """
    seconds: list[float] = []
    with memory_errors():
        trainer = trainer_for(problem, backend, problem.initial_parameters())
        for step in range(min(TIMED_STEPS, problem.spec.steps)):
            started = time.perf_counter()
            take_step(problem, trainer, step)
            trainer.collect()  # waits for the device
            seconds.append(time.perf_counter() - started)
            if sum(seconds[1:]) > TIMING_SECONDS:
                break
    return median(seconds[1:][-3:] or seconds)


def time_measurements(spec: Spec, compute: Compute) -> tuple[float, float]:
    """(seconds of the measurements before the first step, seconds of one evaluation) here."""
    problem, backend = Problem(spec), connect(spec, compute)
    with memory_errors():
        params = problem.initial_parameters()
        trainer = trainer_for(problem, backend, params)
        started = time.perf_counter()
        problem.at_start(backend.ops, params)
        between = time.perf_counter()
        problem.at_evaluation(backend.ops, trainer.infer, is_last=True)
    return between - started, time.perf_counter() - between
