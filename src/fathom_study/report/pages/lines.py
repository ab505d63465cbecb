"""Table rows that the page links to, in words with units."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from fathom_study import tasks
from fathom_study.analysis.tables import read_table, scores_of
from fathom_study.config import Config
from fathom_study.metrics.scores import Score
from fathom_study.report.figures.panels import run_label, score_label
from fathom_study.report.pages.reports import CONFIG
from fathom_study.report.tables.claim_words import estimate
from fathom_study.report.tables.effect_words import effect_with_interval, format_spread
from fathom_study.report.tables.formatting import count_layers, number, with_interval
from fathom_study.report.tables.records import training_command
from fathom_study.report.tables.worth_words import depth_multiplier, pays_below, plain_change

Line = tuple[str, int]
"""File name of a table, and line number of a row, from 2."""

TITLE = ("statement", "question", "study", "variant", "against", "depth", "platform")
"""Columns that form the title of a row, in order."""

FORMATTERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "observed": estimate,
    "effect": effect_with_interval,
    "change": plain_change,
    "seed_sd": format_spread,
    "break_even": pays_below,
    "depth_multiplier": depth_multiplier,
}
"""Columns with their own format, made from the whole row."""
UNKNOWN = {"unit": "", **dict.fromkeys(
    ("low", "high", "change_low", "change_high", "depth_low", "depth_high"), math.nan
)}  # fmt: skip
"""Defaults of other columns that these formats read, for rows without them."""

INTERVALS = ("cost", "cost_wider", "net")
"""Columns that are shown with an interval, whose ends are in NAME_low and NAME_high."""

BESIDE = {
    "effect": {"low", "high", "unit", "multiplier_low", "multiplier_high"},
    "change": {"change_low", "change_high", "unit"},
    "depth_multiplier": {"depth_answer", "depth_low", "depth_high"},
    "observed": {"low", "high"},
    "multiplier": {"low", "high"},
    **{column: {f"{column}_low", f"{column}_high"} for column in INTERVALS},
}
"""By column, the columns that rows with it do not list separately."""


def evidence_of(
    config: Config,
    tables: Path,
    lines: Iterable[Line],
    labels: Mapping[str, str],
    columns: Mapping[str, str],
) -> dict[str, dict[str, Any]]:
    """By `TABLE.csv#L12`, the title of that line and its rows (name, value), if the line exists.

    `labels`: display names of studies, variants, platforms and sources; `columns`: of columns.
    """
    scores, evidence = scores_of(config), {}
    for name, of_name in itertools.groupby(sorted(lines), key=itemgetter(0)):
        rows = read_table(tables / name).to_dict("records") if (tables / name).is_file() else []
        for _, line in of_name:
            if not 2 <= line < 2 + len(rows):
                continue
            row = {key: value for key, value in rows[line - 2].items() if not pd.isna(value)}
            study, command = row.get("study", ""), _command(row, config)
            known = config.studies.get(study)
            shown = tasks.presentation(known.task) if known else None
            if shown and "depth" in row:
                row["depth"] = count_layers(int(row["depth"]), shown.depth_unit)
            unit = shown.loss_unit if shown else ""
            called = partial(_called, loss_unit=unit, score=scores.get(study))
            said = partial(_value, row=row, labels=labels, called=called)
            evidence[f"{name}#L{line}"] = {
                "title": " · ".join(said(key) for key in TITLE if row.get(key, "") != ""),
                "rows": [
                    *(pair for pair in _rows(row, columns, said, called) if pair[1]),
                    *([("to train its first seed again", command)] if command else []),
                ],
            }
    return evidence


def _command(row: Mapping[str, Any], config: Config) -> str:
    """The command that trains the first seed of a row of the summary; empty for other rows."""
    study = config.studies.get(row.get("study", ""))
    if not study or not {"depth", "variant", "backend"} <= row.keys():
        return ""
    return training_command(row, study.seeds[0], f"{config.report_folder}/{CONFIG}")


def _called(metric: str, loss_unit: str, score: Score | None) -> str:
    """The label of a run metric, with its unit; empty for other columns."""
    is_known = metric in tasks.run_metrics()
    label = score_label(score) if metric == "score" and score else ""
    return " ".join((label or (run_label(metric, loss_unit) if is_known else "")).split())


def _rows(
    row: Mapping[str, Any],
    columns: Mapping[str, str],
    said: Callable[[str], str],
    called: Callable[[str], str],
) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of each entry of a row; mean, interval, SD and count of runs are one."""
    parts = ("_n", "_mean", "_sd", "_low", "_high", "_fastest")
    metrics = {key.removesuffix("_n") for key in row if key.endswith("_n")}
    merged = {f"{metric}{part}" for metric in metrics for part in parts}
    merged |= set().union(*(beside for column, beside in BESIDE.items() if column in row))
    for key in row:
        metric = key.removesuffix("_mean")
        if key == "multiplier" and "effect" in row:
            yield "step multiplier over that of the second", said(key)
        elif key not in merged:
            yield columns.get(key, key.replace("_", " ")), said(key)
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
    if key == "answer":
        return {"at": "within", "both": "below and beyond"}.get(value, value)
    if isinstance(value, str):
        value = value.replace("_", " ") if key == "test" else value
        words = [labels.get(word, word) for word in value.split(", ")]
        return called(value) or ", ".join(words)
    if key in FORMATTERS:
        return FORMATTERS[key](UNKNOWN | dict(row))
    if key in (*INTERVALS, "multiplier"):
        # Without an effect, `low` and `high` are the ends of the multiplier's interval.
        before = "" if key == "multiplier" and "effect" not in row else f"{key}_"
        return with_interval(value, *(row.get(f"{before}{e}", math.nan) for e in ("low", "high")))
    if key == "confidence":
        return f"{number(100 * value)} %"
    return str(value) if isinstance(value, int) else number(value, 5)
