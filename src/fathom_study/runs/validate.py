"""Judge run folders: what is recorded of a run besides its own files, and whether it counts.

`verdict.json` in a run's folder is written once, when the run arrives, and stays on this machine:
no bundle carries it. Replays are kept outside the run folders, in one file for each study and
backend. Both name the manifest for which they hold, and are void for any other.

`validate_run` alone decides whether a run is current: for tables, reports, `fathom status`,
`verify`, `train` and `train-all`, and Snakemake's plan.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from fathom.settings import NonNegative, Number, PlainText, Settings, validate
from fathom.system.text import one_line
from fathom_study.config import Cell, Config, Spec
from fathom_study.runs.folder import (
    FILES,
    MANIFEST,
    PARTIAL,
    SPEC,
    VERDICT,
    Manifest,
    RunError,
    check_content,
    check_files,
    check_run,
    read_json,
    read_manifest,
    read_with,
    run_folder,
)
from fathom_study.runs.run import Run, group_of, group_runs
from fathom_study.runs.training_code import starts, training_code, training_code_hash
from fathom_study.system.files import write_json

# --- records of a run -----------------------------------------------------------------------------

STEPS = 3
"""Number of steps of a group's first run to repeat: the second and third follow updates. Of every
other run step 0 is repeated, which its seed decides."""

NOT_REPEATED = "not repeated here"
"""Statement for runs that wait for a replay, or whose device is not on this machine."""


class Replay(Settings):
    """The outcome of repeating the first steps of a run."""

    code: PlainText
    """The hash of the code that repeated it; the replay is void for any other."""
    steps: NonNegative
    outcome: Literal["agrees", "differs", "unavailable"]
    why: PlainText
    """The details of the outcome: the precision, the difference or the error."""
    differences: dict[PlainText, Number | None]
    """The largest difference of each metric; None where only one side is finite."""


class Replays(Settings):
    """A file of replays."""

    format: Literal[1] = 1
    replays: dict[PlainText, Replay]
    """By the `sha256` of the run's manifest."""


def receive_run(folder: Path, cell: Cell) -> Manifest:
    """Check a run that has just arrived, and write its verdict. Raises RunError."""
    manifest = read_manifest(folder)
    check_run(folder, manifest, cell)
    write_json(folder / VERDICT, {"format": 1, "manifest": manifest.sha256, "content": "valid"})
    return manifest


def was_checked(folder: Path, manifest: Manifest) -> bool:
    """Whether the content of the run with this manifest was checked when it arrived."""
    try:
        verdict = read_json(folder / VERDICT)
    except RunError:
        return False
    return (verdict.get("manifest"), verdict.get("content")) == (manifest.sha256, "valid")


def replay_file(config: Config, study: str, backend: str) -> Path:
    """File of the replays of a study's imported runs on a backend."""
    return Path(config.results) / "replays" / study / f"{backend}.json"


def read_replays(config: Config, study: str, backend: str) -> dict[str, Replay]:
    """The replays of a study's runs on a backend, by manifest; none if the file is damaged."""
    try:
        file = replay_file(config, study, backend)
        return read_with(partial(validate, Replays), file).replays
    except RunError:
        return {}


def steps_to_repeat(spec: Spec, place: int) -> int:
    """Number of steps to repeat of the run at this place of a group."""
    return 1 if place else min(STEPS, spec.steps)


@dataclass(frozen=True)
class GroupReplay:
    """The replays of a group: runs that differ only in the seed. They count together."""

    runs: Sequence[Run]
    replays: Sequence[Replay | None]
    """One for each run; None if today's code has not repeated enough of its steps."""

    @property
    def _decisive(self) -> int | None:
        """The place of the first run that today's code does not repeat; None if there is none."""
        places = (i for i, r in enumerate(self.replays) if r and r.outcome != "agrees")
        return next(places, None)

    @property
    def outcome(self) -> str:
        """`waits`, or the outcome of the replays, as in `Run.replay`."""
        if self._decisive is not None:
            return self.replays[self._decisive].outcome
        return "waits" if None in self.replays else "agrees"

    @property
    def statement(self) -> str:
        """The outcome in words, as in "today's code repeats 3 steps of seed 0, step 0 of all".

        Tables and reports show only this: the details depend on the machine that replayed, and the
        same runs must make the same tables everywhere.
        """
        if self.outcome in ("waits", "unavailable"):
            return NOT_REPEATED
        if self.outcome == "differs":
            return "today's code does not repeat it"
        of_all = ", step 0 of all" if len(self.runs) > 1 else ""
        steps, seed = self.replays[0].steps, self.runs[0].cell.seed
        return f"today's code repeats {steps} step{'s' * (steps != 1)} of seed {seed}{of_all}"

    @property
    def explanation(self) -> str:
        """The outcome in words, with its details."""
        at = self._decisive
        if at is None:
            why = ", ".join(dict.fromkeys(replay.why for replay in self.replays if replay))
        else:
            seed = f"seed {self.runs[at].cell.seed}, " if self.outcome == "differs" else ""
            why = f"{seed}{self.replays[at].why}"
        return f"{self.statement}: {why}"

    def __str__(self) -> str:
        """The group, the code that made it, and the outcome."""
        run = self.runs[0]
        made = f"made by {run.manifest.made_by}"
        return f"{run.platform}: {group_of(run.cell)}, {made}: {self.explanation}"


def judge_group(config: Config, group: Sequence[Run], replays: Mapping[str, Replay]) -> GroupReplay:
    """The replays of a group by today's code, taken from those by manifest."""
    spec = config.spec(group[0].cell)
    code = training_code_hash(spec)

    def holds(replay: Replay | None, place: int) -> bool:
        is_long = replay and (
            replay.outcome != "agrees" or replay.steps >= steps_to_repeat(spec, place)
        )
        return bool(is_long) and replay.code == code

    known = [replays.get(run.manifest.sha256) for run in group]
    return GroupReplay(group, [r if holds(r, place) else None for place, r in enumerate(known)])


def write_replays(config: Config, group: GroupReplay) -> None:
    """Add the replays of a group to their file; those of other runs stay."""
    cell = group.runs[0].cell
    known: dict[str, Replay | None] = {**read_replays(config, cell.study, cell.backend)}
    for run, replay in zip(group.runs, group.replays, strict=True):
        known[run.manifest.sha256] = replay
    kept = Replays(replays={manifest: replay for manifest, replay in known.items() if replay})
    write_json(replay_file(config, cell.study, cell.backend), kept.model_dump())


# --- whether runs count ---------------------------------------------------------------------------


def validate_run(folder: Path, spec: Spec, *, imported: bool = False) -> Run:
    """Judge the run in `folder` by its manifest, the spec and today's code.

    Its files are compared with the hashes in the manifest. Their content was checked when the run
    arrived (`receive_run`); it is checked here if no verdict says so.
    """
    manifest: Manifest | None = None

    def result(status: str, reason: str = "", platform: str = "") -> Run:
        return Run(spec.cell, folder, platform, status, reason, manifest)

    if not (folder / MANIFEST).exists():
        if (folder / PARTIAL).exists():
            return result("failed", "began and has not finished; run it again to go on")
        if any((folder / name).exists() for name in FILES):
            return result("corrupt", f"{MANIFEST} is missing")
        return result("missing")
    try:
        manifest = read_manifest(folder)
        check_files(folder, manifest, spec.cell)
        if why_stale := _why_stale(folder, manifest, spec):
            return result("stale", one_line(why_stale), manifest.platform)
        if not was_checked(folder, manifest):
            check_content(folder, manifest)  # a stale run may have the format of an older code
    except RunError as error:
        return result("corrupt", one_line(str(error).removeprefix(f"{folder}/")))
    return result("imported" if imported else "measured", platform=manifest.platform)


def _why_stale(folder: Path, manifest: Manifest, spec: Spec) -> str:
    """The changes of spec or code since the run; empty if there are none."""
    if manifest.spec_hash != spec.hash():
        return f"spec differs: {compare_specs(read_json(folder / SPEC), spec.model_dump())}"
    if changed := changed_code(manifest.code, training_code(spec)):
        return f"code differs: {', '.join(changed)}"
    missing = sorted(starts(spec) - manifest.code.keys())
    return f"no hash of its code: {', '.join(missing)}" if missing else ""


def why_again(run: Run) -> str:
    """Why a run is trained again; empty if it is current or was not finished."""
    if run.counts or run.status in ("missing", "failed"):
        return ""
    return run.reason if run.status == "stale" else f"{run.status}: {run.reason}"


def summarize_reasons(reasons: Sequence[str]) -> str:
    """One line with the number of runs that train again and the three most frequent reasons."""
    most = Counter(reasons).most_common(3)
    more = "; `fathom status` names the others" if len(set(reasons)) > len(most) else ""
    each = "; ".join(f"{why} ({n})" for why, n in most)
    return f"{len(reasons)} runs are not current and will be retrained: {each}{more}"


def changed_code(recorded: dict[str, str], now: dict[str, str]) -> list[str]:
    """The recorded modules that have changed or are gone.

    Modules that are reached only today do not count: the code that came to use one has changed.
    """
    return sorted(name for name, digest in recorded.items() if now.get(name) != digest)


def compare_specs(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    """The differences of two specs, such as 'optimizer.lr 0.002 → 0.001'."""
    changes = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            inner = compare_specs(before, after, f"{prefix}{key}.")
            changes += [inner] if inner else []
        elif before != after:
            changes.append(f"{prefix}{key} {before} → {after}")
    return ", ".join(changes)


def find_runs(config: Config) -> list[Run]:
    """Every run of the config's cells, trained here or imported, judged as `validate_run` does.

    A cell without any run has one of status `missing`. With `train: false`, runs of this machine
    are ignored. Raises RunError if nothing can count.
    """
    imported: dict[Cell, list[Run]] = {}
    for run in imported_runs(config):
        imported.setdefault(run.cell, []).append(run)
    runs = []
    for cell in config.cells():
        others, folder = imported.get(cell, []), run_folder(Path(config.results), cell)
        if config.train:
            local = validate_run(folder, config.spec(cell))
        else:
            local = Run(cell, folder, "", "missing", "", None)
        runs += others if others and local.status == "missing" else [local, *others]
    return runs


def imported_runs(config: Config) -> list[Run]:
    """Every imported run of the config, judged also by its replay. RunError if none can count."""
    # Folders with a leading dot belong to running imports; their runs are unchecked.
    folders = sorted(Path(config.results).glob("imported/[!.]*"))
    platforms = [folder for folder in folders if folder.is_dir()]
    runs = [
        _validate_imported(folder, config.spec(cell), platform.name)
        for cell, platform in itertools.product(config.cells(), platforms)
        if (folder := platform / cell.path()).exists()
    ]
    known, decided = cache(partial(read_replays, config)), {}
    for group in group_runs(run for run in runs if run.replay):
        cell = group[0].cell
        replay = judge_group(config, group, known(cell.study, cell.backend))
        decided |= {run.folder: _apply_replay(run, replay) for run in group}
    runs = [decided.get(run.folder, run) for run in runs]
    if not (runs or config.train):
        raise RunError(
            f"{config.results}/imported: contains no run of this config, which has train: false; "
            "import runs first: fathom bundle import FILE.tar.xz"
        )
    return runs


def _validate_imported(folder: Path, spec: Spec, platform: str) -> Run:
    """The imported run; `waits` for a replay if it is whole and of the present spec."""
    run = validate_run(folder, spec, imported=True)
    if run.platform not in ("", platform):  # a copy would count twice
        reason = one_line(f"{MANIFEST}: is of platform {run.platform}, not {platform}")
        return replace(run, status="corrupt", reason=reason)
    if run.counts or (run.status == "stale" and run.manifest.spec_hash == spec.hash()):
        return replace(run, replay="waits")
    return run


def _apply_replay(run: Run, replay: GroupReplay) -> Run:
    """The imported run of the present spec, judged by its replay or else by the code it names.

    Anybody can copy the hashes of today's code. So a run that names them is repeated like any
    other, if its device is here. A run that cannot be repeated here counts, and its reason says so:
    no machine has every device.
    """
    outcome, made = replay.outcome, f"made by {run.manifest.made_by}"
    if run.counts and outcome in ("waits", "unavailable"):
        said = details = f"its manifest names today's code; {NOT_REPEATED}"
    elif outcome == "waits":
        said = details = f"waits for a replay (fathom replay); {run.reason}"
    elif outcome != "differs":
        run = replace(run, status="imported")  # the replay has looked at the content of a stale run
        said, details = f"{made}; {replay.statement}", f"{made}; {replay.explanation}"
    else:
        rest = f"; {run.reason}" if run.reason else ""
        said, details = f"{replay.statement}{rest}", f"{replay.explanation}{rest}"
        run = replace(run, status="stale")
    return replace(run, replay=outcome, reason=one_line(said), details=one_line(details))
