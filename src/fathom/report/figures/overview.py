"""The figures over all studies."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.analysis.tables import counted
from fathom.report.figures import figure, frames, palette, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from fathom.metrics.scores import Score

NAMED_PANELS_PER_ROW = 2
"""Panels per row; the names of lines stand beside each panel."""

MOST_SWEEPS = 4
"""Maximum number of panels; figures of the studies show the others."""

MOST_NAMES = 8
"""Maximum number of names beside a panel."""

MOST_UPRIGHT = 8
"""Maximum number of upright depth labels below a panel."""

MAX_JITTER = 0.3
"""Maximum jitter, as a share of the gap between two depths."""

PUBLISHED = "loss_final"
"""The published metric that is drawn; COMPARISON.md has all."""

APART = 0.02
"""Distance between points of the same number of parameters, in decades."""

BOUNDS = {"below": (-24,), "beyond": (24,), "both": (-24, 24)}
"""Vertical offsets of the arrows at a multiplier that is a bound, by answer, in points."""

SIZES_WIDTH, SIZES_HEIGHT = 9.0, 6.6
"""Inches: smaller than other figures, so that both are readable at half of a page."""

MOST_PUBLISHED = 3
"""Maximum number of panels of published values, beside each other."""


@figure
def score_against_depth(
    cells: pd.DataFrame, scores: Mapping[str, Score], depth_units: Mapping[str, str], title: str
) -> Figure:
    """At which depths do networks learn? Score against depth.

    At most four studies are drawn: the first with each score, then others. A point is the mean over
    seeds (geometric, if the score is positive), a bar the range. Seeds that span a decade have no
    mean and are small dots. Hollow: a seed ended at chance. A cross above the panel marks a seed
    that diverged; there is then no mean. Dotted: the score at chance, if it is near. A depth
    trained for another number of steps is labelled with it, and no line leads there. In a study
    with many variants, only those measured at several depths are drawn.
    """
    sweeps = _first_of_each_score(frames.sweeps(counted(cells)), scores)
    sweeps = [_over_depth(sweep) for sweep in sweeps]
    if not sweeps:
        return style.placeholder("no study was measured at more than one depth")
    page, axes = style.panels(len(sweeps), NAMED_PANELS_PER_ROW, 4.2, above=1.3)
    every = pd.concat(sweeps)
    platforms = list(every["platform"].unique())
    first_of: dict[tuple[object, ...], Axes] = {}
    for ax, sweep in zip(axes, sweeps, strict=True):
        score = scores[sweep["study"].iloc[0]]
        first = first_of.setdefault(
            (score.label, score.unit, frames.constant(sweep, "score_chance")), ax
        )
        if first is not ax:  # of the same task: values can be compared
            ax.sharey(first)
    ends = []
    for ax, sweep in zip(axes, sweeps, strict=True):
        study = sweep["study"].iloc[0]
        ends.append(_sweep(ax, sweep, platforms, scores[study]))
        ax.set_xlabel(f"{depth_units[study]}s")
    for ax, own in zip(axes, ends, strict=True):  # after the limits of shared axes are known
        style.direct_labels(ax, own)
    handles = [
        style.mark_handle(style.label_of(name), palette.marker_of(i), ls=palette.line_of(i), ms=7)
        for i, name in enumerate(platforms)
    ]
    looks = {"at chance": {"marker": "o", "mfc": "white", "mew": 2, "ms": 7},
             "diverged": style.CROSS}  # fmt: skip
    handles += [
        style.mark_handle(word, **look)
        for word, look in looks.items()
        if word in set(every["outcome"])
    ]
    return style.finish(page, title, handles)


def _first_of_each_score(
    sweeps: list[pd.DataFrame], scores: Mapping[str, Score]
) -> list[pd.DataFrame]:
    """At most MOST_SWEEPS sweeps, in their order; the first of each score takes precedence."""
    labels = [panels.score_label(scores[sweep["study"].iloc[0]]) for sweep in sweeps]
    new_first = sorted(range(len(sweeps)), key=lambda i: labels[i] in labels[:i])
    return [sweeps[i] for i in sorted(new_first[:MOST_SWEEPS])]


def _over_depth(sweep: pd.DataFrame) -> pd.DataFrame:
    """A study's runs; with more than MOST_NAMES variants, those measured at several depths."""
    by_variant = sweep.groupby("variant")["depth"]
    several = by_variant.transform("nunique") > 1
    return sweep[several] if by_variant.ngroups > MOST_NAMES and several.any() else sweep


def _sweep(
    ax: Axes, sweep: pd.DataFrame, platforms: list[str], score: Score
) -> list[tuple[float, float, str]]:
    """Draw a line for each variant and platform. Returns (x, y, variant) of each variant's end."""
    log = panels.is_log(score.metric)
    table = frames.final_scores(sweep, geometric=log)
    depths, variants = sorted(table["depth"].unique()), list(table["variant"].unique())
    steps = sweep.groupby("depth")["steps"].first()
    groups = [(v, p) for v in variants for p in platforms]
    apart = min(0.045, MAX_JITTER / len(groups))
    ends = {}
    for (variant, platform), points in table.groupby(["variant", "platform"], sort=False):
        colour, position = palette.colour_of(variant), platforms.index(platform)
        aside = style.aside(groups.index((variant, platform)), len(groups), apart)
        points = points.assign(x=[depths.index(depth) + aside for depth in points["depth"]])
        for _, alike in points.groupby(points["depth"].map(steps)):
            ax.plot(alike["x"], alike["mean"], palette.line_of(position), color=colour, lw=1.8)
        for x, seeds in zip(points["x"], points["seeds"], strict=True):
            ax.plot([x] * len(seeds), seeds, color=colour, **panels.DOT)
        for outcome, some in points.groupby("outcome"):
            ax.errorbar(
                some["x"], some["mean"], color=colour, capsize=2, ms=7, mew=1.8, ls="",
                yerr=style.error_bars(some["mean"], some["low"], some["high"]),
                marker=palette.marker_of(position), mfc="white" if outcome == "at chance" else None,
            )  # fmt: skip
        middle = points["mean"].fillna(np.sqrt(points["low"] * points["high"]))
        known = points.assign(middle=middle).dropna(subset="middle")
        if len(known):
            ends.setdefault(variant, (known["x"].iloc[-1], known["middle"].iloc[-1], variant))
    levels = frames.near(panels.levels_of(sweep, score), table[["low", "high"]].stack())
    shallow, deep = (table.loc[table["depth"] == d, "mean"].max() for d in (depths[0], depths[-1]))
    # The name of a level stands above it, on the side without curves.
    side = "right" if any(shallow > level > deep for level in levels.values()) else "left"
    short = {name.partition(",")[0]: level for name, level in levels.items()}
    panels.value_axis(ax, short, log=log, side=side)
    ax.margins(y=0.1)  # room for the name of the line, below the title
    usual = sweep["steps"].mode().iloc[0]
    ax.set_xticks(
        range(len(depths)),
        [str(d) if steps[d] == usual else f"{d}\n{steps[d]:g} steps" for d in depths],
        rotation=90 if len(depths) > MOST_UPRIGHT else 0,
    )
    ax.set_xlim(-0.4, len(depths) - 0.6)
    ax.set_ylabel(panels.score_label(score))
    ax.set_title(textwrap.fill(style.label_of(sweep["study"].iloc[0]), 44), loc="left")
    diverged = table[table["outcome"] == "diverged"].drop_duplicates(["variant", "depth"])
    style.crosses(
        ax, [depths.index(depth) for depth in diverged["depth"]],
        [palette.colour_of(variant) for variant in diverged["variant"]],
    )  # fmt: skip
    return list(ends.values())


@figure
def published(published: pd.DataFrame, title: str) -> Figure:
    """How far are published values from ours? Final losses, published (hollow) and ours (filled).

    The three studies with the most published losses are drawn. A bar is the 95 % interval over
    seeds. A cross marks a loss that is not finite.
    """
    table = published[(published["metric"] == PUBLISHED) & (published["platform"] != "")]
    studies = table["study"].value_counts(sort=False).nlargest(MOST_PUBLISHED).index
    shown = [values for study, values in table.groupby("study", sort=False) if study in studies]
    if not shown:
        return style.placeholder("no study here repeats a published value")
    table = pd.concat(shown)
    platforms = list(table["platform"].unique())
    page, axes = style.panels(len(shown), MOST_PUBLISHED, height=3.8, above=1.2)
    for ax, values in zip(axes, shown, strict=True):
        study = style.label_of(values["study"].iloc[0])
        ax.set_title(textwrap.fill(study, 30), loc="left")
        _beside(ax, values, platforms)
        style.log_if_wide(ax)
        ax.set_xlabel("layers")
        ax.set_ylabel(panels.with_loss_unit("final loss", values))
    handles = [
        *style.legend_handles(table["variant"].unique(), lw=6),
        style.mark_handle("published", "D", mfc="none", ms=9),
        *style.marker_handles([f"ours, {style.label_of(name)}" for name in platforms], ms=8),
        style.mark_handle("not finite", "x", mew=3, ms=9),
    ]
    return style.finish(page, title, handles)


def _beside(ax: Axes, table: pd.DataFrame, platforms: list[str]) -> None:
    depths, variants = sorted(table["depth"].unique()), list(table["variant"].unique())
    width = 0.2 / (1 + len(platforms))
    for row in table.to_dict("records"):
        # A group per depth, in it a block per variant, in it published first and then ours.
        aside = style.aside(variants.index(row["variant"]), len(variants), 0.28)
        block, slot = depths.index(row["depth"]) + aside, platforms.index(row["platform"])
        x, colour = block + width * (1 + slot), palette.colour_of(row["variant"])
        published = {"marker": "D", "mfc": "none", "ms": 9}
        ours = {"marker": palette.marker_of(slot), "ms": 8}
        for place, value, looks in ((block, row["published"], published), (x, row["mean"], ours)):
            if np.isfinite(value):
                ax.plot(place, value, color=colour, ls="", **looks)
                continue
            # In the margin above all finite values, and not clipped.
            above = {"transform": ax.get_xaxis_transform(), "clip_on": False, "ls": ""}
            ax.plot(place, 0.96, marker="x", ms=9, mew=3, color=colour, **above)
            if looks is published:
                ax.plot(place, 0.96, **looks | {"ms": 13}, mec=colour, **above)
        bars = style.error_bars(row["mean"], row["low"], row["high"])
        ax.errorbar(x, row["mean"], yerr=bars, color=colour, capsize=3)
    ax.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    low, high = ax.get_xlim()
    ax.set_xlim(min(low, -0.6), max(high, len(depths) - 0.4))  # centres a single depth
    ax.margins(y=0.12)


@figure
def nats_below_plain(sizes: pd.DataFrame, published_sizes: pd.DataFrame, title: str) -> Figure:
    """By how many nats does a connection lower the loss, by size? Difference against parameters.

    Left: our networks after equal steps, with the 95 % interval over seeds. Points of the same size
    are side by side; a connection has two if two studies trained that size. A line joins points of
    a connection with the same layers and steps. Right: published networks, most of one seed, on
    other data and far more tokens; a bar is the published ±. Compare only the trends over sizes
    between the two panels.
    """
    if sizes.empty:
        return style.placeholder("no study was trained at several sizes")
    both = len(published_sizes) > 0
    page, (axes,) = style.grid(1, 1 + both, (SIZES_WIDTH, SIZES_HEIGHT), sharey=True)
    _our_sizes(axes[0], sizes)
    _under(axes[0], [*_design_handles(sizes), *_shape_handles(_shapes(sizes))])
    axes[0].set_title("ours (nats per character)")
    axes[0].set_ylabel("nats below plain")
    if both:
        _published_sizes(axes[1], published_sizes)
    for ax in axes:
        ax.set_xscale("log")
        ax.axhline(0, color=palette.PALE, lw=1, zorder=0)
        ax.set_xlabel("parameters")
    parameters = sorted(sizes["parameters"].unique())
    style.log_ticks(axes[0], parameters, [f"{number / 1e6:.2g}" for number in parameters])
    axes[0].set_xlabel("parameters (millions)")
    return style.finish(page, title)


def _published_sizes(ax: Axes, table: pd.DataFrame) -> None:
    """Draw the panel of published networks, with its legend."""
    names, handles = list(table["variant"].unique()), {}
    for (_, variant), rows in table.groupby(["source", "variant"], sort=False):
        i, rows = names.index(variant), rows.sort_values("parameters")
        looks = {"color": palette.colour_of(variant), "marker": palette.marker_of(i), "ms": 8}
        looks |= {"ls": palette.line_of(i), "mfc": "white", "lw": 1}
        ax.errorbar(rows["parameters"], rows["below"], yerr=rows["spread"], capsize=3, **looks)
        handles[variant] = style.legend_handle(style.label_of(variant), **looks)
    ax.set_title("published (nats per token)")
    _under(ax, list(handles.values()))


def _under(ax: Axes, handles: list[Line2D]) -> None:
    """Draw a legend below a panel."""
    with style.in_style():
        ax.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(0, -0.16), frameon=False,
            fontsize=11, borderaxespad=0,
        )  # fmt: skip


@figure
def multiplier_by_size(sizes: pd.DataFrame, title: str) -> Figure:
    """Is a connection worth more in a larger network? Step multiplier by size and training steps.

    Sizes are ordered by their parameters, and the connections of a size are side by side. A bar is
    the 95 % interval over seeds. A hollow marker with an arrow is a bound without an interval: at
    least one seed is outside the ladder.
    """
    rows = sizes[sizes["answer"] != ""]
    if rows.empty:
        return style.placeholder("no study with a ladder was trained at several sizes")
    designs = list(rows["design"].unique())
    page, (axes,) = style.grid(1, rows["steps"].nunique(), (SIZES_WIDTH, SIZES_HEIGHT), sharey=True)
    for ax, (steps, here) in zip(axes, rows.groupby("steps"), strict=True):
        ax.set_title(f"{steps} steps")
        _multipliers(ax, here, designs)
        ax.set_xlabel("channels × layers")
        ax.margins(y=0.18)  # for arrows
    axes[0].set_ylabel("step multiplier")
    handles = style.legend_handles(designs, marker="o", ms=8, lw=1.8)
    if rows["answer"].isin(BOUNDS).any():
        looks = {"mfc": "white", "mew": 2, "ms": 8}
        handles.append(style.mark_handle("bound: outside the ladder", "o", **looks))
    return style.finish(page, title, handles)


def _multipliers(ax: Axes, rows: pd.DataFrame, designs: Sequence[str]) -> None:
    """Draw the step multipliers of the networks trained for the same number of steps."""
    shapes = rows.sort_values("parameters", kind="stable")[["channels", "layers"]].drop_duplicates()
    places = {shape: i for i, shape in enumerate(shapes.itertuples(index=False, name=None))}
    ax.axhline(1, color=palette.PALE, lw=1, zorder=0)
    for row in rows.to_dict("records"):
        aside = style.aside(designs.index(row["design"]), len(designs), 0.8 / len(designs))
        x, y = places[row["channels"], row["layers"]] + aside, row["multiplier"]
        looks = {"color": palette.colour_of(row["design"])}
        for points in BOUNDS.get(row["answer"], ()):
            ax.annotate(
                "", (x, y), (0, points), textcoords="offset points",
                arrowprops={"arrowstyle": "<|-", "lw": 1.8, "shrinkA": 0, **looks},
            )  # fmt: skip
        ax.vlines(x, row["low"], row["high"], lw=1.8, **looks)
        ax.plot(x, y, "o", ms=7, mew=2, mfc="white" if row["answer"] in BOUNDS else None, **looks)
    ax.set_xticks(
        range(len(places)), [f"{channels:g}\n× {layers:g}" for channels, layers in places]
    )
    ax.set_xlim(-0.6, len(places) - 0.4)


def _shapes(sizes: pd.DataFrame) -> list[tuple[int, int]]:
    """(steps, layers) pairs, ascending; each has a marker."""
    pairs = sizes[["steps", "layers"]].drop_duplicates().sort_values(["steps", "layers"])
    return list(pairs.itertuples(index=False, name=None))


def _shape_handles(shapes: list[tuple[int, int]]) -> list[Line2D]:
    """Legend entries of (steps, layers) pairs."""
    names = (f"{style.count_layers(layers)}, {steps} steps" for steps, layers in shapes)
    return style.marker_handles(list(names), ms=8)


def _design_handles(sizes: pd.DataFrame) -> list[Line2D]:
    return style.legend_handles(sizes["design"].unique(), lw=4)


def _our_sizes(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw differences over parameters: colours of designs, markers of (steps, layers).

    Points of the same size are moved apart. Lines join a design's points of one marker.
    """
    shapes = _shapes(rows)
    rows = rows.sort_values(["steps", "layers", "design"], kind="stable")
    place = rows.groupby("parameters").cumcount()
    count = rows.groupby("parameters")["parameters"].transform("size")
    rows = rows.assign(x=rows["parameters"] * 10 ** (APART * (place - (count - 1) / 2)))
    for (steps, layers, design), own in rows.groupby(["steps", "layers", "design"], sort=False):
        looks = {"color": palette.colour_of(design)}
        own = own.sort_values("x")
        if own["parameters"].is_unique:  # else one size was trained twice
            ax.plot(own["x"], own["gain"], lw=1, **looks)
        ax.vlines(own["x"], own["gain_low"], own["gain_high"], lw=1.8, **looks)
        marker = palette.marker_of(shapes.index((steps, layers)))
        ax.plot(own["x"], own["gain"], marker, ms=8, **looks)
