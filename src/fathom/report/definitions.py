"""Tables in documents: of metrics and schemes, from the registries that define what they list.

README has those of the kept result: what it answers, and its verdicts.
"""

from __future__ import annotations

import re
from collections import ChainMap
from pathlib import Path

import yaml

from fathom import tasks
from fathom.analysis.claims import Published
from fathom.analysis.claims.evidence import NOT_REPRODUCED, VERDICTS
from fathom.analysis.tables import read_table
from fathom.config import read_yaml
from fathom.report.kept import first_screen
from fathom.report.render import as_prose
from fathom.report.schemes import components_tables, schemes_table
from fathom.settings import validate

MARKED = re.compile(r"(<!-- ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)

REFERENCE, PUBLISHED = Path("results/reference"), Path("report/published.yaml")
CONFIG = Path("config.yaml"), Path("workflow/presets/reference.yaml")


def with_tables(text: str) -> str:
    """The document with what stands between its marks replaced by today's tables.

    What comes from the kept result stays as it is in a project without one.
    """
    tables = {
        "step metrics": step_table,
        "run metrics": run_table,
        "schemes": schemes_table,
        "components": components_tables,
    }
    if (REFERENCE / "tables/answers.csv").exists():
        tables |= {"answers": answers, "scorecard": scorecard}
    return MARKED.sub(lambda m: f"{m[1]}{tables[m[2]]()}{m[3]}" if m[2] in tables else m[0], text)


def step_table() -> str:
    """A row for each metric of a step, those with the same words in one."""
    rows: dict[str, list[str]] = {}
    for name, metric in tasks.step_metrics().items():
        when = "" if metric.when == "every step" else f"{metric.when} only: "
        along = f", along the {metric.along}" if metric.along else ""
        rows.setdefault(when + metric.definition + along, []).append(name)
    return _table("field", rows)


def run_table() -> str:
    """A row for each metric of a run."""
    rows: dict[str, list[str]] = {}
    for name, metric in tasks.run_metrics().items():
        sources = [f"`{name}`" for name in (metric.of, metric.times) if name]
        meaning = f"{metric.definition} (from {' times the last '.join(sources)})"
        rows.setdefault(meaning, []).append(name)
    return _table("column", rows)


def answers() -> str:
    """The first screen of the kept result: its title, its advice, and every question."""
    published = validate(Published, read_yaml(PUBLISHED), str(PUBLISHED))
    labels = ChainMap(*(read_yaml(file).get("labels", {}) for file in CONFIG))
    kept = first_screen(REFERENCE, published, labels)
    lines = ["| question | answer | evidence |", "|---|---|---|"]
    for row in kept.answers:
        links = (f"[{as_prose(one.text)}]({REFERENCE}/{one.link})" for one in row.evidence)
        question, answer = as_prose(row.question), as_prose(row.answer)
        lines.append(f"| {question} | **{answer}** | {'; '.join(links)} |")
    return "\n".join([f"### {kept.title}\n\n**{kept.advice}**\n", *lines, ""])


def scorecard() -> str:
    """Counts of claims by source and verdict in the kept result."""
    sources = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))["sources"]
    table = read_table(REFERENCE / "tables/verdicts.csv")
    rows = [f"| source | {' | '.join(VERDICTS)} |", f"|---|{'---:|' * len(VERDICTS)}"]
    for source, claims in table.groupby("source", sort=False):
        counts = [str((claims["verdict"] == verdict).sum()) for verdict in VERDICTS]
        if undecided := int(claims["undecided"].sum()):
            counts[VERDICTS.index(NOT_REPRODUCED)] += f" ({undecided} undecided)"
        rows.append(f"| {sources[source]['title']} | {' | '.join(counts)} |")
    return "\n".join(rows) + "\n"


def _table(head: str, rows: dict[str, list[str]]) -> str:
    lines = [f"| {head} | meaning |", "|---|---|"]
    for meaning, names in rows.items():
        quoted = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {quoted} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"
