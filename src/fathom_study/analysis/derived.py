"""Write the tables derived from cells.csv and from steps, in the order of their dependencies."""

from __future__ import annotations

from pathlib import Path

from fathom_study.analysis.attribution import write_attribution
from fathom_study.analysis.effective_depth import write_effective_depth
from fathom_study.analysis.effects import write_effects
from fathom_study.analysis.scale import write_sizes
from fathom_study.analysis.stability import write_stability
from fathom_study.analysis.worth import write_worth
from fathom_study.config import Config


def write_derived(config: Config, folder: Path) -> None:
    """Write the derived tables into the folder of cells.csv; each reads only earlier tables."""
    for write in (
        write_attribution,
        write_effects,
        write_effective_depth,
        write_worth,
        write_sizes,
        write_stability,
    ):
        write(config, folder)
