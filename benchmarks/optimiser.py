"""Is what connections save the optimiser's? Compares networks trained by Muon and by AdamW.

    python benchmarks/optimiser.py results/optimiser --out benchmarks/optimiser.csv

workflow/presets/optimiser.yaml has the commands that train them. Adds the held-out loss of every
run to the table, and prints the tables of docs/further-studies.md. The control is AdamW with a
weight decay of 0.1. All comparisons of networks with the plain one are one family; how far these
differ from the control's are another, and so are the plain networks. The test is Student's t: the
known spread of text was measured with AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from against_plain import (
    LOOKS,
    PLAIN,
    RUNG,
    by_network,
    change_in_words,
    connections_of,
    line_of,
    losses,
    merge,
    multiplier,
    plain_ladder,
    steps_in_words,
    verdicts,
)

from fathom.settings import ConfigError
from fathom_study.analysis.significance import moderate
from fathom_study.analysis.statistics import t_interval
from fathom_study.cli.options import output_file

LOWERS = {"higher": "lowers it less", "lower": "lowers it more"}
"""A difference of changes in words."""

CONTROL, MUON = "optimiser-adamw", "optimiser-muon"
OPTIMISERS = {
    MUON: "Muon",
    "optimiser-decay-0": "AdamW, decay 0",
    "optimiser-decay-03": "AdamW, decay 0.3",
}
"""What the document calls each study."""
SAME_NETWORK = {"cycle_cycle_dynamic_identity": "mhc_identity_cycle"}
"""Names in ingredients.csv of networks that the control shares with it, besides plain ones."""
INGREDIENTS = Path(__file__).with_name("ingredients.csv")


def read_control(ingredients: Path = INGREDIENTS) -> pd.DataFrame:
    """Losses of the plain networks and cyclic mHC with identity, trained for another study."""
    table = pd.read_csv(ingredients).replace({"network": SAME_NETWORK})
    shared = table["network"].map(
        lambda name: name == PLAIN or bool(RUNG.fullmatch(name)) or name in SAME_NETWORK.values()
    )
    return table[shared]


def read_losses(results: Path, kept: Path) -> pd.DataFrame:
    """The losses of all studies, and those of the table `kept` whose runs are not here."""
    earlier = pd.read_csv(kept) if kept.is_file() else pd.DataFrame(columns=["study"])
    tables = []
    for study in (*OPTIMISERS, CONTROL):
        same = earlier[earlier["study"] == study]
        table = merge(losses(study, results), same if len(same) else None)
        if study != CONTROL and PLAIN not in set(table["network"]):
            raise ConfigError(f"{results}: no run of {PLAIN} in study {study}; train it first")
        tables.append(table.assign(study=study))
    return pd.concat(tables)[["study", "network", "seed", "validation_loss"]]


def by_study(table: pd.DataFrame, control: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Losses by seed, a column for each network, of every study and of the control.

    Networks of the control may lack seeds; each comparison has those that both sides have.
    """
    scores = dict(iter(table.groupby("study")))
    of_control = pd.concat([scores.pop(CONTROL, None), control])
    found = {name: by_network(rows) for name, rows in scores.items()}
    return found | {
        CONTROL: of_control.pivot(index="seed", columns="network", values="validation_loss")
    }


def gains(scores: pd.DataFrame) -> pd.DataFrame:
    """log10 of the loss over that of the plain network, by seed, a column for each network."""
    logs = scores.map(math.log10)
    return logs[connections_of(scores)].sub(logs[PLAIN], axis=0)


def compare(table: pd.DataFrame, control: pd.DataFrame) -> pd.DataFrame:
    """Each network against the plain one with each optimiser, and how that differs from AdamW's.

    Changes of the loss in %: `effect`, `control` that of AdamW, `difference` of both ratios.
    """
    studies = by_study(table, control)
    theirs = gains(studies[CONTROL])
    against, apart, control_gain = {}, {}, {}
    for study in OPTIMISERS:
        for name, ours in gains(studies[study]).items():
            both = pd.concat([ours, theirs[name]], axis=1, keys=["ours", "theirs"]).dropna()
            against[study, name] = moderate(t_interval(ours), None)
            apart[study, name] = moderate(t_interval(both["ours"] - both["theirs"]), None)
            control_gain[study, name] = 100 * (10 ** both["theirs"].mean() - 1)
    rows, other = (
        verdicts(means, "pair", LOOKS).set_index("pair").loc[[*against]]
        for means in (against, apart)
    )
    rows["control"] = pd.Series(control_gain)
    names = {"effect": "difference", "low": "least_apart", "high": "most_apart", "verdict": "apart"}
    rows = rows.join(other[[*names]].rename(columns=names))
    return rows.set_index(pd.MultiIndex.from_tuples(rows.index, names=["study", "network"]))


LONGER = f"{PLAIN}_x165"
"""The plain network of the control with 1.65 times the steps."""


def plain_networks(table: pd.DataFrame, control: pd.DataFrame) -> pd.DataFrame:
    """The plain network of each optimiser against AdamW's: change of the loss in %.

    Muon's also against AdamW's with 1.65 times the steps.
    """
    studies = by_study(table, control)
    pairs = {OPTIMISERS[study]: (study, PLAIN) for study in OPTIMISERS}
    pairs["Muon; AdamW has 1.65 times the steps"] = MUON, LONGER
    means = {
        words: moderate(
            t_interval(
                (studies[study][PLAIN].map(math.log10) - studies[CONTROL][other].map(math.log10))
                .dropna()
            ),
            None,
        )
        for words, (study, other) in pairs.items()
    }  # fmt: skip
    return verdicts(means, "optimiser", LOOKS).set_index("optimiser").loc[[*pairs]].reset_index()


def lines(table: pd.DataFrame, control: pd.DataFrame) -> Iterator[str]:
    """The rows of the document's tables."""
    studies = by_study(table, control)
    for row in plain_networks(table, control).to_dict("records"):
        yield line_of(row["optimiser"], row)
    for (study, name), row in compare(table, control).iterrows():
        steps = "–"
        ladder = plain_ladder(studies[study])
        if len(ladder.columns) > 1:
            ends = row["low"], row["high"]
            steps = steps_in_words(*multiplier(ladder, studies[study][name], *ends))
        change = change_in_words(row["effect"], row["low"], row["high"])
        apart = change_in_words(row["difference"], row["least_apart"], row["most_apart"])
        yield (
            f"| {OPTIMISERS[study]} | `{name}` | {change} | {steps} | {row['verdict']} | "
            f"{row['control']:+.2f} % | {apart} | {LOWERS.get(row['apart'], row['apart'])} |"
        )


def main(
    results: Annotated[Path, typer.Argument(help="Folder of the preset's results.")],
    out: Annotated[Path, output_file(help="Add the losses of runs to this table.")],
) -> None:
    """Add the losses of all runs to the table, and print the tables of the document."""
    table = read_losses(results, out)
    rows = [*lines(table, read_control())]  # before the file changes
    table.to_csv(out, index=False, float_format="%.9g", lineterminator="\n")
    print(*rows, sep="\n")


if __name__ == "__main__":
    typer.run(main)
