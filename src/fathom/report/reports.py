"""Which reports there are: it follows from the templates.

The workflow reads this at every start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fathom.config import Config
from fathom.settings import ConfigError

STUDY = "STUDY"
"""Stands, in the name of a template, for every study of the config."""

VERDICTS_AND_TESTS = ("verdicts", "claims")
ANSWERS = "answers"
"""The tables of a kept result that reports read: of claims, of tests, of the first screen."""

DOCUMENTS = ("definitions.md", "schemes.md")
"""The files of docs that reports lead to; the page has them too."""


@dataclass(frozen=True)
class Report:
    """A report, and what it is made from."""

    name: str
    """Its file, in the folder of the results."""
    template: str
    """Likewise, in the folder of templates."""
    study: str | None = None
    """Whose page it is, if it is one's."""


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
