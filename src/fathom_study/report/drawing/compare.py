"""`fathom compare`: config of a task's published comparison, and its tables and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from fathom.settings import ConfigError, deep_merge
from fathom_study import tasks
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.run_tables import write_tables
from fathom_study.analysis.tables import AXES, read_steps, read_with_times
from fathom_study.config import Config, check_config
from fathom_study.report.drawing.draw import draw_study
from fathom_study.report.pages.reports import check_is_no_report_folder
from fathom_study.system.files import write_text

STUDY = "compare"


def comparison(task: str, changes: Mapping[str, Any], out: Path) -> Config:
    """Config of a task's published comparison with `changes` applied and results in `out`.

    Changes that are None are ignored. Raises ConfigError for a task without a comparison.
    """
    known = [name for name in tasks.TASKS if tasks.presentation(name).comparison]
    if task not in known:
        raise ConfigError(f"unknown task '{task}' for compare (known: {', '.join(known)})")
    study = deep_merge(tasks.presentation(task).comparison or {}, _given(changes))
    check_is_no_report_folder(out)
    return check_config({"results": str(out), "studies": {STUDY: study}}, "compare")


def _given(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _given(value) if isinstance(value, Mapping) else value
        for key, value in changes.items()
        if value is not None
    }


def write_comparison(config: Config) -> str:
    """Write tables, figures and metrics_TIME.json beside the runs; return a table of variants."""
    out, tables, study = Path(config.results), Path(config.results, "tables"), config.studies[STUDY]
    shown, platform = tasks.presentation(study.task), Platform(study.backends[0])
    write_tables(config, tables)
    draw_study(config, STUDY, platform, tables, out, shown.figures)
    cells = read_with_times(tables / "cells.csv").set_index("variant", drop=False)
    cells["diverged"] = cells["outcome"] == "diverged"
    steps = read_steps(tables, [STUDY]).drop(columns=[*(set(AXES) - {"variant"}), "platform"])
    record = {
        "config": {cell.variant: config.spec(cell).model_dump() for cell in config.cells()},
        "summary": json.loads(cells.to_json(orient="index", double_precision=15)),
        "history": {
            variant: {name: _values(rows[name]) for name in rows.dropna(axis=1, how="all")}
            for variant, rows in steps.set_index("variant").groupby(level=0, sort=False)
        },
    }
    file = out / f"metrics_{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
    write_text(file, json.dumps(record, allow_nan=False) + "\n")
    columns = dict.fromkeys(("score", *shown.compared, "grad_norm_max", "outcome", "seconds"))
    return f"{cells[[*columns]].to_string(index_names=False)}\nFigures, runs, {file.name}: {out}"


def _values(column: pd.Series) -> list[Any]:
    """Values of a column as a list; None for non-finite values."""
    return json.loads(column.to_json(orient="values", double_precision=15))
