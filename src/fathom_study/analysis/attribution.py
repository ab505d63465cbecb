"""Attribution: whether recipe or platform decides, by trajectories and shares of variance.

Definitions: docs/definitions/statistics.md.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import pandas as pd

from fathom_study.analysis.statistics import is_ratio, t_interval
from fathom_study.analysis.tables import CELL, GROUP, platform_pairs, select
from fathom_study.config import Config
from fathom_study.spec import Cell

APART = 1e-3
"""Relative difference of two losses from which trajectories count as apart."""

FACTORS = ("recipe", "platform", "seed")

SHARES = {name: f"{name}_share" for name in (*FACTORS, "other")}
"""The columns of shares, by factor; `other` is interactions."""

LOSSES = ("loss_low", "loss_high")
"""The columns of the losses of the two recipes, geometric means over runs."""

DECIMALS = 9
"""Decimals of shares. A share near zero comes from nearly equal logarithms: its significant digits
differ between processors."""


Numbers = TypeVar("Numbers", pd.Series, pd.DataFrame)


def trajectories_table(cells: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """A row per study × depth × variant and pair of platforms: differences of losses and scores.

    `first_step_apart` is the earliest over seeds. `largest_difference`, of losses, and
    `final_difference`, of scores, are the largest over seeds, and infinite if one side alone is not
    finite. `final_difference` and `seed_spread` are NaN for runs without a score. Definitions:
    docs/definitions/statistics.md. `cells`: the rows that count.
    """
    rows = []
    runs = {key: group.set_index("seed") for key, group in cells.groupby(GROUP)}
    for row, *sides in platform_pairs(steps):
        left, right = map(_losses, sides)
        difference = _difference(*left.align(right, "inner", axis=1), relative=True)
        apart = difference > APART
        first = apart.idxmax()[apart.any()]
        row["seeds"] = difference.shape[1]
        row["first_step_apart"] = int(first.min()) if len(first) else None
        row["largest_difference"] = float(difference.max().max())
        cell = [row[name] for name in CELL]
        of_platforms = (runs[*cell, row[side]] for side in ("platform_a", "platform_b"))
        rows.append(row | _compare_scores(*of_platforms))
    columns = [*CELL, "platform_a", "platform_b", "seeds"]
    columns += ["first_step_apart", "largest_difference", "final_difference", "seed_spread"]
    table = pd.DataFrame(rows, columns=columns)
    table["within_seed_spread"] = table["final_difference"] <= table["seed_spread"]
    return table


def _compare_scores(a: pd.DataFrame, b: pd.DataFrame) -> dict[str, float]:
    a, b = (side[side["outcome"] != "not scored"] for side in (a, b))
    if a.empty or b.empty:
        return {"final_difference": math.nan, "seed_spread": math.nan}
    relative = is_ratio(b["score_metric"].iloc[0])
    scores = pd.to_numeric(a["score"]).align(pd.to_numeric(b["score"]), "inner")
    spread = t_interval(b["score"])
    return {
        "final_difference": float(_difference(*scores, relative=relative).max()),
        "seed_spread": spread.sd / spread.mean if relative and spread.mean else spread.sd,
    }


def _difference(x: Numbers, y: Numbers, *, relative: bool) -> Numbers:
    """|x − y| by step and seed; infinite where one side is not finite, 0 where both are not."""
    difference = (x - y).abs() / (y.abs() if relative else 1)
    return difference.where(x.notna() & y.notna(), np.inf).where(x.notna() | y.notna(), 0.0)


def _losses(group: pd.DataFrame) -> pd.DataFrame:
    """Loss by step (rows) and seed (columns)."""
    table = group.pivot_table(index="step", columns="seed", values="loss", dropna=False)
    # Infinities count as NaN, which is infinitely far from every number.
    return table.replace([np.inf, -np.inf], np.nan)


def variance_table(config: Config, steps: pd.DataFrame) -> pd.DataFrame:
    """Shares of the variance of log10 loss that recipe, platform and seed explain.

    A row per depth × variant for which two studies form a design, except cells that lack a run or
    have a run that is not finite. Shares are main effects of the balanced design; `other` is
    interactions. `loss_low` and `loss_high` are the two recipes' losses.
    """
    rows = []
    for (depth, variant), pair in designs(config, steps).items():
        group = select(steps, pair, [variant], [depth])
        for factor in ("platform", "seed"):
            one, other = (set(group.loc[group["study"] == study, factor]) for study in pair)
            group = group[group[factor].isin(one & other)]
        if group.empty:
            continue
        last = int(group.groupby(["study", "seed", "platform"])["step"].max().min())
        tail = group[(group["step"] <= last) & (group["step"] > last - max(1, (last + 1) // 10))]
        means = tail.groupby(["study", "platform", "seed"])["loss"].mean().reset_index()
        cell = means.rename(columns={"study": "recipe"})  # the two have a recipe each
        cell = cell.assign(y=np.log10(cell["loss"]))
        if shares := variance_shares(cell):
            ends = sorted(10 ** cell.groupby("recipe")["y"].mean())
            losses = dict(zip(LOSSES, ends, strict=True))
            rows.append({"depth": depth, "variant": variant, "step": last, **shares, **losses})
    columns = ["depth", "variant", "step", "runs", "sd", *SHARES.values(), *LOSSES]
    return pd.DataFrame(rows, columns=columns)


def designs(config: Config, runs: pd.DataFrame) -> dict[tuple[int, str], tuple[str, str]]:
    """The two studies that form a design (recipe × platform × seed), by depth and variant.

    They differ only in recipe and steps, and share two platforms or more. Of several such pairs,
    the one whose later study comes first in the config is taken, whatever the results. `runs` has
    the columns of GROUP.
    """
    there = runs[GROUP].drop_duplicates()
    platforms = {cell: set(group["platform"]) for cell, group in there.groupby(CELL, sort=False)}
    pairs: dict[tuple[int, str], tuple[str, str]] = {}
    names = list(config.studies)
    for a, b in ((earlier, later) for i, later in enumerate(names) for earlier in names[:i]):
        for study, depth, variant in platforms:
            if study != a or (b, depth, variant) not in platforms:
                continue
            shared = platforms[a, depth, variant] & platforms[b, depth, variant]
            if len(shared) > 1 and _differ_in_recipe_alone(config, a, b, depth, variant):
                pairs.setdefault((depth, variant), (a, b))
    return pairs


def _differ_in_recipe_alone(config: Config, a: str, b: str, depth: int, variant: str) -> bool:
    """Whether the runs of two studies at one depth and variant differ in the recipes alone.

    False for a variant with a recipe, an optimiser or steps of its own.
    """
    recipes, rest = [], []
    for name in (a, b):
        study, spec = config.studies[name], config.spec(Cell(name, depth, variant, "torch", 0))
        own = spec.recipe, spec.optimizer, spec.steps
        if own != (study.recipe_settings, study.optimizer, study.steps):
            return False
        recipes.append(spec.recipe)
        apart = {"study", "recipe", "steps", "evaluate_every", "weights"}
        rest.append(spec.model_dump(exclude=apart))
    return recipes[0] != recipes[1] and rest[0] == rest[1]


def diverged_cells(config: Config, cells: pd.DataFrame, variance: pd.DataFrame) -> int:
    """Number of depths × variants of designs with a diverged run and without a row in `variance`.

    `cells` has a row for each run that counts, with its outcome.
    """
    decomposed = set(zip(variance["depth"], variance["variant"], strict=True))
    return sum(
        bool((select(cells, pair, [variant], [depth])["outcome"] == "diverged").any())
        for (depth, variant), pair in designs(config, cells).items()
        if (depth, variant) not in decomposed
    )


def variance_shares(cell: pd.DataFrame) -> dict[str, float] | None:
    """Shares of the total sum of squares of `y` by factor.

    None unless the design is balanced, all of `y` is finite, and there is any variance to share.
    """
    levels = [cell[factor].nunique() for factor in FACTORS]
    # Distinct runs are counted too: a duplicate must not replace a missing run.
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
    shares["other"] = 1 - sum(shares.values())
    numbers = {"sd": sd, **{SHARES[name]: share for name, share in shares.items()}}
    return {"runs": len(cell), **{name: round(value, DECIMALS) for name, value in numbers.items()}}


def variance_summary(variance: pd.DataFrame) -> pd.DataFrame:
    """A row per factor over all cells of the variance table; `decides` marks the answer.

    A factor decides if its median share is the largest and more than half. `loss_low` and
    `loss_high` are the median losses of the lower and of the higher recipe, in every row.
    """
    shares = variance[list(SHARES.values())]
    columns = {"median": shares.median(), "lowest": shares.min(), "highest": shares.max()}
    table = pd.DataFrame(columns).assign(cells=len(shares)).set_axis(list(SHARES))
    table = table.reset_index(names="factor")
    table["decides"] = (table["median"] > 0.5) & (table["median"] == table["median"].max())
    return table.assign(**variance[[*LOSSES]].median())
