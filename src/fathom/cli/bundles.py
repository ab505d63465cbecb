"""Carrying runs from one machine to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.options import DEFAULT_CONFIG, ConfigFiles, Patterns, example, read_config
from fathom.config import ConfigError

app = typer.Typer()
bundle = typer.Typer()
app.add_typer(bundle, name="bundle", help="Carry runs from one machine to another.")


@bundle.command(epilog=example("fathom bundle create 'depth-mlx/*' --out gpu.tar.gz"))
def create(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.tar.gz", help="The bundle.")],
    patterns: Patterns = None,
    config: ConfigFiles = DEFAULT_CONFIG,
) -> None:
    """Pack every current run that was trained here, checked."""
    from fathom.runs.bundle import create_bundle

    packed = create_bundle(read_config(config), out, patterns or ())
    typer.echo(f"{out}: {len(packed)} runs, {out.stat().st_size / 1e6:.1f} MB")
    for platform in sorted({run.platform for run in packed}):
        typer.echo(f"  {sum(run.platform == platform for run in packed)} from {platform}")


@bundle.command("import", epilog=example("fathom bundle import gpu.tar.gz --keep"))
def import_(
    file: Annotated[Path, typer.Argument(help="A bundle.")],
    config: ConfigFiles = DEFAULT_CONFIG,
    keep: Annotated[bool, typer.Option("--keep", help="Keep runs that are there.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace them.")] = False,
) -> None:
    """Check a bundle and put its runs under RESULTS/imported/PLATFORM.

    The next `snakemake all` shows them beside what was measured here.
    """
    from fathom.runs.bundle import import_bundle

    if keep and replace:
        raise ConfigError("--keep and --replace exclude each other; give one of them")
    results = Path(read_config(config).results)
    done = import_bundle(results, file, "keep" if keep else "replace" if replace else "refuse")
    counts = [f"{len(cells)} {what}" for what, cells in done.items() if cells]
    typer.echo(f"{file}: {', '.join(counts) or 'no runs'}, under {results / 'imported'}")
