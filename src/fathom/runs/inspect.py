"""How far a run folder can be trusted, and which runs a config has."""

from __future__ import annotations

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
from fathom.runs.replay import OUTCOMES, Replay, applies, made_by, read_replays

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

WAITS = "waits for a replay (fathom replay)"


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
    """Why it is stale, corrupt or failed, or by which replay it counts; empty otherwise."""
    manifest: Manifest | None
    """None if it is missing or cannot be read."""
    replay: str = ""
    """Of an imported run that other code made: `waits`, or what its replay came to (`agrees`,
    `differs`, `unavailable`); empty for any other."""
    at_length: str = ""
    """The reason with the details of a replay, which are of the machine that made it: for a
    terminal and a receipt, and never for a table or a report. Empty where there are none."""

    @property
    def explanation(self) -> str:
        """The reason, as far as it is known."""
        return self.at_length or self.reason

    @property
    def origin(self) -> str:
        """`imported` or `here`; empty if its numbers do not count."""
        return {"measured": "here", "imported": "imported"}.get(self.status, "")

    @property
    def counts(self) -> bool:
        """Whether its numbers may enter a table."""
        return self.status in COUNTED


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

    A cell without any run has one of status `missing`. Where the config says `train: false`, no
    run of here is looked at. Raises RunError for a damaged receipt, and where nothing can count.
    """
    carried: dict[Cell, list[Run]] = {}
    for run in imported_runs(config):
        carried.setdefault(run.cell, []).append(run)
    runs = []
    for cell in config.cells():
        imported, folder = carried.get(cell, []), run_folder(Path(config.results), cell)
        if config.train:
            local = inspect(folder, config.spec(cell))
        else:
            local = Run(cell, folder, "", "missing", "", None)
        runs += imported if imported and local.status == "missing" else [local, *imported]
    return runs


def imported_runs(config: Config) -> list[Run]:
    """Every imported run of the config's cells, judged.

    Raises RunError for a damaged receipt, and if there is none where no other counts.
    """
    carried = _Imported(config)
    cells = config.cells() if carried.platforms else ()
    runs = [run for cell in cells for run in carried.runs(config.spec(cell))]
    if not (runs or config.train):
        raise RunError(
            f"{config.results}/imported: holds no run of this config, which says train: false, so "
            "nothing can be shown; import runs first: fathom bundle import FILE.tar.gz"
        )
    return runs


class _Imported:
    """What was imported, and the receipts of its replays."""

    def __init__(self, config: Config) -> None:
        self.platforms = imported_platforms(Path(config.results))
        self.replays = read_replays(config) if self.platforms else {}

    def runs(self, spec: Spec) -> list[Run]:
        """The imported runs of a cell, judged."""
        return [
            self._judged(folder, spec, platform.name)
            for platform in self.platforms
            if (folder := platform / spec.cell.path()).exists()
        ]

    def _judged(self, folder: Path, spec: Spec, platform: str) -> Run:
        run = inspect(folder, spec, imported=True)
        if run.platform not in ("", platform):  # a copy would count twice
            reason = one_line(f"{MANIFEST}: is of platform {run.platform}, not {platform}")
            return replace(run, status="corrupt", reason=reason)
        if run.status != "stale" or run.manifest.spec_hash != spec.hash():
            return run
        found = self.replays.get((platform, spec.cell.path()))
        return _by_replay(run, found if found and applies(found, run.manifest, spec) else None)


def _by_replay(run: Run, replay: Replay | None) -> Run:
    """An imported run of the present spec that other code made: it counts if a replay agrees."""
    if replay is None:
        return replace(run, replay="waits", reason=one_line(f"{WAITS}; {run.reason}"))
    outcome = OUTCOMES[replay.outcome]
    if replay.outcome != "agrees":
        return replace(
            run,
            replay=replay.outcome,
            reason=one_line(f"{outcome}; {run.reason}"),
            at_length=one_line(f"{replay.told}; {run.reason}"),
        )
    try:
        check_content(run.folder, run.manifest)
    except RunError as error:
        reason = one_line(f"{str(error).removeprefix(f'{run.folder}/')}; {run.reason}")
        return replace(run, replay="differs", reason=reason)
    made = f"made by {made_by(run.manifest)}"
    return replace(
        run,
        status="imported",
        replay="agrees",
        reason=f"{made}; {outcome}",
        at_length=f"{made}; {replay.told}",
    )


def imported_platforms(results: Path) -> list[Path]:
    """The folders that bundles were imported into, one for each platform."""
    folder = results / "imported"
    if not folder.is_dir():
        return []
    # A name with a dot is what an import unpacks into, which a kill leaves behind, unchecked.
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
