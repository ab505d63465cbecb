"""Every figure, from the tables. The only importer of matplotlib.

The same variant has the same colour everywhere (Okabe and Ito's palette, which colour-blind people
can tell apart). A line is the geometric mean over seeds, a band their range; a cross on the upper
edge marks the step at which a run stopped being finite.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # files only: no window, no display needed

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fathom.files import replacing
from fathom.tables import PLACE, Place

COLOURS = {
    "baseline": "#000000", "hc": "#D55E00", "mhc": "#0072B2",
    "resnet": "#000000", "hc_causal": "#D55E00", "mhc_causal": "#0072B2",
    "hc_static": "#E69F00", "mhc_static": "#56B4E9",
    "hc_dynamic": "#CC79A7", "mhc_dynamic": "#009E73", "hc_paper": "#7F7F7F",
}  # fmt: skip
SPARE_COLOURS = ("#B2A100", "#6A3D9A", "#8C564B")
MARKERS = ("o", "s", "^", "D", "v", "P")

FACTOR_LOOKS = {
    "recipe": ("recipe", "#0072B2"),
    "place": ("backend", "#D55E00"),
    "seed": ("seed", "#999999"),
    "other": ("interactions", "#E5E5E5"),
}

GAIN = "gain_proxy_log10_max_entry"
LABELS = {
    "loss": "loss (nats per token)",
    "grad_norm": "gradient norm (L2)",
    GAIN: "log10 of the largest entry\nof the product of H_res",
    "nonfinite_total": "non-finite steps so far",
    "grad_norm_stem": "gradient norm of the\nfirst weight (L2)",
}
STYLE = {
    "font.size": 15,
    "axes.titlesize": 15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 2,
    "figure.dpi": 110,
    "savefig.bbox": "tight",
}


def colour_of(variant: str) -> str:
    """The variant's colour; one that has none yet gets the same spare one every time."""
    return COLOURS.get(variant) or SPARE_COLOURS[sum(variant.encode()) % len(SPARE_COLOURS)]


def study_figures(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> dict[str, Figure]:
    """The figures of one study in one place, by file name without ending.

    `steps` and `summary` hold that study and place only.
    """
    deepest = int(steps["depth"].max())
    return {
        "loss_comparison": depth_panels(steps, "loss", title),
        "grad_norm_comparison": depth_panels(steps, "grad_norm", title),
        "gain_comparison": depth_panels(steps, GAIN, title),
        "depth_scaling": depth_scaling(summary, title),
        f"{deepest}l_comparison": head_to_head(steps[steps["depth"] == deepest], title),
    }


def overview_figures(variance: pd.DataFrame, published: pd.DataFrame) -> dict[str, Figure]:
    """The figures over all studies, by file name without ending."""
    return {"variance": variance_bars(variance), "published": published_panels(published)}


def image_figures(
    steps: pd.DataFrame, summary: pd.DataFrame, matrices: dict[str, np.ndarray], title: str
) -> dict[str, Figure]:
    """The figures of an image study in one place, by file name without ending.

    `matrices`: the learned mixing matrix of each variant that has one, [L, L].
    """
    return {
        "comparison": accuracy_panels(steps, summary, title),
        "mixing_matrix": mixing_maps(matrices, title),
    }


def cell_figures(rows: pd.DataFrame, title: str) -> dict[str, Figure]:
    """The figures of one cell, by file name without ending."""
    names = {"loss": "loss", "grad_norm": "grad_norm", "nan_inf_events": "nonfinite_total"}
    return {
        file: _single(rows, column, title) for file, column in {**names, "gain_proxy": GAIN}.items()
    }


def save(figures: dict[str, Figure], folder: Path) -> None:
    """Write every figure as PNG into `folder`, each all at once."""
    for name, figure in figures.items():
        with replacing(folder / f"{name}.png") as temporary:
            # No version or date inside: the same numbers make the same bytes.
            figure.savefig(temporary, format="png", metadata={"Software": None})
        plt.close(figure)


# --- the figures --------------------------------------------------------------------------------


def depth_panels(steps: pd.DataFrame, column: str, title: str) -> Figure:
    """One panel for each depth: `column` against step, a line for each variant."""
    depths = sorted(steps["depth"].unique())
    figure, axes = _panels(len(depths), sharey=True)
    marks = [
        _curves(ax, steps[steps["depth"] == depth], column)
        for ax, depth in zip(axes, depths, strict=True)
    ]
    for ax, depth in zip(axes, depths, strict=True):
        ax.set_title(f"{depth} layers", pad=6 + 26 * max(marks))
    axes[0].set_ylabel(LABELS[column])
    return _finished(figure, list(steps["variant"].unique()), title)


def head_to_head(steps: pd.DataFrame, title: str) -> Figure:
    """Loss and gain side by side, at one depth."""
    figure, axes = _panels(2, sharey=False)
    for ax, column in zip(axes, ("loss", GAIN), strict=True):
        _curves(ax, steps, column)
        ax.set_ylabel(LABELS[column])
    return _finished(
        figure, list(steps["variant"].unique()), f"{title}, {steps['depth'].iloc[0]} layers"
    )


def depth_scaling(summary: pd.DataFrame, title: str) -> Figure:
    """Gain at the last step against depth; where that is not finite, a cross at the initial one."""
    figure, (ax,) = _panels(1, sharey=False)
    for marker, (variant, group) in zip(
        MARKERS, summary.groupby("variant", sort=False), strict=False
    ):
        colour = colour_of(variant)
        finite = group[group["gain_final_n"] == group["n"]]
        ax.errorbar(
            finite["depth"], finite["gain_final_mean"], yerr=finite["gain_final_half"].fillna(0),
            color=colour, marker=marker, markersize=8, capsize=5,
        )  # fmt: skip
        broken = group[group["gain_final_n"] < group["n"]]
        ax.plot(broken["depth"], broken["gain_first_mean"], "x", color=colour, ms=13, mew=3)
    ax.set_xticks(sorted(summary["depth"].unique()))
    ax.set_xlabel("layers")
    ax.set_ylabel(LABELS[GAIN])
    crossed = (summary["gain_final_n"] < summary["n"]).any()
    note = "cross: initial gain of runs that diverged" if crossed else None
    return _finished(figure, list(summary["variant"].unique()), title, note)


def accuracy_panels(steps: pd.DataFrame, summary: pd.DataFrame, title: str) -> Figure:
    """Loss, test accuracy and the gradient norm of the first weight; a row for each depth."""
    depths = sorted(steps["depth"].unique())
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(depths), 3, figsize=(14, 4.6 * len(depths)), squeeze=False, layout="constrained"
        )
    for (left, middle, right), depth in zip(axes, depths, strict=True):
        chosen = steps[steps["depth"] == depth]
        # Batches of pictures differ much in difficulty: single steps would hide the course.
        window = max(1, chosen["step"].nunique() // 16)
        marks = [_curves(ax, chosen, column, window)
                 for ax, column in ((left, "loss"), (right, "grad_norm_stem"))]  # fmt: skip
        over = f",\nmean of {window} steps" if window > 1 else ""
        left.set_ylabel(LABELS["loss"].replace("token", "image") + over)
        right.set_ylabel(LABELS["grad_norm_stem"] + over)
        groups = summary[summary["depth"] == depth]
        for position, (_, row) in enumerate(groups.iterrows()):
            half = 100 * row["test_accuracy_half"]
            middle.errorbar(
                100 * row["test_accuracy_mean"], position, xerr=0 if np.isnan(half) else half,
                marker="o", ms=9, capsize=5, color=colour_of(row["variant"]),
            )  # fmt: skip
        middle.set_yticks(range(len(groups)), groups["variant"])
        middle.invert_yaxis()
        middle.axvline(10, color="#999999", ls=":", lw=1.5)
        middle.set_xlabel("test accuracy (%); dotted: guessing")
        for ax in (left, middle, right):
            ax.set_title(f"{depth} layers", pad=6 + 26 * max(marks))
    return _finished(figure, list(steps["variant"].unique()), title)


def mixing_maps(matrices: dict[str, np.ndarray], title: str) -> Figure:
    """Learned mixing matrices as heat maps, with the sums of their rows and columns."""
    if not matrices:
        figure, (ax,) = _panels(1, sharey=False)
        return _without_data(figure, ax, "no mixing matrix was kept")
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(matrices), 2, figsize=(11, 4.8 * len(matrices)), squeeze=False, layout="constrained"
        )
        figure.suptitle(title, fontsize=15)
    for (left, right), (variant, matrix) in zip(axes, matrices.items(), strict=True):
        image = left.imshow(matrix, cmap="cividis", interpolation="nearest")
        left.set_title(variant)
        left.set_xlabel("state read")
        left.set_ylabel("layer")
        left.grid(visible=False)
        figure.colorbar(image, ax=left, label="weight")
        right.plot(matrix.sum(axis=1) - 1, color="#0072B2", label="rows")
        right.plot(matrix.sum(axis=0) - 1, color="#D55E00", ls="--", label="columns")
        right.set_xlabel("row or column")
        right.set_ylabel("sum − 1")
        right.legend(frameon=False, fontsize=13)
        right.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return figure


def variance_bars(variance: pd.DataFrame) -> Figure:
    """Shares of variance, a bar for each depth and variant."""
    figure, (ax,) = _panels(1, sharey=False)
    if variance.empty:
        return _without_data(figure, ax, "nothing to decompose")
    names = [
        f"{v}, {d} layers" for d, v in zip(variance["depth"], variance["variant"], strict=True)
    ]
    left = np.zeros(len(variance))
    for factor, (label, colour) in FACTOR_LOOKS.items():
        ax.barh(names, 100 * variance[factor], left=left, color=colour, label=label)
        left += 100 * variance[factor].to_numpy()
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the variance of log10 loss (%)")
    with mpl.rc_context(STYLE):
        figure.suptitle("What explains the final loss", fontsize=15)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def published_panels(published: pd.DataFrame) -> Figure:
    """Published values, hollow, beside ours, filled: a row per study, a column per measure."""
    shown = {"loss_final": "final loss (nats per token)", "gain_final": "final log10 gain"}
    table = published[published["measure"].isin(shown) & (published["backend"] != "")]
    table = table.assign(label=[Place(*p).label for p in table[PLACE].itertuples(index=False)])
    studies = list(table["study"].unique())
    if not studies:
        figure, (ax,) = _panels(1, sharey=False)
        return _without_data(figure, ax, "no published value was repeated")
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(studies), 2, figsize=(11, 4 * len(studies)), squeeze=False, layout="constrained"
        )
    labels = list(table["label"].unique())
    for row, study in zip(axes, studies, strict=True):
        for ax, (measure, label) in zip(row, shown.items(), strict=True):
            chosen = table[(table["study"] == study) & (table["measure"] == measure)]
            _beside(ax, chosen, labels, logarithmic=measure == "loss_final")
            ax.set_ylabel(label)
            ax.set_title(study)
    variants = list(table["variant"].unique())
    signs = [Line2D([], [], color=colour_of(v), lw=6, label=v) for v in variants]
    hollow = {"color": "#555555", "ls": "", "markerfacecolor": "none", "markersize": 9}
    signs.append(Line2D([], [], marker="D", label="published", **hollow))
    signs += [
        Line2D([], [], marker=_marker(i), color="#555555", ls="", ms=8, label=f"ours, {label}")
        for i, label in enumerate(labels)
    ]
    signs.append(
        Line2D([], [], marker="x", color="#555555", ls="", ms=9, mew=3, label="not finite")
    )
    with mpl.rc_context(STYLE):
        figure.legend(handles=signs, loc="outside lower center", ncols=4, frameon=False)
    return figure


def bench_figure(bench: pd.DataFrame) -> Figure:
    """Milliseconds per step: at each measured size beside a textbook step, and against depth.

    `bench` is bench.csv; what was not measured is left out.
    """
    figure, (left, right) = _panels(2, sharey=False)
    backends = list(bench.loc[bench["backend"] != "", "backend"].unique())
    sides = {"ours step": {"ms": 9}, "textbook step": {"ms": 10, "mfc": "none", "mew": 2}}
    steps = bench[(bench["part"] == "steps") & bench["measure"].isin(sides)]
    sizes = list(steps["size"].unique())
    variants = list(steps["variant"].unique())
    for _, row in steps.iterrows():
        # A group per size, in it a block per backend, in that a place per variant.
        block = sizes.index(row["size"]) + 0.4 * (backends.index(row["backend"]) - 0.5)
        x = block + 0.1 * (variants.index(row["variant"]) - (len(variants) - 1) / 2)
        marker = _marker(backends.index(row["backend"]))
        bars = [[row["value"] - row["low"]], [row["high"] - row["value"]]]
        left.errorbar(x, row["value"], yerr=bars, marker=marker, ls="",
                      color=colour_of(row["variant"]), **sides[row["measure"]])  # fmt: skip
    left.set_xticks(range(len(sizes)), sizes)
    left.set_xlabel("size of the network")

    growth = bench[bench["part"] == "growth"]
    for (backend, variant), group in growth.groupby(["backend", "variant"], sort=False):
        depths = group["measure"].str.extract(r"(\d+)", expand=False).astype(int)
        right.plot(depths, group["value"], marker=_marker(backends.index(backend)), ms=8,
                   color=colour_of(variant))  # fmt: skip
        right.set_xscale("log")
        right.set_xticks(depths, depths)
        right.minorticks_off()
    right.set_xlabel("layers, at the default size")
    for ax in (left, right):
        ax.set_yscale("log")
        ax.set_ylabel("time of a training step (ms)")

    grey = {"color": "#555555", "ls": "", "ms": 9}
    signs = [Line2D([], [], color=colour_of(v), lw=6, label=v) for v in variants]
    signs += [Line2D([], [], marker=_marker(i), label=b, **grey) for i, b in enumerate(backends)]
    signs.append(Line2D([], [], marker="D", mfc="none", label="hollow: textbook", **grey))
    with mpl.rc_context(STYLE):
        figure.legend(handles=signs, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _marker(place: int) -> str:
    """The marker of a place by its number; with more places than markers they come round again."""
    return MARKERS[place % len(MARKERS)]


def _beside(ax: Axes, table: pd.DataFrame, labels: list[str], logarithmic: bool) -> None:
    depths, variants = sorted(table["depth"].unique()), list(table["variant"].unique())
    slots = 1 + len(labels)
    for _, row in table.iterrows():
        # A group per depth, in it a block per variant, in it published first and then ours.
        block = depths.index(row["depth"]) + 0.28 * (
            variants.index(row["variant"]) - (len(variants) - 1) / 2
        )
        colour, step = colour_of(row["variant"]), 0.2 / slots
        place = labels.index(row["label"])
        x = block + step * (1 + place)
        _point(ax, block, row["published"], 0.0, "D", colour, hollow=True)
        _point(ax, x, row["mean"], row["half"], _marker(place), colour, hollow=False)
    if logarithmic:
        ax.set_yscale("log")
    ax.set_xticks(range(len(depths)), [f"{d} layers" for d in depths])
    ax.margins(y=0.12)


def _point(
    ax: Axes, x: float, value: float, half: float, marker: str, colour: str, *, hollow: bool
) -> None:
    if not np.isfinite(value):
        above = ax.get_xaxis_transform()
        ax.plot(x, 0.97, "x", color=colour, ms=9, mew=3, transform=above)
        if hollow:
            ax.plot(x, 0.97, marker, mec=colour, mfc="none", ms=13, transform=above)
        return
    if hollow:
        ax.plot(x, value, marker, mec=colour, mfc="none", ms=9)
        return
    # A bar may not reach zero on a logarithmic axis.
    down = min(half, 0.9 * abs(value)) if np.isfinite(half) else 0.0
    bars = [[down], [half if np.isfinite(half) else 0.0]]
    ax.errorbar(x, value, yerr=bars, marker=marker, ms=8, color=colour, capsize=3)


def _without_data(figure: Figure, ax: Axes, why: str) -> Figure:
    ax.set_axis_off()
    ax.text(0.5, 0.5, why, ha="center", va="center")
    return figure


def _single(rows: pd.DataFrame, column: str, title: str) -> Figure:
    figure, (ax,) = _panels(1, sharey=False)
    if column not in rows:  # causal mixing has no product of matrices, so no gain
        return _without_data(figure, ax, f"{title}\nhas no such measure")
    _curves(ax, rows, column)
    ax.set_ylabel(LABELS[column])
    return _finished(figure, list(rows["variant"].unique()), title)


# --- what they share ----------------------------------------------------------------------------


def _panels(count: int, sharey: bool) -> tuple[Figure, list[Axes]]:
    with mpl.rc_context(STYLE):
        width = 7.5 if count == 1 else 4.6 * count
        figure, axes = plt.subplots(
            1, count, figsize=(width, 4.4), sharey=sharey, squeeze=False, layout="constrained"
        )
    return figure, list(axes[0])


def _curves(ax: Axes, steps: pd.DataFrame, column: str, window: int = 1) -> int:
    """Draw a line and a band for each variant; return how many marks stand above the panel.

    Every point is a mean over the last `window` steps, of logarithms on a logarithmic axis.
    """
    logarithmic = column in ("loss", "grad_norm")
    transform: Callable = np.log10 if logarithmic else (lambda x: x)
    restore: Callable = (lambda x: 10**x) if logarithmic else np.asarray
    crosses = []
    for variant, group in steps.groupby("variant", sort=False):
        wide = group.pivot_table(index="step", columns="seed", values=column, dropna=False)
        wide = wide.replace([np.inf, -np.inf], np.nan)
        # Only steps at which every seed is finite: a mean over survivors would flatter.
        whole = wide.dropna()
        broken = wide.index[wide.isna().any(axis=1)]
        if logarithmic:  # zero is finite, but has no place on the axis
            whole = whole[(whole > 0).all(axis=1)]
        colour = colour_of(variant)
        if not whole.empty:
            values = transform(whole).rolling(window, min_periods=1).mean()
            x = whole.index
            ax.fill_between(
                x,
                restore(values.min(axis=1)),
                restore(values.max(axis=1)),
                color=colour,
                alpha=0.2,
                lw=0,
            )
            dot = "o" if len(whole) == 1 else None
            ax.plot(x, restore(values.mean(axis=1)), color=colour, marker=dot)
        if len(broken):
            crosses.append((int(broken[0]), colour))
    if logarithmic:
        ax.set_yscale("log")
    last = int(steps["step"].max())
    ax.set_xlim(-0.02 * last, 1.02 * last or 1)
    # Above the panel, so that a mark never covers a curve.
    for i, (step, colour) in enumerate(crosses):
        height, above = 1.05 + 0.1 * i, ax.get_xaxis_transform()
        ax.plot(step, height, "x", color=colour, ms=12, mew=3, transform=above, clip_on=False)
        ax.text(
            step + 0.05 * last, height, f"not finite from step {step}", color=colour,
            va="center", fontsize=13, transform=above,
        )  # fmt: skip
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return len(crosses)


def _finished(figure: Figure, variants: list[str], title: str, note: str | None = None) -> Figure:
    """Title above, legend below: neither covers data."""
    handles = [Line2D([], [], color=colour_of(v), label=v) for v in variants]
    with mpl.rc_context(STYLE):
        figure.suptitle(title if note is None else f"{title}\n{note}", fontsize=15)
        figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), frameon=False
        )
    return figure
