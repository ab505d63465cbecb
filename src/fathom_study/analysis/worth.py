"""Worth of a connection: the step multiplier at which the plain network reaches its score.

Definitions: docs/definitions/worth.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fathom_study.analysis.effects import PAIR, change, unit_of
from fathom_study.analysis.ladder import is_equivalent, log_multipliers
from fathom_study.analysis.pairs import AT_BEST_RATE, Pair, beside_plain, pairs_of
from fathom_study.analysis.significance import family_on, holm, p_value, score_verdict
from fathom_study.analysis.statistics import t_interval
from fathom_study.analysis.step_times import StepTime, StepTimes, read_step_times
from fathom_study.analysis.tables import counted, scores_of
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
    for name, study in config.studies.items():
        study_rows = []
        for labels, pair, _ in pairs_of(config, name, valid, beside_plain):
            labels["rate"], row = rate_of(pair.question), _row(pair, scores[name])
            if row is None:
                continue
            at_one_rate = labels["rate"] == ONE_RATE
            deep = by_depth.get(tuple(labels[key] for key in KEY)) if at_one_rate else None
            labels["after_looking"] = study.chosen_after_looking_at(
                labels["depth"], pair.variant if at_one_rate else ""
            )
            cost = _cost(times, labels, row) | _cost_wider(wider, labels)
            study_rows.append(labels | row | cost | (_depth_multiplier(deep) if deep else {}))
        is_asked = (effects["study"] == name) & (effects["metric"] == "score")
        rows += _judged(study_rows, effects[is_asked].to_dict("records"))
    # Fixed types: otherwise empty fields of one study would change the text of another.
    return pd.DataFrame(rows, columns=COLUMNS).astype({"on_ladder": float, "outside": float})


def rate_of(question: str) -> str:
    """The `rate` of a pair that is compared for this question."""
    return BEST_RATES if question == AT_BEST_RATE else ONE_RATE


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
    unit, (ours, theirs) = unit_of(score), pair.scores
    found = change(ours, theirs, score.metric, unit)
    seeds = found.theirs.index
    if seeds.empty:
        return None
    row = {"seeds": len(seeds), "unit": unit, "change": found.mean}
    row |= {"change_low": found.low, "change_high": found.high, "answer": ""}
    if len(pair.ladder.columns) < 2 or pair.ladder.index.intersection(seeds).empty:
        return row
    of_scores = found.on_scale
    own = {"p": p_value(of_scores), "is_better": score.sign * of_scores.mean < 0}
    return row | _on_ladder(pair.ladder, log_multipliers(pair.ladder, ours, score.sign)) | own


def _on_ladder(ladder: pd.DataFrame, logs: pd.Series) -> dict[str, Any]:
    """The columns of one pair that are read from its ladder, given ln m by seed."""
    factors = list(ladder.columns)
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


def _judged(
    rows: Sequence[dict[str, Any]], asked: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The rows of a study with their verdicts, the same for equal tests: see `worth_table`.

    `asked`: rows of effects.csv. Rows without a ladder have no verdict.
    """
    yield from (row for row in rows if not row["answer"])
    p_asked = {_test(row | {"rate": rate_of(row["question"])}): row["p_holm"] for row in asked}
    judged = [row for row in rows if row["answer"]]
    others = [row for row in judged if _test(row) not in p_asked]
    for platform in dict.fromkeys(row["platform"] for row in judged):
        family = {
            (row["depth"], row["effect"], row["p"]): row["p"]
            for row in family_on(platform, asked, PAIR)
        }
        unasked = family_on(platform, others, ("depth", "rate", "variant", "against"))
        p_holm = holm(family | {_test(row): row["p"] for row in unasked}) | p_asked
        for row in (row for row in judged if row["platform"] == platform):
            p = p_holm.get(_test(row), math.nan)
            verdict = score_verdict(
                p, is_better=row["is_better"], is_equivalent=row["is_equivalent"]
            )
            yield row | {"p_holm": p, "verdict": verdict}


def _test(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A key that rows of this table and of effects.csv share if they are the same test."""
    return tuple(row[name] for name in ("rate", "platform", "depth", "variant", "against", "seeds"))


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
