"""The figures of a study over depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from fathom.analysis.effective_depth import BELOW, BEYOND, UNKNOWN
from fathom.models.connections.constraints import Exp, Raw
from fathom.report.figures import figure, frames, palette, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom.metrics.scores import Score

EDGE = 1.4
"""Factor by which an axis of depths extends beyond its end depths, so that marks fit there."""


@figure(points=2)
def loss_comparison(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """How does the loss fall at each depth? Training loss against step.

    A line is the geometric mean over seeds, a band or a bar their range, a cross the first
    step at which a run is not finite. Dotted: the loss at chance.
    """
    levels = {"chance": frames.constant(summary, "chance_loss")}
    return panels.against_step(steps, "loss", title, levels=levels)


@figure(points=2)
def grad_norm_comparison(steps: pd.DataFrame, title: str) -> Figure:
    """How large are the gradients at each depth? L2 norm of all gradients against step."""
    return panels.against_step(steps, "grad_norm", title)


@figure(points=2)
def score(summary: pd.DataFrame, cells: pd.DataFrame, score: Score, title: str) -> Figure:
    """Which variant has the best score? Score against depth.

    A study of one depth has a row for each variant. A dot is a run, a marker the mean over seeds. A
    cross above the panel marks a run that diverged. Dotted: the score at chance.
    """
    return panels.against_depth(summary, score.metric, title, cells=cells, score=score)


WORSE = "worse than the shallowest plain network"
BETTER = "better than every plain network"
NOT_DEEPER = "better than every plain network; the best is not the deepest"
OPEN = "interval open at this end"
"""Legend labels of effective depths that are bounds."""

EDGE_MARKS: dict[str, dict[str, Any]] = {
    WORSE: {"marker": "v"},
    BETTER: {"marker": "^"},
    NOT_DEEPER: {"marker": "D", "mfc": "white"},
    OPEN: {"marker": "^", "mfc": "white"},
}


@figure
def effective_depth(effective_depth: pd.DataFrame, title: str) -> Figure:
    """How deep is a plain network with the same score? Effective depth against depth.

    A bar is the 95 % interval over seeds; a white triangle is an end beyond the plain networks
    trained. A filled triangle at an edge: the variant is worse than the shallowest plain network,
    or better than every one. A white diamond: it is better than every one, and more layers do not
    help the plain network, so its effective depth is unknown. Dotted: effective depth equals depth.
    """
    at_edge = {BELOW: WORSE, BEYOND: BETTER, UNKNOWN: NOT_DEEPER}

    rows = effective_depth
    if rows.empty:
        return style.placeholder(f"{title}\nno plain network was trained at other depths")
    page, (ax,) = style.panels(1, height=5)
    variants, depths = list(rows["variant"].unique()), sorted(rows["depth"].unique())
    plain = sorted({int(depth) for found in rows["plain_depths"] for depth in found.split()})
    under, over = plain[0] / EDGE, plain[-1] * EDGE
    ax.plot([1, 2 * depths[-1]], [1, 2 * depths[-1]], **style.LEVEL)
    marked: dict[str, dict[str, Any]] = {}
    for row in rows.to_dict("records"):
        # Shifted, so that points of one depth do not cover each other.
        x = row["depth"] * 2 ** style.aside(variants.index(row["variant"]), len(variants), 0.06)
        looks = {"color": palette.colour_of(row["variant"]), "clip_on": False}
        if told := at_edge.get(row["answer"]):
            marked[told] = EDGE_MARKS[told]
            ax.plot(x, under if told == WORSE else over, ls="", ms=9, **marked[told], **looks)
            continue
        low = under if row["low_open"] else row["low"]
        high = over if row["high_open"] else row["high"]
        ax.plot([x, x], [low, high], **looks)
        ax.plot(x, row["effective_depth"], "o", ms=8, **looks)
        for end, is_open, mark in ((low, row["low_open"], "v"), (high, row["high_open"], "^")):
            if is_open:
                marked[OPEN] = EDGE_MARKS[OPEN]
            ax.plot(x, end, mark if is_open else "_", ms=8, mfc="white", **looks)
    style.log_ticks(ax, depths, base=2)
    ax.set_yscale("log", base=2)
    ax.set_yticks(plain, [str(depth) for depth in plain])
    ax.minorticks_off()
    ax.set_xlim(depths[0] / EDGE, depths[-1] * EDGE)
    ax.set_ylim(under, over)
    ax.set_xlabel(style.depth_label())
    ax.set_ylabel("effective depth\n(layers of a plain network)")
    handles = [style.legend_handle("effective depth = depth", color=palette.GREY, ls=":")]
    handles += [
        style.mark_handle(told, ms=9, **mark) for told, mark in EDGE_MARKS.items() if told in marked
    ]
    return style.finish(page, title, [*style.legend_handles(variants, lw=4), *handles])


@figure
def score_without_block(
    profiles: pd.DataFrame, summary: pd.DataFrame, score: Score, title: str
) -> Figure:
    """Which blocks does a trained network need? Score without each block.

    A line is the mean over seeds, a band or a bar their range. Dotted: the score of the whole
    network, and at chance. Networks of one block are not drawn.
    """
    own = profiles[(profiles["metric"] == "score_without_block") & (profiles["depth"] > 1)]
    if own.empty:
        return style.placeholder(f"{title}\nno run was measured without its blocks")
    log, depths = panels.is_log(score.metric), sorted(own["depth"].unique())
    page, axes = style.panels(len(depths), sharey=True)
    chance = frames.constant(summary, "score_chance")
    for position, (ax, depth) in enumerate(zip(axes, depths, strict=True)):
        style.bands(
            ax, frames.over_seeds(own[own["depth"] == depth], "at", "value", geometric=log), "at"
        )
        for row in summary[summary["depth"] == depth].to_dict("records"):
            ax.axhline(row["score_mean"], color=palette.colour_of(row["variant"]), ls=":", lw=1.5)
        panels.value_axis(ax, {} if chance is None else {"chance": chance}, log=log)
        style.whole_ticks(ax)
        ax.set_xlabel("block left out")
        ax.set_ylabel("" if position % style.PANELS_PER_ROW else panels.score_label(score))
        ax.set_title(style.count_layers(depth))
    return style.finish(page, title, style.legend_handles(own["variant"].unique()))


@figure(needs=Exp | Raw, depths=2)
def depth_scaling(summary: pd.DataFrame, cells: pd.DataFrame, title: str) -> Figure:
    """Does the gain of unconstrained mixing grow with depth? Gain at the last step against depth.

    A dot is a run, a marker the mean over seeds. A cross is the gain at the first step of runs that
    diverged. The title names variants with the same gain at every depth.
    """
    gains = pd.concat(
        [
            summary[["variant"]].assign(gain=summary[f"gain_{when}_mean"])
            for when in ("first", "final")
        ]
    ).groupby("variant", sort=False)["gain"]
    same = [variant for variant, gain in gains if not frames.varies(gain)]
    if same:
        title += f"\nsame gain at every depth: {', '.join(map(style.label_of, same))}"
    others = summary[~summary["variant"].isin(same)]
    return panels.against_depth(others, "gain_final", title, cells=cells, start="gain_first")
