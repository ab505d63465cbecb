"""Learned mixing and generated points of trained networks, from the files of their runs.

The NumPy oracle generates the points, in float64, so no framework is needed and every machine gets
the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fathom.backends.numpy import NumpyOps
from fathom.runs.folder import MIXING, WEIGHTS, read_spec
from fathom.settings import ConfigError
from fathom.tasks import Problem, Samples, Trained

if TYPE_CHECKING:
    from fathom.config import Cell


@dataclass(frozen=True)
class Mixing:
    """The learned mixing over depth of one run."""

    depth: int
    seed: int
    matrix: np.ndarray
    """The constrained logits, [L, L]; prefixes of their rows are normalised."""
    weights: np.ndarray
    """The normalised prefixes, which are the weights that layers read with, [L, L]."""

    @property
    def is_finite(self) -> bool:
        """Whether all entries of both matrices are finite."""
        return bool(np.isfinite(self.matrix).all() and np.isfinite(self.weights).all())


@dataclass(frozen=True)
class GeneratedSamples:
    """The generated points of one run."""

    variant: str
    depth: int
    seed: int
    samples: Samples


def mixing_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Cells whose mixing is drawn: the first seed of each variant at its greatest depth.

    `cells`: cells of one study that were measured on one platform.
    """
    return _first(cells, lambda cell: cell.variant, lambda cell: (-cell.depth, cell.seed))


def sampled_cells(cells: Iterable[Cell]) -> list[Cell]:
    """Cells whose samples are drawn: the first seed of each variant at each depth."""
    return _first(cells, lambda cell: (cell.variant, cell.depth), lambda cell: cell.seed)


def _first(
    cells: Iterable[Cell], group: Callable[[Cell], Any], order: Callable[[Cell], Any]
) -> list[Cell]:
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(group(cell), []).append(cell)
    return [min(own, key=order) for own in groups.values()]


def mixing_file(cell: Cell, runs: str | Path) -> Path:
    """Path of a cell's matrices; `runs`: folder of its platform's runs."""
    return Path(runs) / cell.path() / MIXING


def mixing_matrices(cells: Iterable[Cell], runs: str | Path) -> dict[str, Mixing]:
    """The learned matrices of the drawn cells by variant; only variants that mix over depth.

    Raises ConfigError naming a file that cannot be read.
    """
    found = {}
    for cell in mixing_cells(cells):
        matrices = _load(mixing_file(cell, runs))
        if "mixing" in matrices:
            arrays = matrices["mixing"], matrices["weights"]
            found[cell.variant] = Mixing(cell.depth, cell.seed, *arrays)
    return found


def draw_samples(cells: Iterable[Cell], runs: str | Path) -> list[GeneratedSamples]:
    """Generated points of the drawn cells; none for runs without weights.

    Raises ConfigError naming a file of weights that cannot be read.
    """
    found, ops = [], NumpyOps()
    for cell in sampled_cells(cells):
        folder = Path(runs) / cell.path()
        if not (spec := read_spec(folder)).weights:
            continue
        exact = {name: ops.asarray(value) for name, value in _load(folder / WEIGHTS).items()}
        problem = Problem(spec)
        trained = Trained(
            problem, ops, lambda function, inputs, exact=exact: function(exact, inputs)
        )
        samples = problem.task.samples(trained)
        if samples is not None:
            found.append(GeneratedSamples(cell.variant, cell.depth, cell.seed, samples))
    return found


def _load(file: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}); train its cell again") from error
