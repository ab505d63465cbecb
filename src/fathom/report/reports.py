"""The list of reports, one per template or per study.

The workflow reads this at every start.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from fathom.config import Config
from fathom.settings import ConfigError
from fathom.system.text import load_json, one_line

STUDY = "STUDY"
"""The placeholder for every study of the config in the name of a template."""

VERDICTS_AND_TESTS = ("verdicts", "claims")
ANSWERS, WORTH = "answers", "worth"
"""The tables of a kept result that reports read: of claims, of tests, of the first screen."""

DOCUMENTS = ("definitions.md", "schemes.md")
"""The files of docs that reports lead to; the page has them too."""


NEEDS = {"index.html": ("markdown_it", "vl_convert"), "fathom.pdf": ("typst",)}
"""The page and the paper, and the packages that make them."""

CONFIG = "config.json"
"""The file with the config of the reports beside it."""


def check_folder(config: Config) -> None:
    """Raise ConfigError if the folder of reports has those of a config without any of its studies.

    A config that was edited has some of them still.
    """
    file = Path(config.report_folder) / CONFIG
    try:
        there = load_json(file.read_text(encoding="utf-8"))["studies"].keys()
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return  # nothing is there, or nothing that says whose it is
    if there and there.isdisjoint(config.studies):
        raise ConfigError(
            f"{file}: is of a config with other studies ({one_line(', '.join(there), 60)}), whose "
            f"reports would be replaced; add `results: {config.results}/NAME` to yours, or delete "
            "this file if yours takes its place"
        )


def kept_tables(config: Config) -> list[str]:
    """The tables of the kept result, where there is one, that reports show beside their own."""
    folder = Path(config.reference or "") / "tables"
    files = [folder / f"{name}.csv" for name in (*VERDICTS_AND_TESTS, ANSWERS, WORTH)]
    return [str(file) for file in files if file.is_file()]


def why_left_out(document: str) -> str:
    """Which package the page or the paper lacks; empty if none."""
    for package in NEEDS[document]:
        if importlib.util.find_spec(package) is None:
            return (
                f"{package} is not installed here: {document} is left out "
                "(pip install -e '.[workflow]' brings it)"
            )
    return ""


@dataclass(frozen=True)
class Report:
    """A report, its template and its study."""

    name: str
    """Its file, in the folder of the results."""
    template: str
    """Its template, in the folder of templates."""
    study: str | None = None
    """The study of the page; None for a page of all studies."""


def reports_of(config: Config, templates: Path) -> list[Report]:
    """Every report: of `NAME.SUFFIX.j2` one, of `studies/STUDY.SUFFIX.j2` one for each study.

    Raises ConfigError naming a folder without templates.
    """
    whole = [file.name for file in sorted(templates.glob("*.*.j2"))]
    pages = [f"studies/{file.name}" for file in sorted(templates.glob(f"studies/{STUDY}.*.j2"))]
    if not (whole or pages):
        raise ConfigError(
            f"{templates}: has no template of a report, as NAME.md.j2; see --templates"
        )
    return [
        *(Report(name.removesuffix(".j2"), name) for name in whole),
        *(
            Report(page.removesuffix(".j2").replace(STUDY, study), page, study)
            for page in pages
            for study in config.studies
        ),
    ]
