"""What `fathom bench` measures, and its table.

The sides of a comparison take turns, each in a process of its own (`worker`), so a slowdown of the
machine affects all of them. Values are medians over the turns. Sides other than ours are folders of
`benchmarks/` with a file for each backend: `textbook`, and two that wrap our sub-layers: `pypi` in
PyPI's hyper-connections, `released` in the modules of released models.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from fathom.backends import BackendError
from fathom.bench.worker import MATRIX
from fathom.config import Cell, Config, Spec, installed_backends, load_config
from fathom.models.connections.schemes import SCHEMES
from fathom.runs.estimate import operations_of_step
from fathom.system.files import atomic_write

TEXTBOOK = Path("benchmarks/textbook")
WORKER = "fathom.bench.worker"

SIZES = Path("benchmarks/sizes.yaml")
"""A study for each size."""

YARDSTICK = "torch"
"""The backend that the others are compared with."""

BLAS_OF = {"ours": "auto", "textbook": "off", "pypi": "auto", "released": "auto"}
"""The BLAS that MLX uses on each side: the published demos run on the plain wheel."""

PARTS = ("steps", "startup", "dry-run", "schemes", "sweep")
DEFAULT_PARTS = PARTS[:3]

SCHEME_SIZE, SCHEME_DEPTH = "sublayer", 6
"""The network in which every named scheme is measured against `plain`."""


TARGETS = {
    ("textbook over ours", "demo", "torch", "mhc"): ">= 2.5",
    ("textbook over ours", "small", "torch", "mhc"): ">= 4",
    ("textbook over ours", "demo", "torch", "baseline"): ">= 1.7",
    ("textbook over ours", "small", "torch", "baseline"): ">= 2",
    ("over baseline", "demo", "torch", "hc"): "<= 1.15",
    ("over baseline", "demo", "torch", "mhc"): "<= 1.15",
    ("over baseline", "sublayer", "torch", "hc_paper"): "<= 1.5",
    **{
        ("over baseline", size, "torch", name): limit
        for size, mixes, identity in (
            ("sublayer", "<= 1.45", "<= 1.25"),
            ("sublayer-evidence", "<= 1.8", "<= 1.4"),
            ("sublayer-default", "<= 2.6", "<= 1.6"),
        )
        for name, limit in {
            "mhc_paper": mixes,
            "deepseek_v4": mixes,
            "deepseek_v41": mixes,
            "hy_v4": identity,
        }.items()
    },
    **{
        key: limit
        for size in ("sublayer", "sublayer-evidence", "sublayer-default")
        for key, limit in {
            ("released over ours", size, "torch", "deepseek_v4"): ">= 1.8",
            ("released over ours", size, "mlx", "deepseek_v41"): ">= 2",
            ("over torch", size, "mlx", "mhc_paper"): "<= 1.4",
        }.items()
    },
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
"""By (metric, size, backend, variant)."""

NOTES = {
    ("pypi over ours", "mhc_paper"): "PyPI's mHC is a smaller function: 923 parameters at S 4 and "
    "C 128, ours 12315",
}
"""What a ratio does not say of itself, by (metric, variant)."""

PACKAGES = {
    "pypi": {"hyper_connections"},
    "released": {"transformers", "mlx_lm"},
}
"""What the sides need: any of these packages has it on one backend."""


@dataclass(frozen=True)
class Row:
    """One measured or derived number, a row of bench.csv."""

    part: str
    metric: str
    value: float
    unit: str
    size: str = ""
    depth: int | None = None
    backend: str = ""
    variant: str = ""
    threads: int | None = None
    low: float | None = None
    """The smallest and the largest of several turns."""
    high: float | None = None

    @property
    def target(self) -> str:
        """As in '>= 2.5'; empty if there is none."""
        return TARGETS.get((self.metric, self.size, self.backend, self.variant), "")

    @property
    def note(self) -> str:
        """What the number does not say of itself."""
        return NOTES.get((self.metric, self.variant), "")

    @property
    def met(self) -> str:
        """Whether the target is met: yes or no; empty without a target."""
        if not self.target:
            return ""
        relation, limit = self.target.split()
        is_met = self.value >= float(limit) if relation == ">=" else self.value <= float(limit)
        return "yes" if is_met else "no"


def write_bench(
    out: Path,
    parts: Sequence[str],
    sizes: Sequence[str],
    turns: int,
    threads: int,
    say: Callable[[str], None],
) -> None:
    """Measure the parts, report each row to `say`, and write each finished part to the CSV `out`.

    Rows of other parts in `out` are kept. Raises BackendError outside the project's folder, where
    the textbook steps are.
    """
    if not TEXTBOOK.is_dir():
        raise BackendError(f"{TEXTBOOK} is not here; run bench in the folder of the project")
    for side, packages in PACKAGES.items() if "steps" in parts else ():
        for package in packages:
            if importlib.util.find_spec(package) is None:
                say(f"steps without {side}: {package} is not here; pip install -e '.[bench]'")
    measure: dict[str, Callable[[], Iterable[Row]]] = {
        "steps": lambda: step_rows(sizes, turns, threads),
        "startup": lambda: startup_rows(turns),
        "dry-run": lambda: dry_run_rows(turns),
        "schemes": lambda: scheme_rows(turns, threads),
        "sweep": sweep_rows,
    }
    for part in parts:
        rows = []
        for row in measure[part]():
            depth = row.depth or ""
            where = f"{row.part:8} {row.size:17} {depth:3} {row.backend:6} {row.variant:12}"
            target = f"  (target {row.target}: {row.met})" if row.target else ""
            note = f"  ({row.note})" if row.note else ""
            say(f"{where} {row.metric}: {row.value:.4g} {row.unit}{target}{note}")
            rows.append(row)
        _replace_part(out, part, rows)


def _replace_part(out: Path, part: str, rows: Sequence[Row]) -> None:
    """Replace the rows of one part in the CSV."""
    names = [*(field.name for field in fields(Row)), "target", "met", "note"]
    kept = []
    if out.exists():
        with out.open(newline="", encoding="utf-8") as file:
            kept = [row for row in csv.DictReader(file) if row["part"] != part]
    new = [{name: getattr(row, name) for name in names} for row in rows]
    with atomic_write(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *new])


# --- training steps -----------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    """The environment in which a process finds this fathom, installed or not, and other sides."""
    folders = [str(folder.resolve()) for folder in (Path("src"), TEXTBOOK.parent)]
    given = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, *given])}


class Worker:
    """A process that trains on command; `is_ready` is False if its side has no such step."""

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
    """The spec of a size; by default at its first depth."""
    study = sizes().studies[size]
    return sizes().spec(Cell(size, depth or study.depths[0], variant, backend, study.seeds[0]))


@cache
def sizes() -> Config:
    """The config with a study for each size."""
    return load_config([SIZES])


def _backends() -> list[str]:
    """The installed backends, the yardstick first."""
    return sorted(installed_backends(), key=lambda name: (name != YARDSTICK, name))


Side = tuple[str, str]
"""A variant and one of BLAS_OF."""


def time_in_turns(workers: Mapping[Side, Worker], turns: int) -> dict[Side, list[float]]:
    """Seconds per step of each worker in each turn of about half a second."""
    counts = {}
    for key, worker in workers.items():  # a warm-up, which does not count
        once = worker.ask("steps 1")["seconds"]
        counts[key] = max(1, min(50, round(0.5 / once)))
    times: dict[Side, list[float]] = {key: [] for key in workers}
    for _ in range(turns):
        for key, worker in workers.items():
            times[key].append(worker.ask(f"steps {counts[key]}")["seconds"])
    return times


def step_rows(names: Sequence[str], turns: int, threads: int) -> Iterator[Row]:
    """Seconds per step of every side at every depth, and the ratios and shares that follow."""
    for size in names:
        for depth in sizes().studies[size].depths:
            yardstick: dict[str, float] = {}
            for backend in _backends():
                for row in _rows_of_backend(size, depth, backend, turns, threads):
                    yield row
                    if row.metric != "ours step":
                        continue
                    if backend == YARDSTICK:
                        yardstick[row.variant] = row.value
                    elif row.variant in yardstick:
                        ratio = row.value / yardstick[row.variant]
                        over = {"metric": f"over {YARDSTICK}", "value": ratio, "unit": "×"}
                        yield replace(row, **over, low=None, high=None)


def _rows_of_backend(
    size: str, depth: int, backend: str, turns: int, threads: int
) -> Iterator[Row]:
    variants = sizes().studies[size].labels
    specs = {variant: spec_for(size, variant, backend, depth) for variant in variants}
    with ExitStack() as stack:
        started = {
            (variant, side): stack.enter_context(Worker(spec, side, threads, blas))
            for variant, spec in specs.items()
            for side, blas in BLAS_OF.items()
        }
        workers = {key: worker for key, worker in started.items() if worker.is_ready}
        times = time_in_turns(workers, turns)
        baseline = variants[0], "ours"
        fastest = min(workers[baseline].ask("matmul 5")["seconds"] for _ in range(turns))
        rate = 2 * MATRIX**3 / fastest
        memory = {key: worker.ask("memory") for key, worker in workers.items()}

    row = partial(Row, "steps", size=size, depth=depth, backend=backend, threads=threads)

    def median_row(metric: str, variant: str, values: Sequence[float], unit: str) -> Row:
        ends = {"low": min(values), "high": max(values)}
        return row(metric, median(values), unit, variant=variant, **ends)

    def ratio(metric: str, variant: str, above: Side, below: Side) -> Row:
        # Of each turn, in which both sides ran on the same machine at the same time.
        ratios = [a / b for a, b in zip(times[above], times[below], strict=True)]
        return median_row(metric, variant, ratios, "×")

    yield row("matmul rate", rate / 1e9, "GFLOP/s")
    for (variant, side), seconds in times.items():
        yield median_row(f"{side} step", variant, [1e3 * s for s in seconds], "ms")
        mebibytes = memory[variant, side]["bytes"] / 2**20
        yield row(f"{side} memory", mebibytes, "MiB", variant=variant)
        if side != "ours":
            yield ratio(f"{side} over ours", variant, (variant, side), (variant, "ours"))
    for variant in variants:
        ours = variant, "ours"
        share = operations_of_step(specs[variant]) / rate / median(times[ours])
        yield row("share of matmul rate", share, "", variant=variant)
        if ours != baseline:
            yield ratio("over baseline", variant, ours, baseline)
            share = memory[ours]["of_steps"] / memory[baseline]["of_steps"]
            yield row("memory over baseline", share, "×", variant=variant)


def scheme_rows(turns: int, threads: int) -> Iterator[Row]:
    """A step of every named scheme over one of `plain`, in turns: two processes at a time."""
    for backend in _backends():
        common = {"size": SCHEME_SIZE, "depth": SCHEME_DEPTH, "backend": backend}
        specs = {name: spec_for(SCHEME_SIZE, name, backend, SCHEME_DEPTH) for name in SCHEMES}
        with Worker(specs.pop("plain"), "ours", threads) as plain:
            for name, spec in specs.items():
                with Worker(spec, "ours", threads) as worker:
                    sides = {("plain", "ours"): plain, (name, "ours"): worker}
                    below, above = time_in_turns(sides, turns).values()
                ratios = [a / b for a, b in zip(above, below, strict=True)]
                yield Row("schemes", "over plain", median(ratios), "×", variant=name,
                          threads=threads, low=min(ratios), high=max(ratios), **common)  # fmt: skip


# --- jobs and workflows -------------------------------------------------------------------------


def _seconds(command: Sequence[str]) -> float:
    """Wall time of a command. Raises BackendError with the last line of its output if it fails."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise BackendError(f"{' '.join(command[:4])} … failed: {last}")
    return time.perf_counter() - start


def startup_rows(turns: int) -> Iterator[Row]:
    """Seconds that a job takes besides its steps; each part includes the ones before it."""
    for backend in _backends():
        load = f"from fathom import backends; backends.load({backend!r}, 1, 'auto')"
        fathom = "import fathom.cli, fathom.runs.training, fathom.runs.progress"
        spec = spec_for("default", "mhc", backend).model_dump_json()
        with tempfile.TemporaryDirectory() as folder:
            commands = {
                "interpreter": ["-c", "pass"],
                "framework": ["-c", load],
                "fathom": ["-c", f"{load}; {fathom}"],
                "first step": ["-m", "fathom", "job", spec, "--out", folder],
            }
            before = 0.0
            for name, arguments in commands.items():
                value = median(_seconds([sys.executable, *arguments]) for _ in range(turns))
                yield Row("startup", name, value - before, "s", "default", None, backend, "mhc")
                before = value
        yield Row("startup", "job of one step", before, "s", "default", None, backend, "mhc")


def dry_run_rows(turns: int) -> Iterator[Row]:
    """Seconds to plan 54, 540 and 5400 cells: one depth study with 3, 30 and 300 seeds."""
    for seeds, repeats in ((3, turns), (30, turns), (300, 1)):
        sweep = {"seeds": list(range(seeds)), "depths": [12, 24, 48], "exclude": []}
        studies = json.dumps({"depth-mlx": sweep})
        with tempfile.TemporaryDirectory() as folder:
            options = [f"studies={studies}", "assume_backends=true", f"results={folder}"]
            command = [sys.executable, "-m", "snakemake", "depth-mlx", "-n", "-q", "--config"]
            value = median(_seconds([*command, *options]) for _ in range(repeats))
        yield Row("dry-run", f"dry-run of {18 * seeds} cells", value, "s")


def sweep_rows() -> Iterator[Row]:
    """Wall time of the whole default workflow, trained anew, and its training seconds per core."""
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        options = ["--nolock", "--drop-metadata", "--config", f"results={folder}"]
        command = [sys.executable, "-m", "snakemake", "all", "--cores", str(cores)]
        wall = _seconds([*command, *options])
        manifests = Path(folder).glob("runs/**/manifest.json")
        training = sum(json.loads(file.read_text())["seconds"] for file in manifests) / cores
    yield Row("sweep", "wall", wall, "s")
    yield Row("sweep", "training seconds per core", training, "s")
    yield Row("sweep", "wall over training seconds per core", wall / training, "×")
