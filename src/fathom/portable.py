"""The commands that need only Python, a framework and the core: `train-all` and `bundle`.

A machine with the right GPU may have nothing else. So these use argparse, and nothing here may
import typer, rich, pandas or Snakemake.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path

from fathom import runs
from fathom.backends import BackendError
from fathom.bundle import BundleError, create_bundle, import_bundle, matches
from fathom.errors import fail, fail_for_interrupt, fail_for_system
from fathom.progress import log_lines
from fathom.runs import RunError
from fathom.study import (
    Compute,
    Config,
    ConfigError,
    Spec,
    checked,
    installed_backends,
    load_config,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `train-all` or `bundle`; an error that the user can mend is one line, exit status 1."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (BackendError, BundleError, ConfigError, RunError) as error:
        fail(str(error))
    except OSError as error:
        fail_for_system(error)
    except KeyboardInterrupt:
        fail_for_interrupt()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fathom")
    commands = parser.add_subparsers(required=True)

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "-c", "--config", action="append", metavar="FILE",
        help="config file, config.yaml by default (repeatable: later ones lie over earlier ones)",
    )  # fmt: skip
    selection = argparse.ArgumentParser(add_help=False)
    selection.add_argument(
        "patterns", nargs="*", metavar="PATTERN",
        help="which cells, as in 'depth-mlx/48L/*' or '*/torch/*' (default: all)",
    )  # fmt: skip

    train_all = commands.add_parser(
        "train-all", parents=[shared, selection], description="Train cells without Snakemake.",
        help="train cells without Snakemake",
    )  # fmt: skip
    train_all.add_argument("--jobs", type=_positive, default=1, help="cells at once (default 1)")
    train_all.add_argument("--device", help="auto, cpu, cuda, mps or gpu (default: the config's)")
    train_all.set_defaults(run=_train_all)

    bundle = commands.add_parser("bundle", help="carry runs from one machine to another")
    actions = bundle.add_subparsers(required=True)
    create = actions.add_parser(
        "create", parents=[shared, selection], help="pack verified runs",
        description="Pack every current run that was trained here.",
    )  # fmt: skip
    create.add_argument("-o", "--out", type=Path, required=True, metavar="FILE.tar.gz")
    create.set_defaults(run=_create)
    importing = actions.add_parser(
        "import", parents=[shared], help="check a bundle and add its runs",
        description="Check a bundle and put its runs under <results>/imported/<platform>.",
    )  # fmt: skip
    importing.add_argument("file", type=Path, metavar="FILE")
    choice = importing.add_mutually_exclusive_group()
    choice.add_argument("--keep", action="store_true", help="keep runs that are there already")
    choice.add_argument("--replace", action="store_true", help="replace them")
    importing.set_defaults(run=_import)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _config(options: argparse.Namespace) -> Config:
    return load_config(options.config or ["config.yaml"])


# --- train-all ----------------------------------------------------------------------------------


def _train_all(options: argparse.Namespace) -> None:
    config = _config(options)
    compute = config.compute
    if options.device:
        numbers = {**compute.model_dump(), "device": options.device}
        compute = checked(Compute, numbers, f"--device {options.device}")
    specs = _specs_left(config, options.patterns)
    if not specs:
        print("fathom: nothing to be done: every chosen cell is trained", file=sys.stderr)
        return

    started, failures = time.monotonic(), []
    for done, (spec, error) in enumerate(_trained(config, specs, compute, options.jobs), start=1):
        failures += [f"{spec.cell}: {error}"] if error else []
        minutes = (time.monotonic() - started) / 60
        left = minutes / done * (len(specs) - done)
        state = f"failed, {error}" if error else "done"
        print(
            f"[{done}/{len(specs)}] {spec.cell}: {state}  ({minutes:.1f} min, {left:.1f} left)",
            file=sys.stderr,
        )
    if failures:
        fail("\n".join(failures))


def _specs_left(config: Config, patterns: Sequence[str]) -> list[Spec]:
    """Specs of the chosen cells that are not trained yet and whose backend is here."""
    cells = [cell for cell in config.cells() if matches(cell, patterns)]
    if not cells:
        raise ConfigError("no cell matches; a pattern is like 'depth-mlx/48L/*'")
    here = installed_backends()
    for backend in sorted({cell.backend for cell in cells} - set(here)):
        print(f"fathom: backend {backend} is not installed here: left out", file=sys.stderr)
    specs = [config.spec(cell) for cell in cells if cell.backend in here]
    if not specs:
        raise BackendError("no chosen cell can be trained here, for want of its backend")
    results = Path(config.results)
    # Long cells first, so that no worker waits for one that began last.
    return sorted(
        (
            s
            for s in specs
            if runs.inspect(runs.run_folder(results, s.cell), s).status != "measured"
        ),
        key=lambda spec: -spec.depth * spec.steps,
    )


def _trained(
    config: Config, specs: Sequence[Spec], compute: Compute, jobs: int
) -> Iterator[tuple[Spec, str]]:
    """Train every spec; yields each with its error, empty if there was none."""
    results = Path(config.results)
    if jobs == 1:
        for spec in specs:
            yield spec, _train_one(spec, runs.run_folder(results, spec.cell), compute)
        return
    # Spawned: a forked child would inherit the threads and locks of a framework.
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_end_with_parent) as pool:
        pending = {
            pool.submit(_train_one, spec, runs.run_folder(results, spec.cell), compute): spec
            for spec in specs
        }
        for future in as_completed(pending):
            try:
                yield pending[future], future.result()
            except BrokenProcessPool:
                # As the system does where memory runs out; the pool gives up its other cells too.
                yield pending[future], "a worker was killed; run it again to go on"


def _end_with_parent() -> None:
    """Let this worker end when its parent is killed, or both would write to the same folders."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train_one(spec: Spec, folder: Path, compute: Compute) -> str:
    try:
        runs.run_cell(spec, folder, compute, log_lines(spec))
    except (BackendError, OSError) as error:
        return str(error)
    return ""


# --- bundle -------------------------------------------------------------------------------------


def _create(options: argparse.Namespace) -> None:
    packed = create_bundle(_config(options), options.out, options.patterns)
    size = options.out.stat().st_size
    print(f"{options.out}: {len(packed)} runs, {size / 1e6:.1f} MB")
    for platform in sorted({run.platform for run in packed}):
        print(f"  {sum(run.platform == platform for run in packed)} from {platform}")


def _import(options: argparse.Namespace) -> None:
    existing = "keep" if options.keep else "replace" if options.replace else "refuse"
    results = Path(_config(options).results)
    done = import_bundle(results, options.file, existing)
    counts = [f"{len(cells)} {what}" for what, cells in done.items() if cells]
    print(f"{options.file}: {', '.join(counts) or 'no runs'}, under {results / 'imported'}")
