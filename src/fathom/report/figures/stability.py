"""The figure of a study with `rates`: how large a learning rate trains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from fathom.report.figures import figure, palette, panels, style
from fathom.report.figures.contrasts import at_common_depth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom.metrics.scores import Score

WIDTH, HEIGHT = 9.0, 9.0
"""Inches: smaller than other figures, so that names are readable at half of a page."""


@figure
def stability(
    summary: pd.DataFrame,
    cells: pd.DataFrame,
    stability: pd.DataFrame,
    bases: Mapping[str, str],
    score: Score,
    title: str,
) -> Figure:
    """Up to which learning rate does a connection train? Score against rate, and largest rate.

    Only the depth that most variants have is drawn. Above: a dot is a run, a marker the mean over
    seeds, a cross over the panel a run that diverged. Dotted: the score that a run has to pass to
    have used its layers. Below: the largest rate at which a run passes it. A marker is the median
    over seeds, a bar the range. A right triangle is the largest rate tried; the true limit may be
    higher. A left triangle: no rate trains at some seed.
    """
    own, depth = at_common_depth(summary[summary["variant"].isin(bases)])
    rows = stability[stability["depth"] == depth].drop_duplicates("variant")
    values = panels.values_of(own, "score", score, cells=cells[cells["depth"] == depth])
    if values.groups.empty or rows.empty:
        return style.placeholder(f"{title}\nno variant has a {score.label} at every rate")
    groups, runs = (t.assign(variant=t["variant"].map(bases)) for t in (values.groups, values.runs))
    page, ((above,), (below,)) = style.grid(2, 1, (WIDTH, HEIGHT))
    above.set_title(style.count_layers(depth), loc="left")
    own = values._replace(groups=groups, runs=runs, levels={})
    to_pass = rows["to_pass"].dropna().head(1)
    for value in to_pass:  # named in the legend: curves would cover a name beside it
        above.axhline(value, **style.LEVEL)
    handles = panels.lines(above, own, "lr", "variant")
    handles += [style.legend_handle("bigram model", **style.LEVEL) for _ in to_pass]
    _rate_axis(above, sorted(groups["lr"].unique()))
    above.set_xlabel("learning rate")
    _largest(below, rows)
    return style.finish(page, title, handles)


def _largest(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw the largest rate that trains, with a row for each variant, top down."""
    variants = list(rows["variant"])
    for y, row in enumerate(rows.to_dict("records")):
        colour = palette.colour_of(row["variant"])
        if not row["largest"]:
            ax.text(0.02, y, "none", color=colour, va="center", transform=ax.get_yaxis_transform())
            continue
        low = max(row["largest_low"], row["smallest"])
        ax.plot([low, row["largest_high"]], [y, y], color=colour, lw=3)
        if low > row["largest_low"]:  # at some seed no rate trains
            ax.plot(low, y, "<", color=colour, ms=9)
        is_bound = row["largest"] == row["greatest"]
        ax.plot(row["largest"], y, ">" if is_bound else "o", color=colour, ms=12)
    rates = sorted({float(rate) for text in rows["rates"] for rate in text.split()})
    _rate_axis(ax, rates)
    style.rows_of_names(ax, [style.label_of(variant) for variant in variants])
    ax.set_xlabel("largest learning rate that trains")


def _rate_axis(ax: Axes, rates: list[float]) -> None:
    """Set a logarithmic axis of learning rates that labels every other rate."""
    style.log_ticks(ax, rates, [f"{r:g}" if i % 2 == 0 else "" for i, r in enumerate(rates)])
    ax.set_xlim(rates[0] / math.sqrt(2), rates[-1] * math.sqrt(2))
