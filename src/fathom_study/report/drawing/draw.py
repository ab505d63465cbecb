"""Draw figures from files, for the drawing commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fathom.settings import ConfigError, unknown
from fathom_study import tasks
from fathom_study.analysis.platforms import Platform, labels_of
from fathom_study.analysis.tables import (
    counted,
    of_study,
    read_table,
    scores_of,
    without_ladders,
)
from fathom_study.analysis.worth import ladder_table
from fathom_study.config import Config
from fathom_study.report.drawing.figure_manifest import (
    OVERVIEW_TABLES,
    TABLES_OF,
    tables_of,
    write_figure_manifest,
)
from fathom_study.report.figures import (
    OF_A_CELL,
    draw_figures,
    figures_of,
    figures_of_study,
    find,
    save,
)
from fathom_study.runs.folder import METRICS, check_run, read_manifest, read_rows, read_spec

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
    read = {name: read_table(folder / f) for name, f in TABLES_OF.items() if folder / f in inputs}
    whole = {name: without_ladders(table, config) for name, table in read.items()}
    whole["cells"] = counted(whole["cells"])
    known = list(dict.fromkeys(whole["cells"]["platform"]))
    if platform.name not in known:
        raise ConfigError(f"{folder}: {unknown('platform', platform.name, known)}")
    whole["ladder"] = ladder_table(config, study, read["cells"])
    shown = tasks.presentation(config.studies[study].task)
    labels = labels_of(known, config.labels)
    figures = draw_figures(
        declared,
        f"{labels.get(study, study)} ({labels[platform.name]})",
        labels,
        shown.depth_unit,
        loss_unit=shown.loss_unit,
        score=scores_of(config)[study],
        **{name: table[table["platform"] == platform.name] for name, table in whole.items()},
    )
    keep(figures, out, title_of(study, platform), inputs)


def draw_overview(config: Config, tables: Path, out: Path) -> None:
    """Draw the figures over all studies, from the tables in a folder."""
    files = tuple(tables / name for name in OVERVIEW_TABLES)
    data = {file.stem: read_table(file) for file in files}
    data["cells"] = counted(without_ladders(data["cells"], config))
    overview = figures_of("overview").values()
    labels = labels_of(data["cells"]["platform"], config.labels)
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
    axes = {"variant": spec.variant, "depth": spec.depth, "seed": spec.seed}
    rows = pd.DataFrame(read_rows(run)).assign(**axes)
    of, shown = spec.cell.path(), tasks.presentation(spec.task)
    units = {"depth_unit": shown.depth_unit, "loss_unit": shown.loss_unit}
    figures = draw_figures(map(find, OF_A_CELL), of, **units, steps=rows)
    keep(figures, out, of, (run / METRICS,))


def keep(figures: dict[str, Figure], out: Path, of: str, inputs: Sequence[Path]) -> None:
    """Save the figures, and a manifest with their subject and input files."""
    save(figures, out)
    write_figure_manifest(out, figures, of, inputs)
