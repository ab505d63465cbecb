"""Run folders: what a trained cell leaves, and how it is read back.

A run is complete once `manifest.json` is there, which is written last. Until then the folder
holds `.partial/`: the rows so far and a checkpoint, from which a killed training goes on.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

import fathom
from fathom import backends, data, provenance, tasks
from fathom.backends import Backend
from fathom.files import replacing, sha256, write_json
from fathom.hardware import cpu_model, operating_system, peak_host_memory_bytes
from fathom.study import Cell, Compute, Config, ConfigError, Spec, checked
from fathom.train import Chunk, Resume, Row, train

FORMAT = 1
"""The layout of a run folder; a reader refuses any other."""

FILES = ("spec.json", "metrics.jsonl", "summary.json")
"""What every run holds beside its manifest."""

WEIGHTS = "weights.safetensors"
"""What a run of the image study holds besides, unless it diverged."""

MANIFEST_KEYS = {
    "format", "cell", "spec_hash", "code", "fathom", "git", "python", "numpy", "os", "cpu",
    "device", "threads", "started", "ended", "seconds", "resumed_at_steps",
    "peak_host_memory_bytes", "peak_device_memory_bytes", "files", "sha256",
}  # fmt: skip
"""Everything that a manifest may hold."""

COUNTS = {"step", "nonfinite_event", "nonfinite_total", "overflow_layer", "overflow_depth"}
"""The metrics of a row that are whole numbers; all others are floats."""

MAY_BE_NULL = {"overflow_layer", "overflow_activation_log10", "overflow_depth"}
"""The metrics that a row can have without a value."""

ROW_NAMES = re.compile(
    "step|loss|grad_norm(_[A-Za-z_]+)?|nonfinite_event|nonfinite_total"
    "|step_seconds|elapsed_seconds|stream_difference|stream_cosine"
    "|gain_proxy_log10_max_entry|amax_forward_log10|amax_backward_log10"
    "|activation_max_log10|overflow_layer|overflow_activation_log10|overflow_depth"
    "|test_accuracy|mixing_row_error|mixing_column_error"
)
"""The names that a row may have: any other could pass for a column of a table."""

AT_START = (
    "activation_max_log10", "overflow_layer", "overflow_activation_log10", "overflow_depth",
)  # fmt: skip
"""What only the row of the first step has."""

AT_END = ("test_accuracy", "mixing_row_error", "mixing_column_error")
"""What only the row of the last step has, in the image study."""

WILD_GRADIENT = 1e6
"""A gradient norm of the image network's first weight above this counts as diverged."""

AT_CHANCE = 0.95
"""A final loss above this fraction of a guesser's loss counts as not having learned."""


class RunError(RuntimeError):
    """A run folder that cannot be used; the message names the file and the fix."""


# --- making a run ------------------------------------------------------------------------------


def run_cell(
    spec: Spec,
    folder: Path,
    compute: Compute | None = None,
    on_chunk: Callable[[Chunk], None] = lambda chunk: None,
) -> dict[str, Any]:
    """Train a cell into `folder`, going on from a checkpoint that fits; return the summary.

    `on_chunk` sees the rows as they come. Raises BackendError if the framework or the device is
    missing. Nothing but `.partial/` is written before the training is over.
    """
    compute = compute or Compute()
    started = datetime.now(UTC)
    code = provenance.code_hashes(*provenance.training_modules(spec.task, spec.backend))
    os.environ[data.ENVIRONMENT] = compute.data
    backend = backends.connect(spec.backend, compute.device, compute.threads, compute.mlx_blas)
    partial = Partial(folder, identity=f"{spec.hash()} {code} {backend.device}")
    resume = partial.resume()
    rows = list(resume.rows) if resume else []
    saved_at, saved_rows = time.monotonic(), len(rows)

    trainer = None
    for chunk in train(spec, backend, resume):
        trainer = chunk.trainer
        rows += chunk.rows
        on_chunk(chunk)
        is_due = time.monotonic() - saved_at >= compute.checkpoint_seconds or (
            compute.checkpoint_steps and len(rows) - saved_rows >= compute.checkpoint_steps
        )
        if is_due and len(rows) < spec.steps:
            partial.save(rows, chunk.trainer.state())
            saved_at, saved_rows = time.monotonic(), len(rows)

    summary = summarise(spec, rows)
    manifest = {
        "format": FORMAT,
        "cell": spec.cell.path(),
        "spec_hash": spec.hash(),
        "code": code,
        **environment(backend, compute.threads),
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(rows[-1]["elapsed_seconds"], 3),
        "resumed_at_steps": partial.resumed_at,
        "peak_host_memory_bytes": peak_host_memory_bytes(),
        "peak_device_memory_bytes": backend.peak_memory_bytes(),
    }
    weights = None
    if spec.task == "fashion" and summary["outcome"] != "diverged":
        state = trainer.state()
        weights = {k.removeprefix("param."): v for k, v in state.items() if "param." in k}
    _write_run(folder, spec, rows, summary, manifest, weights)
    partial.remove()
    return summary


def _write_run(
    folder: Path,
    spec: Spec,
    rows: Sequence[Row],
    summary: dict[str, Any],
    manifest: dict[str, Any],
    weights: dict[str, np.ndarray] | None,
) -> None:
    """Write every file of a run, the manifest last: without it the others do not count."""
    (folder / "manifest.json").unlink(missing_ok=True)
    for left in folder.glob(".*.tmp"):  # by a training that was killed while it wrote
        left.unlink(missing_ok=True)
    write_json(folder / "spec.json", spec.model_dump())
    with replacing(folder / "metrics.jsonl") as temporary:
        temporary.write_text("".join(encode_row(row) for row in rows), encoding="utf-8")
    write_json(folder / "summary.json", summary)
    (folder / WEIGHTS).unlink(missing_ok=True)
    if weights is not None:
        with replacing(folder / WEIGHTS) as temporary:
            temporary.write_bytes(save(weights))
    files = {
        name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size}
        for name in (*FILES, *([WEIGHTS] if weights is not None else []))
    }
    manifest = {**manifest, "files": files}
    write_json(folder / "manifest.json", {**manifest, "sha256": manifest_hash(manifest)})


def manifest_hash(manifest: dict[str, Any]) -> str:
    """A hash over all fields of a manifest but `sha256`, where it is kept."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def environment(backend: Backend, threads: int) -> dict[str, Any]:
    """What computed: versions, system and device, and nothing that names a person or a place."""
    return {
        "fathom": fathom.__version__,
        "git": provenance.git_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "os": operating_system(),
        "cpu": cpu_model(),
        "device": asdict(backend.device),
        "threads": threads,
    }


def summarise(spec: Spec, rows: Sequence[Row]) -> dict[str, Any]:
    """The numbers of a whole run; each non-finite one is null (docs/definitions.md, "Summary")."""
    loss = np.array([row["loss"] for row in rows])
    grad_norm = np.array([row["grad_norm"] for row in rows])
    first, last = rows[0], rows[-1]
    stem = [row["grad_norm_stem"] for row in rows if "grad_norm_stem" in row]
    seconds = [row["step_seconds"] for row in rows[1:]] or [rows[0]["step_seconds"]]
    finite_loss, finite_norm = loss[np.isfinite(loss)], grad_norm[np.isfinite(grad_norm)]
    chance = tasks.load(spec.task).chance_loss(spec)
    summary = {
        "steps": len(rows),
        "outcome": outcome(float(loss[-1]), chance, max(stem, default=0.0)),
        "chance_loss": chance,
        "loss_first": loss[0],
        "loss_final": loss[-1],
        "loss_min": finite_loss.min() if finite_loss.size else math.nan,
        "grad_norm_first": grad_norm[0],
        "grad_norm_final": grad_norm[-1],
        "grad_norm_max": finite_norm.max() if finite_norm.size else math.nan,
        "grad_norm_log10_sd": _log10_step_sd(grad_norm),
        "grad_norm_stem_max": max(filter(math.isfinite, stem), default=None),
        "gain_first": first.get("gain_proxy_log10_max_entry"),
        "gain_final": last.get("gain_proxy_log10_max_entry"),
        "amax_forward_log10_final": last.get("amax_forward_log10"),
        "amax_backward_log10_final": last.get("amax_backward_log10"),
        **{name: last.get(name) for name in AT_END},
        **_stream_summary(rows),
        **{name: first.get(name) for name in AT_START},
        "nonfinite_total": last["nonfinite_total"],
        "first_nonfinite_step": next((r["step"] for r in rows if r["nonfinite_event"]), None),
        "seconds_per_step": float(np.median(seconds)),
        "seconds": last["elapsed_seconds"],
    }
    return {name: _null_if_nonfinite(value) for name, value in summary.items()}


def _stream_summary(rows: Sequence[Row]) -> dict[str, float | None]:
    """How far apart the streams got, and the largest gradient of each mixing matrix's logits."""

    def extreme(pick: Callable[[list[float]], float], name: str) -> float | None:
        values = [row[name] for row in rows if name in row and math.isfinite(row[name])]
        return pick(values) if values else None

    return {
        "stream_difference_max": extreme(max, "stream_difference"),
        "stream_cosine_min": extreme(min, "stream_cosine"),
        **{
            f"grad_norm_{name}_max": extreme(max, f"grad_norm_{name}")
            for name in ("H_pre", "H_post", "H_res")
        },
    }


def outcome(final_loss: float, chance_loss: float, stem_norm: float = 0.0) -> str:
    """`diverged` (not a number, or a gradient gone wild), `at chance` (not learned) or `learned`.

    `stem_norm`: the largest gradient norm of the image network's first weight.
    """
    if not (math.isfinite(final_loss) and stem_norm <= WILD_GRADIENT):
        return "diverged"
    return "at chance" if final_loss > AT_CHANCE * chance_loss else "learned"


def _log10_step_sd(values: np.ndarray) -> float:
    """How erratic a positive series is: the standard deviation of log10(x_t / x_{t−1}).

    A smooth decay has the same small ratio throughout; a spiky series does not. NaN if any value
    is not finite and positive, or there are fewer than two ratios.
    """
    if len(values) < 3 or not (np.isfinite(values) & (values > 0)).all():
        return math.nan
    return float(np.diff(np.log10(values)).std(ddof=1))


def _null_if_nonfinite(value: Any) -> Any:  # noqa: ANN401, any cell of a summary
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- rows as text ------------------------------------------------------------------------------


def encode_row(row: Row) -> str:
    """A row as one line of JSON: non-finite numbers are null, and `nonfinite` says which kind."""
    kinds = {k: repr(v) for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)}
    plain = {name: None if name in kinds else value for name, value in row.items()}
    if kinds:
        plain["nonfinite"] = kinds
    return json.dumps(plain, allow_nan=False, separators=(",", ":")) + "\n"


def decode_row(line: str) -> Row:
    """The inverse of `encode_row`. Raises ValueError on anything else."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    for name, kind in row.pop("nonfinite", {}).items():
        if kind not in ("nan", "inf", "-inf"):
            raise ValueError(f"{kind!r:.20} is no non-finite number")
        row[name] = float(kind)
    return row


# --- checkpoints -------------------------------------------------------------------------------


class Partial:
    """What a training that is not over keeps: a checkpoint, and the rows up to it.

    Both are in one file, replaced whole, so that they cannot disagree. `identity` ties them to a
    spec, a code and a device: a checkpoint of anything else is left unused.
    """

    FOLDER = ".partial"

    def __init__(self, run: Path, identity: str) -> None:
        self.folder = run / self.FOLDER
        self.file = self.folder / "checkpoint.safetensors"
        self.identity = identity
        self.resumed_at: list[int] = []
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, rows: Sequence[Row], state: dict[str, np.ndarray]) -> None:
        """Replace the checkpoint, all at once."""
        metadata = {
            "identity": self.identity,
            "rows": "".join(encode_row(row) for row in rows),
            "resumed_at_steps": json.dumps(self.resumed_at),
        }
        metadata["sha256"] = _digest(metadata, state)
        with replacing(self.file) as temporary:
            temporary.write_bytes(save(state, metadata))

    def resume(self) -> Resume | None:
        """Where to go on from, or None if there is no checkpoint, or it is damaged or of others."""
        try:
            with safe_open(self.file, framework="numpy") as opened:
                metadata = opened.metadata() or {}
            state = load_file(self.file)
            recorded = metadata.pop("sha256")
            if recorded != _digest(metadata, state) or metadata["identity"] != self.identity:
                return None
            rows = [decode_row(line) for line in metadata["rows"].splitlines()]
            resumed_at = json.loads(metadata["resumed_at_steps"])
        except (FileNotFoundError, SafetensorError, ValueError, KeyError):
            return None
        self.resumed_at = [*resumed_at, len(rows)]
        return Resume(state, rows)

    def remove(self) -> None:
        """Drop everything: the run is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _digest(metadata: dict[str, str], state: dict[str, np.ndarray]) -> str:
    """A hash over a whole checkpoint: its format has none, and a flipped bit would train on."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, value in sorted(state.items()):
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()


# --- reading a run -----------------------------------------------------------------------------


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises RunError naming the file if it is missing or is anything else."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{file}: missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise RunError(f"{file}: not a JSON object")
    return data


def read_rows(folder: Path) -> list[Row]:
    """The metrics of every step. Raises RunError naming the file and the line."""
    file = folder / "metrics.jsonl"
    rows = []
    try:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                rows.append(decode_row(line))
    except FileNotFoundError:
        raise RunError(f"{file}: missing") from None
    except (OSError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise RunError(f"{file}: line {len(rows) + 1} is not a row of metrics ({error})") from error
    return rows


@dataclass(frozen=True)
class Run:
    """A run folder and how far it can be trusted."""

    cell: Cell
    folder: Path
    platform: str
    """Where it was measured, as a name for a folder; empty if there is nothing to say so."""
    status: str
    """One of STATUSES."""
    reason: str
    """Why it is stale, corrupt or failed; empty otherwise."""
    manifest: dict[str, Any]
    summary: dict[str, Any]

    @property
    def origin(self) -> str:
        """`imported` or `here`; empty if its numbers do not count."""
        return {"measured": "here", "imported": "imported"}.get(self.status, "")

    @property
    def counts(self) -> bool:
        """Whether its numbers may enter a table."""
        return self.status in ("measured", "imported")


STATUSES = {
    "measured": "trained here, and current",
    "imported": "from a bundle, and current",
    "stale": "spec or code have changed since",
    "corrupt": "a file is missing, or is not what the manifest says",
    "failed": "began and did not finish",
    "missing": "not trained yet",
}


def inspect(folder: Path, spec: Spec, *, imported: bool = False) -> Run:
    """Judge the run in `folder` against the spec, the present code and its own manifest."""

    def judged(status: str, reason: str = "", platform: str = "") -> Run:
        return Run(spec.cell, folder, platform, status, reason, manifest, summary)

    manifest: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    if not (folder / "manifest.json").exists():
        if (folder / Partial.FOLDER).exists():
            return judged("failed", "began and has not finished; run it again to go on")
        if any((folder / name).exists() for name in FILES):
            return judged("corrupt", "manifest.json is missing")
        return judged("missing")
    try:
        manifest = read_manifest(folder)
        recorded = check_run(folder, manifest, spec.cell)
        summary = read_json(folder / "summary.json")
    except RunError as error:
        return judged("corrupt", one_line(str(error).removeprefix(f"{folder}/")))

    platform = platform_name(manifest)
    if manifest["spec_hash"] != spec.hash():
        changes = changed_numbers(recorded.model_dump(), spec.model_dump())
        return judged("stale", f"spec differs: {changes}", platform)
    now = provenance.code_hashes(*provenance.training_modules(spec.task, spec.backend))
    if manifest["code"] != now:
        names = sorted(n for n in now | manifest["code"] if now.get(n) != manifest["code"].get(n))
        return judged("stale", f"code differs: {', '.join(names)}", platform)
    return judged("imported" if imported else "measured", platform=platform)


def read_manifest(folder: Path) -> dict[str, Any]:
    """A manifest with the fields that a run must have. Raises RunError for any other."""
    file = folder / "manifest.json"
    manifest = read_json(file)
    kinds = {
        "format": int, "cell": str, "spec_hash": str, "code": dict,
        "device": dict, "os": str, "cpu": str, "files": dict,
    }  # fmt: skip
    for key, kind in kinds.items():
        if not isinstance(manifest.get(key), kind):
            raise RunError(f"{file}: has no valid '{key}'")
    if manifest["format"] != FORMAT:
        raise RunError(f"{file}: format {manifest['format']}, but this fathom reads {FORMAT}")
    device = manifest["device"]
    if not (
        all(isinstance(device.get(key), str) for key in ("kind", "name", "framework_version"))
        and all(isinstance(device.get(key), str | None) for key in ("driver", "blas"))
    ):
        raise RunError(f"{file}: has no valid 'device'")
    for key, kind in {"python": str, "numpy": str, "threads": int}.items():
        if key in manifest and type(manifest[key]) is not kind:
            raise RunError(f"{file}: has no valid '{key}'")
    # Runs of before there was a hash have none; an unknown key may be `sha256` with a bit flipped.
    unknown = sorted(manifest.keys() - MANIFEST_KEYS)
    if unknown:
        raise RunError(f"{file}: has an unknown key {unknown[0]!r:.40}")
    if manifest.get("sha256", manifest_hash(manifest)) != manifest_hash(manifest):
        raise RunError(f"{file}: its content does not have the SHA-256 that it names")
    return manifest


def one_line(text: str, limit: int = 500) -> str:
    """The text on one line that a terminal only shows, whatever file it quotes, and cut to fit."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= limit else f"{shown[:limit]}…"


def listed_files(manifest: dict[str, Any]) -> list[str]:
    """The files that a run has to hold: those of every run, and the weights if they are listed."""
    return [*FILES, *(name for name in (WEIGHTS,) if name in manifest["files"])]


def check_run(folder: Path, manifest: dict[str, Any], cell: Cell) -> Spec:
    """Check every file of a run against its manifest and against each other; return its spec.

    Raises RunError naming the first file that is wrong, and how.
    """
    for name in listed_files(manifest):
        _check_file(folder / name, manifest["files"].get(name))
    if manifest["cell"] != cell.path():
        raise RunError(f"{folder}/manifest.json: is of another cell, {manifest['cell']!r}")
    try:
        spec = checked(Spec, read_json(folder / "spec.json"), f"{folder}/spec.json")
    except ConfigError as error:
        raise RunError(str(error).partition("\n")[0]) from error
    if (spec.cell, spec.hash()) != (cell, manifest["spec_hash"]):
        raise RunError(f"{folder}/spec.json: is not the spec that the manifest names")

    # A file and its hash can be altered together: the rows must also make up the summary.
    rows = read_rows(folder)
    # Counted first: a forged spec may announce more steps than there is memory to list.
    if len(rows) != spec.steps or [row.get("step") for row in rows] != list(range(spec.steps)):
        last = spec.steps - 1
        raise RunError(f"{folder}/metrics.jsonl: does not hold steps 0 to {last} in order")
    for number, row in enumerate(rows, start=1):
        for name, value in row.items():
            if not _is_metric(name, value):
                what = f"line {number} has no valid {name!r:.40}"
                raise RunError(f"{folder}/metrics.jsonl: {what}")
    summary = read_json(folder / "summary.json")
    try:
        expected = summarise(spec, rows)
    except (OverflowError, ValueError) as error:  # of numbers that no network could have
        raise RunError(f"{folder}/spec.json: cannot be computed with ({error})") from error
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder}/metrics.jsonl: a row lacks a valid {error}") from error
    for name in sorted(expected.keys() | summary.keys()):
        if not _same_number(expected.get(name), summary.get(name)):
            raise RunError(f"{folder}/summary.json: {name} does not follow from metrics.jsonl")
    return spec


def _is_metric(name: str, value: object) -> bool:
    """Whether a row may have the value under the name."""
    if not ROW_NAMES.fullmatch(name):
        return False
    if value is None:
        return name in MAY_BE_NULL
    if name in COUNTS:
        return type(value) is int and 0 <= value < 2**53
    return type(value) is float


def _check_file(file: Path, recorded: object) -> None:
    """Raise RunError unless the file is there with the size and the hash that were recorded."""
    if not isinstance(recorded, dict):
        raise RunError(f"{file.parent}/manifest.json: does not list {file.name}")
    if not file.is_file():
        raise RunError(f"{file}: missing")
    size = file.stat().st_size
    if size != recorded.get("bytes"):
        raise RunError(f"{file}: {size} bytes, but the manifest says {recorded.get('bytes')}")
    if sha256(file) != recorded.get("sha256"):
        raise RunError(f"{file}: its SHA-256 is not the manifest's")


def _same_number(a: Any, b: Any) -> bool:  # noqa: ANN401, any value of a summary
    """Equal, or floats equal to the last digits, which versions of NumPy may round apart."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return type(a) is type(b) and a == b


def changed_numbers(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    """What differs between two specs, as in 'optimizer.lr 0.002 → 0.001'."""
    changes = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            inner = changed_numbers(before, after, f"{prefix}{key}.")
            changes += [inner] if inner else []
        elif before != after:
            changes.append(f"{prefix}{key} {before} → {after}")
    return ", ".join(changes)


def platform_name(manifest: dict[str, Any]) -> str:
    """Device kind, device and system as one lower-case word, as in 'cpu-amd-epyc-linux'."""
    device = manifest["device"]
    words = f"{device['kind']} {device['name']} {manifest['os'].partition(' ')[0]}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def run_folder(results: Path, cell: Cell) -> Path:
    """Where the cell's run is, or will be."""
    return results / "runs" / cell.path()


def find_runs(config: Config) -> list[Run]:
    """Every run that the config's cells have, here and in the imported bundles, judged.

    A cell without any run has one of status `missing`.
    """
    results = Path(config.results)
    platforms = imported_platforms(results)
    runs = []
    for cell in config.cells():
        spec = config.spec(cell)
        imported = [
            _in_its_place(inspect(folder, spec, imported=True), platform.name)
            for platform in platforms
            if (folder := platform / cell.path()).exists()
        ]
        local = inspect(run_folder(results, cell), spec)
        runs += imported if imported and local.status == "missing" else [local, *imported]
    return runs


def _in_its_place(run: Run, platform: str) -> Run:
    """The imported run, corrupt if its folder is not its platform's: a copy would count twice."""
    if not run.counts or run.platform == platform:
        return run
    reason = one_line(f"manifest.json: is of platform {run.platform}, not {platform}")
    return replace(run, status="corrupt", reason=reason)


def imported_platforms(results: Path) -> list[Path]:
    """The folders that bundles were imported into, one for each platform."""
    folder = results / "imported"
    if not folder.is_dir():
        return []
    # A name with a dot is what an import unpacks into, which a kill leaves behind, unchecked.
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
