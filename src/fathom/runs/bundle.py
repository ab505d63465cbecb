"""Bundles: runs carried from one machine to another, checked on both sides.

A bundle is a gzipped tar that holds `bundle.json` first (what is inside, with sizes and SHA-256)
and then `runs/<cell>/<file>`. A bundle may come from anywhere, so an import believes nothing: it
reads entry by entry, refuses whatever is not a plain file of the known layout and of the size that
was announced, and moves runs into place only after every check of every run has passed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import fathom
from fathom.config import Cell, Config, ConfigError
from fathom.runs.folder import (
    FILES,
    MANIFEST,
    MAX_JSON_BYTES,
    WEIGHTS,
    RunError,
    check_run,
    one_line,
    read_manifest,
    run_folder,
)
from fathom.runs.inspect import Run, find_runs
from fathom.settings import lines_of, shown
from fathom.system.errors import UserError
from fathom.system.files import replacing, sha256

FORMAT = 2
INDEX = "bundle.json"
RUN_FILES = (*FILES, MANIFEST)

MAX_FILE_BYTES = 256 * 2**20
MAX_TOTAL_BYTES = 8 * 2**30
MAX_RUNS = 20_000
MAX_INDEX_BYTES = 24 * 2**20
MAX_HEADER_BYTES = 64 * 2**10
"""How much may be read beside the contents that were announced: headers, padding, the end."""
MAX_NAME = 100
"""The longest name of a folder that is made for a bundle."""


class BundleError(UserError):
    """A bundle that cannot be made or must not be imported; the message says what is wrong."""


# --- making one ---------------------------------------------------------------------------------


def create_bundle(config: Config, file: Path, patterns: Sequence[str] = ()) -> list[Run]:
    """Pack every current run whose cell matches one of `patterns` (all if there are none).

    Raises ConfigError for a pattern that fits no cell, BundleError if a chosen run is stale or
    corrupt, or none is left.
    """
    cells = set(cells_of(config, patterns))
    chosen = [
        run
        for run in find_runs(config)
        if run.status != "missing"
        and run.folder == run_folder(Path(config.results), run.cell)  # not one that was imported
        and run.cell in cells
    ]
    unfit = [run for run in chosen if run.status != "measured"]
    if unfit:
        lines = [f"{run.cell}: {run.status}, {run.reason}" for run in unfit]
        raise BundleError("\n".join(lines))
    if not chosen:
        raise BundleError("no run to pack: nothing here is trained and matches")

    index = {
        "format": FORMAT,
        "fathom": fathom.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": {
            run.cell.path(): {
                name: {
                    "sha256": sha256(run.folder / name),
                    "bytes": (run.folder / name).stat().st_size,
                }
                for name in _files_of(run)
            }
            for run in chosen
        },
    }
    with replacing(file) as temporary, tarfile.open(temporary, "w:gz") as archive:
        _add(archive, INDEX, json.dumps(index, indent=1).encode())
        for run in chosen:
            for name in _files_of(run):
                _add(archive, f"runs/{run.cell}/{name}", (run.folder / name).read_bytes())
    return chosen


def _files_of(run: Run) -> list[str]:
    return [*run.manifest.run_files, MANIFEST]


def cells_of(config: Config, patterns: Sequence[str]) -> list[Cell]:
    """The cells whose path a pattern such as 'depth-mlx/48L/*' fits; all if there is no pattern.

    Raises ConfigError, a line for each pattern that fits none.
    """
    cells = config.cells()
    fitting = {p: {cell for cell in cells if fnmatch(cell.path(), p)} for p in patterns}
    if idle := [pattern for pattern, found in fitting.items() if not found]:
        form = "a pattern is like 'depth-mlx/48L/*'"
        raise ConfigError(lines_of(f"no cell matches {shown(p)}; {form}" for p in idle))
    chosen = set().union(*fitting.values()) if patterns else set(cells)
    return [cell for cell in cells if cell in chosen]


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)  # no owner, no time, no mode but the default
    entry.size = len(content)
    archive.addfile(entry, BytesIO(content))


# --- importing one ------------------------------------------------------------------------------


def import_bundle(
    results: Path, file: Path, existing: Literal["refuse", "keep", "replace"] = "refuse"
) -> dict[str, list[str]]:
    """Check a bundle and move its runs to `results/imported/<platform>/<cell>`.

    `existing` decides about a different run of the same cell and platform that is there already.
    Returns the cells by what was done: `imported`, `kept`, `same`. Raises BundleError, with
    nothing written, if anything at all is wrong.
    """
    home = results / "imported"
    with _staging(home) as staging:
        platforms = unpacked(file, staging)
        targets = {cell: imported_folder(results, cell, platforms[cell]) for cell in platforms}
        done: dict[str, list[str]] = {"imported": [], "kept": [], "same": []}
        for cell, target in targets.items():
            done[_action(staging / cell.path(), target, existing, cell)].append(cell.path())
        for path in done["imported"]:
            target = targets[Cell.parse(path)]
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
            (staging / path).replace(target)
    return done


def imported_folder(results: Path, cell: Cell, platform: str) -> Path:
    """Where the imported run of a cell is, or will be."""
    return results / "imported" / platform / cell.path()


def unpacked(file: Path, staging: Path) -> dict[Cell, str]:
    """Unpack a bundle into `staging`, every run whole and checked; the platform of each cell's.

    Raises BundleError if anything at all is wrong.
    """
    return {cell: _checked_platform(staging, cell) for cell in _unpack(file, staging)}


STAGING = ".incoming-"
"""Begins the name of the folder that an import unpacks into; its process's number follows."""


@contextmanager
def _staging(home: Path) -> Iterator[Path]:
    """A folder on the same file system, gone afterwards whatever happens.

    So are those that killed imports have left.
    """
    made = [folder for folder in (home, *home.parents) if not folder.exists()]
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
        for folder in made:  # an import that was refused leaves no empty folders either
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()


def _is_another(process: int) -> bool:
    """Whether a process of that number runs, beside this one."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return process != os.getpid()


def manifests_in(file: Path) -> dict[tuple[str, Cell], bytes]:
    """The manifest of every run of a bundle, by platform and cell. Raises BundleError.

    What is in the other files of a run is not looked at.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder)
        for cell in _unpack(file, staging):
            try:
                platform = read_manifest(staging / cell.path()).platform
            except RunError as error:
                problem = str(error).replace(f"{staging}/", "")
                raise BundleError(f"{file}: {one_line(problem)}") from error
            found[platform, cell] = (staging / cell.path() / MANIFEST).read_bytes()
    return found


def _unpack(file: Path, staging: Path) -> list[Cell]:
    """Write the bundle's files into `staging`, each checked against the index."""
    try:
        # A stream: every entry is judged by its header before its content is read.
        with gzip.open(file) as unpacked:
            bounded = _Bounded(unpacked)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                cells = _unpack_entries(archive, staging, bounded)
            while bounded.read(2**12):
                pass  # the checksum is at the very end
            return cells
    except FileNotFoundError:
        raise BundleError(f"{file}: no such file") from None
    except BundleError as error:
        raise BundleError(f"{file}: {one_line(str(error))}") from error
    except BROKEN as error:
        detail = one_line(str(error), 200) or type(error).__name__
        raise BundleError(f"{file}: not a whole gzipped tar ({detail})") from error


BROKEN = (
    gzip.BadGzipFile, tarfile.TarError, zlib.error, EOFError, ValueError, TypeError,
    AttributeError, LookupError, OverflowError, RecursionError,
)  # fmt: skip
"""What gzip and tarfile raise over broken files: the latter does not check what headers say.

Other OSErrors are the machine's: a full disk, say.
"""


class _Bounded:
    """A stream that gives only so much: tarfile reads a header of any length into memory."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self.stream = stream
        self.left = MAX_HEADER_BYTES

    def allow(self, size: int) -> None:
        """Let an entry's content be read that was judged, with its header and padding."""
        self.left += size + 2 * tarfile.BLOCKSIZE

    def read(self, size: int) -> bytes:
        """Like that of a file. Raises BundleError once more was read than allowed."""
        content = self.stream.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise BundleError(f"more than {MAX_HEADER_BYTES} bytes beside the listed files")
        return content


def _unpack_entries(archive: tarfile.TarFile, staging: Path, bounded: _Bounded) -> list[Cell]:
    expected: dict[str, dict[str, Any]] | None = None
    cells: list[Cell] = []
    for entry in archive:
        if expected is None:
            index = _read_index(archive, entry, bounded)
            cells = [Cell.parse(path) for path in index]
            expected = {
                f"runs/{path}/{name}": recorded
                for path, files in index.items()
                for name, recorded in files.items()
            }
            continue
        content = _content(archive, entry, expected, bounded)
        target = staging / entry.name.removeprefix("runs/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        del expected[entry.name]  # so that a second entry of the name is refused
    if expected is None:
        raise BundleError(f"is empty: {INDEX} is missing")
    if expected:
        raise BundleError(f"{next(iter(expected))}: listed, but not inside")
    return cells


def _read_index(
    archive: tarfile.TarFile, entry: tarfile.TarInfo, bounded: _Bounded
) -> dict[str, dict[str, Any]]:
    """The index's runs, with the shape and every size checked."""
    if entry.name != INDEX or not entry.isreg():
        raise BundleError(f"begins with {entry.name!r}: {INDEX} is missing")
    if entry.size > MAX_INDEX_BYTES:
        raise BundleError(f"{INDEX}: {entry.size} bytes is more than {MAX_INDEX_BYTES}")
    bounded.allow(entry.size)
    try:
        index = json.loads(archive.extractfile(entry).read())
        runs = index["runs"]
        if index["format"] != FORMAT:
            raise BundleError(f"{INDEX}: format {index['format']!r}, but {FORMAT} is read here")
        if len(runs) > MAX_RUNS:
            raise BundleError(f"{INDEX}: {len(runs)} runs is more than {MAX_RUNS}")
        total = 0
        for path, files in runs.items():
            Cell.parse(path)
            if max(map(len, path.split("/"))) > MAX_NAME:
                raise BundleError(f"{INDEX}: {path:.40}… has too long a name")
            if sorted(set(files) - {WEIGHTS}) != sorted(RUN_FILES):
                raise BundleError(f"{INDEX}: {path} does not list the files of a run")
            for name, recorded in files.items():
                size, digest = recorded["bytes"], recorded["sha256"]
                most = MAX_JSON_BYTES if name.endswith(".json") else MAX_FILE_BYTES
                if type(size) is not int or not 0 <= size <= most:
                    raise BundleError(f"{INDEX}: {path}/{name} has a size of {size!r}")
                if not re.fullmatch("[0-9a-f]{64}", digest):
                    raise BundleError(f"{INDEX}: {path}/{name} has no valid SHA-256")
                total += size
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        detail = str(error)[:80] or type(error).__name__
        raise BundleError(f"{INDEX}: not the index of a bundle ({detail})") from error
    if total > MAX_TOTAL_BYTES:
        raise BundleError(f"{INDEX}: {total} bytes in all is more than {MAX_TOTAL_BYTES}")
    return runs


def _content(
    archive: tarfile.TarFile,
    entry: tarfile.TarInfo,
    expected: dict[str, dict[str, Any]],
    bounded: _Bounded,
) -> bytes:
    """The entry's bytes, if it is a listed plain file that holds what was announced."""
    if not entry.isreg() or entry.issparse():
        kinds = {"a link": entry.issym() or entry.islnk(), "a folder": entry.isdir()}
        kind = next((name for name, is_one in kinds.items() if is_one), "a special file")
        raise BundleError(f"{entry.name!r}: {kind}, where only plain files belong")
    recorded = expected.get(entry.name)
    if recorded is None:
        raise BundleError(f"{entry.name!r}: not listed, or there twice")
    if entry.size != recorded["bytes"]:
        raise BundleError(f"{entry.name}: {entry.size} bytes, but listed as {recorded['bytes']}")
    bounded.allow(entry.size)
    content = archive.extractfile(entry).read()
    if hashlib.sha256(content).hexdigest() != recorded["sha256"]:
        raise BundleError(f"{entry.name}: its SHA-256 is not the listed one")
    return content


def _checked_platform(staging: Path, cell: Cell) -> str:
    """The platform of an unpacked run that holds together; raises BundleError otherwise."""
    folder = staging / cell.path()
    try:
        manifest = read_manifest(folder)
        check_run(folder, manifest, cell)
    except RunError as error:
        raise BundleError(one_line(str(error).replace(f"{staging}/", ""))) from error
    platform = manifest.platform
    if not platform:
        raise BundleError(f"{cell}: manifest.json: names no platform")
    if len(platform) > MAX_NAME:
        raise BundleError(f"{cell}: manifest.json: names a platform of over {MAX_NAME} letters")
    return platform


def _action(new: Path, target: Path, existing: str, cell: Cell) -> str:
    """What to do with an unpacked run: one of the keys of what `import_bundle` returns."""
    there = compared(new, target, cell)
    if there != "another":
        return "same" if there == "same" else "imported"
    if existing == "refuse":
        raise BundleError(f"{target}: is there already; choose --keep or --replace")
    return "kept" if existing == "keep" else "imported"


def compared(
    new: Path, target: Path, cell: Cell
) -> Literal["absent", "damaged", "same", "another"]:
    """What is at the place of an unpacked run.

    `damaged`: the same run, which is no longer whole. `another`: any other, whole or not.
    """
    if not target.exists():
        return "absent"
    try:
        if (new / MANIFEST).read_bytes() == (target / MANIFEST).read_bytes():
            return "same" if _is_whole(target, cell) else "damaged"
    except OSError:
        pass  # what is there is no whole run
    return "another"


def _is_whole(folder: Path, cell: Cell) -> bool:
    try:
        check_run(folder, read_manifest(folder), cell)
    except RunError:
        return False
    return True
