"""`fathom judge`: check and train the user's own connection, and compare it with all others."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fathom.cli.options import (
    DEFAULT_CONFIG,
    REFERENCE_CONFIG,
    ConfigFiles,
    Device,
    Jobs,
    changed,
    example,
    output_folder,
)
from fathom.cli.training import train_left
from fathom.config import ConfigError, parse_yaml
from fathom.system.errors import fail

if TYPE_CHECKING:
    from fathom.runs.contract import Check

app = typer.Typer()

PAGE = Path("report/judge")


@app.command(epilog=example("fathom judge my_connection.py:TwoStreams --quick"))
def judge(
    module: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="Your class or function, in PyTorch.")
    ],
    settings: Annotated[str, typer.Option(help="Its arguments, such as '{streams: 2}'.")] = "{}",
    quick: Annotated[
        bool, typer.Option("--quick", help="Use the small scale of config.yaml; takes minutes.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the contract and the cost of a step.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds; intervals need three.")] = 3,
    config: ConfigFiles = [],  # noqa: B006, typer copies it
    jobs: Jobs = 1,
    device: Device = None,
    out: Annotated[
        Path | None,
        output_folder(help="Output folder; default: results/judge/NAME, with --settings if given."),
    ] = None,
    templates: Annotated[Path, typer.Option(help="Folder of the page's templates.")] = PAGE,
) -> None:
    """Judge your own connection.

    Executes your file. Checks its contract, trains it on text and on group products at the scale of
    the kept result, and writes a page: its worth in steps of the plain network, its effective
    depth, and its row among all connections; with --quick, beside the plain network alone. The same
    command resumes where it stopped.
    """
    from fathom.report.judge import check_all, make_plan, write_judgement
    from fathom.runs.train_all import specs_left

    arguments = parse_yaml(settings, "--settings")
    if not isinstance(arguments, dict):
        raise ConfigError("--settings: must be a mapping, such as '{streams: 2}'")
    files = config or (DEFAULT_CONFIG if quick else REFERENCE_CONFIG)
    # Other settings have another folder, as in TwoStreams-start-0.5.
    parts = module.rpartition(":")[2], re.sub(r"[^\w.]+", "-", settings).strip("-")
    named = Path("results/judge") / "-".join(filter(None, parts))
    folder = out or named / ("quick" if quick else "")
    if not (templates / "JUDGE.md.j2").is_file():
        raise ConfigError(f"{templates}: has no template JUDGE.md.j2; see --templates in --help")
    plan = make_plan(files, module, arguments, folder, seeds=seeds, quick=quick)
    compute = changed(plan.config.compute, device=device)
    plan.config.check_trains()
    checks: dict[str, list[Check]] = {study: [] for study in plan.config.studies}
    for study, found in check_all(plan, compute):
        typer.echo(f"{study}: {found.name}: {found.text}", err=True)
        checks[study].append(found)
    broken = [(study, c) for study, each in checks.items() for c in each if c.failed]
    if broken:
        fail("\n".join(f"{module}: {study}: {c.name}: {c.text}" for study, c in broken))
    if check:
        return
    specs = specs_left(plan.config, [cell.path() for cell in plan.to_train()])
    train_left(plan.config, specs, compute, jobs)
    options = ["--settings", settings] if arguments else []
    options += [part for file in config for part in ("--config", str(file))]
    options += ["--quick"] if quick else []
    options += ["--out", str(out)] if out else []
    command = shlex.join(["fathom", "judge", module, *options])
    for page in write_judgement(plan, checks, templates, command):
        typer.echo(str(page))
