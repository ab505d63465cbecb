"""The tables derived from cells.csv and from steps, in the order of their dependencies."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fathom_study.analysis.attribution import trajectories_table, variance_summary, variance_table
from fathom_study.analysis.effective_depth import effective_depth_table
from fathom_study.analysis.effects import effects_table
from fathom_study.analysis.pair_verdicts import verdicts_of
from fathom_study.analysis.scale import pooled_table, sizes_table
from fathom_study.analysis.stability import stability_table
from fathom_study.analysis.tables import (
    LOSSES,
    at_kept_steps,
    counted,
    read_steps,
    read_table,
    save_tables,
)
from fathom_study.analysis.worth import worth_table
from fathom_study.config import Config


def write_derived(config: Config, folder: Path) -> None:
    """Write the derived tables into the folder of cells.csv."""

    def saved(name: str, table: pd.DataFrame) -> pd.DataFrame:
        """The table as its file has it, with rounded numbers."""
        save_tables({name: table}, folder, config.studies)
        return read_table(folder / name)

    cells = read_table(folder / "cells.csv")
    of_runs = counted(cells)
    platforms = of_runs.groupby("study")["platform"].nunique()
    several = [study for study in config.studies if platforms.get(study, 0) > 1]
    losses = at_kept_steps(read_steps(folder, several, LOSSES))
    variance = variance_table(config, losses)
    saved("trajectories.csv", trajectories_table(of_runs, losses))
    saved("variance.csv", variance)
    saved("variance_summary.csv", variance_summary(variance))

    verdicts = verdicts_of(config, cells)
    saved("effects.csv", effects_table(config, cells, verdicts))
    depths = saved("effective_depth.csv", effective_depth_table(config, cells))
    worth = saved("worth.csv", worth_table(config, cells, depths, verdicts))
    sizes = saved("sizes.csv", sizes_table(config, cells, worth, verdicts))
    saved("pooled.csv", pooled_table(sizes))
    saved("stability.csv", stability_table(config, cells))
