"""The figures of a study that show its variants against depth, rate or each other."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fathom.connections.constraints import Exp, Raw
from fathom_study.analysis.pair_verdicts import ALIKE
from fathom_study.analysis.significance import BETTER, WORSE
from fathom_study.report.figures import figure, frames, panels, style
from fathom_study.report.figures.palette import GREY, PALE, colour_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom_study.metrics.scores import Score

ROUNDS = "bayes_accuracy_by_round"
"""Profile of belief propagation, the same for every run."""

LINEAR, WIDE = 10, 30
"""Effects, in their unit: an axis that reaches WIDE is logarithmic beyond LINEAR."""


@figure(points=2)
def score(cells: pd.DataFrame, score: Score, title: str) -> Figure:
    """Which variant has the best score? Score against depth.

    A study of one depth, or of many variants, has a row for each variant. A dot is a run, a marker
    the mean over seeds. A cross at the edge of the panel marks a variant with a run that diverged.
    Dotted: chance, if it is near.
    """
    return panels.against_depth(cells, score.metric, title, score=score)


@figure(needs=Exp | Raw, depths=2)
def depth_scaling(cells: pd.DataFrame, title: str) -> Figure:
    """Does the gain of unconstrained mixing grow with depth? Gain at the last step against depth.

    A dot is a run, a marker the mean over seeds. A cross is the gain at the first step of runs that
    diverged.
    """
    return panels.against_depth(cells, "gain_final", title, start="gain_first")


@figure
def depth_and_rounds(
    cells: pd.DataFrame, profiles: pd.DataFrame, score: Score, title: str
) -> Figure:
    """Does a network of L layers match L rounds of belief propagation? Score against depth.

    Both use nodes up to L links away. A dot is a run, a marker the mean over seeds, a cross a run
    that diverged. Grey: belief propagation after each round. Dotted: chance, and belief propagation
    after its last round.
    """
    values = panels.values_of(cells, "score", score)
    page, (ax,) = style.panels()
    places = panels.lines(
        ax, values._replace(levels=panels.levels_of(cells, score)), "depth", "variant"
    )
    rounds = profiles[profiles["metric"] == ROUNDS].groupby("at")["value"].mean()
    reached = rounds.reindex(places)
    ax.plot(range(len(places)), reached, ".--", color=GREY, label="belief propagation, by round")
    ax.set_xlabel("layers; rounds of belief propagation")
    return style.finish(page, title)


@figure
def distance_by_steps(profiles: pd.DataFrame, title: str) -> Figure:
    """How many Euler steps are enough? Energy distance of generated points from the density.

    A line is the geometric mean over seeds, a band the range. Dotted: the exact velocity.
    """
    return panels.along(
        profiles, "energy_distance_by_steps", title, exact="exact_energy_distance_by_steps"
    )


@figure
def score_against_rate(cells: pd.DataFrame, score: Score, title: str) -> Figure:
    """Which learning rate does each connection need? Score against learning rate.

    Only the depth that most variants have is drawn. A dot is a run, a marker the mean over seeds;
    markers of the same rate are side by side. A cross above the panel marks a run that diverged.
    Dotted: the score at chance.
    """
    values = panels.values_of(frames.at_common_depth(cells), "score", score)
    if values.means.empty:
        return style.placeholder(f"{title}\nno variant has a {score.label}")
    page, (ax,) = style.panels(1, 5.0)
    ax.set_title(style.count_layers(values.means["depth"].iloc[0]), pad=18)
    panels.lines(ax, values, "lr", "connection")
    ax.set_xlabel("learning rate")
    return style.finish(page, title)


@figure
def stability(stability: pd.DataFrame, title: str) -> Figure:
    """Up to which learning rate does a connection train? Largest rate at which its runs train.

    A run trains if it passes the score to have used its layers. Only the depth that most variants
    have is drawn. A marker is the median over seeds, a line the range. A right triangle is the
    largest rate tried; the true limit may be higher. A left triangle: no rate trains at some seed.
    """
    rows = frames.at_common_depth(stability).drop_duplicates("variant").to_dict("records")
    if not rows:
        return style.placeholder(f"{title}\nno variant was trained at several rates")
    page, ax, places = style.row_panel([(style.label_of(row["variant"]), row) for row in rows])
    rates = sorted({float(rate) for row in rows for rate in row["rates"].split()})
    ax.set_xscale("log")
    for y, row in zip(places, rows, strict=True):
        colour, low = colour_of(row["variant"]), max(row["largest_low"], row["smallest"])
        marks = {("median over seeds", "o"): row["largest"] or math.nan}
        if row["largest"] == row["greatest"]:
            marks = {("largest rate tried", ">"): row["largest"]}
        if low > row["largest_low"]:
            marks["no rate trains at some seed", "<"] = low
        style.interval(ax, y, low, max(low, row["largest_high"]), colour, "x")
        for (label, marker), rate in marks.items():
            ax.plot(rate, y, marker, color=colour, ms=10)
            style.legend_entry(ax, label, marker=marker, ms=9)
    ax.set_xticks(rates[::2], [f"{rate:g}" for rate in rates[::2]])
    ax.xaxis.minorticks_off()
    ax.set_xlim(rates[0] / 1.4, rates[-1] * 1.4)
    ax.set_xlabel("largest learning rate that trains")
    ax.set_title(style.count_layers(rows[0]["depth"]))
    return style.finish(page, title)


@figure
def effects(effects: pd.DataFrame, score: Score, title: str) -> Figure:
    """How does each single change affect the score? Differences at the same seeds.

    Only the depth that most variants have is drawn. A marker is the mean over seeds, a bar the
    interval of the verdict, corrected for all comparisons of its question, in % of a loss or in
    percentage points of an accuracy. Beyond 10 a wide axis is logarithmic. Black: the effect is
    significant, so the bar excludes 0. Hollow: the two variants differ in several settings. Pairs
    whose scores differ only by rounding are left out.
    """
    own = effects[(effects["metric"] == "score") & (effects["verdict"] != ALIKE)]
    own = frames.at_common_depth(own)
    if own.empty:
        return style.placeholder(f"{title}\nno contrast was measured, or all are zero by rounding")
    rows: list[tuple[str, dict[str, Any] | None]] = []
    for question, pairs in own.groupby("question", sort=False):
        rows.append((style.words(question), None))
        for row in pairs.to_dict("records"):
            name = " − ".join(style.label_of(row[side]) for side in ("variant", "against"))
            rows.append((name, row))
    page, ax, places = style.row_panel(rows)
    ax.axvline(0, **style.ONE)
    for y, (_, row) in zip(places, rows, strict=True):
        if row is None:
            continue
        colour = "black" if row["verdict"] in (BETTER, WORSE) else PALE
        style.interval(ax, y, row["corrected_low"], row["corrected_high"], colour, "x")
        several = "," in str(row["differs_in"])
        ax.plot(row["effect"], y, "o", ms=8, color=colour, mfc="white" if several else None)
    style.legend_entry(ax, "significant", marker="o", color="black", ms=8)
    style.legend_entry(ax, "not significant", marker="o", color=PALE, ms=8)
    style.legend_entry(ax, "several settings differ", marker="o", mfc="white", ms=8)
    if np.abs(ax.dataLim.intervalx).max() > WIDE:
        ax.set_xscale("symlog", linthresh=LINEAR)
        ax.xaxis.get_major_locator().set_params(numticks=5)
        ax.xaxis.set_major_formatter("{x:g}")
    unit = own["unit"].iloc[0]
    unit = {"points": "percentage points"}.get(unit, unit)
    better = "left" if score.better == "lower" else "right"
    label = textwrap.fill(f"difference of the {score.label}, {unit}", 26)
    ax.set_xlabel(f"{label}\n({better}: the first\nis better)")
    ax.set_title(style.count_layers(own["depth"].iloc[0]))
    return style.finish(page, title)
