"""What is trained, what is left, and how long that will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fathom.config import Cell, Config, installed_backends
from fathom.runs.estimate import STARTUP_SECONDS, assumed_step_seconds
from fathom.runs.inspect import STATUSES, Run, find_runs
from fathom.runs.replay import group_of


@dataclass(frozen=True)
class Status:
    """The state of every cell of a config."""

    runs: list[Run]
    left_seconds: dict[Cell, float]
    """Cells to train here, not current and with their backend installed, and none with `train:
    false`: how long each takes on one core, an estimate."""
    timed: int
    """How many finished cells the estimate rests on; without any, on a guess at the rate."""

    @property
    def left(self) -> list[Cell]:
        """Cells to train here."""
        return list(self.left_seconds)

    @property
    def seconds(self) -> float:
        """An estimate of the time to train all that are left, on one core."""
        return sum(self.left_seconds.values())

    @property
    def counts(self) -> dict[str, int]:
        """How many runs have each status, in the order of STATUSES; absent if none."""
        return counted(self.runs)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
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


def counted(runs: Sequence[Run]) -> dict[str, int]:
    """How many of the runs have each status, in the order of STATUSES; absent if none."""
    counter = Counter(run.status for run in runs)
    return {status: counter[status] for status in STATUSES if counter[status]}


def status_of(config: Config, studies: Sequence[str] = ()) -> Status:
    """The state of the cells of the given studies, or of all."""
    runs = [run for run in find_runs(config) if not studies or run.cell.study in studies]
    here = installed_backends() if config.train else ()
    settled = {run.cell for run in runs if run.status == "measured"}
    cells = dict.fromkeys(run.cell for run in runs)
    left = [cell for cell in cells if cell not in settled and cell.backend in here]
    timed = [run for run in runs if run.status == "measured" and run.manifest.seconds]
    return Status(runs, estimated_seconds(config, timed, left), len(timed))


def estimated_seconds(
    config: Config, timed: Sequence[Run], left: Sequence[Cell]
) -> dict[Cell, float]:
    """Time to train each of the cells left, from runs that say how long they took here.

    A cell is as fast as its like (study, depth, variant, backend) was. Without one, it takes what
    its operations let assume, times how much longer than that its backend has taken here.
    """
    assumed: dict[tuple, float] = {}
    """Seconds of a step; the same for all seeds and backends."""

    def assumed_step(cell: Cell) -> float:
        network = (cell.study, cell.depth, cell.variant)
        if network not in assumed:
            assumed[network] = assumed_step_seconds(config.spec(cell))
        return assumed[network]

    of_like: dict[str, list[float]] = {}
    of_backend: dict[str, list[float]] = {}
    for run in timed if left else ():
        step = run.manifest.seconds / config.studies[run.cell.study].steps
        of_like.setdefault(group_of(run.cell), []).append(step)
        of_backend.setdefault(run.cell.backend, []).append(step / assumed_step(run.cell))

    def step_seconds(cell: Cell) -> float:
        if same := of_like.get(group_of(cell)):
            return median(same)
        return assumed_step(cell) * median(of_backend.get(cell.backend, [1.0]))

    return {
        cell: STARTUP_SECONDS + step_seconds(cell) * config.studies[cell.study].steps
        for cell in left
    }
