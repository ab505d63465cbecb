"""Carrying runs from one machine to another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fathom.cli.options import (
    DEFAULT_CONFIG,
    REFERENCE_CONFIG,
    ConfigFiles,
    Overrides,
    Patterns,
    changed,
    example,
    from_json,
    read_config,
    workflow_command,
)
from fathom.cli.training import Device, Jobs, say_estimate, train_left
from fathom.config import Compute, Config, ConfigError
from fathom.settings import unknown
from fathom.system.errors import fail

if TYPE_CHECKING:
    from fathom.runs.inspect import Run
    from fathom.runs.replay import Replay

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
    _pack(read_config(config), out, patterns or ())


def _pack(settings: Config, out: Path, patterns: Sequence[str]) -> None:
    from fathom.runs.bundle import create_bundle

    packed = create_bundle(settings, out, patterns)
    typer.echo(f"{out}: {len(packed)} runs, {out.stat().st_size / 1e6:.1f} MB")
    for platform in sorted({run.platform for run in packed}):
        typer.echo(f"  {sum(run.platform == platform for run in packed)} from {platform}")


@bundle.command(epilog=example("fathom bundle check gpu.tar.gz"))
def check(
    file: Annotated[Path, typer.Argument(help="A bundle.")],
    config: ConfigFiles = DEFAULT_CONFIG,
) -> None:
    """Say what an import of a bundle would say, and take nothing in.

    How many runs fit the config, which were made by other code and need a replay, and which are
    there already. A bundle that cannot be taken is refused in one line.
    """
    _say_arrivals(read_config(config), file)
    typer.echo("nothing was taken in")


def _say_arrivals(settings: Config, file: Path) -> None:
    from fathom.runs.arrival import arrivals, described

    found = arrivals(settings, file)
    typer.echo(f"{file}: {len(found)} runs, every file whole")
    for line in described(found):
        typer.echo(line)


@app.command(epilog=example("fathom contribute 'depth-torch/*' --out mine.tar.gz"))
def contribute(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.tar.gz", help="The bundle.")
    ] = None,
    patterns: Patterns = None,
    config: ConfigFiles = REFERENCE_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    jobs: Jobs = 1,
    device: Device = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only say how long it takes here.")
    ] = False,
) -> None:
    """Train cells of the reference scale on this machine, and pack them for others.

    Says first how long it takes. Trained cells are not trained again, and an interrupted one goes
    on from its checkpoint: give the same command again. At the end it says what the check on
    arrival will say.
    """
    settings = read_config(config, override)
    compute = changed(settings.compute, device=device)
    if estimate:
        say_estimate(settings, patterns or (), compute, jobs)
        return
    if out is None:
        raise ConfigError("--out FILE.tar.gz is missing: the bundle to write (or --estimate)")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    train_left(settings, patterns or (), compute, jobs)
    _pack(settings, out, patterns or ())
    _say_arrivals(settings, out)


@bundle.command("import", epilog=example("fathom bundle import gpu.tar.gz --keep"))
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Bundles.")],
    config: ConfigFiles = DEFAULT_CONFIG,
    keep: Annotated[bool, typer.Option("--keep", help="Keep runs that are there.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace them.")] = False,
) -> None:
    """Check bundles and put their runs under RESULTS/imported/PLATFORM.

    A bundle that is refused is named, and the others are imported all the same. The next
    `snakemake all` shows the runs beside what was measured here, and trains here whatever the
    config has and this machine has not trained. `snakemake all --config train=false` trains
    nothing and renders only what was imported.
    """
    from fathom.runs.bundle import BundleError, import_bundle

    if keep and replace:
        raise ConfigError("--keep and --replace exclude each other; give one of them")
    settings = read_config(config)
    existing = "keep" if keep else "replace" if replace else "refuse"
    known = {cell.path() for cell in settings.cells()}
    refused, found = [], False
    for file in files:
        try:
            done = import_bundle(Path(settings.results), file, existing)
        except BundleError as error:
            refused.append(str(error))
            continue
        counts = [f"{len(cells)} {what}" for what, cells in done.items() if cells]
        home = Path(settings.results) / "imported"
        typer.echo(f"{file}: {', '.join(counts) or 'no runs'}, under {home}")
        cells = set(itertools.chain(*done.values()))
        found = found or not cells.isdisjoint(known)
        if foreign := sorted(cells - known):
            typer.echo(f"{file}: {len(foreign)} of no cell of this config, as {foreign[0]}")
    if found:
        typer.echo(_what_now(settings, config))
    if refused:
        fail("\n".join(refused))


def _what_now(settings: Config, files: Sequence[Path]) -> str:
    """What the workflow makes of imported runs."""
    command = workflow_command(files)
    if not settings.train:
        return f"`{command}` renders what was imported, and trains nothing"
    return (
        f"`{command}` also trains here every cell that was not trained here; with `--config "
        "train=false` it renders only what was imported"
    )


@app.command(epilog=example("fathom replay torch"))
def replay(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BACKEND]...", help="Only runs of these backends."),
    ] = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    compute: Annotated[
        str | None, typer.Option(help="That section, as JSON, in place of the config's.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every imported run, also those that today's code made.")
    ] = False,
) -> None:
    """Repeat the first steps of imported runs that other code made.

    One run of each study, depth, variant, backend and platform. Where today's code agrees, the
    runs count; `fathom status` names the others. Leaves a receipt for each backend in
    RESULTS/replay.

    With --all it is a check that writes nothing: it ends with status 1 if a run is corrupt, is of
    another spec, or is not repeated.
    """
    from fathom.runs.inspect import imported_runs

    settings = read_config(config, override)
    how = settings.compute if compute is None else from_json(Compute, compute, "--compute")
    known = [backend for study in settings.studies.values() for backend in study.backends]
    for name in names or ():
        if name not in known:
            raise ConfigError(unknown("backend", name, dict.fromkeys(known)))
    runs = [r for r in imported_runs(settings) if not names or r.cell.backend in names]
    if every:
        _check_all(settings, runs, how)
    else:
        _replay(settings, [run for run in runs if run.replay], how)


def _replay(settings: Config, runs: Sequence[Run], how: Compute) -> None:
    """Replay what waits for it, and leave receipts."""
    from fathom.runs.replay import receipt_file, write_receipt

    if not runs:
        typer.echo("nothing to replay: no imported run was made by other code")
    for backend in dict.fromkeys(run.cell.backend for run in runs):
        replays = write_receipt(settings, backend, runs, how, _say)
        typer.echo(f"{receipt_file(settings, backend)}: {_counts(replays)}")


def _check_all(settings: Config, runs: Sequence[Run], how: Compute) -> None:
    """Replay every run of the present spec; end with status 1 unless all is well."""
    from fathom.runs.replay import replay_each

    if not runs:
        raise ConfigError(f"{settings.results}/imported: holds no such run, so nothing is replayed")
    whole = [run for run in runs if run.counts or run.replay]
    replays = list(replay_each(settings, whole, how, _say))
    typer.echo(_counts(replays) or "no group was replayed")
    wrong = [f"{run.folder}: {run.status}: {run.reason}" for run in runs if run not in whole]
    wrong += [f"{r.platform}: {r.group}: {r.told}" for r in replays if r.outcome == "differs"]
    if wrong:
        fail("\n".join(wrong))


def _say(replay: Replay) -> None:
    typer.echo(f"{replay.platform}: {replay.group}, made by {replay.made_by}: {replay.told}")


def _counts(replays: Sequence[Replay]) -> str:
    """As in '3 agrees, 1 differs'."""
    outcomes = [replay.outcome for replay in replays]
    return ", ".join(f"{outcomes.count(o)} {o}" for o in dict.fromkeys(outcomes))
