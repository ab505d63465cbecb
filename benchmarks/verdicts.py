"""The known spread of differences between two trainings on text, and error rates of verdicts.

    python benchmarks/verdicts.py [results/reference/tables]

It fits the spread to the studies of sizes (Smyth 2004, "Linear models", section 6.2), and simulates
families of comparisons with standard deviations drawn from those of `released` and of the sizes:
without any effect, and with some effects of 2 % of the loss. It also counts families in which a
network at the bound of *equivalent* is called so; and it repeats all of it with one plain network
whose seeds are in every difference. docs/definitions/effects.md has the test.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import optimize, special

from fathom_study.analysis.significance import SIGNIFICANCE_LEVEL
from fathom_study.tasks.text import SCORE

LOOKS = (5, 8, 12, 16)
EFFECT, EFFECTS = math.log10(1.02), 10
"""Size of a true effect on the scale of comparison, and the number of rows that have it."""

BOUND = math.log10(1.009)
"""A loss that 5 % more steps reach: on the ladder of `released` 15 % more lower it by 2.6 %."""

FAMILIES = 8000


def fit_spread(variances: np.ndarray, df: np.ndarray) -> tuple[float, float]:
    """Degrees of freedom and standard deviation of a scaled inverse χ² from sample variances."""
    half = df / 2
    logs = np.log(variances) - special.digamma(half) + np.log(half)
    excess = logs.var(ddof=1) - special.polygamma(1, half).mean()
    if excess <= 0:
        return math.inf, math.exp(logs.mean() / 2)
    known = 2 * optimize.brentq(lambda x: special.polygamma(1, x) - excess, 1e-6, 1e6)
    mean = logs.mean() + special.digamma(known / 2) - math.log(known / 2)
    return known, math.exp(mean / 2)


def deviations(tables: Path, studies: str) -> pd.DataFrame:
    """Seeds `n` and standard deviation `sd` of log10 loss differences to plain, for each pair."""
    worth = pd.read_csv(tables / "worth.csv")
    worth = worth[(worth["rate"] == "one rate") & worth["study"].str.match(studies)]
    cells = pd.read_csv(tables / "cells.csv", low_memory=False)
    place = ["study", "platform", "depth"]
    scores = cells.set_index([*place, "variant", "seed"])["score"].sort_index()
    rows = []
    for row in worth.to_dict("records"):
        ours, theirs = (
            scores.loc[tuple(row[key] for key in (*place, side))] for side in ("variant", "against")
        )
        logs = np.log10((ours / theirs).dropna())
        if len(logs) > 2:
            rows.append({"n": len(logs), "sd": logs.std(ddof=1)})
    return pd.DataFrame(rows)


def judge(differences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which [family, test] are better or worse, and which equivalent, at one look of LOOKS.

    `differences`: [family, test, seed].
    """
    spread, seeds = SCORE.spread, differences.shape[2]
    tests, df = differences.shape[1], spread.df + seeds - 1
    variances = differences.var(axis=2, ddof=1)
    errors = np.sqrt((spread.df * spread.sd**2 + (seeds - 1) * variances) / df / seeds)
    means = differences.mean(axis=2)
    p = 2 * special.stdtr(df, -np.abs(means) / errors)
    order = np.argsort(p, axis=1)
    limits = SIGNIFICANCE_LEVEL / len(LOOKS) / (tests - np.arange(tests))
    passed = np.logical_and.accumulate(np.take_along_axis(p, order, 1) <= limits, axis=1)
    rejected = np.empty_like(passed)
    np.put_along_axis(rejected, order, passed, 1)
    kept = np.maximum(1, (~rejected).sum(axis=1, keepdims=True))
    half = special.stdtrit(df, 1 - SIGNIFICANCE_LEVEL / len(LOOKS) / kept / 2) * errors
    return rejected, ~rejected & (np.abs(means) + half < BOUND)


def simulate(
    sds: np.ndarray, tests: int, effects: int, rng: np.random.Generator, *, shared: bool
) -> None:
    """Print a line for each number of seeds.

    It has the share of families with a wrong verdict, of those with one by then, of effects that
    are found, and of families that call a network equivalent whose effect is BOUND. `shared`: half
    of the variance is the plain network's, which all tests of a family have in common.
    """
    shape = (FAMILIES, tests, LOOKS[-1])
    noise = rng.standard_normal(shape)
    if shared:
        noise = (noise + rng.standard_normal((FAMILIES, 1, LOOKS[-1]))) / math.sqrt(2)
    noise *= rng.choice(sds, (FAMILIES, tests, 1))
    differences = noise.copy()
    differences[:, :effects] += EFFECT
    wrong_before = np.zeros(FAMILIES, bool)
    for seeds in (3, *LOOKS):
        rejected, _ = judge(differences[:, :, :seeds])
        _, equivalent = judge(noise[:, :, :seeds] + BOUND)
        wrong = rejected[:, effects:].any(axis=1)
        wrong_before |= wrong
        found = f"{rejected[:, :effects].mean():.2f}" if effects else ""
        errors = f"{wrong.mean():6.3f} {wrong_before.mean():8.3f}"
        equal = f"{equivalent.any(axis=1).mean():6.3f}"
        print(f"{tests:5} {effects:8} {shared!s:6} {seeds:6} {errors} {found:>6} {equal}")


def main(tables: Path) -> None:
    """Print the fit, and a line for each family and number of seeds."""
    of_sizes = deviations(tables, "scale-")
    known, sd = fit_spread(of_sizes["sd"] ** 2, of_sizes["n"] - 1)
    print(f"{len(of_sizes)} pairs of sizes: d0 {known:.2f}, s0 {100 * (10**sd - 1):.2f} %")
    used = SCORE.spread
    print(f"used: d0 {used.df:.2f}, s0 {100 * (10**used.sd - 1):.2f} %")
    sds, rng = deviations(tables, "scale-|released")["sd"].to_numpy(), np.random.default_rng(0)
    print("tests  effects  shared  seeds  wrong  by then  found  equivalent")
    for shared in (False, True):
        for tests in (41, 65):
            for effects in (0, EFFECTS):
                simulate(sds, tests, effects, rng, shared=shared)


if __name__ == "__main__":
    main(Path(*sys.argv[1:] or ("results/reference/tables",)))
