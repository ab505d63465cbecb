"""What follows from the runs: their state, tables, claims, figures, reports, checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.options import (
    DEFAULT_CONFIG,
    PAGE,
    PAPER,
    PUBLISHED,
    TEMPLATES,
    ConfigFiles,
    Overrides,
    PublishedFile,
    TemplatesFolder,
    example,
    read_config,
    workflow_command,
)
from fathom.config import Config, ConfigError, check_config
from fathom.system.errors import fail
from fathom.system.files import write_json, write_text

app = typer.Typer()

SCHEMA = Path("workflow/schemas/config.schema.json")
DEFINITIONS = Path("docs/definitions.md")
PICTURES = Path("docs/images/explained")


@app.command(epilog=example("fathom status depth-mlx"))
def status(
    studies: Annotated[list[str] | None, typer.Argument(help="Only these studies.")] = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    every_cell: Annotated[
        bool, typer.Option("--all", help="Every cell, as for studies that are named.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is trained, what is left, and how long that takes.

    A line for each study. Of studies that are named, every cell.
    """
    from fathom.report.terminal import print_status
    from fathom.runs.status import status_of

    settings = read_config(config, override)
    unknown = [name for name in studies or [] if name not in settings.studies]
    if unknown:
        raise ConfigError(f"no study '{unknown[0]}'; the config has {', '.join(settings.studies)}")
    found = status_of(settings, studies or ())
    if as_json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        print_status(found, every_cell=every_cell or bool(studies))


@app.command(epilog=example("fathom verify"))
def verify(
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    published: PublishedFile = PUBLISHED,
    templates: TemplatesFolder = TEMPLATES,
    receipt: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Keep every check and its outcome there."),
    ] = None,
) -> None:
    """Check every run, table, report and figure.

    Lists the problems, names the command that repairs them, and ends with status 1 if there are
    any.
    """
    from fathom.analysis.claims import load_published
    from fathom.report.verify import verify as check

    settings = read_config(config, override)
    found = check(settings, load_published(published, settings), templates)
    if receipt:
        write_json(receipt, found.as_json())
    counts = ", ".join(f"{n} {what}" for what, n in found.checked.items())
    if found.problems:
        lines = [*found.problems, f"{len(found.problems)} problems in {counts}"]
        repair = found.repair(workflow_command(config, override))
        fail("\n".join([*lines, f"to repair: {repair}"] if repair else lines))
    print(f"verified: {counts}")


@app.command(
    hidden=True,
    epilog=example('fathom resolve "$(cat results/config.json)" --out config.json'),
)
def resolve(
    config: Annotated[str, typer.Argument(help="A whole config, as JSON.")],
    out: Annotated[Path, typer.Option(help="The file.")],
) -> None:
    """Keep the config that a workflow ran with, for the tables and the reports."""
    checked = check_config(json.loads(config))
    write_json(out, checked.resolved())


@app.command(epilog=example("fathom tables"))
def tables(config: ConfigFiles = DEFAULT_CONFIG) -> None:
    """Gather all runs into the CSVs of results/tables."""
    from fathom.analysis.attribution import write_attribution
    from fathom.analysis.effects import write_effects
    from fathom.analysis.tables import write_tables

    settings = read_config(config)
    folder = Path(settings.report_folder) / "tables"
    write_tables(settings, folder)
    write_attribution(settings, folder)
    write_effects(settings, folder)


@app.command(epilog=example("fathom claims"))
def claims(config: ConfigFiles = DEFAULT_CONFIG, published: PublishedFile = PUBLISHED) -> None:
    """Put published figures and claims to their tests.

    Writes published.csv, thresholds.csv, claims.csv and verdicts.csv.
    """
    from fathom.analysis.claims import load_published, write_claims

    settings = read_config(config)
    write_claims(
        settings, load_published(published, settings), Path(settings.report_folder) / "tables"
    )


@app.command(
    epilog=example(
        "fathom figures --study depth-mlx --backend torch --out figures --steps "
        "results/tables/steps.csv.gz --summary results/tables/summary.csv "
        "--effects results/tables/effects.csv"
    )
)
def figures(
    steps: Annotated[Path, typer.Option(help="The table of steps.")],
    summary: Annotated[Path, typer.Option(help="The table of groups of seeds.")],
    effects: Annotated[Path, typer.Option(help="The table of effects.")],
    name: Annotated[str, typer.Option("--study", help="Which study.")],
    backend: Annotated[str, typer.Option(help="Which backend.")],
    out: Annotated[Path, typer.Option(help="Folder for the figures.")],
    platform: Annotated[
        str, typer.Option(help="An imported platform; without it, what was measured here.")
    ] = "",
    runs: Annotated[Path, typer.Option(help="Folder of these runs.")] = Path("results/runs"),
    family: Annotated[
        str, typer.Option(help="Which figures: rates, contrasts, or what the task names.")
    ] = "sweep",
    only: Annotated[list[str] | None, typer.Option(help="Of these only this figure.")] = None,
) -> None:
    """Draw the figures of one study on one backend."""
    from fathom.analysis.places import Place
    from fathom.report.draw import draw_study

    place = Place.named(backend, platform)
    draw_study(name, family, place, (steps, summary, effects), runs, out, only or ())


@app.command(
    epilog=example(
        "fathom overview-figures --out figures --cells results/tables/cells.csv "
        "--variance results/tables/variance.csv --published results/tables/published.csv"
    )
)
def overview_figures(
    cells: Annotated[Path, typer.Option(help="The table of runs.")],
    variance: Annotated[Path, typer.Option(help="The table of shares of variance.")],
    published: Annotated[Path, typer.Option(help="The table of published values.")],
    out: Annotated[Path, typer.Option(help="Folder for the figures.")],
) -> None:
    """Draw the figures over all studies."""
    from fathom.report.draw import draw_overview

    draw_overview(cells, variance, published, out)


@app.command(
    epilog=example("fathom cell-figures results/runs/depth-mlx/48L/mhc/torch/seed0 --out figures")
)
def cell_figures(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder for the figures.")],
) -> None:
    """Draw the figures of one run."""
    from fathom.report.draw import draw_cell

    draw_cell(run, out)


@app.command(epilog=example("fathom report"))
def report(
    config: ConfigFiles = DEFAULT_CONFIG,
    published: PublishedFile = PUBLISHED,
    templates: TemplatesFolder = TEMPLATES,
) -> None:
    """Fill the templates: RESULTS.md, a page for every study, COMPARISON.md."""
    from fathom.analysis.claims import load_published
    from fathom.report.render import write_reports

    settings = read_config(config)
    folder = Path(settings.report_folder)
    write_reports(settings, load_published(published, settings), templates, folder)


@app.command(epilog=example("fathom paper"))
def paper(
    config: ConfigFiles = DEFAULT_CONFIG,
    published: PublishedFile = PUBLISHED,
    templates: TemplatesFolder = PAPER,
) -> None:
    """Make the paper of tables and figures: fathom.pdf."""
    from fathom.analysis.claims import load_published
    from fathom.report.paper import write_paper

    settings = read_config(config)
    folder = Path(settings.report_folder)
    write_paper(
        settings, load_published(published, settings), templates, folder, folder / "figures"
    )


@app.command(epilog=example("fathom page"))
def page(config: ConfigFiles = DEFAULT_CONFIG, templates: TemplatesFolder = PAGE) -> None:
    """Make the page of reports, figures and tables: index.html."""
    from fathom.report.page import write_page

    settings = read_config(config)
    folder = Path(settings.report_folder)
    write_page(settings, templates, folder, folder / "figures")


@app.command(epilog=example("fathom schema --check"))
def schema(
    out: Annotated[Path, typer.Option(help="The schema.")] = SCHEMA,
    definitions: Annotated[Path, typer.Option(help="The document of definitions.")] = DEFINITIONS,
    check: Annotated[bool, typer.Option("--check", help="Only see whether both are current.")] = (
        False
    ),
) -> None:
    """Write what follows from the code: the JSON schema of config.yaml, the tables of measures."""
    from fathom.report.definitions import with_tables

    texts = {
        out: json.dumps(Config.model_json_schema(), indent=2) + "\n",
        definitions: with_tables(definitions.read_text(encoding="utf-8")),
    }
    for file, text in texts.items():
        if not check:
            write_text(file, text)
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            fail(f"{file} is not what the code says; run: fathom schema")


@app.command(epilog=example("fathom explain --out pictures"))
def explain(
    config: ConfigFiles = DEFAULT_CONFIG,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = PICTURES,
) -> None:
    """Draw the pictures of docs/explained, from initial numbers alone."""
    from fathom.report.draw import draw_explained

    draw_explained(read_config(config), out)
