"""Stability in words: rows of stability.csv as reports print them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fathom_study.analysis.significance import UNDECIDED
from fathom_study.analysis.stability import EQUAL, LARGER, SMALLER
from fathom_study.report.tables.formatting import number


def largest_rate(row: Mapping[str, Any]) -> str:
    """The largest rate that trains with its range over seeds, as in 'at least 0.512'."""
    at, low, high = (row[f"largest{end}"] for end in ("", "_low", "_high"))
    if at == 0:
        return "none of those tried" + (f" (range to {_bound(high, row)})" if high else "")
    if low == high:
        return _bound(at, row)
    return f"{_bound(at, row)} (range {number(low) if low else 'none'} to {_bound(high, row)})"


def _bound(rate: float, row: Mapping[str, Any]) -> str:
    return f"{'at least ' if rate == row['greatest'] else ''}{number(rate)}"


def good_rates(row: Mapping[str, Any]) -> str:
    """The ends of the good rates, as in '0.008 to 0.032'; empty without a ladder."""
    if math.isnan(row["good"]):
        return ""
    low, high = number(row["good_low"]), number(row["good_high"])
    return low if low == high else f"{low} to {high}"


def compared_rate(row: Mapping[str, Any]) -> str:
    """The verdict on two largest rates, as in 'larger (× 4, range 2 to 8)'.

    If undecided, with the number of seeds for each verdict. Empty without `against`.
    """
    if not row["against"]:
        return ""
    if row["verdict"] == UNDECIDED:
        words = (LARGER, EQUAL, SMALLER)
        phrases = [f"{word} at {int(row[word])}" for word in words if row[word]]
        silent = int(row["both"] - sum(row[word] for word in words))
        phrases += [f"unknown at {silent}"] if silent > 0 else []
        seeds = "one seed" if row["both"] == 1 else f"{int(row['both'])} seeds"
        return f"{UNDECIDED}: {', '.join(phrases)} of {seeds}"
    if row["verdict"] == EQUAL or math.isnan(row["ratio"]):
        return str(row["verdict"])
    low, high = (number(row[f"ratio_{end}"]) for end in ("low", "high"))
    spread = "" if low == high else f", range {low} to {high}"
    return f"{row['verdict']} (× {number(row['ratio'])}{spread})"
