"""What a bundle carries of a long run: the metrics of some steps, and all evaluations.

A run of at most FIRST + LATER steps is carried whole. Of a longer one a bundle has these many
steps, since git keeps every bundle for ever; the run's `Summary` in the manifest keeps tables the
same. Where the run was trained, all steps stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain

import numpy as np

from fathom_study import tasks
from fathom_study.metrics.steps import CLOCKS, Row

FIRST, LATER = 50, 200
"""Numbers of steps with all metrics: the first ones, and later ones evenly in the logarithm."""

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""The range of float32 numbers with all digits."""


@cache
def whole_steps(steps: int) -> frozenset[int]:
    """The steps that are kept of a run of `steps` steps."""
    if steps <= FIRST + LATER:
        return frozenset(range(steps))
    later = np.geomspace(FIRST, steps - 1, LATER).round().astype(int).tolist()
    return frozenset(chain(range(FIRST), later))


@cache
def dropped() -> frozenset[str]:
    """The metrics that an evaluation at another step lacks: those of every step, but the loss."""
    every = {name for name, metric in tasks.step_metrics().items() if metric.when == "every step"}
    return frozenset(every - {"step", "loss"})


def is_finite(row: Row) -> bool:
    """Whether every number of a row is finite."""
    return not any(type(value) is float and not math.isfinite(value) for value in row.values())


def thin_rows(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of a long run as a bundle has them, without clocks.

    Rows with a number that is not finite are kept; an evaluation at a step that is not kept has the
    loss beside it. After the first steps numbers are rounded to float32, except the loss and
    metrics that are not of every step.
    """
    whole = whole_steps(rows[-1]["step"] + 1)
    for row in rows:
        is_kept = row["step"] in whole or not is_finite(row)
        lost = CLOCKS if is_kept else dropped()
        rounded = dropped() if row["step"] >= FIRST else ()
        thinned = {
            name: _float32(value) if name in rounded and type(value) is float else value
            for name, value in row.items()
            if name not in lost
        }
        if is_kept or thinned.keys() > {"step", "loss"}:
            yield thinned


def _float32(value: float) -> float:
    """The nearest float32; the number itself if a float32 has no seven digits of it."""
    return float(np.float32(value)) if SMALLEST <= abs(value) <= LARGEST else value
