"""What the pictures of docs/explained show: networks of config.yaml before their first step.

All of it follows from initial parameters, so no run is needed. Computed in NumPy, in float64. The
pages are about these variants, so they are named here, and nowhere else in the code of figures.
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
    ("baseline", "hc_paper", "mhc_paper", "circulant_mhc", "mhc_lite", "krom_hc"),
)
"""A study, the number of blocks, and its variants that the pictures show."""
PASSES = ("fashion-streams", 4, "mhc_static")
"""A study, a depth and a variant whose first matrix is normalised step by step. It starts with
noise, so that its rows differ."""
SEED = 0


@dataclass(frozen=True)
class Untrained:
    """A network at its initial parameters, on its first batch. L wrapped functions, S streams."""

    sizes: np.ndarray
    """[L]: root mean square of what each wrapped function reads, over that of the first."""
    H_res: np.ndarray
    """[L, S, S]; where it is dynamic, its means over positions. [L, 1, 1] ones for one stream."""

    @property
    def products(self) -> np.ndarray:
        """[L, S, S]: the product of the first 1, 2, … L matrices, later ones on the left."""
        found = [self.H_res[0]]
        for H in self.H_res[1:]:
            found.append(H @ found[-1])
        return np.stack(found)


@dataclass(frozen=True)
class Explained:
    """Everything that the pictures are drawn from."""

    blocks: dict[str, Untrained]
    """Variants with connections around blocks."""
    sublayers: dict[str, Untrained]
    """Variants with connections around every attention and every MLP."""
    passes: dict[str, np.ndarray]
    """The stages of one matrix [S, S], by operation."""


def explained(config: Config) -> Explained:
    """All of it. Raises ConfigError where the config lacks a study that is drawn."""
    for study in (BLOCKS[0], SUBLAYERS[0], PASSES[0]):
        if study not in config.studies:
            raise ConfigError(
                f"studies: no '{study}', which the pictures need; take the project's own "
                "config.yaml"
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
    """A forward pass of a cell's network: the same numbers as its run starts from."""
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
    """The first initial matrix of a cell before Sinkhorn, after half a pass and after all."""
    problem, ops = tasks.Problem(config.spec(cell)), NumpyOps()
    scheme: Streams = problem.spec.connection
    logits = ops.asarray(problem.initial_parameters()["connection.H_res"])[:1]

    positive = ops.exp(logits)[0]
    return {
        "exp of the logits": positive,
        "each row over its sum": positive / positive.sum(axis=1, keepdims=True),
        "after all passes": scheme.H_res.matrix(ops, logits, scheme.streams, problem.spec.depth)[0],
    }
