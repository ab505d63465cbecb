"""Recipes: the conventions in which the two published platforms differ.

The sources ran the same network under two frameworks and left initialisation and optimiser
to each framework's defaults. A recipe names one such set of defaults, so that both can run on
every backend and their effect can be told from the platform's (docs/definitions.md, "Recipes").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from fathom.settings import Flag, Registry, Section, unknown


class Recipe(Section):
    """Initialisation and optimiser conventions."""

    embedding: Literal["unit", "inverse_sqrt_width"] = Field(
        description="standard deviation of the token embedding: 1, or 1/√D"
    )
    attention: Literal["linear", "packed_xavier"] = Field(
        description="q, k, v like any linear layer, or Xavier over the packed [3D, D], biases zero"
    )
    bias_correction: Flag = Field(description="whether AdamW divides its moments by 1 − β^t")


RECIPES = Registry(
    {
        "mlx-defaults": Recipe(
            embedding="inverse_sqrt_width", attention="linear", bias_correction=False
        ),
        "torch-defaults": Recipe(embedding="unit", attention="packed_xavier", bias_correction=True),
    }
)


def _known(value: object) -> object:
    """A name must be that of a recipe; settings are checked as such."""
    if isinstance(value, Mapping):
        return Recipe.model_validate(value)
    if isinstance(value, str) and value not in RECIPES:
        raise ValueError(unknown("recipe", value, RECIPES))
    return value


AnyRecipe = Annotated[str | Recipe, BeforeValidator(_known)]
