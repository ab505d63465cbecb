"""Tables and reports of made-up runs, none of them trained."""

import math
from pathlib import Path

import pandas as pd

from fathom_study.analysis import run_tables
from fathom_study.analysis.claims import write_claims
from fathom_study.analysis.derived import write_derived
from fathom_study.analysis.run_tables import comparison_table, summary_table
from fathom_study.report.pages.render import write_reports
from fathom_study.system.files import write_json
from tests.support.runs import CPU_PLATFORM, config_with
from tests.support.tables import CHANCE, curve, frame, run, save_by_study

NAN = math.nan

DEPTHS = [12, 24, 48]


def study_config(results, **changes):
    """The published sweep's two studies, with three seeds; `changes` as in config_with."""
    own = {
        "depth-mlx": {"part": "demos"},
        "depth-torch": {"part": "demos", "recipe": "torch-defaults"},
    }
    own = {name: {**study, **changes.pop(name, {})} for name, study in own.items()}
    return config_with(results, tuple(own), **{"depths": DEPTHS, **own, **changes})


def small_config(results, **changes):
    """The deepest cells of hc and mhc: enough for every sentence."""
    return study_config(results, **{"depths": [48], "variants": ["hc", "mhc"], **changes})


SPREAD = {"baseline": (1.1, 1.3, 1.2), "hc": (1.2, 0.9, 1.1), "mhc": (1.0, 0.9, 1 / 0.9)}
"""Factors on the losses of seeds; no two variants have the same."""


def vary(cell, loss):
    """A loss near the given one, for the cell's seed."""
    return loss * SPREAD[cell.variant][cell.seed]


def by_recipe(cell):
    """Final loss, set by the recipe; hc at 48 layers is NaN on torch, at chance on mlx."""
    if (cell.variant, cell.depth) == ("hc", 48):
        return NAN if cell.backend == "torch" else CHANCE
    return vary(cell, {"depth-mlx": 0.01, "depth-torch": 1.0}[cell.study])


def row_of(config, cell, loss):
    """Row of a run with this loss. Only hc at 48 layers overflows; only mhc logs its streams."""
    axes = {name: getattr(cell, name) for name in ("study", "depth", "variant", "backend", "seed")}
    values = {
        "recipe": config.studies[cell.study].recipe_name,
        "connection": cell.variant,
        "lr": 0.002,
        "loss_first": CHANCE,
        "loss_final": loss,
        "grad_norm_first": 1.0,
        "grad_norm_final": vary(cell, 0.1),
        "grad_norm_max": 1.5,
        "grad_norm_log10_sd": vary(cell, 0.06),
        "gain_first": 0.0,
        "gain_final": {"baseline": 0.0, "hc": 0.58 * cell.depth, "mhc": -0.6}[cell.variant],
        "seconds_per_step": 0.01,
    }
    if math.isnan(loss):
        values |= {"outcome": "diverged", "nonfinite_total": 3, "first_nonfinite_step": 0}
    elif loss > 0.95 * CHANCE:
        values["outcome"] = "at chance"
    if (cell.variant, cell.depth) == ("hc", 48):
        values |= {"overflow_layer": 30, "overflow_activation_log10": 20.25}
    if cell.variant == "mhc":
        values |= {"stream_difference_max": 0.00015, "grad_norm_H_res_max": 6.9e-6}
    return run(**axes, **values)


def write_world(config, published, templates, loss_of, **facts):
    """Write tables and reports of runs with these final losses; return their folder."""
    cells, steps = rows_of(config, loss_of)
    return write_all(config, published, templates, cells, steps, **facts)


def rows_of(config, loss_of):
    """(rows of cells.csv, rows of steps.csv) of runs with these losses; None: not run."""
    cells, steps = [], []
    for cell in config.cells():
        loss = loss_of(cell)
        if loss is None:
            cells.append({**row_of(config, cell, 1.0), "status": "missing"})
            continue
        cells.append(row_of(config, cell, loss))
        axes = (cell.variant, cell.depth, cell.seed, cell.study, cell.backend)
        steps += curve([CHANCE, CHANCE, loss], *axes)
    return cells, steps


def write_all(config, published, templates, cells, steps, **facts):
    """Write all tables and reports of these rows; return their folder."""
    folder = write_tables(config, published, cells, steps, **facts)
    write_reports(config, published, templates, folder)
    return folder


def write_tables(config, published, cells, steps, **facts):
    """Write all tables of these rows for a machine of these facts; return the results folder."""
    folder = Path(config.report_folder)
    cells = frame(cells)
    summary = summary_table(cells)
    facts = {"machine": CPU_PLATFORM, "framework_version": "2.0.0", "device": "Test CPU",
             "kind": "cpu", "driver": "", "blas": "", "os": "TestOS", "python": "3.11.0",
             "numpy": "2.0.0", "threads": 1, "made_by": "", "runs": 3, **facts}  # fmt: skip
    platforms = [
        {"platform": name, "backend": name.partition("-")[0], **facts}
        for name in summary["platform"].unique()
    ]
    save_by_study(
        {
            "cells.csv": cells,
            "steps.csv.gz": frame(steps) if steps else frame(curve([1.0])).iloc[:0],
            "summary.csv": summary,
            "comparison.csv": comparison_table(cells),
            "platforms.csv": pd.DataFrame(platforms, columns=["platform", "backend", *facts]),
        },
        folder / "tables",
        config.studies,
    )
    write_derived(config, folder / "tables")
    write_claims(config, published, folder / "tables")
    return folder


def analyze_runs(config, published):
    """Write config.json and all tables of the existing runs, as the workflow does."""
    folder = Path(config.report_folder)
    write_json(folder / "config.json", config.resolved())
    run_tables.write_tables(config, folder / "tables")
    write_claims(config, published, folder / "tables")
    return folder


IMAGES = {"task": "fashion", "variants": ["resnet", "mhc_causal"], "streams": 1, "depths": [4],
          "seeds": [0, 1, 2], "model": {"width": 16}, "recipe": "mlx-defaults"}  # fmt: skip


TEXT = {"task": "text", "recipe": "nanochat", "depths": [2], "seeds": [0, 1, 2],
        "backends": ["torch"], "model": {"length": 16, "width": 16, "heads": 4, "hidden": 32,
        "wrap": "sublayer"}}  # fmt: skip
