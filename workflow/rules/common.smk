# What every stage needs: the checked config, its cells, and how a job calls fathom.

import functools
import json
import shlex

from fathom import datasets, tasks
from fathom.analysis.places import Place
from fathom.config import BACKENDS, Cell, check_config, installed_backends, load_config
from fathom.runs.code import training_code_hash
from fathom.runs.folder import FILES, MANIFEST
from fathom.runs.inspect import imported_runs

# Read as every command reads it, and not taken from Snakemake, which puts the keys of an overlay
# before those of config.yaml: tables and reports have their studies in the config's order. A module
# takes what it is given.
CONFIG_FILES = list(map(str, workflow.overwrite_configfiles))
if not workflow.config_settings.replace_workflow_config:
    CONFIG_FILES.insert(0, "config.yaml")
CONFIG_CHANGES = workflow.config_settings.config
if HAS_CONFIG:
    CONFIG = or_exit(check_config, config)
    CONFIG_FILES, CONFIG_CHANGES = [f"{CONFIG.report_folder}/config.json"], {}
else:
    CONFIG = or_exit(load_config, CONFIG_FILES, CONFIG_CHANGES)

CONDA = bool(workflow.deployment_settings.deployment_method)

# Jobs use the interpreter that runs Snakemake, activated or not; inside a conda environment, its
# own. The path lets both find fathom without installing it there. How jobs compute reaches them
# through the environment and not as a parameter: it changes no result, so it must retrain nothing.
python = "python" if CONDA else shlex.quote(sys.executable)
source = shlex.quote(str(PROJECT / "src"))
compute = shlex.quote(CONFIG.compute.model_dump_json())
data = shlex.quote(CONFIG.compute.data)
prefix = (
    f"export PYTHONPATH={source} FATHOM_COMPUTE={compute} FATHOM_DATA={data}; "
    f'fathom() {{ {python} -m fathom "$@"; }}; '
)
shell.prefix(prefix.replace("{", "{{").replace("}", "}}"))  # Snakemake formats it once more

# Runs, and what belongs to them, are in STORE whatever is cut; tables, figures and reports in
# RESULTS, which a cut has of its own.
STORE = CONFIG.results
RESULTS = CONFIG.report_folder

# Whether other machines run the jobs: these may have frameworks that this one lacks. Snakemake
# names its executor only after it has read the rules. By then it knows the default resources, which
# a cluster's profile has and a local one has not. A job there is told what it is.
ELSEWHERE = workflow.remote_exec or workflow.resource_settings.default_resources is not None

INSTALLED = BACKENDS if CONDA or ELSEWHERE or CONFIG.assume_backends else installed_backends()


def folder_of_data(dataset):
    return datasets.folder_of(dataset, CONFIG.compute.data)


def dataset_of(study_name):
    """The data set that a study's task needs; None without one."""
    return CONFIG.studies[study_name].dataset


def is_unavailable(dataset):
    """Whether fetching it has failed."""
    folder = folder_of_data(dataset)
    return (folder / datasets.UNAVAILABLE).exists() and not (folder / datasets.SUMS).exists()


DATASETS = sorted({name for study in CONFIG.studies if (name := dataset_of(study))})
UNAVAILABLE = list(filter(is_unavailable, DATASETS))

# What may be trained here; with `train: false`, nothing.
PLANNED = CONFIG.cells() if CONFIG.train else []
CELLS = [
    cell
    for cell in PLANNED
    if cell.backend in INSTALLED and dataset_of(cell.study) not in UNAVAILABLE
]

for name in UNAVAILABLE if PLANNED else []:
    print(
        f"fathom: the data set {name} is unavailable, so its studies are left out; "
        f"{folder_of_data(name) / datasets.UNAVAILABLE} says what was tried (snakemake data tries "
        "again)",
        file=sys.stderr,
    )

for backend in sorted({cell.backend for cell in PLANNED} - set(INSTALLED)):
    skipped = sum(cell.backend == backend for cell in PLANNED)
    print(
        f"fathom: backend {backend} is not installed here: {skipped} cells are left out "
        f"(pip install -e '.[{backend}]' brings it)",
        file=sys.stderr,
    )

RUN_FILES = (*FILES, MANIFEST)


def run_files(cell):
    """The files that training a cell leaves."""
    return [f"{STORE}/runs/{cell.path()}/{name}" for name in RUN_FILES]


# `fathom status` has those that do not count. Runs that other code made count if a replay says so,
# which a job has to find out: rules/replay.smk.
CARRIED = [run for run in or_exit(imported_runs, CONFIG) if run.counts or run.replay]
IMPORTED = [(run.platform, run.cell) for run in CARRIED if not run.replay]
REPLAYS = [run for run in CARRIED if run.replay]
STUDIES = list(dict.fromkeys([c.study for c in CELLS] + [run.cell.study for run in CARRIED]))


def files_of_imported(runs):
    return [
        f"{STORE}/imported/{run.platform}/{run.cell.path()}/{name}"
        for run in runs
        for name in RUN_FILES
    ]


def places(study_name):
    """Where a study was measured without any replay, as names of folders of figures."""
    here = [Place.named(cell.backend) for cell in CELLS if cell.study == study_name]
    return sorted({place.folder for place in (*here, *carried_places(study_name, IMPORTED))})


def carried_places(study_name, imported):
    return [Place.named(c.backend, where) for where, c in imported if c.study == study_name]


@functools.lru_cache(maxsize=1)  # a rule asks several times in a row
def spec_of_cell(cell):
    return CONFIG.spec(cell)


def spec_of(wildcards):
    w = wildcards
    or_exit(CONFIG.check_trains)
    if w.study not in CONFIG.studies:
        fail(f"no study '{w.study}'; the config has {', '.join(CONFIG.studies)}")
    if w.backend in BACKENDS and w.backend not in INSTALLED:
        fail(
            f"backend {w.backend} is not installed here (pip install -e '.[{w.backend}]' brings it)"
        )
    cell = Cell(w.study, int(w.depth), w.variant, w.backend, int(w.seed))
    return or_exit(spec_of_cell, cell)


def code_of(wildcards):
    return training_code_hash(spec_of(wildcards))


def data_of(wildcards):
    """What a cell reads: the data set of its task, if that needs one."""
    dataset = dataset_of(spec_of(wildcards).study)
    return ancient(str(folder_of_data(dataset) / datasets.SUMS)) if dataset else []


wildcard_constraints:
    # Whether there is such a study, variant or backend, `spec_of` says in words.
    study="[a-z][a-z0-9-]*",
    depth="[0-9]+",
    variant="[a-z0-9_]+",
    backend="[a-z]+",
    place="[a-z0-9-]+",
    seed="[0-9]+",
