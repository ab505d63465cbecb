"""README's blocks of the kept result: its finding, worth, answers and verdicts."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fathom.analysis.claims import Published
from fathom.analysis.claims.evidence import NOT_REPRODUCED, VERDICTS
from fathom.analysis.significance import BETTER, EQUIVALENT, UNDECIDED, WORSE
from fathom.analysis.tables import read_table
from fathom.analysis.worth import BEST_RATES
from fathom.config import read_yaml
from fathom.report.comparisons import WITHIN
from fathom.report.kept import first_screen
from fathom.report.records import Record
from fathom.report.render import as_prose
from fathom.report.worth import WorthPresenter, overhead, pays_below, present_worth, steps_saved
from fathom.settings import join_values, validate

REFERENCE, PUBLISHED = Path("results/reference"), Path("report/published.yaml")
CONFIG = Path("config.yaml"), Path("workflow/presets/reference.yaml")

SCORES = f"""\
![Score against depth, by variant and recipe]({REFERENCE}/figures/overview/score_against_depth.png)

*Score against depth in four studies. A point is the mean over seeds, a bar their range, a hollow
point a run at chance, a cross a diverged run.*
"""
"""The figure of a kept result without a ladder."""


def finding() -> str:
    """The first sentence of the kept result, and the figure that shows it."""
    first, shown = first_screen(REFERENCE, _published(), _labels()), _worth()
    mark = "" if first.title.endswith("?") else "."
    figure = worth_figure(shown) if shown else ""
    return f"**{as_prose(first.title)}{mark}** {as_prose(first.advice)}\n\n{figure or SCORES}"


ALT = (
    "Step multiplier against the time of a step: a point for each connection, and the line where "
    "one pays for its cost"
)


def worth_figure(shown: WorthPresenter) -> str:
    """The figure of worth against cost with its caption; empty where no step was timed."""
    timed = [row for row in shown.rows if row["cost"] > 0]
    if not timed:
        return ""
    row, wider = timed[0], _first_number(timed, "wider")
    file = REFERENCE / "figures" / shown.study / row["platform"].name / "worth.png"
    hollow = (
        f" Hollow: the time with {wider:g} channels, where the multiplier may differ."
        if wider
        else ""
    )
    return f"""\
![{ALT}]({file.as_posix()})

*{row["depth"]:g} layers. Up: the step multiplier, with its 95 % interval over seeds. Right: the
time of a step over that of the plain network.{hollow} Above the break-even line a connection ends
better than the plain network does in the same training time.*
"""


def worth() -> str:
    """The table of worth under its heading; empty for a kept result without a ladder."""
    shown = _worth()
    if not shown:
        return ""
    return worth_section(shown, _published().worth.task, _labels()) + at_sizes(REFERENCE / "tables")


def at_sizes(tables: Path) -> str:
    """Where step multipliers of other sizes are; empty for a kept result without sizes."""
    file = tables / "sizes.csv"
    sizes = read_table(file) if file.is_file() else pd.DataFrame()
    if sizes.empty:
        return ""
    channels, layers, steps = (
        sorted(set(sizes[name].astype(int))) for name in ("channels", "layers", "steps")
    )
    found = [f"{join_values(channels)} channels", f"{join_values(layers)} layers"]
    found += [f"{join_values(steps)} steps"] if len(steps) > 1 else []
    page = f"{REFERENCE}/RESULTS.md#does-it-hold-at-other-sizes"
    return f"""\
RESULTS.md also has [other sizes]({page}): {join_values(found)}.

"""


def worth_section(shown: WorthPresenter, task: str, labels: Mapping[str, str]) -> str:
    """A row for each connection that ends better or worse, and the names of the others."""
    rows, first = shown.rows, shown.rows[0]
    told = [row for row in rows if row["verdict"] in (BETTER, WORSE)]
    others = {
        EQUIVALENT: f"Equivalent {WITHIN}",
        UNDECIDED: "Undecided, after the correction for many questions",
    }
    named = "\n\n".join(
        f"{words}: {as_prose(', '.join(names))}."
        for verdict, words in others.items()
        if (names := [_name(row, labels) for row in rows if row["verdict"] == verdict])
    )
    study = f"{REFERENCE}/studies/{shown.study}.md"
    rates = "At *best rates* each network has its own best learning rate. "
    return f"""\
## {as_prose(shown.title)}

Results on {task}, {first["depth"]:g} layers. *Steps saved* is the share of the plain network's
training steps that a connection saves, with its 95 % interval over seeds
([definition](docs/definitions.md#worth), [study]({study})).
{rates if any(row["rate"] == BEST_RATES for row in rows) else ""}These connections end significantly
better or worse:

{worth_table(told, _first_number(rows, "width"), _first_number(rows, "wider"), labels)}
{named}

"""


def worth_table(
    rows: Sequence[Record], width: float, wider: float, labels: Mapping[str, str]
) -> str:
    """Steps saved and costs, a row for each of `rows`; costs at two widths, 0 if not timed."""
    head = ["connection", "steps saved", "pays if a step costs"]
    head.append(f"a step costs, {width:g} channels" if width else "a step costs")
    head += [f"{wider:g} channels"] if wider else []
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for row in rows:
        limit = pays_below(row)
        cells = [_name(row, labels), steps_saved(row)]
        cells += [f"less than {limit}" if limit else "–", overhead(row["cost"]) or "–"]
        cells += [overhead(row["cost_wider"]) or "–"] if wider else []
        lines.append(f"| {' | '.join(map(as_prose, cells))} |")
    return "\n".join([*lines, ""])


def answers() -> str:
    """Every question to the kept result, with its answer; RESULTS.md has the evidence."""
    lines = ["| question | answer |", "|---|---|"]
    for row in first_screen(REFERENCE, _published(), _labels()).answers:
        lines.append(f"| {as_prose(row.question)} | **{as_prose(row.answer)}** |")
    return "\n".join([*lines, ""])


def scorecard() -> str:
    """Counts of claims by source and verdict in the kept result."""
    sources = _published().sources
    table = read_table(REFERENCE / "tables/verdicts.csv")
    rows = [f"| source | {' | '.join(VERDICTS)} |", f"|---|{'---:|' * len(VERDICTS)}"]
    for source, claims in table.groupby("source", sort=False):
        counts = [str((claims["verdict"] == verdict).sum()) for verdict in VERDICTS]
        if undecided := int(claims["undecided"].sum()):
            counts[VERDICTS.index(NOT_REPRODUCED)] += f" ({undecided} undecided)"
        rows.append(f"| {sources[source].title} | {' | '.join(counts)} |")
    return "\n".join(rows) + "\n"


BLOCKS = {"finding": finding, "worth": worth, "answers": answers, "scorecard": scorecard}
"""By the name in README's marks."""


def _published() -> Published:
    return validate(Published, read_yaml(PUBLISHED), str(PUBLISHED))


def _labels() -> Mapping[str, str]:
    return ChainMap(*(read_yaml(file).get("labels", {}) for file in CONFIG))


def _worth() -> WorthPresenter | None:
    """Worth of connections in the kept result; None without a ladder."""
    file = REFERENCE / "tables/worth.csv"
    rows = read_table(file) if file.is_file() else pd.DataFrame()
    return present_worth(_published().worth, rows, _labels())


def _name(row: Record, labels: Mapping[str, str]) -> str:
    rate = " (best rates)" if row["rate"] == BEST_RATES else ""
    return labels.get(row["variant"], row["variant"]) + rate


def _first_number(rows: Sequence[Record], column: str) -> float:
    """The first positive number of a column; 0 if it has none."""
    return next((row[column] for row in rows if row[column] > 0), 0)
