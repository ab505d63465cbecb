"""Compare the networks of a study that is not in the reference with its plain network.

Rows of docs/further-studies.md: the change of the loss, and the step multiplier, with the interval
of its verdict (docs/definitions/effects.md). All comparisons are one family, with the looks of the
presets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fathom.settings import ConfigError
from fathom_study.analysis.ladder import log_multipliers, read_differences
from fathom_study.analysis.significance import SIGNIFICANCE_LEVEL, Mean, correct, moderate
from fathom_study.analysis.statistics import t_interval
from fathom_study.runs.folder import MANIFEST, read_rows
from fathom_study.tasks.text import SCORE

PLAIN = "baseline"
RUNG = re.compile(rf"{PLAIN}_x(\d+)")
"""A plain network with another number of steps, in hundredths."""
RATE = re.compile(rf"{PLAIN}_0\d+")
"""A plain network at another rate: it chose the study's rate, and is compared with nothing."""
LOOKS = 2
"""The looks of the presets: 5 and 8 seeds."""


def read_losses(study: str, results: Path, kept: Path) -> pd.DataFrame:
    """The losses of a study, and those of the table `kept` whose runs are not here.

    Raises ConfigError without any loss of its plain network.
    """
    table = merge(losses(study, results), pd.read_csv(kept) if kept.is_file() else None)
    if PLAIN not in set(table["network"]):
        raise ConfigError(f"{results}: no run of {PLAIN} in study {study}; train the study first")
    return table


def merge(new: Iterable[Mapping[str, object]], kept: pd.DataFrame | None) -> pd.DataFrame:
    """New losses, and kept ones of other networks and seeds; sorted."""
    table = pd.DataFrame(new, columns=["network", "seed", "validation_loss"])
    if kept is not None:
        table = pd.concat([table, kept[table.columns]]) if len(table) else kept[table.columns]
    return table.drop_duplicates(["network", "seed"]).sort_values(["network", "seed"])


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
    ladder = plain_ladder(scores)
    logs = scores.map(math.log10)
    means = {
        name: moderate(t_interval(logs[name] - logs[PLAIN]), SCORE.spread)
        for name in connections_of(scores)
    }
    rows = verdicts(means, "network", LOOKS)
    read = [
        multiplier(ladder, scores[row["network"]], row["low"], row["high"])
        for row in rows.to_dict("records")
    ]
    rows[["multiplier", "least", "most"]] = read
    return rows


def connections_of(scores: pd.DataFrame) -> list[str]:
    """The networks that are neither the plain one nor one of its rungs."""
    return [name for name in scores if name != PLAIN and not RUNG.fullmatch(name)]


def plain_ladder(scores: pd.DataFrame) -> pd.DataFrame:
    """Losses of the plain network by seed, a column for each factor of its steps."""
    rungs = {1.0: PLAIN} | {
        int(rung[1]) / 100: name for name in scores if (rung := RUNG.fullmatch(name))
    }
    return pd.DataFrame({factor: scores[rungs[factor]] for factor in sorted(rungs)})


def multiplier(
    ladder: pd.DataFrame, scores: pd.Series, low: float, high: float
) -> tuple[float, float, float]:
    """The step multiplier of losses by seed, and its interval.

    `low` and `high` are the ends of the change of the loss in %.
    """
    # A higher loss is a smaller multiplier.
    ends = [math.log10(1 + end / 100) for end in (high, low)]
    least, most = read_differences(ladder, ladder[1.0], ends, 1, ratio=True)
    middle = log_multipliers(ladder, scores, 1).mean()
    return math.exp(middle), math.exp(least), math.exp(most)


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


def lines(table: pd.DataFrame) -> Iterator[str]:
    """The rows of `against_plain` as lines of the document, the lowest loss first."""
    for row in against_plain(table).sort_values("effect").to_dict("records"):
        change = change_in_words(row["effect"], row["low"], row["high"])
        steps = steps_in_words(row["multiplier"], row["least"], row["most"])
        yield f"| `{row['network']}` | {change} | {steps} | {row['verdict']} |"


def line_of(name: str, row: Mapping[str, Any]) -> str:
    """A row of `verdicts` as a line of the document."""
    change = change_in_words(row["effect"], row["low"], row["high"])
    return f"| {name} | {change} | {row['verdict']} |"


def change_in_words(effect: float, low: float, high: float) -> str:
    """A change of the loss with its interval, as in '-1.40 % (-2.84 to +0.05)'."""
    return f"{effect:+.2f} % ({low:+.2f} to {high:+.2f})"


def steps_in_words(middle: float, least: float, most: float) -> str:
    """A step multiplier with its interval, as in '1.19 (1.12 to 1.26)'."""
    return f"{middle:.2f} ({least:.2f} to {most:.2f})"
