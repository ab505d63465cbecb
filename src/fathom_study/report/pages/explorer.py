"""The data of the explorer: for each study its runs and a few dozen of their steps, by column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fathom_study import tasks
from fathom_study.analysis.tables import (
    counted,
    is_whole,
    read_steps,
    read_table,
    scores_of,
    without_ladders,
)
from fathom_study.config import Config, common_depth
from fathom_study.metrics.scores import Score
from fathom_study.metrics.steps import CLOCKS
from fathom_study.report.figures.frames import constant, first_nonfinite
from fathom_study.report.figures.palette import colour_of
from fathom_study.report.figures.panels import run_label, score_label, step_label

EVENLY, EARLY = 13, 13
"""Numbers of drawn steps of a run: evenly spaced ones, and ones denser near the first."""

MANY = 300
"""Number of runs in a study above which each has fewer drawn steps, so the page stays short."""

RUN_COLUMNS = ["platform", "depth", "variant", "seed"]

DASHES = ([], [8, 3], [2, 3], [8, 3, 2, 3], [16, 4], [16, 4, 2, 4])
"""Dashes and gaps in pixels, for the first variant of a colour, the second, …"""


def studies_of(config: Config, tables: Path, labels: Mapping[str, str]) -> dict[str, Any]:
    """The explorer's data of each study with runs that count, in the order of the config.

    As in figures, without the plain networks of ladders.
    """
    cells = counted(without_ladders(read_table(tables / "cells.csv"), config))
    own = dict(list(cells.groupby("study")))
    return {
        name: study_data(config, name, read_steps(tables, [name]), own[name], labels)
        for name in config.studies
        if name in own
    }


def study_data(
    config: Config, name: str, steps: pd.DataFrame, cells: pd.DataFrame, labels: Mapping[str, str]
) -> dict[str, Any]:
    """The explorer's data of one study, for JSON, from its rows of both tables.

    `labels`: display names. Under `data` are two tables by column: `step` has a row for each drawn
    step of each run, `depth` one for each run.
    """
    study, plain, there = config.studies[name], config.plain(name), set(cells["variant"])
    runs, shown = cells.drop_duplicates(["depth", "variant"]), tasks.presentation(study.task)
    step_metrics = _step_metrics(steps, shown.loss_unit)
    run_metrics = _run_metrics(cells, shown.loss_unit, scores_of(config)[name])
    broken = {key: first_nonfinite(rows) for key, rows in steps.groupby(RUN_COLUMNS, sort=False)}
    keys = cells[RUN_COLUMNS].itertuples(index=False, name=None)
    breaks = [broken.get(key) or (None, None) for key in keys]
    return {
        "variants": looks_of([label for label in study.labels if label in there], labels),
        "plain": plain if plain in there else None,
        "depths": sorted(set(cells["depth"].tolist())),
        "common_depth": common_depth(runs["depth"].tolist()),
        "depth_unit": shown.depth_unit,
        "platforms": {key: labels.get(key, key) for key in cells["platform"].unique()},
        "metrics": {"step": step_metrics, "depth": run_metrics},
        "chance": {
            "step": {"loss": constant(cells, "chance_loss")},
            "depth": {"score": constant(cells, "score_chance")},
        },
        "data": {
            "step": _columns(
                thinned(steps, step_metrics), [*RUN_COLUMNS, "step"], step_metrics, RUN_COLUMNS
            ),
            "depth": {
                **_columns(cells, RUN_COLUMNS, run_metrics, ["variant"]),
                "broken": [step for step, _ in breaks],
                "reason": [what for _, what in breaks],
            },
        },
    }


def looks_of(names: Sequence[str], labels: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Label, colour and dash of each variant of a study; no two have the same colour and dash.

    A label that two variants share is followed by the variant's name.
    """
    called = Counter(labels.get(name, name) for name in names)
    drawn: Counter[str] = Counter()
    looks = {}
    for name in names:
        label, colour = labels.get(name, name), colour_of(name)
        earlier = drawn[colour]
        drawn[colour] += 1
        own = label if called[label] == 1 else f"{label} ({name})"
        dash = DASHES[earlier] if earlier < len(DASHES) else [4 * earlier, 3]
        looks[name] = {"label": own, "colour": colour, "dash": dash}
    return looks


def thinned(steps: pd.DataFrame, metrics: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows to draw: a few dozen steps of each run, its last step, and evaluations.

    They are the same in each run, or the next whose metrics were all kept.
    """
    is_last = ~steps.duplicated(RUN_COLUMNS, keep="last")
    count, share = int(steps["step"].max()) + 1, min(1, MANY / is_last.sum())
    evenly = np.linspace(0, count - 1, round(share * EVENLY))
    early = np.geomspace(1, count, round(share * EARLY)) - 1
    grid = np.concatenate([evenly, early]).round()
    sparse = [metric["name"] for metric in metrics if metric["sparse"]]
    chosen = set()
    for _, run in steps[is_whole(steps)].groupby(RUN_COLUMNS, sort=False):
        places = np.searchsorted(run["step"], grid)
        chosen |= {*run.index[places[places < len(run)]]}
    return steps[steps.index.isin(chosen) | is_last | steps[sparse].notna().any(axis=1)]


def _step_metrics(steps: pd.DataFrame, unit: str) -> list[dict[str, Any]]:
    """Step metrics with a curve, loss first; constant metrics have none."""
    return [
        _metric(name, step_label(name, unit), log=metric.log, sparse=metric.when == "evaluations")
        for name, metric in tasks.step_metrics().items()
        if name in steps
        and name not in ("step", *CLOCKS)
        and metric.when in ("every step", "evaluations")
        and (name == "loss" or steps[name].nunique() > 1)
    ]


def _run_metrics(cells: pd.DataFrame, unit: str, score: Score) -> list[dict[str, Any]]:
    """The score, and all other run metrics except times and those equal in all runs."""
    steps, runs = tasks.step_metrics(), tasks.run_metrics()
    judged = _metric("score", f"score: {score_label(score)}", log=steps[runs[score.metric].of].log)
    others = (
        _metric(name, run_label(name, unit), log=steps[metric.of].log)
        for name, metric in runs.items()
        if name in cells and name not in tasks.times() and cells[name].nunique() > 1
    )
    return [judged, *others]


def _metric(name: str, label: str, *, log: bool, sparse: bool = False) -> dict[str, Any]:
    return {"name": name, "label": " ".join(label.split()), "log": log, "sparse": sparse}


def _columns(
    rows: pd.DataFrame, axes: Sequence[str], metrics: Sequence[Mapping[str, Any]], by: Sequence[str]
) -> dict[str, list[Any]]:
    """Axes and metrics by column, with five significant digits.

    `by`: columns that form groups. A group without finite values of a metric has None. In other
    groups a non-finite value is "NaN", a gap in the curve, or None for a sparse metric and for a
    step whose metrics were not all kept.
    """
    names = [metric["name"] for metric in metrics]
    numbers = rows[names].astype(float).replace([np.inf, -np.inf], np.nan)
    there = numbers.notna()
    has_any = there.groupby([rows[column] for column in by]).transform("any")
    columns = {axis: rows[axis].tolist() for axis in axes}
    for name, metric in zip(names, metrics, strict=True):
        has_gaps = has_any[name] & is_whole(rows) & (not metric["sparse"])
        columns[name] = [
            float(f"{value:.5g}") if is_there else "NaN" if is_gap else None
            for value, is_there, is_gap in zip(numbers[name], there[name], has_gaps, strict=True)
        ]
    return columns
