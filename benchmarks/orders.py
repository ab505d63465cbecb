"""Do connections have the same order in two studies, or in a study and a published table?

    python benchmarks/orders.py corpus-python scale-6-layers
    python benchmarks/orders.py scale-6-layers-4k connection-factory

Prints both values of the networks that both have, the best of the first study first, and how far
the two orders agree (Spearman's rank correlation), as in docs/further-studies.md. A source of
`published_sizes.csv` has an order for each number of parameters. There p is exact: the share of all
orders that agree with the published one as much or more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from scipy.stats import permutation_test, spearmanr

from fathom.settings import ConfigError, unknown
from fathom_study.analysis.pairs import ONE_RATE

TABLES = Path(__file__).parents[1] / "results/reference/tables"
ALL_ORDERS = 10_000
"""More than the orders of seven networks, so none is sampled."""


def column(worth: pd.DataFrame, study: str, name: str) -> pd.Series:
    """A column of the rows at the common rate, by network, of the platform with most networks.

    Raises ConfigError.
    """
    if study not in (names := worth["study"].unique()):
        raise ConfigError(unknown("study", study, names))
    rows = worth[(worth["study"] == study) & (worth["rate"] == ONE_RATE)]
    platform = rows["platform"].value_counts().idxmax()
    return rows[rows["platform"] == platform].set_index("variant")[name].dropna()


def correlation(pair: pd.DataFrame) -> float:
    """Spearman's, of two columns."""
    return float(spearmanr(*pair.T.to_numpy()).statistic)


def of_studies(worth: pd.DataFrame, first: str, second: str) -> Iterator[str]:
    """Step multipliers of two studies, and the correlation of their orders."""
    columns = [column(worth, study, "multiplier") for study in (first, second)]
    both = pd.concat(columns, axis=1, join="inner", keys=[first, second])
    for name, values in both.sort_values(first, ascending=False).iterrows():
        yield f"| `{name}` | {' | '.join(f'{value:.2f}' for value in values)} |"
    yield f"Spearman's rank correlation: {correlation(both):.2f}."


def of_published(worth: pd.DataFrame, study: str, published: pd.DataFrame) -> Iterator[str]:
    """Changes of the loss in percent and published nats below plain, and their correlations."""
    ours = -column(worth, study, "change")
    sizes = published.pivot_table(index="variant", columns="parameters", values="below")
    both = sizes.join(ours.rename("ours"), how="inner").sort_values("ours", ascending=False)
    yield f"| network | {study} | {' | '.join(f'{n / 1e6:.1f} M' for n in sizes)} |"
    for name, row in both.iterrows():
        cells = ("" if pd.isna(row[n]) else f"{row[n]:.4f}" for n in sizes)
        yield f"| `{name}` | {-row['ours']:+.2f} % | {' | '.join(cells)} |"
    for size in sizes:
        pair = both[["ours", size]].dropna()
        if len(pair) > 2:
            test = permutation_test(
                (pair["ours"].to_numpy(),),
                lambda ours, pair=pair: spearmanr(ours, pair.iloc[:, 1]).statistic,
                permutation_type="pairings", alternative="greater", n_resamples=ALL_ORDERS,
            )  # fmt: skip
            rho = correlation(pair)
            yield f"{size / 1e6:.1f} M: {len(pair)} networks, rho {rho:.2f}, p {test.pvalue:.3f}."


def main(
    first: Annotated[str, typer.Argument(help="A study of the reference.")],
    second: Annotated[str, typer.Argument(help="Another one, or a source of published_sizes.csv.")],
) -> None:
    """Print the values of both, and the rank correlation of their orders."""
    worth = pd.read_csv(TABLES / "worth.csv")
    published = pd.read_csv(TABLES / "published_sizes.csv")
    theirs = published[published["source"] == second]
    if theirs.empty:
        print(*of_studies(worth, first, second), sep="\n")
    else:
        print(*of_published(worth, first, theirs), sep="\n")


if __name__ == "__main__":
    typer.run(main)
