"""Files of figures, and figures.json: subject, inputs and hashes of the figures in a folder.

Tables and reports are verified by making them again. Figures are not: drawing takes long, and
another version of matplotlib writes other bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from fathom.settings import Settings
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.step_times import read_step_times
from fathom_study.config import Cell, Config
from fathom_study.report.figures import Declaration, figures_of_study, files_of
from fathom_study.runs.run import Run
from fathom_study.system.files import sha256, write_json

FIGURE_MANIFEST = "figures.json"

OVERVIEW_TABLES = ("cells.csv", "sizes.csv", "published_sizes.csv")
"""Tables that the figures over all studies read."""

CELLS = "cells.csv"
"""The table that the figures of every study read."""

TABLES_OF = {
    "cells": CELLS,
    "steps": "steps.csv.gz",
    "profiles": "profiles.csv",
    "effects": "effects.csv",
    "worth": "worth.csv",
    "stability": "stability.csv",
}
"""Tables of a study by the name of the input. The input `ladder` is of CELLS too."""


class FigureManifest(Settings):
    """The content of figures.json."""

    of: str
    """The subject of the figures, such as 'depth-mlx on torch'."""
    inputs: dict[str, str]
    """SHA-256 of the unpacked content of each input file, by file name."""
    files: dict[str, str]
    """SHA-256 of each figure file, by file name."""

    def why_other(self, of: str, inputs: Sequence[Path]) -> str:
        """Why the figures do not match this subject and these inputs; empty if they do."""
        if self.of != of:
            return f"belongs to '{self.of}', not to '{of}'"
        others = [
            file.name
            for file in inputs
            if file.is_file() and self.inputs.get(file.name) != _content_hash(file)
        ]
        return f"its figures were drawn from another {', '.join(others)}" if others else ""


def tables_of(declared: Iterable[Declaration], folder: Path) -> tuple[Path, ...]:
    """The tables that these figures of a study read; `folder`: the study's tables."""
    reads = {read for figure in declared for read in figure.reads}
    names = [file for read, file in TABLES_OF.items() if read in reads or file == CELLS]
    return tuple(folder / name for name in names)


def figure_files(folder: str | Path, figures: Iterable[Declaration]) -> list[str]:
    """The files of these figures in a folder, and its figures.json."""
    files = [str(file) for figure in figures for file in files_of(Path(folder), figure.name)]
    return [*files, f"{folder}/{FIGURE_MANIFEST}"]


def places_of(
    config: Config, cells: Iterable[Cell], imported: Iterable[Run] = ()
) -> dict[tuple[str, Platform], list[Declaration]]:
    """The figures of each study on each platform: of cells trained here, and of imported runs.

    No figure of steps shows ladder trainings: a platform with only those has no figures. If none
    was imported from a platform, it has no figure of step multipliers.
    """
    variants: dict[tuple[str, Platform], set[str]] = defaultdict(set)
    for cell in cells:
        ladder = config.studies[cell.study].ladder_trainings
        variants[cell.study, Platform(cell.backend)] |= {cell.variant, *ladder}
    for run in imported:
        variants[run.cell.study, Platform(run.cell.backend, run.platform)].add(run.cell.variant)
    timed = {
        (study, platform)
        for (study, _, _, platform), time in read_step_times(config).items()
        if not math.isnan(time.seconds)
    }
    places = {}
    for (study, at), trained in variants.items():
        ladder = config.studies[study].ladder_trainings
        if trained - ladder:
            places[study, at] = [
                one
                for one in figures_of_study(config, study)
                if (trained & ladder or "worth" not in one.reads)
                and ((study, at.name) in timed or not one.timed)
            ]
    return places


def drawing_modules(figures: Iterable[Declaration]) -> list[str]:
    """Names of the modules that draw these figures."""
    return ["fathom_study.report.drawing.draw", *sorted({figure.module for figure in figures})]


def write_figure_manifest(
    folder: Path, names: Iterable[str], of: str, inputs: Iterable[Path]
) -> None:
    """Write figures.json for the named figures in `folder`."""
    manifest = FigureManifest(
        of=of,
        inputs={file.name: _content_hash(file) for file in inputs},
        files={file.name: sha256(file) for name in names for file in files_of(folder, name)},
    )
    write_json(folder / FIGURE_MANIFEST, manifest.model_dump())


def read_figure_manifest(folder: Path) -> FigureManifest | None:
    """Manifest of a folder's figures; None if figures.json is missing or invalid."""
    try:
        return FigureManifest.model_validate_json((folder / FIGURE_MANIFEST).read_bytes())
    except (OSError, ValidationError):
        return None


def content(file: Path) -> bytes:
    """The unpacked content of a file; empty if it cannot be unpacked."""
    data = file.read_bytes()
    if file.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return b""


def _content_hash(file: Path) -> str:
    """SHA-256 of the unpacked content, since zlib versions differ in packed bytes."""
    return hashlib.sha256(content(file)).hexdigest()
