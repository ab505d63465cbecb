"""The figures of a study of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.models.connections.ingredients import LearnedGate
from fathom.report.figures import figure, figure_needing, style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

LINES = ("unigram", "bigram", "trigram")
"""Models that only count."""

RUN = ["variant", "depth", "seed"]

SMALLEST_ERROR = 1e-9
"""An error of zero is drawn here, since a logarithmic axis has no place for it."""


@figure
def validation(steps: pd.DataFrame, title: str) -> Figure:
    """Bits per character of the held-out windows against step, for every depth.

    A line is the mean over seeds, a band their range. Dotted: models that only count.
    """
    found = evaluations(steps)
    if found.empty:
        return style.without_data(f"{title}\nnothing was evaluated")
    depths = sorted(found["depth"].unique())
    page, axes = style.panels(len(depths), sharey=True)
    for ax, depth in zip(axes, depths, strict=True):
        style.curves(ax, found[found["depth"] == depth], "bits", log=False)
        ax.set_title(f"{depth} layers")
        for name, bits in counted(steps).items():
            ax.axhline(bits, color=style.GREY, ls=":", lw=1.5, zorder=1)
            if ax is axes[0]:  # the panels share their axis
                ax.annotate(
                    name, (0.01, bits), xycoords=ax.get_yaxis_transform(),
                    xytext=(0, 2), textcoords="offset points", color=style.GREY, fontsize=13,
                )  # fmt: skip
    style.label_rows(axes, "validation\n(bits per character)")
    return style.finished(page, list(found["variant"].unique()), title + alike(found, ["bits"]))


@figure
def final_bits(steps: pd.DataFrame, title: str) -> Figure:
    """Bits per character at the end, a point for every seed and a bar for their mean.

    Dotted: models that only count, where they are near.
    """
    found = evaluations(steps).dropna(subset="bits")
    if found.empty:
        return style.without_data(f"{title}\nnothing was evaluated")
    last = found.loc[found.groupby(RUN)["step"].idxmax()]
    depths, variants = sorted(last["depth"].unique()), list(last["variant"].unique())
    size = style.WIDTH, 1.8 + 0.42 * len(variants)
    page, (axes,) = style.grid(1, len(depths), size)
    for ax in axes[1:]:  # one scale for all depths, so that they can be compared
        ax.sharex(axes[0])
    low, high = last["bits"].min(), last["bits"].max()
    reach = max(high - low, 0.1)
    for ax, depth in zip(axes, depths, strict=True):
        for y, variant in enumerate(variants):
            chosen = (last["variant"] == variant) & (last["depth"] == depth)
            bits, colour = last.loc[chosen, "bits"], style.colour_of(variant)
            if not bits.empty:
                ax.plot([np.exp(np.log(bits).mean())] * 2, [y - 0.32, y + 0.32], color=colour, lw=3)
                ax.plot(bits, [y] * len(bits), "o", ms=8, color=colour, alpha=0.6)
        for name, bits in counted(steps).items():
            if low - reach <= bits <= high + reach:
                ax.axvline(bits, color=style.GREY, ls=":", lw=1.5, zorder=1)
                ax.annotate(
                    name, (bits, 0), xycoords=ax.get_xaxis_transform(), rotation=90,
                    xytext=(-4, 4), textcoords="offset points", ha="right", va="bottom",
                    color=style.GREY, fontsize=13,
                )  # fmt: skip
        ax.set_yticks(range(len(variants)), variants if ax is axes[0] else [])
        ax.set_ylim(len(variants) - 0.5, -0.5)
        ax.set_title(f"{depth} layers")
        ax.set_xlabel("bits per character")
    style.entitle(page, title)
    return page


@figure
def similarity(steps: pd.DataFrame, title: str) -> Figure:
    """Similarity of streams against step: of the stream embedding, and of the activations.

    The first is a parameter, and what the source publishes. A line is the mean over seeds, a band
    their range.
    """
    return against_step(steps, ("stream_embedding_similarity", "stream_similarity"), title)


@figure_needing(LearnedGate)
def gates(steps: pd.DataFrame, title: str) -> Figure:
    """The gate of the first layer, and the mean over layers, against step."""
    return against_step(steps, ("gate_first", "gate_mean"), title)


@figure
def matrices(steps: pd.DataFrame, title: str) -> Figure:
    """Row error and mean diagonal of the matrices that the learned logits make, against step.

    An error of zero is drawn at the lower edge.
    """
    return against_step(steps, ("base_row_error", "base_diagonal"), title)


@figure
def trade_off(steps: pd.DataFrame, title: str) -> Figure:
    """Similarity of streams against the row error of the learned matrices: a point for every run.

    At the last step. The source says that only one of the two can be low. An error of zero stands
    at the left edge.
    """
    kinds = ("stream_embedding_similarity", "stream_similarity")
    found = with_all(steps, ["base_row_error"])
    kinds = tuple(kind for kind in kinds if not with_all(found, [kind]).empty)
    if not kinds:
        return style.without_data(f"{title}\nno variant has both a Sinkhorn and a similarity")
    last = found.loc[found.groupby(RUN)["step"].idxmax()]
    depths, variants = sorted(last["depth"].unique()), list(last["variant"].unique())
    page, (axes,) = style.grid(1, len(kinds), (style.WIDTH, 5))
    for ax, kind in zip(axes, kinds, strict=True):
        for (variant, depth), runs in last.groupby(["variant", "depth"], sort=False):
            ax.plot(
                runs["base_row_error"].clip(lower=SMALLEST_ERROR), runs[kind],
                style.marker_of(depths.index(depth)), ms=9, alpha=0.7,
                color=style.colour_of(variant),
            )  # fmt: skip
        style.logarithmic_x(ax)
        ax.set_xlabel(style.label_of("base_row_error"))
        ax.set_ylabel(style.label_of(kind))
        ax.margins(0.08)
    style.entitle(page, title + alike(last, ["base_row_error", *kinds]))
    signs = style.signs_of(variants, marker="o", ls="", alpha=0.7)
    if len(depths) > 1:
        signs += [
            style.sign(f"{depth} layers", marker=style.marker_of(i), color=style.GREY, ls="")
            for i, depth in enumerate(depths)
        ]
    columns = style.columns_for(page, [sign.get_label() for sign in signs])
    style.legend(page, signs, columns=columns)
    return page


# --- what they share ----------------------------------------------------------------------------


def evaluations(steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of steps at which the network was evaluated, with `bits` per character.

    A run that is not finite then has a row without them.
    """
    if "validation_loss" not in steps:
        return steps.iloc[:0].assign(bits=[])
    evaluated = steps.loc[steps["validation_loss"].notna(), "step"]
    found = steps[steps["step"].isin(evaluated)]
    return found.assign(bits=found["validation_loss"] / math.log(2))


def counted(steps: pd.DataFrame) -> dict[str, float]:
    """Bits per character of the models that only count, by name: the same for every run."""
    columns = {name: f"{name}_bpc" for name in LINES}
    levels = {name: steps[c].dropna() for name, c in columns.items() if c in steps}
    return {name: float(values.iloc[0]) for name, values in levels.items() if not values.empty}


def with_all(steps: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """The rows of the runs that have every one of these measures, at any step."""
    if not set(measures) <= set(steps):
        return steps.iloc[:0]
    has = steps.groupby(RUN)[list(measures)].transform("count") > 0
    return steps[has.all(axis=1)]


def alike(steps: pd.DataFrame, measures: Sequence[str]) -> str:
    """A line that names variants whose runs of the same seeds lie on each other; empty without."""
    curves = {
        variant: runs.set_index(["depth", "seed", "step"])[list(measures)].sort_index()
        for variant, runs in steps.groupby("variant", sort=False)
    }
    groups: list[list[str]] = []
    for variant, own in curves.items():
        for group in groups:
            other = curves[group[0]]
            both = own.index.intersection(other.index)
            a, b = own.loc[both], other.loc[both]
            if len(both) and np.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True):
                group.append(variant)
                break
        else:
            groups.append([variant])
    told = [", ".join(group) for group in groups if len(group) > 1]
    return f"\nthese coincide: {'; '.join(told)}" if told else ""


def against_step(steps: pd.DataFrame, measures: Sequence[str], title: str) -> Figure:
    """Measures side by side, a row of panels for each depth; variants without one are left out.

    A measure that no variant has is left out too, and the title says so.
    """
    having = {measure: with_all(steps, [measure]) for measure in measures}
    shown = [measure for measure, found in having.items() if not found.empty]
    names = {measure: style.label_of(measure).replace("\n", " ") for measure in measures}
    lacking = "".join(f"\nno variant has a {names[m]}" for m in measures if m not in shown)
    if not shown:
        return style.without_data(title + lacking)
    depths = sorted(steps["depth"].unique())
    size = (style.WIDTH, 4.4 * len(depths))
    page, axes = style.grid(len(depths), len(shown), size)
    for row, depth in zip(axes, depths, strict=True):
        for ax, measure in zip(row, shown, strict=True):
            found = having[measure][having[measure]["depth"] == depth]
            ax.set_title(f"{depth} layers")
            if found.empty:
                ax.set_axis_off()
                ax.text(0.5, 0.5, f"no variant here has a\n{names[measure]}", ha="center")
                continue
            # Errors span many powers of ten, and a logarithmic axis has no place for zero.
            is_error = measure == "base_row_error"
            if is_error:
                found = found.assign(**{measure: found[measure].clip(lower=SMALLEST_ERROR)})
            style.curves(ax, found, measure, log=is_error)
            ax.set_ylabel(style.label_of(measure))
    whole = pd.concat(having.values())
    variants = [v for v in steps["variant"].unique() if v in set(whole["variant"])]
    same = alike(with_all(steps, shown), shown)
    return style.finished(page, variants, title + lacking + same)
