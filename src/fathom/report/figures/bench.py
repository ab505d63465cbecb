"""The figure of how fast it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from fathom.report.figures import figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@figure
def bench(bench: pd.DataFrame) -> Figure:
    """Time of a training step beside a textbook step, by size of the network, and against depth."""
    page, (left, right) = style.panels(2)
    backends = list(bench.loc[bench["backend"] != "", "backend"].unique())
    looks = {"ours step": {"ms": 9}, "textbook step": {"ms": 10, "mfc": "none", "mew": 2}}
    steps = bench[(bench["part"] == "steps") & bench["metric"].isin(looks)]
    sizes = list(steps["size"].unique())
    variants = list(steps["variant"].unique())
    keys = ["size", "backend", "variant", "metric"]
    for _, row in steps.drop_duplicates(keys).iterrows():  # a size at its first depth
        # A group per size, in it a block per backend, in that a position per variant.
        backend = backends.index(row["backend"])
        x = sizes.index(row["size"]) + style.aside(backend, len(backends), 0.4)
        x += style.aside(variants.index(row["variant"]), len(variants), 0.1)
        marker = style.marker_of(backend)
        bars = style.error_bars(row["value"], row["low"], row["high"])
        left.errorbar(x, row["value"], yerr=bars, marker=marker, ls="",
                      color=style.colour_of(row["variant"]), **looks[row["metric"]])  # fmt: skip
    left.set_xticks(range(len(sizes)), sizes)
    left.set_xlabel("size of the network")

    ours = steps[steps["metric"] == "ours step"]
    deep = ours.groupby("size").filter(lambda group: group["depth"].nunique() > 1)
    for (backend, variant), group in deep.groupby(["backend", "variant"], sort=False):
        group = group.sort_values("depth")
        depths = group["depth"].astype(int)
        right.plot(depths, group["value"], marker=style.marker_of(backends.index(backend)), ms=8,
                   color=style.colour_of(variant))  # fmt: skip
        right.set_xscale("log")
        right.set_xticks(depths, depths)
        right.xaxis.minorticks_off()
    right.set_xlabel("layers, at the default size")
    if deep.empty:
        style.say(right, "every size was measured at one depth")
    for ax in (left, right):
        style.log_if_wide(ax)
        ax.set_ylabel("time of a training step (ms)")

    frameworks = style.marker_handles(map(style.label_of, backends), ms=9)
    handles = [*style.legend_handles(variants, lw=6), *frameworks]
    hollow = {"marker": "D", "mfc": "none", "color": style.GREY, "ls": "", "ms": 9}
    return style.finish(page, handles=[*handles, style.legend_handle("hollow: textbook", **hollow)])
