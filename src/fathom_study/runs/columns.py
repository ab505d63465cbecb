"""The metrics of a run by columns, as bundles carry them: half the size, the same to the last bit.

In a run folder metrics are rows of text, which a training appends and people read. In a bundle each
metric is an array, of float32 if that holds all of its values. The names and the order of a row's
metrics are stored beside them, so the rows are restored byte for byte. A running sum of another
metric is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import repeat

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fathom_study.metrics.steps import Row
from fathom_study.runs.folder import RunError, decode_row, encode_row

COLUMNS = "metrics.columns"
"""The file that replaces METRICS in a bundle."""

LAYOUTS, LAYOUT_OF = ".layouts", ".layout_of"
"""Arrays besides the metrics: the names of the metrics in each kind of row, as JSON; and the kind
of each row. A name in a list of its own marks a metric whose value is null."""

TOTALS = {"elapsed_seconds": "step_seconds"}
"""Metrics that are the running sum of another one; left out if the sum gives the same values."""

Layout = tuple[str | tuple[str], ...]
"""The names of the metrics in one kind of row."""


def to_columns(text: bytes) -> bytes | None:
    """The metrics in the text of METRICS; None if columns do not hold them to the last bit."""
    layouts: dict[Layout, int] = {}
    layout_of: list[int] = []
    values: dict[str, list[float | int]] = {}
    for row in map(decode_row, text.splitlines()):
        layout: Layout = tuple((name,) if value is None else name for name, value in row.items())
        layout_of.append(layouts.setdefault(layout, len(layouts)))
        for name, value in row.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    try:
        arrays = {name: _as_array(column) for name, column in values.items()}
        for total, part in TOTALS.items():
            if np.cumsum(values.get(part, ()), dtype=np.float64).tolist() == values.get(total):
                del arrays[total]
        arrays[LAYOUTS] = np.frombuffer(json.dumps(list(layouts)).encode(), np.uint8)
        arrays[LAYOUT_OF] = np.array(layout_of, np.uint8)
    except (OverflowError, TypeError, ValueError):  # not a number, or too large for an array
        return None
    columns = save(arrays)
    return columns if b"".join(from_columns(columns)) == text else None


def _as_array(column: list[float | int]) -> np.ndarray:
    """The values in the smallest type that holds them all."""
    if {*map(type, column)} == {int}:
        return np.array(column, np.int64)
    exact = np.array(column, np.float64)
    with np.errstate(over="ignore"):
        short = exact.astype(np.float32)
    return short if np.array_equal(short.astype(np.float64), exact, equal_nan=True) else exact


def from_columns(columns: bytes) -> Iterator[bytes]:
    """The lines of METRICS. Raises RunError for bytes that are not from `to_columns`."""
    try:
        arrays = load(columns)
        layouts = json.loads(arrays.pop(LAYOUTS).tobytes())
        layout_of = arrays.pop(LAYOUT_OF).tolist()
        named = {name for layout in layouts for name in layout if isinstance(name, str)}
        for total in (TOTALS.keys() & named) - arrays.keys():
            arrays[total] = np.cumsum(arrays[TOTALS[total]], dtype=np.float64)
        values = {name: iter(array.tolist()) for name, array in arrays.items()}
        kinds = [
            [(n, values[n]) if isinstance(n, str) else (n[0], repeat(None)) for n in layout]
            for layout in layouts
        ]
        for kind in layout_of:
            row: Row = {name: next(column) for name, column in kinds[kind]}
            yield encode_row(row).encode()
    except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{COLUMNS}: is damaged ({type(error).__name__})") from error
    except StopIteration:
        raise RunError(f"{COLUMNS}: is damaged (a column ends too soon)") from None
    if left := [name for name, column in values.items() if any(True for _ in column)]:
        raise RunError(f"{COLUMNS}: is damaged ({left[0]!r:.40} has more values than rows)")
