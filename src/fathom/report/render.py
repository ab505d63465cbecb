"""Tables → RESULTS.md, a page for every study, COMPARISON.md.

Python here only looks up and formats what the tables hold; the words are in report/templates. A
name that a template misspells is an error, not a blank; so is a digit that does not come from an
expression, in backticks or not.
"""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path
from typing import Any

import jinja2

from fathom.analysis.attribution import APART
from fathom.analysis.claims import Published
from fathom.analysis.effects import ALIKE, HIGHER, LOGARITHMIC, LOWER, NO_EFFECT
from fathom.analysis.effects import MEASURES as EFFECT_MEASURES
from fathom.analysis.tables import CONFIDENCE, MIN_SEEDS, read_table
from fathom.config import Config
from fathom.measures import AT_CHANCE, EXPLODED_GRADIENT, RUN_MEASURES, STEP_MEASURES
from fathom.report.figures import figures_of, figures_of_study
from fathom.report.numbers import factor, largest, number, percent, plus_minus, ratio
from fathom.report.reports import reports_of
from fathom.report.views import (
    AttributionView,
    ReferenceView,
    StudyView,
    VerdictsView,
    left_out,
    quoted,
)
from fathom.settings import ConfigError
from fathom.system.files import write_text

TABLES = (
    "cells", "summary", "comparison", "platforms", "trajectories", "variance", "variance_summary",
    "effects", "published", "thresholds", "claims", "verdicts",
)  # fmt: skip


def write_reports(config: Config, published: Published, templates: Path, folder: Path) -> None:
    """Fill the template of every report, from the tables in `folder`, into `folder`.

    Templates write links as seen from there; those of a report in a folder inside are led up.

    Raises ConfigError naming the template and the line if it cannot be filled, or has a number of
    its own.
    """
    check_numbers(templates)
    environment = environment_of(templates)
    environment.filters |= {
        "number": number, "largest": largest, "percent": percent, "paragraphs": paragraphs,
    }  # fmt: skip
    # Global, so that a file of macros has it too.
    environment.globals |= context(config, published, templates, folder)
    views = {view.name: view for view in environment.globals["studies"]}
    for report in reports_of(config, templates):
        of_study = {"study": views[report.study]} if report.study else {}
        text = filled(environment, templates, report.template, **of_study)
        write_text(folder / report.name, led_up(text, report.name.count("/")))


def environment_of(templates: Path, **options: Any) -> jinja2.Environment:  # noqa: ANN401
    """Jinja's, for a folder of templates; `options` as it takes them."""
    return jinja2.Environment(  # noqa: S701, Markdown is not escaped as HTML is
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


def filled(
    environment: jinja2.Environment,
    templates: Path,
    name: str,
    **values: Any,  # noqa: ANN401
) -> str:
    """A template's text. Raises ConfigError naming the file and the line that cannot be filled."""
    try:
        return environment.get_template(name).render(**values)
    except jinja2.TemplateSyntaxError as error:
        # The file may be one that this one imports.
        where = f"{error.filename or templates / name}: line {error.lineno}"
        raise ConfigError(f"{where}: {error.message}") from error
    except jinja2.TemplateError as error:
        raise ConfigError(f"{place_of(error) or templates / name}: {error}") from error


RELATIVE_LINK = re.compile(r"(?<=\]\()(?!#|/|[a-z]+:)")


def led_up(text: str, folders: int) -> str:
    """Markdown with its relative links led so many folders up."""
    return RELATIVE_LINK.sub("../" * folders, text)


def context(config: Config, published: Published, templates: Path, folder: Path) -> dict[str, Any]:
    """Everything that a template may name."""
    tables = {name: read_table(folder / "tables" / f"{name}.csv") for name in TABLES}
    return {
        "studies": [
            StudyView(name, study, tables, figures_of_study(config, name))
            for name, study in config.studies.items()
        ],
        "overview": list(figures_of("overview").values()),
        "platforms": quoted(tables["platforms"]),
        "left_out": left_out(tables["cells"]),
        "sources": published.sources,
        "notes": published.notes,
        "verdicts": VerdictsView(tables["verdicts"], tables["claims"], config.studies),
        "reference": reference_of(config),
        "attribution": AttributionView(config, tables),
        "pm": plus_minus,
        "ratio": ratio,
        "factor": factor,
        "effect_measures": {
            m: STEP_MEASURES[RUN_MEASURES[m].of].label.replace("\n", " ") for m in EFFECT_MEASURES
        },
        "ratios": LOGARITHMIC,
        "tellings": TELLINGS,
        "ms": 1000,
        "cut": ", ".join(
            f"{axis} {' '.join(map(str, values))}" for axis, values in config.cut.items()
        ),
        "trains": config.train,
        "apart": f"{APART:g}",
        "confidence": round(100 * CONFIDENCE),
        "min_seeds": MIN_SEEDS,
        "at_chance": round(100 * AT_CHANCE),
        "exploded_gradient": f"{EXPLODED_GRADIENT:g}",
        "docs": _link(config, templates.parent.parent / "docs"),
    }


def reference_of(config: Config) -> ReferenceView:
    """The kept result that the config names, as reports see it."""
    if config.reference is None:
        return ReferenceView(None)
    return ReferenceView(Path(config.reference), _link(config, Path(config.reference)))


def _link(config: Config, folder: Path) -> str:
    """A folder as seen from the reports, which may be deeper than the default results folder."""
    return Path(os.path.relpath(folder, config.report_folder)).as_posix()


TELLINGS = {
    HIGHER: "ends at a higher loss than",
    LOWER: "ends at a lower loss than",
    ALIKE: "ends, but for rounding, at the same loss as",
    NO_EFFECT: "is not distinguishable from",
}
"""What an effect on the loss says of two variants, by its verdict."""


def paragraphs(text: str) -> list[str]:
    """What blank lines separate, each on one line; nothing for what is empty."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def place_of(error: jinja2.TemplateError) -> str:
    """The template and the line that raised it: Jinja puts its templates into the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{f.filename}: line {f.lineno}" for f in frames if f.filename.endswith(".j2")]
    return places[-1] if places else ""


# --- what a template may say by itself ----------------------------------------------------------

NOT_PROSE = re.compile(
    r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}"  # Jinja's own
    r"|\]\([^)\n]*\)|<[^>\n]*>",  # where links lead
    re.DOTALL,
)


def check_numbers(templates: Path) -> None:
    """Refuse a template with a digit outside an expression, be it a name's: `{{ "H_2" }}`.

    Raises ConfigError, one line for each find, naming template and line.
    """
    finds = []
    for template in sorted(templates.rglob("*.j2")):
        source = template.read_text(encoding="utf-8")
        # Blanked rather than removed, so that line numbers stay.
        prose = NOT_PROSE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)
        for line_number, line in enumerate(prose.splitlines(), start=1):
            for found in re.findall(r"[0-9][0-9.]*", line):
                finds.append(
                    f"{template}: line {line_number}: the number {found} is typed by hand; compute "
                    "it, or write {{ '...' }} around a name that has it"
                )
    if finds:
        raise ConfigError("\n".join(finds))
