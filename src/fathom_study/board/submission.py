"""A submission: a folder with a connection's file, its numbers, its curves and where they ran."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fathom.connections.module import TorchModule, split_name
from fathom.settings import NonNegative, Number, OneLine, PlainText, Settings, TableText, validate
from fathom.system.errors import UserError
from fathom.system.text import digits
from fathom_study.board.scoring import Numbers, numbers_of
from fathom_study.board.track import RECORD, Date, Track
from fathom_study.config import Cell, Config, ConfigError, read_yaml
from fathom_study.runs.bundle import write_bundle
from fathom_study.runs.folder import Manifest, read_manifest
from fathom_study.system.files import write_json, write_text

OURS = "fathom"
"""Author of the rows that come from the reference."""

RUNS, LOG, PACKAGES = "runs.tar.xz", "JUDGE.md", "packages.txt"
"""The bundle of curves; the judgement; the installed packages."""

BOARD = Path("board")
"""Folder of the submissions, board/TRACK/NAME."""

MAX_FILE_BYTES = 2**20
"""Maximum size of a connection's file."""


def _is_licence(text: str) -> str:
    """The text, if it has the form of an SPDX expression, such as MIT or Apache-2.0."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*( (AND|OR|WITH) [A-Za-z0-9][\w.+-]*)*", text):
        raise ValueError("must be an SPDX identifier, such as MIT or Apache-2.0")
    return text


def _is_file_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][\w-]*\.py", name):
        raise ValueError("must be the name of a Python file in this folder")
    return name


def _is_author(name: str) -> str:
    if not name.strip() or name.strip().lower() == OURS:
        raise ValueError(f"must be the name of a person or group, and not {OURS}")
    return name


class Author(Settings):
    """Who submits, and under which licence the connection's file is."""

    who: Annotated[TableText, Field(min_length=1, max_length=80), AfterValidator(_is_author)]
    licence: Annotated[str, Field(max_length=100), AfterValidator(_is_licence)]


class Cost(Settings):
    """Cost of a step over the plain network's."""

    time: Annotated[Number, Field(gt=0)] = Field(description="measured in turns on `machine`")
    machine: TableText
    operations: Annotated[Number, Field(gt=0)] | None = Field(None, description="counted")
    bytes: Annotated[Number, Field(gt=0)] | None = Field(None, description="counted")


class Submission(Author):
    """`submission.json`."""

    format: Literal[1] = 1
    track: PlainText
    track_hash: PlainText
    file: Annotated[PlainText, AfterValidator(_is_file_name)]
    name: PlainText = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="class or function in the file"
    )
    digest: PlainText = Field(description="hash of the file")
    settings: dict[PlainText, Any] = Field({}, description="arguments of the class")
    date: Date
    seeds: list[NonNegative]
    versions: dict[PlainText, PlainText]
    numbers: Numbers
    cost: Cost
    withdrawn: OneLine = Field("", description="why its author takes it back; empty if it counts")

    @property
    def module(self) -> TorchModule:
        """The connection, by the recorded hash; its file is not read. Raises ConfigError."""
        named = {"module": f"{self.file}:{self.name}", "digest": self.digest}
        return validate(TorchModule, {**named, "settings": self.settings}, RECORD, ("settings",))


def read_submission(folder: Path) -> Submission:
    """The record in a folder. Raises ConfigError with a line for each problem."""
    return validate(Submission, read_yaml(folder / RECORD), str(folder / RECORD))


def label_of(name: str, config: Config) -> str:
    """Name of a user's class as a variant that no study of the config has."""
    label = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    taken = any(label in study.labels for study in config.studies.values())
    return f"own_{label}" if taken else label


def versions_of(manifests: list[Manifest]) -> dict[str, str]:
    """Versions and machine of runs; several values of one are joined."""
    facts: dict[str, dict[str, None]] = {}
    for manifest in manifests:
        device = manifest.device
        named = {
            "fathom": manifest.made_by,
            "python": manifest.python,
            "numpy": manifest.numpy,
            device.framework or "framework": device.framework_version,
            "device": device.name,
            "system": manifest.os,
        }
        for key, value in named.items():
            facts.setdefault(key, {})[value] = None
    return {key: ", ".join(sorted(values))[:500] for key, values in facts.items()}


def follows_from(
    track: Track, label: str, runs: Mapping[Cell, Path], cost: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a record that follow from run folders; `cost` gets the machine."""
    manifests = [read_manifest(runs[cell]) for cell in track.cells(label)]
    return {
        "versions": versions_of(manifests),
        "numbers": numbers_of(track, label, runs, track.kept_result).model_dump(),
        "cost": {**cost, "machine": manifests[0].device.name},
    }


def write_submission(
    track: Track,
    module: str,
    arguments: Mapping[str, Any],
    author: Author,
    runs: Mapping[Cell, Path],
    cost: Mapping[str, float | None],
    log: Path,
) -> Path:
    """Write board/TRACK/NAME for trained runs; returns it. Raises UserError if another's is there.

    `module`: FILE.py:NAME. `cost`: time, operations and bytes of a step. `log`: the judgement.
    """
    path, name = split_name(module)
    file, label = Path(path), label_of(name, track.plain)
    submission = validate(
        Submission,
        {
            **author.model_dump(),
            "track": track.name,
            "track_hash": track.hash,
            "file": file.name,
            "name": name,
            "digest": digits(file.read_bytes()),
            "settings": dict(arguments),
            "date": datetime.now(UTC).date().isoformat(),
            "seeds": track.seeds,
            **follows_from(track, label, runs, cost),
        },
        module,
    )
    slug = re.sub(r"[^a-z0-9]+", "-", author.who.lower()).strip("-") or "anonymous"
    folder = BOARD / track.name / f"{label}-{slug}"
    if (folder / RECORD).exists():
        there = read_submission(folder)
        if (there.digest, there.settings) != (submission.digest, submission.settings):
            raise UserError(
                f"{folder}: has another submission of that name; move or delete it first"
            )
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, folder / file.name)
    write_bundle(folder / RUNS, runs)
    write_text(folder / LOG, log.read_text(encoding="utf-8"))
    found = {f"{d.name}=={d.version}\n" for d in metadata.distributions()}
    write_text(folder / PACKAGES, "".join(sorted(found, key=str.lower)))
    write_json(folder / RECORD, submission.model_dump(exclude_defaults=False))
    return folder


def submissions(board: Path, track: str) -> list[tuple[Path, Submission]]:
    """Every submission to a track, oldest first. Raises ConfigError for a damaged one."""
    files = sorted(board.glob(f"{track}/*/{RECORD}"))
    found = [(file.parent, read_submission(file.parent)) for file in files]
    for folder, submission in found:
        if submission.track != track:
            raise ConfigError(
                f"{folder / RECORD}: track: is {submission.track}, but the folder is of {track}"
            )
    return sorted(found, key=lambda pair: (pair[1].date, pair[0].name))
