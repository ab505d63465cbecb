"""The figures of a study of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fathom.models.connections.causal import Causal
from fathom.report.figures import figure, palette, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from fathom.report.learned import Mixing

MANY = 32
"""Number of layers from which weights have a logarithmic scale: 1 / layers would look like zero."""


@figure(needs=Causal)
def mixing_matrix(mixing: dict[str, Mixing], title: str) -> Figure:
    """Which states does each layer read after training? Weights over depth, one run per variant.

    The run is the first seed at the largest depth. A row has the weights of the states that a layer
    reads; they sum to one. With many layers the scale is logarithmic and starts at a tenth of an
    even weight. The last panel has the row and column sums of the whole matrix, which are one if it
    is doubly stochastic. Its rows, cut off at the layer and normalised, are the weights.
    """
    finite = {variant: learned for variant, learned in mixing.items() if learned.is_finite}
    if not finite:
        return style.placeholder(f"{title}\nno mixing over depth is finite")
    page, axes = style.panels(len(finite) + 1, beside=3, height=3.6)
    for ax, (variant, learned) in zip(axes, finite.items(), strict=False):
        label = style.label_of(variant)
        ax.set_title(
            f"{label}, {style.count_layers(learned.depth)}, seed {learned.seed}", loc="left"
        )
        page.colorbar(_weights(ax, learned.weights), ax=ax, label="weight")
        _sums(axes[-1], learned.matrix, palette.colour_of(variant))
    axes[-1].axhline(1, color=palette.GREY, lw=1, zorder=1)
    axes[-1].set_xlabel("row or column")
    axes[-1].set_ylabel("sum of the whole matrix")
    style.log_if_wide(axes[-1])
    style.whole_ticks(axes[-1])
    grey = {"color": palette.GREY}
    handles = [
        *style.legend_handles(finite), style.legend_handle("row", **grey),
        style.legend_handle("column", ls=":", lw=4, **grey),
    ]  # fmt: skip
    return style.finish(page, title, handles)


def _weights(ax: Axes, weights: np.ndarray) -> AxesImage:
    """Draw a heat map of weights [L, L]; states that a layer cannot read are blank."""
    from matplotlib.colors import LogNorm, Normalize

    above = np.triu(np.ones(weights.shape, dtype=bool), k=1)
    least = 0.1 / len(weights) if len(weights) >= MANY else 0
    readable = np.ma.masked_array(np.maximum(weights, least), above)
    scale = LogNorm(least, 1) if least else Normalize(0, 1)
    image = ax.imshow(readable, cmap="cividis", interpolation="nearest", norm=scale)
    ax.set_xlabel("state read")
    ax.set_ylabel("layer")
    ax.grid(visible=False)
    ax.locator_params(nbins=3, integer=True)
    return image


def _sums(ax: Axes, matrix: np.ndarray, colour: str) -> None:
    """Draw the sums of the rows and of the columns of a matrix [L, L]."""
    positions = np.arange(len(matrix))
    ax.plot(positions, matrix.sum(axis=1), color=colour)
    ax.plot(positions, matrix.sum(axis=0), color=colour, ls=":", lw=4)
