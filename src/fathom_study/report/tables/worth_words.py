"""Worth of connections in training steps: the first lines of reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import pandas as pd

from fathom_study.analysis.claims.published import Worth
from fathom_study.analysis.effective_depth import AT, BELOW, BEYOND, UNKNOWN
from fathom_study.analysis.significance import BETTER, EQUIVALENT, UNDECIDED, WORSE
from fathom_study.analysis.statistics import MIN_SEEDS
from fathom_study.analysis.worth import BEST_RATES, ONE_RATE
from fathom_study.config import common_depth
from fathom_study.report.tables.effect_words import (
    WITHIN,
    after_looking,
    effect_with_interval,
    marked,
)
from fathom_study.report.tables.formatting import number
from fathom_study.report.tables.records import Record, records

ORDER = (BETTER, WORSE, EQUIVALENT, UNDECIDED)
"""Order of verdicts in the table of worth."""


class WorthPresenter(NamedTuple):
    """Worth of designs on one task."""

    study: str
    task: str
    title: str
    advice: str
    """Up to five sentences."""
    rows: list[Record]
    """Rows of worth.csv at one depth, by ORDER of verdicts, then largest multiplier first."""
    overheads: Mapping[str, tuple[str, str]]
    """The authors' statement on the cost of a variant: (words, address of the source)."""


def present_worth(
    above: Worth | None, table: pd.DataFrame, labels: Mapping[str, str]
) -> WorthPresenter | None:
    """The worth of designs in the study that `above` names; None if no ladder was trained there.

    On the first platform, at the depth of most rows; pairs of fewer than MIN_SEEDS seeds are left
    out. `table`: worth.csv. `labels`: display names of variants.
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
    return WorthPresenter(above.study, above.task, above.title, said, rows, overheads)


def advice(rows: Sequence[Record], above: Worth, labels: Mapping[str, str]) -> str:
    """The advice that follows from the rows, in up to five sentences.

    Designs whose multiplier exceeds the cost of a step, if steps were timed; the design that is
    asked for; the largest multiplier among better designs, at one learning rate; and designs that
    are better with each network at its own best rate.
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
        sentence = f"These connections gain more than their steps cost: {', '.join(paid)}"
        sentences = [
            sentence if paid else "No connection is shown to gain more than its steps cost here"
        ]
    best = max(saving, key=lambda row: row["multiplier"], default=None)
    for row in rows:
        if row["variant"] == above.asked and row["rate"] == ONE_RATE and row is not best:
            sentences.append(_asked(row, labels))
    if best is None:
        sentences.append(f"No connection is shown to save training steps {of_study}")
    else:
        sentences += _gain(best, of_study, labels)
    if tuned := [row for row in rows if row["rate"] == BEST_RATES]:
        names = ", ".join(_label(row, labels) for row in tuned if row in better)
        first = max(tuned, key=lambda row: row["multiplier"])
        mean = (
            f"the best mean is {_label(first, labels)}, {saved_in_words(first)}, {_verdict(first)} "
            f"with {first['seeds']:g} seeds"
        )
        none = f"no connection is shown to be better; {mean}"
        phrase = f"these are better: {names}" if names else none
        sentences.append(f"With each network at its own best learning rate, {phrase}")
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
    """Sentences on the steps that a design saves, and the step time below which it pays."""
    # Beyond the ladder the multiplier is a lower bound, and so are the steps saved.
    least = "" if row["answer"] == "at" else "at least "
    times, low, high = (number(row[name], 3) for name in ("multiplier", "low", "high"))
    interval = "" if math.isnan(row["low"]) else f" ({low} to {high})"
    saved = steps_saved(row, bare=True)
    limit = f"It pays if a step takes less than {times} times as long as a plain one"
    costs = _times(row)
    chosen = f" ({after_looking(row)})" if after_looking(row) else ""
    return [
        f"The largest significant gain {of_study}, at one learning rate for both, is that of "
        f"{_label(row, labels)}: a plain network needs {least}{times} times the steps{interval} "
        f"for the same score, so {least}{saved} of the steps are saved{chosen}",
        f"{limit}; here it takes {costs}" if costs else limit,
    ]


def _times(row: Record) -> str:
    """Time of a step relative to a plain one, by width; empty if unknown."""
    if math.isnan(row["cost"]):
        return ""
    own, wider = (number(row[name], 3) for name in ("cost", "cost_wider"))
    time = f"{own} times as long with {row['width']:g} channels"
    return time if math.isnan(row["cost_wider"]) else f"{time}, {wider} times with {row['wider']:g}"


def _label(row: Record, labels: Mapping[str, str]) -> str:
    return labels.get(row["variant"], row["variant"])


Cost = Literal["cost", "operations"]


def compare_cost(row: Record, cost: Cost) -> Literal["above", "below", "undecided", "unknown"]:
    """Position of a step multiplier's 95 % interval relative to a cost.

    Undecided without an interval, unless every seed is beyond the same end of the ladder, and that
    end is on the same side of the cost.
    """
    if math.isnan(row[cost]):
        return "unknown"
    low, high = row["low"], row["high"]
    if row["outside"] == row["on_ladder"]:
        low = row["most"] if row["answer"] == BEYOND else low
        high = row["least"] if row["answer"] == BELOW else high
    return "above" if low > row[cost] else "below" if high < row[cost] else "undecided"


OPERATIONS, VERDICT = "operations, counted", "verdict"
"""Column headings."""


def worth_columns(rows: Sequence[Record]) -> dict[str, Callable[[Record], str]]:
    """Non-empty columns of the table of worth: by heading, a function from row to cell text.

    The text is empty for an unknown value.
    """
    width, wider = (first_number(rows, column) for column in ("width", "wider"))
    here = f"a step costs here, {width:g} channels" if width else "a step costs here"
    columns: dict[str, Callable[[Record], str]] = {
        "steps saved": steps_saved,
        "pays if a step costs less than": pays_below,
        here: lambda row: overhead(row["cost"]),
        f"{wider:g} channels": lambda row: overhead(row["cost_wider"]),
        OPERATIONS: lambda row: overhead(row["operations"]),
        "seeds": lambda row: f"{row['seeds']:g}",
        VERDICT: lambda row: marked(row["verdict"], row),
    }
    empty = {head for head, cell in columns.items() if not any(map(cell, rows))}
    return {head: cell for head, cell in columns.items() if head not in empty}


def steps_saved(row: Record, *, bare: bool = False) -> str:
    """The share of the plain network's steps that a design saves, 1 − 1/m, with its interval.

    As in '12 % (10 to 13 %)'; negative if the plain network needs fewer steps. Outside of the
    ladder, the share at its end, as in 'beyond 50 %'. `bare`: without interval and 'beyond'.
    """
    middle, low, high = (_share(1 - 1 / row[name]) for name in ("multiplier", "low", "high"))
    if row["answer"] == "at":
        has_interval = not (bare or math.isnan(row["low"]))
        return f"{middle} %" + (f" ({low} to {high} %)" if has_interval else "")
    ends = {"below": row["least"], "beyond": row["most"]}
    if row["answer"] not in ends:
        return "beyond both ends of the ladder"
    share = f"{_share(1 - 1 / ends[row['answer']])} %"
    if bare:
        return share
    is_all = row["outside"] == row["on_ladder"]
    return f"{row['answer']} {share}" + (
        "" if is_all else f" at {row['outside']:.0f} of {row['on_ladder']:.0f} seeds"
    )


def saved_in_words(row: Record) -> str:
    """Steps that a design saves, as part of a sentence."""
    if row["answer"] == "both":
        return "seeds lie beyond both ends of the ladder"
    return f"{steps_saved(row)} of the steps saved"


def pays_below(row: Record) -> str:
    """The cost of a step below which a design pays, as in '13 % more'; empty if none does."""
    if row["break_even"] <= 0 or row["answer"] not in ("at", "beyond"):
        return ""
    return ("at least " if row["answer"] == "beyond" else "") + overhead(row["multiplier"])


def first_number(rows: Sequence[Record], column: str) -> float:
    """The first positive number of a column; 0 if it has none."""
    return next((row[column] for row in rows if row[column] > 0), 0)


def plain_change(row: Record) -> str:
    """Change of the score from the plain network's, in the format of effects."""
    ends = {"effect": row["change"], "low": row["change_low"], "high": row["change_high"]}
    return effect_with_interval({**ends, "unit": row["unit"]})


def depth_multiplier(row: Record) -> str:
    """Depth of a plain network with the same score, over the design's depth, with its interval.

    As in '0.35 (0.3 to 0.4)' or 'at least 1.6'; empty if not measured.
    """
    if row["depth_answer"] in ("", UNKNOWN):
        return row["depth_answer"]
    middle, low, high = (number(row[f"depth_{end}"], 2) for end in ("multiplier", "low", "high"))
    if row["depth_answer"] != AT:
        return f"{row['depth_answer']} {middle}"
    if math.isnan(row["depth_low"]):
        return middle
    if row["depth_high"] == math.inf:  # some seed is beyond the deepest plain network
        return f"at least {low}" if row["depth_low"] > 0 else f"{middle} (open at both ends)"
    return f"{middle} ({'below' if row['depth_low'] == 0 else f'{low} to'} {high})"


def overhead(cost: float) -> str:
    """Cost relative to the plain network's in words, as in '70 % more'; empty if unknown."""
    if math.isnan(cost):
        return ""
    return f"{_share(abs(cost - 1))} % {'more' if cost >= 1 else 'less'}"


def _share(share: float) -> str:
    return "NaN" if math.isnan(share) else f"{100 * share:.0f}".replace("-", "−").replace("−0", "0")
