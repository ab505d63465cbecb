"""Bundles and replays: carry runs from one machine to another."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fathom.system.errors import fail, say
from fathom.system.text import one_line
from fathom_study import datasets
from fathom_study.cli.options import (
    DEFAULT_CONFIG,
    ConfigFiles,
    Overrides,
    Patterns,
    end_with,
    example,
    options_of,
    output_file,
    read_config,
    workflow_command,
)
from fathom_study.config import Compute, Config, ConfigError

if TYPE_CHECKING:
    from fathom_study.runs.run import Run
    from fathom_study.runs.validate import GroupReplay

app = typer.Typer()
bundle = typer.Typer()
app.add_typer(bundle, name="bundle", help="Carry runs from one machine to another.")


@bundle.command(epilog=example("fathom bundle create 'depth-mlx/*' --out gpu.tar.xz"))
def create(
    out: Annotated[Path, output_file("--out", "-o", metavar="FILE.tar.xz", help="The bundle.")],
    patterns: Patterns = None,
    config: ConfigFiles = DEFAULT_CONFIG,
) -> None:
    """Pack the runs that were trained here into a bundle.

    Every chosen run must be current and intact. Trainings that have not finished are left out.
    """
    from fathom_study.runs.bundle import create_bundle

    packed = create_bundle(read_config(config), out, patterns or ())
    typer.echo(f"{out}: {len(packed)} runs, {out.stat().st_size / 1e6:.1f} MB")
    for platform, count in sorted(Counter(run.platform for run in packed).items()):
        typer.echo(f"  {count} from {platform}")
    command = shlex.join(["fathom", "bundle", "import", out.name, *options_of(config)])
    end_with(out, f"on the other machine, `{command}`")


@bundle.command(epilog=example("fathom bundle check gpu.tar.xz"))
def check(
    file: Annotated[Path, Argument(help="A bundle.")], config: ConfigFiles = DEFAULT_CONFIG
) -> None:
    """Check a bundle without importing it.

    Shows how many runs fit the config, need a replay, or are already there. Refuses a bundle that
    an import would refuse, in one line.
    """
    from fathom_study.runs.import_preview import TRUST, format_previews, preview_import

    previews = preview_import(read_config(config), file)
    typer.echo(f"{file}: {len(previews)} runs, every file intact")
    for line in (*format_previews(previews), TRUST, "nothing was imported"):
        typer.echo(line)


@bundle.command("import", epilog=example("fathom bundle import gpu.tar.xz --keep"))
def import_(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Bundles.")],
    config: ConfigFiles = DEFAULT_CONFIG,
    keep: Annotated[bool, Option("--keep", help="Keep an existing run of the same cell.")] = False,
    replace: Annotated[
        bool, Option("--replace", help="Replace an existing run of the same cell.")
    ] = False,
) -> None:
    """Check bundles and put their runs under RESULTS/imported/PLATFORM.

    A refused bundle does not stop the import of the others. The next `snakemake all` shows the runs
    next to those of this machine, and trains the cells of the config that this machine has not
    trained. `snakemake all --config train=false` trains nothing and renders only imported runs.
    """
    from fathom_study.runs.bundle import BundleError, import_bundle, record_refusals

    if keep and replace:
        raise ConfigError("--keep and --replace exclude each other; use only one")
    settings = read_config(config)
    existing = "keep" if keep else "replace" if replace else "refuse"
    known = {cell.path() for cell in settings.cells()}
    home = Path(settings.results) / "imported"
    refusals: dict[Path, str | None] = {}
    any_known = False
    for file in files:
        try:
            done = import_bundle(Path(settings.results), file, existing)
        except BundleError as error:
            refusals[file] = one_line(str(error).removeprefix(f"{file}: "))
            continue
        refusals[file] = None
        counts = [f"{len(cells)} {what}" for what, cells in done.items() if cells]
        typer.echo(f"{file}: {', '.join(counts) or 'no runs'}, under {home}")
        cells = set(itertools.chain(*done.values()))
        any_known = any_known or not cells.isdisjoint(known)
        if foreign := sorted(cells - known):
            typer.echo(f"{file}: cells not in this config: {len(foreign)}, such as {foreign[0]}")
    there = {file: why for file, why in refusals.items() if file.exists()}  # others are mistyped
    record_refusals(Path(settings.results), there)
    if any_known:
        end_with(home, _what_now(settings, config))
    if refused := [f"{file}: {why}" for file, why in refusals.items() if why]:
        fail("\n".join(refused))


def _what_now(settings: Config, files: Sequence[Path]) -> str:
    """The commands that check and render imported runs, and their effect."""
    check, command = shlex.join(["fathom", "replay", *options_of(files)]), workflow_command(files)
    then = f"`{check}` repeats their first steps, then `{command}`"
    if not settings.train:
        return f"{then} renders them and trains nothing"
    return (
        f"{then} shows them and trains every cell that this machine has not trained; with "
        "`--config train=false` it renders only imported runs"
    )


@app.command(epilog=example("fathom replay --jobs 2"))
def replay(
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    jobs: Annotated[int, Option(min=1, help="Number of groups to replay at once.")] = 1,
    every: Annotated[
        bool,
        Option("--all", help="Write nothing; exit with status 1 if a run fails the check."),
    ] = False,
    whole: Annotated[
        Path | None,
        Option("--whole", metavar="RUN", help="Repeat this run folder to its last step."),
    ] = None,
) -> None:
    """Repeat the first steps of imported runs.

    Repeats three steps of one run of each study, depth, variant, backend and platform, and step 0
    of its other seeds. If today's code agrees, the runs count; `fathom status` names the others.
    RESULTS/replays/STUDY/BACKEND.json keeps the outcomes. Groups that agree are not repeated again.

    With --all, checks every run and writes nothing: the exit status is 1 if a run is corrupt, has
    another spec, or cannot be repeated, for example because its device is missing.

    With --whole, repeats one run to its end and compares every step; the exit status is 1 if one
    differs. Only a machine like the original can compare to the last digit.
    """
    from fathom_study.runs.validate import imported_runs

    settings = read_config(config, override)
    if whole is not None:
        if every:
            raise ConfigError("--whole RUN repeats one run; use it without --all")
        _repeat_whole(whole, settings.compute)
        return
    runs = imported_runs(settings)
    if every and not runs:
        raise ConfigError(
            f"{settings.results}/imported: contains no such run, so nothing was replayed"
        )
    left = [run for run in runs if run.replay and (every or run.replay != "agrees")]
    groups = list(_replay_each(settings, left, jobs, write=not every))
    counts = Counter(group.outcome for group in groups)
    typer.echo(", ".join(f"{n} {what}" for what, n in counts.items()) or "no group to replay")
    if every:
        wrong = [f"{run.folder}: {run.status}: {run.reason}" for run in runs if not run.replay]
        wrong += [str(group) for group in groups if group.outcome != "agrees"]
        if wrong:
            fail("\n".join(wrong))
    elif groups:
        after = workflow_command(config, override)
        end_with(f"{settings.results}/replays", f"`{after}` makes tables of the runs that count")


def _repeat_whole(run: Path, how: Compute) -> None:
    """Repeat one run to its end; exit with status 1 unless every step agrees."""
    from fathom_study.backends import BackendError
    from fathom_study.datasets import DataError
    from fathom_study.runs.folder import read_spec
    from fathom_study.runs.progress import training_progress
    from fathom_study.runs.replay import replay_whole
    from fathom_study.runs.validate import NOT_REPEATED

    try:
        with training_progress(read_spec(run)) as on_chunk:
            steps, comparison = replay_whole(run, how, on_chunk)
    except (BackendError, DataError) as error:
        fail(f"{run}: {NOT_REPEATED}: {error}")
    if comparison.outcome == "differs":
        fail(f"{run}: today's code does not repeat it: {comparison.why}")
    typer.echo(f"{run}: today's code repeats all {steps} steps: {comparison.why}")


def _replay_each(
    settings: Config, runs: Sequence[Run], jobs: int, *, write: bool
) -> Iterator[GroupReplay]:
    """Replay every group of the runs; prints a line after each, and keeps the outcome."""
    from fathom_study.runs.pools import by_backend
    from fathom_study.runs.replay import replay_group
    from fathom_study.runs.run import group_runs
    from fathom_study.runs.validate import write_replays

    for name in sorted({settings.studies[run.cell.study].dataset for run in runs} - {None}):
        try:
            datasets.fetch(name, settings.compute.data, say)
        except datasets.DataError as error:  # its runs cannot be repeated here
            say(str(error).partition("\n")[0])
    work = partial(replay_group, settings, settings.compute)
    items = [(group[0].cell.backend, group) for group in group_runs(runs)]
    for _, group in by_backend(work, items, jobs):
        if group is None:
            fail("a process was killed, perhaps out of memory; run the same command again to go on")
        typer.echo(str(group))
        if write:
            write_replays(settings, group)
        yield group
