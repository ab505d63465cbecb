"""Trained cells, cells left to train, and an estimate of the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fathom_study import datasets
from fathom_study.config import Cell, Config, installed_backends
from fathom_study.runs.estimate import estimate_from_runs
from fathom_study.runs.run import STATUSES, Run
from fathom_study.runs.validate import find_runs


@dataclass(frozen=True)
class Status:
    """The state of every cell of a config."""

    runs: list[Run]
    left_seconds: dict[Cell, float]
    """Estimated seconds on one core, by cell to train here: cells that are not current and whose
    backend is installed; none with `train: false`."""
    timed: int
    """Number of finished cells behind the estimate; with 0 it is a guess from operations."""

    @property
    def left(self) -> list[Cell]:
        """Cells to train here."""
        return list(self.left_seconds)

    @property
    def seconds(self) -> float:
        """Estimated seconds to train all remaining cells on one core."""
        return sum(self.left_seconds.values())

    @property
    def counts(self) -> dict[str, int]:
        """Number of runs by status, in the order of STATUSES; statuses without runs are absent."""
        return count_statuses(self.runs)

    def as_json(self) -> dict[str, Any]:
        """The status as data for JSON."""
        return {
            "counts": self.counts,
            "left": [cell.path() for cell in self.left],
            "estimated_seconds": self.seconds,
            "estimated_from_cells": self.timed,
            "runs": [
                {
                    "cell": run.cell.path(),
                    "platform": run.platform,
                    "status": run.status,
                    "reason": run.explanation,
                    "replay": run.replay,
                }
                for run in self.runs
            ],
        }


def trainable(config: Config, installed: Collection[str]) -> tuple[list[Cell], list[str]]:
    """(cells to train here, none with `train: false`; a line for each reason to omit others)."""
    cells = config.cells() if config.train else []
    needs = {name: study.dataset for name, study in config.studies.items() if study.dataset}
    data = config.compute.data
    missing = {name for name in needs.values() if datasets.unavailable(name, data)}
    lines = [
        f"the data set {name} is unavailable, so its studies are left out; "
        f"{datasets.folder_of(name, data) / datasets.UNAVAILABLE} says what was tried "
        "(snakemake data tries again)"
        for name in sorted(missing if cells else [])
    ]
    counts = Counter(cell.backend for cell in cells if cell.backend not in installed)
    lines += [
        f"backend {name} is not installed here: {n} cells are left out; "
        f"run: pip install -e '.[{name}]'"
        for name, n in sorted(counts.items())
    ]
    return [
        cell for cell in cells if cell.backend in installed and needs.get(cell.study) not in missing
    ], lines


def count_statuses(runs: Sequence[Run]) -> dict[str, int]:
    """Number of runs by status, in the order of STATUSES; statuses without runs are absent."""
    counter = Counter(run.status for run in runs)
    return {status: counter[status] for status in STATUSES if counter[status]}


def status_of(config: Config, studies: Sequence[str] = ()) -> Status:
    """The state of the cells of the given studies, or of all."""
    runs = [run for run in find_runs(config) if not studies or run.cell.study in studies]
    here = installed_backends() if config.train else ()
    current = {run.cell for run in runs if run.status == "measured"}
    cells = dict.fromkeys(run.cell for run in runs)
    left = [cell for cell in cells if cell not in current and cell.backend in here]
    timed = [run for run in runs if run.status == "measured" and run.manifest.seconds]
    return Status(runs, estimate_from_runs(config, timed, left), len(timed))
