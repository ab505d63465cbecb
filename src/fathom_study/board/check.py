"""`fathom board check`: whether a submission is what it says.

Everything but `train_anew` reads files alone. Limits and their reasons: docs/board.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from fathom.connections.module import FOLDER
from fathom.settings import ConfigError, short_repr, validate
from fathom.system.errors import UserError
from fathom.system.text import digits, one_line
from fathom_study import datasets
from fathom_study.board.child import COUNTS, RUN, Counts, Job
from fathom_study.board.scoring import plain_cells_left
from fathom_study.board.submission import (
    LOG,
    MAX_FILE_BYTES,
    PACKAGES,
    RUNS,
    Submission,
    follows_from,
    label_of,
    read_submission,
)
from fathom_study.board.track import RECORD, Track, open_track
from fathom_study.config import Cell, Compute, Spec
from fathom_study.runs.bundle import BundleError, make_rows, unpack
from fathom_study.runs.folder import SPEC, RunError, read_json, read_manifest, read_rows
from fathom_study.runs.replay import Comparison, compare_runs
from fathom_study.runs.training import TARGETS
from fathom_study.runs.validate import STEPS, compare_specs, receive_run
from fathom_study.system.files import write_json
from fathom_study.tasks import outcome_of, summary_of

ROUNDING = 1e-6
"""Tolerance of a recomputed number: bundles round rows of long runs to float32."""

SCORE = 0.01
"""Tolerance of the score of a training on another processor, relative. On text no run that was
trained again on another processor changed by half of it (docs/trust.md)."""

NO_NETWORK = ("unshare", "--map-root-user", "--net", "--")
"""Command that takes the network from the command after it."""


class CheckError(UserError):
    """A submission that fails its check; a line for each failure."""


class Checked(NamedTuple):
    """A submission whose files agree, with its unpacked runs."""

    track: Track
    submission: Submission
    folder: Path
    label: str
    runs: dict[Cell, Path]


def check_files(folder: Path, staging: Path) -> Checked:
    """Check format, hashes, seeds and numbers; executes nothing. Raises UserError."""
    submission = read_submission(folder)
    record, track = folder / RECORD, open_track(submission.track)
    label = label_of(submission.name, track.plain)
    problems = [*_of_record(folder, submission, track)]
    if problems:
        raise CheckError("\n".join(problems))
    runs = _unpack(folder / RUNS, staging, track, submission, label)
    given = submission.model_dump()
    found = follows_from(track, label, runs, given["cost"])
    if wrong := [*_differing(record, {key: given[key] for key in found}, found)]:
        raise CheckError("\n".join(wrong))
    return Checked(track, submission, folder, label, runs)


def _differing(
    record: Path, given: dict[str, Any], found: dict[str, Any], place: str = ""
) -> Iterator[str]:
    """Problems of the values of a record that differ from those found by more than rounding."""
    for name in given | found:
        one, other, key = given.get(name), found.get(name), f"{place}{name}"
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differing(record, one, other, f"{key}.")
            continue
        are_floats = isinstance(one, float) and isinstance(other, float)
        if abs(one - other) > ROUNDING * abs(other) if are_floats else one != other:
            yield (
                f"{record}: {key}: is {short_repr(one)}, but the runs give {short_repr(other)}; "
                "submit again"
            )


def _of_record(folder: Path, submission: Submission, track: Track) -> Iterator[str]:
    """Problems of the record, and of the files beside it."""
    record = folder / RECORD
    if not re.fullmatch(r"[a-z0-9_-]+", folder.resolve().name):
        yield f"{folder}: its name has other characters than a-z, 0-9, - and _; rename it"
    if folder.resolve().parent.name != track.name:
        yield f"{record}: track: is {track.name}; move its folder to board/{track.name}"
    if submission.track_hash != track.hash:
        yield (
            f"{record}: track_hash: is {submission.track_hash:.40}, but track {track.name} has "
            f"{track.hash}; judge again with this track"
        )
    if submission.seeds != track.seeds:
        yield (
            f"{record}: seeds: is {submission.seeds}, but track {track.name} asks for "
            f"{track.seeds}; train all of them and submit again"
        )
    latest = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    if not track.date <= submission.date <= latest:
        yield f"{record}: date: {submission.date} is not between {track.date} and today; correct it"
    known = {RECORD, RUNS, LOG, PACKAGES, submission.file}
    there = {path.name: path for path in folder.iterdir()}
    for name in sorted(known - there.keys()):
        yield f"{folder / name}: is missing; submit again"
    for name in sorted(there.keys() - known):
        yield f"{there[name]}: is no file of a submission; delete it"
    for path in (there[name] for name in sorted(known & there.keys())):
        if path.is_symlink() or not path.is_file():
            yield f"{path}: is not a plain file; replace it"
        elif path.name == submission.file:
            if path.stat().st_size > MAX_FILE_BYTES:
                yield f"{path}: has more than {MAX_FILE_BYTES} bytes; make it shorter"
            elif (digest := digits(path.read_bytes())) != submission.digest:
                yield (
                    f"{path}: its hash is {digest}, but {RECORD} has digest "
                    f"{submission.digest:.40}; restore the file, or judge and submit again"
                )


def _unpack(
    file: Path, staging: Path, track: Track, submission: Submission, label: str
) -> dict[Cell, Path]:
    """The run folder of each cell of a bundle. Raises CheckError or BundleError."""
    own = track.cells(label)
    wanted = [*own, *plain_cells_left(track, track.kept_result)]
    there = unpack(file, staging, check=False)
    problems = [
        f"{file}: {cell}: is missing; the track asks for this run, so train it and submit again"
        for cell in wanted
        if cell not in there
    ]
    problems += [
        f"{file}: {cell}: the track asks for no such run; remove it"
        for cell in there
        if cell not in wanted
    ]
    for cell in there if not problems else ():
        folder = staging / cell.path()
        expected = track.spec(cell, submission.module if cell in own else None)
        try:
            # Before its content is read: a spec could ask for the file to be executed.
            wanted_spec = json.loads(expected.json())
            if said := compare_specs(read_json(folder / SPEC), wanted_spec):
                problems.append(f"{file}: {cell}: {SPEC} differs from the track's: {said}")
                continue
            make_rows(folder)
            receive_run(folder, cell)
        except (RunError, BundleError) as error:
            problems.append(f"{file}: {one_line(str(error).replace(f'{staging}/', ''))}")
    if problems:
        raise CheckError("\n".join(problems))
    return {cell: staging / cell.path() for cell in wanted}


# --- one training ---------------------------------------------------------------------------------


def drawn_seed(track: Track, folder: Path, commit: str) -> int:
    """The seed to train anew, drawn by the commit: its author could not choose it."""
    drawn = hashlib.sha256(f"{commit}\n{track.name}\n{folder.name}".encode()).digest()
    return track.seeds[int.from_bytes(drawn[:8], "big") % len(track.seeds)]


def head() -> str:
    """The commit of this folder's checkout. Raises UserError without one."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            "--commit: this folder is in no git checkout; name the commit with --commit"
        ) from error
    return done.stdout.strip()


def can_cut_network() -> bool:
    """Whether this machine lets a process have no network."""
    if shutil.which(NO_NETWORK[0]) is None:
        return False
    return subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode == 0


def train_anew(checked: Checked, seed: int, compute: Compute, *, approved: bool) -> str:
    """Train a seed in a child process; returns how it agrees. Raises CheckError if it does not.

    Executes the submitted file. Without `approved` the child has no network.
    """
    track, submission, label = checked.track, checked.submission, checked.label
    file = checked.folder / submission.file
    if not (approved or can_cut_network()):
        raise CheckError(
            f"{file}: this machine cannot take the network from a process, so the check needs a "
            "maintainer's approval first; read the file, then add --approved"
        )
    cell = track.cells(label)[track.seeds.index(seed)]
    recorded = checked.runs[cell]
    manifest, spec = read_manifest(recorded), track.spec(cell, submission.module)
    with tempfile.TemporaryDirectory(prefix="fathom-") as scratch:
        work = Path(scratch)
        shutil.copyfile(file, work / file.name)
        job = Job(
            spec=spec.model_dump(mode="json"),
            threads=max(min(manifest.threads, os.cpu_count() or 1), 1),
            device=manifest.device.kind,
            data=str(Path(compute.data).absolute()),
            seconds=60 * track.minutes,
        )
        write_json(work / "job.json", job.model_dump())
        if why := _run_child(work, job, () if approved else NO_NETWORK):
            raise CheckError(f"{file}: seed {seed}: {why}")
        counts = validate(Counts, read_json(work / COUNTS), COUNTS).model_dump()
        given = submission.cost.model_dump(include=counts.keys())
        if wrong := [*_differing(checked.folder / RECORD, given, counts, "cost.")]:
            raise CheckError("\n".join(wrong))
        try:
            comparison = _compare(spec, recorded, work / RUN)
        except RunError as error:
            raise CheckError(f"{file}: seed {seed}: wrote no run: {error}") from error
    if comparison.outcome != "agrees":
        raise CheckError(
            f"{checked.folder / RUNS}: {cell}: the training does not repeat: {comparison.why}"
        )
    return comparison.why


def _run_child(work: Path, job: Job, before: tuple[str, ...]) -> str:
    """Run the child in its folder; returns why it failed, empty if it did not."""
    kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", *TARGETS)
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {
        "HOME": str(work), FOLDER: str(work), datasets.ENVIRONMENT: job.data,
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    command = [*before, sys.executable, "-m", "fathom_study.board.child", "job.json"]
    log = work / "log.txt"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = child.wait(job.seconds)
        except subprocess.TimeoutExpired:
            status = -signal.SIGXCPU
        finally:
            with suppress(ProcessLookupError):  # also processes that it started
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if status == -signal.SIGXCPU:
        return f"takes longer than {job.seconds // 60} minutes, the limit of the track"
    with log.open("rb") as output:
        output.seek(max(0, log.stat().st_size - 2000))
        said = output.read().decode(errors="replace").strip().splitlines()
    return one_line(said[-1] if said else f"ended with status {status}") if status else ""


def _compare(spec: Spec, recorded: Path, made: Path) -> Comparison:
    """Compare a run with its repetition: every step on a like machine, else as replays do.

    On another machine later steps drift apart, so there the score of the end is compared too.
    """
    comparison = compare_runs(recorded, made, until=STEPS)
    if comparison.outcome != "agrees":
        return comparison
    one, other = (_score(spec, folder) for folder in (recorded, made))
    if abs(one - other) <= SCORE * abs(one) or (math.isnan(one) and math.isnan(other)):
        return comparison
    why = f"the score after training was {one} and is {other}, not equal to {SCORE:g}"
    return Comparison("differs", why, comparison.differences)


def _score(spec: Spec, folder: Path) -> float:
    """The score of a run; NaN if it diverged or was not measured."""
    summary = read_manifest(folder).summary or summary_of(spec, read_rows(folder))
    outcome, score = outcome_of(spec, summary)
    return math.nan if outcome == "diverged" or score is None else score


def check_submission(
    folder: Path, compute: Compute, *, commit: str, train: bool, approved: bool
) -> Iterator[str]:
    """Yield a line for each passed part of the check. Raises UserError at the first failure."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is no folder; name one such as board/quick/NAME")
    with tempfile.TemporaryDirectory(prefix="fathom-") as staging:
        checked = check_files(folder, Path(staging))
        seeds, numbers = len(checked.track.seeds), checked.submission.numbers
        yield f"files: {seeds} seeds of track {checked.track.name} {checked.track.hash}"
        yield f"numbers: recomputed from the curves, {numbers.verdict}"
        if not train:
            yield (
                "training: skipped, by --no-train; contract and counted operations were not "
                "checked either, since nothing was executed"
            )
            return
        seed = drawn_seed(checked.track, folder.resolve(), commit)
        yield f"training: seed {seed}, drawn by commit {commit:.12}"
        yield f"repeats: {train_anew(checked, seed, compute, approved=approved)}"
