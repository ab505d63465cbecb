"""Backends: the interface that a framework implements so that models can train on it.

A backend is a module named after its framework; helper modules have names with `_`. Its `connect`
picks the device and returns a `Backend`. NumPy's is the float64 oracle: ops and no trainer.
"""

from __future__ import annotations

import importlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fathom.system import blas
from fathom.system.errors import UserError
from fathom.system.packages import is_installed
from fathom_study.system.hardware import keep_freed_memory

if TYPE_CHECKING:
    from fathom.operations.ops import Array, Ops
    from fathom_study.batch import Batch
    from fathom_study.optimizers import OptimizerConfig, ScheduledValues


class BackendError(UserError):
    """Error for a missing framework or device, or too little memory; the message names the fix."""


ObjectiveFunction = Callable[["dict[str, Array]", "Batch"], "tuple[Array, dict[str, Array]]"]
"""(Parameters, batch) in the backend's arrays → (the scalar loss, reports by name). Reports are
small arrays for the metrics from the same forward pass, among them `logits_finite`: whether all
logits are finite."""


InferredFunction = Callable[["dict[str, Array]", "dict[str, Array]"], "Array"]
"""(parameters, inputs), both by name → an array."""


@dataclass(frozen=True)
class Device:
    """Framework and hardware of a backend."""

    framework: str
    framework_version: str
    kind: str
    """cpu, cuda, mps or gpu."""
    name: str
    driver: str | None = None
    blas: str | None = None
    """BLAS library of the matrix products; None if fathom does not choose it."""


class Trainer(ABC):
    """Parameters and optimiser state on the device, advanced one step at a time."""

    @abstractmethod
    def step(self, batches: Sequence[Batch], scheduled: ScheduledValues) -> None:
        """Run forward and backward on each batch, and update once with the mean gradient.

        The measurements stay on the device: mean loss, gradient norms and the last batch's reports.
        """

    @abstractmethod
    def infer(self, function: InferredFunction, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """`function` of the current parameters and of inputs by name, without gradients."""

    @abstractmethod
    def collect(self) -> dict[str, np.ndarray]:
        """Measurements of the n steps since the last call, each [n, …]; waits for the device.

        `loss` [n], `grad_norms` [n, P] (L2 norm of each parameter's gradient, before any clipping,
        in the order of the parameters) and the objective's reports.
        """

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """`param.*`, `m.*`, `v.*` by parameter name, and `step`.

        m and v are AdamW's moments; Muon has its average of gradients in m, and no v.
        """

    def parameters(self) -> dict[str, np.ndarray]:
        """Current parameters by name, on the host."""
        prefix = "param."
        return {
            name.removeprefix(prefix): value
            for name, value in self.state().items()
            if name.startswith(prefix)
        }

    @abstractmethod
    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore a state that `state` returned."""


class Backend(ABC):
    """A framework on a device."""

    ops: Ops
    device: Device
    trainer_class: ClassVar[type[Trainer]]

    def trainer(
        self, params: dict[str, np.ndarray], objective: ObjectiveFunction, update: OptimizerConfig
    ) -> Trainer:
        """A trainer that starts from the given parameters."""
        return self.trainer_class(self.ops, params, objective, update)

    def arithmetic(self) -> dict[str, str]:
        """Instruction set that each library chose for this processor, by library."""
        return {}

    def peak_memory_bytes(self) -> int | None:
        """Peak device memory so far, in bytes; None on a CPU, or if it is not measured."""
        return None


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise BackendError if an array does not fit into memory.

    Frameworks raise a RuntimeError, as for other errors; its message identifies this one.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not re.search("out of memory|allocate", str(error)):
            raise
        reason = str(error).partition("\n")[0]
        raise BackendError(
            f"out of memory; reduce batch_size or the size of the model ({reason})"
        ) from None


def choose_device(framework: str, device: str, present: Mapping[str, bool]) -> str:
    """The device, or for `auto` the first `present` one. Raises BackendError if it is absent."""
    here = [kind for kind, is_here in present.items() if is_here]
    if device != "auto" and device not in here:
        known = ", ".join(["auto", *here])
        raise BackendError(f"{framework} has no device '{device}' here; device can be {known}")
    return here[0] if device == "auto" else device


def connect(name: str, device: str = "auto", threads: int = 1, mlx_blas: str = "auto") -> Backend:
    """Start a framework on a device. Raises BackendError if either is missing."""
    return load(name, threads, mlx_blas).connect(device)


def load(name: str, threads: int, mlx_blas: str) -> ModuleType:
    """Load a framework without any computation, and return the backend's module.

    Both settings are set before, because frameworks and their BLAS read them when they load. Raises
    BackendError when the framework is not installed.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ[blas.SWITCH] = mlx_blas
    keep_freed_memory()
    # Checked first: an uninstall may leave an empty folder, which can be imported.
    if not is_installed(name):
        raise BackendError(f"backend {name} is not installed here; run: pip install -e '.[{name}]'")
    return importlib.import_module(f"fathom_study.backends.{name}")
