"""Helpers for tests of claims: judge one test, make runs for it."""

import math

import pytest

from fathom_study.analysis.claims.verdicts import claims_table
from tests.support.runs import config_with
from tests.support.tables import T_ROUNDING, curve, frame, published_with, seeds

NAN, INF = math.nan, math.inf
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
CONTRADICTED, NOT_MEASURED = "contradicted", "not measured"

NO_STEPS = frame(curve([1.0], study="no-such-study"))


def claims_of(published, cells, steps=NO_STEPS, config=None):
    """Table of claims; by default for a config of two studies, a and b."""
    config = config or config_with(studies=("a", "b"))
    return claims_table(config, cells, steps, published)


def judge(test, *rows, steps=None, config=None):
    """Row of claims.csv of one test on runs of one platform, as a dict."""
    published = published_with({"scope": "everywhere", "tests": [{"studies": ["a"], **test}]})
    steps = NO_STEPS if steps is None else frame(*steps)
    (row,) = claims_of(published, frame(*rows), steps, config).to_dict("records")
    return row


def verdict(test, *rows, steps=None):
    return judge(test, *rows, steps=steps)["verdict"]


def check(row, expected, observed=None, half=None, seeds=None):
    """Assert the verdict of a row of claims.csv, and the numbers that are given."""
    assert row["verdict"] == expected, row
    if observed is not None:
        assert row["observed"] == pytest.approx(observed, nan_ok=True)
    if half is not None:
        assert row["high"] - row["observed"] == pytest.approx(half, rel=T_ROUNDING, abs=1e-12)
    if seeds is not None:
        assert row["seeds"] == seeds


def of(metric, by_depth, variant="mhc", **axes):
    """Runs at several depths; by_depth maps a depth to the values of its seeds."""
    groups = [seeds(metric, v, depth=d, variant=variant, **axes) for d, v in by_depth.items()]
    return [row for rows in groups for row in rows]


def gains(by_depth, **axes):
    return of("gain_final", by_depth, **axes)


def scores(by_depth, **axes):
    """Runs with these scores (None: diverged). The final loss decides nothing; it is 5."""
    rows = of("score", by_depth, **axes)
    for row in rows:
        row["loss_final"] = 5.0
        if row["score"] is None:
            row["outcome"] = "diverged"
    return rows


def kind_of(test):
    return test["kind"] if isinstance(test, dict) else ""


def sides(metric="score", depth=8, **by_variant):
    make = scores if metric == "score" else lambda d, **a: of(metric, d, **a)
    groups = [make({depth: values}, variant=v) for v, values in by_variant.items()]
    return [row for rows in groups for row in rows]
