"""Retrain cells of the reference on this processor, and record their final scores.

    python benchmarks/processors.py 'flow/16L/*/torch/seed0' --out benchmarks/processors.csv

`benchmarks/essays.py processors` compares these scores with those of results/reference, from
another processor.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from steps import with_earlier, write_rows

from fathom_study import datasets, tasks
from fathom_study.analysis.run_tables import run_metrics
from fathom_study.cli.options import output_file
from fathom_study.config import load_config
from fathom_study.report.pages.documents import CONFIG
from fathom_study.runs.folder import read_manifest, read_rows
from fathom_study.runs.training import run_cell

COLUMNS = ("key", "cpu", "framework_version", "outcome", "score")
"""Columns of the table: a cell, processor and framework of its retraining, outcome and score."""


def main(
    patterns: Annotated[list[str], typer.Argument(help="Cells, as in 'flow/16L/*'.")],
    out: Annotated[Path, output_file(help="Add the rows to this table.")],
) -> None:
    """Train these cells, and add a row for each."""
    config = load_config(CONFIG)
    os.environ[datasets.ENVIRONMENT] = config.compute.data
    for cell in config.select_cells(patterns):
        spec = config.spec(cell)
        with tempfile.TemporaryDirectory(prefix="fathom-") as made:
            run_cell(spec, Path(made), config.compute)
            manifest, rows = read_manifest(Path(made)), read_rows(Path(made))
        study = config.studies[cell.study]
        found = run_metrics(spec, tasks.summary_of(spec, rows), study.score)
        row = {
            "key": cell.path(),
            "cpu": manifest.cpu,
            "framework_version": manifest.device.framework_version,
            "outcome": found["outcome"],
            "score": found["score"],
        }
        write_rows(out, with_earlier([row], out, ("key", "cpu"), COLUMNS), COLUMNS)
        print(row["key"], row["score"], flush=True)


if __name__ == "__main__":
    typer.run(main)
