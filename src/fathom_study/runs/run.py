"""A run folder and the result of its validation."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fathom.system.text import digits
from fathom_study.config import Cell
from fathom_study.runs.folder import Manifest

STATUSES = {
    "measured": "trained here, and current",
    "imported": "from a bundle; today's code repeats its first steps, or is the code that it names",
    "stale": "spec or code have changed since, or today's code does not repeat it",
    "corrupt": "a file is missing, or is not what the manifest says",
    "failed": "began and did not finish",
    "missing": "not trained yet",
}

COUNTED = ("measured", "imported")
"""Statuses of runs that tables count."""


@dataclass(frozen=True)
class Run:
    """A run folder and its status."""

    cell: Cell
    folder: Path
    platform: str
    """The platform of the run, usable as a folder name; empty if unknown."""
    status: str
    """One of STATUSES."""
    reason: str
    """Why it is stale, corrupt or failed, or why an imported one counts; empty otherwise."""
    manifest: Manifest | None
    """None if it is missing or cannot be read."""
    replay: str = ""
    """`waits`, or the outcome of the replay (`agrees`, `differs`, `unavailable`); empty unless the
    run is imported and has the present spec."""
    details: str = ""
    """The reason with the details of a replay. They depend on the machine that replayed: for
    terminals, never for a table or a report. Empty where there are none."""

    @property
    def explanation(self) -> str:
        """The reason, with details if there are any."""
        return self.details or self.reason

    @property
    def counts(self) -> bool:
        """Whether its numbers may enter a table."""
        return self.status in COUNTED


def group_of(cell: Cell) -> str:
    """The path of a cell without its seed, such as 'depth-mlx/48L/mhc/torch'."""
    return cell.path().rpartition("/")[0]


def group_runs(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs by platform, cell without its seed, and code; in ascending order of seeds."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        code = digits(json.dumps(run.manifest.code, sort_keys=True))
        groups.setdefault((run.platform, group_of(run.cell), code), []).append(run)
    return [sorted(group, key=lambda run: run.cell.seed) for group in groups.values()]
