"""Carrying runs from one machine to another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.options import (
    DEFAULT_CONFIG,
    REFERENCE_CONFIG,
    ConfigFiles,
    Overrides,
    Patterns,
    changed,
    example,
    read_config,
)
from fathom.cli.training import Device, Jobs, say_estimate, train_left
from fathom.config import Compute, Config, ConfigError
from fathom.settings import unknown

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
) -> None:
    """Repeat the first steps of imported runs that other code made.

    One run of each study, depth, variant, backend and platform. Where today's code agrees, the
    runs count; `fathom status` names the others. Leaves a receipt for each backend in
    RESULTS/replay.
    """
    from fathom.runs.inspect import imported_runs
    from fathom.runs.replay import Replay, receipt_file, write_receipt

    settings = read_config(config, override)
    how = settings.compute if compute is None else Compute.model_validate_json(compute)
    runs = [run for run in imported_runs(settings) if run.replay]
    backends = list(dict.fromkeys(run.cell.backend for run in runs))
    known = [backend for study in settings.studies.values() for backend in study.backends]
    for name in names or ():
        if name not in known:
            raise ConfigError(unknown("backend", name, dict.fromkeys(known)))
    chosen = [name for name in backends if not names or name in names]
    if not chosen:
        typer.echo("nothing to replay: no imported run was made by other code")

    def say(replay: Replay) -> None:
        typer.echo(f"{replay.platform}: {replay.group}, made by {replay.made_by}: {replay.why}")

    for backend in chosen:
        outcomes = [r.outcome for r in write_receipt(settings, backend, runs, how, say)]
        counts = [f"{outcomes.count(o)} {o}" for o in dict.fromkeys(outcomes)]
        typer.echo(f"{receipt_file(settings, backend)}: {', '.join(counts)}")
