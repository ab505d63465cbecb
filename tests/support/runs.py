"""Run folders made by hand: every file and hash of a run, without training."""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd

from fathom.operations.numpy_ops import NumpyOps
from fathom_study.config import check_config
from fathom_study.runs import folder as runs
from fathom_study.runs.training_code import training_code
from fathom_study.tasks import Problem

STUDY = {
    "task": "tokens", "recipe": "mlx-defaults", "variants": ["baseline", "hc", "mhc"],
    "depths": [4, 8, 16], "backends": ["torch", "mlx"], "seeds": [0, 1, 2], "steps": 3,
    "batch_size": 8, "optimizer": {"lr": 0.002},
    "model": {"vocab": 64, "length": 8, "width": 16, "heads": 4, "hidden": 32},
}  # fmt: skip
TINY = {
    "task": "tokens", "recipe": "torch-defaults", "variants": ["baseline", "mhc"],
    "depths": [2], "seeds": [0], "steps": 4, "batch_size": 2, "optimizer": {"lr": 0.01},
    "model": {"vocab": 16, "length": 4, "width": 8, "heads": 2, "hidden": 16},
}  # fmt: skip
"""A study that trains almost instantly; its backends are not set."""
RUN_FILES = ("spec.json", "metrics.jsonl", "mixing.safetensors", "manifest.json")
"""Files of a run, the manifest last."""
ARRIVED = {*RUN_FILES, "verdict.json"}
"""Files in the folder of a run that was trained or imported."""

CPU = {"framework_version": "2.0.0", "kind": "cpu", "name": "Test CPU"}
GPU = {"framework_version": "2.0.0", "kind": "cuda", "name": "Test GPU", "driver": "CUDA 13.0"}
CPU_PLATFORM, GPU_PLATFORM = "cpu-test-cpu-testos", "cuda-test-gpu-testos"


def config_with(results="results", studies=("a",), **changes):
    """A config of studies like STUDY; `changes` apply to all of them, or to one: a={...}."""
    data = {}
    for name in studies:
        data[name] = copy.deepcopy({**STUDY, **{k: v for k, v in changes.items() if k in STUDY}})
        data[name] |= changes.get(name, {})
    return check_config({"results": str(results), "studies": data})


def metric_rows(losses, step_seconds=0.5, **columns):
    """Rows of metrics.jsonl, with these losses; other columns can be given, one value per step."""
    rows = []
    for step, loss in enumerate(losses):
        row = {
            "step": step,
            "loss": loss,
            "grad_norm": 1.0 + step,
            "nonfinite_event": int(not math.isfinite(loss)),
            "gain_proxy_log10_max_entry": 0.0,
            "amax_forward_log10": 0.0,
            "amax_backward_log10": 0.0,
            "nonfinite_total": sum(not math.isfinite(x) for x in losses[: step + 1]),
            # The first step includes the start-up and must not count.
            "step_seconds": 9.0 if step == 0 else step_seconds,
            "elapsed_seconds": 9.0 + step * step_seconds,
            **{name: values[step] for name, values in columns.items()},
        }
        if step == 0:
            row |= {
                "activation_max_log10": 1.5,
                "overflow_layer": None,
                "overflow_activation_log10": None,
            }
        rows.append(row)
    return rows


def initial_mixing(spec):
    """The connection's matrices at the initial parameters, float32 by name."""
    ops = NumpyOps()
    problem = Problem(spec)
    params = {name: ops.asarray(v) for name, v in problem.initial_parameters().items()}
    matrices = problem.network.connection.matrices(ops, params)
    return {name: np.asarray(matrix, np.float32) for name, matrix in matrices.items()}


def write_run(folder, spec, rows, device=CPU, code=None, mixing=None, weights=None, **facts):
    """Write a run folder; `facts` are fields of the manifest."""
    facts = {
        "code": training_code(spec) if code is None else code,
        "os": "TestOS 1.0",
        "cpu": "Test CPU",
        "device": {"framework": spec.backend, **device},
        "seconds": rows[-1]["elapsed_seconds"],
        **facts,
    }
    if weights is None and spec.weights:
        weights = Problem(spec).initial_parameters()
    mixing = initial_mixing(spec) if mixing is None else mixing
    runs.write_run(folder, spec, rows, mixing, weights, facts)


def write_cell(config, cell, losses, platform="", device=CPU, code=None, seconds=None, **columns):
    """Write the run of a cell, trained here or imported, at its place; return its folder.

    `seconds`: time of the whole training; by default the time in the rows.
    """
    where = f"imported/{platform}" if platform else "runs"
    folder = Path(config.results) / where / cell.path()
    facts = {} if seconds is None else {"seconds": seconds}
    write_run(folder, config.spec(cell), metric_rows(losses, **columns), device, code, **facts)
    return folder


def without_times(rows):
    """Rows of a table or of metrics, without their clocks."""
    return [{k: value for k, value in row.items() if "seconds" not in k} for row in rows]


def numbers_of(folder):
    """(rows without times, bytes of the matrices) of a run."""
    return without_times(runs.read_rows(folder)), (folder / "mixing.safetensors").read_bytes()


def read_csv(file):
    """The rows of a table, packed or not, as text."""
    return pd.read_csv(file, dtype=str, keep_default_na=False).to_dict("records")


def read_manifest(folder):
    """The manifest as a dict."""
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def write_manifest(folder, manifest):
    """Write a changed manifest with its new hash."""
    signed = {**manifest, "sha256": runs.manifest_hash(manifest)}
    (folder / "manifest.json").write_text(json.dumps(signed), encoding="utf-8")


def change_code(folder):
    """Make a run one of other code."""
    manifest = read_manifest(folder)
    manifest["code"]["fathom_study.train:train"] = "0" * 16
    write_manifest(folder, manifest)


def interrupt_at(steps):
    """An on_chunk that interrupts a training once `steps` steps are done."""

    def on_chunk(chunk):
        if chunk.rows[-1]["step"] + 1 >= steps:
            raise KeyboardInterrupt

    return on_chunk


def flipped(content):
    """The content of a file with its last bit flipped."""
    return content[:-1] + bytes([content[-1] ^ 1])


def shift(folder, step, by, name="loss"):
    """Multiply a number of a run's rows by 1 + `by`, and seal the run."""
    file = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    rows[step][name] *= 1 + by
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    seal(folder)


def seal(folder):
    """Update the hashes and sizes in the manifest after a test has changed files."""
    manifest = read_manifest(folder)
    for name, listed in manifest["files"].items():
        listed["sha256"] = runs.sha256(folder / name)
        listed["bytes"] = (folder / name).stat().st_size
    write_manifest(folder, manifest)
