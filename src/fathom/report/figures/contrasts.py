"""The figures of a study that sets variants, or their learning rates, side by side."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.report.figures import figure, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom.metrics import Score

BESIDE_SCORE = ("stream_similarity_final", "amax_backward_log10_final")
"""Run metrics that are drawn beside the score, of studies whose variants have them."""

NEUTRAL, APART = "#555555", "#0072B2"
"""Colours of effects that are not established, and of those that are."""


@figure
def effects(effects: pd.DataFrame, score: Score, title: str) -> Figure:
    """What each contrast does to the score, mean over seeds and 95 % interval.

    A positive score is compared by its logarithm: at −1 the first variant's is a tenth of the
    second's. The grey bar is the standard deviation over seeds of the second's. Blue: the effect is
    established, beside all others of the study.
    """
    from fathom.analysis.effects import HIGHER, LOWER  # it loads SciPy

    rows = effects[effects["metric"] == "score"]
    if rows.empty:
        return style.placeholder(f"{title}\nno contrast was measured")
    page, ((ax,),) = style.grid(1, 1, (style.WIDTH, 1.5 + 0.32 * len(rows)))
    heights = np.arange(len(rows))[::-1]
    for y, row in zip(heights, rows.to_dict("records"), strict=True):
        ax.barh(y, 2 * row["seed_sd"], left=-row["seed_sd"], height=0.7, color="0.87", zorder=1)
        colour = APART if row["verdict"] in (HIGHER, LOWER) else NEUTRAL
        ax.errorbar(
            row["effect"], y, xerr=row["ci95_half"],
            color=colour, marker="o", markersize=8, capsize=5, zorder=3,
        )  # fmt: skip
    ax.axvline(0, color="black", lw=1)
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.set_yticks(heights, [f"{r.variant} − {r.against}" for r in rows.itertuples()], fontsize=13)
    scale = f"log10 of the {score.label}" if panels.is_log(score.metric) else (
        f"the {panels.score_label(score)}"
    )  # fmt: skip
    better = "left" if score.better == "lower" else "right"
    ax.set_xlabel(f"difference of {scale}; {better}: the first is better")
    return style.finish(page, title)


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
