"""Time a training step of each network of a study, in turns: `fathom step-times`."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import TextIO

from fathom import datasets
from fathom.backends import connect
from fathom.bench.measure import YARDSTICK, Worker, time_in_turns
from fathom.config import Cell, Config, common_depth
from fathom.runs.folder import platform_name
from fathom.system.hardware import operating_system


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step of one network: the median of turns, and their range."""

    study: str
    depth: int
    variant: str
    backend: str
    machine: str
    turns: int
    threads: int
    seconds: float
    low: float
    high: float


def step_times(
    config: Config, studies: Iterable[str], turns: int, threads: int
) -> Iterator[StepTime]:
    """A row for each network of these studies, at the depth that most of their variants have.

    On PyTorch's CPU. Variants whose steps are the same work are timed once, all of a study in
    turns, so that what else the machine does weighs on all alike. Studies without cells on PyTorch
    are passed over.
    """
    os.environ[datasets.ENVIRONMENT] = config.compute.data
    device = connect(YARDSTICK, "cpu", threads).device
    machine = platform_name(device.kind, device.name, operating_system())
    for study in studies:
        networks = _networks(config, study)
        with ExitStack() as stack:
            workers = {
                (name, "ours"): stack.enter_context(Worker(config.spec(cell), "ours", threads))
                for name, cell in networks.items()
            }
            times = time_in_turns(workers, turns)
        for (name, _), seconds in times.items():
            depth, found = networks[name].depth, (median(seconds), min(seconds), max(seconds))
            yield StepTime(study, depth, name, YARDSTICK, machine, turns, threads, *found)


def _networks(config: Config, study: str) -> dict[str, Cell]:
    """A cell of each network of a study, at the depth that most variants have.

    By the first variant with that network, which need not have that depth itself.
    """
    cells = {
        (cell.depth, cell.variant): cell
        for cell in config.cells()
        if cell.study == study and cell.backend == YARDSTICK
    }
    depth, same = common_depth(depth for depth, _ in cells), config.same_work(study)
    return {same[variant]: cell for (at, variant), cell in cells.items() if at == depth}


def write_step_times(rows: Sequence[StepTime], file: TextIO) -> None:
    """Write them as CSV."""
    writer = csv.DictWriter(file, [field.name for field in fields(StepTime)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: f"{x:.4g}" if isinstance(x, float) else x for name, x in asdict(row).items()}
        for row in rows
    )
