"""The figures of a study with a ladder: the worth of a connection in training steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from fathom.analysis.significance import BETTER, EQUIVALENT, UNDECIDED, WORSE
from fathom.config import common_depth
from fathom.report.comparisons import WITHIN
from fathom.report.figures import figure, frames, palette, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom.metrics.scores import Score

WIDTH, AROUND, PER_ROW = 9.0, 2.2, 0.25
"""Width, height around the rows and height of a row, in inches: smaller than other figures, so that
names are readable at half of a page."""

OUTSIDE = {"below": "<", "beyond": ">", "both": "D"}
"""Markers of multipliers that are bounds, by answer."""

HEADINGS = {
    BETTER: "better than {}",
    EQUIVALENT: f"equivalent {WITHIN}",
    WORSE: "worse than {}",
    UNDECIDED: "undecided",
}
"""Headings above the rows of each verdict, in order."""

MOST_NAMES = 8
"""Maximum number of variants whose names fit beside the points of a ladder."""

APART = 0.11
"""Minimum distance between labels of the axis of steps, as a share of its length."""


@figure
def ladder(
    ladder: pd.DataFrame, summary: pd.DataFrame, worth: pd.DataFrame, score: Score, title: str
) -> Figure:
    """How much longer would a plain network have to train? Its score against its steps.

    Only the depth that most variants have is drawn. Black: the plain network trained for several
    numbers of steps, each with a whole schedule; a bar is the 95 % interval over seeds. A line
    leads from a variant's score after equal steps to the plain network's steps for that score. The
    dot there is the step multiplier, a thick line its 95 % interval. A triangle marks a multiplier
    beyond the ladder. Of more than eight variants, only those better or worse than the plain
    network are drawn.
    """
    rows = at_one_rate(worth)
    rows = rows[rows["against"].isin(rows["against"].head(1))]
    if rows.empty or ladder.empty:
        return style.placeholder(f"{title}\nno ladder of the plain network was trained")
    depth, against = rows["depth"].iloc[0], rows["against"].iloc[0]
    plain = ladder[(ladder["depth"] == depth) & (ladder["variant"] == against)]
    scores = summary[summary["depth"] == depth].set_index("variant")["score_mean"]
    if len(rows) > MOST_NAMES:
        rows = rows[rows["verdict"].isin([BETTER, WORSE])]
    page, ((ax,),) = style.grid(1, 1, (WIDTH, 5.0))
    _plain_ladder(ax, plain, score)
    ends = [_mark(ax, row, scores.get(row["variant"])) for row in rows.to_dict("records")]
    ax.set_title(style.count_layers(depth), loc="left")
    ax.set_xlabel(f"steps, × those of {style.label_of(against)}")
    ax.set_ylabel(panels.score_label(score))
    style.direct_labels(ax, [end for end in ends if not math.isnan(end[1])])
    return style.finish(page, title)


def at_one_rate(worth: pd.DataFrame) -> pd.DataFrame:
    """The rows with an answer of the ladder, at equal rates.

    Only rows at the most common depth are kept; on a tie, at the deepest.
    """
    rows = worth[(worth["answer"] != "") & (worth["rate"] == "one rate")]
    return rows[rows["depth"] == common_depth(rows["depth"])]


def _plain_ladder(ax: Axes, plain: pd.DataFrame, score: Score) -> None:
    """Draw the plain network's scores against the factor of its steps, on a logarithmic axis."""
    points = frames.scores_on_ladder(plain, geometric=panels.is_log(score.metric))
    colour = palette.colour_of(plain["variant"].iloc[0])
    bars = style.error_bars(points["mean"], points["low"], points["high"])
    ax.errorbar(
        points["factor"], points["mean"], yerr=bars, color=colour, marker="o", ms=8, capsize=5
    )
    style.log_ticks(ax, _apart(points["factor"].tolist()))


def _apart(factors: list[float]) -> list[float]:
    """The factors whose labels do not overlap on a logarithmic axis, with priority near 1."""
    least = APART * math.log(max(factors) / min(factors)) if factors else 0
    kept: list[float] = []
    for factor in sorted(factors, key=lambda factor: abs(math.log(factor))):
        if all(abs(math.log(factor / other)) > least for other in kept):
            kept.append(factor)
    return sorted(kept)


def _mark(ax: Axes, row: dict[str, Any], score: float | None) -> tuple[float, float, str]:
    """Draw a variant's line from 1 to its multiplier at its score. Returns (end x, y, variant)."""
    x, y, colour = row["multiplier"], math.nan, palette.colour_of(row["variant"])
    if score is not None:
        y = score
    ax.plot([1, x], [y, y], lw=1.5, color=colour)
    if not math.isnan(row["low"]):
        ax.plot([row["low"], row["high"]], [y, y], lw=3, color=colour)
    ax.plot(x, y, OUTSIDE.get(row["answer"], "o"), ms=6, color=colour, zorder=4)
    return x, y, row["variant"]


@figure
def worth(worth: pd.DataFrame, title: str) -> Figure:
    """Which connection is worth its cost? Step multiplier and time of a step.

    A dot is the step multiplier with its 95 % interval over seeds: the factor by which a plain
    network has to train longer to reach the same score. A triangle marks a multiplier beyond the
    ladder. An upright bar is the time of a step relative to the plain network's, timed in turns on
    one machine; connections without a bar were not timed. A connection pays if its dot is right of
    its bar: it is better than a plain network after the same training time. Rows are grouped by
    verdict, after the correction for many comparisons; the largest multiplier is first.
    """
    rows = at_one_rate(worth).dropna(subset="multiplier")
    if rows.empty:
        return style.placeholder(f"{title}\nno variant has a step multiplier")
    against = style.label_of(rows["against"].iloc[0])
    same_rate = " at the same rate" if rows["against"].nunique() > 1 else ""
    lines = _grouped(rows.sort_values("multiplier", ascending=False, kind="stable"), against)
    page, ((ax,),) = style.grid(1, 1, (WIDTH, AROUND + PER_ROW * len(lines)))
    ax.axvline(1, color=palette.PALE, lw=1, zorder=0)
    for y, (_, row) in enumerate(lines):
        if row is not None:
            _design(ax, y, row)
    style.rows_of_names(ax, [name for name, _ in lines])
    for label, (_, row) in zip(ax.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if row is None else "normal")
    is_timed = rows["cost"].notna().any()
    pays = "\n(it pays if its dot is right of its bar)"
    ax.set_xlabel(f"× {against}{same_rate}{pays if is_timed else ''}")
    ax.set_title(style.count_layers(rows["depth"].iloc[0]), loc="left")
    if not is_timed:
        title += "\nno time of a step was measured here"
    return style.finish(page, title, _legend(rows))


def _grouped(rows: pd.DataFrame, against: str) -> list[tuple[str, dict[str, Any] | None]]:
    """(name, row) of each line of the figure; the row is None for the heading of a verdict."""
    lines: list[tuple[str, dict[str, Any] | None]] = []
    for verdict, heading in HEADINGS.items():
        own = rows[rows["verdict"] == verdict].to_dict("records")
        lines += [(heading.format(against), None)] * bool(own)
        lines += [(style.label_of(row["variant"]), row) for row in own]
    return lines


def _design(ax: Axes, y: float, row: dict[str, Any]) -> None:
    """Draw a multiplier with its interval, and the time of a step."""
    colour = palette.colour_of(row["variant"])
    ax.vlines(row["cost"], y - 0.38, y + 0.38, color=colour, lw=3)
    if not math.isnan(row["low"]):
        ax.plot([row["low"], row["high"]], [y, y], lw=2, color=colour)
    ax.plot(row["multiplier"], y, OUTSIDE.get(row["answer"], "o"), ms=8, color=colour)


def _legend(rows: pd.DataFrame) -> list[Any]:
    """Legend entries of the marks; empty if no row has a time."""
    if rows["cost"].isna().all():
        return []
    width = rows["width"].dropna().iloc[0]
    return [
        style.mark_handle("step multiplier", "o", ms=8),
        style.mark_handle(f"time of a step, {width:g} channels", "|", ms=14, mew=3),
    ]
