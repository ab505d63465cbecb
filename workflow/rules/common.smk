# The validated config, its cells, which files rules read and leave, and how a job calls fathom.

import base64
import functools
import gzip
import importlib.util
import json
import shlex

from fathom import datasets
from fathom.analysis.platforms import Platform
from fathom.config import BACKENDS, Cell, check_config, installed_backends, load_config
from fathom.config.snakemake_start import shell_prefix
from fathom.report.figure_manifest import figure_files, run_files_of, tables_of
from fathom.report.figures import figures_of, figures_of_study
from fathom.report.reports import check_folder
from fathom.report.snakemake_console import Console, install, log_group_errors
from fathom.runs import validate
from fathom.runs.bundle import refused_file
from fathom.runs.code_hash import code_hash
from fathom.runs.folder import RUN_FILES
from fathom.runs.receipts import receipt_file, replay_key
from fathom.runs.status import trainable
from fathom.runs.training_code import metrics_code

if IS_MODULE:
    CONFIG = or_exit(check_config, config)
    CONFIG_FILES, CONFIG_CHANGES = [f"{CONFIG.report_folder}/config.json"], {}
else:
    CONFIG = or_exit(load_config, CONFIG_FILES, CONFIG_CHANGES)
or_exit(check_folder, CONFIG)
# Runs are in STORE. Tables, figures and reports are in RESULTS, which a cut has of its own.
STORE, RESULTS, DATA = CONFIG.results, CONFIG.report_folder, CONFIG.compute.data
for problem in filter(None, map(broken_link, (STORE, RESULTS, DATA))):
    fail(problem)

# Jobs use the interpreter that runs Snakemake, or that of their conda environment.
prefix = shell_prefix(
    "python" if CONDA else shlex.quote(sys.executable), PROJECT / "src", CONFIG.compute
)
shell.prefix(prefix.replace("{", "{{").replace("}", "}}"))  # Snakemake formats it once more

DATASETS = sorted({study.dataset for study in CONFIG.studies.values() if study.dataset})
# Whatever is newer than a run makes it again. STARTED is newer than every run that is there, and
# counts for those alone that `fathom.runs.validate` finds not current: the others have it as ancient.
# A file for each data set that is there keeps its name when `compute.data` names another folder.
STARTED, DATA_READY = ".snakemake/fathom-started", ".snakemake/fathom-{dataset}"
if IS_MAIN:
    Path(STARTED).parent.mkdir(exist_ok=True)
    Path(STARTED).write_text(f"{time.time_ns()}\n")  # the same content would be no reason
    for name in DATASETS:
        ready = Path(DATA_READY.format(dataset=name))
        is_there = (datasets.folder_of(name, DATA) / datasets.SUMS).exists()
        ready.touch() if is_there else ready.unlink(missing_ok=True)

INSTALLED = BACKENDS if CONDA or IS_REMOTE or CONFIG.assume_backends else installed_backends()
CELLS, LEFT_OUT = trainable(CONFIG, INSTALLED)
for line in LEFT_OUT:
    warn(line)

# `fathom status` names imported runs that are left out. A job repeats first steps of all others,
# and finds out which count: rules/replay.smk.
IMPORTED = [run for run in or_exit(validate.imported_runs, CONFIG) if run.replay]
STUDIES = list(dict.fromkeys([c.study for c in CELLS] + [run.cell.study for run in IMPORTED]))
# (study, backend) of each receipt.
REPLAYED = dict.fromkeys((run.cell.study, run.cell.backend) for run in IMPORTED)
RECEIPTS = [str(receipt_file(CONFIG, *replayed)) for replayed in REPLAYED]
# Which bundles an import refused, and by which times of training are compared, where there are any.
REFUSED = [str(file) for file in [refused_file(Path(STORE))] if file.exists()]
STEP_TIMES = [CONFIG.step_times] if CONFIG.step_times else []
# (platform, cell) of what counts without a replay.
MEASURED = [(Platform(cell.backend), cell) for cell in CELLS]
FIGURES_OF = {name: figures_of_study(CONFIG, name) for name in STUDIES}
OVERVIEW, OF_A_CELL = (list(figures_of(module).values()) for module in ("overview", "cell"))
METRICS_CODE = metrics_code(study.task for study in CONFIG.studies.values())


wildcard_constraints:
    # `cell_of` refuses an unknown study, variant or backend in words.
    study="[a-z][a-z0-9-]*",
    depth="[1-9][0-9]*",  # no leading zeros: 02 would be another folder for the same cell
    variant="[a-z0-9_]+",
    backend="[a-z]+",
    platform="[a-z0-9-]+",
    seed="0|[1-9][0-9]*",
    dataset="|".join(DATASETS) or "none",


def run_files(cell):
    folder = Platform(cell.backend).runs(STORE) / cell.path()
    return [f"{folder}/{name}" for name in RUN_FILES]


def imported_files(runs):
    return [f"{run.folder}/{name}" for run in runs for name in RUN_FILES]


def files_in(folder, pattern):
    """Of the project, as seen from here; those at the top of the folder first."""
    root = Path() if PROJECT == Path.cwd() else PROJECT
    found = sorted(root.joinpath(folder).rglob(pattern))
    return [str(file) for file in sorted(found, key=lambda file: len(file.parts))]


def csvs(*names):
    return [f"{RESULTS}/tables/{name}.csv" for name in names]


def cell_of(w):
    if w.study not in CONFIG.studies:
        fail(f"no study '{w.study}'; the config has {', '.join(CONFIG.studies)}")
    if w.backend in BACKENDS and w.backend not in INSTALLED:
        fail(
            f"backend {w.backend} is not installed here (pip install -e '.[{w.backend}]' brings it)"
        )
    return Cell(w.study, int(w.depth), w.variant, w.backend, int(w.seed))


@functools.cache
def spec_of(cell):
    or_exit(CONFIG.check_trains)
    return or_exit(CONFIG.spec, cell)


@functools.cache
def why_again(cell):
    folder = Platform(cell.backend).runs(STORE) / cell.path()
    return or_exit(validate.why_again, folder, spec_of(cell))


def data_ready(names):
    return [ancient(DATA_READY.format(dataset=name)) for name in names if name]


def inputs_of_training(wildcards):
    """STARTED, and the data set that a cell reads, if any."""
    cell = cell_of(wildcards)
    spec_of(cell)  # refuses a cell that there is none of
    started = STARTED if why_again(cell) else ancient(STARTED)
    return [started, *data_ready([CONFIG.studies[cell.study].dataset])]


def replays_of(wildcards):
    wanted = (wildcards.study, wildcards.backend)
    return [run for run in IMPORTED if (run.cell.study, run.cell.backend) == wanted]


def runs_to_replay(wildcards):
    """The files of these runs, and the data sets that they need."""
    runs = replays_of(wildcards)
    needed = {CONFIG.studies[run.cell.study].dataset for run in runs} & set(DATASETS)
    there = [name for name in sorted(needed) if not datasets.unavailable(name, DATA)]
    return [*data_ready(there), *imported_files(runs)]


@functools.cache
def replayed():
    """(platform, cell) of the imported runs that count. Waits for the receipts."""
    for study, backend in REPLAYED:
        checkpoints.replay_runs.get(study=study, backend=backend)
    runs = or_exit(validate.imported_runs, CONFIG) if RECEIPTS else []
    return [(Platform(run.cell.backend, run.platform), run.cell) for run in runs if run.counts]


def figures_at(measured):
    """The files of every study's figures, on each platform where it was measured."""
    where = dict.fromkeys((cell.study, platform.name) for platform, cell in measured)
    return [
        file
        for study, platform in where
        for file in figure_files(f"{RESULTS}/figures/{study}/{platform}", FIGURES_OF[study])
    ]


def replayed_figures(wildcards):
    """Those that only imported runs bring."""
    return [file for file in figures_at(replayed()) if file not in FIGURES]


def in_report(folder, figures, category, **labels):
    """The files of figures, with the PNG of each in Snakemake's report."""
    files = figure_files(folder, figures)
    for f in figures:
        png, shown = f"{folder}/{f.name}.png", {**labels, "metric": f.label}
        files[files.index(png)] = report(
            png, category=category, caption="../report/figure.rst", labels=shown
        )
    return files


def code_of(figures):
    """A hash of what draws them."""
    modules = sorted({figure.module for figure in figures})
    return code_hash("fathom.report.draw", *modules, *METRICS_CODE)


def runs_of_figures(study, wildcards):
    platform = Platform.parse(wildcards.platform)
    counted = [*MEASURED, *(replayed() if platform.is_imported else [])]
    cells = [cell for where, cell in counted if (where, cell.study) == (platform, study)]
    return run_files_of(FIGURES_OF[study], cells, platform.runs(STORE))


def why_job_again(job):
    return why_again(cell_of(job.wildcards)) if STARTED in job.input else ""


log_group_errors()
if IS_MAIN and not (OUTPUT.printshellcmds or OUTPUT.verbose):
    install(Console(workflow, why_job_again))
