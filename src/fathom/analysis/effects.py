"""What one setting does: a study's contrasts, seed by seed.

Definitions: docs/definitions.md, "Effects".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fathom import tasks
from fathom.analysis.established import ROUNDING
from fathom.analysis.tables import (
    MIN_SEEDS,
    counted,
    is_ratio,
    mean_with_ci,
    read_table,
    save_tables,
    scores_of,
    t_interval,
    to_scale,
)
from fathom.config import Cell, Config, Contrast
from fathom.metrics import Score

METRICS = (
    "score",
    "stream_similarity_final",
    "H_res_distance_final",
    "amax_backward_log10_final",
)
"""What is compared: the score by its own scale, the others by their difference."""

HIGHER, LOWER, ALIKE, NO_EFFECT = "higher", "lower", "the same", "not distinguishable"

AGAINST_PLAIN = "Does it end better than the plain residual network?"
"""What is asked of every variant of a study that has no contrasts of its own."""

COLUMNS = [
    "study", "platform", "depth", "question", "variant", "against", "against_plain", "differs_in",
    "metric", "by", "seeds", "effect", "ci95_half", "against_mean", "seed_sd", "verdict", "better",
]  # fmt: skip


def write_effects(config: Config, folder: Path) -> None:
    """Write effects.csv beside the table of cells."""
    cells = read_table(folder / "cells.csv")
    save_tables({"effects.csv": effects_table(config, cells)}, folder)


def effects_table(config: Config, cells: pd.DataFrame) -> pd.DataFrame:
    """A row per contrast, depth, metric and platform: the mean difference over common seeds.

    `effect` is `variant` less `against`, with half its interval; `against_mean` and `seed_sd` are
    the mean of `against` and its standard deviation over seeds. Where a metric is compared `by`
    ratio, effect, interval and deviation are of log10 and the mean is the geometric one. The
    verdict is `higher` or `lower` where the interval excludes zero, `the same` where no seed
    differs by more than rounding, else `not distinguishable`. `better` says whether a higher or a
    lower score is the better one; it is empty for any other verdict or metric. A seed counts where
    both sides are there, and finite. `against_plain`: whether that one is a plain residual network.
    `differs_in`: the settings that the two differ in, as `differing_settings` names them.
    """
    valid, scores = counted(cells), scores_of(config)
    rows = []
    for name in config.studies:
        runs = valid[valid["study"] == name]
        for (platform, depth), group in runs.groupby(["platform", "depth"], sort=False):
            by_variant = {v: seeds.set_index("seed") for v, seeds in group.groupby("variant")}
            for contrast in contrasts_of(config, name):
                for variant, against in contrast.pairs:
                    if not {variant, against} <= by_variant.keys():
                        continue
                    sides = [by_variant[label].iloc[0]["key"] for label in (variant, against)]
                    labels = {
                        "study": name,
                        "platform": platform,
                        "depth": depth,
                        "question": contrast.question,
                        "variant": variant,
                        "against": against,
                        "against_plain": config.connection(name, against).kind == "plain",
                        "differs_in": ", ".join(differing_settings(config, sides)),
                    }
                    values = by_variant[variant], by_variant[against]
                    rows += [{**labels, **found} for found in _effects(*values, scores[name])]
    return pd.DataFrame(rows, columns=COLUMNS)


def contrasts_of(config: Config, study: str) -> tuple[Contrast, ...]:
    """A study's own, or without any every variant against the plain residual network."""
    own, plain = config.studies[study].contrasts, config.plain(study)
    pairs = [[label, plain] for label in config.studies[study].labels if label != plain]
    if own or plain is None or not pairs:
        return own
    return (Contrast(question=AGAINST_PLAIN, pairs=pairs),)


def differing_settings(config: Config, keys: Sequence[str]) -> list[str]:
    """The settings in which two cells' specs differ, as 'connection.coefficients.alpha'.

    A component of another kind is one setting, whatever is in it, and so is a whole start: its
    numbers have a meaning together alone. What the plain network is the same under is no difference
    from it.
    """
    specs = [config.spec(Cell.parse(key)) for key in keys]
    one, other = ({**spec.model_dump(), **OF_THE_CELL} for spec in specs)
    if any(spec.connection.kind == "plain" for spec in specs):
        for setting in specs[0].model.of_connections:
            one["model"][setting] = other["model"][setting] = None
    return sorted(_differing(one, other))


OF_THE_CELL = {"variant": None, "seed": None}
"""What names a cell, and is no setting of its training that a contrast could be about."""


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for key in one.keys() | other.keys():
        a, b, name = one.get(key), other.get(key), f"{place}{key}"
        if a == b:
            continue
        both = isinstance(a, Mapping) and isinstance(b, Mapping)
        if both and key != "start" and a.get("kind") == b.get("kind"):
            yield from _differing(a, b, f"{name}.")
        else:
            yield name


def _effects(ours: pd.DataFrame, theirs: pd.DataFrame, score: Score) -> Iterator[dict[str, Any]]:
    """The rest of a row, for each metric that both sides have at a common seed."""
    for metric in METRICS:
        ratio = metric == "score" and is_ratio(score.metric)
        values = [pd.to_numeric(side[metric]) for side in (ours, theirs)]
        difference = (values[0] - values[1]).dropna()
        if difference.empty:
            continue
        a, b = (to_scale(side, ratio=ratio) for side in values)
        effect = t_interval(a - b)
        bounds = tasks.bounds_of(score.metric if metric == "score" else metric)
        verdict = _verdict(difference, effect)
        judged = metric == "score" and verdict in (HIGHER, LOWER)
        yield {
            "metric": metric,
            "by": "ratio" if ratio else "difference",
            "seeds": effect["n"],
            "effect": effect["mean"],
            "ci95_half": effect["ci95_half"],
            "against_mean": mean_with_ci(values[1], bounds)["mean"],
            "seed_sd": t_interval(b)["sd"],
            "verdict": verdict,
            "better": verdict == {"higher": HIGHER, "lower": LOWER}[score.better] if judged else "",
        }


def _verdict(difference: pd.Series, effect: dict[str, float]) -> str:
    if effect["n"] >= MIN_SEEDS and difference.abs().max() < ROUNDING:
        return ALIKE
    if effect["n"] < MIN_SEEDS or abs(effect["mean"]) <= effect["ci95_half"]:
        return NO_EFFECT
    return HIGHER if effect["mean"] > 0 else LOWER
