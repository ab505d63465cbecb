"""Which ingredient of several streams saves steps? Compares the runs of one preset.

    python benchmarks/ingredients.py results/ingredients-of-streams --out benchmarks/ingredients.csv

workflow/presets/ingredients-of-streams.yaml has the command that trains them. Writes the held-out
loss of every run, and prints the tables of docs/library-details.md. The effect of an ingredient is
the mean change of the loss, in %, over the eight pairs of networks that differ in it alone. The
effect of two together is half of what the second changes in the effect of the first. Each seed
gives one value, and Student's t compares their mean with zero. Holm's correction, looks and the
comparisons with the plain network: docs/definitions/effects.md.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from fathom_study.analysis.ladder import log_multipliers, read_differences
from fathom_study.analysis.significance import SIGNIFICANCE_LEVEL, correct, moderate
from fathom_study.analysis.statistics import t_interval
from fathom_study.cli.options import output_file
from fathom_study.runs.folder import MANIFEST, read_rows
from fathom_study.tasks.text import SCORE

INGREDIENTS = {
    "read": ("averaged", "cycle"),
    "write": ("even", "cycle"),
    "coefficients": ("static", "dynamic"),
    "H_res": ("identity", "sinkhorn"),
}
"""Both kinds of each ingredient, in the order in which they stand in a network's name. An effect is
that of the second kind in place of the first."""

PLAIN = "baseline"
RUNG = re.compile(rf"{PLAIN}_x(\d+)")
"""A plain network with another number of steps, in hundredths."""
LOOKS = 2
"""The looks of the preset: 5 and 8 seeds."""
RUN = re.compile(r"runs/ingredients-of-streams/6L/(?P<name>\w+)/torch/seed(?P<seed>\d+)")


def losses(results: Path) -> Iterator[dict[str, object]]:
    """The held-out loss of each whole run, by `network` and `seed`."""
    for folder in sorted(file.parent for file in results.rglob(MANIFEST)):
        if found := RUN.fullmatch(folder.relative_to(results).as_posix()):
            *_, last = read_rows(folder)
            yield {
                "network": found["name"], "seed": int(found["seed"]),
                "validation_loss": last["validation_loss"],
            }  # fmt: skip


def by_network(table: pd.DataFrame) -> pd.DataFrame:
    """Losses by seed, a column for each network; only seeds that all networks have."""
    return table.pivot(index="seed", columns="network", values="validation_loss").dropna()


def effects(table: pd.DataFrame) -> pd.DataFrame:
    """The effect of each ingredient and of each two together, in %, with its interval."""
    logs = by_network(table).map(math.log10)
    signs = {
        "_".join(kinds): {
            name: 2 * both.index(kind) - 1
            for kind, (name, both) in zip(kinds, INGREDIENTS.items(), strict=True)
        }
        for kinds in itertools.product(*INGREDIENTS.values())
    }
    means = {}
    for names in (*((name,) for name in INGREDIENTS), *itertools.combinations(INGREDIENTS, 2)):
        weighted = [
            math.prod(signs[network][name] for name in names) * logs[network] for network in signs
        ]
        per_seed = 2 * sum(weighted) / len(signs)
        means[" and ".join(names)] = moderate(t_interval(per_seed), None)
    return _verdicts(means, "ingredient")


def against_plain(table: pd.DataFrame) -> pd.DataFrame:
    """Each network against the plain one: change of the loss in %, and step multiplier."""
    scores = by_network(table)
    rungs = {
        factor: name
        for name in scores
        if (factor := 1.0 if name == PLAIN else _factor(name)) is not None
    }
    ladder = pd.DataFrame({factor: scores[rungs[factor]] for factor in sorted(rungs)})
    logs = scores.map(math.log10)
    others = [name for name in scores if name not in rungs.values()]
    means = {name: moderate(t_interval(logs[name] - logs[PLAIN]), SCORE.spread) for name in others}
    rows = _verdicts(means, "network")
    for i, row in rows.iterrows():
        name = row["network"]
        mean = log_multipliers(ladder, scores[name], 1).mean()
        # A lower loss is a larger multiplier.
        ends = [math.log10(1 + row[end] / 100) for end in ("high", "low")]
        low, high = read_differences(ladder, scores[PLAIN], ends, 1, ratio=True)
        columns = ["multiplier", "least", "most"]
        rows.loc[i, columns] = [math.exp(mean), math.exp(low), math.exp(high)]
    return rows


def _factor(network: str) -> float | None:
    found = RUNG.fullmatch(network)
    return int(found[1]) / 100 if found else None


def _verdicts(means: dict, column: str) -> pd.DataFrame:
    """A row for each mean of log10 of a ratio, with the interval of its verdict in %."""
    corrected = correct({name: one.p for name, one in means.items()}, dict.fromkeys(means, LOOKS))
    rows = []
    for name, (p, level, tests) in corrected.items():
        mean = means[name]
        effect, low, high = (100 * (10**x - 1) for x in (mean.value, *mean.ends(level)))
        outcome = "lower" if effect < 0 else "higher"
        rows.append(
            {column: name, "seeds": mean.n, "effect": effect, "low": low, "high": high, "p_holm": p,
             "tests": tests, "verdict": outcome if p < SIGNIFICANCE_LEVEL else "undecided"}
        )  # fmt: skip
    return pd.DataFrame(rows)


def main(
    results: Annotated[Path, typer.Argument(help="Folder of the preset's runs.")],
    out: Annotated[Path, output_file(help="Write the losses of runs to this table.")],
) -> None:
    """Write the losses of all runs, and print both tables."""
    table = pd.DataFrame(losses(results))
    table.to_csv(out, index=False, float_format="%.9g", lineterminator="\n")
    for row in effects(table).to_dict("records"):
        print(
            f"| {row['ingredient']} | {row['effect']:+.2f} % ({row['low']:+.2f} to "
            f"{row['high']:+.2f}) | {row['verdict']} |"
        )
    for row in against_plain(table).sort_values("effect").to_dict("records"):
        print(
            f"| `{row['network']}` | {row['effect']:+.2f} % ({row['low']:+.2f} to "
            f"{row['high']:+.2f}) | {row['multiplier']:.2f} ({row['least']:.2f} to "
            f"{row['most']:.2f}) | {row['verdict']} |"
        )


if __name__ == "__main__":
    typer.run(main)
