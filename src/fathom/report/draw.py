"""Files → figures: what the commands that draw do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fathom import tasks
from fathom.analysis.platforms import Platform
from fathom.analysis.tables import AXES, TIMES, read_table, read_with_times, scores_of
from fathom.config import Cell, Config
from fathom.report.explained import explained
from fathom.report.figure_manifest import write_figure_manifest
from fathom.report.figures import draw_figures, figures_of, figures_of_study, find, save
from fathom.report.mixing import mixing_matrices
from fathom.runs.folder import METRICS, read_rows, read_spec
from fathom.settings import ConfigError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def title_of(study: str, platform: Platform) -> str:
    """What the figures of a study on a platform are of."""
    return f"{study} on {platform.label}"


def draw_study(
    config: Config,
    study: str,
    platform: Platform,
    tables: tuple[Path, ...],
    out: Path,
    only: Sequence[str] = (),
) -> None:
    """Draw the figures of one study on one platform.

    `tables` are those of steps, groups of seeds and effects. `only`: names of figures or metrics;
    none means all figures of the study. Raises ConfigError for a study that the config lacks, for a
    study or a platform that the tables lack, and for an unknown figure.
    """
    if study not in config.studies:
        raise ConfigError(unknown("study", study, config.studies))
    declared = [find(name) for name in only] or figures_of_study(config, study)
    steps, summary, effects = (read_table(file) for file in tables)
    title = title_of(study, platform)
    own = _rows_of(steps, study, platform)
    if own.empty:
        known = steps[["study", "platform"]].drop_duplicates().itertuples(index=False)
        titles = [title_of(name, Platform.parse(key)) for name, key in known]
        raise ConfigError(f"{tables[0]}: {unknown('study and platform', title, titles)}")
    mixing = {}
    if any("mixing" in figure.reads for figure in declared):
        axes = own[AXES].drop_duplicates().astype(object).itertuples(index=False)
        mixing = mixing_matrices((Cell(*row) for row in axes), platform.runs(config.results))
    times = summary
    if any("times" in figure.reads for figure in declared):
        times = read_with_times(tables[1])
        tables = (*tables, tables[1].with_name(TIMES[tables[1].name][0]))
    figures = draw_figures(
        declared,
        title,
        steps=own,
        summary=_rows_of(summary, study, platform),
        times=_rows_of(times, study, platform),
        effects=_rows_of(effects, study, platform),
        score=scores_of(config)[study],
        mixing=mixing,
    )
    keep(figures, out, title, tables)


def draw_overview(config: Config, cells: Path, variance: Path, published: Path, out: Path) -> None:
    """Draw the figures over all studies, from their tables."""
    files = {"cells": cells, "variance": variance, "published": published}
    data = {name: read_table(file) for name, file in files.items()}
    figures = draw_figures(figures_of("overview").values(), scores=scores_of(config), **data)
    keep(figures, out, "overview", tuple(files.values()))


def draw_cell(run: Path, out: Path) -> None:
    """Draw the figures of the run in a folder."""
    spec = read_spec(run)
    chance_loss = tasks.load(spec.task).chance_loss(spec)
    rows = pd.DataFrame(read_rows(run)).assign(
        variant=spec.variant, depth=spec.depth, seed=spec.seed, chance_loss=chance_loss
    )
    of = spec.cell.path()
    keep(draw_figures(figures_of("cell").values(), of, rows=rows), out, of, (run / METRICS,))


def draw_bench(table: Path, figure: Path) -> None:
    """Draw bench.csv as the PNG `figure`, and beside it in every other format."""
    (page,) = draw_figures(figures_of("bench").values(), bench=read_table(table)).values()
    keep({figure.stem: page}, figure.parent, "bench", (table,))


def draw_explained(config: Config, out: Path) -> None:
    """Draw the pictures of docs/explained: PNG alone, as Markdown shows them."""
    figures = draw_figures(figures_of("explained").values(), explained=explained(config))
    save(figures, out, only=["png"])


def keep(figures: dict[str, Figure], out: Path, of: str, inputs: Sequence[Path]) -> None:
    """Save the figures, and with them what they are of and which files they were drawn from."""
    save(figures, out)
    write_figure_manifest(out, figures, of, inputs)


def _rows_of(table: pd.DataFrame, study: str, platform: Platform) -> pd.DataFrame:
    """The rows of one study on one platform."""
    return table[(table["study"] == study) & (table["platform"] == platform.name)]
