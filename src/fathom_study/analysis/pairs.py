"""Pairs of variants at one place (study, platform, depth): all that is compared seed by seed.

Definitions: docs/definitions, effects.md and worth.md.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fathom_study.analysis.ladder import Ladders, ladder_at, read_ladder
from fathom_study.analysis.statistics import finite_scores, is_ratio, to_scale
from fathom_study.analysis.tables import Runs, runs_by_place, scores_of
from fathom_study.config import Cell, Config, Contrast, Study
from fathom_study.metrics.scores import Score

AGAINST_PLAIN = "Is the variant better than the plain residual network?"
"""The question for extra variants, and for all variants of a study without contrasts."""

AT_BEST_RATE = "Is the variant better than the plain residual network, each at its best rate?"
"""The question about variants with several learning rates."""

ONE_RATE, BEST_RATES = "one rate", "best rates"
"""Rules for learning rates: both sides train at the same, or each at its own best."""

FEWEST_RATES = 3
"""Minimum number of learning rates, so that the best can have others on both sides."""

OF_THE_CELL = {"variant": None, "seed": None}
"""Fields that identify a cell, reset so that they do not count as differing settings."""


class Pair(NamedTuple):
    """Two variants to compare, seed by seed."""

    question: str
    variant: str
    against: str
    ours: pd.DataFrame
    """Rows of cells.csv, indexed by seed."""
    theirs: pd.DataFrame
    base: str
    """The plain network on whose ladder both are read; empty without one."""
    ladder: pd.DataFrame
    """The table returned by `read_ladder`."""
    at_edge: str = ""
    """At the best rates: the chosen variants whose rate is the smallest or the largest tried."""
    seeds: tuple[int, ...] = ()
    """The seeds that a contrast names; empty: all."""
    rates: Sequence[str] = ()
    """At the best rates: the variants that differ in the rate alone, of which `variant` is one."""

    @property
    def rate(self) -> str:
        """ONE_RATE if the two differ in connection and model alone, else BEST_RATES."""
        return BEST_RATES if self.question == AT_BEST_RATE else ONE_RATE

    @property
    def scores(self) -> tuple[pd.Series, pd.Series]:
        """The finite scores of the variant and of the other, by seed."""
        return finite_scores(self.ours), finite_scores(self.theirs)


Pairs = Callable[[Config, str, Runs, Score], Iterator[Pair]]
"""Function of (config, study, runs at one place, score)."""


class Key(NamedTuple):
    """A pair of trainings at one place; the fields are columns of its row."""

    study: str
    platform: str
    depth: int
    variant: str
    against: str
    rate: str
    seeds: tuple[int, ...]
    """The seeds that its contrast names; empty: all."""


def pairs_of(
    config: Config, study: str, cells: pd.DataFrame, pairs: Pairs
) -> Iterator[tuple[Key, Pair]]:
    """Every pair of a study, at each of its places. `cells`: the rows of cells.csv that count."""
    score = scores_of(config)[study]
    for platform, depth, runs in runs_by_place(cells, study):
        for pair in pairs(config, study, runs, score):
            key = Key(study, platform, depth, pair.variant, pair.against, pair.rate, pair.seeds)
            yield key, pair


def after_looking(config: Config, key: Key) -> str:
    """The settings chosen by results on which the verdict of a pair rests, as in 'seeds'."""
    # A pair at the best rates has only the seeds of all rates.
    variant = key.variant if key.rate == ONE_RATE else ""
    chosen = config.studies[key.study].chosen_after_looking.items()
    return ", ".join(
        name for name, one in chosen if key.depth in one.verdicts_at or variant in one.verdicts_of
    )


def contrasted(config: Config, study: str, runs: Runs, score: Score) -> Iterator[Pair]:
    """Every pair of a study's contrasts, and each connection at its best rate."""
    settings = config.studies[study]
    ladders = ladders_of(settings, runs)
    for contrast in contrasts_of(config, study):
        for pair in contrast.pairs:
            if not {*pair} <= runs.keys():
                continue
            sides = [runs[label] for label in pair]
            if contrast.seeds:
                sides = [side[side.index.isin(contrast.seeds)] for side in sides]
            alike = (b for b in ladders if all(settings.trains_alike(one, b) for one in pair))
            base = next(alike, "")
            ladder = ladders.get(base, pd.DataFrame())
            yield Pair(contrast.question, *pair, *sides, base, ladder, seeds=contrast.seeds)
    yield from at_best_rates(config, study, runs, score)


def beside_plain(config: Config, study: str, runs: Runs, score: Score) -> Iterator[Pair]:
    """Every variant with the plain network that trains alike, then those at the best rates.

    The ladder of a study without one has the factor 1 alone.
    """
    settings, plain = config.studies[study], config.plain(study)
    bases = [base for base in settings.ladder or [plain] if base in runs]
    for base in bases:
        ladder = read_ladder(settings.rungs(base), runs)
        for variant in _compared(config, study, runs):
            if variant not in bases and settings.trains_alike(variant, base):
                yield Pair("", variant, base, runs[variant], runs[base], base, ladder)
    yield from (pair for pair in at_best_rates(config, study, runs, score) if pair.base)


def at_best_rates(config: Config, study: str, runs: Runs, score: Score) -> Iterator[Pair]:
    """Every connection trained at FEWEST_RATES rates or more, if the plain network was too.

    The rate of each seed is chosen by the other seeds, so that no run chooses itself. A pair is
    named by the variants that most seeds choose.
    """
    families = families_of_rates(config, _compared(config, study, runs))
    plain = [f for f in families if config.connection(study, f[0]).kind == "plain"]
    against = next((f for f in plain if config.plain(study) in f), None)
    if against is None:
        return
    theirs = chosen_rates(against, runs, score)
    ladders = ladders_of(config.studies[study], runs)
    for family in (family for family in families if family not in plain):
        ours = chosen_rates(family, runs, score)
        if not (ours and theirs):
            continue
        ends = {family[0], family[-1], against[0], against[-1]}
        chosen = dict.fromkeys((*ours.values(), *theirs.values()))
        names = [Counter(rates.values()).most_common(1)[0][0] for rates in (ours, theirs)]
        sides = [
            pd.concat([runs[variant].loc[[seed]] for seed, variant in rates.items()])
            for rates in (ours, theirs)
        ]
        ladder = ladder_at(theirs, ladders)
        base = "" if ladder.empty else names[1]
        at_edge = ", ".join(variant for variant in chosen if variant in ends)
        yield Pair(AT_BEST_RATE, *names, *sides, base, ladder, at_edge, rates=family)


def _compared(config: Config, study: str, runs: Runs) -> Runs:
    """The runs of the compared variants, without the trainings that ladders add."""
    return {label: runs[label] for label in config.studies[study].compared if label in runs}


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


def ladders_of(study: Study, runs: Runs) -> Ladders:
    """The trained ladders of a study."""
    bases = [base for base in study.ladder if base in runs]
    ladders = {base: read_ladder(study.rungs(base), runs) for base in bases}
    return {base: ladder for base, ladder in ladders.items() if len(ladder.columns) > 1}


# --- learning rates ------------------------------------------------------------------------------


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
    scores = {v: to_scale(runs[v]["score"], ratio=is_ratio(score.metric)) for v in variants}
    common = sorted(set.intersection(*(set(runs[v].index) for v in variants)))
    return score.sign * pd.DataFrame(scores).loc[common].dropna(axis="columns")


# --- settings ------------------------------------------------------------------------------------


def differing_settings(config: Config, cells: Iterable[Cell]) -> list[str]:
    """The settings in which two cells' specs differ, as 'connection.coefficients.alpha'.

    A component of another kind counts as one setting, and so does a start, whose numbers have a
    meaning only together. Settings that do not affect the plain network do not count as different
    from it.
    """
    specs = [config.spec(cell) for cell in cells]
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
