"""Learned mixing over depth, from the file of matrices that every run leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fathom.runs.folder import MIXING
from fathom.settings import ConfigError

if TYPE_CHECKING:
    from fathom.config import Cell


@dataclass(frozen=True)
class Mixing:
    """The learned matrices of one run."""

    depth: int
    seed: int
    matrix: np.ndarray
    """[L, L]: what the constraint makes of the logits; prefixes of its rows are normalised."""
    weights: np.ndarray
    """[L, L]: those normalised prefixes, the weights that layers read with."""

    @property
    def is_finite(self) -> bool:
        """Whether every entry of both is."""
        return bool(np.isfinite(self.matrix).all() and np.isfinite(self.weights).all())


def shown_cells(cells: Iterable[Cell]) -> dict[str, Cell]:
    """By variant, the first seed of its deepest cell: that whose mixing is drawn.

    `cells` are those of one study that were measured on one platform.
    """
    chosen: dict[str, Cell] = {}
    for cell in cells:
        other = chosen.setdefault(cell.variant, cell)
        if (-cell.depth, cell.seed) < (-other.depth, other.seed):
            chosen[cell.variant] = cell
    return chosen


def mixing_file(cell: Cell, runs: str | Path) -> Path:
    """The matrices of a cell, in the folder of its platform's runs."""
    return Path(runs) / cell.path() / MIXING


def mixing_matrices(cells: Iterable[Cell], runs: str | Path) -> dict[str, Mixing]:
    """The learned matrices of shown cells by variant; only variants that mix over depth.

    Raises ConfigError naming a file that cannot be read.
    """
    found = {}
    for variant, cell in shown_cells(cells).items():
        file = mixing_file(cell, runs)
        try:
            matrices = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file}: cannot be read ({error}); train its cell again") from error
        if "mixing" in matrices:
            arrays = matrices["mixing"], matrices["weights"]
            found[variant] = Mixing(cell.depth, cell.seed, *arrays)
    return found
