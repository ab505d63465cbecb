"""The cells that the workflow trains or replays, and the files of their runs.

It imports no Snakemake. Methods raise ConfigError and RunError.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from fathom.system.text import digits, format_duration
from fathom_study import datasets
from fathom_study.config import BACKENDS, Cell, Config, ConfigError, Spec
from fathom_study.runs.code_hash import code_hash
from fathom_study.runs.estimate import RENDER_SECONDS, basis_of, estimate_from_runs
from fathom_study.runs.folder import MANIFEST, RUN_FILES, run_folder
from fathom_study.runs.run import Run
from fathom_study.runs.status import trainable
from fathom_study.runs.training_code import metrics_code
from fathom_study.runs.validate import imported_runs, validate_run
from fathom_study.runs.verdict import replay_file

STARTED = ".snakemake/fathom-started"
"""An input of trainings and replays, newer than every run; its time counts only for runs that are
not current or wait."""

DATA_READY = ".snakemake/fathom-{dataset}"
"""A file for each available data set. `compute.data` does not change its name."""


class Plan:
    """The cells of a config and their files."""

    def __init__(self, config: Config, installed: Collection[str]) -> None:
        """`installed`: backends. Imported runs are validated here; runs of this machine are not."""
        self.config, self.installed = config, installed
        self.cells, self.left_out = trainable(config, installed)
        arrived = imported_runs(config)
        self.imported = [run for run in arrived if run.replay]
        """Imported runs of the current spec, to replay; `fathom status` names the others."""
        self.others = [f"{run.folder}: {run.reason}" for run in arrived if not run.replay]
        replayed = dict.fromkeys((run.cell.study, run.cell.backend) for run in self.imported)
        self.replay_files = {of: str(replay_file(config, *of)) for of in replayed}
        """Files with the replays of a study's runs on a backend, by (study, backend)."""
        studies = [cell.study for cell in (*self.cells, *(run.cell for run in self.imported))]
        self.studies = list(dict.fromkeys(studies))
        """Names of the studies with runs, trained here or imported."""
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

    def estimate(
        self, cells: Collection[Cell], others: int, runs: Iterable[Run], at_once: int
    ) -> str:
        """Time in words to train these cells, and for `others`, the number of other jobs.

        `runs`: judged runs of this machine; `at_once`: number of jobs at the same time.
        """
        timed = [run for run in runs if run.counts and run.manifest.seconds]
        each = [*estimate_from_runs(self.config, timed, [*cells]).values()]
        total = sum(each) + others * RENDER_SECONDS
        longest = max(each, default=0.0)  # more cores do not shorten it
        how = f"about {format_duration(max(total / at_once, longest))}"
        how += f" with {at_once} jobs at once" if at_once > 1 else ""
        return f"{how}, {basis_of(len(timed))}" if cells else how

    def trained_elsewhere(self, cells: Iterable[Cell]) -> int:
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
        return files_of_runs(run_folder(Path(self.config.results), cell) for cell in cells)

    def manifest_files(self, cells: Iterable[Cell]) -> list[str]:
        """The manifests of runs that are trained here. Each has the hashes of its run's files."""
        return [f"{run_folder(Path(self.config.results), cell)}/{MANIFEST}" for cell in cells]

    def replays(self, study: str, backend: str) -> list[Run]:
        """The imported runs of a study on a backend."""
        wanted = (study, backend)
        return [run for run in self.imported if (run.cell.study, run.cell.backend) == wanted]

    def data_of_replays(self, runs: Iterable[Run]) -> list[str]:
        """`data_files` of these runs, except unavailable data sets: no replay waits for them."""
        data, studies = self.config.compute.data, self.config.studies
        cells = [
            run.cell
            for run in runs
            if (name := studies[run.cell.study].dataset) and not datasets.unavailable(name, data)
        ]
        return self.data_files(cells)

    @property
    def imported_key(self) -> str:
        """A hash of imported runs' manifests, hence files, and of why other runs do not count."""
        return digits(json.dumps([manifests_of(self.imported), self.others]))

    def replayed(self) -> list[Run]:
        """The imported runs that count after their replays."""
        runs = imported_runs(self.config) if self.replay_files else []
        return [run for run in runs if run.counts]

    def code_hash(self, *modules: str) -> str:
        """A hash of these modules and of the metrics' code, which numbers and axes depend on."""
        names = (study.task for study in self.config.studies.values())
        return code_hash(*modules, *metrics_code(names))


def manifests_of(runs: Iterable[Run]) -> list[str]:
    """Sorted hashes of the runs' manifests; each stands for the files of a complete run."""
    return sorted(run.manifest.sha256 for run in runs)


def files_of_runs(folders: Iterable[Path]) -> list[str]:
    """The files of runs in these folders."""
    return [f"{folder}/{name}" for folder in folders for name in RUN_FILES]
