"""Draw figures from files, for the drawing commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fathom import tasks
from fathom.analysis.platforms import Platform, labels_of
from fathom.analysis.step_times import with_times_of_networks
from fathom.analysis.tables import (
    AXES,
    counted,
    loss_units,
    of_study,
    read_table,
    read_with_times,
    scores_of,
    without_ladders,
)
from fathom.analysis.worth import ladder_table
from fathom.config import Cell, Config, count_parameters
from fathom.report.figure_manifest import (
    OVERVIEW_TABLES,
    STUDY_TABLES,
    TABLES_OF,
    tables_of,
    write_figure_manifest,
)
from fathom.report.figures import (
    OF_A_CELL,
    draw_figures,
    figures_of,
    figures_of_study,
    find,
    save,
)
from fathom.report.figures.frames import with_loss_unit
from fathom.report.learned import draw_samples, mixing_matrices
from fathom.runs.folder import METRICS, check_run, read_manifest, read_rows, read_spec
from fathom.settings import ConfigError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def title_of(study: str, platform: Platform) -> str:
    """The title of a study's figures on a platform."""
    return f"{study} on {platform}"


def draw_study(
    config: Config,
    study: str,
    platform: Platform,
    tables: Path,
    out: Path,
    only: Sequence[str] = (),
) -> None:
    """Draw the figures of one study on one platform.

    `tables`: the folder of the tables of all studies. `only`: names of figures or metrics; none
    means all figures of the study. Raises ConfigError for a study that the config lacks, for a
    platform that its tables lack, and for an unknown figure.
    """
    if study not in config.studies:
        raise ConfigError(unknown("study", study, config.studies))
    declared = [find(name) for name in only] or figures_of_study(config, study)
    folder = of_study(tables, study)
    inputs = tables_of(declared, folder)
    steps, summary, effects = (read_table(folder / name) for name in STUDY_TABLES)
    summary = without_ladders(summary, config)
    of = title_of(study, platform)
    units = loss_units(config)
    own = with_loss_unit(_rows_of(steps, platform), units)
    if own.empty:
        known = list(dict.fromkeys(summary["platform"]))
        raise ConfigError(f"{folder}: {unknown('platform', platform.name, known)}")
    axes = own[AXES].drop_duplicates().astype(object).itertuples(index=False)
    cells, runs = [Cell(*row) for row in axes], platform.runs(config.results)
    mixing, samples = {}, []
    reads = {read for figure in declared for read in figure.reads}
    if "mixing" in reads:
        mixing = mixing_matrices(cells, runs)
    if "samples" in reads:
        samples = draw_samples(cells, runs)
    data = {
        read: without_ladders(read_table(folder / name), config)
        for read, name in TABLES_OF.items()
        if read in reads and read not in ("times", "ladder")
    }
    if "times" in reads:
        with_times = without_ladders(read_with_times(folder / "summary.csv"), config)
        data["times"] = with_times_of_networks(with_times, config)
        inputs += step_times_of(config)
    if "ladder" in reads:
        data["ladder"] = ladder_table(config, study, read_table(folder / TABLES_OF["ladder"]))
    labels = config.labels | labels_of(summary["platform"], config.labels)
    figures = draw_figures(
        declared,
        f"{labels.get(study, study)} ({labels[platform.name]})",
        labels,
        tasks.presentation(config.studies[study].task).depth_unit,
        steps=own,
        summary=with_loss_unit(_rows_of(summary, platform), units),
        effects=_rows_of(effects, platform),
        score=scores_of(config)[study],
        bases=config.studies[study].bases,
        mixing=mixing,
        samples=samples,
        plain=config.plain(study),
        parameters=lambda variant, depth: count_parameters(config.network(study, depth, variant)),
        **{read: _rows_of(table, platform) for read, table in data.items()},
    )
    keep(figures, out, of, inputs)


def draw_overview(config: Config, tables: Path, out: Path) -> None:
    """Draw the figures over all studies, from the tables in a folder."""
    files = tuple(tables / name for name in OVERVIEW_TABLES)
    data = {file.stem: read_table(file) for file in files}
    data["cells"] = without_ladders(data["cells"], config)
    data["published"] = with_loss_unit(data["published"], loss_units(config))
    overview = figures_of("overview").values()
    labels = config.labels | labels_of(counted(data["cells"])["platform"], config.labels)
    units = {
        name: tasks.presentation(study.task).depth_unit for name, study in config.studies.items()
    }
    figures = draw_figures(
        overview, labels=labels, scores=scores_of(config), depth_units=units, **data
    )
    keep(figures, out, "overview", files)


def draw_cell(run: Path, out: Path) -> None:
    """Draw the figures of the run in a folder."""
    spec = read_spec(run)
    check_run(run, read_manifest(run), spec.cell)
    rows = pd.DataFrame(read_rows(run)).assign(
        variant=spec.variant,
        depth=spec.depth,
        seed=spec.seed,
        loss_unit=tasks.presentation(spec.task).loss_unit,
    )
    of, unit = spec.cell.path(), tasks.presentation(spec.task).depth_unit
    figures = draw_figures(map(find, OF_A_CELL), of, depth_unit=unit, steps=rows)
    keep(figures, out, of, (run / METRICS,))


def step_times_of(config: Config) -> tuple[Path, ...]:
    """Path of the table of step times that the config names; empty without one."""
    return (Path(config.step_times),) if config.step_times else ()


def keep(figures: dict[str, Figure], out: Path, of: str, inputs: Sequence[Path]) -> None:
    """Save the figures, and a manifest with their subject and input files."""
    save(figures, out)
    write_figure_manifest(out, figures, of, inputs)


def _rows_of(table: pd.DataFrame, platform: Platform) -> pd.DataFrame:
    """The rows of one platform."""
    return table[table["platform"] == platform.name]
