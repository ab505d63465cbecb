"""The runs that a test reads, its judgement, and the gaps that prevent one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from fathom_study.analysis.platforms import device_of
from fathom_study.analysis.step_times import StepTimes
from fathom_study.analysis.tables import CELL
from fathom_study.config import Config
from fathom_study.metrics.scores import Score

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
CONTRADICTED, NOT_MEASURED = "contradicted", "not measured"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, CONTRADICTED, NOT_MEASURED)

NO_RUN, FEW_SEEDS, TOO_SMALL, UNTESTED = "no run", "few seeds", "too small", "untested"
DIVERGED, CLOCK = "diverged", "clock"
ONE_RUN, INERT, IDENTITY = "one run", "inert", "identity"
"""Gaps: reasons why a test, or a part of it, is missing; report/templates/words.j2 words them."""


def combine_verdicts(verdicts: Iterable[str]) -> str:
    """The verdict of several tests: all must hold; one failure decides."""
    given = set(verdicts)
    order = (CONTRADICTED, NOT_REPRODUCED, NOT_MEASURED, REPRODUCED)
    return next((verdict for verdict in order if verdict in given), NOT_MEASURED)


@dataclass(frozen=True)
class Judgement:
    """The verdict of one test on one platform, with the case that speaks most against the claim.

    Its fields are columns of claims.csv.
    """

    verdict: str
    undecided: bool = False
    """Whether intervals cross the band, so that more seeds may decide it."""
    variant: str = ""
    against: str = ""
    """The other variant of a comparison."""
    depths: str = ""
    metric: str = ""
    unit: str = ""
    observed: float = math.nan
    low: float = math.nan
    high: float = math.nan
    needed_low: float = math.nan
    needed_high: float = math.nan
    """The ends of the band, in the unit of `observed`; NaN for an open one."""
    r_squared: float = math.nan
    published: float = math.nan
    cases: int = 0
    """The number of cells, comparisons or runs that were judged."""
    holding: int = 0
    """The number of cases in which the claim holds."""
    equal: int = 0
    """The number of cases in which two sides differ by rounding alone."""
    seeds: int = 0
    """The fewest seeds behind any part of the verdict."""
    rests_on: str = ""
    gap: str = ""
    """Why the test, or a part of it, could not be made."""
    gap_of: str = ""
    """The variants, sizes or platform that the gap is about."""


class NotMeasured(Exception):  # noqa: N818, a verdict, not an error
    """A test cannot be made: its runs are missing, too few, or cannot answer it."""

    def __init__(self, gap: str, **about: object) -> None:
        super().__init__(gap)
        self.judgement = Judgement(NOT_MEASURED, gap=gap, **about)


@dataclass(frozen=True)
class Evidence:
    """The runs that count, on one platform."""

    cells: pd.DataFrame
    """Rows of cells.csv, one per run, with the column `untestable.SAME_AS`."""
    steps: pd.DataFrame
    """Rows of steps.csv.gz, one per step, of the studies that claims name."""
    everywhere: pd.DataFrame
    """Rows of cells.csv for runs on any platform."""
    scores: Mapping[str, Score]
    """The score of each study."""
    config: Config
    platform: str
    step_times: StepTimes
    """Steps timed in turns, on any platform."""

    def of_depth(self, least: float) -> Evidence:
        """The evidence without networks with fewer than `least` layers."""
        if least <= self.everywhere["depth"].min():
            return self
        return self._where(lambda table: table["depth"] >= least)

    def of_seeds(self, seeds: Collection[int]) -> Evidence:
        """The evidence without runs of other seeds."""
        return self._where(lambda table: table["seed"].isin(seeds))

    def _where(self, holds: Callable[[pd.DataFrame], pd.Series]) -> Evidence:
        """The evidence with the rows of each table for which `holds` is true."""
        cells, steps, everywhere = (
            table[holds(table)] for table in (self.cells, self.steps, self.everywhere)
        )
        return replace(self, cells=cells, steps=steps, everywhere=everywhere)

    def on(self, device: str) -> Evidence:
        """The evidence without runs made here on another device."""
        cells = self.cells[self.cells["machine"].map(device_of) == device]
        axes = [*CELL, "seed"]
        ran = pd.MultiIndex.from_frame(cells[axes])
        steps = self.steps[pd.MultiIndex.from_frame(self.steps[axes]).isin(ran)]
        return replace(self, cells=cells, steps=steps)
