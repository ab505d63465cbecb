"""Commands on runs and their results: status, tables, claims, figures, reports, checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fathom.system.errors import fail
from fathom_study.cli.options import (
    DEFAULT_CONFIG,
    PAGE,
    PAPER,
    PUBLISHED,
    TEMPLATES,
    ConfigFiles,
    FigureFolder,
    Overrides,
    PublishedFile,
    RunFolder,
    TemplatesFolder,
    check_known,
    end_with,
    example,
    read_config,
    workflow_command,
)
from fathom_study.config import Config, ConfigError
from fathom_study.report.pages.reports import DEFINITIONS
from fathom_study.system.files import write_json, write_text

if TYPE_CHECKING:
    from fathom_study.analysis.claims import Published

app = typer.Typer()

SCHEMA = Path("workflow/schemas/config.schema.json")
WITH_TABLES = [
    *(DEFINITIONS / f"{name}.md" for name in ("metrics", "summary", "README")),
    *map(Path, ("docs/schemes.md", "README.md")),
]


def _read_own(files: Sequence[Path], overrides: Sequence[str] = ()) -> Config:
    """The config. Raises ConfigError if its report folder holds reports of another config."""
    from fathom_study.report.pages.reports import check_folder

    settings = read_config(files, overrides)
    check_folder(settings)
    return settings


def _read(
    files: Sequence[Path], published: Path, overrides: Sequence[str] = ()
) -> tuple[Config, Published, Path]:
    """The config, the published values checked against it, and the folder of its results."""
    from fathom_study.analysis.claims import load_published

    settings = _read_own(files, overrides)
    return settings, load_published(published, settings), Path(settings.report_folder)


@app.command(epilog=example("fathom status depth-mlx"))
def status(
    studies: Annotated[list[str] | None, Argument(help="Only these studies.")] = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    every_cell: Annotated[
        bool, Option("--all", help="List every cell and contrast of all studies.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is trained, what is left, and how long it takes.

    Prints a line for each study; for named studies, every cell. Then the undecided
    contrasts, and how many more seeds may decide them.
    """
    from fathom_study.report.tables.terminal import print_status, print_undecided
    from fathom_study.runs.status import status_of

    settings = read_config(config, override)
    check_known("study", studies or (), settings.studies)
    result = status_of(settings, studies or ())
    if as_json:
        print(json.dumps(result.as_json(), indent=2))
    else:
        print_status(result, every_cell=every_cell or bool(studies))
        if not find_spec("pandas"):  # an installation for training alone has no tables
            return
        from fathom_study.analysis.effects import undecided

        effects = Path(settings.report_folder) / "tables/effects.csv"
        if effects.exists():
            rows = undecided(effects, studies or settings.studies)
            print_undecided(rows, settings, every=every_cell or bool(studies))


@app.command(epilog=example("fathom verify"))
def verify(
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    published: PublishedFile = PUBLISHED,
    templates: TemplatesFolder = TEMPLATES,
) -> None:
    """Check every run, table, report and figure.

    Prints a line for each problem, then which files to delete and what to run; exits with status 1
    if there is any.
    """
    from fathom_study.report.integrity.verify import verify as check

    settings, values, _ = _read(config, published, override)
    verification = check(settings, values, templates)
    counts = ", ".join(f"{n} {what}" for what, n in verification.checked.items())
    if verification.problems:
        lines = [*verification.problems, f"{len(verification.problems)} problems in {counts}"]
        advice = verification.advice(workflow_command(config, override))
        fail("\n".join([*lines, advice] if advice else lines))
    print(f"verified: {counts}")


@app.command(epilog=example("fathom tables"))
def tables(config: ConfigFiles = DEFAULT_CONFIG) -> None:
    """Gather all runs into the CSVs of results/tables."""
    from fathom_study.analysis.run_tables import write_tables

    settings = _read_own(config)
    folder = Path(settings.report_folder) / "tables"
    write_tables(settings, folder)
    end_with(folder, "`fathom claims` tests published claims")


@app.command(epilog=example("fathom claims"))
def claims(config: ConfigFiles = DEFAULT_CONFIG, published: PublishedFile = PUBLISHED) -> None:
    """Test published values and claims.

    Writes published.csv, published_sizes.csv, thresholds.csv, claims.csv and verdicts.csv.
    """
    from fathom_study.analysis.claims import write_claims

    settings, values, folder = _read(config, published)
    write_claims(settings, values, folder / "tables")
    end_with(folder / "tables/claims.csv", "`fathom report` writes the reports")


@app.command(
    epilog=example(
        "fathom figures --study depth-mlx --platform torch --tables results/tables --out figures"
    )
)
def figures(
    tables: Annotated[Path, Option(help="Folder of the tables.")],
    out: FigureFolder,
    name: Annotated[str, Option("--study", help="Study; by default all together.")] = "",
    platform: Annotated[
        str, Option(help="torch, or torch-MACHINE for imported runs, as in the tables.")
    ] = "",
    config: ConfigFiles = DEFAULT_CONFIG,
    only: Annotated[
        list[str] | None,
        Option(help="Figure or metric; by default all figures of the study."),
    ] = None,
) -> None:
    """Draw the figures of one study on one platform, or those over all studies."""
    from fathom_study.analysis.platforms import Platform
    from fathom_study.report.drawing.draw import draw_overview, draw_study

    if bool(name) != bool(platform):
        raise ConfigError("--study and --platform belong together; give both or neither")
    if name:
        draw_study(read_config(config), name, Platform.parse(platform), tables, out, only or ())
    else:
        draw_overview(read_config(config), tables, out)
    end_with(out, "`fathom report` writes the reports that show them")


@app.command(
    epilog=example("fathom cell-figures results/runs/depth-mlx/48L/mhc/torch/seed0 --out figures")
)
def cell_figures(run: RunFolder, out: FigureFolder) -> None:
    """Draw the figures of one run."""
    from fathom_study.report.drawing.draw import draw_cell

    draw_cell(run, out)


@app.command(epilog=example("fathom report"))
def report(
    config: ConfigFiles = DEFAULT_CONFIG,
    published: PublishedFile = PUBLISHED,
    templates: TemplatesFolder = TEMPLATES,
) -> None:
    """Write the reports: RESULTS.md and all other pages."""
    from fathom_study.config.load import is_resolved
    from fathom_study.report.pages.render import write_reports
    from fathom_study.report.pages.reports import CONFIG

    settings, values, folder = _read(config, published)
    # Commands named in the reports read it. Under Snakemake it exists and is the same.
    if not is_resolved(settings):
        write_json(folder / CONFIG, settings.resolved())
    write_reports(settings, values, templates, folder)
    end_with(folder / "RESULTS.md", "`fathom page` makes a page of it")


@app.command(epilog=example("fathom paper"))
def paper(
    config: ConfigFiles = DEFAULT_CONFIG,
    published: PublishedFile = PUBLISHED,
    templates: TemplatesFolder = PAPER,
) -> None:
    """Make the paper, fathom.pdf."""
    from fathom_study.report.pages.paper import write_paper

    settings, values, folder = _read(config, published)
    write_paper(settings, values, templates, folder, folder / "figures")
    end_with(folder / "fathom.pdf", "open it; `fathom verify` checks what it was made from")


@app.command(epilog=example("fathom page"))
def page(
    config: ConfigFiles = DEFAULT_CONFIG,
    published: PublishedFile = PUBLISHED,
    templates: TemplatesFolder = PAGE,
) -> None:
    """Make the page of all results, index.html."""
    from fathom_study.report.pages.page import write_page

    settings, values, folder = _read(config, published)
    write_page(settings, values, templates, folder, folder / "figures")
    end_with(folder / "index.html", "open it in a browser; `fathom verify` checks every result")


@app.command(epilog=example("fathom schema --check"))
def schema(
    check: Annotated[bool, Option("--check", help="Only check that all are up to date.")] = False,
) -> None:
    """Write the JSON schema and the tables in documents.

    The tables of metrics and schemes come from the code, those of README from the reference.
    """
    from fathom_study.report.pages.documents import with_tables

    # A copy of the code alone has no README and no reference.
    documents = [file for file in WITH_TABLES if file.name != "README.md" or file.exists()]
    kept = {file: file.read_text(encoding="utf-8") for file in (SCHEMA, *documents)}
    texts = {file: with_tables(kept[file]) for file in documents}
    texts[SCHEMA] = json.dumps(Config.model_json_schema(), indent=2) + "\n"
    changed = {file: text for file, text in texts.items() if kept[file] != text}
    if not check:
        for file, text in changed.items():
            write_text(file, text)
    elif changed:
        fail("\n".join(f"{file} is out of date; run: fathom schema" for file in changed))


@app.command(epilog=example("fathom schemes mhc_paper"))
def schemes(
    name: Annotated[str, Argument(help="Scheme to print as YAML for a config.")] = "",
    long: Annotated[
        bool, Option("--long", help="Print releases, components, size and cost of each.")
    ] = False,
) -> None:
    """List the named residual schemes, with source and formula."""
    from fathom_study.report.tables.scheme_words import as_text, as_yaml, in_short
    from fathom_study.report.tables.terminal import print_schemes

    if name:
        print(as_yaml(name))
    elif long:
        print(as_text())
    else:
        print_schemes([*in_short()])
