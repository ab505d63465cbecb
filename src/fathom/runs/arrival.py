"""What an import of a bundle would say, with nothing taken in."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fathom.config import Cell, Config
from fathom.runs.bundle import compared, imported_folder, manifests_in, unpacked
from fathom.runs.folder import MANIFEST
from fathom.runs.inspect import inspect

BUNDLES = "bundles"
"""The folder of results that keeps bundles, those of the reference: their runs are there, too."""

ARRIVALS = {
    "counts": "fits the config and today's code",
    "replay": "fits the config; other code made it, so a replay decides",
    "left out": "its numbers are not those of the config",
    "not asked for": "the config has no such cell",
    "same": "is there already",
    "another": "another run of the cell is there; only one can stay",
}
"""What can become of a run that arrives."""


@dataclass(frozen=True)
class Arrival:
    """A run of a bundle, and what would become of it."""

    cell: Cell
    platform: str
    outcome: str
    """One of ARRIVALS."""
    reason: str
    """What differs from the config or from today's code; empty if nothing does."""


def arrivals(config: Config, file: Path) -> list[Arrival]:
    """Check a bundle as an import does, and say of every run what would become of it.

    Raises BundleError if the bundle would be refused whatever is there.
    """
    planned, kept = set(config.cells()), _kept(config, file)
    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder)
        platforms = unpacked(file, staging)
        return [
            _there(config, cell, platform, staging / cell.path(), kept.get((platform, cell)))
            or _judged(config, cell, platform, staging / cell.path(), cell in planned)
            for cell, platform in platforms.items()
        ]


def _kept(config: Config, file: Path) -> dict[tuple[str, Cell], bytes]:
    """Manifests by platform and cell of what the bundles hold that the results keep."""
    found = {}
    for other in sorted((Path(config.results) / BUNDLES).glob("*.tar.gz")):
        if not (file.exists() and other.samefile(file)):
            found |= manifests_in(other)
    return found


def _there(
    config: Config, cell: Cell, platform: str, new: Path, kept: bytes | None
) -> Arrival | None:
    """That the run, or another of its cell and platform, is imported or kept; None if none is."""
    there = compared(new, imported_folder(Path(config.results), cell, platform), cell)
    if there == "absent" and kept is not None:
        there = "same" if (new / MANIFEST).read_bytes() == kept else "another"
    return Arrival(cell, platform, there, "") if there in ("same", "another") else None


def _judged(config: Config, cell: Cell, platform: str, new: Path, planned: bool) -> Arrival:
    """Whether the run fits the config and today's code."""
    if not planned:
        return Arrival(cell, platform, "not asked for", "")
    spec = config.spec(cell)
    run = inspect(new, spec, imported=True)
    if run.counts:
        return Arrival(cell, platform, "counts", "")
    fits = run.manifest is not None and run.manifest.spec_hash == spec.hash()
    return Arrival(cell, platform, "replay" if fits else "left out", run.reason)


MOST_REASONS = 5
"""How many different reasons are shown."""


def described(found: Sequence[Arrival]) -> Iterator[str]:
    """A table of arrivals by platform, study and outcome; then the reasons, each once."""
    counts = Counter((a.platform, a.cell.study, a.outcome) for a in found)
    rows = [
        ("platform", "study", "runs", "on arrival"),
        *(
            (platform, study, str(n), f"{outcome}: {ARRIVALS[outcome]}")
            for (platform, study, outcome), n in counts.items()
        ),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for platform, study, runs, what in rows:
        yield f"  {platform:{widths[0]}}  {study:{widths[1]}}  {runs:>{widths[2]}}  {what}"
    reasons = Counter(f"{a.cell.study}: {a.reason}" for a in found if a.reason)
    for reason, n in reasons.most_common(MOST_REASONS):
        yield f"  {n} of {reason}"
    if len(reasons) > MOST_REASONS:
        yield f"  … and {len(reasons) - MOST_REASONS} other reasons"
