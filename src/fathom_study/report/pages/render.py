"""Write RESULTS.md, COMPARISON.md and a page for every study from the tables.

This module only looks up and formats values of tables; the words are in report/templates. A
misspelt name in a template is an error, not a blank; so is a digit outside an expression, even in
backticks.
"""

from __future__ import annotations

import inspect
import os
import re
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from fathom.settings import ConfigError
from fathom.system.text import printable
from fathom_study import tasks
from fathom_study.analysis.attribution import APART, diverged_cells
from fathom_study.analysis.claims import Published
from fathom_study.analysis.ladder import DELTA
from fathom_study.analysis.pairs import AT_BEST_RATE
from fathom_study.analysis.platforms import labels_of
from fathom_study.analysis.statistics import CONFIDENCE, MIN_SEEDS
from fathom_study.analysis.step_times import with_times_of_networks
from fathom_study.analysis.tables import counted, read_table, read_with_times
from fathom_study.analysis.worth import FUSED_WIDTH
from fathom_study.board.rows import board_rows
from fathom_study.config import Config
from fathom_study.metrics.scores import LEARNED
from fathom_study.report.figures import figures_of, figures_of_study, left_out
from fathom_study.report.figures.frames import sweeps
from fathom_study.report.integrity.kept import REMEDY
from fathom_study.report.pages.reports import CONFIG, VERDICTS_AND_TESTS, reports_of
from fathom_study.report.tables import (
    board_words,
    claim_words,
    effect_words,
    formatting,
    rate_words,
    scheme_words,
    size_words,
    worth_words,
)
from fathom_study.report.tables.claim_words import VerdictsPresenter
from fathom_study.report.tables.records import (
    Record,
    count_deviations,
    count_makers,
    group_uncounted,
    records,
    training_command,
)
from fathom_study.report.tables.study_words import ABSENT, CEILING, StudyPresenter
from fathom_study.runs.bundle import refused_bundles
from fathom_study.system.files import write_text

TABLES = (
    "cells", "summary", "comparison", "platforms", "trajectories", "variance", "variance_summary",
    "effects", "effective_depth", "worth", "sizes", "pooled", "stability", "published",
    "thresholds", "claims", "verdicts",
)  # fmt: skip

PHRASES = (
    formatting, effect_words, worth_words, size_words, rate_words, claim_words, board_words,
)  # fmt: skip
"""Modules whose functions are filters of templates, under their own names."""

CONSTANTS = {
    "at_best_rate": AT_BEST_RATE,
    "long_steps": size_words.LONG,
    "least_gain": size_words.LEAST_GAIN,
    "fused_width": FUSED_WIDTH,
    "ceiling": round(100 * CEILING),
    "within": effect_words.WITHIN,
    "rate_cost": f"{100 * DELTA:g}",
    "absent": ABSENT,
    "apart": f"{APART:g}",
    "confidence": round(100 * CONFIDENCE),
    "min_seeds": MIN_SEEDS,
    "learned": round(100 * LEARNED),
}
"""Variables of every template."""


def write_reports(config: Config, published: Published, templates: Path, folder: Path) -> None:
    """Fill the template of every report, from the tables in `folder`, into `folder`.

    Templates write links relative to `folder`; reports in its subfolders get them with `../`.

    Raises ConfigError naming the template and the line if it cannot be filled, or has a hand-typed
    number.
    """
    check_numbers(templates)
    environment = environment_of_reports(config, published, templates, folder)
    studies = {study.name: study for study in environment.globals["studies"]}
    for report in reports_of(config, templates):
        of_study = {"study": studies[report.study]} if report.study else {}
        text = fill(environment, report.template, **of_study)
        write_text(folder / report.name, prefix_links(text, "../" * report.name.count("/")))


def environment_of_reports(
    config: Config, published: Published, templates: Path, folder: Path
) -> jinja2.Environment:
    """Jinja environment for Markdown, with the facts of the tables in `folder` as its globals.

    They are global so that files of macros can read them too.
    """
    context = build_context(config, published, folder, times=True)
    labels = {name: escape_words(text) for name, text in context["labels"].items()}
    environment = environment_of(templates, labels)
    environment.globals |= context | {
        # Their texts come from run folders, which others may have written.
        "platforms": escape_rows(context["platforms"]),
        "uncounted": escape_rows(context["uncounted"]),
        "docs": link_to(config, templates.parent.parent / "docs"),
        "board_link": link_to(config, Path(config.board or "")),
        "cited": lambda text, table, row: f"[{text}](tables/{table}.csv#L{row['line']})",
    }
    return environment


def build_context(
    config: Config, published: Published, folder: Path, *, times: bool = False
) -> dict[str, Any]:
    """Variables for the templates of reports and paper; with `times`, training times too."""
    tables = {name: read_table(folder / "tables" / f"{name}.csv") for name in TABLES}
    if times:
        with_times = read_with_times(folder / "tables" / "summary.csv")
        tables["summary"] = with_times_of_networks(with_times, config)
    studies = [
        StudyPresenter(
            name,
            study,
            tables,
            figures_of_study(config, name),
            left_out(config, name),
            config.plain(name),
        )
        for name, study in config.studies.items()
    ]
    variance = tables["variance"]
    drawn = {
        "score_against_depth": bool(sweeps(counted(tables["cells"]))),
        "nats_below_plain": len(tables["sizes"]) > 0,
        "multiplier_by_size": len(tables["sizes"]) > 0,
    }
    above = published.worth
    plain = config.plain(above.study) if above and above.study in config.studies else None
    refused = [escape_markdown(line) for line in refused_bundles(Path(config.results))]
    return {
        "studies": studies,
        "measured": [study for study in studies if study.is_measured],
        "labels": labels_of(tables["platforms"]["platform"], config.labels),
        "worth": worth_words.present_worth(above, tables["worth"], plain),
        "scale": size_words.present_scale(tables["sizes"], tables["pooled"]),
        "board": board_rows(Path(config.board), records(tables["worth"]), config.labels)
        if config.board
        else (),
        "published_sizes": published.sizes,
        "stability": records(tables["stability"]),
        "reference": present_reference(config),
        "overview": [one for one in figures_of("overview").values() if drawn[one.name]],
        "config_file": f"{config.report_folder}/{CONFIG}",
        "command_of": partial(training_command, config_file=f"{config.report_folder}/{CONFIG}"),
        "makers_of": partial(count_makers, tables["cells"]),
        "settings_of": partial(scheme_words.study_settings, config),
        "platforms": records(tables["platforms"].astype(object).fillna("")),
        "uncounted": group_uncounted(tables["cells"]),
        "sources": published.sources,
        "notes": [*published.notes, *size_words.notes_on_sizes(published, config.labels)],
        "publishes": bool(published.values),
        "verdicts": VerdictsPresenter(tables["verdicts"], tables["claims"], config.studies),
        "attribution": {
            "variance": records(variance),
            "summary": records(tables["variance_summary"]) if len(variance) else [],
            "diverged": diverged_cells(config, counted(tables["cells"]), variance),
        },
        "deviations": count_deviations(tables["published"]),
        "metrics": tasks.run_metrics(),
        "step_metrics": tasks.step_metrics(),
        "subset": config.subset,
        "trains": config.train,
        "step_times": bool(config.step_times),
        "refused": refused,
        "not_run": "not imported: a bundle was refused" if refused else "not run here",
        "variants_of": partial(scheme_words.variant_rows, config),
    }


def environment_of(
    templates: Path | list[Path],
    labels: Mapping[str, str] = MappingProxyType({}),
    **options: Any,  # noqa: ANN401
) -> jinja2.Environment:
    """Jinja environment for one or more folders of templates; `options` go to Jinja.

    `labels`: display names, which the filter `label` returns.
    """

    @jinja2.pass_context  # else Jinja folds constant names, and escapes them as HTML
    def label(_context: jinja2.runtime.Context, named: object) -> str:
        return labels.get(str(named), str(named))

    environment = jinja2.Environment(  # noqa: S701, Markdown is not escaped as HTML is
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    environment.globals |= CONSTANTS
    for module in PHRASES:
        environment.filters |= dict(inspect.getmembers(module, inspect.isfunction))
    environment.filters |= {
        "paragraphs": split_paragraphs, "prose": as_prose, "words": escape_words,
        "prefixed": prefix_links, "cell": lambda text: text.replace("|", r"\|"),
        "mono": "`{}`".format, "label": label,
    }  # fmt: skip
    return environment


def fill(environment: jinja2.Environment, name: str, **values: Any) -> str:  # noqa: ANN401
    """Text of a filled template. Raises ConfigError naming the file and line with an error."""
    try:
        return environment.get_template(name).render(**values)
    except (jinja2.TemplateError, UnicodeDecodeError) as error:
        # Jinja adds templates to the traceback; the last may be an imported one.
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{f.filename}: line {f.lineno}" for f in frames if f.filename.endswith(".j2")]
        raise ConfigError(f"{lines[-1] if lines else name}: {error}") from error


RELATIVE_LINK = re.compile(r"(?<=\]\()(?<!\\\]\()(?!#|/|[a-z]+:)")


def prefix_links(text: str, prefix: str) -> str:
    """Markdown with a prefix before its relative links."""
    return RELATIVE_LINK.sub(prefix, text)


def present_reference(config: Config) -> dict[str, Any]:
    """The kept result that the config names: verdicts, studies with a page, a link.

    Without one, verdicts and pages are empty; `missing`: the path, if the config has one.
    """
    folder = Path(config.reference or "")
    if not config.reference or not (folder / "tables" / "verdicts.csv").is_file():
        return {"verdicts": None, "pages": (), "missing": config.reference}
    files = (folder / "tables" / f"{name}.csv" for name in VERDICTS_AND_TESTS)
    tables = [read_table(file, REMEDY) for file in files]
    pages = [file.stem for file in (folder / "studies").glob("*.md")]
    verdicts = VerdictsPresenter(*tables, pages)
    link = link_to(config, folder)
    return {"verdicts": verdicts, "pages": pages, "link": link, "missing": None}


def link_to(config: Config, folder: Path) -> str:
    """Path of a folder from the reports, which may be deeper than the default results folder."""
    return Path(os.path.relpath(folder, config.report_folder)).as_posix()


SPECIAL = re.compile(r"[\\`*_\[\]<>|~&$@]|(?<=www)\.|:(?=//)")
"""Characters and words with a meaning in Markdown: marks, HTML, cells, links, mentions."""


def escape_markdown(text: str) -> str:
    """Markdown that shows the text literally, in a sentence or in a cell of a table."""
    return SPECIAL.sub(lambda match: f"\\{match[0]}", printable(text))


IN_WORD = re.compile(r"(?<=[^\W_])\\_(?=[^\W_])")


def escape_words(text: str) -> str:
    """As `escape_markdown`, for names: H_res stays as it is, since its underscore has no effect."""
    return IN_WORD.sub("_", escape_markdown(text))


BLOCK = re.compile(
    r"^(\d{1,9}(?=[.)](?:\s|$))|(?=#+(?:\s|$)|[-+*](?:\s|$)|>|```|~~~|(?:[-*_]\s*){3,}$))"
    r"|(?<!\\)(?=\||<[A-Za-z/!?])"
)
"""Places where a backslash prevents a heading, list, quote, code, rule, cells or HTML."""


def as_prose(text: str) -> str:
    """User-written Markdown as one line that begins no block and ends no cell.

    An unpaired mark is escaped, since it would pair with one in the surrounding words.
    """
    for mark in "`*":
        if text.count(mark) % 2:
            text = text.replace(mark, f"\\{mark}")
    return BLOCK.sub(r"\1\\", " ".join(text.split()))


def escape_rows(rows: list[Record]) -> list[Record]:
    """Rows of a table with every text escaped for Markdown."""
    return [
        {name: escape_markdown(v) if isinstance(v, str) else v for name, v in row.items()}
        for row in rows
    ]


def split_paragraphs(text: str) -> list[str]:
    """The non-empty paragraphs of a text, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


# --- numbers in templates -----------------------------------------------------------------------

NOT_PROSE = re.compile(
    r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}"  # Jinja's tags
    r"|\]\([^)\n]*\)|<[^>\n]*>",  # targets of links
    re.DOTALL,
)


def check_numbers(templates: Path) -> None:
    """Refuse templates with a digit outside an expression; names with digits: `{{ "H_2" }}`.

    Raises ConfigError with a line per number, naming template and line; or if one is not UTF-8.
    """
    finds = []
    for template in sorted(templates.rglob("*.j2")):
        try:
            source = template.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{template}: is not UTF-8 ({error})") from error
        # Blanked rather than removed, so that line numbers stay.
        prose = NOT_PROSE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)
        for line_number, line in enumerate(prose.splitlines(), start=1):
            for typed in re.findall(r"[0-9][0-9.]*", line):
                finds.append(
                    f"{template}: line {line_number}: the number {typed} is typed by hand; compute "
                    "it, or put a name that contains it in {{ '...' }}"
                )
    if finds:
        raise ConfigError("\n".join(finds))
