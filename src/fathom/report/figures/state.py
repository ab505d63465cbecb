"""The figures of a study of a group's word problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from fathom import tasks
from fathom.report.figures import figure, frames, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROFILE = "state_accuracy_by_position"


MOST_NUMBERS = 24
"""Maximum number of positions for which numbers fit into their cells."""

DARK = 0.6
"""Share below which a cell is dark and its number white."""


@figure
def accuracy_by_position(profiles: pd.DataFrame, title: str) -> Figure:
    """How far into a word is the state tracked? Held-out accuracy at each position.

    Numbers are means over seeds, in %.
    """
    own = profiles[profiles["metric"] == PROFILE]
    entry = tasks.step_metrics()[PROFILE]
    if own.empty:
        return style.placeholder(f"{title}\nno run has a {entry.label}")
    shares = frames.means_along(own)
    page, ((ax,),) = style.grid(1, 1, (style.WIDTH, 1.8 + 0.38 * len(shares)))
    first, last = shares.columns[0], shares.columns[-1]
    image = ax.imshow(
        shares, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest",
        extent=(first - 0.5, last + 0.5, len(shares) - 0.5, -0.5),
    )  # fmt: skip
    if shares.shape[1] <= MOST_NUMBERS:
        for row, line in enumerate(shares.to_numpy()):
            for place, share in zip(shares.columns, line, strict=True):
                colour = "white" if share < DARK else "black"
                ax.text(
                    place, row, f"{100 * share:.0f}", color=colour, fontsize=12,
                    ha="center", va="center",
                )  # fmt: skip
    names = [f"{style.label_of(variant)}, {depth}" for variant, depth in shares.index]
    ax.set_yticks(range(len(shares)), names)
    ax.set_ylabel("variant, layers")
    style.whole_ticks(ax)
    ax.grid(visible=False)
    ax.set_xlabel(entry.along)
    page.colorbar(image, ax=ax, label=entry.label, fraction=0.05, pad=0.02)
    return style.finish(page, title)
