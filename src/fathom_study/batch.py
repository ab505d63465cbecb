"""Batches: the arrays that a training step takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fathom.operations.ops import Array
from fathom.system.errors import UserError


class TaskError(UserError):
    """Error for data that a task cannot train or evaluate on."""


@dataclass(frozen=True)
class Batch:
    """Inputs, targets and weights of a training step, as NumPy arrays or on a device."""

    inputs: Mapping[str, Any]
    """Inputs of the network by name."""
    targets: Any
    """Class indices, int32 [B, …], or targets of a task-specific loss."""
    weights: Any = None
    """Loss weights over the leading axes of the targets; 0: ignored. None: all equal."""

    @property
    def weight(self) -> float:
        """Sum of the weights, or number of targets: the batch's weight in a mean over batches."""
        return float(np.size(self.targets) if self.weights is None else np.sum(self.weights))

    def arrays(self, asarray: Callable[[np.ndarray], Array]) -> dict[str, Array]:
        """Flat dict of device arrays, for compiled steps and recorded graphs."""
        flat = {f"inputs.{name}": value for name, value in self.inputs.items()}
        flat |= {"targets": self.targets, "weights": self.weights}
        return {name: asarray(value) for name, value in flat.items() if value is not None}

    def parts(self, size: int) -> Iterator[Batch]:
        """Batches of up to `size` examples each, in order."""
        for first in range(0, len(self.targets), size):
            rows = slice(first, first + size)
            inputs = {name: value[rows] for name, value in self.inputs.items()}
            weights = None if self.weights is None else self.weights[rows]
            yield Batch(inputs, self.targets[rows], weights)

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> Batch:
        """The inverse of `arrays`."""
        prefix = "inputs."
        inputs = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        return cls(inputs, arrays["targets"], arrays.get("weights"))

    def check(self, classes: int | None) -> None:
        """Raise TaskError for targets or weights for which the loss is undefined.

        `classes`: V, if targets are class indices from 0 to V − 1; otherwise None.
        """
        if classes is not None:
            low, high = int(np.min(self.targets)), int(np.max(self.targets))
            if low < 0 or high >= classes:
                raise TaskError(
                    f"targets are {low} to {high}, but classes are 0 to {classes - 1}; give "
                    "ignored targets the weight 0"
                )
        if self.weights is None:
            return
        if np.shape(self.weights) != np.shape(self.targets)[: np.ndim(self.weights)]:
            raise TaskError(
                f"weights of shape {np.shape(self.weights)} do not match targets of shape "
                f"{np.shape(self.targets)}; give each target one weight"
            )
        if not (np.isfinite(self.weights).all() and np.min(self.weights) >= 0 and self.weight > 0):
            raise TaskError("weights must be finite, not negative, and not all zero")
