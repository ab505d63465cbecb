"""`fathom judge`: compare your own connection with the kept result, on one page.

The config is that of the kept result plus one variant. Rows of all other networks are read from
the kept table of cells; without it (`--train-plain`) the plain network is trained too.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from fathom.connections.module import FOLDER, is_inside, own_code, split_name
from fathom.system.errors import UserError
from fathom.system.text import one_line
from fathom_study import tasks
from fathom_study.analysis.pairs import ONE_RATE
from fathom_study.analysis.run_tables import cells_table
from fathom_study.analysis.statistics import mean_with_ci
from fathom_study.analysis.tables import read_table, save_tables, scores_of
from fathom_study.backends import Backend
from fathom_study.board.rows import TrackRows, row_of, rows_of
from fathom_study.board.scoring import (
    beside_kept,
    kept_cells,
    numbers_of,
    plain_cells_left,
    tables_of,
)
from fathom_study.board.submission import BOARD, label_of
from fathom_study.board.track import BACKEND, Track
from fathom_study.config import Cell, Compute, Config, ConfigError, load_config, read_yaml
from fathom_study.report.judge.forest import Place, forest
from fathom_study.report.pages.render import check_numbers, environment_of, fill
from fathom_study.report.pages.reports import check_is_no_report_folder
from fathom_study.report.tables.formatting import number
from fathom_study.report.tables.records import Record, records
from fathom_study.runs.bundle import make_rows, unpack
from fathom_study.runs.contract import (
    Check,
    examine,
    gradients_by_layer,
    plain_problem,
    without_data,
)
from fathom_study.runs.folder import (
    MANIFEST,
    SPEC,
    read_json,
    read_manifest,
    read_rows,
    read_spec,
    run_folder,
)
from fathom_study.runs.import_preview import BUNDLES
from fathom_study.runs.replay import repeat
from fathom_study.runs.run import Run
from fathom_study.runs.stream_checks import describe
from fathom_study.runs.training import connect, time_problem
from fathom_study.runs.validate import validate_run
from fathom_study.system.files import write_text
from fathom_study.tasks import Problem

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

DEPTHS = {"released": 12, "state": 8}
"""Studies to judge in, and the depth in each; without it, the deepest below it in the config."""

LADDER = [0.5, 2]
"""Factors of the plain network's steps in a study without a ladder."""

PLAIN = Path("results/judge/plain-network")
"""Folder of the plain network's runs that are trained here."""

COST = "cost of a step"
"""Name of the check that measures the time of a step relative to the plain network's."""

OPERATIONS, BYTES = "operations of a step", "bytes of a step"
"""Names of the checks that count the work of a step relative to the plain network's."""

FIGURE = "JUDGE.svg"
"""File of the figure, beside the page."""

TRAIN = "add --train-plain to train the plain network here"
"""What to do where the plain network of the kept result does not repeat."""

VANISHING = 1e10
"""Largest ratio of gradients of two layers that is not flagged."""

TURNS = 4
"""Number of timings of a step, alternating with the plain network's: a few seconds in all."""


@dataclass(frozen=True)
class Plan:
    """A connection to judge, with config, kept result and number of seeds."""

    config: Config
    module: str
    label: str
    kept: Path | None
    """Folder of the kept result; None: the plain network is trained here."""
    lacking: str
    """Why there is nothing else to compare with; empty with a kept result."""
    trains: bool
    """Whether data sets are needed; false for checks alone."""
    seeds: int
    project: Path
    """Folder of the project, for links to its documents."""
    track: Track | None = None
    """The track of the board whose settings these are."""
    plain_left: tuple[Cell, ...] = ()
    """Cells of a track's plain network to train."""

    @property
    def name(self) -> str:
        """Name of the class or function."""
        return self.module.rpartition(":")[2]

    @property
    def more_seeds(self) -> int | None:
        """A larger number of seeds to judge by; None if the kept result has no more."""
        if self.track:
            return None
        there = max(len(study.seeds) for study in self.config.studies.values())
        more = self.seeds + 2 if self.kept is None else min(self.seeds + 2, there)
        return more if more > self.seeds else None

    def depth(self, study: str) -> int:
        """Depth to judge at in a study: the deepest up to that of DEPTHS, else the smallest."""
        depths = self.config.studies[study].depths
        return max((d for d in depths if d <= DEPTHS.get(study, d)), default=min(depths))

    def cells(self, study: str, variant: str = "", depth: int | None = None) -> list[Cell]:
        """Cells of a variant, by default the connection, at the seeds to judge by."""
        seeds = self.config.studies[study].seeds[: self.seeds]
        where = self.depth(study) if depth is None else depth
        return [Cell(study, where, variant or self.label, BACKEND, seed) for seed in seeds]

    def folder(self, cell: Cell) -> Path:
        """The run folder of a cell; runs of the plain network serve every connection."""
        if cell.variant == self.label:
            return run_folder(Path(self.config.results), cell)
        return run_folder(PLAIN / self.track.name if self.track else PLAIN, cell)

    def folders(self) -> dict[Cell, Path]:
        """The run folder of each cell to train."""
        return {cell: self.folder(cell) for cell in self.to_train()}

    def to_train(self) -> list[Cell]:
        """Cells of the connection; without a kept result, also those of the plain network."""
        cells = [cell for study in self.config.studies for cell in self.cells(study)]
        cells += self.plain_left
        if self.kept is None and not self.track:
            for name, study in self.config.studies.items():
                plain = self.config.plain(name)
                for rung in study.rungs(plain).values():
                    cells += self.cells(name, rung)
                for depth in study.values("depths"):
                    cells += self.cells(name, plain, depth)
        return list(dict.fromkeys(cells))


def make_plan(
    files: Sequence[Path],
    module: str,
    arguments: Mapping[str, Any],
    out: Path,
    *,
    seeds: int,
    train_plain: bool,
    check: bool,
    track: Track | None = None,
) -> Plan:
    """Plan for FILE.py:NAME, at the settings of `files`, or of a track.

    Raises ConfigError, also if no result is kept, unless the plain network is trained here
    (`train_plain`, or a track), or `check` for checks alone.
    """
    # In a clone the default config is a link, and what it names lies beside its target.
    project = files[0].resolve().parent
    read = track.config if track else partial(load_config, files)
    base = read()
    judging = [name for name in (base.studies if track else DEPTHS) if name in base.studies]
    if not judging or any(base.plain(name) is None for name in judging):
        wanted = " nor ".join(DEPTHS)
        raise ConfigError(f"{files[-1]}: has neither {wanted} with a plain network to compare with")
    if track and not track.kept:
        kept, lacking = None, "the track trains its own plain network"
    else:
        kept, lacking = _kept(Path(base.results), project, train_plain=train_plain)
    check_is_no_report_folder(out)
    if kept is None and not (train_plain or check or track):
        raise ConfigError(
            f"{base.results}/tables/cells.csv: missing, so there is no connection to compare with; "
            f"in a clone restore it with git checkout {base.results}, or add --quick or "
            "--train-plain to train the plain network here"
        )
    there = max(len(base.studies[study].seeds) for study in judging)
    if kept and seeds > there and not track:
        raise ConfigError(
            f"--seeds: {seeds} exceeds the kept result's {there}; use fewer or add --train-plain"
        )
    file, name = split_name(module)
    label = label_of(name, base)
    path = f"{_recorded(file, alone=track is not None)}:{name}"
    connection = {"module": path, "settings": dict(arguments)}  # arguments may share our names
    studies: dict[str, Any] = dict.fromkeys(base.studies)
    for study in judging:
        settings = base.studies[study]
        variant = {label: {"connection": connection, "model": {"wrap": "sublayer"}}}
        studies[study] = {"extra_variants": [*settings.extra_variants, variant]}
        if train_plain and not track:
            studies[study]["seeds"] = sorted({*settings.seeds, *range(seeds)})
        if train_plain and not settings.ladder:
            # Evaluate only at the end: half the steps may be fewer than evaluate_every.
            studies[study] |= {"ladder": {base.plain(study): LADDER}, "evaluate_every": None}
    labels: dict[str, str] = {}
    for shared in files if track else ():  # they name the variants of the board's rows
        labels |= read_yaml(shared).get("labels") or {}
    changes = {
        "results": str(out), "reference": None, "labels": labels | {label: name},
        "studies": studies,
        "compute": {"data": _beside(base.compute.data, project)},
        "step_times": base.step_times and _beside(base.step_times, project),
    }  # fmt: skip
    try:
        config = read(changes)
    except ConfigError as error:
        # No file has the variant: report its problems without a path, once for all studies.
        place = re.compile(rf"^.*: studies\.[^:]*\.variants\.{label}: ")
        lines = [place.sub("", line) for line in str(error).splitlines()]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error
    for file in sorted(out.glob(f"runs/*/*/{label}/*/*/{SPEC}")):
        there = read_json(file)["connection"]
        if (there["module"], there["settings"]) != (path, dict(arguments)):
            raise ConfigError(
                f"{out}: has runs of {there['module']} with settings {there['settings']}; choose "
                "another folder with --out"
            )
    left = plain_cells_left(track, kept) if track and not check else ()
    return Plan(config, path, label, kept, lacking, not check, seeds, project, track, tuple(left))


def _recorded(file: str, *, alone: bool) -> str:
    """The path by which runs record a file; its name if it is outside of this folder, or `alone`.

    Submissions record the name alone, since each has a folder of its own.
    """
    path = Path(os.path.relpath(file)).as_posix()
    if is_inside(path) and not alone:
        return path
    os.environ[FOLDER] = str(Path(file).absolute().parent)
    return Path(file).name


def _beside(path: str, project: Path) -> str:
    """A path of the config: from this folder, or else from the project's if it is there."""
    if Path(path).exists() or not (project / path).exists():
        return path
    return Path(os.path.relpath(project / path)).as_posix()


def _kept(results: Path, project: Path, *, train_plain: bool) -> tuple[Path | None, str]:
    """(Folder of the kept result, or None; why there is none to compare with)."""
    if train_plain:
        return None, "--train-plain trains the plain network alone"
    cells = Path(_beside(str(results / "tables" / "cells.csv"), project))
    if cells.is_file():
        return cells.parents[1], ""
    return None, f"the kept result, {results} of a clone, is not here"


# --- before training ------------------------------------------------------------------------------


def check_all(plan: Plan, compute: Compute) -> Iterator[tuple[str, Check]]:
    """Yield (study, check): contract, cost of a step, whether the plain network repeats here.

    Raises DataError first, if a data set is missing for a training.
    """
    for study in plan.config.studies if plan.trains else ():
        spec = plan.config.spec(plan.cells(study)[0])
        connect(spec, compute)
        tasks.load(spec.task).batch(spec, 0)
    for study in plan.config.studies:
        for check in _check(plan, study, compute):
            yield study, check


def _check(plan: Plan, study: str, compute: Compute) -> Iterator[Check]:
    spec = plan.config.spec(plan.cells(study)[0])
    problem, backend = Problem(spec), connect(spec, compute)
    is_broken = False
    for check in examine(problem, backend):
        is_broken |= check.failed
        yield check
    if is_broken:
        return
    yield from describe(problem, backend)
    with own_code(spec.connection):
        yield from _measure(without_data(problem), backend)
    if plan.kept:
        yield _repeat_plain(plan, study, plan.kept, compute)
    else:
        yield Check("other connections", f"not compared: {plan.lacking}")


def _measure(problem: Problem, backend: Backend) -> Iterator[Check]:
    """Time and operations of a step over the plain network's, and gradients of both by layer."""
    from fathom_study.backends.torch_counting import work_over  # it loads PyTorch

    plain = plain_problem(problem)
    # Alternate, and take the fastest of each: other load on the machine only slows.
    turns = [[time_problem(p, backend) for p in (problem, plain)] for _ in range(TURNS)]
    ours, theirs = map(min, zip(*turns, strict=True))
    cost = ours / theirs
    ratios = sorted(ours / theirs for ours, theirs in turns)
    spread = f"{number(ratios[0], 3)} to {number(ratios[-1], 3)} in single turns"
    yield Check(COST, f"{number(cost, 3)} times the plain network's time ({spread})", value=cost)
    try:  # without numbers, on a device without memory
        for name, ratio in zip((OPERATIONS, BYTES), work_over(problem, plain), strict=True):
            yield Check(name, f"{number(ratio)} times the plain network's", value=ratio)
    except (RuntimeError, NotImplementedError) as error:
        why = f"not counted on tensors without numbers: {one_line(str(error), 100)}"
        yield Check(OPERATIONS, why)
    by_layer = {"connection": problem, "plain": plain}
    shares = {name: gradients_by_layer(p, backend) for name, p in by_layer.items()}
    phrases = (f"{name} {number(g[0])} and {number(g[-1])}" for name, g in shares.items())
    ends = f"first and last layer, relative to the mean: {'; '.join(phrases)}"
    reached = shares["connection"][shares["connection"] > 0]  # zeros are chosen, as in ReZero
    fall = reached.max() / reached.min() if len(reached) else 1.0
    if fall > VANISHING:
        ends = f"they fall by {fall:.0e} over the layers, which hardly learn; {ends}"
    yield Check("gradients by layer", ends, flagged=bool(fall > VANISHING))


def _repeat_plain(plan: Plan, study: str, kept: Path, compute: Compute) -> Check:
    """Check whether the current code repeats the first steps of a kept plain run here."""
    name = "reproduces our plain network"
    cell = plan.cells(study, plan.config.plain(study))[0]
    with tempfile.TemporaryDirectory(prefix="fathom-") as staging:
        folder = _kept_run(kept, cell, Path(staging))
        if folder is None:
            return Check(name, f"not compared: {kept} contains no run of {cell}")
        if read_spec(folder).hash() != plan.config.spec(cell).hash():
            return Check(name, f"the kept run of {cell} has another spec; {TRAIN}", failed=True)
        manifest = read_manifest(folder)
        run = Run(cell, folder, manifest.platform, "imported", "", manifest)
        comparison = repeat(run, compute, 3)
    if comparison.outcome == "unavailable":
        return Check(name, f"not compared: {comparison.why}")
    if comparison.outcome == "agrees":
        return Check(name, f"yes: {comparison.why}")
    return Check(name, f"{comparison.why}; {TRAIN}", failed=True)


def _kept_run(kept: Path, cell: Cell, staging: Path) -> Path | None:
    """The folder of a kept run, unpacked if it is in a bundle; None without one."""
    for folder in (run_folder(kept, cell), *kept.glob(f"imported/*/{cell.path()}")):
        if (folder / MANIFEST).exists():
            return folder
    # Bundles named after the study first: unpacking any other would be wasted time.
    bundles = sorted(
        kept.glob(f"{BUNDLES}/*.tar.xz"),
        key=lambda file: (not file.name.startswith(cell.study), len(file.name)),
    )
    for file in bundles:
        if cell in unpack(file, staging / file.stem, check=False):
            make_rows(staging / file.stem / cell.path())
            return staging / file.stem / cell.path()
    return None


# --- after training -------------------------------------------------------------------------------


def write_judgement(
    plan: Plan, checks: Mapping[str, Sequence[Check]], templates: Path, command: str
) -> tuple[list[Path], str]:
    """Write tables and the page; return (its files, the verdict in one line).

    The page is Markdown and, with markdown-it, also HTML.

    `command`: the command line that was called, without its seeds.
    """
    out, config = Path(plan.config.results), plan.config
    cells = _cells(plan)
    worth, depths = tables_of(config, cells)
    tables = {"cells.csv": cells, "worth.csv": worth, "effective_depth.csv": depths}
    save_tables(tables, out / "tables")
    judged = [_judged(plan, name, checks[name], cells, worth, depths) for name in config.studies]
    board = _board(plan, checks) if plan.track else None
    drawn = forest(_places(plan, judged, board))
    check_numbers(templates)
    environment = environment_of(templates, config.labels)
    environment.globals |= {
        "plan": plan,
        "studies": judged,
        "contract": list(_contract(judged)),
        "groups": board.groups if board else {},
        "figure": FIGURE,
        "board_link": Path(os.path.relpath(BOARD, out)).as_posix(),
        "command": command,
        "link": partial(_link, plan.project, out),
    }
    verdict = " ".join(fill(environment, "verdict.j2").split())
    environment.globals |= {"verdict": verdict, "drawn": bool(drawn)}
    page, text = out / "JUDGE.md", fill(environment, "JUDGE.md.j2")
    write_text(page, text)
    if drawn:
        write_text(out / FIGURE, drawn)
    try:
        from markdown_it import MarkdownIt
    except ModuleNotFoundError:  # a workflow package; the Markdown is complete
        return [page], verdict
    html = fill(
        environment,
        "JUDGE.html.j2",
        title=plan.name,
        css=(templates.parent / "page" / "page.css").read_text(encoding="utf-8"),
        body=_as_html(MarkdownIt("commonmark").enable("table"), text, drawn),
    )
    write_text(page.with_suffix(".html"), html)
    return [page, page.with_suffix(".html")], verdict


def _as_html(parser: MarkdownIt, text: str, drawn: str) -> str:
    """Markdown as HTML for a phone too: tables in boxes that scroll, and the figure inside."""
    from fathom_study.report.pages.sections import RULES, keep_units

    for kind in ("table_open", "table_close"):
        parser.add_render_rule(kind, RULES[kind])
    html = keep_units(parser.render(text)).replace(' style="text-align:right"', ' class="n"')
    return re.sub(rf'<p><img src="{FIGURE}"[^>]*></p>', lambda _: drawn, html)


def _contract(judged: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(name, text) of each check, once for studies in which it is the same."""
    for name in dict.fromkeys(name for study in judged for name in study["checks"]):
        texts = {s["name"]: s["checks"][name] for s in judged if name in s["checks"]}
        if len({*texts.values()}) == 1:
            yield name, next(iter(texts.values()))
        else:
            yield from ((f"{name}, {study}", text) for study, text in texts.items())


def _board(plan: Plan, checks: Mapping[str, Sequence[Check]]) -> TrackRows:
    """The board's rows of the plan's track, with the judged connection among them."""
    track, labels = plan.track, plan.config.labels
    cost = cost_of(checks[track.study_name])
    numbers = numbers_of(track, plan.label, plan.folders(), plan.kept)
    own = row_of(track, plan.name, "you", numbers, cost["time"], cost["operations"])
    worth = records(read_table(plan.kept / "tables" / "worth.csv")) if plan.kept else ()
    return rows_of(track, BOARD, worth, labels, own)


SIDES: Mapping[str, Literal[-1, 0, 1]] = {"at": 0, "below": -1, "beyond": 1}
"""By answer of the ladder, the side on which a multiplier lies that is outside of it."""


def _places(
    plan: Plan, judged: Sequence[Mapping[str, Any]], board: TrackRows | None
) -> Iterator[Place]:
    """Rows of the figure: those of the board, or of the first study in which worth is known."""
    labels = plan.config.labels
    for row in (row for group in (board.groups if board else {}).values() for row in group):
        if row.answer in SIDES and not row.at_best_rates:  # these are named twice
            name, ends = labels.get(row.connection, row.connection), (row.low, row.high)
            yield Place(name, row.multiplier, *ends, row.is_judged, SIDES[row.answer])
    known = (study for study in judged if any(row["worth"] for row in study["rows"]))
    for row in next(known, {"rows": ()})["rows"] if board is None else ():
        if row["worth"] and row["worth"]["answer"] in SIDES:
            name, worth = labels.get(row["variant"], row["variant"]), row["worth"]
            side, is_own = SIDES[worth["answer"]], row["variant"] == plan.label
            yield Place(name, worth["multiplier"], worth["low"], worth["high"], is_own, side)


def cost_of(checks: Sequence[Check]) -> dict[str, float | None]:
    """Time, operations and bytes of a step over the plain network's; None if not counted."""
    values = {check.name: check.value for check in checks}
    names = {"time": COST, "operations": OPERATIONS, "bytes": BYTES}
    known = {key: values.get(name, math.nan) for key, name in names.items()}
    return {key: None if math.isnan(value) else value for key, value in known.items()}


def _link(project: Path, out: Path, text: str, document: str) -> str:
    """A link from `out` to a document of the project; its name if it is not here."""
    if not (project / "docs").is_dir():
        return f"{text} (docs/{document} of the project)"
    docs = Path(os.path.relpath(project / "docs", out.resolve())).as_posix()
    return f"[{text}]({docs}/{document})"


def _cells(plan: Plan) -> pd.DataFrame:
    """Cells trained here, and kept cells of one platform per study, to which all are assigned."""
    config = plan.config
    runs = [validate_run(plan.folder(cell), config.spec(cell)) for cell in plan.to_train()]
    missing = [f"{run.cell}: {run.status} {run.reason}" for run in runs if not run.counts]
    if missing:
        raise UserError("\n".join(missing))
    ours = cells_table(config, runs, {run.folder: read_rows(run.folder) for run in runs})
    if plan.kept is None:
        return ours
    return beside_kept(ours, kept_cells(plan.kept, config))


def _judged(
    plan: Plan,
    study: str,
    checks: Sequence[Check],
    cells: pd.DataFrame,
    worth: pd.DataFrame,
    depths: pd.DataFrame,
) -> dict[str, Any]:
    """Template values of one study."""
    depth, score = plan.depth(study), scores_of(plan.config)[study]

    def here(table: pd.DataFrame) -> pd.DataFrame:
        return table[(table["study"] == study) & (table["depth"] == depth)]

    ours = here(cells)[lambda rows: rows["variant"] == plan.label]
    worths = {
        r["variant"]: r
        for r in records(here(worth))
        if r["rate"] == ONE_RATE and r["answer"]  # else no ladder was trained
    }
    effective = {r["variant"]: r for r in records(here(depths))}
    bounds = tasks.bounds_of(score.metric)
    settings = plan.config.studies[study]
    rows = [
        {
            "variant": str(variant),
            **mean_with_ci(runs["score"], bounds),
            "worth": worths.get(str(variant)),
            "effective": effective.get(str(variant)),
        }
        for variant, runs in here(cells).groupby("variant", sort=False)
        if variant in settings.compared
    ]
    texts = {check.name: check.text for check in checks}
    cost = next(check.value for check in checks if check.name == COST)
    own = next(row for row in rows if row["variant"] == plan.label)
    return {
        "name": study,
        "depth": depth,
        "steps": settings.of(plan.label).steps,
        "seeds": len(ours),
        "diverged": int((ours["outcome"] == "diverged").sum()),
        "score": score,
        "plain": plan.config.plain(study),
        "own": own,
        "cost": cost,
        "has_ladder": bool(settings.ladder),
        "checks": texts,
        "diagnostics": list(_diagnostics(ours)),
        "rows": sorted(rows, key=lambda row: _order(row, score.better)),
    }


DIAGNOSTICS = (
    "gain_first", "gain_final", "stream_similarity_final", "grad_norm_first", "grad_norm_max",
    "first_nonfinite_step",
)  # fmt: skip


def _diagnostics(ours: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """(definition, mean and range over seeds) of each metric that the runs have."""
    metrics = tasks.run_metrics()
    for name in DIAGNOSTICS:
        values = pd.to_numeric(ours[name]).dropna() if name in ours else ()
        if len(values):
            low, mean, high = np.min(values), np.mean(values), np.max(values)
            yield metrics[name].definition, f"{number(mean)} ({number(low)} to {number(high)})"


def _order(row: Record, better: str) -> tuple[float, float]:
    """Sort key: highest step multiplier first; then bounds and others, best score first."""
    is_number = row["worth"] and row["worth"]["answer"] == "at"  # else a bound
    worth = row["worth"]["multiplier"] if is_number else math.nan
    mean = row["mean"] if better == "lower" else -row["mean"]
    return tuple(math.inf if math.isnan(value) else value for value in (-worth, mean))
