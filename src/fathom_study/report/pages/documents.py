"""Tables in documents: from the code, from the kept result, and the index of definitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from fathom_study import tasks
from fathom_study.analysis.claims import load_published
from fathom_study.config import load_config
from fathom_study.report.pages.render import environment_of_reports
from fathom_study.report.pages.reports import DEFINITIONS
from fathom_study.report.pages.sections import slug
from fathom_study.report.tables.formatting import markdown_table
from fathom_study.report.tables.scheme_words import components_tables, schemes_table

MARKED = re.compile(r"(<!-- ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)

REFERENCE, PUBLISHED = Path("results/reference"), Path("report/published.yaml")
CONFIG = Path("config.yaml"), Path("workflow/presets/reference.yaml")
"""The kept result, the published values beside it, and its config."""

OF_README = ("finding", "worth", "answers", "scorecard")
"""Marks of README; `NAME_block` in templates/readme.j2 has the text of each."""


def with_tables(text: str) -> str:
    """The document with the text between its marks replaced by current tables.

    Tables of the kept result stay unchanged in a project without one.
    """
    tables: dict[str, Callable[[], object]] = {
        "step metrics": step_table,
        "run metrics": run_table,
        "components": components_tables,
        "index": index_table,
    }
    if (REFERENCE / "tables/cells.csv").exists():
        tables["schemes"] = schemes_table
        tables |= readme_blocks() if f"<!-- {OF_README[0]} -->" in text else {}
    return MARKED.sub(lambda m: f"{m[1]}{tables[m[2]]()}{m[3]}" if m[2] in tables else m[0], text)


def readme_blocks() -> dict[str, Callable[[], object]]:
    """Macros that write README's blocks of the kept result, by the name in their marks."""
    config = load_config(CONFIG)
    published = load_published(PUBLISHED, config)
    reports = environment_of_reports(config, published, PUBLISHED.parent / "templates", REFERENCE)
    reports.globals["kept"] = REFERENCE.as_posix()
    template = reports.get_template("readme.j2").module
    return {name: getattr(template, f"{name}_block") for name in OF_README}


def step_table() -> str:
    """Table of step metrics."""
    meanings = {}
    for name, metric in tasks.step_metrics().items():
        when = "" if metric.when == "every step" else f"{metric.when} only: "
        along = f", along the {metric.along}" if metric.along else ""
        meanings[name] = when + metric.definition + along
    return _table("field", meanings)


def run_table() -> str:
    """Table of run metrics."""
    meanings = {}
    for name, metric in tasks.run_metrics().items():
        sources = [f"`{name}`" for name in (metric.of, metric.times) if name]
        meanings[name] = f"{metric.definition} (from {' times the last '.join(sources)})"
    return _table("column", meanings)


DEFINED = re.compile(
    r"^(?P<level>#+) (?P<heading>.+)$|\*\*(?P<term>[^*\n]+)\*\*|^\| (?P<words>\*[^|]+\*) \|",
    re.MULTILINE,
)
"""A heading, a term in bold, or words in italics in the first column of a table."""


def index_table() -> str:
    """Headings and terms of the definitions in alphabetical order, with links to their places."""
    places: dict[str, dict[str, str]] = {}
    for file in sorted(set(DEFINITIONS.glob("*.md")) - {DEFINITIONS / "README.md"}):
        title = link = ""
        for part in DEFINED.finditer(file.read_text(encoding="utf-8")):
            if part["heading"]:
                title = part["heading"]
                link = file.name + ("" if part["level"] == "#" else f"#{slug(title)}")
            words = re.findall(r"\*([^*]+)\*", part["words"] or "")
            for word in words or [part["heading"] or part["term"]]:
                term = word.rstrip(".").removeprefix("The ")
                places.setdefault(term[0].upper() + term[1:], {})[link] = title
    table = (
        (term, ", ".join(f"[{title}]({link})" for link, title in places[term].items()))
        for term in sorted(places, key=lambda term: (slug(term), term))
    )
    return markdown_table(["term", "defined in"], table)


def _table(head: str, meanings: Mapping[str, str]) -> str:
    """A table of names; those with the same meaning share a row."""
    rows: dict[str, list[str]] = {}
    for name, meaning in meanings.items():
        rows.setdefault(meaning, []).append(f"`{name}`")
    return markdown_table([head, "meaning"], ((", ".join(rows[words]), words) for words in rows))
