"""index.html from tables, reports and figures: one page that opens from disk and loads nothing.

Its prose comes from the Markdown reports and from documents that they link to. Its claims, its
curves and the rows behind each number come from the tables. The explorer is a specification for
Vega-Lite, in report/page/explorer.js; the script of Vega-Lite is in the page too.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from markupsafe import Markup

from fathom.settings import ConfigError
from fathom_study.analysis.claims import Published
from fathom_study.analysis.platforms import labels_of
from fathom_study.analysis.tables import read_table
from fathom_study.config import Config, read_yaml
from fathom_study.report.pages.explorer import studies_of
from fathom_study.report.pages.lines import Line, evidence_of
from fathom_study.report.pages.packing import packed
from fathom_study.report.pages.render import (
    check_numbers,
    environment_of,
    fill,
    link_to,
    present_reference,
)
from fathom_study.report.pages.reports import BOARD, DOCUMENTS, PAGE
from fathom_study.report.tables.claim_words import VerdictsPresenter
from fathom_study.system.files import write_text

FIRST = "RESULTS.md"
SCORECARD = (FIRST, "scorecard")
"""The report and the part of it whose table of claims the page draws itself, with a filter."""


def write_page(
    config: Config, published: Published, templates: Path, folder: Path, figures: Path
) -> None:
    """Write `folder`/index.html from the reports and tables in `folder` and from `figures`.

    Raises ConfigError naming the template if it cannot be filled or has a hand-typed number, and if
    there is no report; ModuleNotFoundError if vl_convert or markdown_it is not installed.
    """
    from fathom_study.report.pages.sections import read_sections

    check_numbers(templates)
    reports = {name: folder / name for name in reports_in(config, folder)}
    if not reports:
        raise ConfigError(f"{folder}: has no report for the page; run: snakemake report")
    tables = folder / "tables"
    docs = templates.parent.parent / "docs"
    documents = [file for pattern in DOCUMENTS for file in sorted(docs.glob(pattern))]
    at = link_to(config, docs)
    files = reports | {f"{at}/{file.relative_to(docs).as_posix()}": file for file in documents}
    labels = labels_of(read_table(tables / "cells.csv")["platform"], config.labels)
    environment = environment_of(
        [templates, templates.parent / "templates"], labels, autoescape=True
    )
    lines: set[Line] = set()
    replaced = {}
    if (tables / "verdicts.csv").is_file():
        verdicts, claims = (read_table(tables / f"{name}.csv") for name in ("verdicts", "claims"))
        shown = VerdictsPresenter(verdicts, claims, config.studies)
        lines |= {("claims.csv", test["line"]) for r in shown.rows if (test := shown.deciding(r))}
        environment.globals |= {
            "verdicts": shown,
            "reference": present_reference(config),
            "sources": published.sources,
        }
        replaced[SCORECARD] = Markup(fill(environment, "claims.html.j2"))  # noqa: S704, it escapes
    kept = Path(config.reference or "")
    reference = link_to(config, kept) if config.reference and (kept / PAGE).is_file() else ""
    sections = read_sections(files, figures, replaced, lines, reference)
    columns = read_yaml(templates / "columns.yaml")
    main = [published.worth.study] if published.worth else []  # the explorer opens on it
    sourced = labels | {name: source.title for name, source in published.sources.items()}
    text = fill(
        environment,
        "index.html.j2",
        sections=sections,
        titles={name: labels.get(name, name) for name in dict.fromkeys((*main, *config.studies))},
        studies={name: packed(study) for name, study in studies_of(config, tables, labels).items()},
        evidence=packed(evidence_of(config, tables, lines, sourced, columns)),
        vega=packed(vega_script()),
        own={file.name: Markup(file.read_text("utf-8")) for file in templates.glob("*.*s")},  # noqa: S704
    )
    write_text(folder / PAGE, text)


def reports_in(config: Config, folder: Path) -> list[str]:
    """Paths of existing Markdown reports, from `folder`: results, board, studies, all others."""
    others = sorted({file.name for file in folder.glob("*.md")} - {FIRST, BOARD})
    known = [FIRST, BOARD, *(f"studies/{name}.md" for name in config.studies)]
    return [*(name for name in known if (folder / name).is_file()), *others]


@cache
def vega_script() -> str:
    """JavaScript that puts vegaEmbed, vega and vegaLite into the window."""
    from vl_convert import javascript_bundle

    return javascript_bundle()
