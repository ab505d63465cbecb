"""Worth of connections in training steps: the first lines of reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from fathom_study.analysis.claims.published import Overhead, Worth
from fathom_study.analysis.effective_depth import AT, UNKNOWN
from fathom_study.analysis.pairs import BEST_RATES, ONE_RATE
from fathom_study.analysis.significance import BETTER, EQUIVALENT, UNDECIDED, WORSE
from fathom_study.analysis.statistics import MIN_SEEDS
from fathom_study.analysis.worth import COSTS_MORE, FUSED_WIDTH, PAYS, WAYS
from fathom_study.config import common_depth
from fathom_study.report.tables.effect_words import effect_with_interval, marked
from fathom_study.report.tables.formatting import number
from fathom_study.report.tables.records import Record, records

ORDER = (BETTER, WORSE, EQUIVALENT, UNDECIDED)
"""Order of verdicts in the table of worth."""


class WorthPresenter(NamedTuple):
    """Worth of designs on one task."""

    study: str
    task: str
    title: str
    rows: list[Record]
    """Rows of worth.csv at one depth, by ORDER of verdicts, then largest multiplier first."""
    overheads: Mapping[str, Overhead]
    """The authors' statement on the cost of a variant."""
    plain: str | None
    """The study's plain network."""

    def decided(self, fading: Collection[str] = ()) -> list[Record]:
        """A row for each connection that is better or worse, at the study's rate or at best rates.

        `at_best` is its row at the best rates, None if few rates were tried. Of the better ones,
        those of `fading` come last: their gain is not shown over longer trainings.
        """
        best = {row["design"]: row for row in self.rows if row["rate"] == BEST_RATES}
        rows = [
            row | {"at_best": best.get(row["design"]), "fades": row["design"] in fading}
            for row in self._at_study_rate()
        ]
        rows = [row for row in rows if {BETTER, WORSE} & verdicts(row)]
        return sorted(rows, key=lambda row: (WORSE in verdicts(row), row["fades"]))

    def undecided(self, decided: Sequence[Record]) -> list[Record]:
        """The rows at the study's rate that are undecided, without those of `decided`."""
        known = {row["variant"] for row in decided}
        rows = self._at_study_rate()
        return [row for row in rows if row["verdict"] == UNDECIDED and row["variant"] not in known]

    def _at_study_rate(self) -> list[Record]:
        return [r for r in self.rows if r["rate"] == ONE_RATE and r["against"] == self.plain]


def present_worth(
    above: Worth | None, table: pd.DataFrame, plain: str | None
) -> WorthPresenter | None:
    """The worth of designs in the study that `above` names; None if no ladder was trained there.

    On the first platform, at the depth of most rows; pairs of fewer than MIN_SEEDS seeds are left
    out. `table`: worth.csv. `plain`: the study's plain network.
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
    return WorthPresenter(above.study, above.task, above.title, rows, above.overheads, plain)


def verdicts(row: Record) -> set[str]:
    """The verdicts of a row of `WorthPresenter.decided`: at the study's rate, and at best rates."""
    return {one["verdict"] for one in (row, row["at_best"]) if one}


def worth_columns(rows: Sequence[Record]) -> dict[str, Callable[[Record], str]]:
    """Non-empty columns of the table of worth: by heading, a function from row to cell text.

    The text is empty for an unknown value. Costs are followed by whether the design pays.
    """
    width, wider = (first_number(rows, column) for column in ("width", "wider"))
    here = f"a step costs here, {width:g} channels" if width else "a step costs here"
    columns: dict[str, Callable[[Record], str]] = {
        "steps saved": steps_saved,
        "each at its best rate": lambda row: (
            steps_saved(row["at_best"]) if row.get("at_best") else ""
        ),
        "verdict": lambda row: marked(row["verdict"], row),
        here: lambda row: cost_and_pays(row, "pays_here"),
        f"{wider:g} channels": lambda row: overhead(row["cost_wider"]),
        "operations, counted": lambda row: cost_and_pays(row, "pays_operations"),
        f"fused kernels, {FUSED_WIDTH} channels, computed": lambda row: cost_and_pays(
            row, "pays_fused"
        ),
        "seeds": seeds_of,
    }
    empty = {head for head, cell in columns.items() if not any(map(cell, rows))}
    return {head: cell for head, cell in columns.items() if head not in empty}


def seeds_of(row: Record) -> str:
    """Number of seeds, as in '8', or '8, 3 at best rates' with a row `at_best`."""
    text = f"{row['seeds']:g}"
    return f"{text}, {best['seeds']:g} at best rates" if (best := row.get("at_best")) else text


def would(word: str) -> str:
    """Whether a design pays in words, where only its cost is known, as in 'would pay'."""
    return {PAYS: "would pay", COSTS_MORE: "would cost more"}.get(word, word)


def cost_and_pays(row: Record, way: str) -> str:
    """A cost and whether the design pays, as in '3 % more: pays'; empty if unknown."""
    pays = would(row[way]) if way == "pays_fused" else row[way]
    return ": ".join(filter(None, (overhead(row[WAYS[way]]), pays)))


def steps_saved(row: Record) -> str:
    """The share of the plain network's steps that a design saves, 1 − 1/m, with its interval.

    As in '12 % (10 to 13 %)'; negative if the plain network needs fewer steps. The interval is the
    corrected one, by which the verdict is made; beyond the ladder it ends with 'less' or 'more'. A
    multiplier outside of the ladder is a bound, as in 'beyond 50 %'.
    """
    ends = {"below": row["least"], "beyond": row["most"]}
    if row["answer"] == "both":
        return "beyond both ends of the ladder"
    bound = row["answer"] in ends
    share = saved(ends[row["answer"]] if bound else row["multiplier"])
    text = f"{row['answer']} {share} %" if bound else f"{share} %"
    low, high = row["corrected_low"], row["corrected_high"]
    if math.isnan(low):
        return text
    if high < row["least"] or low > row["most"]:
        return text  # all of it is beyond
    lower = "less" if low < row["least"] else saved(low)
    upper = "more" if high > row["most"] else f"{saved(high)} %"
    return f"{text} ({lower} to {upper})"


def saving(row: Record) -> str:
    """What a design saves, with a verb: 'saves 20 % of the steps', or 'needs 3 % more steps'.

    With the interval of `steps_saved`, in the unit of the sentence.
    """
    if row["answer"] == "both":
        return "ends beyond both ends of the ladder"
    if row["answer"] != "at" or row["multiplier"] >= 1:
        return f"saves {steps_saved(row)} of the steps"
    low, high = row["corrected_low"], row["corrected_high"]
    text = f"needs {_share(1 / row['multiplier'] - 1)} % more steps"
    if math.isnan(low):
        return text
    fewest = "less" if high > row["most"] else _share(1 / high - 1)
    most = "more" if low < row["least"] else f"{_share(1 / low - 1)} %"
    return f"{text} ({fewest} to {most})"


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


def saved(multiplier: float) -> str:
    """The share of steps that a multiplier saves, in %, as in '12' or '−3'."""
    return _share(1 - 1 / multiplier)


def _share(share: float) -> str:
    return "NaN" if math.isnan(share) else f"{100 * share:.0f}".replace("-", "−").replace("−0", "0")
