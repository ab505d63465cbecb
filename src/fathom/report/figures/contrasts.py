"""The figures of a study that sets variants, or their learning rates, side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fathom.report.figures import figure, panels, style
from fathom.report.formatting import count_layers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom.metrics import Score

BESIDE_SCORE = ("stream_similarity_final", "amax_backward_log10_final")
"""Run metrics that are drawn beside the score, of studies whose variants have them."""

NEUTRAL, APART = "#555555", "#0072B2"
"""Colours of effects that are not established, and of those that are."""

LINEAR = 2
"""Up to so many percent the axis of effects is linear, and logarithmic beyond."""
TICKS = [side * x for side in (-1, 1) for x in (1, 3, 10, 30, 100)] + [0]


@figure
def effects(effects: pd.DataFrame, score: Score, title: str) -> Figure:
    """What each contrast does to the score, by question: mean over seeds and 95 % interval.

    As a share of the distance from chance to perfect. Shaded: too small to matter. Blue: the effect
    is established, beside all others of the study. Hollow: the sides differ in several settings.
    """
    from fathom.analysis.effects import HIGHER, LOWER  # it loads SciPy
    from fathom.analysis.established import SMALLEST

    rows = effects[effects["metric"] == "score"]
    if rows.empty:
        return style.placeholder(f"{title}\nno contrast was measured")
    lines = [line for question in rows["question"].unique() for line in _lines(rows, question)]
    page, ((ax,),) = style.grid(1, 1, (style.WIDTH, 1.6 + 0.34 * len(lines)))
    ax.axvspan(-100 * SMALLEST, 100 * SMALLEST, color="0.9", zorder=0)
    ax.axvline(0, color="black", lw=1)
    for y, (_, row) in enumerate(lines):
        if row is None:
            continue
        mean, *ends = (100 * row[f"of_chance{end}"] for end in ("", "_low", "_high"))
        colour = APART if row["verdict"] in (HIGHER, LOWER) else NEUTRAL
        ax.errorbar(
            mean, y, xerr=style.error_bars(mean, *ends), color=colour, marker="o", markersize=8,
            markerfacecolor="white" if "," in str(row["differs_in"]) else colour, capsize=5,
        )  # fmt: skip
    ax.set_ylim(len(lines) - 0.5, -0.5)
    ticks = ax.set_yticks(range(len(lines)), [name for name, _ in lines], fontsize=13)
    for tick, (_, row) in zip(ticks, lines, strict=True):
        tick.label1.set_fontweight("bold" if row is None else "normal")
    ax.set_xscale("symlog", linthresh=LINEAR)
    widest = 1.3 * max(LINEAR, *np.abs(ax.dataLim.intervalx))
    ax.set_xlim(-widest, widest)
    ax.set_xticks([x for x in TICKS if abs(x) <= widest], minor=False)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.minorticks_off()
    better = "left" if score.better == "lower" else "right"
    ax.set_xlabel(
        f"difference of the {score.label},\n% of the distance from chance to perfect\n"
        f"({better}: the first is better)"
    )
    return style.finish(page, title)


def _lines(rows: pd.DataFrame, question: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The name of each line of the figure and its effect, none for the question itself."""
    yield textwrap.fill(question, 44), None
    several = rows["depth"].nunique() > 1
    for row in rows[rows["question"] == question].to_dict("records"):
        name = " − ".join(style.label_of(row[side]) for side in ("variant", "against"))
        yield f"{name}, {count_layers(row['depth'])}" if several else name, row


@figure
def variants(summary: pd.DataFrame, score: Score, title: str) -> Figure:
    """Every variant at the largest depth: score, similarity of its streams, and backward Amax gain.

    A point is a mean over seeds, with its 95 % interval; a cross: a run diverged. A panel has the
    variants that have its metric. Dotted: the score at chance.
    """
    deepest = summary[summary["depth"] == summary["depth"].max()]
    drawn = [panels.values_of(deepest, name, score) for name in ("score", *BESIDE_SCORE)]
    drawn = [values for values in drawn if not values.groups.empty]
    if not drawn:
        return style.placeholder(f"{title}\nno variant has a {score.label}")
    names = list(dict.fromkeys(pd.concat(values.groups for values in drawn)["variant"]))
    page, (axes,) = style.grid(1, len(drawn), (style.WIDTH, 2.3 + 0.4 * len(names)))
    for ax, values in zip(axes, drawn, strict=True):
        # One row of points per variant in every panel, also where it lacks the metric.
        panels.points(ax, values, names)
        ax.set_xlabel("\n".join(textwrap.fill(line, 28) for line in values.label.split("\n")))
        if ax is not axes[0]:
            ax.set_yticklabels([])
    return style.finish(page, title)


@figure
def score_against_rate(summary: pd.DataFrame, score: Score, title: str) -> Figure:
    """The score against the learning rate, for each connection, at the largest depth.

    A point is a mean over seeds, with its 95 % interval; a cross at the edge that is worse: a run
    diverged. Dotted: the score at chance.
    """
    deepest = summary[summary["depth"] == summary["depth"].max()]
    values = panels.values_of(deepest, "score", score)
    groups = values.groups
    if groups.empty:
        return style.placeholder(f"{title}\nno variant has a {score.label}")
    page, (ax,) = style.panels(1)
    panels.lines(ax, values, "lr", "connection")
    ax.set_xscale("log")
    rates = sorted(groups["lr"].unique())
    ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
    ax.xaxis.minorticks_off()
    ax.set_xlabel("learning rate")
    title = panels.at_depth(title, deepest["depth"].unique())
    return style.finish(page, title, style.legend_handles(groups["connection"].unique()))
