"""Worth of a connection: the step multiplier at which the plain network reaches its score.

Definitions: docs/definitions.md, "Worth".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fathom.analysis.effects import Runs, best_rate, rates_tried
from fathom.analysis.ladder import is_equivalent, log_multipliers, read_ladder
from fathom.analysis.significance import holm, p_value, score_verdict
from fathom.analysis.statistics import differences, finite_scores, is_ratio, t_interval
from fathom.analysis.step_times import StepTimes, read_step_times
from fathom.analysis.tables import counted, read_table, save_tables, scores_of
from fathom.config import Config
from fathom.metrics.scores import Score

COLUMNS = [
    "study", "platform", "depth", "variant", "against", "at", "seeds", "answer", "outside",
    "multiplier", "low", "high", "least", "most", "p", "p_holm", "verdict", "break_even", "cost",
    "cost_low", "cost_high", "machine", "operations", "bytes", "net", "net_low", "net_high",
]  # fmt: skip


def write_worth(config: Config, folder: Path) -> None:
    """Write worth.csv beside the table of cells."""
    cells = read_table(folder / "cells.csv")
    save_tables({"worth.csv": worth_table(config, cells)}, folder)


def worth_table(config: Config, cells: pd.DataFrame) -> pd.DataFrame:
    """A row per variant, depth and platform of the studies that have a ladder.

    `against` is the plain network whose ladder is read, from `least` to `most` times its steps.
    `at` is `one rate`: the variant differs from it in connection and model alone; or `best rates`:
    each has its best learning rate, chosen for each seed by the other seeds. `multiplier` is the
    step multiplier m with the ends of its 95 % interval over seeds; `answer` says where the variant
    ends on the ladder, and `outside` at how many seeds that is outside of it. `p` is that of equal
    scores after equal steps, `p_holm` the same corrected for the rows of the study on the platform.
    `break_even` is the overhead of a step at which the variant stops paying, m − 1. `cost` is the
    time of a step over the plain network's, measured on `machine`; `operations` and `bytes` are
    counted, over the plain network's. `net` is m over the cost.
    """
    valid, scores, rows = counted(cells), scores_of(config), []
    times = read_step_times(config)
    for name in config.studies:
        found = []
        runs = valid[valid["study"] == name]
        for (platform, depth), group in runs.groupby(["platform", "depth"], sort=False):
            by_variant = {v: seeds.set_index("seed") for v, seeds in group.groupby("variant")}
            for pair in _pairs(config, name, by_variant, scores[name]):
                row = _row(pair, scores[name])
                if row is None:
                    continue
                labels = {
                    "study": name,
                    "platform": platform,
                    "depth": depth,
                    "variant": pair.variant,
                    "against": pair.against,
                    "at": pair.at,
                }
                found.append(labels | row | _cost(times, labels, row))
        rows += _judged(found)
    return pd.DataFrame(rows, columns=COLUMNS)


class Pair(NamedTuple):
    """A variant and the ladder of a plain network, seed by seed."""

    variant: str
    against: str
    at: Literal["one rate", "best rates"]
    ours: pd.Series
    """The variant's score, by seed."""
    ladder: pd.DataFrame
    """The plain network's, by seed; a column for each factor of its steps, ascending."""


def _pairs(config: Config, study: str, runs: Runs, score: Score) -> Iterator[Pair]:
    """Every variant of a study whose worth a ladder tells."""
    settings = config.studies[study]
    ladders = {base: read_ladder(settings.rungs(base), runs) for base in settings.ladder}
    ladders = {base: ladder for base, ladder in ladders.items() if ladder is not None}
    rungs = {label for base in settings.ladder for label in settings.rungs(base).values()}
    for base, ladder in ladders.items():
        for variant, of_seeds in runs.items():
            if variant not in rungs and settings.trains_alike(variant, base):
                yield Pair(variant, base, "one rate", finite_scores(of_seeds), ladder)
    families = [list(rates) for rates in rates_tried(config, runs)]
    plain = next((family for family in families if set(family) & ladders.keys()), None)
    for family in families:
        if plain is None or family == plain:
            continue
        ours, theirs = (_chosen_rates(each, runs, score) for each in (family, plain))
        seeds = [
            seed
            for seed in ours
            if theirs.get(seed) in ladders and seed in ladders[theirs[seed]].index
        ]
        if seeds:
            chosen = pd.Series({seed: finite_scores(runs[ours[seed]])[seed] for seed in seeds})
            ladder = pd.DataFrame({seed: ladders[theirs[seed]].loc[seed] for seed in seeds}).T
            names = (_most_frequent(side[seed] for seed in seeds) for side in (ours, theirs))
            yield Pair(*names, "best rates", chosen, ladder)


def _chosen_rates(variants: Sequence[str], runs: Runs, score: Score) -> dict[int, str]:
    """For each seed that all rates have, the variant whose mean over the other seeds is best.

    So no rate is chosen by the run that counts.
    """
    common = sorted(set.intersection(*(set(runs[variant].index) for variant in variants)))
    found = {}
    for seed in common:
        others = {v: runs[v].loc[[other for other in common if other != seed]] for v in variants}
        if len(common) > 1 and (best := best_rate(variants, others, score)):
            found[seed] = best
    return found


def _most_frequent(labels: Iterable[str]) -> str:
    return Counter(labels).most_common(1)[0][0]


# --- one row --------------------------------------------------------------------------------------


def _row(pair: Pair, score: Score) -> dict[str, Any] | None:
    """The row of one pair; None without a common seed."""
    sign = 1 if score.better == "lower" else -1
    logs = log_multipliers(pair.ladder, pair.ours, sign)
    if logs.empty:
        return None
    seeds, factors = logs.index, list(pair.ladder.columns)
    below, beyond = sum(logs == -math.inf), sum(logs == math.inf)
    ends = math.log(factors[0]), math.log(factors[-1])
    found = t_interval(np.clip(logs, *ends))
    half = math.nan if below or beyond else found["ci95_half"]
    of_scores = t_interval(
        differences(pair.ours[seeds], pair.ladder.loc[seeds, 1], ratio=is_ratio(score.metric))
    )
    answer = {(False, False): "at", (True, False): "below", (False, True): "beyond"}
    return {
        "seeds": len(seeds),
        "answer": answer.get((below > 0, beyond > 0), "both"),
        "outside": below + beyond,
        "multiplier": math.exp(found["mean"]),
        "low": math.exp(found["mean"] - half),
        "high": math.exp(found["mean"] + half),
        "least": factors[0],
        "most": factors[-1],
        "p": p_value(of_scores),
        "is_better": sign * of_scores["mean"] < 0,
        "is_equivalent": not math.isnan(half) and is_equivalent(found),
        "break_even": math.exp(found["mean"]) - 1,
    }


def _judged(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a study with their verdicts: Holm's correction is over a platform's rows."""
    for platform in dict.fromkeys(row["platform"] for row in rows):
        family = [row for row in rows if row["platform"] == platform]
        for row, p in zip(family, holm([row["p"] for row in family]), strict=True):
            verdict = score_verdict(
                p, is_better=row["is_better"], is_equivalent=row["is_equivalent"]
            )
            yield row | {"p_holm": p, "verdict": verdict}


def _cost(times: StepTimes, labels: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The cost of a step over the plain network's, as far as the table of step times has both."""
    ours, theirs = (
        times.get((labels["study"], labels["depth"], labels[side], labels["platform"]))
        for side in ("variant", "against")
    )
    if ours is None or theirs is None:
        return {}
    cost, low, high = (x / theirs.seconds for x in (ours.seconds, ours.low, ours.high))
    return {
        "cost": cost,
        "cost_low": low,
        "cost_high": high,
        "machine": ours.machine,
        **{
            f"net{end}": row[end.strip("_") or "multiplier"] / cost for end in ("", "_low", "_high")
        },
    }
