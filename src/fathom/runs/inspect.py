"""How far a run folder can be trusted, and which runs a config has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fathom.config import Cell, Config, Spec
from fathom.runs.code import training_code
from fathom.runs.folder import (
    FILES,
    MANIFEST,
    PARTIAL,
    SPEC,
    Manifest,
    RunError,
    check_content,
    check_files,
    one_line,
    read_json,
    read_manifest,
    run_folder,
)

STATUSES = {
    "measured": "trained here, and current",
    "imported": "from a bundle, and current",
    "stale": "spec or code have changed since",
    "corrupt": "a file is missing, or is not what the manifest says",
    "failed": "began and did not finish",
    "missing": "not trained yet",
}


@dataclass(frozen=True)
class Run:
    """A run folder and how far it can be trusted."""

    cell: Cell
    folder: Path
    platform: str
    """Where it was measured, as a name for a folder; empty if there is nothing to say so."""
    status: str
    """One of STATUSES."""
    reason: str
    """Why it is stale, corrupt or failed; empty otherwise."""
    manifest: Manifest | None
    """None if it is missing or cannot be read."""

    @property
    def origin(self) -> str:
        """`imported` or `here`; empty if its numbers do not count."""
        return {"measured": "here", "imported": "imported"}.get(self.status, "")

    @property
    def counts(self) -> bool:
        """Whether its numbers may enter a table."""
        return self.status in ("measured", "imported")


def inspect(folder: Path, spec: Spec, *, imported: bool = False) -> Run:
    """Judge the run in `folder` against the spec, the present code and its own manifest."""
    manifest: Manifest | None = None

    def judged(status: str, reason: str = "", platform: str = "") -> Run:
        return Run(spec.cell, folder, platform, status, reason, manifest)

    if not (folder / MANIFEST).exists():
        if (folder / PARTIAL).exists():
            return judged("failed", "began and has not finished; run it again to go on")
        if any((folder / name).exists() for name in FILES):
            return judged("corrupt", f"{MANIFEST} is missing")
        return judged("missing")
    try:
        manifest = read_manifest(folder)
        check_files(folder, manifest, spec.cell)
        why_stale = _why_stale(folder, manifest, spec)
        if why_stale:
            return judged("stale", one_line(why_stale), manifest.platform)
        check_content(folder, manifest)  # a stale run's need not have the form of today
    except RunError as error:
        return judged("corrupt", one_line(str(error).removeprefix(f"{folder}/")))
    return judged("imported" if imported else "measured", platform=manifest.platform)


def _why_stale(folder: Path, manifest: Manifest, spec: Spec) -> str:
    """What of the run's spec or code is of another time; empty if nothing is."""
    if manifest.spec_hash != spec.hash():
        return f"spec differs: {changed_numbers(read_json(folder / SPEC), spec.model_dump())}"
    changed = changed_code(manifest.code, training_code(spec))
    return f"code differs: {', '.join(changed)}" if changed else ""


def changed_code(recorded: dict[str, str], now: dict[str, str]) -> list[str]:
    """The recorded definitions that have changed or are gone.

    What is reached today and was not then cannot matter by itself: something that was reached then
    would have to have changed to use it.
    """
    return sorted(name for name, digest in recorded.items() if now.get(name) != digest)


def changed_numbers(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    """What differs between two specs, as in 'optimizer.lr 0.002 → 0.001'."""
    changes = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            inner = changed_numbers(before, after, f"{prefix}{key}.")
            changes += [inner] if inner else []
        elif before != after:
            changes.append(f"{prefix}{key} {before} → {after}")
    return ", ".join(changes)


def find_runs(config: Config) -> list[Run]:
    """Every run that the config's cells have, here and in the imported bundles, judged.

    A cell without any run has one of status `missing`.
    """
    results = Path(config.results)
    platforms = imported_platforms(results)
    runs = []
    for cell in config.cells():
        spec = config.spec(cell)
        imported = _imported(platforms, spec)
        local = inspect(run_folder(results, cell), spec)
        runs += imported if imported and local.status == "missing" else [local, *imported]
    return runs


def imported_that_count(config: Config) -> list[tuple[str, Cell]]:
    """(platform, cell) of every imported run that may enter a table."""
    platforms = imported_platforms(Path(config.results))
    if not platforms:
        return []
    runs = (run for cell in config.cells() for run in _imported(platforms, config.spec(cell)))
    return [(run.platform, run.cell) for run in runs if run.counts]


def _imported(platforms: Sequence[Path], spec: Spec) -> list[Run]:
    """The imported runs of a cell, judged."""
    return [
        _in_its_place(inspect(folder, spec, imported=True), platform.name)
        for platform in platforms
        if (folder := platform / spec.cell.path()).exists()
    ]


def _in_its_place(run: Run, platform: str) -> Run:
    """The imported run, corrupt if its folder is not its platform's: a copy would count twice."""
    if not run.counts or run.platform == platform:
        return run
    reason = one_line(f"manifest.json: is of platform {run.platform}, not {platform}")
    return replace(run, status="corrupt", reason=reason)


def imported_platforms(results: Path) -> list[Path]:
    """The folders that bundles were imported into, one for each platform."""
    folder = results / "imported"
    if not folder.is_dir():
        return []
    # A name with a dot is what an import unpacks into, which a kill leaves behind, unchecked.
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
