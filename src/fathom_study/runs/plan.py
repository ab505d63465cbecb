"""The cells that the workflow trains, the files of their runs, and the shell code of its jobs.

It imports no Snakemake. Methods raise ConfigError and RunError.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from fathom.system.text import digits, format_duration
from fathom_study import datasets
from fathom_study.config import BACKENDS, Cell, Compute, Config, ConfigError, Spec
from fathom_study.runs.code_hash import code_hash
from fathom_study.runs.estimate import basis_of, estimate_from_runs
from fathom_study.runs.folder import MANIFEST, RUN_FILES, run_folder
from fathom_study.runs.run import Run
from fathom_study.runs.status import trainable
from fathom_study.runs.training_code import metrics_code
from fathom_study.runs.validate import imported_runs, summarize_reasons, validate_run, why_again

STARTED = ".snakemake/fathom-started"
"""An input of trainings, newer than every run; its time counts only for runs that are stale."""

DATA_READY = ".snakemake/fathom-{dataset}"
"""A file for each available data set. `compute.data` does not change its name."""


class Plan:
    """The cells of a config and their files."""

    def __init__(self, config: Config, installed: Collection[str]) -> None:
        """`installed`: backends. Imported runs are judged here; runs of this machine are not."""
        self.config, self.installed = config, installed
        self.cells, self.left_out = trainable(config, installed)
        self.arrived = imported_runs(config)
        """Imported runs, judged also by their replays."""
        if waiting := sum(run.replay == "waits" and not run.counts for run in self.arrived):
            self.left_out.append(
                f"{waiting} imported runs of other code are left out until `fathom replay`, with "
                "the same config, has repeated their first steps"
            )
        self.imported = [run for run in self.arrived if run.counts]
        """The imported runs that count."""
        studies = [cell.study for cell in (*self.cells, *(run.cell for run in self.imported))]
        self.studies = list(dict.fromkeys(studies))
        """Names of the studies with runs that count or are trained here."""
        self.datasets = sorted({study.dataset for study in config.studies.values()} - {None})

    def mark_start(self) -> None:
        """Write STARTED, and DATA_READY of each available data set."""
        Path(STARTED).parent.mkdir(exist_ok=True)
        Path(STARTED).write_text(f"{time.time_ns()}\n")  # the same content triggers no job
        for name in self.datasets:
            ready = Path(DATA_READY.format(dataset=name))
            folder = datasets.folder_of(name, self.config.compute.data)
            ready.touch() if (folder / datasets.SUMS).exists() else ready.unlink(missing_ok=True)

    def cell(self, study: str, depth: str, variant: str, backend: str, seed: str) -> Cell:
        """The cell of these wildcards."""
        if study not in self.config.studies:
            names = ", ".join(self.config.studies)
            raise ConfigError(f"no study '{study}'; the config has {names}")
        if backend in BACKENDS and backend not in self.installed:
            raise ConfigError(
                f"backend {backend} is not installed here; run: pip install -e '.[{backend}]'"
            )
        return Cell(study, int(depth), variant, backend, int(seed))

    def cells_for(self, studies: Collection[str]) -> list[Cell]:
        """The cells of these studies, and those of others with a current run, for reports."""
        return [cell for cell in self.cells if cell.study in studies or self.run(cell).counts]

    def spec(self, cell: Cell) -> Spec:
        """The spec of a cell to train. Raises ConfigError if a study cannot be trained here."""
        self.config.check_trains()
        return self.config.spec(cell)

    def run(self, cell: Cell) -> Run:
        """The run that was trained here, judged."""
        return validate_run(run_folder(Path(self.config.results), cell), self.spec(cell))

    def forecast(self, left: Collection[Run], runs: Iterable[Run], at_once: int) -> Iterator[str]:
        """Lines on the time of these trainings, and on why any is done again.

        `left`: runs that are missing or not current; `runs`: judged runs of this machine;
        `at_once`: number of trainings at the same time.
        """
        timed = [run for run in runs if run.counts and run.manifest.seconds]
        each = estimate_from_runs(self.config, timed, [run.cell for run in left]).values()
        seconds = max(sum(each) / at_once, *each)  # more cores do not shorten the longest
        how = f" with {at_once} at once" if at_once > 1 else ""
        yield (
            f"{len(left)} cells to train take about {format_duration(seconds)}{how}, "
            f"{basis_of(len(timed))}"
        )
        if again := [*filter(None, map(why_again, left))]:
            yield summarize_reasons(again)
        if elsewhere := self._trained_elsewhere(run.cell for run in left):
            yield (
                f"{elsewhere} of these cells have a current run in results/runs and are "
                f"trained again for {self.config.results}; --replace-workflow-config leaves out "
                "the studies of config.yaml"
            )

    def _trained_elsewhere(self, cells: Iterable[Cell]) -> int:
        """Number of these cells with a current run in the default folder, if that is another."""
        default = Path(Config.model_fields["results"].default)
        if default == Path(self.config.results):
            return 0
        runs = (validate_run(run_folder(default, cell), self.spec(cell)) for cell in cells)
        return sum(run.counts for run in runs)

    def data_files(self, cells: Iterable[Cell]) -> list[str]:
        """DATA_READY of each data set that these cells read."""
        needed = {self.config.studies[cell.study].dataset for cell in cells} & set(self.datasets)
        return [DATA_READY.format(dataset=name) for name in sorted(needed)]

    def run_files(self, cells: Iterable[Cell]) -> list[str]:
        """The files of runs that are trained here."""
        folders = (run_folder(Path(self.config.results), cell) for cell in cells)
        return [f"{folder}/{name}" for folder in folders for name in RUN_FILES]

    def manifest_files(self, cells: Iterable[Cell]) -> list[str]:
        """The manifests of runs that are trained here. Each has the hashes of its run's files."""
        return [f"{run_folder(Path(self.config.results), cell)}/{MANIFEST}" for cell in cells]

    @property
    def imported_key(self) -> str:
        """A hash of the imported runs, and of why each counts or does not."""
        rows = [
            (str(run.folder), run.manifest and run.manifest.sha256, run.status, run.reason)
            for run in self.arrived
        ]
        return digits(json.dumps(sorted(rows)))

    def code_hash(self, *modules: str) -> str:
        """A hash of these modules and of the metrics' code, which numbers and axes depend on."""
        names = (study.task for study in self.config.studies.values())
        return code_hash(*modules, *metrics_code(names))


KILLED = (
    "killed, perhaps out of memory; run the same command again to resume from the last checkpoint"
)


def shell_prefix(python: str, source: Path, compute: Compute) -> str:
    """Shell code that defines `fathom` and its environment.

    `source` is put at the front of PYTHONPATH. `compute` is in the environment, since it changes no
    result: as a parameter it would make jobs run again.
    """
    words = (str(source), compute.model_dump_json(), compute.data)
    path, settings, data = map(shlex.quote, words)
    return (
        f'export PYTHONPATH={path}"${{PYTHONPATH:+:$PYTHONPATH}}" '
        f"FATHOM_COMPUTE={settings} FATHOM_DATA={data}; "
        f'fathom() {{ {python} -m fathom_study "$@" || {{ '
        f's=$?; [ $s -le 130 ] || echo "fathom: {KILLED}" >&2; return $s; }}; }}; '
    )
