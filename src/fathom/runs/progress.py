"""How a training shows that it is alive: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fathom.config import Spec
from fathom.measures import STEP_MEASURES, Row
from fathom.train import Chunk

LOG_LINES = 10
"""About how many lines a training leaves in a log."""


@contextmanager
def training_progress(spec: Spec) -> Iterator[Callable[[Chunk], None]]:
    """A function to call with every chunk; shows progress on standard error until left."""
    if not sys.stderr.isatty():
        yield log_lines(spec)
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total}  {task.fields[metrics]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(str(spec.cell), total=spec.steps, metrics="starting")

        def update(chunk: Chunk) -> None:
            last = chunk.rows[-1]
            progress.update(bar, completed=last["step"] + 1, metrics=describe(last))

        yield update


def log_lines(spec: Spec) -> Callable[[Chunk], None]:
    """A function that prints about ten lines to standard error over a training."""
    every = max(1, spec.steps // LOG_LINES)

    def report(chunk: Chunk) -> None:
        for row in chunk.rows:
            done = row["step"] + 1
            if row["step"] == 0 or done % every == 0 or done == spec.steps:
                print(f"{spec.cell} step {done}/{spec.steps}  {describe(row)}", file=sys.stderr)

    return report


def describe(row: Row) -> str:
    """The measures that tell how a training fares, in one line."""
    parts = [
        m.shown.format(row[name]) for name, m in STEP_MEASURES.items() if name in row and m.shown
    ]
    return "  ".join([*parts, f"{1 / row['step_seconds']:.1f} steps/s"])
