"""Training many cells without Snakemake: which are left, and a pool of processes for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path

from fathom.backends import BackendError
from fathom.config import Compute, Config, Spec, installed_backends
from fathom.runs.bundle import cells_of
from fathom.runs.estimate import assumed_seconds, timed_seconds, timed_step_seconds
from fathom.runs.folder import run_folder
from fathom.runs.inspect import inspect
from fathom.runs.progress import log_lines
from fathom.runs.training import run_cell
from fathom.system.errors import UserError


def specs_left(config: Config, patterns: Sequence[str], say: Callable[[str], None]) -> list[Spec]:
    """Specs of the chosen cells that are not trained yet, the longest first.

    How long is an estimate from their operations. A backend that is not installed is left out and
    said. Raises ConfigError for a pattern that fits no cell or if the config lets none be trained,
    BackendError if none of those chosen can be trained here.
    """
    config.check_trains()
    cells = cells_of(config, patterns)
    here = installed_backends()
    for backend in sorted({cell.backend for cell in cells} - set(here)):
        say(f"backend {backend} is not installed here: left out")
    specs = [config.spec(cell) for cell in cells if cell.backend in here]
    if not specs:
        raise BackendError("no chosen cell can be trained here: its backend is not installed")
    results = Path(config.results)
    left = [s for s in specs if _status(s, results) != "measured"]
    # Long cells first, so that no worker waits for one that began last.
    return sorted(left, key=lambda spec: assumed_seconds([spec]), reverse=True)


def _status(spec: Spec, results: Path) -> str:
    return inspect(run_folder(results, spec.cell), spec).status


def estimated_seconds(specs: Sequence[Spec], compute: Compute) -> float | None:
    """How long these trainings take here one after the other, from timed steps.

    Those of the first spec of each backend; see `specs_left` for their order. None where one
    cannot be trained here: training says why.
    """
    first = {spec.backend: spec for spec in reversed(specs)}
    try:
        timed = {name: timed_step_seconds(spec, compute) for name, spec in first.items()}
    except UserError:
        return None
    return timed_seconds(specs, timed)


def train_each(
    specs: Sequence[Spec], results: Path, compute: Compute, jobs: int
) -> Iterator[tuple[Spec, str]]:
    """Train every spec, so many at once; yields each with its error, empty if there was none."""
    if jobs == 1:
        for spec in specs:
            yield spec, _train_one(spec, run_folder(results, spec.cell), compute)
        return
    # Spawned: a forked child would inherit the threads and locks of a framework.
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_end_with_parent) as pool:
        pending = {
            pool.submit(_train_one, spec, run_folder(results, spec.cell), compute): spec
            for spec in specs
        }
        for future in as_completed(pending):
            try:
                yield pending[future], future.result()
            except BrokenProcessPool:
                # As the system does where memory runs out; the pool gives up its other cells too.
                yield pending[future], "a worker was killed; run it again to go on"


def _end_with_parent() -> None:
    """Let this worker end when its parent is killed, or both would write to the same folders."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train_one(spec: Spec, folder: Path, compute: Compute) -> str:
    try:
        run_cell(spec, folder, compute, log_lines(spec))
    except (UserError, OSError) as error:
        return str(error)
    return ""
