# The validated config, its cells and their files, and how a job calls fathom.

import functools
import shlex

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.logging import get_event, logger
from snakemake_interface_logger_plugins.common import LogEvent

from fathom_study import datasets
from fathom_study.config import BACKENDS, installed_backends
from fathom_study.config.snakemake_start import is_resolved, shell_prefix, write_resolved
from fathom_study.report.drawing.figure_manifest import (
    OVERVIEW_TABLES,
    drawing_modules,
    figure_files,
    figures_at,
    places_of,
    tables_of,
)
from fathom_study.report.figures import OF_A_CELL, figures_of, figures_of_study, find
from fathom_study.report.pages import reports
from fathom_study.runs.bundle import refused_file
from fathom_study.runs.code_hash import code_hash
from fathom_study.runs.plan import DATA_READY, STARTED, Plan

CONFIG = or_exit(START.load, config)
or_exit(reports.check_folder, CONFIG)
# Runs are in STORE. Tables, figures and reports are in RESULTS; a subset has its own RESULTS.
STORE, RESULTS, DATA = CONFIG.results, CONFIG.report_folder, CONFIG.compute.data
for problem in filter(None, map(broken_link, (STORE, RESULTS, DATA))):
    fail(problem)

# Jobs use the interpreter that runs Snakemake, or the one of their conda environment.
python = "python" if START.conda else shlex.quote(sys.executable)
prefix = shell_prefix(python, PROJECT / "src", CONFIG.compute)
shell.prefix(prefix.replace("{", "{{").replace("}", "}}"))  # Snakemake formats it once more

INSTALLED = BACKENDS if START.any_backend or CONFIG.assume_backends else installed_backends()
PLAN = or_exit(Plan, CONFIG, INSTALLED)
for line in PLAN.left_out:
    warn(line)
if START.is_main:
    or_exit(PLAN.mark_start)
# The list of bundles that an import refused, and the table of step times, if they exist.
REFUSED = [str(file) for file in [refused_file(Path(STORE))] if file.exists()]
STEP_TIMES = [CONFIG.step_times] if CONFIG.step_times else []
for file in STEP_TIMES:
    if not Path(file).is_file():
        fail(f"step_times: {file} is missing; make it with benchmarks/steps.py, or leave it out")
# The figures of each study with runs, of all studies together, and of a cell.
FIGURES = {name: or_exit(figures_of_study, CONFIG, name) for name in PLAN.studies}
OVERVIEW, CELL_FIGURES = [*figures_of("overview").values()], [*map(find, OF_A_CELL)]


wildcard_constraints:
    # `cell_of` refuses an unknown study, variant or backend with a message.
    study="[a-z][a-z0-9-]*",
    depth="[1-9][0-9]*",  # no leading zeros: 02 would be another folder for the same cell
    variant="[a-z0-9_]+",
    backend="[a-z]+",
    platform="[a-z0-9-]+",
    seed="0|[1-9][0-9]*",
    dataset="|".join(PLAN.datasets) or "none",


def files_in(folder, pattern):
    """Of the project, as seen from here; those at the top of the folder first."""
    root = Path() if PROJECT == Path.cwd() else PROJECT
    files = sorted(root.joinpath(folder).rglob(pattern))
    return [str(file) for file in sorted(files, key=lambda file: len(file.parts))]


def hash_for(function, *arguments):
    """A hash of code as a parameter: computed once, and for planned jobs alone, since it takes time."""
    computed = functools.cache(functools.partial(or_exit, function, *arguments))
    return lambda w: computed()


def csvs(*names):
    return [f"{RESULTS}/tables/{name}.csv" for name in names]


TO_TRAIN = {}  # runs that are missing or not current, by the cells in Snakemake's plan


@functools.cache
def run_of(cell):
    return or_exit(PLAN.run, cell)


def cell_of(w):
    return or_exit(PLAN.cell, **w)


def inputs_of_training(w):
    """STARTED, newer than tables without a current run, and the cell's data set, if any.

    Also for a missing run: Snakemake ignores missing files between a target and its inputs.
    """
    cell = cell_of(w)
    is_current = run_of(cell).counts
    if not is_current:
        TO_TRAIN[cell] = run_of(cell)
    return [ancient(STARTED) if is_current else STARTED, *ancient(PLAN.data_files([cell]))]


@functools.cache
def wanted():
    """The cells to train for tables and reports, and whether only some studies are the targets."""
    targets = {*workflow.dag_settings.targets}
    is_part = bool(targets) and targets <= {*PLAN.studies}
    return (PLAN.cells_for(targets) if is_part else PLAN.cells), is_part


def figures_wanted(w):
    """The figures of all runs that count or are trained here, and the overview."""
    cells, _ = wanted()
    of_runs = figures_at(f"{RESULTS}/figures", FIGURES, places_of(CONFIG, cells, PLAN.imported))
    return of_runs + figure_files(f"{RESULTS}/figures/overview", OVERVIEW)


def where_results_are():
    """Lines on what this start made or found, and the next step."""
    _, is_part = wanted()
    options = START.options(CONFIG)
    return reports.where_results_are(
        CONFIG,
        {str(file) for job in workflow.dag.jobs for file in job.output},
        workflow.dag_settings.targets if is_part else (),
        [] if options == ["--config", "config.yaml"] else options,
    )


def add_lines(record):
    """A filter of Snakemake's log: adds the time of trainings to its plan, and results if all are there."""
    if get_event(record) == LogEvent.RUN_INFO and TO_TRAIN:
        at_once = 1 if START.is_remote else max(1, workflow.cores // CONFIG.compute.threads)
        lines = PLAN.forecast(TO_TRAIN.values(), map(run_of, PLAN.cells), at_once)
        record.msg = "\n".join([record.msg, *lines, ""])
    elif record.msg == NOTHING_TO_BE_DONE_MSG:
        record.msg += f"\n{where_results_are()}"
    return True


def report_of(study, wildcards):
    """A study's report, which shows other studies as they are; none beside other targets."""
    _, is_part = wanted()
    return [f"{RESULTS}/{r.name}" for r in DECLARED if is_part and r.study == study]


def in_report(folder, figures, category, **labels):
    """The files of figures, with the PNG of each in Snakemake's report."""
    files = figure_files(folder, figures)
    for f in figures:
        png, shown = f"{folder}/{f.name}.png", {**labels, "metric": f.label}
        files[files.index(png)] = report(
            png, category=category, caption="../report/figure.rst", labels=shown
        )
    return files


if START.is_main:
    logger.addFilter(add_lines)
