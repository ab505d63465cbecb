"""Checking every result against what it was made from, without asking Snakemake.

Runs are checked against their manifests, the present spec and the present code; the config, tables,
reports, the page and the paper by making them again and comparing; figures by the hashes that were
kept when they were drawn, and by what they were drawn from. A file that belongs to none of these is
named too.
"""

from __future__ import annotations

import importlib.util
import shlex
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fathom
from fathom.analysis.attribution import write_attribution
from fathom.analysis.claims import Published, write_claims
from fathom.analysis.effects import write_effects
from fathom.analysis.places import Place
from fathom.analysis.tables import write_tables
from fathom.config import Config
from fathom.report.draw import title_of
from fathom.report.drawn import DRAWN, content, read_drawn
from fathom.report.figures import Declaration, figures_of, figures_of_study, files_of
from fathom.report.page import PACKAGES, PAGE, page_of, write_page
from fathom.report.paper import PAPER, paper_of, write_paper
from fathom.report.render import write_reports
from fathom.report.reports import reports_of
from fathom.runs.folder import METRICS, RunError, one_line, run_folder
from fathom.runs.inspect import Run, find_runs
from fathom.settings import ConfigError
from fathom.system.files import sha256, write_json

CONFIG, TABLES, FIGURES, PAGES = "config.json", "tables", "figures", "studies"

KINDS = {CONFIG: "config", TABLES: "tables", PAGE: "page", PAPER: "paper"}
"""What is made again, by the first part of its path in the results; anything else is a report."""

RECEIPT_FORMAT = 1


@dataclass(frozen=True)
class Check:
    """One thing that was checked, and how."""

    kind: str
    path: Path
    how: str
    note: str = ""
    """What is to be known of it beside that."""


@dataclass
class Verification:
    """What was checked, every problem in a line, and what repairs them."""

    checked: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unfit: list[Path] = field(default_factory=list)
    """What has to be deleted: the workflow then makes it again, if it belongs there."""
    is_repairable: bool = False
    """Whether the workflow can mend any of the problems."""
    checks: list[Check] = field(default_factory=list)
    problems_of: dict[Path, list[str]] = field(default_factory=dict)
    """What is wrong, by the path that it is said of."""

    def add(self, path: Path, what: str) -> None:
        """A problem that is gone once `path` is deleted and the workflow has run."""
        self.unfit.append(path)
        self.add_for_workflow(path, what)

    def add_for_workflow(self, path: Path, what: str) -> None:
        """A problem that is gone once the workflow has run."""
        self.is_repairable = True
        self.add_at(path, what)

    def add_at(self, path: Path, what: str) -> None:
        """A problem of a path that says itself what mends it."""
        self.problems_of.setdefault(path, []).append(one_line(what, 2000))
        self.add_by_hand(f"{path}: {what}")

    def add_by_hand(self, line: str) -> None:
        """A problem that says itself what mends it."""
        self.problems.append(one_line(line, 2000))

    def as_json(self) -> dict[str, Any]:
        """The receipt: every check with its outcome, and every problem."""
        return {
            "format": RECEIPT_FORMAT,
            "fathom": fathom.__version__,
            "verified": not self.problems,
            "checked": self.checked,
            "checks": [
                {
                    "kind": check.kind,
                    "path": str(check.path),
                    "how": check.how,
                    "outcome": "; ".join(self.problems_of.get(check.path, ["good"])),
                    "note": check.note,
                }
                for check in self.checks
            ],
            "problems": self.problems,
        }

    def count(self, kind: str, more: int = 1) -> None:
        """Count what was checked."""
        self.checked[kind] = self.checked.get(kind, 0) + more

    def repair(self, workflow: str) -> str:
        """The command line that repairs what can be; `workflow` is what makes all that is missing.

        Empty if no command can.
        """
        there = {path for path in self.unfit if path.exists() or path.is_symlink()}
        # A name that a terminal would not show as it is has to be deleted by hand.
        outermost = sorted(
            path for path in there if there.isdisjoint(path.parents) and str(path).isprintable()
        )
        if outermost:
            return f"{shlex.join(['rm', '-r', *map(str, outermost)])} && {workflow}"
        return workflow if self.is_repairable else ""


def verify(config: Config, published: Published, templates: Path) -> Verification:
    """Check all runs, tables, reports and figures of the config, its page and its paper."""
    found = Verification()
    results = Path(config.report_folder)
    runs = [run for run in find_runs(config) if run.status != "missing"]
    _check_runs(config, runs, found)
    is_made = _is_made(config, templates)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        if is_made or (results / CONFIG).exists():
            write_json(fresh / CONFIG, config.resolved())
        if is_made and any(run.status == "corrupt" for run in runs):
            found.add_for_workflow(results / TABLES, "not checked, since a run is corrupt")
        elif is_made:
            _make_again(config, published, templates, fresh, found)
        _compare(fresh, results, found)
        _check_figures(config, runs, fresh, is_made, found)
    return found


def _check_runs(config: Config, runs: Sequence[Run], found: Verification) -> None:
    found.count("runs", len(runs))
    for run in runs:
        how = "its files against their hashes, its spec and code against today's"
        note = f"replay: {run.explanation}" if run.counts and run.replay else ""
        found.checks.append(Check("runs", run.folder, how, note))
        what = f"{run.status}: {run.explanation}"
        if run.status == "corrupt":
            found.add(run.folder, what)
        elif run.replay == "waits" or (not run.counts and _is_local(config, run)):
            found.add_for_workflow(run.folder, what)
        elif not run.counts:
            found.add_at(run.folder, f"{what}; import it anew, or delete the folder")


def _is_local(config: Config, run: Run) -> bool:
    return run.folder == run_folder(Path(config.results), run.cell)


# --- config, tables and reports -----------------------------------------------------------------


def _is_made(config: Config, templates: Path) -> bool:
    """Whether any table, report or figure is there that `snakemake all` makes."""
    results = Path(config.report_folder)
    names = (report.name for report in reports_of(config, templates))
    reports = (results / name for name in (*names, PAGE, PAPER))
    files = (*_files(results / TABLES), *_files(results / FIGURES))
    return any(file.exists() for file in reports) or any(
        not _is_on_request(file.relative_to(results)) for file in files
    )


def _is_on_request(file: Path) -> bool:
    """Whether a table or a figure is made by a target of its own, with its place in the results."""
    return file.parts[:2] == (FIGURES, "cells") or file in (
        Path(TABLES, "bench.csv"),
        *files_of(Path(FIGURES), "bench"),
        Path(FIGURES, DRAWN),
    )


def _files(folder: Path) -> list[Path]:
    """Every file below a folder, but for hidden ones, as systems leave."""
    paths = sorted(folder.rglob("*"))
    return [p for p in paths if not (p.is_dir() or p.name.startswith("."))]


def _make_again(
    config: Config, published: Published, templates: Path, fresh: Path, found: Verification
) -> None:
    """Make tables and reports again in `fresh`; name what else is in their folders."""
    try:
        write_tables(config, fresh / TABLES)
        write_attribution(config, fresh / TABLES)
        write_effects(config, fresh / TABLES)
        write_claims(config, published, fresh / TABLES)
        write_reports(config, published, templates, fresh)
    except (RunError, ConfigError) as error:
        found.add_by_hand(str(error))
        return
    results = Path(config.report_folder)
    for file in (*_files(results / TABLES), *_files(results / PAGES)):
        own = file.relative_to(results)
        if not ((fresh / own).exists() or _is_on_request(own)):
            found.add(file, "does not belong there")
    _make_page_again(config, templates, fresh, found)
    _make_paper_again(config, published, templates, fresh, found)


def _make_page_again(config: Config, templates: Path, fresh: Path, found: Verification) -> None:
    """Make the page again in `fresh`, from the reports there and the figures that were drawn."""
    results, page = Path(config.report_folder), page_of(templates)
    if not page.is_dir() or _is_lacking(PACKAGES, results / PAGE, found):
        return
    try:
        write_page(config, page, fresh, results / FIGURES)
    except ConfigError as error:
        found.add_by_hand(str(error))


def _make_paper_again(
    config: Config, published: Published, templates: Path, fresh: Path, found: Verification
) -> None:
    """Make the paper again in `fresh`, from the tables there and the figures that were drawn."""
    results, paper = Path(config.report_folder), paper_of(templates)
    if not paper.is_dir() or _is_lacking(("typst",), results / PAPER, found):
        return
    try:
        write_paper(config, published, paper, fresh, results / FIGURES)
    except ConfigError as error:
        found.add_by_hand(str(error))


def _is_lacking(packages: Sequence[str], file: Path, found: Verification) -> bool:
    """Whether a package that makes `file` is not installed; said if the file is there."""
    lacking = [name for name in packages if importlib.util.find_spec(name) is None]
    if lacking and file.exists():
        found.add_at(
            file,
            f"not checked, since {lacking[0]} is not installed here; "
            "pip install -e '.[workflow]' brings it",
        )
    return bool(lacking)


def _compare(fresh: Path, results: Path, found: Verification) -> None:
    """Every file that was made again with the one that is there."""
    for file in sorted(p.relative_to(fresh) for p in fresh.rglob("*") if p.is_file()):
        kind = {TABLES: "tables", CONFIG: "config"}.get(file.parts[0], "reports")
        found.count(kind)
        found.checks.append(
            Check(KINDS.get(file.parts[0], "reports"), results / file, "made again, and compared")
        )
        if not (results / file).is_file():
            found.add(results / file, "missing")
        elif content(fresh / file) != content(results / file):
            found.add(results / file, "is not what its inputs give")


# --- figures ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What a folder of figures has to hold."""

    folder: Path
    figures: Collection[Declaration]
    of: str
    sources: tuple[Path, ...]
    """What they have to be drawn from, as far as it could be made again."""
    on_request: bool = False
    """Whether the folder may lack all of them."""

    @property
    def files(self) -> list[Path]:
        """The figures, each as every format."""
        return [file for figure in self.figures for file in files_of(self.folder, figure.name)]


def _expected(config: Config, runs: Sequence[Run], fresh: Path) -> Iterator[Expected]:
    """Every folder of figures that the config has."""
    results = Path(config.report_folder)
    figures, tables = results / FIGURES, fresh / TABLES
    here = {
        (run.cell.study, Place.named(run.cell.backend)) for run in runs if _is_local(config, run)
    }
    carried = {
        (run.cell.study, Place.named(run.cell.backend, run.platform))
        for run in runs
        if run.status == "imported"
    }
    of_study = {study: figures_of_study(config, study) for study, _ in here | carried}
    for study, place in here | carried:
        yield Expected(
            figures / study / place.folder,
            of_study[study],
            title_of(study, place),
            tuple(tables / name for name in ("steps.csv.gz", "summary.csv", "effects.csv")),
        )
    overview = tuple(tables / name for name in ("cells.csv", "variance.csv", "published.csv"))
    yield Expected(figures / "overview", figures_of("overview").values(), "overview", overview)
    bench = (results / TABLES / "bench.csv",)
    yield Expected(figures, figures_of("bench").values(), "bench", bench, on_request=True)
    for cell in config.cells() if (figures / "cells").is_dir() else ():
        metrics = (run_folder(Path(config.results), cell) / METRICS,)
        folder = figures / "cells" / cell.path()
        of_cell = figures_of("cell").values()
        yield Expected(folder, of_cell, cell.path(), metrics, on_request=True)


def _check_figures(
    config: Config, runs: Sequence[Run], fresh: Path, is_made: bool, found: Verification
) -> None:
    found.count("figures", 0)
    belong: set[Path] = set()
    for expected in sorted(_expected(config, runs, fresh), key=lambda e: e.folder):
        own = [expected.folder / DRAWN, *expected.files]
        belong.update(own)
        there = [file for file in own if file.exists() or file.is_symlink()]
        found.count("figures", len({file.stem for file in there if file.name != DRAWN}))
        if there or (is_made and not expected.on_request):
            how = "its hash, and the hashes of what it was drawn from, made again"
            found.checks += [Check("figures", file, how) for file in own]
            for file, what in _figure_problems(expected):
                found.add(file, what)
                # The workflow makes them whole again only when it is asked to.
                found.unfit += there if expected.on_request else []
    for file in _files(Path(config.report_folder) / FIGURES):
        if file not in belong:
            found.add(file, "does not belong there")


def _figure_problems(expected: Expected) -> Iterator[tuple[Path, str]]:
    """(file, what is wrong with it) in a folder of figures."""
    manifest, drawn = expected.folder / DRAWN, read_drawn(expected.folder)
    if drawn is None:
        yield manifest, "is no list of figures" if manifest.is_file() else "missing"
    elif why := drawn.why_other(expected.of, expected.sources):
        yield manifest, why
    for file in expected.files:
        if not file.is_file():
            yield file, "missing"
        elif drawn and drawn.files.get(file.name) != sha256(file):
            yield file, "is not as it was drawn"
