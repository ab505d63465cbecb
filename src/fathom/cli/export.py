"""Prepare results for an archive. Nothing is uploaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.options import (
    DEFAULT_CONFIG,
    TEMPLATES,
    ConfigFiles,
    Overrides,
    TemplatesFolder,
    example,
    output_file,
    output_folder,
    read_config,
)
from fathom.config import ConfigError
from fathom.system.files import is_stdout, write_json

app = typer.Typer()


@app.command(epilog=example("fathom export --crate fathom-results --zenodo .zenodo.json"))
def export(
    crate: Annotated[
        Path | None,
        output_folder(help="Write project and results there, as an RO-Crate."),
    ] = None,
    zenodo: Annotated[
        Path | None,
        output_file(help="Write the metadata for Zenodo there, from CITATION.cff; - prints it."),
    ] = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    templates: TemplatesFolder = TEMPLATES,
) -> None:
    """Prepare results for an archive; nothing is uploaded.

    The crate holds the project's files, the config, every run, tables, figures and reports, each
    with its SHA-256. Run fathom verify first.
    """
    if crate is None and zenodo is None:
        raise ConfigError("nothing to export: give --crate FOLDER, --zenodo FILE, or both")
    if zenodo:
        from fathom.report.citation import read_citation, zenodo_metadata

        write_json(zenodo, zenodo_metadata(read_citation()))
        typer.echo(f"{zenodo}: metadata of a deposit", err=is_stdout(zenodo))
    if crate:
        from fathom.report.crate import write_crate

        written = write_crate(read_config(config, override), config, templates, crate)
        typer.echo(f"{crate}: {written}")
