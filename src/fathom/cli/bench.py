"""How fast training and the workflow are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.options import check_known, example

app = typer.Typer()


@app.command(epilog=example("fathom bench steps --size default --turns 3"))
def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...",
            help="steps, growth, startup, dry-run, sweep (default: all but sweep).",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="demo, sublayer, small or default (repeatable; default: all)."),
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="How many times each side runs.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a step.")] = 1,
    out: Annotated[Path, typer.Option(help="The table.")] = Path("results/tables/bench.csv"),
    figure: Annotated[
        Path | None, typer.Option(help="Also draw it, as this PNG and as SVG.")
    ] = None,
) -> None:
    """Measure how fast training and the workflow are on this machine.

    Training steps are compared with a textbook step and with the machine's matrix products, in
    turns, so a slowdown affects both sides. Run nothing else meanwhile: the steps take ten
    minutes, the sweep as long as `snakemake all`.
    """
    from fathom.bench import measure

    parts = parts or [part for part in measure.PARTS if part != "sweep"]
    check_known("part", parts, measure.PARTS)
    known = measure.sizes().studies
    sizes = size or list(known)
    check_known("size", sizes, known)
    measure.write_bench(out, parts, sizes, turns, threads, typer.echo)
    if figure:
        from fathom.report.draw import draw_bench

        draw_bench(out, figure)
