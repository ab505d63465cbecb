"""The figures of a study that sets variants side by side, seed by seed."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.measures import RUN_MEASURES
from fathom.report.figures import figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = ("loss_final", "stream_similarity_final", "amax_backward_log10_final")
"""What is drawn of every variant."""

NEUTRAL, APART = "#555555", "#0072B2"
"""Colours of effects that are not distinguishable from none, and of those that are."""


@figure
def effects(effects: pd.DataFrame, title: str) -> Figure:
    """What each contrast does to log10 of the final loss, mean over seeds and 95 % interval.

    At −1 the first variant's loss is a tenth of the second's. The grey bar is the standard
    deviation over seeds of the second's. Blue: the interval excludes zero.
    """
    from fathom.analysis.effects import HIGHER, LOWER  # it loads SciPy

    rows = effects[effects["measure"] == "loss_final"].reset_index(drop=True)
    if rows.empty:
        return style.without_data("no contrast was measured")
    page, ((ax,),) = style.grid(1, 1, (style.WIDTH, 1.5 + 0.32 * len(rows)))
    places = np.arange(len(rows))[::-1]
    for y, row in zip(places, rows.to_dict("records"), strict=True):
        ax.barh(y, 2 * row["seed_sd"], left=-row["seed_sd"], height=0.7, color="0.87", zorder=1)
        colour = APART if row["verdict"] in (HIGHER, LOWER) else NEUTRAL
        half = row["ci95_half"]
        ax.errorbar(
            row["effect"], y, xerr=None if np.isnan(half) else half,
            color=colour, marker="o", markersize=8, capsize=5, zorder=3,
        )  # fmt: skip
    ax.axvline(0, color="black", lw=1)
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.set_yticks(places, [f"{r.variant} − {r.against}" for r in rows.itertuples()], fontsize=13)
    ax.set_xlabel("difference of log10 of the final loss; left: the first is better")
    style.entitle(page, title)
    return page


@figure
def variants(summary: pd.DataFrame, title: str) -> Figure:
    """Every variant at the last step: loss, similarity of its streams, and backward Amax gain.

    A point is a mean over seeds, with its 95 % interval.
    """
    rows = summary[summary["depth"] == summary["depth"].max()]
    page, (axes,) = style.grid(1, len(SHOWN), (style.WIDTH, 1.6 + 0.4 * len(rows)))
    for ax, measure in zip(axes, SHOWN, strict=True):
        _points(ax, rows, measure)
        # Else it is cut off at the edge of the page.
        ax.set_xlabel(textwrap.fill(style.label_of(RUN_MEASURES[measure].of), 24))
    axes[0].set_yticks(np.arange(len(rows))[::-1], rows["variant"], fontsize=13)
    for ax in axes[1:]:
        ax.set_yticks(np.arange(len(rows)), [])
    style.entitle(page, title)
    return page


def _points(ax: Axes, rows: pd.DataFrame, measure: str) -> None:
    """A point with its interval for each variant, from above."""
    for y, row in zip(range(len(rows) - 1, -1, -1), rows.to_dict("records"), strict=True):
        colour = style.COLOURS.get(row["variant"], NEUTRAL)
        style.point_with_interval(ax, row, measure, y, marker="o", color=colour)
    ax.set_ylim(-0.7, len(rows) - 0.3)
