"""Cells of the board's tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fathom.connections.schemes import SCHEMES
from fathom_study.board.rows import Row
from fathom_study.report.tables.formatting import number
from fathom_study.report.tables.records import Record
from fathom_study.report.tables.worth_words import overhead

GROUPS = {
    "better": "Better than plain",
    "equivalent": "Equal to plain",
    "worse": "Worse than plain",
    "undecided": "Undecided",
}
"""Titles of the groups of rows, by verdict."""


def group_title(verdict: str) -> str:
    """Title of a group of rows."""
    return GROUPS[verdict]


def step_multiplier(row: Row) -> str:
    """Step multiplier with its interval, as in '1.12 (1.09 to 1.14)', or its end of the ladder."""
    if row.answer == "at":
        if math.isnan(row.low):
            return f"{row.multiplier:.2f}"
        # A third digit, where two would hide on which side of one an interval ends.
        digits = 3 if any(f"{end:.2f}" == "1.00" for end in (row.low, row.high)) else 2
        return f"{row.multiplier:.2f} ({row.low:.{digits}f} to {row.high:.{digits}f})"
    limits = {"below": row.least, "beyond": row.most}
    if row.answer not in limits:
        return "beyond both ends of the ladder" if row.answer == "both" else "none"
    some = "" if row.outside == row.seeds else f" at {row.outside:.0f} of {row.seeds} seeds"
    return f"{row.answer} {number(limits[row.answer])}{some}"


def place_of_formula(connection: str) -> str:
    """Where in docs/schemes.md a connection has its row, as in '#altup'; empty without one."""
    return f"#{connection}" if connection in SCHEMES else ""


def cost_of_step(cost: float) -> str:
    """Cost of a step over the plain network's, as in '78 % more'; a dash if it is unknown."""
    return overhead(cost) or "–"


def turns_apart(timed: Iterable[Record]) -> str:
    """Largest difference of a cost in one turn from the median, as in '56 %'. Rows of worth.csv."""
    ends = (row[end] / row["cost"] for row in timed for end in ("cost_low", "cost_high"))
    return f"{max(abs(100 * end - 100) for end in ends):.0f} %"


def seeds_of_asked(row: Row) -> str:
    """Number of seeds with a score, of those that the track asks for."""
    lost = f", {row.diverged} diverged" if row.diverged else ""
    return f"{row.seeds} of {row.asked}{lost}"


def has_width(rows: Iterable[Row]) -> bool:
    """Whether a row has a cost at the larger width."""
    return not all(math.isnan(row.at_width) for row in rows)


def replicators(row: Row) -> str:
    """Who repeated a submission, with the verdict where it differs; a dash for nobody."""
    named: Sequence[str] = [
        who if verdict == row.verdict else f"{who} ({verdict})"
        for who, verdict in row.replicated_by
    ]
    return ", ".join(named) or "–"
