"""Recipes: conventions of initialisation and optimiser, in which the published platforms differ.

The sources ran the same network under two frameworks, each with the framework's defaults. A recipe
is one such set of defaults. Every backend can run each of them, which separates the recipe's effect
from the platform's (docs/definitions/training.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from fathom.init import Affine, Constant, Distribution, Normal, Uniform
from fathom.settings import Flag, Registry, Settings, unknown


class Recipe(Settings):
    """Initialisation and optimiser conventions."""

    embedding: Literal["unit", "inverse_sqrt_width"] = Field(
        description="standard deviation of the token embedding: 1, or 1/√D"
    )
    attention: Literal["linear", "packed_xavier"] = Field(
        description="q, k, v like any linear layer, or Xavier over the packed [3D, D], biases zero"
    )
    bias_correction: Flag = Field(description="whether AdamW divides its moments by 1 − β^t")
    linear: Literal["uniform", "uniform_unit", "normal"] = Field(
        "uniform",
        description="a linear layer: U(±1/√fan_in), its bias too; or U(±√(3/fan_in)) or "
        "N(0, 1/fan_in), its bias zero",
    )
    outputs: Literal["linear", "scaled", "zero"] = Field(
        "linear",
        description="the last layer of attention and MLP: like any other, over √(2L), or zero",
    )
    head: Literal["linear", "small"] = Field(
        "linear", description="like any linear layer, or N(0, 0.001²)"
    )

    def weights(self, fan_in: int) -> Distribution:
        """Initial weights of a linear layer."""
        match self.linear:
            case "uniform":
                return Uniform(1 / math.sqrt(fan_in))
            case "uniform_unit":
                return Uniform(math.sqrt(3 / fan_in))
            case _:
                return Normal(1 / math.sqrt(fan_in))

    def biases(self, fan_in: int) -> Distribution:
        """Initial biases of a linear layer."""
        return self.weights(fan_in) if self.linear == "uniform" else Constant(0.0)

    def output_weights(self, fan_in: int, layers: int) -> Distribution:
        """Initial weights of the last layer of attention and MLP."""
        match self.outputs:
            case "linear":
                return self.weights(fan_in)
            case "scaled":
                return Affine(self.weights(fan_in), scale=1 / math.sqrt(2 * layers))
            case _:
                return Constant(0.0)


RECIPES = Registry(
    {
        "mlx-defaults": Recipe(
            embedding="inverse_sqrt_width", attention="linear", bias_correction=False
        ),
        "torch-defaults": Recipe(embedding="unit", attention="packed_xavier", bias_correction=True),
        # Common practice, from no source: activations and the sum of branches have unit variance.
        "unit-variance": Recipe(
            embedding="unit",
            attention="linear",
            bias_correction=True,
            linear="normal",
            outputs="scaled",
        ),
        # From the hyper-parameter study; its optimiser is a study's `optimizer.muon`.
        "nanochat": Recipe(
            embedding="unit",
            attention="linear",
            bias_correction=True,
            linear="uniform_unit",
            outputs="zero",
            head="small",
        ),
    }
)


def _known(value: object) -> object:
    """Accept the name of a recipe, or settings of one."""
    if isinstance(value, Mapping):
        return Recipe.model_validate(value)
    if isinstance(value, str) and value not in RECIPES:
        raise ValueError(unknown("recipe", value, RECIPES))
    return value


AnyRecipe = Annotated[str | Recipe, BeforeValidator(_known)]
