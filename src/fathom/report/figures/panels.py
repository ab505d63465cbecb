"""Figures of any metric against step or depth, which need no function of their own."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd

from fathom import tasks
from fathom.analysis.tables import is_whole
from fathom.metrics.steps import POSITIVE, SHARE
from fathom.report.figures import frames, palette, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from fathom.metrics.scores import Score

SMOOTH = 50
"""Number of averaging windows in a curve of every step; noise of batches would hide it."""

WIDE = 16
"""Ratio of depths from which their axis is logarithmic, as small ones overlap on a linear axis."""


PERFECT = 0.99
"""Mean share from which a panel shows no difference from 1."""


def step_label(metric: str, rows: pd.DataFrame) -> str:
    """The axis label of a step metric, with its unit, perhaps in two lines.

    `rows`: of the study or the run that is drawn, whose column `loss_unit` gives the unit.
    """
    label = tasks.step_metrics()[metric].label
    return with_loss_unit(label, rows) if metric == "loss" else label


def with_loss_unit(label: str, rows: pd.DataFrame) -> str:
    """A label with the unit in the column of `frames.with_loss_unit`, if all rows share one."""
    units = rows["loss_unit"].unique() if "loss_unit" in rows else ()
    return f"{label} ({units[0]})" if len(units) == 1 else label


def run_label(metric: str, rows: pd.DataFrame) -> str:
    """The axis label of a run metric: its own, or its step metric's with its definition."""
    entry = tasks.run_metrics()[metric]
    return entry.label or f"{step_label(entry.of, rows)}:\n{entry.definition}"


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


def against_step(
    steps: pd.DataFrame,
    metric: str,
    title: str,
    *,
    label: str = "",
    log: bool | None = None,
    levels: Mapping[str, float | None] | None = None,
) -> Figure:
    """A panel for each depth: a step metric against step, a line for each variant.

    `label` and `log` override the metric's own. `levels`: values at which to draw dotted lines, by
    name.
    """
    entry = tasks.step_metrics()[metric]
    steps = frames.evaluations(steps, metric) if entry.when == "evaluations" else steps
    having = frames.with_or_failed(steps, metric)
    if having.empty:
        return style.placeholder(f"{title}\nno run has a {in_words(entry.label)}")
    depths = sorted(having["depth"].unique())
    page, axes = style.panels(len(depths), sharey=True)
    marks = [
        curves(ax, having[having["depth"] == depth], metric, log=log, levels=levels)
        for ax, depth in zip(axes, depths, strict=True)
    ]
    for position, (ax, depth) in enumerate(zip(axes, depths, strict=True)):
        row = (
            position - position % style.PANELS_PER_ROW
        )  # panels in a row share an axis and the height of titles
        if position > row:
            ax.set_ylabel("")
        elif label:
            ax.set_ylabel(label)
        ax.set_title(
            style.count_layers(depth), pad=6 + 24 * max(marks[row : row + style.PANELS_PER_ROW])
        )
    return style.finish(page, title, style.legend_handles(having["variant"].unique()))


def along(profiles: pd.DataFrame, metric: str, title: str, *, exact: str = "") -> Figure:
    """A panel for each depth: a profile along its axis, a line for each variant.

    `exact`: a profile that is the same in every run, drawn dotted. For shares, a depth at which all
    means are PERFECT has no panel; the title names it.
    """
    entry = tasks.step_metrics()[metric]
    own = profiles[profiles["metric"] == metric]
    if own.empty:
        return style.placeholder(f"{title}\nno run has a {in_words(entry.label)}")
    depths = sorted(own["depth"].unique())
    full = [depth for depth in depths if entry.bounds == SHARE and _is_perfect(own, depth)]
    if full:
        counts = ", ".join(style.count_layers(depth) for depth in full)
        title += f"\nnot drawn, as every mean is {PERFECT:g} or more: {counts}"
        depths = [depth for depth in depths if depth not in full]
    if not depths:
        return style.placeholder(title)
    own = own[own["depth"].isin(depths)]
    same = profiles[profiles["metric"] == exact].drop_duplicates("at")
    theory = same["at"].astype(float), same["value"].astype(float)
    page, axes = style.panels(len(depths), sharey=True)
    for position, (ax, depth) in enumerate(zip(axes, depths, strict=True)):
        course = frames.over_seeds(own[own["depth"] == depth], "at", "value", geometric=entry.log)
        style.bands(ax, course, "at")
        if exact:
            ax.plot(*theory, color=palette.GREY, ls=":", zorder=1)
        if entry.log:
            style.log_if_wide(ax)
        places = course["at"]
        if places.min() > 0 and places.max() >= WIDE * places.min():
            ax.set_xscale("log")
        elif (places % 1 == 0).all():
            style.whole_ticks(ax)
        ax.set_xlabel(entry.along)
        ax.set_ylabel("" if position % style.PANELS_PER_ROW else entry.label)
        ax.set_title(style.count_layers(depth))
    handles = style.legend_handles(own["variant"].unique())
    if exact:
        looks = {"color": palette.GREY, "ls": ":"}
        handles.append(style.legend_handle(in_words(tasks.step_metrics()[exact].label), **looks))
    return style.finish(page, title, handles)


def _is_perfect(profile: pd.DataFrame, depth: int) -> bool:
    """Whether every variant's mean over seeds is at least PERFECT at every place."""
    of_places = profile[profile["depth"] == depth].groupby(["variant", "at"])["value"]
    return bool((of_places.mean() >= PERFECT).all())


def side_by_side(steps: pd.DataFrame, metrics: Sequence[str], title: str) -> Figure:
    """Step metrics in columns, depths in rows; the title names variants whose curves coincide.

    Variants and whole columns without a metric are left out; the title names such columns.
    """
    having = {metric: frames.with_all(steps, [metric]) for metric in metrics}
    kept = [metric for metric in metrics if not having[metric].empty]
    for metric in metrics:
        if metric not in kept:
            title += f"\nno variant has a {in_words(step_label(metric, steps))}"
    if not kept:
        return style.placeholder(title)
    whole = pd.concat(having.values())
    depths = sorted(whole["depth"].unique())
    page, axes = style.grid(len(depths), len(kept), (style.WIDTH, 4.4 * len(depths)))
    for row, depth in zip(axes, depths, strict=True):
        for ax, metric in zip(row, kept, strict=True):
            rows = having[metric][having[metric]["depth"] == depth]
            marks = curves(ax, rows, metric)
            ax.set_title(style.count_layers(depth), pad=6 + 24 * marks)
    variants = [v for v in steps["variant"].unique() if v in set(whole["variant"])]
    same = frames.coinciding(frames.with_all(steps, kept), kept)
    return style.finish(page, title + coincide(same), style.legend_handles(variants))


def coincide(groups: Sequence[Sequence[str]]) -> str:
    """A line of a title that names variants whose curves coincide; empty without any."""
    named = "; ".join(", ".join(map(style.label_of, group)) for group in groups)
    return "\n" + textwrap.fill(f"these coincide: {named}", 90) if groups else ""


def curves(
    ax: Axes,
    rows: pd.DataFrame,
    metric: str,
    *,
    log: bool | None = None,
    levels: Mapping[str, float | None] | None = None,
) -> int:
    """Draw a step metric of one depth; return the number of marks above the panel.

    A panel without data says so. `log`, `levels`: see `against_step`. A metric of every step is
    smoothed unless it is a whole number: a point is a mean of the last steps.
    """
    entry = tasks.step_metrics()[metric]
    failures = frames.failures(rows, metric if entry.when == "evaluations" else "")
    if metric not in rows or (rows[metric].isna().all() and failures.empty):
        style.say(ax, f"no variant has a\n{in_words(entry.label)}")
        return 0
    log = entry.log if log is None else log
    for name, value in (levels or {}).items():  # before the curves, as levels affect the axis
        if value is not None:
            style.level(ax, name, value)
    has_all = entry.when == "every step" and not entry.whole
    drawn = rows[is_whole(rows)] if has_all and metric != "loss" else rows
    window = max(1, drawn["step"].nunique() // SMOOTH) if has_all else 1
    course = frames.over_seeds(drawn, "step", metric, window, geometric=log)
    style.curves(ax, course, failures, int(rows["step"].max()), log=log)
    if entry.whole:
        style.counts(ax)
    label = step_label(metric, rows)
    of = "steps" if len(drawn) == len(rows) else "kept steps"
    ax.set_ylabel(label + (f",\nmean of {window} {of}" if window > 1 else ""))
    return len(failures)


# --- against depth ------------------------------------------------------------------------------


class Values(NamedTuple):
    """Values of a run metric or the score by group of seeds, and their presentation."""

    groups: pd.DataFrame
    """Result of `frames.groups_of_seeds`."""
    runs: pd.DataFrame | None
    """Result of `frames.runs_of`, drawn in place of intervals."""
    label: str
    """Label of its axis."""
    levels: dict[str, float]
    """Values at which to draw lines, by name."""
    log: bool
    """Whether the axis is logarithmic where values span more than a decade."""


def values_of(
    summary: pd.DataFrame,
    metric: str,
    score: Score | None = None,
    start: str = "",
    cells: pd.DataFrame | None = None,
) -> Values:
    """The values of a run metric, or of the score if `metric` is 'score' or the score's metric.

    `summary`, `cells`: rows of one study on one platform. `start`: see `against_depth`.
    """
    if score is not None and metric in ("score", score.metric):
        metric, label, levels = "score", score_label(score), levels_of(summary, score)
        log = is_log(score.metric)
    else:
        label, levels, log = run_label(metric, summary), {}, is_log(metric)
    groups = frames.groups_of_seeds(summary, metric, start)
    runs = None if cells is None else frames.runs_of(cells, metric, groups)
    values = groups["mean"] if runs is None else runs["value"]
    levels = frames.near(levels, values)
    if runs is not None and log:
        groups = frames.without_means_of_split(groups, runs)
    return Values(groups, runs, label, levels, log)


DOT: dict[str, Any] = {"marker": "o", "ms": 6, "alpha": 0.5, "mew": 0, "ls": ""}
"""Marker style of a run."""


def points(ax: Axes, values: Values, variants: Sequence[str]) -> None:
    """Draw values of one depth: a row for each variant, top down, with a dot for every run.

    A line across the dots is their mean. A variant without values has an empty row; one with a
    failed run has a cross at its start, or the words 'not finite' beside the values.
    """
    for row in values.groups.to_dict("records"):
        colour, y = palette.colour_of(row["variant"]), variants.index(row["variant"])
        if values.runs is not None:
            own = values.runs.loc[values.runs["variant"] == row["variant"], "value"]
            ax.plot(own, [y] * len(own), color=colour, **DOT)
        if not row["failed"]:
            bars = style.error_bars(row["mean"], row["low"], row["high"])
            ax.errorbar(
                row["mean"], y, xerr=bars if values.runs is None else None, color=colour,
                marker="|", ms=16, mew=3, capsize=5,
            )  # fmt: skip
        elif math.isfinite(row["mean"]):
            ax.plot(row["mean"], y, color=colour, clip_on=False, **style.CROSS)
        else:
            ax.text(
                0.98, y, "not finite", color=colour, transform=ax.get_yaxis_transform(),
                ha="right", va="center",
            )  # fmt: skip
    style.vertical_levels(ax, values.levels)
    if values.log:
        style.log_if_wide(ax, "x")
    if ax.get_xscale() == "linear":
        style.as_constant(ax, "x")
    style.rows_of_names(ax, [style.label_of(variant) for variant in variants])
    ax.set_xlabel(values.label)


def lines(ax: Axes, values: Values, axis: str, of: str, apart: float = 5) -> list[Line2D]:
    """Draw values against the column `axis`: a line of means for each value of `of`.

    Lines are shifted by `apart` points, so that values at the same place do not overlap. A line to
    a cross is dashed. No line leads to seeds without a mean. Returns the legend.
    """
    groups = values.groups.sort_values(axis, kind="stable")
    names = list(groups[of].unique())
    lost = groups["failed"] & groups["mean"].isna()
    for position, (name, group) in enumerate(groups.groupby(of, sort=False)):
        colour, known = palette.colour_of(name), group[~lost.loc[group.index]].to_dict("records")
        aside = style.aside(position, len(names), apart)
        beside = {"color": colour, "transform": style.shifted(ax, aside)}
        for a, b in itertools.pairwise(known):
            line = "--" if a["failed"] or b["failed"] else "-"
            ax.plot([a[axis], b[axis]], [a["mean"], b["mean"]], line, **beside)
        whole, failed = group[~group["failed"]], group[group["failed"] & group["mean"].notna()]
        bars = style.error_bars(whole["mean"], whole["low"], whole["high"])
        ax.errorbar(
            whole[axis], whole["mean"], ls="", ms=8, capsize=5, marker=palette.marker_of(position),
            yerr=bars if values.runs is None else None, **beside,
        )  # fmt: skip
        if values.runs is not None:
            own = values.runs[values.runs[of] == name]
            ax.plot(own[axis], own["value"], **DOT, **beside)
            ax.update_datalim(own[[axis, "value"]].to_numpy(float))
        ax.plot(failed[axis], failed["mean"], ls="", **style.CROSS, **beside)
        for column in ("mean", "low", "high") if values.runs is None else ("mean",):
            # Matplotlib does not count shifted points.
            ax.update_datalim(group[[axis, column]].dropna().to_numpy(float))
    ax.autoscale_view()
    style.crosses(ax, groups.loc[lost, axis], [palette.colour_of(n) for n in groups.loc[lost, of]])
    ax.set_ylabel(values.label)
    value_axis(ax, values.levels, log=values.log)
    handles = [
        style.legend_handle(
            style.label_of(name), color=palette.colour_of(name), marker=palette.marker_of(i), ms=7
        )
        for i, name in enumerate(names)
    ]
    return handles + ([diverged_handle()] if lost.any() else [])


def diverged_handle(where: str = "a run diverged") -> Line2D:
    """The legend entry of a cross."""
    return style.mark_handle(where, **style.CROSS)


def value_axis(
    ax: Axes, levels: Mapping[str, float], *, log: bool, side: Literal["left", "right"] = "left"
) -> None:
    """Set up the y axis of drawn values: its levels, named at `side`, and its scale."""
    for name, value in levels.items():
        style.level(ax, name, value, side=side)
    if log:
        style.log_if_wide(ax)
    if ax.get_yscale() == "linear":
        style.as_constant(ax)


def against_depth(
    summary: pd.DataFrame,
    metric: str,
    title: str,
    *,
    cells: pd.DataFrame | None = None,
    score: Score | None = None,
    start: str = "",
) -> Figure:
    """A run metric against depth: a line for each variant, and the runs of `cells` as dots.

    Without `cells`, intervals over seeds. A cross: a run diverged. It stands at the mean of the run
    metric `start`, if given, else above the panel. With one depth: a row for each variant. `score`:
    of the study; if the metric is the score's, lines at chance and of the oracle are drawn.
    """
    if f"{metric}_n" not in summary:  # a metric of another task
        return style.placeholder(f"{title}\nno run has a {in_words(run_label(metric, summary))}")
    values = values_of(summary, metric, score, start, cells)
    groups = values.groups
    if groups.empty:
        return style.placeholder(f"{title}\nno run has a {in_words(values.label)}")
    depths, variants = sorted(groups["depth"].unique()), list(groups["variant"].unique())
    where = "at the first step: a run diverged" if start else "a run diverged"
    handles = [diverged_handle(where)] if groups["failed"].any() else []
    if len(depths) == 1:
        page, ((ax,),) = style.grid(1, 1, (style.WIDTH, 2.3 + 0.4 * len(variants)))
        ax.set_title(style.count_layers(depths[0]))
        points(ax, values, variants)
        ax.set_xlabel(" ".join(values.label.split()))
        is_crossed = groups["mean"][groups["failed"]].notna().any()
        return style.finish(page, title, handles if is_crossed else [])
    page, (ax,) = style.panels(1)
    named = lines(ax, values, "depth", "variant")
    if depths[-1] >= WIDE * depths[0]:
        style.log_ticks(ax, depths, base=2)
    ax.set_xticks(depths, [str(depth) for depth in depths])
    ax.set_xlabel(style.depth_label())
    return style.finish(page, title, named[: len(variants)] + handles)


def levels_of(table: pd.DataFrame, score: Score) -> dict[str, float]:
    """The levels drawn with a score, by name: chance and its oracle.

    `table`: the rows of one study in cells.csv or summary.csv.
    """
    found = {"chance": frames.constant(table, "score_chance")}
    if score.oracle and isinstance(score.oracle.level, str):
        metric = score.oracle.level
        column = metric if metric in table else f"{metric}_mean"
        found[score.oracle.label] = frames.constant(table, column)
    elif score.oracle and score.oracle.level != score.perfect:  # the edge of the axis needs no line
        found[score.oracle.label] = score.oracle.level
    return {name: value for name, value in found.items() if value is not None}
