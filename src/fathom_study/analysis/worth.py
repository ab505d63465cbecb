"""Worth of a connection: the step multiplier at which the plain network reaches its score.

Definitions: docs/definitions/worth.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fathom.connections.connection import ConnectionContext
from fathom.connections.cost import MACHINES, over_transformer
from fathom_study.analysis.ladder import log_multipliers
from fathom_study.analysis.pair_verdicts import ALIKE, Verdicts, compare
from fathom_study.analysis.pairs import ONE_RATE, Key, Pair, after_looking, beside_plain, pairs_of
from fathom_study.analysis.significance import EQUIVALENT, UNDECIDED
from fathom_study.analysis.statistics import t_interval
from fathom_study.analysis.step_times import StepTime, StepTimes, read_step_times
from fathom_study.analysis.tables import counted, scores_of
from fathom_study.config import Config
from fathom_study.metrics.scores import Score

PAYS, COSTS_MORE = "pays", "costs more"
"""A connection saves more than its steps cost, or less, by one way to count the cost."""

WAYS = {"pays_here": "cost", "pays_operations": "operations", "pays_fused": "cost_fused"}
"""Columns of these verdicts, and the column of the cost of each."""

FUSED_WIDTH, FUSED_BLOCKS = 4096, 32
"""The transformer for which the cost with fused kernels is computed."""

KEY = ("study", "platform", "depth", "variant", "against")

COLUMNS = [
    "study", "platform", "depth", "variant", "against", "design", "rate", "seeds", "unit", "change",
    "change_low", "change_high", "answer", "on_ladder", "outside", "multiplier", "low", "high",
    "least", "most", "p", "p_holm", "tests", "corrected_low", "corrected_high", "verdict",
    "break_even", "machine", "width", "cost", "cost_low", "cost_high", "wider",
    "cost_wider", "cost_wider_low", "cost_wider_high", "operations", "bytes", "cost_fused", *WAYS,
    "net", "net_low", "net_high", "depth_answer", "depth_multiplier", "depth_low", "depth_high",
    "after_looking",
]  # fmt: skip


def worth_table(
    config: Config, cells: pd.DataFrame, depths: pd.DataFrame, verdicts: Verdicts
) -> pd.DataFrame:
    """A row per variant, depth and platform of the studies that have a plain network, `against`.

    `design` is the variant at the study's own rate, of those that differ from `variant` in the rate
    alone. With a ladder from `least` to `most` times the plain network's steps, `on_ladder` is the
    number of seeds with a whole ladder, `outside` the number of them outside it. `cost` is at the
    study's `width`. `p`, `p_holm`, `tests`, `verdict` and `after_looking` are as in effects.csv.
    Other columns: docs/definitions/worth.md. `depths`: the table of effective depths.
    """
    valid, scores, rows = counted(cells), scores_of(config), []
    times, wider = read_step_times(config), read_step_times(config, wider=True)
    by_depth = {tuple(row[key] for key in KEY): row for row in depths.to_dict("records")}
    for name, study in config.studies.items():
        for key, pair in pairs_of(config, name, valid, beside_plain):
            row = _row(pair, scores[name])
            if row is None:
                continue
            if row["answer"]:
                verdict = verdicts[key]
                row |= verdict._asdict() | {
                    "corrected_low": verdict.steps_low,
                    "corrected_high": verdict.steps_high,
                    # Equal but for rounding is equal in steps too.
                    "verdict": EQUIVALENT if verdict.verdict == ALIKE else verdict.verdict,
                }
            deep = by_depth.get(key[: len(KEY)]) if key.rate == ONE_RATE else None
            own = (one for one in pair.rates if study.of(one).optimizer.lr == study.optimizer.lr)
            labels = key._asdict() | {
                "design": next(own, pair.variant),
                "after_looking": after_looking(config, key),
            }
            row |= _cost(times, wider, key, row)
            row["cost_fused"] = fused_cost(config, name, pair.variant)
            row |= compare_costs(row) | (_depth_multiplier(deep) if deep else {})
            rows.append(labels | row)
    # Fixed types: otherwise empty fields of one study would change the text of another.
    return pd.DataFrame(rows, columns=COLUMNS).astype({"on_ladder": float, "outside": float})


def ends_on_ladder(row: Mapping[str, Any]) -> tuple[float, float]:
    """The interval of a row's verdict; an end beyond the ladder is the ladder's end."""
    low, high = np.clip([row["corrected_low"], row["corrected_high"]], row["least"], row["most"])
    return float(low), float(high)


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
    found, (ours, _) = compare(pair, score), pair.scores
    seeds = found.theirs.index
    if seeds.empty:
        return None
    row = {"seeds": len(seeds), "unit": found.unit, "change": found.mean}
    row |= {"change_low": found.low, "change_high": found.high, "answer": ""}
    if len(pair.ladder.columns) < 2 or pair.ladder.index.intersection(seeds).empty:
        return row
    return row | _on_ladder(pair.ladder, log_multipliers(pair.ladder, ours, score.sign))


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
        "break_even": math.exp(interval.mean) - 1,
    }


def _cost(times: StepTimes, wider: StepTimes, key: Key, row: Mapping[str, Any]) -> dict[str, Any]:
    """The cost of a step over the plain network's, at the study's width and at a larger one.

    Without what was not timed. Counted operations and bytes are the same on every platform.
    """
    counted_work = {place[:3]: time for place, time in times.items()}
    ours, theirs = _sides(counted_work, key)
    columns = {"width": ours.width} if ours else {}
    if ours and theirs:
        columns |= counted_ratios(ours, theirs)
    ours, theirs = _sides(times, key, key.platform)
    if ours and theirs and not math.isnan(ours.seconds):
        columns |= ratios("cost", ours, theirs) | {"machine": ours.machine}
        if row["answer"]:
            names = {"": "multiplier", "_low": "low", "_high": "high"}
            columns |= {f"net{end}": row[name] / columns["cost"] for end, name in names.items()}
    ours, theirs = _sides(wider, key, key.platform)
    if ours and theirs:
        columns |= {"wider": ours.width, **ratios("cost_wider", ours, theirs)}
    return columns


def fused_cost(config: Config, study: str, variant: str) -> float:
    """The cost of a step with fused kernels over a plain one, `cost_fused`.

    NaN for a connection without a formula, and where it does not wrap attention and MLP.
    """
    settings = config.studies[study].of(variant)
    scheme = config.connection(study, variant)
    if getattr(settings.model, "wrap", "") != "sublayer" or scheme.kind in ("plain", "module"):
        return math.nan
    context = ConnectionContext(
        layers=2 * FUSED_BLOCKS, width=FUSED_WIDTH, per_block=2, pooled_axes=0, has_residual=False,
        takes_apart=True, optional_norms=True,
    )  # fmt: skip
    return 1 + sum(over_transformer(scheme.at(context), MACHINES["h100"]))


def compare_costs(row: Mapping[str, Any]) -> dict[str, str]:
    """The columns of WAYS: how the corrected interval of a multiplier lies to each cost.

    UNDECIDED if it includes the cost; empty if one of the two is not known.
    """
    low, high = (row.get(f"corrected_{end}", math.nan) for end in ("low", "high"))
    verdicts = {}
    for way, cost in WAYS.items():
        most, least = (row.get(f"{cost}_{end}", row.get(cost, math.nan)) for end in ("high", "low"))
        verdicts[way] = PAYS if low > most else COSTS_MORE if high < least else UNDECIDED
        if math.isnan(low + high + most + least):
            verdicts[way] = ""
    return verdicts


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


def _sides(times: Mapping[Any, StepTime], key: Key, *where: str) -> Iterator[StepTime | None]:
    """The step times of the variant and of the plain network."""
    places = ((key.study, key.depth, side, *where) for side in (key.variant, key.against))
    return map(times.get, places)


def _depth_multiplier(row: Mapping[str, Any]) -> dict[str, Any]:
    """Effective depth over depth, from a row of its table."""
    low = 0 if row["low_open"] is True else row["low"]
    high = math.inf if row["high_open"] is True else row["high"]
    depths = {"depth_multiplier": row["effective_depth"], "depth_low": low, "depth_high": high}
    return {"depth_answer": row["answer"]} | {k: d / row["depth"] for k, d in depths.items()}
