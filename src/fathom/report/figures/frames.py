"""Tidy frames for figures, computed from tables. No drawing, so numbers can be tested alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fathom.analysis.statistics import mean_with_ci
from fathom.analysis.tables import is_whole
from fathom.config import CONTROL_DEPTHS
from fathom.metrics.steps import POSITIVE, UNBOUNDED

RUN_KEYS = ["variant", "depth", "seed"]

WATCHED = {
    "loss": "loss",
    "nonfinite_event": "logits",
    "grad_norm": "gradient",
    "gain_proxy_log10_max_entry": "H_res",
}
"""Step metrics that may become non-finite, with labels; the first of a step is the reason."""


# --- against step -------------------------------------------------------------------------------


def over_seeds(
    table: pd.DataFrame, axis: str, metric: str, window: int = 1, *, geometric: bool = False
) -> pd.DataFrame:
    """A metric along an axis, over the seeds of each variant: variant, axis, mean, low, high.

    `table`: rows of one depth. `low` and `high` are the range over seeds. Each point averages the
    last `window` places. `geometric`: means are of the logarithm. Only places with every seed
    finite (and positive, if geometric) are kept: a mean over the survivors would be biased.
    """
    found = []
    for variant, rows in table.groupby("variant", sort=False):
        wide = rows.pivot_table(index=axis, columns="seed", values=metric, dropna=False)
        finite = wide.astype(float).replace([np.inf, -np.inf], np.nan).dropna()
        if geometric:
            finite = np.log10(finite[(finite > 0).all(axis=1)])
        values = finite.rolling(window, min_periods=1).mean()
        points = pd.DataFrame(
            {"mean": values.mean(axis=1), "low": values.min(axis=1), "high": values.max(axis=1)}
        )
        points = 10**points if geometric else points
        found.append(points.rename_axis(axis).reset_index().assign(variant=variant))
    return pd.concat([points for points in found if len(points)] or found[:1], ignore_index=True)


def means_along(profile: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds of a profile: a row for each (variant, depth), a column for each place.

    Variants in their order, each from its shallowest depth. NaN where a seed is not finite.
    """
    found = {
        (variant, depth): seeds.pivot(index="at", columns="seed", values="value").mean(
            axis="columns", skipna=False
        )
        for variant, rows in profile.groupby("variant", sort=False)
        for depth, seeds in rows.groupby("depth")
    }
    return pd.DataFrame(found).T


def failures(steps: pd.DataFrame, evaluated: str = "") -> pd.DataFrame:
    """The first step at which each variant is not finite, with the reason: variant, step, reason.

    A variant that stays finite has no row. `evaluated`: see `first_nonfinite`.
    """
    found = [
        (variant, *broken)
        for variant, rows in steps.groupby("variant", sort=False)
        if (broken := first_nonfinite(rows, evaluated))
    ]
    return pd.DataFrame(found, columns=["variant", "step", "reason"])


def first_nonfinite(steps: pd.DataFrame, evaluated: str = "") -> tuple[int, str] | None:
    """(first step at which a run is not finite, reason); None if it stays finite.

    The result does not depend on the metric that is drawn. `evaluated`: a metric of evaluations
    that all rows of `steps` should have.
    """
    watched = {**WATCHED, **({evaluated: evaluated.replace("_", " ")} if evaluated else {})}
    whole, found = steps[is_whole(steps)], []  # every row that is not finite is whole
    for metric, what in watched.items():
        values = (steps if metric == evaluated else whole).get(metric)
        # Causal mixing and plain networks may have no H_res at all.
        if values is None or (what == "H_res" and values.isna().all()):
            continue
        broken = values > 0 if metric == "nonfinite_event" else ~np.isfinite(values.astype(float))
        if broken.any():
            found.append((int(steps.loc[broken.index[broken], "step"].min()), what))
    return min(found, key=lambda pair: pair[0], default=None)


def evaluations(steps: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of the steps at which any run has this metric of evaluations."""
    if metric not in steps:
        return steps.iloc[:0]
    return steps[steps["step"].isin(steps.loc[steps[metric].notna(), "step"])]


def with_all(steps: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """The rows of the runs that have every one of these metrics, at any step."""
    if not set(metrics) <= set(steps):
        return steps.iloc[:0]
    has = steps.groupby(RUN_KEYS)[list(metrics)].transform("count") > 0
    return steps[has.all(axis=1)]


def with_or_failed(steps: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of each (variant, depth) that has a metric, or stopped being finite."""
    if metric not in steps or steps[metric].isna().all():
        return steps.iloc[:0]
    groups = steps.groupby(["variant", "depth"], sort=False)
    return pd.concat(
        [rows for _, rows in groups if rows[metric].notna().any() or first_nonfinite(rows)]
    )


def last_rows(steps: pd.DataFrame) -> pd.DataFrame:
    """The row of the last step of each run."""
    return steps.loc[steps.groupby(RUN_KEYS, sort=False)["step"].idxmax()]


def coinciding(steps: pd.DataFrame, metrics: Sequence[str]) -> list[list[str]]:
    """Groups of variants whose curves coincide in these metrics, over the seeds they share."""
    curves = {
        variant: runs.set_index(["depth", "seed", "step"])[list(metrics)].sort_index()
        for variant, runs in steps.groupby("variant", sort=False)
    }
    groups: list[list[str]] = []
    for variant, own in curves.items():
        for group in groups:
            other = curves[group[0]]
            both = own.index.intersection(other.index)
            a, b = own.loc[both], other.loc[both]
            if len(both) and np.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True):
                group.append(variant)
                break
        else:
            groups.append([variant])
    return [group for group in groups if len(group) > 1]


# --- against depth and learning rate ------------------------------------------------------------


def groups_of_seeds(summary: pd.DataFrame, metric: str, start: str = "") -> pd.DataFrame:
    """A metric of each row of the summary: variant, connection, depth, lr, mean, low, high, failed.

    `metric`: a run metric, or `score`. `failed`: whether a run lacks the value or, for the score,
    diverged; the mean is then the mean of `start`, if given, else NaN, since a mean over the other
    runs would be biased. Variants without the metric that did not fail are left out.
    """
    failed = summary[f"{metric}_n"] < summary["n"]
    if metric == "score":
        failed |= summary["diverged"] > 0
    begins = summary[f"{start}_mean"] if start else math.nan
    found = summary[["variant", "connection", "depth", "lr"]].assign(
        mean=summary[f"{metric}_mean"].where(~failed, begins),
        low=summary[f"{metric}_low"].mask(failed),
        high=summary[f"{metric}_high"].mask(failed),
        failed=failed,
    )
    has_any = summary[f"{metric}_n"].groupby(summary["variant"]).transform("max") > 0
    kept = has_any | (summary["diverged"] > 0 if metric == "score" else found["mean"].notna())
    return found[kept & ~(failed & (summary["diverged"] == 0) & (summary[f"{metric}_n"] == 0))]


def runs_of(cells: pd.DataFrame, metric: str, groups: pd.DataFrame) -> pd.DataFrame:
    """A metric of each run that has it: variant, connection, depth, lr, value.

    Only finite values, of runs in `groups` that did not diverge.
    """
    keys = ["variant", "connection", "depth", "lr"]
    kept = cells[(cells["outcome"] != "diverged") & cells[metric].notna()]
    found = kept[keys].assign(value=kept[metric].astype(float))
    found = found[np.isfinite(found["value"])]
    return found.merge(groups[["variant", "depth"]].drop_duplicates(), on=["variant", "depth"])


DECADE = 10
"""Maximum factor between seeds for a mean; of seeds farther apart, it would be near none."""


def without_means_of_split(groups: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The groups, with NaN for mean and interval where their positive `runs` span a decade.

    Failed groups are unchanged.
    """
    keys = ["variant", "connection", "depth", "lr"]
    spans = runs.groupby(keys)["value"].agg(lambda seeds: seeds.max() > DECADE * seeds.min())
    of_groups = spans.astype(float).reindex(pd.MultiIndex.from_frame(groups[keys]))
    wide = of_groups.to_numpy() == 1
    split = wide & ~groups["failed"].to_numpy(bool)
    return groups.assign(**{name: groups[name].mask(split) for name in ("mean", "low", "high")})


SAME_TO_THE_EYE = 1e-4
"""Relative difference below which values are drawn as equal."""


def varies(values: pd.Series) -> bool:
    """Whether finite values differ visibly, by more than SAME_TO_THE_EYE."""
    finite = pd.to_numeric(values).replace([np.inf, -np.inf], np.nan).dropna()
    if finite.empty:
        return False
    return bool(finite.max() - finite.min() > SAME_TO_THE_EYE * max(1.0, finite.abs().max()))


def near(levels: Mapping[str, float], values: pd.Series, least: float = 0) -> dict[str, float]:
    """The levels no farther from the finite values than the range of these values.

    A farther level would compress the values. `least`: distance that is always allowed.
    """
    finite = pd.to_numeric(values).replace([np.inf, -np.inf], np.nan).dropna()
    reach = max(finite.max() - finite.min(), least) if len(finite) else math.inf
    low, high = finite.min() - reach, finite.max() + reach
    return {name: x for name, x in levels.items() if not (x < low or x > high)}


def frontier(points: pd.DataFrame, cost: str, *, lower: bool) -> list[str]:
    """The Pareto-optimal variants in cost and score, the cheapest first.

    `points`: a row for each variant, with its `mean` and its cost; on a tie the first counts.
    """
    sign = 1 if lower else -1
    best, found = math.inf, []
    ordered = points.assign(worse=sign * points["mean"]).sort_values([cost, "worse"], kind="stable")
    for row in ordered.dropna(subset=[cost, "worse"]).to_dict("records"):
        if row["worse"] < best:
            best = row["worse"]
            found.append(row["variant"])
    return found


def scores_on_ladder(ladder: pd.DataFrame, *, geometric: bool) -> pd.DataFrame:
    """Mean scores by factor of the steps, with the ends of the 95 % interval over seeds.

    `ladder`: rows of one plain network at one depth. Factors at which a run has no score are left
    out. `geometric`: means and intervals are of the logarithm.
    """
    whole = ladder[ladder["score"].notna().groupby(ladder["factor"]).transform("all")]
    found = [
        {"factor": factor, **mean_with_ci(scores, POSITIVE if geometric else UNBOUNDED)}
        for factor, scores in whole.groupby("factor")["score"]
    ]
    return pd.DataFrame(found, columns=["factor", "mean", "low", "high"])


def constant(table: pd.DataFrame, column: str) -> float | None:
    """The value of a column that all rows share, such as a chance level; None if there is none."""
    values = pd.to_numeric(table[column]).dropna() if column in table else pd.Series(dtype=float)
    return float(values.iloc[0]) if len(values) and values.nunique() == 1 else None


# --- over all studies ---------------------------------------------------------------------------


def sweeps(cells: pd.DataFrame) -> list[pd.DataFrame]:
    """The runs of each study over depth.

    In such a study at least half of the variants were run at several depths, or one variant, as a
    control, at CONTROL_DEPTHS or more.

    The runs of a study of one depth are appended to a sweep that it continues: one with the same
    recipe and chance level, with all of its variants, at other depths.
    """
    depths = cells.groupby(["study", "variant"])["depth"].nunique()
    studies = dict(list(cells.groupby("study", sort=False)))
    found = [
        study
        for name, study in studies.items()
        if (depths[name] > 1).mean() >= 0.5 or depths[name].max() >= CONTROL_DEPTHS
    ]
    for study in studies.values():
        for i, sweep in enumerate(found):
            if study["depth"].nunique() == 1 and _continues(study, sweep):
                found[i] = pd.concat([sweep, study])
    return found


def _continues(study: pd.DataFrame, sweep: pd.DataFrame) -> bool:
    same = ["recipe", "score_chance"]
    return (
        study[same].iloc[0].equals(sweep[same].iloc[0])
        and set(study["variant"]) <= set(sweep["variant"])
        and not set(study["depth"]) & set(sweep["depth"])
    )


WORST_FIRST = ("diverged", "not scored", "at chance", "learned")


def final_scores(sweep: pd.DataFrame, *, geometric: bool) -> pd.DataFrame:
    """Scores over seeds: variant, platform, depth, mean, low, high, outcome, seeds.

    `low` and `high` are the range over seeds. The outcome is the worst of all seeds; if a seed
    diverged, the mean is NaN. `geometric`: the mean is of the logarithm, and NaN if seeds span a
    decade; `seeds` then lists their scores, and is empty otherwise.
    """
    rows = []
    for key, seeds in sweep.groupby(["variant", "platform", "depth"], sort=False):
        outcome = next(word for word in WORST_FIRST if word in set(seeds["outcome"]))
        scores = seeds["score"].astype(float) * (math.nan if outcome == "diverged" else 1)
        low, high = scores.min(), scores.max()
        is_split = geometric and high > DECADE * low > 0
        is_log = geometric and (scores > 0).all()
        middle = 10 ** np.log10(scores).mean() if is_log else scores.mean()
        middle = math.nan if is_split else middle
        rows.append((*key, middle, low, high, outcome, list(scores) if is_split else []))
    columns = ["variant", "platform", "depth", "mean", "low", "high", "outcome", "seeds"]
    return pd.DataFrame(rows, columns=columns).sort_values("depth", kind="stable")


def with_loss_unit(table: pd.DataFrame, units: Mapping[str, str]) -> pd.DataFrame:
    """The table with a column `loss_unit`, by study; unchanged if it has no column `study`."""
    if "study" not in table:
        return table
    named = table["study"].map(units).rename("loss_unit")
    return pd.concat([table, named], axis=1)  # `assign` warns of tables with many columns
