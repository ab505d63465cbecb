"""The figures of a sweep over depths."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pandas as pd

from fathom.report.figures import figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GAIN = "gain_proxy_log10_max_entry"


@figure
def loss_comparison(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Training loss against step for every depth.

    A line is the geometric mean over seeds, a band their range, a cross the step at which a run
    stopped being finite. Dotted: the loss at chance.
    """
    return depth_panels(steps, "loss", title, style.chance_of(summary))


@figure
def grad_norm_comparison(steps: pd.DataFrame, title: str) -> Figure:
    """L2 norm of all gradients against step for every depth."""
    return depth_panels(steps, "grad_norm", title)


@figure
def gain_comparison(steps: pd.DataFrame, title: str) -> Figure:
    """log10 of the largest entry of the product of all mixing matrices, against step."""
    return depth_panels(steps, GAIN, title)


@figure
def depth_scaling(summary: pd.DataFrame, title: str) -> Figure:
    """Gain at the last step against depth, with the 95 % interval over seeds.

    A cross is the gain at the first step of runs that diverged. With one depth: by variant.
    """
    depths, variants = sorted(summary["depth"].unique()), list(summary["variant"].unique())
    # Where a run diverged there is no last gain, and a mean over the others would flatter.
    is_whole = summary["gain_final_n"] == summary["n"]
    gains = (
        summary[["variant", "depth"]]
        .assign(
            is_whole=is_whole,
            gain=summary["gain_final_mean"].where(is_whole, summary["gain_first_mean"]),
            low=summary["gain_final_low"],
            high=summary["gain_final_high"],
        )
        .sort_values("depth", kind="stable")
    )
    cross = style.sign("at the first step: a run diverged", color=style.GREY, ls="", **CROSS)
    signs = [cross] if gains.loc[~is_whole, "gain"].notna().any() else []
    if len(depths) == 1:
        page, ((ax,),) = style.grid(1, 1, (style.WIDTH, 1.6 + 0.4 * len(variants)))
        _by_variant(ax, gains)
        ax.set_xlabel(style.label_of(GAIN).replace("\n", " "))
        style.entitle(page, f"{title}, {depths[0]} layers")
        if signs:
            style.legend(page, signs, columns=1)
        return page
    page, (ax,) = style.panels(1)
    _against_depth(ax, gains)
    if depths[-1] >= WIDE * depths[0]:
        ax.set_xscale("log", base=2)
        ax.minorticks_off()
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.set_xlabel("layers")
    ax.set_ylabel(style.label_of(GAIN))
    return style.finished(page, variants, title, signs)


WIDE = 16
"""Depths of this ratio or more are drawn on a logarithmic axis: else the small ones overlap."""

CROSS = {"marker": "x", "ms": 11, "mew": 3}


def _by_variant(ax: Axes, gains: pd.DataFrame) -> None:
    """A point with its interval for each variant, from above."""
    for y, row in enumerate(gains.to_dict("records")):
        colour = style.colour_of(row["variant"])
        if row["is_whole"]:
            sides = style.sides_of(row["gain"], row["low"], row["high"])
            ax.errorbar(row["gain"], y, xerr=sides, color=colour, marker="o", ms=8, capsize=5)
        else:
            ax.plot(row["gain"], y, color=colour, clip_on=False, **CROSS)
    ax.set_yticks(range(len(gains)), gains["variant"])
    ax.set_ylim(len(gains) - 0.5, -0.5)
    ax.margins(x=0.05)


def _against_depth(ax: Axes, gains: pd.DataFrame) -> None:
    """A line for each variant, dashed where it leads to a cross."""
    for place, (variant, group) in enumerate(gains.groupby("variant", sort=False)):
        colour, rows = style.colour_of(variant), group.dropna(subset="gain").to_dict("records")
        for a, b in itertools.pairwise(rows):
            line = "-" if a["is_whole"] and b["is_whole"] else "--"
            ax.plot([a["depth"], b["depth"]], [a["gain"], b["gain"]], line, color=colour)
        whole, broken = group[group["is_whole"]], group[~group["is_whole"]]
        sides = style.sides_of(whole["gain"], whole["low"], whole["high"])
        ax.errorbar(
            whole["depth"], whole["gain"], yerr=sides, color=colour, ls="",
            marker=style.marker_of(place), ms=8, capsize=5,
        )  # fmt: skip
        if not broken.empty:
            ax.plot(broken["depth"], broken["gain"], color=colour, ls="", **CROSS)


@figure
def deepest_comparison(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Loss and gain at the deepest setting, side by side. Dotted: the loss at chance."""
    depth = steps["depth"].max()
    deepest = steps[steps["depth"] == depth]
    page, (left, right) = style.panels(2)
    for ax, measure in ((left, "loss"), (right, GAIN)):
        style.curves(ax, deepest, measure)
        ax.set_ylabel(style.label_of(measure))
    style.chance(left, style.chance_of(summary))
    return style.finished(page, list(deepest["variant"].unique()), f"{title}, {depth} layers")


def depth_panels(
    steps: pd.DataFrame, measure: str, title: str, chance: float | None = None
) -> Figure:
    """One panel for each depth: a measure against step, a line for each variant.

    `chance`: the loss to draw a line at.
    """
    depths = sorted(steps["depth"].unique())
    page, axes = style.panels(len(depths), sharey=True)
    marks = [
        style.curves(ax, steps[steps["depth"] == depth], measure)
        for ax, depth in zip(axes, depths, strict=True)
    ]
    if chance is not None:
        for ax in axes:
            style.chance(ax, chance)
    if len(depths) == 1:
        title += f", {depths[0]} layers"
    else:
        for place, (ax, depth) in enumerate(zip(axes, depths, strict=True)):
            row = place - place % style.BESIDE  # its titles are at one height
            above = max(marks[row : row + style.BESIDE])
            ax.set_title(f"{depth} layers", pad=6 + 24 * above)
    style.label_rows(axes, style.label_of(measure))
    return style.finished(page, list(steps["variant"].unique()), title)
