"""Train many cells without Snakemake, in a pool of processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from fathom.connections.module import own_code
from fathom.system.errors import UserError, of_system, say
from fathom_study.backends import BackendError
from fathom_study.config import Cell, Compute, Config, Spec, installed_backends
from fathom_study.runs.contract import check_contract
from fathom_study.runs.estimate import assumed_seconds, assumed_step_seconds
from fathom_study.runs.folder import run_folder
from fathom_study.runs.pools import by_backend
from fathom_study.runs.progress import log_lines
from fathom_study.runs.training import connect, run_cell, time_measurements, time_problem
from fathom_study.runs.validate import validate_run
from fathom_study.tasks import Problem


def specs_left(
    config: Config, patterns: Sequence[str], folder_of: Callable[[Cell], Path] | None = None
) -> list[Spec]:
    """Specs of the chosen cells that are not trained yet, the longest first by their operations.

    `folder_of`: the run folder of a cell; by default the one in the config's results.
    Cells of a backend that is not installed are left out; prints a line for it. Raises ConfigError
    for a pattern that matches no cell or with `train: false`, BackendError if none can be trained.
    """
    cells = config.select_cells(patterns)
    config.check_trains({cell.study for cell in cells})
    here = installed_backends()
    for backend in sorted({cell.backend for cell in cells} - set(here)):
        say(f"backend {backend} is not installed here: its cells are left out")
    specs = [config.spec(cell) for cell in cells if cell.backend in here]
    if not specs:
        raise BackendError("no chosen cell can be trained here; install its backend")
    place = folder_of or partial(run_folder, Path(config.results))
    left = [spec for spec in specs if validate_run(place(spec.cell), spec).status != "measured"]
    # Long cells first: one that begins last would keep a single worker busy at the end.
    return sorted(left, key=assumed_seconds, reverse=True)


MOST_TIMED = 8
"""Maximum number of networks to time; beyond it, only the longest of each backend."""

SHALLOW = 4
"""Layers of the network that is timed for an evaluation: a deep one takes minutes."""


def estimate_by_timing(specs: Sequence[Spec], compute: Compute) -> float:
    """Seconds that these trainings take here one after the other, evaluations included.

    Times a few steps of the longest training of each variant, and an evaluation of a shallow
    network. An evaluation is assumed to take the same number of steps in all networks of a backend.
    Raises UserError if a network cannot be trained here.
    """
    by_variant = {(spec.backend, spec.variant): spec for spec in reversed(specs)}
    of_backend = {spec.backend: spec for spec in reversed(specs)}
    is_few = len(by_variant) <= MOST_TIMED
    timed = by_variant if is_few else {(backend, ""): s for backend, s in of_backend.items()}
    rates = {}
    for key, spec in timed.items():
        problem, backend = Problem(spec), connect(spec, compute)
        # A broken contract would end the timing with an error that does not name it.
        check_contract(problem, backend)
        with own_code(spec.connection):
            rates[key] = time_problem(problem, backend) / assumed_step_seconds(spec)
    evaluations = {backend: _evaluation(spec, compute) for backend, spec in of_backend.items()}
    total = 0.0
    for spec in specs:
        at_start, in_steps = evaluations[spec.backend]
        step = rates[spec.backend, spec.variant if is_few else ""] * assumed_step_seconds(spec)
        count = math.ceil(spec.steps / (spec.evaluate_every or spec.steps))
        total += at_start + step * (spec.steps + in_steps * count)
    return total


def _evaluation(spec: Spec, compute: Compute) -> tuple[float, float]:
    """(seconds before the first step, time of an evaluation in steps) of a shallow network."""
    shallow = spec.model_copy(update={"depth": min(spec.depth, SHALLOW)})
    at_start, evaluation = time_measurements(shallow, compute)
    return at_start, evaluation / time_problem(Problem(shallow), connect(shallow, compute))


def train_each(
    specs: Sequence[Spec],
    folder_of: Callable[[Cell], Path],
    compute: Compute,
    jobs: int,
    *,
    logs: bool = True,
) -> Iterator[tuple[Spec, str]]:
    """Train every spec, `jobs` at a time; yields each with its error, empty if there was none."""
    items = [(spec.backend, (spec, folder_of(spec.cell))) for spec in specs]
    for (spec, _), error in by_backend(partial(_train_one, compute, logs), items, jobs):
        yield spec, "a worker was killed; run it again to resume" if error is None else error


def _train_one(compute: Compute, logs: bool, cell: tuple[Spec, Path]) -> str:
    spec, folder = cell
    if validate_run(folder, spec).status == "measured":
        return ""  # by another process, since this one began
    try:
        run_cell(spec, folder, compute, *([log_lines(spec)] if logs else []))
    except OSError as error:
        return of_system(error)
    except UserError as error:
        return str(error)
    return ""
