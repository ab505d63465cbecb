"""Effect of learned connections: retrain cells, and evaluate each with its connection reset.

    python benchmarks/learned.py 'released/12L/attn_res*/torch/seed0' --out benchmarks/learned.csv

After training, the connection's parameters get their initial values back, and the rest of the
network stays as trained. If the score is the same, the network does not use the learned values of
the connection. docs/schemes.md has the differences.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from safetensors.numpy import load_file
from steps import with_earlier, write_rows

from fathom.library import PREFIX
from fathom_study import datasets, tasks
from fathom_study.analysis.tables import scores_of
from fathom_study.cli.options import output_file
from fathom_study.config import load_config
from fathom_study.metrics.scores import measure_score
from fathom_study.report.pages.documents import CONFIG
from fathom_study.runs.folder import WEIGHTS, read_manifest
from fathom_study.runs.training import connect, run_cell, trainer_for

COLUMNS = ("key", "variant", "cpu", "metric", "score", "reset")
"""Columns of the table: scores with the connection as trained and as initialised."""


def main(
    patterns: Annotated[list[str], typer.Argument(help="Cells, as in 'released/12L/*'.")],
    out: Annotated[Path, output_file(help="Add the rows to this table.")],
    config: Annotated[list[Path], typer.Option("-c", "--config", help="Config files.")] = CONFIG,
) -> None:
    """Train these cells, and add a row for each that has parameters of a connection."""
    studies = load_config(config)
    compute = studies.compute
    os.environ[datasets.ENVIRONMENT] = compute.data
    scores = scores_of(studies)
    for cell in studies.select_cells(patterns):
        spec = studies.spec(cell).model_copy(update={"weights": True})
        start = tasks.Problem(spec).initial_parameters()
        reset = {name: value for name, value in start.items() if name.startswith(PREFIX)}
        if not reset:
            continue
        metric = scores[cell.study].metric
        with tempfile.TemporaryDirectory(prefix="fathom-") as made:
            folder = Path(made)
            run_cell(spec, folder, compute)
            problem, trained = tasks.Problem(spec), load_file(folder / WEIGHTS)
            manifest = read_manifest(folder)
        backend, measured = connect(spec, compute), []
        for params in (trained, trained | reset):
            trainer = trainer_for(problem, backend, params)
            found = problem.at_evaluation(backend.ops, trainer.infer, is_last=True)
            measured.append(measure_score([found], tasks.run_metrics()[metric]))
        values = (cell.path(), cell.variant, manifest.cpu, metric, *measured)
        row = dict(zip(COLUMNS, values, strict=True))
        write_rows(out, with_earlier([row], out, ("key", "cpu"), COLUMNS), COLUMNS)
        print(row, flush=True)


if __name__ == "__main__":
    typer.run(main)
