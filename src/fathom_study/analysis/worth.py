"""Worth of a connection: the step multiplier at which the plain network reaches its score.

Definitions: docs/definitions.md, "Worth".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fathom_study.analysis.best_rates import pairs_at_best_rates, runs_of
from fathom_study.analysis.effects import AT_BEST_RATE, PAIR, ends_of, in_unit, unit_of
from fathom_study.analysis.ladder import is_equivalent, ladder_at, log_multipliers, read_ladder
from fathom_study.analysis.significance import holm, p_value, score_verdict, tests_on
from fathom_study.analysis.statistics import differences, finite_scores, is_ratio, t_interval
from fathom_study.analysis.step_times import StepTime, StepTimes, read_step_times
from fathom_study.analysis.tables import (
    Runs,
    counted,
    read_table,
    runs_by_place,
    save_tables,
    scores_of,
)
from fathom_study.config import Config
from fathom_study.metrics.scores import Score

ONE_RATE, BEST_RATES = "one rate", "best rates"

KEY = ("study", "platform", "depth", "variant", "against")

COLUMNS = [
    "study", "platform", "depth", "variant", "against", "rate", "seeds", "unit", "change",
    "change_low", "change_high", "answer", "on_ladder", "outside", "multiplier", "low", "high",
    "least", "most", "p", "p_holm", "verdict", "break_even", "machine", "width", "cost", "cost_low",
    "cost_high", "wider", "cost_wider", "cost_wider_low", "cost_wider_high", "operations", "bytes",
    "net", "net_low", "net_high", "depth_answer", "depth_multiplier", "depth_low", "depth_high",
    "after_looking",
]  # fmt: skip


def write_worth(config: Config, folder: Path) -> None:
    """Write worth.csv beside the tables of cells, of effects and of effective depths."""
    names = ("cells.csv", "effects.csv", "effective_depth.csv")
    table = worth_table(config, *(read_table(folder / name) for name in names))
    save_tables({"worth.csv": table}, folder, config.studies)


def worth_table(
    config: Config, cells: pd.DataFrame, effects: pd.DataFrame, depths: pd.DataFrame
) -> pd.DataFrame:
    """A row per variant, depth and platform of the studies that have a plain network.

    `against` is the plain network. `rate` is ONE_RATE if the two differ in connection and model
    alone, BEST_RATES if each has its best learning rate, chosen for each seed by the other seeds.
    `change` is the difference of the scores after equal steps in `unit`, as in effects.csv, with
    the ends of its 95 % interval over seeds.

    If the plain network has a ladder, from `least` to `most` times its steps, `multiplier` is the
    step multiplier m with the ends of its interval. `answer` is the variant's place on the ladder,
    `on_ladder` the number of seeds with a whole ladder, `outside` the number of them outside it.
    `p` tests for equal scores after equal steps. `p_holm` is p corrected: for a pair in the table
    `effects` it is the value there, for others it is corrected over all comparisons of the study,
    there and here (`tests_on`).
    `break_even` is the overhead of a step at which the variant stops paying, m − 1.

    `cost` is the time of a step over the plain network's at the study's `width`, `cost_wider` the
    same at the width `wider`, both on `machine`. `operations` and `bytes` are counted, over the
    plain network's. `net` is m / cost. `depth_multiplier` is effective depth over depth, from the
    table `depths`; an open interval ends at 0 or infinity. `after_looking`: as in effects.csv.
    """
    valid, scores, rows = counted(cells), scores_of(config), []
    times, wider = read_step_times(config), read_step_times(config, wider=True)
    by_depth = {tuple(row[key] for key in KEY): row for row in depths.to_dict("records")}
    for name in config.studies:
        study_rows = []
        for labels, pair in pairs_of(config, name, valid):
            row = _row(pair, scores[name])
            if row is None:
                continue
            deep = by_depth.get(tuple(labels[key] for key in KEY))
            has_depth_multiplier = deep is not None and pair.rate == ONE_RATE
            chosen = config.studies[name].chosen_after_looking_at(
                labels["depth"], pair.variant if pair.rate == ONE_RATE else ""
            )
            study_rows.append(
                labels
                | {"after_looking": chosen}
                | row
                | _cost(times, labels, row)
                | _cost_wider(wider, labels)
                | (_depth_multiplier(deep) if has_depth_multiplier else {})
            )
        is_asked = (effects["study"] == name) & (effects["metric"] == "score")
        rows += _judged(study_rows, effects[is_asked])
    # Fixed types: otherwise empty fields of one study would change the text of another.
    return pd.DataFrame(rows, columns=COLUMNS).astype({"on_ladder": float, "outside": float})


class Pair(NamedTuple):
    """A variant and the ladder of a plain network, seed by seed."""

    variant: str
    against: str
    rate: Literal["one rate", "best rates"]
    ours: pd.Series
    """The variant's score, by seed."""
    theirs: pd.Series
    """The plain network's score, by seed."""
    ladder: pd.DataFrame
    """The plain network's scores by seed, for seeds with a whole ladder; a column per factor of its
    steps, ascending; without a ladder the factor 1 alone."""


def pairs_of(
    config: Config, study: str, cells: pd.DataFrame
) -> Iterator[tuple[dict[str, Any], Pair]]:
    """Every pair of a study, with the first columns of its row of worth.csv.

    `cells`: the rows of cells.csv that count.
    """
    score = scores_of(config)[study]
    for platform, depth, by_variant in runs_by_place(cells, study):
        for pair in _pairs(config, study, by_variant, score):
            labels = {"study": study, "platform": platform, "depth": depth}
            labels |= {"variant": pair.variant, "against": pair.against, "rate": pair.rate}
            yield labels, pair


def _pairs(config: Config, study: str, runs: Runs, score: Score) -> Iterator[Pair]:
    """Every variant with the plain network that trains alike, then the pairs at best rates."""
    settings, plain_network = config.studies[study], config.plain(study)
    bases = list(settings.ladder) or ([plain_network] if plain_network else [])
    ladders = {base: read_ladder(settings.rungs(base), runs) for base in bases if base in runs}
    runs = {label: runs[label] for label in settings.compared if label in runs}
    for base, ladder in ladders.items():
        theirs = finite_scores(runs[base])
        for variant, of_seeds in runs.items():
            if variant not in bases and settings.trains_alike(variant, base):
                yield Pair(variant, base, ONE_RATE, finite_scores(of_seeds), theirs, ladder)
    ladders = {base: ladder for base, ladder in ladders.items() if len(ladder.columns) > 1}
    for best in pairs_at_best_rates(config, study, runs, score) if ladders else ():
        ladder = ladder_at(best.theirs, ladders)
        if not ladder.empty:
            sides = (finite_scores(runs_of(each, runs)) for each in (best.ours, best.theirs))
            yield Pair(best.variant, best.against, BEST_RATES, *sides, ladder)


def ladder_table(config: Config, study: str, cells: pd.DataFrame) -> pd.DataFrame:
    """The rows of cells.csv that are rungs of a ladder, with the `factor` of their steps.

    `variant` is the plain network of the ladder.
    """
    settings = config.studies[study]
    places = {
        label: (base, factor)
        for base in settings.ladder
        for factor, label in settings.rungs(base).items()
    }
    own = cells[(cells["study"] == study) & cells["variant"].isin(places)]
    rungs = [places[label] for label in own["variant"]]
    return own.assign(variant=[base for base, _ in rungs], factor=[factor for _, factor in rungs])


# --- one row --------------------------------------------------------------------------------------


def _row(pair: Pair, score: Score) -> dict[str, Any] | None:
    """The row of one pair; None without a common seed."""
    seeds = pair.ours.index.intersection(pair.theirs.index)
    if seeds.empty:
        return None
    sign, ratio = 1 if score.better == "lower" else -1, is_ratio(score.metric)
    of_scores = t_interval(differences(pair.ours[seeds], pair.theirs[seeds], ratio=ratio))
    unit, plain = unit_of(score), pair.theirs[seeds].mean()
    low, high = ends_of(of_scores, unit, score.metric, plain)
    row = {"seeds": len(seeds), "unit": unit, "change": in_unit(of_scores.mean, unit)}
    row |= {"change_low": low, "change_high": high, "answer": ""}
    if len(pair.ladder.columns) < 2 or pair.ladder.index.intersection(seeds).empty:
        return row
    is_better = sign * of_scores.mean < 0
    return row | _on_ladder(pair, sign) | {"p": p_value(of_scores), "is_better": is_better}


def _on_ladder(pair: Pair, sign: int) -> dict[str, Any]:
    """The columns of one pair that are read from its ladder."""
    factors = list(pair.ladder.columns)
    logs = log_multipliers(pair.ladder, pair.ours, sign)
    below, beyond = sum(logs == -math.inf), sum(logs == math.inf)
    ends = math.log(factors[0]), math.log(factors[-1])
    interval = t_interval(np.clip(logs, *ends))
    if below or beyond:
        interval = interval._replace(half=math.nan)
    answer = {(False, False): "at", (True, False): "below", (False, True): "beyond"}
    return {
        "answer": answer.get((below > 0, beyond > 0), "both"),
        "on_ladder": len(logs),
        "outside": below + beyond,
        "multiplier": math.exp(interval.mean),
        "low": math.exp(interval.low),
        "high": math.exp(interval.high),
        "least": factors[0],
        "most": factors[-1],
        "is_equivalent": not math.isnan(interval.half) and is_equivalent(interval),
        "break_even": math.exp(interval.mean) - 1,
    }


def _judged(rows: Sequence[dict[str, Any]], effects: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows of a study with their verdicts, the same for equal tests: see `worth_table`.

    Rows without a ladder have no verdict.
    """
    yield from (row for row in rows if not row["answer"])
    asked = effects.to_dict("records")
    p_asked = {
        _key(row, BEST_RATES if row["question"] == AT_BEST_RATE else ONE_RATE): row["p_holm"]
        for row in asked
    }
    judged = [row for row in rows if row["answer"]]
    others = [row for row in judged if _key(row, row["rate"]) not in p_asked]
    for platform in dict.fromkeys(row["platform"] for row in judged):
        tests = tests_on(platform, asked, PAIR)
        p_of = {(row["depth"], row["effect"], row["p"]): row["p"] for row in tests}
        unasked = tests_on(platform, others, ("depth", "rate", "variant", "against"))
        both = holm([*p_of.values(), *(row["p"] for row in unasked)])
        keys = [_key(row, row["rate"]) for row in unasked]
        p_holm = p_asked | dict(zip(keys, both[len(p_of) :], strict=True))
        for row in (row for row in judged if row["platform"] == platform):
            p = p_holm.get(_key(row, row["rate"]), math.nan)
            verdict = score_verdict(
                p, is_better=row["is_better"], is_equivalent=row["is_equivalent"]
            )
            yield row | {"p_holm": p, "verdict": verdict}


def _key(row: Mapping[str, Any], rate: str) -> tuple[Any, ...]:
    """A key that rows of this table and of effects.csv share if they are the same test."""
    return (rate, *(row[name] for name in ("platform", "depth", "variant", "against", "seeds")))


def _cost(times: StepTimes, labels: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The cost of a step over the plain network's, if the table of step times has both.

    Counted operations and bytes are the same on every platform.
    """
    counted_work = {key[:3]: time for key, time in times.items()}
    ours, theirs = _sides(counted_work, labels)
    columns = {"width": ours.width} if ours else {}
    if ours and theirs:
        columns |= counted_ratios(ours, theirs)
    ours, theirs = _sides(times, labels, labels["platform"])
    if ours and theirs and not math.isnan(ours.seconds):
        columns |= ratios("cost", ours, theirs) | {"machine": ours.machine}
        if row["answer"]:
            names = {"": "multiplier", "_low": "low", "_high": "high"}
            columns |= {f"net{end}": row[name] / columns["cost"] for end, name in names.items()}
    return columns


def _cost_wider(times: StepTimes, labels: Mapping[str, Any]) -> dict[str, Any]:
    """The cost of a step over the plain network's at a larger width; empty if not timed."""
    ours, theirs = _sides(times, labels, labels["platform"])
    if ours is None or theirs is None:
        return {}
    return {"wider": ours.width, **ratios("cost_wider", ours, theirs)}


def ratios(name: str, ours: StepTime, theirs: StepTime) -> dict[str, float]:
    """Our time of a step over the plain network's, `theirs`, with its range.

    If both were timed in the same turns, it is the median of the ratios within turns.
    """
    values = ours.ratio, ours.ratio_low, ours.ratio_high
    if math.isnan(ours.ratio):
        values = tuple(time / theirs.seconds for time in (ours.seconds, ours.low, ours.high))
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def counted_ratios(ours: StepTime, theirs: StepTime) -> dict[str, float]:
    """Our operations and bytes of a step over theirs."""
    names = ("operations", "bytes")
    return {name: getattr(ours, name) / getattr(theirs, name) for name in names}


def _sides(
    times: Mapping[Any, StepTime], labels: Mapping[str, Any], *where: str
) -> tuple[StepTime | None, StepTime | None]:
    """The step times of the variant and of the plain network."""
    keys = ((labels["study"], labels["depth"], labels[of], *where) for of in ("variant", "against"))
    ours, theirs = map(times.get, keys)
    return ours, theirs


def _depth_multiplier(row: Mapping[str, Any]) -> dict[str, Any]:
    """Effective depth over depth, from a row of its table."""
    low = 0 if row["low_open"] is True else row["low"]
    high = math.inf if row["high_open"] is True else row["high"]
    depths = {"depth_multiplier": row["effective_depth"], "depth_low": low, "depth_high": high}
    return {"depth_answer": row["answer"]} | {k: d / row["depth"] for k, d in depths.items()}
