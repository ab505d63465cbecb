"""The first thing that reports say: what a connection is worth, in steps of training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import pandas as pd

from fathom.analysis.claims.published import Worth
from fathom.analysis.effective_depth import AT, BELOW, BEYOND, UNKNOWN
from fathom.analysis.significance import BETTER, EQUIVALENT, UNDECIDED, WORSE
from fathom.analysis.statistics import MIN_SEEDS
from fathom.analysis.worth import BEST_RATES, ONE_RATE
from fathom.config import common_depth
from fathom.report.comparisons import WITHIN, effect_with_interval
from fathom.report.formatting import number
from fathom.report.records import Record, records

ORDER = (BETTER, WORSE, EQUIVALENT, UNDECIDED)
"""Of verdicts."""


class WorthPresenter(NamedTuple):
    """What designs are worth on one task."""

    study: str
    title: str
    advice: str
    """Up to five sentences."""
    rows: list[Record]
    """Of worth.csv, at one depth, in the ORDER of verdicts, then the largest multiplier first."""
    overheads: Mapping[str, tuple[str, str]]
    """What authors say of the cost of a variant, and where: (words, address)."""


def present_worth(
    above: Worth | None, table: pd.DataFrame, labels: Mapping[str, str]
) -> WorthPresenter | None:
    """The worth of designs in the study that `above` names; None if no ladder was trained there.

    On the first platform, at the depth of most rows; pairs of fewer than MIN_SEEDS seeds are left
    out. `table`: worth.csv. `labels`: what people read for names of variants.
    """
    if above is None:
        return None
    rows = [row for row in records(table) if row["study"] == above.study and row["answer"]]
    rows = [row for row in rows if row["seeds"] >= MIN_SEEDS]
    rows = [row for row in rows if row["platform"] == rows[0]["platform"]]
    depth = common_depth(row["depth"] for row in rows)
    rows = sorted(
        (row for row in rows if row["depth"] == depth),
        key=lambda row: (ORDER.index(row["verdict"]), -row["multiplier"]),
    )
    if not rows:
        return None
    overheads = {name: (one.words, one.url) for name, one in above.overheads.items()}
    said = advice(rows, above, labels)
    return WorthPresenter(above.study, above.title, said, rows, overheads)


def advice(rows: Sequence[Record], above: Worth, labels: Mapping[str, str]) -> str:
    """The advice that follows from the rows, in up to five sentences.

    Whether a design's multiplier is above the cost of its step, if steps were timed; the design
    that is asked for; the largest multiplier among those that end better, at one learning rate; and
    whether any ends better where each network has its own best rate.
    """
    better = [row for row in rows if row["verdict"] == BETTER]
    saving = [row for row in better if row["rate"] == ONE_RATE and pays_below(row)]
    # Other sizes and tasks have studies of their own.
    of_study = f"in this study of {rows[0]['depth']:g} layers on {above.task}"
    sentences = []
    if any(row["cost"] > 0 for row in rows):
        paid = dict.fromkeys(
            _label(row, labels) for row in rows if compare_cost(row, "cost") == "above"
        )
        told = f"Shown to gain more than their steps cost: {', '.join(paid)}"
        sentences = [
            told if paid else "No connection is shown to gain more than its steps cost here"
        ]
    best = max(saving, key=lambda row: row["multiplier"], default=None)
    for row in rows:
        if row["variant"] == above.asked and row["rate"] == ONE_RATE and row is not best:
            sentences.append(_asked(row, labels))
    if best is None:
        sentences.append(f"No connection is known to save steps of training {of_study}")
    else:
        sentences += _gain(best, of_study, labels)
    if tuned := [row for row in rows if row["rate"] == BEST_RATES]:
        names = ", ".join(_label(row, labels) for row in tuned if row in better)
        first = max(tuned, key=lambda row: row["multiplier"])
        mean = (
            f"the best mean is {_label(first, labels)}, {saved_in_words(first)}, {_verdict(first)}"
        )
        told = f"these end better: {names}" if names else f"none is shown to end better; {mean}"
        sentences.append(f"With each network at its own best learning rate, {told}")
    return ". ".join([*sentences, ""]).strip()


def _asked(row: Record, labels: Mapping[str, str]) -> str:
    """The verdict on a design, and the time of its step."""
    saved = "" if row["verdict"] == EQUIVALENT else f": {saved_in_words(row)}"
    costs = _times(row)
    name = _label(row, labels)
    return f"{name[:1].upper()}{name[1:]} is {_verdict(row)}{saved}" + (
        costs and f"; its step takes {costs}"
    )


def _verdict(row: Record) -> str:
    verdict = row["verdict"]
    if verdict == EQUIVALENT:
        return f"equivalent to plain {WITHIN}"
    return f"{verdict} than plain" if verdict in (BETTER, WORSE) else verdict


def _gain(row: Record, of_study: str, labels: Mapping[str, str]) -> list[str]:
    """How many steps a design saves, and at which time of a step that pays."""
    # Beyond the ladder the multiplier is a bound, and so is what follows from it.
    least = "" if row["answer"] == "at" else "at least "
    times, low, high = (number(row[name], 3) for name in ("multiplier", "low", "high"))
    interval = "" if math.isnan(row["low"]) else f" ({low} to {high})"
    saved = steps_saved(row, bare=True)
    limit = f"It pays if a step takes less than {times} times as long as a plain one"
    costs = _times(row)
    return [
        f"The largest gain that is shown {of_study}, at one learning rate for both, is that of "
        f"{_label(row, labels)}: a plain network needs {least}{times} times the steps{interval} "
        f"to end there, so {least}{saved} are saved",
        f"{limit}; here it takes {costs}" if costs else limit,
    ]


def _times(row: Record) -> str:
    """The time of a step over that of a plain one, by width; empty where it is not known."""
    if math.isnan(row["cost"]):
        return ""
    own, wider = (number(row[name], 3) for name in ("cost", "cost_wider"))
    told = f"{own} times as long with {row['width']:g} channels"
    return told if math.isnan(row["cost_wider"]) else f"{told}, {wider} times with {row['wider']:g}"


def _label(row: Record, labels: Mapping[str, str]) -> str:
    return labels.get(row["variant"], row["variant"])


Cost = Literal["cost", "operations"]


def compare_cost(row: Record, cost: Cost) -> Literal["above", "below", "undecided", "unknown"]:
    """Where the 95 % interval of a step multiplier is beside a cost.

    Without an interval it is undecided, unless every seed is outside of the ladder on one side, and
    that end of the ladder is on the same side of the cost.
    """
    if math.isnan(row[cost]):
        return "unknown"
    low, high = row["low"], row["high"]
    if row["outside"] == row["on_ladder"]:
        low = row["most"] if row["answer"] == BEYOND else low
        high = row["least"] if row["answer"] == BELOW else high
    return "above" if low > row[cost] else "below" if high < row[cost] else "undecided"


OPERATIONS, VERDICT = "operations, counted", "verdict"
"""Heads of columns."""


def worth_columns(rows: Sequence[Record]) -> dict[str, Callable[[Record], str]]:
    """The columns of the table of worth that any of `rows` fills: the text of a cell, by head.

    The text is empty where nothing is known.
    """
    width, wider = (first_number(rows, column) for column in ("width", "wider"))
    here = f"a step costs here, {width:g} channels" if width else "a step costs here"
    columns: dict[str, Callable[[Record], str]] = {
        "steps saved": steps_saved,
        "pays if a step costs less than": pays_below,
        here: lambda row: overhead(row["cost"]),
        f"{wider:g} channels": lambda row: overhead(row["cost_wider"]),
        OPERATIONS: lambda row: overhead(row["operations"]),
        VERDICT: lambda row: row["verdict"],
    }
    empty = {head for head, cell in columns.items() if not any(map(cell, rows))}
    return {head: cell for head, cell in columns.items() if head not in empty}


def steps_saved(row: Record, *, bare: bool = False) -> str:
    """The share of the plain network's steps that a design saves, 1 − 1/m, with its interval.

    As in '12 % (10 to 13 %)'; negative where the plain network needs fewer steps. Outside of the
    ladder the share at its end, as in 'beyond 50 %'. `bare`: without interval and that word.
    """
    middle, low, high = (_share(1 - 1 / row[name]) for name in ("multiplier", "low", "high"))
    if row["answer"] == "at":
        has_interval = not (bare or math.isnan(row["low"]))
        return f"{middle} %" + (f" ({low} to {high} %)" if has_interval else "")
    ends = {"below": row["least"], "beyond": row["most"]}
    if row["answer"] not in ends:
        return "beyond both ends of the ladder"
    told = f"{_share(1 - 1 / ends[row['answer']])} %"
    if bare:
        return told
    is_all = row["outside"] == row["on_ladder"]
    return f"{row['answer']} {told}" + (
        "" if is_all else f" at {row['outside']:.0f} of {row['on_ladder']:.0f} seeds"
    )


def saved_in_words(row: Record) -> str:
    """The steps that a design saves, for a sentence."""
    if row["answer"] == "both":
        return "seeds lie beyond both ends of the ladder"
    return f"{steps_saved(row)} of the steps saved"


def pays_below(row: Record) -> str:
    """The cost of a step below which a design pays, as in '13 % more'; empty where none is."""
    if row["break_even"] <= 0 or row["answer"] not in ("at", "beyond"):
        return ""
    return ("at least " if row["answer"] == "beyond" else "") + overhead(row["multiplier"])


def first_number(rows: Sequence[Record], column: str) -> float:
    """The first positive number of a column; 0 if it has none."""
    return next((row[column] for row in rows if row[column] > 0), 0)


def plain_change(row: Record) -> str:
    """The change of the score from the plain network's, as effects are written."""
    ends = {"effect": row["change"], "low": row["change_low"], "high": row["change_high"]}
    return effect_with_interval({**ends, "unit": row["unit"]})


def depth_multiplier(row: Record) -> str:
    """The depth of a plain network that ends there, over its own, with its interval.

    As in '0.35 (0.3 to 0.4)'; empty where it is not known.
    """
    if row["depth_answer"] in ("", UNKNOWN):
        return row["depth_answer"]
    told, low, high = (number(row[f"depth_{end}"], 2) for end in ("multiplier", "low", "high"))
    if row["depth_answer"] != AT:
        return f"{row['depth_answer']} {told}"
    if math.isnan(row["depth_low"]):
        return told
    ends = ("below " if row["depth_low"] == 0 else f"{low} to ", high)
    if row["depth_low"] == 0 and row["depth_high"] == math.inf:
        return f"{told} (open at both ends)"
    return f"{told} ({'from ' + low if row['depth_high'] == math.inf else ''.join(ends)})"


def overhead(cost: float) -> str:
    """A cost over the plain network's in words, as in '70 % more'; empty where it is not known."""
    if math.isnan(cost):
        return ""
    return f"{_share(abs(cost - 1))} % {'more' if cost >= 1 else 'less'}"


def _share(share: float) -> str:
    return "NaN" if math.isnan(share) else f"{100 * share:.0f}".replace("-", "−").replace("−0", "0")
