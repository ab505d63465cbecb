"""The figures of a study with a ladder: the worth of a connection in training steps."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pandas as pd

from fathom.connections.schemes import SCHEMES
from fathom_study.analysis.significance import BETTER, EQUIVALENT, UNDECIDED, WORSE
from fathom_study.analysis.worth import FUSED_WIDTH, PAYS, ends_on_ladder
from fathom_study.report.figures import MOST_ROWS, figure, frames, panels, style
from fathom_study.report.figures.palette import PAYING, colour_of, marker_of
from fathom_study.report.tables.effect_words import WITHIN
from fathom_study.report.tables.worth_words import would

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom_study.metrics.scores import Score

HEADINGS = {
    BETTER: "better than {}",
    EQUIVALENT: f"equivalent {WITHIN}",
    WORSE: "worse than {}",
    UNDECIDED: "undecided",
}
"""Headings above the rows of each verdict, in order."""


@figure
def ladder(
    ladder: pd.DataFrame, cells: pd.DataFrame, worth: pd.DataFrame, score: Score, title: str
) -> Figure:
    """How much longer would a plain network have to train? Its score against its steps.

    Only the depth that most variants have is drawn. Black: the plain network trained for several
    numbers of steps, each with a whole schedule; a bar is the 95 % interval over seeds. A line
    leads from a variant's score after equal steps to the plain network's steps for that score. The
    mark there is the step multiplier, a thick line its corrected interval. A triangle marks a
    multiplier beyond the ladder. Of more than eight variants, the four best and the four worst are
    drawn, of those better or worse than the plain network, without those farther from its line than
    the line is high.
    """
    rows = at_one_rate(worth)
    rows = rows[rows["against"].isin(rows["against"].head(1))]
    if rows.empty or ladder.empty:
        return style.placeholder(f"{title}\nno ladder of the plain network was trained")
    depth, against = rows["depth"].iloc[0], rows["against"].iloc[0]
    plain = ladder[(ladder["depth"] == depth) & (ladder["variant"] == against)]
    points = frames.scores_on_ladder(plain, geometric=panels.is_log(score.metric))
    values = panels.values_of(cells[cells["depth"] == depth], "score", score)
    scores = values.means.set_index("variant")["mean"]
    if len(rows) > panels.MOST_LINES:
        lowest, highest = points["mean"].min(), points["mean"].max()
        away = abs(rows["variant"].map(scores) - (lowest + highest) / 2)
        rows = rows[away < 1.5 * (highest - lowest)].sort_values("multiplier", kind="stable")
        best, worst = (rows[rows["verdict"] == verdict] for verdict in (BETTER, WORSE))
        some = panels.MOST_LINES // 2
        rows = pd.concat([best.tail(some)[::-1], worst.head(some)[::-1]])
    page, (ax,) = style.panels(1, 5.5)
    looks = style.series(against, 0)
    style.interval(ax, points["factor"], points["low"], points["high"], looks["color"])
    ax.plot(points["factor"], points["mean"], label=style.label_of(against), **looks)
    for position, row in enumerate(rows.to_dict("records"), 1):
        x, y = row["multiplier"], scores.get(row["variant"])
        looks = style.series(row["variant"], position)
        ax.plot([1, x], [y, y], lw=1, color=looks["color"], zorder=3)
        style.interval(ax, y, *ends_on_ladder(row), looks["color"], "x")
        looks["marker"] = style.OUTSIDE.get(row["answer"], looks["marker"])
        ax.plot(x, y, label=style.label_of(row["variant"]), **looks, zorder=4, ls="")
    ax.set_xscale("log")
    ax.set_xticks([*points["factor"]], [f"{factor:g}" for factor in points["factor"]])
    ax.xaxis.minorticks_off()
    ax.set_title(style.count_layers(depth))
    ax.set(xlabel=f"steps, × those of {style.label_of(against)}", ylabel=values.label)
    return style.finish(page, title)


def at_one_rate(worth: pd.DataFrame) -> pd.DataFrame:
    """The rows with an answer of the ladder, at equal rates and the most common depth."""
    return frames.at_common_depth(worth[(worth["answer"] != "") & (worth["rate"] == "one rate")])


MOST_CONNECTIONS = 10
"""Maximum number of rows of `answer`."""


@figure(timed=True)
def answer(worth: pd.DataFrame, title: str) -> Figure:
    """Does a connection save time? Time to the loss of the plain network, by how a step is counted.

    A dot is the time that a connection needs to reach the plain network's loss, as a multiple of
    the plain network's time: the cost of a step divided by the step multiplier. A line is its
    interval, corrected for all comparisons of the question. Left of 1 a connection saves more than
    its steps cost. Left: with the steps timed on this machine. Right, hollow: whether it would pay
    with steps as fused kernels would run them at 4096 channels, an estimate that assumes the same
    step multiplier there. Of all named schemes, those are drawn that are better after equal steps,
    then those with the least time; the table has all others, and those whose scores are the plain
    network's, which have no interval.
    """
    own = at_one_rate(worth).dropna(
        subset=["multiplier", "corrected_low", "corrected_high", "cost", "cost_fused"]
    )
    own = own[own["variant"].isin(SCHEMES) & (own["against"] == own["against"].iloc[:1].squeeze())]
    if own.empty:
        return style.placeholder(f"{title}\nno connection has a step multiplier and timed steps")
    own = own.assign(time=own["cost"] / own["multiplier"], is_worse=own["verdict"] != BETTER)
    own = own.sort_values(["is_worse", "time"], kind="stable").head(MOST_CONNECTIONS)
    own = own.sort_values("time", kind="stable")
    page, axes = style.panels(2, 1.7 + 0.42 * len(own), beside=2, sharey=True)
    axes[1].sharex(axes[0])
    plain = style.label_of(own["against"].iloc[0])
    here = f"measured here,\n{own['width'].iloc[0]:g} channels"
    fused = f"estimated: fused\nkernels, {FUSED_WIDTH} channels"
    columns = (("cost", "pays_here", here), ("cost_fused", "pays_fused", fused))
    for ax, (cost, verdict, heading) in zip(axes, columns, strict=True):
        measured = cost == "cost"
        ax.axvline(1, **style.ONE)
        for y, row in enumerate(own.to_dict("records")):
            colour, (low, high) = PAYING[row[verdict]], ends_on_ladder(row)
            width = 2.5 if measured else 1.2
            ax.hlines(y, row[cost] / high, row[cost] / low, color=colour, lw=width)
            dot = {"marker": "o", "ms": 8, "mew": 2, "color": colour}
            ax.plot(row[cost] / row["multiplier"], y, mfc=colour if measured else "white", **dot)
        ax.set_title(heading)
        ax.set_xlabel(f"time, × that of {plain}\n← faster     slower →")
    dots = {"marker": "o", "ms": 8, "mew": 2}
    for word, colour in PAYING.items():
        if (own["pays_here"] == word).any():
            style.legend_entry(axes[0], word, color=colour, **dots)
        if (own["pays_fused"] == word).any() and would(word) != word:
            style.legend_entry(axes[0], would(word), color=colour, mfc="white", **dots)
    names = [
        textwrap.fill(style.label_of(name), 28, break_on_hyphens=False) for name in own["variant"]
    ]
    axes[0].set_yticks(range(len(own)), names)
    axes[0].set_ylim(len(own) - 0.5, -0.5)
    paying = own[own["pays_here"] == PAYS]["variant"]
    saving = f"{', '.join(map(style.label_of, paying))} saves time"
    statement = saving if len(paying) else "no connection is shown to save time"
    return style.finish(page, f"As measured here, {statement}")


@figure
def worth(worth: pd.DataFrame, title: str) -> Figure:
    """Which connection is worth its cost? Step multiplier and time of a step.

    A dot is the step multiplier, the factor by which a plain network has to train longer to reach
    the same score. A line is its interval, corrected for all comparisons of the question: it
    crosses 1 for what is undecided. It ends at the ladder's end if it reaches beyond. A triangle
    marks a multiplier beyond the ladder. An upright bar is the time of a step relative to the plain
    network's, timed in turns on one machine; connections without a bar were not timed. A connection
    pays if its dot is right of its bar: it is better than a plain network after the same training
    time. Rows are grouped by verdict; the largest multiplier is first. Of more than 24 variants,
    those undecided are left out.
    """
    own = at_one_rate(worth).dropna(subset="multiplier")
    if own.empty:
        return style.placeholder(f"{title}\nno variant has a step multiplier")
    against = style.label_of(own["against"].iloc[0])
    own = own.sort_values("multiplier", ascending=False, kind="stable")
    rows: list[tuple[str, dict[str, Any] | None]] = []
    for verdict, heading in HEADINGS.items():
        if verdict == UNDECIDED and len(own) > MOST_ROWS:
            continue
        alike = own[own["verdict"] == verdict].to_dict("records")
        rows += [(heading.format(against), None)] * bool(alike)
        rows += [(style.label_of(row["variant"]), row) for row in alike]
    page, ax, places = style.row_panel(rows)
    ax.axvline(1, **style.ONE)
    for y, (_, row) in zip(places, rows, strict=True):
        if row is not None:
            _design(ax, y, row)
    same_rate = " at the same rate" if own["against"].nunique() > 1 else ""
    ax.set_title(style.count_layers(own["depth"].iloc[0]))
    ax.set_xlabel(f"× {against}{same_rate}")
    style.legend_entry(ax, "step multiplier", marker="o", ms=8)
    if own["cost"].notna().any():
        width = own["width"].dropna().iloc[0]
        style.legend_entry(ax, f"time of a step, {width:g} channels", marker="|", ms=14, mew=3)
        ax.set_xlabel(f"× {against}{same_rate}\n(it pays if its dot\nis right of its bar)")
    else:
        title += "\nno time of a step was measured here"
    return style.finish(page, title)


def _design(ax: Axes, y: float, row: dict[str, Any]) -> None:
    """Draw a multiplier with its interval, and the time of a step."""
    colour, marker = colour_of(row["variant"]), style.OUTSIDE.get(row["answer"], marker_of(0))
    ax.plot(row["cost"], y, "|", ms=14, mew=3, color=colour)
    style.interval(ax, y, *ends_on_ladder(row), colour, "x")
    ax.plot(row["multiplier"], y, marker, ms=8, color=colour)
    if marker in style.OUTSIDE.values():
        style.legend_entry(ax, "bound: outside the ladder", marker=marker, ms=8)
