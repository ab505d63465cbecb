"""Comparisons of two variants in words: rows of effects.csv as reports print them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fathom_study.analysis.ladder import DELTA
from fathom_study.analysis.pair_verdicts import ALIKE, HIGHER, LOWER, PERCENT
from fathom_study.analysis.significance import BETTER, EQUIVALENT, UNDECIDED, WORSE
from fathom_study.analysis.statistics import CONFIDENCE
from fathom_study.report.tables.formatting import plain_number

WITHIN = f"within {100 * DELTA:g} % of the steps"
"""The equivalence margin in words."""

TENFOLD = 900
"""Minimum change, in %, that is printed as a factor."""

MOST_DECIMALS = 6


def describe_effect(row: Mapping[str, Any], metric: str = "") -> str:
    """The verdict with its interval, as in 'worse by 3.1 % (95 % interval +2.2 % to +4.0 %)'.

    `metric`: name printed beside the number; empty for none.
    """
    return marked(_describe(row, f" in {metric}" if metric else ""), row)


def marked(text: str, row: Mapping[str, Any]) -> str:
    """The text, then `after_looking` of its row, as in 'better, seeds added after looking'."""
    return ", ".join(filter(None, (text, after_looking(row))))


def after_looking(row: Mapping[str, Any]) -> str:
    """Settings of a verdict that were chosen by results, as in 'seeds added after looking'.

    `row`: a row of effects.csv or worth.csv. Empty if there are none.
    """
    chosen = row.get("after_looking", "")
    verb = "added" if chosen == "seeds" else "chosen"
    return f"{chosen} {verb} after looking" if chosen else ""


def _describe(row: Mapping[str, Any], of: str) -> str:
    verdict = row["verdict"]
    if verdict == ALIKE:
        return f"{verdict} up to rounding"
    if verdict not in (EQUIVALENT, UNDECIDED):
        size = format_effect(abs(row["effect"]), row).removeprefix("+")
        size = size.replace("× ", "a factor of ")
        return f"{verdict} by {size}{of} ({corrected_interval(row)})"
    within = f" {WITHIN}" if verdict == EQUIVALENT else ""
    if math.isnan(row["low"]):
        seeds = "one seed" if row["seeds"] == 1 else f"{row['seeds']} seeds"
        return f"{verdict}{within}: {format_effect(row['effect'], row)}{of}, {seeds}"
    return f"{verdict}{within}: {corrected_interval(row)}{of}"


def effect_with_interval(row: Mapping[str, Any]) -> str:
    """An effect and the interval of its verdict, as in '+3.1 % (+2.2 % to +4.0 %)'.

    Without a verdict it is the 95 % interval.
    """
    if not math.isnan(row.get("corrected_low", math.nan)):
        row = _corrected(row)
    effect = format_effect(row["effect"], row)
    return effect if math.isnan(row["low"]) else f"{effect} ({_ends(row)})"


def corrected_interval(row: Mapping[str, Any]) -> str:
    """The interval by which the verdict is made, as in '−1 % to +2 %, corrected for 41 tests'.

    It excludes 0 for what is better or worse. Without a correction it is the 95 % interval.
    """
    if row["tests"] > 1:
        return f"{_ends(_corrected(row))}, corrected for {row['tests']:g} tests"
    if row["tests"] == 1 and row["corrected_low"] != row["low"]:
        return f"{_ends(_corrected(row))}, corrected for looks"
    return f"{100 * CONFIDENCE:g} % interval {_ends(row)}"


def _corrected(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "low": row["corrected_low"], "high": row["corrected_high"]}


def _ends(row: Mapping[str, Any]) -> str:
    low, high = (format_effect(row[end], row) for end in ("low", "high"))
    return f"{low if row['unit'] == PERCENT else low.split()[0]} to {high}"


def format_effect(value: float, row: Mapping[str, Any]) -> str:
    """An effect or an end of its interval with sign and unit; tenfold changes or more as factors.

    Rounds by at most a sixth of the interval's half-width, or to one digit if that gives zero.
    """
    unit = row["unit"]
    if unit == PERCENT and value >= TENFOLD:
        return f"× {plain_number(1 + value / 100, 2)}"
    half = (row["high"] - row["low"]) / 2
    text = plain_number(value, 2)
    if 10.0**-MOST_DECIMALS < half < math.inf:
        decimals = max(0, -math.floor(math.log10(half / 3)))
        rounded = f"{value:.{decimals}f}"
        text = rounded.replace("-", "−") if float(rounded) else plain_number(value, 1)
    sign = "+" if value > 0 else ""
    return f"{sign}{text} {unit}".rstrip()


def format_spread(row: Mapping[str, Any]) -> str:
    """Standard deviation of `against` over seeds, with its unit; empty if unknown."""
    value, unit = row["seed_sd"], row["unit"]
    if math.isnan(value):
        return ""
    if unit == PERCENT and value >= TENFOLD:
        return f"× {plain_number(1 + value / 100, 2)}"
    return f"{plain_number(value, 2)} {unit}".rstrip()


def significant(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The significant effects, the largest first."""
    effects = [row for row in rows if row["verdict"] in (BETTER, WORSE, HIGHER, LOWER)]
    return sorted(effects, key=lambda row: -size_of(row))


def size_of(row: Mapping[str, Any]) -> float:
    """Absolute size of an effect; for a change in %, the absolute log ratio."""
    effect: float = row["effect"]
    if row["unit"] != PERCENT:
        return abs(effect)
    return abs(math.log1p(effect / 100)) if effect > -100 else math.inf
