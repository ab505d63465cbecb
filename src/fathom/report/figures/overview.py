"""The figures over all studies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.analysis.places import PLACE, Place
from fathom.report.figures import figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FACTORS = {
    "recipe": ("recipe", "#0072B2"),
    "place": ("backend", "#D55E00"),
    "seed": ("seed", "#999999"),
    "other": ("interactions", "#E5E5E5"),
}
"""Label and colour by column of the table."""

MEASURES = {"loss_final": "final loss (nats)", "gain_final": "final log10 gain"}
"""The published measures that are drawn, with the labels of their axes."""


@figure
def variance(variance: pd.DataFrame) -> Figure:
    """Shares of the variance of log10 loss by recipe, backend, seed and their interactions."""
    if variance.empty:
        return style.without_data("nothing to decompose")
    page, (ax,) = style.panels(1)
    names = [
        f"{v}, {d} layers" for d, v in zip(variance["depth"], variance["variant"], strict=True)
    ]
    left = np.zeros(len(variance))
    for factor, (label, colour) in FACTORS.items():
        ax.barh(names, 100 * variance[factor], left=left, color=colour, label=label)
        left += 100 * variance[factor].to_numpy()
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the variance of log10 loss (%)")
    style.entitle(page, "What explains the final loss")
    style.legend(page, columns=4)
    return page


@figure
def published(published: pd.DataFrame) -> Figure:
    """Published values, hollow, beside ours, filled, with the 95 % interval over seeds.

    A cross on the upper edge: not finite.
    """
    table = published[published["measure"].isin(MEASURES) & (published["backend"] != "")]
    table = table.assign(label=[Place(*p).label for p in table[PLACE].itertuples(index=False)])
    studies = list(table["study"].unique())
    if not studies:
        return style.without_data("no published value was repeated")
    page, axes = style.grid(len(studies), 2, (11, 4 * len(studies)))
    labels = list(table["label"].unique())
    for row, study in zip(axes, studies, strict=True):
        for ax, (measure, label) in zip(row, MEASURES.items(), strict=True):
            chosen = table[(table["study"] == study) & (table["measure"] == measure)]
            _beside(ax, chosen, labels, logarithmic=measure == "loss_final")
            ax.set_ylabel(label)
            ax.set_title(study)
    grey = {"color": style.GREY, "ls": ""}
    signs = style.signs_of(list(table["variant"].unique()), lw=6)
    signs.append(style.sign("published", marker="D", mfc="none", ms=9, **grey))
    signs += [
        style.sign(f"ours, {label}", marker=style.marker_of(i), ms=8, **grey)
        for i, label in enumerate(labels)
    ]
    signs.append(style.sign("not finite", marker="x", ms=9, mew=3, **grey))
    style.legend(page, signs, columns=4)
    return page


def _beside(ax: Axes, table: pd.DataFrame, labels: list[str], logarithmic: bool) -> None:
    depths, variants = sorted(table["depth"].unique()), list(table["variant"].unique())
    slots = 1 + len(labels)
    for _, row in table.iterrows():
        # A group per depth, in it a block per variant, in it published first and then ours.
        block = depths.index(row["depth"]) + 0.28 * (
            variants.index(row["variant"]) - (len(variants) - 1) / 2
        )
        colour, step = style.colour_of(row["variant"]), 0.2 / slots
        place = labels.index(row["label"])
        x = block + step * (1 + place)
        _point(ax, block, row["published"], 0.0, "D", colour, hollow=True)
        _point(ax, x, row["mean"], row["ci95_half"], style.marker_of(place), colour, hollow=False)
    if logarithmic:
        ax.set_yscale("log")
    ax.set_xticks(range(len(depths)), [f"{d} layers" for d in depths])
    ax.margins(y=0.12)


def _point(
    ax: Axes, x: float, value: float, half: float, marker: str, colour: str, *, hollow: bool
) -> None:
    if not np.isfinite(value):
        above = ax.get_xaxis_transform()
        ax.plot(x, 0.97, "x", color=colour, ms=9, mew=3, transform=above)
        if hollow:
            ax.plot(x, 0.97, marker, mec=colour, mfc="none", ms=13, transform=above)
        return
    if hollow:
        ax.plot(x, value, marker, mec=colour, mfc="none", ms=9)
        return
    # A bar may not reach zero on a logarithmic axis.
    down = min(half, 0.9 * abs(value)) if np.isfinite(half) else 0.0
    bars = [[down], [half if np.isfinite(half) else 0.0]]
    ax.errorbar(x, value, yerr=bars, marker=marker, ms=8, color=colour, capsize=3)
