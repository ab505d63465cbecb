"""Atomic file writes, and hashes of files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from fathom.system.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)


def file_to_write(path: Path) -> Path:
    """The file that a write to `path` creates or replaces; links are followed, broken ones too.

    Raises UserError if `path` exists and is not a regular file. Replacing a device would break the
    machine, and replacing a pipe its readers.
    """
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else stat.filemode(path.stat().st_mode)[0]
        kind = {"c": "device", "b": "device", "p": "pipe", "s": "socket"}.get(kind, kind)
        raise UserError(f"{path}: is a {kind}, which is not replaced; name a file")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextmanager
def with_filename(path: Path, instead: Path | None = None) -> Iterator[None]:
    """Add the file name to system errors without one, such as a full disk's."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL or (error.errno and error.filename in (None, str(instead))):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, and rename the file to `path` if the block succeeds.

    Creates parent folders. After an error the temporary file is gone and `path` is unchanged.
    Raises UserError if `path` exists and is not a regular file.
    """
    target = file_to_write(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with with_filename(path, instead=temporary):
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())  # before the rename, or a crash could leave an empty file
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, seconds: float = -1) -> Iterator[None]:
    """Lock the folder against other processes that call this, until the block or process ends.

    A killed process leaves the file `.lock`, which locks nothing. Raises filelock.Timeout if
    another process still holds the lock after `seconds`; -1 waits for ever.
    """
    lock = folder / ".lock"
    with FileLock(lock).acquire(seconds):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # a waiting process sees that and locks a new file


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in UTF-8 atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: Any) -> None:  # noqa: ANN401, any JSON data
    """Replace `path` by indented JSON atomically. Raises ValueError for NaN and infinity."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def sha256(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums(files: Mapping[str, str]) -> str:
    """Files (name: SHA-256) in the format of sha256sum."""
    return "".join(f"{digest}  {name}\n" for name, digest in files.items())


def parse_sums(text: str) -> dict[str, str]:
    """The inverse of `sums`. Raises ValueError for a line of another format."""
    lines = (line.split("  ", 1) for line in text.splitlines())
    return {name: digest for digest, name in lines}
