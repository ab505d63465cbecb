"""Points that trained networks generate, from the weights of their runs.

The oracle draws them, in float64, so no framework is needed and every machine gets the same points.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.numpy import load_file

from fathom.backends.numpy import NumpyOps
from fathom.runs.folder import WEIGHTS, read_spec
from fathom.settings import ConfigError
from fathom.tasks import Problem, Samples, Trained

if TYPE_CHECKING:
    from fathom.config import Cell


@dataclass(frozen=True)
class GeneratedSamples:
    """The generated points of one run."""

    variant: str
    depth: int
    seed: int
    samples: Samples


def sampled_cells(cells: Iterable[Cell]) -> list[Cell]:
    """The first seed of each variant at each depth: that whose samples are drawn.

    `cells` are those of one study that were measured on one platform.
    """
    chosen: dict[tuple[str, int], Cell] = {}
    for cell in cells:
        other = chosen.setdefault((cell.variant, cell.depth), cell)
        if cell.seed < other.seed:
            chosen[cell.variant, cell.depth] = cell
    return list(chosen.values())


def draw_samples(cells: Iterable[Cell], runs: str | Path) -> list[GeneratedSamples]:
    """Generated points of the shown cells; none for runs without weights.

    Raises ConfigError naming a file of weights that cannot be read.
    """
    found = []
    for cell in sampled_cells(cells):
        file = Path(runs) / cell.path() / WEIGHTS
        if not (spec := read_spec(file.parent)).weights:
            continue
        try:
            weights = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file}: cannot be read ({error}); train its cell again") from error
        problem, ops = Problem(spec), NumpyOps()
        exact = {name: ops.asarray(value) for name, value in weights.items()}
        trained = Trained(
            problem, ops, lambda function, inputs, exact=exact: function(exact, inputs)
        )
        samples = problem.task.samples(trained)
        if samples is not None:
            found.append(GeneratedSamples(cell.variant, cell.depth, cell.seed, samples))
    return found
