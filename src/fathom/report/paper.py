"""Tables and figures → fathom.pdf.

The words are in report/paper/paper.typ.j2, as in every template without a number of their own;
typst sets them, with sizes from style.typ and definitions from formulas.typ.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from fathom import __version__
from fathom.analysis.attribution import APART
from fathom.analysis.claims import Published
from fathom.analysis.places import Place
from fathom.analysis.tables import CONFIDENCE, MIN_SEEDS, read_table
from fathom.config import Config
from fathom.measures import AT_CHANCE
from fathom.models.connections.constraints import Sinkhorn
from fathom.report.drawn import content
from fathom.report.figures import figures_of, files_of
from fathom.report.numbers import factor, largest, number, percent, plus_minus, ratio
from fathom.report.render import TABLES, check_numbers, environment_of, filled
from fathom.report.views import AttributionView, StudyView, VerdictsView, records, uncounted
from fathom.settings import ConfigError
from fathom.system.files import replacing
from fathom.system.text import printable

PAPER = "fathom.pdf"
TEMPLATE, SOURCE = "paper.typ.j2", "paper.typ"
NOT_RUN = "–"
"""What stands in a table for what was not run."""


def paper_of(templates: Path) -> Path:
    """The folder of the paper's template, beside that of the reports' templates."""
    return templates.parent / "paper"


def write_paper(
    config: Config, published: Published, templates: Path, folder: Path, figures: Path
) -> None:
    """Write `folder`/fathom.pdf from the tables in `folder` and the figures in `figures`.

    Raises ConfigError naming the template if it cannot be filled or set, or has a number of its
    own; ModuleNotFoundError where typst is not installed.
    """
    import typst  # only the paper needs it

    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write_source(config, published, templates, folder, figures, root)
        try:
            # Only with fonts that typst brings: those of a machine would make other bytes.
            pdf = typst.compile(root / SOURCE, root=root, ignore_system_fonts=True, format="pdf")
        except typst.TypstError as error:
            raise ConfigError(f"{templates / TEMPLATE}: typst: {error.message}") from error
    with replacing(folder / PAPER) as temporary:
        temporary.write_bytes(pdf)


def write_source(
    config: Config,
    published: Published,
    templates: Path,
    folder: Path,
    figures: Path,
    root: Path,
) -> None:
    """Write what typst reads into `root`: paper.typ, what it includes, and the figures it shows."""
    check_numbers(templates)
    shown = Figures(figures, root)
    # Whatever an expression gives is text, but for what macros and `literal` have made.
    environment = environment_of(templates, autoescape=True, finalize=_shown)
    environment.filters |= {
        "number": number, "largest": largest, "percent": percent, "literal": as_literal,
        "listed": listed, "code": Markup,
    }  # fmt: skip
    environment.globals |= context(config, published, folder) | {"drawn": shown.drawn}
    text = filled(environment, templates, TEMPLATE)
    root.mkdir(parents=True, exist_ok=True)
    (root / SOURCE).write_text(text, encoding="utf-8")
    for file in sorted(templates.glob("*.typ")):
        shutil.copy(file, root)


# --- text ---------------------------------------------------------------------------------------

POWER = re.compile(r"(?<=10)\^([-−]?[0-9]+(?:\.[0-9]+)?)")
"""A power of ten, as number and claims write it."""


def as_typst(text: str) -> str:
    """Typst markup that shows the text and does nothing else; powers of ten are raised.

    A string in code is shown as it is, whatever it holds; the semicolon ends the code.
    """
    shown = []
    for i, part in enumerate(POWER.split(text)):
        if i % 2:
            shown.append(f"#super({as_literal(part.replace('-', '−'))});")
        elif part:
            shown.append(f"#{as_literal(part)};")
    return "".join(shown)


def _shown(value: object) -> Markup:
    """What an expression of the template puts into the source."""
    return value if isinstance(value, Markup) else Markup(as_typst(str(value)))  # noqa: S704


def as_literal(text: str) -> Markup:
    """A string of typst's code with that text."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return Markup(f'"{escaped}"')  # noqa: S704, this is what escapes


def listed(words: list[Any]) -> str:
    """'a, b and c'."""
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last


# --- figures ------------------------------------------------------------------------------------


class Figures:
    """The figures of a folder, of which those that a paper shows are put beside its source."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder
        self.root = root

    def drawn(self, *place: str) -> str:
        """The file of a figure of that place and name, for typst; empty if it is not drawn."""
        *folder, name = place
        for own in files_of(Path(*folder), name):
            if (self.folder / own).is_file():
                target = self.root / "figures" / own
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.folder / own, target)
                return target.relative_to(self.root).as_posix()
        return ""


# --- what the template may ask of the tables -----------------------------------------------------


def context(config: Config, published: Published, folder: Path) -> dict[str, Any]:
    """Everything that the template may name."""
    tables = {name: read_table(folder / "tables" / f"{name}.csv") for name in TABLES}
    studies = [StudyView(name, study, tables) for name, study in config.studies.items()]
    measured = [study for study in studies if study.is_measured]
    return {
        "studies": studies,
        "measured": measured,
        "figures_of": figures_of,
        "overview": list(figures_of("overview").values()),
        "platforms": records(tables["platforms"].astype(object).fillna("")),
        "left_out": records(uncounted(tables["cells"])),
        "sources": published.sources,
        "notes": published.notes,
        "verdicts": VerdictsView(tables["verdicts"], tables["claims"]),
        "attribution": AttributionView(config, tables),
        "deviations": deviations(tables["published"]),
        "value": value,
        "leaders": leaders,
        "failures": failures,
        "told": told,
        "recipes": {s.study.recipe_name: s.study.recipe_settings.model_dump() for s in measured},
        "passes": Sinkhorn.model_fields["iterations"].default,
        "initial_slope": lambda streams: math.log10(math.e + (streams - 1) / math.e),
        "pm": plus_minus,
        "ratio": ratio,
        "factor": factor,
        "cut": ", ".join(f"{axis} {listed(list(v))}" for axis, v in config.cut.items()),
        "apart": f"{APART:g}",
        "confidence": round(100 * CONFIDENCE),
        "min_seeds": MIN_SEEDS,
        "at_chance": round(100 * AT_CHANCE),
        "not_run": NOT_RUN,
        "hashes": hashes(folder / "tables"),
        "fathom_version": __version__,
    }


def value(study: StudyView, depth: int, variant: str, place: Place, measure: str) -> str:
    """Mean and interval over seeds, or what stood in its way."""
    row = study.row(depth, variant, place)
    return NOT_RUN if row is None else study.text_of(row, measure)


def failures(studies: list[StudyView], variant: str) -> list[tuple[int, int, int]]:
    """(depth, how many runs of a variant did not learn, of how many) over all studies."""
    counts: dict[int, list[tuple[int, int]]] = {}
    for study in studies:
        for depth in study.depths:
            counts.setdefault(depth, []).append(study.failed(variant, depth))
    found = [(depth, *map(sum, zip(*pairs, strict=True))) for depth, pairs in counts.items()]
    return sorted(row for row in found if row[1])


def leaders(study: StudyView) -> dict[str, list[int]]:
    """By variant, the depths at which its mean final loss is the lowest, at every place.

    A variant with a run that diverged has no mean that could be compared. A place where fewer than
    two can be compared is passed over.
    """
    found: dict[str, list[int]] = {}
    for depth in study.depths:
        first = set()
        for place in study.places:
            rows = {v: study.row(depth, v, place) for v in study.variants}
            means = {v: r["loss_final_mean"] for v, r in rows.items() if r and not r["diverged"]}
            if len(means) > 1:
                first.add(min(means, key=means.__getitem__))
        if len(first) == 1:
            found.setdefault(first.pop(), []).append(depth)
    return found


def told(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The effects that are established, the largest first."""
    found = [row for row in rows if row["verdict"] in ("higher", "lower")]
    return sorted(found, key=lambda row: -abs(row["effect"]))


def deviations(published: pd.DataFrame) -> tuple[int, int]:
    """How many published values were set beside ours, and how many of them deviate."""
    compared = published[published["backend"].notna() & (published["backend"] != "")]
    return len(compared), int((compared["deviates"].astype(str) == "True").sum())


def hashes(tables: Path) -> dict[str, str]:
    """SHA-256 of what every table of the workflow holds, by the file's name."""
    files = sorted(tables / name for name in [*(f"{t}.csv" for t in TABLES), "steps.csv.gz"])
    return {file.name: hashlib.sha256(content(file)).hexdigest() for file in files}
