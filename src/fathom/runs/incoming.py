"""The folder that an import unpacks into, and the clean-up after a killed import."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fathom.system.files import locked

PREFIX, REPLACED = ".incoming-", ".replaced"
"""Prefix of the folder's name; its subfolder for runs that new ones replace."""

PARTS = 6
"""Parts of the path of an imported run: platform and the five parts of a cell's path."""


@contextmanager
def incoming(home: Path) -> Iterator[Path]:
    """A folder inside `home`, which no other import cleans up meanwhile.

    Cleans up after imports that were killed, first.
    """
    home.mkdir(parents=True, exist_ok=True)
    with locked(home, math.inf) as is_locked:
        if is_locked:
            _clean_up(home)
        own = Path(tempfile.mkdtemp(prefix=PREFIX, dir=home))
        try:
            yield own
        finally:
            _clean_up(home, own.name)


def move_in(run: Path, target: Path, home: Path, folder: Path) -> None:
    """Move a run to `target`. A run that is there moves aside, so that a kill loses neither."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        aside = folder / REPLACED / target.relative_to(home)
        aside.parent.mkdir(parents=True, exist_ok=True)
        target.replace(aside)
    run.replace(target)


def _clean_up(home: Path, pattern: str = f"{PREFIX}*") -> None:
    """Delete the folders of imports; a run whose place nothing has taken goes back there."""
    for folder in home.glob(pattern):
        for run in (folder / REPLACED).glob("/".join("*" * PARTS)):
            target = home / run.relative_to(folder / REPLACED)
            if not target.exists():
                run.replace(target)
        shutil.rmtree(folder)
