"""Batches: the arrays that a training step takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fathom.models.ops import Array
from fathom.system.errors import UserError


class TaskError(UserError):
    """Data that a task cannot be trained or evaluated with."""


@dataclass(frozen=True)
class Batch:
    """What a training step takes: NumPy arrays on the host, the backend's own on its device."""

    inputs: Mapping[str, Any]
    """What the network takes, by name."""
    targets: Any
    """Class numbers, int32 [B, …], or what a loss of the task's own compares with."""
    weights: Any = None
    """The share of each target in the loss, shaped as they are; 0: not asked. None: all equal."""

    @property
    def weight(self) -> float:
        """The sum of the weights: how much a mean over batches takes of this one."""
        return float(np.size(self.targets) if self.weights is None else np.sum(self.weights))

    def arrays(self, asarray: Callable[[np.ndarray], Array]) -> dict[str, Array]:
        """On a device, flat: what compiled steps and recorded graphs can take."""
        flat = {f"inputs.{name}": value for name, value in self.inputs.items()}
        flat |= {"targets": self.targets, "weights": self.weights}
        return {name: asarray(value) for name, value in flat.items() if value is not None}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> Batch:
        """The inverse of `arrays`."""
        prefix = "inputs."
        inputs = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        return cls(inputs, arrays["targets"], arrays.get("weights"))

    def check(self, classes: int | None) -> None:
        """Refuse targets and weights that no loss is defined for. Raises TaskError.

        `classes`: V, where targets are class numbers from 0 to V − 1.
        """
        if classes is not None:
            low, high = int(np.min(self.targets)), int(np.max(self.targets))
            if low < 0 or high >= classes:
                raise TaskError(
                    f"targets from {low} to {high}, but classes are 0 to {classes - 1}; give a "
                    "target that is not asked the weight 0"
                )
        if self.weights is None:
            return
        if np.shape(self.weights) != np.shape(self.targets)[: np.ndim(self.weights)]:
            raise TaskError(
                f"weights of shape {np.shape(self.weights)} for targets of shape "
                f"{np.shape(self.targets)}; give every target one"
            )
        if not (np.isfinite(self.weights).all() and np.min(self.weights) >= 0 and self.weight > 0):
            raise TaskError("weights must be finite, not negative, and not all zero")
