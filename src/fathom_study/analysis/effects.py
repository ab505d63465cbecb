"""Effects of single settings: a study's contrasts, paired by seed.

Definitions: docs/definitions.md, "Effects".
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fathom_study import tasks
from fathom_study.analysis.best_rates import OF_THE_CELL, pairs_at_best_rates, runs_of
from fathom_study.analysis.ladder import (
    Ladders,
    compare_multipliers,
    is_equivalent,
    ladder_at,
    log_multipliers,
    read_ladder,
)
from fathom_study.analysis.significance import (
    FLOAT32_TOLERANCE,
    SIGNIFICANCE_LEVEL,
    UNDECIDED,
    holm,
    p_value,
    score_verdict,
    seeds_to_decide,
    tests_on,
)
from fathom_study.analysis.statistics import (
    FARTHEST,
    MIN_SEEDS,
    Interval,
    differences,
    finite_scores,
    is_ratio,
    mean_with_ci,
    t_interval,
    to_scale,
)
from fathom_study.analysis.tables import (
    Runs,
    counted,
    read_table,
    runs_by_place,
    save_tables,
    scores_of,
)
from fathom_study.config import Cell, Config, Contrast
from fathom_study.metrics.scores import Score
from fathom_study.metrics.steps import POSITIVE, SHARE, UNBOUNDED

METRICS = ("score", "stream_similarity_final", "H_res_distance_final", "amax_backward_log10_final")
"""Compared metrics: the score on its own scale, the others by their difference."""

HIGHER, LOWER, ALIKE = "higher", "lower", "the same"
"""Verdicts on metrics other than the score; ALIKE: on any metric if sides differ by rounding."""

PERCENT, POINTS = "%", "points"
"""Units of effects: the change of a positive score, and percentage points of a share."""

AGAINST_PLAIN = "Is the variant better than the plain residual network?"
"""The question for extra variants, and for all variants of a study without contrasts."""

AT_BEST_RATE = "Is the variant better than the plain residual network, each at its best rate?"
"""The question about variants with several learning rates."""

PAIR = ("depth", "question", "variant", "against")
"""The columns that identify a comparison of a study on one platform."""

COLUMNS = [
    "study", "platform", "depth", "question", "variant", "against", "against_plain", "differs_in",
    "metric", "unit", "seeds", "effect", "low", "high", "against_mean", "seed_sd", "p", "p_holm",
    "verdict", "ladder", "multiplier", "multiplier_low", "multiplier_high", "seeds_needed",
    "at_edge", "after_looking",
]  # fmt: skip


def write_effects(config: Config, folder: Path) -> None:
    """Write effects.csv beside the table of cells."""
    cells = read_table(folder / "cells.csv")
    save_tables({"effects.csv": effects_table(config, cells)}, folder, config.studies)


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
    valid, scores = counted(cells), scores_of(config)
    rows = []
    for name in config.studies:
        study_rows = []
        for platform, depth, by_variant in runs_by_place(valid, name):
            for one in _comparisons(config, name, by_variant, scores[name]):
                pair = one.variant, one.against
                sides = [by_variant[label].iloc[0]["key"] for label in pair]
                labels = {
                    "study": name,
                    "platform": platform,
                    "depth": depth,
                    "question": one.question,
                    "variant": one.variant,
                    "against": one.against,
                    "against_plain": config.connection(name, one.against).kind == "plain",
                    "differs_in": ", ".join(differing_settings(config, sides)),
                    "at_edge": one.at_edge,
                    "after_looking": config.studies[name].chosen_after_looking_at(
                        depth, "" if one.question == AT_BEST_RATE else one.variant
                    ),
                }
                # A single stream has no similarity of streams and no matrices to differ in.
                is_plain = any(config.connection(name, v).kind == "plain" for v in pair)
                of_score_alone = one.question == AT_BEST_RATE or is_plain
                study_rows += [
                    {**labels, **row}
                    for row in _effects(one, scores[name])
                    if row["metric"] == "score" or not of_score_alone
                ]
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


def contrasts_of(config: Config, study: str) -> tuple[Contrast, ...]:
    """A study's own contrasts, and its extra variants against the plain residual network.

    A study without contrasts of its own compares every variant with the plain network.
    """
    settings, plain = config.studies[study], config.plain(study)
    labels = settings.extra_labels if settings.contrasts else settings.compared
    pairs = [[label, plain] for label in labels if label != plain]
    if plain is None or not pairs:
        return settings.contrasts
    return (*settings.contrasts, Contrast(question=AGAINST_PLAIN, pairs=pairs))


class Comparison(NamedTuple):
    """Two sides to compare, seed by seed."""

    question: str
    variant: str
    against: str
    ours: pd.DataFrame
    """Rows of cells.csv, indexed by seed."""
    theirs: pd.DataFrame
    at_edge: str
    base: str
    """The plain network on whose ladder both are read; empty without one."""
    ladder: pd.DataFrame
    """The table returned by `read_ladder`."""


def _comparisons(config: Config, name: str, runs: Runs, score: Score) -> Iterator[Comparison]:
    """Every pair of a study's contrasts, and each connection at its best rate."""
    study = config.studies[name]
    ladders = ladders_of(config, name, runs)
    for contrast in contrasts_of(config, name):
        for variant, against in contrast.pairs:
            if not {variant, against} <= runs.keys():
                continue
            sides = (_of_seeds(runs[label], contrast.seeds) for label in (variant, against))
            alike = (
                base
                for base in ladders
                if study.trains_alike(variant, base) and study.trains_alike(against, base)
            )
            base = next(alike, "")
            ladder = ladders.get(base, pd.DataFrame())
            yield Comparison(contrast.question, variant, against, *sides, "", base, ladder)
    compared = {label: runs[label] for label in study.compared if label in runs}
    for best in pairs_at_best_rates(config, name, compared, score):
        sides = runs_of(best.ours, runs), runs_of(best.theirs, runs)
        ladder = ladder_at(best.theirs, ladders)
        base = "" if ladder.empty else best.against
        yield Comparison(
            AT_BEST_RATE, best.variant, best.against, *sides, best.at_edge, base, ladder
        )


def differing_settings(config: Config, keys: Sequence[str]) -> list[str]:
    """The settings in which two cells' specs differ, as 'connection.coefficients.alpha'.

    A component of another kind counts as one setting, and so does a start, whose numbers have a
    meaning only together. Settings that do not affect the plain network do not count as different
    from it.
    """
    specs = [config.spec(Cell.parse(key)) for key in keys]
    one, other = ({**spec.model_dump(), **OF_THE_CELL} for spec in specs)
    if any(spec.connection.kind == "plain" for spec in specs):
        for setting in specs[0].model.connection_settings:
            one["model"][setting] = other["model"][setting] = None
    return sorted(_differing(one, other))


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


def _of_seeds(runs: pd.DataFrame, seeds: Collection[int]) -> pd.DataFrame:
    """The runs of these seeds; all runs if no seeds are given."""
    return runs[runs.index.isin(seeds)] if seeds else runs


def ladders_of(config: Config, study: str, runs: Runs) -> Ladders:
    """The trained ladders of a study."""
    settings = config.studies[study]
    bases = [base for base in settings.ladder if base in runs]
    ladders = {base: read_ladder(settings.rungs(base), runs) for base in bases}
    return {base: ladder for base, ladder in ladders.items() if len(ladder.columns) > 1}


def _in_steps(one: Comparison, score: Score) -> dict[str, Any]:
    """The columns that compare two sides in training steps; empty without a ladder."""
    if not one.base:
        return {}
    sign = 1 if score.better == "lower" else -1
    # The multiplier of the plain network itself is one, even if its ladder is not monotonic.
    logs = compare_multipliers(
        *(
            pd.Series(0.0, one.ladder.index)
            if label == one.base
            else log_multipliers(one.ladder, finite_scores(runs), sign)
            for label, runs in ((one.variant, one.ours), (one.against, one.theirs))
        )
    )
    if logs is None:
        return {"ladder": one.base}
    return {
        "ladder": one.base,
        "multiplier": math.exp(logs.mean),
        "multiplier_low": math.exp(logs.low),
        "multiplier_high": math.exp(logs.high),
        "is_equivalent": is_equivalent(logs),
    }


def _effects(one: Comparison, score: Score) -> Iterator[dict[str, Any]]:
    """The row of one comparison for each metric that both sides have at a common seed."""
    for metric in METRICS:
        name = score.metric if metric == "score" else metric
        unit = unit_of(score) if metric == "score" else ""
        ratio = unit == PERCENT
        values = [pd.to_numeric(side[metric]) for side in (one.ours, one.theirs)]
        difference = (values[0] - values[1]).dropna()
        interval = t_interval(differences(*values, ratio=ratio))
        if not interval.n:
            continue
        against = values[1][difference.index]
        mean = mean_with_ci(against, POSITIVE if ratio else UNBOUNDED)["mean"]
        low, high = ends_of(interval, unit, name, mean)
        row = {
            "metric": metric,
            "unit": unit,
            "seeds": interval.n,
            "effect": in_unit(interval.mean, unit),
            "low": low,
            "high": high,
            "against_mean": mean,
            "seed_sd": in_unit(t_interval(to_scale(against, ratio=ratio)).sd, unit),
            "p": p_value(interval),
            "on_scale": interval,
            "ladder": "",
            "is_rounding": interval.n >= MIN_SEEDS and difference.abs().max() < FLOAT32_TOLERANCE,
        }
        yield row | (_in_steps(one, score) if metric == "score" else {})


def ends_of(interval: Interval, unit: str, metric: str, of: float) -> tuple[float, float]:
    """The ends of an effect's interval in its unit, clipped to the metric's bounds.

    `of`: the mean of the side that the effect is relative to.
    """
    low, high = (in_unit(end, unit) for end in (interval.low, interval.high))
    if unit == PERCENT:  # both ends of a ratio are possible
        return low, high
    least, most = (in_unit(end - of, unit) for end in tasks.bounds_of(metric))
    return float(np.clip(low, least, most)), float(np.clip(high, least, most))


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
    by_metric, families = defaultdict(list), defaultdict(list)
    for row in rows:
        by_metric[row["metric"]].append(row)
        families[row["platform"], row["metric"]].append(row)
    for (platform, metric), family in families.items():
        # Pairs that are named twice or whose runs are equal bit for bit are one test.
        tests = tests_on(platform, by_metric[metric], PAIR)
        p_of = {_same_numbers(row): row["p"] for row in tests}
        p_holm = dict(zip(p_of, holm(list(p_of.values())), strict=True))
        for row in family:
            row["p_holm"] = p_holm.get(_same_numbers(row), math.nan)
            row["verdict"] = _verdict(row, score)
            if row["metric"] == "score" and row["seeds"] >= MIN_SEEDS:
                interval = row["on_scale"]
                row["seeds_needed"] = seeds_to_decide(interval.mean, interval.sd, len(p_of))
    yield from rows


def _same_numbers(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that rows share if they compare the same numbers; text, since NaN never equals NaN."""
    names = ("depth", "on_scale", "against_mean", "seed_sd")
    return tuple(str(row[name]) for name in names)


def _verdict(row: Mapping[str, Any], score: Score) -> str:
    """The verdict of a comparison: docs/definitions.md, "Effects"."""
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
