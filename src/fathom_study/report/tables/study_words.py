"""Presenters: rows of tables in the form that templates need. Words are in the templates."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from fathom_study import tasks
from fathom_study.analysis.effective_depth import AT, BELOW, BEYOND, UNKNOWN
from fathom_study.analysis.pairs import AT_BEST_RATE
from fathom_study.analysis.platforms import Platform
from fathom_study.analysis.significance import UNDECIDED
from fathom_study.config import Study, common_depth
from fathom_study.metrics.steps import SHARE
from fathom_study.report.figures import Declaration
from fathom_study.report.tables.effect_words import size_of
from fathom_study.report.tables.formatting import count_layers, largest, with_interval
from fathom_study.report.tables.records import Record, format_range, records

ABSENT = "–"
"""The text for a missing number."""

CEILING = 0.99  # share of the way from chance to perfect that leaves no room to differ

SCORE = "score"
"""Metric name of every task's score in the columns of tables."""


MIXING = tasks.Table(
    "What H_res learned",
    ("H_res_distance_final", "H_res_moved"),
    "A scheme may start far from the identity; only the movement of H_res is learned.",
)
LAYERS = tasks.Table("Layers that matter", ("layers_that_matter",))
"""Metrics of studies whose schemes mix streams, and of studies with `leave_out_blocks`."""


class StudyPresenter:
    """The facts about one study that templates use.

    `figures`: those that the workflow draws on every platform; `left_out`: by label of other
    figures, why they would show nothing. `plain`: label of the plain network.
    """

    def __init__(
        self,
        name: str,
        study: Study,
        tables: Mapping[str, pd.DataFrame],
        figures: Sequence[Declaration] = (),
        left_out: Mapping[str, str] = MappingProxyType({}),
        plain: str | None = None,
    ) -> None:
        self.name = name
        self.study = study
        self.figures = figures
        self.left_out = left_out
        self.plain = plain
        self.task = tasks.presentation(study.task)
        self.template = f"parts/{study.part}.j2" if study.part else ""
        """Template of the study's own part of the report; empty if it has none."""
        self.score = tasks.score_of(study.task, study.score)
        unit = f" ({self.score.unit})" if self.score.unit else ""
        self.score_name = f"{self.score.label}{unit}"
        """The score with its unit, as in 'bits per character'."""
        self._tables = {
            table: records(rows[rows["study"] == name])
            for table, rows in tables.items()
            if "study" in rows
        }

        summary = self._tables["summary"]
        self.is_measured = bool(summary)
        """Whether any run of the study counts."""
        measured = Counter(row["platform"] for row in summary)
        self.platforms: list[Platform] = [platform for platform, _ in measured.most_common()]
        """Platforms of the study, most results first; reports show figures of the first."""
        backends = {platform.backend for platform in self.platforms}
        self.backends_not_run = [backend for backend in study.backends if backend not in backends]
        """Backends of the study without a run that counts."""
        variants = {row["variant"] for row in summary}
        self.variants = [variant for variant in study.compared if variant in variants]
        """The variants measured, in the order of the config."""
        self.depths: list[int] = sorted({row["depth"] for row in summary})
        """The depths measured, in ascending order."""
        self.seeds = max((row["n"] for row in summary), default=0)
        """The largest number of seeds behind any value."""
        self.chance = summary[0]["score_chance"] if summary else math.nan
        """The score of a model that has learned nothing."""
        rows = {(row["depth"], row["variant"], row["platform"]): row for row in summary}
        keys = itertools.product(self.depths, self.variants, self.platforms)
        self.rows: dict[tuple[int, str, Platform], Record] = {k: rows[k] for k in keys if k in rows}
        """The summary by depth, variant and platform, in the order of the tables of a report."""

    # --- description ---

    @property
    def steps(self) -> str:
        """Optimiser steps of measured variants, as from `steps_of`; of all if none was measured."""
        return self.steps_of(self.variants or self.study.compared)

    def steps_of(self, variants: Collection[str]) -> str:
        """Optimiser steps of a run, as in '60', or '60 to 400' where variants differ."""
        steps = {self.study.of(variant).steps for variant in variants}
        return " to ".join(map(str, sorted({min(steps), max(steps)})))

    @property
    def scale(self) -> str:
        """Sizes and recipe, in the letters of docs/definitions."""
        model, batch, optimizer = self.study.model, self.study.batch_size, self.study.optimizer
        if isinstance(batch, dict):
            batch = " / ".join(f"{size} at {depth}L" for depth, size in batch.items())
        return (
            f"{self.task.sizes(model)}, S {self.study.streams}, B {batch}, "
            f"{self.study.steps} steps, lr {optimizer.lr:g} ({optimizer.schedule}), "
            f"decay {optimizer.weight_decay:g}"
        )

    @property
    def depth_label(self) -> str:
        """The unit of depth: 'layers', unless the task names another."""
        return f"{self.task.depth_unit}s"

    def count_layers(self, depth: int) -> str:
        """A depth in words: '8 layers', '16 time steps'."""
        return count_layers(depth, self.task.depth_unit)

    # --- values ---

    def row(self, depth: int, variant: str, platform: Platform) -> Record | None:
        """The summary of one group of seeds, or None if it was not measured."""
        return self.rows.get((depth, variant, platform))

    def format(self, row: Mapping[str, Any], metric: str) -> str:
        """A metric's mean and interval over seeds; ABSENT where the runs have no such metric.

        `row`: a row of the summary.
        """
        finite, *values = (row[f"{metric}_{part}"] for part in ("n", "mean", "low", "high"))
        if finite == 0 and not self._is_lost(row, metric):
            return ABSENT
        bounds = tasks.bounds_of(self.score.metric if metric == SCORE else metric)
        return with_interval(*values, finite, row["n"], bounds=bounds)

    def _is_lost(self, row: Mapping[str, Any], metric: str) -> bool:
        """Whether runs lack a finite value of a metric because they failed, not by design."""
        failed = row["diverged"] + row["at_chance"] > 0
        return failed and (metric == SCORE or tasks.run_metrics()[metric].always)

    def table_of(self, metric: str) -> str:
        """Name of the table with a metric's mean, in the same line as in the summary."""
        return "times_summary" if metric in tasks.times() else "summary"

    def has(self, metric: str) -> bool:
        """Whether any run has the metric, or lost it because it failed."""
        rows = self.rows.values()
        return any(row[f"{metric}_n"] for row in rows) or all(
            self._is_lost(row, metric) for row in rows
        )

    def constant(self, metric: str, variants: Collection[str] = ()) -> float | None:
        """The value that all runs with the metric share; None if they differ.

        `variants`: limits the runs to these; empty means all. None also for a nonzero value that
        only one group of seeds has.
        """
        own = variants or self.variants
        rows = [r for r in self.rows.values() if r["variant"] in own and r[f"{metric}_n"]]
        ends = {row[f"{metric}_{part}"] for row in rows for part in ("mean", "low", "high")}
        ends = {end for end in ends if not math.isnan(end)}
        if len(ends) != 1 or any(row[f"{metric}_n"] < row["n"] for row in rows):
            return None
        (value,) = ends
        return value if value == 0 or len(rows) > 1 else None

    def metric_table(self, metric: str) -> dict[str, Any]:
        """A metric as a table: `rows` of depth, platform and `cells`, one for each of `columns`.

        Columns and rows without values are left out. `zeros`: variants without a column, since all
        of their runs are zero. A cell is a row of the summary, None if it was not run, or '' if
        the study has no such cell.
        """
        shown = [key for key, row in self.rows.items() if self.format(row, metric) != ABSENT]
        zeros = [v for v in self.variants if self.constant(metric, (v,)) == 0]
        there = {variant for _, variant, _ in shown}.difference(zeros)
        columns = [variant for variant in self.variants if variant in there]
        places = dict.fromkeys((depth, at) for depth, variant, at in shown if variant in there)
        planned = {(row["depth"], row["variant"]) for row in self._tables["cells"]}
        rows = [
            {
                "depth": depth,
                "platform": platform,
                "cells": [
                    self.row(depth, variant, platform) if (depth, variant) in planned else ""
                    for variant in columns
                ],
            }
            for depth, platform in itertools.product(self.depths, self.platforms)
            if (depth, platform) in places
        ]
        return {"columns": columns, "rows": rows, "zeros": zeros}

    def evidence(self) -> Iterator[tuple[tasks.Table, list[str]]]:
        """Yield tables of the task and of all tasks, each with its metrics that runs have."""
        for table in (*self.task.tables, MIXING, LAYERS):
            if metrics := [name for name in table.metrics if self.has(name)]:
                yield table, metrics

    @property
    def compared(self) -> list[str]:
        """Metrics in COMPARISON.md besides the score."""
        return [m for m in self.task.compared if m != self.score.metric and self.has(m)]

    # --- outcomes of runs ---

    def failed(self, variant: str, depth: int) -> tuple[int, int]:
        """(runs that did not learn, all runs) of a variant on all platforms."""
        rows = self.rows_of(variant, depth)
        return sum(r["diverged"] + r["at_chance"] for r in rows), sum(r["n"] for r in rows)

    def failures(self) -> list[Record]:
        """Groups of seeds in which a run did not learn."""
        return [row for row in self.rows.values() if row["diverged"] or row["at_chance"]]

    @property
    def no_power(self) -> str:
        """Why variants cannot be ranked: 'at chance' (none learned), 'at the ceiling', or ''."""
        rows = list(self.rows.values())
        if len({row["variant"] for row in rows}) < 2:
            return ""
        if not any(row["learned"] for row in rows):
            return "at chance"
        ways = [self.score.progress(row["score_mean"], row["score_chance"]) for row in rows]
        is_share = tasks.bounds_of(self.score.metric) == SHARE
        return "at the ceiling" if is_share and all(way >= CEILING for way in ways) else ""

    def limit(self, variant: str) -> tuple[int | None, int | None]:
        """(greatest depth up to which every run learned, first depth at which one did not).

        None if there is no such depth.
        """
        deepest = None
        for depth in self.depths_of(variant):
            if self.failed(variant, depth)[0]:
                return deepest, depth
            deepest = depth
        return deepest, None

    def depths_of(self, variant: str) -> list[int]:
        """The depths at which a variant was measured, in ascending order."""
        return sorted({depth for depth, name, _ in self.rows if name == variant})

    def rows_of(self, variant: str, depth: int) -> list[Record]:
        """The summary of a variant at a depth, on every platform."""
        return [row for (d, v, _), row in self.rows.items() if (d, v) == (depth, variant)]

    def best(self) -> list[Record]:
        """Summary rows of the best mean score by depth and platform, without diverged variants.

        Each also has `variants`, their number; `lost`, the number of all other variants; `oracle`,
        the score of the task's oracle or None; and `beaten`, whether the whole interval is better
        than the oracle. A depth with a single variant, such as a shallow control, is skipped if
        another depth has several.
        """
        best = []
        run = Counter((depth, platform) for depth, _, platform in self.rows)
        fewest = min(2, max(run.values(), default=0))
        sign = 1 if self.score.better == "lower" else -1
        learned = [r for r in self.rows.values() if r["score_n"] and not r["diverged"]]
        for depth, platform in itertools.product(self.depths, self.platforms):
            rows = [r for r in learned if (r["depth"], r["platform"]) == (depth, platform)]
            if rows and run[depth, platform] >= fewest:
                row = min(rows, key=lambda row: sign * row["score_mean"])
                ends = [sign * row[f"score_{part}"] for part in ("mean", "low", "high")]
                level = self._oracle_level(row)
                beaten = level is not None and not any(end >= sign * level for end in ends)
                counts = {"variants": len(rows), "lost": run[depth, platform] - len(rows)}
                best.append({**row, **counts, "oracle": level, "beaten": beaten})
        return best

    def side_by_side(self) -> list[Record]:
        """Ranking of variants at one depth, best mean score first.

        Rows of the summary at the depth that most variants have, on the first platform. `times`:
        training time relative to the plain network's, by `with_times_of_networks`; NaN if unknown.
        """
        rows = [row for row in self.rows.values() if row["platform"] == self.platforms[0]]
        depth = common_depth(row["depth"] for row in rows)
        at_depth = {row["variant"]: row for row in rows if row["depth"] == depth}
        unit = self._seconds(at_depth.get(self.plain))
        sign = 1 if self.score.better == "lower" else -1
        last = math.inf  # for a variant without a scored run
        return [
            {**row, "times": self._seconds(row) / unit}
            for row in sorted(
                at_depth.values(),
                key=lambda row: sign * row["score_mean"] if row["score_n"] else last,
            )
        ]

    def _oracle_level(self, row: Record) -> float | None:
        """The oracle's level in a row of the summary; None without one, or if it is perfect."""
        level = self.score.oracle.level if self.score.oracle else None
        if isinstance(level, str):
            return row[f"{level}_mean"] if row[f"{level}_n"] else None
        return None if level == self.score.perfect else level

    # --- effects ---

    @property
    def effect_metrics(self) -> list[str]:
        """Metrics with effects; only the score if the study has no contrasts of its own."""
        metrics = dict.fromkeys(row["metric"] for row in self._tables["effects"])
        return [m for m in metrics if m == SCORE or self.study.contrasts]

    def effects(self, metric: str, platform: Platform | None = None) -> dict[str, list[Record]]:
        """Effects on a metric by question, on one platform or on all."""
        by_question: dict[str, list[Record]] = {}
        for row in self._rows("effects", metric=metric):
            if platform in (None, row["platform"]):
                by_question.setdefault(row["question"], []).append(row)
        return by_question

    def without_effect(self) -> Iterator[tuple[tuple[str, str], list[tuple[str, int, int]]]]:
        """(pair, why) for each pair of a contrast whose scores are compared nowhere.

        why: (variant, diverged runs, all runs) of each side that has none, or has lost some.
        """
        known = {(row["variant"], row["against"]) for row in self._rows("effects", metric="score")}
        asked = ((ours, theirs) for one in self.study.contrasts for ours, theirs in one.pairs)
        for pair in dict.fromkeys(asked):
            if pair in known:
                continue
            sides = []
            for name in pair:
                rows = [row for row in self.rows.values() if row["variant"] == name]
                lost, runs = (sum(row[key] for row in rows) for key in ("diverged", "n"))
                if lost or not runs:
                    sides.append((name, lost, runs))
            yield pair, sides

    def comparisons(
        self,
        variants: Collection[str] = (),
        others: Collection[str] = (),
        question: str = "",
        depth: int | None = None,
    ) -> list[Record]:
        """Effects on the score at one depth, on the platform of most pairs, the first on a tie.

        Of each of `variants` against each of `others` at one rate, or of the pairs of a contrast's
        `question`. `depth` None: the depth of most pairs, the deepest on a tie. The largest effect
        of each verdict comes first, undecided ones after others.
        """
        rows = [
            row
            for row in self._rows("effects", metric=SCORE)
            if depth in (None, row["depth"])
            and (
                row["question"] == question
                if question
                else row["question"] != AT_BEST_RATE
                and row["variant"] in variants
                and row["against"] in others
            )
        ]
        platforms = Counter(row["platform"] for row in rows).most_common(1)
        rows = [row for row in rows if row["platform"] == platforms[0][0]]
        common = common_depth(row["depth"] for row in rows)
        rows = [row for row in rows if row["depth"] == common]
        rows.sort(key=lambda row: (row["verdict"] == UNDECIDED, -size_of(row)))
        firsts = {row["verdict"]: row for row in reversed(rows)}
        return sorted(rows, key=lambda row: row is not firsts[row["verdict"]])

    def _seconds(self, row: Record | None) -> float:
        """Seconds of the fastest training of a summary row; NaN if unknown."""
        if row is None:
            return math.nan
        per_step: float = row.get("seconds_per_step_fastest", math.nan)
        return per_step * self.study.of(row["variant"]).steps

    def differences(self) -> dict[tuple[str, str], list[str]]:
        """The settings in which the two variants of each contrast differ."""
        rows = itertools.chain(*self.effects(SCORE).values())
        return {(row["variant"], row["against"]): row["differs_in"].split(", ") for row in rows}

    # --- effective depth ---

    def effective_depths(self) -> dict[str, Any] | None:
        """Effective depths as a table: `rows` of depth, platform and `cells`, one for each column.

        A cell is a row of effective_depth.csv, or None. `plain`: by platform, one such row, for its
        columns on plain networks. Returns None for a study without effective depths.
        """
        by_place = {
            (r["depth"], r["platform"], r["variant"]): r for r in self._tables["effective_depth"]
        }
        columns = [v for v in self.variants if any(variant == v for *_, variant in by_place)]
        rows = [
            {"depth": depth, "platform": platform, "cells": cells}
            for depth, platform in itertools.product(self.depths, self.platforms)
            if any(cells := [by_place.get((depth, platform, variant)) for variant in columns])
        ]
        plain = {row["platform"]: row for row in by_place.values()}
        return {"columns": columns, "rows": rows, "plain": plain} if rows else None

    def deepest_reach(self) -> list[Record]:
        """Rows of the deepest networks with the greatest and the least effective depth.

        On the first platform that has any; one row if there is only one variant.
        """
        table = self.effective_depths()
        if not table:
            return []
        platform = next(iter(table["plain"]))
        cells = [row["cells"] for row in table["rows"] if row["platform"] == platform][-1]
        order = (BELOW, AT, UNKNOWN, BEYOND)
        ranked = sorted(
            filter(None, cells),
            key=lambda row: (-order.index(row["answer"]), -row["effective_depth"]),
        )
        return [ranked[0], *ranked[1:][-1:]]

    def worth(self) -> list[Record]:
        """Rows of worth.csv, most steps saved first; rows without an answer last."""
        rows = self._tables["worth"]
        return sorted(rows, key=lambda row: (row["answer"] == "", -row["multiplier"]))

    def shows(self, drawn: Declaration, platform: Platform) -> bool:
        """Whether a figure of step multipliers has one on a platform; true for other figures."""
        if "worth" not in drawn.reads:
            return True
        rows = [row for row in self._rows("worth", platform=platform) if row["answer"]]
        return any(drawn.name != "answer" or row["cost"] > 0 for row in rows)

    # --- layers that matter ---

    def layers_that_matter(self) -> list[Record]:
        """Summary rows with the most and the fewest layers that matter, at one depth.

        The depth is the one with most measured variants, the deepest on a tie. On the first
        platform; one row if there is only one variant.
        """
        column = "layers_that_matter"
        rows = [
            row
            for row in self.rows.values()
            if row["platform"] == self.platforms[0] and row[f"{column}_n"]
        ]
        depth = common_depth(row["depth"] for row in rows)
        ranked = [row for row in rows if row["depth"] == depth]
        ranked = sorted(ranked, key=lambda row: -row[f"{column}_mean"])
        return [*ranked[:1], *ranked[1:][-1:]]

    # --- platforms side by side ---

    def _rows(self, table: str, **keys: Any) -> list[Record]:  # noqa: ANN401
        return [row for row in self._tables[table] if keys.items() <= row.items()]

    def pairs(self) -> Iterator[tuple[Platform, Platform, list[Record]]]:
        """Yield each pair of compared platforms, with its rows of the comparison table.

        Without the plain networks of ladders, which have no row in `rows`.
        """
        rows = [row for row in self._tables["comparison"] if row["variant"] in self.variants]
        for a, b in dict.fromkeys((row["platform_a"], row["platform_b"]) for row in rows):
            yield a, b, [row for row in rows if (row["platform_a"], row["platform_b"]) == (a, b)]

    def trajectories(self, a: Platform, b: Platform) -> list[Record]:
        """Rows of trajectories.csv for two platforms: how far their losses diverge."""
        return self._rows("trajectories", platform_a=a, platform_b=b)

    def agreements(self) -> Iterator[dict[str, Any]]:
        """Yield the agreement of each pair of platforms over all cells, in losses and final scores.

        `known`: number of cells with a known spread over seeds. `others`: those of them whose
        final scores differ by more than that spread.
        """
        for a, b, rows in self.pairs():
            paths = self.trajectories(a, b)
            steps = [p["first_step_apart"] for p in paths if not math.isnan(p["first_step_apart"])]
            known = [path for path in paths if not math.isnan(path["seed_spread"])]
            others = [path for path in known if not path["within_seed_spread"]]
            yield {
                "platforms": [a, b],
                "first": largest(rows, "loss_first_difference"),
                "cells": len(paths),
                "apart": len(steps),
                "earliest": min(steps, default=math.nan),
                "one_sided": sum(path["final_difference"] == math.inf for path in paths),
                "largest": largest(paths, "final_difference"),
                "known": len(known),
                "within": len(known) - len(others),
                "others": others,
            }

    # --- beside the sources ---

    def published(self) -> Iterator[tuple[str, str, list[Record]]]:
        """(source, difference of our scale, rows of published values with ours by platform).

        Ours has `text` and `deviates`: whether it deviates at the published scale.
        """
        for source in dict.fromkeys(row["source"] for row in self._tables["published"]):
            given = self._rows("published", source=source)
            scales = dict.fromkeys(row["scale"] for row in given)
            scale = "; ".join(text for text in scales if isinstance(text, str))
            cells: dict[tuple[Any, ...], Record] = {}
            for row in given:
                new = {**row, "published": format_range(row), "ours": {}}
                cell = cells.setdefault((row["metric"], row["depth"], row["variant"]), new)
                if row["platform"]:
                    cell["ours"][row["platform"]] = {
                        "text": with_interval(row["mean"], row["low"], row["high"]),
                        "deviates": not scale and row["deviates"] is True,
                    }
            yield source, scale, list(cells.values())

    def published_values(self, depth: int, variant: str, metric: str) -> list[str]:
        """The published values of one cell, one per source."""
        rows = self._rows("published", depth=depth, variant=variant, metric=metric)
        return list({row["source"]: format_range(row) for row in rows}.values())

    @property
    def thresholds(self) -> list[Record]:
        """Rows, one per metric of this study, with a source's good and bad ranges."""
        return list({row["metric"]: row for row in self._tables["thresholds"]}.values())

    def grades(self, depth: int, variant: str, platform: Platform, metric: str) -> list[Record]:
        """A value's grades by sources' thresholds: `grade`, shared by `same` of the `n` runs."""
        keys = {"depth": depth, "variant": variant, "platform": platform, "metric": metric}
        rows = self._rows("thresholds", **keys)
        counts = [{**row, "between": row["n"] - row["good"] - row["bad"]} for row in rows]
        return [{**row, "same": row[row["grade"]]} for row in counts]

    def maxima(self, variant: str, metrics: Sequence[str]) -> dict[str, float] | None:
        """The largest value of each metric in runs that learned; None unless all have one."""
        rows = self._rows("cells", variant=variant, outcome="learned")
        maxima = {metric: largest(rows, metric) for metric in metrics}
        return None if any(map(math.isnan, maxima.values())) else maxima
