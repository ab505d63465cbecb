"""The format of run folders: write, read and check the files of a trained cell.

A run is complete once `manifest.json` exists, which is written last. Until then the folder holds
`.partial/`: a checkpoint with the rows so far, from which a killed training resumes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import Field
from pydantic_core import from_json  # four times as fast as json
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fathom.settings import (
    PLAIN,
    NonNegative,
    Number,
    PlainText,
    Settings,
    TableText,
    short_repr,
    validate,
)
from fathom.system.errors import UserError
from fathom.system.text import load_json, one_line
from fathom_study import tasks
from fathom_study.config import Cell, ConfigError, Spec, parse_spec
from fathom_study.metrics.runs import Summary, first, last, summarise
from fathom_study.metrics.steps import CLOCKS, LARGEST_VALUE, Row, StepMetric, split_place
from fathom_study.runs.thinning import is_finite, whole_steps
from fathom_study.system.files import sha256, write_bytes, write_json
from fathom_study.tasks import Problem

FORMAT = 2
"""The version of this format; no other is read."""

SPEC, METRICS, MIXING = "spec.json", "metrics.jsonl", "mixing.safetensors"
"""The spec; a row of metrics for each step; the connection's matrices after the last step."""

FILES = (SPEC, METRICS, MIXING)
"""Files of every run, besides the manifest."""

MANIFEST = "manifest.json"
RUN_FILES = (*FILES, MANIFEST)

WEIGHTS = "weights.safetensors"
"""The final parameters; a run holds them if its study asks for them."""

VERDICT = "verdict.json"
"""The record that a run was checked on arrival. It stays on this machine: no bundle has it."""

PARTIAL = ".partial"
"""The folder of an unfinished training."""

MAX_ROW = 2**20
"""Maximum number of characters read as one line of metrics."""


T = TypeVar("T")


class RunError(UserError):
    """A run folder that cannot be used; the message names the file and the fix."""


class Device(Settings):
    """The framework and device of a run."""

    framework: TableText = ""
    framework_version: TableText
    kind: TableText
    name: TableText
    driver: TableText | None = None
    blas: TableText | None = None


class ListedFile(Settings):
    """The hash and size of a file of a run."""

    sha256: PlainText
    bytes: NonNegative


class Manifest(Settings):
    """`manifest.json`: cell, spec, code and platform of a run, and the hashes of its files."""

    format: int
    cell: PlainText
    spec_hash: PlainText
    code: dict[PlainText, PlainText] = Field(
        description="hash of every module that training depends on"
    )
    device: Device
    os: TableText
    cpu: TableText
    files: dict[PlainText, ListedFile]
    sha256: PlainText = Field(description="over all other fields")
    fathom: TableText = ""
    git: dict[PlainText, Annotated[str | bool | None, PLAIN]] = {}  # noqa: RUF012, pydantic copies it
    python: TableText = ""
    numpy: TableText = ""
    threads: NonNegative = 1
    arithmetic: dict[PlainText, PlainText] = Field(
        {}, description="versions, targets and switches of compilers and kernels; older runs: none"
    )
    rounding: NonNegative = 1  # of the code that made the run: training.ARITHMETIC_VERSION
    started: PlainText = ""
    ended: PlainText = ""
    seconds: Annotated[Number, Field(ge=0)] | None = None
    resumed_at_steps: tuple[NonNegative, ...] = ()
    peak_host_memory_bytes: NonNegative | None = None
    peak_device_memory_bytes: NonNegative | None = None
    summary: Summary | None = Field(
        None, description="numbers of all steps, where the rows of most are left out"
    )

    @property
    def platform(self) -> str:
        """Device kind, device and system as one lower-case word, as in 'cpu-amd-epyc-linux'."""
        return platform_name(self.device.kind, self.device.name, self.os)

    @property
    def made_by(self) -> str:
        """The code that made the run, as in 'commit 0d34bb1', or its version without a commit."""
        commit = self.git.get("commit")
        if not isinstance(commit, str) or not commit:
            return f"fathom {self.fathom or 'of an unknown version'}"
        return f"commit {commit[:7]}{' with changes' if self.git.get('dirty') else ''}"


def platform_name(kind: str, device: str, system: str) -> str:
    """Device kind, device and system as one lower-case word."""
    words = f"{kind} {device} {system.partition(' ')[0]}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def run_folder(results: Path, cell: Cell) -> Path:
    """The folder for the cell's run, which may not exist yet."""
    return results / "runs" / cell.path()


# --- writing ------------------------------------------------------------------------------------


def write_run(
    folder: Path,
    spec: Spec,
    rows: Sequence[Row],
    mixing: dict[str, np.ndarray],
    weights: dict[str, np.ndarray] | None,
    facts: dict[str, Any],
) -> None:
    """Write every file of a run, the manifest last: without it the others do not count.

    `weights`: None if the run keeps none. `facts`: the fields of the manifest that do not follow
    from the files.
    """
    for name in (VERDICT, MANIFEST):
        (folder / name).unlink(missing_ok=True)
    for left in folder.glob(".*.tmp"):  # left by a training killed while writing
        left.unlink(missing_ok=True)
    write_json(folder / SPEC, spec.model_dump())
    write_bytes(folder / METRICS, "".join(map(encode_row, rows)).encode())
    write_bytes(folder / MIXING, save(mixing))
    names = list(FILES)
    if weights is None:
        (folder / WEIGHTS).unlink(missing_ok=True)
    else:
        write_bytes(folder / WEIGHTS, save(weights))
        names.append(WEIGHTS)
    manifest = {
        "format": FORMAT,
        "cell": spec.cell.path(),
        "spec_hash": spec.hash(),
        **facts,
        "files": {
            name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size}
            for name in names
        },
    }
    write_json(folder / MANIFEST, {**manifest, "sha256": manifest_hash(manifest)})


def manifest_hash(manifest: dict[str, Any]) -> str:
    """SHA-256 of all fields of a manifest except `sha256`, which holds it."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


NONFINITE = ("nan", "inf", "-inf")
"""Non-finite numbers, which are written by name."""


ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def encode_row(row: Row) -> str:
    """A row as one line of JSON: non-finite numbers are null, and `nonfinite` holds their kinds."""
    try:
        return ENCODER.encode(row) + "\n"
    except ValueError:  # a non-finite number, which is rare
        kinds = {
            k: repr(v) for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)
        }
    plain = {name: None if name in kinds else value for name, value in row.items()}
    return ENCODER.encode({**plain, "nonfinite": kinds}) + "\n"


def decode_row(line: str) -> Row:
    """The inverse of `encode_row`. Raises ValueError for any other text."""
    row = from_json(line, allow_inf_nan=False)
    kinds = row.pop("nonfinite", {})
    if math.inf in row.values() or -math.inf in row.values():  # as it reads 1e400
        raise ValueError("contains a number that is too large")
    for name, kind in kinds.items():
        if kind not in NONFINITE:
            raise ValueError(f"{name!r:.40} is {kind!r:.40}, not one of {NONFINITE}")
        row[name] = float(kind)
    return row


# --- reading ------------------------------------------------------------------------------------


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object. Raises RunError, naming the file, if it is missing or anything else."""
    try:
        data = load_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{file}: missing") from None
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise RunError(f"{file}: not a JSON object")
    return data


def read_spec(folder: Path) -> Spec:
    """Read the spec of a run. Raises RunError."""
    return read_with(parse_spec, folder / SPEC)


def read_with(parse: Callable[[dict[str, Any], str], T], file: Path) -> T:
    """parse(content, name) of a JSON file. Raises RunError with the first problem."""
    try:
        return parse(read_json(file), str(file))
    except ConfigError as error:
        raise RunError(one_line(str(error).partition("\n")[0])) from error


def read_rows(folder: Path, steps: int | None = None) -> list[Row]:
    """Read the metrics of every step, or of the first `steps`. Raises RunError naming the line."""
    return list(islice(_each_row(folder / METRICS), steps))


def _each_row(file: Path) -> Iterator[Row]:
    """Yield rows one by one: the file may be larger than memory."""
    number = 1
    try:
        with file.open(encoding="utf-8") as opened:
            while line := opened.readline(MAX_ROW):
                yield decode_row(line)
                number += 1
    except FileNotFoundError:
        raise RunError(f"{file}: missing") from None
    except (OSError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise RunError(f"{file}: line {number} is not a row of metrics ({error})") from error


def read_manifest(folder: Path) -> Manifest:
    """Read a manifest. Raises RunError if it is damaged or of another format."""
    file = folder / MANIFEST
    content = read_json(file)
    if content.get("format") != FORMAT:
        raise RunError(
            f"{file}: its format is {content.get('format')!r:.40}; only {FORMAT} can be read"
        )
    manifest = read_with(partial(validate, Manifest), file)
    if manifest.sha256 != manifest_hash(content):
        raise RunError(f"{file}: its content does not match its own SHA-256")
    return manifest


def check_run(folder: Path, manifest: Manifest, cell: Cell) -> Problem:
    """Check the files of a run, then their content; returns its problem. Raises RunError."""
    check_files(folder, manifest, cell)
    return check_content(folder, manifest)


def check_files(folder: Path, manifest: Manifest, cell: Cell) -> None:
    """Raise RunError unless the folder holds the files that its manifest lists, for that cell."""
    if manifest.cell != cell.path():
        raise RunError(f"{folder}/{MANIFEST}: belongs to another cell, {manifest.cell!r:.80}")
    if manifest.files.keys() - {WEIGHTS, MIXING} != {SPEC, METRICS}:
        listed = ", ".join(manifest.files)
        raise RunError(f"{folder}/{MANIFEST}: lists {listed!r:.200}, not the files of a run")
    for name in (WEIGHTS, MIXING):
        if (folder / name).exists() and name not in manifest.files:
            raise RunError(f"{folder}/{name}: exists, but {MANIFEST} does not list it")
    for name, listed in manifest.files.items():
        file = folder / name
        if not file.is_file():
            raise RunError(f"{file}: missing")
        try:
            digest = sha256(file)
        except OSError as error:
            raise RunError(f"{file}: cannot be read ({error.strerror})") from error
        if digest != listed.sha256:
            raise RunError(f"{file}: its SHA-256 differs from the manifest's")


def check_content(folder: Path, manifest: Manifest) -> Problem:
    """Check the content of a run against its spec; returns its problem. Raises RunError."""
    spec = read_spec(folder)
    if (spec.cell.path(), spec.hash()) != (manifest.cell, manifest.spec_hash):
        raise RunError(f"{folder}/{SPEC}: is not the spec that the manifest names")
    if (WEIGHTS in manifest.files) != spec.weights:
        how = "does not list" if spec.weights else "lists"
        said = str(spec.weights).lower()
        raise RunError(f"{folder}/{MANIFEST}: {how} {WEIGHTS}, but {SPEC} has weights: {said}")
    problem = Problem(spec)
    try:
        shapes = problem.network.connection.matrix_shapes()
        parameters = problem.network.parameters() if spec.weights else {}
    except ConfigError as error:  # settings that today's code refuses, or a missing user module
        raise RunError(f"{folder}/{SPEC}: {error}") from error
    _check_rows(folder / METRICS, problem, thinned=manifest.summary is not None)
    if manifest.summary:
        _check_summary(folder, manifest.summary, spec)
    if MIXING in manifest.files:
        _check_arrays(folder / MIXING, shapes)
    if spec.weights:
        _check_arrays(folder / WEIGHTS, {name: p.shape for name, p in parameters.items()})
    return problem


ALWAYS = (
    "step", "loss", "grad_norm", "nonfinite_event", "nonfinite_total", "step_seconds",
    "elapsed_seconds",
)  # fmt: skip
"""The metrics that every row has, the clocks last."""

ROUNDED = 1e-6
"""Tolerance of a number of a summary, relative to that of rows in float32: 2⁻²⁴ and rounding."""


def _check_rows(file: Path, problem: Problem, *, thinned: bool) -> None:
    """Raise RunError unless there is a row of the task's metrics for each step, in order.

    `thinned`: clocks are missing, and steps that are not kept; a row of one may have the loss and
    evaluations alone.
    """
    steps = problem.spec.steps
    whole = whole_steps(steps)
    needed = sorted(whole) if thinned else range(steps)
    which = f"the {len(needed)} kept steps of" if thinned else "steps"
    disordered = f"{file}: does not contain {which} 0 to {steps - 1} in order"

    @cache  # all rows have the same names
    def metric_of(name: str) -> StepMetric | None:
        try:
            of, place = split_place(name)
        except ValueError:
            return None
        metric = problem.step_metrics.get(of)
        return metric if metric and bool(metric.along) == (place is not None) else None

    found: list[int] = []
    events = 0
    for line, row in enumerate(_each_row(file), start=1):
        events += row["nonfinite_event"] if type(row.get("nonfinite_event")) is int else 0
        needs = ALWAYS
        if thinned:
            step = row.get("step")
            is_kept = type(step) is not int or step in whole or not is_finite(row)
            needs = ALWAYS[: -len(CLOCKS)] if is_kept else ALWAYS[:2]
        for name, why in _wrong(row, needs, metric_of, events):
            raise RunError(f"{file}: line {line} has no valid {name!r:.40}{why}")
        if found and row["step"] <= found[-1]:
            raise RunError(disordered)
        found.append(row["step"])
    kept = [step for step in found if step in whole] if thinned else found
    if len(kept) != len(needed) or kept != [*needed]:
        raise RunError(disordered)


def _wrong(
    row: Row, needs: Sequence[str], metric_of: Callable[[str], StepMetric | None], events: int
) -> Iterator[tuple[str, str]]:
    """(metric, reason) for each invalid or missing metric of a row.

    `metric_of`: function of a name in a row, None without such a metric; `events`: non-finite so
    far.
    """
    yield from ((name, "") for name in needs if name not in row)
    for name, value in row.items():
        metric = metric_of(name)
        if metric is None:
            yield name, ""
        elif not metric.accepts(value):
            is_number = type(value) in (int, float)
            yield name, f": {short_repr(value)} is not {metric.accepted}" if is_number else ""
    if not (row.get("nonfinite_event") or math.isfinite(row["loss"])):
        yield "nonfinite_event", ": 0, but the loss is not finite"
    if row.get("nonfinite_total", events) != events:
        yield "nonfinite_total", f": {row['nonfinite_total']}, but there are {events} events so far"


def _check_summary(folder: Path, summary: Summary, spec: Spec) -> None:
    """Raise RunError if a number of a summary is impossible, or contradicts the thinned rows."""
    rows = read_rows(folder)
    again = summarise(rows, tasks.run_metrics())
    diverged = tasks.load(spec.task).diverged([row for row in rows if ALWAYS[2] in row])
    wrong = ["diverged"] if diverged and not summary.diverged else []
    wrong += [
        name
        for name, thinned in again.items()
        if name in summary.metrics and not _may_be(name, summary.metrics[name], thinned)
    ]
    if wrong:
        raise RunError(f"{folder}/{MANIFEST}: summary: {wrong[0]!r} does not match {METRICS}")


def _may_be(name: str, value: float | None, thinned: float | None) -> bool:
    """Whether a run metric of all steps may have this value, given that of the thinned rows."""
    metric = tasks.run_metrics()[name]
    is_of_every_step = tasks.step_metrics()[metric.of].when == "every step"
    if metric.statistic in (first, last) or not is_of_every_step:
        both = value is not None and thinned is not None
        return value == thinned or (both and math.isclose(value, thinned, rel_tol=ROUNDED))
    low, high = tasks.averaged().get(name, (0.0, LARGEST_VALUE))
    return value is None or max(low, -LARGEST_VALUE) <= value <= min(high, LARGEST_VALUE)


def _check_arrays(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise RunError unless the file holds float32 arrays of exactly these names and shapes.

    Only the header is read; safetensors refuses one that does not fit the size of the file.
    """
    try:
        with safe_open(file, framework="numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            actual = {name: f"{s.get_dtype()} {s.get_shape()}" for name, s in slices.items()}
    except SafetensorError as error:
        raise RunError(f"{file}: cannot be read ({one_line(str(error), 200)})") from error
    expected = {name: f"F32 {list(shape)}" for name, shape in shapes.items()}
    for name in {**expected, **actual}:
        has, needs = actual.get(name, "absent"), expected.get(name, "absent")
        if has != needs:
            raise RunError(f"{file}: {name!r:.40} is {has}, but must be {needs} by {SPEC}")
