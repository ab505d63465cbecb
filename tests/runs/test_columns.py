"""Metrics by columns: the rows of a run folder come back byte for byte."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from fathom_study.runs.columns import LAYOUT_OF, LAYOUTS, from_columns, to_columns
from fathom_study.runs.folder import RunError, encode_row

ROWS = [
    {"step": 0, "loss": 4.5, "seconds": 0.1},
    {"step": 1, "loss": math.nan, "grad_norm": math.inf, "seconds": 0.2},
    {"step": 2, "loss": -math.inf, "score": 0.1, "seconds": 1e300},
    {"step": 3, "loss": 1.0, "score": None, "seconds": 0.3},
]
"""0.1, 0.2 and 1e300 are not float32 values."""


def text_of(rows):
    return "".join(map(encode_row, rows)).encode()


def test_rows_of_several_kinds_come_back():
    columns = to_columns(text_of(ROWS))
    assert b"".join(from_columns(columns)) == text_of(ROWS)
    arrays = load(columns)
    assert arrays["loss"].dtype == np.float32
    assert arrays["seconds"].dtype == np.float64
    assert arrays["step"].dtype == np.int64


VALUES = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.floats(width=32), st.none(), st.booleans()
)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4), max_size=8))
def test_columns_are_exact_or_not_made(rows):
    columns = to_columns(text_of(rows))
    assert columns is None or b"".join(from_columns(columns)) == text_of(rows)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.booleans())
def test_running_sum_is_left_out_and_restored(seconds, is_sum):
    elapsed, rows = 0.0, []
    for step, value in enumerate(seconds):
        elapsed += value
        rows.append({"step": step, "step_seconds": value, "elapsed_seconds": elapsed})
    if not is_sum:
        rows[-1]["elapsed_seconds"] += 1 + elapsed
    columns = to_columns(text_of(rows))
    assert ("elapsed_seconds" in load(columns)) is not is_sum
    assert b"".join(from_columns(columns)) == text_of(rows)


def test_running_sum_without_its_terms_is_refused():
    row = {"step": 0, "step_seconds": 1.0, "elapsed_seconds": 1.0}
    arrays = load(to_columns(text_of([row])))
    del arrays["step_seconds"]
    with pytest.raises(RunError, match="KeyError"):
        list(from_columns(save(arrays)))


def test_text_and_large_integers_stay_as_rows():
    assert to_columns(text_of([{"step": 0, "score": "high"}])) is None
    assert to_columns(text_of([{"step": 2**64}])) is None


def as_json(value):
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"loss": np.zeros(2, np.float32)}, "ends too soon"),
        ({"loss": np.zeros(5, np.float32)}, "more values than rows"),
        ({LAYOUTS: as_json([[["step"]], [1], [{}]])}, "damaged"),
        ({LAYOUTS: np.frombuffer(b"[" * 100_000, np.uint8)}, "damaged"),
        ({LAYOUT_OF: np.full(3, 9, np.uint8)}, "IndexError"),
    ],
)
def test_damage_is_refused(arrays, why):
    columns = save({**load(to_columns(text_of(ROWS))), **arrays})
    with pytest.raises(RunError, match=why):
        list(from_columns(columns))
