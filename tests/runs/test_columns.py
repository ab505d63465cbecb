"""Metrics by columns: the rows of a run folder come back byte for byte."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from fathom_study.runs.columns import LAYOUT_OF, LAYOUTS, from_columns, to_columns
from fathom_study.runs.folder import METRICS, RunError, encode_row

ROWS = [
    {"step": 0, "loss": 4.5, "seconds": 0.1},
    {"step": 1, "loss": math.nan, "grad_norm": math.inf, "seconds": 0.2},
    {"step": 2, "loss": -math.inf, "score": 0.1, "seconds": 1e300},
    {"step": 3, "loss": 1.0, "score": None, "seconds": 0.3},
]
"""0.1, 0.2 and 1e300 are not float32 values."""


def columns_of(folder, rows):
    (folder / METRICS).write_text("".join(map(encode_row, rows)))
    return to_columns((folder / METRICS).read_bytes())


def test_rows_of_several_kinds_come_back(tmp_path):
    columns = columns_of(tmp_path, ROWS)
    assert b"".join(from_columns(columns)) == (tmp_path / METRICS).read_bytes()
    arrays = load(columns)
    assert arrays["loss"].dtype == np.float32
    assert arrays["seconds"].dtype == np.float64
    assert arrays["step"].dtype == np.int64


VALUES = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.floats(width=32), st.none(), st.booleans()
)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4), max_size=8))
def test_columns_are_exact_or_not_made(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("run")
    columns = columns_of(folder, rows)
    if columns is not None:
        assert b"".join(from_columns(columns)) == (folder / METRICS).read_bytes()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.booleans())
def test_running_sum_is_left_out_and_restored(tmp_path_factory, seconds, is_sum):
    folder, elapsed, rows = tmp_path_factory.mktemp("run"), 0.0, []
    for step, value in enumerate(seconds):
        elapsed += value
        rows.append({"step": step, "step_seconds": value, "elapsed_seconds": elapsed})
    if not is_sum:
        rows[-1]["elapsed_seconds"] += 1 + elapsed
    columns = columns_of(folder, rows)
    assert ("elapsed_seconds" in load(columns)) is not is_sum
    assert b"".join(from_columns(columns)) == (folder / METRICS).read_bytes()


def test_running_sum_without_its_terms_is_refused(tmp_path):
    columns = columns_of(tmp_path, [{"step": 0, "step_seconds": 1.0, "elapsed_seconds": 1.0}])
    arrays = load(columns)
    del arrays["step_seconds"]
    with pytest.raises(RunError, match="KeyError"):
        list(from_columns(save(arrays)))


def test_text_and_large_integers_stay_as_rows(tmp_path):
    assert columns_of(tmp_path, [{"step": 0, "score": "high"}]) is None
    assert columns_of(tmp_path, [{"step": 2**64}]) is None


def changed(columns, **arrays):
    return save({**load(columns), **arrays})


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
def test_damage_is_refused(tmp_path, arrays, why):
    columns = columns_of(tmp_path, ROWS)
    with pytest.raises(RunError, match=why):
        list(from_columns(changed(columns, **arrays)))
