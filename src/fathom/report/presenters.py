"""Presenters: the tables' rows as templates need them. Words are in the templates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import pandas as pd

from fathom import tasks
from fathom.analysis.claims.rules import NOT_MEASURED, REPRODUCED, VERDICTS
from fathom.analysis.effects import HIGHER, LOWER
from fathom.analysis.platforms import Platform
from fathom.analysis.tables import CONFIDENCE, counted, read_table
from fathom.config import Study
from fathom.metrics import Score
from fathom.report.figures import Declaration
from fathom.report.formatting import largest, number, with_interval
from fathom.report.reports import VERDICTS_AND_TESTS

Record = dict[str, Any]
"""A row of a table. Its `platform` is a Platform, and `line` the line of the CSV that it is on."""

ABSENT = "–"
"""What stands for a number that runs do not have."""

SCORE = "score"
"""The columns of every task's score."""


def records(table: pd.DataFrame) -> list[Record]:
    """The rows of a table as dicts."""
    rows = table.to_dict("records")
    for name in {"platform", "platform_a", "platform_b"} & set(table.columns):
        for row in rows:
            row[name] = Platform.parse(row[name]) if row[name] else None
    return rows


def add_lines(table: pd.DataFrame) -> pd.DataFrame:
    """A whole table with `line`, where each row stands in its CSV. The header is the first."""
    lines = pd.Series(table.index + 2, index=table.index, name="line")
    return pd.concat([table, lines], axis=1)  # assign would warn of the many columns


def established(rows: Sequence[Record]) -> list[Record]:
    """The effects whose interval excludes that of no change, the largest first."""
    found = [row for row in rows if row["verdict"] in (HIGHER, LOWER)]
    return sorted(found, key=lambda row: -abs(row["effect"]))


def group_uncounted(cells: pd.DataFrame) -> list[Record]:
    """How many `cells` no table counts, by study, backend, status and reason."""
    out = cells.drop(counted(cells).index)
    groups = out.groupby(["study", "backend", "status", "reason"], sort=False)
    return records(groups.size().reset_index(name="cells"))


def count_deviations(published: pd.DataFrame) -> tuple[int, int]:
    """How many published values were set beside ours, and how many of them deviate."""
    compared = published[published["platform"] != ""]
    return len(compared), int((compared["deviates"] == True).sum())  # noqa: E712, may be missing


class StudyPresenter:
    """What a template may ask about one study.

    `figures` are those that the workflow draws of it, on every platform.
    """

    def __init__(
        self,
        name: str,
        study: Study,
        tables: Mapping[str, pd.DataFrame],
        figures: Sequence[Declaration] = (),
    ) -> None:
        self.name = name
        self.study = study
        self.figures = figures
        self.task = tasks.presentation(study.task)
        self._tables = {k: t[t["study"] == name] for k, t in tables.items() if "study" in t}
        self.summary = self._tables["summary"].pipe(add_lines)
        self._machines = tables.get("platforms")

    # --- what it is ---

    @property
    def is_measured(self) -> bool:
        """Whether any run of the study counts."""
        return not self.summary.empty

    @property
    def family(self) -> tuple[str, str]:
        """Studies of one task that have the same part of the report are told together."""
        return self.study.task, self.study.part or ""

    @property
    def template(self) -> str:
        """The file with its own part of the report; empty if it has none."""
        return f"parts/{self.study.part}.j2" if self.study.part else ""

    @cached_property
    def score(self) -> Score:
        """What its runs are judged by."""
        return tasks.score_of(self.study.task, self.study.score)

    @property
    def score_name(self) -> str:
        """The score with its unit, as in 'bits per character'."""
        return name_score(self.score)

    @property
    def chance(self) -> float:
        """The score of a model that has learned nothing."""
        return float(self.summary["score_chance"].iloc[0])

    @property
    def backends_not_run(self) -> list[str]:
        """Backends that the study names and no run counts for."""
        return [b for b in self.study.backends if b not in {p.backend for p in self.platforms}]

    @cached_property
    def platforms(self) -> list[Platform]:
        """Where the study was measured."""
        return [Platform.parse(name) for name in self.summary["platform"].unique()]

    def machine(self, platform: Platform) -> str:
        """The machines of a platform, in words."""
        rows = self._machines[self._machines["platform"] == platform.name]
        return ", ".join(rows["machine"].unique())

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
    def steps(self) -> str:
        """Optimiser steps of a run, as in '60', or '60 to 400' where variants differ."""
        steps = [self.study.steps_of(variant) for variant in self.study.labels]
        return f"{min(steps)} to {max(steps)}" if len(set(steps)) > 1 else str(steps[0])

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
            + "".join(f"; {name}: {change}" for name, change in self.study.size_changes.items())
        )

    # --- values ---

    @cached_property
    def rows(self) -> dict[tuple[int, str, Platform], Record]:
        """The summary by depth, variant and platform, in the order of the tables of a report."""
        found = {(r["depth"], r["variant"], r["platform"]): r for r in records(self.summary)}
        keys = itertools.product(self.depths, self.variants, self.platforms)
        return {key: found[key] for key in keys if key in found}

    def row(self, depth: int, variant: str, platform: Platform) -> Record | None:
        """The summary of one group of seeds, or None if it was not measured."""
        return self.rows.get((depth, variant, platform))

    def format(self, row: Mapping[str, Any], metric: str, side: str = "", times: float = 1) -> str:
        """A metric's mean and interval over seeds; ABSENT where the runs have no such metric.

        `row`: of the summary; or of the comparison, with `side` `_a` or `_b`. `times`: for another
        unit.
        """
        finite, *values = (row[f"{metric}_{part}{side}"] for part in ("n", "mean", "low", "high"))
        if finite == 0 and not self._is_lost(row, metric, side):
            return ABSENT
        return with_interval(*(times * value for value in values), finite, row[f"n{side}"])

    def _is_lost(self, row: Mapping[str, Any], metric: str, side: str = "") -> bool:
        """Whether runs have no finite value of a metric because they failed, and not by design."""
        failed = row[f"diverged{side}"] + row[f"at_chance{side}"] > 0
        return failed and (metric == SCORE or tasks.run_metrics()[metric].always)

    def has(self, metric: str) -> bool:
        """Whether any run has the metric, or lost it because it failed."""
        if f"{metric}_n" not in self.summary:
            return False
        rows = self.rows.values()
        return any(row[f"{metric}_n"] for row in rows) or all(
            self._is_lost(row, metric) for row in rows
        )

    def constant(self, metric: str, variants: Collection[str] = ()) -> float | None:
        """The value that all runs share, of those that have the metric; None if they differ.

        `variants`: of these; none means all. One group of seeds with a value other than zero is no
        constant.
        """
        rows = self.summary[self.summary["variant"].isin(variants or self.variants)]
        rows = rows[rows[f"{metric}_n"] > 0]
        ends = rows[[f"{metric}_{part}" for part in ("mean", "low", "high")]].stack()
        ends = ends.dropna().unique()
        if len(ends) != 1 or (rows[f"{metric}_n"] < rows["n"]).any():
            return None
        return ends[0] if ends[0] == 0 or len(rows) > 1 else None

    def metric_table(self, metric: str) -> dict[str, Any]:
        """A metric as a table: `rows` of depth, platform and `cells`, one for each of `columns`.

        `zeros` are variants without a column of their own, since all of their runs are zero. A cell
        is a row of the summary, or None if it was not run.
        """
        zeros = [v for v in self.variants if self.constant(metric, (v,)) == 0]
        columns = [v for v in self.variants if v not in zeros]
        rows = [
            {"depth": depth, "platform": platform, "cells": cells}
            for depth, platform in itertools.product(self.depths, self.platforms)
            if any(cells := [self.row(depth, variant, platform) for variant in columns])
        ]
        return {"columns": columns, "rows": rows, "zeros": zeros}

    def evidence(self) -> Iterator[dict[str, Any]]:
        """The tables that the task declares: title, note and its metrics, of those that runs have.

        A metric has `name`, `definition`, that of the step metric it is derived from (`of`),
        `constant` (see there) and `line`, of its first row.
        """
        for table in self.task.tables:
            metrics = [
                {
                    "name": name,
                    "definition": (metric := tasks.run_metrics()[name]).definition,
                    "of": tasks.step_metrics()[metric.of].definition,
                    "constant": self.constant(name),
                    "line": next((r["line"] for r in self.rows.values() if r[f"{name}_n"]), None),
                }
                for name in table.metrics
                if self.has(name)
            ]
            if metrics:
                yield {"title": table.title, "note": table.note, "metrics": metrics}

    @property
    def compared(self) -> list[str]:
        """What COMPARISON.md sets side by side, beside the score."""
        return [m for m in self.task.compared if m != self.score.metric and self.has(m)]

    # --- what became of runs ---

    def failed(self, variant: str, depth: int) -> tuple[int, int]:
        """How many runs of a variant did not learn, of how many, on all platforms."""
        rows = self.rows_of(variant, depth)
        return sum(r["diverged"] + r["at_chance"] for r in rows), sum(r["n"] for r in rows)

    def failures(self) -> list[Record]:
        """Groups of seeds in which a run did not learn."""
        return [row for row in self.rows.values() if row["diverged"] or row["at_chance"]]

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

    def rows_of(self, variant: str, depth: int) -> list[Record]:
        """The summary of a variant at a depth, on every platform."""
        return [row for (d, v, _), row in self.rows.items() if (d, v) == (depth, variant)]

    def depths_of(self, variant: str) -> list[int]:
        """The depths at which a variant was run, on any platform."""
        return [depth for depth in self.depths if self.failed(variant, depth)[1]]

    def best(self) -> list[Record]:
        """By depth and platform, the variant with the best mean score of those that never diverged.

        `variants`: of how many; `row`: its own. Where the task has an oracle, `oracle` is
        its score and `beaten` whether the whole interval is better than that.
        """
        found = []
        sign = 1 if self.score.better == "lower" else -1
        for depth, platform in itertools.product(self.depths, self.platforms):
            rows = [r for v in self.variants if (r := self.row(depth, v, platform))]
            rows = [r for r in rows if r["score_n"] and not r["diverged"]]
            if not rows:
                continue
            row = min(rows, key=lambda row: sign * row["score_mean"])
            ends = [row[f"score_{part}"] for part in ("mean", "low", "high")]
            worst = max(sign * end for end in ends if not math.isnan(end))
            best = {"depth": depth, "platform": platform, "variant": row["variant"], "row": row}
            best["variants"] = len(rows)
            if (level := self._oracle_level(row)) is not None:
                best |= {"oracle": level, "beaten": worst < sign * level}
            found.append(best)
        return found

    def _oracle_level(self, row: Record) -> float | None:
        """What the score is set beside in a row of the summary; None if that says nothing."""
        level = self.score.oracle.level if self.score.oracle else None
        if isinstance(level, str):
            return row[f"{level}_mean"] if row[f"{level}_n"] else None
        return None if level == self.score.perfect else level

    def leaders(self) -> dict[str, list[int]]:
        """By variant, the depths at which its mean score is the best on every platform.

        Platforms where fewer than two variants can be compared are passed over.
        """
        found: dict[str, list[int]] = {}
        for depth, rows in itertools.groupby(self.best(), key=lambda best: best["depth"]):
            first = {row["variant"] for row in rows if row["variants"] > 1}
            if len(first) == 1:
                found.setdefault(first.pop(), []).append(depth)
        return found

    # --- effects ---

    @cached_property
    def _effects(self) -> list[Record]:
        rows = records(self._tables["effects"].pipe(add_lines))
        return [{**row, "is_ratio": row["by"] == "ratio"} for row in rows]

    @property
    def effect_metrics(self) -> list[str]:
        """The metrics with effects: of a study without contrasts of its own, the score alone."""
        metrics = dict.fromkeys(row["metric"] for row in self._effects)
        return [m for m in metrics if m == SCORE or self.study.contrasts]

    def effects(self, metric: str, platform: Platform | None = None) -> dict[str, list[Record]]:
        """By question, the effects on a metric, on one platform or on all."""
        found: dict[str, list[Record]] = {row["question"]: [] for row in self._effects}
        for row in self._effects:
            if row["metric"] == metric and platform in (None, row["platform"]):
                found[row["question"]].append(row)
        return {question: rows for question, rows in found.items() if rows}

    def against_plain(self, connections: Collection[str]) -> list[Record]:
        """The effects of some connections on the score, against a plain network.

        Those of the first platform alone: platforms share seeds and are not two witnesses.
        """
        rows = itertools.chain(*self.effects(SCORE, self.platforms[0]).values())
        return [
            row
            for row in rows
            if row["against_plain"] and self.study.connection_name(row["variant"]) in connections
        ]

    # --- platforms side by side ---

    def pairs(self) -> Iterator[tuple[Platform, Platform, list[Record]]]:
        """Every two platforms that were compared, with their rows of the comparison table."""
        table = self._tables["comparison"]
        for (a, b), rows in table.groupby(["platform_a", "platform_b"], sort=False):
            yield Platform.parse(a), Platform.parse(b), records(rows)

    def trajectories(self, a: Platform, b: Platform) -> list[Record]:
        """How the losses on two platforms part."""
        return records(self._trajectories(a, b))

    def _trajectories(self, a: Platform, b: Platform) -> pd.DataFrame:
        table = self._tables["trajectories"]
        return table[(table["platform_a"] == a.name) & (table["platform_b"] == b.name)]

    def agreements(self) -> list[dict[str, Any]]:
        """How far every two platforms agree, over all cells: how many part, and how they end.

        `others` are the cells that end farther apart than seeds do, of `known`, whose spread over
        seeds is known.
        """
        found = []
        for a, b, rows in self.pairs():
            paths = self._trajectories(a, b)
            finite = paths["final_difference"][paths["final_difference"] != math.inf]
            known = paths[paths["seed_spread"].notna()]
            others = known[known["within_seed_spread"] != True]  # noqa: E712, of any type
            found.append(
                {
                    "platforms": [a.label, b.label],
                    "first": largest(rows, "loss_first_difference"),
                    "cells": len(paths),
                    "apart": int(paths["first_step_apart"].count()),
                    "earliest": paths["first_step_apart"].min(),
                    "one_sided": len(paths) - len(finite),
                    "largest": finite.max(),
                    "known": len(known),
                    "within": len(known) - len(others),
                    "others": records(others),
                }
            )
        return found

    # --- beside the sources ---

    def published(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """(source, how our scale differs, rows): a row holds ours by platform.

        Ours has `text` and `deviates`: whether it does so at the published scale.
        """
        for source, table in self._tables["published"].groupby("source", sort=False):
            scale = "; ".join(scale for scale in table["scale"].dropna().unique() if scale)
            rows = []
            for key, values in table.groupby(["metric", "depth", "variant"], sort=False):
                given = records(values)
                ours = {
                    row["platform"]: {
                        "text": with_interval(row["mean"], row["low"], row["high"]),
                        "deviates": not scale and row["deviates"] is True,
                    }
                    for row in given
                    if row["platform"]
                }
                named = dict(zip(("metric", "depth", "variant"), key, strict=True))
                rows.append({**named, "published": format_range(given[0]), "ours": ours})
            yield source, scale, rows

    def published_values(self, depth: int, variant: str, metric: str) -> list[str]:
        """What the sources published of one cell, one value from each."""
        table = self._tables["published"]
        rows = table[
            (table[["depth", "variant", "metric"]] == [depth, variant, metric]).all(axis=1)
        ]
        return [format_range(row) for row in records(rows.drop_duplicates("source"))]

    @property
    def thresholds(self) -> list[Record]:
        """What a source calls good and bad of the metrics that this study has, a row for each."""
        table = self._tables["thresholds"]
        return records(table.drop_duplicates("metric")[["source", "metric", "good_is", "bad_is"]])

    def grades(self, depth: int, variant: str, platform: Platform, metric: str) -> list[Record]:
        """How sources' thresholds grade a value: `grade`, which `same` of the `n` runs have too."""
        table = self._tables["thresholds"]
        keys = [depth, variant, platform.name, metric]
        own = table[(table[["depth", "variant", "platform", "metric"]] == keys).all(axis=1)]
        counts = own.assign(between=own["n"] - own["good"] - own["bad"])
        return [{**row, "same": row[row["grade"]]} for row in records(counts)]

    def maxima(self, variant: str, metrics: Sequence[str]) -> dict[str, float] | None:
        """The largest value of each metric in runs that learned; None unless all have one."""
        cells = self._tables["cells"]
        rows = cells[(cells["variant"] == variant) & (cells["outcome"] == "learned")]
        found = rows[list(metrics)].astype(float).max()
        return None if found.isna().any() else found.to_dict()


def name_score(score: Score) -> str:
    """A score's label with its unit, if it has one."""
    return f"{score.label} ({score.unit})" if score.unit else score.label


class VerdictsPresenter:
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
        self._tests = records(add_lines(claims))

    def named(self, verdict: str) -> list[Record]:
        """The claims with that verdict."""
        return [row for row in self.rows if row["verdict"] == verdict]

    def counts(self) -> dict[str, int]:
        """How many claims have each verdict."""
        return {verdict: len(self.named(verdict)) for verdict in self.order}

    def tests_of(self, claim: str, *, made: bool = False) -> list[Record]:
        """The rows of the table of claims that belong to one claim: all, or of tests made alone."""
        own = (test for test in self._tests if test["claim"] == claim)
        return [test for test in own if not made or test["verdict"] != NOT_MEASURED]

    def deciding(self, row: Mapping[str, Any]) -> Record | None:
        """The first test that gave a claim its verdict; None if none was made."""
        made = self.tests_of(row["claim"], made=True)
        return next((t for t in made if t["decides"] and t["verdict"] == row["verdict"]), None)

    def gaps_of(self, claim: str) -> str:
        """Why the tests of one claim that could not be made were not; empty if all were."""
        tests = (t for t in self.tests_of(claim) if t["decides"] and t["verdict"] == NOT_MEASURED)
        return "; ".join(dict.fromkeys(test["reason"] for test in tests))

    def of_rule(self, kind: str) -> list[Record]:
        """The tests of one rule that were made, and decide."""
        made = itertools.chain(*(self.tests_of(row["claim"], made=True) for row in self.rows))
        return [test for test in made if test["test"] == kind and test["decides"]]

    def scales_of(self, claim: str) -> list[str]:
        """How the tests of one claim differ from the published scale, where they do."""
        told = (test["scale"] for test in self.tests_of(claim, made=True))
        # A test over several studies has the scale of each.
        scales = (scale.split("; ") for scale in told if isinstance(scale, str))
        return [scale for scale in dict.fromkeys(itertools.chain(*scales)) if scale]

    @cached_property
    def letters(self) -> dict[str, str]:
        """A letter for each way in which tests differ in scale from what was published."""
        scales = itertools.chain(*(self.scales_of(row["claim"]) for row in self.rows))
        words = (itertools.product(ascii_uppercase, repeat=n) for n in itertools.count(1))
        names = map("".join, itertools.chain.from_iterable(words))
        return dict(zip(dict.fromkeys(scales), names, strict=False))

    def scale_letters(self, claim: str) -> str:
        """Those of one claim."""
        return ", ".join(self.letters[scale] for scale in self.scales_of(claim))

    def controlled_by(self, study: str) -> list[Record]:
        """The claims whose tests were made again in a study, with `reproduced_in`: its studies.

        None where too few of the tests were made to say so.
        """
        rows = [row for row in self.rows if row["control_study"] == study]
        return [{**row, "reproduced_in": _reproduced_in(row)} for row in rows]

    @property
    def tests(self) -> int:
        """How many tests were made."""
        return sum(test["verdict"] != NOT_MEASURED for test in self._tests)

    @property
    def tests_with_interval(self) -> int:
        """How many of them rest on an interval."""
        return sum(not math.isnan(test["confidence"]) for test in self._tests)

    @property
    def expected_by_chance(self) -> float:
        """How many of those would come out wrong by chance alone, were all claims true."""
        return self.tests_with_interval * (1 - CONFIDENCE)


class ReferencePresenter:
    """What a template may ask about the kept result: nothing, where there is none.

    `folder`: that result's, or None; `link`: how reports here lead to it.
    """

    def __init__(self, folder: Path | None, link: str = "") -> None:
        self.link = link
        self.pages: set[str] = set()
        self.verdicts: VerdictsPresenter | None = None
        if folder and (folder / "tables" / "verdicts.csv").is_file():
            tables = (read_table(folder / "tables" / f"{name}.csv") for name in VERDICTS_AND_TESTS)
            self.pages = {file.stem for file in (folder / "studies").glob("*.md")}
            self.verdicts = VerdictsPresenter(*tables, self.pages)

    def verdict(self, claim: str) -> str:
        """The verdict on a claim, linked to its tests; empty if there is none."""
        row = next((row for row in self._made if row["claim"] == claim), None)
        if row is None:
            return ""
        text = f"{row['verdict']}{', ' + row['qualifier'] if row['qualifier'] else ''}"
        page = f"studies/{row['page']}.md#{claim}" if row["page"] else "RESULTS.md"
        return f"[{text}]({self.link}/{page})"

    def page(self, study: str) -> str:
        """The link to a study's page; empty if it has none."""
        return f"{self.link}/studies/{study}.md" if study in self.pages else ""

    @property
    def _made(self) -> list[Record]:
        """The verdicts that rest on a test."""
        rows = self.verdicts.rows if self.verdicts else []
        return [row for row in rows if row["verdict"] != NOT_MEASURED]


def _reproduced_in(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The studies in which a claim with a control is reproduced; None if not all was tested."""
    if NOT_MEASURED in (row["verdict"], row["control"]) or "in part" in row["qualifier"]:
        return None
    verdicts = {row["studies"]: row["verdict"], row["control_study"]: row["control"]}
    return tuple(study for study, verdict in verdicts.items() if verdict == REPRODUCED)


def format_range(row: Mapping[str, Any]) -> str:
    """A published number, or the ends of a published range."""
    low, high = row["published"], row["published_high"]
    return f"{number(low, 4)} to {number(high, 4)}" if low < high else number(low, 4)
