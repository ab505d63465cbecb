"""Which ingredient of several streams saves steps? Compares the runs of one preset.

    python benchmarks/ingredients.py results/ingredients-of-streams --out benchmarks/ingredients.csv

workflow/presets/ingredients-of-streams.yaml has the command that trains them. Writes the held-out
loss of every run, and prints the tables of docs/library-details.md. The effect of an ingredient is
the mean change of the loss, in %, over the eight pairs of networks that differ in it alone. The
effect of two together is half of what the second changes in the effect of the first. Each seed
gives one value, and Student's t compares their mean with zero. All effects are one family.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from against_plain import by_network, losses, print_table, verdicts

from fathom_study.analysis.significance import moderate
from fathom_study.analysis.statistics import t_interval
from fathom_study.cli.options import output_file

STUDY = "ingredients-of-streams"
INGREDIENTS = {
    "read": ("averaged", "cycle"),
    "write": ("even", "cycle"),
    "coefficients": ("static", "dynamic"),
    "H_res": ("identity", "sinkhorn"),
}
"""Both kinds of each ingredient, in the order in which they stand in a network's name. An effect is
that of the second kind in place of the first."""


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
        means[" and ".join(names)] = moderate(t_interval(2 * sum(weighted) / len(signs)), None)
    return verdicts(means, "ingredient")


def main(
    results: Annotated[Path, typer.Argument(help="Folder of the preset's results.")],
    out: Annotated[Path, output_file(help="Write the losses of runs to this table.")],
) -> None:
    """Write the losses of all runs, and print both tables."""
    table = pd.DataFrame(losses(STUDY, results))
    table.to_csv(out, index=False, float_format="%.9g", lineterminator="\n")
    for row in effects(table).to_dict("records"):
        print(
            f"| {row['ingredient']} | {row['effect']:+.2f} % ({row['low']:+.2f} to "
            f"{row['high']:+.2f}) | {row['verdict']} |"
        )
    print_table(table)


if __name__ == "__main__":
    typer.run(main)
