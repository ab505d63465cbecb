"""Dry run of a bundle import."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fathom_study.config import Cell, Config
from fathom_study.runs.bundle import BundleError, compare_existing, imported_folder, unpack
from fathom_study.runs.folder import Manifest
from fathom_study.runs.validate import validate_run

BUNDLES = "bundles"
"""The folder of results that keeps bundles, as the reference does. Their runs count as present."""

IMPORT_OUTCOMES = {
    "counts": "fits the config, and names today's code; left out if a replay here differs",
    "replay": "fits the config, and names other code; counts if a replay here agrees",
    "left out": "its numbers are not those of the config",
    "not asked for": "the config has no such cell",
    "same": "is there already",
    "another": "another run of the cell is there; only one can stay",
}
"""Outcomes of importing a run, with their meanings."""

TRUST = """\
An import is checked for form, and for the steps that today's code repeats here: three of one run of
each group, step 0 of the others. Whether its later steps are honest rests on who sent it. `fathom
replay --whole RUN` repeats one run to its end and compares every step."""
"""The limits of trust in an import."""

MAX_REASONS = 5
"""Maximum number of distinct reasons shown."""


@dataclass(frozen=True)
class ImportPreview:
    """A run of a bundle, and the predicted outcome of its import."""

    cell: Cell
    platform: str
    outcome: str
    """One of IMPORT_OUTCOMES."""
    reason: str
    """The difference from the config or from today's code; empty if there is none."""


def preview_import(config: Config, file: Path) -> list[ImportPreview]:
    """Predict the outcome of an import for each run. Raises BundleError if it would be refused."""
    planned, kept = set(config.cells()), _kept_manifests(config, file)

    def outcome(new: Path, cell: Cell, manifest: Manifest) -> tuple[str, str]:
        """(outcome, reason) for the unpacked run `new`."""
        target = imported_folder(Path(config.results), cell, manifest.platform)
        result = compare_existing(manifest, target, cell)
        other = kept.get((manifest.platform, cell))
        if result == "imported" and other:
            result = "same" if other.sha256 == manifest.sha256 else "another"
        if result != "imported":
            return result, ""
        if cell not in planned:
            return "not asked for", ""
        spec = config.spec(cell)
        run = validate_run(new, spec, imported=True)
        if run.counts:
            return "counts", ""
        return "replay" if manifest.spec_hash == spec.hash() else "left out", run.reason

    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder)
        return [
            ImportPreview(cell, manifest.platform, *outcome(staging / cell.path(), cell, manifest))
            for cell, manifest in unpack(file, staging).items()
        ]


def _kept_manifests(config: Config, file: Path) -> dict[tuple[str, Cell], Manifest]:
    """The manifests in all other bundles that the results keep, by platform and cell."""
    kept = {}
    for other in sorted((Path(config.results) / BUNDLES).glob("*.tar.xz")):
        if not (file.exists() and other.samefile(file)):
            with tempfile.TemporaryDirectory() as folder, suppress(BundleError):  # a damaged one
                manifests = unpack(other, Path(folder), check=False)
                kept |= {(each.platform, cell): each for cell, each in manifests.items()}
    return kept


def format_previews(previews: Sequence[ImportPreview]) -> Iterator[str]:
    """A table of previews by platform, study and outcome; then every reason once."""
    counts = Counter((p.platform, p.cell.study, p.outcome) for p in previews)
    rows = [("platform", "study", "runs", "on arrival")]
    rows += [
        (platform, study, str(n), f"{outcome}: {IMPORT_OUTCOMES[outcome]}")
        for (platform, study, outcome), n in counts.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for platform, study, runs, what in rows:
        yield f"  {platform:{widths[0]}}  {study:{widths[1]}}  {runs:>{widths[2]}}  {what}"
    reasons = Counter(f"{p.cell.study}: {p.reason}" for p in previews if p.reason)
    for reason, n in reasons.most_common(MAX_REASONS):
        yield f"  {n} of {reason}"
    if len(reasons) > MAX_REASONS:
        yield f"  … and {len(reasons) - MAX_REASONS} other reasons"
