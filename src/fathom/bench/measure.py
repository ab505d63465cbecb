"""What `fathom bench` measures, and its table.

Both sides of every comparison run in turns, in processes that live side by side, so that a machine
that slows down slows both. Values are medians over the turns. `worker` is the process that either
side runs in. Other sides than ours are folders of `benchmarks/`, with a file for each backend that
has such a step: `textbook`, and `pypi`, which wraps our sub-layers in PyPI's hyper-connections.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from fathom.backends import BackendError
from fathom.bench.worker import MATRIX
from fathom.config import Cell, Config, Spec, installed_backends, load_config
from fathom.runs.estimate import operations_of_step
from fathom.system.files import replacing

TEXTBOOK = Path("benchmarks/textbook")
WORKER = "fathom.bench.worker"

SIZES = Path("benchmarks/sizes.yaml")
"""What is measured: a study for each size."""

YARDSTICK = "torch"
"""The backend that every other one is set against."""

BLAS_OF = {"ours": "auto", "textbook": "off", "pypi": "auto"}
"""Sides, and which BLAS MLX takes: the published demos run on the plain wheel."""

GROWTH = (12, 24, 48, 96)
"""Depths at which the default size is measured."""

PARTS = ("steps", "growth", "startup", "dry-run", "sweep")


@dataclass(frozen=True)
class Row:
    """One measured or derived number, as a row of bench.csv."""

    part: str
    measure: str
    size: str
    backend: str
    variant: str
    value: float
    unit: str
    low: float | None = None
    """Smallest and largest of the turns, where there were several."""
    high: float | None = None
    threads: int | None = None
    target: str = ""
    """As in '>= 2.5'; empty where none is set."""

    @property
    def met(self) -> str:
        """yes or no; empty without a target."""
        if not self.target:
            return ""
        relation, limit = self.target.split()
        holds = self.value >= float(limit) if relation == ">=" else self.value <= float(limit)
        return "yes" if holds else "no"


TARGETS = {
    ("textbook over ours", "demo", "torch", "mhc"): ">= 2.5",
    ("textbook over ours", "small", "torch", "mhc"): ">= 4",
    ("textbook over ours", "demo", "torch", "baseline"): ">= 1.7",
    ("textbook over ours", "small", "torch", "baseline"): ">= 2",
    ("over baseline", "demo", "torch", "hc"): "<= 1.15",
    ("over baseline", "demo", "torch", "mhc"): "<= 1.15",
    ("over baseline", "sublayer", "torch", "hc_paper"): "<= 1.5",
    ("over baseline", "sublayer", "torch", "mhc_paper"): "<= 1.8",
    ("over baseline", "sublayer", "mlx", "mhc_paper"): "<= 2.2",
    ("pypi over ours", "sublayer", "torch", "hc_paper"): ">= 2",
    ("pypi over ours", "sublayer", "torch", "mhc_paper"): ">= 3",
    ("memory over baseline", "sublayer", "torch", "mhc_paper"): "<= 4",
    ("textbook over ours", "demo", "mlx", "mhc"): ">= 20",
    ("over torch", "demo", "mlx", "mhc"): "<= 3",
    ("share of matmul rate", "demo", "torch", "baseline"): ">= 0.85",
    ("share of matmul rate", "demo", "torch", "mhc"): ">= 0.7",
    ("wall over training seconds per core", "", "", ""): "<= 1.2",
    ("wall", "", "", ""): "<= 300",
    ("dry-run of 5400 cells", "", "", ""): "<= 15",
}
"""By (measure, size, backend, variant)."""


def targeted(row: Row) -> Row:
    """The row with its target, if there is one."""
    key = (row.measure, row.size, row.backend, row.variant)
    return Row(**{**asdict(row), "target": TARGETS.get(key, "")})


def write_bench(out: Path, parts: Sequence[str], sizes: Sequence[str], turns: int, threads: int,
                say: Callable[[str], None]) -> list[Row]:  # fmt: skip
    """Measure the parts, say each row as it comes, and write every finished part to the CSV `out`.

    Rows of parts that are not measured this time are kept. Raises BackendError outside a copy of
    the project, which alone has the textbook steps.
    """
    if not TEXTBOOK.is_dir():
        raise BackendError(f"{TEXTBOOK} is not here; run bench in the folder of the project")
    measures: dict[str, Callable[[], Iterable[Row]]] = {
        "steps": lambda: step_rows(sizes, turns, threads),
        "growth": lambda: growth_rows(turns, threads),
        "startup": lambda: startup_rows(turns),
        "dry-run": lambda: dry_run_rows(turns),
        "sweep": sweep_rows,
    }
    if "steps" in parts and importlib.util.find_spec("hyper_connections") is None:
        say(
            "steps without pypi: hyper-connections is not here; pip install -e '.[bench]' brings it"
        )
    rows = []
    for part in parts:
        measured = []
        for row in map(targeted, measures[part]()):
            where = f"{row.part:8} {row.size:8} {row.backend:6} {row.variant:9}"
            against = f"  (target {row.target}: {row.met})" if row.target else ""
            say(f"{where} {row.measure}: {row.value:.4g} {row.unit}{against}")
            measured.append(row)
        _replace_part(out, part, measured)
        rows += measured
    return rows


def _replace_part(out: Path, part: str, rows: Sequence[Row]) -> None:
    """Put the rows of one part into the CSV, in place of those it had."""
    names = [field.name for field in fields(Row)] + ["met"]
    kept = []
    if out.exists():
        with out.open(newline="", encoding="utf-8") as file:
            kept = [row for row in csv.DictReader(file) if row["part"] != part]
    with replacing(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *({**asdict(row), "met": row.met} for row in rows)])


# --- training steps -----------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    """In which a process finds this fathom, installed or not, and the textbook steps."""
    folders = [str(folder.resolve()) for folder in (Path("src"), TEXTBOOK.parent)]
    given = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, *given])}


class Worker:
    """A process that trains when told to, unless it has no such step: then `is_ready` is False."""

    def __init__(self, spec: Spec, side: str, threads: int, blas: str = "auto") -> None:
        wanted = {"side": side, "threads": threads, "blas": blas, "spec": spec.model_dump()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", WORKER, json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        self.is_ready: bool = self._answer()["ready"]

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to one command."""
        print(command, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise BackendError(f"{WORKER} ended with status {self.process.wait()}")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()


def spec_for(size: str, variant: str, backend: str, depth: int | None = None) -> Spec:
    """The cell that is measured."""
    study = sizes().studies[size]
    return sizes().spec(Cell(size, depth or study.depths[0], variant, backend, study.seeds[0]))


@cache
def sizes() -> Config:
    """What is measured: a study for each size."""
    return load_config([SIZES])


def _backends() -> list[str]:
    """The backends that are installed, the yardstick first."""
    return sorted(installed_backends(), key=lambda name: (name != YARDSTICK, name))


def in_turns(
    workers: dict[tuple, Worker], turns: int, seconds: float = 0.5
) -> dict[tuple, list[float]]:
    """Seconds per step of each worker, all of them once per turn, about so many seconds each."""
    counts = {}
    for key, worker in workers.items():  # this turn warms up, and does not count
        once = worker.ask("steps 1")["seconds"]
        counts[key] = max(1, min(50, round(seconds / once)))
    times: dict[tuple, list[float]] = {key: [] for key in workers}
    for _ in range(turns):
        for key, worker in workers.items():
            times[key].append(worker.ask(f"steps {counts[key]}")["seconds"])
    return times


def step_rows(names: Sequence[str], turns: int, threads: int) -> Iterator[Row]:
    """Seconds per step of every side, and what follows: ratios, overheads, share of the limit."""
    for size in names:
        variants = sizes().studies[size].labels
        medians: dict[tuple, float] = {}
        for backend in _backends():
            yield from _steps_of(size, backend, turns, threads, medians)
            if backend != YARDSTICK and (YARDSTICK, variants[0]) in medians:
                for variant in variants:
                    ratio = medians[backend, variant] / medians[YARDSTICK, variant]
                    yield Row("steps", f"over {YARDSTICK}", size, backend, variant, ratio, "×",
                              threads=threads)  # fmt: skip


def _steps_of(
    size: str, backend: str, turns: int, threads: int, medians: dict[tuple, float]
) -> Iterator[Row]:
    """The rows of one backend; our median seconds by (backend, variant) go to `medians`."""
    variants = sizes().studies[size].labels
    with ExitStack() as stack:
        started = {
            (variant, side): stack.enter_context(
                Worker(spec_for(size, variant, backend), side, threads, blas)
            )
            for variant in variants
            for side, blas in BLAS_OF.items()
        }
        workers = {key: worker for key, worker in started.items() if worker.is_ready}
        times = in_turns(workers, turns)
        baseline = variants[0], "ours"
        seconds_of_matmul = min(workers[baseline].ask("matmul 5")["seconds"] for _ in range(turns))
        rate = 2 * MATRIX**3 / seconds_of_matmul
        memory = {key: worker.ask("memory") for key, worker in workers.items()}

    def row(measure: str, variant: str, value: float, unit: str, *bounds: float) -> Row:
        return Row("steps", measure, size, backend, variant, value, unit, *bounds, threads=threads)

    def ratio(measure: str, variant: str, above: tuple, below: tuple) -> Row:
        # Of turns, not of medians: both sides of a turn saw the same machine.
        ratios = [a / b for a, b in zip(times[above], times[below], strict=True)]
        return row(measure, variant, median(ratios), "×", min(ratios), max(ratios))

    yield Row("steps", "matmul rate", size, backend, "", rate / 1e9, "GFLOP/s", threads=threads)
    for (variant, side), seconds in times.items():
        bounds = (min(seconds) * 1e3, max(seconds) * 1e3)
        yield row(f"{side} step", variant, median(seconds) * 1e3, "ms", *bounds)
        yield row(f"{side} memory", variant, memory[variant, side]["bytes"] / 2**20, "MiB")
    for variant, side in times:
        if side != "ours":
            yield ratio(f"{side} over ours", variant, (variant, side), (variant, "ours"))
    for variant in variants[1:]:
        ours = variant, "ours"
        yield ratio("over baseline", variant, ours, baseline)
        share = memory[ours]["of_steps"] / memory[baseline]["of_steps"]
        yield row("memory over baseline", variant, share, "×")
    for variant in variants:
        medians[backend, variant] = median(times[variant, "ours"])
        share = operations_of_step(spec_for(size, variant, backend)) / rate
        yield row("share of matmul rate", variant, share / medians[backend, variant], "")


def growth_rows(turns: int, threads: int) -> Iterator[Row]:
    """Seconds per step of the default size as it gets deeper."""
    for backend in _backends():
        for variant in sizes().studies["default"].labels:
            with ExitStack() as stack:
                workers = {
                    (depth,): stack.enter_context(
                        Worker(spec_for("default", variant, backend, depth), "ours", threads)
                    )
                    for depth in GROWTH
                }
                times = in_turns(workers, turns, seconds=0.25)
            for (depth,), seconds in times.items():
                bounds = (min(seconds) * 1e3, max(seconds) * 1e3)
                yield Row("growth", f"step at {depth} layers", "default", backend, variant,
                          median(seconds) * 1e3, "ms", *bounds, threads=threads)  # fmt: skip


# --- jobs and workflows -------------------------------------------------------------------------


def _seconds(command: Sequence[str]) -> float:
    """Wall time of a command. Raises BackendError with its last words if it fails."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise BackendError(f"{' '.join(command[:4])} … failed: {last}")
    return time.perf_counter() - start


def startup_rows(turns: int) -> Iterator[Row]:
    """Seconds that a job takes beside its steps, each part on top of the one before."""
    for backend in _backends():
        load = f"from fathom import backends; backends.load({backend!r}, 1, 'auto')"
        spec = spec_for("default", "mhc", backend).model_dump_json()
        with tempfile.TemporaryDirectory() as folder:
            commands = {
                "interpreter": ["-c", "pass"],
                "framework": ["-c", load],
                "fathom": [
                    "-c",
                    f"{load}; import fathom.cli, fathom.runs.training, fathom.runs.progress",
                ],
                "first step": ["-m", "fathom", "job", spec, "--out", folder],
            }
            before = 0.0
            for name, arguments in commands.items():
                value = median(_seconds([sys.executable, *arguments]) for _ in range(turns))
                yield Row("startup", name, "default", backend, "mhc", value - before, "s")
                before = value
            yield Row("startup", "job of one step", "default", backend, "mhc", before, "s")


def dry_run_rows(turns: int) -> Iterator[Row]:
    """Seconds to plan 54, 540 and 5400 cells: one depth study with 3, 30 and 300 seeds."""
    for seeds, repeats in ((3, turns), (30, turns), (300, 1)):
        studies = json.dumps({"depth-mlx": {"seeds": list(range(seeds))}})
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable, "-m", "snakemake", "depth-mlx", "-n", "-q", "--config",
                f"studies={studies}", "assume_backends=true", f"results={folder}",
            ]  # fmt: skip
            value = median(_seconds(command) for _ in range(repeats))
        yield Row("dry-run", f"dry-run of {18 * seeds} cells", "", "", "", value, "s")


def sweep_rows() -> Iterator[Row]:
    """Wall time of the whole default workflow, trained anew, over its training seconds per core."""
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "snakemake", "all", "--cores", str(cores), "--nolock",
            "--drop-metadata", "--config", f"results={folder}",
        ]  # fmt: skip
        wall = _seconds(command)
        manifests = Path(folder).glob("runs/**/manifest.json")
        training = sum(json.loads(file.read_text())["seconds"] for file in manifests)
    yield Row("sweep", "wall", "", "", "", wall, "s")
    yield Row("sweep", "training seconds per core", "", "", "", training / cores, "s")
    yield Row("sweep", "wall over training seconds per core", "", "", "",
              wall / (training / cores), "×")  # fmt: skip
