"""Figures of any metric against step or depth, which need no function of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from fathom_study import tasks
from fathom_study.analysis.tables import is_whole
from fathom_study.metrics.steps import POSITIVE
from fathom_study.report.figures import frames, style
from fathom_study.report.figures.palette import colour_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fathom_study.metrics.scores import Score

MOST_LINES = 8
"""Maximum number of variants with a line for each; beyond it, a figure has rows or is not drawn."""

MOST_PANELS = 6
"""Maximum number of depths with a panel for each; beyond it, only the deepest."""


def step_label(metric: str, loss_unit: str) -> str:
    """The axis label of a step metric, with its unit, perhaps in two lines."""
    label = tasks.step_metrics()[metric].label
    return f"{label} ({loss_unit})" if metric == "loss" and loss_unit else label


def run_label(metric: str, loss_unit: str) -> str:
    """The axis label of a run metric: its own, or its step metric's with its definition."""
    entry = tasks.run_metrics()[metric]
    return entry.label or f"{step_label(entry.of, loss_unit)}:\n{entry.definition}"


def score_label(score: Score) -> str:
    """The axis label of a score, with its unit in a second line."""
    return f"{score.label}\n({score.unit})" if score.unit else score.label


def in_words(label: str) -> str:
    """A label for use in a sentence: one line, without unit and derivation."""
    return re.split(r" \(|:", " ".join(label.split()))[0]


def is_log(metric: str) -> bool:
    """Whether a run metric is drawn and averaged by its logarithm."""
    return tasks.bounds_of(metric) == POSITIVE


# --- against step -------------------------------------------------------------------------------


def against_step(steps: pd.DataFrame, metric: str, title: str) -> Figure:
    """A panel for each compared depth: a step metric against step, a line for each variant.

    A metric of every step is smoothed unless it is a whole number: a point is a mean of the last
    steps. A cross above the panel is the first step at which a run is not finite.
    """
    entry = tasks.step_metrics()[metric]
    is_evaluated = entry.when == "evaluations"
    if is_evaluated and metric in steps:
        steps = steps[steps["step"].isin(steps.loc[steps[metric].notna(), "step"])]
    having = frames.with_or_failed(steps, metric)
    if having.empty:
        return style.placeholder(f"{title}\nno run has a {in_words(entry.label)}")
    page, axes, variants = _of_depths(having)
    label = axis_label = step_label(metric, style.loss_unit())
    for depth, ax in axes.items():
        rows = having[having["depth"] == depth]
        is_smooth = entry.when == "every step" and not entry.whole
        drawn = rows[is_whole(rows)] if is_smooth else rows
        fewest = drawn.groupby(["variant", "seed"]).size().min()  # a run keeps what is not finite
        window = max(1, fewest // frames.SMOOTH) if is_smooth else 1
        curves(ax, drawn, "step", metric, variants, log=entry.log, window=window)
        for variant, runs in rows.groupby("variant", sort=False):
            if broken := frames.first_nonfinite(runs, metric if is_evaluated else ""):
                style.cross(ax, broken[0], colour_of(variant), "not finite from this step")
        last = int(rows["step"].max())
        ax.set(xlabel="step", xlim=(-0.02 * last, 1.02 * last or 1))
        style.whole_ticks(ax)
        if entry.whole:
            style.whole_ticks(ax, "y")
        if window > 1:
            steps_of = "steps" if fewest > last else "kept steps"
            axis_label = f"{label},\nmean of {window} {steps_of}"
    next(iter(axes.values())).set_ylabel(axis_label)
    return style.finish(page, title)


def along(profiles: pd.DataFrame, metric: str, title: str, *, exact: str = "") -> Figure:
    """A panel for each compared depth: a profile along its axis, a line for each variant.

    `exact`: a profile that is the same in every run, drawn dotted.
    """
    entry = tasks.step_metrics()[metric]
    own = profiles[profiles["metric"] == metric]
    if own.empty:
        return style.placeholder(f"{title}\nno run has a {in_words(entry.label)}")
    same = profiles[profiles["metric"] == exact].drop_duplicates("at")
    page, axes, variants = _of_depths(own)
    for depth, ax in axes.items():
        curves(ax, own[own["depth"] == depth], "at", "value", variants, log=entry.log)
        if exact:
            label = in_words(tasks.step_metrics()[exact].label)
            ax.plot(
                same["at"].astype(float), same["value"].astype(float), label=label, **style.LEVEL
            )
        places = own["at"].astype(float)
        if entry.log and places.min() > 0:
            ax.set_xscale("log")
        elif (places % 1 == 0).all():
            style.whole_ticks(ax)
        ax.set_xlabel(entry.along)
    next(iter(axes.values())).set_ylabel(entry.label)
    return style.finish(page, title)


def _of_depths(table: pd.DataFrame) -> tuple[Figure, dict[int, Axes], list[str]]:
    """A figure, its panels by depth and the variants that it compares."""
    depths = frames.compared_depths(table, MOST_PANELS)
    page, axes = style.panels(len(depths), sharey=True)
    for ax, depth in zip(axes, depths, strict=True):
        ax.set_title(style.count_layers(depth), pad=18)
    variants = list(table.loc[table["depth"].isin(depths), "variant"].unique())
    return page, dict(zip(depths, axes, strict=True)), variants


def curves(
    ax: Axes,
    rows: pd.DataFrame,
    axis: str,
    metric: str,
    variants: Sequence[str],
    *,
    log: bool,
    window: int = 1,
) -> None:
    """Draw a line for each variant, its mean, and a band, the range over its seeds."""
    course = frames.over_seeds(rows, axis, metric, window, geometric=log)
    for variant, points in course.groupby("variant", sort=False):
        points = points.astype({axis: float, "mean": float, "low": float, "high": float})
        looks = style.curve(variant, variants.index(variant))
        marker = "o" if len(points) == 1 else None
        ax.plot(points[axis], points["mean"], marker=marker, lw=1.8, **looks)
        ax.fill_between(
            points[axis], points["low"], points["high"], color=looks["color"], alpha=0.15, lw=0
        )
    if ax.has_data():
        style.value_axis(ax, log=log)


# --- against depth ------------------------------------------------------------------------------


class Values(NamedTuple):
    """Values of a run metric or the score, and their presentation."""

    means: pd.DataFrame
    """Result of `frames.means_of`."""
    runs: pd.DataFrame
    """Runs with a value, from `frames.runs_of`."""
    label: str
    """Label of its axis."""
    levels: dict[str, float]
    """Values at which to draw lines, by name."""
    log: bool
    """Whether the axis is logarithmic where values span more than a decade."""


def values_of(
    cells: pd.DataFrame, metric: str, score: Score | None = None, start: str = ""
) -> Values:
    """The values of a run metric, or of the score if `metric` is 'score' or the score's metric.

    `cells`: rows of one study on one platform. `start`: see `against_depth`.
    """
    if score is not None and metric in ("score", score.metric):
        log, label = is_log(score.metric), score_label(score)
        levels, metric = levels_of(cells, score), "score"
    else:
        log, label, levels = is_log(metric), run_label(metric, style.loss_unit()), {}
    runs = frames.runs_of(cells, metric, start)
    means = frames.means_of(runs, geometric=log, all_failed=metric == "score")
    runs = runs.dropna(subset="value")
    levels = frames.near(levels, runs["value"])
    return Values(means, runs, label, levels, log)


def points(values: Values, title: str) -> Figure:
    """Values of one depth: a row for each variant, a dot for every run, a bar at their mean."""
    variants = list(values.means["variant"].unique())
    page, ax, places = style.row_panel([(style.label_of(variant), {}) for variant in variants])
    for row in values.means.to_dict("records"):
        colour, y = colour_of(row["variant"]), places[variants.index(row["variant"])]
        own = values.runs.loc[values.runs["variant"] == row["variant"], "value"]
        ax.plot(own, [y] * len(own), color=colour, **style.DOT)
        if row["failed"]:
            style.cross(ax, y, colour, value=row["mean"], axis="y")
        else:
            ax.plot(row["mean"], y, "|", ms=14, mew=3, color=colour)
    for i, (label, value) in enumerate(values.levels.items()):
        style.level(ax, label, value, i, "x")
    style.legend_entry(ax, "mean over seeds", marker="|", ms=14, mew=3)
    style.value_axis(ax, "x", log=values.log)
    ax.set_xlabel(" ".join(values.label.split()))
    ax.set_title(style.count_layers(values.means["depth"].iloc[0]))
    return style.finish(page, title)


def lines(ax: Axes, values: Values, axis: str, of: str) -> list[float]:
    """Draw values against the column `axis`: a line of means for each value of `of`.

    The places of the axis are evenly spaced, and marks at one place side by side. A cross is a run
    that diverged: at the mean of `start`, or above the panel. Returns the places.
    """
    means = values.means.sort_values(axis, kind="stable")
    places, names = sorted(means[axis].unique()), list(values.means[of].unique())
    for position, (name, group) in enumerate(values.means.groupby(of, sort=False)):
        group = group.sort_values(axis, kind="stable")
        looks, shift = style.series(name, position), style.aside(position, len(names), 0.5)
        x = group[axis].map(places.index) + shift
        whole = np.flatnonzero(~group["failed"])  # others have a cross
        ax.plot(x, group["mean"], label=style.label_of(name), markevery=whole, **looks)
        runs = values.runs[values.runs[of] == name]
        ax.plot(
            runs[axis].map(places.index) + shift, runs["value"], color=looks["color"], **style.DOT
        )
        for at, mean in zip(x[group["failed"]], group.loc[group["failed"], "mean"], strict=True):
            style.cross(ax, at, looks["color"], value=mean)
    for i, (label, value) in enumerate(values.levels.items()):
        style.level(ax, label, value, i)
    style.value_axis(ax, log=values.log)
    ax.set_xticks(range(len(places)), [f"{place:g}" for place in places])
    ax.set(ylabel=values.label, xlim=(-0.5, len(places) - 0.5))
    return places


def against_depth(
    cells: pd.DataFrame, metric: str, title: str, *, score: Score | None = None, start: str = ""
) -> Figure:
    """A run metric against depth: a line for each variant, a dot for each run.

    A cross: a run diverged. It stands at the mean of the run metric `start`, if given, else above
    the panel. With one depth or more than MOST_LINES variants: a row for each variant at the common
    depth. `score`: of the study; the score's figure has lines at chance and of the oracle.
    """
    if metric not in cells:  # a metric of another task
        label = run_label(metric, style.loss_unit())
        return style.placeholder(f"{title}\nno run has a {in_words(label)}")
    values = values_of(cells, metric, score, start)
    if values.means.empty:
        return style.placeholder(f"{title}\nno run has a {in_words(values.label)}")
    if values.means["depth"].nunique() == 1 or values.means["variant"].nunique() > MOST_LINES:
        own = values_of(frames.at_common_depth(cells), metric, score, start)
        return points(own, title)
    page, (ax,) = style.panels()
    lines(ax, values, "depth", "variant")
    ax.set_xlabel(style.depth_label())
    return style.finish(page, title)


def levels_of(cells: pd.DataFrame, score: Score) -> dict[str, float]:
    """The levels drawn with a score, by name: chance and its oracle.

    `cells`: the rows of one study in cells.csv.
    """
    levels = {"chance": frames.constant(cells, "score_chance")}
    if score.oracle and isinstance(score.oracle.level, str):
        levels[score.oracle.label] = frames.constant(cells, score.oracle.level)
    elif score.oracle and score.oracle.level != score.perfect:  # the edge of the axis needs no line
        levels[score.oracle.label] = score.oracle.level
    return {name: value for name, value in levels.items() if value is not None}
