"""Do connections have the same order in two studies of the reference?

    python benchmarks/orders.py corpus-python scale-6-layers

Prints the step multipliers of the networks that both have, the largest of the first study first,
and how far the two orders agree (Spearman's rank correlation), as in docs/further-studies.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from fathom.settings import ConfigError, unknown
from fathom_study.analysis.pairs import ONE_RATE

WORTH = Path(__file__).parents[1] / "results/reference/tables/worth.csv"


def multipliers(worth: pd.DataFrame, study: str) -> pd.Series:
    """Step multipliers at the common rate by network, the largest first. Raises ConfigError."""
    if study not in (names := worth["study"].unique()):
        raise ConfigError(unknown("study", study, names))
    rows = worth[(worth["study"] == study) & (worth["rate"] == ONE_RATE)]
    return rows.set_index("variant")["multiplier"].dropna().sort_values(ascending=False)


def lines(worth: pd.DataFrame, first: str, second: str) -> Iterator[str]:
    """The rows of the document, and its rank correlation."""
    ours, theirs = multipliers(worth, first), multipliers(worth, second)
    both = pd.concat([ours, theirs], axis=1, join="inner", keys=[first, second])
    for name, row in both.iterrows():
        yield f"| `{name}` | {row[first]:.2f} | {row[second]:.2f} |"
    yield f"Spearman's rank correlation: {both.corr('spearman').iloc[0, 1]:.2f}."


def main(
    first: Annotated[str, typer.Argument(help="A study of the reference.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
) -> None:
    """Print the multipliers of both studies, and their rank correlation."""
    print(*lines(pd.read_csv(WORTH), first, second), sep="\n")


if __name__ == "__main__":
    typer.run(main)
