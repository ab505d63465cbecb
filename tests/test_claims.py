"""Claims: every kind of test turned in both directions, verdicts, scales, and published.yaml."""

import itertools
import math
import statistics
import zlib

import pandas as pd
import pytest
import yaml

from fathom import tasks
from fathom.analysis.claims import Published, load_published, write_claims
from fathom.analysis.claims.published import Bound, Value
from fathom.analysis.claims.rules import RULES, combine_verdicts
from fathom.analysis.claims.untestable import first_of_same
from fathom.analysis.claims.verdicts import (
    claims_table,
    deviates,
    published_table,
    thresholds_table,
    verdicts_table,
)
from fathom.analysis.platforms import device_of
from fathom.analysis.tables import read_table, summary_table
from fathom.config import BACKENDS, check_config, load_config
from fathom.settings import ConfigError, validate
from run_helpers import CPU_PLATFORM, GPU_PLATFORM, config_with
from tables_helpers import CHANCE, T975, TOLD, curve, frame, half_width, run, save_by_study, seeds

NAN, INF = math.nan, math.inf
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
CONTRADICTED, NOT_MEASURED = "contradicted", "not measured"

SOURCES = {
    "lab": {"title": "A lab", "platform": "some GPU", "backend": "torch"},
    "elsewhere": {"title": "Elsewhere", "platform": "not stated"},
}


def published_with(*claims, values=(), thresholds=()):
    """Published claims; each is a dict of what differs from a claim of the lab."""
    base = {"source": "lab", "statement": "It is so."}
    entries = [{**base, "id": f"claim-{n}", **claim} for n, claim in enumerate(claims)]
    data = {"sources": SOURCES, "notes": [], "values": list(values), "claims": entries}
    data["thresholds"] = list(thresholds)
    return validate(Published, data, "published.yaml")


NO_STEPS = frame(curve([1.0], study="no-such-study"))


def claims_of(published, cells, steps=NO_STEPS, config=None):
    """The table of claims, for a config of two studies, a and b."""
    config = config or config_with(studies=("a", "b"))
    return claims_table(config, cells, steps, published)


def judge(test, *rows, steps=None, config=None):
    """What a test says of runs on one platform: its row of claims.csv, as a dict."""
    published = published_with({"scope": "everywhere", "tests": [{"studies": ["a"], **test}]})
    steps = NO_STEPS if steps is None else frame(*steps)
    (row,) = claims_of(published, frame(*rows), steps, config).to_dict("records")
    return row


def verdict(test, *rows, steps=None):
    return judge(test, *rows, steps=steps)["verdict"]


def check(row, expected, observed=None, half=None, seeds=None):
    """Compare a row of claims.csv with a verdict, and with the numbers that are given."""
    assert row["verdict"] == expected, row["reason"]
    if observed is not None:
        assert row["observed"] == pytest.approx(observed, nan_ok=True)
    if half is not None:
        assert row["ci95_half"] == pytest.approx(half, rel=TOLD, abs=1e-12)
    if seeds is not None:
        assert row["seeds"] == seeds


def at_depths(metric, by_depth, **axes):
    """Runs of several depths; by_depth maps a depth to the values of its seeds."""
    return [row for d, values in by_depth.items() for row in seeds(metric, values, depth=d, **axes)]


def gains(by_depth, metric="gain_final", variant="mhc"):
    return at_depths(metric, by_depth, variant=variant)


def scores(by_depth, **axes):
    """Runs with these scores; the final loss, which decides nothing, is another number."""
    return [{**row, "loss_final": 5.0} for row in at_depths("score", by_depth, **axes)]


def kind_of(test):
    return test["kind"] if isinstance(test, dict) else ""


def unlike_others(rows):
    """The steps of a run, with losses that no other variant has."""
    factor = 1 + 1e-9 * zlib.crc32(rows[0]["variant"].encode()) / 2**32
    return [{**row, "loss": row["loss"] * factor} for row in rows]


# --- levels --------------------------------------------------------------------------------------

NEAR = {"kind": "near", "variant": "mhc", "metrics": ["gain_final", "gain_first"],
        "value": -0.6, "tolerance": 0.1}  # fmt: skip
AT_MOST = {"kind": "between", "variant": "mhc", "metric": "gain_final", "high": -0.1}
INSIDE = {**AT_MOST, "low": -0.3}
BELOW = {"kind": "converges_below", "variants": ["mhc"], "depths": [8]}
ABOVE = {**BELOW, "kind": "stays_above"}
FALLS = {"kind": "falls", "variants": ["mhc"], "depths": [8],
         "metrics": ["grad_norm_first", "grad_norm_final"]}  # fmt: skip


def falling(*ratios):
    """Runs whose gradient norm ends at 10 to these powers of its start."""
    return [
        run(seed=seed, grad_norm_first=5.0, grad_norm_final=5.0 * 10.0**ratio)
        for seed, ratio in enumerate(ratios)
    ]


LOGS = [math.log10(loss) for loss in (0.1, 0.11, 0.12)]
GEOMETRIC = 10 ** (sum(LOGS) / 3)
OPEN = [-0.25, -0.45, -0.65]
"""Mean −0.45, standard deviation 0.2, interval ±0.5: the mean may be within 0.1 of −0.6."""
SCATTER = [0.001, 0.01, 1e-4]
"""By orders: an arithmetic interval would hold a tenth of the chance level, 0.416, and −0.6."""


@pytest.mark.parametrize(
    ("test", "rows", "expected", "numbers"),
    [
        (NEAR, gains({4: [-0.55, -0.65, -0.6], 8: [-0.6] * 3}), REPRODUCED, ()),
        (NEAR, gains({8: [-0.5, -0.7, -0.6]}), REPRODUCED, ()),  # the border counts
        (NEAR, gains({8: [-0.5, -0.7, -0.601, -0.49]}), NOT_REPRODUCED, ()),
        (NEAR, gains({8: [0.5, 0.51, 0.52]}), CONTRADICTED, (0.51,)),
        (NEAR, gains({8: [-1.7, -1.71, -1.72]}), CONTRADICTED, (-1.71,)),
        (NEAR, gains({4: [-0.6] * 3, 8: [0.0, 0.01, 0.02]}), CONTRADICTED, (0.01,)),
        (NEAR, gains({8: OPEN}), NOT_REPRODUCED, (-0.45, half_width(OPEN), 3)),
        # The depth that speaks most against it gives the numbers.
        (NEAR, gains({4: [-0.6] * 3, 8: [-0.3, -0.31, -0.32], 16: [-0.61] * 3}), CONTRADICTED,
         (-0.31, half_width([-0.3, -0.31, -0.32]))),
        (NEAR, gains({4: [5.0] * 3, 8: [None] * 3, 16: [-0.6] * 3}), CONTRADICTED, (NAN,)),
        (NEAR, gains({8: [None]}), CONTRADICTED, ()),
        (NEAR, gains({8: [-0.6, -0.6, -0.6, None]}), NOT_REPRODUCED, ()),
        # A run that diverged gives its gain from the start.
        (NEAR, [run(gain_first=-0.6), run(seed=1, gain_first=99.0, gain_final=-0.6),
                run(seed=2, gain_first=-0.6)], REPRODUCED, ()),
        (NEAR, gains({4: [5.0] * 3, 8: [-0.6] * 3}), CONTRADICTED, ()),
        ({**NEAR, "depths": [8]}, gains({4: [5.0] * 3, 8: [-0.6] * 3}), REPRODUCED, ()),
        (AT_MOST, gains({8: [-0.2, -5.0, -0.1]}), REPRODUCED, ()),  # the border counts
        (AT_MOST, gains({8: [0.0, 0.001, -0.001]}), CONTRADICTED, ()),
        (INSIDE, gains({8: [-0.3, -0.25, -0.1]}), REPRODUCED, ()),
        (INSIDE, gains({8: [-0.5, -0.51, -0.52]}), CONTRADICTED, ()),
        # Mean 0, standard deviation 0.1, interval ±0.25: the mean may be below −0.1.
        (AT_MOST, gains({8: [-0.1, 0.0, 0.1]}), NOT_REPRODUCED, ()),
        (AT_MOST, gains({8: [None] * 3}), NOT_MEASURED, ()),  # no such metric says nothing
        (AT_MOST, gains({8: [-0.2, -0.2, -0.2, None]}), NOT_REPRODUCED, ()),
        (AT_MOST, gains({4: [-0.6] * 3, 8: [0.25, 0.5, 0.75], 16: [0.1] * 3}), CONTRADICTED,
         (0.5, half_width([0.25, 0.5, 0.75]))),
        # The limit is a tenth of the chance level, 0.416.
        ({**BELOW, "depths": [4, 8]}, scores({4: [0.01, 0.02, 0.03], 8: [0.1, 0.11, 0.12]}),
         REPRODUCED, (GEOMETRIC, GEOMETRIC * (10 ** half_width(LOGS) - 1), 3)),
        ({**BELOW, "depths": [4, 8]}, scores({4: [0.01] * 3, 8: [2.0, 2.1, 2.2]}), CONTRADICTED,
         (statistics.geometric_mean([2.0, 2.1, 2.2]),)),
        (BELOW, scores({8: [0.01, 0.01, None]}), CONTRADICTED, ()),  # one run diverged
        (BELOW, scores({8: [0.3, 0.35, 0.4]}), NOT_REPRODUCED, ()),  # ±0.124 holds 0.416
        (BELOW, scores({8: [0.45, 0.5, 0.55]}), NOT_REPRODUCED, ()),
        ({**BELOW, "fraction": 0.9}, scores({8: [2.0, 2.1, 2.2]}), REPRODUCED, ()),
        ({**BELOW, "fraction": 0.001}, scores({8: [0.01] * 3}), CONTRADICTED, ()),
        (BELOW, scores({8: SCATTER}), REPRODUCED, (0.001,)),
        (ABOVE, scores({8: [2.0, 2.1, 2.2]}), REPRODUCED, ()),
        (ABOVE, scores({8: [None] * 3}), REPRODUCED, ()),  # what diverged has not converged
        # One that diverged is not enough; two that did not are told by the spread of other cells.
        ({**ABOVE, "depths": [4, 8]}, scores({4: [4.0] * 3, 8: [None, 0.01, 0.01]}), CONTRADICTED,
         ()),
        (ABOVE, scores({8: SCATTER}), CONTRADICTED, (0.001,)),
        (ABOVE, scores({8: [0.3, 0.4, 0.5]}), NOT_REPRODUCED, ()),
        ({**BELOW, "variants": ["hc", "mhc"]},
         scores({8: [0.01] * 3}) + scores({8: [3.0] * 3}, variant="hc"), CONTRADICTED, (3.0,)),
        # Mean −0.26, standard deviation 0.1, interval ±0.248; then mean −0.2.
        (FALLS, falling(-0.16, -0.26, -0.36), REPRODUCED,
         (-0.26, half_width([-0.16, -0.26, -0.36]), 3)),
        (FALLS, falling(-0.1, -0.2, -0.3), NOT_REPRODUCED, (-0.2,)),
        (FALLS, falling(0.16, 0.26, 0.36), CONTRADICTED, (0.26,)),
        (FALLS, falling(-1.0, -1.0, -1.0, NAN), CONTRADICTED, ()),
    ],
)  # fmt: skip
def test_levels(test, rows, expected, numbers):
    check(judge(test, rows), expected, *numbers)


IMAGES = {"task": "fashion", "variants": ["resnet"], "model": {"width": 8}}


@pytest.mark.parametrize(
    ("kind", "accuracies", "expected"),
    [
        # Chance is 0.1: a tenth of the way from perfect to chance is left at 0.91.
        ("converges_below", [0.95, 0.96, 0.97], REPRODUCED),
        ("converges_below", [0.8, 0.81, 0.82], CONTRADICTED),
        ("converges_below", [0.9, 0.91, 0.92], NOT_REPRODUCED),
        ("stays_above", [0.8, 0.81, 0.82], REPRODUCED),
        ("stays_above", [0.95, 0.96, 0.97], CONTRADICTED),
    ],
)
def test_a_share_converges_upwards(kind, accuracies, expected):
    config = config_with(studies=("a",), a=IMAGES)
    rows = [
        {**row, "score_metric": "test_accuracy", "score_chance": 0.1}
        for row in seeds("score", accuracies, variant="resnet")
    ]
    test = {"kind": kind, "variants": ["resnet"], "depths": [8]}
    check(judge(test, rows, config=config), expected, statistics.mean(accuracies))


def test_a_metric_beside_is_told_and_decides_nothing():
    runs = [run(seed=seed, gain_final=-0.6, loss_final=9.0 + seed) for seed in (0, 1, 2)]
    row = judge({**NEAR, "beside": "loss_final"}, runs)
    check(row, REPRODUCED)
    assert row["published"] == -0.6
    assert row["reason"].endswith("; loss_final beside it: 10 ± 2.5")


@pytest.mark.parametrize("sides", [{}, {"low": 1.0, "high": 1.0}, {"low": 2.0, "high": 1.0}])
def test_between_needs_a_side_that_leaves_room(sides):
    test = {"kind": "between", "variant": "mhc", "metric": "gain_final", **sides}
    with pytest.raises(ConfigError, match="between needs low, high or both"):
        judge(test, run(gain_final=0.0))


# --- counts --------------------------------------------------------------------------------------

FAILS = {"kind": "fails", "variant": "hc", "depths": [8]}
AT_ONCE = {"kind": "diverges_at_once", "variant": "hc", "depths": [8]}
NO_EVENTS = {"kind": "no_events", "variants": ["hc", "mhc"]}
REACHES = {"kind": "reaches", "variant": "mhc", "metric": "gain_final", "value": 0.95}


def ended(*outcomes, **axes):
    """A run of hc for each outcome."""
    reached = {"learned": 0.1, "at chance": CHANCE, "diverged": None, "not scored": None}
    return [
        run(**{"variant": "hc", "seed": seed, "outcome": o, "score": reached[o], **axes})
        for seed, o in enumerate(outcomes)
    ]


def events(*counts, **axes):
    return seeds("nonfinite_total", list(counts), **axes)


def first_broken(*steps):
    return seeds("first_nonfinite_step", list(steps), variant="hc")


LEARNED, LOST = ["learned"] * 3, ["diverged"] * 3


@pytest.mark.parametrize(
    ("test", "rows", "expected", "numbers"),
    [
        (FAILS, ended(*LOST), REPRODUCED, (NAN,)),
        (FAILS, ended("at chance", "at chance", "diverged"), REPRODUCED, (CHANCE, None, 3)),
        (FAILS, ended(*LEARNED), CONTRADICTED, (0.1,)),
        (FAILS, ended("learned", "diverged", "at chance"), NOT_REPRODUCED, ()),
        (FAILS, ended(*["not scored"] * 3), NOT_MEASURED, ()),
        (FAILS, ended(*LOST) + ended("learned", depth=4) + ended("learned", variant="mhc"),
         REPRODUCED, ()),
        (AT_ONCE, first_broken(0, 0, 0), REPRODUCED, (3,)),
        (AT_ONCE, first_broken(NAN, NAN, NAN), CONTRADICTED, (0,)),
        (AT_ONCE, first_broken(1, 1, 1), CONTRADICTED, ()),  # not at once
        (AT_ONCE, first_broken(0, 0, NAN), NOT_REPRODUCED, (2,)),
        (AT_ONCE, first_broken(0, 7, 0), NOT_REPRODUCED, (2,)),
        (NO_EVENTS, events(0, 0, 0) + events(0, 0, 0, variant="hc"), REPRODUCED, (0,)),
        (NO_EVENTS, events(0, 1) + events(0, 0, variant="hc"), CONTRADICTED, (1,)),
        (NO_EVENTS, events(0, 0) + events(0, 0, 0, variant="hc"), NOT_MEASURED, ()),
        (NO_EVENTS, events(0, 0, 0) + events(0, 0, 0, variant="hc")
         + events(5, variant="baseline"), REPRODUCED, ()),
        (REACHES, gains({8: [0.1, 0.1, 0.95]}), REPRODUCED, (0.95,)),
        # One more run falls up to 0.11 + 4.303 · 0.01 · √(4/3); then up to 0.5 + 1.99.
        (REACHES, gains({8: [0.1, 0.11, 0.12]}), CONTRADICTED, (0.12,)),
        (REACHES, gains({8: [0.1, 0.5, 0.9]}), NOT_REPRODUCED, ()),
        # Up to 0.75 + 4.303 · 0.05 · √(4/3) = 0.998, where the mean is known to ±0.124.
        (REACHES, gains({8: [0.7, 0.75, 0.8]}), NOT_REPRODUCED, ()),
        (REACHES, gains({4: [0.1, 0.11, 0.12], 8: [0.1, 0.5, 0.9]}), NOT_REPRODUCED, ()),
        (REACHES, gains({8: [0.1]}), NOT_MEASURED, ()),
        (REACHES, gains({8: [None, 0.96]}), REPRODUCED, ()),  # one run shows what can happen
        (REACHES, gains({8: [None]}), NOT_MEASURED, ()),
    ],
)  # fmt: skip
def test_counts(test, rows, expected, numbers):
    check(judge(test, rows), expected, *numbers)


MONOTONE = {"kind": "monotone", "variant": "mhc", "depths": [8], "metric": "grad_norm"}
CONSTANT = {"kind": "constant", "variant": "mhc", "depths": [8], "metric": "grad_norm",
            "tolerance": 0.25}  # fmt: skip


def norms(*runs, **axes):
    """(the runs' rows of cells, their rows of steps)"""
    steps = [
        row
        for seed, values in enumerate(runs)
        for row in curve(values, seed=seed, column="grad_norm", **axes)
    ]
    return [run(seed=seed, **axes) for seed in range(len(runs))], steps


@pytest.mark.parametrize(
    ("test", "runs", "expected", "observed"),
    [
        (MONOTONE, [[3.0, 2.0, 2.0], [9.0, 8.0, 7.0], [3.0, 2.0, 1.0]], REPRODUCED, 0),
        (MONOTONE, [[3.0, 2.0, 2.1], [9.0, 9.1, 9.0], [1.0, 2.0, 3.0]], CONTRADICTED, 2),
        (MONOTONE, [[3.0, 2.0, 2.1], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]], NOT_REPRODUCED, 1),
        (MONOTONE, [[3.0, 2.0, 1.0]] * 2, NOT_MEASURED, None),
        *((MONOTONE, [broken] * 3, NOT_REPRODUCED, 0)
          for broken in ([3.0, 2.0, NAN], [NAN, NAN, NAN], [3.0, NAN, 1.0], [3.0, 2.0, INF])),
        (CONSTANT, [[2.0, 1.75, 2.25]] * 3, REPRODUCED, 0.25),
        (CONSTANT, [[2.0, 1.7, 2.0]] * 3, CONTRADICTED, 0.3),  # it comes back, and has moved
        (CONSTANT, [[2.0, NAN, 2.0]] * 3, CONTRADICTED, INF),
        (CONSTANT, [[2.0, 2.0, 2.0], [2.0, 2.0, 2.3], [2.0, 2.0, 2.0]], NOT_REPRODUCED, 0.3),
    ],
)  # fmt: skip
def test_counts_of_steps(test, runs, expected, observed):
    cells, steps = norms(*runs)
    for rows in (steps, steps[::-1]):  # steps are taken in order
        check(judge(test, cells, steps=[rows]), expected, observed)


def test_each_run_is_looked_at_alone():
    """One from 9 to 7 and another from 3 to 1, each of them falling; together they would rise."""
    cells, steps = [], []
    for depth, values in ((8, [9.0, 8.0, 7.0]), (16, [3.0, 2.0, 1.0])):
        found = norms(values, values, values, depth=depth)
        cells, steps = cells + found[0], found[1] + steps
    row = judge({**MONOTONE, "depths": [8, 16]}, cells, steps=[steps])
    check(row, REPRODUCED)
    assert row["reason"].startswith("never rises in 6 of 6 runs")


# --- pairs ---------------------------------------------------------------------------------------

ORDERED = {"kind": "ordered", "lower": "mhc", "higher": ["baseline", "hc"], "depths": [8]}
ABOVE_HC = {**ORDERED, "higher": ["hc"]}
BY_DIFFERENCE = {**ABOVE_HC, "metric": "gain_final"}
NOT_BELOW = {"kind": "not_below", "variant": "mhc", "than": "hc", "metric": "gain_final"}
VARIES = {**NOT_BELOW, "kind": "varies_more"}
RISES = {"kind": "rises_with_depth", "variant": "hc", "than": "hc", "metric": "gain_final",
         "deep": 16}  # fmt: skip


def sides(metric="score", depth=8, **by_variant):
    rows = [
        row
        for variant, values in by_variant.items()
        for row in seeds(metric, values, variant=variant, depth=depth)
    ]
    return [{**row, "loss_final": 5.0} for row in rows] if metric == "score" else rows


def pair(ours, theirs, depth=8):
    return sides("gain_final", depth, mhc=ours, hc=theirs)


def powers(*exponents):
    return [10.0**exponent for exponent in exponents]


SPREAD = [0.0, 1.0, 2.0, 3.0, 4.0]


def scaled(factor):
    return [7 + factor * value for value in SPREAD]


TWO, PAIRED = [1.0, 1.0, 1.0], sides(mhc=[0.1, 1.0, 10.0], hc=[0.11, 1.1, 11.0])
ALONE = sides(depth=16, mhc=[9.0, 9.1, 9.2])
BOTH = sides(mhc=[0.1, 0.11, 0.12], hc=[1.0, 1.1, 1.2])


@pytest.mark.parametrize(
    ("test", "rows", "expected", "numbers"),
    [
        (ORDERED, sides(mhc=[0.1, 0.11, 0.12], hc=[1.0, 1.1, 1.2], baseline=[2.0, 2.2, 2.4]),
         REPRODUCED, (-1.0, 0.0, 3)),
        (ORDERED, sides(mhc=[1.0, 1.1, 1.2], hc=[0.1, 0.11, 0.12], baseline=[2.0, 2.1, 2.2]),
         CONTRADICTED, (1.0,)),
        (ORDERED, sides(mhc=[1.0, 1.1, 1.2], hc=[1.1, 1.0, 1.2], baseline=[2.0, 2.1, 2.2]),
         NOT_REPRODUCED, ()),
        # Each is below its partner, however far the seeds scatter; rows may come in any order.
        (ABOVE_HC, PAIRED, REPRODUCED, (-math.log10(1.1), 0.0)),
        (ABOVE_HC, PAIRED[:3] + PAIRED[:2:-1], REPRODUCED, (-math.log10(1.1),)),
        # A seed of one side alone is not compared.
        (ABOVE_HC, sides(mhc=[0.1, 0.11, 0.12, 99.0], hc=[1.0, 1.1, 1.2]), REPRODUCED,
         (-1.0, 0.0, 3)),
        # Mean −0.2, standard deviation 0.1, interval ±0.248; then mean ±0.26.
        (ABOVE_HC, sides(mhc=powers(-0.1, -0.2, -0.3), hc=TWO), NOT_REPRODUCED,
         (-0.2, half_width([-0.1, -0.2, -0.3]))),
        (ABOVE_HC, sides(mhc=powers(-0.16, -0.26, -0.36), hc=TWO), REPRODUCED,
         (-0.26, half_width([-0.16, -0.26, -0.36]))),
        (ABOVE_HC, sides(mhc=powers(0.16, 0.26, 0.36), hc=TWO), CONTRADICTED, (0.26,)),
        # A side that diverged is not compared, but what diverged is no better than what did not.
        (ABOVE_HC, sides(mhc=[0.1] * 3, hc=[None] * 3), NOT_REPRODUCED, (NAN,)),
        (ABOVE_HC, sides(mhc=[None] * 3, hc=[None] * 3), NOT_REPRODUCED, (NAN,)),
        (ABOVE_HC, sides(mhc=[None] * 3, hc=[1.0, 1.1, 1.2]), CONTRADICTED, (NAN,)),
        (ORDERED, sides(mhc=[5.0] * 3, hc=[1.0, 1.0, None], baseline=[9.0, 9.1, 9.2]),
         REPRODUCED, ()),
        # Logarithms that differ by 1e-7 ± 1e-9, by rounding.
        (ABOVE_HC, sides(mhc=[1.0, 2.0, 3.0], hc=[n * (1 + 2.3e-7) for n in (1.0, 2.0, 3.0)]),
         NOT_REPRODUCED, ()),
        (ABOVE_HC, ended(*["not scored"] * 3) + ended(*["not scored"] * 3, variant="mhc"),
         NOT_MEASURED, ()),
        ({**ABOVE_HC, "depths": None}, BOTH + ALONE, REPRODUCED, ()),
        ({**ABOVE_HC, "depths": [8, 16]}, BOTH + ALONE, NOT_MEASURED, ()),
        ({**ABOVE_HC, "depths": None}, sides(hc=TWO) + ALONE, NOT_MEASURED, ()),
        ({**ABOVE_HC, "depths": [4, 8]},
         sides(depth=4, mhc=[0.1, 0.1, 0.11], hc=TWO) + sides(mhc=[3.0, 3.0, 3.3], hc=TWO),
         CONTRADICTED, ()),
        # The fewest seeds of the comparisons that decide.
        (ORDERED, sides(mhc=[0.1, 0.11, 0.12, 0.1], hc=[1.0, 1.1, 1.2], baseline=[2.0] * 4),
         REPRODUCED, (None, None, 3)),
        (ORDERED, sides(mhc=[2.0, 2.1, 2.2, 2.1], hc=[9.0], baseline=[0.1, 0.11, 0.1, 0.12]),
         CONTRADICTED, (None, None, 4)),
        # A gain may be zero or negative, and has no ratio.
        (BY_DIFFERENCE, pair([-0.5, 0.0, 0.5], [0.5, 1.1, 1.4]), REPRODUCED, ()),
        (BY_DIFFERENCE, pair([0.5, 1.1, 1.4], [-0.5, 0.0, 0.5]), CONTRADICTED, ()),
        (BY_DIFFERENCE, pair([0.0, 0.1, 0.2], [0.1, 0.0, 0.2]), NOT_REPRODUCED, ()),
        (BY_DIFFERENCE, pair([0.0] * 3, [1.0, 2.0, 3.0]), NOT_REPRODUCED,
         (-2, half_width([1, 2, 3]))),
        (BY_DIFFERENCE, pair([0.0] * 3, [6e-9] * 3), NOT_REPRODUCED, ()),  # by rounding
        (BY_DIFFERENCE, pair([0.0] * 3, [2e-5] * 3), REPRODUCED, ()),
        ({**ABOVE_HC, "by": "difference"}, sides(mhc=[0.0] * 3, hc=[0.1] * 3), REPRODUCED, (-0.1,)),
        (NOT_BELOW, pair([1.0, 2.0, 3.0], [0.0, 1.1, 2.2]), REPRODUCED, ()),
        (NOT_BELOW, pair([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), REPRODUCED, (0.0,)),
        (NOT_BELOW, pair([0.0, 1.0, 2.0], [1.0, 1.0, 1.1]), REPRODUCED, ()),  # −1, 0 and 0.9
        (NOT_BELOW, pair([0.0, 1.0, 2.0], [1.0, 2.1, 2.9]), CONTRADICTED, ()),
        (NOT_BELOW, pair([0.0, 1.0], [1.0, 2.1]), NOT_MEASURED, ()),
        (NOT_BELOW, pair([0.0, 1.0, None], [1.0, 2.1, 3.0]), NOT_MEASURED, ()),
        (NOT_BELOW, pair([1.0, 2.0, 3.0], [0.0, 1.0, 2.0]) + pair([0.0] * 3, [1.0, 2.0, 1.5], 16),
         CONTRADICTED, (-1.5, half_width([1.0, 2.0, 1.5]))),
        # Distances from the median are 2, 1, 0, 1, 2 and these times f:
        # F = 10.286 (1 − f)² / (1 + f²), beside 5.318 of a printed table.
        (VARIES, pair(scaled(1), scaled(0.2)), REPRODUCED, (5.0,)),  # 6.33
        (VARIES, pair(scaled(1), scaled(0.3)), NOT_REPRODUCED, ()),  # 4.62
        (VARIES, pair(scaled(0.2), scaled(1)), CONTRADICTED, (0.2,)),
        (VARIES, pair(scaled(0.0), scaled(0.0)), NOT_REPRODUCED, ()),
        (VARIES, pair(scaled(1), scaled(0.0)), REPRODUCED, ()),
        (VARIES, pair([0.0, 5.0, 10.0], [1.0, 1.0, 1.0]), NOT_MEASURED, ()),  # too few to tell
        (VARIES, pair([0.0, 5.0], [*scaled(0.1), 7.0]), NOT_MEASURED, ()),
        (VARIES, pair(scaled(1), scaled(0.2)) + pair([0.0, 99.0, 200.0], [], 16), REPRODUCED, ()),
        # Both have variance 1, so Welch has 4 degrees of freedom: ±2.776 · √(2/3) = ±2.267.
        *((RISES, gains({4: [1.0, 2.0, 3.0], 8: [99.0] * 3, 16: deep}, variant="hc"), expected,
           (deep[1] - 2,))
          for deep, expected in (
              ([3.3, 4.3, 5.3], REPRODUCED), ([3.2, 4.2, 5.2], NOT_REPRODUCED),
              ([-1.2, -0.2, 0.8], NOT_REPRODUCED), ([-1.3, -0.3, 0.7], CONTRADICTED))),
        (RISES, gains({4: [1.0] * 3, 8: [2.0] * 3}, variant="hc"), NOT_MEASURED, ()),
        (RISES, gains({16: [1.0] * 3, 32: [2.0] * 3}, variant="hc"), NOT_MEASURED, ()),
        ({**RISES, "variant": "mhc"},
         gains({4: [1.0] * 3}, variant="hc") + gains({16: [9.0] * 3}), REPRODUCED, (8.0, 0.0)),
    ],
)  # fmt: skip
def test_pairs(test, rows, expected, numbers):
    check(judge(test, rows), expected, *numbers)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected", "observed"),
    [
        ([0.5, 0.52, 0.51], [0.6, 0.62, 0.61], REPRODUCED, -0.1),  # a share has no ratio
        ([0.6, 0.62, 0.61], [0.5, 0.52, 0.51], CONTRADICTED, 0.1),
        # `resnet` should be the worse one: that it diverged is no surprise, that the other did is.
        ([None] * 3, [0.5] * 3, NOT_REPRODUCED, NAN),
        ([0.5] * 3, [None] * 3, CONTRADICTED, NAN),
    ],
)
def test_shares_are_ordered_by_their_difference(ours, theirs, expected, observed):
    config = config_with(studies=("a",), a={**IMAGES, "variants": ["resnet", "mhc_causal"]})
    test = {**ORDERED, "lower": "resnet", "higher": ["mhc_causal"]}
    rows = sides(resnet=ours, mhc_causal=theirs)
    check(judge(test, rows, config=config), expected, observed)


def test_an_order_tells_who_stands_where_and_the_size_of_the_effect():
    rows = sides(mhc=powers(-0.16, -0.26, -0.36), hc=TWO, baseline=[1.0, None, 1.0])
    assert judge(ORDERED, rows)["reason"] == (
        "mhc below hc at 8 layers; not compared, diverged: baseline at 8 layers; "
        "weakest case: log10 ratio to hc at 8 layers -0.26 ± 0.25, effect -2.6 sd"
    )
    for equal in ([0.1], [0.1, 0.1, 0.1]):  # no standard deviation, or one of zero
        assert "sd" not in judge(ABOVE_HC, sides(mhc=equal, hc=TWO[: len(equal)]))["reason"]


SAME = {"kind": "same_at_equal_steps", "studies": ["a", "b"], "variants": ["mhc"], "depths": [8]}


def equal_steps(long, short, seeds_of_b=(0, 1, 2)):
    """Study a and the shorter b; a curve for each seed."""
    rows = []
    for study, curves, names in (("a", long, (0, 1, 2)), ("b", short, seeds_of_b)):
        for seed, losses in zip(names, curves, strict=True):
            rows += curve(losses, seed=seed, study=study)
    return judge(SAME, [run(), run(study="b")], steps=[rows])


def ending(start, *last):
    """Twenty losses, of which the last two are given."""
    return [start] * 18 + list(last)


@pytest.mark.parametrize(
    ("long", "short", "expected", "numbers"),
    [
        # At the ends, which differ, study a has had more steps. Means of log10 of 1.0, 1.1, 1.21
        # and of 1.1 times these: log10 1.1 apart. Both variances are log10² 1.1, so Welch has 4
        # degrees of freedom: 2.776445 · √(2/3) of the standard deviation.
        ([[4.0, 1.0, 0.1], [4.0, 1.1, 0.1], [4.0, 1.21, 0.1]],
         [[4.0, 1.1], [4.0, 1.21], [4.0, 1.331]], REPRODUCED,
         (-math.log10(1.1), 2.2669579515 * math.log10(1.1), 3)),
        # The mean of the last tenth of twenty steps: of two losses.
        ([[*ending(9.0, 1.0, 3.0), 0.1]] * 3, [ending(7.0, 3.0, 1.0)] * 3, REPRODUCED, (0.0, 0.0)),
        ([ending(9.0, 1.0, 3.0)] * 3, [ending(9.0, 3.0, 3.0)] * 3, REPRODUCED,
         (math.log10(2 / 3),)),
        ([ending(9.0, 1.0, 3.0)] * 3, [ending(9.0, 9.0, 3.0)] * 3, CONTRADICTED,
         (math.log10(1 / 3),)),
        # Alike to a factor of about two.
        ([[4.0, 1.0]] * 3, [[4.0, 1.5]] * 3, REPRODUCED, ()),
        ([[4.0, 1.0]] * 3, [[4.0, 2.5]] * 3, CONTRADICTED, ()),
        ([[4.0, 1.0]] * 3, [[4.0, 0.4]] * 3, CONTRADICTED, ()),
        ([[4.0, 0.1], [4.0, 1.0], [4.0, 9.0]], [[4.0, 9.0], [4.0, 1.0], [4.0, 0.1]],
         NOT_REPRODUCED, (0.0,)),
        ([[4.0, 1.0]] * 3, [[4.0, NAN]] * 3, NOT_REPRODUCED, (NAN,)),
    ],
)  # fmt: skip
def test_losses_at_the_same_step(long, short, expected, numbers):
    check(equal_steps(long, short), expected, *numbers)
    # A seed means other numbers where sizes differ.
    check(equal_steps(long, short, seeds_of_b=(42, 7, 1)), expected, *numbers)


AGREE = {"kind": "platforms_agree", "variants": ["mhc"], "depths": [8]}
THREE = [1.0, 2.0, 4.0]
"""Scores; of their log10 the standard deviation is log10 2, 0.301."""


def agreement(ours, theirs, **axes):
    """What a claim of torch says of these scores of torch and of another platform."""
    claim = {"tests": [{"studies": ["a"], **AGREE}]}
    away = scores({8: theirs}, **{"backend": "mlx", **axes})
    rows = claims_of(published_with(claim), frame(scores({8: ours}), away)).to_dict("records")
    return next(row for row in rows if row["decides"])


@pytest.mark.parametrize(
    ("ours", "theirs", "expected", "numbers"),
    [
        (THREE, THREE, REPRODUCED, (0.0, 0.0, 3)),
        (THREE, [1.9, 3.8, 7.6], REPRODUCED, (-math.log10(1.9),)),
        (THREE, [2.1, 4.2, 8.4], CONTRADICTED, (-math.log10(2.1),)),
        (THREE, [0.4, 0.8, 1.6], CONTRADICTED, (-math.log10(0.4),)),
        (THREE, [1.0, 6.0, 36.0], NOT_REPRODUCED, ()),
        ([None] * 3, [None] * 3, REPRODUCED, ()),  # both diverge
        (THREE, [None] * 3, CONTRADICTED, ()),
        ([None, 2.0, 4.0], THREE, CONTRADICTED, ()),
        ([*THREE, 1.0], THREE, REPRODUCED, (0.0, 0.0, 3)),
        (THREE, THREE[:1], NOT_MEASURED, ()),
    ],
)  # fmt: skip
def test_platforms_agree_within_the_spread_over_seeds(ours, theirs, expected, numbers):
    check(agreement(ours, theirs), expected, *numbers)
    # Another machine with the same backend is another platform.
    check(agreement(ours, theirs, backend="torch", machine=GPU_PLATFORM), expected, *numbers)


def test_a_machine_agrees_with_itself_whatever_bundles_say():
    row = agreement(THREE, [9.0] * 3, backend="torch", machine="cpu-test-cpu-testos")
    check(row, NOT_MEASURED)
    assert row["reason"] == "no run of a on another platform"


# --- the smallest effect that matters ------------------------------------------------------------


@pytest.mark.parametrize(
    ("less", "expected", "reason"),
    [
        # The distance from a loss of zero to chance is 4.159, of which 1 % is 0.0416.
        (0.043, REPRODUCED, "mhc below hc at 8 layers; "),
        (
            0.041,
            NOT_REPRODUCED,
            "too small to matter: hc at 8 layers (0.99 % of the distance to chance); ",
        ),
        (
            0.004,
            NOT_REPRODUCED,
            "too small to matter: hc at 8 layers (0.096 % of the distance to chance); ",
        ),
        (
            -0.041,
            NOT_REPRODUCED,
            "too small to matter: hc at 8 layers (0.99 % of the distance to chance); ",
        ),
        (-0.043, CONTRADICTED, "mhc above hc at 8 layers; "),
    ],
)
def test_an_order_of_scores_takes_a_difference_that_matters(less, expected, reason):
    """Of equal seeds, so that the interval excludes zero; what is compared is the ratio."""
    row = judge(ABOVE_HC, sides(mhc=[0.5 - less] * 3, hc=[0.5] * 3))
    check(row, expected, math.log10((0.5 - less) / 0.5))
    assert row["reason"].startswith(reason)


def test_of_one_difference_that_matters_and_one_that_does_not_both_are_told():
    rows = sides(mhc=[0.5] * 3, hc=[0.51] * 3, baseline=[0.9] * 3)
    row = judge(ORDERED, rows)
    check(row, NOT_REPRODUCED, math.log10(0.5 / 0.51))
    told = "mhc below baseline at 8 layers; too small to matter: hc at 8 layers (0.24 % of the "
    assert row["reason"].startswith(told)
    assert verdict(ORDERED, sides(mhc=[0.5] * 3, hc=[0.51] * 3, baseline=[0.3] * 3)) == CONTRADICTED
    # One seed: what is small is not known to be, whatever the spread of other seeds.
    one = sides(mhc=[0.5], hc=[0.51]) + sides(depth=4, mhc=[0.5] * 3, hc=[0.5] * 3)
    row = judge(ABOVE_HC, one)
    check(row, NOT_MEASURED)
    assert row["reason"].startswith("one seed: no verdict; too small to matter: hc at 8 layers (")


@pytest.mark.parametrize(("more", "expected"), [(0.0089, NOT_REPRODUCED), (0.0091, REPRODUCED)])
def test_a_score_of_images_has_a_distance_of_its_own(more, expected):
    """From a chance of 0.1 to 1: 1 % of it is 0.009."""
    config = config_with(studies=("a",), a={**IMAGES, "variants": ["resnet", "mhc_causal"]})
    rows = sides(resnet=[0.5] * 3, mhc_causal=[0.5 + more] * 3)
    rows = [{**row, "score_metric": "test_accuracy", "score_chance": 0.1} for row in rows]
    test = {**ORDERED, "lower": "resnet", "higher": ["mhc_causal"]}
    check(judge(test, rows, config=config), expected, -more)


@pytest.mark.parametrize(
    ("test", "metric", "far", "near"),
    [
        ({**NOT_BELOW, "metric": "score"}, "score", 0.4, 0.49),
        ({**RISES, "variant": "mhc", "than": "mhc", "metric": "score"}, "score", 0.4, 0.49),
    ],
    ids=kind_of,
)
def test_other_comparisons_of_scores_take_one_too(test, metric, far, near):
    def against(score):
        rows = sides(metric, mhc=[0.5] * 3, hc=[0.5] * 3)
        return judge(test, rows + sides(metric, 16, mhc=[score] * 3, hc=[0.5] * 3))

    check(against(far), CONTRADICTED)
    row = against(near)
    check(row, NOT_REPRODUCED)
    assert row["reason"].endswith(", too small to matter: 0.24 % of the distance to chance")


def test_platforms_differ_by_what_matters():
    check(agreement([0.5] * 3, [0.45] * 3), CONTRADICTED)
    row = agreement([0.5] * 3, [0.49] * 3)
    check(row, NOT_REPRODUCED)
    assert row["reason"].endswith(", too small to matter: 0.24 % of the distance to chance")


# --- what cannot be tested this way --------------------------------------------------------------

STREAMS = {"stream_difference_max": 0.03, "amax_forward_log10_final": 0.001}
"""Copies of each other, under rows that sum to one."""


def of_streams(ours, theirs, other="hc", config=None, **changes):
    """The test that mhc is below another variant, its runs with these metrics of streams."""
    rows = [
        run(variant=variant, seed=seed, score=score + seed / 100, gain_final=score, **metrics)
        for variant, score, metrics in (("mhc", 0.5, ours), (other, 1.0, theirs))
        for seed in range(3)
    ]
    return judge({**ABOVE_HC, "higher": [other], **changes}, rows, config=config)


@pytest.mark.parametrize(
    ("ours", "theirs", "is_told"),
    [
        ({}, {}, False),
        ({"stream_difference_max": 0.05}, {"stream_difference_max": 0.9}, False),  # one is enough
        ({"stream_difference_max": 0.9}, {}, False),
        ({"stream_difference_max": 0.051}, {"stream_difference_max": 0.9}, True),
        ({}, {"amax_forward_log10_final": -0.3}, False),
        # An H_res that makes a signal larger does so to copies, too.
        ({}, {"amax_forward_log10_final": 0.31}, True),
        ({}, {"amax_forward_log10_final": -0.31}, True),
        ({}, {"amax_forward_log10_final": NAN}, True),
        # Copies, under rows that do not sum to one.
        ({"amax_forward_log10_final": 0.005}, {"amax_forward_log10_final": 0.005}, True),
        ({"stream_difference_max": NAN}, {"stream_difference_max": NAN}, True),
    ],
)
def test_H_res_of_streams_that_are_copies_orders_nothing(ours, theirs, is_told):
    row = of_streams({**STREAMS, **ours}, {**STREAMS, **theirs})
    check(row, REPRODUCED if is_told else NOT_MEASURED)
    assert is_told or row["reason"] == (
        "cannot be tested this way: mhc and hc at 8 layers differ in H_res alone, where streams "
        "are copies of each other"
    )


FIVE = {"connection": "mhc", "H_res": {"iterations": 5}}


@pytest.mark.parametrize(
    ("other", "changes", "expected"),
    [
        (FIVE, {}, NOT_MEASURED),
        ({**FIVE, "close": "sum"}, {}, REPRODUCED),
        ({**FIVE, "steps": 4}, {}, REPRODUCED),
        ("baseline", {}, REPRODUCED),
        (FIVE, {"metric": "gain_final"}, REPRODUCED),  # whatever the streams do
    ],
)
def test_every_setting_is_looked_at(other, changes, expected):
    config = config_with(a={"variants": ["mhc", {"other": other}]})
    check(of_streams(STREAMS, STREAMS, other="other", config=config, **changes), expected)


def test_one_seed_of_streams_that_differ_is_enough_to_compare():
    rows = [run(variant=v, seed=s, score=x + s / 100, **STREAMS)
            for v, x in (("mhc", 0.5), ("hc", 1.0)) for s in range(3)]  # fmt: skip
    assert verdict(ABOVE_HC, rows) == NOT_MEASURED
    for row in rows[::3]:
        row["stream_difference_max"] = 0.5
    assert verdict(ABOVE_HC, rows) == REPRODUCED


def test_what_cannot_be_told_keeps_the_rest_from_holding_and_not_from_failing():
    copies = [run(variant=v, seed=s, score=0.5 + s / 100, **STREAMS)
              for v in ("mhc", "hc") for s in range(3)]  # fmt: skip
    for score, expected in ((1.0, NOT_MEASURED), (0.1, CONTRADICTED)):
        row = judge(ORDERED, copies + sides(baseline=[score, score + 0.01, score + 0.02]))
        check(row, expected)
        assert "; cannot be tested this way: mhc and hc at 8 layers differ" in row["reason"]


EXACT = {"base_diagonal_final": 1.0, "base_row_error_final": 0.0, "base_column_error_final": 0.0}
GATE = {"kind": "between", "variant": "mhc", "metric": "gate_first_final", "high": 0.5}


def gates(*values, variant="mhc", **base):
    rows = seeds("gate_first_final", list(values), variant=variant)
    return [{**row, **EXACT, **base} for row in rows]


@pytest.mark.parametrize(
    ("test", "base", "expected"),
    [
        (GATE, {}, NOT_MEASURED),
        (GATE, {"base_diagonal_final": 1 - 1e-7}, REPRODUCED),
        (GATE, {"base_row_error_final": 1e-9}, REPRODUCED),
        (GATE, {"base_column_error_final": 1e-9}, REPRODUCED),
        (GATE, {"base_diagonal_final": NAN}, REPRODUCED),
        ({**GATE, "metric": "base_row_error_final"}, {}, NOT_MEASURED),
        ({**GATE, "metric": "base_diagonal_final", "high": 1.5}, {}, REPRODUCED),  # it can move
    ],
)
def test_a_gate_on_the_identity_and_its_errors_are_not_tested(test, base, expected):
    row = judge(test, gates(0.1, 0.2, 0.3, **base))
    check(row, expected)
    assert expected == REPRODUCED or row["reason"] == (
        "cannot be tested this way: H_res of mhc is exactly the identity"
    )


def test_what_is_said_to_come_from_H_res_is_not_tested_where_it_is_the_identity():
    rows = gains({8: [1.0, 2.0, 3.0], 16: [11.0, 12.0, 13.0]})
    test = {**RISES, "variant": "mhc", "than": "mhc"}
    for base, of_mixing, expected in (
        (EXACT, False, REPRODUCED),
        (EXACT, True, NOT_MEASURED),
        ({**EXACT, "base_diagonal_final": 0.9}, True, REPRODUCED),
    ):
        row = judge({**test, "of_mixing": of_mixing}, [{**row, **base} for row in rows])
        check(row, expected)
    reason = "cannot be tested this way: H_res of mhc is exactly the identity"
    assert judge({**test, "of_mixing": True}, [{**r, **EXACT} for r in rows])["reason"] == reason


def test_runs_on_the_identity_are_left_out_and_others_are_tested():
    idle = [{**run_, "seed": 3 + n} for n, run_ in enumerate(gates(0.9, 0.9))]
    row = judge(GATE, gates(0.1, 0.2, 0.3, base_diagonal_final=0.5), idle)
    check(row, REPRODUCED)
    assert row["reason"].startswith("3 of 3 runs ")
    ordered = {**ABOVE_HC, "metric": "gate_first_final", "by": "difference"}
    row = judge(ordered, gates(0.1, 0.2, 0.3), gates(0.5, 0.6, 0.7, variant="hc"))
    assert (
        row["reason"] == ("cannot be tested this way: H_res of hc and mhc is exactly the identity")
        or row["reason"] == "cannot be tested this way: H_res of mhc and hc is exactly the identity"
    )


def ran(**losses):
    """(runs of three seeds, their steps) of variants with these curves, a factor for each seed."""
    cells, steps = [], []
    for (variant, curve_), seed in itertools.product(losses.items(), range(3)):
        final = curve_[-1] * (1 + seed / 100)
        cells.append(run(variant=variant, seed=seed, score=final, loss_final=final))
        steps += curve([x * (1 + seed / 100) for x in curve_], variant, seed=seed)
    return cells, steps


def test_a_run_is_not_tested_against_its_equal():
    same, steps = ran(mhc=[3.0, 0.5], hc=[3.0, 0.5])
    for test in (
        ABOVE_HC, {**NOT_BELOW, "metric": "loss_final"}, {**VARIES, "metric": "loss_final"}
    ):  # fmt: skip
        row = judge(test, same, steps=[steps])
        check(row, NOT_MEASURED)
        assert row["reason"].startswith("cannot be tested this way: mhc and hc")
        assert "are one run: equal at every step to the last bit" in row["reason"]


@pytest.mark.parametrize(
    "theirs",
    [[3.0, math.nextafter(0.5, 1)], [math.nextafter(3.0, 4), 0.5], [3.0, 0.5, 0.5]],
    ids=["last", "first", "longer"],
)
def test_runs_that_differ_in_a_bit_are_two(theirs):
    cells, steps = ran(mhc=[3.0, 0.5], hc=theirs)
    assert verdict(ABOVE_HC, cells, steps=[steps]) == NOT_REPRODUCED


@pytest.mark.parametrize("curves", [[NAN, NAN], [3.0, NAN], [3.0]], ids=str)
def test_without_two_finite_losses_runs_are_not_known_to_be_equal(curves):
    cells, steps = ran(mhc=curves, hc=curves)
    events = [{**cell, "nonfinite_total": 0} for cell in cells]
    row = judge(NO_EVENTS, events, steps=[steps])
    assert "of 6 runs" in row["reason"]


def test_equal_runs_are_equal_at_one_seed_depth_study_and_platform():
    cells, steps = ran(mhc=[3.0, 0.5])
    for axes in ({"depth": 4}, {"study": "b"}, {"backend": "mlx"}):
        others = [{**row, "variant": "hc", **axes} for row in cells]
        again = [{**row, "variant": "hc", **axes} for row in steps]
        if "backend" in axes:
            others = [{**row, "platform": "mlx"} for row in others]
            again = [{**row, "platform": "mlx"} for row in again]
        table = frame(cells, others)
        assert first_of_same(table, frame(steps, again)).tolist() == table["variant"].tolist()
    other_seed = [{**row, "variant": "hc", "seed": row["seed"] + 1} for row in steps]
    others = [{**row, "variant": "hc", "seed": row["seed"] + 1} for row in cells]
    table = frame(cells, others)
    assert first_of_same(table, frame(steps, other_seed)).tolist() == table["variant"].tolist()


def test_runs_that_are_equal_count_once():
    cells, steps = ran(mhc=[3.0, 0.5], hc=[3.0, 0.5], baseline=[3.0, 1.0])
    shuffled = steps[:2][::-1] + steps[2:]  # steps are taken in order
    three = ["mhc", "hc", "baseline"]
    row = judge({**NO_EVENTS, "variants": three}, cells, steps=[shuffled])
    assert row["reason"] == "0 events in 18 steps of 6 runs"
    row = judge({**ORDERED, "lower": "baseline", "higher": ["mhc", "hc"]}, cells, steps=[steps])
    check(row, CONTRADICTED)
    assert row["reason"].startswith("baseline above mhc at 8 layers; weakest case")
    assert row["reason"].endswith("; the same run as another, and counted once: hc at 8 layers")
    cells = [{**row, "gain_final": n % 3 + row["score"]} for n, row in enumerate(cells)]
    row = judge({**CORRELATES, "variants": three}, cells, steps=[steps])
    assert "over 6 runs" in row["reason"]


def test_a_variant_that_is_equal_at_some_seeds_keeps_all_of_its_own():
    cells, steps = ran(mhc=[3.0, 0.5], hc=[3.0, 0.5])
    steps[-1]["loss"] += 0.1
    row = judge(NO_EVENTS, cells, steps=[steps])
    check(row, REPRODUCED, seeds=3)
    assert row["reason"] == "0 events in 18 steps of 6 runs"
    for other in (ABOVE_HC, {**NOT_BELOW, "metric": "loss_final"}):
        assert verdict(other, cells, steps=[steps]) != NOT_MEASURED


@pytest.mark.parametrize("metric", ["seconds", "seconds_per_step"])
def test_a_time_decides_nothing(metric):
    row = judge({**ABOVE_HC, "metric": metric}, sides(metric, mhc=[1.0] * 3, hc=[2.0] * 3))
    check(row, NOT_MEASURED)
    assert row["reason"] == "runs do not record whether they had their machine to themselves"


# --- a device ------------------------------------------------------------------------------------

METAL = "gpu-apple-m4-darwin"


@pytest.mark.parametrize(
    ("machine", "device"),
    [
        (GPU_PLATFORM, "cuda"), (CPU_PLATFORM, "cpu"), (METAL, "metal"),
        ("mps-apple-m4-darwin", "metal"), ("gpu-nvidia-h100-linux", "cuda"),
    ],
)  # fmt: skip
def test_a_machine_says_its_device(machine, device):
    assert device_of(machine) == device


def test_a_claim_about_a_device_takes_runs_on_it():
    on_cuda = fails(device="cuda")
    row = verdict_of(on_cuda, ended(*LOST))
    assert (row["verdict"], row["elsewhere"], row["tests"]) == (NOT_MEASURED, "", 0)
    table = claims_of(published_with(on_cuda), frame(ended(*LOST)))
    assert table["reason"].tolist() == ["no run of a on CUDA"]
    both = [*ended(*LEARNED), *ended(*LOST, machine=GPU_PLATFORM)]
    assert verdict_of(on_cuda, both)["verdict"] == REPRODUCED
    assert verdict_of(fails(), both)["verdict"] == CONTRADICTED
    assert verdict_of(fails(device="metal"), both)["verdict"] == NOT_MEASURED


def test_steps_of_another_device_do_not_count_either():
    rising, falling_ = [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]
    cells, steps = norms(falling_, falling_, falling_)
    for row in cells:
        row["machine"] = GPU_PLATFORM
    others, others_steps = norms(rising, rising, rising, depth=4)
    claim = {"tests": [{"studies": ["a"], **MONOTONE, "depths": None}], "device": "cuda"}
    table = claims_of(published_with(claim), frame(cells, others), frame(steps, others_steps))
    assert table["verdict"].tolist() == [REPRODUCED]


@pytest.mark.parametrize(
    ("other", "machine", "said"),
    [
        ({}, "", ""),
        ({"other_device": "metal"}, METAL, ""),
        ({"other_device": "metal"}, "", " on Metal"),
        ({"other_device": "cuda"}, METAL, " on CUDA"),
        ({"other_backend": "mlx", "other_device": "metal"}, METAL, ""),
        ({"other_backend": "torch", "other_device": "metal"}, METAL, " on PyTorch on Metal"),
        ({"other_backend": "torch"}, METAL, " on PyTorch"),
    ],
)
def test_the_other_platform_is_what_is_asked_for(other, machine, said):
    claim = {"tests": [{"studies": ["a"], **AGREE, **other}], "device": "cuda"}
    here = scores({8: THREE}, machine=GPU_PLATFORM)
    away = scores({8: THREE}, backend="mlx", machine=machine)
    (row,) = claims_of(published_with(claim), frame(here, away)).to_dict("records")
    check(row, NOT_MEASURED if said else REPRODUCED)
    assert not said or row["reason"] == f"no run of a{said}"


# --- relations -----------------------------------------------------------------------------------

LINE = {"kind": "line_in_depth", "variant": "mhc", "metrics": ["gain_final", "gain_first"]}
CORRELATES = {"kind": "correlates", "variants": ["hc", "mhc"], "at_least": 0.5,
              "metrics": ["loss_final", "gain_final"]}  # fmt: skip
# About depth 28/3 and gain 5: Sxx = 224/3, Sxy = 44, Syy = 26, so R² is 44²/(26·224/3) = 0.9973;
# one degree of freedom is left.
BENT, BENT_SLOPE = gains({4: [2.0], 8: [4.0], 16: [9.0]}), 44 / (224 / 3)
BENT_HALF = T975[1] * math.sqrt((26 - 44 * BENT_SLOPE) / (224 / 3))


def points(*pairs):
    """Runs with these pairs of loss and gain, of two variants in turn."""
    return [
        run(variant=("hc", "mhc")[n % 2], seed=n // 2, loss_final=x, gain_final=y)
        for n, (x, y) in enumerate(pairs)
    ]


LINE_OF_TEN = [(n, n + 0.1 * (-1) ** n) for n in range(10)]


@pytest.mark.parametrize(
    ("test", "rows", "expected", "numbers"),
    [
        (LINE, gains({4: [2.0, 2.1], 8: [4.0, 4.1], 16: [8.0, 8.1]}), REPRODUCED, (0.5,)),
        (LINE, gains({4: [8.0, 8.1], 8: [4.0, 4.1], 16: [0.0, 0.1]}), CONTRADICTED, ()),
        (LINE, gains({4: [1.0] * 3, 8: [1.0] * 3, 16: [1.0] * 3}), CONTRADICTED, (0.0, 0.0)),
        # Like the square root of depth: R² is 0.977.
        (LINE, gains({4: [2.0] * 3, 16: [4.0] * 3, 64: [8.0] * 3}), NOT_REPRODUCED, ()),
        (LINE, gains({4: [1.0, 5.0], 8: [5.0, 1.0], 16: [1.0, 5.1]}), NOT_REPRODUCED, ()),
        (LINE, BENT, REPRODUCED, (BENT_SLOPE, BENT_HALF)),
        ({**LINE, "r_squared": 0.998}, BENT, NOT_REPRODUCED, ()),
        (LINE, gains({4: [2.0], 8: [4.0]}) + gains({16: [8.0]}, metric="gain_first"),
         REPRODUCED, (0.5,)),
        (LINE, gains({4: [2.0], 8: [4.0]}), NOT_MEASURED, ()),
        (LINE, gains({4: [2.0], 8: [4.0], 16: [None]}), NOT_MEASURED, ()),
        (LINE, gains({4: [2.0], 8: [4.0, 4.1]}), NOT_MEASURED, ()),
        (LINE, gains({4: [2.0], 8: [4.0], 16: [8.0]})
         + gains({4: [9.0], 8: [0.0], 16: [-9.0]}, variant="hc"), REPRODUCED, (0.5,)),
        (CORRELATES, points(*LINE_OF_TEN), REPRODUCED, ()),
        (CORRELATES, points(*((x, -y) for x, y in LINE_OF_TEN)), CONTRADICTED, ()),
        (CORRELATES, points(*((n, n % 3) for n in range(10))), NOT_REPRODUCED, ()),
        (CORRELATES, points(*LINE_OF_TEN[:3]), NOT_MEASURED, ()),
        (CORRELATES, points(*((n, 1.0) for n in range(10))), NOT_MEASURED, ()),
        (CORRELATES, points(*((n, None) for n in range(10))), NOT_MEASURED, ()),
    ],
)  # fmt: skip
def test_relations(test, rows, expected, numbers):
    check(judge(test, rows), expected, *numbers)


def test_the_interval_of_a_correlation_by_hand():
    """r = 4/5; atanh 0.8 = 1.0986, and ±1.96 / √(4 − 3): tanh of −0.861 and of 3.059."""
    row = judge(CORRELATES, points((1, 1), (2, 3), (3, 2), (4, 4)))
    check(row, NOT_REPRODUCED, 0.8)
    assert row["reason"] == "correlation 0.8 over 4 runs, from -0.7 to 1; needed: 0.5"


# --- what more seeds may decide ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "rows", "undecided"),
    [
        (ABOVE_HC, sides(mhc=[1.0, 0.5, 2.0], hc=[1.1, 1.2, 1.0]), True),
        (ABOVE_HC, sides(mhc=[0.5] * 3, hc=[1.0] * 3), False),
        (ABOVE_HC, sides(mhc=[1.0] * 3, hc=[0.5] * 3), False),
        # Too small to matter, equal, and not compared: of these more seeds tell nothing new.
        (ABOVE_HC, sides(mhc=[0.49] * 3, hc=[0.5] * 3), False),
        (ABOVE_HC, sides(mhc=[0.5] * 3, hc=[0.5] * 3), False),
        (BY_DIFFERENCE, sides("gain_final", mhc=[1.0] * 3, hc=[NAN] * 3), False),
        # One comparison of two that is known to be small keeps the order from holding.
        (ORDERED, sides(mhc=[1.0, 0.5, 2.0], hc=[1.1, 1.2, 1.0], baseline=[1.0, 0.5, 2.0]), False),
        (RISES, gains({8: [1.0, 2.0, 3.0], 16: [1.0, 2.0, 6.0]}, variant="hc"), True),
        (NEAR, gains({8: [-0.6, -0.6, 9.0]}), False),  # runs, counted one by one
        (VARIES, sides("gain_final", mhc=[1.0, 2.0, 3.0, 4.0], hc=[1.0, 2.0, 3.0, 4.5]), True),
        (LINE, gains({4: [1.0, 5.0], 8: [5.0, 1.0], 16: [1.0, 5.1]}), True),
        (LINE, gains({4: [2.0] * 3, 16: [4.0] * 3, 64: [8.0] * 3}), False),  # it rises, and bends
        (CORRELATES, points((1, 1), (2, 3), (3, 2), (4, 4)), True),
    ],
)
def test_what_intervals_that_reach_both_sides_leave_open(test, rows, undecided):
    row = judge(test, rows)
    assert row["undecided"] == undecided, row["reason"]
    assert not undecided or row["verdict"] == NOT_REPRODUCED


# --- what was not measured -----------------------------------------------------------------------

KINDS = [
    LINE, NEAR, AT_MOST, FAILS, AT_ONCE, NO_EVENTS, BELOW, ABOVE, ORDERED, FALLS, MONOTONE,
    CONSTANT, SAME, REACHES, RISES,
]  # fmt: skip
OF_SEEDS = [VARIES, NOT_BELOW, CORRELATES, AGREE]
"""The kinds that one seed says nothing to."""


def test_every_kind_is_tested_here():
    assert {test["kind"] for test in [*KINDS, *OF_SEEDS]} == set(RULES)


@pytest.mark.parametrize("test", [*KINDS, *OF_SEEDS], ids=kind_of)
def test_without_its_cells_a_test_is_not_measured(test):
    """Runs of another study do not count, and none that are stale: these have no steps."""
    row = judge(test, run(study="c"), steps=[curve([1.0], study="c")])
    check(row, NOT_MEASURED, NAN)
    assert row["reason"].startswith("no run of ")
    assert pd.isna(row["rests_on"])
    assert pd.isna(row["confidence"])
    rows = [
        run(variant=v, depth=d, status="stale", loss_final=1.0, gain_final=1.0, study=s)
        for v in ("baseline", "hc", "mhc")
        for d in (4, 8, 16)
        for s in ("a", "b")
    ]
    assert verdict(test, rows) == NOT_MEASURED


@pytest.mark.parametrize(
    ("test", "there"),
    [
        ({**NEAR, "depths": [4, 8]}, [("mhc", 4)]),
        ({**FAILS, "depths": [4, 8]}, [("hc", 4)]),
        ({**AT_ONCE, "depths": [4, 8]}, [("hc", 4)]),
        (NO_EVENTS, [("mhc", 8)]),
        ({**BELOW, "depths": [4, 8]}, [("mhc", 4)]),
        ({**BELOW, "variants": ["hc", "mhc"]}, [("mhc", 8)]),
        ({**BELOW, "depths": [4, 8], "variants": ["hc", "mhc"]},
         [("mhc", 4), ("mhc", 8), ("hc", 4)]),
        (ORDERED, [("mhc", 8), ("hc", 8)]),
        (ORDERED, [("baseline", 8), ("hc", 8)]),
        ({**ABOVE_HC, "depths": [4, 8]}, [("mhc", 4), ("hc", 4)]),
        ({**MONOTONE, "depths": [4, 8]}, [("mhc", 4)]),
        ({**SAME, "studies": ["a", "c"]}, [("mhc", 8)]),
        ({**SAME, "studies": ["a", "a"], "depths": [4, 8]}, [("mhc", 4)]),
    ],
    ids=kind_of,
)  # fmt: skip
def test_with_some_of_its_cells_missing_a_test_is_not_measured(test, there):
    """Or "all three variants converge" would be reproduced by one of them."""
    cells, steps = [], []
    for (variant, depth), seed in itertools.product(there, range(3)):
        cells.append(run(variant, depth, seed, loss_final=0.01, gain_final=-0.6))
        steps += curve([3.0, 2.0, 1.0], variant, depth, seed)
    assert verdict(test, cells, steps=[steps]) == NOT_MEASURED


def test_with_no_run_at_all_every_claim_has_a_line():
    published = published_with(
        {}, {"untested": "nothing compiles it"},
        *({"tests": [{"studies": ["a"], **test}]} for test in KINDS),
    )  # fmt: skip
    table = claims_of(published, frame(run(status="missing", platform="")))
    assert table["verdict"].tolist() == [NOT_MEASURED] * (len(KINDS) + 2)
    assert table["reason"].tolist()[:2] == [
        "what it needs is not part of this project yet",
        "nothing compiles it",
    ]


# --- from tests to a verdict ---------------------------------------------------------------------


def fails(**settings):
    return {"tests": [{"studies": ["a"], **FAILS}], **settings}


def fails_in(*studies, **settings):
    return {"tests": [{"studies": [study], **FAILS} for study in studies], **settings}


def verdict_of(claim, *rows, steps=NO_STEPS, config=None):
    """The claim's row of verdicts.csv."""
    table = claims_of(published_with(claim), frame(*rows), steps, config)
    (row,) = verdicts_table(table).to_dict("records")
    return row


def away(*outcomes, **axes):
    return ended(*outcomes, backend="mlx", **axes)


ONE_SEED = {"tests": [{"studies": ["a"], **FAILS, "seeds": 1}]}


@pytest.mark.parametrize(
    ("claim", "rows", "expected"),
    [
        # At home only the source's backend decides; a source without one is decided everywhere.
        (fails(), ended(*LOST) + away(*LEARNED), (REPRODUCED, "", CONTRADICTED, 1)),
        (fails(scope="everywhere"), ended(*LOST) + away(*LEARNED), (CONTRADICTED, "", "", 2)),
        (fails(source="elsewhere"), ended(*LOST) + away(*LEARNED), (CONTRADICTED, "", "", 2)),
        (fails(), away(*LOST), (NOT_MEASURED, "", REPRODUCED, 0)),
        (fails(), ended(*LOST) + away(*LOST), (REPRODUCED, "", "", 1)),
        # Every machine of the home backend decides, by itself.
        (fails(), ended(*LOST) + ended(*LEARNED, machine=GPU_PLATFORM),
         (CONTRADICTED, "", "", 2)),
        # Elsewhere counts where all tests were made: of two on MLX, one is contradicted.
        (fails_in("a", "b"), ended(*LOST) + ended(*LOST, study="b") + away(*["at chance"] * 3)
         + away(*LEARNED, study="b"), (REPRODUCED, "", CONTRADICTED, 2)),
        (fails_in("a", "b"), ended(*LOST) + ended(*LOST, study="b") + away(*LEARNED),
         (REPRODUCED, "", "", 2)),
        # All tests must hold. One was made nowhere, or away from home; or one fails.
        *((fails_in("a", other), ended(*LOST) + away(*LOST, study="b"),
           (NOT_MEASURED, "the tests that could be run hold", "", 1)) for other in ("b", "c")),
        (fails_in("a", "c"), ended(*LEARNED), (CONTRADICTED, "in part", "", 1)),
        # Fewer than three seeds are said, and another scale.
        (ONE_SEED, ended("diverged"), (REPRODUCED, "one seed", "", 1)),
        (ONE_SEED, ended("diverged", "diverged"), (REPRODUCED, "2 seeds", "", 1)),
        (ONE_SEED, ended(*LOST), (REPRODUCED, "", "", 1)),
        ({**ONE_SEED, "scale": {"width": 256}}, ended("diverged"),
         (REPRODUCED, "at another scale, one seed", "", 1)),
        (fails(scale={"width": 256}), [run(study="c")], (NOT_MEASURED, "", "", 0)),
        ({"tests": [*fails()["tests"], {"studies": ["b"], **FAILS, "seeds": 1}]},
         ended(*LOST) + ended("diverged", study="b"), (REPRODUCED, "one seed", "", 2)),
    ],
)  # fmt: skip
def test_a_verdict_with_its_qualifier_and_what_holds_elsewhere(claim, rows, expected):
    row = verdict_of(claim, rows)
    assert (row["verdict"], row["qualifier"], row["elsewhere"], row["tests"]) == expected


def test_a_claim_is_undecided_if_all_that_is_not_reproduced_is():
    wide, small = [1.0, 0.5, 2.0], [1.0] * 3
    tests = [{"studies": [study], **ABOVE_HC} for study in ("a", "b")]
    for of_b, expected in (([2.0] * 3, "undecided"), (wide, "undecided"), ([1.001] * 3, "")):
        rows = [sides(mhc=wide, hc=[1.1, 1.2, 1.0])]
        rows += [[{**row, "study": "b"} for row in sides(mhc=small, hc=of_b)]]
        row = verdict_of({"tests": tests}, *rows)
        assert (row["verdict"], row["qualifier"]) == (NOT_REPRODUCED, expected)


def test_all_tests_must_hold_whatever_their_order():
    worst_first = [CONTRADICTED, NOT_REPRODUCED, NOT_MEASURED, REPRODUCED]
    for pair_of in itertools.product(worst_first, repeat=2):
        assert combine_verdicts(pair_of) == min(pair_of, key=worst_first.index)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdicts"),
    [
        (LOST, LEARNED, (REPRODUCED, CONTRADICTED)),
        (LEARNED, LOST, (CONTRADICTED, REPRODUCED)),
        (LOST, [], (REPRODUCED, NOT_MEASURED)),
        ([], LOST, (NOT_MEASURED, REPRODUCED)),
    ],
)
def test_a_control_is_judged_beside_and_decides_nothing(ours, theirs, verdicts):
    rows = frame(ended(*ours), ended(*theirs, study="b"))
    table = claims_of(published_with(fails(control="b")), rows)
    (row,) = verdicts_table(table).to_dict("records")
    assert (row["verdict"], row["control"]) == verdicts
    assert (row["studies"], row["control_study"], row["elsewhere"]) == ("a", "b", "")
    assert table["control"].tolist() == [False, True]
    assert table["decides"].tolist() == [True, False]


def test_a_control_of_which_one_test_was_not_made_says_nothing():
    """Its verdict would be of other tests than the one that it stands beside."""
    both = fails(control="b")
    both["tests"] = [*both["tests"], {"studies": ["a"], **NO_EVENTS, "variants": ["mhc"]}]
    lost = [*ended(*LOST), *ended(*LOST, study="b"), *events(0, 0, 0)]
    assert verdict_of(both, lost)["control"] == NOT_MEASURED
    assert verdict_of(both, lost, events(0, 0, 0, study="b"))["control"] == REPRODUCED
    for absent in (None, "no-such-study"):
        row = verdict_of(fails(control=absent), ended("diverged"))
        assert (row["control"], row["control_study"]) == ("", "")


# --- what a verdict rests on ---------------------------------------------------------------------

BASES = {
    "line_in_depth": "interval over runs", "correlates": "interval over runs",
    "fails": "count of runs", "diverges_at_once": "count of runs", "no_events": "count of runs",
    "monotone": "count of steps", "constant": "count of steps",
}  # fmt: skip
"""Kinds that rest on something else than an interval over seeds."""
COUNTED = {
    "near": (REPRODUCED, NOT_REPRODUCED), "between": (REPRODUCED, NOT_REPRODUCED),
    "reaches": (REPRODUCED,),
}  # fmt: skip
"""Kinds whose verdict may be of every run, or of some run."""

CELLS = list(itertools.product("ab", ("baseline", "hc", "mhc"), (4, 8, 16)))
"""Study, variant and depth of every cell that KINDS and OF_SEEDS ask for."""


def every_cell(seeds_, backends=("torch", "mlx")):
    return [
        run(
            variant, depth, seed, study, backend,
            loss_final=1.0 + 0.01 * seed, gain_final=0.5 * depth + seed,
            grad_norm_first=2.0, grad_norm_final=1.0,
        )
        for (study, variant, depth), seed in itertools.product(CELLS, range(seeds_))
        for backend in backends
    ]  # fmt: skip


def every_step(seeds_):
    return [
        unlike_others(curve([3.0, 2.0, 1.0], variant, depth, seed, study))
        for (study, variant, depth), seed in itertools.product(CELLS, range(seeds_))
    ]


@pytest.mark.parametrize("test", [*KINDS, *OF_SEEDS], ids=kind_of)
def test_each_test_says_what_it_rests_on_and_at_what_confidence(test):
    published = published_with({"tests": [{"studies": ["a"], **test}]})
    row = claims_of(published, frame(*every_cell(5)), frame(*every_step(5))).iloc[0]
    assert row["verdict"] != NOT_MEASURED
    expected = BASES.get(test["kind"], "interval over seeds")
    one_by_one = row["verdict"] in COUNTED.get(test["kind"], ())
    assert row["rests_on"] == ("count of runs" if one_by_one else expected)
    assert (row["confidence"] == 0.95) == ("interval" in row["rests_on"])


# --- one seed decides nothing --------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "test",
    [t for t in [*KINDS, *OF_SEEDS, {**REACHES, "value": 99}] if t not in (LINE, CORRELATES)],
    ids=kind_of,
)
def test_too_few_seeds_give_no_verdict(test, count):
    """But what can happen is shown by one run in which it does."""
    published = published_with({"tests": [{"studies": ["a"], **test}]})
    table = claims_of(published, frame(*every_cell(count)), frame(*every_step(count)))
    assert set(table["verdict"]) == {REPRODUCED if test == REACHES else NOT_MEASURED}
    if test in (AT_MOST, FAILS, NO_EVENTS, ABOVE_HC, BELOW):
        words = f"{'one seed' if count == 1 else '2 seeds'}: no verdict"
        assert table["reason"].str.startswith(words).all()


@pytest.mark.parametrize(("value", "expected"), [(-0.65, REPRODUCED), (0.5, CONTRADICTED)])
def test_a_verdict_of_one_seed_has_no_confidence(value, expected):
    row = judge({**NEAR, "seeds": 1}, run(gain_final=value))
    check(row, expected, seeds=1)
    assert (row["rests_on"], str(row["confidence"])) == ("no interval", "nan")


def test_one_run_at_a_depth_is_no_verdict_on_the_others_either():
    row = judge(NEAR, gains({4: [-0.6, -0.6, -0.6, -0.55], 8: [-0.6]}))
    check(row, NOT_MEASURED, seeds=1)
    # But three seeds that are far off contradict, whatever one seed says.
    assert verdict(NEAR, gains({4: [5.0] * 3, 8: [-0.6]})) == CONTRADICTED


SEED_SD = [-0.1, 0.0, 0.1]
"""Seeds of a cell, with a standard deviation of 0.1: ten times that is 1."""


@pytest.mark.parametrize(
    ("mine", "expected"),
    [(-1.1, REPRODUCED), (-0.9, NOT_MEASURED), (0.9, NOT_MEASURED), (1.1, CONTRADICTED)],
)
@pytest.mark.parametrize("axes", [{"depth": 4}, {"backend": "mlx"}], ids=str)
def test_one_seed_counts_where_the_difference_is_of_another_order(mine, expected, axes):
    """Ten times the largest spread between seeds of the study, at any depth and platform."""
    claim = {"tests": [{"studies": ["a"], **BY_DIFFERENCE}]}
    cells = [*pair([mine], [0.0]), *seeds("gain_final", SEED_SD, variant="hc", **axes)]
    rows = claims_of(published_with(claim), frame(cells)).to_dict("records")
    assert [row["verdict"] for row in rows if row["decides"]] == [expected]
    row = verdict_of(claim, cells)
    assert row["qualifier"] == ("" if expected == NOT_MEASURED else "one seed")


@pytest.mark.parametrize("other", [{"study": "b", "variant": "hc"}, {"variant": "baseline"}])
def test_the_spread_of_other_studies_and_variants_says_nothing(other):
    spread = seeds("gain_final", SEED_SD, depth=4, **other)
    assert verdict(BY_DIFFERENCE, pair([-9.0], [0.0]), spread) == NOT_MEASURED


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [("diverged", CONTRADICTED), ("at chance", CONTRADICTED), ("learned", NOT_MEASURED)],
)
def test_one_run_that_fails_is_enough_against_convergence(outcome, expected):
    row = judge({**BELOW, "variants": ["hc"]}, ended(outcome))
    check(row, expected, seeds=1)


# --- minimum scale -------------------------------------------------------------------------------

NEAR_RUNS = gains({4: [-0.6] * 3, 8: [-0.6] * 3, 16: [5.0] * 3})


def of_scale(minimum, test=NEAR, rows=NEAR_RUNS, scale=None):
    """The row of a claim about studies with 4, 8, 16 layers, width 16 and 3 steps."""
    claim = {"minimum_scale": minimum, "scale": scale or {}, "tests": [{"studies": ["a"], **test}]}
    (row,) = claims_of(published_with(claim), frame(*rows)).to_dict("records")
    return row


@pytest.mark.parametrize(
    ("minimum", "of_test", "scale", "reason"),
    [
        ({"depth": 50}, {}, {"depth": 100}, "16 layers cannot speak for 100"),
        ({"depth": 17}, {}, {}, "16 layers cannot speak for 17 or more"),
        ({"width": 32}, {}, {"width": 256}, "width 16 cannot speak for 256"),
        ({"steps": 4, "width": 17}, {}, {"steps": 800, "width": 64},
         "steps 3 cannot speak for 800, width 16 cannot speak for 64"),
        ({"batch_size": 16}, {}, {"batch_size": {8: 32}},
         "batch_size 8 cannot speak for 16 or more"),
        ({"width": 16, "steps": 3}, {"width": 64}, {}, "width 16 cannot speak for 64 or more"),
        ({"depth": 16, "width": 16, "steps": 3, "batch_size": 8, "streams": 4}, {}, {}, ""),
        ({"width": 64}, {"width": 16}, {}, ""),  # a test's own stands before the claim's
    ],
)  # fmt: skip
def test_below_its_minimum_scale_a_claim_is_not_measured(minimum, of_test, scale, reason):
    row = of_scale(minimum, {**NEAR, "minimum_scale": of_test}, scale=scale)
    check(row, NOT_MEASURED if reason else CONTRADICTED)
    assert not reason or row["reason"] == reason


@pytest.mark.parametrize(
    ("recipe", "steps", "reason"),
    [
        ("mlx-defaults", {"mlx-defaults": 3, "torch-defaults": 4}, ""),
        ("torch-defaults", {"mlx-defaults": 3, "torch-defaults": 4}, "steps 3 cannot speak for 4"),
        # A recipe without a number has the largest.
        ("mlx-defaults", {"torch-defaults": 4}, "steps 3 cannot speak for 4"),
        ("nanochat", {"mlx-defaults": 3, "torch-defaults": 4}, "steps 3 cannot speak for 4"),
    ],
)
def test_how_many_steps_it_takes_may_depend_on_the_recipe(recipe, steps, reason):
    claim = {"minimum_scale": {"steps": steps}, "tests": [{"studies": ["a"], **NEAR}]}
    config = config_with(recipe=recipe)
    (row,) = claims_of(published_with(claim), frame(NEAR_RUNS), config=config).to_dict("records")
    check(row, NOT_MEASURED if reason else CONTRADICTED)
    assert not reason or row["reason"] == f"{reason} or more"


def test_networks_that_are_too_shallow_are_left_out():
    runs = gains({4: [5.0] * 3, 8: [-0.6] * 3, 16: [-0.6] * 3})
    check(of_scale({}, rows=runs), CONTRADICTED)
    row = of_scale({"depth": 8}, rows=runs)
    check(row, REPRODUCED)
    assert row["reason"].startswith("6 of 6 runs ")
    claim = {"minimum_scale": {"depth": 8}}
    claim["tests"] = [{**MONOTONE, "studies": ["a"], "depths": [4]}]
    cells, steps = norms(*[[3.0, 2.0, 1.0]] * 3, depth=4)
    table = claims_of(published_with(claim), frame(cells), frame(steps))
    assert table["reason"].tolist() == ["no run of mhc at 4 layers"]


OURS = {"vocab": 64, "length": 8, "width": 16, "heads": 4, "hidden": 32, "streams": 4,
        "steps": 3, "batch_size": 8, "lr": 0.002, "weight_decay": 0.0}  # fmt: skip
BATCHES = {4: 32, 8: 24, 16: 8}


@pytest.mark.parametrize(
    ("scale", "changes", "text"),
    [
        (OURS, {}, ""),
        ({"width": 16}, {}, ""),  # what a source does not say is not compared
        ({**OURS, "width": 256, "steps": 800, "lr": 0.0001}, {},
         "width 16 for 256, steps 3 for 800, lr 0.002 for 0.0001"),
        ({"batch_size": {4: 8, 8: 8, 16: 8}}, {}, ""),
        ({"batch_size": {4: 32, 8: 24, 16: 16}}, {}, "batch_size 8 for 32/24/16"),
        ({"batch_size": {4: 32, 8: 24, 16: 16}}, {"batch_size": BATCHES},
         "batch_size 32/24/8 for 32/24/16"),
    ],
)  # fmt: skip
def test_another_scale_is_said_with_its_numbers(scale, changes, text):
    depths = [4, 8, 16]
    claim = {"tests": [{"studies": ["a"], **FAILS, "depths": depths}], "scale": scale}
    cells = frame(*(ended(*LOST, depth=depth) for depth in depths))
    table = claims_of(published_with(claim), cells, config=config_with(**changes))
    assert table["scale"].tolist() == [text]
    assert verdicts_table(table)["qualifier"].tolist() == ["at another scale" if text else ""]


def test_another_scale_is_told_of_the_depths_that_were_looked_at():
    assert of_scale({"depth": 8}, scale={"depth": 16})["scale"] == "depth 8/16 for 16"
    at_16 = of_scale({"depth": 8}, {**NEAR, "depths": [16]}, scale={"depth": 16})
    assert at_16["scale"] == ""


def test_a_test_over_two_studies_tells_both_recipes():
    config = config_with(studies=("a", "b"), b={"recipe": "torch-defaults"})
    cells, steps = frame(*every_cell(1, ["torch"])), frame(*every_step(1))
    table = claims_of(published_with({"tests": [SAME]}), cells, steps, config)
    assert table["recipe"].tolist() == ["mlx-defaults, torch-defaults"]


# --- thresholds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "text", "inside", "outside"),
    [
        ({"below": 0.2}, "below 0.2", [-1.0, 0.19], [0.21]),
        ({"above": 0.4}, "above 0.4", [0.41, 9.0], [0.39]),
        ({"above": 0.3, "below": 0.7}, "0.3 to 0.7", [0.3, 0.5, 0.7], [0.29, 0.71]),
        # What rounds to it, as it is printed.
        ({"at": [1.0, 0.25]}, "1.0 or 0.25", [0.96, 1.04, 0.246, 0.254], [0.94, 1.06, 0.24, 0.26]),
    ],
)
def test_bounds(bound, text, inside, outside):
    found = validate(Bound, bound, "a bound")
    assert found.text == text
    assert all(map(found.holds, inside))
    assert not any(map(found.holds, [*outside, NAN]))


@pytest.mark.parametrize(
    "bound", [{}, {"at": []}, {"at": [1.0], "below": 2.0}, {"above": 1.0, "below": 1.0}]
)
def test_a_bound_has_sides_or_values(bound):
    with pytest.raises(ConfigError, match="must have above, below or both"):
        validate(Bound, bound, "a bound")


THRESHOLD = {"source": "lab", "studies": ["a"], "metric": "gain_final",
             "good": {"below": 0.2}, "bad": {"above": 0.4}}  # fmt: skip


def test_thresholds_grade_the_mean_and_count_the_runs():
    rows = (
        seeds("gain_final", [0.1, 0.1, 0.1]),
        seeds("gain_final", [0.1, 0.3, 0.5], variant="hc"),
        seeds("gain_final", [0.1, 0.5, 0.9, None], depth=16),
        seeds("gain_final", [None], variant="baseline"),  # has no such metric
        seeds("gain_final", [0.9], study="b"),
        seeds("gain_final", [0.9], variant="baseline", status="stale"),
    )
    table = thresholds_table(frame(*rows), published_with(thresholds=[THRESHOLD]))
    assert table[["variant", "depth", "n", "grade", "good", "bad"]].to_numpy().tolist() == [
        ["mhc", 8, 3, "good", 3, 0],
        ["hc", 8, 3, "between", 1, 1],
        ["mhc", 16, 3, "bad", 1, 2],
    ]
    assert table["mean"].tolist() == pytest.approx([0.1, 0.3, 0.5])
    half = half_width([0.1, 0.3, 0.5])
    assert table["low"].iloc[1] == pytest.approx(0.3 - half, rel=TOLD)
    assert table["high"].iloc[1] == pytest.approx(0.3 + half, rel=TOLD)
    assert set(table["good_is"]) == {"below 0.2"}
    assert set(table["bad_is"]) == {"above 0.4"}


@pytest.mark.parametrize("metric", ["gate_first_final", "base_row_error_final"])
def test_what_cannot_move_is_not_graded(metric):
    values = {"mhc": [0.1, 0.3, 0.5], "hc": [0.1, 0.3, 0.5], "baseline": [0.1] * 3}
    rows = [
        {**row, **({} if metric in EXACT else EXACT), "base_diagonal_final": diagonal}
        for (variant, found), diagonal in zip(values.items(), (1.0, 0.5, 0.5), strict=True)
        for row in seeds(metric, found, variant=variant)
    ]
    if metric in EXACT:
        rows[0] |= EXACT  # the error of the identity
    thresholds = [{**THRESHOLD, "metric": metric}]
    table = thresholds_table(frame(rows), published_with(thresholds=thresholds))
    graded = table[["variant", "n"]].to_numpy().tolist()
    # A gate that is the same at every seed was never learned, unless it is shut or open; an error
    # may be the same.
    rows = seeds(metric, [1.0] * 3)
    assert len(thresholds_table(frame(rows), published_with(thresholds=thresholds))) == 1
    assert graded == ([["mhc", 2], ["hc", 3], ["baseline", 3]] if metric in EXACT else [["hc", 3]])


# --- published figures beside ours ---------------------------------------------------------------

RANGE = (0.43, 0.77)


@pytest.mark.parametrize(
    ("published", "half", "inside", "outside"),
    [
        # Half a unit of the last printed digit, also where Python writes an exponent.
        (5.54, 0.0, [5.5449, 5.5351], [5.5451, 5.5349]),
        (7.0, 0.0, [7.04], [7.06]),
        (-0.6, 0.0, [-0.64], [-0.66]),
        (0.0001, 0.0, [0.00014], [0.00016]),
        (1e-5, 0.0, [1.4e-5], [1.6e-5]),
        (2.5e-5, 0.0, [2.54e-5], [2.56e-5]),
        # An interval, and the rounding on top of it; without one nothing finite deviates.
        (5.54, 0.1, [5.64, 5.644], [5.646, 5.434]),
        (5.54, NAN, [9.0], [NAN]),
        # Only one of the two is finite.
        (NAN, 0.1, [NAN], [1.0]),
        # Of a range, some part must be inside.
        (RANGE, 0.0, [0.6, 0.426, 0.774], [0.424, 0.776]),
        (RANGE, 0.126, [0.3, 0.9], []),
        (RANGE, 0.124, [], [0.3]),
        (RANGE, NAN, [9.0], [NAN]),
    ],
)
def test_deviating(published, half, inside, outside):
    value = Value(*(published if isinstance(published, tuple) else (published, published)))
    for mean in inside + outside:
        assert deviates(value, mean, mean - half, mean + half) is (mean in outside), mean


def value_entry(**changes):
    return {"source": "lab", "study": "a", "metric": "loss_final", "scale": {},
            "cells": {"mhc": {8: 0.5}}, **changes}  # fmt: skip


def beside(entry, *rows, **changes):
    """The rows of published.csv of one entry, for a study with these changes."""
    config = config_with(studies=("a", "b"), a=changes)
    published = published_with(values=[entry])
    return published_table(config, summary_table(frame(*rows)), published).to_dict("records")


def test_a_published_value_stands_beside_our_mean_on_every_platform():
    losses = seeds("loss_final", [1.0, 2.0, 6.0])
    here, there = beside(value_entry(), losses, seeds("loss_final", [0.9] * 3, backend="mlx"))
    # A loss is positive: 1, 2 and 6 have the geometric mean of 12.
    assert (here["published"], here["mean"], here["n"]) == (0.5, pytest.approx(12 ** (1 / 3)), 3)
    reach = half_width([math.log(1), math.log(2), math.log(6)])
    assert here["low"] == pytest.approx(12 ** (1 / 3) * math.exp(-reach), rel=TOLD)
    assert here["high"] == pytest.approx(12 ** (1 / 3) * math.exp(reach), rel=TOLD)
    assert (here["platform"], here["scale"], here["deviates"]) == ("torch", "", False)
    assert (there["platform"], there["mean"]) == ("mlx", pytest.approx(0.9))
    assert there["deviates"]


def test_which_of_our_numbers_stand_beside_a_value():
    for metric in ("seconds", "seconds_per_step"):  # it is the time of another machine
        (row,) = beside(value_entry(metric=metric), seeds(metric, [9.0, 9.0, 9.0]))
        assert (row["mean"], row["deviates"]) == (9.0, False)
    # Runs that diverged meet a published NaN.
    runs = [run(seed=seed, outcome="diverged") for seed in (0, 1)]
    (row,) = beside(value_entry(cells={"mhc": {8: NAN}}), runs, run(seed=2))
    assert (row["n"], row["diverged"], row["deviates"]) == (3, 2, False)
    # A cell without a run has its row, too.
    rows = beside(value_entry(cells={"mhc": {4: 0.1, 8: 0.2}, "hc": {16: 0.3}}), [run()])
    assert [(r["variant"], r["depth"], r["published"]) for r in rows] == [
        ("mhc", 4, 0.1), ("mhc", 8, 0.2), ("hc", 16, 0.3),
    ]  # fmt: skip
    assert [pd.isna(row["platform"]) for row in rows] == [True, False, True]


def test_a_value_of_any_depth_stands_beside_each_of_ours():
    runs = seeds("loss_final", [0.5] * 3), seeds("loss_final", [0.9] * 3, depth=16)
    rows = beside(value_entry(cells={"mhc": {"any": [0.43, 0.77]}}, scale={"depth": 20}), *runs)
    assert [(r["depth"], r["published"], r["published_high"]) for r in rows] == [
        (4, 0.43, 0.77), (8, 0.43, 0.77), (16, 0.43, 0.77),
    ]  # fmt: skip
    assert [r["deviates"] for r in rows[1:]] == [False, True]
    assert pd.isna(rows[0]["deviates"])
    assert rows[0]["scale"] == "depth 4/8/16 for 20"


@pytest.mark.parametrize(
    ("scale", "changes", "text"),
    [
        ({"width": 256}, {}, "width 16 for 256"),
        # At the value's own depth: the study has others, whose batches are of another size.
        ({"batch_size": 24, "depth": 8}, {"batch_size": {4: 32, 8: 24, 16: 8}}, ""),
        # Tokens of a step are those of all its batches.
        ({"tokens_per_step": 256}, {"batch_size": 8}, "tokens_per_step 64 for 256"),
        ({"tokens_per_step": 256}, {"accumulate": 4}, ""),
        ({"tokens_per_step": 256}, {"accumulate": {"mhc": 4}}, ""),
        ({"tokens_per_step": 256}, {"accumulate": {"hc": 4}}, "tokens_per_step 64 for 256"),
    ],
)
def test_a_value_tells_how_our_scale_differs(scale, changes, text):
    (row,) = beside(value_entry(scale=scale), [run()], **changes)
    assert row["scale"] == text


# --- YAML alone ----------------------------------------------------------------------------------

YAML = """
sources:
  lab: {title: A lab, platform: some GPU, backend: torch}
notes: []
values:
  - {source: lab, study: a, metric: loss_final, scale: {width: 256}, cells: {mhc: {8: 0.5}}}
claims:
  - id: first
    source: lab
    statement: It fails.
    tests:
      - {kind: fails, studies: [a], variant: hc, depths: [8]}
  - {id: second, source: lab, statement: It does not.}
"""

CONFIG = config_with()

ADDED = """
  - id: added-by-hand
    source: lab
    statement: Its loss ends near a half.
    scope: everywhere
    scale: {width: 16, steps: 3}
    tests:
      - {kind: near, studies: [a], variant: mhc, metrics: [loss_final], value: 0.5, tolerance: 0.1}
"""


@pytest.fixture
def yaml_file(tmp_path):
    """A function that writes a published.yaml and gives its path."""

    def write(text):
        file = tmp_path / "published.yaml"
        file.write_text(text if isinstance(text, str) else yaml.safe_dump(text), encoding="utf-8")
        return file

    return write


@pytest.mark.parametrize(
    ("losses", "expected"), [([0.5, 0.51, 0.52], REPRODUCED), ([3.0, 3.1, 3.2], CONTRADICTED)]
)
def test_a_claim_is_added_by_yaml_alone(yaml_file, tmp_path, losses, expected):
    cells = frame(seeds("loss_final", losses), ended(*["diverged"] * 3))
    tables = {"cells.csv": cells, "summary.csv": summary_table(cells), "steps.csv.gz": NO_STEPS}
    save_by_study(tables, tmp_path, CONFIG.studies)
    write_claims(CONFIG, load_published(yaml_file(YAML + ADDED), CONFIG), tmp_path)
    verdicts = read_table(tmp_path / "verdicts.csv").set_index("claim")
    assert verdicts["verdict"].to_dict() == {
        "first": REPRODUCED,
        "second": NOT_MEASURED,
        "added-by-hand": expected,
    }
    (row,) = read_table(tmp_path / "claims.csv").query("claim == 'added-by-hand'").itertuples()
    assert row.observed == pytest.approx(sum(losses) / 3)
    assert row.statement == "Its loss ends near a half."
    (mean,) = read_table(tmp_path / "published.csv")["mean"]
    assert mean == pytest.approx(statistics.geometric_mean(losses))


def test_a_text_folded_over_lines_stays_one_line(yaml_file):
    """A line break would break the tables of the report, and shift the lines that it links to."""
    text = YAML.replace("statement: It fails.", "statement: >\n      It fails,\n      always.")
    (first, _) = load_published(yaml_file(text), CONFIG).claims
    assert first.statement == "It fails, always."


def refusal(file):
    """The lines that refuse a published.yaml; each must name the file."""
    with pytest.raises(ConfigError) as caught:
        load_published(file, CONFIG)
    lines = str(caught.value).splitlines()
    assert lines
    for line in lines:
        assert line.startswith(f"{file}: ")
    return lines


def near(metric):
    return f"{{kind: near, studies: [a], variant: hc, metrics: [{metric}], value: 1, tolerance: 1}}"


A_TEST = "{kind: fails, studies: [a], variant: hc, depths: [8]}"
FIRST = ["'first'", "claims.0"]
"""What names the first claim: its id, or its place in the list."""


MISTAKES = [
    # What stands there, what stands there by mistake, names of the entry, what must be said.
    # --- claims
    ("id: first\n    source: lab", "id: first\n    source: lob", FIRST, "lob"),
    ("statement: It fails.", "statement: It fails.\n    scale: {widht: 16}", FIRST, "widht"),
    ("id: second", "id: first", ["first"], "same id"),
    ("kind: fails", "kind: fials", FIRST, "fials"),
    ("variant: hc", "varaint: hc", FIRST, "did you mean 'variant'"),
    ("variant: hc", "variant: hv", FIRST, "hv"),
    ("statement: It fails.", "statement: It fails.\n    scope: at work", FIRST, "at work"),
    (A_TEST, near("gane"), FIRST, "gane"),
    (A_TEST, "{kind: same_at_equal_steps, studies: [a], variants: [hc], depths: [8]}",
     FIRST, "at least 2 items"),
    (A_TEST, "{kind: ordered, studies: [a], lower: hc, higher: [mhc], depths: [8], metric: loss}",
     FIRST, "'loss'"),
    (A_TEST, "{kind: ordered, studies: [a], lower: hc, higher: [], depths: [8]}",
     FIRST, "at least 1 item"),
    (A_TEST, "{kind: converges_below, studies: [a], variants: [hc], depths: [8], fraction: 0}",
     FIRST, "greater than 0"),
    (A_TEST, "{kind: monotone, studies: [a], variant: hc, depths: [8], metric: grad_nrom}",
     FIRST, "grad_nrom"),
    ("statement: It fails.", "statement: It fails.\n    minimum_scale: {widht: 16}",
     FIRST, "widht"),
    ("statement: It fails.", "statement: It fails.\n    minimum_scale: {steps: {torch: 4}}",
     FIRST, "unknown recipe 'torch'"),
    ("statement: It fails.",
     "statement: It fails.\n    minimum_scale: {depth: {torch-defaults: 4}}",
     FIRST, "steps alone may differ by recipe"),
    *(("statement: It fails.", f"statement: It fails.\n    minimum_scale: {{steps: {wrong}}}",
       FIRST, said)
      for wrong, said in (
          ("many", "must be a number, but is 'many'"), ("[4]", "must be a number, but is [4]"),
          ("{}", "one for each recipe"), ("{torch-defaults: many}", "but is 'many'"))),
    ("statement: It fails.", "statement: It fails.\n    device: cdua", FIRST, "'cuda'"),
    (A_TEST, near("gain_final")[:-1] + ", beside: gane}", FIRST, "gane"),
    ("depths: [8]", "depths: [8], seeds: 0", FIRST, "seeds"),
    (A_TEST, near("states_tracked"), FIRST, "has no metric 'states_tracked'"),
    # --- values
    ("metric: loss_final", "metric: loss_fnal", ["values.0"], "loss_fnal"),
    ("metric: loss_final", "metric: states_tracked", ["values.0"], "'states_tracked'"),
    ("{mhc: {8: 0.5}}", "{mhc: 0.5}", ["values.0"], "0.5"),
    ("{mhc: {8: 0.5}}", "{}", ["values.0"], "at least 1 item"),
    ("{mhc: {8: 0.5}}", "{mhc: {8: [0.8, 0.4]}}", ["values.0"], "a range as in [0.4, 0.8]"),
    ("{mhc: {8: 0.5}}", "{mhc: {every: 0.5}}", ["values.0"], "every"),
    # --- thresholds
    ("claims:", "thresholds: [{source: lab, studies: [a], metric: loss_fnal, good: {below: 1}, "
     "bad: {above: 1}}]\nclaims:", ["thresholds.0"], "loss_fnal"),
    ("claims:", "thresholds: [{source: lab, studies: [a], metric: loss_final, good: {}, "
     "bad: {above: 1}}]\nclaims:", ["thresholds.0"], "above, below or both"),
    # --- sources, notes
    ("backend: torch", "backend: torhc", ["sources.lab", "'lab'"], "torhc"),
    ("notes: []", "notes: [{source: lob, statement: It differs.}]", ["notes.0"], "lob"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "names", "problem"), MISTAKES, ids=[f"{m[2][0]}-{m[3]}" for m in MISTAKES]
)
def test_a_mistake_is_refused_with_the_file_and_the_entry(yaml_file, old, new, names, problem):
    assert YAML.count(old) == 1
    file = yaml_file(YAML.replace(old, new))
    lines = [line.removeprefix(f"{file}: ") for line in refusal(file)]
    assert len(lines) == 1 or "minimum_scale" not in new
    assert any(problem in line for line in lines)
    for line in lines:
        assert any(name in line for name in names)


@pytest.mark.parametrize("text", ["", "[]", "claims: [", "claims: {", "just text", None])
def test_a_file_that_is_no_mapping_is_refused(yaml_file, tmp_path, text):
    (line,) = refusal(tmp_path / "absent.yaml" if text is None else yaml_file(text))
    assert text is not None or "cannot be read" in line


def test_every_mistake_is_named_at_once(yaml_file):
    data = yaml.safe_load(YAML)
    del data["claims"][0]["statement"], data["values"][0]["study"]
    lines = refusal(yaml_file(data))
    assert any("claims.0.statement" in line for line in lines)
    assert any("values.0.study" in line for line in lines)


def test_a_claim_may_speak_of_every_variant_that_the_config_has(yaml_file):
    """By the label of a study, or by the name of a connection of the config's own."""
    text = YAML.replace("variant: hc", "variant: mhc_five").replace("{mhc: {8", "{mhc_own: {8")
    file = yaml_file(text)
    with pytest.raises(ConfigError) as caught:
        load_published(file, CONFIG)
    assert len(str(caught.value).splitlines()) == 2
    five = {"mhc_five": {"connection": "mhc", "H_res": {"iterations": 5}}}
    study = CONFIG.studies["a"].model_dump() | {"variants": ["baseline", five]}
    config = check_config({"connections": {"mhc_own": "mhc_demo"}, "studies": {"a": study}})
    assert load_published(file, config).claims[0].tests[0].variant == "mhc_five"


def test_variants_of_a_study_that_the_config_does_not_have_are_not_looked_up(yaml_file):
    """The arms of the shipped file have labels that only its own studies know."""
    text = YAML.replace("study: a,", "study: x,").replace("{mhc: {8", "{v1: {8")
    file = yaml_file(text.replace("studies: [a], variant: hc", "studies: [x], variant: v2"))
    published = load_published(file, CONFIG)
    # Nothing of its source touches this config. One that has no figures or claims would stay.
    assert (published.claims, published.values, published.sources) == ([], [], {})


def test_claims_that_no_study_of_the_config_touches_are_left_out(default_config, pytestconfig):
    def kept(*studies):
        own = {name: default_config.studies[name] for name in studies}
        config = default_config.model_copy(update={"studies": own})
        published = load_published(pytestconfig.rootpath / "report/published.yaml", config)
        return {claim.id for claim in published.claims}, set(published.sources)

    claims, sources = kept("demo-50")
    # The claims on that study alone; of its source there is none without tests.
    assert (claims, sources) == (
        {"demo-gain-constant", "demo-converges-fast"}, {"mhc-demo-cuda", "mhc-paper"},
    )  # fmt: skip
    claims, _ = kept("depth-mlx")
    assert {
        "hc-needs-more-steps",
        "constraint-is-key",
    } < claims  # without tests; of several studies
    assert kept("released") == (set(), {"mhc-paper"})  # which has notes alone


# --- the claims that are shipped -----------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped(pytestconfig, default_config):
    return load_published(pytestconfig.rootpath / "report/published.yaml", default_config)


@pytest.fixture(scope="module")
def every_study(pytestconfig):
    """A config that has every study of the shipped claims."""
    root = pytestconfig.rootpath
    return load_config([root / "config.yaml", root / "workflow/presets/paper.yaml"])


def test_every_claim_has_a_minimum_scale(shipped):
    """Half of a depth at least, a quarter of an image network's width, an eighth of another's."""
    for claim in (claim for claim in shipped.claims if claim.tests):
        assert {"width", "steps"} <= set(claim.minimum_scale)
        share = 0.25 if claim.source == "surviving-depth" else 0.125
        if "width" in claim.scale:
            assert claim.minimum_scale["width"] >= share * claim.scale["width"]
        # Of these the depth is no part of what they say, or stands in the test.
        if "depth" in claim.scale and claim.id not in (
            "fashion-resnet-fastest", "text-init-3-fails-deeper"
        ):  # fmt: skip
            assert claim.minimum_scale["depth"] >= 0.5 * claim.scale["depth"]


def test_smoke_runs_give_no_verdict(shipped, pytestconfig):
    """Whatever they show: three seeds of everything that the preset has, and of every variant."""
    root = pytestconfig.rootpath
    config = load_config([root / "config.yaml", root / "workflow/presets/smoke.yaml"])
    cells, steps = [], []
    for name, study in config.studies.items():
        for depth, backend, seed in itertools.product([*study.depths, 48], BACKENDS, range(3)):
            for variant in (*study.labels, "v1", "v3", "v4b", "v4c", "v4d", "hc", "baseline"):
                axes = {"study": name, "variant": variant, "depth": depth, "seed": seed}
                axes["backend"] = backend
                values = dict.fromkeys([*tasks.run_metrics(), "score"], 0.5 + seed)
                cells.append(run(**axes, **values))
                steps += curve([3.0, 2.0], **axes)
    table = claims_table(config, frame(cells), frame(steps), shipped)
    assert set(table["verdict"]) == {NOT_MEASURED}


# What runs could plausibly show instead: the chance level of 256 tokens, the slope of hc's gain,
# the first loss at 64 tokens.
AT_CHANCE = math.log(256)
SLOPE = 0.5823
FIRST_LOSS = 4.37


MACHINES = {None: "", "cuda": GPU_PLATFORM, "metal": "gpu-test-gpu-darwin"}


def world(test, backend, device, *, holds):
    """Runs and steps under which a shipped test holds, or under which it plainly does not."""
    cells, steps = [], []
    of_kind = VALUES.get(test.kind, lambda *_: {}), CURVES.get(test.kind, lambda *_: [3.0, 0.02])
    column = test.metric if test.kind in ("monotone", "constant") else "loss"
    for study, variant, depth, seed in itertools.product(
        test.studies, dict.fromkeys(test.named_variants), test.depths or [12, 24, 48], range(5)
    ):
        axes = {"study": study, "variant": variant, "depth": depth, "seed": seed}
        axes |= {"backend": backend, "machine": MACHINES[device]}
        values = of_kind[0](test, axes, holds, 1 + 0.001 * seed)
        cells.append(run(**axes, score_chance=AT_CHANCE, **values))
        steps += unlike_others(curve(of_kind[1](test, axes, holds), column=column, **axes))
    if test.kind == "platforms_agree":
        for cell in [*cells]:
            axes = {name: cell[name] for name in ("study", "variant", "depth", "seed")}
            axes |= {"backend": "torch" if backend == "mlx" else "mlx"}
            axes |= {"machine": MACHINES[test.other_device]}
            score = cell["score"] * (1 if holds else 9)
            cells.append(run(**axes, score_chance=AT_CHANCE, score=score))
    return frame(cells), frame(steps)


LOST_VALUES = {
    "gain_final": SLOPE * 12, "gain_first": SLOPE * 12, "test_accuracy": 0.7,
    "loss_first": FIRST_LOSS, "loss_final": AT_CHANCE, "mixing_row_error": 1.0,
    "mixing_column_error": 1.0, "gate_first_final": 0.5,
}  # fmt: skip
"""What a metric that should be near a value is instead, by its name."""


def beyond(test, holds):
    """A value on the right or the wrong side of a band."""
    edge = test.high if math.isfinite(test.high) else test.low
    inwards = -0.5 if math.isfinite(test.high) else 0.5
    return edge + (inwards if holds else -inwards) * max(abs(edge), 0.5)


VALUES = {
    "line_in_depth": lambda t, x, holds, j: {
        t.metrics[0]: (SLOPE if holds else -SLOPE) * x["depth"] * j},
    # What is printed with three digits is the same at every seed.
    "near": lambda t, x, holds, j: {
        t.metrics[0]: (t.value if holds else LOST_VALUES[t.metrics[0]])
        * (1 if t.tolerance < 0.001 else j)},
    "between": lambda t, x, holds, j: {t.metric: beyond(t, holds) * j},
    "fails": lambda t, x, holds, j: {"outcome": "at chance" if holds else "learned", "score": j},
    "diverges_at_once": lambda t, x, holds, j: {"first_nonfinite_step": 0 if holds else NAN},
    "no_events": lambda t, x, holds, j: {"nonfinite_total": 0 if holds else 1},
    "converges_below": lambda t, x, holds, j: {"score": (0.001 if holds else AT_CHANCE) * j},
    "stays_above": lambda t, x, holds, j: {"score": (3.79 if holds else 0.0016) * j},
    "falls": lambda t, x, holds, j: {
        t.metrics[0]: 1.0, t.metrics[1]: (0.1 if holds else 10.0) * j},
    "platforms_agree": lambda t, x, holds, j: {"score": 0.02 * (1 + x["seed"])},
    "ordered": lambda t, x, holds, j: {
        t.metric: (0.1 if (x["variant"] == t.lower) == holds else 1.0) * j},
    "not_below": lambda t, x, holds, j: {
        t.metric: (1.0 if (x["variant"] == t.variant) == holds else 0.1) * j},
    "varies_more": lambda t, x, holds, j: {
        t.metric: x["seed"] * (1.0 if (x["variant"] == t.variant) == holds else 0.01)},
    "reaches": lambda t, x, holds, j: {t.metric: t.value if holds else 0.1 * t.value * j},
    "rises_with_depth": lambda t, x, holds, j: {
        t.metric: (x["depth"] if holds else -x["depth"]) * j},
    "correlates": lambda t, x, holds, j: {
        t.metrics[0]: x["seed"] + x["depth"] / 10,
        t.metrics[1]: (x["seed"] + x["depth"] / 10) * (j if holds else -j)},
}  # fmt: skip
"""By kind of test: the run metrics of a run, of test, axes, whether it holds, and a jitter."""

CURVES = {
    "constant": lambda t, x, holds: [-0.602, -0.602 if holds else 0.4],
    "monotone": lambda t, x, holds: [3.0, 2.0, 1.0] if holds else [1.0, 2.0, 3.0],
    "same_at_equal_steps": lambda t, x, holds: (
        [3.0, 0.02 * (1 + 0.01 * (x["seed"] - 1))] if x["study"] == t.studies[0]
        else [3.0, 0.02 if holds else 0.2]),
}  # fmt: skip
"""Likewise its curve."""


def shipped_verdicts(shipped, config, *, holds):
    """Each shipped test, as (claim, number of the test, kind) → verdict in such a world."""
    found = {}
    for claim in shipped.claims:
        for number, test in enumerate(claim.tests):
            home = shipped.sources[claim.source].backend or "torch"
            cells, steps = world(test, home, claim.device, holds=holds)
            alone = claim.model_copy(update={"tests": [test], "control": None, "minimum_scale": {}})
            one = shipped.model_copy(update={"claims": [alone]})
            rows = claims_table(config, cells, steps, one).to_dict("records")
            (row,) = (row for row in rows if row["decides"])
            found[claim.id, number, test.kind] = row["verdict"]
    return found


OF_TIMES = {("fashion-resnet-fastest", 0, "ordered"): NOT_MEASURED}
"""Tests of a time: no runs can give them a verdict."""


def test_every_shipped_test_can_be_reproduced(shipped, every_study):
    found = shipped_verdicts(shipped, every_study, holds=True)
    assert found == dict.fromkeys(found, REPRODUCED) | OF_TIMES
    assert {kind for _, _, kind in found} == set(RULES)


def test_no_tolerance_keeps_a_shipped_test_from_being_contradicted(shipped, every_study):
    found = shipped_verdicts(shipped, every_study, holds=False)
    assert found == dict.fromkeys(found, CONTRADICTED) | OF_TIMES
