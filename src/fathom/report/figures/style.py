"""Style of figures: labels, panels, curves, axes.

A line is the mean over seeds, a band or a bar their range. A run that stopped being finite has a
cross above the panel, apart from all values. An axis of positive values is logarithmic if they span
more than a decade.

Importing this module does not load matplotlib: the first figure does.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fathom.report import formatting
from fathom.report.figures.palette import GREY, colour_of, marker_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.transforms import Transform

WIDTH = 11.0
"""Width of a study's figures, in inches; all are equal on a page."""

STYLE = {
    "font.size": 13,
    "axes.titlesize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 110,
    # Names of clips and glyphs inside an SVG are hashes; this salt replaces a random one.
    "svg.hashsalt": "fathom",
}


@contextmanager
def from_defaults() -> Iterator[None]:
    """A context that begins with matplotlib's defaults and ignores the user's matplotlibrc."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        yield


def in_style() -> AbstractContextManager[None]:
    """A context in which figures get the common look."""
    import matplotlib as mpl

    return mpl.rc_context(STYLE)


_LABELS: ContextVar[Mapping[str, str]] = ContextVar("labels", default=MappingProxyType({}))


_DEPTH_UNIT: ContextVar[str] = ContextVar("depth_unit", default="layer")


@contextmanager
def worded(labels: Mapping[str, str], depth_unit: str) -> Iterator[None]:
    """A context in which figures use these labels for names, and this unit for depth."""
    tokens = _LABELS.set(labels), _DEPTH_UNIT.set(depth_unit)
    try:
        yield
    finally:
        _LABELS.reset(tokens[0])
        _DEPTH_UNIT.reset(tokens[1])


def label_of(name: str) -> str:
    """The display name of a variant or a platform."""
    return words(_LABELS.get().get(name, name))


def words(text: str) -> str:
    """Text with escaped dollar signs: matplotlib would read two of them as a formula."""
    return text.replace("$", r"\$")


def count_layers(depth: int) -> str:
    """A depth in words, in the depth unit of the context."""
    return formatting.count_layers(depth, _DEPTH_UNIT.get())


def depth_label() -> str:
    """The label of an axis of depths: the depth unit of the context."""
    return f"{_DEPTH_UNIT.get()}s"


# --- panels -------------------------------------------------------------------------------------


def grid(
    rows: int, columns: int, size: tuple[float, float], *, sharey: bool = False
) -> tuple[Figure, np.ndarray]:
    """An empty figure of rows × columns panels [rows, columns], `size` in inches."""
    from matplotlib.figure import Figure

    with in_style():
        figure = Figure(figsize=size, layout="constrained")
        return figure, figure.subplots(rows, columns, sharey=sharey, squeeze=False)


PANELS_PER_ROW = 4
"""Panels per row at which labels stay readable."""


def panels(
    count: int,
    beside: int = PANELS_PER_ROW,
    height: float = 4.4,
    above: float = 0,
    *,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """An empty figure of panels in rows of at most `beside`.

    `height`: of a row, in inches; `above`: of the space above and below all rows.
    """
    columns = min(count, beside)
    rows = math.ceil(count / columns)
    figure, axes = grid(rows, columns, (WIDTH, above + height * rows), sharey=sharey)
    for unused in axes.flat[count:]:
        unused.remove()
    return figure, list(axes.flat[:count])


def placeholder(why: str) -> Figure:
    """A figure without data that states the reason."""
    lines = why.count("\n") + 1
    figure, ((ax,),) = grid(1, 1, (WIDTH, 0.8 if lines <= 3 else 0.4 * lines))
    say(ax, why)
    return figure


# --- panel contents -----------------------------------------------------------------------------


def curves(ax: Axes, course: pd.DataFrame, failures: pd.DataFrame, last: int, *, log: bool) -> None:
    """Draw a line and a band for each variant, and its first non-finite step above the panel.

    `course`, `failures`: from `frames.over_seeds` and `.failures`; `last`: last step of the axis.
    """
    bands(ax, course, "step")
    if not ax.has_data() and len(ax.get_shared_y_axes().get_siblings(ax)) == 1:
        ax.set_yticks([])  # labels of an empty axis would mislead
    elif log:
        log_if_wide(ax)
    else:
        as_constant(ax)
    ax.set_xlim(-0.02 * last, (1.02 + BESIDE_END * course["variant"].nunique()) * last or 1)
    ax.set_xlabel("step")
    whole_ticks(ax)
    # Above the panel, so that a mark never covers a curve.
    for i, (variant, step, reason) in enumerate(failures.itertuples(index=False)):
        height, above, colour = 1.05 + 0.1 * i, ax.get_xaxis_transform(), colour_of(variant)
        ax.plot(step, height, color=colour, transform=above, clip_on=False, **CROSS)
        shift, side = (10, "left") if step <= 0.5 * last else (-10, "right")
        ax.annotate(
            f"{reason} not finite from step {step}", (step, height), xycoords=above,
            xytext=(shift, 0), textcoords="offset points", color=colour, va="center", ha=side,
            fontsize=12, annotation_clip=False,
        )  # fmt: skip


MOST_BANDS = 1
"""Maximum number of bands; overlapping bands mix to a colour of no variant."""

FEW_PLACES = 16
"""Maximum number of error bars side by side along a line."""

MOST_ON_EDGE = 200
"""Maximum number of points on a band's edge; more are within a pixel of a panel at half width."""

BESIDE_END = 0.012
"""Gap between bars beyond the end of lines, as a share of the axis."""


def bands(ax: Axes, course: pd.DataFrame, axis: str) -> None:
    """Draw a line for each variant against the column `axis`, and the range over its seeds.

    The range is a band; with more variants than MOST_BANDS it is a bar beside the others' bars, at
    each of at most FEW_PLACES places, or else at the end of the line.
    """
    count = course["variant"].nunique()
    for position, (variant, points) in enumerate(course.groupby("variant", sort=False)):
        points = points.astype({axis: float, "mean": float, "low": float, "high": float})
        colour, x = colour_of(variant), points[axis]
        ax.plot(x, points["mean"], color=colour, marker="o" if len(points) == 1 else None)
        if count <= MOST_BANDS:
            edge = outline(points, axis)
            ax.fill_between(edge[axis], edge["low"], edge["high"], color=colour, alpha=0.2, lw=0)
            continue
        if len(points) <= FEW_PLACES:
            at, x = points, shifted(ax, 2.5 * aside(position, count, 1))
            ax.vlines(at[axis], at["low"], at["high"], color=colour, lw=2, transform=x)
        else:
            at = points.tail(1)
            beyond = at[axis] * (1.02 + BESIDE_END * position)
            ax.vlines(beyond, at["low"], at["high"], color=colour, lw=2)
    ax.autoscale_view()


def outline(points: pd.DataFrame, axis: str) -> pd.DataFrame:
    """A band at MOST_ON_EDGE places or fewer, with the lowest and highest value of neighbours."""
    if len(points) <= MOST_ON_EDGE:
        return points
    place = np.linspace(0, MOST_ON_EDGE - 1, len(points)).round()
    return points.groupby(place).agg({axis: "mean", "low": "min", "high": "max"})


def shifted(ax: Axes, points: float) -> Transform:
    """The data transform, shifted right by a number of points on any axis."""
    from matplotlib.transforms import ScaledTranslation

    return ax.transData + ScaledTranslation(points / 72, 0, ax.figure.dpi_scale_trans)


CROSS: dict[str, Any] = {"marker": "x", "ms": 11, "mew": 3}
"""The mark of a run that diverged."""


def crosses(ax: Axes, x: Sequence[float], colours: Sequence[str]) -> None:
    """Draw crosses above a panel, for groups that have no mean and so no place in it.

    Crosses at the same x stand in a column.
    """
    stacked: dict[float, int] = {}
    for value, colour in zip(x, colours, strict=True):
        above = stacked[value] = stacked.get(value, 0) + 1
        across = ax.get_xaxis_transform()
        ax.plot(
            value, 0.98 + 0.07 * above, color=colour, ls="", transform=across, clip_on=False,
            **CROSS,
        )  # fmt: skip
    if stacked and ax.get_title(loc="left"):
        ax.set_title(ax.get_title(loc="left"), loc="left", pad=8 + 16 * max(stacked.values()))


def direct_labels(ax: Axes, ends: Sequence[tuple[float, float, str]]) -> None:
    """Name lines at the right of a panel; `ends`: (x, y, variant) of the end of each.

    Names are spaced out; a thin line joins each to its end.
    """
    ax.get_xlim(), ax.get_ylim()  # computes the limits
    gap = 15 / (72 * ax.get_position().height * ax.figure.get_figheight())
    across = ax.transData + ax.transAxes.inverted()
    at = [(across.transform((x, y)), variant) for x, y, variant in ends]
    at.sort(key=lambda end: end[0][1])
    heights = space_out([height for (_, height), _ in at], gap)
    thin = {"arrowstyle": "-", "lw": 0.6, "shrinkA": 0, "relpos": (0, 0.5)}  # from the name's start
    for ((x, y), variant), height in zip(at, heights, strict=True):
        colour = colour_of(variant)
        ax.annotate(
            label_of(variant), (x, y), (1.03, height), xycoords="axes fraction",
            textcoords="axes fraction", color=colour, va="center", fontsize=11,
            annotation_clip=False, arrowprops={**thin, "color": colour},
        )  # fmt: skip


def space_out(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights, moved as little as possible to be `gap` or more apart.

    Heights that are too close are spread around their mean.
    """
    from scipy.optimize import isotonic_regression

    least = gap * np.arange(len(heights))
    return (isotonic_regression(np.array(heights) - least).x + least).tolist()


LEVEL: dict[str, Any] = {"color": GREY, "ls": ":", "lw": 1.5, "zorder": 1}
"""Style of a line at a reference value, such as chance."""


def level(ax: Axes, name: str, value: float, *, side: Literal["left", "right"] = "right") -> None:
    """Draw a dotted line at a reference value, such as chance, named at `side`."""
    ax.axhline(value, **LEVEL)
    at = {"left": 0.01, "right": 0.99}[side]
    ax.annotate(  # behind measured values
        textwrap.fill(name, 24), (at, value), xycoords=ax.get_yaxis_transform(), zorder=1,
        xytext=(0, 2), textcoords="offset points", ha=side, va="bottom", color=GREY, fontsize=11,
        bbox={"facecolor": "white", "alpha": 0.7, "lw": 0, "pad": 0.5},
    )  # fmt: skip


def vertical_levels(ax: Axes, levels: Mapping[str, float]) -> None:
    """Draw dotted lines at reference values of the x axis, named above the panel, one per line."""
    above = 0
    for name, value in levels.items():
        name = textwrap.fill(name, 24)
        ax.axvline(value, **LEVEL)
        ax.annotate(
            name, (value, 1), xycoords=ax.get_xaxis_transform(), xytext=(0, 2 + 13 * above),
            textcoords="offset points", ha="center", va="bottom", color=GREY, fontsize=11,
        )  # fmt: skip
        above += 1 + name.count("\n")
    if ax.get_title():
        ax.set_title(ax.get_title(), pad=6 + 13 * above)


def rows_of_names(ax: Axes, names: Sequence[str]) -> None:
    """Set up a row for each name, top down, and few labels on the x axis."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.margins(x=0.05)
    if ax.get_xscale() == "linear":
        ax.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])  # numbers with many digits fit


def aside(position: int, count: int, width: float) -> float:
    """The offset of the n-th of `count` items from their middle; items are `width` apart."""
    return width * (position - (count - 1) / 2)


def say(ax: Axes, text: str) -> None:
    """Write text in place of a plot."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", fontsize=13, transform=ax.transAxes)


# --- axes ---------------------------------------------------------------------------------------


def log_if_wide(ax: Axes, axis: Literal["x", "y"] = "y") -> None:
    """Set a logarithmic axis if its data span more than a decade, else a linear one.

    The data of panels that share the axis count together.
    """
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    siblings = getattr(ax, f"get_shared_{axis}_axes")().get_siblings(ax)
    low = min(getattr(other.dataLim, f"minpos{axis}") for other in siblings)
    high = max(getattr(other.dataLim, f"interval{axis}")[1] for other in siblings)
    ax.set(**{f"{axis}scale": "log" if high > 10 * low else "linear"})
    if 10 * low < high < 1000 * low:  # powers of ten alone would be too few ticks
        numbers = getattr(ax, f"{axis}axis")
        between = (1, 2, 5) if axis == "y" else (1,) if high > 100 * low else (1, 3)
        numbers.set_major_locator(LogLocator(subs=between))
        numbers.set_major_formatter(FormatStrFormatter("%g"))
        numbers.set_minor_locator(NullLocator())


PRINTED = 1e-4
"""Relative difference below which values are drawn as equal, as five digits are printed."""


def as_constant(ax: Axes, axis: Literal["x", "y"] = "y") -> None:
    """Widen a linear axis whose values differ by less than PRINTED, so that they look equal."""
    siblings = getattr(ax, f"get_shared_{axis}_axes")().get_siblings(ax)
    limits = [getattr(other.dataLim, f"interval{axis}") for other in siblings]
    low, high = np.min(limits), np.max(limits)
    size = max(abs(low), abs(high))
    if high - low < PRINTED * size < np.inf:
        ax.set(**{f"{axis}lim": (low - 0.05 * size, high + 0.05 * size)})


def counts(ax: Axes) -> None:
    """Set up a y axis of counts: from zero, with ticks at whole numbers."""
    top = max(1.0, ax.dataLim.y1)
    ax.set_ylim(-0.03 * top, 1.05 * top)
    whole_ticks(ax, "y")


def log_ticks(
    ax: Axes, places: Sequence[float], labels: Sequence[str] | None = None, base: int = 10
) -> None:
    """Set a logarithmic x axis with ticks only at `places`, labelled by `labels` or by value."""
    ax.set_xscale("log", base=base)
    ax.set_xticks(places, labels or [f"{place:g}" for place in places])
    ax.xaxis.minorticks_off()


def whole_ticks(ax: Axes, axis: Literal["x", "y"] = "x") -> None:
    """Set a few ticks on an axis, at whole numbers."""
    # `steps`: the locator's own defaults, as ticks would otherwise also be at multiples of 2.5.
    ax.locator_params(axis=axis, nbins=5, integer=True, min_n_ticks=1, steps=None)


def error_bars(mean: Any, low: Any, high: Any) -> np.ndarray:  # noqa: ANN401, numbers or arrays
    """Lengths [2, …] of an interval below and above the mean, as matplotlib takes error bars.

    Rounding may put the mean of equal values slightly outside them. NaN draws no bar.
    """
    return np.maximum([mean - low, high - mean], 0).reshape(2, -1)


# --- title and legend ---------------------------------------------------------------------------


def legend_handle(label: str, **looks: Any) -> Line2D:  # noqa: ANN401, as Line2D takes them
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **looks)


def legend_handles(variants: Iterable[str], **looks: Any) -> list[Line2D]:  # noqa: ANN401, as above
    """Legend entries of variants in their colours; equal entries appear once."""
    alike = {(label_of(variant), colour_of(variant)): None for variant in variants}
    return [legend_handle(label, color=colour, **looks) for label, colour in alike]


def mark_handle(label: str, marker: str, **looks: Any) -> Line2D:  # noqa: ANN401, as above
    """A legend entry with a grey marker."""
    return legend_handle(label, marker=marker, **{"color": GREY, "ls": "", **looks})


def marker_handles(labels: Iterable[str], **looks: Any) -> list[Line2D]:  # noqa: ANN401, as above
    """Legend entries: every label with its own marker."""
    return [mark_handle(label, marker_of(i), **looks) for i, label in enumerate(labels)]


def columns_for(labels: Sequence[str], width: float) -> int:
    """Number of legend columns within a width in inches; entries run down each column."""
    for columns in range(len(labels), 1, -1):
        longest = [max(map(len, column)) for column in np.array_split(labels, columns)]
        if sum(0.75 + 0.11 * letters for letters in longest) <= width:  # a line, and letters
            return columns
    return 1


TITLE_LETTERS = 8.5
"""Letters of a title per inch of the figure's width; longer lines are wrapped."""


def finish(figure: Figure, title: str = "", handles: Sequence[Line2D] = ()) -> Figure:
    """Put the title above all panels, and the legend below, in as many columns as fit."""
    with in_style():
        if title:
            letters = int(TITLE_LETTERS * figure.get_figwidth())
            lines = [textwrap.fill(line, letters) for line in title.split("\n")]
            figure.suptitle("\n".join(lines), fontsize=14)
        if handles:
            columns = columns_for([str(h.get_label()) for h in handles], figure.get_figwidth())
            figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    return figure
