"""A kept result that reports show beside their own: its files and their recorded hashes.

The hashes are in git, in the format of sha256sum, so that an edit of the result is visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fathom.system.errors import UserError
from fathom_study.datasets import SUMS
from fathom_study.runs.bundle import refused_bundles
from fathom_study.runs.import_preview import BUNDLES
from fathom_study.system.files import parse_sums, sha256, sums, write_text

SHOWN = ("*.md", "studies/*.md", "tables/*.csv", "figures/**/*.png")
"""Files that reports read or link to, except runs."""

REMEDY = "it belongs to the kept result that the config names; restore it"


def _names(folder: Path) -> list[str]:
    """Names of the shown files and bundles, as in the list of hashes.

    An archive of other results has only the shown files.
    """
    patterns = (*SHOWN, f"{BUNDLES}/*.tar.xz")
    files = (file for pattern in patterns for file in sorted(folder.glob(pattern)))
    return [file.relative_to(folder).as_posix() for file in files]


def record(folder: Path) -> int:
    """Write the hashes of a kept result's files; return their number.

    Raises UserError if there are no files, or if a bundle of the result was refused.
    """
    if refused := refused_bundles(folder):
        lines = [f"{line}; replace it with the whole bundle" for line in refused]
        raise UserError("\n".join([*lines, f"{folder}: is not recorded without these runs"]))
    if not (names := _names(folder)):
        raise UserError(f"{folder}: contains no result; name one, such as results/reference")
    write_text(folder / SUMS, sums({name: sha256(folder / name) for name in names}))
    return len(names)


def differences(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file of a kept result that differs from its record, and the difference."""
    if not folder.is_dir():
        why = "is not a folder, but the config names it as `reference`; restore it, or set null"
        yield folder, why
        return
    listed = folder / SUMS
    try:
        recorded = parse_sums(listed.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        why = "missing" if missing else "is not a list of hashes"
        command = f"python benchmarks/record.py {folder}"
        yield listed, f"{why}; to trust the existing files, run: {command}"
        return
    present = set(_names(folder))
    for name in sorted(recorded.keys() | present):
        if name not in recorded:
            yield folder / name, f"is not listed in {SUMS}"
        elif name in present and sha256(folder / name) != recorded[name]:
            yield folder / name, f"does not match {SUMS}"
        elif name not in present and (folder / name.partition("/")[0]).exists():
            yield folder / name, f"missing, but {SUMS} lists it"
