"""Connections at several sizes as reports show them: each size, and whether they pay."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import pandas as pd

from fathom.settings import join_values
from fathom_study.analysis.claims.published import Note, Published, SizePoint
from fathom_study.analysis.scale import ALL, LONGEST
from fathom_study.analysis.significance import UNDECIDED
from fathom_study.analysis.worth import COSTS_MORE
from fathom_study.report.tables.formatting import with_interval
from fathom_study.report.tables.records import Record, records
from fathom_study.report.tables.worth_words import saved

UNKNOWN_COST = "not known"

LONG, LEAST_GAIN = 12_000, 0.01
"""Least steps of a long training, and least gain in nats that is no early speed-up alone."""


class ScalePresenter(NamedTuple):
    """Connections at several sizes."""

    sizes: list[Record]
    """For each size the row of sizes.csv with most rates tried, by parameters, then steps."""
    rows: list[Record]
    """All rows by design, each design by parameters, then steps."""
    pooled: list[Record]
    """Rows of pooled.csv."""

    @property
    def designs(self) -> list[str]:
        """The designs with a step multiplier."""
        return list(dict.fromkeys(row["design"] for row in self.rows if row["answer"]))

    def of_design(self, design: str) -> list[Record]:
        """The rows of a design with a step multiplier."""
        return [row for row in self.rows if row["design"] == design and row["answer"]]

    def pays(self, design: str, way: str) -> dict[str, list[str]]:
        """Sizes in words by whether a design pays there; answers without a size are left out."""
        by_result: dict[str, list[str]] = {}
        for row in self.of_design(design):
            by_result.setdefault(row[way] or UNKNOWN_COST, []).append(self.size_words(row))
        return by_result

    def size_words(self, row: Record) -> str:
        """Channels and layers, as in '64 × 12'; with steps if those of sizes differ."""
        size = f"{row['channels']:g} × {row['layers']:g}"
        return size if len(self.steps) < 2 else f"{size} after {row['steps']:g} steps"

    @property
    def steps(self) -> list[int]:
        """Numbers of training steps of all sizes, ascending."""
        return sorted({row["steps"] for row in self.sizes})

    @property
    def long(self) -> list[Record]:
        """The rows of LONG trainings, each with `lasts`."""
        return [row | {"lasts": lasts(row)} for row in self.rows if row["steps"] >= LONG]

    def never_pays(self, design: str, way: str) -> bool:
        """Whether a design costs more at every size."""
        return {*self.pays(design, way)} == {COSTS_MORE}

    def pooled_of(self, design: str, trainings: str) -> Record:
        """The row of pooled.csv."""
        return next(
            row for row in self.pooled if row["design"] == design and row["trainings"] == trainings
        )

    def fading(self, designs: Iterable[str]) -> list[Record]:
        """The rows of pooled.csv of the designs whose gain the longest trainings do not show."""
        wanted = set(designs)
        return [
            row
            for row in self.pooled
            if row["design"] in wanted and row["trainings"] == LONGEST and row["low"] <= 1
        ]

    def best_lasting(self) -> Record | None:
        """The design whose pooled gain stands at the longest trainings and costs least time.

        Its row of pooled.csv over all trainings; None if no interval lies above 1.
        """
        lasting = [
            self.pooled_of(row["design"], ALL)
            for row in self.pooled
            if row["trainings"] == LONGEST and row["low"] > 1
        ]
        lasting = [row for row in lasting if row["low"] > 1]
        return max(lasting, key=lambda row: row["multiplier"] / row["cost_low"], default=None)


def present_scale(sizes: pd.DataFrame, pooled: pd.DataFrame) -> ScalePresenter | None:
    """Presenter of sizes.csv and pooled.csv; None if no connection was trained at several sizes.

    Of several backends, only the one with most rows.
    """
    rows = sorted(records(sizes), key=lambda row: (row["parameters"], row["steps"]))
    if not rows:
        return None
    backend = Counter(row["backend"] for row in rows).most_common(1)[0][0]
    rows = [row for row in rows if row["backend"] == backend]
    of_size = {(row["study"], row["depth"]): row for row in rows}
    designs = dict.fromkeys(sizes["design"])
    by_design = [row for design in designs for row in rows if row["design"] == design]
    of_backend = [row for row in records(pooled) if row["backend"] == backend]
    return ScalePresenter(list(of_size.values()), by_design, of_backend)


def lasts(row: Record) -> Literal["lasts", "an early speed-up alone", "no gain", "undecided"]:
    """Whether the gain of a long training is above LEAST_GAIN, by the interval of its verdict."""
    if row["gain_low"] > LEAST_GAIN:
        return "lasts"
    if row["gain_high"] < 0:
        return "no gain"
    return "an early speed-up alone" if row["gain_high"] < LEAST_GAIN else UNDECIDED


def pooled_share(row: Record) -> str:
    """Steps saved, pooled over sizes, as in '12 % of the steps (9 to 14 %)'."""
    if math.isnan(row["low"]):
        return f"{saved(row['multiplier'])} % of the steps, too few sizes for an interval"
    share, low, high = (saved(row[name]) for name in ("multiplier", "low", "high"))
    return f"{share} % of the steps ({low} to {high} %)"


def cost_range(row: Record, of: Literal["cost", "operations"] = "cost") -> str:
    """Extra time, or operations, of a step over sizes, as in '19 to 44 %'."""
    low, high = (f"{100 * (row[f'{of}_{end}'] - 1):.0f}" for end in ("low", "high"))
    return f"{low} to {high} %" if low != high else f"{low} %"


def gain(row: Record) -> str:
    """Nats below the plain network with the interval, as in '0.044 (0.008 to 0.080)'."""
    return with_interval(row["gain"], row["gain_low"], row["gain_high"])


def notes_on_sizes(published: Published, labels: Mapping[str, str]) -> list[Note]:
    """A note for each source of published differences: nats by variant and size."""
    notes = []
    for entry in published.sizes:
        by_variant = [
            f"{labels.get(variant, variant)} {join_values(map(_point_words, points))}"
            for variant, points in entry.points.items()
        ]
        words = f"nats below a plain network (data: {entry.data}), by millions of parameters: "
        note = Note(source=entry.source, statement=f"{words}{'; '.join(by_variant)}.")
        notes.append(note)
    return notes


def _point_words(point: SizePoint) -> str:
    spread = f" ± {point.spread:g}" if point.spread else ""
    seeds = f" ({point.seeds} seeds)" if point.seeds > 1 else ""
    return f"{point.below:g}{spread}{seeds} at {point.parameters / 1e6:,.10g}"
