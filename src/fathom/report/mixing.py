"""Learned mixing over depth, from the file of matrices that every run leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fathom.runs.folder import MIXING
from fathom.settings import ConfigError

if TYPE_CHECKING:
    from fathom.config import Cell


def mixing_files(cells: Iterable[Cell], runs: str | Path) -> dict[str, Path]:
    """By variant, the file of the first seed of its deepest cell.

    `cells` are those of one study that were measured at one place, `runs` the folder of that
    place's runs.
    """
    chosen: dict[str, Cell] = {}
    for cell in cells:
        other = chosen.setdefault(cell.variant, cell)
        if (-cell.depth, cell.seed) < (-other.depth, other.seed):
            chosen[cell.variant] = cell
    return {variant: Path(runs) / cell.path() / MIXING for variant, cell in chosen.items()}


def mixing_matrices(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """[L, L] by variant: what was learned. A variant without a finite one is left out.

    It is the matrix whose prefixes layers read, where Sinkhorn has normalised it, and else the
    weights that they read with. Raises ConfigError naming a file that cannot be read.
    """
    found = {}
    for variant, file in files.items():
        try:
            matrices = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file}: cannot be read ({error}); train its cell again") from error
        if "mixing" in matrices:
            mixing = matrices["mixing"]
            whole = bool((np.abs(mixing.sum(axis=0) - 1) < 1e-3).all())  # Sinkhorn's last pass
            found[variant] = mixing if whole else matrices["weights"]
    return {variant: matrix for variant, matrix in found.items() if np.isfinite(matrix).all()}
