"""Stability: the largest learning rate that trains, the good rates, spikes of the loss.

Definitions: docs/definitions/stability.md.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fathom_study import tasks
from fathom_study.analysis.ladder import DELTA, log_multipliers
from fathom_study.analysis.pairs import best_rate, ladders_of
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.significance import UNDECIDED
from fathom_study.analysis.statistics import MIN_SEEDS, finite_scores
from fathom_study.analysis.tables import Runs, counted, runs_by_place, scores_of
from fathom_study.config import Config, Study
from fathom_study.metrics.scores import Score

LARGER, EQUAL, SMALLER = "larger", "equal", "smaller"
"""Verdicts on the largest rates of two variants, beside UNDECIDED; also those of single seeds."""

COLUMNS = [
    "study", "platform", "depth", "variant", "against", "to_pass", "rates", "smallest",
    "greatest", "seeds", "largest", "largest_low", "largest_high", "at_top", "best", "good",
    "good_low", "good_high", "runs", "diverged", "untrained", "spikes", "recovered", "spiked",
    "both", "larger", "equal", "smaller", "ratio", "ratio_low", "ratio_high", "verdict",
]  # fmt: skip


def stability_table(config: Config, cells: pd.DataFrame) -> pd.DataFrame:
    """A row per variant, depth and platform of the studies with `rates`, over all rates there.

    `to_pass` is the score that a run must pass to train; NaN if its outcome decides. `untrained`
    counts the runs that neither diverged nor train. `against` is the plain network, or the other
    side of a contrast; empty for the plain network itself. `both` is the number of common seeds,
    compared over the common rates: at how many is the variant's largest rate `larger`, `equal` or
    `smaller`. Other columns: docs/definitions/stability.md.
    """
    valid, scores, rows = counted(cells), scores_of(config), []
    for name, study in config.studies.items():
        for platform, depth, by_label in runs_by_place(valid, name) if study.rate_families else ():
            here = _families(config, name, depth, platform, by_label)
            columns = {
                base: _variant_columns(study, family, by_label, scores[name])
                for base, family in here.items()
            }
            labels = {"study": name, "platform": platform, "depth": depth}
            for base, against in _pairs(config, name, here):
                pair = {"variant": base, "against": against}
                verdict = _compare(study, here[base], here[against], by_label) if against else {}
                rows.append(labels | pair | columns[base] | verdict)
    return pd.DataFrame(rows, columns=COLUMNS)


def _families(
    config: Config, study: str, depth: int, platform: str, runs: Runs
) -> dict[str, dict[float, str]]:
    """Labels by variant and learning rate, of the variants with runs at every rate planned here."""
    place = depth, Platform.parse(platform).backend
    planned = {c.variant for c in config.cells_of(study) if (c.depth, c.backend) == place}
    families = {
        base: {rate: label for rate, label in family.items() if label in planned}
        for base, family in config.studies[study].rate_families.items()
    }
    return {base: of for base, of in families.items() if of and runs.keys() >= {*of.values()}}


def _pairs(config: Config, study: str, families: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(variant, plain network) for each variant, "" for the plain one itself; then contrasts."""
    settings, plain = config.studies[study], config.plain(study)
    against = plain if plain in families else ""
    yield from ((base, "" if base == against else against) for base in families)
    asked = itertools.chain(*(contrast.pairs for contrast in settings.contrasts))
    pairs = (tuple(settings.bases.get(label, label) for label in pair) for pair in asked)
    for one, other in dict.fromkeys(pairs):
        if {one, other} <= families.keys() and one != other and other != against:
            yield one, other


# --- one variant ----------------------------------------------------------------------------------


def trains(study: Study, runs: pd.DataFrame) -> pd.Series:
    """Whether each run trains: it has not diverged, and its score passes the task's line."""
    line = tasks.presentation(study.task).line
    if not line:
        return runs["outcome"] == "learned"
    sign = tasks.score_of(study.task, study.score).sign
    passes = sign * pd.to_numeric(runs["score"]) < sign * pd.to_numeric(runs[line])
    return passes & (runs["outcome"] != "diverged")


def largest_rates(study: Study, family: Mapping[float, str], runs: Runs) -> pd.Series:
    """The largest rate that trains, 0 if none does, by seed that has every rate."""
    does = {rate: trains(study, runs[label]) for rate, label in family.items()}
    table = pd.DataFrame(does).dropna().astype(float)
    return (table * table.columns).max(axis=1)


def _variant_columns(
    study: Study, family: Mapping[float, str], runs: Runs, score: Score
) -> dict[str, Any]:
    """The columns of a row about one variant."""
    largest = largest_rates(study, family, runs)
    of_all = pd.concat([runs[label] for label in family.values()])
    diverged = of_all["outcome"] == "diverged"
    best = best_rate(list(family.values()), runs, score)
    rates, line = list(family), tasks.presentation(study.task).line
    return {
        "to_pass": pd.to_numeric(of_all[line]).mean() if line else math.nan,
        "rates": " ".join(f"{rate:g}" for rate in rates),
        "smallest": rates[0],
        "greatest": rates[-1],
        "seeds": len(largest),
        **_median(largest, "largest"),
        "at_top": int((largest == rates[-1]).sum()),
        "best": next((rate for rate, label in family.items() if label == best), math.nan),
        **(_good(study, family, runs, score, best) if best else {}),
        "runs": len(of_all),
        "diverged": int(diverged.sum()),
        "untrained": int((~diverged & ~trains(study, of_all)).sum()),
        **_spiked(of_all),
    }


def _good(
    study: Study, family: Mapping[float, str], runs: Runs, score: Score, best: str
) -> dict[str, float]:
    """Number and ends of the good rates around the best one; empty without a readable ladder."""
    ladder = next(iter(ladders_of(study, runs).values()), None)
    if ladder is None:
        return {}
    rates, labels, worth = list(family), list(family.values()), []
    for label in labels:
        scores = finite_scores(runs[label])
        logs = log_multipliers(ladder, scores, score.sign)
        is_whole = len(scores) == len(runs[label]) and len(logs)
        worth.append(float(np.mean(logs)) if is_whole else -math.inf)
    low = high = labels.index(best)
    most = worth[low]
    if not math.isfinite(most):
        return {}
    is_good = [most - value <= math.log1p(DELTA) for value in worth]
    while low > 0 and is_good[low - 1]:
        low -= 1
    while high + 1 < len(rates) and is_good[high + 1]:
        high += 1
    return {"good": high - low + 1, "good_low": rates[low], "good_high": rates[high]}


def _spiked(runs: pd.DataFrame) -> dict[str, int]:
    """Counts of spikes, recovered spikes and runs with a spike."""
    spikes = runs["spikes"].fillna(0)
    return {
        "spikes": int(spikes.sum()),
        "recovered": int(runs["spikes_recovered"].fillna(0).sum()),
        "spiked": int((spikes > 0).sum()),
    }


# --- two variants ---------------------------------------------------------------------------------


def _compare(
    study: Study, our_family: Mapping[float, str], their_family: Mapping[float, str], runs: Runs
) -> dict[str, Any]:
    """The columns of a row that compare one variant with another, over their common rates."""
    common = [rate for rate in our_family if rate in their_family]
    rates = (
        largest_rates(study, {rate: family[rate] for rate in common}, runs)
        for family in (our_family, their_family)
    )
    both, top = pd.concat(rates, axis=1, join="inner"), max(common, default=math.nan)
    counts = Counter(_one_seed(*pair, top) for pair in both.itertuples(index=False))
    factors = both[((both > 0) & (both < top)).all(axis=1)]
    alike = len(both) >= MIN_SEEDS and len(counts) == 1
    return {
        "both": len(both),
        **{word: counts[word] for word in (LARGER, EQUAL, SMALLER)},
        **(_median(factors[0] / factors[1], "ratio") if len(factors) == len(both) else {}),
        "verdict": (next(iter(counts)) if alike else "") or UNDECIDED,
    }


def _one_seed(ours: float, theirs: float, top: float) -> str:
    """LARGER, EQUAL or SMALLER for one seed; empty if both rates are bounds."""
    if ours == theirs:
        return "" if ours in (0, top) else EQUAL
    return LARGER if ours > theirs else SMALLER


def _median(values: pd.Series, name: str) -> dict[str, float]:
    """The median of rates or ratios on a log scale, with the range; empty without values."""
    ordered = sorted(values.tolist())
    if not ordered:
        return {}
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    middle = low if low == high else math.sqrt(low * high)
    return {name: middle, f"{name}_low": ordered[0], f"{name}_high": ordered[-1]}
