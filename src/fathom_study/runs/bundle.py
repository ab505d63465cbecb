"""Bundles: archives that carry runs from one machine to another.

A bundle is a tar packed by xz. It holds plain files, `runs/<cell>/<file>`, with metrics by columns.
It may come from a stranger. So an import unpacks it within limits of size and number, and accepts
only the files of a run under their own names. Their content is checked as in every run folder:
against the manifest, its hashes and the spec. Runs are moved into place only after all of them have
passed.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from fathom.system.errors import UserError, say
from fathom.system.text import one_line, printable
from fathom_study import tasks
from fathom_study.config import Cell, Config
from fathom_study.runs.columns import COLUMNS, from_columns, to_columns
from fathom_study.runs.folder import (
    MANIFEST,
    METRICS,
    MIXING,
    RUN_FILES,
    WEIGHTS,
    Manifest,
    RunError,
    check_run,
    encode_row,
    manifest_hash,
    read_json,
    read_manifest,
    read_rows,
    read_spec,
    run_folder,
)
from fathom_study.runs.run import Run
from fathom_study.runs.thinning import thin_rows, whole_steps
from fathom_study.runs.validate import receive_run, validate_run
from fathom_study.system.files import atomic_write, file_to_write, locked, with_filename, write_text

MAX_JSON_BYTES = 4 * 2**20
MAX_FILE_BYTES = 256 * 2**20
MAX_TOTAL_BYTES = 8 * 2**30
MAX_RATIO, FREE_BYTES = 100, 64 * 2**20
"""A bundle of n bytes may unpack to FREE_BYTES + MAX_RATIO n; runs reach a ratio of 11."""
MAX_FILES = 100_000
MAX_MIXING_BYTES = 64 * 2**10
"""Larger matrices stay where a run was trained: no table reads them, and git would keep them."""
MAX_PLATFORM = 100
"""Maximum length of a platform's name, which names a folder."""
INCOMING = ".incoming-"
"""Prefix of the name of the folder that an import unpacks into."""
XZ = [{"id": lzma.FILTER_LZMA2, "lc": 0, "lp": 2, "pb": 2}]
"""Filters for four-byte words, such as losses, the bulk of a bundle: 4 % smaller."""


class BundleError(UserError):
    """A bundle that cannot be made or must not be imported; the message names the problem."""


# --- creating a bundle --------------------------------------------------------------------------


def create_bundle(config: Config, file: Path, patterns: Sequence[str] = ()) -> list[Run]:
    """Pack every current run whose cell matches one of `patterns`, by default all of them.

    Trainings that have not finished are left out, with a line that counts them.
    Raises ConfigError for a pattern that matches no cell, and BundleError if a chosen run is stale
    or corrupt, if there is none, or if `file` exists and is not a bundle.
    """
    check_replaces(file)
    results, cells = Path(config.results), config.select_cells(patterns)
    runs = [validate_run(run_folder(results, cell), config.spec(cell)) for cell in cells]
    chosen = [run for run in runs if run.status not in ("missing", "failed")]
    if unfinished := sum(run.status == "failed" for run in runs):
        say(f"left out: {unfinished} unfinished trainings")
    unfit = [run for run in chosen if run.status != "measured"]
    if unfit:
        raise BundleError("\n".join(f"{run.cell}: {run.status}, {run.reason}" for run in unfit))
    if not chosen:
        raise BundleError("no run to pack: no matching cell is trained here")

    write_bundle(file, {run.cell: run.folder for run in chosen})
    return chosen


def write_bundle(file: Path, folders: Mapping[Cell, Path]) -> None:
    """Write a bundle of the runs in these folders. Raises RunError."""
    with (
        atomic_write(file) as temporary,
        lzma.open(temporary, "w", filters=XZ) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for cell, folder in folders.items():
            for name, content in bundled_files(folder).items():
                if name == METRICS and (columns := to_columns(content)):
                    name, content = COLUMNS, columns
                entry = tarfile.TarInfo(f"runs/{cell}/{name}")  # without owner, time, permissions
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def check_replaces(file: Path) -> None:
    """Raise BundleError if `file` exists and is not a bundle."""
    if not file_to_write(file).exists():
        return
    try:
        with lzma.open(file) as content:
            header = content.read(tarfile.BLOCKSIZE)
        _parse_name(tarfile.TarInfo.frombuf(header, "ascii", "replace").name)
    except (BundleError, OSError, EOFError, lzma.LZMAError, tarfile.HeaderError):
        raise BundleError(f"{file}: exists and is not a bundle; name another file") from None


def bundled_files(folder: Path) -> dict[str, bytes]:
    """Files of a run as in a bundle: a long run thinned, no large matrices. Raises RunError."""
    manifest, rows = read_json(folder / MANIFEST), read_rows(folder)
    files = {name: (folder / name).read_bytes() for name in manifest["files"]}
    sent = {**manifest, "files": dict(manifest["files"])}
    if len(files.get(MIXING, b"")) > MAX_MIXING_BYTES:
        del files[MIXING], sent["files"][MIXING]
    if len(whole_steps(len(rows))) < len(rows) and not manifest.get("summary"):
        text = "".join(map(encode_row, thin_rows(rows))).encode()
        files[METRICS] = text
        sent["files"][METRICS] = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
        sent["summary"] = tasks.summary_of(read_spec(folder), rows).model_dump()
    if sent == manifest:
        return {**files, MANIFEST: (folder / MANIFEST).read_bytes()}
    sent["sha256"] = manifest_hash(sent)
    return {**files, MANIFEST: json.dumps(sent, indent=2).encode() + b"\n"}


# --- importing a bundle -------------------------------------------------------------------------


def import_bundle(
    results: Path, file: Path, existing: Literal["refuse", "keep", "replace"] = "refuse"
) -> dict[str, list[str]]:
    """Check a bundle and move its runs to `results/imported/<platform>/<cell>`.

    `existing` decides how to treat a different run of the same cell and platform.
    Returns the paths of the cells by what was done: `imported`, `kept`, `same`. Raises BundleError,
    with no run written, if anything is wrong.
    """
    done: dict[str, list[str]] = {"imported": [], "kept": [], "same": []}
    new: dict[Path, Path] = {}
    home = results / "imported"
    with incoming(home) as folder:
        for cell, manifest in unpack(file, folder).items():
            target = imported_folder(results, cell, manifest.platform)
            outcome = compare_existing(manifest, target, cell)
            if outcome == "another" and existing == "refuse":
                raise BundleError(f"{target}: already exists; add --keep or --replace")
            if outcome == "another":
                outcome = "kept" if existing == "keep" else "imported"
            done[outcome].append(cell.path())
            if outcome == "imported":
                new[folder / cell.path()] = target
        for number, (run, target) in enumerate(new.items()):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                target.replace(folder / f"replaced-{number}")
            run.replace(target)
    return done


@contextmanager
def incoming(home: Path) -> Iterator[Path]:
    """A temporary folder inside `home` to unpack into.

    First deletes the folders of killed imports; the lock keeps out other imports.
    """
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        for left in home.glob(f"{INCOMING}*"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=INCOMING, dir=home) as folder:
            yield Path(folder)


def refused_file(results: Path) -> Path:
    """The file that lists the refused bundles, a line for each."""
    return results / "imported" / "refused.txt"


def refused_bundles(results: Path) -> list[str]:
    """Bundles that were refused and not imported since, with the reason, as in 'FILE: why'."""
    try:
        return refused_file(results).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def record_refusals(results: Path, bundles: Mapping[Path, str | None]) -> None:
    """Record the reason for each refused bundle, None if imported; keep the lines of others."""
    known = refused_bundles(results)
    reasons = {printable(str(file)): why for file, why in bundles.items()}
    lines = [line for line in known if not line.startswith(tuple(f"{file}: " for file in reasons))]
    lines += [f"{file}: {why}" for file, why in reasons.items() if why]
    if lines:
        write_text(refused_file(results), "".join(f"{line}\n" for line in lines))
    elif known:
        refused_file(results).unlink()


def imported_folder(results: Path, cell: Cell, platform: str) -> Path:
    """The folder for the imported run of a cell, which may not exist yet."""
    return results / "imported" / platform / cell.path()


def compare_existing(
    manifest: Manifest, target: Path, cell: Cell
) -> Literal["imported", "same", "another"]:
    """The outcome of importing a run, given its target folder.

    `imported`: the folder is absent, or holds a damaged copy of the same run. `same`: it holds an
    intact copy. `another`: it holds any other run, intact or not.
    """
    if not target.exists():
        return "imported"
    try:
        if read_manifest(target).sha256 != manifest.sha256:
            return "another"
    except RunError:
        return "another"
    try:
        check_run(target, manifest, cell)
    except RunError:
        return "imported"
    return "same"


# --- reading a bundle ---------------------------------------------------------------------------


def unpack(file: Path, staging: Path, *, check: bool = True) -> dict[Cell, Manifest]:
    """Unpack a bundle into `staging`; returns the manifest of each cell's run.

    Raises BundleError if anything is wrong with a file of a run, or, without `check`, with a
    manifest.
    """
    if file.exists() and not file.is_file():  # opening a pipe would wait for a writer
        raise BundleError(f"{file}: is not a file")
    staging.mkdir(parents=True, exist_ok=True)
    try:
        cells = _extract(file, staging)
        if not check:
            return {cell: read_manifest(staging / cell.path()) for cell in cells}
        for cell in cells:
            make_rows(staging / cell.path())
        manifests = {cell: receive_run(staging / cell.path(), cell) for cell in cells}
        for cell, manifest in manifests.items():
            if not 0 < len(manifest.platform) <= MAX_PLATFORM:
                raise BundleError(
                    f"{cell}: device and system make a platform of {len(manifest.platform)} "
                    f"letters; it must have 1 to {MAX_PLATFORM}"
                )
        return manifests
    except FileNotFoundError:
        raise BundleError(f"{file}: no such file") from None
    except (BundleError, RunError) as error:
        problem = str(error).replace(f"{staging}/", "")
        raise BundleError(f"{file}: {one_line(problem)}") from error
    except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
        detail = one_line(str(error), 200) or type(error).__name__
        raise BundleError(f"{file}: not an intact .tar.xz file ({detail})") from error
    except PermissionError as error:
        if error.filename != str(file):  # a file in `staging`
            raise
        raise BundleError(f"{file}: cannot be read ({error.strerror})") from error


class _PlainEntry(tarfile.TarInfo):
    """An entry that is a plain file.

    Others are refused by their header: a link, or one that renames and resizes later entries.
    """

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> _PlainEntry:
        """The entry of a header. Raises BundleError unless it is a plain file."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.type != tarfile.REGTYPE:
            raise BundleError(f"{entry.name!r}: is not a plain file")
        return entry


def _extract(file: Path, staging: Path) -> list[Cell]:
    """Write a bundle's files below `staging`, each in the folder of its cell; returns the cells.

    Checks names, kinds, sizes and number of the files, but not their content.
    """
    limit = min(MAX_TOTAL_BYTES, FREE_BYTES + MAX_RATIO * file.stat().st_size)
    cells: dict[Cell, None] = {}
    total = 0
    with (
        lzma.open(file) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r:", tarinfo=_PlainEntry) as archive,
    ):
        for number, entry in enumerate(archive, start=1):
            cell, name = _parse_name(entry.name)
            most = MAX_JSON_BYTES if name.endswith(".json") else MAX_FILE_BYTES
            if not 0 <= entry.size <= most:
                raise BundleError(
                    f"{entry.name!r}: a size of {entry.size}, but the limit is {most}"
                )
            total += entry.size
            if total > limit:
                raise BundleError(f"unpacks to more than {limit} bytes")
            if number > MAX_FILES:
                raise BundleError(f"contains more than {MAX_FILES} files")
            cells[cell] = None
            entry.name = f"{cell.path()}/{name}"
            with with_filename(staging / entry.name):
                archive.extract(entry, staging, set_attrs=False, filter="data")
        while rest := unpacked.read(2**20):  # tarfile ends silently at a damaged header
            if rest.strip(b"\0"):
                raise BundleError("contains data after its end")
    if not cells:
        raise BundleError("contains no run")
    return list(cells)


def make_rows(folder: Path) -> None:
    """Replace a run's columns of metrics by rows. Raises BundleError or RunError."""
    columns, rows = folder / COLUMNS, folder / METRICS
    if not columns.exists():
        return
    if rows.exists():
        raise BundleError(f"{rows}: is present twice, also as {COLUMNS}")
    size = 0
    with with_filename(rows), rows.open("wb") as opened:
        for line in from_columns(columns.read_bytes()):
            size += len(line)
            if size > MAX_FILE_BYTES:
                raise BundleError(f"{columns}: its rows are more than {MAX_FILE_BYTES} bytes")
            opened.write(line)
    columns.unlink()


def _parse_name(name: str) -> tuple[Cell, str]:
    """The cell and the file in the name of an entry. Raises BundleError."""
    path, _, file = name.removeprefix("runs/").rpartition("/")
    if not name.startswith("runs/") or file not in (*RUN_FILES, WEIGHTS, COLUMNS):
        raise BundleError(f"{name!r}: is not a file of a run, such as runs/CELL/spec.json")
    try:
        return Cell.parse(path), file
    except ValueError as error:
        raise BundleError(f"{name!r}: {error}") from error
