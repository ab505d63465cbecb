"""What decides, recipe or platform? Trajectories side by side, and shares of variance.

Definitions: docs/definitions.md, "Attribution".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

    A row per depth × variant that two recipes share at the same sizes, in at least two places.
    The loss is that of the last step that all runs have. Main effects of the balanced design; the
    rest, interactions, is `other`. Left out are cells with a run that is not finite, and
    those with batches of several sizes, which would count as the recipe's doing.
    """
    rows = []
    for studies in _differing_in_recipe(config):
        recipes = {name: config.studies[name].recipe_name for name in studies}
        chosen = steps[steps["study"].isin(studies)]
        for (depth, variant), group in chosen.groupby(["depth", "variant"], sort=False):
            sizes = {config.studies[name].batch_size_at(depth) for name in group["study"].unique()}
            if len(sizes) > 1:
                continue
            last = int(group.groupby(["study", "seed", *PLACE])["step"].max().min())
            cell = group[group["step"] == last].assign(
                recipe=lambda g, recipes=recipes: g["study"].map(recipes),
                place=lambda g: g[PLACE].agg(" ".join, axis=1),
                y=lambda g: np.log10(g["loss"]),
            )
            shares = variance_shares(cell)
            if shares:
                rows.append({"depth": depth, "variant": variant, "step": last, **shares})
    return pd.DataFrame(rows, columns=["depth", "variant", "step", "runs", "sd", *FACTORS, "other"])


def _differing_in_recipe(config: Config) -> list[list[str]]:
    """Names of studies that agree in all sizes and the optimiser, but have several recipes."""
    groups: dict[Any, list[str]] = {}
    for name, study in config.studies.items():
        groups.setdefault((study.task, study.model, study.optimizer), []).append(name)
    return [g for g in groups.values() if len({config.studies[n].recipe_name for n in g}) > 1]


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
