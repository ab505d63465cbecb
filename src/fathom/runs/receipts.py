"""Receipts: the outcomes of replays, kept in a file for each study and backend.

A receipt names today's code and the manifest of every run of a group, so it is void once one of
them has changed, has come or is gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from fathom.config import Config
from fathom.runs.code_hash import digits
from fathom.runs.folder import RunError, read_with
from fathom.runs.run import Run
from fathom.runs.training_code import training_code_hash
from fathom.settings import NonNegative, Number, PlainText, Settings, validate
from fathom.system.files import write_json

FOLDER = "replay"
"""Subfolder of the reports that holds receipts."""

FORMAT = 2
"""The version of receipts; no other is read."""

NOT_REPEATED = "not repeated here"
"""Statement for runs that wait for a replay, or whose device is not on this machine."""


class Replay(Settings):
    """The outcome of the replay of a group: runs that differ in nothing but the seed."""

    platform: PlainText
    group: PlainText
    made_by: PlainText
    """The code that made the runs, in words."""
    code: PlainText
    """The hash of today's code that trains the group."""
    runs: dict[PlainText, PlainText]
    """The SHA-256 of each run's manifest, by its cell."""
    repeated: PlainText
    """The cell that was trained again for `steps` steps; of the other runs step 0 was."""
    steps: NonNegative
    outcome: Literal["agrees", "differs", "unavailable"]
    why: PlainText
    """The details of the outcome: how exactly, or what differs."""
    differences: dict[PlainText, Number | None]
    """The largest difference of each metric; None where only one side is finite."""

    @property
    def statement(self) -> str:
        """The outcome in words, as in "today's code repeats 3 steps of seed 0, step 0 of all".

        Tables and reports say no more than this: the details depend on the machine that replayed,
        and the same runs must make the same tables everywhere.
        """
        if self.outcome == "unavailable":
            return NOT_REPEATED
        if self.outcome == "differs":
            return "today's code does not repeat it"
        seed = self.repeated.rpartition("/seed")[2]
        of_all = ", step 0 of all" if len(self.runs) > 1 else ""
        plural = "" if self.steps == 1 else "s"
        return f"today's code repeats {self.steps} step{plural} of seed {seed}{of_all}"

    @property
    def explanation(self) -> str:
        """The outcome in words, with its details."""
        return f"{self.statement}: {self.why}"


class Receipt(Settings):
    """A file of replays."""

    format: Literal[2]
    replays: tuple[Replay, ...]


def replay_key(config: Config, runs: Sequence[Run]) -> str:
    """A hash of today's code and of the runs' manifests. A receipt holds for these alone."""
    codes = {training_code_hash(config.spec(run.cell)) for run in runs}
    return digits(json.dumps([sorted(codes), sorted(run.manifest.sha256 for run in runs)]))


def receipt_file(config: Config, study: str, backend: str) -> Path:
    """Where the receipt of a study's runs on a backend is, or will be."""
    return Path(config.report_folder) / FOLDER / study / f"{backend}.json"


def write_receipt(file: Path, replays: Sequence[Replay]) -> None:
    """Write or replace a receipt."""
    write_json(file, Receipt(format=FORMAT, replays=tuple(replays)).model_dump())


def read_replays(config: Config) -> list[Replay]:
    """Every replay of the receipts. Raises RunError."""
    found: list[Replay] = []
    for file in sorted((Path(config.report_folder) / FOLDER).glob("*/*.json")):
        try:
            receipt = read_with(partial(validate, Receipt), file)
        except RunError as error:
            raise RunError(f"{error}; delete it, then run: fathom replay") from error
        found += receipt.replays
    return found
