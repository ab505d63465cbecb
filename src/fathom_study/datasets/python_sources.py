"""The Python sources of Django 5.2, a second text for the text task.

A study names their folder as a user's own text: `model: {corpus: data/python-sources, …}`.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from fathom_study.datasets import _fetching
from fathom_study.system.files import write_text

PACKAGE, VERSION = "Django", "5.2"
ROOT = f"{PACKAGE}-{VERSION}"

ARCHIVE = f"{ROOT}.tar.gz"
"""The source distribution, 11 MB."""

ARCHIVE_SHA256 = "1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89"


def fetch(folder: Path, log: Callable[[str], None]) -> None:
    """Make sure that `folder` holds the archive, and each module of the package as a .txt file.

    The 666 modules have 4.8 million characters, 96 of them distinct. Raises DataError.
    """
    download = _fetching.download_by_pip(PACKAGE, VERSION, ARCHIVE_SHA256)
    _fetching.fetch(
        folder,
        log,
        title="Python sources",
        files={ARCHIVE: ARCHIVE_SHA256},
        sources=[(f"pip download {PACKAGE}=={VERSION}", lambda _: download)],
        to_do=f"{ARCHIVE} (from Python's package index)",
    )
    for name, text in modules(folder / ARCHIVE):
        write_text(folder / f"{name}.txt", text)


def modules(archive: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of each module in the archive, but for empty, non-ASCII and repeated ones."""
    seen = set()
    with tarfile.open(archive) as packed:  # read in place: nothing is unpacked
        for member in packed:
            path = PurePosixPath(member.name)
            if member.isfile() and path.suffix == ".py" and path.is_relative_to(f"{ROOT}/django"):
                content = packed.extractfile(member).read()
                if content and content.isascii() and content not in seen:
                    seen.add(content)
                    yield ".".join(path.with_suffix("").parts[1:]), content.decode("ascii")
