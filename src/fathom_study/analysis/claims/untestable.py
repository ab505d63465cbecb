"""Identical runs and quantities that cannot change, about which no test can decide anything.

Definitions: docs/definitions/verdicts.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from fathom_study.analysis.claims.evidence import INERT, ONE_RUN
from fathom_study.analysis.pairs import differing_settings
from fathom_study.analysis.tables import GROUP, at_kept_steps
from fathom_study.config import Cell, Config

SAME_AS = "same_as"
"""A column of cells: the first variant with the same run."""

PLACE = ["study", "depth", "seed", "platform"]
"""Columns with equal values where two variants may have the same run."""

COPIES = 0.05
"""Streams that differ by at most this share of the largest entry are copies."""

ROWS_OF_ONE = 0.004
"""Tolerance in log10 (one per cent) within which the row sums of a composite count as one."""

SAME_SIZE = 0.3
"""Tolerance in log10 (a factor of two) within which a composite keeps the size of a signal."""

GATES = ("gate_first_final", "gate_mean_final", "gate_largest_final")
SINKHORN_ERRORS = ("base_row_error_final", "base_column_error_final")


def first_of_same(cells: pd.DataFrame, steps: pd.DataFrame) -> pd.Series:
    """The first variant with the same losses at every kept step, to the last bit, for each run.

    Two finite losses are needed, since the first precedes any update. A run without rows in
    `steps` keeps its own variant.
    """
    first: dict[tuple[object, ...], str] = {}
    same: dict[tuple[object, ...], str] = {}
    ordered = at_kept_steps(steps).sort_values("step", kind="stable")
    for (*run, variant), rows in ordered.groupby([*PLACE, "variant"], sort=False):
        losses = rows["loss"].to_numpy(float)
        if np.isfinite(losses).sum() > 1:
            same[*run, variant] = first.setdefault((*run, losses.tobytes()), variant)
    runs = zip(*(cells[name] for name in (*PLACE, "variant")), strict=True)
    return pd.Series([same.get(run, run[-1]) for run in runs], cells.index, dtype=object)


def drop_duplicate_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs without cells that repeat an earlier variant."""
    again = runs.duplicated([*PLACE, SAME_AS])
    if not again.any():
        return runs
    return runs[~again.groupby([runs[name] for name in GROUP]).transform("all")]


def no_power(config: Config, is_score: bool, one: pd.DataFrame, other: pd.DataFrame) -> str:
    """The gap if two variants cannot differ, given their runs by seed; empty if they can.

    ONE_RUN: they ran the same at every common seed. INERT: H_res cannot change their scores.
    """
    common = one.index.intersection(other.index)
    ran, again = (side.loc[common, SAME_AS] for side in (one, other))
    if len(common) and (ran == again).all():
        return ONE_RUN
    return INERT if is_score and no_pair(config, one, other) else ""


def no_pair(config: Config, one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two variants differ in H_res alone, where H_res can change no score.

    True if H_res has no effect on one side, and keeps the size of a signal on both.
    """
    sides = (one, other)
    if not any(map(_has_no_effect, sides)) or not all(map(_keeps_size, sides)):
        return False
    differs = differing_settings(config, (Cell.parse(side.iloc[0]["key"]) for side in sides))
    return bool(differs) and all(name.startswith("connection.H_res") for name in differs)


def _has_no_effect(runs: pd.DataFrame) -> bool:
    rows_of_one = runs["amax_forward_log10_final"].abs() <= ROWS_OF_ONE
    return bool((rows_of_one & (runs["stream_difference_max"] <= COPIES)).all())


def _keeps_size(runs: pd.DataFrame) -> bool:
    return bool((runs["amax_forward_log10_final"].abs() <= SAME_SIZE).all())


def is_constant(
    cells: pd.DataFrame, metrics: Iterable[str], *, of_mixing: bool = False
) -> pd.Series:
    """Whether one of the metrics is a gate or a Sinkhorn error without effect, for each run.

    True if H_res before the gate is the identity to the last bit. `of_mixing`: whether the test is
    of an effect of H_res, so that every metric counts.
    """
    if not (of_mixing or {*metrics} & {*GATES, *SINKHORN_ERRORS}):
        return pd.Series(data=False, index=cells.index)
    exact = (cells[name] == 0 for name in SINKHORN_ERRORS)
    return (cells["base_diagonal_final"] == 1) & np.logical_and.reduce([*exact])


def is_untrained_gate(seeds: pd.DataFrame, metric: str) -> bool:
    """Whether a metric is a gate with the same value at every seed, so that no run learned it.

    False for gates that are fully shut or open, which may be so at every seed.
    """
    if metric not in GATES or len(seeds) == 1:
        return False
    return seeds[metric].nunique() == 1 and 0 < seeds[metric].iloc[0] < 1
