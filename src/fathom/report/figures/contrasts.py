"""The figures of a study that compares variants, or their learning rates."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fathom.analysis.effects import ALIKE
from fathom.analysis.significance import BETTER, WORSE
from fathom.config import common_depth
from fathom.report.figures import figure, frames, palette, panels, style
from fathom.report.figures.style import count_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom.metrics.scores import Score

BESIDE_SCORE = ("stream_similarity_final", "amax_backward_log10_final")
"""Run metrics drawn beside the score, if the study's variants have them."""

NEUTRAL, APART = "#747474", "black"
"""Colours of other effects and of significant effects."""

LINEAR = 2
"""Effect, in its unit, up to which the axis is linear; beyond it, the axis is logarithmic."""
MANY_TICKS, MOST_TICKS = 30, 1000
"""Largest effects on the axis from which only powers of ten, and only even powers, have labels, as
more would overlap."""
UNITS = {"%": "change of the {}, %", "points": "difference of the {}, percentage points"}
"""Labels of the axis of effects, by unit."""


QUESTION_WIDTH, PAIR_WIDTH = 60, 40
"""Characters per line of a question or pair (beside the effects) and of the axis label (below)."""
LETTER, SPACE = 0.22, 0.12
"""Height of a line of text, and space between the lines of the figure, in inches."""


@figure
def effects(effects: pd.DataFrame, score: Score, title: str) -> Figure:
    """How does each single change affect the score? Differences at the same seeds.

    A marker is the mean over seeds, a bar its 95 % interval, in % of a loss or in percentage points
    of an accuracy. The axis is logarithmic beyond 2. Black: the effect is significant after the
    correction for all comparisons of the study. Hollow: the two variants differ in several
    settings. Pairs whose scores differ only by rounding are left out.
    """
    rows = effects[effects["metric"] == "score"]
    if rows.empty:
        return style.placeholder(f"{title}\nno contrast was measured")
    rows = rows[rows["verdict"] != ALIKE]
    if rows.empty:
        return style.placeholder(f"{title}\nall pairs differ only by rounding")
    lines = [line for question in rows["question"].unique() for line in _lines(rows, question)]
    heights = np.array([SPACE + LETTER * (1 + name.count("\n")) for name, _ in lines])
    page, ((ax,),) = style.grid(1, 1, (style.WIDTH, 1.6 + heights.sum()))
    places = np.cumsum(heights) - heights / 2  # in inches, from above
    ax.axvline(0, color="black", lw=1)
    for y, (_, row) in zip(places, lines, strict=True):
        if row is None:
            continue
        mean, *ends = (row[name] for name in ("effect", "low", "high"))
        colour = APART if row["verdict"] in (BETTER, WORSE) else NEUTRAL
        ax.errorbar(
            mean, y, xerr=style.error_bars(mean, *ends), color=colour, marker="o", markersize=8,
            markerfacecolor="white" if "," in str(row["differs_in"]) else colour, capsize=5,
        )  # fmt: skip
    ax.set_ylim(heights.sum(), 0)
    ticks = ax.set_yticks(places, [name for name, _ in lines], fontsize=13)
    for tick, (_, row) in zip(ticks, lines, strict=True):
        tick.label1.set_fontweight("bold" if row is None else "normal")
    ax.set_xscale("symlog", linthresh=LINEAR)
    widest = 1.3 * max(LINEAR, *np.abs(ax.dataLim.intervalx))
    ax.set_xlim(-widest, widest)
    ax.set_xticks(_ticks(widest))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.minorticks_off()
    better = "left" if score.better == "lower" else "right"
    unit = rows["unit"].iloc[0]
    label = UNITS.get(unit, f"difference of the {{}}, {unit}".rstrip(", ")).format(score.label)
    ax.set_xlabel(f"{textwrap.fill(label, PAIR_WIDTH)}\n({better}: the first is better)")
    return style.finish(page, title)


def _ticks(widest: float) -> list[float]:
    """Labelled ticks of the axis of effects, including zero and powers of ten."""
    powers = [10.0**k for k in range(int(math.log10(widest)) + 1)]
    if widest > MOST_TICKS:
        powers = powers[::2]
    found = powers if widest >= MANY_TICKS else [x * k for x in powers for k in (1, 3)]
    return [0, *(side * x for x in found if x <= widest for side in (-1, 1))]


def _lines(rows: pd.DataFrame, question: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """(name, effect) of each line of the figure; the effect is None for the question itself."""
    yield textwrap.fill(style.words(question), QUESTION_WIDTH), None
    several = rows["depth"].nunique() > 1
    for row in rows[rows["question"] == question].to_dict("records"):
        name = " − ".join(style.label_of(row[side]) for side in ("variant", "against"))
        whole = f"{name}, {count_layers(row['depth'])}" if several else name
        yield textwrap.fill(whole, QUESTION_WIDTH), row


WRAP = {1: 60, 2: 28, 3: 20}
"""Characters per line of an axis label, by the number of panels."""


@figure
def variants(summary: pd.DataFrame, cells: pd.DataFrame, score: Score, title: str) -> Figure:
    """How does every variant end? Score, similarity of streams and backward gain.

    Only the depth that most variants have is drawn. A dot is a run, a line the mean over seeds. A
    variant without a metric has no dots in its panel. A metric has no panel if more than half of
    the variants have the same value. Dotted: the score at chance.
    """
    own, depth = at_common_depth(summary)
    cells = cells[cells["depth"] == depth]
    drawn = [panels.values_of(own, name, score, cells=cells) for name in ("score", *BESIDE_SCORE)]
    drawn = [
        values for position, values in enumerate(drawn)
        if position == 0 or _differ(values.groups["mean"])
    ]  # fmt: skip
    if drawn[0].groups.empty:
        return style.placeholder(f"{title}\nno variant has a {score.label}")
    names = list(dict.fromkeys(pd.concat(values.groups for values in drawn)["variant"]))
    page, (axes,) = style.grid(1, len(drawn), (style.WIDTH, 2.3 + 0.4 * len(names)))
    for ax, values in zip(axes, drawn, strict=True):
        # One row of points per variant in every panel, also where it lacks the metric.
        panels.points(ax, values, names)
        ax.set_xlabel(
            "\n".join(textwrap.fill(line, WRAP[len(drawn)]) for line in values.label.split("\n"))
        )
        if ax is not axes[0]:
            ax.set_yticklabels([])
        _fewer_numbers(ax)
    return style.finish(page, f"{title}\n{count_layers(depth)}")


def _fewer_numbers(ax: Axes) -> None:
    """Limit the labels of a linear x axis: a narrow panel has no room for more at full length."""
    if ax.get_xscale() == "linear":
        ax.locator_params(axis="x", nbins=3)


def _differ(means: pd.Series) -> bool:
    """Whether at least half of the means differ from the median by more than 1 % of their range."""
    apart = (means - means.median()).abs() > 0.01 * (means.max() - means.min())
    return frames.varies(means) and apart.mean() >= 0.5


def at_common_depth(summary: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """(rows of the depth that most variants have, that depth); on a tie, the largest depth.

    Without rows the depth is zero.
    """
    depth = int(common_depth(summary[["depth", "variant"]].drop_duplicates()["depth"]))
    return summary[summary["depth"] == depth], depth


MOST_APART, ROOM = 14, 400
"""Maximum points between two connections at one rate, and points for all over all rates."""


@figure
def score_against_rate(
    summary: pd.DataFrame, cells: pd.DataFrame, score: Score, title: str
) -> Figure:
    """Which learning rate does each connection need? Score against learning rate.

    Only the depth that most variants have is drawn. A dot is a run, a marker the mean over seeds;
    markers of the same rate are side by side. A cross above the panel marks a run that diverged.
    Dotted: the score at chance.
    """
    own, depth = at_common_depth(summary)
    cells = cells[cells["depth"] == depth]
    values = panels.values_of(own, "score", score, cells=cells)
    if values.groups.empty:
        return style.placeholder(f"{title}\nno variant has a {score.label}")
    named = dict(zip(values.groups["variant"], families(values.groups), strict=True))
    groups, runs = (t.assign(family=t["variant"].map(named)) for t in (values.groups, values.runs))
    rates = sorted(groups["lr"].unique())
    apart = min(MOST_APART, ROOM / len(rates) / groups["family"].nunique())
    page, (ax,) = style.panels(1, height=5.4)
    ax.set_title(count_layers(depth), loc="left")
    handles = panels.lines(ax, values._replace(groups=groups, runs=runs), "lr", "family", apart)
    style.log_ticks(ax, rates)
    ax.margins(x=0.1)
    ax.set_xlabel("learning rate")
    return style.finish(page, title, handles)


def families(groups: pd.DataFrame) -> pd.Series:
    """A family name for each variant, shared with the same network at other rates.

    The connection, if no two of its variants have the same rate; else the variant's name without
    the rate, under the same condition; else the variant's name.
    """
    found = groups["variant"]
    for names in (found.str.replace(r"_\d+$", "", regex=True), groups["connection"]):
        shares = pd.DataFrame({"name": names, "lr": groups["lr"]}).duplicated(keep=False)
        found = names.mask(shares.groupby(names).transform("any"), found)
    return found


FEWEST = 4
"""Minimum number of connections for a frontier."""


@figure(schemes=FEWEST)
def frontier(
    times: pd.DataFrame,
    cells: pd.DataFrame,
    plain: str | None,
    parameters: Callable[[str, int], int],
    score: Score,
    title: str,
) -> Figure:
    """Which design has the best score for its cost? Score, parameters and training time.

    Only the depth that most variants have is drawn, the best variant first. A marker is the mean
    over seeds, a bar the range. Seeds that span a decade have no mean and are small dots. Time is
    relative to the plain network, or to the fastest variant in a study without one. It comes from
    steps timed in turns or, if none were timed, from the fastest run of each variant. A filled cost
    is on the frontier: no other variant is both cheaper and better. There is no frontier if a
    variant has no mean.
    """
    own = costs(times, cells, plain, parameters, score)
    if len(own) < 2:
        return style.placeholder(f"{title}\nfewer than two variants have a score at one depth")
    unit, depth = own.attrs["unit"], own.attrs["depth"]
    is_known, lower = own["mean"].notna().all(), score.better == "lower"
    middle = own["mean"].fillna((own["low"] * own["high"]) ** 0.5)
    own = own.loc[middle.sort_values(ascending=lower, kind="stable").index]
    labels = {"parameters": "parameters\n(thousands)"}
    if own["time"].notna().any():
        labels["time"] = f"training time,\n× {style.label_of(unit)}"
    size = style.WIDTH, 2.3 + 0.3 * len(own)
    page, (axes,) = style.grid(1, 1 + len(labels), size, sharey=True)
    best = {cost: frames.frontier(own, cost, lower=lower) if is_known else [] for cost in labels}
    for y, row in enumerate(own.to_dict("records")):
        colour = palette.colour_of(row["variant"])
        axes[0].hlines(y, row["low"], row["high"], color=colour, lw=2)
        axes[0].plot(row["seeds"], [y] * len(row["seeds"]), color=colour, **panels.DOT)
        axes[0].plot(row["mean"], y, "o", ms=8, color=colour)
        for ax, cost in zip(axes[1:], labels, strict=True):
            is_best = row["variant"] in best[cost]
            ax.plot(row[cost], y, "o", ms=8, color=colour, mfc=None if is_best else "white")
    style.rows_of_names(axes[0], [style.label_of(variant) for variant in own["variant"]])
    axes[0].set_xlabel(panels.score_label(score))
    axes[0].set_title(count_layers(depth), loc="left")
    if panels.is_log(score.metric):
        style.log_if_wide(axes[0], "x")
    for ax, label in zip(axes[1:], labels.values(), strict=True):
        ax.set_xlabel(label)
        ax.margins(x=0.1)
    for ax in axes:
        _fewer_numbers(ax)
    return style.finish(page, title)


def costs(
    times: pd.DataFrame,
    cells: pd.DataFrame,
    plain: str | None,
    parameters: Callable[[str, int], int],
    score: Score,
) -> pd.DataFrame:
    """Scores, parameters and training time of variants at the depth that most of them have.

    The columns of `frames.final_scores`, without variants with a diverged run; `parameters` in
    thousands; `time` relative to the network `plain`, or else to the fastest. attrs has the `unit`
    of time, that network's label, and the `depth`. `low` and `high` are the range over seeds.
    """
    rows, depth = at_common_depth(times[times["diverged"] == 0])
    own = cells[cells["depth"] == depth]
    found = frames.final_scores(own, geometric=panels.is_log(score.metric))
    found = found[found["mean"].notna() | found["seeds"].map(bool)].merge(
        rows[["variant", "seconds_per_step_fastest"]], on="variant"
    )
    found["parameters"] = [parameters(variant, depth) / 1000 for variant in found["variant"]]
    steps = own.groupby("variant")["steps"].first()
    seconds = found.set_index("variant")["seconds_per_step_fastest"] * steps[found["variant"]]
    fastest = seconds.idxmin() if seconds.notna().any() else ""
    unit = plain if plain in seconds else fastest
    found["time"] = (seconds / seconds.get(unit, math.nan)).to_numpy()
    found.attrs = {"unit": unit, "depth": depth}
    return found
