"""One comparison without the workflow: several variants trained in turn and set side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from fathom.data import fashion_mnist_folder, fetch
from fathom.figures import image_figures, save
from fathom.files import write_text
from fathom.mixing import mixing_matrices
from fathom.progress import training_progress
from fathom.runs import read_rows, run_cell
from fathom.study import Compute, Spec
from fathom.tables import interval

PUBLISHED_MODES = ("resnet", "hc_causal", "mhc_causal", "hc_dynamic", "mhc_dynamic")
"""The five networks of the source, as of its last revision."""

HISTORY = ("loss", "grad_norm", "grad_norm_stem", "test_accuracy")


def compare_variants(specs: Sequence[Spec], compute: Compute, out: Path) -> None:
    """Train every spec into `out/runs`, then write figures, a JSON file and a table."""
    console = Console(stderr=True)
    fetch(fashion_mnist_folder(), lambda line: console.print(line, markup=False))
    summaries = {}
    for spec in specs:
        with training_progress(spec) as on_chunk:
            folder = out / "runs" / spec.cell.path()
            summaries[spec.variant] = run_cell(spec, folder, compute, on_chunk)

    rows = {spec.variant: read_rows(out / "runs" / spec.cell.path()) for spec in specs}
    steps = pd.concat(
        [pd.DataFrame(rows[s.variant]).assign(**_axes(s)) for s in specs], ignore_index=True
    )
    groups = pd.DataFrame([_group(s, summaries[s.variant]) for s in specs])
    title = f"{specs[0].depth} layers, width {specs[0].model.width}, {specs[0].steps} steps"
    save(image_figures(steps, groups, mixing_matrices(out / "runs", steps), title), out)

    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    record = {
        "config": {s.variant: s.model_dump() for s in specs},
        "summary": {v: {**s, "diverged": s["outcome"] == "diverged"} for v, s in summaries.items()},
        "history": {
            v: {k: [_json(r.get(k)) for r in found] for k in HISTORY} for v, found in rows.items()
        },
    }
    write_text(out / f"metrics_{stamp}.json", json.dumps(record, allow_nan=False) + "\n")
    console.print(_table(summaries))
    console.print(f"Figures, weights and metrics_{stamp}.json are in {out}", markup=False)


def _axes(spec: Spec) -> dict[str, Any]:
    cell = spec.cell
    return {name: getattr(cell, name) for name in ("study", "depth", "variant", "backend", "seed")}


def _group(spec: Spec, summary: dict[str, Any]) -> dict[str, Any]:
    found = interval(pd.Series([summary["test_accuracy"]], dtype=float))
    return {**_axes(spec), **{f"test_accuracy_{k}": v for k, v in found.items()}}


def _json(value: Any) -> Any:  # noqa: ANN401, any metric
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(summaries: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Comparison", title_justify="left", header_style="")
    for name in ("variant", "final loss", "test accuracy, %", "largest gradient norm"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for name in ("outcome", "seconds"):
        table.add_column(name, justify="right")
    for variant, s in summaries.items():
        numbers = (s["loss_final"], s["test_accuracy"] and 100 * s["test_accuracy"])
        loss, accuracy = ("NaN" if n is None else f"{n:.4f}" for n in numbers)
        norm = "NaN" if s["grad_norm_stem_max"] is None else f"{s['grad_norm_stem_max']:.4f}"
        table.add_row(variant, loss, accuracy, norm, s["outcome"], f"{s['seconds']:.0f}")
    return table
