"""What one setting does: a study's contrasts, seed by seed.

Definitions: docs/definitions.md, "Effects".
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fathom.analysis.places import PLACE
from fathom.analysis.tables import (
    MIN_SEEDS,
    counted,
    interval,
    log10,
    read_table,
    save_tables,
    spread,
)
from fathom.config import Config, Contrast
from fathom.measures import RUN_MEASURES

MEASURES = (
    "loss_final",
    "stream_similarity_final",
    "H_res_distance_final",
    "amax_backward_log10_final",
)
"""What is compared."""

LOGARITHMIC = ("loss_final",)
"""Of these the difference of log10 is compared, so a ratio: losses are skewed."""

HIGHER, LOWER, ALIKE, NO_EFFECT = "higher", "lower", "the same", "not distinguishable"

AGAINST_PLAIN = "Does it end below the plain residual network?"
"""What is asked of every variant of a study that has no contrasts of its own."""

ROUNDING = 1e-5
"""Differences that stay below, at every seed, are what other orders of float32 sums make."""

COLUMNS = [
    "study", *PLACE, "depth", "asks", "variant", "against", "against_plain", "measure", "seeds",
    "effect", "ci95_half", "against_mean", "seed_sd", "verdict",
]  # fmt: skip


def write_effects(config: Config, folder: Path) -> None:
    """Write effects.csv beside the table of cells."""
    cells = read_table(folder / "cells.csv")
    save_tables({"effects.csv": effects_table(config, cells)}, folder)


def effects_table(config: Config, cells: pd.DataFrame) -> pd.DataFrame:
    """A row per contrast, depth, measure and place: the mean difference over common seeds.

    `effect` is `variant` less `against`, with half its interval; `against_mean` and `seed_sd` are
    the mean of `against` and its standard deviation over seeds. Of LOGARITHMIC measures, effect,
    interval and deviation are of log10 and the mean is the geometric one. The verdict is `higher`
    or `lower` where the interval excludes zero, `the same` where no seed differs by more than
    rounding, else `not distinguishable`. A seed counts where both sides are there, and finite.
    `against_plain`: whether that one is a plain residual network.
    """
    valid = counted(cells)
    rows = []
    for name in config.studies:
        contrasts = contrasts_of(config, name)
        runs = valid[valid["study"] == name]
        for (*place, depth), group in runs.groupby([*PLACE, "depth"], sort=False):
            for contrast in contrasts:
                for variant, against in contrast.pairs:
                    sides = (
                        group[group["variant"] == label].set_index("seed")
                        for label in (variant, against)
                    )
                    plain = config.connection(name, against).kind == "plain"
                    labels = [contrast.asks, variant, against, plain]
                    rows += [[name, *place, depth, *labels, *found] for found in _effects(*sides)]
    return pd.DataFrame(rows, columns=COLUMNS)


def contrasts_of(config: Config, study: str) -> tuple[Contrast, ...]:
    """A study's own, or without any every variant against the plain residual network."""
    own, plain = config.studies[study].contrasts, config.plain(study)
    pairs = [[label, plain] for label in config.studies[study].labels if label != plain]
    if own or plain is None or not pairs:
        return own
    return (Contrast(asks=AGAINST_PLAIN, pairs=pairs),)


def _effects(ours: pd.DataFrame, theirs: pd.DataFrame) -> list[list[object]]:
    """The rest of a row, for each measure that both sides have at a common seed."""
    found = []
    for measure in MEASURES:
        values = [pd.to_numeric(side[measure]) for side in (ours, theirs)]
        difference = (values[0] - values[1]).dropna()
        if difference.empty:
            continue
        a, b = map(log10, values) if measure in LOGARITHMIC else values
        effect, base = interval(a - b), interval(b)
        mean = spread(values[1], RUN_MEASURES[measure].bounds)["mean"]
        numbers = [effect["n"], effect["mean"], effect["ci95_half"], mean, base["sd"]]
        found.append([measure, *numbers, _verdict(difference, effect)])
    return found


def _verdict(difference: pd.Series, effect: dict[str, float]) -> str:
    if effect["n"] >= MIN_SEEDS and difference.abs().max() < ROUNDING:
        return ALIKE
    if effect["n"] < MIN_SEEDS or abs(effect["mean"]) <= effect["ci95_half"]:
        return NO_EFFECT
    return HIGHER if effect["mean"] > 0 else LOWER
