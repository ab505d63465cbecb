"""The pictures of docs/explained: the effect of mixing before training."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from fathom.report.figures import figure, palette, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom.report.explained import Explained

WIDTH = 7.5
"""Inches; a page shows the pictures at this size."""

SIGNAL = {"baseline": "-", "hc": "-", "mhc": "-", "hc_paper": "--", "mhc_averaged": ":"}
"""Line styles by variant; three lines coincide."""
PRODUCTS = ("hc_paper", "mhc_lite", "mhc", "hc")
DIFFERENCES = ("hc_paper", "krom_hc", "mhc_lite", "circulant_mhc", "mhc", "mhc_averaged")
"""Variants from the least mixing to the most."""

COUNTS = (1, 12, 24, 48)
"""Number of matrices multiplied in the heat maps."""

SQUARED = float(np.sqrt(np.finfo(np.float32).max))
"""The largest number whose square is finite in float32."""


@figure
def signal(explained: Explained) -> Figure:
    """Size of the signal that enters each layer of an untrained network.

    The size is the root mean square of a layer's input, relative to that of the first layer.
    """
    page, axes = style.grid(1, 2, (WIDTH, 3.6))
    left, right = axes[0]
    right.sharey(left)
    for ax, networks, what in (
        (left, explained.blocks, "the demo: around blocks"),
        (right, explained.sublayers, "the papers: around sub-layers"),
    ):
        for variant in (v for v in SIGNAL if v in networks):
            sizes, dashes = networks[variant].sizes, SIGNAL[variant]
            colour = palette.colour_of(variant)
            ax.plot(np.arange(1, len(sizes) + 1), sizes, color=colour, ls=dashes)
        ax.axhline(SQUARED, color=palette.GREY, lw=1)
        ax.set(xlabel="layer", yscale="log", xticks=COUNTS)
        ax.set_title(what, fontsize=12)
    right.tick_params(labelleft=False)
    left.set_ylabel("size of the input")
    right.annotate(
        "the square overflows float32", (0.5, SQUARED), ha="center", va="bottom", fontsize=10,
        xycoords=right.get_yaxis_transform(), xytext=(0, 3), textcoords="offset points",
        color=palette.GREY,
    )  # fmt: skip
    handles = [
        style.legend_handle(style.label_of(v), color=palette.colour_of(v), ls=dashes)
        for v, dashes in SIGNAL.items()
    ]
    return style.finish(page, "The signal in an untrained network", handles)


@figure
def products(explained: Explained) -> Figure:
    """The product of 1, 12, 24 and 48 initial mixing matrices.

    A square is a product. Row r has the shares of the four input streams in output stream r. The
    factor above a square is its largest row sum.
    """
    networks = {**explained.sublayers, **explained.blocks}
    page, axes = style.grid(len(PRODUCTS), len(COUNTS), (WIDTH, 1.45 * len(PRODUCTS) + 0.7))
    for line, variant in zip(axes, PRODUCTS, strict=True):
        products = networks[variant].products
        for ax, count in zip(line, COUNTS, strict=True):
            product = products[count - 1]
            sums = product.sum(axis=1)
            image = ax.imshow(product / sums[:, None], vmin=0, vmax=1, cmap="viridis")
            ax.set_title(f"× {_factor(sums.max())}", fontsize=12)
            _no_ticks(ax)
        label = textwrap.fill(style.label_of(variant), 12)
        line[0].set_ylabel(label, color=palette.colour_of(variant), fontsize=11)
    for ax, count in zip(axes[-1], COUNTS, strict=True):
        ax.set_xlabel("1 matrix" if count == 1 else f"{count} matrices")
    bar = page.colorbar(image, ax=axes, shrink=0.6, aspect=30)
    bar.set_label("share of the row")
    return style.finish(page, "Products of mixing matrices")


@figure
def differences(explained: Explained) -> Figure:
    """Remaining difference between streams, by the number of initial mixing matrices.

    It is the largest singular value of the product on vectors whose entries sum to zero: 1 if
    nothing is lost, near 0 if all streams have become their mean.
    """
    networks = {**explained.sublayers, **explained.blocks}
    page, ((ax,),) = style.grid(1, 1, (WIDTH, 3.9))
    for variant in DIFFERENCES:
        left = [difference_left(product) for product in networks[variant].products]
        counts = np.arange(1, len(left) + 1)
        ax.plot(counts, left, color=palette.colour_of(variant), marker="o", ms=3)
    ax.set(xlabel="matrices multiplied", ylabel="remaining difference", ylim=(-0.03, 1.03))
    ax.set_xticks(COUNTS)
    return style.finish(page, "Mixing makes streams alike", style.legend_handles(DIFFERENCES))


def difference_left(product: np.ndarray) -> float:
    """The largest factor by which a product [S, S] scales a difference between streams."""
    S = len(product)
    apart = np.eye(S) - 1 / S
    return float(np.linalg.norm(apart @ product @ apart, ord=2))


@figure
def sinkhorn(explained: Explained) -> Figure:
    """An initial matrix before Sinkhorn, after the first division of rows, and after all passes.

    Numbers beside a row and below a column are their sums.
    """
    page, axes = style.grid(1, len(explained.passes), (WIDTH, 2.9))
    for ax, (what, matrix) in zip(axes[0], explained.passes.items(), strict=True):
        S = len(matrix)
        ax.imshow(matrix / matrix.max(), vmin=0, vmax=1, cmap="Blues")
        digits = 1 if matrix.max() > 1 else 3
        for (row, column), value in np.ndenumerate(matrix):
            colour = "white" if value > 0.6 * matrix.max() else "black"
            _number(ax, column, row, f"{value:.{digits}f}", colour)
        for i in range(S):
            _number(ax, S, i, f"{matrix[i].sum():.{digits}f}", palette.GREY)
            _number(ax, i, S, f"{matrix[:, i].sum():.{digits}f}", palette.GREY)
        ax.set_title(what, fontsize=12)
        ax.set(xlim=(-0.5, S + 0.5), ylim=(S + 0.5, -0.5))
        _no_ticks(ax)
        ax.spines[:].set_visible(False)
    return style.finish(page, "Sinkhorn on an initial matrix, step by step")


def _number(ax: Axes, x: float, y: float, text: str, colour: str) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=9, color=colour)


def _factor(value: float) -> str:
    """A factor in a few characters."""
    exponent = int(np.floor(np.log10(value)))
    return f"{value:.3g}" if exponent < 3 else f"$10^{{{np.log10(value):.1f}}}$"


def _no_ticks(ax: Axes) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(visible=False)
