"""The figures of a study with a ladder: what a connection is worth in training steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from fathom.analysis.significance import UNDECIDED
from fathom.config import common_depth
from fathom.report.figures import figure, frames, numbered, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom.metrics.scores import Score

WIDTH, HEIGHT, PER_NAME = 9.0, 5.0, 0.24
"""Inches: smaller than other figures, so that names are readable at half of a page; the least
height, and that of a name beside a panel."""

OUTSIDE = {"below": "<", "beyond": ">", "both": "D"}
"""Marks along the steps where the multiplier is a bound."""

UPRIGHT = {"below": "v", "beyond": "^", "both": "D"}
"""The same where multipliers stand on the vertical axis."""

APART = 0.11
"""Least distance of two numbers on the axis of steps, as a share of it."""


@figure
def ladder(
    ladder: pd.DataFrame, summary: pd.DataFrame, worth: pd.DataFrame, score: Score, title: str
) -> Figure:
    """How much longer would a plain network have to train? Its score against the steps it takes.

    At the depth that most variants have. Black: the plain network, trained for other numbers of
    steps, each with a whole schedule; a bar is the 95 % interval over seeds. A line leads from a
    variant's score after equal steps to where the plain network has that score: the dot there is
    the step multiplier, with its interval. A triangle: farther than the ladder reaches. Grey:
    undecided, neither better nor worse than plain, nor equivalent. Numbers are in order of the
    multiplier, and the names at the right have them.
    """
    rows = at_one_rate(worth)
    if rows.empty or ladder.empty:
        return style.placeholder(f"{title}\nno ladder of the plain network was trained")
    depth, against = rows["depth"].iloc[0], rows["against"].iloc[0]
    plain = ladder[(ladder["depth"] == depth) & (ladder["variant"] == against)]
    scores = summary[summary["depth"] == depth].set_index("variant")["score_mean"]
    page, ((ax,),) = style.grid(1, 1, (WIDTH, max(HEIGHT, 1.6 + PER_NAME * len(rows))))
    _plain_ladder(ax, plain, score)
    ends = _marks(ax, rows, scores)
    ax.set_title(style.count_layers(depth), loc="left")
    ax.set_xlabel(f"steps, × those of {style.label_of(against)}")
    ax.set_ylabel(panels.score_label(score))
    undecided = set(rows.loc[rows["verdict"] == UNDECIDED, "variant"])
    numbered.list_names(ax, list(ends), undecided)
    return numbered.number_points(style.finish(page, title), [ax], [ends], list(ends), undecided)


def at_one_rate(worth: pd.DataFrame) -> pd.DataFrame:
    """The rows that a ladder tells of, at equal rates, against the first plain network.

    At the depth of most of them, the deepest of several.
    """
    rows = worth[(worth["answer"] != "") & (worth["rate"] == "one rate")]
    rows = rows[rows["against"].isin(rows["against"].head(1))]
    return rows[rows["depth"] == common_depth(rows["depth"])]


def _plain_ladder(ax: Axes, plain: pd.DataFrame, score: Score) -> None:
    """The scores of the plain network against the factor of its steps, on a logarithmic axis."""
    points = frames.scores_on_ladder(plain, geometric=panels.is_log(score.metric))
    colour = style.colour_of(plain["variant"].iloc[0])
    bars = style.error_bars(points["mean"], points["low"], points["high"])
    ax.errorbar(
        points["factor"], points["mean"], yerr=bars, color=colour, marker="o", ms=8, capsize=5
    )
    ax.set_xscale("log")
    ticks = _apart(points["factor"].tolist())
    ax.set_xticks(ticks, [f"{factor:g}" for factor in ticks])
    ax.minorticks_off()


def _apart(factors: list[float]) -> list[float]:
    """The factors whose numbers do not overlap on a logarithmic axis; 1 is among them."""
    least = APART * math.log(max(factors) / min(factors)) if factors else 0
    kept: list[float] = []
    for factor in sorted(factors, key=lambda factor: abs(math.log(factor))):
        if all(abs(math.log(factor / other)) > least for other in kept):
            kept.append(factor)
    return sorted(kept)


def _marks(ax: Axes, rows: pd.DataFrame, scores: pd.Series) -> dict[str, tuple[float, float]]:
    """A line for each variant from 1 to its multiplier, at its score; where it ends, by variant.

    In order of the multiplier, the largest first.
    """
    ends = {}
    for row in rows.sort_values("multiplier", ascending=False, kind="stable").to_dict("records"):
        x, y = row["multiplier"], scores.get(row["variant"], math.nan)
        looks = _looks(row)
        ax.plot([1, x], [y, y], lw=1.5, **looks)
        if not math.isnan(row["low"]):
            ax.plot([row["low"], row["high"]], [y, y], lw=3, **looks)
        ax.plot(x, y, OUTSIDE.get(row["answer"], "o"), ms=6, **{**looks, "zorder": 4})
        if not math.isnan(y):
            ends[row["variant"]] = x, y
    return ends


def _looks(row: dict[str, Any]) -> dict[str, Any]:
    """Grey, and below others, where the row is undecided; else in the variant's colour."""
    told = row["verdict"] != UNDECIDED
    return {"color": style.colour_of(row["variant"]) if told else style.PALE, "zorder": 2 + told}


@figure
def worth(worth: pd.DataFrame, title: str) -> Figure:
    """Which connection is worth its cost? Steps saved against the time of a step.

    Up: the step multiplier, with its 95 % interval over seeds: how many times the steps a plain
    network needs to end there. Right: the time of a step over the plain network's, timed in turns
    on one machine. Above the break-even line a connection pays: it ends better than a plain network
    in the same training time. Grey: undecided, after the correction for many comparisons neither
    better nor worse than plain, nor equivalent within 5 % of the steps. Hollow: the cost in a wider
    network, whose multiplier may differ. A triangle: farther than the ladder reaches. Numbers are
    in order of the multiplier, and the names at the right have them. Where no time of a step was
    measured, multipliers stand alone.
    """
    rows = at_one_rate(worth).dropna(subset="multiplier")
    if rows.empty:
        return style.placeholder(f"{title}\nno variant has a step multiplier")
    if rows["cost"].isna().all():
        return _without_costs(rows, f"{title}\nno time of a step was measured here")
    rows = rows.dropna(subset="cost")
    page, ((ax,),) = style.grid(1, 1, (WIDTH, max(HEIGHT, 1.8 + PER_NAME * len(rows))))
    for row in rows.to_dict("records"):
        _design(ax, row)
    left, right = ax.get_xlim()
    ax.set_xlim(min(left, 0.97), right)
    low, high = ax.get_ylim()
    line = [max(min(left, 0.97), low), min(right, high)]
    ax.plot(line, line, color=style.GREY, ls=":", lw=1.5, zorder=1)
    ax.set_ylim(low, high)
    ax.axhline(1, color=style.PALE, lw=1, zorder=0)
    ax.axvline(1, color=style.PALE, lw=1, zorder=0)
    ax.annotate(
        "break-even", (line[1], line[1]), xytext=(6, -4),
        textcoords="offset points", color=style.GREY, fontsize=11, va="top",
        bbox={"facecolor": "white", "alpha": 0.7, "lw": 0, "pad": 0.5},
    )  # fmt: skip
    ax.set_xlabel(f"time of a step, × {style.label_of(rows['against'].iloc[0])}")
    ax.set_ylabel("step multiplier")
    ax.set_title(style.count_layers(rows["depth"].iloc[0]), loc="left")
    undecided = set(rows.loc[rows["verdict"] == UNDECIDED, "variant"])
    names = list(rows.sort_values("multiplier", ascending=False, kind="stable")["variant"])
    numbered.list_names(ax, names, undecided)
    points = rows.set_index("variant")[["cost", "multiplier"]].itertuples(name=None)
    at = {variant: (cost, multiplier) for variant, cost, multiplier in points}
    return numbered.number_points(
        style.finish(page, title, _legend(rows)), [ax], [at], names, undecided
    )


def _without_costs(rows: pd.DataFrame, title: str) -> Figure:
    """The multipliers alone, in rows, the largest above."""
    rows = rows.sort_values("multiplier", ascending=False, kind="stable")
    page, ((ax,),) = style.grid(1, 1, (WIDTH, 2.2 + 0.4 * len(rows)))
    for y, row in enumerate(rows.to_dict("records")):
        looks = _looks(row)
        if not math.isnan(row["low"]):
            ax.plot([row["low"], row["high"]], [y, y], lw=2, **looks)
        ax.plot(row["multiplier"], y, OUTSIDE.get(row["answer"], "o"), ms=9, **looks)
    ax.axvline(1, color=style.PALE, lw=1, zorder=0)
    style.rows_of_variants(ax, list(rows["variant"]))
    ax.set_xlabel("step multiplier")
    ax.set_title(style.count_layers(rows["depth"].iloc[0]), loc="left")
    return style.finish(page, title)


def _design(ax: Axes, row: dict[str, Any]) -> None:
    """A point with its interval, and the cost at another width."""
    looks = _looks(row)
    if not math.isnan(row["low"]):
        ax.vlines(row["cost"], row["low"], row["high"], lw=1.5, **looks)
    if not math.isnan(row["cost_wider"]):
        at = [row["cost"], row["cost_wider"]]
        ax.plot(at, [row["multiplier"]] * 2, lw=1, **looks)
        ax.plot(at[1], row["multiplier"], "o", ms=8, mfc="white", **looks)
    ax.plot(row["cost"], row["multiplier"], UPRIGHT.get(row["answer"], "o"), ms=9, **looks)


def _legend(rows: pd.DataFrame) -> list[Any]:
    """The widths of the networks, where they were timed at two."""
    if rows["cost_wider"].isna().all():
        return []
    looks = {"color": style.GREY, "marker": "o", "ls": "", "ms": 8}
    own, other = (rows[name].dropna().iloc[0] for name in ("width", "wider"))
    return [
        style.legend_handle(f"{own:g} channels", **looks),
        style.legend_handle(f"{other:g} channels", mfc="white", **looks),
    ]
