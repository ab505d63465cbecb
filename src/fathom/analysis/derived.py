"""The tables that are made of cells.csv and of steps: what they are and in which order."""

from __future__ import annotations

from pathlib import Path

from fathom.analysis.attribution import write_attribution
from fathom.analysis.effective_depth import write_effective_depth
from fathom.analysis.effects import write_effects
from fathom.analysis.scale import write_scale
from fathom.analysis.stability import write_stability
from fathom.analysis.worth import write_worth
from fathom.config import Config


def write_derived(config: Config, folder: Path) -> None:
    """Write the tables that are made of those in a folder: each reads only those before it."""
    for write in (
        write_attribution,
        write_effects,
        write_effective_depth,
        write_worth,
        write_scale,
        write_stability,
    ):
        write(config, folder)
