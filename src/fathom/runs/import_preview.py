"""Dry run of a bundle import."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fathom.config import Cell, Config
from fathom.runs.bundle import compare_existing, imported_folder, read_manifests, unpack
from fathom.runs.folder import MANIFEST
from fathom.runs.validate import validate_run

BUNDLES = "bundles"
"""The folder of results that keeps bundles, as the reference does. Their runs count as present."""

IMPORT_OUTCOMES = {
    "counts": "fits the config and today's code",
    "replay": "fits the config; other code made it, so a replay decides",
    "left out": "its numbers are not those of the config",
    "not asked for": "the config has no such cell",
    "same": "is there already",
    "another": "another run of the cell is there; only one can stay",
}
"""What an import can make of a run."""

MOST_REASONS = 5
"""How many different reasons are shown."""


@dataclass(frozen=True)
class ImportPreview:
    """A run of a bundle, and what an import would make of it."""

    cell: Cell
    platform: str
    outcome: str
    """One of IMPORT_OUTCOMES."""
    reason: str
    """What differs from the config or from today's code; empty if nothing does."""


def preview_import(config: Config, file: Path) -> list[ImportPreview]:
    """Check a bundle as an import does, and predict what becomes of each run.

    Raises BundleError if the bundle would be refused whatever is there.
    """
    planned, kept = set(config.cells()), _kept_manifests(config, file)

    def outcome(new: Path, cell: Cell, platform: str) -> tuple[str, str]:
        """What becomes of the unpacked run `new`, and why."""
        present = compare_existing(new, imported_folder(Path(config.results), cell, platform), cell)
        manifest = kept.get((platform, cell))
        if present == "absent" and manifest is not None:
            present = "same" if (new / MANIFEST).read_bytes() == manifest else "another"
        if present in ("same", "another"):
            return present, ""
        if cell not in planned:
            return "not asked for", ""
        spec = config.spec(cell)
        run = validate_run(new, spec, imported=True)
        if run.counts:
            return "counts", ""
        fits = run.manifest is not None and run.manifest.spec_hash == spec.hash()
        return "replay" if fits else "left out", run.reason

    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder)
        return [
            ImportPreview(cell, platform, *outcome(staging / cell.path(), cell, platform))
            for cell, platform in unpack(file, staging).items()
        ]


def _kept_manifests(config: Config, file: Path) -> dict[tuple[str, Cell], bytes]:
    """The manifests in all other bundles that the results keep, by platform and cell."""
    found = {}
    for other in sorted((Path(config.results) / BUNDLES).glob("*.tar.gz")):
        if not (file.exists() and other.samefile(file)):
            found |= read_manifests(other)
    return found


def format_previews(previews: Sequence[ImportPreview]) -> Iterator[str]:
    """A table of previews by platform, study and outcome; then every reason once."""
    counts = Counter((p.platform, p.cell.study, p.outcome) for p in previews)
    rows = [
        ("platform", "study", "runs", "on arrival"),
        *(
            (platform, study, str(n), f"{outcome}: {IMPORT_OUTCOMES[outcome]}")
            for (platform, study, outcome), n in counts.items()
        ),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for platform, study, runs, what in rows:
        yield f"  {platform:{widths[0]}}  {study:{widths[1]}}  {runs:>{widths[2]}}  {what}"
    reasons = Counter(f"{p.cell.study}: {p.reason}" for p in previews if p.reason)
    for reason, n in reasons.most_common(MOST_REASONS):
        yield f"  {n} of {reason}"
    if len(reasons) > MOST_REASONS:
        yield f"  … and {len(reasons) - MOST_REASONS} other reasons"
