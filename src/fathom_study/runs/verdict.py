"""What is recorded of a run besides its own files: that it was checked, and its replay.

`verdict.json` in a run's folder is written once, when the run arrives, and stays on this machine:
no bundle carries it. Replays are kept outside the run folders, in one file for each study and
backend. Both name the manifest for which they hold, and are void for any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from fathom.settings import NonNegative, Number, PlainText, Settings, validate
from fathom_study.config import Cell, Config, Spec
from fathom_study.runs.folder import (
    VERDICT,
    Manifest,
    RunError,
    check_run,
    read_json,
    read_manifest,
    read_with,
)
from fathom_study.runs.run import Run, group_of
from fathom_study.runs.training_code import training_code_hash
from fathom_study.system.files import write_json

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
