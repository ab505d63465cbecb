"""Effects of single settings: a study's contrasts, paired by seed.

Definitions: docs/definitions/effects.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd

from fathom_study.analysis.ladder import compare_multipliers, log_multipliers
from fathom_study.analysis.pair_verdicts import (
    PERCENT,
    SCORE,
    Verdicts,
    compare,
    in_unit,
    verdicts_of,
)
from fathom_study.analysis.pairs import (
    ONE_RATE,
    Pair,
    after_looking,
    contrasted,
    differing_settings,
    pairs_of,
)
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.significance import UNDECIDED
from fathom_study.analysis.statistics import mean_with_ci, t_interval, to_scale
from fathom_study.analysis.tables import counted, read_table, scores_of
from fathom_study.config import Cell, Config
from fathom_study.metrics.scores import Score
from fathom_study.metrics.steps import POSITIVE, UNBOUNDED

METRICS = (SCORE, "stream_similarity_final", "H_res_distance_final", "amax_backward_log10_final")
"""Compared metrics: the score on its own scale, the others by their difference."""

COLUMNS = [
    "study", "platform", "depth", "question", "variant", "against", "against_plain", "differs_in",
    "metric", "unit", "seeds", "effect", "low", "high", "against_mean", "seed_sd", "p", "p_holm",
    "tests", "corrected_low", "corrected_high", "verdict", "ladder", "multiplier", "multiplier_low",
    "multiplier_high", "seeds_needed", "at_edge", "after_looking",
]  # fmt: skip


def effects_table(config: Config, cells: pd.DataFrame, verdicts: Verdicts) -> pd.DataFrame:
    """A row per contrast, depth, metric and platform: the mean difference over common seeds.

    `effect` is `variant` minus `against`, with its 95 % interval, in `unit`; `against_plain`:
    whether `against` is a plain residual network. For the score alone: `ladder`, the plain network
    on whose ladder both sides are read, `multiplier` with its interval, and `seeds_needed`. All
    columns: docs/definitions/effects.md. `verdicts`: of scores.
    """
    valid, scores, rows = counted(cells), scores_of(config), []
    by_metric = {metric: verdicts_of(config, cells, metric) for metric in METRICS[1:]}
    by_metric[SCORE] = verdicts
    for name in config.studies:
        for key, pair in pairs_of(config, name, valid, contrasted):
            sides, backend = (key.variant, key.against), Platform.parse(key.platform).backend
            is_plain = [config.connection(name, side).kind == "plain" for side in sides]
            trained = (Cell(name, key.depth, side, backend, seed=0) for side in sides)
            labels = key._asdict() | {
                "question": pair.question,
                "against_plain": is_plain[1],
                "differs_in": ", ".join(differing_settings(config, trained)),
                "at_edge": pair.at_edge,
                "after_looking": after_looking(config, key),
            }
            # A single stream has no similarity of streams and no matrices to differ in.
            of_score_alone = key.rate != ONE_RATE or any(is_plain)
            for metric in METRICS[:1] if of_score_alone else METRICS:
                if row := _row(pair, metric, scores[name]):
                    rows.append(labels | row | by_metric[metric][key]._asdict())
    # Fixed types: otherwise empty fields of one study would change the text of another.
    return pd.DataFrame(rows, columns=COLUMNS).astype({"seeds_needed": float})


def undecided(file: Path, studies: Collection[str]) -> pd.DataFrame:
    """The undecided contrasts of scores in effects.csv, by ascending number of seeds needed.

    Raises TableError if the file cannot be read.
    """
    table = read_table(file)
    rows = table[(table["metric"] == SCORE) & (table["verdict"] == UNDECIDED)]
    return rows[rows["study"].isin(studies)].sort_values("seeds_needed", kind="stable")


def _in_steps(pair: Pair, score: Score) -> dict[str, Any]:
    """The columns that compare two sides in training steps; empty without a ladder."""
    if not pair.base:
        return {}
    # The multiplier of the plain network itself is one, even if its ladder is not monotonic.
    logs = compare_multipliers(
        *(
            pd.Series(0.0, pair.ladder.index)
            if label == pair.base
            else log_multipliers(pair.ladder, scores, score.sign)
            for label, scores in zip((pair.variant, pair.against), pair.scores, strict=True)
        )
    )
    ends = {"": logs.mean, "_low": logs.low, "_high": logs.high} if logs else {}
    return {"ladder": pair.base} | {f"multiplier{end}": math.exp(x) for end, x in ends.items()}


def _row(pair: Pair, metric: str, score: Score) -> dict[str, Any]:
    """The columns of one comparison by a metric; empty if the sides share no seed that has it."""
    found = compare(pair, score, metric)
    if not found.on_scale.n:
        return {}
    ratio = found.unit == PERCENT
    row = {
        "metric": metric,
        "unit": found.unit,
        "seeds": found.on_scale.n,
        "effect": found.mean,
        "low": found.low,
        "high": found.high,
        "against_mean": mean_with_ci(found.theirs, POSITIVE if ratio else UNBOUNDED)["mean"],
        "seed_sd": in_unit(t_interval(to_scale(found.theirs, ratio=ratio)).sd, found.unit),
        "ladder": "",
    }
    return row | (_in_steps(pair, score) if metric == SCORE else {})
