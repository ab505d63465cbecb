"""The code that a cell's training depends on: task, recipe, connection, backend and metrics."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from fathom import tasks
from fathom.config import Spec
from fathom.metrics.steps import STEP_METRICS
from fathom.models.connections.schemes import settings_of
from fathom.runs import code_hash


def training_code(spec: Spec) -> dict[str, str]:
    """A hash of every definition that training the spec reaches, by 'module:name'.

    Other tasks, backends and components are not reached, nor is code that only shows results.
    """
    return _hashes(training_roots(spec))


def training_code_hash(spec: Spec) -> str:
    """`training_code` in sixteen hexadecimal digits."""
    return code_hash.digits(json.dumps(training_code(spec)))


def training_roots(spec: Spec) -> tuple[str, ...]:
    """The entry points of training, and the definitions that are found by name at run time.

    These are the task, the components of the connection, the recipe, the backend and the functions
    of the step metrics. Labels and bounds of metrics change no result, so they do not count.
    """
    metrics = (STEP_METRICS | tasks.load(spec.task).step_metrics).values()
    functions = _names(metric.compute for metric in metrics if metric.compute)
    return (f"fathom.backends.{spec.backend}", *sorted({*starts(spec), *functions}))


def starts(spec: Spec) -> set[str]:
    """The roots that the record of a current run must contain.

    Metrics are not among them: a new metric makes no run stale.
    """
    task = tasks.load(spec.task)
    classes = (type(value) for value in (task, *settings_of(spec.connection), spec.recipe))
    backend = f"fathom.backends.{spec.backend}:connect"
    return {"fathom.train:train", "fathom.tasks:Problem", backend, *_names(classes)}


def metrics_code(task_names: Iterable[str]) -> list[str]:
    """Roots of the code of metrics, for `code_hash`: these tasks' modules and the registries."""
    modules = [f"fathom.tasks.{name}" for name in sorted(set(task_names))]
    return modules + [
        f"{module}:{registry}[*]"
        for module in ("fathom.metrics.steps", "fathom.metrics.runs", *modules)
        for registry in ("STEP_METRICS", "RUN_METRICS")
        if hasattr(importlib.import_module(module), registry)
    ]


def _names(objects: Iterable[Any]) -> set[str]:
    """'module:name' of each object; a closure has the name of its top-level function."""
    return {f"{o.__module__}:{o.__qualname__.partition('.')[0]}" for o in objects}


CHECKS = ("fathom.settings:", "fathom.system.errors:", "fathom.system.text:")
"""Modules left out of hashes: they check settings, which the spec records, and word messages."""


@cache  # the same for thousands of cells
def _hashes(roots: tuple[str, ...]) -> dict[str, str]:
    found = code_hash.definition_hashes(*roots)
    return {name: digest for name, digest in found.items() if not name.startswith(CHECKS)}
