"""Which code a cell's training depends on: its task, recipe, connection, backend and metrics."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from fathom import tasks
from fathom.config import Spec
from fathom.metrics import STEP_METRICS
from fathom.models.connections.schemes import settings_of
from fathom.runs import code_hash


def training_code(spec: Spec) -> dict[str, str]:
    """A hash of every definition that training the spec reaches, by 'module:name'.

    Other tasks, backends and components are not reached, nor is what only shows results.
    """
    return _hashes(training_roots(spec))


def training_code_hash(spec: Spec) -> str:
    """`training_code` in sixteen hexadecimal digits."""
    return code_hash.digits(json.dumps(training_code(spec)))


def training_roots(spec: Spec) -> tuple[str, ...]:
    """Where training starts, and what no reading of the sources could follow from there.

    That is the problem that it is handed, and what a name in the spec finds: the task, components
    of the connection, the recipe, the backend, the functions of the step metrics. Of a metric only
    the function counts: its label and bounds change no result.
    """
    metrics = (STEP_METRICS | tasks.load(spec.task).step_metrics).values()
    functions = _names(metric.compute for metric in metrics if metric.compute)
    return (f"fathom.backends.{spec.backend}", *sorted({*starts(spec), *functions}))


def starts(spec: Spec) -> set[str]:
    """The roots that a run has recorded, or training did not start where it does today.

    Metrics are none: one that is new since makes no run stale.
    """
    task = tasks.load(spec.task)
    classes = (type(value) for value in (task, *settings_of(spec.connection), spec.recipe))
    backend = f"fathom.backends.{spec.backend}:connect"
    return {"fathom.train:train", "fathom.tasks:Problem", backend, *_names(classes)}


def metrics_code(task_names: Iterable[str]) -> list[str]:
    """Where the code of metrics begins, for `code_hash`: these tasks, and the registries."""
    modules = [f"fathom.tasks.{name}" for name in sorted(set(task_names))]
    return modules + [
        f"{module}:{registry}[*]"
        for module in ("fathom.metrics", *modules)
        for registry in ("STEP_METRICS", "RUN_METRICS")
        if hasattr(importlib.import_module(module), registry)
    ]


def _names(objects: Iterable[Any]) -> set[str]:
    """As 'module:name', by the name at the top of the module: of a closure, the function's."""
    return {f"{o.__module__}:{o.__qualname__.partition('.')[0]}" for o in objects}


CHECKS = ("fathom.settings:", "fathom.system.errors:", "fathom.system.text:")
"""Left out: they check settings, which the spec itself holds, and word what is said."""


@cache  # the same for thousands of cells
def _hashes(roots: tuple[str, ...]) -> dict[str, str]:
    found = code_hash.definition_hashes(*roots)
    return {name: digest for name, digest in found.items() if not name.startswith(CHECKS)}
