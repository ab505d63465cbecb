"""What decides, recipe or platform? Trajectories side by side, and shares of variance.

Definitions: docs/definitions.md, "Attribution".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fathom.analysis.places import PLACE
from fathom.analysis.tables import CELL, interval, read_table, save_tables
from fathom.config import Config

APART = 1e-3
"""Relative difference of two losses from which trajectories count as apart."""

FACTORS = ("recipe", "place", "seed")

DECIMALS = 9
"""Of shares: one that is all but zero is made of logarithms that are all but equal, and has no
significant digit that is the same on every processor."""


def write_attribution(config: Config, folder: Path) -> None:
    """Write trajectories.csv, variance.csv and variance_summary.csv beside the table of steps."""
    steps = read_table(folder / "steps.csv.gz")
    variance = variance_table(config, steps)
    tables = {
        "trajectories.csv": trajectories_table(steps),
        "variance.csv": variance,
        "variance_summary.csv": variance_summary(variance),
    }
    save_tables(tables, folder)


def trajectories_table(steps: pd.DataFrame) -> pd.DataFrame:
    """A row per study × depth × variant and pair of places: when their losses part, and how far.

    `first_step_apart` is the earliest over seeds at which the relative difference passes APART;
    `largest_difference` the largest at any step and seed; `final_difference` the largest at the
    last step, `seed_spread` the standard deviation over seeds of the final loss at the second
    place, relative to its mean. Steps at which a side is not finite count as apart, with an
    infinite difference, unless both are.
    """
    rows = []
    for cell, group in steps.groupby(CELL, sort=False):
        places = list(group[PLACE].drop_duplicates().itertuples(index=False))
        for a, b in itertools.combinations(places, 2):
            left, right = (_losses(group, place) for place in (a, b))
            seeds = left.columns.intersection(right.columns)
            x, y = left[seeds], right[seeds]
            difference = ((x - y).abs() / y.abs()).where(x.notna() & y.notna(), np.inf)
            difference = difference.where(x.notna() | y.notna(), 0.0)
            apart = difference > APART
            first = apart.idxmax()[apart.any()]
            final = interval(y.iloc[-1])
            rows.append(
                {
                    **dict(zip(CELL, cell, strict=True)),
                    **{f"{name}_a": value for name, value in zip(PLACE, a, strict=True)},
                    **{f"{name}_b": value for name, value in zip(PLACE, b, strict=True)},
                    "seeds": len(seeds),
                    "first_step_apart": int(first.min()) if len(first) else None,
                    "largest_difference": float(difference.max().max()),
                    "final_difference": float(difference.iloc[-1].max()),
                    "seed_spread": final["sd"] / final["mean"] if final["n"] else math.nan,
                }
            )
    columns = [*CELL, *(f"{name}_{side}" for side in "ab" for name in PLACE), "seeds"]
    columns += ["first_step_apart", "largest_difference", "final_difference", "seed_spread"]
    table = pd.DataFrame(rows, columns=columns)
    table["within_seed_spread"] = table["final_difference"] <= table["seed_spread"]
    return table


def _losses(group: pd.DataFrame, place: Sequence[str]) -> pd.DataFrame:
    """Loss by step (rows) and seed (columns) at one place."""
    here = group[(group[PLACE] == list(place)).all(axis=1)]
    table = here.pivot_table(index="step", columns="seed", values="loss", dropna=False)
    # An infinity is as far from a number as NaN is, and no nearer to another infinity.
    return table.replace([np.inf, -np.inf], np.nan)


def variance_table(config: Config, steps: pd.DataFrame) -> pd.DataFrame:
    """Shares of the variance of log10 loss that recipe, place and seed explain.

    A row per depth × variant of which two studies form a design. The loss is that of the last step
    that all runs have. Main effects of the balanced design; the rest, interactions, is `other`.
    Left out are cells that lack a run, and those with a run that is not finite.
    """
    rows = []
    for (depth, variant), pair in designs(config, steps).items():
        group = _runs_of(steps, depth, variant, pair)
        last = int(group.groupby(["study", "seed", *PLACE])["step"].max().min())
        cell = group[group["step"] == last].assign(
            recipe=lambda g: g["study"],  # the two have a recipe each
            place=lambda g: g[PLACE].agg(" ".join, axis=1),
            y=lambda g: np.log10(g["loss"]),
        )
        shares = variance_shares(cell)
        if shares:
            rows.append({"depth": depth, "variant": variant, "step": last, **shares})
    return pd.DataFrame(rows, columns=["depth", "variant", "step", "runs", "sd", *FACTORS, "other"])


def designs(config: Config, runs: pd.DataFrame) -> dict[tuple[int, str], tuple[str, str]]:
    """By depth and variant, the two studies that form a design: recipe × place × seed.

    They differ in nothing but recipe and steps, and share two places. Of several such pairs it is
    the one whose later study comes first in the config, whatever their runs came to: a study that
    is added at the end changes no other design. `runs` has the columns of CELL and PLACE.
    """
    there = runs[[*CELL, *PLACE]].drop_duplicates()
    places = {
        cell: set(group[PLACE].itertuples(index=False, name=None))
        for cell, group in there.groupby(CELL, sort=False)
    }
    found: dict[tuple[int, str], tuple[str, str]] = {}
    names = list(config.studies)
    for a, b in ((earlier, later) for i, later in enumerate(names) for earlier in names[:i]):
        for study, depth, variant in places:
            if study != a or (b, depth, variant) not in places:
                continue
            shared = places[a, depth, variant] & places[b, depth, variant]
            if len(shared) > 1 and _differ_in_recipe_alone(config, a, b, depth, variant):
                found.setdefault((depth, variant), (a, b))
    return found


def _differ_in_recipe_alone(config: Config, a: str, b: str, depth: int, variant: str) -> bool:
    """Whether the runs of two studies, at one depth of one variant, differ by the studies' recipes.

    A variant with a recipe or an optimiser of its own is not trained by its study's.
    """
    pair = [config.studies[name] for name in (a, b)]
    one, other = (
        (
            study.task,
            study.model,
            study.streams,
            study.optimizer,
            study.connections.get(variant),
            study.batch_size_at(depth),
            study.batches_of(variant),
        )
        for study in pair
    )
    has_own = any(
        study.recipe_of(variant) != study.recipe_settings
        or study.optimizer_of(variant) != study.optimizer
        for study in pair
    )
    return one == other and not has_own and pair[0].recipe_settings != pair[1].recipe_settings


def _runs_of(table: pd.DataFrame, depth: int, variant: str, studies: Sequence[str]) -> pd.DataFrame:
    """The rows of some studies at one depth of one variant."""
    chosen = table["study"].isin(studies) & (table["variant"] == variant)
    return table[chosen & (table["depth"] == depth)]


def diverged_cells(config: Config, cells: pd.DataFrame, variance: pd.DataFrame) -> int:
    """How many depths × variants of the designs lack a row in `variance` and have a diverged run.

    `cells` has a row for each run that counts, with its outcome.
    """
    decomposed = set(zip(variance["depth"], variance["variant"], strict=True))
    return sum(
        bool((_runs_of(cells, *cell, pair)["outcome"] == "diverged").any())
        for cell, pair in designs(config, cells).items()
        if cell not in decomposed
    )


def variance_shares(cell: pd.DataFrame) -> dict[str, float] | None:
    """Shares of the total sum of squares of `y` by factor.

    None unless the design is balanced, all of `y` is finite, and there is any variance to share.
    """
    levels = [cell[factor].nunique() for factor in FACTORS]
    # Counted twice: a run that is there twice must not stand for one that is missing.
    runs = len(cell[list(FACTORS)].drop_duplicates())
    if min(levels) < 2 or not len(cell) == runs == math.prod(levels):
        return None
    if not np.isfinite(cell["y"]).all() or cell["y"].nunique() < 2:
        return None
    mean = cell["y"].mean()
    total = float(((cell["y"] - mean) ** 2).sum())
    shares = {
        factor: float(((cell.groupby(factor)["y"].transform("mean") - mean) ** 2).sum()) / total
        for factor in FACTORS
    }
    sd = math.sqrt(total / (len(cell) - 1))
    numbers = {"sd": sd, **shares, "other": 1 - sum(shares.values())}
    return {"runs": len(cell), **{name: round(value, DECIMALS) for name, value in numbers.items()}}


def variance_summary(variance: pd.DataFrame) -> pd.DataFrame:
    """A row per factor over all cells of the variance table; `decides` marks the answer.

    A factor decides if its median share is the largest and more than half.
    """
    shares = variance[[*FACTORS, "other"]]
    table = pd.DataFrame(
        {
            "factor": shares.columns,
            "median": shares.median().to_numpy(),
            "lowest": shares.min().to_numpy(),
            "highest": shares.max().to_numpy(),
            "cells": len(shares),
        }
    )
    table["decides"] = (table["median"] > 0.5) & (table["median"] == table["median"].max())
    return table
