"""Replay: check whether today's code repeats runs that were made elsewhere.

A *group* holds the imported runs of one study, depth, variant and backend that one platform made
with one code. Today's code repeats a few steps of the first run and one step of every other, and
compares the metrics. The outcomes are kept outside the runs' folders (`write_replays`). A run can
also be repeated as a whole.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fathom.system.text import one_line
from fathom_study import tasks
from fathom_study.backends import Backend, BackendError
from fathom_study.config import Compute, Config
from fathom_study.datasets import DataError
from fathom_study.metrics.steps import CLOCKS, Row
from fathom_study.runs.folder import (
    Manifest,
    RunError,
    check_content,
    check_run,
    read_manifest,
    read_rows,
    read_spec,
)
from fathom_study.runs.run import Run
from fathom_study.runs.thinning import thin_rows
from fathom_study.runs.training import connect, environment, run_cell, same_digits
from fathom_study.runs.training_code import training_code_hash
from fathom_study.runs.validate import GroupReplay, Replay, read_replays, steps_to_repeat
from fathom_study.tasks import Problem
from fathom_study.train import Chunk, step_rows, take_step, trainer_for

RELATIVE = ("loss", "grad_norm")
LOGARITHMS = ("gain_proxy_log10_max_entry", "amax_forward_log10", "amax_backward_log10")
COMPARED = (*RELATIVE, *LOGARITHMS)
"""Metrics that are compared if a run has them: LOGARITHMS by difference, others relatively."""

TOLERANCES = {"loss": (1e-4, 1e-3), "grad_norm": (1e-3, 1e-2)}
TOLERANCES_OF_GAINS = (1e-4, 1e-2)
"""Largest differences on another platform, at step 0 and after it; metrics without an entry have
TOLERANCES_OF_GAINS. Reasons: docs/definitions/runs.md."""

MAX_WHY = 400
"""Maximum number of characters of an outcome's details."""


class Comparison(NamedTuple):
    """Result of comparing the rows of two trainings; its fields are also those of a Replay."""

    outcome: str
    why: str
    differences: dict[str, float | None]


def replay_group(config: Config, compute: Compute, group: Sequence[Run]) -> GroupReplay:
    """Replay a group; writes nothing.

    A group that cannot be repeated is an outcome, not an error. Runs after the first that does not
    agree are not repeated.
    """
    cell = group[0].cell
    spec, known = config.spec(cell), read_replays(config, cell.study, cell.backend)
    code, replays = training_code_hash(spec), []
    for place, run in enumerate(group):
        before = known.get(run.manifest.sha256)  # perhaps from a smaller group
        steps = max(steps_to_repeat(spec, place), before.steps if before else 0)
        comparison = repeat(run, compute, steps)
        replays.append(Replay(code=code, steps=steps, **comparison._asdict()))
        if comparison.outcome != "agrees":
            break
    return GroupReplay(group, replays + [None] * (len(group) - len(replays)))


def repeat(run: Run, compute: Compute, steps: int) -> Comparison:
    """Repeat the first `steps` steps of the run, and compare."""
    compute = _like(run.manifest, compute)
    try:
        # The content of a run that names today's code was checked by `validate_run`.
        is_checked, folder = run.counts, run.folder
        problem = Problem(read_spec(folder)) if is_checked else check_content(folder, run.manifest)
        recorded = read_rows(run.folder, steps)
        backend = connect(problem.spec, compute)
        again = first_rows(problem, backend, len(recorded))
    except (BackendError, DataError) as error:
        return Comparison("unavailable", one_line(str(error), MAX_WHY), {})
    except RunError as error:
        why = f"cannot be read, {str(error).removeprefix(f'{run.folder}/')}"
        return Comparison("differs", one_line(why, MAX_WHY), {})
    exactly = same_digits(environment(backend, compute.threads), run.manifest.model_dump())
    rate = None if exactly else problem.spec.optimizer.lr
    return compare_rows(recorded, again, rate)


def _like(manifest: Manifest, compute: Compute) -> Compute:
    """The settings with a run's device and its threads, at most those of this machine."""
    threads = max(min(manifest.threads, os.cpu_count() or 1), 1)
    return compute.model_copy(update={"device": manifest.device.kind, "threads": threads})


def replay_whole(
    folder: Path, compute: Compute, on_chunk: Callable[[Chunk], None]
) -> tuple[int, Comparison]:
    """Train the run in `folder` again and compare every step; returns (steps, comparison).

    Raises RunError for a run that is damaged, BackendError or DataError where it cannot be trained.
    """
    manifest, spec = read_manifest(folder), read_spec(folder)
    check_run(folder, manifest, spec.cell)
    with tempfile.TemporaryDirectory(prefix="fathom-") as made:
        run_cell(spec, Path(made), _like(manifest, compute), on_chunk)
        return spec.steps, compare_runs(folder, Path(made))


def compare_runs(folder: Path, made: Path, until: int | None = None) -> Comparison:
    """Compare every row of a run with its repetition; on a like machine also all arrays.

    `until`: number of steps to compare on another machine, by fewer metrics; None: all steps.
    """
    manifest, here = read_manifest(folder), read_manifest(made)
    recorded, again = read_rows(folder), read_rows(made)
    summary = tasks.summary_of(read_spec(folder), again).metrics
    if manifest.summary:
        again = list(thin_rows(again))
    exactly = same_digits(here.model_dump(), manifest.model_dump())
    last, every = None if exactly else until, exactly or until is None
    rate = None if exactly else read_spec(folder).optimizer.lr
    comparison = compare_rows(recorded[:last], again[:last], rate, every=every)
    if comparison.outcome == "agrees" and exactly:
        others = [*_other_arrays(manifest, here), *_other_numbers(manifest, summary)]
        if others:
            comparison = comparison._replace(outcome="differs", why=others[0])
    return comparison


def _other_arrays(manifest: Manifest, again: Manifest) -> Iterator[str]:
    """What differs in arrays of a run and its repetition."""
    for name, listed in manifest.files.items():
        if name.endswith(".safetensors") and again.files[name].sha256 != listed.sha256:
            yield f"{name} has other numbers"


def _other_numbers(manifest: Manifest, again: Mapping[str, float | int | None]) -> Iterator[str]:
    """What differs in a run's summary and that of its repetition, except times."""
    for name, old in manifest.summary.metrics.items() if manifest.summary else ():
        if name not in tasks.times() and old != again.get(name):
            yield f"{name} of all steps was {old!r} and is {again.get(name)!r}"


def first_rows(problem: Problem, backend: Backend, steps: int) -> list[Row]:
    """The metrics of the first steps, collected as in training: step 0 alone, then the others."""
    trainer = trainer_for(problem, backend, problem.initial_parameters())
    rows: list[Row] = []
    for chunk in (range(1), range(1, steps)):
        for step in chunk:
            take_step(problem, trainer, step)
        if chunk:
            rows += step_rows(problem, trainer.collect())
    return rows


# --- comparing ----------------------------------------------------------------------------------


def compare_rows(
    recorded: Sequence[Row], again: Sequence[Row], rate: float | None, *, every: bool = False
) -> Comparison:
    """Compare rows of the same steps: within tolerances, or to the last digit.

    `rate`: the learning rate of the tolerances; None: the last digit. `every`: compare all recorded
    metrics except clocks.
    """
    apart = []
    for old, new in zip(recorded, again, strict=True):
        names = [name for name in old if name not in CLOCKS] if every else COMPARED
        apart.append(
            {name: difference(name, old[name], new.get(name)) for name in names if name in old}
        )
    largest: dict[str, float] = {}
    for step in apart:
        largest |= {name: max(value, largest.get(name, 0.0)) for name, value in step.items()}
    shown = {name: value if math.isfinite(value) else None for name, value in largest.items()}
    for step, differences in enumerate(apart):
        for name, value in differences.items():
            allowed = 0.0 if rate is None else tolerance(name, step, rate)
            if value > allowed:
                old, new = recorded[step][name], again[step].get(name)
                limit = "to the last digit" if rate is None else f"to {allowed:.3g}"
                why = f"{name} of step {step} was {old!r} and is {new!r}, not equal {limit}"
                return Comparison("differs", why, shown)
    elsewhere = "within the tolerance of another platform or order of operations"
    how = "to the last digit" if rate is None else elsewhere
    return Comparison("agrees", how, shown)


def difference(name: str, old: float | None, new: float | None) -> float:
    """The distance of two values of a metric; infinite if one is missing, or only one is finite."""
    if old is None or new is None:
        return 0.0 if old is new else math.inf
    if old == new or not (math.isfinite(old) or math.isfinite(new)):
        return 0.0
    scale = abs(old) if name in RELATIVE else 1.0
    distance = abs(new - old) / scale if scale else math.inf
    return distance if math.isfinite(distance) else math.inf


def tolerance(name: str, step: int, rate: float) -> float:
    """The largest difference of a metric that another order of additions explains.

    A gradient of rounding noise moves a parameter by the learning rate in either direction, and
    the exponential of that logit is a factor of a gain, a logarithm to base 10.
    """
    at_first, later = TOLERANCES.get(name, TOLERANCES_OF_GAINS)
    if name not in TOLERANCES:
        later += 2 * rate / math.log(10)
    return later if step else at_first
