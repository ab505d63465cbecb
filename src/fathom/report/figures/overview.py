"""The figures over all studies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.analysis.places import PLACE, Place
from fathom.measures import POSITIVE
from fathom.report.figures import figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FACTORS = {
    "recipe": ("recipe", "#0072B2"),
    "place": ("backend", "#D55E00"),
    "seed": ("seed", "#999999"),
    "other": ("interactions", "#E5E5E5"),
}
"""Label and colour by column of the table."""

MEASURES = {"loss_final": "final loss (nats)", "gain_final": "final log10 gain"}
"""The published measures that are drawn, with the labels of their axes."""

LINES = ("-", "--", ":", "-.")
"""Of places, by their number."""


@figure
def loss_against_depth(cells: pd.DataFrame) -> Figure:
    """Final loss against depth by variant, a panel for every study over depth, with its recipe.

    A point is the geometric mean over seeds, a bar their range. Hollow: a seed ended at chance. A
    cross: a seed diverged, and there is no mean. Dotted: the loss at chance. A depth whose runs are
    of another length says so.
    """
    from fathom.analysis.tables import counted  # it loads SciPy

    sweeps = sweeps_of(counted(cells))
    if not sweeps:
        return style.without_data("no study was measured at more than one depth")
    columns = min(3, len(sweeps))
    rows = -(-len(sweeps) // columns)
    page, axes = style.grid(rows, columns, (style.WIDTH, 1.3 + 3.4 * rows))
    flat = list(axes.flat)
    labels = list(dict.fromkeys(_labels(pd.concat(sweeps))))
    first_of: dict[float, Axes] = {}
    for ax, sweep in zip(flat, sweeps, strict=False):
        first = first_of.setdefault(style.chance_of(sweep), ax)
        if first is not ax:  # the same task: losses can be compared
            ax.sharey(first)
    for ax, sweep in zip(flat, sweeps, strict=False):
        _sweep(ax, sweep, labels)
    for ax in flat[len(sweeps) :]:
        ax.set_axis_off()
    for row in axes:
        row[0].set_ylabel("final loss (nats)")
    variants = list(pd.concat(sweeps)["variant"].unique())
    grey = {"color": style.GREY, "ms": 7}
    signs = style.signs_of(variants, lw=5)
    signs += [
        style.sign(label, marker=style.marker_of(i), ls=LINES[i % len(LINES)], **grey)
        for i, label in enumerate(labels)
    ]
    outcomes = set(pd.concat(sweeps)["outcome"])
    if "at chance" in outcomes:
        signs.append(style.sign("at chance", marker="o", mfc="white", mew=2, ls="", **grey))
    if "diverged" in outcomes:
        signs.append(style.sign("diverged", marker="x", mew=3, ls="", **grey))
    labels = [str(sign.get_label()) for sign in signs]
    style.legend(page, signs, columns=style.columns_for(page, labels))
    return page


def sweeps_of(runs: pd.DataFrame) -> list[pd.DataFrame]:
    """The runs of each study over depth: half of its variants or more were run at several.

    A study of one depth may continue one of them: it then has its recipe, its chance level, some
    of its variants, and a depth of its own.
    """
    studies = [study for _, study in runs.groupby("study", sort=False)]
    sweeps = [study for study in studies if (_depths(study) > 1).mean() >= 0.5]
    for study in studies:
        for i, sweep in enumerate(sweeps):
            if study["depth"].nunique() == 1 and _continues(study, sweep):
                sweeps[i] = pd.concat([sweep, study])
    return sweeps


def _depths(study: pd.DataFrame) -> pd.Series:
    """At how many depths each variant was run."""
    return study.groupby("variant")["depth"].nunique()


def _continues(study: pd.DataFrame, sweep: pd.DataFrame) -> bool:
    same = ["recipe", "chance_loss"]
    return (
        (study[same].iloc[0] == sweep[same].iloc[0]).all()
        and set(study["variant"]) <= set(sweep["variant"])
        and not set(study["depth"]) & set(sweep["depth"])
    )


def _labels(table: pd.DataFrame) -> list[str]:
    """Where each row was measured."""
    return [Place(*row).label for row in table[PLACE].itertuples(index=False)]


def _sweep(ax: Axes, sweep: pd.DataFrame, labels: list[str]) -> None:
    """One panel: a line for each variant and place."""
    level = style.chance_of(sweep)
    depths, variants = sorted(sweep["depth"].unique()), list(sweep["variant"].unique())
    # Above all that can be shown; a line to there is a line to a failure.
    failed = 2 * max(level, sweep["loss_final"].max())
    groups = sweep.assign(label=_labels(sweep)).groupby(["variant", "label"], sort=False)
    places = {key: i for i, key in enumerate((v, lb) for v in variants for lb in labels)}
    for (variant, label), runs in groups:
        colour, place = style.colour_of(variant), labels.index(label)
        aside = 0.045 * (places[variant, label] - (len(places) - 1) / 2)
        points = [
            (depths.index(depth) + aside, *_final(seeds, failed))
            for depth, seeds in runs.groupby("depth")
        ]
        ax.plot([x for x, *_ in points], [mean for _, mean, *_ in points],
                LINES[place % len(LINES)], color=colour, lw=1.8)  # fmt: skip
        for x, mean, low, high, outcome in points:
            looks = {"marker": style.marker_of(place), "ms": 7, "mew": 1.8}
            looks |= {"at chance": {"mfc": "white"}, "diverged": {"marker": "x", "ms": 9, "mew": 3}
                      }.get(outcome, {})  # fmt: skip
            ax.errorbar(
                x, mean, yerr=style.sides_of(mean, low, high), color=colour, capsize=2, **looks
            )
    style.chance(ax, level, "left")
    ax.margins(y=0.1)  # room for the name of the line, below the title
    usual = sweep["steps"].mode().iloc[0]
    steps = {depth: group["steps"].iloc[0] for depth, group in sweep.groupby("depth")}
    ax.set_xticks(
        range(len(depths)),
        [str(d) if steps[d] == usual else f"{d}\n{steps[d]:g} steps" for d in depths],
    )
    ax.set_xlim(-0.4, len(depths) - 0.6)
    ax.set_xlabel("layers")
    studies = ", ".join(sweep["study"].unique())
    ax.set_title(f"{studies}\nrecipe {sweep['recipe'].iloc[0]}", loc="left")


def _final(seeds: pd.DataFrame, failed: float) -> tuple[float, float, float, str]:
    """(mean, lowest, highest, what became of them) of the final losses of a group of seeds."""
    from fathom.analysis.tables import spread  # it loads SciPy

    outcomes = set(seeds["outcome"])
    if "diverged" in outcomes:
        return failed, failed, failed, "diverged"
    losses = seeds["loss_final"].astype(float)
    outcome = "at chance" if "at chance" in outcomes else "learned"
    return spread(losses, POSITIVE)["mean"], losses.min(), losses.max(), outcome


@figure
def variance(variance: pd.DataFrame) -> Figure:
    """Shares of the variance of log10 loss by recipe, backend, seed and their interactions."""
    if variance.empty:
        return style.without_data("nothing to decompose")
    page, (ax,) = style.panels(1)
    names = [
        f"{v}, {d} layers" for d, v in zip(variance["depth"], variance["variant"], strict=True)
    ]
    left = np.zeros(len(variance))
    for factor, (label, colour) in FACTORS.items():
        ax.barh(names, 100 * variance[factor], left=left, color=colour, label=label)
        left += 100 * variance[factor].to_numpy()
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the variance of log10 loss (%)")
    style.entitle(page, "What explains the final loss")
    style.legend(page, columns=4)
    return page


@figure
def published(published: pd.DataFrame) -> Figure:
    """Published values, hollow, beside ours, filled, with the 95 % interval over seeds.

    A cross: not finite.
    """
    table = published[published["measure"].isin(MEASURES) & (published["backend"] != "")]
    table = table.assign(label=_labels(table))
    studies = list(table["study"].unique())
    if not studies:
        return style.without_data("no published value was repeated")
    page, axes = style.grid(len(studies), 2, (style.WIDTH, 1 + 2.9 * len(studies)))
    labels = list(table["label"].unique())
    for row, study in zip(axes, studies, strict=True):
        for ax, (measure, label) in zip(row, MEASURES.items(), strict=True):
            chosen = table[(table["study"] == study) & (table["measure"] == measure)]
            _beside(ax, chosen, labels)
            if measure == "loss_final":
                style.log_if_wide(ax)
            else:
                style.as_constant(ax)
            ax.set_ylabel(label)
        row[0].set_title(study, loc="left")
    grey = {"color": style.GREY, "ls": ""}
    signs = style.signs_of(list(table["variant"].unique()), lw=6)
    signs.append(style.sign("published", marker="D", mfc="none", ms=9, **grey))
    signs += [
        style.sign(f"ours, {label}", marker=style.marker_of(i), ms=8, **grey)
        for i, label in enumerate(labels)
    ]
    signs.append(style.sign("not finite", marker="x", ms=9, mew=3, **grey))
    style.legend(page, signs, columns=4)
    return page


def _beside(ax: Axes, table: pd.DataFrame, labels: list[str]) -> None:
    depths, variants = sorted(table["depth"].unique()), list(table["variant"].unique())
    slots = 1 + len(labels)
    for _, row in table.iterrows():
        # A group per depth, in it a block per variant, in it published first and then ours.
        block = depths.index(row["depth"]) + 0.28 * (
            variants.index(row["variant"]) - (len(variants) - 1) / 2
        )
        colour, step = style.colour_of(row["variant"]), 0.2 / slots
        place = labels.index(row["label"])
        x = block + step * (1 + place)
        _point(ax, block, row["published"], "D", colour, hollow=True)
        _point(ax, x, row["mean"], style.marker_of(place), colour, hollow=False)
        if np.isfinite(row["low"]):
            sides = style.sides_of(row["mean"], row["low"], row["high"])
            ax.errorbar(x, row["mean"], yerr=sides, color=colour, capsize=3)
    ax.set_xticks(range(len(depths)), [f"{d} layers" for d in depths])
    ax.margins(y=0.12)


def _point(ax: Axes, x: float, value: float, marker: str, colour: str, *, hollow: bool) -> None:
    if not np.isfinite(value):
        # In the margin above all that is finite, and whole.
        looks = {"transform": ax.get_xaxis_transform(), "clip_on": False}
        ax.plot(x, 0.96, "x", color=colour, ms=9, mew=3, **looks)
        if hollow:
            ax.plot(x, 0.96, marker, mec=colour, mfc="none", ms=13, **looks)
        return
    looks = {"mfc": "none", "ms": 9} if hollow else {"ms": 8}
    ax.plot(x, value, marker, color=colour, ls="", **looks)
