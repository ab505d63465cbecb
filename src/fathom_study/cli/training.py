"""Training: one cell, all cells, the variants of a comparison, a job of the workflow."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fathom.settings import validate
from fathom.system.errors import UserError, fail, say
from fathom.system.text import format_duration
from fathom_study import datasets, tasks
from fathom_study.cli.options import (
    DEFAULT_CONFIG,
    ConfigFiles,
    Device,
    Jobs,
    Overrides,
    Patterns,
    Replace,
    changed,
    check_known,
    end_with,
    example,
    options_of,
    output_folder,
    read_config,
    workflow_command,
)
from fathom_study.config import Cell, Compute, Config, ConfigError, Spec, parse_json, parse_spec

app = typer.Typer()


@app.command(
    epilog=example("fathom train depth-mlx --depth 48 --variant mhc --backend torch --seed 0")
)
def train(
    name: Annotated[str, Argument(metavar="STUDY", help="A study of the config.")],
    depth: Annotated[int | None, Option(help="Number of layers.")] = None,
    variant: Annotated[str | None, Option(help="Residual scheme, for example mhc.")] = None,
    backend: Annotated[str | None, Option(help="Framework, for example torch.")] = None,
    seed: Annotated[int | None, Option(help="Seed of parameters and batches.")] = None,
    out: Annotated[
        Path | None, output_folder(help="Run folder; by default the one in results.")
    ] = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    replace: Replace = False,
) -> None:
    """Train one cell of a study.

    Options for which the study lists only one value can be omitted; values that it does not list
    are allowed. An interrupted training resumes from its checkpoint. A run of another spec is
    replaced, and a current one trained again, only with --replace. The run folder holds spec.json,
    metrics.jsonl, mixing.safetensors and manifest.json.
    """
    from fathom_study.runs.folder import run_folder

    settings = read_config(config, override)
    wanted = {"depth": depth, "variant": variant, "backend": backend, "seed": seed}
    spec = _spec_of(settings, name, wanted)
    settings.check_trains([name], apart=out is not None)
    folder = out or run_folder(Path(settings.results), spec.cell)
    if replace or is_free(folder, spec):
        train_spec(spec, folder, settings.compute)
        end_with(folder, f"`fathom cell-figures {shlex.quote(str(folder))} --out figures` draws it")


@app.command("train-all", epilog=example("fathom train-all 'depth-mlx/*' --jobs 2"))
def train_all(
    patterns: Patterns = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    override: Overrides = [],  # noqa: B006, typer copies it
    jobs: Jobs = 1,
    device: Device = None,
    estimate: Annotated[
        bool, Option("--estimate", help="Only estimate the time on this machine.")
    ] = False,
) -> None:
    """Train every cell without a current run, without Snakemake.

    Runs that are stale or of another spec are replaced. For machines with only Python, the core
    packages and a framework. `fathom bundle` carries the runs to another machine. After an
    interruption the same command resumes.
    """
    from fathom_study.runs.folder import run_folder
    from fathom_study.runs.train_all import specs_left

    settings = read_config(config, override)
    specs, compute = specs_left(settings, patterns or ()), changed(settings.compute, device=device)
    if estimate:
        print_estimate(specs, compute, jobs)
    else:
        train_left(specs, partial(run_folder, Path(settings.results)), compute, jobs)
        end_with(f"{settings.results}/runs", _after_training(settings, config, override))


def _after_training(settings: Config, files: Sequence[Path], overrides: Sequence[str]) -> str:
    """The command that makes results of the runs, or carries them to where that can be done."""
    if find_spec("snakemake"):
        page = f"{settings.report_folder}/index.html"
        command = workflow_command(files, overrides)
        return f"`{command}` trains what is missing, and makes tables, figures and the page {page}"
    command = ["fathom", "bundle", "create", "--out", "runs.tar.xz", *options_of(files)]
    return f"`{shlex.join(command)}` packs them, for a machine with Snakemake to import"


def print_estimate(specs: Sequence[Spec], compute: Compute, jobs: int) -> None:
    """Print how many cells are left and how long they take. Raises UserError as trainings do."""
    from fathom_study.runs.train_all import estimate_by_timing

    if not specs:
        say("nothing to do: every chosen cell is trained")
        return
    typer.echo(f"{len(specs)} cells to train; timing a few steps of the longest", err=True)
    seconds = estimate_by_timing(specs, compute)
    at_once = min(jobs, len(specs))
    how = "one after the other" if at_once == 1 else f"{at_once} at once"
    time_left = format_duration(seconds / at_once)
    typer.echo(f"about {time_left} for {len(specs)} cells, {how}", err=True)


BRIEF = 8
"""Approximate number of lines of a brief training."""


def train_left(
    specs: Sequence[Spec],
    folder_of: Callable[[Cell], Path],
    compute: Compute,
    jobs: int,
    *,
    brief: bool = False,
) -> None:
    """Train the cells that are left; prints an estimate first, then a line after each.

    `brief`: a line after every eighth of the cells, and after each that fails.
    """
    from fathom_study.runs.train_all import train_each

    with suppress(UserError):  # the training of that cell will report it; others continue
        print_estimate(specs, compute, jobs)
    started, failures = time.monotonic(), []
    every = math.ceil(len(specs) / BRIEF) if brief else 1
    trained = train_each(specs, folder_of, compute, jobs, logs=not brief)
    for done, (spec, error) in enumerate(trained, start=1):
        failures += [f"{spec.cell}: {error}"] if error else []
        if done % every and done < len(specs) and not error:
            continue
        minutes = (time.monotonic() - started) / 60
        left = minutes / done * (len(specs) - done)
        state = f"failed, {error}" if error else "done"
        typer.echo(
            f"[{done}/{len(specs)}] {spec.cell}: {state}  ({minutes:.1f} min, {left:.1f} left)",
            err=True,
        )
    if failures:
        fail("\n".join(failures))


@app.command(
    epilog=example("fathom compare fashion --depth 4 --steps 100 --width 16 --batch-size 16")
)
def compare(
    task: Annotated[str, Argument(metavar="TASK", help="The task: fashion.")],
    mode: Annotated[
        list[str] | None, Option(help="Variant (repeatable); by default all published ones.")
    ] = None,
    depth: Annotated[int | None, Option(min=1, help="Layers.")] = None,
    steps: Annotated[int | None, Option(min=1, help="Training steps.")] = None,
    width: Annotated[int | None, Option(min=1, help="Channels.")] = None,
    batch_size: Annotated[int | None, Option(min=1, help="Examples per batch.")] = None,
    seed: Annotated[int | None, Option(min=0, help="Seed of all random numbers.")] = None,
    streams: Annotated[int | None, Option(min=1, help="Number of streams.")] = None,
    lr: Annotated[float | None, Option(help="Learning rate.")] = None,
    weight_decay: Annotated[float | None, Option(help="Decoupled weight decay.")] = None,
    warmup_steps: Annotated[int | None, Option(min=0, help="Steps of linear warm-up.")] = None,
    dropout: Annotated[float | None, Option(help="Share of activations to drop.")] = None,
    no_schedule: Annotated[bool, Option("--no-schedule", help="Constant learning rate.")] = False,
    backend: Annotated[str, Option(help="Framework, for example torch.")] = "torch",
    device: Device = "auto",
    threads: Annotated[
        int,
        Option(min=1, help="CPU threads; use more than one only if other cores are idle."),
    ] = 1,
    out: Annotated[Path, output_folder(help="Output folder.")] = Path("results/compare"),
    replace: Annotated[
        bool, Option("--replace", help="Replace runs of other settings in that folder.")
    ] = False,
) -> None:
    """Train several variants and compare them.

    Trains them one after the other, without the workflow. Defaults are the published settings.
    Writes figures, tables, the weights, and one JSON file with configuration, summary and history.
    Downloads the data set if it is missing. Keeps variants that are already trained.
    """
    from fathom_study.report.drawing.compare import comparison, write_comparison
    from fathom_study.runs.folder import run_folder
    from fathom_study.runs.train_all import specs_left

    study = {
        "variants": mode,
        "depths": [depth] if depth else None,
        "seeds": None if seed is None else [seed],
        "backends": [backend],
        "steps": steps,
        "batch_size": batch_size,
        "streams": streams,
        "model": {"width": width, "dropout": dropout},
        "optimizer": {
            "lr": lr,
            "weight_decay": weight_decay,
            "warmup_steps": warmup_steps,
            "schedule": "constant" if no_schedule else None,
        },
    }
    config = comparison(task, study, out)
    for cell in config.cells()[:1]:
        if dataset := tasks.load(task).dataset(config.spec(cell).model):
            datasets.fetch(dataset, config.compute.data, say)
    compute = changed(config.compute, device=device, threads=threads)
    place = partial(run_folder, Path(config.results))
    left = specs_left(config, ())
    for spec in () if replace else left:
        is_free(place(spec.cell), spec)
    train_left(left, place, compute, jobs=1)
    typer.echo(write_comparison(config))


@app.command(
    hidden=True, epilog=example("fathom job \"$(cat RUN/spec.json)\" --out RUN --compute '{}'")
)
def job(
    spec: Annotated[str, Argument(help="The spec, as JSON.")],
    out: Annotated[Path, output_folder(help="Folder for the run.")],
    compute: Annotated[str, Option(help="The config's section `compute`, as JSON.")] = "{}",
) -> None:
    """Train the cell of a spec. The workflow calls this."""
    cell = parse_spec(parse_json(spec, "SPEC:"), "SPEC")
    train_spec(cell, out, validate(Compute, parse_json(compute, "--compute:"), "--compute"))


def _spec_of(settings: Config, name: str, wanted: dict[str, Any]) -> Spec:
    check_known("study", [name], settings.studies)
    chosen = settings.studies[name]
    values = {}
    for axis, value in wanted.items():
        listed = chosen.labels if axis == "variant" else getattr(chosen, f"{axis}s")
        if value is None and len(listed) > 1:
            known = ", ".join(map(str, listed))
            raise ConfigError(f"{name}: add --{axis}, one of {known}")
        values[axis] = listed[0] if value is None else value
    return settings.spec(Cell(name, **values))


def is_free(folder: Path, spec: Spec) -> bool:
    """Whether a training into the folder loses nothing; prints a line for the spec's own run.

    Exits with status 1 if it holds a run of another spec, also of another cell.
    """
    from fathom_study.runs.validate import validate_run

    run = validate_run(folder, spec)
    if run.manifest and run.manifest.spec_hash != spec.hash():
        fail(
            f"{folder}: contains a run of another spec ({run.reason}); add --replace to replace "
            "it, or keep it with --out FOLDER"
        )
    if run.counts:
        say(f"{folder}: contains this run, and it is current; to train again, add --replace")
    return not run.counts


def train_spec(spec: Spec, out: Path, compute: Compute) -> None:
    """Train a spec into a folder, with a line of progress and of the outcome."""
    from fathom_study.runs.progress import training_progress
    from fathom_study.runs.training import run_cell

    with training_progress(spec) as on_chunk:
        outcome = run_cell(spec, out, compute, on_chunk)
    typer.echo(f"{spec.cell}: {outcome}; the run is in {out}", err=True)
