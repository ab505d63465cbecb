"""Rows of the board: our own connections from worth.csv, and submissions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fathom_study.analysis.pairs import ONE_RATE
from fathom_study.board.scoring import VERDICTS, Numbers, multiplier_of
from fathom_study.board.submission import LOG, OURS, Submission, submissions
from fathom_study.board.track import Track, load_track, track_names

AT_WIDTH = "cost_fused"
"""Column of worth.csv with the cost of a step computed at width 4096. It may be missing."""


class Row(NamedTuple):
    """One connection in one track. Numbers that are not known are NaN."""

    verdict: str
    connection: str
    """Name as text, or label of a variant of ours."""
    who: str
    answer: str
    multiplier: float
    low: float
    high: float
    least: float
    most: float
    outside: float
    """Seeds outside of the ladder."""
    seeds: int
    asked: int
    diverged: int
    time: float
    operations: float
    study: str
    date: str = ""
    """Empty for the row of a judgement, which was not submitted."""
    at_width: float = math.nan
    log: str = ""
    """Path of the log from the folder of submissions; empty for a row of ours."""
    file: str = ""
    """Path of the class file from there."""
    at_best_rates: bool = False
    """Whether each network has its own best learning rate, which only our rows have."""
    line: int = 0
    """Line of worth.csv; 0 for a submission."""
    replicated_by: tuple[tuple[str, str], ...] = ()
    """(who, verdict) of later submissions of the same file by others."""
    withdrawn: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether it is the row of a judgement."""
        return not self.date


class TrackRows(NamedTuple):
    """A track and its rows by verdict; a group has no rank, so it is in the order of names."""

    track: Track
    groups: Mapping[str, Sequence[Row]]
    withdrawn: Sequence[Row]


def board_rows(
    board: Path, worth: Sequence[Mapping[str, Any]], labels: Mapping[str, str]
) -> list[TrackRows]:
    """Every track with its rows. `worth`: records of worth.csv. Raises ConfigError."""
    return [rows_of(load_track(name), board, worth, labels) for name in track_names()]


def rows_of(
    track: Track,
    board: Path,
    worth: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
    *judged: Row,
) -> TrackRows:
    """A track with its rows, and those judged here. Raises ConfigError for a damaged submission."""
    theirs = [] if track.closed else _theirs(track, submissions(board, track.name))
    rows = [*_ours(track, worth), *(row for row in theirs if not row.withdrawn), *judged]
    rows.sort(key=lambda row: (labels.get(row.connection, row.connection).lower(), row.line))
    by_verdict = {name: [row for row in rows if row.verdict == name] for name in VERDICTS}
    groups = {name: group for name, group in by_verdict.items() if group}
    return TrackRows(track, groups, [row for row in theirs if row.withdrawn])


def _ours(track: Track, worth: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows of the kept result at a track: at the common rate, and at each network's best rate."""
    if not (track.study and track.kept):
        return []
    plain = track.plain.plain(track.study_name)
    of_study = [
        row
        for row in worth
        if row["study"] == track.study_name and row["depth"] == track.depth and row["answer"]
    ]
    if not of_study:
        return []
    # One platform, as numbers of several do not compare.
    [(platform, _)] = Counter(str(row["platform"]) for row in of_study).most_common(1)
    return [
        Row(
            verdict=row["verdict"],
            date=track.date,
            connection=row["design"],
            who=OURS,
            answer=row["answer"],
            **multiplier_of(row),
            outside=row["outside"],
            seeds=int(row["seeds"]),
            asked=len(track.seeds),
            diverged=0,
            time=row["cost"],
            operations=row["operations"],
            at_width=row.get(AT_WIDTH, math.nan),
            study=track.study_name,
            at_best_rates=row["rate"] != ONE_RATE,
            line=row["line"],
        )
        for row in of_study
        if str(row["platform"]) == platform and (row["rate"] != ONE_RATE or row["against"] == plain)
    ]


def _theirs(track: Track, found: Sequence[tuple[Path, Submission]]) -> list[Row]:
    """Rows of submissions, the oldest of each file; later ones by others replicate it."""
    rows: dict[tuple[str, str, str], Row] = {}
    for folder, one in found:
        key = one.digest, one.name, repr(sorted(one.settings.items()))
        if key in rows and not one.withdrawn:
            if rows[key].who != one.who:
                again = (*rows[key].replicated_by, (one.who, one.numbers.verdict))
                rows[key] = rows[key]._replace(replicated_by=again)
            continue
        rows[(*key[:2], f"{key[2]} {folder}") if one.withdrawn else key] = _row(track, folder, one)
    return list(rows.values())


def _row(track: Track, folder: Path, one: Submission) -> Row:
    """The row of a submission."""
    settings = ", ".join(f"{k} {v}" for k, v in one.settings.items())
    name = f"{one.name}, {settings}" if settings else one.name
    row = row_of(track, name, one.who, one.numbers, one.cost.time, one.cost.operations)
    place = f"{track.name}/{folder.name}"
    files = {"log": f"{place}/{LOG}", "file": f"{place}/{one.file}"}
    return row._replace(date=one.date, withdrawn=one.withdrawn, **files)


def row_of(
    track: Track, name: str, who: str, numbers: Numbers, time: float, operations: float | None
) -> Row:
    """The row of a user's connection, without its files."""
    own = {**numbers.model_dump(), "time": time, "operations": operations}
    return Row(
        connection=name,
        who=who,
        asked=len(track.seeds),
        study=track.study_name,
        **{name: math.nan if value is None else value for name, value in own.items()},
    )
