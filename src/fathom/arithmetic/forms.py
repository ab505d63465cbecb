"""Connections' components as numbers, for compiled loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RAW, SIGMOID, SOFTMAX, EXP = range(4)
"""Kinds of maps."""


class WeightForm(NamedTuple):
    """S weights: scale · map(logits) + added."""

    kind: int = RAW
    scale: float = 1.0
    added: float = 0.0


class MatrixForm(NamedTuple):
    """A matrix normalised by passes that divide sides by their sums in turn."""

    kind: int = EXP
    """EXP of logits over τ, within ± clip; or SOFTMAX of rows, plus `start`."""
    tau: float = 1.0
    clip: float = float("inf")
    start: float = 0.0
    passes: int = 0
    """0: the logits are returned."""
    columns_first: bool = False
    transposed: bool = False
    floor: float = 0.0
    added: float = 0.0


class Form(NamedTuple):
    """A boundary as numbers."""

    writes: bool
    mixes: bool
    late: bool
    per_stream: bool
    streams: int
    channels: int
    eps: float
    pre: WeightForm
    post: WeightForm
    H: MatrixForm

    def numbers(self) -> np.ndarray:
        """All as one array: numba takes ten times as long to read a tuple of tuples."""
        *first, pre, post, H = self
        return np.array([*first, *pre, *post, *H], np.float64)


class PredictionForm(NamedTuple):
    """A prediction as numbers."""

    channels: int
    """C: routers depend on means over the M/C positions."""
    eps: float
    has_residual: bool
    """Whether the output y of a function includes its input."""
    writes: bool = True
    """Whether streams are corrected."""
    reads: bool = True
    """Whether streams are predicted; if not, I + P is empty."""
