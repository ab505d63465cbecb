"""A run folder, and what validation found out about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fathom.config import Cell
from fathom.runs.folder import Manifest

STATUSES = {
    "measured": "trained here, and current",
    "imported": "from a bundle, and current, or repeated by today's code",
    "stale": "spec or code have changed since",
    "corrupt": "a file is missing, or is not what the manifest says",
    "failed": "began and did not finish",
    "missing": "not trained yet",
}

COUNTED = ("measured", "imported")
"""Those whose numbers may enter a table."""


@dataclass(frozen=True)
class Run:
    """A run folder and its status."""

    cell: Cell
    folder: Path
    platform: str
    """Where it was measured, as a name for a folder; empty if no manifest says so."""
    status: str
    """One of STATUSES."""
    reason: str
    """Why it is stale, corrupt or failed, or by which replay it counts; empty otherwise."""
    manifest: Manifest | None
    """None if it is missing or cannot be read."""
    replay: str = ""
    """Of an imported run that other code made: `waits`, or the outcome of its replay (`agrees`,
    `differs`, `unavailable`); empty for any other."""
    details: str = ""
    """The reason with the details of a replay. They depend on the machine that replayed: for
    terminals and receipts, never for a table or a report. Empty where there are none."""

    @property
    def explanation(self) -> str:
        """The reason, in as much detail as is known."""
        return self.details or self.reason

    @property
    def counts(self) -> bool:
        """Whether its numbers may enter a table."""
        return self.status in COUNTED


def group_of(cell: Cell) -> str:
    """What the seeds of a cell share, as in 'depth-mlx/48L/mhc/torch'."""
    return cell.path().rpartition("/")[0]
