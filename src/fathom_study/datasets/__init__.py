"""Data sets: downloaded once and checked by SHA-256.

A data set is one module with a function `fetch(folder, log)`, which raises DataError. If a batch
never holds an example twice, the module has their number as TRAINING_EXAMPLES. Its folder, inside
the one for all data sets, is the module's name with hyphens.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from fathom.system.errors import UserError

ENVIRONMENT = "FATHOM_DATA"
"""Environment variable: the folder for data sets, by default `data`."""

DATASETS = tuple(sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py")))
"""Names of the data sets; each is a file of this folder."""

SUMS = "SHA256SUMS"
"""File that is written into a data set's folder once all its files are there and checked."""

UNAVAILABLE = "unavailable.txt"
"""File that is written there instead if the data set is unavailable; it lists the attempts."""


class DataError(UserError):
    """A data set is unavailable or damaged; further lines of the message list the attempts."""


def data_folder() -> str:
    """The folder for all data sets."""
    return os.environ.get(ENVIRONMENT) or "data"


def folder_of(name: str, data: str | None = None) -> Path:
    """The folder of a data set's files, inside `data` or the folder that the environment names."""
    return Path(data or data_folder()) / name.replace("_", "-")


def unavailable(name: str, data: str | None = None) -> str:
    """Why a data set is unavailable, in one line; empty if it is there or nothing is recorded."""
    record = folder_of(name, data) / UNAVAILABLE
    if not record.is_file() or record.with_name(SUMS).exists():
        return ""
    return record.read_text(encoding="utf-8").partition("\n")[0] or "no reason is recorded"


def training_examples(name: str) -> float:
    """The number of training examples, which limits a batch; infinity if nothing does."""
    return getattr(_module(name), "TRAINING_EXAMPLES", math.inf)


def fetch(name: str, data: str, log: Callable[[str], None]) -> None:
    """Get a data set into its folder inside `data`, from any source. Raises DataError."""
    _module(name).fetch(folder_of(name, data), log)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"fathom_study.datasets.{name}")
