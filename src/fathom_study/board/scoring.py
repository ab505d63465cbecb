"""Numbers of a connection from its runs and those of the plain network. Executes no user's file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
from pydantic import Field

from fathom.settings import NonNegative, Number, Settings
from fathom.system.errors import UserError
from fathom_study.analysis.effective_depth import effective_depth_table
from fathom_study.analysis.pair_verdicts import verdicts_of
from fathom_study.analysis.pairs import ONE_RATE
from fathom_study.analysis.run_tables import cells_table
from fathom_study.analysis.tables import counted, read_table
from fathom_study.analysis.worth import ends_on_ladder, worth_table
from fathom_study.board.track import BACKEND, Track
from fathom_study.config import Cell, Config
from fathom_study.runs.folder import read_manifest, read_rows
from fathom_study.runs.run import Run

Verdict = Literal["better", "equivalent", "worse", "undecided"]
VERDICTS = get_args(Verdict)
"""Verdicts in the order of the board's groups."""

STAND_IN = {"connection": "scaled"}
"""A named connection in place of a user's: numbers of runs do not depend on it."""


class Numbers(Settings):
    """Numbers that follow from curves."""

    verdict: Verdict
    answer: Literal["at", "below", "beyond", "both", "none"] = Field(
        description="place on the plain network's ladder; none: no seed has a score"
    )
    multiplier: Number | None = None
    low: Number | None = None
    high: Number | None = None
    least: Number | None = Field(None, description="smallest factor of steps on the ladder")
    most: Number | None = Field(None, description="largest factor of steps on the ladder")
    outside: NonNegative | None = Field(None, description="seeds outside of the ladder")
    seeds: NonNegative = Field(description="seeds with a score")
    diverged: NonNegative = Field(description="seeds that diverged")


def kept_cells(kept: Path, config: Config) -> pd.DataFrame:
    """Kept cells of one platform per study: the one of most runs of the plain network."""
    file = kept / "tables" / "cells.csv"
    table = counted(read_table(file, "run this in a clone of the project"))
    table, chosen = table[table["backend"] == BACKEND], []
    for study in config.studies:
        of_study = table[table["study"] == study]
        plain = of_study[of_study["variant"] == config.plain(study)]
        if plain.empty:
            raise UserError(f"{file}: has no plain network in {study}")
        chosen.append(of_study[of_study["platform"] == plain["platform"].mode()[0]])
    return pd.concat(chosen, ignore_index=True)


def beside_kept(ours: pd.DataFrame, kept: pd.DataFrame) -> pd.DataFrame:
    """Both tables of cells in one, ours on the kept platform of its study."""
    platforms = kept.drop_duplicates("study").set_index("study")["platform"]
    parts = [kept, ours.assign(platform=ours["study"].map(platforms))]
    return pd.concat([part.astype(object) for part in parts], ignore_index=True).infer_objects()


def plain_cells_left(track: Track, kept: Path | None) -> list[Cell]:
    """Cells of the track's plain network that the kept result lacks; without one, all."""
    if not kept:
        return track.plain_cells()
    there = {Cell.parse(key) for key in kept_cells(kept, track.plain)["key"]}
    return [cell for cell in track.plain_cells() if cell not in there]


def tables_of(config: Config, cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(worth, effective depths) of cells."""
    depths = effective_depth_table(config, cells)
    return worth_table(config, cells, depths, verdicts_of(config, cells)), depths


def numbers_of(
    track: Track, label: str, folders: Mapping[Cell, Path], kept: Path | None
) -> Numbers:
    """Numbers of a connection from run folders by cell, and from the kept plain network."""
    config = track.config({"studies": {track.study_name: {"extra_variants": [{label: STAND_IN}]}}})
    runs = []
    for cell, folder in folders.items():
        manifest = read_manifest(folder)
        runs.append(Run(cell, folder, manifest.platform, "measured", "", manifest))
    cells = cells_table(config, runs, {run.folder: read_rows(run.folder) for run in runs})
    of_ours = cells[cells["variant"] == label]
    if kept:
        cells = beside_kept(cells, kept_cells(kept, track.plain))
    worth, _ = tables_of(config, cells)
    found = worth[(worth["variant"] == label) & (worth["rate"] == ONE_RATE)].to_dict("records")
    counts = {
        "seeds": int(pd.to_numeric(of_ours["score"]).notna().sum()),
        "diverged": int((of_ours["outcome"] == "diverged").sum()),
    }
    if counts["seeds"] == 0:
        is_lost = counts["diverged"] == len(of_ours)
        return Numbers(verdict="worse" if is_lost else "undecided", answer="none", **counts)
    row = next((row for row in found if row["answer"]), None)
    if row is None:
        raise UserError(f"track {track.name}: the plain network has no ladder at these seeds")
    ends = {
        name: None if math.isnan(value) else value for name, value in multiplier_of(row).items()
    }
    counts["outside"] = int(row["outside"])
    return Numbers(verdict=row["verdict"], answer=row["answer"], **counts, **ends)


def multiplier_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The multiplier of a row of worth.csv, the interval of its verdict, and its ladder's ends."""
    low, high = ends_on_ladder(row)
    ends = {name: float(row[name]) for name in ("multiplier", "least", "most")}
    return ends | {"low": low, "high": high}
