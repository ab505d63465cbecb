"""The figures of a study of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.models.connections.causal import Causal
from fathom.report.figures import figure, frames, panels, style
from fathom.report.formatting import count_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from fathom.metrics import Score
    from fathom.report.mixing import Mixing

ROWS, COLUMNS = "#0072B2", "#D55E00"

MANY = 32
"""Layers from which on an even weight, 1 / layers, would be as dark as none."""


@figure
def comparison(steps: pd.DataFrame, summary: pd.DataFrame, score: Score, title: str) -> Figure:
    """Loss against step, the score, and the gradient norm of the first weight.

    A point of the score is the mean over seeds, with its 95 % interval. Dotted: at chance.
    """
    depths = sorted(steps["depth"].unique())
    page, axes = style.grid(len(depths), 3, (style.WIDTH, 1 + 3.8 * len(depths)))
    for (left, middle, right), depth in zip(axes, depths, strict=True):
        rows, groups = steps[steps["depth"] == depth], summary[summary["depth"] == depth]
        # Batches of pictures differ much in difficulty: single steps would hide the course.
        window = max(1, rows["step"].nunique() // 16)
        levels = {"chance": frames.constant(groups, "chance_loss")}
        marks = [
            panels.curves(left, rows, "loss", window, log=True, levels=levels),
            # A first weight that nothing reaches has a norm of zero, which has no logarithm.
            panels.curves(right, rows, "grad_norm_stem", window, log=False),
        ]
        variants = list(groups["variant"].unique())
        panels.points(middle, panels.values_of(groups, "score", score), variants)
        if len(depths) > 1:
            left.set_title(count_layers(depth), loc="left", pad=6 + 24 * max(marks))
    handles = style.legend_handles(steps["variant"].unique())
    return style.finish(page, panels.at_depth(title, depths), handles)


@figure(needs=Causal)
def mixing_matrix(mixing: dict[str, Mixing], title: str) -> Figure:
    """Learned mixing over depth, of one run of each variant: its first seed at the largest depth.

    Left: the weights that layers read with, each row of which sums to one; of many layers on a
    logarithmic scale, from a tenth of an even weight on. Right: the sums of the rows and columns of
    the whole matrix, whose rows are cut off at the layer itself and normalised to make those
    weights; with a doubly stochastic matrix they are one.
    """
    if not mixing:
        return style.placeholder(f"{title}: no variant mixes over depth")
    page, axes = style.grid(len(mixing), 2, (style.WIDTH, 1 + 3.8 * len(mixing)))
    for (left, right), (variant, learned) in zip(axes, mixing.items(), strict=True):
        if right is not axes[0, 1]:  # one scale for all, so that they can be compared
            right.sharey(axes[0, 1])
        left.set_title(f"{variant}, {count_layers(learned.depth)}, seed {learned.seed}", loc="left")
        if learned.is_finite:
            page.colorbar(_weights(left, learned.weights), ax=left, label="weight")
            _sums(right, learned.matrix)
        else:
            style.say(left, "not finite")
            right.set_axis_off()
    return style.finish(page, title)


def _weights(ax: Axes, weights: np.ndarray) -> AxesImage:
    """A heat map of weights [L, L]; where a layer cannot read, nothing."""
    from matplotlib.colors import LogNorm, Normalize

    above = np.triu(np.ones(weights.shape, dtype=bool), k=1)
    least = 0.1 / len(weights) if len(weights) >= MANY else 0
    readable = np.ma.masked_array(np.maximum(weights, least), above)
    scale = LogNorm(least, 1) if least else Normalize(0, 1)
    image = ax.imshow(readable, cmap="cividis", interpolation="nearest", norm=scale)
    ax.set_xlabel("state read")
    ax.set_ylabel("layer")
    ax.grid(visible=False)
    style.whole_ticks(ax)
    style.whole_ticks(ax, "y")
    return image


def _sums(ax: Axes, matrix: np.ndarray) -> None:
    """The sums of the rows and of the columns of a matrix [L, L]."""
    positions = np.arange(len(matrix))
    ax.axhline(1, color=style.GREY, lw=1)
    ax.plot(positions, matrix.sum(axis=1), color=ROWS, marker="o", label="row")
    ax.plot(positions, matrix.sum(axis=0), color=COLUMNS, marker="s", ls="--", label="column")
    ax.set_xlabel("row or column")
    ax.set_ylabel("sum of the whole matrix")
    ax.legend(frameon=False)
    style.log_if_wide(ax)
    style.whole_ticks(ax)
