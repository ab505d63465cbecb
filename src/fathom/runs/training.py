"""Training a cell into its run folder."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import fathom
from fathom import backends, datasets, tasks
from fathom.backends import Backend
from fathom.config import Compute, Spec
from fathom.measures import outcome
from fathom.runs import provenance
from fathom.runs.checkpoint import Checkpoint
from fathom.runs.code import training_code
from fathom.runs.folder import WEIGHTS, spec_with_weights, write_run
from fathom.system.hardware import operating_system, peak_host_memory_bytes, processor
from fathom.system.text import printable
from fathom.train import Chunk, at_end, train, trainer_for


def run_cell(
    spec: Spec,
    folder: Path,
    compute: Compute | None = None,
    on_chunk: Callable[[Chunk], None] = lambda chunk: None,
) -> str:
    """Train a cell into `folder`, going on from a checkpoint that fits; return its outcome.

    `on_chunk` sees the rows as they come. Raises BackendError if the framework or the device is
    missing. Nothing but `.partial/` is written before the training is over.
    """
    compute = compute or Compute()
    started = datetime.now(UTC)
    code = training_code(spec)
    os.environ[datasets.ENVIRONMENT] = compute.data
    backend = backends.connect(spec.backend, compute.device, compute.threads, compute.mlx_blas)
    checkpoint = Checkpoint(folder, identity=f"{spec.hash()} {code} {backend.device}")
    resume = checkpoint.resume()
    rows = list(resume.rows) if resume else []
    saved_at, saved_rows = time.monotonic(), len(rows)

    for chunk in train(spec, backend, resume):
        rows += chunk.rows
        on_chunk(chunk)
        is_due = time.monotonic() - saved_at >= compute.checkpoint_seconds or (
            compute.checkpoint_steps and len(rows) - saved_rows >= compute.checkpoint_steps
        )
        if is_due and len(rows) < spec.steps:
            checkpoint.save(rows, chunk.trainer.state())
            saved_at, saved_rows = time.monotonic(), len(rows)

    params = chunk.trainer.parameters()
    facts = {
        "code": code,
        **environment(backend, compute.threads),
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(rows[-1]["elapsed_seconds"], 3),
        "resumed_at_steps": checkpoint.resumed_at,
        "peak_host_memory_bytes": peak_host_memory_bytes(),
        "peak_device_memory_bytes": backend.peak_memory_bytes(),
    }
    mixing = learned_mixing(spec, backend, params)
    write_run(folder, spec, rows, mixing, params if spec.weights else None, facts)
    checkpoint.remove()
    return outcome(rows, tasks.load(spec.task).chance_loss(spec))


def learned_mixing(
    spec: Spec, backend: Backend, params: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The connection's matrices at the given parameters, float32 by name."""
    ops = backend.ops
    arrays = {name: ops.asarray(value) for name, value in params.items()}
    matrices = tasks.network_of(spec).connection.matrices(ops, arrays)
    return {name: np.array(ops.to_numpy(matrix)) for name, matrix in matrices.items()}


def environment(backend: Backend, threads: int) -> dict[str, Any]:
    """What computed: versions, system and device, and nothing that names a person or a place."""
    return {
        "fathom": fathom.__version__,
        "git": provenance.git_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "os": printable(operating_system()),
        "cpu": printable(processor()),
        "device": {
            name: value and printable(value) for name, value in asdict(backend.device).items()
        },
        "threads": threads,
    }


def evaluate_run(folder: Path, compute: Compute) -> dict[str, float]:
    """What the task measures after training, again, from the weights that a run has kept.

    Raises RunError if it has kept none, or the run is damaged.
    """
    spec = spec_with_weights(folder)
    os.environ[datasets.ENVIRONMENT] = compute.data
    backend = backends.connect(spec.backend, compute.device, compute.threads, compute.mlx_blas)
    return at_end(spec, backend.ops, trainer_for(spec, backend, load_file(folder / WEIGHTS)))
