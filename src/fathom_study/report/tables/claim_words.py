"""Presenter of claims: their verdicts and tests, in the form that templates need."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from string import ascii_uppercase
from typing import Any

import pandas as pd

from fathom_study.analysis.claims.evidence import NOT_MEASURED, REPRODUCED, VERDICTS
from fathom_study.analysis.estimate import LOG10
from fathom_study.analysis.statistics import CONFIDENCE
from fathom_study.report.tables.formatting import number, with_interval
from fathom_study.report.tables.records import Record, records

LARGEST = 300.0
"""Largest exponent of ten: higher powers may overflow a float."""


class VerdictsPresenter:
    """The facts about the claims that templates use.

    `studies`: those with a page. `page` of a row: the study whose page has its tests, or empty.
    """

    def __init__(
        self, verdicts: pd.DataFrame, claims: pd.DataFrame, studies: Collection[str] = ()
    ) -> None:
        rows = records(verdicts.astype(object).fillna(""))
        firsts = [row["studies"].partition(",")[0] for row in rows]
        self.rows = [
            {**row, "page": first if first in studies else ""}
            for row, first in zip(rows, firsts, strict=True)
        ]
        self._tests = records(claims)
        made = [test for test in self._tests if test["verdict"] != NOT_MEASURED]
        self.tests = len(made)
        """Number of tests made."""
        self.tests_with_interval = sum(not math.isnan(test["confidence"]) for test in made)
        """Number of tests that rest on an interval."""
        self.expected_by_chance = self.tests_with_interval * (1 - CONFIDENCE)
        """Expected number of false verdicts by chance, if all claims were true."""
        scales = itertools.chain(*(self.scales_of(row["claim"]) for row in self.rows))
        self.letters = {
            scale: ascii_uppercase[i % 26] * (1 + i // 26)  # A to Z, AA to ZZ, …
            for i, scale in enumerate(dict.fromkeys(scales))
        }
        """A letter for each difference of tests from the published scale."""

    def by_source(self) -> list[Record]:
        """Claims sorted by source, then by verdict."""
        sources = list(dict.fromkeys(row["source"] for row in self.rows))

        def place(row: Record) -> tuple[int, int]:
            return sources.index(row["source"]), VERDICTS.index(row["verdict"])

        return sorted(self.rows, key=place)

    def named(self, verdict: str) -> list[Record]:
        """The claims with that verdict."""
        return [row for row in self.rows if row["verdict"] == verdict]

    def by_verdict(self) -> dict[str, list[Record]]:
        """Claims by verdict; verdicts without claims are left out."""
        return {verdict: rows for verdict in VERDICTS if (rows := self.named(verdict))}

    def tests_of(self, claim: str, *, made: bool = False) -> list[Record]:
        """Rows of claims.csv on one claim: all, or with `made` only tests that were made."""
        own = (test for test in self._tests if test["claim"] == claim)
        return [test for test in own if not made or test["verdict"] != NOT_MEASURED]

    def deciding(self, row: Mapping[str, Any]) -> Record | None:
        """The first test that gave a claim its verdict; None if none was made."""
        made = self.tests_of(row["claim"], made=True)
        return next((t for t in made if t["decides"] and t["verdict"] == row["verdict"]), None)

    def gaps_of(self, claim: str) -> list[Record]:
        """The tests that decide one claim and could not be made."""
        own = self.tests_of(claim)
        return [test for test in own if test["decides"] and test["verdict"] == NOT_MEASURED]

    def scales_of(self, claim: str) -> list[str]:
        """The differences of one claim's tests from the published scale."""
        texts = (test["scale"] for test in self.tests_of(claim, made=True))
        # A test over several studies has the scale of each.
        scales = (scale.split("; ") for scale in texts if isinstance(scale, str))
        return [scale for scale in dict.fromkeys(itertools.chain(*scales)) if scale]

    def scale_letters(self, claim: str) -> str:
        """The letters of one claim's differences from the published scale."""
        return ", ".join(self.letters[scale] for scale in self.scales_of(claim))

    def controlled_by(self, study: str) -> list[Record]:
        """Claims whose tests were repeated in a study; `reproduced_in`: where they are reproduced.

        `reproduced_in` is None if too few of the tests were made.
        """
        rows = [row for row in self.rows if row["control_study"] == study]
        return [{**row, "reproduced_in": _reproduced_in(row)} for row in rows]


def _reproduced_in(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The studies in which a claim with a control is reproduced; None if a test was not made."""
    if NOT_MEASURED in (row["verdict"], row["control"]) or row["in_part"]:
        return None
    verdicts = {row["studies"]: row["verdict"], row["control_study"]: row["control"]}
    return tuple(study for study, verdict in verdicts.items() if verdict == REPRODUCED)


def estimate(test: Mapping[str, Any]) -> str:
    """The estimate of a test with its interval; a ratio if it compared logarithms."""
    ends = [_shown(test, test[name]) for name in ("observed", "low", "high")]
    if math.isnan(ends[0]):
        return "not finite"
    return "never" if math.isinf(ends[0]) else with_interval(*ends)


def needed(test: Mapping[str, Any]) -> tuple[str, str]:
    """The ends of the band that a test needs, in the unit of `estimate`; empty for an open one."""
    ends = (_shown(test, test[name]) for name in ("needed_low", "needed_high"))
    low, high = ("" if math.isnan(end) else number(end, 4) for end in ends)
    return low, high


def _shown(test: Mapping[str, Any], value: float) -> float:
    is_log = test["unit"] == LOG10 and math.isfinite(value)
    return 10.0 ** min(value, LARGEST) if is_log else value
