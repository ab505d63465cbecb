"""Progress of a training: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fathom.system.text import format_duration
from fathom_study import tasks
from fathom_study.config import Spec
from fathom_study.metrics.steps import Row
from fathom_study.train import Chunk

LOG_LINES = 10
"""Approximate number of log lines of a quick training."""

QUIET_SECONDS = 30.0
"""Maximum time between log lines of a slow training, plus the time of its current step."""


@contextmanager
def training_progress(spec: Spec) -> Iterator[Callable[[Chunk], None]]:
    """Show progress on standard error; yields a function to call with every chunk."""
    if not sys.stderr.isatty():
        yield log_lines(spec)
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),  # moves during a slow step
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total}  {task.fields[metrics]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(str(spec.cell), total=spec.steps, metrics="starting")

        def update(chunk: Chunk) -> None:
            last = chunk.rows[-1]
            progress.update(bar, completed=last["step"] + 1, metrics=format_row(last))

        yield update


def log_lines(spec: Spec) -> Callable[[Chunk], None]:
    """A function that prints about LOG_LINES steps, or one after QUIET_SECONDS, to stderr."""
    every = max(1, spec.steps // LOG_LINES)
    printed_at = time.monotonic()

    def report(chunk: Chunk) -> None:
        nonlocal printed_at
        late = time.monotonic() - printed_at >= QUIET_SECONDS
        for row in chunk.rows:
            done = row["step"] + 1
            is_due = row["step"] == 0 or done % every == 0 or done == spec.steps
            if is_due or (late and row is chunk.rows[-1]):
                left = format_duration((spec.steps - done) * row["step_seconds"])
                rest = f", {left} left" if done < spec.steps else ""
                line = f"{spec.cell} step {done}/{spec.steps}  {format_row(row)}{rest}"
                print(line, file=sys.stderr)
                printed_at = time.monotonic()

    return report


def format_row(row: Row) -> str:
    """The main metrics of a step, in one line."""
    parts = [
        m.shown.format(row[name])
        for name, m in tasks.step_metrics().items()
        if name in row and m.shown
    ]
    return "  ".join([*parts, f"{1 / row['step_seconds']:.1f} steps/s"])
