"""How figures look: colours, labels, panels, curves. The only module that touches matplotlib.

The same variant has the same colour everywhere (Okabe and Ito's palette, which colour-blind people
can tell apart). A line is the geometric mean over seeds, a band their range. A cross above the
panel marks the step at which a run stopped being finite, and says what was not. An axis of positive
values is logarithmic where they span more than a decade.

Importing this loads no matplotlib: the functions that make something of it load it, with the first
figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fathom.measures import STEP_MEASURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLOURS = {
    "baseline": "#000000", "hc": "#D55E00", "mhc": "#0072B2",
    "resnet": "#000000", "hc_causal": "#D55E00", "mhc_causal": "#0072B2",
    "hc_static": "#E69F00", "mhc_static": "#56B4E9",
    "hc_dynamic": "#CC79A7", "mhc_dynamic": "#009E73", "hc_paper_static": "#7F7F7F",
    "hc_paper": "#CC79A7", "mhc_paper": "#009E73", "mhc_identity": "#56B4E9", "mhc_lite": "#E69F00",
    "krom_hc": "#8C564B", "circulant_mhc": "#6A3D9A",
    "v1": "#D55E00", "v1_20": "#8C564B", "v1_noise": "#E69F00", "v2": "#CC79A7",
    "v3": "#0072B2", "v4a": "#56B4E9", "v4b": "#6A3D9A", "v4c": "#009E73", "v4d": "#B2A100",
    "v5": "#000000",
}  # fmt: skip
SPARE_COLOURS = ("#B2A100", "#6A3D9A", "#8C564B")
MARKERS = ("o", "s", "^", "D", "v", "P")

WIDTH = 11.0
"""Of the figures of a study, in inches: on a page they are equally wide."""

STYLE = {
    "font.size": 13,
    "axes.titlesize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 2,
    "figure.dpi": 110,
    # Names of clips and glyphs inside an SVG are hashes: salted by this, and not at random.
    "svg.hashsalt": "fathom",
}

GREY = "#555555"
"""Of signs in a legend that stand for no variant, and of lines that stand for no run."""

DECADE = 10.0

WATCHED = {
    "loss": "loss",
    "nonfinite_event": "logits",
    "grad_norm": "gradient",
    "gain_proxy_log10_max_entry": "H_res",
    "bits": "validation loss",  # of a table of evaluations
}
"""What a run may stop being finite in, by step measure: of one step, the first is the reason."""


def in_style() -> AbstractContextManager[None]:
    """Within it, what is made has the common look."""
    import matplotlib as mpl

    return mpl.rc_context(STYLE)


def colour_of(variant: str) -> str:
    """The variant's colour; one that has none yet gets the same spare one every time."""
    return COLOURS.get(variant) or SPARE_COLOURS[sum(variant.encode()) % len(SPARE_COLOURS)]


def marker_of(place: int) -> str:
    """The marker of a place by its number; with more places than markers they come round again."""
    return MARKERS[place % len(MARKERS)]


def label_of(measure: str) -> str:
    """What an axis says of a step measure, with its unit."""
    return STEP_MEASURES[measure].label


# --- panels -------------------------------------------------------------------------------------


def grid(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """An empty figure of rows × columns panels [rows, columns], `size` in inches."""
    return _subplots(rows, columns, size, sharey=False)


BESIDE = 4
"""So many panels fit beside each other, with their signs and numbers."""


def panels(count: int, *, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """An empty figure of panels side by side, in rows of at most BESIDE."""
    columns = min(count, BESIDE)
    rows = math.ceil(count / columns)
    figure, axes = _subplots(rows, columns, (WIDTH, 4.4 * rows), sharey)
    for unused in axes.flat[count:]:
        unused.remove()
    return figure, list(axes.flat[:count])


def label_rows(panels: Sequence[Axes], label: str) -> None:
    """Name the axis that each row of panels shares."""
    for ax in panels[::BESIDE]:
        ax.set_ylabel(label)


def _subplots(
    rows: int, columns: int, size: tuple[float, float], sharey: bool
) -> tuple[Figure, np.ndarray]:
    from matplotlib.figure import Figure

    with in_style():
        figure = Figure(figsize=size, layout="constrained")
        return figure, figure.subplots(rows, columns, sharey=sharey, squeeze=False)


def without_data(why: str) -> Figure:
    """A figure that says why it shows nothing."""
    figure, ((ax,),) = grid(1, 1, (WIDTH, 0.8))
    ax.set_axis_off()
    ax.text(0.5, 0.5, why, ha="center", va="center")
    return figure


# --- what is in them ----------------------------------------------------------------------------


def curves(
    ax: Axes, steps: pd.DataFrame, measure: str, window: int = 1, *, log: bool | None = None
) -> int:
    """Draw a line and a band for each variant; return how many marks stand above the panel.

    Every point is a mean over the last `window` steps, of logarithms where the measure is positive
    (`log`; None: as the registry says). Where no run has the measure, the panel stays empty.
    """
    logarithmic = STEP_MEASURES[measure].log if log is None else log
    transform: Callable = np.log10 if logarithmic else (lambda x: x)
    restore: Callable = (lambda x: 10**x) if logarithmic else np.asarray
    crosses = []
    having = steps if measure in steps else steps.iloc[:0]
    # Many bands on each other hide what is below them.
    opacity = 0.2 if having["variant"].nunique() <= 5 else 0.08
    for variant, group in having.groupby("variant", sort=False):
        wide = group.pivot_table(index="step", columns="seed", values=measure, dropna=False)
        # Only steps at which every seed is finite: a mean over survivors would flatter.
        whole = wide.replace([np.inf, -np.inf], np.nan).dropna()
        if logarithmic:  # zero is finite, but has no logarithm
            whole = whole[(whole > 0).all(axis=1)]
        colour = colour_of(variant)
        if not whole.empty:
            values = transform(whole).rolling(window, min_periods=1).mean()
            x, low, high = whole.index, values.min(axis=1), values.max(axis=1)
            ax.fill_between(x, restore(low), restore(high), color=colour, alpha=opacity, lw=0)
            dot = "o" if len(whole) == 1 else None
            ax.plot(x, restore(values.mean(axis=1)), color=colour, marker=dot)
        if broken := breakdown(group):
            crosses.append((*broken, colour))
    if not ax.has_data() and len(ax.get_shared_y_axes().get_siblings(ax)) == 1:
        ax.set_yticks([])  # numbers on it would say something
    elif logarithmic:
        log_if_wide(ax)
    else:
        as_constant(ax)
    if measure in STEP_MEASURES and STEP_MEASURES[measure].whole:
        counts(ax)
    last = int(steps["step"].max())
    ax.set_xlim(-0.02 * last, 1.02 * last or 1)
    # Above the panel, so that a mark never covers a curve.
    for i, (step, what, colour) in enumerate(crosses):
        height, above = 1.05 + 0.1 * i, ax.get_xaxis_transform()
        ax.plot(step, height, "x", color=colour, ms=11, mew=3, transform=above, clip_on=False)
        aside, side = (0.04, "left") if step <= 0.5 * last else (-0.04, "right")
        ax.text(
            step + aside * (last or 1), height, f"{what} not finite from step {step}",
            color=colour, va="center", ha=side, fontsize=12, transform=above,
        )  # fmt: skip
    ax.set_xlabel("step")
    whole_ticks(ax)
    return len(crosses)


def breakdown(steps: pd.DataFrame) -> tuple[int, str] | None:
    """The first step at which a run is not finite, and what is not: the same for every measure.

    None if all runs are finite throughout.
    """
    found = []
    for measure, what in WATCHED.items():
        values = steps.get(measure)
        # Causal mixing and plain networks may have no H_res at all.
        if values is None or (what == "H_res" and values.isna().all()):
            continue
        broken = values > 0 if measure == "nonfinite_event" else ~np.isfinite(values.astype(float))
        if broken.any():
            found.append((int(steps.loc[broken, "step"].min()), what))
    return min(found, key=lambda pair: pair[0], default=None)


def chance(ax: Axes, level: float, side: Literal["left", "right"] = "right") -> None:
    """A dotted line at the loss of a network that has learned nothing, named at that end."""
    ax.axhline(level, color=GREY, ls=":", lw=1.5, zorder=1)
    ax.annotate(
        "chance", ({"left": 0.01, "right": 0.99}[side], level), xycoords=ax.get_yaxis_transform(),
        xytext=(0, 2), textcoords="offset points", ha=side, va="bottom", color=GREY, fontsize=11,
        bbox={"fc": "white", "ec": "none", "alpha": 0.7, "pad": 0.5},
    )  # fmt: skip
    log_if_wide(ax)


def chance_of(table: pd.DataFrame) -> float:
    """The chance level of a study, in nats, from a table of its runs."""
    return float(table["chance_loss"].iloc[0])


# --- axes ---------------------------------------------------------------------------------------


def log_if_wide(ax: Axes) -> None:
    """A logarithmic axis where what stands on it spans more than a decade, else a linear one.

    Panels that share their axis count together.
    """
    limits = [other.dataLim for other in ax.get_shared_y_axes().get_siblings(ax)]
    low, high = min(limit.minposy for limit in limits), max(limit.y1 for limit in limits)
    ax.set_yscale("log" if high > DECADE * low else "linear")
    if DECADE * low < high < DECADE**3 * low:
        few_decades(ax.yaxis)


def as_constant(ax: Axes) -> None:
    """A y axis of values that differ by rounding alone shows them as one, and not its digits."""
    limits = [other.dataLim for other in ax.get_shared_y_axes().get_siblings(ax)]
    low, high = min(limit.y0 for limit in limits), max(limit.y1 for limit in limits)
    size = max(abs(low), abs(high))
    if high - low < 1e-4 * size < np.inf:
        ax.set_ylim(low - 0.05 * size, high + 0.05 * size)


def few_decades(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 of every decade: powers of ten alone would be too few to read from."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_locator(NullLocator())


def counts(ax: Axes) -> None:
    """A y axis of counts: from zero, at whole numbers."""
    top = max(1.0, ax.dataLim.y1)
    ax.set_ylim(-0.03 * top, 1.05 * top)
    whole_ticks(ax, "y")


def whole_ticks(ax: Axes, axis: Literal["x", "y"] = "x") -> None:
    """A few ticks on an axis, at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    of = ax.xaxis if axis == "x" else ax.yaxis
    of.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))


# --- seeds --------------------------------------------------------------------------------------


def point_with_interval(
    ax: Axes,
    row: Mapping[str, Any],
    measure: str,
    y: float,
    times: float = 1,
    **looks: Any,  # noqa: ANN401
) -> None:
    """A mean over seeds at a height, and its interval where there is one: `row` of the summary."""
    mean, low, high = (times * row[f"{measure}_{part}"] for part in ("mean", "low", "high"))
    if np.isfinite(mean):
        ax.errorbar(mean, y, xerr=sides_of(mean, low, high), ms=8, capsize=5, **looks)


def sides_of(mean: Any, low: Any, high: Any) -> np.ndarray:  # noqa: ANN401, numbers or arrays
    """[2, …]: how far an interval reaches to both sides of the mean, as error bars are given.

    Rounding may put the mean of equal values a little beside them. NaN draws no bar.
    """
    return np.maximum([mean - low, high - mean], 0).reshape(2, -1)


def logarithmic_x(ax: Axes) -> None:
    """A logarithmic x axis with at most six ticks."""
    from matplotlib.ticker import LogLocator

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(numticks=6))


# --- title and legend ---------------------------------------------------------------------------


def sign(label: str, **looks: Any) -> Line2D:  # noqa: ANN401, as Line2D takes them
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **looks)


def signs_of(variants: Sequence[str], **looks: Any) -> list[Line2D]:  # noqa: ANN401, likewise
    """Entries of a legend: every variant in its colour."""
    return [sign(variant, color=colour_of(variant), **looks) for variant in variants]


def entitle(figure: Figure, title: str) -> None:
    """The title above all panels."""
    with in_style():
        figure.suptitle(title, fontsize=14)


def legend(figure: Figure, signs: Sequence[Line2D] | None = None, *, columns: int) -> None:
    """The legend below all panels; without signs, of what has a label."""
    handles = {} if signs is None else {"handles": signs}
    with in_style():
        figure.legend(**handles, loc="outside lower center", ncols=columns, frameon=False)


def finished(
    figure: Figure, variants: Sequence[str], title: str, more: Sequence[Line2D] = ()
) -> Figure:
    """Title above, the variants and more signs below: neither covers data."""
    entitle(figure, title)
    signs = [*signs_of(variants), *more]
    labels = [str(sign.get_label()) for sign in signs]
    legend(figure, signs, columns=columns_for(figure, labels))
    return figure


def columns_for(figure: Figure, labels: Sequence[str]) -> int:
    """How many entries of a legend fit beside each other."""
    width = 1 + 0.125 * max(map(len, labels), default=0)  # inches: the sign, and its letters
    return max(1, min(len(labels), int(figure.get_figwidth() / width)))
