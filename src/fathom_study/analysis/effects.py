"""Effects of single settings: a study's contrasts, paired by seed.

Definitions: docs/definitions/effects.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fathom_study import tasks
from fathom_study.analysis.ladder import compare_multipliers, is_equivalent, log_multipliers
from fathom_study.analysis.pairs import (
    AT_BEST_RATE,
    Pair,
    contrasted,
    differing_settings,
    pairs_of,
)
from fathom_study.analysis.significance import (
    FLOAT32_TOLERANCE,
    SIGNIFICANCE_LEVEL,
    UNDECIDED,
    family_on,
    holm,
    p_value,
    score_verdict,
    seeds_to_decide,
)
from fathom_study.analysis.statistics import (
    FARTHEST,
    MIN_SEEDS,
    Interval,
    differences,
    is_ratio,
    mean_with_ci,
    t_interval,
    to_scale,
)
from fathom_study.analysis.tables import counted, read_table, scores_of
from fathom_study.config import Config
from fathom_study.metrics.scores import Score
from fathom_study.metrics.steps import POSITIVE, SHARE, UNBOUNDED

METRICS = ("score", "stream_similarity_final", "H_res_distance_final", "amax_backward_log10_final")
"""Compared metrics: the score on its own scale, the others by their difference."""

HIGHER, LOWER, ALIKE = "higher", "lower", "the same"
"""Verdicts on metrics other than the score; ALIKE: on any metric if sides differ by rounding."""

PERCENT, POINTS = "%", "points"
"""Units of effects: the change of a positive score, and percentage points of a share."""

PAIR = ("depth", "question", "variant", "against")
"""The columns that identify a comparison of a study on one platform."""

COLUMNS = [
    "study", "platform", "depth", "question", "variant", "against", "against_plain", "differs_in",
    "metric", "unit", "seeds", "effect", "low", "high", "against_mean", "seed_sd", "p", "p_holm",
    "verdict", "ladder", "multiplier", "multiplier_low", "multiplier_high", "seeds_needed",
    "at_edge", "after_looking",
]  # fmt: skip


def effects_table(config: Config, cells: pd.DataFrame) -> pd.DataFrame:
    """A row per contrast, depth, metric and platform: the mean difference over common seeds.

    `effect` is `variant` minus `against`, with its 95 % interval from `low` to `high`, in `unit`:
    PERCENT for a positive score, whose ratio is compared, POINTS for a share, else the score's own;
    empty for other metrics. `against_mean` is the mean of `against` over the same seeds (geometric
    for a positive score), `seed_sd` its standard deviation in `unit`. A seed counts if both sides
    have a value. `p` tests for no effect; `p_holm` is p corrected for the study's contrasts, metric
    by metric (`tests_on`). `against_plain`: whether `against` is a plain residual network.
    `differs_in`: the settings in which the two differ, named by `differing_settings`. `at_edge`:
    the sides of a contrast at the best rates whose rate is the smallest or the largest tried.
    `after_looking`: the settings chosen by results on which the verdict rests.

    For the score alone: `ladder`, the plain network on whose ladder both sides are read;
    `multiplier`, the step multiplier of `variant` over that of `against`, with its 95 % interval;
    `seeds_needed`, the number of seeds at which the effect would be significant.
    """
    valid, scores, rows = counted(cells), scores_of(config), []
    for name, study in config.studies.items():
        study_rows = []
        for labels, pair, runs in pairs_of(config, name, valid, contrasted):
            at_best_rates, sides = pair.question == AT_BEST_RATE, (pair.variant, pair.against)
            is_plain = [config.connection(name, side).kind == "plain" for side in sides]
            keys = [runs[side].iloc[0]["key"] for side in sides]
            labels |= {
                "question": pair.question,
                "against_plain": is_plain[1],
                "differs_in": ", ".join(differing_settings(config, keys)),
                "at_edge": pair.at_edge,
                "after_looking": study.chosen_after_looking_at(
                    labels["depth"], "" if at_best_rates else pair.variant
                ),
            }
            # A single stream has no similarity of streams and no matrices to differ in.
            of_score_alone = at_best_rates or any(is_plain)
            for metric in METRICS[:1] if of_score_alone else METRICS:
                if row := _row(pair, metric, scores[name]):
                    study_rows.append(labels | row)
        rows += _judge_together(study_rows, scores[name])
    # Fixed types: otherwise empty fields of one study would change the text of another.
    return pd.DataFrame(rows, columns=COLUMNS).astype({"seeds_needed": float})


def undecided(file: Path, studies: Collection[str]) -> pd.DataFrame:
    """The undecided contrasts of scores in effects.csv, by ascending number of seeds needed.

    Raises TableError if the file cannot be read.
    """
    table = read_table(file)
    rows = table[(table["metric"] == "score") & (table["verdict"] == UNDECIDED)]
    return rows[rows["study"].isin(studies)].sort_values("seeds_needed", kind="stable")


class Change(NamedTuple):
    """The difference of two sides over common seeds."""

    on_scale: Interval
    """On the scale of `to_scale`."""
    mean: float
    """In the unit of the change, as are the ends of its 95 % interval."""
    low: float
    high: float
    theirs: pd.Series
    """The values of the second side at the common seeds."""


def change(ours: pd.Series, theirs: pd.Series, metric: str, unit: str) -> Change:
    """The change from `theirs` to `ours`, values of a run metric by seed, in a unit.

    The interval is clipped to the bounds of the metric, given the mean of the second side.
    """
    interval = t_interval(differences(ours, theirs, ratio=unit == PERCENT))
    mean, low, high = (in_unit(x, unit) for x in (interval.mean, interval.low, interval.high))
    theirs = theirs[(ours - theirs).dropna().index]
    if unit != PERCENT:  # both ends of a ratio are possible
        bounds = (in_unit(end - theirs.mean(), unit) for end in tasks.bounds_of(metric))
        low, high = (float(end) for end in np.clip([low, high], *bounds))
    return Change(interval, mean, low, high, theirs)


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
    if logs is None:
        return {"ladder": pair.base}
    return {
        "ladder": pair.base,
        "multiplier": math.exp(logs.mean),
        "multiplier_low": math.exp(logs.low),
        "multiplier_high": math.exp(logs.high),
        "is_equivalent": is_equivalent(logs),
    }


def _row(pair: Pair, metric: str, score: Score) -> dict[str, Any]:
    """The columns of one comparison by a metric; empty if the sides share no seed that has it."""
    is_score = metric == "score"
    unit, ours, theirs = "", *(pd.to_numeric(side[metric]) for side in (pair.ours, pair.theirs))
    if is_score:
        metric, unit = score.metric, unit_of(score)
    found, ratio = change(ours, theirs, metric, unit), unit == PERCENT
    interval = found.on_scale
    if not interval.n:
        return {}
    largest = (ours - theirs).abs().max()
    row = {
        "metric": "score" if is_score else metric,
        "unit": unit,
        "seeds": interval.n,
        "effect": found.mean,
        "low": found.low,
        "high": found.high,
        "against_mean": mean_with_ci(found.theirs, POSITIVE if ratio else UNBOUNDED)["mean"],
        "seed_sd": in_unit(t_interval(to_scale(found.theirs, ratio=ratio)).sd, unit),
        "p": p_value(interval),
        "on_scale": interval,
        "ladder": "",
        "is_rounding": interval.n >= MIN_SEEDS and largest < FLOAT32_TOLERANCE,
    }
    return row | (_in_steps(pair, score) if is_score else {})


def unit_of(score: Score) -> str:
    """The unit of an effect on a score: PERCENT, POINTS or its own."""
    if is_ratio(score.metric):
        return PERCENT
    return POINTS if tasks.bounds_of(score.metric) == SHARE else score.unit


def in_unit(effect: float, unit: str) -> float:
    """An effect, or a standard deviation, converted from the scale of `to_scale` to its unit."""
    if unit == PERCENT:
        return 100 * math.expm1(min(effect, FARTHEST) * math.log(10))
    return 100 * effect if unit == POINTS else effect


def _judge_together(rows: list[dict[str, Any]], score: Score) -> Iterator[dict[str, Any]]:
    """The rows of a study with their verdicts, which depend on the number of its tests."""
    by_metric = defaultdict(list)
    for row in rows:
        by_metric[row["metric"]].append(row)
    for metric, of_metric in by_metric.items():
        for platform in dict.fromkeys(row["platform"] for row in of_metric):
            # Pairs that are named twice or whose runs are equal bit for bit are one test.
            p_holm = holm({_test(row): row["p"] for row in family_on(platform, of_metric, PAIR)})
            for row in (row for row in of_metric if row["platform"] == platform):
                row["p_holm"] = p_holm.get(_test(row), math.nan)
                row["verdict"] = _verdict(row, score)
                if metric == "score" and row["seeds"] >= MIN_SEEDS:
                    interval = row["on_scale"]
                    row["seeds_needed"] = seeds_to_decide(interval.mean, interval.sd, len(p_holm))
    yield from rows


def _test(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that rows share if they compare the same numbers; text, since NaN never equals NaN."""
    names = ("depth", "on_scale", "against_mean", "seed_sd")
    return tuple(str(row[name]) for name in names)


def _verdict(row: Mapping[str, Any], score: Score) -> str:
    """The verdict of a comparison: docs/definitions/effects.md."""
    if row["is_rounding"]:
        return ALIKE
    is_higher = row["on_scale"].mean > 0
    if row["metric"] == "score":
        is_better = is_higher == (score.better == "higher")
        is_equivalent = row.get("is_equivalent", False)
        return score_verdict(row["p_holm"], is_better=is_better, is_equivalent=is_equivalent)
    if not row["p_holm"] < SIGNIFICANCE_LEVEL:
        return UNDECIDED
    return HIGHER if is_higher else LOWER
