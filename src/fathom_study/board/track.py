"""Tracks of the board: a study with seeds and a date, frozen by a hash (docs/board.md)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import date
from functools import cached_property
from operator import not_
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from fathom.connections.module import TorchModule
from fathom.settings import (
    ConfigError,
    Flag,
    OneLine,
    Positive,
    Settings,
    Text,
    deep_merge,
    unknown,
    validate,
)
from fathom.system.text import digits
from fathom_study.config import Cell, Config, Spec, check_config, read_yaml

TRACKS = Path(__file__).parents[1] / "project" / "tracks"
"""Folder of the tracks: workflow/tracks of a clone."""

ORDER = ("quick", "standard", "long", "code", "gpu")
"""The tracks in the order of the board; others follow."""

RECORD = "submission.json"
"""The record of a submission."""

BACKEND = "torch"
"""A connection of a user's is a PyTorch module."""

REFERENCE = "results/reference"
"""The kept result."""


Date = Annotated[
    Text,
    Field(pattern=r"^\d{4}-\d\d-\d\d$"),
    AfterValidator(lambda text: date.fromisoformat(text).isoformat()),
]


class Track(Settings):
    """A track: settings under which connections are compared."""

    name: Text
    title: OneLine
    date: Date = Field(description="day from which the settings are frozen")
    about: OneLine = Field(description="what is trained, and how long that takes")
    closed: OneLine = Field("", description="why it takes no submissions; empty if it does")
    kept: Flag = Field(False, description="runs of the plain network are those of the kept result")
    reference: Text = Field(REFERENCE, description="folder of the kept result")
    minutes: Positive = Field(60, description="time limit of one training in a check, minutes")
    study: dict[str, dict[str, Any]] = Field(
        {}, exclude_if=not_, description="one study by name; its only variant is the plain network"
    )

    @model_validator(mode="after")
    def _has_one_study(self) -> Track:
        if len(self.study) != (not self.closed):
            raise ValueError("study: must be one study, or none in a closed track")
        return self

    def config(self, overrides: Mapping[str, Any] | None = None) -> Config:
        """The track as a config, with changes. Raises ConfigError."""
        base = {"results": self.reference, "studies": self.study}
        return check_config(deep_merge(base, overrides or {}), f"track {self.name}")

    @property
    def kept_result(self) -> Path | None:
        """Folder of the kept result with the plain network's runs; None if they are not kept."""
        return Path(self.reference) if self.kept else None

    @cached_property
    def plain(self) -> Config:
        """The config of the plain networks alone."""
        return self.config()

    @property
    def study_name(self) -> str:
        """Name of the study; empty in a closed track."""
        return next(iter(self.study), "")

    @property
    def depth(self) -> int:
        """Depth at which connections are compared."""
        return self.plain.studies[self.study_name].depths[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds that a submission has to train; none in a closed track."""
        return self.plain.studies[self.study_name].seeds if self.study else []

    def plain_cells(self) -> list[Cell]:
        """Cells of the plain network and of its ladder."""
        if not self.study:
            return []
        study, plain = self.plain.studies[self.study_name], self.plain.plain(self.study_name)
        rungs = study.rungs(plain or "").values()
        return [
            Cell(self.study_name, self.depth, rung, BACKEND, seed)
            for rung, seed in itertools.product(rungs, self.seeds)
        ]

    def cells(self, label: str) -> list[Cell]:
        """Cells of a connection."""
        return [Cell(self.study_name, self.depth, label, BACKEND, seed) for seed in self.seeds]

    def spec(self, cell: Cell, connection: TorchModule | None = None) -> Spec:
        """The spec of a cell; of a connection's without executing its file."""
        if connection is None:
            return self.plain.spec(cell)
        plain = self.plain.plain(self.study_name)
        of_plain = Cell(cell.study, cell.depth, plain or "", cell.backend, cell.seed)
        changed = {"variant": cell.variant, "connection": connection}
        return self.plain.spec(of_plain).model_copy(update=changed)

    @cached_property
    def hash(self) -> str:
        """Hash of the name, the date, and every number that trainings of the plain network use."""
        specs = [self.plain.spec(cell).json() for cell in self.plain_cells()]
        return digits("\n".join([self.name, self.date, str(self.kept), *specs]))


def load_track(name: str) -> Track:
    """The track of a name, open or not. Raises ConfigError with the known names."""
    if name not in (known := track_names()):
        raise ConfigError(unknown("track", name, known))
    file = TRACKS / f"{name}.yaml"
    return validate(Track, {"name": name, **read_yaml(file)}, str(file))


def open_track(name: str) -> Track:
    """The track of a name. Raises ConfigError if there is none, or if it is not open."""
    track = load_track(name)
    if track.closed:
        raise ConfigError(f"track {name}: is not open: {track.closed}")
    return track


def track_names() -> list[str]:
    """Names of all tracks, in the order of the board."""
    names = sorted(file.stem for file in TRACKS.glob("*.yaml"))
    return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


def board_files(board: str | None) -> list[str]:
    """The files that a board is made of: tracks and submissions; none without a board."""
    if not board:
        return []
    tracks = [TRACKS / f"{name}.yaml" for name in track_names()]
    return [str(file) for file in (*tracks, *sorted(Path(board).glob(f"*/*/{RECORD}")))]
