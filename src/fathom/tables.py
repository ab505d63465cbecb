"""Runs → tidy CSVs. Every number that a report shows is read from one of these.

Intervals and counts: docs/definitions.md, "Statistics".
"""

from __future__ import annotations

import gzip
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.special import stdtrit  # of all of scipy.stats, which takes a second to load

from fathom.data import fashion_mnist_folder
from fathom.files import replacing
from fathom.runs import Run, RunError, find_runs, read_rows
from fathom.study import Config

AXES = ["study", "depth", "variant", "backend", "seed"]
CELL = ["study", "depth", "variant"]
PLACE = ["backend", "platform", "origin"]
"""Where a run was measured; `origin` is `here` or `imported`."""

GROUP = [*CELL, *PLACE]
"""What a row of the summary stands for: everything but the seed."""

MEASURES = [
    "loss_first", "loss_final", "loss_min",
    "grad_norm_first", "grad_norm_final", "grad_norm_max", "grad_norm_log10_sd",
    "test_accuracy", "mixing_row_error", "mixing_column_error",
    "grad_norm_stem_max", "seconds",
    "gain_first", "gain_final", "nonfinite_total", "seconds_per_step",
    "activation_max_log10", "overflow_layer", "overflow_activation_log10", "overflow_depth",
    "stream_difference_max", "stream_cosine_min",
    "grad_norm_H_pre_max", "grad_norm_H_post_max", "grad_norm_H_res_max",
]  # fmt: skip
"""What is averaged over seeds."""

OUTCOMES = ["learned", "at chance", "diverged"]


@dataclass(frozen=True)
class Place:
    """Where numbers were measured: the columns of PLACE."""

    backend: str
    platform: str
    origin: str

    @property
    def label(self) -> str:
        """The backend for what was measured here; with its platform for what was imported."""
        return self.backend if self.origin == "here" else f"{self.backend}, {self.platform}"

    @property
    def folder(self) -> str:
        """The name of its folder of figures."""
        return self.backend if self.origin == "here" else f"{self.backend}-{self.platform}"


def write_tables(config: Config, folder: Path) -> None:
    """Write the tables of runs into `folder`. Raises RunError naming each corrupt run."""
    runs = find_runs(config)
    corrupt = [run for run in runs if run.status == "corrupt"]
    if corrupt:
        lines = [
            f"{run.folder}: {run.reason}; delete the folder and run it again" for run in corrupt
        ]
        raise RunError("\n".join(lines))
    cells = cells_table(config, runs)
    summary = summary_table(cells)
    tables = {
        "cells.csv": cells,
        "summary.csv": summary,
        "steps.csv.gz": steps_table(runs),
        "comparison.csv": comparison_table(cells, summary),
        "platforms.csv": platforms_table(runs),
    }
    save_tables(tables, folder)


def save_tables(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    """Write tables by file name, each all at once."""
    for name, table in tables.items():
        content = table.to_csv(index=False).encode()
        with replacing(folder / name) as temporary:
            # No name or time inside the archive: the same runs make the same bytes.
            temporary.write_bytes(
                gzip.compress(content, mtime=0) if name.endswith(".gz") else content
            )


def read_table(file: Path) -> pd.DataFrame:
    """A table as written. Text stays text, and an empty text is not a missing number."""
    text = ["platform", "origin", "reason", "outcome", "status", "study", "variant", "backend"]
    table = pd.read_csv(file, dtype=dict.fromkeys(text, str))
    for column in set(text) & set(table.columns):
        table[column] = table[column].fillna("")
    return table


# --- one row per run ---------------------------------------------------------------------------


def cells_table(config: Config, runs: Sequence[Run]) -> pd.DataFrame:
    """A row for every run: axes, platform, status, and the summary of those that count."""
    return pd.DataFrame([_cell_row(config, run) for run in runs])


def _cell_row(config: Config, run: Run) -> dict[str, Any]:
    study = config.studies[run.cell.study]
    measured = {**run.summary} if run.counts else {}
    names = ["outcome", *MEASURES, "amax_forward_log10_final", "amax_backward_log10_final"]
    names += ["first_nonfinite_step", "chance_loss", "steps"]
    return {
        "key": run.cell.path(),
        **{axis: getattr(run.cell, axis) for axis in AXES},
        "recipe": study.recipe,
        "platform": run.platform,
        "origin": run.origin,
        "status": run.status,
        "reason": run.reason or _why_missing(config, run),
        **{name: measured.get(name) for name in names},
    }


def _why_missing(config: Config, run: Run) -> str:
    """For a cell that was not trained because its data could not be had: the first thing said."""
    record = fashion_mnist_folder() / "unavailable.txt"
    needs_data = config.studies[run.cell.study].task == "fashion"
    if run.status != "missing" or not needs_data or not record.is_file():
        return ""
    return record.read_text(encoding="utf-8").partition("\n")[0]


def steps_table(runs: Iterable[Run]) -> pd.DataFrame:
    """A row for every step of every run that counts."""
    frames = []
    for run in runs:
        if not run.counts:
            continue
        rows = pd.DataFrame(read_rows(run.folder))
        axes = {axis: getattr(run.cell, axis) for axis in AXES}
        place = {"platform": run.platform, "origin": run.origin}
        for position, (name, value) in enumerate({**axes, **place}.items()):
            rows.insert(position, name, value)
        frames.append(rows)
    if not frames:
        return pd.DataFrame(columns=[*AXES, "platform", "origin", "step", "loss"])
    return pd.concat(frames, ignore_index=True)


def platforms_table(runs: Iterable[Run]) -> pd.DataFrame:
    """A row for every platform and framework version that runs were measured with."""
    rows = []
    for run in runs:
        if not run.counts:
            continue
        device, manifest = run.manifest["device"], run.manifest
        rows.append(
            {
                "platform": run.platform,
                "backend": run.cell.backend,
                "framework_version": device["framework_version"],
                "device": device["name"],
                "kind": device["kind"],
                "driver": device.get("driver") or "",
                "blas": device.get("blas") or "",
                "os": manifest["os"],
                "cpu": manifest["cpu"],
                "python": manifest.get("python", ""),
                "numpy": manifest.get("numpy", ""),
                "threads": manifest.get("threads", ""),
                "origin": run.origin,
            }
        )
    if not rows:
        return pd.DataFrame(columns=[*PLACE, "runs"])
    table = pd.DataFrame(rows)
    return table.groupby(list(table.columns), dropna=False).size().reset_index(name="runs")


# --- one row per group of seeds ----------------------------------------------------------------


def summary_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Seeds summarised: a row per study × depth × variant × backend × platform.

    For every measure: `_n` (finite values), `_mean`, `_sd` and `_half`, the half-width of the
    95 % interval.
    """
    counted = cells[cells["status"].isin(["measured", "imported"])]
    rows = []
    for group, seeds in counted.groupby(GROUP, sort=False):
        outcomes = seeds["outcome"].value_counts()
        row = {
            **dict(zip(GROUP, group, strict=True)),
            "recipe": seeds["recipe"].iloc[0],
            "n": len(seeds),
            **{name.replace(" ", "_"): int(outcomes.get(name, 0)) for name in OUTCOMES},
            "chance_loss": seeds["chance_loss"].iloc[0],
            "steps": int(seeds["steps"].iloc[0]),
        }
        for measure in MEASURES:
            row |= {f"{measure}_{k}": v for k, v in interval(seeds[measure]).items()}
        rows.append(row)
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else [*GROUP, "n"])


def interval(values: pd.Series) -> dict[str, float]:
    """n, mean, sd and 95 % half-width (Student's t) of the finite values.

    Below three values an interval would say more than is known: its half-width is NaN.
    """
    finite = pd.to_numeric(values).dropna()
    n = len(finite)
    sd = float(finite.std(ddof=1)) if n > 1 else math.nan
    half = float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n) if n >= 3 else math.nan
    return {"n": n, "mean": float(finite.mean()) if n else math.nan, "sd": sd, "half": half}


def comparison_table(cells: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """A row per study × depth × variant and pair of places.

    Step-0 differences are the largest over common seeds: relative, |a − b| / |b|, for loss and
    gradient norm, absolute for the gain, which is a logarithm. NaN where a side is not finite.
    """
    places = summary[PLACE].drop_duplicates().itertuples(index=False)
    rows = []
    for a, b in itertools.combinations(places, 2):
        left, right = _at(summary, a), _at(summary, b)
        both = left.merge(right, on=CELL, suffixes=("_a", "_b"))
        for _, pair in both.iterrows():
            row = {name: pair[name] for name in CELL}
            row |= {
                f"{name}_{side}": getattr(p, name)
                for p, side in ((a, "a"), (b, "b"))
                for name in PLACE
            }
            same = cells[(cells[CELL] == [pair[name] for name in CELL]).all(axis=1)]
            seeds = _at(same, a).merge(_at(same, b), on="seed", suffixes=("_a", "_b"))
            row["seeds"] = len(seeds)
            for measure in ("loss_first", "grad_norm_first", "gain_first"):
                x, y = (pd.to_numeric(seeds[f"{measure}_{side}"]) for side in "ab")
                scale = 1 if measure == "gain_first" else y.abs()
                row[f"{measure}_difference"] = ((x - y).abs() / scale).max(skipna=False)
            for measure in ("loss_final", "gain_final", "test_accuracy", "seconds_per_step"):
                for part, side in itertools.product(("mean", "half"), "ab"):
                    row[f"{measure}_{part}_{side}"] = pair[f"{measure}_{part}_{side}"]
            for name, side in itertools.product(("n", "diverged", "at_chance"), "ab"):
                row[f"{name}_{side}"] = pair[f"{name}_{side}"]
            rows.append(row)
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else CELL)


def _at(table: pd.DataFrame, place: Any) -> pd.DataFrame:  # noqa: ANN401, a row of pandas
    return table[(table[PLACE] == [getattr(place, name) for name in PLACE]).all(axis=1)]
