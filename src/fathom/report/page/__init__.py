"""Reports, figures and steps → index.html: one page that opens from disk and loads nothing.

Its words are those of the Markdown reports and of the documents that these lead to; report/page has
only the frame: index.html.j2, page.css and page.js. The script of plotly, which draws for the
explorer, is in the page too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup

from fathom import tasks
from fathom.analysis.platforms import labels_of
from fathom.analysis.tables import counted, loss_units, read_steps, read_table, scores_of
from fathom.config import Config
from fathom.report.figures.frames import with_loss_unit
from fathom.report.page.cards import packed_cards
from fathom.report.page.evidence import evidence_of
from fathom.report.page.explorer import EARLY, EVENLY, SWATCH, packed_study
from fathom.report.page.inline import packed
from fathom.report.render import check_numbers, environment_of, fill, link_to
from fathom.report.reports import DOCUMENTS
from fathom.report.schemes import COSTS
from fathom.settings import ConfigError
from fathom.system.files import write_text

PAGE = "index.html"
TEMPLATE, STYLE, SCRIPT = "index.html.j2", "page.css", "page.js"
FIRST = "RESULTS.md"
CONFIG = "config.json"


def page_of(templates: Path) -> Path:
    """The folder of the page's template, beside that of the reports' templates."""
    return templates.parent / "page"


def write_page(config: Config, templates: Path, folder: Path, figures: Path) -> None:
    """Write `folder`/index.html from the reports and tables in `folder` and from `figures`.

    Raises ConfigError naming the template if it cannot be filled or has a number of its own, and if
    there is no report; ModuleNotFoundError where plotly or markdown_it is not installed.
    """
    from plotly.offline import get_plotlyjs

    from fathom.report.page.markdown import read_sections

    check_numbers(templates)
    reports = {name: folder / name for name in reports_in(config, folder)}
    if not reports:
        raise ConfigError(f"{folder}: has no report to make a page of; run: snakemake report")
    titles = titles_of(config)
    docs = templates.parent.parent / "docs"
    documents = documents_of(reports.values(), docs, link_to(config, docs))
    sections = read_sections(reports | documents, figures, titles)
    text = fill(
        environment_of(templates, autoescape=True),
        TEMPLATE,
        sections=sections,
        titles=titles,
        explored=explored(config, folder / "tables"),
        about_steps=EVENLY + EARLY,
        swatch=SWATCH,
        config=shlex.quote(f"{config.report_folder}/{CONFIG}"),
        trains=config.train,
        cards=packed_cards(config, COSTS),
        evidence=evidence_of(
            (text for section in sections for text in (section.introduction, section.parts)),
            folder / "tables",
        ),
        style=_own(templates / STYLE),
        plotly=packed(get_plotlyjs()),
        script=_own(templates / SCRIPT),
    )
    write_text(folder / PAGE, text)


def reports_in(config: Config, folder: Path) -> list[str]:
    """The Markdown reports that are there, from `folder`: results, studies, whatever else."""
    others = sorted({file.name for file in folder.glob("*.md")} - {FIRST})
    known = [FIRST, *(f"studies/{name}.md" for name in config.studies)]
    return [*(name for name in known if (folder / name).is_file()), *others]


def documents_of(reports: Iterable[Path], folder: Path, link: str) -> dict[str, Path]:
    """The documents that links of reports lead to, by their path as seen from the page.

    `link`: how reports name the folder. All that are there, since they lead to each other, or none
    where no report leads to any: then the page has no use for them.
    """
    documents = {f"{link}/{name}": folder / name for name in DOCUMENTS}
    there = {name: file for name, file in documents.items() if file.is_file()}
    texts = [report.read_text(encoding="utf-8") for report in reports] if there else []
    return there if any(name in text for name in there for text in texts) else {}


def titles_of(config: Config) -> dict[str, str]:
    """What people read for the name of each study: its label, or what it is about."""
    return {
        name: config.labels.get(name) or study.description.removesuffix(".") or name
        for name, study in config.studies.items()
    }


def explored(config: Config, tables: Path) -> dict[str, Markup]:
    """What there is to draw of every study with a run that counts, in the order of the config."""
    units, scores = loss_units(config), scores_of(config)
    steps = with_loss_unit(read_steps(tables, config.studies), units)
    cells = counted(with_loss_unit(read_table(tables / "cells.csv"), units))
    labels = config.labels | labels_of(cells["platform"])
    return {
        name: packed_study(
            study.labels,
            config.plain(name),
            rows,
            cells[cells["study"] == name],
            scores[name],
            labels,
            tasks.presentation(study.task).depth_unit,
        )
        for name, study in config.studies.items()
        if not (rows := steps[steps["study"] == name]).empty
    }


def _own(file: Path) -> Markup:
    """A file of the project, as it is."""
    return Markup(file.read_text(encoding="utf-8"))  # noqa: S704
