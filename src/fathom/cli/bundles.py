"""Bundles and replays: carry runs from one machine to another."""

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
    Device,
    Jobs,
    Overrides,
    Patterns,
    changed,
    check_known,
    example,
    from_json,
    read_config,
    workflow_command,
)
from fathom.cli.training import print_estimate, train_left
from fathom.config import Compute, Config, ConfigError
from fathom.system.errors import fail

if TYPE_CHECKING:
    from fathom.runs.receipts import Replay
    from fathom.runs.run import Run

app = typer.Typer()
bundle = typer.Typer()
app.add_typer(bundle, name="bundle", help="Carry runs from one machine to another.")


@bundle.command(epilog=example("fathom bundle create 'depth-mlx/*' --out gpu.tar.gz"))
def create(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.tar.gz", help="The bundle.")],
    patterns: Patterns = None,
    config: ConfigFiles = DEFAULT_CONFIG,
) -> None:
    """Pack the runs that were trained here into a bundle.

    Every chosen run must be current and intact.
    """
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
    """Check a bundle without importing it.

    Shows how many runs fit the config, which were made by other code and need a replay, and which
    are there already. A bundle that an import would refuse is refused in one line.
    """
    _preview(read_config(config), file)
    typer.echo("nothing was taken in")


def _preview(settings: Config, file: Path) -> None:
    from fathom.runs.import_preview import format_previews, preview_import

    previews = preview_import(settings, file)
    typer.echo(f"{file}: {len(previews)} runs, every file whole")
    for line in format_previews(previews):
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
        bool, typer.Option("--estimate", help="Only estimate how long it takes here.")
    ] = False,
) -> None:
    """Train cells of the reference scale on this machine, and pack them for others.

    First estimates how long that takes. After an interruption give the same command again: trained
    cells are kept, and an interrupted one resumes from its checkpoint. At the end it checks the
    bundle as `fathom bundle check` does.
    """
    settings = read_config(config, override)
    compute = changed(settings.compute, device=device)
    if estimate:
        print_estimate(settings, patterns or (), compute, jobs)
        return
    if out is None:
        raise ConfigError("--out FILE.tar.gz is missing: the bundle to write (or --estimate)")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    train_left(settings, patterns or (), compute, jobs)
    _pack(settings, out, patterns or ())
    _preview(settings, out)


@bundle.command("import", epilog=example("fathom bundle import gpu.tar.gz --keep"))
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Bundles.")],
    config: ConfigFiles = DEFAULT_CONFIG,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep a different run that is there.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace it.")] = False,
) -> None:
    """Check bundles and put their runs under RESULTS/imported/PLATFORM.

    A bundle that is refused does not keep the others from being imported. The next `snakemake all`
    shows the runs beside those of this machine, and trains the cells of the config that this
    machine has not trained. `snakemake all --config train=false` trains nothing and renders only
    what was imported.
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
    """What the workflow does with imported runs."""
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

    Repeats one run of each study, depth, variant, backend and platform. Where today's code agrees,
    the runs count; `fathom status` names the others. Writes a receipt for each backend into
    RESULTS/replay.

    With --all it is a check that writes nothing: the exit status is 1 if a run is corrupt, has
    another spec, or is not repeated.
    """
    from fathom.runs.validate import imported_runs

    settings = read_config(config, override)
    how = settings.compute if compute is None else from_json(Compute, compute, "--compute")
    known = [backend for study in settings.studies.values() for backend in study.backends]
    check_known("backend", names or (), known)
    runs = [r for r in imported_runs(settings) if not names or r.cell.backend in names]
    if every:
        _check_all(settings, runs, how)
    else:
        _replay(settings, [run for run in runs if run.replay], how)


def _replay(settings: Config, runs: Sequence[Run], how: Compute) -> None:
    """Replay the runs and write receipts."""
    from fathom.runs.receipts import receipt_file, write_receipt

    if not runs:
        typer.echo("nothing to replay: no imported run was made by other code")
    for backend in dict.fromkeys(run.cell.backend for run in runs):
        replays = _replay_each(settings, [r for r in runs if r.cell.backend == backend], how)
        write_receipt(settings, backend, replays)
        typer.echo(f"{receipt_file(settings, backend)}: {_counts(replays)}")


def _check_all(settings: Config, runs: Sequence[Run], how: Compute) -> None:
    """Replay every run of the present spec; exit with status 1 unless all agree."""
    if not runs:
        raise ConfigError(f"{settings.results}/imported: holds no such run, so nothing is replayed")
    whole = [run for run in runs if run.counts or run.replay]
    replays = _replay_each(settings, whole, how)
    typer.echo(_counts(replays) or "no group was replayed")
    wrong = [f"{run.folder}: {run.status}: {run.reason}" for run in runs if run not in whole]
    wrong += [
        f"{r.platform}: {r.group}: {r.explanation}" for r in replays if r.outcome == "differs"
    ]
    if wrong:
        fail("\n".join(wrong))


def _replay_each(settings: Config, runs: Sequence[Run], how: Compute) -> list[Replay]:
    """Replay every group of the runs; prints a line after each."""
    from fathom.runs.replay import replay_groups

    replays = []
    for replay in replay_groups(settings, runs, how):
        made = f"made by {replay.made_by}"
        typer.echo(f"{replay.platform}: {replay.group}, {made}: {replay.explanation}")
        replays.append(replay)
    return replays


def _counts(replays: Sequence[Replay]) -> str:
    """As in '3 agrees, 1 differs'."""
    outcomes = [replay.outcome for replay in replays]
    return ", ".join(f"{outcomes.count(o)} {o}" for o in dict.fromkeys(outcomes))
