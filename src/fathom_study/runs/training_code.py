"""The code that a cell's training depends on: task, recipe, connection, backend and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterable

from fathom.connections.schemes import settings_of
from fathom.system.text import digits
from fathom_study import tasks
from fathom_study.config import Spec
from fathom_study.metrics.steps import STEP_METRICS
from fathom_study.runs import code_hash


def training_code(spec: Spec) -> dict[str, str]:
    """A hash of every module that training the spec reaches, by its name."""
    metrics = (STEP_METRICS | tasks.load(spec.task).step_metrics).values()
    computed = (metric.compute.__module__ for metric in metrics if metric.compute)
    return code_hash.module_hashes(*sorted(starts(spec).union(computed)))


def training_code_hash(spec: Spec) -> str:
    """`training_code` in sixteen hexadecimal digits."""
    return digits(json.dumps(training_code(spec)))


def starts(spec: Spec) -> set[str]:
    """The roots that the record of a current run must contain, some found by name at run time.

    These are the loop, the backend, and the modules of the task, the recipe and the components of
    the connection.
    """
    parts = (tasks.load(spec.task), *settings_of(spec.connection), spec.recipe)
    modules = (type(part).__module__ for part in parts)
    return {"fathom_study.train", f"fathom_study.backends.{spec.backend}", *modules}


def metrics_code(task_names: Iterable[str]) -> list[str]:
    """Modules of the metrics of these tasks, for `code_hash`."""
    modules = (f"fathom_study.tasks.{name}" for name in sorted(set(task_names)))
    return ["fathom_study.metrics.steps", "fathom_study.metrics.runs", *modules]
