"""The rows of tables that the page links to, in words and units."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from fathom import tasks
from fathom.analysis.tables import loss_units, read_table, scores_of
from fathom.config import Config
from fathom.metrics.scores import Score
from fathom.report.comparisons import effect_with_interval, format_spread
from fathom.report.figures.panels import run_label, score_label
from fathom.report.formatting import count_layers, number, with_interval
from fathom.report.verdicts import estimate

Line = tuple[str, int]
"""The file of a table and the line of a row, from 2."""

TITLE = ("statement", "question", "study", "variant", "against", "depth", "platform")
"""The columns that say what a row is about, in the order in which its title has them."""

WORDS = {
    "against": "compared with",
    "against_mean": "mean of what it is compared with",
    "against_plain": "compared with a plain network",
    "at_chance": "runs at chance",
    "at_edge": "best rate at the edge of those that were tried",
    "break_even": "overhead of a step at which it stops paying",
    "bytes": "bytes moved by a step, over the plain network's",
    "change": "change of the score from the plain network's",
    "change_low": "95 % interval of the change from",
    "change_high": "95 % interval of the change to",
    "cost": "time of a step, over the plain network's",
    "cost_wider": "the same of a wider network",
    "depth_multiplier": "depth of a plain network that ends there, over its own",
    "least": "fewest steps of the ladder, over the plain network's",
    "most": "most steps of the ladder, over the plain network's",
    "net": "step multiplier over the time of a step",
    "operations": "operations of a step, over the plain network's",
    "outside": "seeds outside of the ladder",
    "wider": "width of the wider network",
    "chance_loss": "loss at chance",
    "claim": "name of the claim",
    "control": "a control, which decides nothing",
    "decides": "decides the verdict",
    "differs_in": "settings that differ",
    "diverged": "runs that diverged",
    "high": "95 % interval to",
    "learned": "runs that learned",
    "low": "95 % interval from",
    "lr": "learning rate",
    "multiplier": "step multiplier over that of the second",
    "n": "runs",
    "not_scored": "runs without a score",
    "number": "number of the test",
    "p": "p of no effect",
    "p_holm": "p of no effect, corrected for all comparisons of the study (Holm)",
    "rests_on": "the verdict rests on",
    "score_chance": "score at chance",
    "score_metric": "the score is",
    "seed_sd": "standard deviation over seeds",
    "seeds_needed": "seeds needed to be significant",
    "test": "rule of the test",
    "undecided": "undecided: the interval reaches both sides",
}
"""Columns in words, where their names do not say it."""

IN_EFFECT = {"low", "high", "unit", "multiplier_low", "multiplier_high"}
"""Columns of an effect that stand beside another one."""


def evidence_of(
    config: Config, tables: Path, lines: Iterable[Line], labels: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """For `TABLE.csv#L12` the title of that line and its rows (name, value), where it is there.

    `labels`: what people read for names of studies, variants, platforms and sources.
    """
    units, scores, found = loss_units(config), scores_of(config), {}
    for name, of_name in itertools.groupby(sorted(lines), key=itemgetter(0)):
        rows = read_table(tables / name).to_dict("records") if (tables / name).is_file() else []
        for _, line in of_name:
            if not 2 <= line < 2 + len(rows):
                continue
            row = {key: value for key, value in rows[line - 2].items() if not pd.isna(value)}
            study = row.get("study", "")
            if study in config.studies and "depth" in row:
                unit = tasks.presentation(config.studies[study].task).depth_unit
                row["depth"] = count_layers(int(row["depth"]), unit)
            of_loss = pd.DataFrame({"loss_unit": [units[study]] if study in units else []})
            called = partial(_called, rows=of_loss, score=scores.get(study))
            said = partial(_value, row=row, labels=labels, called=called)
            found[f"{name}#L{line}"] = {
                "title": " · ".join(said(key) for key in TITLE if row.get(key, "") != ""),
                "rows": [pair for pair in _rows(row, said, called) if pair[1]],
            }
    return found


def _called(metric: str, rows: pd.DataFrame, score: Score | None) -> str:
    """The label of a run metric, with its unit; empty for other columns."""
    is_known = metric in tasks.run_metrics()
    label = score_label(score) if metric == "score" and score else ""
    return " ".join((label or (run_label(metric, rows) if is_known else "")).split())


def _rows(
    row: Mapping[str, Any], said: Callable[[str], str], called: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """(name, value) of each number of a row; a mean and what belongs to it are one."""
    parts = ("_n", "_mean", "_sd", "_low", "_high", "_fastest")
    metrics = {key.removesuffix("_n") for key in row if key.endswith("_n")}
    told = {f"{metric}{part}" for metric in metrics for part in parts}
    told |= IN_EFFECT if "effect" in row else {"low", "high"} if "observed" in row else set()
    for key in row:
        metric = key.removesuffix("_mean")
        if key not in told:
            yield WORDS.get(key, key.replace("_", " ")), said(key)
        elif key.endswith("_mean") and metric in metrics:
            runs, mean, sd, low, high = (row.get(metric + part, math.nan) for part in parts[:5])
            words = f"{with_interval(mean, low, high)}, standard deviation {number(sd)}"
            yield called(metric) or metric.replace("_", " "), f"{words}, {runs:.0f} runs"


def _value(
    key: str, row: Mapping[str, Any], labels: Mapping[str, str], called: Callable[[str], str]
) -> str:
    """One number or text of a row in words, with its unit or interval."""
    value = row[key]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        value = value.replace("_", " ") if key == "test" else value
        words = [labels.get(word, word) for word in value.split(", ")]
        return called(value) or ", ".join(words)
    if key == "observed":
        return estimate({"low": math.nan, "high": math.nan, **row})
    if key == "effect":
        return effect_with_interval({"low": math.nan, "high": math.nan, "unit": "", **row})
    if key == "seed_sd":
        return format_spread({"unit": "", **row})
    if key == "multiplier":
        ends = (row.get(f"multiplier_{end}", math.nan) for end in ("low", "high"))
        return with_interval(value, *ends)
    if key == "confidence":
        return f"{number(100 * value)} %"
    return number(value, 5)
