"""Runs → tables: of runs, of their steps, of groups of seeds, of pairs of platforms.

Every number that a report shows is read from one of these. Intervals and counts:
docs/definitions/statistics.md.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from fathom_study import datasets, tasks
from fathom_study.analysis.derived import write_derived
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.statistics import mean_with_ci
from fathom_study.analysis.tables import (
    AXES,
    COLUMNS,
    GROUP,
    PROFILES,
    STEPS,
    TRAINED,
    counted,
    of_study,
    pack,
    platform_pairs,
    save_tables,
    table_of,
)
from fathom_study.config import Config, Spec
from fathom_study.metrics.runs import Summary, significant
from fathom_study.metrics.scores import OUTCOMES
from fathom_study.metrics.steps import CLOCKS, Row, split_place
from fathom_study.runs.bundle import refused_bundles
from fathom_study.runs.folder import RunError, read_rows
from fathom_study.runs.run import Run
from fathom_study.runs.validate import find_runs
from fathom_study.system.files import write_bytes


def write_tables(config: Config, folder: Path) -> None:
    """Write the tables of runs, and those derived from them. Raises RunError for corrupt runs."""
    runs = find_runs(config)
    if corrupt := [run for run in runs if run.status == "corrupt"]:
        remedy = "delete the folder and run it again"
        raise RunError("\n".join(f"{run.folder}: {run.reason}; {remedy}" for run in corrupt))
    rows = {run.folder: read_rows(run.folder) for run in runs if run.counts}
    cells = cells_table(config, runs, rows)
    summary = summary_table(cells)
    # Only the scores of ladder trainings are read; they have a third of the reference's steps.
    added = {name: study.ladder_trainings for name, study in config.studies.items()}
    curves = [run for run in runs if run.cell.variant not in added[run.cell.study]]
    tables = {
        "cells.csv": cells,
        "summary.csv": summary,
        PROFILES: profiles_table(curves, rows),
        "comparison.csv": comparison_table(cells),
        "platforms.csv": platforms_table(runs),
    }
    save_tables(tables, folder, config.studies)
    for study in config.studies:
        of_study_runs = [run for run in curves if run.cell.study == study]
        write_steps(of_study(folder, study) / STEPS, of_study_runs, rows)
    write_derived(config, folder)


Rows = Mapping[Path, Sequence[Row]]
"""The rows of every run that counts, by the run's folder."""


def _axes(run: Run) -> dict[str, Any]:
    return {axis: getattr(run.cell, axis) for axis in AXES}


def platform_of(run: Run) -> str:
    """The platform key of a run; empty if its numbers do not count."""
    imported_from = run.platform if run.status == "imported" else ""
    return Platform(run.cell.backend, imported_from).name if run.counts else ""


def _made_by(run: Run) -> str:
    """The code that made an imported run; empty for others, which today's code made."""
    return run.manifest.made_by if run.counts and run.replay else ""


def cells_table(config: Config, runs: Sequence[Run], rows: Rows) -> pd.DataFrame:
    """The table of cells: a row per run with axes, platform, status and, if it counts, metrics."""
    table = pd.DataFrame([_cell_row(config, run, rows.get(run.folder)) for run in runs])
    # Fixed types: otherwise a missing run would change the text of the others.
    return table.astype({"steps": "Int64", "first_nonfinite_step": float})


def _cell_row(config: Config, run: Run, rows: Sequence[Row] | None) -> dict[str, Any]:
    study, variant = config.studies[run.cell.study], run.cell.variant
    of_variant = study.of(variant)
    columns = tasks.run_metrics(tuple(sorted({s.task for s in config.studies.values()})))
    measured = {}
    if rows:
        spec = config.spec(run.cell)
        summary = run.manifest.summary or tasks.summary_of(spec, rows)
        measured = run_metrics(spec, summary, study.score)
    return {
        "key": run.cell.path(),
        **_axes(run),
        "recipe": of_variant.recipe_name,
        "connection": study.connection_name(variant),
        "lr": of_variant.optimizer.lr,
        "platform": platform_of(run),
        "machine": run.platform,
        "made_by": _made_by(run),
        "status": run.status,
        "reason": run.reason or _why_missing(config, run),
        **{name: measured.get(name) for name in (*FIRST, *columns, *LAST)},
    }


FIRST = ("outcome", "score_metric", "score", "score_chance")
LAST = ("chance_loss", "steps")


def run_metrics(spec: Spec, summary: Summary, judged_by: tasks.JUDGED_BY) -> dict[str, Any]:
    """The outcome, score and metrics of a whole run, by column."""
    outcome, value = tasks.outcome_of(spec, summary, judged_by)
    score, measured = tasks.score_of(spec.task, judged_by), summary.metrics
    if outcome == "diverged":
        # An accuracy is finite even if no logit is, and would count as 0 %.
        value, measured = None, measured | dict.fromkeys(_of_the_trained())
    return {
        "outcome": outcome,
        "score_metric": score.metric,
        "score": value,
        "score_chance": significant(score.chance(spec)),
        **measured,
        "chance_loss": significant(tasks.load(spec.task).chance_loss(spec)),
        "steps": spec.steps,
    }


def _of_the_trained() -> Iterator[str]:
    """Names of the run metrics that are measured at evaluations or after training."""
    when = {name: metric.when for name, metric in tasks.step_metrics().items()}
    for name, metric in tasks.run_metrics().items():
        if when[metric.of] in ("evaluations", "last step"):
            yield name


def _why_missing(config: Config, run: Run) -> str:
    """The reason that a cell has no run: a refused bundle, or unavailable data; else empty."""
    if run.status != "missing":
        return ""
    if refused := refused_bundles(Path(config.results)):
        return f"a bundle was refused, {'; '.join(refused)}"
    if not config.train:
        return ""
    dataset = config.studies[run.cell.study].dataset
    return datasets.unavailable(dataset) if dataset else ""


def write_steps(file: Path, runs: Iterable[Run], rows: Rows) -> None:
    """Write the table of steps: a row per step of the runs that count, with all digits.

    Profiles and times are left out. Rows are written one by one, since a pandas table would take
    three times as long.
    """
    of_runs = [run for run in runs if rows.get(run.folder)]
    kinds = dict.fromkeys(tuple(row) for run in of_runs for row in rows[run.folder])
    every = dict.fromkeys(chain.from_iterable(kinds))
    names = [name for name in every if split_place(name)[1] is None and name not in CLOCKS]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*AXES, "platform", *names] if of_runs else COLUMNS[STEPS])
    for run in of_runs:
        axes = [*_axes(run).values(), platform_of(run)]
        for row in rows[run.folder]:
            # Missing numbers are empty fields; only NaN differs from itself.
            table.writerow(axes + ["" if v != v else v for v in map(row.get, names)])
    write_bytes(file, pack(text.getvalue()))


def profiles_table(runs: Iterable[Run], rows: Rows) -> pd.DataFrame:
    """The table of profiles: a row per value of every profile of the runs that count."""
    profile_rows = []
    for run in runs:
        of_run = {**_axes(run), "platform": platform_of(run)}
        for row in rows.get(run.folder, ()):
            for name, value in row.items():
                metric, at = split_place(name)
                if at is not None:
                    profile_rows.append({**of_run, "metric": metric, "at": at, "value": value})
    return table_of(profile_rows, PROFILES)


SYSTEM = ("os", "cpu", "python", "numpy", "threads")
"""Fields of a run's manifest in platforms.csv."""


def platforms_table(runs: Iterable[Run]) -> pd.DataFrame:
    """The table of platforms: a row per platform, machine and software version.

    `made_by` is the code that made imported runs.
    """
    rows = []
    for run in filter(lambda run: run.counts, runs):
        device, manifest = run.manifest.device, run.manifest
        rows.append(
            {
                "platform": platform_of(run),
                "machine": run.platform,
                "backend": run.cell.backend,
                "framework_version": device.framework_version,
                "device": device.name,
                "kind": device.kind,
                "driver": device.driver or "",
                "blas": device.blas or "",
                **{name: getattr(manifest, name) for name in SYSTEM},
                "made_by": _made_by(run),
            }
        )
    if not rows:
        return table_of(rows, "platforms.csv")
    table = pd.DataFrame(rows)
    return table.groupby(list(table), dropna=False).size().reset_index(name="runs")


def summary_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Summary over seeds: a row per study × depth × variant × platform.

    Columns: docs/definitions/statistics.md, by `mean_with_ci`.
    """
    rows = []
    for group, seeds in counted(cells).groupby(GROUP, sort=False):
        outcomes = seeds["outcome"].value_counts()
        row = {
            **dict(zip(GROUP, group, strict=True)),
            **seeds.iloc[0][["backend", *TRAINED]],
            "n": len(seeds),
            **{name.replace(" ", "_"): int(outcomes.get(name, 0)) for name in OUTCOMES},
            **seeds.iloc[0][["chance_loss", "score_metric", "score_chance"]],
            "steps": int(seeds["steps"].iloc[0]),
        }
        averaged = {name: bounds for name, bounds in tasks.averaged().items() if name in cells}
        for metric, bounds in {"score": tasks.bounds_of(row["score_metric"]), **averaged}.items():
            parts = mean_with_ci(seeds[metric], bounds)
            if metric in tasks.times():
                parts["fastest"] = seeds[metric].min()
            row |= {f"{metric}_{part}": value for part, value in parts.items()}
        rows.append(row)
    return table_of(rows, "summary.csv")


def comparison_table(cells: pd.DataFrame) -> pd.DataFrame:
    """The table of platform differences: a row per study × depth × variant and pair of platforms.

    Step-0 differences are the largest over common seeds: relative to the second platform for loss
    and gradient norm, absolute for the gain, which is a logarithm. NaN where a side is not finite.
    """
    rows = []
    for row, one, other in platform_pairs(counted(cells)):
        seeds = one.merge(other, on="seed", suffixes=("_a", "_b"))
        row["seeds"] = len(seeds)
        for metric in ("loss_first", "grad_norm_first", "gain_first"):
            x, y = (pd.to_numeric(seeds[f"{metric}_{side}"]) for side in "ab")
            scale = 1 if metric == "gain_first" else y.abs()
            row[f"{metric}_difference"] = ((x - y).abs() / scale).max(skipna=False)
        rows.append(row)
    return table_of(rows, "comparison.csv")
