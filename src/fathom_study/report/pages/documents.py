"""Tables of metrics and schemes in documents, made from the registries of both.

README also has tables of the kept result (`readme.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fathom_study import tasks
from fathom_study.report.pages import readme
from fathom_study.report.tables.formatting import markdown_table
from fathom_study.report.tables.scheme_words import components_tables, schemes_table

MARKED = re.compile(r"(<!-- ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """The document with the text between its marks replaced by current tables.

    Tables of the kept result stay unchanged in a project without one.
    """
    tables = {
        "step metrics": step_table,
        "run metrics": run_table,
        "components": components_tables,
    }
    if (readme.REFERENCE / "tables/cells.csv").exists():
        tables |= {"schemes": schemes_table, **readme.BLOCKS}
    return MARKED.sub(lambda m: f"{m[1]}{tables[m[2]]()}{m[3]}" if m[2] in tables else m[0], text)


def step_table() -> str:
    """Table of step metrics; metrics with the same meaning share a row."""
    rows: dict[str, list[str]] = {}
    for name, metric in tasks.step_metrics().items():
        when = "" if metric.when == "every step" else f"{metric.when} only: "
        along = f", along the {metric.along}" if metric.along else ""
        rows.setdefault(when + metric.definition + along, []).append(name)
    return _table("field", rows)


def run_table() -> str:
    """Table of run metrics; metrics with the same meaning share a row."""
    rows: dict[str, list[str]] = {}
    for name, metric in tasks.run_metrics().items():
        sources = [f"`{name}`" for name in (metric.of, metric.times) if name]
        meaning = f"{metric.definition} (from {' times the last '.join(sources)})"
        rows.setdefault(meaning, []).append(name)
    return _table("column", rows)


def _table(head: str, rows: Mapping[str, Sequence[str]]) -> str:
    quoted = ((", ".join(f"`{name}`" for name in names), words) for words, names in rows.items())
    return markdown_table([head, "meaning"], quoted)
