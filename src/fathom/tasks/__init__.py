"""Tasks: where batches come from. A task is one file with two functions, found by its name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import numpy as np

    from fathom.study import Spec


class Task(Protocol):
    """What the training loop needs to know of a task."""

    def batch(self, spec: Spec, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, a pure function of the spec's seed and the step."""
        ...

    def chance_loss(self, spec: Spec) -> float:
        """The loss, in nats, of a model that has learned nothing."""
        ...


def load(name: str) -> Task:
    """The task in the file of that name."""
    return cast(Task, importlib.import_module(f"fathom.tasks.{name}"))
