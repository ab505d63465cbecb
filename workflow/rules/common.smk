# What every stage needs: the validated config, its cells, and how a job calls fathom.

import base64
import functools
import gzip
import importlib
import importlib.util
import json
import shlex
from collections import Counter

from fathom import datasets
from fathom.analysis.platforms import Platform
from fathom.config import BACKENDS, Cell, check_config, installed_backends, load_config
from fathom.report.figure_manifest import FIGURE_MANIFEST
from fathom.report.figures import figures_of, figures_of_study, files_of
from fathom.report.mixing import mixing_file, shown_cells
from fathom.report.reports import check_folder
from fathom.report.samples import sampled_cells
from fathom.runs.bundle import refused_file
from fathom.runs.code_hash import code_hash, digits
from fathom.runs.folder import FILES, MANIFEST
from fathom.runs.training_code import training_code_hash
from fathom.runs.validate import imported_runs, validate_run

if IS_MODULE:
    CONFIG = or_exit(check_config, config)
    CONFIG_FILES, CONFIG_CHANGES = [f"{CONFIG.report_folder}/config.json"], {}
else:
    CONFIG = or_exit(load_config, CONFIG_FILES, CONFIG_CHANGES)
or_exit(check_folder, CONFIG)

# Jobs use the interpreter that runs Snakemake, or that of their conda environment; PYTHONPATH lets
# both find fathom, and then what the caller has in it. How jobs compute is no parameter, since it
# changes no result.
python = "python" if CONDA else shlex.quote(sys.executable)
source = shlex.quote(str(PROJECT / "src"))
compute = shlex.quote(CONFIG.compute.model_dump_json())
data = shlex.quote(CONFIG.compute.data)
killed = (
    "killed, perhaps for lack of memory; the same command again goes on from the last checkpoint"
)
prefix = (
    f'export PYTHONPATH={source}"${{PYTHONPATH:+:$PYTHONPATH}}" '
    f"FATHOM_COMPUTE={compute} FATHOM_DATA={data}; "
    f'fathom() {{ {python} -m fathom "$@" || {{ '
    f's=$?; [ $s -le 130 ] || echo "fathom: {killed}" >&2; return $s; }}; }}; '
)
shell.prefix(prefix.replace("{", "{{").replace("}", "}}"))  # Snakemake formats it once more

# Runs are in STORE. Tables, figures and reports are in RESULTS, which a cut has of its own.
STORE = CONFIG.results
RESULTS = CONFIG.report_folder

for folder in (STORE, RESULTS, CONFIG.compute.data):
    if problem := broken_link(folder):
        fail(problem)

INSTALLED = BACKENDS if CONDA or IS_REMOTE or CONFIG.assume_backends else installed_backends()


# The code of metrics, and of the tasks that have some of their own: what numbers and axes show.
TASKS = [f"fathom.tasks.{name}" for name in sorted({s.task for s in CONFIG.studies.values()})]
METRICS_CODE = TASKS + [
    f"{module}:{registry}[*]"
    for module in ("fathom.metrics.steps", "fathom.metrics.runs", *TASKS)
    for registry in ("STEP_METRICS", "RUN_METRICS")
    if hasattr(importlib.import_module(module), registry)
]


def optional(file, *packages):
    """The file in a list, which is empty where one of the packages that make it is missing."""
    for package in [] if CONDA else packages:
        if importlib.util.find_spec(package) is None:
            warn(
                f"{package} is not installed here: {file} is left out "
                "(pip install -e '.[workflow]' brings it)"
            )
            return []
    return [file]


def data_folder(dataset):
    return datasets.folder_of(dataset, CONFIG.compute.data)


def data_sums(dataset):
    """The file that is there once a data set is complete."""
    return str(data_folder(dataset) / datasets.SUMS)


DATASET_OF = {name: study.dataset for name, study in CONFIG.studies.items() if study.dataset}
DATASETS = sorted(set(DATASET_OF.values()))
UNAVAILABLE = [
    name
    for name in DATASETS
    if (data_folder(name) / datasets.UNAVAILABLE).exists() and not Path(data_sums(name)).exists()
]

# What may be trained here; nothing with `train: false`.
PLANNED = CONFIG.cells() if CONFIG.train else []
CELLS = [
    cell
    for cell in PLANNED
    if cell.backend in INSTALLED and DATASET_OF.get(cell.study) not in UNAVAILABLE
]


for name in UNAVAILABLE if PLANNED else []:
    warn(
        f"the data set {name} is unavailable, so its studies are left out; "
        f"{data_folder(name) / datasets.UNAVAILABLE} says what was tried (snakemake data tries again)"
    )
for backend in sorted({cell.backend for cell in PLANNED} - set(INSTALLED)):
    skipped = sum(cell.backend == backend for cell in PLANNED)
    warn(
        f"backend {backend} is not installed here: {skipped} cells are left out "
        f"(pip install -e '.[{backend}]' brings it)"
    )


def run_files(cell, platform=None):
    """The files of a run: trained here, or imported from a platform."""
    folder = (platform or Platform(cell.backend)).runs(STORE) / cell.path()
    return [f"{folder}/{name}" for name in (*FILES, MANIFEST)]


def platform_of(run):
    """Of an imported run."""
    return Platform(run.cell.backend, run.platform)


# By which times of training are compared, where the config names such a table.
STEP_TIMES = [CONFIG.step_times] if CONFIG.step_times else []


# Which bundles an import refused, where there are any: tables and reports say so.
REFUSED = [str(file) for file in [refused_file(Path(STORE))] if file.exists()]


def imported_files(runs):
    return [file for run in runs for file in run_files(run.cell, platform_of(run))]


# `fathom status` names imported runs that are left out. A job repeats first steps of all others,
# and finds out which count: rules/replay.smk.
IMPORTED = [run for run in or_exit(imported_runs, CONFIG) if run.replay]
STUDIES = list(dict.fromkeys([c.study for c in CELLS] + [run.cell.study for run in IMPORTED]))


# (platform, cell) of what counts without a replay.
MEASURED = [(Platform(cell.backend), cell) for cell in CELLS]
# (study, backend) of each receipt.
REPLAYED = dict.fromkeys((run.cell.study, run.cell.backend) for run in IMPORTED)
RECEIPTS = [f"{RESULTS}/replay/{study}/{backend}.json" for study, backend in REPLAYED]

FIGURES_OF = {name: figures_of_study(CONFIG, name) for name in STUDIES}
OVERVIEW, OF_A_CELL = (list(figures_of(module).values()) for module in ("overview", "cell"))


wildcard_constraints:
    # `spec_of` refuses an unknown study, variant or backend in words.
    study="[a-z][a-z0-9-]*",
    depth="[1-9][0-9]*",  # no leading zeros: 02 would be another folder for the same cell
    variant="[a-z0-9_]+",
    backend="[a-z]+",
    platform="[a-z0-9-]+",
    seed="0|[1-9][0-9]*",
