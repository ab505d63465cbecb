"""Rows of tables as dicts, and summaries of them for reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.tables import counted
from fathom_study.report.tables.formatting import number

Record = dict[str, Any]
"""A row of a table. `platform` is a Platform, and `line` the row's line number in the CSV file."""


def records(table: pd.DataFrame) -> list[Record]:
    """Rows of a table as dicts; its index counts the rows of the CSV file from 0."""
    rows = table.to_dict("records")
    platforms = {"platform", "platform_a", "platform_b"} & set(table.columns)
    for index, row in zip(table.index, rows, strict=True):
        row["line"] = index + 2  # the header is the first
        row |= {name: Platform.parse(row[name]) if row[name] else None for name in platforms}
    return rows


def group_uncounted(cells: pd.DataFrame) -> list[Record]:
    """Number of uncounted `cells` by study, backend, status and reason."""
    out = cells.drop(counted(cells).index)
    groups = out.groupby(["study", "backend", "status", "reason"], sort=False)
    return groups.size().reset_index(name="cells").to_dict("records")


def count_deviations(published: pd.DataFrame) -> tuple[int, int]:
    """(published values compared with ours, values that deviate)."""
    compared = published[published["platform"] != ""]
    return len(compared), int((compared["deviates"] == True).sum())  # noqa: E712, may be missing


def format_range(row: Mapping[str, Any]) -> str:
    """A published number, or the ends of a published range."""
    low, high = row["published"], row["published_high"]
    return f"{number(low, 4)} to {number(high, 4)}" if low < high else number(low, 4)


def training_command(row: Mapping[str, Any], seed: int, config_file: str) -> str:
    """Command that retrains one seed of a row of the summary, into the folder `again`."""
    cell = "{study} --depth {depth:.0f} --variant {variant} --backend {backend}".format(**row)
    return f"fathom train {cell} --seed {seed} --out again --config {config_file}"


def count_makers(cells: pd.DataFrame, study: str) -> dict[str, int]:
    """Number of imported runs of a study by name of the code that made them, most first."""
    own = cells[(cells["study"] == study) & (cells["made_by"] != "")]
    return own["made_by"].value_counts(sort=True).to_dict()
