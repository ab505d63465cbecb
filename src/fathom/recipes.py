"""Recipes: the conventions in which the two published platforms differ.

The sources ran the same network under two frameworks and left initialisation and optimiser
to each framework's defaults. A recipe names one such set of defaults, so that both can run on
every backend and their effect can be told from the platform's (docs/definitions.md, "Recipes").
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Recipe:
    """Initialisation and optimiser conventions."""

    embedding: Literal["unit", "inverse_sqrt_width"]
    """Standard deviation of the token embedding: 1, or 1/√D."""
    attention: Literal["linear", "packed_xavier"]
    """q, k, v like any linear layer, or Xavier over the packed [3D, D] matrix with zero biases."""
    bias_correction: bool
    """Whether AdamW divides its moments by 1 − β^t."""


RECIPES: dict[str, Recipe] = {
    "mlx": Recipe(embedding="inverse_sqrt_width", attention="linear", bias_correction=False),
    "torch": Recipe(embedding="unit", attention="packed_xavier", bias_correction=True),
}
