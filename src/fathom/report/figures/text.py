"""The figures of a study of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fathom.models.connections.components import LearnedGate
from fathom.report.figures import figure, frames, panels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NGRAMS = ("unigram", "bigram", "trigram")
"""Models that only count."""

SIMILARITIES = ("stream_embedding_similarity", "stream_similarity")
"""Metrics of a parameter, as published, and of activations."""

SMALLEST_ERROR = 1e-6
"""Smaller errors are rounding of float32, and are drawn here: their own size says nothing."""


@figure
def validation(steps: pd.DataFrame, title: str) -> Figure:
    """How fast do variants learn the text? Bits per character of held-out windows against step.

    A line is the mean over seeds, a band or a bar their range. Dotted: models that only count,
    where they are near.
    """
    found = in_bits(steps)
    title += panels.coincide(frames.coinciding(found, ["validation_loss"]))
    label, levels = "validation\n(bits per character)", near_ngrams(steps, found["validation_loss"])
    return panels.against_step(
        found, "validation_loss", title, label=label, log=False, levels=levels
    )


@figure
def final_bits(steps: pd.DataFrame, title: str) -> Figure:
    """Which variant predicts the text best? Bits per character at the end.

    A dot is a run, a bar their mean. Dotted: models that only count, where they are near.
    """
    finite = in_bits(steps).replace([np.inf, -np.inf], np.nan).dropna(subset="validation_loss")
    last = frames.last_rows(finite)
    if last.empty:
        return style.placeholder(f"{title}\nnothing was evaluated")
    depths, variants = sorted(last["depth"].unique()), list(last["variant"].unique())
    page, (axes,) = style.grid(1, len(depths), (style.WIDTH, 2.3 + 0.42 * len(variants)))
    label = "bits per character" if len(depths) <= style.PANELS_PER_ROW else "bits per\ncharacter"
    levels = near_ngrams(steps, last["validation_loss"])
    for ax, depth in zip(axes, depths, strict=True):
        if ax is not axes[0]:  # one scale for all depths, so that they can be compared
            ax.sharex(axes[0])
        for y, variant in enumerate(variants):
            of_variant = (last["variant"] == variant) & (last["depth"] == depth)
            bits, colour = last.loc[of_variant, "validation_loss"], style.colour_of(variant)
            if not bits.empty:
                mean = frames.mean(bits, geometric=True)
                ax.plot([mean, mean], [y - 0.32, y + 0.32], color=colour, lw=3)
                ax.plot(bits, [y] * len(bits), "o", ms=8, color=colour, alpha=0.6)
        names = [style.label_of(variant) for variant in variants]
        ax.set_yticks(range(len(variants)), names if ax is axes[0] else [])
        ax.set_ylim(len(variants) - 0.5, -0.5)
        ax.set_title(style.count_layers(depth))
        style.vertical_levels(ax, levels)
        style.few_ticks(ax)
        ax.set_xlabel(label)
    return style.finish(page, title)


@figure
def similarity(steps: pd.DataFrame, title: str) -> Figure:
    """Do the streams stay alike? Similarity of the stream embedding, and of the activations.

    The first is a parameter, and what the source publishes. A line is the mean over seeds, a band
    or a bar their range.
    """
    return panels.side_by_side(steps, SIMILARITIES, title)


@figure(needs=LearnedGate)
def gates(steps: pd.DataFrame, title: str) -> Figure:
    """Do the gates open? The gate of the first layer, and the mean over layers, against step."""
    return panels.side_by_side(steps, ("gate_first", "gate_mean"), title)


@figure(needs=LearnedGate)
def trade_off(steps: pd.DataFrame, title: str) -> Figure:
    """Can streams differ and rows sum to one? Similarity against the row error: a dot for a run.

    At the last step. The source says that only one of the two can be low. An error that is rounding
    stands at the left edge.
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
            marker, colour = style.marker_of(depths.index(depth)), style.colour_of(variant)
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


# --- what they share ----------------------------------------------------------------------------


def in_bits(steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of the steps at which the network was evaluated, `validation_loss` in bits.

    A run that is not finite then has a row without it.
    """
    found = frames.evaluations(steps, "validation_loss")
    return found.assign(validation_loss=found.get("validation_loss", math.nan) / math.log(2))


def ngrams(steps: pd.DataFrame) -> dict[str, float]:
    """Bits per character of the models that only count, by name: the same for every run."""
    found = {name: frames.constant(steps, f"{name}_bpc") for name in NGRAMS}
    return {name: level for name, level in found.items() if level is not None}


def near_ngrams(steps: pd.DataFrame, bits: pd.Series) -> dict[str, float]:
    """The levels near these values."""
    return frames.near(ngrams(steps), bits, least=0.1)


def visible(steps: pd.DataFrame) -> pd.DataFrame:
    """With errors that are rounding as the smallest that is drawn."""
    if "base_row_error" not in steps:
        return steps
    return steps.assign(base_row_error=steps["base_row_error"].clip(lower=SMALLEST_ERROR))
