"""Tidy frames for figures, computed from tables. No drawing, so numbers can be tested alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from fathom_study.analysis.statistics import mean_with_ci
from fathom_study.analysis.tables import is_whole
from fathom_study.config import CONTROL_DEPTHS, common_depth
from fathom_study.metrics.steps import POSITIVE, UNBOUNDED

WATCHED = {
    "loss": "loss",
    "nonfinite_event": "logits",
    "grad_norm": "gradient",
    "gain_proxy_log10_max_entry": "H_res",
}
"""Step metrics that may become non-finite, with labels; the first of a step is the reason."""

SMOOTH = 50
"""Number of averaging windows in a curve of every step; noise of batches would hide it."""

POINTS_PER_WINDOW = 4
"""Points of a curve in one window; more would be within a pixel of each other."""


# --- against step -------------------------------------------------------------------------------


def over_seeds(
    table: pd.DataFrame, axis: str, metric: str, window: int = 1, *, geometric: bool = False
) -> pd.DataFrame:
    """A metric along an axis, over the seeds of each variant: variant, axis, mean, low, high.

    `table`: rows of one depth. `low` and `high` are the range over seeds. Each point averages the
    last `window` places. `geometric`: means are of the logarithm. Only places with every seed
    finite (and positive, if geometric) are kept: a mean over the survivors would be biased.
    """
    curves, every = [], max(1, window // POINTS_PER_WINDOW)
    for variant, rows in table.groupby("variant", sort=False):
        wide = rows.pivot_table(index=axis, columns="seed", values=metric, dropna=False)
        finite = wide.astype(float).replace([np.inf, -np.inf], np.nan).dropna()
        if geometric:
            finite = np.log10(finite[(finite > 0).all(axis=1)])
        values = finite.rolling(window, min_periods=1).mean()
        values = values[(len(values) - 1) % every :: every]  # with the last place
        points = pd.DataFrame(
            {"mean": values.mean(axis=1), "low": values.min(axis=1), "high": values.max(axis=1)}
        )
        points = 10**points if geometric else points
        curves.append(points.rename_axis(axis).reset_index().assign(variant=variant))
    return pd.concat([points for points in curves if len(points)] or curves[:1], ignore_index=True)


def first_nonfinite(steps: pd.DataFrame, evaluated: str = "") -> tuple[int, str] | None:
    """(first step at which a run is not finite, reason); None if it stays finite.

    The result does not depend on the metric that is drawn. `evaluated`: a metric of evaluations
    that all rows of `steps` should have.
    """
    watched = {**WATCHED, **({evaluated: evaluated.replace("_", " ")} if evaluated else {})}
    whole, breaks = steps[is_whole(steps)], []  # every row that is not finite is whole
    for metric, what in watched.items():
        values = (steps if metric == evaluated else whole).get(metric)
        # Causal mixing and plain networks may have no H_res at all.
        if values is None or (what == "H_res" and values.isna().all()):
            continue
        broken = values > 0 if metric == "nonfinite_event" else ~np.isfinite(values.astype(float))
        if broken.any():
            breaks.append((int(steps.loc[broken.index[broken], "step"].min()), what))
    return min(breaks, key=lambda pair: pair[0], default=None)


def with_or_failed(steps: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of each (variant, depth) that has a metric, or stopped being finite."""
    if metric not in steps or steps[metric].isna().all():
        return steps.iloc[:0]
    groups = steps.groupby(["variant", "depth"], sort=False)
    return pd.concat(
        [rows for _, rows in groups if rows[metric].notna().any() or first_nonfinite(rows)]
    )


# --- against depth and learning rate ------------------------------------------------------------

GROUP = ["variant", "connection", "depth", "lr"]

DECADE = 10
"""Maximum factor between seeds for a mean; of seeds farther apart, it would be near none."""


def runs_of(cells: pd.DataFrame, metric: str, start: str = "") -> pd.DataFrame:
    """A metric of each run: GROUP, value, start, diverged.

    `metric`: a run metric, or `score`. `value`: NaN if the run diverged or the metric is not
    finite. `start`: the run metric of that name, else NaN.
    """
    diverged = cells["outcome"] == "diverged"
    value = pd.to_numeric(cells[metric]).replace([np.inf, -np.inf], math.nan).mask(diverged)
    first = cells[start] if start else math.nan
    return cells[GROUP].assign(value=value.astype(float), start=first, diverged=diverged)


def means_of(
    runs: pd.DataFrame, *, geometric: bool = False, all_failed: bool = False
) -> pd.DataFrame:
    """The mean of each group of seeds: GROUP, mean, failed.

    `runs`: from `runs_of`. `failed`: whether a run has no value; the mean is then that of `start`,
    since a mean over the other runs would be biased. `geometric`: the mean is of the logarithm, and
    NaN if the seeds span a decade. Variants without value and start are left out, unless a run
    diverged and `all_failed`.
    """
    rows = []
    for key, seeds in runs.groupby(GROUP, sort=False):
        values, failed = seeds["value"], bool(seeds["value"].isna().any())
        if values.notna().any() or seeds["diverged"].any():
            mean = seeds["start"].mean() if failed else _mean(values, geometric=geometric)
            rows.append((*key, mean, failed, values.notna().any() or all_failed))
    means = pd.DataFrame(rows, columns=[*GROUP, "mean", "failed", "kept"])
    kept = means["kept"].astype(bool) | means["mean"].notna()
    return means[kept.groupby(means["variant"]).transform("any")].drop(columns="kept")


def _mean(values: pd.Series, *, geometric: bool) -> float:
    if not geometric or values.min() <= 0:
        return float(values.mean())
    is_split = values.max() > DECADE * values.min()
    return math.nan if is_split else float(10 ** np.log10(values).mean())


def near(levels: Mapping[str, float], values: pd.Series) -> dict[str, float]:
    """The levels no farther from the finite values than the range of these values.

    A farther level would compress the values.
    """
    finite = values.replace([np.inf, -np.inf], math.nan).dropna()
    reach = finite.max() - finite.min() if len(finite) else math.inf
    low, high = finite.min() - reach, finite.max() + reach
    return {name: x for name, x in levels.items() if not (x < low or x > high)}


def compared_depths(table: pd.DataFrame, most: int) -> list[int]:
    """At most this many depths: those with most variants, on a tie the deepest; ascending."""
    counts = table.groupby("depth")["variant"].nunique()
    if counts.max() > 1:
        counts = counts[counts > 1]
    return sorted(counts.sort_index().index[-most:])


def at_common_depth(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the depth that most variants have; on a tie, the largest depth."""
    return table[
        table["depth"] == common_depth(table[["depth", "variant"]].drop_duplicates()["depth"])
    ]


def scores_on_ladder(ladder: pd.DataFrame, *, geometric: bool) -> pd.DataFrame:
    """Mean scores by factor of the steps, with the ends of the 95 % interval over seeds.

    `ladder`: rows of one plain network at one depth. Factors at which a run has no score are left
    out. `geometric`: means and intervals are of the logarithm.
    """
    whole = ladder[ladder["score"].notna().groupby(ladder["factor"]).transform("all")]
    rows = [
        {"factor": factor, **mean_with_ci(scores, POSITIVE if geometric else UNBOUNDED)}
        for factor, scores in whole.groupby("factor")["score"]
    ]
    return pd.DataFrame(rows, columns=["factor", "mean", "low", "high"])


def constant(table: pd.DataFrame, column: str) -> float | None:
    """The value of a column that all rows share, such as a chance level; None if there is none."""
    values = pd.to_numeric(table[column]).dropna() if column in table else pd.Series(dtype=float)
    return float(values.iloc[0]) if len(values) and values.nunique() == 1 else None


def sweeps(cells: pd.DataFrame) -> list[pd.DataFrame]:
    """The runs of each study in which a variant was trained at CONTROL_DEPTHS depths or more."""
    by_study = [runs for _, runs in cells.groupby("study", sort=False)]
    depths = [runs.groupby("variant")["depth"].nunique().max() for runs in by_study]
    return [runs for runs, n in zip(by_study, depths, strict=True) if n >= CONTROL_DEPTHS]
