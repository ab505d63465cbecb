"""The figures of a study of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from fathom.report.figures import figure, palette, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom.metrics.scores import Score

ROUNDS = "bayes_accuracy_by_round"


@figure
def depth_and_rounds(
    summary: pd.DataFrame, cells: pd.DataFrame, profiles: pd.DataFrame, score: Score, title: str
) -> Figure:
    """Does a network of L layers match L rounds of belief propagation? Score against depth.

    Both use nodes up to L links away. A dot is a run, a marker the mean over seeds, a cross a run
    that diverged. Grey: belief propagation after each round. Dotted: chance, and belief propagation
    after its last round.
    """
    values = panels.values_of(summary, "score", score, cells=cells)
    values = values._replace(levels=panels.levels_of(summary, score))  # however far
    depths = sorted(summary["depth"].unique())
    page, (ax,) = style.panels(1)
    handles = panels.lines(ax, values, "depth", "variant")
    rounds = profiles[profiles["metric"] == ROUNDS].groupby("at")["value"]
    reached = rounds.mean().loc[depths[0] : depths[-1]]
    ax.plot(reached.index, reached, color=palette.GREY, ls="--", marker=".")
    style.log_ticks(ax, depths, base=2)
    ax.set_xlabel("layers; rounds of belief propagation")
    rounds_handle = style.legend_handle(
        "belief propagation", color=palette.GREY, ls="--", marker="."
    )
    return style.finish(page, title, [*handles, rounds_handle])
