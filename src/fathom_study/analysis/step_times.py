"""Comparable times of a training step, measured in turns by `benchmarks/steps.py`.

The clocks of runs do not compare: runs train beside other work and on different days, so the same
step takes twice as long in some. Without the file, the fastest run of a network is used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.tables import GROUP, STEP_TIMES, read_table
from fathom_study.config import Config, Study

REMEDY = "make it again: python benchmarks/steps.py studies --out FILE, or leave out `step_times`"

PER_STEP = "seconds_per_step_fastest"


class StepTime(NamedTuple):
    """Seconds of a step of a network: the median over turns, and their range."""

    seconds: float
    low: float
    high: float
    machine: str
    turns: int
    """Their number; 0 if the network was not timed."""
    width: float = math.nan
    """Width of the study's network; NaN if it has none, or the table does not say."""
    operations: float = math.nan
    bytes: float = math.nan
    """`fathom_study.backends.torch_counting.Count` of a batch; NaN if it was not counted."""
    ratio: float = math.nan
    ratio_low: float = math.nan
    ratio_high: float = math.nan
    """Time over the plain network's in the same turns, with its range; NaN if not timed."""


StepTimes = Mapping[tuple[str, int, str, str], StepTime]
"""Step times by study, depth, variant and platform."""


def width_of(study: Study) -> float:
    """The width of a study's network; NaN if it has none."""
    return float(getattr(study.model, "width", math.nan))


def read_step_times(config: Config, *, wider: bool = False) -> StepTimes:
    """The step times of every variant, from the config's table `step_times`; empty without one.

    `wider`: read the same networks at a larger width than the study's, instead of at its own.
    Variants whose steps are the same work share one time. Raises TableError if the table is
    missing or invalid.
    """
    if not config.step_times:
        return {}
    table = read_table(Path(config.step_times), REMEDY, name=STEP_TIMES)
    times = {}
    work = {name: config.same_work(name) for name in config.studies.keys() & {*table["study"]}}
    for row in table.itertuples():
        if row.study not in work:
            continue
        study, first_of = config.studies[row.study], work[row.study]
        has_own_width = "width" in study.changes(row.variant).get("model", {})
        if (row.width > width_of(study)) != wider or (wider and has_own_width):
            continue
        alike = [v for v, first in first_of.items() if first == row.variant]
        fields = {name: getattr(row, name, math.nan) for name in StepTime._fields}
        # Beside a row without turns pandas reads all of them as floats.
        fields["turns"] = 0 if math.isnan(fields["turns"]) else int(fields["turns"])
        plain = config.plain(row.study)
        if not plain or first_of[plain] != getattr(row, "over", ""):
            fields |= dict.fromkeys(("ratio", "ratio_low", "ratio_high"), math.nan)
        # Runs made here have no machine name: each time is also stored under an empty one.
        for variant, machine in itertools.product(alike, (row.machine, "")):
            key = row.study, row.depth, variant, Platform(row.backend, machine).name
            times[key] = StepTime(**fields)
    return times


def with_times_of_networks(summary: pd.DataFrame, config: Config) -> pd.DataFrame:
    """The summary with one time of a step for all variants whose steps are the same work.

    With `step_times` in the config it is the time in that table, NaN if the table has none, else
    the fastest run of the first variant. Raises TableError if the table is missing or invalid.
    """
    if PER_STEP not in summary:  # nothing was run
        return summary
    if config.step_times:
        times = read_step_times(config)
        keys = summary[GROUP].itertuples(index=False, name=None)
        measured = [times[key].seconds if key in times else math.nan for key in keys]
        return summary.assign(**{PER_STEP: measured})
    studies = config.studies.keys() & set(summary["study"])
    same = {study: config.same_work(study) for study in studies}
    pairs = summary[["study", "variant"]].itertuples(index=False)
    networks = [same.get(study, {}).get(variant, variant) for study, variant in pairs]
    seconds = summary.assign(variant=networks).groupby(GROUP)[PER_STEP].transform("first")
    return summary.assign(**{PER_STEP: seconds})
