"""The figures of a sweep over depths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from fathom.report.figures import figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAIN = "gain_proxy_log10_max_entry"


@figure
def loss_comparison(steps: pd.DataFrame, title: str) -> Figure:
    """Training loss against step for every depth.

    A line is the geometric mean over seeds, a band their range, a cross the step at which a run
    stopped being finite.
    """
    return depth_panels(steps, "loss", title)


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
    """Gain at the last step against depth, with the 95 % interval over seeds."""
    page, (ax,) = style.panels(1)
    for marker, (variant, group) in zip(
        style.MARKERS, summary.groupby("variant", sort=False), strict=False
    ):
        colour = style.colour_of(variant)
        finite = group[group["gain_final_n"] == group["n"]]
        ax.errorbar(
            finite["depth"], finite["gain_final_mean"],
            yerr=finite["gain_final_ci95_half"].fillna(0),
            color=colour, marker=marker, markersize=8, capsize=5,
        )  # fmt: skip
        broken = group[group["gain_final_n"] < group["n"]]
        ax.plot(broken["depth"], broken["gain_first_mean"], "x", color=colour, ms=13, mew=3)
    ax.set_xticks(sorted(summary["depth"].unique()))
    ax.set_xlabel("layers")
    ax.set_ylabel(style.label_of(GAIN))
    if (summary["gain_final_n"] < summary["n"]).any():
        title += "\ncross: initial gain of runs that diverged"
    return style.finished(page, list(summary["variant"].unique()), title)


@figure
def deepest_comparison(steps: pd.DataFrame, title: str) -> Figure:
    """Loss and gain at the deepest setting, side by side."""
    depth = steps["depth"].max()
    deepest = steps[steps["depth"] == depth]
    page, axes = style.panels(2)
    for ax, measure in zip(axes, ("loss", GAIN), strict=True):
        style.curves(ax, deepest, measure)
        ax.set_ylabel(style.label_of(measure))
    return style.finished(page, list(deepest["variant"].unique()), f"{title}, {depth} layers")


def depth_panels(steps: pd.DataFrame, measure: str, title: str) -> Figure:
    """One panel for each depth: a measure against step, a line for each variant."""
    depths = sorted(steps["depth"].unique())
    page, axes = style.panels(len(depths), sharey=True)
    marks = [
        style.curves(ax, steps[steps["depth"] == depth], measure)
        for ax, depth in zip(axes, depths, strict=True)
    ]
    for ax, depth in zip(axes, depths, strict=True):
        ax.set_title(f"{depth} layers", pad=6 + 26 * max(marks))
    axes[0].set_ylabel(style.label_of(measure))
    return style.finished(page, list(steps["variant"].unique()), title)
