"""Check that a device computes correctly."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fathom.cli.options import ConfigFiles, Device, Threads, check_known, example
from fathom.config import BACKENDS, load_config
from fathom.system.errors import fail

app = typer.Typer()


@app.command("check-device", epilog=example("fathom check-device --backend torch --device cuda"))
def check_device(
    backend: Annotated[str, typer.Option(help="Framework, for example torch.")] = "torch",
    device: Device = None,
    threads: Threads = None,
    config: ConfigFiles = [Path("benchmarks/check.yaml")],  # noqa: B006, typer copies it
) -> None:
    """Check that a device trains correctly.

    In about a minute, takes one training step of every scheme, network and optimiser, and compares
    loss, gradients and updated parameters with a float64 oracle. Exits with status 1 if a step
    fails or differs too much, and says what to report.
    """
    from fathom import backends, parity
    from fathom.system.hardware import operating_system

    check_known("backend", [backend], BACKENDS)
    settings = load_config(config)
    specs = [settings.spec(cell) for cell in settings.cells() if cell.backend == backend]
    if not specs:
        fail(
            f"{' + '.join(map(str, config))}: has no cell of backend {backend}; use another config"
        )
    here = backends.connect(backend, device or "auto", threads or 1)
    worst: dict[str, dict[str, float]] = {}
    problems = []
    with typer.progressbar(specs, label=f"{len(specs)} steps", file=sys.stderr) as shown:
        for spec in shown:
            try:
                errors, parameter = parity.check_step(here, spec)
                told = ", ".join(f"{key} off by {error:.1e}" for key, error in errors.items())
                told += f"; worst in the gradient of {parameter}"
            except Exception as error:  # noqa: BLE001, a framework may raise any error
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
            "issue in the project's tracker with all of the above and the output of `pip list`"
        )
    typer.echo(f"all {len(specs)} steps agree with the float64 oracle")
