"""The list of reports, one per template or per study.

The workflow reads this at every start.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fathom.settings import ConfigError, unknown
from fathom.system.text import load_json, one_line
from fathom_study.config import Config

STUDY = "STUDY"
"""Placeholder for a study's name in the name of a template."""

VERDICTS_AND_TESTS = ("verdicts", "claims")
"""Tables of a kept result that reports read."""

DEFINITIONS = Path("docs/definitions")
"""Folder of the definitions, in the project."""

DOCUMENTS = (f"{DEFINITIONS.name}/*.md", "schemes.md")
"""Patterns of the files of docs/ that reports link to; the page includes them."""


BOARD = "BOARD.md"
"""Report of a config with a board."""

PAGE = "index.html"

NEEDS = {PAGE: ("markdown_it", "vl_convert"), "fathom.pdf": ("typst",)}
"""Packages that the page and the paper need."""

CONFIG = "config.json"
"""File with the config of the reports in the same folder."""


def check_folder(config: Config) -> None:
    """Raise ConfigError if the report folder holds reports of a config with no study in common.

    An edited config still has some studies in common.
    """
    file = Path(config.report_folder) / CONFIG
    try:
        there = load_json(file.read_text(encoding="utf-8"))["studies"].keys()
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return  # nothing there, or its config is unknown
    if there and there.isdisjoint(config.studies):
        raise ConfigError(
            f"{file}: belongs to a config with other studies ({one_line(', '.join(there), 60)}), "
            f"whose reports would be replaced; add `results: {config.results}/NAME` to yours, or "
            "delete this file to replace them"
        )


def check_is_no_report_folder(folder: Path) -> None:
    """Raise ConfigError if a folder holds the tables and reports of a config."""
    if (folder / CONFIG).exists():
        raise ConfigError(
            f"{folder}: has the results of a config; choose another folder with --out"
        )


def kept_tables(config: Config) -> list[str]:
    """Tables of the kept result, if there is one, that reports show beside their own."""
    folder = Path(config.reference or "") / "tables"
    files = [folder / f"{name}.csv" for name in VERDICTS_AND_TESTS]
    return [str(file) for file in files if file.is_file()]


def why_left_out(document: str) -> str:
    """Message on a missing package that the page or the paper needs; empty if none is missing."""
    for package in NEEDS[document]:
        if importlib.util.find_spec(package) is None:
            return (
                f"{package} is not installed here: {document} is left out; "
                "run: pip install -e '.[workflow]'"
            )
    return ""


@dataclass(frozen=True)
class Report:
    """A report, its template and its study."""

    name: str
    """File of the report, relative to the folder of reports."""
    template: str
    """Template of the report, relative to the folder of templates."""
    study: str | None = None
    """The study of the page; None for a page of all studies."""


def reports_of(config: Config, templates: Path) -> list[Report]:
    """All reports: one for `NAME.SUFFIX.j2`, one per study for `studies/STUDY.SUFFIX.j2`.

    BOARD is only in the list if the config has a board.
    Raises ConfigError naming a folder without templates, or a study whose part has no template.
    """
    parts = {file.stem for file in templates.glob("parts/*.j2")}
    for name, study in config.studies.items():
        if study.part and study.part not in parts:
            problem = unknown("part", study.part, sorted(parts))
            raise ConfigError(f"studies.{name}.part: {problem}; parts are in {templates}/parts")
    whole = [file.name for file in sorted(templates.glob("*.*.j2"))]
    if not config.board:
        whole = [name for name in whole if name != f"{BOARD}.j2"]
    pages = [f"studies/{file.name}" for file in sorted(templates.glob(f"studies/{STUDY}.*.j2"))]
    if not (whole or pages):
        raise ConfigError(
            f"{templates}: has no report template, such as NAME.md.j2; see --templates"
        )
    return [
        *(Report(name.removesuffix(".j2"), name) for name in whole),
        *(
            Report(page.removesuffix(".j2").replace(STUDY, study), page, study)
            for page in pages
            for study in config.studies
        ),
    ]


def where_results_are(config: Config, studies: Collection[str], options: Sequence[str]) -> str:
    """Lines that name the results that are there, and the next step.

    `studies`: those whose reports were asked for; `options`: of `fathom`, for the same config.
    """
    folder = config.report_folder
    page = f"{folder}/{PAGE}"
    documents = {
        page: "every result as a page; open it in a browser",
        f"{folder}/fathom.pdf": "the paper",
        f"{folder}/RESULTS.md": "every result as text",
    }
    if studies:
        documents = {f"{folder}/studies/{name}.md": f"the report of {name}" for name in studies}
    lines = [f"{file}: {what}" for file, what in documents.items() if Path(file).exists()]
    folders = (f"{folder}/figures", f"{folder}/tables", f"{config.results}/runs")
    last = [f"{part}: the {Path(part).name}" for part in folders if Path(part).exists()]
    if page in documents and Path(page).exists():
        status = shlex.join(["fathom", "status", *options])
        after = f"`{status}` lists comparisons that more seeds may decide"
    else:
        after = "`snakemake all` with the same options makes every table, figure and the page"
    return "\n".join([*(lines or last[:1]), f"next: {after}"])
