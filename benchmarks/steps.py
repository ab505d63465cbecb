"""Time training steps of several sides in turns, each side in its own process.

    python benchmarks/steps.py sizes demo small     ours, a textbook's, packages, a matrix product
    python benchmarks/steps.py schemes --turns 3 --out FILE  every named scheme over plain
    python benchmarks/steps.py studies released --out FILE  each network of a study
    python benchmarks/steps.py schemes --turns 0 --out FILE         counts alone: no time
    python benchmarks/steps.py schemes --no-count --out FILE        times alone: no count

A turn of one side takes about half a second, then the next side has its turn. So other load on the
machine affects all sides alike, and a ratio is the median of the ratios of all turns. Timing
libraries (pyperf, pytest-benchmark, torch.utils.benchmark) run one side to its end before the next.
"""

from __future__ import annotations

import csv
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
import typer

from fathom.connections.schemes import SCHEMES
from fathom.system.errors import UserError, fail, of_system
from fathom_study import datasets
from fathom_study.backends import Backend, connect
from fathom_study.cli.options import DEFAULT_CONFIG, ConfigFiles, check_known, output_file
from fathom_study.config import Cell, Config, Spec, common_depth, installed_backends, load_config
from fathom_study.runs.estimate import operations_of_step
from fathom_study.runs.folder import platform_name
from fathom_study.system.files import atomic_write
from fathom_study.system.hardware import cpu_model, operating_system
from fathom_study.tasks import Problem
from fathom_study.train import step_rows, take_step, trainer_for

SIZES = Path(__file__).with_name("sizes.yaml")
"""A config with a study for each size."""

SIDES = {
    "torch": {"textbook": "textbook", "pypi": "pypi", "released": "released_torch"},
    "mlx": {"released": "released_mlx"},
}
"""By backend, the sides besides `ours`, with the modules of this folder that define their steps."""

MATRIX = 1024
"""Rows of the matrices in the side `matmul`; its time is scaled to the operations of our step."""

SCHEME_SIZE, SCHEME_DEPTH = "sublayer", 6
"""The network in which every named scheme is measured against `plain`."""

AT_ONCE = 6
"""Number of named schemes that take turns with one `plain` and share its time."""

Key = tuple[str, str]
"""A variant and a side of it."""

Process = Callable[[str, int], ProcessPoolExecutor]
"""The process for a backend and a place in a group of sides."""

IDENTITY = ("study", "depth", "variant", "backend", "side", "machine", "width")
"""Columns that identify a row; `width` is the study's, of the first variant's network."""

COLUMNS = (
    *IDENTITY, "turns", "threads", "seconds", "low", "high", "over", "ratio", "ratio_low",
    "ratio_high", "operations", "bytes",
)  # fmt: skip
"""Seconds per step, of the processor if there is one thread, and their ratio to the variant or side
`over`: medians of turns, and ranges. Operations and bytes of a batch, forward and backward:
counted, and the same on every machine."""


# --- in the process of a side -------------------------------------------------------------------

_run: Callable[[int], None]
_scale = 1.0
_clock = time.perf_counter


def start(side: str, spec: Spec, threads: int) -> bool:
    """Prepare this process to take steps; False if the side has no such step."""
    global _run, _scale, _clock
    # The time of other processes that run meanwhile does not count.
    _clock = time.process_time if threads == 1 else time.perf_counter
    backend = connect(spec.backend, "cpu", threads)
    if side == "ours":
        _run = _ours(spec, backend)
    elif side == "matmul":
        _run, _scale = _matmul(backend), operations_of_step(spec) / (2 * MATRIX**3)
    else:
        module = importlib.import_module(SIDES[spec.backend][side])
        if spec.variant not in module.VARIANTS:
            return False
        _run = _theirs(module.Steps(spec), Problem(spec))
    _run(1)  # the first step allocates and compiles
    return True


def seconds(count: int) -> float:
    """Mean seconds of `count` steps of this process's side; with one thread, of the processor."""
    begun = _clock()
    _run(count)
    return _scale * (_clock() - begun) / count


def _ours(spec: Spec, backend: Backend) -> Callable[[int], None]:
    """Steps of the training loop, with metrics of every step."""
    problem = Problem(spec)
    trainer = trainer_for(problem, backend, problem.initial_parameters())

    def run(count: int) -> None:
        for step in range(count):
            take_step(problem, trainer, step)
        list(step_rows(problem, trainer.collect()))

    return run


def _theirs(steps: object, problem: Problem) -> Callable[[int], None]:
    def run(count: int) -> None:
        for step in range(count):
            (batch,) = problem.batches(step)
            steps.step(*batch.inputs.values(), batch.targets)

    return run


def _matmul(backend: Backend) -> Callable[[int], None]:
    """Products of square matrices, each of the previous one, so none can be optimised away."""
    entries = np.random.default_rng(0).standard_normal((MATRIX, MATRIX), dtype=np.float32)
    factor = backend.ops.asarray(entries / MATRIX**0.5)

    def run(count: int) -> None:
        product = factor
        for _ in range(count):
            product = product @ factor
        backend.ops.to_numpy(product[0, 0])  # waits for the device

    return run


# --- turns ----------------------------------------------------------------------------------------


@contextmanager
def processes() -> Iterator[Process]:
    """Processes that start at their first use and serve every group."""
    with ExitStack() as stack:

        @cache
        def process(backend: str, place: int) -> ProcessPoolExecutor:
            return stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))

        yield process


def take_turns(
    specs: Mapping[Key, Spec], turns: int, threads: int, process: Process
) -> dict[Key, list[float]]:
    """Seconds per step of each side in each turn; sides without such a step are left out."""
    pools = {key: process(spec.backend, place) for place, (key, spec) in enumerate(specs.items())}

    def ask(key: Key, function: Callable, *given: object) -> Callable[[], Any]:
        answer = pools[key].submit(function, *given)

        def wait() -> Any:
            try:
                return answer.result()
            except BrokenProcessPool as error:
                where = f"{specs[key].cell}, {key[1]}"
                raise UserError(f"{where}: the process ended; is the memory enough?") from error

        return wait

    starting = {key: ask(key, start, key[1], spec, threads) for key, spec in specs.items()}
    ready = [key for key, started in starting.items() if started()]
    counts = {key: max(1, min(50, round(0.5 / ask(key, seconds, 1)()))) for key in ready}
    times: dict[Key, list[float]] = {key: [] for key in ready}
    for _ in range(turns):
        for key in ready:
            times[key].append(ask(key, seconds, counts[key])())
    return times


def rows(
    specs: Mapping[Key, Spec], turns: int, threads: int, process: Process, count: bool = True
) -> Iterator[dict[str, object]]:
    """A row of COLUMNS for each side; without turns, the counts of ours on PyTorch alone.

    Other sides are compared with ours of the same variant, and ours with ours of the first variant.
    """
    first, *_ = specs
    width = getattr(specs[first].model, "width", "")
    machine = platform_name("cpu", cpu_model(), operating_system())
    times = take_turns(specs, turns, threads, process) if turns else {}
    for key, spec in specs.items():
        variant, side = key
        where = (spec.study, spec.depth, variant, spec.backend, side, machine, width)
        row = dict(zip(IDENTITY, where, strict=True))
        row |= counts(spec) if count and side == "ours" else {}
        if key in times:
            over = first if side == "ours" else (variant, "ours")
            ratios = [a / b for a, b in zip(times[key], times[over], strict=True)]
            row |= {
                "turns": turns,
                "threads": threads,
                "over": over[0] if side == "ours" else over[1],
            }
            row |= spread(("seconds", "low", "high"), times[key])
            row |= spread(("ratio", "ratio_low", "ratio_high"), ratios)
        if len(row) > len(IDENTITY) and (key in times or not turns):
            yield row


def spread(names: Sequence[str], values: Sequence[float]) -> dict[str, str]:
    """Median, minimum and maximum, with four digits, by these names."""
    found = (median(values), min(values), max(values))
    return {name: f"{value:.4g}" for name, value in zip(names, found, strict=True)}


def counts(spec: Spec) -> dict[str, int]:
    """Operations and bytes of a batch; empty for a backend other than PyTorch."""
    if spec.backend != "torch":
        return {}
    from fathom_study.backends.torch_counting import count_step

    found = count_step(Problem(spec))
    return {"operations": found.operations, "bytes": found.bytes}


def with_earlier(
    found: Sequence[Mapping[str, object]],
    file: Path,
    identity: Sequence[str] = IDENTITY,
    columns: Sequence[str] = COLUMNS,
) -> list[dict[str, object]]:
    """The rows of a table, updated by the rows `found` with the same identity.

    `identity`: columns that identify a row.

    A row that is only counted again keeps its times.
    """
    earlier = csv.DictReader(file.read_text(encoding="utf-8").splitlines()) if file.exists() else ()
    kept: dict[tuple[str, ...], dict[str, object]] = {}
    for row in (*earlier, *found):
        key = tuple(str(row.get(name, "")) for name in identity)
        told = {name: row[name] for name in columns if row.get(name, "") != ""}
        kept[key] = kept.get(key, {}) | told
    return list(kept.values())


def write_rows(file: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Write or replace a table."""
    with atomic_write(file) as temporary, temporary.open("w", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


# --- groups to time -------------------------------------------------------------------------------


def spec_for(size: str, variant: str, backend: str, depth: int | None = None) -> Spec:
    """The spec of a size; by default at its first depth."""
    config = load_config([SIZES])
    depth = depth or config.studies[size].depths[0]
    return config.spec(Cell(size, depth, variant, backend, seed=0))


def groups_of_sizes(names: Sequence[str]) -> Iterator[dict[Key, Spec]]:
    """For each size, depth and backend: ours of every variant, a matrix product, other sides."""
    studies = load_config([SIZES]).studies
    for size in names:
        for depth in studies[size].depths:
            for backend in installed_backends():
                first, *others = studies[size].labels
                keys = [(first, "ours"), (first, "matmul"), *product(others, ("ours",))]
                keys += product((first, *others), SIDES[backend])
                yield {(v, side): spec_for(size, v, backend, depth) for v, side in keys}


def groups_of_schemes(names: Sequence[str]) -> Iterator[dict[Key, Spec]]:
    """For each backend: `plain` and `AT_ONCE` named schemes, until all have had their turns."""
    for backend, first in product(installed_backends(), range(0, len(names), AT_ONCE)):
        variants = ("plain", *names[first : first + AT_ONCE])
        yield {(v, "ours"): spec_for(SCHEME_SIZE, v, backend, SCHEME_DEPTH) for v in variants}


def groups_of_studies(config: Config, names: Sequence[str]) -> Iterator[dict[Key, Spec]]:
    """For each study: every network on PyTorch, at the depth that most of its variants have.

    Variants whose steps do the same work are timed once, under the name of the first, which need
    not have that depth itself. Studies without cells on PyTorch are skipped.
    """
    for name in names:
        cells = {
            (cell.depth, cell.variant): cell
            for cell in config.cells_of(name)
            if cell.backend == "torch"
        }
        depth, same = common_depth(depth for depth, _ in cells), config.same_work(name)
        found = {same[variant]: cell for (at, variant), cell in cells.items() if at == depth}
        if found:
            yield {(network, "ours"): config.spec(cell) for network, cell in found.items()}


def _told(row: Mapping[str, object]) -> str:
    """A row as one line of text."""
    where = "{study:18} {depth:3} {backend:6} {variant:18} {side:9}".format(**row)
    if "seconds" in row:
        return f"{where} {1e3 * float(row['seconds']):.4g} ms, {row['ratio']} × {row['over']}"
    return f"{where} {row.get('operations', 0):.4g} operations, {row.get('bytes', 0):.4g} bytes"


def main(
    what: Annotated[Literal["sizes", "schemes", "studies"], typer.Argument()],
    names: Annotated[list[str] | None, typer.Argument(help="Only these; default: all.")] = None,
    config: ConfigFiles = DEFAULT_CONFIG,
    turns: Annotated[
        int, typer.Option(min=0, help="How many times each side runs; 0: count, and time nothing.")
    ] = 5,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of a step.")] = 1,
    count: Annotated[bool, typer.Option(help="Whether operations and bytes are counted.")] = True,
    out: Annotated[Path | None, output_file(help="Add the rows to this table.")] = None,
) -> None:
    """Time training steps, sides in turns. Run nothing else meanwhile."""
    settings = load_config(config if what == "studies" else [SIZES])
    os.environ[datasets.ENVIRONMENT] = settings.compute.data
    known = [name for name in SCHEMES if name != "plain"]
    known = known if what == "schemes" else list(settings.studies)
    check_known(what.removesuffix("s"), names or (), known)
    groups = {
        "sizes": groups_of_sizes,
        "schemes": groups_of_schemes,
        "studies": partial(groups_of_studies, settings),
    }
    found = []
    with processes() as process:
        for group in groups[what](names or known):
            for row in rows(group, turns, threads, process, count):
                found.append(row)
                print(_told(row), file=sys.stderr)
    if out:
        write_rows(out, with_earlier(found, out), COLUMNS)


if __name__ == "__main__":
    try:
        typer.run(main)
    except UserError as error:
        fail(str(error))
    except OSError as error:
        fail(of_system(error))
    except ModuleNotFoundError as error:
        fail(f"a side needs {error.name}, which is not here; pip install -e '.[torch,mlx,bench]'")
