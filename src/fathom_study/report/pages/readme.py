"""README's blocks of the kept result: its finding, worth, answers and verdicts."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fathom.settings import validate
from fathom_study.analysis.claims import Published, load_published
from fathom_study.analysis.claims.evidence import NOT_REPRODUCED, VERDICTS
from fathom_study.analysis.significance import BETTER, EQUIVALENT, UNDECIDED, WORSE
from fathom_study.analysis.tables import read_table
from fathom_study.analysis.worth import BEST_RATES
from fathom_study.config import load_config, read_yaml
from fathom_study.report.pages.render import as_prose, environment_of_reports, prefix_links
from fathom_study.report.tables.effect_words import WITHIN, marked
from fathom_study.report.tables.formatting import list_words, markdown_table
from fathom_study.report.tables.records import Record
from fathom_study.report.tables.worth_words import (
    OPERATIONS,
    VERDICT,
    WorthPresenter,
    present_worth,
    worth_columns,
)

REFERENCE, PUBLISHED = Path("results/reference"), Path("report/published.yaml")
CONFIG = Path("config.yaml"), Path("workflow/presets/reference.yaml")


def finding() -> str:
    """The first sentence of the kept result, and the figure that shows it."""
    shown = _worth()
    figure = worth_figure(shown, _published().worth.task, _labels(), _sizes())
    return f"**{as_prose(shown.title)}** {as_prose(shown.advice)}\n\n{figure}"


ALT = "A row for each connection, by verdict: its step multiplier, and the time of its step"


def worth_figure(
    shown: WorthPresenter, task: str, labels: Mapping[str, str], sizes: pd.DataFrame
) -> str:
    """The figure of worth and cost with its caption."""
    row = next(row for row in shown.rows if row["cost"] > 0)
    file = REFERENCE / "figures" / shown.study / row["platform"].name / "worth.png"
    few, many = (f(r["seeds"] for r in shown.rows) for f in (min, max))
    seeds = f"{few:g} to {many:g}" if few < many else f"{few:g}"
    machine, own = labels.get(row["machine"], row["machine"]), sizes["study"] == shown.study
    parameters, steps = sizes.loc[own, ["parameters", "steps"]].iloc[0]
    size = f"{parameters / 1e6:.1f} million parameters, {steps} steps"
    return f"""\
![{ALT}]({file.as_posix()})

*{task.capitalize()}, {row["depth"]:g} layers, {size}, {seeds} seeds. Dot: the step multiplier, with
its 95 % interval: the factor by which a plain network has to train longer to reach the same loss.
Bar: the time of a step relative to the plain network's, on {machine} with {row["width"]:g}
channels, if it was timed. A connection pays if its dot is right of its bar. Undecided: neither
better, worse nor equivalent after the correction for many comparisons. Intervals are drawn without
that correction, so an undecided one may exclude 1.*
"""


def worth() -> str:
    """The table of worth under its heading, and a list of other sizes."""
    section = worth_section(_worth(), _published().worth.task, _labels())
    return section + at_sizes(_sizes())


def at_sizes(sizes: pd.DataFrame) -> str:
    """A list of other sizes; one of the answers has the results there."""
    phrases = [
        f"{list_words(sorted(set(sizes[column].astype(int))))} {column}"
        for column in ("channels", "layers", "steps")
        if sizes[column].nunique() > 1
    ]
    return f"""\
RESULTS.md also has [other sizes]({REFERENCE}/RESULTS.md#does-it-hold-at-other-sizes):
{"; ".join(phrases)}.

"""


def worth_section(shown: WorthPresenter, task: str, labels: Mapping[str, str]) -> str:
    """Table of connections that are better or worse, and sentences on the others."""
    rows, first = shown.rows, shown.rows[0]
    by_verdict = {
        verdict: [row for row in rows if row["verdict"] == verdict]
        for verdict in (EQUIVALENT, UNDECIDED)
    }
    equal = ", ".join(_name(row, labels) for row in by_verdict[EQUIVALENT])
    differing = [row for row in rows if row["verdict"] in (BETTER, WORSE)]
    study = f"{REFERENCE}/studies/{shown.study}.md"
    rates = "At its *best rate* each network has its own best learning rate. "
    others = f"Equivalent {WITHIN}: {as_prose(equal)}.\n\n" if equal else ""
    others += undecided(by_verdict[UNDECIDED], labels)
    return f"""\
## {as_prose(shown.title)}

Results on {task}, {first["depth"]:g} layers. *Steps saved* is the share of the plain network's
training steps that a connection saves, with its 95 % interval over seeds
([definition](docs/definitions.md#worth), [study]({study})).
{rates if any(row["rate"] == BEST_RATES for row in differing) else ""}These are significantly better
or worse:

{worth_table(differing, labels)}
{others}"""


def undecided(rows: Sequence[Record], labels: Mapping[str, str]) -> str:
    """Names of undecided connections, and the number of those with fewest seeds; empty if none."""
    if not rows:
        return ""
    least = min(row["seeds"] for row in rows)
    named = "; ".join(_name(row, labels) for row in rows if row["seeds"] > least)
    few = sum(row["seeds"] == least for row in rows)
    rest = f"{few} comparison{'s' if few > 1 else ''} of {least} seeds"
    rest = f"{as_prose(named)}; and {rest}" if named else rest
    return f"""\
Undecided, after the correction for many questions: {rest}
([all rows]({REFERENCE}/RESULTS.md)).

"""


def worth_table(rows: Sequence[Record], labels: Mapping[str, str]) -> str:
    """Table of steps saved and costs, one line for each of `rows`."""
    columns = worth_columns(rows)
    columns = {head: columns[head] for head in columns if head not in (OPERATIONS, VERDICT)}
    cells = (
        [
            as_prose(marked(_name(row, labels), row)),
            *(cell(row) or "–" for cell in columns.values()),
        ]
        for row in rows
    )
    return markdown_table(["connection", *columns], cells, len(columns))


def answers() -> str:
    """Table of questions to the kept result, with answers and evidence."""
    config = load_config(CONFIG)
    templates = PUBLISHED.parent / "templates"
    reports = environment_of_reports(
        config, load_published(PUBLISHED, config), templates, REFERENCE
    )
    rows = (
        (
            as_prose(question),
            f"**{as_prose(answer)}**",
            prefix_links("; ".join(evidence), f"{REFERENCE}/"),
        )
        for question, answer, evidence in reports.get_template("answers.j2").module.answers
    )
    return markdown_table(["question", "answer", "evidence"], rows)


def scorecard() -> str:
    """Counts of claims by source and verdict in the kept result."""
    sources = _published().sources
    table = read_table(REFERENCE / "tables/verdicts.csv")
    rows = []
    for source, claims in table.groupby("source", sort=False):
        counts = [str((claims["verdict"] == verdict).sum()) for verdict in VERDICTS]
        if undecided := int(claims["undecided"].sum()):
            counts[VERDICTS.index(NOT_REPRODUCED)] += f" ({undecided} undecided)"
        rows.append([sources[source].title, *counts])
    return markdown_table(["source", *VERDICTS], rows, len(VERDICTS))


BLOCKS = {"finding": finding, "worth": worth, "answers": answers, "scorecard": scorecard}
"""Functions that write README's blocks, by the name in its marks."""


def _published() -> Published:
    return validate(Published, read_yaml(PUBLISHED), str(PUBLISHED))


def _labels() -> Mapping[str, str]:
    return ChainMap(*(read_yaml(file).get("labels", {}) for file in CONFIG))


def _worth() -> WorthPresenter:
    rows = read_table(REFERENCE / "tables/worth.csv")
    return present_worth(_published().worth, rows, _labels())


def _sizes() -> pd.DataFrame:
    return read_table(REFERENCE / "tables/sizes.csv")


def _name(row: Record, labels: Mapping[str, str]) -> str:
    rate = ", each at its best rate" if row["rate"] == BEST_RATES else ""
    return labels.get(row["variant"], row["variant"]) + rate
