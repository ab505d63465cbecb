"""Changes of scores on another processor, compared with values computed by hand."""

import csv
import math

import pandas as pd
import pytest

from fathom.report.processors import COLUMNS, FILE, moved

CPU = "Another"
MADE_ON = {"torch": {"One", CPU}}


def tables(scores, again):
    """(rows of processors.csv, cells, summary) of one network, by seed."""
    place = {"study": "a", "depth": 8, "variant": "mhc", "platform": "torch"}
    cells = [{**place, "key": f"seed{n}", "score": score} for n, score in enumerate(scores)]
    rows = [{"key": f"seed{n}", "cpu": CPU, "score": score} for n, score in enumerate(again)]
    ends = {"score_mean": 2.0, "score_low": 1.0, "score_high": 3.0}
    return pd.DataFrame(rows), pd.DataFrame(cells), pd.DataFrame([place | ends])


def test_loss_moves_by_a_ratio_beside_the_longer_side_of_the_interval():
    (row,) = moved(*tables([2.0, 4.0, 1.0], [2.2, 3.0, 1.0]), {"a": "%"}, MADE_ON).to_dict(
        "records"
    )
    assert row["seeds"] == 3
    # In logarithms, 3/4 is the farthest (4/3) of 1.1, 3/4 and 1; 1 is farther from 2 than 3 is.
    assert (row["moved"], row["half"]) == (pytest.approx(100 / 3), pytest.approx(100))
    assert row["mean"] == pytest.approx(100 * ((1.1 * 0.75) ** (-1 / 3) - 1))


def test_an_accuracy_moves_by_points():
    (row,) = moved(*tables([0.5, 0.6], [0.51, 0.57]), {"a": "points"}, MADE_ON).to_dict("records")
    assert (row["moved"], row["half"]) == (pytest.approx(3), pytest.approx(100))
    assert row["mean"] == pytest.approx(1)  # absolute mean of +1 and −3


def test_run_that_diverged_on_one_processor_is_infinitely_far():
    (row,) = moved(*tables([2.0, 4.0], [2.0, math.nan]), {"a": "%"}, MADE_ON).to_dict("records")
    assert row["moved"] > 1e6
    (row,) = moved(*tables([2.0, math.nan], [2.0, math.nan]), {"a": "%"}, MADE_ON).to_dict(
        "records"
    )
    assert (row["moved"], row["mean"]) == (0, 0)


def test_runs_retrained_on_their_own_processor_are_left_out():
    assert moved(*tables([2.0], [2.0]), {"a": "%"}, {"torch": {CPU}}).empty


def test_kept_table_has_cells_of_the_reference(pytestconfig):
    root = pytestconfig.rootpath
    with (root / FILE).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    with (root / "results/reference/tables/cells.csv").open(encoding="utf-8") as file:
        kept = {row["key"]: row for row in csv.DictReader(file)}
    for row in rows:
        assert row["outcome"] == kept[row["key"]]["outcome"]
    assert "AMD" not in {row["cpu"][:3] for row in rows}  # the reference was made on AMD
