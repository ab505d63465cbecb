"""Effects of single settings: a study's contrasts, paired by seed.

Definitions: docs/definitions.md, "Effects".
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fathom.analysis.established import (
    FLOAT32_TOLERANCE,
    SIGNIFICANCE_LEVEL,
    SMALLEST_EFFECT,
    holm,
    p_value,
    quantile,
    seeds_to_tell,
    share_of_chance,
)
from fathom.analysis.statistics import (
    MIN_SEEDS,
    differences,
    is_ratio,
    mean_with_ci,
    t_interval,
    to_scale,
)
from fathom.analysis.tables import counted, read_table, save_tables, scores_of
from fathom.config import Cell, Config, Contrast
from fathom.metrics.scores import Score
from fathom.metrics.steps import POSITIVE, UNBOUNDED

METRICS = ("score", "stream_similarity_final", "H_res_distance_final", "amax_backward_log10_final")
"""Compared metrics: the score on its own scale, the others by their difference."""

HIGHER, LOWER = "higher", "lower"
"""Verdicts of effects that are established."""
ALIKE, SMALL, TURNS, UNTOLD = (
    "the same",
    "too small to matter",
    "depends on the steps",
    "cannot be told",
)
"""The other verdicts."""

AGAINST_PLAIN = "Does it end better than the plain residual network?"
"""The question for extra variants, and for all variants of a study without contrasts."""

AT_BEST_RATE = "At each one's best rate, does it end better than the plain residual network?"
"""The question about variants with several learning rates."""
FEWEST_RATES = 3
"""Minimum number of learning rates: of fewer, none can be the best with others on both sides."""

COLUMNS = [
    "study", "platform", "depth", "question", "variant", "against", "against_plain", "differs_in",
    "metric", "by", "seeds", "effect", "ci95_half", "against_mean", "seed_sd", "p", "p_holm",
    "of_chance", "of_chance_low", "of_chance_high", "visible", "midway", "midway_ci95_half",
    "verdict", "better", "seeds_needed", "at_edge",
]  # fmt: skip


def write_effects(config: Config, folder: Path) -> None:
    """Write effects.csv beside the table of cells."""
    cells = read_table(folder / "cells.csv")
    save_tables({"effects.csv": effects_table(config, cells)}, folder, config.studies)


def effects_table(config: Config, cells: pd.DataFrame) -> pd.DataFrame:
    """A row per contrast, depth, metric and platform: the mean difference over common seeds.

    `effect` is `variant` less `against`, with half its interval; `against_mean` and `seed_sd` are
    the mean of `against` and its standard deviation over the same seeds. Where a metric is compared
    `by` ratio, effect, interval and deviation are of log10 and the mean is the geometric one. A
    seed counts where both sides are there, and finite. `p` is that of no effect, and `p_holm` the
    same corrected for the study's contrasts on the platform, metric by metric. `against_plain`:
    whether that one is a plain residual network. `differs_in`: the settings that the two differ in,
    as `differing_settings` names them. `at_edge`: the sides of a contrast at the best rates whose
    rate is the smallest or the largest that was tried.

    Of the score alone: `of_chance` with the ends of its interval, the difference as a share of the
    distance from chance to perfect; `visible`, the smallest such share that would be established;
    `midway`, the effect when half of the steps were done, with half its interval; `better`, whether
    an established effect is to the better; `seeds_needed`, at which it could be told.
    """
    valid, scores = counted(cells), scores_of(config)
    rows = []
    for name in config.studies:
        runs = valid[valid["study"] == name]
        found = []
        for (platform, depth), group in runs.groupby(["platform", "depth"], sort=False):
            by_variant = {v: seeds.set_index("seed") for v, seeds in group.groupby("variant")}
            rates = rates_tried(config, by_variant)
            at_best = contrast_at_best_rates(config, name, rates, by_variant, scores[name])
            for contrast in [*contrasts_of(config, name), *at_best]:
                for pair in contrast.pairs:
                    variant, against = pair
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
                        "at_edge": at_edge(rates, contrast, pair),
                    }
                    values = (_of_seeds(by_variant[label], contrast.seeds) for label in pair)
                    # A single stream has no similarity of streams and no matrices to differ in.
                    is_plain = any(config.connection(name, v).kind == "plain" for v in pair)
                    of_score_alone = contrast.question == AT_BEST_RATE or is_plain
                    found += [
                        {**labels, **one}
                        for one in _effects(*values, scores[name])
                        if one["metric"] == "score" or not of_score_alone
                    ]
        rows += _judge_together(found, scores[name])
    # Otherwise the text of a study would depend on empty fields of another one.
    return pd.DataFrame(rows, columns=COLUMNS).astype({"seeds_needed": float})


def undecided(file: Path, studies: Collection[str]) -> pd.DataFrame:
    """The contrasts of scores in effects.csv that cannot be told, those of few seeds first.

    None of a table of an older version. Raises UserError if it cannot be read.
    """
    table = read_table(file)
    if not {*COLUMNS} <= {*table}:
        return pd.DataFrame(columns=COLUMNS)
    rows = table[(table["metric"] == "score") & (table["verdict"] == UNTOLD)]
    return rows[rows["study"].isin(studies)].sort_values("seeds_needed", kind="stable")


def contrasts_of(config: Config, study: str) -> tuple[Contrast, ...]:
    """A study's own, and its extra variants against the plain residual network.

    Without contrasts of its own, every variant against the plain one.
    """
    settings, plain = config.studies[study], config.plain(study)
    labels = settings.extra_labels if settings.contrasts else settings.labels
    pairs = [[label, plain] for label in labels if label != plain]
    if plain is None or not pairs:
        return settings.contrasts
    return (*settings.contrasts, Contrast(question=AGAINST_PLAIN, pairs=pairs))


Runs = Mapping[str, pd.DataFrame]
"""Rows of cells.csv by variant, indexed by seed, for one study, depth and platform."""

Rates = Sequence[Mapping[str, float]]
"""The learning rate by variant, ascending, of variants that differ in it alone."""


def rates_tried(config: Config, runs: Runs) -> Rates:
    """The variants that were trained at FEWEST_RATES learning rates or more."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for variant, rows in runs.items():
        settings = config.spec(Cell.parse(rows.iloc[0]["key"])).model_dump() | OF_THE_CELL
        rate = settings["optimizer"].pop("lr")
        found[json.dumps(settings, sort_keys=True)][variant] = rate
    tried = (dict(sorted(rates.items(), key=lambda item: item[1])) for rates in found.values())
    return [rates for rates in tried if len(rates) >= FEWEST_RATES]


def contrast_at_best_rates(
    config: Config, study: str, rates: Rates, runs: Runs, score: Score
) -> Iterator[Contrast]:
    """Each connection at its best rate against the plain network at its own, if both were tried.

    The best rate is that of the best mean score over the seeds that all rates have. A rate at which
    one of these has no score is not the best.
    """
    found = [best for tried in rates if (best := best_rate(list(tried), runs, score))]
    plain = next((v for v in found if config.connection(study, v).kind == "plain"), None)
    pairs = [[variant, plain] for variant in found if variant != plain]
    if plain and pairs:
        yield Contrast(question=AT_BEST_RATE, pairs=pairs)


def best_rate(variants: Sequence[str], runs: Runs, score: Score) -> str | None:
    """The one of these variants whose mean score is the best; None if none has a score."""
    scores = {v: to_scale(runs[v]["score"], ratio=is_ratio(score.metric)) for v in variants}
    common = sorted(set.intersection(*(set(values.index) for values in scores.values())))
    means = {v: values[common].mean(skipna=False) for v, values in scores.items()}
    sign = 1 if score.better == "lower" else -1
    known = {v: sign * mean for v, mean in means.items() if not math.isnan(mean)}
    return min(known, key=known.__getitem__) if known else None


def at_edge(rates: Rates, contrast: Contrast, pair: Sequence[str]) -> str:
    """Which of a pair at its best rates has the smallest or the largest that was tried."""
    if contrast.question != AT_BEST_RATE:
        return ""
    ends = {end for tried in map(list, rates) for end in (tried[0], tried[-1])}
    return ", ".join(variant for variant in pair if variant in ends)


def differing_settings(config: Config, keys: Sequence[str]) -> list[str]:
    """The settings in which two cells' specs differ, as 'connection.coefficients.alpha'.

    A component of another kind is one setting, whatever is in it, and so is a whole start: its
    numbers have a meaning together alone. What the plain network is the same under is no difference
    from it.
    """
    specs = [config.spec(Cell.parse(key)) for key in keys]
    one, other = ({**spec.model_dump(), **OF_THE_CELL} for spec in specs)
    if any(spec.connection.kind == "plain" for spec in specs):
        for setting in specs[0].model.connection_settings:
            one["model"][setting] = other["model"][setting] = None
    return sorted(_differing(one, other))


def pairs_of_several_settings(config: Config, study: str) -> dict[tuple[str, str], list[str]]:
    """Pairs of a study's own contrasts that differ in more than one setting, with these.

    It follows from the config: no run is needed.
    """
    settings = config.studies[study]
    depth, backend, seed = settings.depths[0], settings.backends[0], settings.seeds[0]
    found = {}
    for variant, against in (pair for c in settings.contrasts for pair in c.pairs):
        keys = [Cell(study, depth, label, backend, seed).path() for label in (variant, against)]
        differing = differing_settings(config, keys)
        if len(differing) > 1:
            found[variant, against] = differing
    return found


OF_THE_CELL = {"variant": None, "seed": None}
"""Fields that identify a cell and are no settings to contrast."""


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
    """The runs of these seeds; without any, all."""
    return runs[runs.index.isin(seeds)] if seeds else runs


def _effects(ours: pd.DataFrame, theirs: pd.DataFrame, score: Score) -> Iterator[dict[str, Any]]:
    """The row of one comparison for each metric that both sides have at a common seed."""
    for metric in METRICS:
        ratio = metric == "score" and is_ratio(score.metric)
        values = [pd.to_numeric(side[metric]) for side in (ours, theirs)]
        difference = (values[0] - values[1]).dropna()
        if difference.empty:
            continue
        common = difference.index
        effect, against = t_interval(differences(*values, ratio=ratio)), values[1][common]
        row = {
            "metric": metric,
            "by": "ratio" if ratio else "difference",
            "seeds": effect["n"],
            "effect": effect["mean"],
            "ci95_half": effect["ci95_half"],
            "against_mean": mean_with_ci(against, POSITIVE if ratio else UNBOUNDED)["mean"],
            "seed_sd": t_interval(to_scale(against, ratio=ratio))["sd"],
            "p": p_value(effect),
            "effect_sd": effect["sd"],
            "is_rounding": effect["n"] >= MIN_SEEDS and difference.abs().max() < FLOAT32_TOLERANCE,
        }
        if metric == "score":
            midway = (side["score_midway"].reindex(common) for side in (ours, theirs))
            then = t_interval(differences(*midway, ratio=ratio))
            row |= {"midway": then["mean"], "midway_ci95_half": then["ci95_half"]}
            row["chance"] = float(ours.iloc[0]["score_chance"])
        yield row


def _judge_together(rows: list[dict[str, Any]], score: Score) -> Iterator[dict[str, Any]]:
    """The rows of a study with their verdicts: what can be told of one depends on their number."""
    families: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        families[row["platform"], row["metric"]].append(row)
    for family in families.values():
        # A pair that is asked for twice, and pairs of runs that are equal bit for bit, count once.
        p_of = {_same_numbers(row): row["p"] for row in family}
        p_holm = dict(zip(p_of, holm(list(p_of.values())), strict=True))
        for row in family:
            row["p_holm"] = p_holm[_same_numbers(row)]
            if row["metric"] == "score":
                row |= _beside_chance(row, score, len(p_of))
            row["verdict"] = _verdict(row)
            judged = row["metric"] == "score" and row["verdict"] in (HIGHER, LOWER)
            row["better"] = row["verdict"] == score.better if judged else ""
    yield from rows


def _same_numbers(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that rows share if they compare the same numbers; text, since NaN equals nothing."""
    names = ("depth", "seeds", "effect", "ci95_half", "against_mean", "seed_sd")
    return tuple(str(row[name]) for name in names)


def _beside_chance(row: Mapping[str, Any], score: Score, tests: int) -> dict[str, Any]:
    """A comparison of scores as shares of the distance from chance to perfect."""

    def share(effect: float) -> float:
        return share_of_chance(effect, row["against_mean"], score, row["chance"], row["by"])

    mean, half, n, sd = (row[name] for name in ("effect", "ci95_half", "seeds", "effect_sd"))
    found: dict[str, Any] = {"of_chance": share(mean)}
    if n >= MIN_SEEDS:
        error = sd / math.sqrt(n)
        found["of_chance_low"], found["of_chance_high"] = share(mean - half), share(mean + half)
        found["visible"] = max(SMALLEST_EFFECT, abs(share(quantile(n, tests) * error)))
        slope = abs(share(mean) / mean) if mean else abs(share(1e-3)) / 1e-3
        found["seeds_needed"] = seeds_to_tell(mean, sd, SMALLEST_EFFECT / slope, tests)
    return found


def _verdict(row: Mapping[str, Any]) -> str:
    """The verdict of a comparison: docs/definitions.md, "Effects"."""
    if row["is_rounding"]:
        return ALIKE
    told = row["p_holm"] < SIGNIFICANCE_LEVEL
    if row["metric"] == "score":
        ends = row.get("of_chance_low", -math.inf), row.get("of_chance_high", math.inf)
        if max(map(abs, ends)) < SMALLEST_EFFECT:
            return SMALL
        turned = row["effect"] * row["midway"] < 0 and abs(row["midway"]) > row["midway_ci95_half"]
        if told and turned:
            return TURNS
        told = told and abs(row["of_chance"]) >= SMALLEST_EFFECT
    if not told:
        return UNTOLD
    return HIGHER if row["effect"] > 0 else LOWER
