"""Draw the pictures of docs/explained: the effect of mixing before training.

    python benchmarks/explained.py [FOLDER]

The data are networks of config.yaml before their first step. They follow from initial parameters,
so no run is needed; NumPy computes them in float64.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fathom import tasks
from fathom.backends.numpy import NumpyOps
from fathom.config import Cell, Config, load_config
from fathom.report.figures import palette, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom.models.connections.streams import Streams

MATRICES = 48
"""Number of multiplied matrices: one per block, or one per sub-layer."""

BLOCKS = ("depth-torch", MATRICES, ("baseline", "hc", "mhc"))
SUBLAYERS = (
    "ingredients",
    MATRICES // 2,
    ("baseline", "hc_paper", "mhc_paper", "circulant_mhc", "mhc_lite", "krom_hc"),
)
"""A study, a number of blocks, and the variants that the pictures show."""
PASSES = ("fashion-streams", 4, "mhc_static")
"""A study, a depth and a variant whose first matrix is normalised step by step. It starts with
noise, so that its rows differ."""
SEED = 0


@dataclass(frozen=True)
class Untrained:
    """A network at its initial parameters, on its first batch. L wrapped functions, S streams."""

    sizes: np.ndarray
    """Root mean square of each wrapped function's input relative to the first's, [L]."""
    H_res: np.ndarray
    """[L, S, S], averaged over positions if dynamic; for one stream ones, [L, 1, 1]."""

    @property
    def products(self) -> np.ndarray:
        """Products of the first 1, 2, … L matrices, later ones on the left, [L, S, S]."""
        found = [self.H_res[0]]
        for H in self.H_res[1:]:
            found.append(H @ found[-1])
        return np.stack(found)


@dataclass(frozen=True)
class Explained:
    """Data of all pictures."""

    blocks: dict[str, Untrained]
    """Variants with connections around blocks."""
    sublayers: dict[str, Untrained]
    """Variants with connections around every attention and every MLP."""
    passes: dict[str, np.ndarray]
    """One matrix, [S, S], after each operation, by its name."""


def explained(config: Config) -> Explained:
    """Data of all pictures."""
    blocks, sublayers = (
        {
            variant: untrained(config, Cell(study, depth, variant, "torch", SEED))
            for variant in names
        }
        for study, depth, names in (BLOCKS, SUBLAYERS)
    )
    return Explained(blocks, sublayers, passes(config, Cell(*PASSES, "torch", SEED)))


def untrained(config: Config, cell: Cell) -> Untrained:
    """A cell's network after a forward pass with the parameters that its run starts from."""
    problem, ops = tasks.Problem(config.spec(cell)), NumpyOps()
    params = {name: ops.asarray(value) for name, value in problem.initial_parameters().items()}
    block_inputs: list[np.ndarray] = []
    (batch,) = problem.batches(0)
    inputs = {name: ops.asarray(value) for name, value in batch.inputs.items()}
    output = problem.network.forward(ops, params, inputs, block_inputs=block_inputs)
    sizes = np.array([np.sqrt((x * x).mean()) for x in block_inputs])
    H_res = output.mixed.H_res if output.mixed else np.ones((len(sizes), 1, 1))
    return Untrained(sizes / sizes[0], H_res)


def passes(config: Config, cell: Cell) -> dict[str, np.ndarray]:
    """A cell's first initial matrix before Sinkhorn, after half a pass and after all passes."""
    problem, ops = tasks.Problem(config.spec(cell)), NumpyOps()
    scheme: Streams = problem.spec.connection
    logits = ops.asarray(problem.initial_parameters()["connection.H_res"])[:1]

    positive = ops.exp(logits)[0]
    return {
        "exp of the logits": positive,
        "rows divided by their sums": positive / positive.sum(axis=1, keepdims=True),
        "after all passes": scheme.H_res.matrix(ops, logits, scheme.streams, problem.spec.depth)[0],
    }


# --- pictures -------------------------------------------------------------------------------------

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


def main(folder: Path) -> None:
    """Draw all pictures, only as PNG, which Markdown shows."""
    config = load_config(["config.yaml"])
    data = explained(config)
    with style.from_defaults(), style.worded(config.labels, "layer"):
        found = {draw.__name__: draw(data) for draw in (signal, products, differences, sinkhorn)}
    save(found, folder, only=["png"])


if __name__ == "__main__":
    main(Path(*sys.argv[1:] or ["docs/images/explained"]))
