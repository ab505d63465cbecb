"""Replay: whether today's code repeats imported runs that other code made.

A *group* is the imported runs of one study, depth, variant and backend that one platform made with
one code. Today's code trains the first of them again for a few steps, and what it measures is set
beside what the run holds. A *receipt* for each backend keeps what came out. It names today's code
and every run's manifest, so it says nothing once either has changed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fathom import backends, datasets, tasks
from fathom.backends import Backend, BackendError
from fathom.config import Cell, Compute, Config, Spec
from fathom.datasets import DataError
from fathom.measures import Row
from fathom.optimizers import pace
from fathom.runs.code import training_code_hash
from fathom.runs.folder import (
    Manifest,
    RunError,
    check_content,
    one_line,
    read_rows,
    read_section,
)
from fathom.runs.provenance import digits
from fathom.runs.training import environment
from fathom.settings import Number, PlainText, Section
from fathom.system.files import write_json
from fathom.train import batches_of, step_rows, trainer_for

if TYPE_CHECKING:
    from fathom.runs.inspect import Run

FORMAT = 1
FOLDER = "replay"
"""Of the receipts, in the folder of reports."""

STEPS = 3
"""How many steps are repeated: the second and third have updates behind them."""

RELATIVE = ("loss", "grad_norm")
LOGARITHMS = ("gain_proxy_log10_max_entry", "amax_forward_log10", "amax_backward_log10")
COMPARED = (*RELATIVE, *LOGARITHMS)
"""Measures that are compared where a run has them: relatively, or, logarithms, by difference."""

TOLERANCE, TOLERANCE_OF_LATER_GAINS = 1e-4, 1e-2
"""The largest differences on another platform; the reasons are in docs/definitions.md, "Replay"."""

MAX_WHY = 400
"""Letters of an outcome's details."""

OUTCOMES = {
    "agrees": "today's code repeats it",
    "differs": "today's code does not repeat it",
    "unavailable": "it cannot be replayed here",
}
"""What a replay may come to, in words. Tables and reports say no more than this: the details are of
the machine that replayed, and the same runs must make the same tables everywhere."""


class Replay(Section):
    """What came out of the replay of a group."""

    platform: PlainText
    group: PlainText
    made_by: PlainText
    """The code that made the runs, in words."""
    code: PlainText
    """The hash of today's code that trains the group."""
    runs: dict[PlainText, PlainText]
    """The SHA-256 of each run's manifest, by its cell."""
    repeated: PlainText
    """The cell that was trained again."""
    outcome: Literal["agrees", "differs", "unavailable"]
    why: PlainText
    """The details of the outcome: how many steps, how exactly, or what differs."""
    differences: dict[PlainText, Number | None]
    """The largest difference of each measure; None where only one side is finite."""

    @property
    def told(self) -> str:
        """The outcome in words, with its details."""
        return f"{OUTCOMES[self.outcome]}: {self.why}"


class Receipt(Section):
    """A file of replays."""

    format: Literal[1]
    replays: tuple[Replay, ...]


class Finding(NamedTuple):
    """The part of a replay that the comparison gives; the fields are those of Replay."""

    outcome: str
    why: str
    differences: dict[str, float | None]


# --- receipts -----------------------------------------------------------------------------------


def receipt_file(config: Config, backend: str) -> Path:
    """Where the receipt of a backend is, or will be."""
    return Path(config.report_folder) / FOLDER / f"{backend}.json"


def read_replays(config: Config) -> dict[tuple[str, str], Replay]:
    """Every replay of the receipts, by platform and cell of its runs. Raises RunError."""
    found = {}
    for file in sorted((Path(config.report_folder) / FOLDER).glob("*.json")):
        try:
            receipt = read_section(Receipt, file)
        except RunError as error:
            raise RunError(f"{error}; delete it, then run: fathom replay") from error
        found |= {(r.platform, cell): r for r in receipt.replays for cell in r.runs}
    return found


def applies(replay: Replay, manifest: Manifest, spec: Spec) -> bool:
    """Whether the replay is of this very run, by today's code."""
    is_this = replay.runs.get(manifest.cell) == manifest.sha256
    return is_this and replay.code == training_code_hash(spec)


def made_by(manifest: Manifest) -> str:
    """The code that made a run, as in 'commit 0d34bb1'; its version where no commit is known."""
    commit = manifest.git.get("commit")
    if not isinstance(commit, str) or not commit:
        return f"fathom {manifest.fathom or 'of an unknown version'}"
    return f"commit {commit[:7]}{' with changes' if manifest.git.get('dirty') else ''}"


def _code_of(manifest: Manifest) -> str:
    return digits(json.dumps(manifest.code, sort_keys=True))


# --- replaying ----------------------------------------------------------------------------------


def write_receipt(
    config: Config,
    backend: str,
    runs: Iterable[Run],
    compute: Compute,
    say: Callable[[Replay], None],
) -> list[Replay]:
    """Replay every group of the backend's runs that needs it, and write the receipt.

    `say` is told of each group. What cannot be replayed here is an outcome, and no error.
    """
    waiting = [run for run in runs if run.replay and run.cell.backend == backend]
    replays = list(replay_each(config, waiting, compute, say))
    content = Receipt(format=FORMAT, replays=tuple(replays)).model_dump()
    write_json(receipt_file(config, backend), content)
    return replays


def replay_each(
    config: Config, runs: Iterable[Run], compute: Compute, say: Callable[[Replay], None]
) -> Iterator[Replay]:
    """Replay every group of the runs, each told to `say`. No receipt is written."""
    for group in groups_of(runs):
        replay = replay_group(config.spec(group[0].cell), group, compute)
        say(replay)
        yield replay


def groups_of(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs by platform, cell but for the seed, and code; seeds ascend."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        key = (run.platform, group_of(run.cell), _code_of(run.manifest))
        groups.setdefault(key, []).append(run)
    return [sorted(group, key=lambda run: run.cell.seed) for group in groups.values()]


def group_of(cell: Cell) -> str:
    """What the seeds of a cell share, as in 'depth-mlx/48L/mhc/torch'."""
    return cell.path().rpartition("/")[0]


def replay_group(spec: Spec, runs: Sequence[Run], compute: Compute) -> Replay:
    """Train the first of the runs again for a few steps; `spec` is its spec."""
    run = runs[0]
    found = _finding(spec, run, compute)
    return Replay(
        platform=run.platform,
        group=group_of(run.cell),
        made_by=made_by(run.manifest),
        code=training_code_hash(spec),
        runs={each.cell.path(): each.manifest.sha256 for each in runs},
        repeated=run.cell.path(),
        **found._asdict(),
    )


def _finding(spec: Spec, run: Run, compute: Compute) -> Finding:
    os.environ[datasets.ENVIRONMENT] = compute.data
    device, threads = run.manifest.device, min(run.manifest.threads, os.cpu_count() or 1)
    try:
        check_content(run.folder, run.manifest)
        recorded = read_rows(run.folder)[:STEPS]
        backend = backends.connect(spec.backend, device.kind, max(threads, 1), compute.mlx_blas)
        again = first_rows(spec, backend, len(recorded))
    except (BackendError, DataError) as error:
        return Finding("unavailable", one_line(str(error), MAX_WHY), {})
    except RunError as error:
        problem = str(error).removeprefix(f"{run.folder}/")
        return Finding("differs", one_line(f"cannot be read, {problem}", MAX_WHY), {})
    exactly = is_where_it_was_made(run.manifest, environment(backend, threads))
    return judged(recorded, again, exactly=exactly)


def first_rows(spec: Spec, backend: Backend, steps: int) -> list[Row]:
    """The step measures of the first steps, collected as training does: the first one alone."""
    params = tasks.initial_parameters(spec)
    trainer, network = trainer_for(spec, backend, params), tasks.network_of(spec)
    rows: list[Row] = []
    for chunk in (range(1), range(1, steps)):
        for step in chunk:
            trainer.step(batches_of(spec, step), pace(spec, step))
        if chunk:
            rows += step_rows(network, trainer.collect(), list(params))
    return rows


def is_where_it_was_made(manifest: Manifest, here: Mapping[str, Any]) -> bool:
    """Whether everything is the run's that its last digits depend on.

    `here`: see `environment`.
    """
    there = manifest.model_dump()
    return all(there[name] == here[name] for name in ("cpu", "device", "numpy", "threads"))


# --- comparing ----------------------------------------------------------------------------------


def judged(recorded: Sequence[Row], again: Sequence[Row], *, exactly: bool) -> Finding:
    """Whether the rows agree: to the last digit, or each step within its tolerance."""
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
                return Finding("differs", why, shown)
    how = "to the last digit" if exactly else "within the tolerance of another platform"
    return Finding("agrees", f"{len(recorded)} steps {how}", shown)


def difference(name: str, old: float, new: float | None) -> float:
    """How far apart two values of a measure are; infinitely if only one is finite, or is there."""
    if new is None:
        return math.inf
    if old == new or not (math.isfinite(old) or math.isfinite(new)):
        return 0.0
    scale = abs(old) if name in RELATIVE else 1.0
    distance = abs(new - old) / scale if scale else math.inf
    return distance if math.isfinite(distance) else math.inf


def tolerance(name: str, step: int) -> float:
    """How far apart a measure of a step may be on another platform."""
    return TOLERANCE_OF_LATER_GAINS if name in LOGARITHMS and step > 0 else TOLERANCE
