"""The figures of a study whose variants have learning rates of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.report.figures import contrasts, figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@figure
def loss_against_rate(summary: pd.DataFrame, title: str) -> Figure:
    """Final loss against the learning rate, for each connection, at the deepest setting.

    A point is a mean over seeds, with its 95 % interval; a cross at the top stands for a rate at
    which a run diverged. Dotted: the loss at chance.
    """
    rows = summary[summary["depth"] == summary["depth"].max()].sort_values("lr", kind="stable")
    page, (ax,) = style.panels(1)
    level = style.chance_of(summary)
    failed = 5 * np.nanmax([level, *rows["loss_final_mean"]])  # above all that can be shown
    connections = list(rows["connection"].unique())
    for place, name in enumerate(connections):
        group = rows[rows["connection"] == name]
        _line(ax, group, failed, style.colour_of(name), style.marker_of(place))
    ax.set_xscale("log")
    rates = sorted(rows["lr"].unique())
    ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
    ax.minorticks_off()
    ax.set_xlabel("learning rate")
    ax.set_ylabel("final loss (nats)")
    style.chance(ax, level, "left")
    return style.finished(page, connections, f"{title}, {rows['depth'].iloc[0]} layers")


def _line(ax: Axes, group: pd.DataFrame, failed: float, colour: str, marker: str) -> None:
    """A connection's points, where every run is finite, and its crosses."""
    whole, broken = group[group["diverged"] == 0], group[group["diverged"] > 0]
    mean, low, high = (whole[f"loss_final_{part}"] for part in ("mean", "low", "high"))
    ax.errorbar(
        whole["lr"], mean, yerr=style.sides_of(mean, low, high), color=colour, marker=marker, ms=8,
        capsize=5,
    )  # fmt: skip
    ax.plot(broken["lr"], [failed] * len(broken), "x", color=colour, ms=11, mew=3)


@figure
def effects(effects: pd.DataFrame, title: str) -> Figure:
    """What each contrast does to log10 of the final loss, mean over seeds and 95 % interval.

    At −1 the first variant's loss is a tenth of the second's. The grey bar is the standard
    deviation over seeds of the second's. Blue: the interval excludes zero.
    """
    return contrasts.effects(effects, title)
