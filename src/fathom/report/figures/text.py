"""The figures of a study of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from fathom.models.connections.components import LearnedGate
from fathom.report.figures import figure, frames, palette, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fathom.metrics.scores import Score

NGRAMS = ("unigram", "bigram", "trigram")
"""Models that only count n-grams."""

SIMILARITIES = ("stream_embedding_similarity", "stream_similarity")
"""Similarity of the stream embedding, a parameter, as published, and of activations."""

SMALLEST_ERROR = 1e-6
"""Errors below this value are float32 rounding and are drawn at this value."""


@figure
def validation(steps: pd.DataFrame, title: str) -> Figure:
    """How fast do variants learn the text? Bits per character of held-out windows against step.

    A line is the mean over seeds, a band or a bar their range. Dotted: n-gram models, if
    they are near.
    """
    found = in_bits(steps)
    title += panels.coincide(frames.coinciding(found, ["validation_loss"]))
    levels = frames.near(ngrams(steps), found["validation_loss"], least=0.1)
    label = "validation\n(bits per character)"
    return panels.against_step(
        found, "validation_loss", title, label=label, log=False, levels=levels
    )


@figure
def final_bits(summary: pd.DataFrame, cells: pd.DataFrame, score: Score, title: str) -> Figure:
    """Which variant predicts the text best? Bits per character at the end.

    A dot is a run, a line the mean over seeds. Dotted: chance and a trigram model, if they are
    near.
    """
    if not summary["score_n"].any():
        return style.placeholder(f"{title}\nnothing was evaluated")
    depths, variants = sorted(summary["depth"].unique()), list(summary["variant"].unique())
    size = style.WIDTH, 2.3 + 0.42 * len(variants)
    page, (axes,) = style.grid(1, len(depths), size, sharey=True)
    for ax, depth in zip(axes, depths, strict=True):
        if ax is not axes[0]:  # one scale for all depths, so that they can be compared
            ax.sharex(axes[0])
        own, runs = (table[table["depth"] == depth] for table in (summary, cells))
        ax.set_title(style.count_layers(depth))
        panels.points(ax, panels.values_of(own, "score", score, cells=runs), variants)
    return style.finish(page, title)


@figure
def similarity(steps: pd.DataFrame, title: str) -> Figure:
    """Do the streams stay alike? Similarity of the stream embedding, and of the activations.

    The stream embedding is a parameter; the source publishes its similarity. A line is the mean
    over seeds, a band or a bar their range.
    """
    return panels.side_by_side(steps, SIMILARITIES, title)


@figure(needs=LearnedGate)
def gates(steps: pd.DataFrame, title: str) -> Figure:
    """Do the gates open? The gate of the first layer, and the mean over layers, against step."""
    return panels.side_by_side(steps, ("gate_first", "gate_mean"), title)


@figure(needs=LearnedGate)
def trade_off(steps: pd.DataFrame, title: str) -> Figure:
    """Can streams differ while rows sum to one? Similarity against row error at the last step.

    A dot is a run. The source says that only one of the two can be low. Errors from rounding are at
    the left edge.
    """
    found = frames.with_all(visible(steps), ["base_row_error"])
    kinds = [kind for kind in SIMILARITIES if not frames.with_all(found, [kind]).empty]
    if not kinds:
        return style.placeholder(f"{title}\nno variant has both a Sinkhorn and a similarity")
    last = frames.last_rows(found)
    depths, variants = sorted(last["depth"].unique()), list(last["variant"].unique())
    page, (axes,) = style.grid(1, len(kinds), (style.WIDTH, 4.5 + 0.2 * len(variants)))
    for ax, kind in zip(axes, kinds, strict=True):
        for (variant, depth), runs in last.groupby(["variant", "depth"], sort=False):
            marker, colour = palette.marker_of(depths.index(depth)), palette.colour_of(variant)
            ax.plot(runs["base_row_error"], runs[kind], marker, ms=9, alpha=0.7, color=colour)
        ax.set_xscale("log")
        ax.locator_params(axis="x", numticks=6)
        ax.set_xlabel(panels.step_label("base_row_error", last))
        ax.set_ylabel(panels.step_label(kind, last))
        ax.margins(0.08)
    handles = style.legend_handles(variants, marker="o", ls="", alpha=0.7)
    if len(depths) > 1:
        handles += style.marker_handles([style.count_layers(depth) for depth in depths])
    same = panels.coincide(frames.coinciding(last, ["base_row_error", *kinds]))
    return style.finish(page, title + same, handles)


# --- shared -------------------------------------------------------------------------------------


def in_bits(steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of steps with an evaluation, with `validation_loss` in bits.

    A run that is not finite at such a step has NaN there.
    """
    found = frames.evaluations(steps, "validation_loss")
    return found.assign(validation_loss=found.get("validation_loss", math.nan) / math.log(2))


def ngrams(steps: pd.DataFrame) -> dict[str, float]:
    """Bits per character of the n-gram models, by name; the same for every run."""
    found = {name: frames.constant(steps, f"{name}_bpc") for name in NGRAMS}
    return {name: level for name, level in found.items() if level is not None}


def visible(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps, with `base_row_error` at least SMALLEST_ERROR."""
    if "base_row_error" not in steps:
        return steps
    return steps.assign(base_row_error=steps["base_row_error"].clip(lower=SMALLEST_ERROR))
