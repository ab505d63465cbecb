"""Bundles: archives that carry runs from one machine to another.

A bundle is a gzipped tar of plain files, `runs/<cell>/<file>`. It may come from a stranger. So an
import reads it entry by entry, within limits on sizes and counts, and accepts nothing but the files
of a run under their own names. What is in them is checked as in every run folder: against the
manifest, its hashes and the spec. Runs are moved into place only after all of them have passed.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from fathom.config import Cell, Config
from fathom.runs.folder import (
    MANIFEST,
    MAX_JSON_BYTES,
    RUN_FILES,
    WEIGHTS,
    RunError,
    check_run,
    read_manifest,
    run_folder,
)
from fathom.runs.run import Run
from fathom.runs.validate import find_runs
from fathom.system.errors import UserError
from fathom.system.files import atomic_write
from fathom.system.text import one_line

INDEX = "bundle.json"
"""Older bundles begin with this list of their files. It is skipped: manifests have the hashes."""

KINDS = {tarfile.SYMTYPE: "a link", tarfile.LNKTYPE: "a link", tarfile.DIRTYPE: "a folder"}
"""Entries that are no plain files, in words; all others are special."""

MAX_FILE_BYTES = 256 * 2**20
MAX_TOTAL_BYTES = 8 * 2**30
MAX_RATIO, FREE_BYTES = 100, 64 * 2**20
"""A bundle of n bytes may unpack to FREE_BYTES + MAX_RATIO n; those of runs reach a ratio of 11."""
MAX_RUNS = 20_000
MAX_PLATFORM = 100
"""The longest name of a platform, which becomes a folder."""
CHUNK_BYTES = 2**20

T = TypeVar("T")


class BundleError(UserError):
    """A bundle that cannot be made or must not be imported; the message says what is wrong."""


# --- creating a bundle --------------------------------------------------------------------------


def create_bundle(config: Config, file: Path, patterns: Sequence[str] = ()) -> list[Run]:
    """Pack every current run whose cell matches one of `patterns`, by default all of them.

    Raises ConfigError for a pattern that matches no cell, and BundleError if a chosen run is stale
    or corrupt, or if there is none.
    """
    cells = set(config.select_cells(patterns))
    chosen = [
        run
        for run in find_runs(config)
        if run.status != "missing"
        and run.folder == run_folder(Path(config.results), run.cell)  # not one that was imported
        and run.cell in cells
    ]
    unfit = [run for run in chosen if run.status != "measured"]
    if unfit:
        raise BundleError("\n".join(f"{run.cell}: {run.status}, {run.reason}" for run in unfit))
    if not chosen:
        raise BundleError("no run to pack: nothing here is trained and matches")

    with (
        atomic_write(file) as temporary,
        tarfile.open(temporary, "w:gz", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for run in chosen:
            for name in (*run.manifest.run_files, MANIFEST):
                _add(archive, f"runs/{run.cell}/{name}", run.folder / name)
    return chosen


def _add(archive: tarfile.TarFile, name: str, file: Path) -> None:
    entry = tarfile.TarInfo(name)  # without owner, time and permissions
    entry.size = file.stat().st_size
    with file.open("rb") as opened:
        archive.addfile(entry, opened)


# --- importing a bundle -------------------------------------------------------------------------


def import_bundle(
    results: Path, file: Path, existing: Literal["refuse", "keep", "replace"] = "refuse"
) -> dict[str, list[str]]:
    """Check a bundle and move its runs to `results/imported/<platform>/<cell>`.

    `existing` decides about a different run of the same cell and platform that is there already.
    Returns the paths of the cells by what was done: `imported`, `kept`, `same`. Raises BundleError,
    with nothing written, if anything is wrong.
    """
    done: dict[str, list[str]] = {"imported": [], "kept": [], "same": []}
    with _staging_folder(results / "imported") as staging:
        new: dict[Path, Path] = {}
        for cell, platform in unpack(file, staging).items():
            source, target = staging / cell.path(), imported_folder(results, cell, platform)
            found = compare_existing(source, target, cell)
            if found == "another" and existing == "refuse":
                raise BundleError(f"{target}: is there already; choose --keep or --replace")
            if found in ("absent", "damaged") or (found == "another" and existing == "replace"):
                done["imported"].append(cell.path())
                new[source] = target
            else:
                done["same" if found == "same" else "kept"].append(cell.path())
        for source, target in new.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
            source.replace(target)
    return done


def imported_folder(results: Path, cell: Cell, platform: str) -> Path:
    """Where the imported run of a cell is, or will be."""
    return results / "imported" / platform / cell.path()


def compare_existing(
    new: Path, target: Path, cell: Cell
) -> Literal["absent", "damaged", "same", "another"]:
    """Compare an unpacked run with what is at its place.

    `damaged`: the same run, but no longer intact. `another`: any other, intact or not.
    """
    if not target.exists():
        return "absent"
    try:
        if (new / MANIFEST).read_bytes() != (target / MANIFEST).read_bytes():
            return "another"
    except OSError:  # no manifest
        return "another"
    try:
        check_run(target, read_manifest(target), cell)
    except RunError:
        return "damaged"
    return "same"


STAGING = ".incoming-"
"""The folder that an import unpacks into: this, and the number of its process."""


@contextmanager
def _staging_folder(home: Path) -> Iterator[Path]:
    """A folder on the same file system, removed afterwards whatever happens.

    Those that killed imports have left are removed too.
    """
    created = [folder for folder in (home, *home.parents) if not folder.exists()]
    for left in home.glob(f"{STAGING}*"):
        process = left.name.removeprefix(STAGING)
        if process.isdecimal() and not _is_another(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    staging = home / f"{STAGING}{os.getpid()}"
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in created:  # a refused import leaves no empty folders either
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()


def _is_another(process: int) -> bool:
    """Whether another process of that number is running."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return process != os.getpid()


# --- reading a bundle ---------------------------------------------------------------------------


def unpack(file: Path, staging: Path) -> dict[Cell, str]:
    """Unpack a bundle into `staging` and check every run; returns the platform of each cell's.

    Raises BundleError if anything is wrong.
    """
    return _unpack(file, staging, _check_unpacked)


def read_manifests(file: Path) -> dict[tuple[str, Cell], bytes]:
    """The manifests of a bundle's runs by platform and cell; their other files are not checked.

    Raises BundleError.
    """

    def read(folder: Path, cell: Cell) -> tuple[tuple[str, Cell], bytes]:
        return (read_manifest(folder).platform, cell), (folder / MANIFEST).read_bytes()

    with tempfile.TemporaryDirectory() as staging:
        return dict(_unpack(file, Path(staging), read).values())


def _check_unpacked(folder: Path, cell: Cell) -> str:
    """Check an unpacked run; returns its platform. Raises RunError."""
    manifest = read_manifest(folder)
    check_run(folder, manifest, cell)
    if not 0 < len(manifest.platform) <= MAX_PLATFORM:
        raise RunError(
            f"{folder}/{MANIFEST}: device and system make a platform of {len(manifest.platform)} "
            f"letters, where 1 to {MAX_PLATFORM} are needed"
        )
    return manifest.platform


def _unpack(file: Path, staging: Path, read: Callable[[Path, Cell], T]) -> dict[Cell, T]:
    """Unpack a bundle into `staging`, then `read` each run's folder. Raises BundleError."""
    try:
        limit = min(MAX_TOTAL_BYTES, FREE_BYTES + MAX_RATIO * file.stat().st_size)
        with gzip.open(file) as unzipped:
            cells = _extract(_Bounded(unzipped, limit), staging)
        return {cell: read(staging / cell.path(), cell) for cell in cells}
    except FileNotFoundError:
        raise BundleError(f"{file}: no such file") from None
    except (BundleError, RunError) as error:
        problem = str(error).replace(f"{staging}/", "")
        raise BundleError(f"{file}: {one_line(problem)}") from error
    except (gzip.BadGzipFile, tarfile.HeaderError, zlib.error, EOFError) as error:
        detail = one_line(str(error), 200) or type(error).__name__
        raise BundleError(f"{file}: not a whole gzipped tar ({detail})") from error


class _Bounded:
    """A stream that gives a limited number of bytes."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self.stream = stream
        self.limit = limit
        self.left = limit

    def read(self, size: int) -> bytes:
        """At most so many bytes. Raises BundleError beyond the limit."""
        content = self.stream.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise BundleError(f"unpacks to more than {self.limit} bytes")
        return content

    def chunks(self, size: int) -> Iterator[bytes]:
        """So many bytes, in chunks. Raises EOFError if there are fewer."""
        while size:
            chunk = self.read(min(size, CHUNK_BYTES))
            if not chunk:
                raise EOFError("ends within a file")
            yield chunk
            size -= len(chunk)


def _extract(stream: _Bounded, staging: Path) -> list[Cell]:
    """Write a bundle's files below `staging`, each in the folder of its cell; returns the cells.

    Checks names, kinds and sizes of entries, but nothing of what the files hold.
    """
    # Headers are read here, one block each: tarfile itself would follow links, sparse maps, and
    # headers of any length that rename and resize what comes after them.
    cells: dict[Cell, None] = {}
    seen: set[str] = set()
    while (header := stream.read(tarfile.BLOCKSIZE)) != bytes(tarfile.BLOCKSIZE):
        entry = tarfile.TarInfo.frombuf(header, "ascii", "replace")
        if entry.type != tarfile.REGTYPE:
            kind = KINDS.get(entry.type, "a special entry")
            raise BundleError(f"{entry.name!r}: {kind}, where only plain files belong")
        if entry.name in seen:
            raise BundleError(f"{entry.name!r}: is there twice")
        seen.add(entry.name)
        cell, name = _parse_name(entry.name)
        most = MAX_JSON_BYTES if name.endswith(".json") else MAX_FILE_BYTES
        if not 0 <= entry.size <= most:
            raise BundleError(f"{entry.name!r}: a size of {entry.size}, where {most} is the limit")
        target = Path(os.devnull)  # for the list of an older bundle
        if cell:
            cells[cell] = None
            if len(cells) > MAX_RUNS:
                raise BundleError(f"holds more than {MAX_RUNS} runs")
            target = staging / cell.path() / name
            target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as opened:
            opened.writelines(stream.chunks(entry.size))
        stream.read(-entry.size % tarfile.BLOCKSIZE)  # padding
    while rest := stream.read(CHUNK_BYTES):  # to the end, where gzip has its checksum
        if rest.strip(b"\0"):
            raise BundleError("holds something after its end")
    if not cells:
        raise BundleError("holds no run")
    return list(cells)


def _parse_name(name: str) -> tuple[Cell | None, str]:
    """The cell and the file that an entry is named after; no cell for the list of a bundle."""
    if name == INDEX:
        return None, name
    path, _, file = name.removeprefix("runs/").rpartition("/")
    if not name.startswith("runs/") or file not in (*RUN_FILES, WEIGHTS):
        raise BundleError(f"{name!r}: is no file of a run, as in runs/CELL/spec.json")
    try:
        return Cell.parse(path), file
    except ValueError as error:
        raise BundleError(f"{name!r}: {error}") from error
