"""Effect of the processor on a result: cells of the kept result, retrained on other processors.

`benchmarks/processors.py` trains them. The table is in docs/trust.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from fathom import tasks
from fathom.analysis.effects import PERCENT, in_unit, unit_of
from fathom.analysis.statistics import differences, to_scale
from fathom.analysis.tables import GROUP, read_table, scores_of
from fathom.config import load_config
from fathom.report.formatting import count_layers, markdown_table, plain_number
from fathom.report.readme import CONFIG, REFERENCE

FILE = Path("benchmarks/processors.csv")

COLUMNS = ("key", "cpu", "framework_version", "outcome", "score")
"""Columns of FILE: a cell, processor and framework of its retraining, outcome and score there."""


def moved(
    again: pd.DataFrame,
    cells: pd.DataFrame,
    summary: pd.DataFrame,
    units: Mapping[str, str],
    made_on: Mapping[str, set[str]],
) -> pd.DataFrame:
    """Distance of retrained from kept scores, by study, depth, variant, platform and processor.

    `again`: rows of COLUMNS; `cells` and `summary`: the tables of the kept result; `units`: unit of
    effects on the score, by study; `made_on`: processors that made the runs, by platform. Platforms
    made only on the retraining processor are left out. In this unit, `moved` is the largest
    distance over `seeds`, `mean` the distance of the means (both infinite if a run diverged on one
    side only), `half` the longer side of the 95 % interval over the seeds of the kept result.
    """
    both = again.merge(cells, on="key", suffixes=("_again", ""))
    rows = []
    for group, runs in both.groupby([*GROUP, "cpu"], sort=False):
        place, cpu = dict(zip(GROUP, group[:-1], strict=True)), group[-1]
        if made_on[place["platform"]] == {cpu}:
            continue
        kept = summary[(summary[GROUP] == pd.Series(place)).all(axis=1)].iloc[0]
        unit = units[place["study"]]
        ratio = unit == PERCENT
        apart = differences(runs["score_again"], runs["score"], ratio=ratio)
        ends = to_scale(kept[["score_mean", "score_low", "score_high"]], ratio=ratio)
        half = max(ends["score_high"] - ends["score_mean"], ends["score_mean"] - ends["score_low"])
        lost = runs["score_again"].isna() != runs["score"].isna()
        far = {"moved": apart.abs().max(), "mean": abs(apart.mean())}
        far = dict.fromkeys(far, math.inf) if lost.any() else far
        sizes = {name: in_unit(size, unit) for name, size in (far | {"half": half}).items()}
        rows.append({**place, "cpu": cpu, "seeds": len(runs), "unit": unit, **sizes})
    return pd.DataFrame(rows)


def processors_table() -> str:
    """The table of docs/trust.md, from the kept result and FILE."""
    config = load_config(CONFIG)
    cells, summary, platforms = (
        read_table(REFERENCE / "tables" / f"{name}.csv")
        for name in ("cells", "summary", "platforms")
    )
    units = {name: unit_of(score) for name, score in scores_of(config).items()}
    on = platforms["cpu"].where(platforms["kind"] == "cpu", platforms["device"])
    made_on = on.groupby(platforms["platform"]).agg(set)
    again = pd.concat([read_table(FILE), _on_gpus(cells, platforms)])
    rows = moved(again, cells, summary, units, made_on)
    head = ("network", "study", "trained again on", "seeds", "largest change of a run",
            "change of the mean", "95 % interval over seeds")  # fmt: skip
    lines = []
    for row in rows.dropna(subset=["half"]).to_dict("records"):  # else every run diverged
        unit = tasks.presentation(config.studies[row["study"]].task).depth_unit
        label = config.labels.get(row["variant"], row["variant"])
        network = f"{label}, {count_layers(row['depth'], unit)}"
        page = f"[`{row['study']}`](../{REFERENCE}/studies/{row['study']}.md)"
        apart, mean, half = (
            f"{plain_number(row[name], 2)} {row['unit']}" for name in ("moved", "mean", "half")
        )
        device = row["cpu"].partition(",")[0]
        lines.append((network, page, device, str(row["seeds"]), apart, mean, f"± {half}"))
    where = ", ".join(f"`{name}`" for name in sorted(set(rows["platform"])))
    table = markdown_table(head, lines, numbers=4)
    left = ", ".join(f"`{name}`" for name in config.studies if name not in set(rows["study"]))
    others = f"\nNo network of these studies was trained again: {left}.\n" if left else ""
    return f"Runs from {where} are compared with those from other machines:\n\n{table}{others}"


def _on_gpus(cells: pd.DataFrame, platforms: pd.DataFrame) -> pd.DataFrame:
    """Kept runs on GPUs as rows of COLUMNS, to compare with kept runs on CPUs."""
    gpus = platforms[platforms["kind"] != "cpu"].drop_duplicates("platform")
    there = cells.merge(gpus[["platform", "device", "framework_version"]], on="platform")
    return there.rename(columns={"device": "cpu"})[[*COLUMNS]]
