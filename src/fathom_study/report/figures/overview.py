"""The figures over all studies."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from fathom_study.analysis.tables import counted
from fathom_study.analysis.worth import ends_on_ladder
from fathom_study.report.figures import figure, frames, panels, style
from fathom_study.report.figures.palette import colour_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom_study.metrics.scores import Score

MOST_SWEEPS = 4
"""Maximum number of panels; figures of the studies show the others."""

ARROWS = {"below": (-24,), "beyond": (24,), "both": (-24, 24)}
"""Vertical offsets of the arrows at a multiplier that is a bound, by answer, in points."""


TITLE = 3
"""Width of a panel's title, in places of sizes."""


@figure
def score_against_depth(
    cells: pd.DataFrame, scores: Mapping[str, Score], depth_units: Mapping[str, str], title: str
) -> Figure:
    """At which depths do networks learn? Score against depth.

    At most four studies are drawn: the first with each score, then others, each on the platform
    with most runs. A dot is a run, a marker the mean over seeds. Seeds that span a decade have no
    mean. A cross above the panel marks a run that diverged; there is then no mean. Dotted: the
    score at chance, if it is near. In a study with many variants, only those trained at several
    depths are drawn.
    """
    sweeps = _first_of_each_score(frames.sweeps(counted(cells)), scores)
    if not sweeps:
        return style.placeholder("no study was trained at several depths")
    page, axes = style.panels(len(sweeps), 4.0, beside=2)
    for ax, sweep in zip(axes, sweeps, strict=True):
        study = sweep["study"].iloc[0]
        several = sweep.groupby("variant")["depth"].transform("nunique")
        own = sweep[sweep["platform"] == sweep["platform"].mode()[0]]
        if own["variant"].nunique() > panels.MOST_LINES:
            own = own[several > 1]
        panels.lines(ax, panels.values_of(own, "score", scores[study]), "depth", "variant")
        ax.set_xlabel(f"{depth_units[study]}s")
        ax.set_title(textwrap.fill(style.label_of(study), 34), pad=18)
    return style.finish(page, title)


def _first_of_each_score(
    sweeps: list[pd.DataFrame], scores: Mapping[str, Score]
) -> list[pd.DataFrame]:
    """At most MOST_SWEEPS sweeps, in their order; the first of each score takes precedence."""
    labels = [panels.score_label(scores[sweep["study"].iloc[0]]) for sweep in sweeps]
    new_first = sorted(range(len(sweeps)), key=lambda i: labels[i] in labels[:i])
    return [sweeps[i] for i in sorted(new_first[:MOST_SWEEPS])]


@figure
def nats_below_plain(sizes: pd.DataFrame, published_sizes: pd.DataFrame, title: str) -> Figure:
    """By how many nats does a connection lower the loss, by size? Difference from plain.

    Ours, in nats per character: sizes are ordered by their parameters, and the connections of a
    size are side by side; a bar is the interval of the verdict. Last panel: published networks, in
    nats per token, most of one seed, on other data and far more tokens; a bar is the published ±.
    Compare only the trends over sizes between them.
    """
    if sizes.empty:
        return style.placeholder("no study was trained at several sizes")
    page, axes = _by_size(sizes, "gain", extra=len(published_sizes) > 0)
    axes[0].set_ylabel("nats below plain")
    for position, (variant, rows) in enumerate(published_sizes.groupby("variant", sort=False)):
        looks, ax = style.series(variant, position), axes[-1]
        for _, own in rows.sort_values("parameters").groupby("source", sort=False):
            below, spread = own["below"], own["spread"]
            style.interval(ax, own["parameters"], below - spread, below + spread, looks["color"])
            label = f"published: {style.label_of(variant)}"
            ax.plot(own["parameters"], below, lw=1, label=label, **looks, mfc="white")
        ax.set(xscale="log", xlabel="parameters", title="published")
        ax.axhline(0, **style.ONE)
    return style.finish(page, title)


@figure
def multiplier_by_size(sizes: pd.DataFrame, title: str) -> Figure:
    """Is a connection worth more in a larger network? Step multiplier by size and training steps.

    Sizes are ordered by their parameters, and the connections of a size are side by side. A bar is
    the corrected interval, which ends at the ladder's end if it reaches beyond. A hollow marker
    with an arrow is a bound without an interval: at least one seed is outside the ladder.
    """
    rows = sizes[sizes["answer"] != ""]
    if rows.empty:
        return style.placeholder("no study with a ladder was trained at several sizes")
    page, axes = _by_size(rows, "multiplier")
    axes[0].set_ylabel("step multiplier")
    for ax in axes:
        ax.margins(y=0.18)  # for arrows
    return style.finish(page, title)


def _by_size(rows: pd.DataFrame, value: str, *, extra: bool = False) -> tuple[Figure, list[Axes]]:
    """A panel for each number of steps: `gain` or `multiplier` by size, and an `extra` panel."""
    designs = list(rows["design"].unique())
    groups = list(rows.groupby("steps"))
    count = len(groups) + extra
    page, axes = style.panels(count, 5.5, beside=count, sharey=True)
    sizes = [len(here[["channels", "layers"]].drop_duplicates()) for _, here in groups]
    # At least the width of a panel's title.
    axes[0].get_gridspec().set_width_ratios([max(n, TITLE) for n in (*sizes, *[TITLE] * extra)])
    for ax, (steps, here) in zip(axes, groups, strict=False):
        ax.set(title=f"{steps} steps", xlabel="channels\n× layers")
        ax.axhline(1 if value == "multiplier" else 0, **style.ONE)
        _sizes(ax, here, value, designs)
    return page, axes


def _sizes(ax: Axes, rows: pd.DataFrame, value: str, designs: Sequence[str]) -> None:
    """Draw the networks trained for the same number of steps, at places ordered by parameters."""
    shapes = rows.sort_values("parameters", kind="stable")[["channels", "layers"]].drop_duplicates()
    places = {shape: i for i, shape in enumerate(shapes.itertuples(index=False, name=None))}
    for row in rows.to_dict("records"):
        position = designs.index(row["design"])
        aside = style.aside(position, len(designs), 0.8)
        x, y = places[row["channels"], row["layers"]] + aside, row[value]
        looks = style.series(row["design"], position) | {"ms": 6}
        style.legend_entry(ax, style.label_of(row["design"]), **looks)
        arrows = ARROWS.get(row["answer"], ()) if value == "multiplier" else ()
        for points in arrows:
            ax.annotate(
                "", (x, y), (0, points), textcoords="offset points",
                arrowprops={"arrowstyle": "<|-", "lw": 1.8, "color": looks["color"], "shrinkA": 0},
            )  # fmt: skip
        if arrows:
            looks |= {"mfc": "white", "mew": 2}
            style.legend_entry(
                ax, "bound: outside the ladder", marker="o", mfc="white", mew=2, ms=8
            )
        of_gain = row["gain_low"], row["gain_high"]
        ends = ends_on_ladder(row) if value == "multiplier" else of_gain
        style.interval(ax, x, *ends, colour_of(row["design"]))
        ax.plot(x, y, ls="", **looks)
    ax.set_xticks(range(len(places)), [f"{c:g} × {layers:g}" for c, layers in places], rotation=90)
    ax.set_xlim(-0.6, len(places) - 0.4)
