# Which files rules read and leave, and what their jobs are told.


def files_in(folder, pattern):
    """Of the project; those at the top of the folder first."""
    found = sorted(Path(in_project(folder)).rglob(pattern))
    return [str(file) for file in sorted(found, key=lambda file: len(file.parts))]


def csvs(*names):
    return [f"{RESULTS}/tables/{name}.csv" for name in names]


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


def is_training(job):
    """By its outputs: a module's user may have renamed the rule."""
    return job.output.get("manifest") is not None


@functools.cache
def why_again(job):
    """Why a cell that has a run is trained again; empty if its run is current or not complete."""
    folder = Path(job.output.manifest).parent
    run = or_exit(validate_run, folder, spec_of(job.wildcards))
    if run.counts or not all(Path(file).exists() for file in job.output):
        return ""
    return run.reason if run.status == "stale" else f"{run.status}: {run.reason}"


def tell_reasons(reasons):
    """Say in one line how many runs are trained again, and why: what most of them have in common."""
    each = [f"{why} ({n})" for why, n in Counter(reasons).most_common(3)]
    more = "; `fathom status` names the others" if len(set(reasons)) > len(each) else ""
    warn(f"{len(reasons)} runs are not current and train again: {'; '.join(each)}{more}")


def data_of(wildcards):
    """The data set that a cell reads, if it needs one."""
    dataset = DATASET_OF.get(spec_of(wildcards).study)
    return ancient(data_sums(dataset)) if dataset else []


def replays_of(wildcards):
    wanted = (wildcards.study, wildcards.backend)
    return [run for run in IMPORTED if (run.cell.study, run.cell.backend) == wanted]


def runs_to_replay(wildcards):
    """The files of these runs, and the data sets that they need."""
    runs = replays_of(wildcards)
    needed = {DATASET_OF.get(run.cell.study) for run in runs} - {None, *UNAVAILABLE}
    return [ancient(data_sums(name)) for name in sorted(needed)] + imported_files(runs)


def replay_key(wildcards):
    """A hash of today's code and of the runs' manifests. A receipt holds for these alone."""
    runs = replays_of(wildcards)
    codes = {training_code_hash(or_exit(spec_of_cell, run.cell)) for run in runs}
    return digits(json.dumps([sorted(codes), sorted(run.manifest.sha256 for run in runs)]))


@functools.cache
def replayed():
    """(platform, cell) of the imported runs that count. Waits for the receipts."""
    for study, backend in REPLAYED:
        checkpoints.replay_runs.get(study=study, backend=backend)
    runs = or_exit(imported_runs, CONFIG) if RECEIPTS else []
    return [(platform_of(run), run.cell) for run in runs if run.counts]


def figure_files(folder, figures):
    """The files of figures in a folder, and the one that has their hashes."""
    files = [str(file) for f in figures for file in files_of(Path(folder), f.name)]
    return [*files, f"{folder}/{FIGURE_MANIFEST}"]


def in_report(folder, figures, category, **labels):
    """The same, with the PNG of each figure in Snakemake's report."""
    files = figure_files(folder, figures)
    for f in figures:
        png, shown = f"{folder}/{f.name}.png", {**labels, "metric": f.label}
        files[files.index(png)] = report(
            png, category=category, caption="../report/figure.rst", labels=shown
        )
    return files


def read_by(figures, name):
    """Whether any of these figures reads this."""
    return any(name in figure.reads for figure in figures)


def captions_of(figures):
    return {f.label: f.caption for f in figures}


def code_of_figures(figures):
    """A hash of what draws them."""
    modules = sorted({figure.module for figure in figures})
    return code_hash("fathom.report.draw", *modules, *METRICS_CODE)


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


def measured_cells(study, wildcards):
    """The cells of a study whose runs count on a platform."""
    platform = Platform.parse(wildcards.platform)
    counted = [*MEASURED, *(replayed() if platform.is_imported else [])]
    return [cell for where, cell in counted if (where, cell.study) == (platform, study)]


def mixing_of(study, wildcards):
    """The learned mixing that the figures of a study read, if any of them does."""
    if not read_by(FIGURES_OF[study], "mixing"):
        return []
    cells = shown_cells(measured_cells(study, wildcards)).values()
    runs = Platform.parse(wildcards.platform).runs(STORE)
    return [str(mixing_file(cell, runs)) for cell in cells]


def sampled_of(study, wildcards):
    """The manifests of the runs from whose weights the figures of a study draw, if any does."""
    if not any("samples" in figure.reads for figure in FIGURES_OF[study]):
        return []
    cells = sampled_cells(measured_cells(study, wildcards))
    runs = Platform.parse(wildcards.platform).runs(STORE)
    return [f"{runs}/{cell.path()}/{MANIFEST}" for cell in cells]


# Of each study alone, what its figures read: a run changes no figure of another study.
STUDY_TABLES = (
    "steps.csv.gz",
    "cells.csv",
    "summary.csv",
    "times_summary.csv",
    "profiles.csv",
    "effects.csv",
    "effective_depth.csv",
    "worth.csv",
)


def tables_of_study(study, names=STUDY_TABLES):
    return [f"{RESULTS}/tables/studies/{study}/{name}" for name in names]


# Tables that only some figures read, by the name that they go by there.
FIGURE_TABLES = {
    "times": "times_summary.csv",
    "profiles": "profiles.csv",
    "effective_depth": "effective_depth.csv",
    "cells": "cells.csv",
    "ladder": "cells.csv",
    "worth": "worth.csv",
}


def tables_of_figures(study):
    """The tables of a study that its figures read."""
    some = [file for read, file in FIGURE_TABLES.items() if read_by(FIGURES_OF[study], read)]
    names = dict.fromkeys(["steps.csv.gz", "summary.csv", "effects.csv", *some])
    return tables_of_study(study, names)
