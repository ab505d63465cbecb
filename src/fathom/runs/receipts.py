"""Receipts: the outcomes of replays, kept in a file for each backend.

A receipt names today's code and the manifest of every run, so it is void once either has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from fathom.config import Config, Spec
from fathom.runs.folder import Manifest, RunError, read_with
from fathom.runs.training_code import training_code_hash
from fathom.settings import Number, PlainText, Settings, validate
from fathom.system.files import write_json

FOLDER = "replay"
"""Of the receipts, in the folder of reports."""

OUTCOMES = {
    "agrees": "today's code repeats it",
    "differs": "today's code does not repeat it",
    "unavailable": "it cannot be replayed here",
}
"""The outcomes of a replay, in words. Tables and reports say no more than this: the details depend
on the machine that replayed, and the same runs must make the same tables everywhere."""


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
    """The cell that was trained again."""
    outcome: Literal["agrees", "differs", "unavailable"]
    why: PlainText
    """The details of the outcome: how many steps, how exactly, or what differs."""
    differences: dict[PlainText, Number | None]
    """The largest difference of each metric; None where only one side is finite."""

    @property
    def explanation(self) -> str:
        """The outcome in words, with its details."""
        return f"{OUTCOMES[self.outcome]}: {self.why}"

    def applies(self, manifest: Manifest, spec: Spec) -> bool:
        """Whether it is a replay of this very run, by today's code."""
        is_this = self.runs.get(manifest.cell) == manifest.sha256
        return is_this and self.code == training_code_hash(spec)


class Receipt(Settings):
    """A file of replays."""

    format: Literal[1]
    replays: tuple[Replay, ...]


def receipt_file(config: Config, backend: str) -> Path:
    """Where the receipt of a backend is, or will be."""
    return Path(config.report_folder) / FOLDER / f"{backend}.json"


def write_receipt(config: Config, backend: str, replays: Sequence[Replay]) -> None:
    """Replace the receipt of a backend."""
    receipt = Receipt(format=1, replays=tuple(replays))
    write_json(receipt_file(config, backend), receipt.model_dump())


def read_replays(config: Config) -> dict[tuple[str, str], Replay]:
    """Every replay of the receipts, by platform and cell of its runs. Raises RunError."""
    found = {}
    for file in sorted((Path(config.report_folder) / FOLDER).glob("*.json")):
        try:
            receipt = read_with(partial(validate, Receipt), file)
        except RunError as error:
            raise RunError(f"{error}; delete it, then run: fathom replay") from error
        found |= {(r.platform, cell): r for r in receipt.replays for cell in r.runs}
    return found
