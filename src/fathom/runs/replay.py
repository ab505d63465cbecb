"""Replay: check whether today's code repeats imported runs that other code made.

A *group* is the imported runs of one study, depth, variant and backend that one platform made with
one code. Today's code trains the first of them again for a few steps and compares its metrics with
those of the run. A receipt for each backend keeps the outcomes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fathom.backends import Backend, BackendError
from fathom.config import Compute, Config, Spec
from fathom.datasets import DataError
from fathom.metrics import Row
from fathom.runs.code_hash import digits
from fathom.runs.folder import Manifest, RunError, check_content, read_rows
from fathom.runs.receipts import Replay
from fathom.runs.run import Run, group_of
from fathom.runs.training import connect, environment
from fathom.runs.training_code import training_code_hash
from fathom.system.text import one_line
from fathom.tasks import Problem
from fathom.train import step_rows, take_step, trainer_for

STEPS = 3
"""How many steps are repeated: the second and third have updates behind them."""

RELATIVE = ("loss", "grad_norm")
LOGARITHMS = ("gain_proxy_log10_max_entry", "amax_forward_log10", "amax_backward_log10")
COMPARED = (*RELATIVE, *LOGARITHMS)
"""Metrics that are compared where a run has them: relatively, or, logarithms, by difference."""

TOLERANCE, TOLERANCE_OF_LATER_GAINS = 1e-4, 1e-2
"""The largest differences on another platform; the reasons are in docs/definitions.md, "Replay"."""

MAX_WHY = 400
"""Characters of an outcome's details."""


class Comparison(NamedTuple):
    """The fields of a Replay that come from comparing rows."""

    outcome: str
    why: str
    differences: dict[str, float | None]


def replay_groups(config: Config, runs: Iterable[Run], compute: Compute) -> Iterator[Replay]:
    """Replay every group of the runs; writes no receipt.

    The first run of a group is repeated. A group that cannot be is an outcome, not an error.
    """
    for group in group_runs(runs):
        run = group[0]
        spec = config.spec(run.cell)
        yield Replay(
            platform=run.platform,
            group=group_of(run.cell),
            made_by=run.manifest.made_by,
            code=training_code_hash(spec),
            runs={each.cell.path(): each.manifest.sha256 for each in group},
            repeated=run.cell.path(),
            **_repeat(spec, run, compute)._asdict(),
        )


def group_runs(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs by platform, cell without its seed, and code; in ascending order of seeds."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        code = digits(json.dumps(run.manifest.code, sort_keys=True))
        groups.setdefault((run.platform, group_of(run.cell), code), []).append(run)
    return [sorted(group, key=lambda run: run.cell.seed) for group in groups.values()]


def _repeat(spec: Spec, run: Run, compute: Compute) -> Comparison:
    """Train the run again for a few steps, and compare."""
    threads = max(min(run.manifest.threads, os.cpu_count() or 1), 1)
    device = {"device": run.manifest.device.kind, "threads": threads}
    try:
        problem = check_content(run.folder, run.manifest)
        recorded = read_rows(run.folder)[:STEPS]
        backend = connect(spec, compute.model_copy(update=device))
        again = first_rows(problem, backend, len(recorded))
    except (BackendError, DataError) as error:
        return Comparison("unavailable", one_line(str(error), MAX_WHY), {})
    except RunError as error:
        why = f"cannot be read, {str(error).removeprefix(f'{run.folder}/')}"
        return Comparison("differs", one_line(why, MAX_WHY), {})
    exactly = is_same_machine(run.manifest, environment(backend, threads))
    return compare_rows(recorded, again, exactly=exactly)


def first_rows(problem: Problem, backend: Backend, steps: int) -> list[Row]:
    """The step metrics of the first steps, collected as training does: the first one alone."""
    trainer = trainer_for(problem, backend, problem.initial_parameters())
    rows: list[Row] = []
    for chunk in (range(1), range(1, steps)):
        for step in chunk:
            take_step(problem, trainer, step)
        if chunk:
            rows += step_rows(problem, trainer.collect())
    return rows


def is_same_machine(manifest: Manifest, here: Mapping[str, Any]) -> bool:
    """Whether everything that last digits depend on is as it was; `here`: see `environment`."""
    there = manifest.model_dump()
    return all(there[name] == here[name] for name in ("cpu", "device", "numpy", "threads"))


# --- comparing ----------------------------------------------------------------------------------


def compare_rows(recorded: Sequence[Row], again: Sequence[Row], *, exactly: bool) -> Comparison:
    """Compare rows of the same steps: to the last digit, or within the tolerances."""
    apart = [
        {name: difference(name, old[name], new.get(name)) for name in COMPARED if name in old}
        for old, new in zip(recorded, again, strict=True)
    ]
    largest = {name: max(step[name] for step in apart) for name in apart[0]}
    shown = {name: value if math.isfinite(value) else None for name, value in largest.items()}
    for step, found in enumerate(apart):
        for name, value in found.items():
            allowed = 0.0 if exactly else tolerance(name, step)
            if value > allowed:
                old, new = recorded[step][name], again[step].get(name)
                limit = "to the last digit" if exactly else f"to {allowed:g}"
                why = f"{name} of step {step} was {old!r} and is {new!r}, not equal {limit}"
                return Comparison("differs", why, shown)
    how = "to the last digit" if exactly else "within the tolerance of another platform"
    return Comparison("agrees", f"{len(recorded)} steps {how}", shown)


def difference(name: str, old: float, new: float | None) -> float:
    """The distance of two values of a metric; infinite if one is missing, or only one is finite."""
    if new is None:
        return math.inf
    if old == new or not (math.isfinite(old) or math.isfinite(new)):
        return 0.0
    scale = abs(old) if name in RELATIVE else 1.0
    distance = abs(new - old) / scale if scale else math.inf
    return distance if math.isfinite(distance) else math.inf


def tolerance(name: str, step: int) -> float:
    """The largest difference of a metric that another platform explains."""
    return TOLERANCE_OF_LATER_GAINS if name in LOGARITHMS and step > 0 else TOLERANCE
