"""Best learning rates: chosen for each seed by the other seeds, so that no run chooses itself.

Definitions: docs/definitions.md, "At the best rate".
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from fathom_study.analysis.statistics import is_ratio, to_scale
from fathom_study.analysis.tables import Runs
from fathom_study.config import Cell, Config
from fathom_study.metrics.scores import Score

FEWEST_RATES = 3
"""Minimum number of learning rates, so that the best can have others on both sides."""

OF_THE_CELL = {"variant": None, "seed": None}
"""Fields that identify a cell, reset so that they do not count as differing settings."""

Chosen = Mapping[int, str]
"""The variant with the best rate, by seed."""


class BestRates(NamedTuple):
    """A connection and the plain network, each at its best rate."""

    ours: Chosen
    theirs: Chosen
    at_edge: str
    """The chosen variants whose rate is the smallest or the largest that was tried."""

    @property
    def variant(self) -> str:
        """The connection's variant that most seeds choose."""
        return most_frequent(self.ours.values())

    @property
    def against(self) -> str:
        """The plain network's variant that most seeds choose."""
        return most_frequent(self.theirs.values())


def pairs_at_best_rates(
    config: Config, study: str, runs: Runs, score: Score
) -> Iterator[BestRates]:
    """Every connection trained at FEWEST_RATES rates or more, if the plain network was too.

    `runs`: the runs of the compared variants.
    """
    families = families_of_rates(config, runs)
    plain = [f for f in families if config.connection(study, f[0]).kind == "plain"]
    against = next((f for f in plain if config.plain(study) in f), None)
    if against is None:
        return
    theirs = chosen_rates(against, runs, score)
    for family in (family for family in families if family not in plain):
        ours = chosen_rates(family, runs, score)
        if not (ours and theirs):
            continue
        ends = {family[0], family[-1], against[0], against[-1]}
        chosen = dict.fromkeys((*ours.values(), *theirs.values()))
        yield BestRates(ours, theirs, ", ".join(v for v in chosen if v in ends))


def families_of_rates(config: Config, runs: Runs) -> list[list[str]]:
    """Groups of FEWEST_RATES or more variants that differ in the rate alone, by ascending rate."""
    by_settings: dict[str, dict[str, float]] = defaultdict(dict)
    for variant, rows in runs.items():
        settings = config.spec(Cell.parse(rows.iloc[0]["key"])).model_dump() | OF_THE_CELL
        rate = settings["optimizer"].pop("lr")
        by_settings[json.dumps(settings, sort_keys=True)][variant] = rate
    tried = (sorted(rates, key=rates.__getitem__) for rates in by_settings.values())
    return [rates for rates in tried if len(rates) >= FEWEST_RATES]


def chosen_rates(variants: Sequence[str], runs: Runs, score: Score) -> dict[int, str]:
    """For each seed that all rates have, the variant whose mean score over the other seeds is best.

    A rate with a missing score is excluded. Empty below two such seeds, or if no rate has all
    scores.
    """
    table = _losses(variants, runs, score)
    if len(table) < 2 or table.empty:
        return {}
    return {seed: table.drop(index=seed).mean().idxmin() for seed in table.index}


def best_rate(variants: Sequence[str], runs: Runs, score: Score) -> str | None:
    """The variant with the best mean score over the seeds that all rates have.

    None if no rate has all of these scores.
    """
    table = _losses(variants, runs, score)
    return None if table.empty else table.mean().idxmin()


def _losses(variants: Sequence[str], runs: Runs, score: Score) -> pd.DataFrame:
    """Signed scores by seed, lower is better; a column per variant that has all of them."""
    sign = 1 if score.better == "lower" else -1
    scores = {v: to_scale(runs[v]["score"], ratio=is_ratio(score.metric)) for v in variants}
    common = sorted(set.intersection(*(set(runs[v].index) for v in variants)))
    return sign * pd.DataFrame(scores).loc[common].dropna(axis="columns")


def most_frequent(labels: Iterable[str]) -> str:
    """The label that occurs most often; the first of a tie."""
    return Counter(labels).most_common(1)[0][0]


def runs_of(chosen: Chosen, runs: Runs) -> pd.DataFrame:
    """The run of each seed at its chosen rate, indexed by seed."""
    return pd.concat([runs[variant].loc[[seed]] for seed, variant in chosen.items()])
