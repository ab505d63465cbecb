"""Atomic file writes, and hashes of files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, and rename the file to `path` if the block succeeds.

    Creates parent folders. After an error the temporary file is gone and `path` is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # before the rename, or a crash could leave an empty file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in UTF-8 atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: Any) -> None:  # noqa: ANN401, whatever JSON can hold
    """Replace `path` by indented JSON atomically. Raises ValueError for NaN and infinity."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def sha256(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
