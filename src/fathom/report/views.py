"""Views: what a template may ask of the tables."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fathom import tasks
from fathom.analysis.attribution import diverged_cells
from fathom.analysis.claims.rules import NOT_MEASURED, REPRODUCED, VERDICTS
from fathom.analysis.places import PLACE, Place
from fathom.analysis.tables import CONFIDENCE, counted, read_table
from fathom.config import Config, Study
from fathom.measures import RUN_MEASURES
from fathom.report.figures import Declaration
from fathom.report.numbers import largest, number, with_interval
from fathom.report.reports import VERDICTS_AND_TESTS
from fathom.system.text import printable

NONE = "none"
"""What stands for a measure that runs do not have."""


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as dicts."""
    return table.to_dict("records")


SPECIAL = re.compile(r"[\\`*_\[\]<>|~&$@]|(?<=www)\.|:(?=//)")
"""What Markdown, or where it is read, makes something of: marks, HTML, cells, links, mentions."""


def as_markdown(text: str) -> str:
    """Markdown that shows the text and does nothing else, in a sentence or in a cell of a table."""
    return SPECIAL.sub(lambda found: f"\\{found[0]}", printable(text))


def quoted(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table whose texts come from run folders, which others may have written."""
    return [
        {name: as_markdown(v) if isinstance(v, str) else v for name, v in row.items()}
        for row in records(table)
    ]


def left_out(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Cells that no table counts, by study, backend, status and reason, with that as Markdown."""
    return quoted(uncounted(cells))


def uncounted(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells that no table counts, grouped by study, backend, status and reason."""
    out = cells.drop(counted(cells).index)
    groups = out.groupby(["study", "backend", "status", "reason"], sort=False)
    return groups.size().reset_index(name="cells")


class StudyView:
    """What a template may ask about one study.

    `figures` are those that the workflow draws of it, at every place.
    """

    def __init__(
        self,
        name: str,
        study: Study,
        tables: dict[str, pd.DataFrame],
        figures: Sequence[Declaration] = (),
    ) -> None:
        self.name = name
        self.study = study
        self.figures = figures
        self.task = tasks.presentation(study.task)
        self.tables = {k: t[t["study"] == name] for k, t in tables.items() if "study" in t}
        # The line of the CSV that a row came from, to link to; the header is the first.
        self.summary = self.tables["summary"].copy().assign(line=lambda t: t.index + 2)

    @property
    def is_measured(self) -> bool:
        """Whether any run of the study counts."""
        return not self.summary.empty

    @property
    def backends_not_run(self) -> list[str]:
        """Backends that the study names and no run counts for."""
        return [b for b in self.study.backends if b not in set(self.summary["backend"])]

    @cached_property
    def places(self) -> list[Place]:
        """Where the study was measured."""
        return [
            Place(*row) for row in self.summary[PLACE].drop_duplicates().itertuples(index=False)
        ]

    @property
    def variants(self) -> list[str]:
        """The variants measured, in the order of the config."""
        return [v for v in self.study.labels if v in set(self.summary["variant"])]

    @property
    def depths(self) -> list[int]:
        """The depths measured, in ascending order."""
        return sorted(self.summary["depth"].unique())

    @property
    def seeds(self) -> int:
        """The largest number of seeds behind any value."""
        return int(self.summary["n"].max())

    @property
    def steps(self) -> int:
        """Optimiser steps of a run."""
        return self.study.steps

    @property
    def unit(self) -> str:
        """What the loss is per, as in 'token'."""
        return self.task.unit

    @property
    def compared(self) -> str:
        """The measure that stands beside the loss where places are compared."""
        return self.task.compared

    @property
    def template(self) -> str:
        """The file with the part of the report that is the task's own."""
        return f"parts/{self.study.report}.j2"

    @property
    def scale(self) -> str:
        """The sizes, in the letters of docs/definitions.md."""
        model, batch, optimizer = self.study.model, self.study.batch_size, self.study.optimizer
        if isinstance(batch, dict):
            batch = " / ".join(f"{size} at {depth}L" for depth, size in batch.items())
        return (
            f"{self.task.sizes(model)}, S {self.study.streams}, B {batch}, "
            f"{self.study.steps} steps, lr {optimizer.lr:g} ({optimizer.schedule}), "
            f"decay {optimizer.weight_decay:g}"
        )

    @property
    def chance_loss(self) -> float:
        """The loss of a model that has learned nothing, in nats."""
        return float(self.summary["chance_loss"].iloc[0])

    @property
    def chance_accuracy(self) -> float:
        """The accuracy of a model that has learned nothing, where every class is as frequent."""
        return math.exp(-self.chance_loss)

    def row(self, depth: int, variant: str, place: Place) -> dict[str, Any] | None:
        """The summary of one group of seeds, or None if it was not measured."""
        return self._rows.get((depth, variant, place))

    @cached_property
    def _rows(self) -> dict[tuple[int, str, Place], dict[str, Any]]:
        """The rows of the summary by what they stand for."""
        rows = records(self.summary)
        return {(r["depth"], r["variant"], Place(*(r[n] for n in PLACE))): r for r in rows}

    def value(self, depth: int, variant: str, place: Place, measure: str) -> str:
        """Mean and interval over seeds, or what stood in its way, linked to its row."""
        row = self.row(depth, variant, place)
        if row is None:
            return "not run here"
        text = self.text_of(row, measure)
        return text if text == NONE else f"[{text}](tables/summary.csv#L{row['line']})"

    @staticmethod
    def text_of(row: Mapping[str, Any], measure: str, side: str = "", times: float = 1) -> str:
        """A measure's mean and interval over seeds; NONE where the runs have no such measure.

        `row`: of the summary; or of the comparison, with `side` `_a` or `_b`. `times`: for another
        unit.
        """
        finite, *values = (row[f"{measure}_{part}{side}"] for part in ("n", "mean", "low", "high"))
        if finite == 0 and not RUN_MEASURES[measure].always:
            return NONE
        return with_interval(*(times * value for value in values), finite, row[f"n{side}"])

    def is_zero(self, measure: str) -> bool:
        """Whether a measure is zero in every run, of those that have it."""
        s = self.summary
        ends = s[[f"{measure}_{part}" for part in ("mean", "low", "high")]].fillna(0.0)
        return bool((s[f"{measure}_n"] == s["n"]).all() and (ends == 0).all(axis=None))

    def failed(self, variant: str, depth: int) -> tuple[int, int]:
        """How many runs of a variant did not learn, of how many, over all places."""
        s = self.summary
        rows = s[(s["variant"] == variant) & (s["depth"] == depth)]
        return int((rows["diverged"] + rows["at_chance"]).sum()), int(rows["n"].sum())

    def limit(self, variant: str) -> tuple[int | None, int | None]:
        """(depth, depth): the deepest where every run learned, and the first where one did not.

        At all smaller depths than the first every run learned too. None where there is none.
        """
        deepest = None
        for depth in self.depths:
            failed, n = self.failed(variant, depth)
            if failed:
                return deepest, depth
            deepest = depth if n else deepest
        return deepest, None

    def first_row(self, variant: str, depth: int) -> dict[str, Any] | None:
        """The summary at the first place that has an overflow to tell of, else at the first."""
        rows = [r for p in self.places if (r := self.row(depth, variant, p))]
        return next((r for r in rows if r["overflow_layer_n"]), rows[0] if rows else None)

    def mean_text(self, variant: str, depth: int, measure: str) -> str:
        """The mean at every place, once if they print alike."""
        rows = [self.row(depth, variant, place) for place in self.places]
        texts = [number(row[f"{measure}_mean"]) for row in rows if row]
        return " / ".join(dict.fromkeys(texts))

    def depths_of(self, variant: str) -> list[int]:
        """The depths at which a variant was run, at any place."""
        return [depth for depth in self.depths if self.failed(variant, depth)[1]]

    def largest(self, variant: str) -> dict[str, float] | None:
        """The maximum over cells and seeds of what is logged about streams and gradients."""
        c = self.tables["cells"]
        rows = c[(c["variant"] == variant) & (c["outcome"] == "learned")]
        names = ("stream_difference_max", "grad_norm_H_res_max", "grad_norm_max")
        return {name: float(rows[name].max()) for name in names} if len(rows) else None

    def effects(self, measure: str) -> dict[str, list[dict[str, Any]]]:
        """By question, the effects on a measure, each with its place and the line of its row."""
        table = self.tables["effects"].assign(line=lambda t: t.index + 2)
        rows = records(table[table["measure"] == measure])
        found: dict[str, list[dict[str, Any]]] = {asks: [] for asks in table["asks"].unique()}
        for row in rows:
            found[row["asks"]].append({**row, "place": Place(*(row[n] for n in PLACE))})
        return found

    def against_plain(self, connections: Sequence[str]) -> list[dict[str, Any]]:
        """The effects of some connections on the loss, beside a plain network, at the first place.

        Whatever recipe and rate the two share. Backends share seeds: they are not two witnesses.
        """
        rows = itertools.chain(*self.effects("loss_final").values())
        rows = (row for row in rows if row["against_plain"] and row["place"] == self.places[0])
        return [row for row in rows if self.study.connection_name(row["variant"]) in connections]

    def trajectories(self, a: Place, b: Place) -> list[dict[str, Any]]:
        """How the losses at two places part."""
        t = self.tables["trajectories"]
        sides = [f"{name}_{side}" for side in "ab" for name in PLACE]
        return records(t[(t[sides] == [*astuple(a), *astuple(b)]).all(axis=1)])

    def failures(self) -> Iterator[dict[str, Any]]:
        """Groups in which a run did not learn, with the counts and the place."""
        for row in records(self.summary):
            if row["diverged"] or row["at_chance"]:
                yield {**row, "place": Place(*(row[name] for name in PLACE))}

    def pairs(self) -> Iterator[tuple[Place, Place, list[dict[str, Any]]]]:
        """Every two places that were compared, with their rows of the comparison table."""
        table = self.tables["comparison"]
        sides = [[f"{name}_{side}" for name in PLACE] for side in "ab"]
        if table.empty:
            return
        for key, rows in table.groupby([*sides[0], *sides[1]], sort=False):
            yield Place(*key[: len(PLACE)]), Place(*key[len(PLACE) :]), records(rows)

    def agreements(self) -> list[dict[str, Any]]:
        """How far every two places agree, over all cells: how many part, and how the study ends."""
        found = []
        for place_a, place_b, rows in self.pairs():
            paths = self.trajectories(place_a, place_b)
            parting = [step for r in paths if not math.isnan(step := r["first_step_apart"])]
            finite = [r for r in paths if r["final_difference"] != math.inf]
            known = [r for r in paths if not math.isnan(r["seed_spread"])]
            others = [r for r in known if not r["within_seed_spread"]]
            found.append(
                {
                    "places": [place_a.label, place_b.label],
                    "first": largest(rows, "loss_first_difference"),
                    "cells": len(paths),
                    "apart": len(parting),
                    "earliest": min(parting, default=math.nan),
                    "one_sided": len(paths) - len(finite),
                    "largest": largest(finite, "final_difference"),
                    "known": len(known),
                    "within": len(known) - len(others),
                    "verdict": _agreement(others, known),
                }
            )
        return found

    def published(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """(source, how our scale differs, rows): a row holds ours by the label of the place."""
        for source, table in self.tables["published"].groupby("source", sort=False):
            rows = []
            scales = [scale for scale in table["scale"].dropna().unique() if scale]
            for key, values in table.groupby(["measure", "depth", "variant"], sort=False):
                ours = {
                    Place(*(v[name] for name in PLACE)).label: _marked(v, not scales)
                    for v in records(values)
                    if v["backend"]
                }
                named = dict(zip(("measure", "depth", "variant"), key, strict=True))
                rows.append({**named, "published": _range(values.iloc[0]), "ours": ours})
            yield source, "; ".join(scales), rows

    def against(self, line: str) -> list[dict[str, Any]]:
        """For each depth and place the variant with the fewest bits per character, beside a line.

        `line` is a measure: an n-gram's bits per character. `passed` says whether the interval lies
        below it.
        """
        found = []
        for depth, place in itertools.product(self.depths, self.places):
            rows = [r for v in self.variants if (r := self.row(depth, v, place))]
            rows = [r for r in rows if r["validation_bpc_n"]]
            if not rows:
                continue
            best = min(rows, key=lambda row: row["validation_bpc_mean"])
            mean, high = best["validation_bpc_mean"], best["validation_bpc_high"]
            level = best[f"{line}_mean"]
            found.append(
                {
                    "depth": depth,
                    "place": place,
                    "variant": best["variant"],
                    "mean": mean,
                    "variants": len(rows),
                    "bits": self.text_of(best, "validation_bpc"),
                    "row": best["line"],
                    "line": level,
                    "passed": (mean if math.isnan(high) else high) < level,
                }
            )
        return found

    @property
    def thresholds(self) -> list[dict[str, Any]]:
        """What a source calls good and bad of the measures that this study has, a row for each."""
        table = self.tables["thresholds"]
        return records(table.drop_duplicates("measure")[["source", "measure", "good_is", "bad_is"]])

    def arm(self, depth: int, variant: str, place: Place, measure: str) -> str:
        """The value of a measure, how a source's threshold grades it, and what was published."""
        return self.value(depth, variant, place, measure) + self.beside(
            depth, variant, place, measure
        )

    def beside(self, depth: int, variant: str, place: Place, measure: str) -> str:
        """What follows a value: its grade by a source's threshold, and what was published."""
        text = ""
        table = self.tables["thresholds"]
        cell = [depth, variant, measure, *astuple(place)]
        rows = table[(table[["depth", "variant", "measure", *PLACE]] == cell).all(axis=1)]
        for row in records(rows):
            counts = {**row, "between": row["n"] - row["good"] - row["bad"]}
            same = counts[row["grade"]]
            some = f" ({same} of {row['n']} runs)" if same < row["n"] else ""
            text += f", {row['grade']}{some}"
        table = self.tables["published"]
        given = table[(table[["depth", "variant", "measure"]] == cell[:3]).all(axis=1)]
        texts = [_range(row) for row in records(given.drop_duplicates("source"))]
        return f"{text}; published: {', '.join(texts)}" if texts else text


class VerdictsView:
    """What a template may ask about the claims.

    `studies` have pages. A row has `page`: the study on whose page its tests are, empty if none.
    """

    order = VERDICTS
    made = tuple(verdict for verdict in VERDICTS if verdict != NOT_MEASURED)
    """The verdicts of tests that were made."""

    def __init__(
        self, verdicts: pd.DataFrame, claims: pd.DataFrame, studies: Collection[str] = ()
    ) -> None:
        rows = records(verdicts.astype(object).fillna(""))
        firsts = [row.get("studies", "").partition(",")[0] for row in rows]
        self.rows = [
            {**row, "page": first if first in studies else ""}
            for row, first in zip(rows, firsts, strict=True)
        ]
        self.claims = claims.assign(line=claims.index + 2)

    def named(self, verdict: str) -> list[dict[str, Any]]:
        """The claims with that verdict."""
        return [row for row in self.rows if row["verdict"] == verdict]

    def tests_of(self, claim: str) -> Iterator[dict[str, Any]]:
        """The rows of the table of claims that belong to one claim."""
        rows = self.claims[self.claims["claim"] == claim]
        for row in records(rows):
            yield {**row, "place": Place(*(row[name] for name in PLACE))}

    def on(self, study: str) -> list[dict[str, Any]]:
        """The claims whose tests are on a study's page."""
        return [row for row in self.rows if row["page"] == study]

    def deciding(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The first test that gave a claim its verdict; None if none was made."""
        made = (t for t in self.tests_of(row["claim"]) if t["verdict"] != NOT_MEASURED)
        return next((t for t in made if t["decides"] and t["verdict"] == row["verdict"]), None)

    def unmeasured(self) -> Iterator[tuple[dict[str, Any], str]]:
        """(a claim, why it was not measured)."""
        for row in self.named(NOT_MEASURED):
            yield row, self.gaps_of(row["claim"])

    def gaps_of(self, claim: str) -> str:
        """Why the tests of one claim that could not be made were not; empty if all were."""
        tests = (t for t in self.tests_of(claim) if t["decides"] and t["verdict"] == NOT_MEASURED)
        return "; ".join(dict.fromkeys(test["reason"] for test in tests))

    @cached_property
    def letters(self) -> dict[str, str]:
        """A letter for each way in which tests differ in scale from what was published."""
        scales = itertools.chain(*(self.scales_of(row["claim"]) for row in self.rows))
        return {scale: _letters(i) for i, scale in enumerate(dict.fromkeys(scales))}

    def scale_letters(self, claim: str) -> str:
        """Those of one claim."""
        return ", ".join(self.letters[scale] for scale in self.scales_of(claim))

    def of_rule(self, kind: str) -> list[dict[str, Any]]:
        """The tests of one rule that were made, and decide."""
        rows = itertools.chain(*(self.tests_of(row["claim"]) for row in self.rows))
        made = (row for row in rows if row["test"] == kind and row["verdict"] != NOT_MEASURED)
        return [row for row in made if row["decides"]]

    def scales_of(self, claim: str) -> list[str]:
        """How the tests of one claim differ from the published scale, where they do."""
        measured = self.claims[self.claims["verdict"] != NOT_MEASURED]
        scales = measured.loc[measured["claim"] == claim, "scale"].dropna()
        # A test over several studies has the scale of each.
        parts = itertools.chain(*(scale.split("; ") for scale in scales))
        return [part for part in dict.fromkeys(parts) if part]

    def controlled_by(self, study: str) -> list[dict[str, Any]]:
        """The claims whose tests were made again in a study, with `shown`: where each is so."""
        rows = [row for row in self.rows if row["control_study"] == study]
        return [{**row, "shown": _shown(row)} for row in rows]

    @property
    def tests(self) -> int:
        """How many tests were made."""
        return int((self.claims["verdict"] != NOT_MEASURED).sum())

    @property
    def tests_with_interval(self) -> int:
        """How many of them rest on an interval."""
        return int(self.claims["confidence"].notna().sum())

    @property
    def expected_by_chance(self) -> float:
        """How many of those would come out wrong by chance alone, were all claims true."""
        return self.tests_with_interval * (1 - CONFIDENCE)


class ReferenceView:
    """What a template may ask about the kept result: nothing, where there is none.

    `folder`: that result's, or None; `link`: how reports here lead to it.
    """

    def __init__(self, folder: Path | None, link: str = "") -> None:
        self.link = link
        self.pages: set[str] = set()
        self.verdicts: VerdictsView | None = None
        if folder and (folder / "tables" / "verdicts.csv").is_file():
            tables = (read_table(folder / "tables" / f"{name}.csv") for name in VERDICTS_AND_TESTS)
            self.pages = {file.stem for file in (folder / "studies").glob("*.md")}
            self.verdicts = VerdictsView(*tables, self.pages)

    def verdict(self, claim: str) -> str:
        """The verdict on a claim, linked to its tests; empty if there is none."""
        row = self._made.get(claim)
        if row is None:
            return ""
        text = f"{row['verdict']}{', ' + row['qualifier'] if row['qualifier'] else ''}"
        place = f"studies/{row['page']}.md#{claim}" if row["page"] else "RESULTS.md"
        return f"[{text}]({self.link}/{place})"

    def page(self, study: str) -> str:
        """The link to a study's page; empty if it has none."""
        return f"{self.link}/studies/{study}.md" if study in self.pages else ""

    @cached_property
    def _made(self) -> dict[str, dict[str, Any]]:
        """The verdicts that rest on a test, by claim."""
        rows = self.verdicts.rows if self.verdicts else []
        return {row["claim"]: row for row in rows if row["verdict"] != NOT_MEASURED}


class AttributionView:
    """What a template may ask about recipe, platform and seed."""

    def __init__(self, config: Config, tables: Mapping[str, pd.DataFrame]) -> None:
        variance, cells = tables["variance"], tables["cells"]
        self.variance = records(variance)
        self.summary = records(tables["variance_summary"]) if len(variance) else []
        valid = counted(cells)
        self.diverged = diverged_cells(config, valid, variance)
        """How many cells are not decomposed because a run of theirs diverged."""

    def of(self, factor: str) -> dict[str, Any]:
        """The summary of one factor."""
        return next(row for row in self.summary if row["factor"] == factor)


def _shown(row: Mapping[str, Any]) -> str:
    """Where a claim with a control is reproduced; of all its tests, or nothing can be said."""
    if NOT_MEASURED in (row["verdict"], row["control"]) or "in part" in row["qualifier"]:
        return NOT_MEASURED
    there = [
        study
        for study, verdict in (
            (row["studies"], row["verdict"]),
            (row["control_study"], row["control"]),
        )
        if verdict == REPRODUCED
    ]
    if len(there) == 1:
        return f"{there[0]} alone"
    return "both" if there else "neither"


def _range(row: Mapping[str, Any]) -> str:
    """A published number, or the ends of a published range."""
    low, high = row["published"], row["published_high"]
    return f"{number(low, 4)} to {number(high, 4)}" if low < high else number(low, 4)


def _marked(row: dict[str, Any], at_scale: bool) -> str:
    """Our value, bold where it deviates at the published scale."""
    text = with_interval(row["mean"], row["low"], row["high"])
    return f"**{text}**" if at_scale and str(row["deviates"]) == "True" else text


def _letters(index: int) -> str:
    """A to Z, then AA and on, by its place among them."""
    first, last = divmod(index, 26)
    return (_letters(first - 1) if first else "") + chr(ord("A") + last)


def _agreement(others: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]) -> str:
    """What it means that `others` of the cells end farther apart than seeds do."""
    if not known:
        return "not known: a single seed"
    if not others:
        return "the same, within the spread over seeds"
    return "differs: " + ", ".join(f"{r['variant']} at {r['depth']} layers" for r in others)
