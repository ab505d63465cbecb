"""Fetch and read the files of a data set: what all data sets share."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from fathom.datasets import SUMS, DataError
from fathom.system.files import atomic_write, parse_sums, sha256, sums, write_text

STALL_SECONDS = 10
"""How long a server may send nothing."""

DOWNLOAD_SECONDS = 300
"""How long downloading a package may take."""

COMPLAINTS = ("E: ", "W: Failed to fetch", "ERROR: ")
"""How error lines of apt-get and pip begin."""


class Unavailable(Exception):  # noqa: N818, an outcome that is looked for, not an error
    """Why a source cannot be used, in one line."""


Source = Callable[[Path, list[str]], Path]
"""From an empty folder and the names of missing files to the folder that then has these files.

May raise Unavailable or OSError.
"""


def fetch(
    folder: Path,
    log: Callable[[str], None],
    *,
    title: str,
    files: Mapping[str, str],
    sources: Iterable[tuple[str, Source]],
    by_hand: str | None = None,
    elsewhere: str,
) -> None:
    """Make sure that `folder` holds all `files` (name: SHA-256) and their list, SHA256SUMS.

    Missing files are taken from the `sources`, pairs of a name and a function, in order. `log` gets
    a line for each source. A file of `folder` with other content is refused and left as it is.
    Raises DataError; its message says what was tried, what a user can put there `by_hand` (None:
    the missing files), and where to find that (`elsewhere`).
    """
    tried = []

    def note(line: str) -> None:
        tried.append(line)
        log(line)

    missing = _missing(folder, files, note)
    for name, obtain in sources:
        if not missing:
            break
        wanted, reason, started = len(missing), "", time.monotonic()
        try:
            with TemporaryDirectory(prefix="fathom-") as temporary:
                found = obtain(Path(temporary), missing)
                _copy(found, folder, {file: files[file] for file in missing})
        except (Unavailable, OSError) as error:
            reason = f": {' '.join(str(error).split())}"
        missing = [file for file in missing if not (folder / file).is_file()]
        count = f"{wanted - len(missing)} of {wanted} files in {time.monotonic() - started:.1f} s"
        note(f"{name}: {count}{reason}")
    if missing:
        lines = [
            f"{title} is unavailable here: {len(missing)} of {len(files)} files are missing",
            *(f"tried {line}" for line in tried),
            f"to go on, put this into {folder.absolute()} and run the command again: "
            + (by_hand or ", ".join(missing)),
            elsewhere,
        ]
        raise DataError("\n".join(lines))

    listed = folder / SUMS
    if not listed.is_file() or listed.read_bytes() != sums(files).encode():
        write_text(listed, sums(files))  # only if it differs: Snakemake looks at its time


def read_sums(file: Path, digest: str) -> dict[str, str]:
    """The files of such a list (name: SHA-256) that itself has this SHA-256.

    So whoever changes the list has to change the code, whose hash then says so.
    """
    if problem := difference(file, digest):
        raise DataError(f"{file}: {problem}")
    return parse_sums(file.read_text(encoding="utf-8"))


def _missing(folder: Path, files: Mapping[str, str], note: Callable[[str], None]) -> list[str]:
    """The files that `folder` lacks. Raises DataError if the folder cannot be used as it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made ({error.strerror})") from error
    missing, refused = [], []
    for name, digest in files.items():
        file = folder / name
        if not file.exists():
            missing.append(name)
        elif problem := difference(file, digest):
            advice = "it is left as it is: move it away and run this again"
            refused.append(f"{file}: {problem}; {advice}")
    note(
        f"folder {folder}: {len(files) - len(missing) - len(refused)} of {len(files)} files"
        + (f", {len(refused)} refused" if refused else "")
    )
    if refused:
        raise DataError("\n".join(refused))
    return missing


def _copy(source: Path, folder: Path, files: Mapping[str, str]) -> None:
    """Copy `files` (name: SHA-256), each atomically, up to the first that is not official."""
    for name, digest in files.items():
        with atomic_write(folder / name) as temporary:
            shutil.copyfile(source / name, temporary)
            if problem := difference(temporary, digest):
                raise Unavailable(f"{name} there is {problem}")


def read(folder: Path, files: Mapping[str, str]) -> dict[str, bytes]:
    """The content of all `files` (name: SHA-256) in `folder`. Raises DataError, one line."""
    missing = [name for name in files if not (folder / name).exists()]
    if missing:
        raise DataError(
            f"{folder}: lacks {len(missing)} of {len(files)} files, such as {missing[0]}; "
            "run: fathom fetch"
        )
    for name, digest in files.items():
        if problem := difference(folder / name, digest):
            raise DataError(f"{folder / name}: {problem}; move it away and run: fathom fetch")
    return {name: (folder / name).read_bytes() for name in files}


def difference(file: Path, digest: str) -> str | None:
    """Why `file` is not the official one, which has this SHA-256; None if it is."""
    try:
        found = sha256(file)
    except OSError as error:
        return f"unreadable ({error.strerror})"
    if found == digest:
        return None
    return f"not the official file (its SHA-256 is {found[:12]}…, not {digest[:12]}…)"


def run(
    name: str,
    command: list[str],
    folder: Path,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> str | None:
    """Run a command inside `folder`; returns what went wrong in one line, or None.

    `apt-get update` exits with status 0 even if it reached no mirror, so its warnings of failed
    downloads count as problems too.
    """
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        return f"{name} took longer than {seconds:g} s"
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    failures = [line.partition(": ")[2] for line in lines if line.startswith(COMPLAINTS)]
    if result.returncode == 0 and not failures:
        return None
    said = (failures or lines[-1:] or [f"exit status {result.returncode}"])[0]
    return f"{name}: {said}"
