"""Which code a cell's training depends on: its task, recipe, connection, backend and metrics."""

from __future__ import annotations

import json
from functools import cache

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
    task = tasks.load(spec.task)
    metrics = (STEP_METRICS | task.step_metrics).values()
    functions = (metric.compute for metric in metrics if metric.compute)
    classes = (type(value) for value in (task, *settings_of(spec.connection), spec.recipe))
    # The name at the top of the module; for a closure, that of the function around it.
    found = {f"{o.__module__}:{o.__qualname__.partition('.')[0]}" for o in (*functions, *classes)}
    start = ("fathom.train:train", "fathom.tasks:Problem", f"fathom.backends.{spec.backend}")
    return (*start, *sorted(found))


CHECKS = ("fathom.settings:", "fathom.system.errors:")
"""Left out: they validate settings and word refusals. The settings themselves are in the spec."""


@cache  # the same for thousands of cells
def _hashes(roots: tuple[str, ...]) -> dict[str, str]:
    found = code_hash.definition_hashes(*roots)
    return {name: digest for name, digest in found.items() if not name.startswith(CHECKS)}
