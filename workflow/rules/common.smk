# The sources of fathom, the validated config, its cells and their files, and how a job calls fathom.

import functools
import json
import shlex
import sys
import tarfile
import tempfile
from pathlib import Path

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.logging import get_event, logger
from snakemake_interface_executor_plugins.settings import ExecMode
from snakemake_interface_logger_plugins.common import LogEvent


def find_project():
    """The project's folder. As a module from a git host, it is first unpacked into .snakemake.

    Snakemake fetches such files one at a time; fathom needs its sources and templates as folders, so
    this reads Snakemake's own object of the file's source.
    """
    source = workflow.current_basedir
    if not hasattr(source, "ref"):
        return Path(source.get_path_or_uri(secret_free=True)).resolve().parents[1]
    from git import Repo

    hosted = hasattr(source, "hosted_repo")
    repository = source.hosted_repo.repo if hosted else Repo(source.repo_path)
    commit = repository.commit(source.ref).hexsha
    folder = Path(".snakemake", "fathom", commit).resolve()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            with open(f"{fresh}/tar", "wb") as archive:
                repository.archive(archive, commit)
            with tarfile.open(f"{fresh}/tar") as files:
                files.extractall(f"{fresh}/project", filter="data")
            Path(fresh, "project").rename(folder)
    return folder


PROJECT = find_project()
sys.path.insert(0, str(PROJECT / "src"))
# A profile may have loaded fathom from another project, in the folder where Snakemake started.
for name in [name for name in sys.modules if name.partition(".")[0] in ("fathom", "fathom_study")]:
    if not Path(sys.modules[name].__file__ or "").is_relative_to(PROJECT):
        del sys.modules[name]


from fathom.system.errors import UserError, broken_link, fail, of_system
from fathom_study import datasets, preload
from fathom_study.analysis.tables import BY_STUDY
from fathom_study.board.track import board_files
from fathom_study.config import BACKENDS, check_config, installed_backends, load_config
from fathom_study.config.load import is_resolved, write_resolved
from fathom_study.report.drawing.figure_manifest import (
    OVERVIEW_TABLES,
    drawing_modules,
    figure_files,
    places_of,
    tables_of,
)
from fathom_study.report.figures import OF_A_CELL, figures_of, find
from fathom_study.report.pages import reports
from fathom_study.runs.bundle import refused_file
from fathom_study.runs.code_hash import code_hash
from fathom_study.runs.plan import DATA_READY, STARTED, Plan, shell_prefix


def warn(message):
    print(f"fathom: {message}", file=sys.stderr)


def or_exit(function, *arguments, **options):
    """Call the function; an error that the user can fix ends everything, a line for each problem."""
    try:
        return function(*arguments, **options)
    except (UserError, OSError) as error:
        fail(of_system(error) if isinstance(error, OSError) else str(error))


if set("{}") & set(str(PROJECT)):
    fail(f"{PROJECT}: Snakemake reads braces as wildcards; move the project to a path without them")
# Private attributes of Snakemake say how it was started. `config_settings` has the files in their
# order: in Snakemake's `config` an overlay's keys come first, and studies would lose their order.
GIVEN, MODE = workflow.config_settings, workflow.exec_mode
FILES = [*([] if GIVEN.replace_workflow_config else ["config.yaml"]), *map(str, GIVEN.configfiles)]
# Another workflow uses this one, and passes the config.
IS_MODULE = Path(workflow.basedir).resolve() not in (PROJECT, PROJECT / "workflow")
# Jobs run on other machines: only the profile of a cluster has default resources.
IS_REMOTE = MODE == ExecMode.REMOTE or workflow.resource_settings.default_resources is not None
# Jobs have a Python of their own.
CONDA = bool(workflow.deployment_settings.deployment_method)
IS_MAIN = MODE == ExecMode.DEFAULT  # not the process of a job
# Jobs run in processes of this machine and this Python.
RUNS_JOBS = (MODE == ExecMode.REMOTE or not IS_REMOTE) and not CONDA
# Before Snakemake reads the file, whose errors take many lines.
CONFIG = None if IS_MODULE else or_exit(load_config, FILES, GIVEN.config)


configfile: "config.yaml"


CONFIG = CONFIG or or_exit(check_config, config)
or_exit(reports.check_folder, CONFIG)
# Runs are in STORE. Tables, figures and reports are in RESULTS; a subset has its own RESULTS.
STORE, RESULTS, DATA = CONFIG.results, CONFIG.report_folder, CONFIG.compute.data
for problem in filter(None, map(broken_link, (STORE, RESULTS, DATA))):
    fail(problem)

# Options of `fathom` for the same config.
OPTIONS = [word for file in FILES for word in ("--config", file)]
OPTIONS += [f"--set={key}={json.dumps(value)}" for key, value in GIVEN.config.items()]
if IS_MODULE:
    OPTIONS = ["--config", f"{RESULTS}/config.json"]

# Jobs use the interpreter that runs Snakemake, or the one of their conda environment.
python = "python" if CONDA else shlex.quote(sys.executable)
prefix = shell_prefix(python, PROJECT / "src", CONFIG.compute)
shell.prefix(prefix.replace("{", "{{").replace("}", "}}"))  # Snakemake formats it once more

INSTALLED = BACKENDS if CONDA or IS_REMOTE or CONFIG.assume_backends else installed_backends()
PLAN = or_exit(Plan, CONFIG, INSTALLED)
for line in PLAN.left_out:
    warn(line)
if IS_MAIN:
    or_exit(PLAN.mark_start)
# The list of bundles that an import refused, and the table of step times, if they exist.
REFUSED = [str(file) for file in [refused_file(Path(STORE))] if file.exists()]
STEP_TIMES = [CONFIG.step_times] if CONFIG.step_times else []
BOARD = board_files(CONFIG.board)
for file in STEP_TIMES:
    if not Path(file).is_file():
        fail(f"step_times: {file} is missing; make it with benchmarks/steps.py, or leave it out")
# The figures of each study on each platform, of all studies together, and of a cell.
FIGURES = or_exit(places_of, CONFIG, PLAN.cells, PLAN.imported)
OVERVIEW, CELL_FIGURES = [*figures_of("overview").values()], [*map(find, OF_A_CELL)]


wildcard_constraints:
    # `cell_of` refuses an unknown study, variant or backend with a message.
    study="[a-z][a-z0-9-]*",
    depth="[1-9][0-9]*",  # no leading zeros: 02 would be another folder for the same cell
    variant="[a-z0-9_]+",
    backend="[a-z]+",
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
    """The cells to train for tables and reports, and the targets if they are studies alone.

    Of the targets, which Snakemake keeps private: the report of a study shows all runs, and a study
    as a target trains its own alone.
    """
    targets = {*workflow.dag_settings.targets}
    studies = sorted(targets) if targets <= {*PLAN.studies} else []
    return (PLAN.cells_for(studies) if studies else PLAN.cells), studies


def figures_wanted(w):
    """The figures of all runs that count or are trained here, and the overview."""
    cells, _ = wanted()
    places = places_of(CONFIG, cells, PLAN.imported)
    folders = {f"{study}/{at}": figures for (study, at), figures in places.items()}
    folders["overview"] = OVERVIEW
    return [f for at in folders for f in figure_files(f"{RESULTS}/figures/{at}", folders[at])]


def where_results_are():
    """Lines on the results that are there, and the next step."""
    _, studies = wanted()
    options = [] if OPTIONS == ["--config", "config.yaml"] else OPTIONS
    return reports.where_results_are(CONFIG, studies, options)


def add_lines(record):
    """A filter of Snakemake's log: adds the time of trainings to its plan, and results if all are there."""
    if get_event(record) == LogEvent.RUN_INFO and TO_TRAIN:
        at_once = 1 if IS_REMOTE else max(1, workflow.cores // CONFIG.compute.threads)
        lines = PLAN.forecast(TO_TRAIN.values(), map(run_of, PLAN.cells), at_once)
        record.msg = "\n".join([record.msg, *lines, ""])
    elif record.msg == NOTHING_TO_BE_DONE_MSG:
        record.msg += f"\n{where_results_are()}"
    return True


def report_of(study, wildcards):
    """A study's report, which shows other studies as they are; none beside other targets."""
    _, targets = wanted()
    return [f"{RESULTS}/{r.name}" for r in DECLARED if targets and r.study == study]


def in_report(folder, figures, category, **labels):
    """The files of figures, with the PNG of each in Snakemake's report."""
    files = figure_files(folder, figures)
    for f in figures:
        png, shown = f"{folder}/{f.name}.png", {**labels, "metric": f.label}
        files[files.index(png)] = report(
            png, category=category, caption="../report/figure.rst", labels=shown
        )
    return files


# --- files of the rules ---

CELL = "{study}/{depth}L/{variant}/{backend}/seed{seed}"
RUN = f"{STORE}/runs/{CELL}"
CELL_NAME = CELL.replace("{", "{wildcards.")
CELL_LOG = "{study}/{depth}L-{variant}-{backend}-seed{seed}"

# On a cluster, cells of at most SHORT minutes share jobs; its profile sets the number of cells.
# Their time limits add up, and if a job ends early all its cells are trained again.
SHORT = 10
SHARED_JOBS = "cells" if IS_REMOTE and CONFIG.compute.runtime <= SHORT else None

RUN_TABLES = csvs(
    *("cells", "summary", "profiles", "comparison", "platforms", "effects", "effective_depth"),
    *("worth", "sizes", "pooled", "stability", "trajectories", "variance", "variance_summary"),
)
VERDICTS = csvs("published", "published_sizes", "thresholds", "claims", "verdicts")
# Tables of each study alone, for its figures: a run changes no figure of another study.
STUDIES = [f"{RESULTS}/tables/studies/{study}" for study in PLAN.studies]
STEPS = [f"{folder}/steps.csv.gz" for folder in STUDIES]
# Times have separate tables: files without times are not remade if only times have changed.
TIMES = csvs("times", "times_summary")
TABLES = [*RUN_TABLES, *VERDICTS, *STEPS]

PUBLISHED = files_in("report", "published.yaml")[0]

folder_of_templates = lambda w, input: str(Path(input.templates[0]).parent)
shown_in_report = functools.partial(report, category="Reports", caption="../report/report.rst")
TEMPLATES, WORDS, ANSWERS = (
    files_in("report/templates", name) for name in ("*.j2", "words.j2", "answers.j2")
)
DECLARED = or_exit(reports.reports_of, CONFIG, Path(TEMPLATES[0]).parent)
REPORTS = [f"{RESULTS}/{r.name}" for r in DECLARED]
PAGE, PAPER = [f"{RESULTS}/index.html"], [f"{RESULTS}/fathom.pdf"]
for files in [] if CONDA else [PAGE, PAPER]:
    if why := reports.why_left_out(Path(files[0]).name):
        warn(why)
        files.clear()
KEPT = reports.kept_tables(CONFIG)

if IS_MAIN:
    logger.addFilter(add_lines)
