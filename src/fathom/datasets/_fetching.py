"""Fetch the files of a data set: what all data sets share."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fathom.datasets import SUMS, DataError
from fathom.system.files import atomic_write, sha256, write_text

STALL_SECONDS = 10
"""How long a server may send nothing."""

DOWNLOAD_SECONDS = 300
"""How long downloading a package may take."""

COMPLAINTS = ("E: ", "W: Failed to fetch", "ERROR: ")
"""How error lines of apt-get and pip begin."""


class Unavailable(Exception):  # noqa: N818, an outcome that is looked for, not an error
    """Why a source cannot be used, in one line."""


def fetch(
    folder: Path,
    log: Callable[[str], None],
    *,
    title: str,
    files: Mapping[str, str],
    sources: Iterable[tuple[str, Callable[[Path, list[str]], None]]],
    by_hand: str | None = None,
    elsewhere: str,
) -> None:
    """Make sure that `folder` holds all `files` (name: SHA-256) and their list, SHA256SUMS.

    Missing files are taken from the `sources`, in order: pairs of a name and a function of the
    folder and the missing files. `log` gets a line for each source. A file of `folder` with other
    content is refused and left as it is. Raises DataError; its message says what was tried, what a
    user can put there `by_hand` (None: the missing files), and where to find that (`elsewhere`).
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
            obtain(folder, missing)
        except (Unavailable, OSError) as error:
            reason = f": {one_line(error)}"
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


def sums(files: Mapping[str, str]) -> str:
    """Names and SHA-256 in the format of sha256sum."""
    return "".join(f"{digest}  {name}\n" for name, digest in files.items())


def _missing(folder: Path, files: Mapping[str, str], note: Callable[[str], None]) -> list[str]:
    """The files that `folder` lacks. Raises DataError if the folder cannot be used as it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made ({error.strerror})") from error
    missing = [name for name in files if not (folder / name).exists()]
    present = [name for name in files if name not in missing]
    refused = []
    for name in present:
        problem = difference(folder / name, files[name])
        if problem:
            refused.append(
                f"{folder / name}: {problem}; it is left as it is: move it away and run this again"
            )
    note(
        f"folder {folder}: {len(present) - len(refused)} of {len(files)} files"
        + (f", {len(refused)} refused" if refused else "")
    )
    if refused:
        raise DataError("\n".join(refused))
    return missing


def copy(source: Path, folder: Path, files: Mapping[str, str]) -> None:
    """Copy `files` (name: SHA-256) from the folder `source`, each atomically.

    Raises Unavailable if one is missing or not official, after all others have been copied.
    """
    problems = []
    for name, digest in files.items():
        try:
            with atomic_write(folder / name) as temporary:
                shutil.copyfile(source / name, temporary)
                problem = difference(temporary, digest)
                if problem:
                    raise Unavailable(f"{name} there is {problem}")
        except FileNotFoundError:
            problems.append(f"no {name} there")
        except Unavailable as error:
            problems.append(str(error))
    if problems:
        raise Unavailable("; ".join(problems))


def difference(file: Path, digest: str) -> str | None:
    """Why `file` is not the official one, which has this SHA-256; None if it is."""
    try:
        found = sha256(file)
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return digest_difference(found, digest)


def digest_difference(found: str, digest: str) -> str | None:
    """Why a file with the SHA-256 `found` is not the official one; None if it is."""
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


def one_line(error: Exception) -> str:
    """The message of an error, without line breaks."""
    return " ".join(str(error).split())
