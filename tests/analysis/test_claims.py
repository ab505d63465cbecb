"""Claims: every estimator in and outside its band, gaps, verdicts, scales, untestable claims."""

import itertools
import math
import statistics

import pandas as pd
import pytest

from fathom_study.analysis.claims.evidence import combine_verdicts
from fathom_study.analysis.claims.untestable import first_of_same
from fathom_study.analysis.claims.verdicts import claims_table, verdicts_table
from tests.support.runs import GPU_PLATFORM, config_with
from tests.support.tables import (
    CHANCE,
    T975,
    T_ROUNDING,
    curve,
    frame,
    half_width,
    published_with,
    run,
    seeds,
)

NAN, INF = math.nan, math.inf
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
CONTRADICTED, NOT_MEASURED = "contradicted", "not measured"

LESS = {"kind": "difference", "variant": "mhc", "than": ["baseline", "hc"], "depths": [8],
        "high": 0}  # fmt: skip
THAN_HC = {**LESS, "than": ["hc"]}
NO_LESS = {"kind": "difference", "variant": "mhc", "than": "hc", "metric": "gain_final",
           "low": -0.5}  # fmt: skip
SPREAD = {**NO_LESS, "spread": True, "low": 0}
NO_EVENTS = {"kind": "count", "variants": ["hc", "mhc"], "metric": "nonfinite_total", "high": 0,
             "one_decides": "against"}  # fmt: skip
"""Tests of claims."""

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


def sides(metric="score", depth=8, **by_variant):
    make = scores if metric == "score" else lambda d, **a: of(metric, d, **a)
    groups = [make({depth: values}, variant=v) for v, values in by_variant.items()]
    return [row for rows in groups for row in rows]


# --- levels --------------------------------------------------------------------------------------

LEVEL = {"kind": "level", "variants": ["mhc"], "metric": ["gain_final", "gain_first"],
         "low": -0.7, "high": -0.5}  # fmt: skip
AT_MOST = {**LEVEL, "metric": "gain_final", "low": -INF, "high": -0.1}
BELOW = {"kind": "level", "variants": ["mhc"], "depths": [8], "metric": "left", "high": 0.1}
ABOVE = {**BELOW, "low": 0.1, "high": INF}
FALLS = {"kind": "level", "variants": ["mhc"], "metric": "grad_norm_final",
         "over": "grad_norm_first", "high": 1}  # fmt: skip


def falling(*ratios):
    """Runs whose final gradient norm is 10**ratio times the first."""
    return [
        run(seed=seed, grad_norm_first=5.0, grad_norm_final=5.0 * 10.0**ratio)
        for seed, ratio in enumerate(ratios)
    ]


def diverged(rows, *which):
    """The rows; the outcome at these indices is diverged."""
    for n in which:
        rows[n]["outcome"] = "diverged"
    return rows


LOGS = [math.log10(loss) for loss in (0.1, 0.11, 0.12)]
GEOMETRIC = 10 ** (sum(LOGS) / 3)
OPEN = [-0.25, -0.45, -0.65]
"""Mean −0.45, standard deviation 0.2, interval ±0.5."""
SCATTER = [0.001, 0.01, 1e-4]
"""Over two orders: the geometric interval ends at 0.305, below the limit of 0.416."""


@pytest.mark.parametrize(
    ("test", "rows", "expected", "numbers"),
    [
        (LEVEL, gains({4: [-0.6, -0.61, -0.6], 8: [-0.6] * 3}), REPRODUCED, ()),
        (LEVEL, gains({8: [-0.5] * 3}), REPRODUCED, ()),  # the end of the band is inside
        (LEVEL, gains({8: OPEN}), NOT_REPRODUCED, (-0.45, half_width(OPEN), 3)),
        # The depth that speaks most against the claim gives the numbers.
        (LEVEL, gains({4: [-0.6] * 3, 8: [-0.3, -0.31, -0.32], 16: [-0.61] * 3}), CONTRADICTED,
         (-0.31, half_width([-0.3, -0.31, -0.32]))),
        # The first gain replaces a missing final gain; a diverged run without both is outside.
        (LEVEL, [run(gain_first=-0.6), run(seed=1, gain_first=99.0, gain_final=-0.6),
                 run(seed=2, gain_first=-0.6)], REPRODUCED, ()),
        (LEVEL, diverged(gains({8: [-0.6, -0.6, -0.6, NAN]}), 3), CONTRADICTED, (-0.6,)),
        # A run without the metric does not count.
        (LEVEL, gains({8: [-0.6, -0.6, -0.6, NAN]}), REPRODUCED, (-0.6, 0.0, 3)),
        (AT_MOST, gains({8: [NAN] * 3}), NOT_MEASURED, ()),
        (LEVEL, gains({8: [-0.6] * 2}), NOT_MEASURED, ()),  # too few seeds
        # The limit is a tenth of the chance level, 0.416.
        ({**BELOW, "depths": [4, 8]}, scores({4: [0.01, 0.02, 0.03], 8: [0.1, 0.11, 0.12]}),
         REPRODUCED, (GEOMETRIC, GEOMETRIC * (10 ** half_width(LOGS) - 1), 3)),
        (BELOW, scores({8: [0.01, 0.01, None]}), CONTRADICTED, ()),  # one run diverged
        (BELOW, scores({8: [0.3, 0.35, 0.4]}), NOT_REPRODUCED, ()),  # 0.24 to 0.50 contains 0.416
        (BELOW, scores({8: SCATTER}), REPRODUCED, (0.001,)),
        (BELOW, scores({8: [0.0] * 3}), REPRODUCED, ()),  # perfect: no logarithm
        (ABOVE, scores({8: [None] * 3}), REPRODUCED, ()),  # diverged runs have not converged
        # One diverged run is not enough; the other two are judged by the spread of other cells.
        ({**ABOVE, "depths": [4, 8]}, scores({4: [4.0] * 3, 8: [None, 0.01, 0.01]}), CONTRADICTED,
         ()),
        # Mean −0.26, standard deviation 0.1, interval ±0.248; then mean −0.2.
        (FALLS, falling(-0.16, -0.26, -0.36), REPRODUCED,
         (-0.26, half_width([-0.16, -0.26, -0.36]), 3)),
        (FALLS, falling(-0.1, -0.2, -0.3), NOT_REPRODUCED, (-0.2,)),
    ],
)  # fmt: skip
def test_levels(test, rows, expected, numbers):
    check(judge(test, rows), expected, *numbers)


IMAGES = {"task": "fashion", "variants": ["resnet"], "model": {"width": 8}}


def accuracies(values, **axes):
    rows = seeds("score", values, **axes)
    return [{**row, "score_metric": "test_accuracy", "score_chance": 0.1} for row in rows]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Chance is 0.1: a tenth of the way from perfect to chance is left at 0.91.
        ([0.95, 0.96, 0.97], REPRODUCED),
        ([0.8, 0.81, 0.82], CONTRADICTED),
        ([0.9, 0.91, 0.92], NOT_REPRODUCED),
    ],
)
def test_share_converges_upwards(values, expected):
    config = config_with(studies=("a",), a=IMAGES)
    test = {"kind": "level", "variants": ["resnet"], "metric": "left", "high": 0.1}
    row = judge(test, accuracies(values, variant="resnet"), config=config)
    left = [math.log10((1 - value) / 0.9) for value in values]
    check(row, expected, 1 - 0.9 * 10 ** statistics.mean(left))
    assert row["needed_low"] == pytest.approx(0.91)
    assert row["low"] < row["observed"] < row["high"]


# --- counts --------------------------------------------------------------------------------------

FAILS = {"kind": "count", "variants": ["hc"], "depths": [8], "metric": "left", "low": 1}
AT_ONCE = {**FAILS, "metric": "first_nonfinite_step", "low": -INF, "high": 0}
REACHES = {"kind": "count", "variants": ["mhc"], "metric": "gain_final", "low": 0.95,
           "one_decides": "for"}  # fmt: skip
RISES = {"kind": "count", "variants": ["mhc"], "depths": [8], "metric": "grad_norm",
         "over_steps": "rises", "high": 0}  # fmt: skip
MOVES = {**RISES, "over_steps": "moves", "high": 0.25}


def ended(*outcomes, **axes):
    """A run of hc for each outcome."""
    reached = {"learned": 0.1, "at chance": CHANCE, "diverged": NAN, "not scored": NAN}
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
    ("test", "rows", "expected", "holding"),
    [
        (FAILS, ended(*LOST), REPRODUCED, 3),
        (FAILS, ended(*LEARNED), CONTRADICTED, 0),
        (FAILS, ended("learned", "diverged", "at chance"), NOT_REPRODUCED, 2),
        (FAILS, ended(*["not scored"] * 3), NOT_MEASURED, 0),
        (FAILS, ended(*LOST[:2]), NOT_MEASURED, 0),  # too few seeds
        (NO_EVENTS, events(0, 0, 0), NOT_MEASURED, 0),  # hc has no run
        (AT_ONCE, first_broken(0, 0, 0), REPRODUCED, 3),
        (AT_ONCE, first_broken(NAN, NAN, NAN), CONTRADICTED, 0),
        (NO_EVENTS, events(0, 0, 0) + events(0, 0, 0, variant="hc"), REPRODUCED, 6),
        (NO_EVENTS, events(0, 1) + events(0, 0, variant="hc"), CONTRADICTED, 3),
        (REACHES, gains({8: [0.1, 0.1, 0.95]}), REPRODUCED, 1),
        # Upper limit for one more run: 0.11 + 4.303 · 0.01 · √(4/3); in the next case 0.5 + 1.99.
        (REACHES, gains({8: [0.1, 0.11, 0.12]}), CONTRADICTED, 0),
        (REACHES, gains({8: [0.1, 0.5, 0.9]}), NOT_REPRODUCED, 0),
        (REACHES, gains({8: [NAN, 0.96]}), REPRODUCED, 1),  # one run is enough
    ],
)  # fmt: skip
def test_counts(test, rows, expected, holding):
    row = judge(test, rows)
    check(row, expected)
    assert row["holding"] == holding


def norms(*runs, **axes):
    """(rows of cells.csv, rows of steps.csv) of these runs."""
    steps = [
        row
        for seed, values in enumerate(runs)
        for row in curve(values, seed=seed, column="grad_norm", **axes)
    ]
    return [run(seed=seed, **axes) for seed in range(len(runs))], steps


@pytest.mark.parametrize(
    ("test", "runs", "expected", "observed"),
    [
        (RISES, [[3.0, 2.0, 2.0], [9.0, 8.0, 7.0], [3.0, 2.0, 1.0]], REPRODUCED, 0),
        (RISES, [[3.0, 2.0, 2.1], [9.0, 9.1, 9.0], [1.0, 2.0, 3.0]], CONTRADICTED, 2),
        *(
            (RISES, [[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], broken], NOT_REPRODUCED, NAN)
            for broken in ([3.0, 2.0, NAN], [NAN, NAN, NAN], [3.0, 2.0, INF])
        ),
        (MOVES, [[2.0, 1.75, 2.25]] * 3, REPRODUCED, 0.25),
        (MOVES, [[2.0, 1.7, 2.0]] * 3, CONTRADICTED, 0.3),  # returns, but has moved
    ],
)
def test_counts_of_steps(test, runs, expected, observed):
    cells, steps = norms(*runs)
    for rows in (steps, steps[::-1]):  # rows may be in any order
        check(judge(test, cells, steps=[rows]), expected, observed)


def test_extremes_of_thinned_runs_are_not_measured():
    cells, steps = norms(*[[3.0, 2.0, 1.0]] * 3)
    whole = [{**row, "nonfinite_event": 0} for row in steps]
    check(judge(RISES, cells, steps=[whole]), REPRODUCED)
    whole[1] |= {"grad_norm": NAN, "nonfinite_event": NAN}
    thin = [row for row in whole if row["seed"] == 0]
    check(judge(RISES, cells[:1], steps=[thin]), NOT_MEASURED)


# --- differences ---------------------------------------------------------------------------------

OF_GAIN = {**THAN_HC, "metric": "gain_final"}


def pair(ours, theirs, depth=8):
    return sides("gain_final", depth, mhc=ours, hc=theirs)


def scaled(factor):
    return [7 + factor * value for value in (0.0, 1.0, 2.0, 3.0, 4.0)]


TWO, PAIRED = [1.0, 1.0, 1.0], sides(mhc=[0.1, 1.0, 10.0], hc=[0.11, 1.1, 11.0])
ALONE = sides(depth=16, mhc=[9.0, 9.1, 9.2])
BOTH = sides(mhc=[0.1, 0.11, 0.12], hc=[1.0, 1.1, 1.2])


@pytest.mark.parametrize(
    ("test", "rows", "expected", "numbers"),
    [
        (LESS, sides(mhc=[0.1, 0.11, 0.12], hc=[1.0, 1.1, 1.2], baseline=[2.0, 2.2, 2.4]),
         REPRODUCED, (-1.0, 0.0, 3)),
        (LESS, sides(mhc=[1.0, 1.1, 1.2], hc=[0.1, 0.11, 0.12], baseline=[2.0, 2.1, 2.2]),
         CONTRADICTED, (1.0,)),
        # Each run is below its partner, although the seeds scatter widely.
        (THAN_HC, PAIRED, REPRODUCED, (-math.log10(1.1), 0.0)),
        # A seed on only one side is not compared.
        (THAN_HC, sides(mhc=[0.1, 0.11, 0.12, 99.0], hc=[1.0, 1.1, 1.2]), REPRODUCED,
         (-1.0, 0.0, 3)),
        # Mean −0.2, standard deviation 0.1, interval ±0.248.
        (THAN_HC, sides(mhc=[10**-0.1, 10**-0.2, 10**-0.3], hc=TWO), NOT_REPRODUCED,
         (-0.2, half_width([-0.1, -0.2, -0.3]))),
        # A diverged side is not compared, but it is not better than a side that did not diverge.
        (THAN_HC, sides(mhc=[0.1] * 3, hc=[None] * 3), NOT_REPRODUCED, (NAN,)),
        (THAN_HC, sides(mhc=[None] * 3, hc=[1.0, 1.1, 1.2]), CONTRADICTED, (NAN,)),
        # Logarithms differ by 1e-7 ± 1e-9, which is rounding.
        (THAN_HC, sides(mhc=[1.0, 2.0, 3.0], hc=[n * (1 + 2.3e-7) for n in (1.0, 2.0, 3.0)]),
         NOT_REPRODUCED, ()),
        (THAN_HC, ended(*["not scored"] * 3) + ended(*["not scored"] * 3, variant="mhc"),
         NOT_MEASURED, ()),
        ({**THAN_HC, "depths": None}, BOTH + ALONE, REPRODUCED, ()),
        ({**THAN_HC, "depths": [8, 16]}, BOTH + ALONE, NOT_MEASURED, ()),
        # A gain may be zero or negative, and has no ratio.
        (OF_GAIN, pair([0.0] * 3, [1.0, 2.0, 3.0]), NOT_REPRODUCED, (-2, half_width([1, 2, 3]))),
        ({**THAN_HC, "by": "difference"}, sides(mhc=[0.0] * 3, hc=[0.1] * 3), REPRODUCED, (-0.1,)),
        # Not lower by more than 0.5.
        (NO_LESS, pair([1.0, 2.0, 3.1], [1.2, 2.3, 3.3]), REPRODUCED, ()),  # −0.23 ± 0.14
        (NO_LESS, pair([0.0, 1.0, 2.0], [1.0, 1.0, 1.1]), NOT_REPRODUCED, ()),  # −1, 0 and 0.9
        (NO_LESS, pair([0.0, 1.0, 2.0], [1.0, 2.1, 2.9]), CONTRADICTED, ()),
        # Distances from the median are 2, 1, 0, 1, 2 (mean 1.2, variance 0.7) and f times these.
        # With f = 0.3 Welch has 4.7 degrees of freedom: 0.84 ± 2.62 · √(0.7 · 1.09 / 5) = ±1.02;
        # with f = 0.1, 4.08 degrees: 1.08 ± 2.75 · √(0.7 · 1.01 / 5) = ±1.03.
        (SPREAD, pair(scaled(1), scaled(0.1)), REPRODUCED, (1.08,)),
        (SPREAD, pair(scaled(1), scaled(0.3)), NOT_REPRODUCED, (0.84,)),
    ],
)  # fmt: skip
def test_differences(test, rows, expected, numbers):
    check(judge(test, rows), expected, *numbers)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected", "observed"),
    [
        ([0.5, 0.52, 0.51], [0.6, 0.62, 0.61], REPRODUCED, -0.1),  # a share has no ratio
        ([0.5] * 3, [None] * 3, CONTRADICTED, NAN),  # the other side diverged
        ([0.4, 0.5, 0.6], [0.5, 0.48, 0.61], NOT_REPRODUCED, -0.03),
    ],
)
def test_shares_are_compared_by_their_difference(ours, theirs, expected, observed):
    config = config_with(studies=("a",), a={**IMAGES, "variants": ["resnet", "mhc_causal"]})
    test = {**LESS, "variant": "resnet", "than": ["mhc_causal"]}
    rows = accuracies(ours, variant="resnet") + accuracies(theirs, variant="mhc_causal")
    check(judge(test, rows, config=config), expected, observed)


def test_intervals_of_shares_are_clipped_to_possible_values():
    config = config_with(studies=("a",), a={**IMAGES, "variants": ["resnet", "mhc_causal"]})
    test = {**LESS, "variant": "resnet", "than": ["mhc_causal"]}
    rows = accuracies([0.1, 0.9, 0.5], variant="resnet")
    rows += accuracies([0.6] * 3, variant="mhc_causal")
    row = judge(test, rows, config=config)
    assert half_width([-0.5, 0.3, -0.1]) > 0.9
    assert (row["low"], row["high"]) == (pytest.approx(-0.6), pytest.approx(0.4))
    level = {"kind": "level", "variants": ["resnet"], "metric": "test_accuracy", "low": 0.2}
    rows = [{**row, "test_accuracy": row["score"]} for row in rows]
    level_row = judge(level, rows, config=config)
    assert (level_row["low"], level_row["high"]) == (0, 1)


@pytest.mark.parametrize(
    ("less", "expected"),
    [
        # Reordered float32 sums differ by 1e-5.
        (1.1e-5, REPRODUCED), (0.9e-5, NOT_REPRODUCED), (-0.9e-5, NOT_REPRODUCED),
        (-1.1e-5, CONTRADICTED),
    ],
)  # fmt: skip
def test_order_of_scores_needs_a_difference_above_rounding(less, expected):
    """Seeds are equal, so the interval excludes zero; the ratio is compared."""
    row = judge(THAN_HC, sides(mhc=[0.5 - less] * 3, hc=[0.5] * 3))
    check(row, expected, math.log10((0.5 - less) / 0.5))
    assert row["equal"] == (expected == NOT_REPRODUCED)
    one = sides(mhc=[0.5], hc=[0.5 + 1e-6]) + sides(depth=4, mhc=[0.5] * 3, hc=[0.5] * 3)
    assert verdict(THAN_HC, one) == NOT_MEASURED  # one seed is not enough


# --- fits ----------------------------------------------------------------------------------------

SLOPE = {"kind": "slope", "variant": "mhc", "metric": ["gain_final", "gain_first"], "low": 0}
# Around the means, depth 28/3 and gain 5: Sxx = 224/3, Sxy = 44 and Syy = 26. So R² is
# 44²/(26·224/3) = 0.9973; one degree of freedom is left.
BENT, BENT_SLOPE = gains({4: [2.0], 8: [4.0], 16: [9.0]}), 44 / (224 / 3)
BENT_HALF = T975[1] * math.sqrt((26 - 44 * BENT_SLOPE) / (224 / 3))


@pytest.mark.parametrize(
    ("test", "rows", "expected", "numbers"),
    [
        (SLOPE, gains({4: [2.0, 2.1], 8: [4.0, 4.1], 16: [8.0, 8.1]}), REPRODUCED, (0.5,)),
        # Gain grows with the square root of depth: R² is 0.977.
        (SLOPE, gains({4: [2.0] * 3, 16: [4.0] * 3, 64: [8.0] * 3}), NOT_REPRODUCED, ()),
        (SLOPE, gains({4: [1.0, 5.0], 8: [5.0, 1.0], 16: [1.0, 5.1]}), NOT_REPRODUCED, ()),
        (SLOPE, BENT, REPRODUCED, (BENT_SLOPE, BENT_HALF)),
        (SLOPE, gains({4: [2.0], 8: [4.0]}) + of("gain_first", {16: [8.0]}), REPRODUCED, (0.5,)),
        (SLOPE, gains({4: [2.0], 8: [4.0], 16: [NAN]}), NOT_MEASURED, ()),
    ],
)  # fmt: skip
def test_slopes(test, rows, expected, numbers):
    check(judge(test, rows), expected, *numbers)


# --- undecided tests -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "rows", "undecided"),
    [
        (LEVEL, gains({8: OPEN}), True),
        (THAN_HC, sides(mhc=[1.0, 0.5, 2.0], hc=[1.1, 1.2, 1.0]), True),
        # Equal up to rounding: more seeds would not decide it.
        (THAN_HC, sides(mhc=[0.5 + 1e-6] * 3, hc=[0.5] * 3), False),
        # One of two comparisons has equal sides, so the order cannot hold.
        (LESS, sides(mhc=[1.0, 0.5, 2.0], hc=[1.1, 1.2, 1.0], baseline=[1.0, 0.5, 2.0]), False),
        (FAILS, ended("learned", "diverged", "at chance"), False),  # a count has no interval
        (SLOPE, gains({4: [1.0, 5.0], 8: [5.0, 1.0], 16: [1.0, 5.1]}), True),
        (SLOPE, gains({4: [2.0] * 3, 16: [4.0] * 3, 64: [8.0] * 3}), False),  # rises, and bends
    ],
)
def test_interval_across_the_end_of_a_band_leaves_a_test_undecided(test, rows, undecided):
    row = judge(test, rows)
    check(row, NOT_REPRODUCED)
    assert row["undecided"] == undecided


def test_claim_about_a_device_uses_runs_on_that_device():
    on_cuda = fails(device="cuda")
    table = claims_of(published_with(on_cuda), frame(ended(*LOST)))
    assert table[["gap", "gap_of"]].to_numpy().tolist() == [["no run", "CUDA"]]
    both = [*ended(*LEARNED), *ended(*LOST, machine=GPU_PLATFORM)]
    assert verdict_of(on_cuda, both)["verdict"] == REPRODUCED
    assert verdict_of(fails(), both)["verdict"] == CONTRADICTED


# --- tests that are not measured -----------------------------------------------------------------


@pytest.mark.parametrize("test", [LEVEL, BELOW, FAILS, RISES, LESS, SPREAD, SLOPE])
def test_estimator_without_cells_is_not_measured(test):
    """Runs of another study do not count, nor do stale runs, which have no steps."""
    row = judge(test, run(study="c"), steps=[curve([1.0], study="c")])
    check(row, NOT_MEASURED, NAN)
    assert row["gap"] == "no run"
    assert pd.isna(row["rests_on"])
    assert pd.isna(row["confidence"])
    rows = [
        run(variant=v, depth=d, status="stale", loss_final=1.0, gain_final=1.0, study=s)
        for v, d, s in itertools.product(("baseline", "hc", "mhc"), (4, 8, 16), "ab")
    ]
    assert verdict(test, rows) == NOT_MEASURED


@pytest.mark.parametrize(
    ("mine", "expected"),
    [(-1.1, REPRODUCED), (-0.9, NOT_MEASURED), (0.9, NOT_MEASURED), (1.1, CONTRADICTED)],
)
@pytest.mark.parametrize("axes", [{"depth": 4}, {"backend": "mlx"}], ids=str)
def test_one_seed_suffices_for_a_difference_of_ten_seed_spreads(mine, expected, axes):
    """Ten times the largest seed spread, 0.1, of the study at any depth and platform."""
    claim = {"tests": [{"studies": ["a"], **OF_GAIN}]}
    spread = [-0.1, 0.0, 0.1]
    cells = [*pair([mine], [0.0]), *seeds("gain_final", spread, variant="hc", **axes)]
    rows = claims_of(published_with(claim), frame(cells)).to_dict("records")
    assert [row["verdict"] for row in rows if row["decides"]] == [expected]
    assert verdict_of(claim, cells)["seeds"] == (0 if expected == NOT_MEASURED else 1)
    for other in ({"study": "b", "variant": "hc"}, {"variant": "baseline"}):
        others = seeds("gain_final", spread, depth=4, **other)
        assert verdict(OF_GAIN, pair([-9.0], [0.0]), others) == NOT_MEASURED


# --- from tests to a verdict ---------------------------------------------------------------------


def fails(**settings):
    return {"tests": [{"studies": ["a"], **FAILS}], **settings}


def fails_in(*studies, **settings):
    return {"tests": [{"studies": [study], **FAILS} for study in studies], **settings}


def verdict_of(claim, *rows):
    """The row of verdicts.csv of a claim."""
    (row,) = verdicts_table(claims_of(published_with(claim), frame(*rows))).to_dict("records")
    return row


def away(*outcomes, **axes):
    return ended(*outcomes, backend="mlx", **axes)


ONE_SEED = {"tests": [{"studies": ["a"], **FAILS, "seeds": 1}]}


@pytest.mark.parametrize(
    ("claim", "rows", "expected", "limits"),
    [
        # Only the source's backend decides, unless the scope is everywhere.
        (fails(), ended(*LOST) + away(*LEARNED), (REPRODUCED, CONTRADICTED, 1), {}),
        (fails(scope="everywhere"), ended(*LOST) + away(*LEARNED), (CONTRADICTED, "", 2), {}),
        (fails(), away(*LOST), (NOT_MEASURED, REPRODUCED, 0), {"seeds": 0}),
        # Every machine with the home backend decides by itself.
        (fails(), ended(*LOST) + ended(*LEARNED, machine=GPU_PLATFORM), (CONTRADICTED, "", 2), {}),
        # A platform elsewhere counts if it made all tests: one of two on MLX is contradicted.
        (fails_in("a", "b"), ended(*LOST) + ended(*LOST, study="b") + away(*["at chance"] * 3)
         + away(*LEARNED, study="b"), (REPRODUCED, CONTRADICTED, 2), {}),
        # All tests must hold: one was made away from home or nowhere, or one fails.
        *((fails_in("a", other), ended(*LOST) + away(*LOST, study="b"),
           (NOT_MEASURED, "", 1), {"in_part": True}) for other in ("b", "c")),
        (fails_in("a", "c"), ended(*LEARNED), (CONTRADICTED, "", 1), {"in_part": True}),
        # Fewer than three seeds and another scale are reported.
        ({**ONE_SEED, "scale": {"width": 256}}, ended("diverged"), (REPRODUCED, "", 1),
         {"seeds": 1, "other_scale": True}),
    ],
)  # fmt: skip
def test_verdict_has_its_limits_and_verdicts_elsewhere(claim, rows, expected, limits):
    row = verdict_of(claim, rows)
    assert (row["verdict"], row["elsewhere"], row["tests"]) == expected
    limits = {"seeds": 3, "in_part": False, "other_scale": False, "undecided": False} | limits
    assert {name: row[name] for name in limits} == limits


def test_worst_verdict_of_several_tests_counts_in_any_order():
    worst_first = [CONTRADICTED, NOT_REPRODUCED, NOT_MEASURED, REPRODUCED]
    for pair_of in itertools.product(worst_first, repeat=2):
        assert combine_verdicts(pair_of) == min(pair_of, key=worst_first.index)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdicts"),
    [
        (LOST, LEARNED, (REPRODUCED, CONTRADICTED)),
        (LOST, [], (REPRODUCED, NOT_MEASURED)),
        ([], LOST, (NOT_MEASURED, REPRODUCED)),
    ],
)
def test_control_is_judged_but_decides_nothing(ours, theirs, verdicts):
    rows = frame(ended(*ours), ended(*theirs, study="b"))
    table = claims_of(published_with(fails(control="b", remark="One learned.")), rows)
    (row,) = verdicts_table(table).to_dict("records")
    assert (row["verdict"], row["control"]) == verdicts
    assert (row["studies"], row["control_study"], row["elsewhere"]) == ("a", "b", "")
    assert row["remark"] == "One learned."
    assert table[["control", "decides"]].to_numpy().tolist() == [[False, True], [True, False]]


# --- scales --------------------------------------------------------------------------------------

LEVEL_RUNS = gains({4: [-0.6] * 3, 8: [-0.6] * 3, 16: [5.0] * 3})


def of_scale(minimum, test=LEVEL, rows=LEVEL_RUNS, scale=None, config=None):
    """The row of claims.csv for a study with 4, 8 and 16 layers, width 16 and 3 steps."""
    claim = {"minimum_scale": minimum, "scale": scale or {}, "tests": [{"studies": ["a"], **test}]}
    (row,) = claims_of(published_with(claim), frame(*rows), config=config).to_dict("records")
    return row


@pytest.mark.parametrize(
    ("minimum", "of_test", "scale", "gap"),
    [
        ({"depth": 50}, {}, {"depth": 100}, "depth 16 for 100"),
        ({"steps": 4, "width": 17}, {}, {"steps": 800, "width": 64},
         "steps 3 for 800, width 16 for 64"),
        ({"depth": 16, "width": 16, "steps": 3, "batch_size": 8, "streams": 4}, {}, {}, ""),
        ({"steps": {"torch-defaults": 4}}, {}, {}, "steps 3 for 4"),  # the largest of any recipe
    ],
)  # fmt: skip
def test_claim_below_its_minimum_scale_is_not_measured(minimum, of_test, scale, gap):
    row = of_scale(minimum, {**LEVEL, "minimum_scale": of_test}, scale=scale)
    check(row, NOT_MEASURED if gap else CONTRADICTED)
    assert (row["gap"], row["gap_of"]) == (("too small", gap) if gap else ("", ""))


def test_too_shallow_networks_are_left_out():
    runs = gains({4: [5.0] * 3, 8: [-0.6] * 3, 16: [-0.6] * 3})
    check(of_scale({}, rows=runs), CONTRADICTED)
    row = of_scale({"depth": 8}, rows=runs)
    check(row, REPRODUCED)
    assert row["cases"] == 2
    assert of_scale({"depth": 8}, scale={"depth": 16})["scale"] == "depth 8/16 for 16"


# --- seeds that were fixed in advance -------------------------------------------------------------


def test_estimator_with_fixed_seeds_ignores_seeds_added_later():
    """Three seeds do not decide the test; five would contradict it."""
    ours = sides(mhc=[1.0, 1.5, 2.2, 2.0, 2.0], hc=[1.1, 1.0, 1.0, 1.0, 1.0])
    test = {"kind": "difference", "variant": "mhc", "than": ["hc"], "high": 0}
    check(judge(test, ours), CONTRADICTED, seeds=5)
    check(judge({**test, "of_seeds": [0, 1, 2]}, ours), NOT_REPRODUCED, seeds=3)
    row = judge({**test, "of_seeds": [7, 8, 9]}, ours)
    check(row, NOT_MEASURED)
    assert row["gap"] == "no run"


@pytest.mark.parametrize(
    ("tests", "verdict", "expected"),
    [
        # (number, platform, verdict, seeds). The second test has three seeds on one platform.
        ([(1, "torch", "reproduced", 5), (2, "torch", "reproduced", 3),
          (2, "mlx", "reproduced", 1)], "reproduced", 3),
        ([(1, "torch", "reproduced", 5), (2, "torch", "reproduced", 1)], "reproduced", 1),
        # One failed test is enough, and the verdict rests on its seeds alone.
        ([(1, "torch", "reproduced", 5), (2, "torch", "contradicted", 3),
          (2, "mlx", "contradicted", 1)], "contradicted", 3),
        ([(1, "torch", "reproduced", 5), (2, "torch", "contradicted", 1)], "contradicted", 1),
    ],
)  # fmt: skip
def test_verdict_has_the_number_of_seeds_behind_it(tests, verdict, expected):
    published = published_with({"scope": "everywhere", "tests": [{**FAILS, "studies": ["a"]}]})
    (base,) = claims_of(published, frame(ended("learned"))).to_dict("records")
    names = ("number", "platform", "verdict", "seeds")
    table = pd.DataFrame([{**base, **dict(zip(names, test, strict=True))} for test in tests])
    (row,) = verdicts_table(table).to_dict("records")
    assert (row["verdict"], row["seeds"]) == (verdict, expected)


# --- identical runs, and quantities that cannot change ------------------------------------------

STREAMS = {"stream_difference_max": 0.03, "amax_forward_log10_final": 0.001}
"""Metrics of streams that are copies of each other, under rows that sum to one."""


def of_streams(ours, theirs, other="hc", config=None, **changes):
    """Row of the test that mhc is below another variant, for these metrics of streams."""
    rows = [
        run(variant=variant, seed=seed, score=score + seed / 100, gain_final=score, **metrics)
        for variant, score, metrics in (("mhc", 0.5, ours), (other, 1.0, theirs))
        for seed in range(3)
    ]
    return judge({**THAN_HC, "than": [other], **changes}, rows, config=config)


@pytest.mark.parametrize(
    ("ours", "theirs", "is_decided"),
    [
        ({}, {}, False),
        ({"stream_difference_max": 0.05}, {"stream_difference_max": 0.9}, False),  # one is enough
        ({"stream_difference_max": 0.051}, {"stream_difference_max": 0.9}, True),
        ({}, {"amax_forward_log10_final": -0.3}, False),
        # An H_res that amplifies a signal amplifies copies, too.
        ({}, {"amax_forward_log10_final": 0.31}, True),
        # Copies, under rows that do not sum to one.
        ({"amax_forward_log10_final": 0.005}, {"amax_forward_log10_final": 0.005}, True),
    ],
)
def test_H_res_on_copied_streams_decides_nothing(ours, theirs, is_decided):
    row = of_streams({**STREAMS, **ours}, {**STREAMS, **theirs})
    check(row, REPRODUCED if is_decided else NOT_MEASURED)
    assert (row["gap"], row["gap_of"]) == (("", "") if is_decided else ("inert", "mhc, hc"))


def test_an_untestable_part_blocks_pass_but_not_fail():
    copies = [run(variant=v, seed=s, score=0.5 + s / 100, **STREAMS)
              for v in ("mhc", "hc") for s in range(3)]  # fmt: skip
    for score, expected in ((1.0, NOT_MEASURED), (0.1, CONTRADICTED)):
        row = judge(LESS, copies + sides(baseline=[score, score + 0.01, score + 0.02]))
        check(row, expected)
        assert row["gap"] == "inert"


EXACT = {"base_diagonal_final": 1.0, "base_row_error_final": 0.0, "base_column_error_final": 0.0}
GATE = {"kind": "level", "variants": ["mhc"], "metric": "gate_first_final", "high": 0.9}


@pytest.mark.parametrize(
    ("test", "base", "expected"),
    [
        (GATE, {}, NOT_MEASURED),
        (GATE, {"base_diagonal_final": 1 - 1e-7}, REPRODUCED),
        ({**GATE, "metric": "base_row_error_final"}, {}, NOT_MEASURED),
        ({**GATE, "metric": "base_diagonal_final", "high": 1.5}, {}, REPRODUCED),  # it can change
        ({**GATE, "metric": "base_diagonal_final", "high": 1.5, "of_mixing": True}, {},
         NOT_MEASURED),
    ],
)  # fmt: skip
def test_gate_and_errors_of_an_exact_identity_are_not_tested(test, base, expected):
    row = judge(test, seeds("gate_first_final", [0.1, 0.2, 0.3], **{**EXACT, **base}))
    check(row, expected)
    assert expected == REPRODUCED or (row["gap"], row["gap_of"]) == ("identity", "mhc")


def ran(**losses):
    """(runs, steps) of variants with these curves, scaled by a factor for each of 3 seeds."""
    cells, steps = [], []
    for (variant, curve_), seed in itertools.product(losses.items(), range(3)):
        final = curve_[-1] * (1 + seed / 100)
        cells.append(run(variant=variant, seed=seed, score=final, loss_final=final))
        steps += curve([x * (1 + seed / 100) for x in curve_], variant, seed=seed)
    return cells, steps


def test_identical_runs_are_not_tested_against_each_other():
    same, steps = ran(mhc=[3.0, 0.5], hc=[3.0, 0.5])
    for test in (THAN_HC, {**NO_LESS, "metric": "loss_final"}, {**SPREAD, "metric": "loss_final"}):
        row = judge(test, same, steps=[steps])
        check(row, NOT_MEASURED)
        assert (row["gap"], row["gap_of"]) == ("one run", "mhc, hc")


def test_runs_are_identical_only_at_equal_seed_depth_study_and_platform():
    cells, steps = ran(mhc=[3.0, 0.5])
    for axes in ({"depth": 4}, {"study": "b"}, {"platform": "mlx"}, {"seed": 9}):
        others, again = ([{**r, "variant": "hc", **axes} for r in rows] for rows in (cells, steps))
        table = frame(cells, others)
        assert first_of_same(table, frame(steps, again)).tolist() == table["variant"].tolist()


def test_identical_runs_count_once():
    cells, steps = ran(mhc=[3.0, 0.5], hc=[3.0, 0.5], baseline=[3.0, 1.0])
    shuffled = steps[:2][::-1] + steps[2:]  # steps are sorted first
    three = ["mhc", "hc", "baseline"]
    assert judge({**NO_EVENTS, "variants": three}, cells, steps=[shuffled])["cases"] == 6
    row = judge({**LESS, "variant": "baseline", "than": ["mhc", "hc"]}, cells, steps=[steps])
    check(row, CONTRADICTED)
    assert (row["against"], row["cases"]) == ("mhc", 1)
    # A variant that is identical only at some seeds keeps all of its runs.
    steps[3]["loss"] += 0.1
    assert judge({**NO_EVENTS, "variants": three}, cells, steps=[steps])["cases"] == 9


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((2.8, 2.9, 2.94), REPRODUCED),  # their mean is better than 2.9
        ((2.8, 2.9, 3.1), NOT_MEASURED),
        ((2.9, 2.9, 2.9), NOT_MEASURED),
    ],
)
def test_networks_worse_than_trigrams_decide_nothing(scores, expected):
    text = {"task": "text", "model": {"length": 16, "width": 16, "heads": 4, "hidden": 32}}
    config = config_with(studies=("a", "b"), a=text)
    rows = [
        run(seed=s, score=score, score_metric="validation_bpc", trigram_bpc=2.9, gate_first_final=g)
        for s, (score, g) in enumerate(zip(scores, (0.1, 0.11, 0.12), strict=True))
    ]
    test = {**GATE, "studies": ["a"]}
    for past_oracle, verdict in ((True, expected), (False, REPRODUCED)):
        claim = {"scope": "everywhere", "tests": [test], "past_oracle": past_oracle}
        (row,) = claims_of(published_with(claim), frame(*rows), config=config).to_dict("records")
        check(row, verdict)
        if verdict == NOT_MEASURED:
            assert row["gap"] == "too small"
            said = f"held-out loss {sum(scores) / 3:.3g} against 2.9 of a trigram model"
            assert row["gap_of"] == said
