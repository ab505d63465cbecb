"""Reports, figures and steps → index.html: one page that opens from disk and loads nothing.

Its words are those of the Markdown reports; report/page has only the frame: index.html.j2, page.css
and page.js. The script of plotly, which draws the curves, is in the page too.
"""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from fathom.analysis.tables import loss_units, read_table
from fathom.config import Config
from fathom.report.figures.frames import with_loss_unit
from fathom.report.page.curves import MOST_STEPS, SWATCH, Curves, curves_of
from fathom.report.page.evidence import evidence_of
from fathom.report.page.inline import packed
from fathom.report.render import check_numbers, environment_of, fill
from fathom.settings import ConfigError
from fathom.system.files import write_text

PAGE = "index.html"
TEMPLATE, STYLE, SCRIPT = "index.html.j2", "page.css", "page.js"
FIRST = "RESULTS.md"


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
    files = reports_in(config, folder)
    if not files:
        raise ConfigError(f"{folder}: has no report to make a page of; run: snakemake report")
    sections = read_sections(files, folder, figures)
    plots = plots_of(config, folder / "tables")
    named = {section.name for section in sections}
    text = fill(
        environment_of(templates, autoescape=True),
        TEMPLATE,
        sections=sections,
        plots=plots,
        most_steps=MOST_STEPS,
        swatch=SWATCH,
        evidence=evidence_of(
            (text for section in sections for text in (section.introduction, section.parts)),
            folder / "tables",
        ),
        plots_apart=[plot for study, plot in plots.items() if study not in named],
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


def plots_of(config: Config, tables: Path) -> dict[str, Curves]:
    """The curves of every study with a run that counts, in the order of the config."""
    steps, summary = (read_table(tables / name) for name in ("steps.csv.gz", "summary.csv"))
    steps = with_loss_unit(steps, loss_units(config))
    return {
        name: curves_of(name, study.labels, rows, summary, config.labels)
        for name, study in config.studies.items()
        if not (rows := steps[steps["study"] == name]).empty
    }


def _own(file: Path) -> Markup:
    """A file of the project, as it is."""
    return Markup(file.read_text(encoding="utf-8"))  # noqa: S704
