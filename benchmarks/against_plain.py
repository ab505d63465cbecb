"""Compare the networks of a study that is not in the reference with its plain network.

    python benchmarks/against_plain.py corpus-python results/corpus --out benchmarks/corpus.csv \
      --beside scale-6-layers

Writes the held-out loss of every run and prints a table of docs/further-studies.md: the change of
the loss, and the step multiplier, with the interval of its verdict (docs/definitions/effects.md).
All comparisons are one family, with the looks of the presets. `--beside` adds the multipliers of a
study of the reference, and how far the two orders agree (Spearman's rank correlation).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from fathom.settings import ConfigError
from fathom_study.analysis.ladder import log_multipliers, read_differences
from fathom_study.analysis.significance import SIGNIFICANCE_LEVEL, Mean, correct, moderate
from fathom_study.analysis.statistics import t_interval
from fathom_study.cli.options import output_file
from fathom_study.runs.folder import MANIFEST, read_rows
from fathom_study.tasks.text import SCORE

WORTH = Path(__file__).parents[1] / "results/reference/tables/worth.csv"
PLAIN = "baseline"
RUNG = re.compile(rf"{PLAIN}_x(\d+)")
"""A plain network with another number of steps, in hundredths."""
RATE = re.compile(rf"{PLAIN}_0\d+")
"""A plain network at another rate: it chose the study's rate, and is compared with nothing."""
LOOKS = 2
"""The looks of the presets: 5 and 8 seeds."""


def read_losses(study: str, results: Path) -> pd.DataFrame:
    """The losses of a study. Raises ConfigError without any run of its plain network."""
    table = pd.DataFrame(losses(study, results), columns=["network", "seed", "validation_loss"])
    if PLAIN not in set(table["network"]):
        raise ConfigError(f"{results}: no run of {PLAIN} in study {study}; train the study first")
    return table


def losses(study: str, results: Path) -> Iterator[dict[str, object]]:
    """The held-out loss of each whole run, by `network` and `seed`."""
    run = re.compile(rf"runs/{study}/\d+L/(?P<network>\w+)/torch/seed(?P<seed>\d+)")
    for folder in sorted(file.parent for file in results.rglob(MANIFEST)):
        if found := run.fullmatch(folder.relative_to(results).as_posix()):
            *_, last = read_rows(folder)
            yield {
                "network": found["network"], "seed": int(found["seed"]),
                "validation_loss": last["validation_loss"],
            }  # fmt: skip


def by_network(table: pd.DataFrame) -> pd.DataFrame:
    """Losses by seed, a column for each network; only seeds that all networks have."""
    compared = table[~table["network"].map(lambda name: bool(RATE.fullmatch(name)))]
    return compared.pivot(index="seed", columns="network", values="validation_loss").dropna()


def against_plain(table: pd.DataFrame) -> pd.DataFrame:
    """Each network against the plain one: change of the loss in %, and step multiplier."""
    scores = by_network(table)
    rungs = {1.0: PLAIN} | {
        int(rung[1]) / 100: name for name in scores if (rung := RUNG.fullmatch(name))
    }
    ladder = pd.DataFrame({factor: scores[rungs[factor]] for factor in sorted(rungs)})
    logs = scores.map(math.log10)
    means = {
        name: moderate(t_interval(logs[name] - logs[PLAIN]), SCORE.spread)
        for name in scores
        if name not in rungs.values()
    }
    rows = verdicts(means, "network", LOOKS).set_index("network")
    for name, row in rows.iterrows():
        # A higher loss is a smaller multiplier.
        ends = [math.log10(1 + row[end] / 100) for end in ("high", "low")]
        read = read_differences(ladder, scores[PLAIN], ends, 1, ratio=True)
        middle = log_multipliers(ladder, scores[name], 1).mean()
        rows.loc[name, ["multiplier", "least", "most"]] = [math.exp(x) for x in (middle, *read)]
    return rows.reset_index()


def verdicts(means: Mapping[str, Mean], column: str, looks: int) -> pd.DataFrame:
    """A row for each mean of log10 of a ratio of losses, with the interval of its verdict in %.

    All are one family; those of too few seeds are left out.
    """
    corrected = correct({name: one.p for name, one in means.items()}, dict.fromkeys(means, looks))
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


def lines_beside(table: pd.DataFrame, beside: str) -> Iterator[str]:
    """The multipliers beside those of a study of the reference, and the rank correlation."""
    worth = pd.read_csv(WORTH)
    rows = worth[(worth["study"] == beside) & (worth["rate"] == "one rate")]
    theirs = rows.set_index("variant")["multiplier"]
    ours = against_plain(table).set_index("network")["multiplier"].sort_values(ascending=False)
    for name in ours.index.intersection(theirs.index):
        yield f"| `{name}` | {ours[name]:.2f} | {theirs[name]:.2f} |"
    yield f"Spearman's rank correlation: {ranks_agree(ours, theirs):.2f}."


def ranks_agree(ours: pd.Series, theirs: pd.Series) -> float:
    """Spearman's rank correlation of the multipliers of the networks that both have."""
    both = pd.concat([ours, theirs], axis=1, join="inner")
    return float(both.corr("spearman").iloc[0, 1])


def lines(table: pd.DataFrame) -> Iterator[str]:
    """The rows of `against_plain` as lines of the document, the lowest loss first."""
    for row in against_plain(table).sort_values("effect").to_dict("records"):
        yield (
            f"| `{row['network']}` | {row['effect']:+.2f} % ({row['low']:+.2f} to "
            f"{row['high']:+.2f}) | {row['multiplier']:.2f} ({row['least']:.2f} to "
            f"{row['most']:.2f}) | {row['verdict']} |"
        )


def main(
    study: Annotated[str, typer.Argument(help="Name of the study, of one depth.")],
    results: Annotated[Path, typer.Argument(help="Folder of the preset's results.")],
    out: Annotated[Path, output_file(help="Write the losses of runs to this table.")],
    beside: Annotated[
        str | None, typer.Option(help="A study of the reference, to compare the order with.")
    ] = None,
) -> None:
    """Write the losses of all runs, and print each network against the plain one."""
    table = read_losses(study, results)
    rows = [*lines(table), *(lines_beside(table, beside) if beside else ())]
    table.to_csv(out, index=False, float_format="%.9g", lineterminator="\n")
    print(*rows, sep="\n")


if __name__ == "__main__":
    typer.run(main)
