"""Which ingredient of several streams saves steps? Compares the runs of one preset.

    python benchmarks/ingredients.py results/ingredients-of-streams --out benchmarks/ingredients.csv

workflow/presets/ingredients-of-streams.yaml has the command that trains them. Adds the held-out
loss of every run to the table, and prints the tables of docs/further-studies.md. The effect of an
ingredient is the mean change of the loss, in %, over the eight pairs of networks that differ in it
alone. The effect of two together is half of what the second changes in the effect of the first.
Each seed gives one value, and Student's t compares their mean with zero. All effects are one
family. Networks with a value residual and streams are compared with the same network without one
of the two; these pairs are another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from against_plain import LOOKS, by_network, line_of, read_losses, verdicts
from against_plain import lines as lines_against_plain

from fathom.settings import ConfigError
from fathom_study.analysis.significance import moderate
from fathom_study.analysis.statistics import t_interval
from fathom_study.cli.options import output_file
from fathom_study.tasks.text import SCORE

STUDY = "ingredients-of-streams"
INGREDIENTS = {
    "read": ("averaged", "cycle"),
    "write": ("even", "cycle"),
    "coefficients": ("static", "dynamic"),
    "H_res": ("identity", "sinkhorn"),
}
"""Both kinds of each ingredient, in the order in which they stand in a network's name. An effect is
that of the second kind in place of the first."""


PAIRS = (
    ("value_residual_with_streams", "cycle_cycle_dynamic_identity"),
    ("value_residual_with_streams", "value_residual"),
    ("value_residual_with_best_streams", "averaged_cycle_dynamic_identity"),
    ("value_residual_with_best_streams", "value_residual"),
)
"""(A network with both, the same with one of the two)."""


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
    if missing := [name for name in signs if name not in logs]:
        raise ConfigError(f"{STUDY}: no run of {missing[0]}; train the study first")
    means = {}
    for names in (*((name,) for name in INGREDIENTS), *itertools.combinations(INGREDIENTS, 2)):
        weighted = [
            math.prod(signs[network][name] for name in names) * logs[network] for network in signs
        ]
        means[" and ".join(names)] = moderate(t_interval(2 * sum(weighted) / len(signs)), None)
    return verdicts(means, "ingredient", LOOKS)


def additions(table: pd.DataFrame) -> pd.DataFrame:
    """What a network with both changes against the same with one of the two, in %."""
    logs = by_network(table).map(math.log10)
    means = {
        f"`{both}` | `{one}`": moderate(t_interval(logs[both] - logs[one]), SCORE.spread)
        for both, one in PAIRS
    }
    return verdicts(means, "pair", LOOKS)


def lines(table: pd.DataFrame) -> Iterator[str]:
    """The effects, and what both together add, as lines of the document."""
    for rows, name in ((effects(table), "ingredient"), (additions(table), "pair")):
        for row in rows.to_dict("records"):
            yield line_of(row[name], row)


def main(
    results: Annotated[Path, typer.Argument(help="Folder of the preset's results.")],
    out: Annotated[Path, output_file(help="Add the losses of runs to this table.")],
) -> None:
    """Add the losses of all runs to the table, and print the tables of the document."""
    table = read_losses(STUDY, results, out)
    rows = [*lines(table), *lines_against_plain(table)]  # before the file changes
    table.to_csv(out, index=False, float_format="%.9g", lineterminator="\n")
    print(*rows, sep="\n")


if __name__ == "__main__":
    typer.run(main)
