"""Write fathom.pdf from tables and figures.

The words are in report/paper/paper.typ.j2, which, like every template, has no hand-typed number;
typst sets them, with sizes from style.typ and definitions from formulas.typ.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from markupsafe import Markup

from fathom import __version__
from fathom.connections.constraints import Sinkhorn
from fathom.settings import ConfigError
from fathom.system.text import printable
from fathom_study.analysis.claims import Published
from fathom_study.analysis.tables import STEPS, of_study
from fathom_study.config import Config
from fathom_study.report.drawing.figure_manifest import content
from fathom_study.report.figures import files_of
from fathom_study.report.pages.render import (
    TABLES,
    build_context,
    check_numbers,
    environment_of,
    fill,
)
from fathom_study.system.files import write_bytes

PAPER = "fathom.pdf"
TEMPLATE, SOURCE = "paper.typ.j2", "paper.typ"


def write_paper(
    config: Config, published: Published, templates: Path, folder: Path, figures: Path
) -> None:
    """Write `folder`/fathom.pdf from the tables in `folder` and the figures in `figures`.

    Raises ConfigError naming the template if it cannot be filled or set, or has a hand-typed
    number; ModuleNotFoundError if typst is not installed.
    """
    import typst  # only the paper needs it

    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write_source(config, published, templates, folder, figures, root)
        try:
            # Only with typst's own fonts: the machine's fonts would change the bytes.
            pdf = typst.compile(root / SOURCE, root=root, ignore_system_fonts=True, format="pdf")
        except typst.TypstError as error:
            raise ConfigError(f"{templates / TEMPLATE}: typst: {error.message}") from error
    write_bytes(folder / PAPER, pdf)


def write_source(
    config: Config, published: Published, templates: Path, folder: Path, figures: Path, root: Path
) -> None:
    """Write the inputs of typst into `root`: paper.typ, its includes and its figures."""
    check_numbers(templates)
    # The value of an expression is set as text, unless a macro or `literal` made it.
    context = build_context(config, published, folder)
    folders = [templates, templates.parent / "templates"]  # the second is shared with reports
    environment = environment_of(folders, context["labels"], autoescape=True, finalize=_to_source)
    environment.filters |= {"literal": as_literal, "code": Markup, "mono": as_raw}
    environment.globals |= context | {
        "find_figure": partial(find_figure, figures, root),
        "cited": lambda text, table, row: text,  # a paper has no links to rows
        "hashes_of_tables": hash_tables(folder / "tables", config.studies),
        "fathom_version": __version__,
        "passes": Sinkhorn.model_fields["iterations"].default,
        "initial_slope": lambda streams: math.log10(math.e + (streams - 1) / math.e),
    }
    text = fill(environment, TEMPLATE)
    root.mkdir(parents=True, exist_ok=True)
    (root / SOURCE).write_text(text, encoding="utf-8")
    for file in sorted(templates.glob("*.typ")):
        shutil.copy(file, root)


# --- text ---------------------------------------------------------------------------------------

POWER = re.compile(r"(?<=10)\^([-−]?[0-9]+(?:\.[0-9]+)?)")
"""A power of ten, as `plain_number` and claims write it."""


def as_typst(text: str) -> str:
    """Typst markup that shows the text literally, with powers of ten raised.

    Typst shows a string in code literally, whatever its content; the semicolon ends the code.
    """
    source = []
    for i, part in enumerate(POWER.split(text)):
        if i % 2:
            source.append(f"#super({as_literal(part.replace('-', '−'))});")
        elif part:
            source.append(f"#{as_literal(part)};")
    return "".join(source)


def _to_source(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(as_typst(str(value)))  # noqa: S704


def as_literal(text: str) -> Markup:
    """The text as a string literal of typst's code."""
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return Markup(f'"{escaped}"')  # noqa: S704, this is what escapes


def as_raw(text: str) -> Markup:
    """The text in the font of code."""
    return Markup(f"#raw({as_literal(text)});")  # noqa: S704


# --- figures and tables -------------------------------------------------------------------------


def find_figure(figures: Path, root: Path, *path: str) -> str:
    """Copy a figure into `root`, beside the source; return its path from there.

    `path`: the figure's folders inside `figures`, and its name. Empty if it is not drawn.
    """
    *folder, name = path
    for own in files_of(Path(*folder), name):
        if (figures / own).is_file():
            target = Path("figures", own)
            (root / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(figures / own, root / target)
            return target.as_posix()
    return ""


def hash_tables(tables: Path, studies: Iterable[str]) -> str:
    """SHA-256 of the content of the paper's tables, in the order of their names, and all steps."""
    files = [tables / f"{table}.csv" for table in sorted(TABLES)]
    files += [of_study(tables, study) / STEPS for study in studies]
    digest = hashlib.sha256()
    for file in files:
        digest.update(content(file))
    return digest.hexdigest()
