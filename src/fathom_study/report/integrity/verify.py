"""Check every result against its inputs, without Snakemake.

Runs are checked against their manifests, the current spec and the current code. Config, tables,
reports, page and paper are made again in a temporary folder and compared. Figures and their inputs
are checked by the hashes in `figures.json`. Files that belong to none of these are reported too.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from fathom.system.errors import UserError
from fathom.system.text import one_line
from fathom_study.analysis.claims import Published, write_claims
from fathom_study.analysis.run_tables import write_tables
from fathom_study.analysis.tables import of_study
from fathom_study.config import Config
from fathom_study.report.drawing.draw import title_of
from fathom_study.report.drawing.figure_manifest import (
    FIGURE_MANIFEST,
    OVERVIEW_TABLES,
    content,
    places_of,
    read_figure_manifest,
    tables_of,
)
from fathom_study.report.figures import OF_A_CELL, figures_of, files_of
from fathom_study.report.integrity import kept
from fathom_study.report.pages.page import write_page
from fathom_study.report.pages.paper import PAPER, write_paper
from fathom_study.report.pages.render import write_reports
from fathom_study.report.pages.reports import CONFIG, PAGE, reports_of
from fathom_study.runs.bundle import refused_bundles, refused_file
from fathom_study.runs.folder import METRICS, run_folder
from fathom_study.runs.run import Run
from fathom_study.runs.validate import find_runs
from fathom_study.system.files import sha256, write_json

TABLES, FIGURES, PAGES = "tables", "figures", "studies"

KINDS = {CONFIG: "config", TABLES: "tables", FIGURES: "figures", PAGE: "page", PAPER: "paper"}
"""Kind of a file by the first part of its path in the results folder; any other is a report."""


@dataclass(frozen=True)
class Check:
    """One checked file or folder, and its problem, if any."""

    kind: str
    path: Path
    problem: str = ""
    fix: Literal["user", "delete", "workflow"] = "user"
    """Fix of the problem: `user`, follow its text; `delete`, delete `path` and run the workflow;
    `workflow`, run it. `delete` without a problem: a sound file of a set that is deleted whole."""
    is_made: bool = True
    """Whether it could be checked."""


@dataclass(frozen=True)
class Verification:
    """All checks of a config's results."""

    checks: list[Check]

    @property
    def problems(self) -> list[str]:
        """A line for each problem, with its path."""
        return [one_line(f"{c.path}: {c.problem}", 2000) for c in self.checks if c.problem]

    @property
    def checked(self) -> dict[str, int]:
        """Number of checks by kind; a figure counts once for all its formats."""
        made = [c for c in self.checks if c.is_made and c.path.name != FIGURE_MANIFEST]
        things = {(check.kind, check.path.with_suffix("")) for check in made}
        return {"runs": 0, **Counter(sorted(kind for kind, _ in things))}

    def to_delete(self) -> list[Path]:
        """The files and folders to delete before the workflow makes them again."""
        paths = {check.path for check in self.checks if check.fix == "delete"}
        return sorted(path for path in paths if path.exists() or path.is_symlink())

    def advice(self, workflow: str) -> str:
        """The fix of the problems in one line; `workflow` is the command that makes all results.

        Empty if every problem is the user's to fix, as its own line says.
        """
        delete = ", ".join(map(str, self.to_delete()))
        if delete:
            return f"to fix: delete {delete}, then run {workflow}"
        is_fixable = any(check.problem and check.fix != "user" for check in self.checks)
        return f"to fix: run {workflow}" if is_fixable else ""


def verify(config: Config, published: Published, templates: Path) -> Verification:
    """Check all runs, tables, reports and figures of the config, its page and its paper."""
    with tempfile.TemporaryDirectory() as scratch:
        return Verification(list(_checks(config, published, templates, Path(scratch))))


def _checks(config: Config, published: Published, templates: Path, fresh: Path) -> Iterator[Check]:
    """Every check; `fresh` is the folder in which results are made again."""
    results = Path(config.report_folder)
    runs = [run for run in find_runs(config) if run.status != "missing"]
    yield from (_check_run(config, run) for run in runs)
    figures = sorted(_figure_sets(config, runs, fresh / TABLES))
    on_request = {f for s in figures if s.is_optional for f in s.files}
    reports = (report.name for report in reports_of(config, templates))
    is_made = any((results / name).exists() for name in (*reports, PAGE, PAPER)) or any(
        file not in on_request for file in (*_files(results / TABLES), *_files(results / FIGURES))
    )
    if is_made or (results / CONFIG).exists():
        write_json(fresh / CONFIG, config.resolved())
    if is_made and any(run.status == "corrupt" for run in runs):
        why = "not checked, since a run is corrupt"
        yield Check("tables", results / TABLES, why, "workflow", is_made=False)
    elif is_made:
        yield from _make_again(config, published, templates, fresh)
    yield from _compare(fresh, results)
    for figure_set in figures:
        is_there = any(file.exists() or file.is_symlink() for file in figure_set.files)
        if is_there or (is_made and not figure_set.is_optional):
            yield from _check_figure_set(figure_set)
    for line in refused_bundles(Path(config.results)):
        problem = f"the bundle {line}; import an intact copy, or delete this file to ignore it"
        yield Check("runs", refused_file(Path(config.results)), problem, is_made=False)
    if config.reference:
        wrong = list(kept.differences(Path(config.reference))) or [(Path(config.reference), "")]
        yield from (Check("reference", file, problem) for file, problem in wrong)
    belong = {file for figure_set in figures for file in figure_set.files}
    strays = (file for file in _files(results / FIGURES) if file not in belong)
    yield from (_stray("figures", file) for file in strays)


# --- runs -----------------------------------------------------------------------------------------


def _check_run(config: Config, run: Run) -> Check:
    check, what = partial(Check, "runs", run.folder), f"{run.status}: {run.explanation}"
    if run.counts:
        return check()
    if run.status == "corrupt":
        return check(what, "delete")
    if _is_local(config, run):
        return check(what, "workflow")
    waits = run.replay == "waits"  # the reason names the command
    return check(what if waits else f"{what}; import it again, or delete the folder")


def _is_local(config: Config, run: Run) -> bool:
    return run.folder == run_folder(Path(config.results), run.cell)


# --- config, tables and reports -------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    """Every file below a folder, except hidden ones, which the system may leave."""
    paths = sorted(folder.rglob("*"))
    return [p for p in paths if not (p.is_dir() or p.name.startswith("."))]


def _make_again(
    config: Config, published: Published, templates: Path, fresh: Path
) -> Iterator[Check]:
    """Make tables, reports, page and paper in `fresh`; yield failures and stray files."""
    results = Path(config.report_folder)
    figures, page, paper = results / FIGURES, templates.parent / "page", templates.parent / "paper"
    try:
        write_tables(config, fresh / TABLES)
        write_claims(config, published, fresh / TABLES)
        write_reports(config, published, templates, fresh)
    except UserError as error:
        yield Check("reports", results, f"cannot be made again: {error}", is_made=False)
        return
    for file in (*_files(results / TABLES), *_files(results / PAGES)):
        own = file.relative_to(results)
        if not (fresh / own).exists():
            yield _stray(_kind(own), file)
    documents = {
        PAGE: (page, partial(write_page, config, published, page, fresh, figures)),
        PAPER: (paper, partial(write_paper, config, published, paper, fresh, figures)),
    }
    for name, (folder, write) in documents.items():
        check = partial(Check, KINDS[name], results / name, is_made=False)
        try:
            if folder.is_dir():
                write()
        except UserError as error:
            yield check(problem=f"cannot be made again: {error}")
        except ModuleNotFoundError as error:
            if (results / name).exists():
                why = f"not checked, since {error.name} is not installed here"
                yield check(problem=f"{why}; run: pip install -e '.[workflow]'")


def _compare(fresh: Path, results: Path) -> Iterator[Check]:
    """Compare every file that was made again with the one in the results."""
    for again in _files(fresh):
        own = again.relative_to(fresh)
        file, problem = results / own, ""
        if not file.is_file():
            problem = "missing"
        elif content(again) != content(file):
            problem = "differs from what its inputs give"
        fix = "delete" if problem else "user"
        yield Check(_kind(own), file, problem, fix)


def _kind(own: Path) -> str:
    return KINDS.get(own.parts[0], "reports")


def _stray(kind: str, file: Path) -> Check:
    return Check(kind, file, "does not belong there", "delete")


# --- figures --------------------------------------------------------------------------------------


class FigureSet(NamedTuple):
    """The figures expected in a folder."""

    folder: Path
    names: tuple[str, ...]
    of: str
    inputs: tuple[Path, ...]
    """Input files of the figures; those that could not be made again do not exist."""
    is_optional: bool = False
    """Whether all of them may be absent."""

    @property
    def files(self) -> list[Path]:
        """figures.json, and each figure in every format."""
        figures = (file for name in self.names for file in files_of(self.folder, name))
        return [self.folder / FIGURE_MANIFEST, *figures]


def _figure_sets(config: Config, runs: Sequence[Run], tables: Path) -> Iterator[FigureSet]:
    """Every folder of figures of the config; `tables`: the folder of remade tables."""
    figures = Path(config.report_folder) / FIGURES
    local = [run for run in runs if _is_local(config, run)]
    others = [run for run in runs if run.status == "imported" and run not in local]
    places = places_of(config, [run.cell for run in local], others)
    for (study, platform), declared in places.items():
        names = tuple(figure.name for figure in declared)
        folder, of = figures / study / platform.name, title_of(study, platform)
        inputs = tables_of(declared, of_study(tables, study))
        yield FigureSet(folder, names, of, inputs)
    inputs = tuple(tables / name for name in OVERVIEW_TABLES)
    yield FigureSet(figures / "overview", tuple(figures_of("overview")), "overview", inputs)
    for cell in config.cells() if (figures / "cells").is_dir() else ():
        own, metrics = cell.path(), run_folder(Path(config.results), cell) / METRICS
        yield FigureSet(figures / "cells" / own, OF_A_CELL, own, (metrics,), is_optional=True)


def _check_figure_set(figures: FigureSet) -> Iterator[Check]:
    manifest, *files = figures.files
    listed, problems = read_figure_manifest(figures.folder), {}
    if listed is None:
        problems[manifest] = "is not a list of figures" if manifest.is_file() else "missing"
    elif why := listed.why_other(figures.of, figures.inputs):
        problems[manifest] = why
    for file in files:
        if not file.is_file():
            problems[file] = "missing"
        elif listed and listed.files.get(file.name) != sha256(file):
            problems[file] = "was modified after it was drawn"
    # The workflow draws an optional set only on request: a part of it would stay incomplete.
    all_go = figures.is_optional and bool(problems)
    for file in figures.files:
        fix = "delete" if all_go or file in problems else "user"
        yield Check("figures", file, problems.get(file, ""), fix)
