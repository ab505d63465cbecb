"""How fast training and the workflow are on this machine, and whether it computes rightly."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fathom.cli.options import (
    DEFAULT_CONFIG,
    ConfigFiles,
    Device,
    Threads,
    check_known,
    example,
    output_file,
)
from fathom.config import BACKENDS, ConfigError, load_config
from fathom.system.errors import fail
from fathom.system.files import atomic_write, is_stdout

app = typer.Typer()


@app.command(epilog=example("fathom bench steps --size default --turns 3"))
def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...",
            help="steps, startup, dry-run, schemes, sweep (default: the first three).",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="demo, small or default; per sub-layer: sublayer, sublayer-evidence or "
            "sublayer-default (repeatable; default: all)."
        ),
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="How many times each side runs.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a step.")] = 1,
    out: Annotated[Path, output_file(help="The table; - prints it.")] = Path(
        "results/tables/bench.csv"
    ),
    figure: Annotated[
        Path | None, output_file(help="Also draw it, as this PNG and as SVG.")
    ] = None,
) -> None:
    """Measure the speed of training and of the workflow.

    Training steps are compared with a textbook step and with the machine's matrix products, in
    turns, so a slowdown affects both sides. Run nothing else meanwhile: the steps take ten
    minutes, the sweep as long as `snakemake all`.
    """
    from fathom.bench import measure

    parts = parts or list(measure.DEFAULT_PARTS)
    check_known("part", parts, measure.PARTS)
    known = measure.sizes().studies
    sizes = size or list(known)
    check_known("size", sizes, known)
    if figure and is_stdout(figure):
        raise ConfigError("--figure makes two files, so it cannot be the standard output")
    say = partial(typer.echo, err=is_stdout(out))
    with atomic_write(out) if is_stdout(out) else nullcontext(out) as table:
        measure.write_bench(table, parts, sizes, turns, threads, say)
        if figure:
            from fathom.report.draw import draw_bench

            draw_bench(table, figure)


@app.command("step-times", epilog=example("fathom step-times released state"))
def step_times(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Only these studies; default: all.")
    ] = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    turns: Annotated[int, typer.Option(min=1, help="How many times each network runs.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a step.")] = 1,
    out: Annotated[Path, output_file(help="The table; - prints it.")] = Path("step_times.csv"),
) -> None:
    """Time a step of each network of a study, in turns.

    With `step_times: FILE` in the config, reports and figures compare training times by this table.
    Else they take the clocks of runs, which may have trained beside other work. Run nothing else
    meanwhile.
    """
    from fathom.bench import step_times as bench

    settings = load_config(config)
    chosen = studies or list(settings.studies)
    check_known("study", chosen, settings.studies)
    rows = []
    for row in bench.step_times(settings, chosen, turns, threads):
        typer.echo(f"{row.study:20} {row.variant:20} {1e3 * row.seconds:.4g} ms", err=True)
        rows.append(row)
    with atomic_write(out) as temporary, temporary.open("w", encoding="utf-8") as opened:
        bench.write_step_times(rows, opened)


@app.command("check-device", epilog=example("fathom check-device --backend torch --device cuda"))
def check_device(
    backend: Annotated[str, typer.Option(help="Framework, for example torch.")] = "torch",
    device: Device = None,
    threads: Threads = None,
    config: ConfigFiles = [Path("benchmarks/check.yaml")],  # noqa: B006, typer copies it
) -> None:
    """Check that a device trains correctly.

    In about a minute it takes one training step of every scheme, network and optimiser, and
    compares loss, gradients and updated parameters. Exits with status 1 where one fails or differs
    by more than is allowed, and says what to send.
    """
    from fathom import backends, parity
    from fathom.system.hardware import operating_system

    check_known("backend", [backend], BACKENDS)
    settings = load_config(config)
    specs = [settings.spec(cell) for cell in settings.cells() if cell.backend == backend]
    if not specs:
        fail(
            f"{' + '.join(map(str, config))}: has no cell of backend {backend}, so nothing to check"
        )
    here = backends.connect(backend, device or "auto", threads or 1)
    worst: dict[str, dict[str, float]] = {}
    problems = []
    with typer.progressbar(specs, label=f"{len(specs)} steps", file=sys.stderr) as shown:
        for spec in shown:
            try:
                errors, parameter = parity.check_step(here, spec)
                told = ", ".join(f"{key} off by {error:.1e}" for key, error in errors.items())
                told += f"; most of all the gradient of {parameter}"
            except Exception as error:  # noqa: BLE001, whatever a framework raises on a device
                errors = dict.fromkeys(parity.ALLOWED, math.nan)
                told = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            if not all(errors[key] <= allowed for key, allowed in parity.ALLOWED.items()):
                problems.append(f"{spec.study}/{spec.variant}: {told}")
            so_far = worst.setdefault(spec.study, errors)
            worst[spec.study] = {key: np.maximum(errors[key], so_far[key]) for key in errors}
    about = here.device
    typer.echo(f"{backend} {about.framework_version} on {about.kind}, {about.name}")
    typer.echo(operating_system())
    for name, row in {"": None, **worst, "allowed": parity.ALLOWED}.items():
        cells = [f"{error:.1e}" for error in row.values()] if row else parity.ALLOWED
        typer.echo(f"{name:<10}" + "".join(f"{cell:>11}" for cell in cells))
    for problem in problems:
        typer.echo(problem)
    if problems:
        fail(
            f"{len(problems)} of {len(specs)} steps fail here, so no run would count; open an "
            "issue in the project's tracker with all of the above and what `pip list` prints"
        )
    typer.echo(f"all {len(specs)} steps agree with the float64 oracle")
