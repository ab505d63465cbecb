"""Data for the pictures of docs/explained: networks of config.yaml before their first step.

The data follow from initial parameters, so no run is needed; NumPy computes them in float64. The
pages are about these variants, so this module names them, as no other code of figures does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fathom import tasks
from fathom.backends.numpy import NumpyOps
from fathom.config import Cell, Config, ConfigError

if TYPE_CHECKING:
    from fathom.models.connections.streams import Streams

MATRICES = 48
"""Number of multiplied matrices: one per block, or one per sub-layer."""

BLOCKS = ("depth-torch", MATRICES, ("baseline", "hc", "mhc"))
SUBLAYERS = (
    "ingredients",
    MATRICES // 2,
    ("baseline", "hc_paper", "mhc_averaged", "circulant_mhc", "mhc_lite", "krom_hc"),
)
"""A study, a number of blocks, and the variants that the pictures show."""
PASSES = ("fashion-streams", 4, "mhc_static")
"""A study, a depth and a variant whose first matrix is normalised step by step. It starts with
noise, so that its rows differ."""
SEED = 0


@dataclass(frozen=True)
class Untrained:
    """A network at its initial parameters, on its first batch. L wrapped functions, S streams."""

    sizes: np.ndarray
    """Root mean square of each wrapped function's input relative to the first's, [L]."""
    H_res: np.ndarray
    """[L, S, S], averaged over positions if dynamic; for one stream ones, [L, 1, 1]."""

    @property
    def products(self) -> np.ndarray:
        """Products of the first 1, 2, … L matrices, later ones on the left, [L, S, S]."""
        found = [self.H_res[0]]
        for H in self.H_res[1:]:
            found.append(H @ found[-1])
        return np.stack(found)


@dataclass(frozen=True)
class Explained:
    """Data of all pictures."""

    blocks: dict[str, Untrained]
    """Variants with connections around blocks."""
    sublayers: dict[str, Untrained]
    """Variants with connections around every attention and every MLP."""
    passes: dict[str, np.ndarray]
    """One matrix, [S, S], after each operation, by its name."""


def explained(config: Config) -> Explained:
    """Data of all pictures. Raises ConfigError if the config lacks a study that they show."""
    for study in (BLOCKS[0], SUBLAYERS[0], PASSES[0]):
        if study not in config.studies:
            raise ConfigError(
                f"studies: no '{study}', which the pictures need; use the project's own config.yaml"
            )
    blocks, sublayers = (
        {
            variant: untrained(config, Cell(study, depth, variant, "torch", SEED))
            for variant in names
        }
        for study, depth, names in (BLOCKS, SUBLAYERS)
    )
    return Explained(blocks, sublayers, passes(config, Cell(*PASSES, "torch", SEED)))


def untrained(config: Config, cell: Cell) -> Untrained:
    """A cell's network after a forward pass with the parameters that its run starts from."""
    problem, ops = tasks.Problem(config.spec(cell)), NumpyOps()
    params = {name: ops.asarray(value) for name, value in problem.initial_parameters().items()}
    block_inputs: list[np.ndarray] = []
    (batch,) = problem.batches(0)
    inputs = {name: ops.asarray(value) for name, value in batch.inputs.items()}
    output = problem.network.forward(ops, params, inputs, block_inputs=block_inputs)
    sizes = np.array([np.sqrt((x * x).mean()) for x in block_inputs])
    H_res = output.mixed.H_res if output.mixed else np.ones((len(sizes), 1, 1))
    return Untrained(sizes / sizes[0], H_res)


def passes(config: Config, cell: Cell) -> dict[str, np.ndarray]:
    """A cell's first initial matrix before Sinkhorn, after half a pass and after all passes."""
    problem, ops = tasks.Problem(config.spec(cell)), NumpyOps()
    scheme: Streams = problem.spec.connection
    logits = ops.asarray(problem.initial_parameters()["connection.H_res"])[:1]

    positive = ops.exp(logits)[0]
    return {
        "exp of the logits": positive,
        "rows divided by their sums": positive / positive.sum(axis=1, keepdims=True),
        "after all passes": scheme.H_res.matrix(ops, logits, scheme.streams, problem.spec.depth)[0],
    }
