"""Table files: their names and columns, and how they are written and read.

A folder holds the tables of all studies. `studies/STUDY` below it holds the same tables with the
rows of one study. Its figures read these, so a run of one study changes no figure of another. The
steps of runs are in these folders only.
"""

from __future__ import annotations

import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fathom.system.errors import UserError
from fathom.system.text import one_line
from fathom_study import tasks
from fathom_study.config import Config
from fathom_study.metrics.runs import significant
from fathom_study.metrics.scores import Score
from fathom_study.runs.run import COUNTED
from fathom_study.runs.thinning import whole_steps
from fathom_study.system.files import write_bytes

AXES = ["study", "depth", "variant", "backend", "seed"]
CELL = ["study", "depth", "variant"]
GROUP = [*CELL, "platform"]
"""Keys of a row of the summary: all axes except the seed."""

TRAINED = ["recipe", "connection", "lr"]
"""Columns with a variant's recipe, connection and learning rate."""

GZIP_LEVEL = 2
"""The highest level takes eight times as long and saves seven per cent."""


class TableError(UserError):
    """An invalid table file; the message names it and the command that makes it again."""


def of_study(folder: Path, study: str) -> Path:
    """The folder of one study's tables, inside the folder of all tables."""
    return folder / "studies" / study


def save_tables(tables: dict[str, pd.DataFrame], folder: Path, studies: Iterable[str] = ()) -> None:
    """Write tables by file name, each atomically; those in BY_STUDY also for each of `studies`.

    A table with a row for each run (it has a column `seed`) keeps all recorded digits, others are
    rounded. Times are in the tables of TIMES alone. Reasons: docs/definitions/statistics.md.
    """
    pattern = f"({'|'.join(tasks.times())})(_(n|mean|sd|low|high|fastest))?"
    files = {}
    for name, table in tables.items():
        of_clocks = [column for column in table if re.fullmatch(pattern, column)]
        files[name] = table.drop(columns=of_clocks)
        if name in TIMES:
            own, keys = TIMES[name]
            files[own] = table[[*keys, *of_clocks]]
    for name, table in files.items():
        if "seed" not in table:
            table = table.assign(**table.select_dtypes("float").map(significant))
        write_bytes(folder / name, table.to_csv(index=False).encode())
        for study in studies if name in BY_STUDY else ():
            own = table[table["study"] == study].to_csv(index=False).encode()
            write_bytes(of_study(folder, study) / name, own)


def pack(text: str) -> bytes:
    """The text as gzip without file name and time, so that equal texts make equal bytes."""
    return gzip.compress(text.encode(), GZIP_LEVEL, mtime=0)


STEPS, PROFILES = "steps.csv.gz", "profiles.csv"

BY_STUDY = (
    "cells.csv",
    "summary.csv",
    "times_summary.csv",
    PROFILES,
    "effects.csv",
    "effective_depth.csv",
    "worth.csv",
    "stability.csv",
)
"""Tables that are also written for each study: its figures read them, besides its steps."""

STEP_TIMES = "step_times.csv"
"""The table that `benchmarks/steps.py studies` writes; a config names its path."""

TEXT = (
    "key", "study", "variant", "against", "design", "factor", "tried", "connection", "backend",
    "platform", "platform_a", "platform_b", "machine", "ladder", "answer", "depth_answer", "rate",
    "plain_depths", "plain_diverged", "status", "reason", "outcome", "score_metric", "made_by",
    "question", "at_edge", "after_looking", "framework_version", "python", "numpy", "depths",
    "metric", "unit", "gap", "gap_of", "part", "remark", "rates", "trainings", "pays_here",
    "pays_operations", "pays_fused", "differs_in",
)  # fmt: skip
"""Columns of text that could look like a number, or be empty."""

TIMES = {
    "cells.csv": ("times.csv", [*AXES, "platform"]),
    "summary.csv": ("times_summary.csv", GROUP),
}
"""The table of times, and the keys of its rows, by table."""

COLUMNS = {
    "cells.csv": ["key", *AXES, *TRAINED, "platform", "machine", "status", "reason", "outcome",
                  "score_metric", "score", "score_chance", "chance_loss", "steps"],
    "summary.csv": [*GROUP, "n"],
    STEPS: [*AXES, "platform", "step", "loss"],
    PROFILES: [*AXES, "platform", "metric", "at", "value"],
    "comparison.csv": [*CELL, "platform_a", "platform_b"],
    "platforms.csv": ["platform", "machine", "backend", "runs"],
    "verdicts.csv": ["claim", "verdict", "undecided", "studies"],
    "claims.csv": ["claim", "verdict", "confidence", "scale", "gap"],
    "effects.csv": [*CELL, "platform", "question", "against", "metric", "unit", "effect", "low",
                    "high", "verdict"],
    "effective_depth.csv": [*CELL, "platform", "answer"],
    "worth.csv": [*CELL, "platform", "against", "rate", "answer", "multiplier", "verdict"],
    "sizes.csv": ["design", *CELL, "platform", "channels", "parameters", "gain", "answer"],
    "pooled.csv": ["design", "backend", "trainings", "sizes", "multiplier", "low", "high"],
    "published_sizes.csv": ["source", "variant", "parameters", "below"],
    "stability.csv": [*CELL, "platform", "against", "largest", "verdict"],
    "published.csv": ["source", *CELL, "metric", "platform", "published", "mean", "deviates"],
    "thresholds.csv": ["source", *GROUP, "metric", "grade"],
    "trajectories.csv": [*CELL, "platform_a", "platform_b"],
    "variance.csv": ["depth", "variant", "recipe_share", "platform_share", "seed_share",
                     "other_share", "loss_low", "loss_high"],
    "variance_summary.csv": ["factor", "median", "decides", "loss_low", "loss_high"],
    STEP_TIMES: ["study", "depth", "variant", "backend", "machine", "turns", "seconds", "low",
                 "high", "width", "operations", "bytes"],
    **dict(TIMES.values()),
}  # fmt: skip
"""Columns that a table must have, by file name."""

LOSSES = COLUMNS[STEPS]
"""The columns of the losses of runs by step."""


MAKE_AGAIN = "run: fathom tables, then: fathom claims"


def read_table(
    file: Path, remedy: str = MAKE_AGAIN, name: str = "", only: Sequence[str] | None = None
) -> pd.DataFrame:
    """A table as written. Text stays text, and an empty text is not a missing number.

    `name`: the name of the table, if the file has another. `only`: the columns to read; None means
    all. Raises TableError, with the remedy, if the file is missing or invalid.
    """
    try:
        if file.suffix != ".gz" and file.read_bytes()[-1:] not in (b"", b"\n"):
            raise ValueError("its last line is incomplete")
        # Only empty fields are missing: a variant may be called `nan`. Given types of columns and
        # not functions, pandas would take three times as long for a wide table.
        table = pd.read_csv(
            file,
            converters=dict.fromkeys(TEXT, str),
            keep_default_na=False,
            na_values=[""],
            usecols=None if only is None else lambda column: column in only,
        )
    except FileNotFoundError:
        raise TableError(f"{file}: missing; {remedy}") from None
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        why = f"cannot be read ({one_line(str(error))})"
        raise TableError(f"{file}: {why}; {remedy}") from error
    if lacking := [column for column in COLUMNS.get(name or file.name, ()) if column not in table]:
        raise TableError(f"{file}: has no column '{lacking[0]}'; {remedy}")
    texts = {name: table[name].astype(str).fillna("") for name in table if name in TEXT}
    return table.assign(**texts)


def read_steps(
    folder: Path, studies: Iterable[str], only: Sequence[str] | None = None
) -> pd.DataFrame:
    """The steps of these studies; `folder` holds the tables of all studies.

    `only`: the columns to read, such as LOSSES, much faster than all of them, which None means.
    """
    tables = [read_table(of_study(folder, study) / STEPS, only=only) for study in studies]
    # Empty tables are skipped: their columns have no type.
    kept = [table for table in tables if len(table)] or tables[:1]
    return pd.concat(kept, ignore_index=True) if kept else table_of([], STEPS)


def at_kept_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of the steps that a bundle keeps, so that a table is the same from both."""
    counts = steps.groupby([*GROUP, "seed"])["step"].transform("max") + 1
    places = zip(steps["step"], counts, strict=True)
    return steps[pd.Series([s in whole_steps(n) for s, n in places], steps.index, dtype=bool)]


def is_whole(steps: pd.DataFrame) -> pd.Series:
    """Whether each row has all metrics of its step; some evaluations have the loss beside them."""
    if "nonfinite_event" not in steps:
        return pd.Series(True, steps.index)
    return steps["nonfinite_event"].notna()


def read_with_times(file: Path) -> pd.DataFrame:
    """A table of TIMES joined with its times. Raises TableError if their rows differ."""
    own, keys = TIMES[file.name]
    table, times = read_table(file), read_table(file.with_name(own))
    if not table[keys].astype(str).equals(times[keys].astype(str)):
        raise TableError(f"{file.with_name(own)}: its rows do not match {file.name}; {MAKE_AGAIN}")
    return table.join(times.drop(columns=keys))


def table_of(rows: Sequence[Mapping[str, Any]], name: str) -> pd.DataFrame:
    """A table of these rows; without rows, an empty table with the columns of this file name."""
    return pd.DataFrame(rows, columns=None if rows else COLUMNS[name])


def select(
    table: pd.DataFrame,
    studies: Sequence[str],
    variants: Sequence[str],
    depths: Sequence[int] | None = None,
) -> pd.DataFrame:
    """The rows of these studies, variants and depths (None: all)."""
    chosen = table["study"].isin(studies) & table["variant"].isin(variants)
    return table[chosen & (table["depth"].isin(depths) if depths else True)]


def counted(cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table of cells whose numbers count."""
    return cells[cells["status"].isin(COUNTED)]


Runs = Mapping[str, pd.DataFrame]
"""Rows of cells.csv by variant, indexed by seed, for one study, depth and platform."""


def runs_by_place(cells: pd.DataFrame, study: str) -> Iterator[tuple[str, int, Runs]]:
    """(platform, depth, runs) of a study, for each platform and depth in the rows of cells.csv."""
    of_study = cells[cells["study"] == study].set_index("seed")
    for (platform, depth), group in of_study.groupby(["platform", "depth"], sort=False):
        yield platform, depth, dict(list(group.groupby("variant")))


def platform_pairs(
    table: pd.DataFrame,
) -> Iterator[tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]]:
    """(labels, rows of one platform, rows of the other) for each cell and pair of its platforms.

    The labels are the first columns of tables that compare platforms.
    """
    for cell, rows in table.groupby(CELL, sort=False):
        sides = dict(list(rows.groupby("platform", sort=False)))
        for a, b in itertools.combinations(sides, 2):
            labels = dict(zip(CELL, cell, strict=True)) | {"platform_a": a, "platform_b": b}
            yield labels, sides[a], sides[b]


def without_ladders(table: pd.DataFrame, config: Config) -> pd.DataFrame:
    """The rows of a table without the trainings that ladders add."""
    added = {
        (name, label) for name, study in config.studies.items() for label in study.ladder_trainings
    }
    rows = table[["study", "variant"]].itertuples(index=False, name=None)
    return table[np.array([row not in added for row in rows], bool)] if added else table


def scores_of(config: Config) -> dict[str, Score]:
    """The score of each study."""
    return {name: tasks.score_of(s.task, s.score) for name, s in config.studies.items()}
