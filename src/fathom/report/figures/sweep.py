"""The figures of a study over depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from fathom.report.figures import figure, frames, panels, style
from fathom.report.formatting import count_layers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom.metrics import Score

GAIN = "gain_proxy_log10_max_entry"

EDGE = 1.4
"""Times the depths at its ends an axis of depths reaches, so that marks fit there."""


@figure
def loss_comparison(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Training loss against step for every depth.

    A line is the geometric mean over seeds, a band their range, a cross the step at which a run
    stopped being finite. Dotted: the loss at chance.
    """
    levels = {"chance": frames.constant(summary, "chance_loss")}
    return panels.against_step(steps, "loss", title, levels=levels)


@figure
def grad_norm_comparison(steps: pd.DataFrame, title: str) -> Figure:
    """L2 norm of all gradients against step for every depth."""
    return panels.against_step(steps, "grad_norm", title)


@figure
def gain_comparison(steps: pd.DataFrame, title: str) -> Figure:
    """log10 of the largest entry of the product of all mixing matrices, against step."""
    return panels.against_step(steps, GAIN, title)


@figure
def score(summary: pd.DataFrame, score: Score, title: str) -> Figure:
    """The score against depth, with the 95 % interval over seeds. With one depth: by variant.

    A cross, at the edge that is worse: a run diverged. Dotted: the score at chance.
    """
    return panels.against_depth(summary, score.metric, title, score=score)


@figure
def effective_depth(effective_depth: pd.DataFrame, title: str) -> Figure:
    """How deep a plain network has to be to end where a variant does, against the variant's depth.

    A point has its 95 % interval over seeds; a white triangle: it reaches farther. A filled one:
    it ends worse than the shallowest plain network, or better than every one. Dotted: as deep as it
    is.
    """
    from fathom.analysis.effective_depth import AT, BELOW, BEYOND  # it loads SciPy

    rows = effective_depth
    if rows.empty:
        return style.placeholder(f"{title}\ntoo few plain networks were measured")
    page, (ax,) = style.panels(1)
    variants, depths = list(rows["variant"].unique()), sorted(rows["depth"].unique())
    plain = sorted({int(depth) for found in rows["plain_depths"] for depth in found.split()})
    ax.plot([1, 2 * depths[-1]], [1, 2 * depths[-1]], color=style.GREY, ls=":", lw=1.5, zorder=1)
    for row in rows.to_dict("records"):
        # Beside each other, so that points of one depth do not cover each other.
        x = row["depth"] * 2 ** style.aside(variants.index(row["variant"]), len(variants), 0.06)
        looks = {"color": style.colour_of(row["variant"]), "clip_on": False}
        under, over = plain[0] / EDGE, plain[-1] * EDGE
        if row["answer"] != AT:
            y, mark = {BELOW: (under, "v"), BEYOND: (over, "^")}[row["answer"]]
            ax.plot(x, y, mark, ms=9, **looks)
            continue
        low = under if row["low_open"] else row["low"]
        high = over if row["high_open"] else row["high"]
        ax.plot([x, x], [low, high], **looks)
        ax.plot(x, row["effective_depth"], "o", ms=8, **looks)
        for end, is_open, mark in ((low, row["low_open"], "v"), (high, row["high_open"], "^")):
            ax.plot(x, end, mark if is_open else "_", ms=8, mfc="white", **looks)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.set_yticks(plain, [str(depth) for depth in plain])
    ax.minorticks_off()
    ax.set_xlim(depths[0] / EDGE, depths[-1] * EDGE)
    ax.set_ylim(plain[0] / EDGE, plain[-1] * EDGE)
    ax.set_xlabel("layers")
    ax.set_ylabel("effective depth\n(layers of a plain network)")
    return style.finish(page, title, style.legend_handles(variants))


@figure
def score_without_block(
    profiles: pd.DataFrame, summary: pd.DataFrame, score: Score, title: str
) -> Figure:
    """The score of the trained network without one of its blocks, for each block and depth.

    A line is the mean over seeds, a band their range. Dotted: the score of the whole network, and
    that at chance.
    """
    own = profiles[profiles["metric"] == "score_without_block"]
    if own.empty:
        return style.placeholder(f"{title}\nno run was measured without its blocks")
    log, depths = panels.is_log(score.metric), sorted(own["depth"].unique())
    page, axes = style.panels(len(depths), sharey=True)
    chance = frames.constant(summary, "score_chance")
    for position, (ax, depth) in enumerate(zip(axes, depths, strict=True)):
        style.bands(ax, frames.along(own[own["depth"] == depth], geometric=log), "at")
        for row in summary[summary["depth"] == depth].to_dict("records"):
            ax.axhline(row["score_mean"], color=style.colour_of(row["variant"]), ls=":", lw=1.5)
        panels.value_axis(ax, {} if chance is None else {"chance": chance}, log=log)
        style.whole_ticks(ax)
        ax.set_xlabel("block left out")
        ax.set_ylabel("" if position % style.BESIDE else panels.score_label(score))
        if len(depths) > 1:
            ax.set_title(count_layers(depth))
    handles = style.legend_handles(own["variant"].unique())
    return style.finish(page, panels.at_depth(title, depths), handles)


@figure
def depth_scaling(summary: pd.DataFrame, title: str) -> Figure:
    """Gain at the last step against depth, with the 95 % interval over seeds.

    A cross is the gain at the first step of runs that diverged. With one depth: by variant.
    """
    return panels.against_depth(summary, "gain_final", title, start="gain_first")


@figure
def deepest_comparison(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Loss and gain against step at the largest depth. Dotted: the loss at chance."""
    deepest = steps[steps["depth"] == steps["depth"].max()]
    chance = frames.constant(summary, "chance_loss")
    return panels.side_by_side(deepest, ("loss", GAIN), title, {"loss": chance})
