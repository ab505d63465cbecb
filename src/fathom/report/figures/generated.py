"""The figures of networks that generate points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.report.figures import figure, palette, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom.report.learned import GeneratedSamples


@figure
def samples(samples: list[GeneratedSamples], title: str) -> Figure:
    """Do generated points follow the density? Equal numbers of true and generated points.

    The points of each variant and depth come from the weights of its first seed. All start from the
    same, evenly spread noise. A panel's title counts the points outside it.
    """
    if not samples:
        return style.placeholder(f"{title}\nno run keeps its weights: weights: true in its study")
    page, axes = style.panels(1 + len(samples), height=3, sharey=True)
    true = samples[0].samples.true
    limit = 1.2 * np.abs(true).max()
    _points(axes[0], true, "the density", palette.GREY, limit)
    for ax, drawn in zip(axes[1:], samples, strict=True):
        label = f"{style.label_of(drawn.variant)}, {style.count_layers(drawn.depth)}"
        _points(ax, drawn.samples.generated, label, palette.colour_of(drawn.variant), limit)
    for ax in axes[:: style.PANELS_PER_ROW]:
        ax.set_ylabel("y")
    return style.finish(page, title)


@figure
def distance_by_steps(profiles: pd.DataFrame, title: str) -> Figure:
    """How many Euler steps are enough? Energy distance of generated points from the density.

    A line is the geometric mean over seeds, a band or a bar their range. Dotted: the exact
    velocity.
    """
    return panels.along(
        profiles, "energy_distance_by_steps", title, exact="exact_energy_distance_by_steps"
    )


@figure
def drift(profiles: pd.DataFrame, title: str) -> Figure:
    """Where do points go if the flow is repeated? Mean norm of points against time.

    Points begin as noise; each repetition starts where the last one ended. A line is the geometric
    mean over seeds, a band or a bar their range. Dotted: the exact velocity.
    """
    return panels.along(profiles, "norm_by_time", title, exact="exact_norm_by_time")


def _points(ax: Axes, points: np.ndarray, label: str, colour: str, limit: float) -> None:
    """Draw points [N, 2] within ±limit; the title counts the points outside."""
    outside = int((~(np.abs(points) <= limit).all(axis=1)).sum())
    # Rasterised: a vector for each point would make the page too large.
    ax.plot(*points.T, ".", ms=3, mew=0, color=colour, alpha=0.6, rasterized=True)
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", xlabel="x")
    ax.set_title(f"{label}\n{outside} outside" if outside else label)
