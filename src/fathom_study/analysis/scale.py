"""Step multipliers at several sizes of the network.

Definitions: docs/definitions/worth.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fathom_study.analysis.pair_verdicts import PERCENT, Verdict, Verdicts, unit_of
from fathom_study.analysis.pairs import ONE_RATE, Key, Pair, beside_plain, pairs_of
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.significance import BETTER, WORSE
from fathom_study.analysis.statistics import t_interval
from fathom_study.analysis.step_times import read_step_times, width_of
from fathom_study.analysis.tables import counted, scores_of
from fathom_study.analysis.worth import KEY, WAYS, compare_costs, counted_ratios, ratios
from fathom_study.config import Config, count_parameters
from fathom_study.metrics.scores import Score

ALL, LONGEST = "all", "longest"
"""Trainings over which a multiplier is pooled."""

FACTORS = ("channels", "layers", "tokens")
"""Columns of a size; rows are sorted by them."""

Network = tuple[str, str, int, float]
"""Backend, the connection's settings, layers and channels."""

OF_WORTH = [
    "answer", "on_ladder", "outside", "multiplier", "low", "high", "least", "most", "break_even",
    "tests", "corrected_low", "corrected_high", "verdict", "cost", "cost_low", "cost_high",
    "machine", "operations", "bytes", "cost_fused",
]  # fmt: skip
"""Columns copied from a size's row of worth.csv."""

SIZE_COLUMNS = [
    "design", "study", "platform", "backend", "depth", "variant", "against", *FACTORS, "steps",
    "parameters", "tokens_per_parameter", "lr", "tried", "best_tried", "seeds", "gain", "gain_low",
    "gain_high", *OF_WORTH, *WAYS,
]  # fmt: skip


def sizes_table(
    config: Config, cells: pd.DataFrame, worth: pd.DataFrame, verdicts: Verdicts
) -> pd.DataFrame:
    """A row per design and size, a depth of a study with `plain_at_size`.

    `gain`: nats below the plain network; NaN if the score has another unit. Other columns:
    docs/definitions/worth.md, and `worth_table`.
    """
    valid, scores = counted(cells), scores_of(config)
    by_key = {tuple(row[key] for key in (*KEY, "rate")): row for row in worth.to_dict("records")}
    sizes = []
    for name, study in config.studies.items():
        for key, pair in _designs(config, name, valid) if study.plain_at_size else ():
            row = by_key.get(key[:-1])
            if row is None:  # without a common seed
                continue
            of_size = (valid["study"] == name) & (valid["depth"] == key.depth)
            sizes.append(
                key._asdict()
                | {"backend": Platform.parse(key.platform).backend}
                | {"scheme": config.connection(name, key.variant).model_dump_json()}
                | _size(config, key)
                | _rates(config, name, valid[of_size])
                | _gain(pair, scores[name], verdicts[key])
                | {column: row[column] for column in OF_WORTH}
            )
    _add_costs(sizes, config)
    rows = [row | compare_costs(row) for row in sizes]
    table = pd.DataFrame(rows, columns=[*SIZE_COLUMNS, "scheme"])
    # One connection has the shortest of its labels.
    labels = table.groupby("scheme")["variant"]
    table["design"] = labels.transform(lambda variants: min(variants, key=len))
    table = table.sort_values(["seeds", "outside"], ascending=[False, True], kind="stable")
    table = table.drop_duplicates(["design", "backend", "study", "depth"])
    read = (table["answer"] != "").groupby([table["design"], table["backend"]]).transform("sum")
    order = ["backend", "design", *FACTORS]
    return table[read > 1].sort_values(order, ignore_index=True)[SIZE_COLUMNS]


POOLED_COLUMNS = [
    "design", "backend", "trainings", "sizes", "networks", "lower", "better", "worse", "bounds",
    "multiplier", "low", "high", "cost_low", "cost_high", "operations_low", "operations_high",
]  # fmt: skip


def pooled_table(sizes: pd.DataFrame) -> pd.DataFrame:
    """A row per design and backend: its step multiplier pooled over sizes, with a 95 % interval.

    `trainings`: ALL sizes, or the LONGEST of each of the `networks`. `better` and `worse` count
    verdicts. Other columns: docs/definitions/worth.md.
    """
    rows = []
    for (backend, design), own in sizes.groupby(["backend", "design"], sort=False):
        own = own[own["answer"] != ""].sort_values("steps", kind="stable")
        longest = own.drop_duplicates(["channels", "layers"], keep="last")
        for trainings, of in ((ALL, own), (LONGEST, longest)):
            logs = t_interval(of["multiplier"].map(math.log))
            verdicts = of["verdict"].value_counts()
            row = {"design": design, "backend": backend, "trainings": trainings, "sizes": len(of)}
            row |= {"networks": len(longest), "lower": int((of["gain"] > 0).sum())}
            row |= {verdict: int(verdicts.get(verdict, 0)) for verdict in (BETTER, WORSE)}
            row["bounds"] = int((of["answer"] != "at").sum())
            ends = {"multiplier": logs.mean, "low": logs.low, "high": logs.high}
            row |= {name: math.exp(log) for name, log in ends.items()}
            for cost in ("cost", "operations"):
                row |= {f"{cost}_low": of[cost].min(), f"{cost}_high": of[cost].max()}
            rows.append(row)
    return pd.DataFrame(rows, columns=POOLED_COLUMNS)


# --- one size -------------------------------------------------------------------------------------


def _designs(config: Config, study: str, cells: pd.DataFrame) -> Iterator[tuple[Key, Pair]]:
    """The pairs of a study's connections with the plain network of the size, at one rate."""
    settings, against = config.studies[study], {}
    pairs = [
        (key, pair)
        for key, pair in pairs_of(config, study, cells, beside_plain)
        if key.rate == ONE_RATE
        and key.against in settings.plain_at_size
        and config.connection(study, key.variant).kind != "plain"
        and "model" not in settings.changes(key.variant)
    ]
    for key, pair in sorted(pairs, key=lambda one: settings.plain_at_size.index(one[0].against)):
        if against.setdefault((key.platform, key.depth), key.against) == key.against:
            yield key, pair


def _size(config: Config, key: Key) -> dict[str, Any]:
    settings = config.studies[key.study].of(key.against)
    tokens = settings.steps * settings.tokens_per_step_at(key.depth)
    parameters = count_parameters(config.network(key.study, key.depth, key.against))
    return {
        "channels": width_of(settings),
        "layers": key.depth,
        "tokens": tokens,
        "steps": settings.steps,
        "parameters": parameters,
        "tokens_per_parameter": tokens / parameters,
        "lr": settings.optimizer.lr,
    }


def _rates(config: Config, study: str, runs: pd.DataFrame) -> dict[str, Any]:
    """The rates of a study's plain networks, and the rate of the lowest mean tuning loss.

    A rate at which one of its runs diverged is not the best one.
    """
    settings, by_rate = config.studies[study], defaultdict(dict)
    for run in runs.to_dict("records"):
        variant = run["variant"]
        changed = settings.changes(variant).keys() - {"optimizer"}
        is_rung = variant in settings.ladder_trainings
        if config.connection(study, variant).kind == "plain" and not (changed or is_rung):
            rate = settings.of(variant).optimizer.lr
            by_rate[rate][run["platform"], run["seed"]] = run.get("tuning_loss", math.nan)
    common = set.intersection(*map(set, by_rate.values())) if by_rate else set()
    means = {rate: np.mean([losses[one] for one in common]) for rate, losses in by_rate.items()}
    known = {rate: mean for rate, mean in means.items() if not math.isnan(mean)}
    best = min(known, key=known.__getitem__) if common and len(by_rate) > 1 and known else math.nan
    return {"tried": " ".join(f"{rate:g}" for rate in sorted(by_rate)), "best_tried": best}


def _gain(pair: Pair, score: Score, verdict: Verdict) -> dict[str, float]:
    """Mean nats below the plain network after equal steps, with the verdict's interval."""
    nats = {"nats": 1.0, "bits": math.log(2)}.get(score.unit.partition(" ")[0], math.nan)
    ours, theirs = pair.scores
    gains = (nats * (theirs - ours)).dropna()
    # Nats per unit of an effect.
    size = nats * theirs[gains.index].mean() / 100 if unit_of(score) == PERCENT else nats
    return {
        "seeds": len(gains),
        "gain": float(gains.mean()),
        "gain_low": -size * verdict.corrected_high,
        "gain_high": -size * verdict.corrected_low,
    }


def _add_costs(rows: Sequence[dict[str, Any]], config: Config) -> None:
    """Give a size without a cost the cost of the same network in any study with sizes.

    Steps are timed at the width of a study and at a larger one, which may be the width of another
    study. Operations are counted at the study's own width.
    """
    timed: dict[Network, dict[str, Any]] = {}
    counted_work: dict[Network, dict[str, Any]] = {}
    for wider in (False, True):
        times = read_step_times(config, wider=wider)
        for (name, depth, variant, platform), ours in times.items():
            study, plain = config.studies[name], config.plain(name)
            theirs = times.get((name, depth, plain, platform)) if plain else None
            if theirs is None or not study.plain_at_size or "model" in study.changes(variant):
                continue
            scheme = config.connection(name, variant).model_dump_json()
            network = Platform.parse(platform).backend, scheme, depth, ours.width
            if not math.isnan(ours.seconds):
                cost = ratios("cost", ours, theirs) | {"machine": ours.machine}
                timed.setdefault(network, cost)
            if not (wider or math.isnan(ours.operations)):
                counted_work.setdefault(network, counted_ratios(ours, theirs))
    for row in rows:
        network = row["backend"], row["scheme"], row["layers"], row["channels"]
        if math.isnan(row["cost"]):
            row |= timed.get(network, {})
        if math.isnan(row["operations"]):
            row |= counted_work.get(network, {})
