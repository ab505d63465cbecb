"""The frame that all figures share: panels, looks of variants, intervals, marks, axes, legend.

Everything that a legend explains is drawn with a label; `finish` gathers the labels below all
panels. A cross above a panel is a run that diverged, apart from all values.

Importing this module does not load matplotlib: the first figure does.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fathom_study.report.figures.palette import GREY, PALE, colour_of, line_of, marker_of
from fathom_study.report.tables import formatting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTH = 7.2
"""Width of every figure in inches, at which text is readable at half of a page."""

PER_ROW = 3
"""Panels per row at which labels stay readable."""

STYLE = {
    "font.size": 13,
    "axes.titlesize": 13,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.dpi": 110,
    # Names of clips and glyphs inside an SVG are hashes; this salt replaces a random one.
    "svg.hashsalt": "fathom",
}


@contextmanager
def from_defaults(look: Mapping[str, Any] = STYLE) -> Iterator[None]:
    """A context with matplotlib's defaults and a look; it ignores the user's matplotlibrc."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(look)
        yield


class Words(NamedTuple):
    """Words of the figures that are drawn: display names, and units of depth and loss."""

    labels: Mapping[str, str] = MappingProxyType({})
    depth_unit: str = "layer"
    loss_unit: str = ""
    """Empty if the figures are of several tasks."""


UNLABELLED = Words()
_WORDS: ContextVar[Words] = ContextVar("words", default=UNLABELLED)


@contextmanager
def worded(*given: Any) -> Iterator[None]:  # noqa: ANN401, the fields of Words
    """A context in which figures use these `Words`."""
    token = _WORDS.set(Words(*given))
    try:
        yield
    finally:
        _WORDS.reset(token)


def label_of(name: str) -> str:
    """The display name of a variant or a platform."""
    return words(_WORDS.get().labels.get(name, name))


def words(text: str) -> str:
    """Text with escaped dollar signs: matplotlib would read two of them as a formula."""
    return text.replace("$", r"\$")


def count_layers(depth: int) -> str:
    """A depth in words, in the depth unit of the context."""
    return formatting.count_layers(depth, _WORDS.get().depth_unit)


def depth_label() -> str:
    """The label of an axis of depths: the depth unit of the context."""
    return f"{_WORDS.get().depth_unit}s"


def loss_unit() -> str:
    """The unit of the loss in the context."""
    return _WORDS.get().loss_unit


# --- panels -------------------------------------------------------------------------------------


def panels(
    count: int = 1, height: float = 4.0, *, beside: int = PER_ROW, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """An empty figure of panels in rows of at most `beside`; `height` of a row, in inches."""
    from matplotlib.figure import Figure

    columns = min(count, beside)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat
    for unused in axes[count:]:
        unused.remove()
    return figure, list(axes[:count])


LINE, SPACE = 0.2, 0.09
"""Height of a line of a row's name and of the space between rows, in inches."""

AROUND = 1.2
"""Height of a panel's title, numbers and label, in inches."""

NAME_LETTERS = 32
"""Letters of a line of a row's name."""

Rows = Sequence[tuple[str, dict[str, Any] | None]]
"""(name, values) of each row of a panel, top down; the values of a heading are None."""


def row_panel(rows: Rows) -> tuple[Figure, Axes, np.ndarray]:
    """A panel with a row for each name, and the places of the rows; headings are bold."""
    names = [textwrap.fill(name, NAME_LETTERS) for name, _ in rows]
    heights = np.array([SPACE + LINE * (1 + name.count("\n")) for name in names])
    figure, (ax,) = panels(1, AROUND + heights.sum())
    places = np.cumsum(heights) - heights / 2
    ticks = ax.set_yticks(places, names)
    for tick, (_, row) in zip(ticks, rows, strict=True):
        tick.label1.set_fontweight("bold" if row is None else "normal")
    ax.set_ylim(heights.sum(), 0)
    return figure, ax, places


def placeholder(why: str) -> Figure:
    """A figure without data that states the reason."""
    figure, (ax,) = panels(1, 1.2)
    ax.set_axis_off()
    lines = "\n".join(textwrap.fill(line, 80) for line in why.split("\n"))
    ax.text(0.5, 0.5, lines, ha="center", va="center", transform=ax.transAxes)
    return figure


# --- marks --------------------------------------------------------------------------------------

DOT: dict[str, Any] = {"marker": "o", "ms": 5, "alpha": 0.5, "mew": 0, "ls": ""}
"""Style of a run."""

CROSS: dict[str, Any] = {"marker": "x", "ms": 9, "mew": 2.5, "ls": ""}
"""Style of a run that diverged."""

LEVEL: dict[str, Any] = {"color": GREY, "ls": ":", "lw": 1.5, "zorder": 1}
"""Style of a reference value, such as chance."""

ONE: dict[str, Any] = {"color": PALE, "lw": 1, "zorder": 0}
"""Style of the line of no difference."""

OUTSIDE = {"below": "<", "beyond": ">", "both": "D"}
"""Markers of values that are bounds, by answer."""


def legend_entry(ax: Axes, label: str, **looks: Any) -> None:  # noqa: ANN401, as Line2D takes them
    """An entry of the legend alone."""
    ax.plot([], [], label=label, **{"color": GREY, "ls": "", **looks})


def series(variant: str, position: int) -> dict[str, Any]:
    """Colour and marker of a variant's means; the position tells similar colours apart."""
    return {"color": colour_of(variant), "marker": marker_of(position), "ms": 8}


def curve(variant: str, position: int) -> dict[str, Any]:
    """Colour and dashes of a variant's curve."""
    return {"color": colour_of(variant), "ls": line_of(position), "label": label_of(variant)}


def interval(
    ax: Axes,
    at: Any,  # noqa: ANN401, numbers or arrays
    low: Any,  # noqa: ANN401
    high: Any,  # noqa: ANN401
    colour: str,
    axis: Literal["x", "y"] = "y",
) -> None:
    """An interval of values on `axis`; none where an end is NaN."""
    (ax.vlines if axis == "y" else ax.hlines)(at, low, high, color=colour, lw=2.5)


def cross(
    ax: Axes,
    at: float,
    colour: str,
    label: str = "a run diverged",
    value: float = math.nan,
    axis: Literal["x", "y"] = "x",
) -> None:
    """A cross of a run that diverged, at a value or else outside the panel, past all values.

    `at`: its place on `axis`.
    """
    looks: dict[str, Any] = {"color": colour, **CROSS}
    if math.isnan(value):
        transform = ax.get_xaxis_transform() if axis == "x" else ax.get_yaxis_transform()
        value, looks = 1.04, {**looks, "transform": transform, "clip_on": False}
    ax.plot(*((at, value) if axis == "x" else (value, at)), **looks)
    legend_entry(ax, label, **CROSS)


def level(ax: Axes, label: str, value: float, position: int = 0, axis: str = "y") -> None:
    """A dotted line at a reference value on `axis`; dashes tell several apart."""
    looks = LEVEL | {"ls": (":", "-.", "--")[position % 3], "label": label}
    (ax.axhline if axis == "y" else ax.axvline)(value, **looks)


def aside(position: int, count: int, width: float = 0.6) -> float:
    """Offset of the n-th of `count` marks at one place; all of them take `width`."""
    return width * (position - (count - 1) / 2) / max(1, count)


# --- axes ---------------------------------------------------------------------------------------


def _limits(ax: Axes, axis: str) -> list[Any]:
    """The data limits of all panels that share the axis."""
    shared = getattr(ax, f"get_shared_{axis}_axes")().get_siblings(ax)
    return [other.dataLim for other in shared]


def log_if_wide(ax: Axes, axis: Literal["x", "y"] = "y") -> None:
    """Set a logarithmic axis if its data span more than a decade, else a linear one.

    The data of panels that share the axis count together.
    """
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    low = min(getattr(limits, f"minpos{axis}") for limits in _limits(ax, axis))
    high = max(getattr(limits, f"interval{axis}")[1] for limits in _limits(ax, axis))
    ax.set(**{f"{axis}scale": "log" if high > 10 * low else "linear"})
    if 10 * low < high < 1000 * low:  # powers of ten alone would be too few ticks
        numbers = getattr(ax, f"{axis}axis")
        numbers.set_major_locator(LogLocator(subs=(1, 2, 5) if axis == "y" else (1, 3)))
        numbers.set_major_formatter(FormatStrFormatter("%g"))
        numbers.set_minor_locator(NullLocator())


PRINTED = 1e-4
"""Relative difference below which values are drawn as equal, as five digits are printed."""


def value_axis(ax: Axes, axis: Literal["x", "y"] = "y", *, log: bool = False) -> None:
    """Set an axis of values: `log` if they are wide, and not narrower than PRINTED."""
    if log:
        log_if_wide(ax, axis)
    limits = [getattr(box, f"interval{axis}") for box in _limits(ax, axis)]
    low, high = np.min(limits), np.max(limits)
    size = max(abs(low), abs(high))
    if getattr(ax, f"get_{axis}scale")() == "linear" and high - low < PRINTED * size < np.inf:
        ax.set(**{f"{axis}lim": (low - 0.05 * size, high + 0.05 * size)})
    elif axis == "x" and ax.get_xscale() == "linear":
        ax.locator_params(axis="x", nbins=5)  # numbers with many digits fit


def whole_ticks(ax: Axes, axis: Literal["x", "y"] = "x") -> None:
    """Set a few ticks on an axis, at whole numbers."""
    # `steps`: the locator's own defaults, as ticks would otherwise also be at multiples of 2.5.
    ax.locator_params(axis=axis, nbins=5, integer=True, min_n_ticks=1, steps=None)


# --- title and legend ---------------------------------------------------------------------------

LETTERS = 8.5
"""Letters of text per inch of a figure's width."""


def finish(figure: Figure, title: str = "", handles: Iterable[Line2D] = ()) -> Figure:
    """Put the title above all panels and a legend of every label below; both make it higher."""
    letters = int(LETTERS * figure.get_figwidth())
    lines = "\n".join(textwrap.fill(line, letters) for line in title.split("\n"))
    figure.suptitle(lines, fontsize=14)
    named: dict[str, Any] = {str(handle.get_label()): handle for handle in handles}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    height = 0.25 * (1 + lines.count("\n"))
    height += LINE * max((ax.get_xlabel().count("\n") for ax in figure.axes), default=0)
    if named:
        labels = sorted(named, key=lambda label: named[label].get_color() == GREY)  # marks last
        columns = min(max(1, letters // (7 + max(map(len, labels)))), len(labels))
        figure.legend(
            [named[label] for label in labels], labels, ncols=columns, frameon=False,
            loc="outside lower center",
        )  # fmt: skip
        height += 0.27 * math.ceil(len(labels) / columns)
    figure.set_figheight(figure.get_figheight() + height)
    return figure
