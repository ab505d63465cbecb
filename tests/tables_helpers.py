"""Runs and tables made by hand, for the tests of everything that reads them."""

import copy
import hashlib
import json
import math
from pathlib import Path

import pandas as pd

from fathom import provenance
from fathom.runs import encode_row, summarise
from fathom.study import check_config
from fathom.tables import MEASURES

CHANCE = math.log(64)
"""The loss of a guesser among the 64 tokens of STUDY."""

T975 = {1: 12.706204736, 2: 4.302652730, 3: 3.182446305, 5: 2.570581836, 7: 2.364624252}
"""Student's t, 97.5 %, by degrees of freedom: from a printed table."""

TOLD = 1e-8
"""Relative: T975 has ten digits."""

STUDY = {
    "task": "tokens",
    "recipe": "mlx",
    "variants": ["baseline", "hc", "mhc"],
    "depths": [4, 8, 16],
    "backends": ["torch", "mlx"],
    "seeds": [0, 1, 2],
    "steps": 3,
    "batch_size": 8,
    "model": {"vocab": 64, "length": 8, "width": 16, "heads": 4, "hidden": 32},
    "optimizer": {"lr": 0.002},
}

CPU = {"framework_version": "2.0.0", "kind": "cpu", "name": "Test CPU", "driver": None}
GPU = {"framework_version": "2.0.0", "kind": "cuda", "name": "Test GPU", "driver": "CUDA 13.0"}
CPU_PLATFORM, GPU_PLATFORM = "cpu-test-cpu-testos", "cuda-test-gpu-testos"


def half_width(values):
    """Half of the 95 % interval of the mean, from the formula and the printed table."""
    n = len(values)
    mean = sum(values) / n
    sd = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return T975[n - 1] * sd / math.sqrt(n)


def config_with(results="results", studies=("a",), **changes):
    """A config of studies like STUDY; `changes` go into all of them, or name one: a={...}."""
    data = {}
    for name in studies:
        data[name] = {**copy.deepcopy(STUDY), **{k: v for k, v in changes.items() if k in STUDY}}
        data[name] |= changes.get(name, {})
    return check_config({"results": str(results), "studies": data})


# --- run folders ---------------------------------------------------------------------------------


def metrics(losses, step_seconds=0.5, **columns):
    """Rows of metrics.jsonl, with these losses; other columns can be given, one value per step."""
    rows = []
    for step, loss in enumerate(losses):
        finite = math.isfinite(loss)
        row = {
            "step": step,
            "loss": loss,
            "grad_norm": 1.0 + step,
            "nonfinite_event": int(not finite),
            "gain_proxy_log10_max_entry": 0.0,
            "amax_forward_log10": 0.0,
            "amax_backward_log10": 0.0,
            "nonfinite_total": sum(not math.isfinite(x) for x in losses[: step + 1]),
            # The first step has the start-up in it, and must not count.
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


def write_run(folder, spec, rows, device=CPU, code=None):
    """A run folder, its manifest included."""
    contents = {
        "spec.json": json.dumps(spec.model_dump()),
        "metrics.jsonl": "".join(encode_row(row) for row in rows),
        "summary.json": json.dumps(summarise(spec, rows)),
    }
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content.encode())
    modules = provenance.training_modules(spec.task, spec.backend)
    manifest = {
        "format": 1,
        "cell": spec.cell.path(),
        "spec_hash": spec.hash(),
        "code": provenance.code_hashes(*modules) if code is None else code,
        "os": "TestOS 1.0",
        "cpu": "Test CPU",
        "device": {"framework": spec.backend, **device},
        "files": {
            name: {
                "sha256": hashlib.sha256(content.encode()).hexdigest(),
                "bytes": len(content.encode()),
            }
            for name, content in contents.items()
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def write_cell(config, cell, losses, platform="", device=CPU, code=None, **columns):
    """The run of a cell at its place below the results: trained here, or imported."""
    where = f"imported/{platform}" if platform else "runs"
    folder = Path(config.results) / where / cell.path()
    write_run(folder, config.spec(cell), metrics(losses, **columns), device, code)
    return folder


# --- rows of tables ------------------------------------------------------------------------------

HERE = {"platform": CPU_PLATFORM, "origin": "here"}


def run(variant="mhc", depth=8, seed=0, study="a", backend="torch", **values):
    """A row of cells.csv; measures that are not given are not finite."""
    row = {
        "key": f"{study}/{depth}L/{variant}/{backend}/seed{seed}",
        "study": study,
        "depth": depth,
        "variant": variant,
        "backend": backend,
        "seed": seed,
        "recipe": "mlx",
        **HERE,
        "status": "measured",
        "reason": "",
        "outcome": "learned",
        **dict.fromkeys(MEASURES, math.nan),
        "nonfinite_total": 0,
        "first_nonfinite_step": math.nan,
        "chance_loss": CHANCE,
        "steps": 3,
    }
    strange = set(values) - set(row)
    assert not strange, f"no column {strange}"
    return {**row, **values}


def seeds(measure, values, **axes):
    """A run for each value of a measure: seed 0 has the first."""
    return [run(seed=seed, **{measure: value}, **axes) for seed, value in enumerate(values)]


def curve(
    losses, variant="mhc", depth=8, seed=0, study="a", backend="torch", column="loss", **place
):
    """The rows of steps.csv of one run."""
    axes = {"study": study, "depth": depth, "variant": variant, "backend": backend, "seed": seed}
    rows = []
    for step, value in enumerate(losses):
        names = {"loss": 1.0, "grad_norm": 1.0, "gain_proxy_log10_max_entry": 0.0}
        rows.append({**axes, **HERE, **place, "step": step, **names, column: value})
    return rows


def frame(*groups):
    """Rows, or lists of rows, as a table."""
    rows = []
    for group in groups:
        rows += group if isinstance(group, list) else [group]
    return pd.DataFrame(rows)
