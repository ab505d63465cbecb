"""What is trained, what is left, and how long that will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fathom.config import Cell, Config, installed_backends
from fathom.runs.inspect import STATUSES, Run, find_runs

STARTUP_SECONDS = 4.0
"""Roughly what a job takes beside its steps: interpreter, framework, first step."""


@dataclass(frozen=True)
class Status:
    """The state of every cell of a config."""

    runs: list[Run]
    left: list[Cell]
    """Cells to train here: not current, of an installed backend; none with `train: false`."""
    seconds: float | None
    """An estimate of the time to train these on one core; None if nothing was measured yet."""

    @property
    def counts(self) -> dict[str, int]:
        """How many runs have each status, in the order of STATUSES; absent if none."""
        counter = Counter(run.status for run in self.runs)
        return {status: counter[status] for status in STATUSES if counter[status]}

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "counts": self.counts,
            "left": [cell.path() for cell in self.left],
            "estimated_seconds": self.seconds,
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


def status_of(config: Config, studies: Sequence[str] = ()) -> Status:
    """The state of the cells of the given studies, or of all."""
    runs = [run for run in find_runs(config) if not studies or run.cell.study in studies]
    here = installed_backends() if config.train else ()
    settled = {run.cell for run in runs if run.status == "measured"}
    cells = dict.fromkeys(run.cell for run in runs)
    left = [cell for cell in cells if cell not in settled and cell.backend in here]
    return Status(runs, left, estimated_seconds(config, runs, left))


def estimated_seconds(config: Config, runs: Sequence[Run], left: Sequence[Cell]) -> float | None:
    """Time to train the cells left, from the steps measured here; None without any.

    A cell is as fast as its like (study, depth, variant, backend) was; without one, as fast per
    layer as the backend was.
    """
    if not left:
        return 0.0
    like: dict[tuple, list[float]] = {}
    per_layer: dict[str, list[float]] = {}
    for run in runs:
        if run.status == "measured" and run.manifest.seconds:
            cell = run.cell
            seconds = run.manifest.seconds / config.studies[cell.study].steps
            like.setdefault((cell.study, cell.depth, cell.variant, cell.backend), []).append(
                seconds
            )
            per_layer.setdefault(cell.backend, []).append(seconds / cell.depth)
    total = 0.0
    for cell in left:
        same = like.get((cell.study, cell.depth, cell.variant, cell.backend))
        if same:
            step = median(same)
        elif cell.backend in per_layer:
            step = median(per_layer[cell.backend]) * cell.depth
        else:
            return None
        total += STARTUP_SECONDS + step * config.studies[cell.study].steps
    return total
