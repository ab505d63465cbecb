"""One comparison without the workflow: several variants trained in turn and set side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from fathom import datasets, tasks
from fathom.analysis.platforms import Platform
from fathom.analysis.tables import AXES, TRAINED, run_metrics, summary_table
from fathom.config import Compute, Config, Spec, check_config
from fathom.metrics import Row
from fathom.report.figures import draw_figures, figures_for, save
from fathom.report.mixing import mixing_matrices
from fathom.runs.estimate import assumed_seconds
from fathom.runs.folder import read_rows, run_folder
from fathom.runs.progress import training_progress
from fathom.runs.training import run_cell, time_measurements, time_step
from fathom.settings import ConfigError, deep_merge
from fathom.system.files import write_text
from fathom.system.text import format_duration

LONG_SECONDS = 600.0
"""A comparison that takes longer is told of a small size."""

SHALLOW = 4
"""Layers of the network whose evaluation is timed: that of a deep one takes minutes."""

SMALL = "--depth 4 --steps 100 --width 16 --batch-size 16"
"""Options of a comparison that takes a minute or two on a CPU."""


def comparison(task: str, changes: Mapping[str, Any]) -> Config:
    """The config of a task's published comparison with these changes; None changes nothing.

    Raises ConfigError for a task that has none, or a change that it does not know.
    """
    known = [name for name in tasks.TASKS if tasks.presentation(name).comparison]
    if task not in known:
        raise ConfigError(f"compare knows no task '{task}' (known: {', '.join(known)})")
    study = deep_merge(tasks.presentation(task).comparison or {}, _given(changes))
    return check_config({"studies": {"compare": study}}, "compare")


def _given(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes without those that are None."""
    return {
        key: _given(value) if isinstance(value, Mapping) else value
        for key, value in changes.items()
        if value is not None
    }


def compare_variants(specs: Sequence[Spec], compute: Compute, out: Path) -> None:
    """Train every spec into `out/runs`, then write figures, a JSON file and a table."""
    console = Console(stderr=True)
    task, shown = tasks.load(specs[0].task), tasks.presentation(specs[0].task)
    if dataset := task.dataset(specs[0].model):
        datasets.fetch(dataset, lambda line: console.print(line, markup=False))
    for line in outlook(specs, compute):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for spec in specs:
        with training_progress(spec) as on_chunk:
            run_cell(spec, run_folder(out, spec.cell), compute, on_chunk)

    rows = {spec.variant: read_rows(run_folder(out, spec.cell)) for spec in specs}
    measured = {spec.variant: run_metrics(spec, rows[spec.variant], "held_out") for spec in specs}
    draw(specs, rows, measured, out)

    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    record = {
        "config": {s.variant: s.model_dump() for s in specs},
        "summary": {v: {**m, "diverged": m["outcome"] == "diverged"} for v, m in measured.items()},
        "history": {variant: _history(found) for variant, found in rows.items()},
    }
    write_text(out / f"metrics_{stamp}.json", json.dumps(record, allow_nan=False) + "\n")
    columns = dict.fromkeys(
        (tasks.score_of(specs[0].task).metric, *shown.compared, "grad_norm_max")
    )
    console.print(_table(measured, tuple(columns)))
    console.print(f"Figures, runs and metrics_{stamp}.json are in {out}", markup=False)


def outlook(specs: Sequence[Spec], compute: Compute) -> Iterator[str]:
    """What will be trained and for about how long: by its operations, then by timed steps.

    An evaluation is timed once, on SHALLOW layers, and taken to be as many steps for every network.
    Raises BackendError if the framework or the device is missing.
    """
    counts = f"{len(specs)} variants of {specs[0].steps} steps"
    guess = assumed_seconds(specs)
    if guess > LONG_SECONDS:
        yield f"{counts}: a guess by their operations is {format_duration(guess)} on one core"
        yield f"to try it in a minute or two: fathom compare {specs[0].task} {SMALL}"
    yield "timing an evaluation, and a few steps of each variant"
    shallow = specs[0].model_copy(update={"depth": min(specs[0].depth, SHALLOW)})
    at_start, evaluation = time_measurements(shallow, compute)
    of_evaluation = evaluation / time_step(shallow, compute)
    total = 0.0
    for spec in specs:
        step = time_step(spec, compute)
        evaluations = math.ceil(spec.steps / (spec.evaluate_every or spec.steps))
        seconds = at_start + step * (spec.steps + of_evaluation * evaluations)
        total += seconds
        yield f"{spec.variant}: {step:.2g} s a step, about {format_duration(seconds)}"
    yield f"{counts}: about {format_duration(total)} in all, evaluations included"


def draw(
    specs: Sequence[Spec],
    rows: dict[str, list[Row]],
    measured: dict[str, dict[str, Any]],
    out: Path,
) -> None:
    """Draw the figures of the task into `out`; `rows` and `measured` are by variant."""
    first = specs[0]
    platform = Platform(first.backend)
    unit = tasks.presentation(first.task).loss_unit
    steps = [
        pd.DataFrame(rows[spec.variant]).assign(**_axes(spec), loss_unit=unit) for spec in specs
    ]
    cells = pd.DataFrame(
        [{**_axes(spec), **dict.fromkeys(TRAINED), "status": "measured",
          **measured[spec.variant]} for spec in specs]
    )  # fmt: skip
    data = {
        "steps": pd.concat(steps, ignore_index=True),
        "summary": summary_table(cells),
        "cells": cells,
        "mixing": mixing_matrices((spec.cell for spec in specs), platform.runs(out)),
        "score": tasks.score_of(first.task),
    }
    names = tasks.presentation(first.task).figures
    schemes = {spec.variant: spec.connection for spec in specs}
    declared = figures_for(names, schemes, {(spec.variant, spec.depth) for spec in specs})
    title = f"{first.depth} layers, width {first.model.width}, {first.steps} steps"
    save(draw_figures(declared, title, **data), out)


def _axes(spec: Spec) -> dict[str, Any]:
    axes = {name: getattr(spec.cell, name) for name in AXES}
    return {**axes, "platform": Platform(spec.backend).name}


def _history(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Every metric that a run has, as a list over its steps; None where it is not finite."""

    def finite(value: Any) -> Any:  # noqa: ANN401, any metric
        return None if isinstance(value, float) and not math.isfinite(value) else value

    names = [name for name in tasks.step_metrics() if any(name in row for row in rows)]
    return {name: [finite(row.get(name)) for row in rows] for name in names}


def _table(measured: dict[str, dict[str, Any]], shown: Sequence[str]) -> Table:
    table = Table(title="Comparison", title_justify="left", header_style="")
    table.add_column("variant")
    for name in (*shown, "outcome", "seconds"):
        table.add_column(name, justify="right")
    for variant, found in measured.items():
        values = (found[name] for name in shown)
        absent = "NaN" if found["outcome"] == "diverged" else "–"
        texts = [absent if value is None else f"{value:.4f}" for value in values]
        table.add_row(variant, *texts, found["outcome"], f"{found['seconds']:.0f}")
    return table
