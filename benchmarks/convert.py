"""Is a trained plain network worth converting? Compares the runs of workflow/presets/convert.yaml.

    python benchmarks/convert.py results/convert --out benchmarks/convert.csv

The preset has the commands that train them. Prints the comparisons of docs/library-details.md: each
connection against the plain network that was trained on, and against training with it from the
start, after as many steps. Verdicts: docs/definitions/effects.md, with a family for each question.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from against_plain import verdicts

from fathom_study.analysis.significance import moderate
from fathom_study.analysis.statistics import t_interval
from fathom_study.cli.options import output_file
from fathom_study.runs.folder import MANIFEST, read_rows
from fathom_study.tasks.text import SCORE

PLAIN = "plain"
"""The plain network, trained on or from the start."""


RUNS = {
    "converted": re.compile(r"converted/(?P<name>\w+)/seed(?P<seed>\d+)"),
    "from the start": re.compile(r"runs/convert-start/12L/(?P<name>\w+)/torch/seed(?P<seed>\d+)"),
}
"""Folders of runs below the preset's results, by the way in which the connection came."""


def losses(results: Path) -> Iterator[dict[str, object]]:
    """The first and the held-out loss of each whole run, by `way`, `connection` and `seed`."""
    folders = sorted(file.parent for file in results.rglob(MANIFEST))
    for way, pattern in RUNS.items():
        for folder in folders:
            if found := pattern.fullmatch(folder.relative_to(results).as_posix()):
                first, *_, last = read_rows(folder)
                yield {
                    "way": way, "connection": found["name"].replace("baseline", PLAIN),
                    "seed": int(found["seed"]), "first_loss": first["loss"],
                    "validation_loss": last["validation_loss"],
                }  # fmt: skip


def compare(table: pd.DataFrame) -> pd.DataFrame:
    """Relative differences of held-out losses in %, with the interval of their verdict."""
    logs = table.set_index(["way", "connection", "seed"])["validation_loss"].map(math.log10)
    ours, started = logs["converted"], logs["from the start"]
    names = sorted({*ours.index.get_level_values("connection")})
    families = {
        "plain, trained on": {n: ours[n] - ours[PLAIN] for n in names if n != PLAIN},
        "itself, from the start": {n: ours[n] - started[n] for n in names},
    }
    rows = []
    for against, differences in families.items():
        means = {
            name: moderate(t_interval(values.dropna()), SCORE.spread)
            for name, values in differences.items()
        }
        rows.append(verdicts(means, "connection", looks=1).assign(against=against))
    return pd.concat(rows, ignore_index=True)


def main(
    results: Annotated[Path, typer.Argument(help="Folder of the preset's runs.")],
    out: Annotated[Path, output_file(help="Write the losses of runs to this table.")],
) -> None:
    """Write the losses of all runs, and print the comparisons of enough seeds."""
    table = pd.DataFrame(losses(results))
    table.to_csv(out, index=False, float_format="%.9g", lineterminator="\n")
    for row in compare(table).to_dict("records"):
        print(
            f"| `{row['connection']}` | {row['against']} | {row['effect']:+.2f} % "
            f"({row['low']:+.2f} to {row['high']:+.2f}) | {row['verdict']} | {row['seeds']} |"
        )


if __name__ == "__main__":
    typer.run(main)
