"""`fathom judge`: check and train the user's own connection, and compare it with all others."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fathom.settings import validate
from fathom.system.errors import fail
from fathom_study.cli.options import ConfigFiles, Device, Jobs, changed, example, output_folder
from fathom_study.cli.training import train_left
from fathom_study.config import ConfigError, parse_yaml

if TYPE_CHECKING:
    from fathom_study.board.submission import Author
    from fathom_study.config import Compute
    from fathom_study.report.judge.judgement import Plan
    from fathom_study.runs.contract import Check

app = typer.Typer()

PROJECT = Path(__file__).parents[1] / "project"
"""Files of the project that an installation carries; in a clone, links to them."""

# Resolved: their paths of files are relative to the links' targets.
FULL_CONFIG = [(PROJECT / name).resolve() for name in ("config.yaml", "reference.yaml")]
PAGE = PROJECT / "judge"

QUICK = "quick"
"""The track of the smallest scale."""


@app.command(epilog=example("fathom judge my_connection.py:TwoStreams --quick"))
def judge(
    module: Annotated[
        str, Argument(metavar="FILE.py:NAME", help="Your class or function, in PyTorch.")
    ],
    settings: Annotated[str, Option(help="Its arguments, such as '{streams: 2}'.")] = "{}",
    quick: Annotated[
        bool, Option("--quick", help=f"Short for --track {QUICK}; takes a minute.")
    ] = False,
    check: Annotated[
        bool,
        Option("--check", help="Only check the contract and the cost of a step; no data set."),
    ] = False,
    seeds: Annotated[
        int | None,
        Option(min=1, help="Number of seeds; intervals need three.", show_default="3"),
    ] = None,
    train_plain: Annotated[
        bool,
        Option("--train-plain", help="Train the plain network here too, and read no kept result."),
    ] = False,
    track: Annotated[
        str, Option(help="Use the settings and seeds of a track of the board: docs/board.md.")
    ] = "",
    submit: Annotated[
        bool,
        Option("--submit", help="Write a submission to the board; needs --track or --quick."),
    ] = False,
    who: Annotated[str, Option(help="Your name on the board.")] = "",
    licence: Annotated[
        str, Option(help="Licence of your file, by its SPDX name, such as MIT.")
    ] = "",
    config: ConfigFiles = [],  # noqa: B006, typer copies it
    jobs: Jobs = 1,
    device: Device = None,
    out: Annotated[
        Path | None,
        output_folder(help="Output folder; default: results/judge/NAME, with --settings if given."),
    ] = None,
) -> None:
    """Judge your own connection.

    Executes your file, which may lie anywhere. Checks its contract, trains it on text and on group
    products at the scale of the kept result, and writes a page: its worth in steps of the plain
    network, its effective depth, and its row among all connections; with --track, at the settings
    of the board. The last line is the verdict. The same command resumes where it stopped.
    """
    from fathom_study.board.submission import write_submission
    from fathom_study.board.track import open_track
    from fathom_study.report.judge.judgement import cost_of, make_plan, write_judgement
    from fathom_study.runs.train_all import specs_left

    if quick and track not in ("", QUICK):
        raise ConfigError(f"--quick is the track {QUICK}; omit --quick or --track {track}")
    track = QUICK if quick else track
    author = _author(track, who, licence, check=check) if submit or who or licence else None
    if author and not submit:
        raise ConfigError("--who and --licence belong to a submission; add --submit")
    if track and (seeds or config):
        raise ConfigError("a track has its own settings and seeds; omit --seeds and --config")
    chosen = open_track(track) if track else None
    arguments = parse_yaml(settings, "--settings")
    if not isinstance(arguments, dict):
        raise ConfigError("--settings: must be a mapping, such as '{streams: 2}'")
    files = config or FULL_CONFIG
    # Other settings have another folder, as in TwoStreams-start-0.5.
    parts = module.rpartition(":")[2], re.sub(r"[^\w.]+", "-", settings).strip("-")
    named = Path("results/judge") / "-".join(filter(None, parts))
    folder = out or named / (f"track-{track}" if track else "")
    count = len(chosen.seeds) if chosen else seeds or 3
    plan = make_plan(
        files,
        module,
        arguments,
        folder,
        seeds=count,
        train_plain=train_plain,
        check=check,
        track=chosen,
    )
    if submit and chosen and chosen.kept and not plan.kept:
        raise ConfigError(f"--submit compares with the kept result, but {plan.lacking}")
    compute = changed(plan.config.compute, device=device)
    if not check:
        try:
            plan.config.check_trains()
        except ConfigError as error:  # a track says how to get its data
            raise ConfigError(f"{error}; {chosen.about}" if chosen else str(error)) from None
    checks = _checks(plan, compute)
    if check:
        flagged = dict.fromkeys(c.name for each in checks.values() for c in each if c.flagged)
        look = f"look at {', '.join(flagged)}; " if flagged else ""
        typer.echo(f"{plan.module}: {look}passed")
        return
    specs = specs_left(plan.config, [cell.path() for cell in plan.to_train()], plan.folder)
    train_left(specs, plan.folder, compute, jobs, brief=track == QUICK)
    options = ["--settings", settings] if arguments else []
    options += [part for file in config for part in ("--config", str(file))]
    options += ["--track", track] if track else []
    options += ["--train-plain"] if train_plain else []
    options += ["--out", str(out)] if out else []
    command = shlex.join(["fathom", "judge", module, *options])
    pages, verdict = write_judgement(plan, checks, PAGE, command)
    if author and chosen:
        cost, log = cost_of(checks[chosen.study_name]), folder / "JUDGE.md"
        made = write_submission(chosen, module, arguments, author, plan.folders(), cost, log)
        last = (
            f"made {made}; next: fathom board check {made}, then open a pull request that adds it"
        )
        typer.echo(last, err=True)
    for line in (*pages, verdict):
        typer.echo(str(line))


def _author(track: str, who: str, licence: str, *, check: bool) -> Author:
    """Who submits. Raises ConfigError naming the option that is missing or wrong."""
    from fathom_study.board.submission import Author

    if check:
        raise ConfigError("--submit needs trained runs; omit --check")
    needed = {
        "--track NAME": track,
        "--who NAME": who.strip(),
        "--licence SPDX, such as MIT": licence.strip(),
    }
    if missing := [option for option, value in needed.items() if not value]:
        raise ConfigError("\n".join(f"--submit needs {option}" for option in missing))
    return validate(Author, {"who": who.strip(), "licence": licence.strip()}, "--submit")


def _checks(plan: Plan, compute: Compute) -> dict[str, list[Check]]:
    """The checks of each study, printed as they come, equal ones once. Exits if one failed."""
    from fathom_study.report.judge.judgement import check_all

    checks: dict[str, list[Check]] = {study: [] for study in plan.config.studies}
    printed, broken = set(), {}
    try:
        for study, check in check_all(plan, compute):
            checks[study].append(check)
            line = f"{check.name}: {check.text}"
            if check.failed:
                broken.setdefault(line, []).append(study)
            elif line not in printed:
                printed.add(line)
                typer.echo(f"{study}: {line}", err=True)
    except ConfigError as error:
        fail(f"{error}\n{plan.module}: refused")
    if broken:
        lines = [f"{plan.module}: {', '.join(named)}: {line}" for line, named in broken.items()]
        fail("\n".join([*lines, f"{plan.module}: refused"]))
    return checks
