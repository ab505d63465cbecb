"""Is a trained plain network worth converting? Compares the runs of workflow/presets/convert.yaml.

    python benchmarks/convert.py results/convert --out benchmarks/convert.csv

The preset has the commands that train them. Prints the table of docs/library.md: each connection
against the plain network that was trained on, and against training with it from the start, after
as many steps. Verdicts are those of docs/definitions/effects.md, a family for each question.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from fathom_study.analysis.significance import SIGNIFICANCE_LEVEL, correct, moderate
from fathom_study.analysis.statistics import t_interval
from fathom_study.cli.options import output_file
from fathom_study.tasks.text import SCORE

PLAIN = {"plain": "plain", "baseline": "plain"}
"""The name of the plain network in `converted` and in the study."""


def losses(results: Path) -> Iterator[dict[str, object]]:
    """The first and the held-out loss of each run, `way` is "converted" or "from the start"."""
    converted = [("converted", file) for file in results.glob("converted/*/seed*/metrics.jsonl")]
    started = results.glob("runs/convert-start/12L/*/torch/seed*/metrics.jsonl")
    for way, file in sorted([*converted, *(("from the start", file) for file in started)]):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        name = file.parents[1 if way == "converted" else 2].name
        if "validation_loss" not in rows[-1]:
            continue  # it is not at its end
        yield {
            "way": way, "connection": PLAIN.get(name, name), "seed": int(file.parent.name[4:]),
            "first_loss": rows[0]["loss"], "validation_loss": rows[-1]["validation_loss"],
        }  # fmt: skip


def compare(table: pd.DataFrame) -> pd.DataFrame:
    """Relative differences of held-out losses in %, with the interval of their verdict."""
    logs = table.set_index(["way", "connection", "seed"])["validation_loss"].map(math.log10)
    ours, started = logs["converted"], logs["from the start"]
    families = {"plain, trained on": {}, "itself, from the start": {}}
    for name in sorted({*ours.index.get_level_values("connection")} - {"plain"}):
        families["plain, trained on"][name] = ours[name] - ours["plain"]
    for name in sorted({*ours.index.get_level_values("connection")}):
        families["itself, from the start"][name] = ours[name] - started[name]
    rows = []
    for against, differences in families.items():
        means = {
            name: moderate(t_interval(values.dropna()), SCORE.spread)
            for name, values in differences.items()
        }
        corrected = correct({name: one.p for name, one in means.items()}, dict.fromkeys(means, 1))
        for name, mean in means.items():
            if name not in corrected:
                rows.append({"connection": name, "against": against, "seeds": mean.n})
                continue
            ends = mean.ends(corrected[name].level)
            effect, low, high = (100 * (10**log - 1) for log in (mean.value, *ends))
            p, outcome = corrected[name].p_holm, "lower" if effect < 0 else "higher"
            verdict = outcome if p < SIGNIFICANCE_LEVEL else "undecided"
            rows.append(
                {"connection": name, "against": against, "seeds": mean.n, "effect": effect,
                 "low": low, "high": high, "p_holm": p, "verdict": verdict}
            )  # fmt: skip
    return pd.DataFrame(rows)


def main(
    results: Annotated[Path, typer.Argument(help="Folder of the preset's runs.")],
    out: Annotated[Path, output_file(help="Write the losses of runs to this table.")],
) -> None:
    """Write the losses of all runs, and print the comparisons of enough seeds."""
    table = pd.DataFrame(losses(results))
    table.to_csv(out, index=False, float_format="%.9g", lineterminator="\n")
    for row in compare(table).dropna().to_dict("records"):
        print(
            f"| `{row['connection']}` | {row['against']} | {row['effect']:+.2f} % "
            f"({row['low']:+.2f} to {row['high']:+.2f}) | {row['verdict']} | {row['seeds']} |"
        )


if __name__ == "__main__":
    typer.run(main)
