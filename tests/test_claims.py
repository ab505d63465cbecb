"""Claims: every kind of test turned in both directions, verdicts, scales, and published.yaml."""

import copy
import itertools
import math
import statistics

import pandas as pd
import pytest
import yaml

from fathom.analysis.claims import Published, load_published, write_claims
from fathom.analysis.claims.published import Bound, Value
from fathom.analysis.claims.rules import RULES
from fathom.analysis.claims.verdicts import (
    claims_table,
    deviates,
    published_table,
    thresholds_table,
    verdicts_table,
)
from fathom.analysis.tables import read_table, save_tables, summary_table
from fathom.config import BACKENDS, check_config, load_config
from fathom.measures import RUN_MEASURES
from fathom.settings import ConfigError, checked
from run_helpers import GPU_PLATFORM, config_with
from tables_helpers import CHANCE, T975, TOLD, curve, frame, half_width, run, seeds

NAN, INF = math.nan, math.inf
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
CONTRADICTED, NOT_MEASURED = "contradicted", "not measured"

SOURCES = {
    "lab": {"title": "A lab", "platform": "some GPU", "backend": "torch"},
    "elsewhere": {"title": "Elsewhere", "platform": "not stated"},
}


def published_with(*claims, values=(), thresholds=()):
    """Published claims; each is a dict of what differs from a claim of the lab."""
    base = {"source": "lab", "says": "It is so."}
    entries = [{**base, "id": f"claim-{n}", **claim} for n, claim in enumerate(claims)]
    data = {"sources": SOURCES, "notes": [], "values": list(values), "claims": entries}
    data["thresholds"] = list(thresholds)
    return checked(Published, data, "published.yaml")


NO_STEPS = frame(curve([1.0], study="no-such-study"))


def claims_of(published, cells, steps=NO_STEPS, config=None):
    """The table of claims, for a config of two studies, a and b."""
    config = config or config_with(studies=("a", "b"))
    return claims_table(config, cells, steps, published)


def judge(test, *rows, steps=None):
    """What a test says of runs in one place: its row of claims.csv, as a dict."""
    published = published_with({"holds": "everywhere", "tests": [{"studies": ["a"], **test}]})
    steps = NO_STEPS if steps is None else frame(*steps)
    (row,) = claims_of(published, frame(*rows), steps).to_dict("records")
    return row


def verdict(test, *rows, steps=None):
    return judge(test, *rows, steps=steps)["verdict"]


def at_depths(measure, by_depth, **axes):
    """Runs of several depths; by_depth maps a depth to the values of its seeds."""
    return [
        row for d, values in by_depth.items() for row in seeds(measure, values, depth=d, **axes)
    ]


# --- line_in_depth -------------------------------------------------------------------------------

LINE = {"kind": "line_in_depth", "variant": "hc", "measures": ["gain_final", "gain_first"]}


def gains(by_depth, measure="gain_final"):
    return at_depths(measure, by_depth, variant="hc")


def test_a_gain_that_grows_along_a_line_is_reproduced():
    assert verdict(LINE, gains({4: [2.0, 2.1], 8: [4.0, 4.1], 16: [8.0, 8.1]})) == REPRODUCED


def test_a_gain_that_falls_is_contradicted():
    assert verdict(LINE, gains({4: [8.0, 8.1], 8: [4.0, 4.1], 16: [0.0, 0.1]})) == CONTRADICTED


def test_a_gain_that_stays_is_contradicted():
    assert verdict(LINE, gains({4: [1.0] * 3, 8: [1.0] * 3, 16: [1.0] * 3})) == CONTRADICTED


def test_a_gain_that_grows_along_a_bent_line_is_not_reproduced():
    # Like the square root of depth: R² is 0.977.
    assert verdict(LINE, gains({4: [2.0] * 3, 16: [4.0] * 3, 64: [8.0] * 3})) == NOT_REPRODUCED


def test_a_gain_of_which_nothing_can_be_said_is_not_reproduced():
    assert verdict(LINE, gains({4: [1.0, 5.0], 8: [5.0, 1.0], 16: [1.0, 5.1]})) == NOT_REPRODUCED


def test_the_slope_and_its_interval_by_hand():
    # About depth 28/3 and gain 5: Sxx = 224/3, Sxy = 44, Syy = 26; one degree of freedom is left.
    row = judge({**LINE, "published": 0.564}, gains({4: [2.0], 8: [4.0], 16: [9.0]}))
    slope = 44 / (224 / 3)
    assert row["observed"] == pytest.approx(slope)
    assert row["ci95_half"] == pytest.approx(
        T975[1] * math.sqrt((26 - 44 * slope) / (224 / 3)), rel=TOLD
    )
    assert row["published"] == 0.564
    assert row["verdict"] == REPRODUCED  # R² is 44²/(26·224/3) = 0.9973


def test_how_straight_the_line_must_be_is_a_setting():
    runs = gains({4: [2.0], 8: [4.0], 16: [9.0]})
    assert verdict({**LINE, "r_squared": 0.998}, runs) == NOT_REPRODUCED


def test_a_run_that_diverged_gives_its_gain_from_the_start():
    runs = gains({4: [2.0], 8: [4.0]}) + gains({16: [8.0]}, measure="gain_first")
    assert judge(LINE, runs)["observed"] == pytest.approx(0.5)


@pytest.mark.parametrize("third", [[], gains({16: [None]}), gains({8: [4.1]})])
def test_a_line_needs_three_depths(third):
    assert verdict(LINE, gains({4: [2.0], 8: [4.0]}), third) == NOT_MEASURED


def test_only_the_named_variant_makes_the_line():
    others = at_depths("gain_final", {4: [9.0], 8: [0.0], 16: [-9.0]}, variant="mhc")
    runs = gains({4: [2.0], 8: [4.0], 16: [8.0]})
    assert judge(LINE, runs, others)["observed"] == pytest.approx(0.5)


# --- near ----------------------------------------------------------------------------------------

NEAR = {"kind": "near", "variant": "mhc", "measures": ["gain_final", "gain_first"],
        "value": -0.6, "tolerance": 0.1}  # fmt: skip


def test_runs_that_are_all_near_reproduce_the_value():
    runs = at_depths("gain_final", {4: [-0.55, -0.65, -0.6], 8: [-0.6] * 3})
    assert verdict(NEAR, runs) == REPRODUCED


@pytest.mark.parametrize("values", [[0.5, 0.51, 0.52], [-1.7, -1.71, -1.72]])
def test_runs_that_are_all_far_contradict_the_value(values):
    assert verdict(NEAR, seeds("gain_final", values)) == CONTRADICTED


def test_one_depth_that_is_far_contradicts_the_value():
    runs = at_depths("gain_final", {4: [-0.6] * 3, 8: [0.0, 0.01, 0.02]})
    assert verdict(NEAR, runs) == CONTRADICTED


def test_an_interval_that_reaches_into_the_tolerance_leaves_it_open():
    # Mean −0.45, standard deviation 0.2, interval ±0.5: some runs are outside, the mean need not.
    values = [-0.25, -0.45, -0.65]
    row = judge(NEAR, seeds("gain_final", values))
    assert row["verdict"] == NOT_REPRODUCED
    assert row["observed"] == pytest.approx(-0.45)
    assert row["ci95_half"] == pytest.approx(half_width(values), rel=TOLD)
    assert row["published"] == -0.6


@pytest.mark.parametrize("broken", [[None], [None, None, None]])
def test_runs_that_are_not_finite_are_not_near(broken):
    assert verdict(NEAR, seeds("gain_final", broken)) == CONTRADICTED


def test_one_run_that_is_not_finite_is_not_reproduced():
    assert verdict(NEAR, seeds("gain_final", [-0.6, -0.6, -0.6, None])) == NOT_REPRODUCED


def test_the_second_measure_stands_in_for_one_that_is_not_finite():
    runs = [run(gain_first=-0.6), run(seed=1, gain_first=99.0, gain_final=-0.6)]
    assert verdict(NEAR, [*runs, run(seed=2, gain_first=-0.6)]) == REPRODUCED


def test_a_measure_beside_is_told_and_decides_nothing():
    runs = [run(seed=seed, gain_final=-0.6, loss_final=9.0 + seed) for seed in (0, 1, 2)]
    row = judge({**NEAR, "beside": "loss_final"}, runs)
    assert row["verdict"] == REPRODUCED
    assert row["reason"].endswith("; loss_final beside it: 10 ± 2.5")


def test_only_the_named_depths_must_be_near():
    runs = at_depths("gain_final", {4: [5.0] * 3, 8: [-0.6] * 3})
    assert verdict({**NEAR, "depths": [8]}, runs) == REPRODUCED
    assert verdict(NEAR, runs) == CONTRADICTED


def test_the_depth_that_is_farthest_is_told():
    by_depth = {4: [-0.6] * 3, 8: [-0.3, -0.31, -0.32], 16: [-0.61] * 3}
    row = judge(NEAR, at_depths("gain_final", by_depth))
    assert row["observed"] == pytest.approx(-0.31)
    assert row["reason"] == ("6 of 9 runs within 0.1 of -0.6; farthest at 8 layers: -0.31 ± 0.025")


def test_a_depth_that_is_not_finite_is_the_farthest():
    by_depth = {4: [5.0] * 3, 8: [None] * 3, 16: [-0.6] * 3}
    row = judge(NEAR, at_depths("gain_final", by_depth))
    assert row["reason"].endswith("farthest at 8 layers: not finite")


# --- between -------------------------------------------------------------------------------------

AT_MOST = {"kind": "between", "variant": "mhc", "measure": "gain_final", "high": -0.1}
INSIDE = {**AT_MOST, "low": -0.3}


@pytest.mark.parametrize(
    ("test", "values", "expected"),
    [
        (AT_MOST, [-0.2, -5.0, -0.1], REPRODUCED),  # the border counts
        (AT_MOST, [0.0, 0.001, -0.001], CONTRADICTED),
        (INSIDE, [-0.2, -0.25, -0.15], REPRODUCED),
        (INSIDE, [-0.5, -0.51, -0.52], CONTRADICTED),
        # Mean 0.0, standard deviation 0.1, interval ±0.25: the mean may be below −0.1.
        (AT_MOST, [-0.1, 0.0, 0.1], NOT_REPRODUCED),
        (AT_MOST, [None, None, None], NOT_MEASURED),  # a run without such a measure says nothing
        (AT_MOST, [-0.2, -0.2, -0.2, None], NOT_REPRODUCED),
    ],
)
def test_between(test, values, expected):
    assert verdict(test, seeds("gain_final", values)) == expected


def test_between_tells_the_depth_that_speaks_most_against_it():
    by_depth = {4: [-0.6] * 3, 8: [0.25, 0.5, 0.75], 16: [0.1] * 3}
    row = judge(AT_MOST, at_depths("gain_final", by_depth))
    assert row["observed"] == 0.5
    assert row["reason"] == (
        "3 of 9 runs of mhc at most -0.1; least favourable at 8 layers: 0.5 ± 0.62"
    )
    assert verdict({**AT_MOST, "depths": [4]}, at_depths("gain_final", by_depth)) == REPRODUCED


@pytest.mark.parametrize("sides", [{}, {"low": 1.0, "high": 1.0}, {"low": 2.0, "high": 1.0}])
def test_between_needs_a_side_that_leaves_room(sides):
    test = {"kind": "between", "variant": "mhc", "measure": "gain_final", **sides}
    with pytest.raises(ConfigError, match="between needs low, high or both"):
        judge(test, run(gain_final=0.0))


# --- fails ---------------------------------------------------------------------------------------

FAILS = {"kind": "fails", "variant": "hc", "depths": [8]}


def ended(*outcomes, **axes):
    """A run of hc for each outcome."""
    losses = {"learned": 0.1, "at chance": CHANCE, "diverged": None}
    return [
        run(**{"variant": "hc", "seed": seed, "outcome": o, "loss_final": losses[o], **axes})
        for seed, o in enumerate(outcomes)
    ]


@pytest.mark.parametrize("way", ["diverged", "at chance"])
def test_runs_that_all_fail_reproduce_it(way):
    assert verdict(FAILS, ended(way, way, "diverged")) == REPRODUCED


def test_runs_that_all_learn_contradict_it():
    assert verdict(FAILS, ended("learned", "learned", "learned")) == CONTRADICTED


def test_some_that_fail_leave_it_open():
    row = judge(FAILS, ended("learned", "diverged", "at chance"))
    assert row["verdict"] == NOT_REPRODUCED
    assert "of 3 runs" in row["reason"]
    assert "1 learned" in row["reason"]


def test_the_final_loss_of_runs_that_fail_is_told():
    runs = [run(**{**row, "loss_first": 9.0}) for row in ended(*["at chance"] * 3, variant="hc")]
    row = judge({**FAILS, "published": 5.54}, runs)
    assert (row["observed"], row["ci95_half"]) == (pytest.approx(CHANCE), pytest.approx(0))
    assert (row["published"], row["seeds"]) == (5.54, 3)


def test_other_depths_and_variants_may_learn():
    others = ended("learned", depth=4) + ended("learned", variant="mhc")
    assert verdict(FAILS, ended(*["diverged"] * 3), others) == REPRODUCED


# --- diverges_at_once ----------------------------------------------------------------------------

AT_ONCE = {"kind": "diverges_at_once", "variant": "hc", "depths": [8]}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([0, 0, 0], REPRODUCED),
        ([NAN, NAN, NAN], CONTRADICTED),
        ([1, 1, 1], CONTRADICTED),  # not at once
        ([0, 0, NAN], NOT_REPRODUCED),
        ([0, 0, 1], NOT_REPRODUCED),
    ],
)
def test_diverging_at_once(steps, expected):
    assert verdict(AT_ONCE, seeds("first_nonfinite_step", steps, variant="hc")) == expected


def test_how_many_diverged_at_once_is_told():
    row = judge(AT_ONCE, seeds("first_nonfinite_step", [0, 7, 0], variant="hc"))
    assert row["observed"] == 2
    assert "2 of 3 runs" in row["reason"]


# --- no_events -----------------------------------------------------------------------------------

NO_EVENTS = {"kind": "no_events", "variants": ["hc", "mhc"]}


def events(*counts, **axes):
    return seeds("nonfinite_total", list(counts), **axes)


def test_runs_without_an_event_reproduce_it():
    assert verdict(NO_EVENTS, events(0, 0, 0), events(0, 0, 0, variant="hc")) == REPRODUCED


def test_one_event_contradicts_it():
    row = judge(NO_EVENTS, events(0, 1), events(0, 0, variant="hc"))
    assert row["verdict"] == CONTRADICTED
    assert row["observed"] == 1


def test_events_of_other_variants_do_not_matter():
    runs = events(0, 0, 0), events(0, 0, 0, variant="hc"), events(5, variant="baseline")
    assert verdict(NO_EVENTS, *runs) == REPRODUCED


# --- converges_below -----------------------------------------------------------------------------

BELOW = {"kind": "converges_below", "variants": ["mhc"], "depths": [4, 8]}
LIMIT = 0.1 * CHANCE  # 0.416


def final_losses(by_depth, **axes):
    return at_depths("loss_final", by_depth, **axes)


def test_losses_below_the_limit_reproduce_it():
    row = judge(BELOW, final_losses({4: [0.01, 0.02, 0.03], 8: [0.1, 0.11, 0.12]}))
    assert row["verdict"] == REPRODUCED
    logs = [math.log10(loss) for loss in (0.1, 0.11, 0.12)]
    mean = 10 ** (sum(logs) / 3)
    assert row["observed"] == pytest.approx(mean)  # the higher of the two
    assert row["ci95_half"] == pytest.approx(mean * (10 ** half_width(logs) - 1), rel=TOLD)


def test_the_limit_and_what_is_above_it_are_told():
    runs = final_losses({4: [0.01] * 3, 8: [2.0, 2.1, 2.2]})
    assert judge(BELOW, runs)["reason"].startswith(
        "above 0.416: mhc at 8 layers; highest: mhc at 8"
    )
    runs = final_losses({4: [0.01] * 3, 8: [0.02] * 3})
    assert judge(BELOW, runs)["reason"] == (
        "all below 0.416; highest: mhc at 8 layers, 0.02 (0.02 to 0.02)"
    )


def test_runs_that_are_not_finite_are_the_highest():
    runs = final_losses({4: [None] * 3, 8: [5.0] * 3, 16: [0.01] * 3})
    row = judge({**BELOW, "depths": [4, 8, 16]}, runs)
    assert math.isnan(row["observed"])
    assert row["reason"].endswith("highest: mhc at 4 layers, not finite")


def test_one_depth_above_the_limit_contradicts_it():
    assert verdict(BELOW, final_losses({4: [0.01] * 3, 8: [2.0, 2.1, 2.2]})) == CONTRADICTED


def test_one_diverged_run_contradicts_it():
    assert verdict(BELOW, final_losses({4: [0.01] * 3, 8: [0.01, 0.01, None]})) == CONTRADICTED


@pytest.mark.parametrize("values", [[0.3, 0.35, 0.4], [0.45, 0.5, 0.55]])
def test_an_interval_across_the_limit_leaves_it_open(values):
    # Both intervals are ±0.124 wide and hold 0.416.
    assert verdict(BELOW, final_losses({4: [0.01] * 3, 8: values})) == NOT_REPRODUCED


def test_the_limit_is_a_setting():
    runs = final_losses({4: [0.01] * 3, 8: [2.0, 2.1, 2.2]})
    assert verdict({**BELOW, "fraction": 0.9}, runs) == REPRODUCED
    assert verdict({**BELOW, "fraction": 0.001}, runs) == CONTRADICTED


ABOVE = {"kind": "stays_above", "variants": ["mhc"], "depths": [4, 8]}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.0, 2.1, 2.2], REPRODUCED),
        ([None, None, None], REPRODUCED),  # what is not finite has not converged
        ([None, 0.01, 0.01], CONTRADICTED),  # one that has not is not enough
        ([None, 0.01, 0.011, 0.012], CONTRADICTED),
        # Logarithms of what scatters by orders: the arithmetic interval would hold 0.416 and -0.6.
        ([0.001, 0.01, 1e-4], CONTRADICTED),
        ([0.01, 0.02, 0.03], CONTRADICTED),
        ([0.3, 0.4, 0.5], NOT_REPRODUCED),  # ±0.248 about 0.4, and the limit is 0.416
    ],
)
def test_losses_above_the_limit(values, expected):
    row = judge(ABOVE, final_losses({4: [4.0] * 3, 8: values}))
    assert row["verdict"] == expected
    if all(values):
        mean = math.prod(values) ** (1 / 3)
        assert row["observed"] == pytest.approx(mean)
        assert f"lowest: mhc at 8 layers, {mean:.3g} (" in row["reason"]


def test_every_variant_must_converge():
    test = {**BELOW, "variants": ["hc", "mhc"]}
    good = final_losses({4: [0.01] * 3, 8: [0.01] * 3})
    bad = final_losses({4: [0.01] * 3, 8: [3.0] * 3}, variant="hc")
    assert verdict(test, good, bad) == CONTRADICTED


# --- ordered -------------------------------------------------------------------------------------

ORDERED = {"kind": "ordered", "lower": "mhc", "higher": ["baseline", "hc"], "depths": [8],
           "measure": "loss_final"}  # fmt: skip
ABOVE_HC = {**ORDERED, "higher": ["hc"]}


def losses_of(**by_variant):
    return [
        row for v, values in by_variant.items() for row in seeds("loss_final", values, variant=v)
    ]


def test_losses_that_are_lower_reproduce_it():
    runs = losses_of(mhc=[0.1, 0.11, 0.12], hc=[1.0, 1.1, 1.2], baseline=[2.0, 2.1, 2.2])
    assert verdict(ORDERED, runs) == REPRODUCED


def test_losses_that_are_higher_contradict_it():
    runs = losses_of(mhc=[1.0, 1.1, 1.2], hc=[0.1, 0.11, 0.12], baseline=[2.0, 2.1, 2.2])
    row = judge(ORDERED, runs)
    assert row["verdict"] == CONTRADICTED
    assert "above hc at 8 layers" in row["reason"]


def test_losses_that_cannot_be_told_apart_leave_it_open():
    runs = losses_of(mhc=[1.0, 1.1, 1.2], hc=[1.1, 1.0, 1.2], baseline=[2.0, 2.1, 2.2])
    assert verdict(ORDERED, runs) == NOT_REPRODUCED


def test_seeds_are_compared_pair_by_pair():
    # The losses of one variant are all over the place, but each is below its partner.
    runs = losses_of(mhc=[0.01, 0.1, 1.0], hc=[0.011, 0.11, 1.1])
    row = judge(ABOVE_HC, runs)
    assert row["verdict"] == REPRODUCED
    assert row["observed"] == pytest.approx(-math.log10(1.1))


def test_pairs_are_made_by_seed_and_not_by_order():
    mhc, hc = losses_of(mhc=[0.01, 0.1, 1.0]), losses_of(hc=[0.011, 0.11, 1.1])
    for rows in (mhc + hc[::-1], mhc[::-1] + hc, hc + mhc):
        row = judge(ABOVE_HC, rows)
        assert row["verdict"] == REPRODUCED  # in order of rows the interval is ±5
        assert row["observed"] == pytest.approx(-math.log10(1.1))


def test_a_seed_of_one_side_alone_is_not_compared():
    runs = losses_of(mhc=[0.1, 0.11, 0.12, 99.0], hc=[1.0, 1.1, 1.2])
    row = judge(ABOVE_HC, runs)
    assert (row["verdict"], row["seeds"]) == (REPRODUCED, 3)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        # Mean −0.2, standard deviation 0.1, interval ±0.248.
        ((-0.1, -0.2, -0.3), NOT_REPRODUCED),
        # Mean −0.26, the same spread.
        ((-0.16, -0.26, -0.36), REPRODUCED),
        ((0.16, 0.26, 0.36), CONTRADICTED),
    ],
)
def test_the_interval_of_the_log_ratio_by_hand(ratios, expected):
    row = judge(ABOVE_HC, losses_of(mhc=[10.0**r for r in ratios], hc=[1.0] * 3))
    assert row["observed"] == pytest.approx(sum(ratios) / 3)
    assert row["ci95_half"] == pytest.approx(half_width(ratios), rel=TOLD)
    assert row["verdict"] == expected


def test_the_effect_size_is_told_in_standard_deviations():
    # −0.26 over 0.1.
    row = judge(ABOVE_HC, losses_of(mhc=[10.0**r for r in (-0.16, -0.26, -0.36)], hc=[1.0] * 3))
    assert "effect -2.6 sd" in row["reason"]


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.1, 0.1]])
def test_an_effect_size_that_is_not_defined_is_not_told(values):
    """One run has no standard deviation, and equal differences have one of zero."""
    row = judge(ABOVE_HC, losses_of(mhc=values, hc=[1.0] * len(values)))
    assert row["verdict"] == (REPRODUCED if len(values) == 3 else NOT_MEASURED)
    assert "nan" not in row["reason"]


@pytest.mark.parametrize(
    ("mhc", "expected"),
    [
        ([0.1] * 3, NOT_REPRODUCED),  # that hc diverged is told, and is no lower loss of mhc
        ([None] * 3, NOT_REPRODUCED),
    ],
)
def test_a_side_that_diverged_is_not_compared(mhc, expected):
    row = judge(ABOVE_HC, losses_of(mhc=mhc, hc=[None] * 3))
    assert row["verdict"] == expected
    assert math.isnan(row["observed"])
    assert "diverged" in row["reason"]


def test_what_diverged_has_no_lower_loss_than_what_did_not():
    row = judge(ABOVE_HC, losses_of(mhc=[None] * 3, hc=[1.0, 1.1, 1.2]))
    assert (row["verdict"], row["rests_on"]) == (CONTRADICTED, "count of runs")


def test_a_difference_of_rounding_is_no_order():
    # Their logarithms differ by 1e-7 ± 1e-9.
    low = [1.0, 2.0, 3.0]
    row = judge(ABOVE_HC, losses_of(mhc=low, hc=[loss * (1 + 2.3e-7) for loss in low]))
    assert row["verdict"] == NOT_REPRODUCED


def test_one_diverged_seed_is_enough_not_to_compare():
    # The other two would contradict.
    runs = losses_of(mhc=[5.0, 5.0, 5.0], hc=[1.0, 1.0, None], baseline=[9.0, 9.1, 9.2])
    row = judge(ORDERED, runs)
    assert row["verdict"] == REPRODUCED
    assert "not compared, diverged: hc at 8 layers" in row["reason"]


def test_a_depth_that_one_side_lacks_is_not_compared():
    alone = seeds("loss_final", [9.0, 9.1, 9.2], variant="mhc", depth=16)
    both = losses_of(mhc=[0.1, 0.11, 0.12], hc=[1.0, 1.1, 1.2])
    assert verdict({**ABOVE_HC, "depths": None}, both, alone) == REPRODUCED
    assert verdict({**ABOVE_HC, "depths": [8, 16]}, both, alone) == NOT_MEASURED
    row = judge({**ABOVE_HC, "depths": None}, seeds("loss_final", [1.0], variant="hc"), alone)
    assert (row["verdict"], row["reason"]) == (NOT_MEASURED, "no run of mhc and hc at one depth")


def test_every_depth_must_be_in_order():
    runs = [
        row
        for depth, low in ((4, 0.1), (8, 3.0))
        for variant, loss in (("mhc", low), ("hc", 1.0))
        for row in seeds("loss_final", [loss, loss, 1.1 * loss], variant=variant, depth=depth)
    ]
    assert verdict({**ABOVE_HC, "depths": [4]}, runs) == REPRODUCED
    assert verdict({**ABOVE_HC, "depths": [4, 8]}, runs) == CONTRADICTED


def test_the_least_favourable_comparison_is_told():
    runs = losses_of(mhc=[0.1, 0.11, 0.12], hc=[0.2, 0.22, 0.24], baseline=[2.0, 2.2, 2.4])
    row = judge(ORDERED, runs)
    assert row["observed"] == pytest.approx(-math.log10(2))
    assert "least favourable: log10 ratio to hc at 8 layers -0.301" in row["reason"]


@pytest.mark.parametrize("order", [("baseline", "hc"), ("hc", "baseline")])
def test_the_fewest_seeds_of_the_comparisons_that_decide_are_told(order):
    runs = losses_of(mhc=[0.1, 0.11, 0.12, 0.1], hc=[1.0, 1.1, 1.2], baseline=[2.0, 2.1, 2.2, 2.0])
    assert judge({**ORDERED, "higher": list(order)}, runs)["seeds"] == 3
    # One seed of hc says nothing; that mhc is above the baseline is said by four.
    runs = losses_of(mhc=[2.0, 2.1, 2.2, 2.1], hc=[9.0], baseline=[0.1, 0.11, 0.1, 0.12])
    row = judge({**ORDERED, "higher": list(order)}, runs)
    assert (row["verdict"], row["seeds"]) == (CONTRADICTED, 4)


# --- monotone ------------------------------------------------------------------------------------

MONOTONE = {"kind": "monotone", "variant": "mhc", "depths": [8], "measure": "grad_norm"}


def norms(*runs, **axes):
    """(the runs' rows of cells, their rows of steps)"""
    steps = [
        row
        for seed, values in enumerate(runs)
        for row in curve(values, seed=seed, column="grad_norm", **axes)
    ]
    return [run(seed=seed, **axes) for seed in range(len(runs))], steps


def monotone(*runs, test=MONOTONE, **axes):
    cells, steps = norms(*runs, **axes)
    return judge(test, cells, steps=[steps])


def test_norms_that_never_rise_reproduce_it():
    row = monotone([3.0, 2.0, 2.0, 1.0], [9.0, 8.0, 7.0, 6.0], [3.0, 2.0, 1.0, 0.5])
    assert row["verdict"] == REPRODUCED


def test_norms_that_rise_in_every_run_contradict_it():
    row = monotone([3.0, 2.0, 2.1, 1.0], [9.0, 9.1, 9.0, 9.1], [1.0, 2.0, 1.0, 0.5])
    assert row["verdict"] == CONTRADICTED
    assert row["observed"] == 2  # rises in the second run


def test_norms_that_rise_in_one_run_leave_it_open():
    row = monotone([3.0, 2.0, 2.1], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0])
    assert row["verdict"] == NOT_REPRODUCED


def test_steps_are_taken_in_order():
    cells, steps = norms(*[[3.0, 2.0, 1.0]] * 3)
    assert judge(MONOTONE, cells, steps=[steps[::-1]])["verdict"] == REPRODUCED


def test_one_run_ending_and_the_next_beginning_is_no_rise():
    assert monotone(*[[3.0, 1.0]] * 3)["verdict"] == REPRODUCED


def test_each_run_is_looked_at_alone():
    """One from 9 to 7 and another from 3 to 1, each of them falling; together they would rise."""
    cells, steps = [], []
    for depth, values in ((8, [9.0, 8.0, 7.0]), (16, [3.0, 2.0, 1.0])):
        found = norms(values, values, values, depth=depth)
        cells, steps = cells + found[0], found[1] + steps
    row = judge({**MONOTONE, "depths": [8, 16]}, cells, steps=[steps])
    assert row["verdict"] == REPRODUCED
    assert row["reason"] == "never rises in 6 of 6 runs; at most 0 rises in one"


@pytest.mark.parametrize(
    "broken", [[3.0, 2.0, NAN], [NAN, NAN, NAN], [3.0, NAN, 1.0], [3.0, 2.0, INF]]
)
def test_a_run_that_is_not_finite_does_not_count_as_never_rising(broken):
    assert monotone(broken, broken)["verdict"] != REPRODUCED


# --- same_at_equal_steps -------------------------------------------------------------------------

SAME = {"kind": "same_at_equal_steps", "studies": ["a", "b"], "variants": ["mhc"], "depths": [8]}


def equal_steps(long, short):
    """Study a for four steps and b for two; a curve for each seed."""
    rows = []
    for study, curves in (("a", long), ("b", short)):
        for seed, losses in enumerate(curves):
            rows += curve(losses, seed=seed, study=study)
    return judge(SAME, [run(), run(study="b")], steps=[rows])


def test_losses_that_are_the_same_at_the_same_step_reproduce_it():
    # At the ends, which differ, study a has had more steps. Means of log10 of 1.0, 1.1, 1.21 and of
    # 1.1 times these: log10 1.1 apart. Both variances are log10² 1.1, so Welch has 4 degrees of
    # freedom: 2.776 · √(2/3) of the standard deviation.
    row = equal_steps(
        [[4.0, 1.0, 0.1], [4.0, 1.1, 0.1], [4.0, 1.21, 0.1]],
        [[4.0, 1.1], [4.0, 1.21], [4.0, 1.331]],
    )
    assert row["verdict"] == REPRODUCED
    assert row["observed"] == pytest.approx(-math.log10(1.1))
    assert row["ci95_half"] == pytest.approx(2.266958 * math.log10(1.1), rel=1e-5)


def test_what_is_told_apart_but_alike_to_a_factor_of_two_is_the_same():
    row = equal_steps([[4.0, 1.0]] * 3, [[4.0, 1.5]] * 3)
    assert (row["verdict"], row["ci95_half"]) == (REPRODUCED, 0)
    assert equal_steps([[4.0, 1.0]] * 3, [[4.0, 2.5]] * 3)["verdict"] == CONTRADICTED


def test_losses_that_scatter_too_widely_show_no_sameness():
    row = equal_steps([[4.0, 0.1], [4.0, 1.0], [4.0, 9.0]], [[4.0, 9.0], [4.0, 1.0], [4.0, 0.1]])
    assert (row["verdict"], row["observed"]) == (NOT_REPRODUCED, pytest.approx(0))
    assert "undecided: mhc at 8 layers" in row["reason"]


def test_seeds_of_two_studies_need_not_be_the_same():
    """A seed means other numbers where sizes differ."""
    rows = [row for seed in (0, 1, 2) for row in curve([4.0, 1.0], seed=seed)]
    rows += [row for seed in (42, 0, 1) for row in curve([4.0, 1.0], seed=seed, study="b")]
    row = judge(SAME, [run(), run(study="b")], steps=[rows])
    assert (row["verdict"], row["observed"], row["seeds"]) == (REPRODUCED, 0, 3)


def test_the_widest_difference_is_told_on_whichever_side_it_is():
    rows, cells = [], [run(), run(study="b")]
    for depth, other in ((4, 2.0), (8, 10.0), (16, 0.5)):
        for seed in (0, 1, 2):
            rows += curve([4.0, 1.0], depth=depth, seed=seed)
            rows += curve([4.0, other], depth=depth, seed=seed, study="b")
    row = judge({**SAME, "depths": [4, 8, 16]}, cells, steps=[rows])
    assert row["observed"] == pytest.approx(-1)
    assert "at step 2, apart: mhc at 4 layers, mhc at 8 layers, mhc at 16" in row["reason"]
    assert row["reason"].endswith("widest: mhc at 8 layers, log10 ratio -1 ± 0")


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_losses_that_differ_at_the_same_step_contradict_it(factor):
    row = equal_steps(
        [[4.0, 2.0, 1.0, 1.0], [4.0, 3.0, 1.0, 1.0], [4.0, 1.0, 1.0, 1.0]],
        [[4.0, 2.1 * factor], [4.0, 2.9 * factor], [4.0, factor]],
    )
    assert row["verdict"] == CONTRADICTED


@pytest.mark.parametrize("broken", [NAN, INF])
@pytest.mark.parametrize("side", [0, 1])
def test_studies_with_a_diverged_run_are_not_compared(side, broken):
    curves = [[[4.0, 2.0, 1.0, 1.0]] * 3, [[4.0, 1.0]] * 3]
    ends = [4.0, broken] if side else [4.0, broken, broken, broken]
    curves[side] = [ends, *curves[side][1:]]
    row = equal_steps(*curves)
    assert row["verdict"] == NOT_REPRODUCED
    assert math.isnan(row["observed"])
    assert "diverged" in row["reason"]


# --- ordered, by difference ----------------------------------------------------------------------

BY_DIFFERENCE = {"kind": "ordered", "lower": "mhc", "higher": ["hc"], "measure": "gain_final",
                 "by": "difference"}  # fmt: skip


def pair(ours, theirs, measure="gain_final", depth=8):
    """Runs of mhc and hc with these values, seed by seed."""
    return [
        *seeds(measure, ours, variant="mhc", depth=depth),
        *seeds(measure, theirs, variant="hc", depth=depth),
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([-0.5, 0.0, 0.5], [0.5, 1.1, 1.4], REPRODUCED),  # zero and below, which have no logarithm
        ([0.5, 1.1, 1.4], [-0.5, 0.0, 0.5], CONTRADICTED),
        ([0.0, 0.1, 0.2], [0.1, 0.0, 0.2], NOT_REPRODUCED),
        # Apart at every seed, by less than rounding.
        ([0.0, 0.0, 0.0], [6e-9, 6e-9, 6e-9], NOT_REPRODUCED),
        ([6e-9, 6e-9, 6e-9], [0.0, 0.0, 0.0], NOT_REPRODUCED),
        ([0.0, 0.0, 0.0], [2e-5, 2e-5, 2e-5], REPRODUCED),
    ],
)
def test_ordered_by_difference(ours, theirs, expected):
    assert verdict(BY_DIFFERENCE, pair(ours, theirs)) == expected


def test_the_difference_by_hand():
    row = judge(BY_DIFFERENCE, pair([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]))
    assert row["observed"] == pytest.approx(-2)
    assert row["ci95_half"] == pytest.approx(half_width([1, 2, 3]), rel=TOLD)
    assert "difference to hc at 8 layers -2 ± 2.5" in row["reason"]


# --- not_below -----------------------------------------------------------------------------------

NOT_BELOW = {"kind": "not_below", "variant": "mhc", "than": "hc", "measure": "gain_final"}


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, 2.0, 3.0], [0.0, 1.1, 2.2], REPRODUCED),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], REPRODUCED),
        # Differences −1, 0 and 0.9: the interval holds zero.
        ([0.0, 1.0, 2.0], [1.0, 1.0, 1.1], REPRODUCED),
        ([0.0, 1.0, 2.0], [1.0, 2.1, 2.9], CONTRADICTED),
        ([0.0, 1.0], [1.0, 2.1], NOT_MEASURED),
        ([0.0, 1.0, None], [1.0, 2.1, 3.0], NOT_MEASURED),
    ],
)
def test_not_below(ours, theirs, expected):
    assert verdict(NOT_BELOW, pair(ours, theirs)) == expected


def test_one_depth_below_contradicts_it():
    runs = pair([1.0, 2.0, 3.0], [0.0, 1.0, 2.0]) + pair([0.0] * 3, [1.0, 2.0, 1.5], depth=16)
    row = judge(NOT_BELOW, runs)
    assert row["verdict"] == CONTRADICTED
    assert row["observed"] == pytest.approx(-1.5)
    assert row["reason"] == "least favourable at 16 layers: mhc less hc -1.5 ± 1.2"
    assert verdict({**NOT_BELOW, "depths": [8]}, runs) == REPRODUCED


# --- varies_more ---------------------------------------------------------------------------------

VARIES = {"kind": "varies_more", "variant": "mhc", "than": "hc", "measure": "gain_final"}
SPREAD = [0.0, 1.0, 2.0, 3.0, 4.0]


def scaled(factor):
    return [7 + factor * value for value in SPREAD]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        # Distances from the median are 2, 1, 0, 1, 2 and these times f:
        # F = 10.286 (1 − f)² / (1 + f²), beside 5.318 of a printed table.
        (scaled(1), scaled(0.2), REPRODUCED),  # 6.33
        (scaled(1), scaled(0.3), NOT_REPRODUCED),  # 4.62
        (scaled(0.2), scaled(1), CONTRADICTED),
        (scaled(0.0), scaled(0.0), NOT_REPRODUCED),
        (scaled(1), scaled(0.0), REPRODUCED),
        ([0.0, 5.0, 10.0], [1.0, 1.0, 1.0], NOT_MEASURED),  # three a side cannot be told apart
        ([0.0, 5.0], [*scaled(0.1), 7.0], NOT_MEASURED),
    ],
)
def test_varying_more(ours, theirs, expected):
    assert verdict(VARIES, pair(ours, theirs)) == expected


def test_a_depth_that_one_of_the_two_lacks_says_nothing():
    alone = seeds("gain_final", [0.0, 100.0, 200.0], variant="mhc", depth=16)
    assert verdict(VARIES, pair(scaled(1), scaled(0.2)), alone) == REPRODUCED
    other = seeds("gain_final", scaled(0.2), variant="hc", depth=4)
    row = judge(VARIES, alone, other)
    assert (row["verdict"], row["reason"]) == (NOT_MEASURED, "no run of mhc and hc at one depth")


def test_how_much_more_is_told():
    row = judge(VARIES, pair(scaled(1), scaled(0.1)))
    assert row["observed"] == pytest.approx(10)
    # F is 8.249; of the printed table 0.02 is at 8.389.
    assert row["reason"] == (
        "standard deviations of mhc and hc: 1.6 of 5 runs and 0.16 of 5 at 8 layers, p 0.021"
    )


# --- reaches -------------------------------------------------------------------------------------

REACHES = {"kind": "reaches", "variant": "mhc", "measure": "gain_final", "value": 0.95}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1, 0.1, 0.95], REPRODUCED),
        ([0.1, 0.11, 0.12], CONTRADICTED),  # one more run: up to 0.11 + 4.303 · 0.01 · √(4/3)
        ([0.1, 0.5, 0.9], NOT_REPRODUCED),  # up to 0.5 + 1.99
        ([0.1], NOT_MEASURED),
        ([None, 0.96], REPRODUCED),  # what can happen is shown by one run
        ([None], NOT_MEASURED),
    ],
)
def test_reaching(values, expected):
    assert verdict(REACHES, seeds("gain_final", values)) == expected


def test_one_depth_at_which_it_might_reach_leaves_it_open():
    runs = at_depths("gain_final", {4: [0.1, 0.11, 0.12], 8: [0.1, 0.5, 0.9]})
    row = judge(REACHES, runs)
    assert (row["verdict"], row["reason"]) == (
        NOT_REPRODUCED,
        "0 of 6 runs reach 0.95; largest 0.9",
    )
    assert verdict({**REACHES, "depths": [4]}, runs) == CONTRADICTED


# --- rises_with_depth ----------------------------------------------------------------------------

RISES = {"kind": "rises_with_depth", "variant": "hc", "than": "hc", "measure": "gain_final",
         "deep": 16}  # fmt: skip


@pytest.mark.parametrize(
    ("deep", "expected"),
    [
        # Both have variance 1, so Welch has 4 degrees of freedom: ±2.776 · √(2/3) = ±2.267.
        ([3.3, 4.3, 5.3], REPRODUCED),
        ([3.2, 4.2, 5.2], NOT_REPRODUCED),
        ([-1.2, -0.2, 0.8], NOT_REPRODUCED),
        ([-1.3, -0.3, 0.7], CONTRADICTED),
    ],
)
def test_rising_with_depth(deep, expected):
    # What lies between the smallest and the largest depth does not count.
    runs = gains({4: [1.0, 2.0, 3.0], 8: [99.0] * 3, 16: deep})
    row = judge(RISES, runs)
    assert row["verdict"] == expected
    assert row["observed"] == pytest.approx(deep[1] - 2)
    assert row["ci95_half"] == pytest.approx(2.266958, abs=1e-5)
    assert row["reason"].startswith("hc at 16 layers less hc at 4: ")


def test_a_depth_that_is_not_there_is_named():
    shallow = gains({4: [1.0] * 3, 8: [2.0] * 3})
    row = judge(RISES, shallow)
    assert (row["verdict"], row["reason"]) == (NOT_MEASURED, "no run of hc at 16 layers or more")
    row = judge(RISES, gains({16: [1.0] * 3, 32: [2.0] * 3}))
    assert row["reason"] == "no run of hc at fewer than 16 layers"
    other = at_depths("gain_final", {16: [9.0] * 3}, variant="mhc")
    assert verdict({**RISES, "variant": "mhc"}, shallow, other) == REPRODUCED


# --- correlates ----------------------------------------------------------------------------------

CORRELATES = {"kind": "correlates", "variants": ["hc", "mhc"], "at_least": 0.5,
              "measures": ["loss_final", "gain_final"]}  # fmt: skip


def points(*pairs):
    """Runs with these pairs of loss and gain, of two variants in turn."""
    return [
        run(variant=("hc", "mhc")[n % 2], seed=n // 2, loss_final=x, gain_final=y)
        for n, (x, y) in enumerate(pairs)
    ]


LINE_OF_TEN = [(n, n + 0.1 * (-1) ** n) for n in range(10)]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (LINE_OF_TEN, REPRODUCED),
        ([(x, -y) for x, y in LINE_OF_TEN], CONTRADICTED),
        ([(n, n % 3) for n in range(10)], NOT_REPRODUCED),
        (LINE_OF_TEN[:3], NOT_MEASURED),
        ([(n, 1.0) for n in range(10)], NOT_MEASURED),
        ([(n, None) for n in range(10)], NOT_MEASURED),
    ],
)
def test_correlating(pairs, expected):
    assert verdict(CORRELATES, points(*pairs)) == expected


def test_a_correlation_and_its_interval_by_hand():
    # r = 4 / 5; atanh 0.8 = 1.0986, and ±1.96 / √(4 − 3): tanh of −0.861 and of 3.059.
    row = judge(CORRELATES, points((1, 1), (2, 3), (3, 2), (4, 4)))
    assert (row["verdict"], row["observed"]) == (NOT_REPRODUCED, pytest.approx(0.8))
    assert row["reason"] == "correlation 0.8 over 4 runs, from -0.7 to 1; needed: 0.5"


# --- falls ---------------------------------------------------------------------------------------

FALLS = {"kind": "falls", "variants": ["mhc"], "depths": [8],
         "measures": ["grad_norm_first", "grad_norm_final"]}  # fmt: skip


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        # Of log10: mean −0.26, standard deviation 0.1, interval ±0.248; then mean −0.2.
        ((-0.16, -0.26, -0.36), REPRODUCED),
        ((-0.1, -0.2, -0.3), NOT_REPRODUCED),
        ((0.16, 0.26, 0.36), CONTRADICTED),
    ],
)
def test_falling(ratios, expected):
    runs = [
        run(seed=seed, grad_norm_first=5.0, grad_norm_final=5.0 * 10.0**ratio)
        for seed, ratio in enumerate(ratios)
    ]
    row = judge(FALLS, runs)
    assert row["verdict"] == expected
    assert row["observed"] == pytest.approx(sum(ratios) / 3)
    assert row["ci95_half"] == pytest.approx(half_width(ratios), rel=TOLD)


def test_a_run_that_is_not_finite_at_the_end_does_not_fall():
    runs = [run(seed=seed, grad_norm_first=5.0, grad_norm_final=1.0) for seed in (0, 1)]
    assert verdict(FALLS, runs, run(seed=2, grad_norm_first=5.0)) == CONTRADICTED


# --- constant ------------------------------------------------------------------------------------

CONSTANT = {"kind": "constant", "variant": "mhc", "depths": [8], "measure": "grad_norm",
            "tolerance": 0.25}  # fmt: skip


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ([[2.0, 1.75, 2.25]] * 3, REPRODUCED),
        ([[2.0, 1.7, 2.0]] * 3, CONTRADICTED),  # it comes back, and yet it has moved
        ([[2.0, NAN, 2.0]] * 3, CONTRADICTED),
        ([[2.0, 2.0, 2.0], [2.0, 2.0, 2.3], [2.0, 2.0, 2.0]], NOT_REPRODUCED),
    ],
)
def test_staying_constant(last, expected):
    row = monotone(*last, test=CONSTANT)
    assert row["verdict"] == expected
    if expected == NOT_REPRODUCED:
        assert row["observed"] == pytest.approx(0.3)
        assert row["reason"] == "within 0.25 of its first value in 2 of 3 runs; farthest 0.3"


# --- places_agree --------------------------------------------------------------------------------

AGREE = {"kind": "places_agree", "variants": ["mhc"], "depths": [8]}
LOSSES = [1.0, 2.0, 4.0]
"""Final losses; of their log10 the standard deviation is log10 2, 0.301."""


def agreement(ours, theirs, **axes):
    """What a claim of torch says of these final losses of torch and of another place."""
    claim = {"tests": [{"studies": ["a"], **AGREE}]}
    away = seeds("loss_final", theirs, **{"backend": "mlx", **axes})
    cells = frame(seeds("loss_final", ours), away)
    rows = claims_of(published_with(claim), cells).to_dict("records")
    return next(row for row in rows if row["decides"])


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((1.0, 1.0, 1.0), REPRODUCED),
        ((1.9, 1.9, 1.9), REPRODUCED),
        ((2.1, 2.1, 2.1), CONTRADICTED),
        ((0.4, 0.4, 0.4), CONTRADICTED),
        ((1.0, 3.0, 9.0), NOT_REPRODUCED),
    ],
)
def test_places_agree_within_the_spread_over_seeds(factors, expected):
    theirs = [loss * factor for loss, factor in zip(LOSSES, factors, strict=True)]
    assert agreement(LOSSES, theirs)["verdict"] == expected
    # Another platform of the same backend is another place.
    gpu = {"backend": "torch", "platform": GPU_PLATFORM, "origin": "imported", "status": "imported"}
    assert agreement(LOSSES, theirs, **gpu)["verdict"] == expected


def test_how_far_places_are_apart_is_told():
    row = agreement(LOSSES, [10.0, 20.0, 40.0])
    assert row["observed"] == pytest.approx(-1)
    assert row["reason"].startswith(
        "alike, within the spread over seeds, in 0 of 1 cells; widest: mhc at 8 layers in a, "
        "beside mlx, log10 ratio -1 ± "
    )


def test_places_agree_where_both_diverge_and_not_where_one_does():
    nothing = [None, None, None]
    assert agreement(nothing, nothing)["verdict"] == REPRODUCED
    assert agreement(LOSSES, nothing)["verdict"] == CONTRADICTED
    assert agreement(nothing, LOSSES)["verdict"] == CONTRADICTED


def test_one_place_alone_agrees_with_nothing():
    row = judge(AGREE, seeds("loss_final", LOSSES))
    assert (row["verdict"], row["reason"]) == (NOT_MEASURED, "no run of a at another place")


def test_seeds_that_places_do_not_share_are_not_compared():
    row = agreement([*LOSSES, 1.0], LOSSES)
    assert (row["verdict"], row["seeds"]) == (REPRODUCED, 3)
    assert agreement(LOSSES, LOSSES[:1])["verdict"] == NOT_MEASURED


# --- what was not measured -----------------------------------------------------------------------

KINDS = [
    LINE, NEAR, AT_MOST, FAILS, AT_ONCE, NO_EVENTS, BELOW, ABOVE, ORDERED, FALLS, MONOTONE,
    CONSTANT, SAME, REACHES, RISES,
]  # fmt: skip
OF_SEEDS = [VARIES, NOT_BELOW, CORRELATES, AGREE]
"""The kinds that one seed says nothing to."""


def kind_of(test):
    return test["kind"]


@pytest.mark.parametrize("test", [*KINDS, *OF_SEEDS], ids=kind_of)
def test_without_its_cells_a_test_is_not_measured(test):
    row = judge(test, run(study="c"), steps=[curve([1.0], study="c")])
    assert row["verdict"] == NOT_MEASURED
    assert row["reason"].startswith("no run of ")
    assert math.isnan(row["observed"])


@pytest.mark.parametrize("test", [*KINDS, *OF_SEEDS], ids=kind_of)
def test_runs_that_are_stale_are_not_measured(test):
    rows = [
        run(variant=v, depth=d, status="stale", loss_final=1.0, gain_final=1.0, study=s)
        for v in ("baseline", "hc", "mhc")
        for d in (4, 8, 16)
        for s in ("a", "b")
    ]
    assert verdict(test, rows) == NOT_MEASURED  # stale runs have no rows in the table of steps


def anything(variant, depth, study="a"):
    """Three runs that every kind of test can judge."""
    return [
        run(variant=variant, depth=depth, study=study, seed=seed, loss_final=0.01, gain_final=-0.6)
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("test", "there"),
    [
        ({**NEAR, "depths": [4, 8]}, [("mhc", 4)]),
        ({**FAILS, "depths": [4, 8]}, [("hc", 4)]),
        ({**AT_ONCE, "depths": [4, 8]}, [("hc", 4)]),
        (NO_EVENTS, [("mhc", 8)]),
        (BELOW, [("mhc", 4)]),
        ({**BELOW, "variants": ["hc", "mhc"]}, [("mhc", 4), ("mhc", 8)]),
        ({**BELOW, "variants": ["hc", "mhc"]}, [("mhc", 4), ("mhc", 8), ("hc", 4)]),
        (ORDERED, [("mhc", 8), ("hc", 8)]),
        (ORDERED, [("baseline", 8), ("hc", 8)]),
        ({**ABOVE_HC, "depths": [4, 8]}, [("mhc", 4), ("hc", 4)]),
        ({**MONOTONE, "depths": [4, 8]}, [("mhc", 4)]),
        ({**SAME, "studies": ["a", "c"]}, [("mhc", 8)]),
        ({**SAME, "studies": ["a", "a"], "depths": [4, 8]}, [("mhc", 4)]),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_with_some_of_its_cells_missing_a_test_is_not_measured(test, there):
    """Or "all three variants converge" would be reproduced by one of them."""
    cells = [row for variant, depth in there for row in anything(variant, depth)]
    steps = [
        row
        for variant, depth in there
        for seed in range(3)
        for row in curve([3.0, 2.0, 1.0], variant, depth, seed)
    ]
    assert verdict(test, cells, steps=[steps]) == NOT_MEASURED


def test_a_claim_without_tests_is_not_measured():
    table = claims_of(published_with({}), frame(run()))
    (row,) = table.to_dict("records")
    assert row["verdict"] == NOT_MEASURED
    assert verdicts_table(table)["verdict"].tolist() == [NOT_MEASURED]


def test_with_no_run_at_all_every_claim_has_a_line():
    published = published_with(*({"tests": [{"studies": ["a"], **test}]} for test in KINDS))
    table = claims_of(published, frame(run(status="missing", origin="")))
    assert table["verdict"].tolist() == [NOT_MEASURED] * len(KINDS)


def test_why_a_claim_has_no_test_is_said():
    claims = {"untested": "nothing compiles it"}, {}
    table = claims_of(published_with(*claims), frame(run()))
    assert table["reason"].tolist() == [
        "nothing compiles it",
        "what it needs is not part of this project yet",
    ]


# --- controls ------------------------------------------------------------------------------------


def controlled(*rows, control="b"):
    """(claims, the row of verdicts) of a claim of study a that b controls."""
    table = claims_of(published_with(fails(control=control)), frame(*rows))
    (row,) = verdicts_table(table).to_dict("records")
    return table, row


def test_a_control_is_judged_beside_and_decides_nothing():
    lost, won = ["diverged"] * 3, ["learned"] * 3
    for ours, theirs, verdicts in (
        (lost, won, (REPRODUCED, CONTRADICTED)),
        (won, lost, (CONTRADICTED, REPRODUCED)),
        (lost, [], (REPRODUCED, NOT_MEASURED)),
        ([], lost, (NOT_MEASURED, REPRODUCED)),
    ):
        table, row = controlled(ended(*ours), ended(*theirs, study="b"))
        assert (row["verdict"], row["control"]) == verdicts
        assert (row["studies"], row["control_study"], row["elsewhere"]) == ("a", "b", "")
        assert table["control"].tolist() == [False, True]
        assert table["decides"].tolist() == [True, False]


def test_a_control_of_which_one_test_was_not_made_says_nothing():
    """Its verdict would be of other tests than the one that it stands beside."""
    both = fails(control="b")
    both["tests"] = [*both["tests"], {"studies": ["a"], **NO_EVENTS, "variants": ["mhc"]}]
    lost = ended(*["diverged"] * 3), ended(*["diverged"] * 3, study="b")
    for rows, expected in (
        ([*lost, events(0, 0, 0)], NOT_MEASURED),
        ([*lost, events(0, 0, 0), events(0, 0, 0, study="b")], REPRODUCED),
    ):
        (row,) = verdicts_table(claims_of(published_with(both), frame(*rows))).to_dict("records")
        assert (row["verdict"], row["control"]) == (REPRODUCED, expected)


@pytest.mark.parametrize("control", [None, "no-such-study"])
def test_without_a_control_there_is_none(control):
    table, row = controlled(ended("diverged"), control=control)
    assert (len(table), row["control"], row["control_study"]) == (1, "", "")


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
    found = checked(Bound, bound, "a bound")
    assert found.text == text
    assert all(map(found.holds, inside))
    assert not any(map(found.holds, [*outside, NAN]))


@pytest.mark.parametrize(
    "bound", [{}, {"at": []}, {"at": [1.0], "below": 2.0}, {"above": 1.0, "below": 1.0}]
)
def test_a_bound_has_sides_or_values(bound):
    with pytest.raises(ConfigError, match="must have above, below or both"):
        checked(Bound, bound, "a bound")


THRESHOLD = {"source": "lab", "studies": ["a"], "measure": "gain_final",
             "good": {"below": 0.2}, "bad": {"above": 0.4}}  # fmt: skip


def test_thresholds_grade_the_mean_and_count_the_runs():
    rows = (
        seeds("gain_final", [0.1, 0.1, 0.1]),
        seeds("gain_final", [0.1, 0.3, 0.5], variant="hc"),
        seeds("gain_final", [0.1, 0.5, 0.9, None], depth=16),
        seeds("gain_final", [None], variant="baseline"),  # has no such measure
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


# --- where it holds ------------------------------------------------------------------------------

TWO_PLACES = ended("diverged", "diverged", "diverged"), ended(
    "learned", "learned", "learned", backend="mlx"
)  # fmt: skip


def verdict_of(claim, *rows, steps=NO_STEPS, config=None):
    """The claim's row of verdicts.csv."""
    table = claims_of(published_with(claim), frame(*rows), steps, config)
    (row,) = verdicts_table(table).to_dict("records")
    return row


def fails(**settings):
    return {"tests": [{"studies": ["a"], **FAILS}], **settings}


def test_at_home_only_the_sources_backend_decides():
    row = verdict_of(fails(), *TWO_PLACES)
    assert (row["verdict"], row["elsewhere"]) == (REPRODUCED, CONTRADICTED)


def test_everywhere_every_backend_decides():
    row = verdict_of(fails(holds="everywhere"), *TWO_PLACES)
    assert (row["verdict"], row["elsewhere"]) == (CONTRADICTED, "")


def test_each_place_has_its_own_row():
    table = claims_of(published_with(fails()), frame(*TWO_PLACES))
    rows = table[["backend", "verdict", "decides"]].to_numpy().tolist()
    assert rows == [["torch", REPRODUCED, True], ["mlx", CONTRADICTED, False]]


def test_a_home_that_was_not_measured_decides_nothing():
    row = verdict_of(fails(), ended(*["diverged"] * 3, backend="mlx"))
    assert (row["verdict"], row["elsewhere"], row["tests"]) == (NOT_MEASURED, REPRODUCED, 0)


def test_every_platform_of_the_home_backend_decides():
    gpu = ended(*["learned"] * 3, platform=GPU_PLATFORM, origin="imported", status="imported")
    assert verdict_of(fails(), ended(*["diverged"] * 3), gpu)["verdict"] == CONTRADICTED


def test_runs_of_two_platforms_are_not_judged_together():
    gpu = ended(*["learned"] * 3, platform=GPU_PLATFORM, origin="imported", status="imported")
    table = claims_of(published_with(fails()), frame(ended(*["diverged"] * 3), gpu))
    assert table["verdict"].tolist() == [REPRODUCED, CONTRADICTED]


def test_elsewhere_names_only_other_verdicts():
    away = ended("diverged", "diverged", "diverged", backend="mlx")
    row = verdict_of(fails(), ended("diverged", "diverged", "diverged"), away)
    assert (row["verdict"], row["elsewhere"]) == (REPRODUCED, "")


def test_elsewhere_has_the_verdict_of_all_tests_at_a_place():
    """Of two tests that MLX was put to, one is contradicted: that is its verdict."""
    claim = fails()
    claim["tests"] = [*claim["tests"], {"studies": ["b"], **FAILS}]
    here = [ended(*["diverged"] * 3, study=study) for study in ("a", "b")]
    away = [
        ended(*[way] * 3, study=study, backend="mlx")
        for study, way in (("a", "at chance"), ("b", "learned"))
    ]
    row = verdict_of(claim, *here, *away)
    assert (row["verdict"], row["elsewhere"]) == (REPRODUCED, CONTRADICTED)
    lost = [ended(*["learned"] * 3, study="a"), here[1]]
    assert verdict_of(claim, *lost, *away)["elsewhere"] == ""


def test_a_source_without_a_backend_here_is_decided_everywhere():
    row = verdict_of(fails(source="elsewhere"), ended("diverged", "diverged", "diverged"))
    assert row["verdict"] == REPRODUCED


# --- intervals -----------------------------------------------------------------------------------


INTERVAL = "interval over seeds"
BASES = {
    "near": INTERVAL, "between": INTERVAL, "converges_below": INTERVAL, "ordered": INTERVAL,
    "stays_above": INTERVAL, "falls": INTERVAL, "same_at_equal_steps": INTERVAL,
    "not_below": INTERVAL, "varies_more": INTERVAL, "reaches": INTERVAL,
    "rises_with_depth": INTERVAL, "places_agree": INTERVAL,
    "line_in_depth": "interval over runs", "correlates": "interval over runs",
    "fails": "count of runs", "diverges_at_once": "count of runs", "no_events": "count of runs",
    "monotone": "count of steps", "constant": "count of steps",
}  # fmt: skip


COUNTED = {
    "near": (REPRODUCED, NOT_REPRODUCED), "between": (REPRODUCED, NOT_REPRODUCED),
    "reaches": (REPRODUCED,),
}  # fmt: skip
"""Kinds whose verdict may be of every run, or of some run."""


def test_each_test_says_what_it_rests_on_and_at_what_confidence():
    assert set(BASES) == set(RULES)
    cells, steps = frame(*every_cell(5)), frame(*every_step(5))
    for test in [*KINDS, *OF_SEEDS]:
        published = published_with({"tests": [{"studies": ["a"], **test}]})
        row = claims_of(published, cells, steps).to_dict("records")[0]
        assert row["verdict"] != NOT_MEASURED, test["kind"]
        one_by_one = test["kind"] in COUNTED and row["verdict"] in COUNTED[test["kind"]]
        assert row["rests_on"] == ("count of runs" if one_by_one else BASES[test["kind"]])
        assert (row["confidence"] == 0.95) == ("interval" in row["rests_on"])


def test_a_verdict_without_an_interval_has_no_confidence():
    row = judge({**NEAR, "seeds": 1}, run(gain_final=-0.6))
    assert (row["verdict"], row["rests_on"]) == (REPRODUCED, "no interval")
    assert pd.isna(row["confidence"])


def test_what_was_not_measured_rests_on_nothing():
    for row in (
        judge(NEAR, run(study="c")),
        claims_of(published_with({}), frame(run())).to_dict("records")[0],
    ):
        assert pd.isna(row["rests_on"])
        assert pd.isna(row["confidence"])


# --- one seed decides nothing --------------------------------------------------------------------


def every_cell(seeds_, backends=("torch", "mlx")):
    """Runs of every cell that KINDS and OF_SEEDS ask for, with so many seeds."""
    return [
        run(
            variant, depth, seed, study, backend,
            loss_final=1.0 + 0.01 * seed, gain_final=0.5 * depth + seed,
            grad_norm_first=2.0, grad_norm_final=1.0,
        )
        for study in ("a", "b")
        for variant in ("baseline", "hc", "mhc")
        for depth in (4, 8, 16)
        for seed in range(seeds_)
        for backend in backends
    ]  # fmt: skip


def every_step(seeds_):
    """Their steps."""
    return [
        curve([3.0, 2.0, 1.0], variant, depth, seed, study)
        for study in ("a", "b")
        for variant in ("baseline", "hc", "mhc")
        for depth in (4, 8, 16)
        for seed in range(seeds_)
    ]


OVER_RUNS = ("line_in_depth", "correlates")
"""Kinds whose interval is over the runs of several cells."""


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_seeds_give_no_verdict(count):
    cells, steps = frame(*every_cell(count)), frame(*every_step(count))
    tests = [test for test in [*KINDS, *OF_SEEDS] if test["kind"] not in OVER_RUNS]
    for test in (*tests, {**REACHES, "value": 99}):
        published = published_with({"tests": [{"studies": ["a"], **test}]})
        found = set(claims_of(published, cells, steps)["verdict"])
        # What can happen is shown by one run in which it does.
        assert found == {REPRODUCED if test == REACHES else NOT_MEASURED}, test["kind"]


@pytest.mark.parametrize(("count", "words"), [(1, "one seed"), (2, "2 seeds")])
@pytest.mark.parametrize("test", [AT_MOST, FAILS, NO_EVENTS, ABOVE_HC, BELOW], ids=kind_of)
def test_that_seeds_are_too_few_is_said(test, count, words):
    row = judge(test, *every_cell(count, ["torch"]))
    assert row["reason"].startswith(f"{words}: no verdict")


def test_one_run_at_a_depth_is_no_verdict_on_the_others_either():
    runs = at_depths("gain_final", {4: [-0.6] * 3, 8: [-0.6]})
    row = judge({**NEAR, "tolerance": 0.1}, *runs, run(depth=4, seed=3, gain_final=-0.55))
    assert (row["verdict"], row["seeds"]) == (NOT_MEASURED, 1)
    # But three seeds that are far off contradict, whatever one seed says.
    assert verdict(NEAR, at_depths("gain_final", {4: [5.0] * 3, 8: [-0.6]})) == CONTRADICTED


SEEN = [-0.1, 0.0, 0.1]
"""Seeds of a cell, with a standard deviation of 0.1: another order begins at 1."""


@pytest.mark.parametrize(
    ("mine", "expected"),
    [(-1.1, REPRODUCED), (-0.9, NOT_MEASURED), (0.9, NOT_MEASURED), (1.1, CONTRADICTED)],
)
def test_one_seed_counts_where_the_difference_is_of_another_order(mine, expected):
    """Ten times the largest spread between seeds of the study, at any depth and place."""
    test = {**BY_DIFFERENCE, "depths": [8]}
    for axes in ({"depth": 4}, {"backend": "mlx"}):
        seen = seeds("gain_final", SEEN, variant="hc", **axes)
        published = published_with({"tests": [{"studies": ["a"], **test}]})
        cells = frame(pair([mine], [0.0]), seen)
        rows = claims_of(published, cells).to_dict("records")
        (row,) = [row for row in rows if row["decides"]]
        assert row["verdict"] == expected
        assert verdict_of({"tests": [{"studies": ["a"], **test}]}, pair([mine], [0.0]), seen)[
            "qualifier"
        ] == ("" if expected == NOT_MEASURED else "one seed")


def test_the_spread_of_other_studies_and_variants_says_nothing():
    for other in ({"study": "b", "variant": "hc"}, {"variant": "baseline"}):
        seen = seeds("gain_final", SEEN, depth=4, **other)
        assert verdict({**BY_DIFFERENCE, "depths": [8]}, pair([-9.0], [0.0]), seen) == NOT_MEASURED


@pytest.mark.parametrize("way", ["diverged", "at chance"])
def test_one_run_that_fails_is_enough_against_convergence(way):
    """It is a counterexample. One run that converges is no proof."""
    test = {**BELOW, "variants": ["hc"], "depths": [8]}
    row = judge(test, ended(way))
    assert (row["verdict"], row["seeds"]) == (CONTRADICTED, 1)
    assert verdict(test, ended("learned")) == NOT_MEASURED


def test_one_event_is_enough_against_none():
    runs = events(1), events(0, variant="hc")
    assert verdict(NO_EVENTS, *runs) == CONTRADICTED
    assert verdict(NO_EVENTS, events(0), events(0, variant="hc")) == NOT_MEASURED


@pytest.mark.parametrize(("value", "expected"), [(-0.65, REPRODUCED), (0.5, CONTRADICTED)])
def test_what_a_source_tells_of_one_run_is_met_by_one(value, expected):
    row = judge({**NEAR, "seeds": 1}, run(gain_final=value))
    assert (row["verdict"], row["seeds"]) == (expected, 1)


# --- ground --------------------------------------------------------------------------------------


def grounded(ground, *rows, scale=None, config=None, test=NEAR):
    """The row of a claim on such ground: of studies with 4, 8, 16 layers, width 16 and 3 steps."""
    claim = {"ground": ground, "scale": scale or {}, "tests": [{"studies": ["a"], **test}]}
    table = claims_of(published_with(claim), frame(*rows), config=config)
    (row,) = table.to_dict("records")
    return row


NEAR_RUNS = at_depths("gain_final", {4: [-0.6] * 3, 8: [-0.6] * 3, 16: [5.0] * 3})


@pytest.mark.parametrize(
    ("ground", "scale", "reason"),
    [
        ({"depth": 50}, {"depth": 100}, "16 layers cannot speak for 100"),
        ({"depth": 17}, {}, "16 layers cannot speak for 17 or more"),
        ({"width": 32}, {"width": 256}, "width 16 cannot speak for 256"),
        ({"steps": 4, "width": 17}, {"steps": 800, "width": 64},
         "steps 3 cannot speak for 800, width 16 cannot speak for 64"),
        ({"batch_size": 16}, {"batch_size": {8: 32}}, "batch_size 8 cannot speak for 16 or more"),
    ],
)  # fmt: skip
def test_below_its_ground_a_claim_is_not_measured(ground, scale, reason):
    row = grounded(ground, NEAR_RUNS, scale=scale)
    assert (row["verdict"], row["reason"]) == (NOT_MEASURED, reason)


def test_on_its_ground_a_claim_is_judged():
    ground = {"depth": 16, "width": 16, "steps": 3, "batch_size": 8, "streams": 4}
    assert grounded(ground, NEAR_RUNS)["verdict"] == CONTRADICTED


def test_a_test_may_have_a_ground_of_its_own():
    wider = {**NEAR, "ground": {"width": 64}}
    row = grounded({"width": 16, "steps": 3}, NEAR_RUNS, test=wider)
    assert (row["verdict"], row["reason"]) == (
        NOT_MEASURED, "width 16 cannot speak for 64 or more"
    )  # fmt: skip
    assert (
        grounded({"width": 64}, NEAR_RUNS, test={**NEAR, "ground": {"width": 16}})["verdict"]
        == CONTRADICTED
    )


def test_networks_that_are_too_shallow_are_left_out():
    runs = at_depths("gain_final", {4: [5.0] * 3, 8: [-0.6] * 3, 16: [-0.6] * 3})
    assert grounded({}, runs)["verdict"] == CONTRADICTED
    row = grounded({"depth": 8}, runs)
    assert (row["verdict"], row["reason"][:12]) == (REPRODUCED, "6 of 6 runs ")


def test_steps_of_networks_that_are_too_shallow_are_left_out_too():
    test = {**MONOTONE, "studies": ["a"], "depths": [4]}
    claim = {"ground": {"depth": 8}, "tests": [test]}
    cells, steps = norms(*[[3.0, 2.0, 1.0]] * 3, depth=4)
    table = claims_of(published_with(claim), frame(cells), frame(steps))
    assert table["reason"].tolist() == ["no run of mhc at 4 layers"]


def test_another_scale_is_told_of_the_depths_that_were_looked_at():
    row = grounded({"depth": 8}, NEAR_RUNS, scale={"depth": 16})
    assert row["scale"] == "depth 8/16 for 16"
    row = grounded({"depth": 8}, NEAR_RUNS, scale={"depth": 16}, test={**NEAR, "depths": [16]})
    assert row["scale"] == ""


# --- from tests to a verdict ---------------------------------------------------------------------


def table_of(*verdicts, **columns):
    """A table of claims with one claim and these rows, all of which decide."""
    base = {"claim": "c", "source": "lab", "says": "So.", "scale": "", "seeds": 3, "decides": True,
            "studies": "a", "control": False, "backend": "torch", "platform": "cpu",
            "origin": "here"}  # fmt: skip
    return pd.DataFrame([{**base, "verdict": v, **columns} for v in verdicts])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([REPRODUCED, REPRODUCED], REPRODUCED),
        ([REPRODUCED, NOT_REPRODUCED], NOT_REPRODUCED),
        ([REPRODUCED, CONTRADICTED], CONTRADICTED),
        ([NOT_REPRODUCED, CONTRADICTED], CONTRADICTED),
        ([NOT_MEASURED, NOT_REPRODUCED], NOT_REPRODUCED),
        ([NOT_MEASURED, CONTRADICTED], CONTRADICTED),
        ([NOT_MEASURED, REPRODUCED], NOT_MEASURED),
        ([NOT_MEASURED, NOT_MEASURED], NOT_MEASURED),
    ],
)
def test_a_verdict_is_that_of_its_weakest_test(rows, expected):
    for order in (rows, rows[::-1]):
        assert verdicts_table(table_of(*order))["verdict"].tolist() == [expected]


def test_claims_keep_their_order_and_their_own_rows():
    table = pd.concat(
        [table_of(CONTRADICTED).assign(claim="z"), table_of(REPRODUCED).assign(claim="a")]
    )
    found = verdicts_table(table)
    assert list(zip(found["claim"], found["verdict"], strict=True)) == [
        ("z", CONTRADICTED),
        ("a", REPRODUCED),
    ]


@pytest.mark.parametrize(
    ("seeds_", "qualifier"), [(1, "one seed"), (2, "2 seeds"), (3, ""), (9, "")]
)
def test_fewer_than_three_seeds_are_said(seeds_, qualifier):
    claim = {"tests": [{"studies": ["a"], **FAILS, "seeds": 1}]}
    row = verdict_of(claim, ended(*["diverged"] * seeds_))
    assert (row["verdict"], row["qualifier"]) == (REPRODUCED, qualifier)


def test_a_claim_has_as_few_seeds_as_any_of_its_tests():
    claim = fails()
    claim["tests"] = [*claim["tests"], {"studies": ["b"], **FAILS, "seeds": 1}]
    rows = ended("diverged", study="b"), ended("diverged", "diverged", "diverged")
    assert verdict_of(claim, *rows)["qualifier"] == "one seed"


@pytest.mark.parametrize("other", ["c", "b"])
def test_a_claim_of_which_one_test_was_not_made_is_not_reproduced(other):
    """All of its tests must hold. One was made nowhere, or away from the source's backend."""
    claim = fails()
    claim["tests"] = [*claim["tests"], {"studies": [other], **FAILS}]
    away = ended(*["diverged"] * 3, study="b", backend="mlx")
    row = verdict_of(claim, ended("diverged", "diverged", "diverged"), away)
    assert (row["verdict"], row["qualifier"]) == (NOT_MEASURED, "what could be tested holds")


def test_a_claim_of_which_one_test_fails_is_judged_in_part():
    claim = fails()
    claim["tests"] = [*claim["tests"], {"studies": ["c"], **FAILS}]
    row = verdict_of(claim, ended("learned", "learned", "learned"))
    assert (row["verdict"], row["qualifier"]) == (CONTRADICTED, "in part")


# --- scale ---------------------------------------------------------------------------------------

OURS = {"vocab": 64, "length": 8, "width": 16, "heads": 4, "hidden": 32, "streams": 4,
        "steps": 3, "batch_size": 8, "lr": 0.002, "weight_decay": 0.0}  # fmt: skip


def scale_of(scale, config=None):
    """The scale text of a measured claim on three depths, and its qualifier."""
    depths = [4, 8, 16]
    claim = {"tests": [{"studies": ["a"], **FAILS, "depths": depths}], "scale": scale}
    cells = frame(*(ended(*["diverged"] * 3, depth=depth) for depth in depths))
    table = claims_of(published_with(claim), cells, config=config)
    return table["scale"].iloc[0], verdicts_table(table)["qualifier"].iloc[0]


def test_the_published_scale_needs_no_word():
    assert scale_of(OURS) == ("", "")


def test_another_scale_is_said_with_its_numbers():
    text, qualifier = scale_of({**OURS, "width": 256, "steps": 800, "lr": 0.0001})
    assert text == "width 16 for 256, steps 3 for 800, lr 0.002 for 0.0001"
    assert qualifier == "at another scale"


def test_what_a_source_does_not_say_is_not_compared():
    assert scale_of({"width": 16}) == ("", "")


def test_batch_sizes_by_depth_are_compared_depth_by_depth():
    assert scale_of({"batch_size": {4: 8, 8: 8, 16: 8}}) == ("", "")
    text, _ = scale_of({"batch_size": {4: 32, 8: 24, 16: 16}})
    assert text == "batch_size 8 for 32/24/16"
    config = config_with(batch_size={4: 32, 8: 24, 16: 8})
    assert scale_of({"batch_size": {4: 32, 8: 24, 16: 16}}, config)[0] == (
        "batch_size 32/24/8 for 32/24/16"
    )


def test_scale_and_seeds_are_both_said():
    claim = {"tests": [{"studies": ["a"], **FAILS, "seeds": 1}], "scale": {"width": 256}}
    assert verdict_of(claim, ended("diverged"))["qualifier"] == "at another scale, one seed"


def test_the_scale_of_what_was_not_measured_is_not_told():
    assert verdict_of(fails(scale={"width": 256}), [run(study="c")])["qualifier"] == ""


def test_a_test_over_two_studies_tells_both_recipes():
    config = config_with(studies=("a", "b"), b={"recipe": "torch-defaults"})
    claim = {"tests": [SAME]}
    cells, steps = frame(*every_cell(1, ["torch"])), frame(*every_step(1))
    assert claims_of(published_with(claim), cells, steps, config)["recipe"].tolist() == [
        "mlx-defaults, torch-defaults"
    ]


# --- published figures beside ours ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "mean", "half", "expected"),
    [
        # Half a unit of the last printed digit.
        (5.54, 5.5449, 0.0, False),
        (5.54, 5.5451, 0.0, True),
        (5.54, 5.5351, 0.0, False),
        (5.54, 5.5349, 0.0, True),
        (7.0, 7.04, 0.0, False),
        (7.0, 7.06, 0.0, True),
        (-0.6, -0.64, 0.0, False),
        (-0.6, -0.66, 0.0, True),
        (0.0001, 0.00014, 0.0, False),
        (0.0001, 0.00016, 0.0, True),
        # Python writes these with an exponent.
        (1e-5, 1.4e-5, 0.0, False),
        (1e-5, 1.6e-5, 0.0, True),
        (2.5e-5, 2.54e-5, 0.0, False),
        (2.5e-5, 2.56e-5, 0.0, True),
        # An interval, and the rounding on top of it.
        (5.54, 5.64, 0.1, False),
        (5.54, 5.644, 0.1, False),
        (5.54, 5.646, 0.1, True),
        (5.54, 5.434, 0.1, True),
        (27.3, 27.34, 0.0, False),
        (27.3, 27.36, 0.0, True),
        # No interval.
        (5.54, 9.0, NAN, False),
        # Only one of the two is finite.
        (NAN, NAN, NAN, False),
        (NAN, 1.0, 0.1, True),
        (1.0, NAN, NAN, True),
    ],
)
def test_deviating(published, mean, half, expected):
    assert deviates(Value(published, published), mean, mean - half, mean + half) is expected


@pytest.mark.parametrize(
    ("mean", "half", "expected"),
    [
        (0.6, 0.0, False),
        (0.426, 0.0, False),  # half a unit of the last digit of 0.43
        (0.424, 0.0, True),
        (0.774, 0.0, False),
        (0.776, 0.0, True),
        (0.3, 0.126, False),
        (0.3, 0.124, True),
        (0.9, 0.126, False),
        (9.0, NAN, False),
        (NAN, NAN, True),
    ],
)
def test_deviating_from_a_range(mean, half, expected):
    assert deviates(Value(0.43, 0.77), mean, mean - half, mean + half) is expected


def value_entry(**changes):
    return {"source": "lab", "study": "a", "measure": "loss_final", "scale": {},
            "cells": {"mhc": {8: 0.5}}, **changes}  # fmt: skip


def beside(entry, *rows):
    """The rows of published.csv of one entry."""
    config = config_with(studies=("a", "b"))
    published = published_with(values=[entry])
    return published_table(config, summary_table(frame(*rows)), published).to_dict("records")


def test_a_published_value_stands_beside_our_mean():
    (row,) = beside(value_entry(), seeds("loss_final", [1.0, 2.0, 6.0]))
    # A loss is positive: 1, 2 and 6 have the geometric mean of 12.
    assert (row["published"], row["mean"], row["n"]) == (0.5, pytest.approx(12 ** (1 / 3)), 3)
    reach = half_width([math.log(1), math.log(2), math.log(6)])
    assert row["low"] == pytest.approx(12 ** (1 / 3) * math.exp(-reach), rel=TOLD)
    assert row["high"] == pytest.approx(12 ** (1 / 3) * math.exp(reach), rel=TOLD)
    assert row["scale"] == ""
    assert not row["deviates"]


def test_a_published_value_stands_beside_every_place():
    rows = beside(
        value_entry(),
        seeds("loss_final", [0.5, 0.5, 0.5]),
        seeds("loss_final", [0.9, 0.9, 0.9], backend="mlx"),
    )
    found = [(row["backend"], row["mean"], row["deviates"]) for row in rows]
    assert found == [("torch", 0.5, False), ("mlx", pytest.approx(0.9), True)]


def test_a_time_does_not_deviate():
    """It is that of another machine."""
    for measure in ("seconds", "seconds_per_step"):
        (row,) = beside(value_entry(measure=measure), seeds(measure, [9.0, 9.0, 9.0]))
        assert (row["mean"], row["deviates"]) == (9.0, False)


def test_a_published_nan_is_met_by_runs_that_diverged():
    (row,) = beside(value_entry(cells={"mhc": {8: NAN}}), seeds("loss_final", [None] * 3))
    assert not row["deviates"]


def test_a_value_of_a_cell_that_was_not_run_stands_alone():
    (row,) = beside(value_entry(cells={"hc": {8: 0.5}}), [run()])
    assert row["published"] == 0.5
    assert pd.isna(row["backend"])
    assert pd.isna(row["mean"])


def test_a_value_tells_how_our_scale_differs():
    (row,) = beside(value_entry(scale={"width": 256}), [run(loss_final=0.5)])
    assert row["scale"] == "width 16 for 256"


def test_a_value_is_compared_at_its_own_depths():
    """The study has others too, whose batches are of another size."""
    config = config_with(a={"batch_size": {4: 32, 8: 24, 16: 8}})
    published = published_with(values=[value_entry(scale={"batch_size": 24, "depth": 8})])
    (row,) = published_table(config, summary_table(frame(run())), published).to_dict("records")
    assert row["scale"] == ""


def test_runs_that_diverged_are_counted_beside_a_value():
    runs = [run(seed=0, outcome="diverged"), run(seed=1), run(seed=2)]
    (row,) = beside(value_entry(), runs)
    assert (row["n"], row["diverged"]) == (3, 1)


def test_a_value_of_any_depth_stands_beside_each_of_ours():
    runs = seeds("loss_final", [0.5] * 3), seeds("loss_final", [0.9] * 3, depth=16)
    rows = beside(value_entry(cells={"mhc": {"any": [0.43, 0.77]}}, scale={"depth": 20}), *runs)
    assert [(r["depth"], r["published"], r["published_high"], r["deviates"]) for r in rows] == [
        (4, 0.43, 0.77, NAN_ROW), (8, 0.43, 0.77, False), (16, 0.43, 0.77, True),
    ]  # fmt: skip
    assert rows[0]["scale"] == "depth 4/8/16 for 20"


class NanRow:
    """Equal to any missing value."""

    def __eq__(self, other):
        return pd.isna(other)

    __hash__ = None


NAN_ROW = NanRow()


def test_tokens_of_a_step_are_those_of_all_its_batches():
    entry = value_entry(scale={"tokens_per_step": 256})
    published = published_with(values=[entry])
    for changes, text in (
        ({"batch_size": 8}, "tokens_per_step 64 for 256"),
        ({"accumulate": 4}, ""),
        ({"accumulate": {"mhc": 4}}, ""),
        ({"accumulate": {"hc": 4}}, "tokens_per_step 64 for 256"),
    ):
        summary = summary_table(frame(run()))
        (row,) = published_table(config_with(a=changes), summary, published).to_dict("records")
        assert row["scale"] == text


def test_every_published_cell_has_a_row():
    entry = value_entry(cells={"mhc": {4: 0.1, 8: 0.2}, "hc": {16: 0.3}})
    assert [(r["variant"], r["depth"], r["published"]) for r in beside(entry, [run()])] == [
        ("mhc", 4, 0.1),
        ("mhc", 8, 0.2),
        ("hc", 16, 0.3),
    ]


# --- YAML alone ----------------------------------------------------------------------------------

YAML = """
sources:
  lab: {title: A lab, platform: some GPU, backend: torch}
notes: []
values:
  - {source: lab, study: a, measure: loss_final, scale: {width: 256}, cells: {mhc: {8: 0.5}}}
claims:
  - id: first
    source: lab
    says: It fails.
    tests:
      - {kind: fails, studies: [a], variant: hc, depths: [8]}
  - {id: second, source: lab, says: It does not.}
"""

CONFIG = config_with()

ADDED = """
  - id: added-by-hand
    source: lab
    says: Its loss ends near a half.
    holds: everywhere
    scale: {width: 16, steps: 3}
    tests:
      - {kind: near, studies: [a], variant: mhc, measures: [loss_final], value: 0.5, tolerance: 0.1}
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
    save_tables(
        {"cells.csv": cells, "summary.csv": summary_table(cells), "steps.csv.gz": NO_STEPS},
        tmp_path,
    )
    write_claims(CONFIG, load_published(yaml_file(YAML + ADDED), CONFIG), tmp_path)
    verdicts = read_table(tmp_path / "verdicts.csv").set_index("claim")
    assert verdicts["verdict"].to_dict() == {
        "first": REPRODUCED,
        "second": NOT_MEASURED,
        "added-by-hand": expected,
    }
    (row,) = read_table(tmp_path / "claims.csv").query("claim == 'added-by-hand'").itertuples()
    assert row.observed == pytest.approx(sum(losses) / 3)
    assert row.says == "Its loss ends near a half."
    (mean,) = read_table(tmp_path / "published.csv")["mean"]
    assert mean == pytest.approx(statistics.geometric_mean(losses))


def test_a_text_folded_over_lines_stays_one_line(yaml_file):
    """A line break would break the tables of the report, and shift the lines that it links to."""
    text = YAML.replace("says: It fails.", "says: >\n      It fails,\n      always.")
    (first, _) = load_published(yaml_file(text), CONFIG).claims
    assert first.says == "It fails, always."


def refusal(file):
    """The lines that refuse a published.yaml; each must name the file."""
    with pytest.raises(ConfigError) as caught:
        load_published(file, CONFIG)
    lines = str(caught.value).splitlines()
    assert lines
    for line in lines:
        assert line.startswith(f"{file}: ")
    return lines


def near(measure):
    return (
        f"{{kind: near, studies: [a], variant: hc, measures: [{measure}], value: 1, tolerance: 1}}"
    )


A_TEST = "{kind: fails, studies: [a], variant: hc, depths: [8]}"
FIRST = ["'first'", "claims.0"]
"""What names the first claim: its id, or its place in the list."""


MISTAKES = [
    # What stands there, what stands there by mistake, names of the entry, what must be said.
    # --- claims
    ("id: first\n    source: lab", "id: first\n    source: lob", FIRST, "lob"),
    ("says: It fails.", "says: It fails.\n    scale: {widht: 16}", FIRST, "widht"),
    ("id: second", "id: first", ["first"], "same id"),
    ("kind: fails", "kind: fials", FIRST, "fials"),
    ("variant: hc, ", "", FIRST, "variant"),
    ("    says: It fails.\n", "", FIRST, "says"),
    ("variant: hc", "varaint: hc", FIRST, "did you mean 'variant'"),
    ("depths: [8]", "depths: deep", FIRST, "depths"),
    ("studies: [a]", "studies: []", FIRST, "studies"),
    ("variant: hc", "variant: hv", FIRST, "hv"),
    ("says: It fails.", "says: It fails.\n    holds: at work", FIRST, "at work"),
    (A_TEST, near("gane"), FIRST, "gane"),
    (A_TEST, "{kind: same_at_equal_steps, studies: [a], variants: [hc], depths: [8]}",
     FIRST, "at least 2 items"),
    (A_TEST, "{kind: ordered, studies: [a], lower: hc, higher: [mhc], depths: [8], measure: loss}",
     FIRST, "'loss'"),
    (A_TEST, "{kind: monotone, studies: [a], variant: hc, depths: [8], measure: grad_nrom}",
     FIRST, "grad_nrom"),
    ("says: It fails.", "says: It fails.\n    ground: {widht: 16}", FIRST, "widht"),
    ("says: It fails.", "says: It fails.\n    ground: {width: half}", FIRST, "half"),
    (A_TEST, near("gain_final")[:-1] + ", beside: gane}", FIRST, "gane"),
    ("depths: [8]", "depths: [8], seeds: 0", FIRST, "seeds"),
    # --- values
    ("values:\n  - {source: lab", "values:\n  - {source: lob", ["values.0"], "lob"),
    ("measure: loss_final", "measure: loss_fnal", ["values.0"], "loss_fnal"),
    ("scale: {width: 256}", "scale: {widht: 256}", ["values.0"], "widht"),
    ("{mhc: {8: 0.5}}", "{mhc: {8: half}}", ["values.0"], "half"),
    ("{mhc: {8: 0.5}}", "{mhc: 0.5}", ["values.0"], "0.5"),
    ("{mhc: {8: 0.5}}", "{mhc: {8: [0.5]}}", ["values.0"], "a range as in [0.4, 0.8]"),
    ("{mhc: {8: 0.5}}", "{mhc: {8: [0.8, 0.4]}}", ["values.0"], "a range as in [0.4, 0.8]"),
    ("{mhc: {8: 0.5}}", "{mhc: {every: 0.5}}", ["values.0"], "every"),
    # --- thresholds
    ("claims:", "thresholds: [{source: lob, studies: [a], measure: loss_final, good: {below: 1}, "
     "bad: {above: 1}}]\nclaims:", ["thresholds.0"], "lob"),
    ("claims:", "thresholds: [{source: lab, studies: [a], measure: loss_fnal, good: {below: 1}, "
     "bad: {above: 1}}]\nclaims:", ["thresholds.0"], "loss_fnal"),
    ("claims:", "thresholds: [{source: lab, studies: [a], measure: loss_final, good: {}, "
     "bad: {above: 1}}]\nclaims:", ["thresholds.0"], "above, below or both"),
    ("study: a, ", "", ["values.0"], "study"),
    # --- sources, notes
    ("backend: torch", "backend: torhc", ["sources.lab", "'lab'"], "torhc"),
    ("title: A lab, ", "", ["sources.lab"], "title"),
    ("notes: []", "notes: [{source: lob, says: It differs.}]", ["notes.0"], "lob"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "names", "problem"), MISTAKES, ids=[f"{m[2][0]}-{m[3]}" for m in MISTAKES]
)
def test_a_mistake_is_refused_with_the_file_and_the_entry(yaml_file, old, new, names, problem):
    assert YAML.count(old) == 1
    file = yaml_file(YAML.replace(old, new))
    lines = [line.removeprefix(f"{file}: ") for line in refusal(file)]
    assert any(problem in line for line in lines)
    for line in lines:
        assert any(name in line for name in names)


@pytest.mark.parametrize("text", ["", "[]", "claims: [", "claims: {", "just text"])
def test_a_file_that_is_no_mapping_is_refused(yaml_file, text):
    assert len(refusal(yaml_file(text))) == 1


def test_a_file_that_is_not_there_is_refused(tmp_path):
    (line,) = refusal(tmp_path / "published.yaml")
    assert "cannot be read" in line


@pytest.mark.parametrize("section", ["sources", "notes", "values", "claims"])
def test_a_section_that_is_missing_is_refused(yaml_file, section):
    data = {key: value for key, value in yaml.safe_load(YAML).items() if key != section}
    assert any(section in line for line in refusal(yaml_file(data)))


def test_every_mistake_is_named_at_once(yaml_file):
    data = copy.deepcopy(yaml.safe_load(YAML))
    del data["claims"][0]["says"]
    del data["values"][0]["study"]
    lines = refusal(yaml_file(data))
    assert any("claims.0.says" in line for line in lines)
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
    text = text.replace("studies: [a], variant: hc", "studies: [x], variant: v2")
    assert load_published(yaml_file(text), CONFIG).claims[0].tests[0].variant == "v2"


# --- the claims that are shipped -----------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped(pytestconfig, default_config):
    return load_published(pytestconfig.rootpath / "report/published.yaml", default_config)


CLAIMS = [
    "gain-hc-exponential", "gain-mhc-bounded", "baseline-struggles", "hc-fails-48",
    "mhc-converges-48", "no-nonfinite", "hc-needs-more-steps", "hc-grad-erratic",
    "hc-grad-varies-24", "baseline-grad-decays", "constraint-is-key",
    "streams-are-expressive", "hc-nan-48", "gain-hc-exponential-cuda", "gain-mhc-constant",
    "demo-gain-constant", "gain-confirms-sinkhorn", "all-converge-shallow", "both-converge-48",
    "mhc-lowest-loss", "platforms-agree", "fewer-steps-explain-loss",
    "bounded-gain-enables-training", "mhc-attenuates", "demo-converges-fast",
    "fashion-mhc-best-100", "fashion-hc-beat-resnet-500", "fashion-ds",
    "fashion-global-structure", "fashion-resnet-fastest", "text-dynamic-tradeoff",
    "text-init-extreme-better", "text-gate-saturates", "text-init-5-barely-learns",
    "text-init-3-fails-deeper", "text-20-iterations", "text-larger-batch", "text-compile",
    "text-dynamic-unstable", "text-static-stable", "text-similarity-measures-streams",
]  # fmt: skip


def test_all_claims_are_there_once(shipped):
    assert sorted(claim.id for claim in shipped.claims) == sorted(CLAIMS)


def test_a_claim_has_tests_or_says_why_not(shipped):
    untested = {claim.id: claim.untested for claim in shipped.claims if not claim.tests}
    assert set(untested) == {"text-compile", "hc-needs-more-steps"}
    assert "compiles" in untested["text-compile"]
    assert "800 steps" in untested["hc-needs-more-steps"]


def test_every_claim_names_the_ground_that_it_stands_on(shipped):
    """Half of a depth at least, a quarter of an image network's width, an eighth of another's."""
    for claim in shipped.claims:
        if not claim.tests:
            continue
        assert {"width", "steps"} <= set(claim.ground)
        share = 0.25 if claim.source == "surviving-depth" else 0.125
        if "width" in claim.scale:
            assert claim.ground["width"] >= share * claim.scale["width"]
        # Of these the depth is no part of what they say, or stands in the test.
        if "depth" in claim.scale and claim.id not in (
            "fashion-resnet-fastest", "text-init-3-fails-deeper"
        ):  # fmt: skip
            assert claim.ground["depth"] >= 0.5 * claim.scale["depth"]


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
                values = dict.fromkeys(RUN_MEASURES, 0.5 + seed)
                cells.append(run(**axes, **values))
                steps += curve([3.0, 2.0], **axes)
    table = claims_table(config, frame(cells), frame(steps), shipped)
    assert set(table["verdict"]) == {NOT_MEASURED}


def test_a_claim_tells_of_one_run_only_where_the_source_does(shipped):
    """The demo is one run; everything else takes three seeds."""
    for claim in shipped.claims:
        for test in claim.tests:
            assert test.seeds == (1 if test.studies == ["demo-50"] else 3)


def test_the_baseline_struggles_only_if_it_does_not_converge(shipped, default_config):
    """That mhc ends lower is not enough: both may converge."""
    (claim,) = (claim for claim in shipped.claims if claim.id == "baseline-struggles")
    one = shipped.model_copy(update={"claims": [claim]})
    for baseline, expected in ((3.79, REPRODUCED), (0.1, CONTRADICTED)):
        cells = [
            row
            for study in ("depth-mlx", "depth-torch")
            for variant, loss in (("mhc", 0.0002), ("baseline", baseline))
            for row in seeds("loss_final", [loss, 1.01 * loss, 1.02 * loss], variant=variant,
                             depth=48, study=study)
        ]  # fmt: skip
        table = claims_table(default_config, frame(cells), NO_STEPS, one)
        assert verdicts_table(table)["verdict"].tolist() == [expected]


def test_every_tested_claim_has_a_home_and_a_scale(shipped):
    """The hyper-parameter study does not say where it ran: it is decided everywhere."""
    for claim in shipped.claims:
        if claim.tests:
            home = shipped.sources[claim.source].backend
            assert home in ("torch", "mlx") or claim.source == "nanochat-mhc"
            assert claim.scale


def test_the_claims_of_the_arms_are_tested_under_both_optimisers(shipped):
    for claim in shipped.claims:
        if claim.source == "nanochat-mhc" and claim.tests:
            assert {study for test in claim.tests for study in test.studies} == {"text-arms"}
            assert claim.control == "text-arms-adamw"


def test_thresholds_are_those_of_the_source(shipped):
    assert {t.measure: (t.good.text, t.bad.text) for t in shipped.thresholds} == {
        "stream_embedding_similarity_final": ("below 0.2", "above 0.4"),
        "gate_first_final": ("0.3 to 0.7", "1.0"),
        "base_column_error_final": ("below 1e-06", "above 0.01"),
        "base_diagonal_final": ("0.4 to 0.8", "1.0 or 0.25"),
        "validation_bpb": ("below 1", "above 1.2"),
    }


def test_published_values_are_copied_as_printed(shipped):
    printed = {
        (value.source, value.study, value.measure, variant, depth): number
        for value in shipped.values
        for variant, by_depth in value.cells.items()
        for depth, number in by_depth.items()
    }
    arms = {(m, v): value for (s, _, m, v, d), value in printed.items() if d == "any"}
    similarity = {v: value for (m, v), value in arms.items() if m.startswith("stream_embedding")}
    assert similarity.pop("v1") == (0.37, 0.52)  # of the reruns, which come second
    assert similarity == {
        "v2": (0.43, 0.77), "v3": (0.163, 0.163), "v4a": (0.61, 0.61), "v4b": (0.278, 0.278),
        "v4c": (0.387, 0.387), "v4d": (0.765, 0.765),
    }  # fmt: skip
    assert {v: value.low for (m, v), value in arms.items() if m == "gate_first_final"} == {
        "v1": 0.688, "v2": 0.57, "v3": 0.338, "v4b": 0.008, "v4c": 0.452, "v4d": 0.746,
    }  # fmt: skip
    assert {v: value for (m, v), value in arms.items() if m == "validation_bpb"} == {
        "v1": (1.15, 1.15), "v2": (0.996, 1.15), "v3": (1.147, 1.147),
    }  # fmt: skip
    assert arms["base_row_error_final", "v4c"].low == 0.17
    assert arms["base_row_error_final", "v4d"].low == 0.006
    assert arms["base_diagonal_final", "v3"].low == 0.504
    printed = {key: value.low for key, value in printed.items() if key[-1] != "any"}
    assert printed["mhc-demo-mlx", "depth-mlx", "loss_final", "baseline", 48] == 3.79
    assert printed["mhc-demo-mlx", "depth-mlx", "loss_final", "hc", 48] == 5.54
    assert printed["mhc-demo-mlx", "depth-mlx", "gain_final", "hc", 24] == 14.4
    assert printed["mhc-demo-cuda", "depth-torch", "loss_final", "mhc", 12] == 0.0005
    assert printed["mhc-demo-cuda", "demo-500", "grad_norm_final", "mhc", 24] == 0.00254
    assert math.isnan(printed["mhc-demo-cuda", "depth-torch", "loss_final", "hc", 48])
    assert printed["surviving-depth", "fashion", "test_accuracy", "mhc_causal", 100] == 0.7324
    assert (
        printed["surviving-depth-25-january", "fashion-500", "test_accuracy", "resnet", 500]
        == 0.6363
    )
    losses = {"resnet": 0.7098, "hc_causal": 0.4415, "mhc_causal": 0.5064}
    for variant, loss in losses.items():
        assert printed["surviving-depth", "fashion-500", "loss_final", variant, 500] == loss
    for study, seconds, steps in (("demo-50", 17.1, 50), ("demo-500", 166, 500)):
        demo = {m: v for (_, s, m, _, _), v in printed.items() if s == study}
        assert demo["seconds"] == seconds
        assert demo["seconds_per_step"] == pytest.approx(seconds / steps, abs=5e-4)
        assert demo["nonfinite_total"] == 0
    demos = (6 + 3) + (3 + 6)
    assert len(printed) == 9 * 3 + (9 + 6) + demos + (3 * 3 + 5 * 2 + 3 + 5) + (3 + 2 + 5)


# What runs could plausibly show instead: the chance level of 256 tokens, the slope of hc's gain,
# the first loss at 64 tokens.
AT_CHANCE = math.log(256)
SLOPE = 0.5823
FIRST_LOSS = 4.37


def world(test, backend, *, holds):
    """Runs and steps under which a shipped test holds, or under which it plainly does not."""
    depths = getattr(test, "depths", None) or [12, 24, 48]
    variants = [
        *getattr(test, "variants", []),
        *getattr(test, "higher", []),
        *(getattr(test, n) for n in ("variant", "lower", "than") if hasattr(test, n)),
    ]
    cells, steps = [], []
    for study in test.studies:
        for variant in dict.fromkeys(variants):
            for depth in depths:
                for seed in range(5):
                    axes = {"study": study, "variant": variant, "depth": depth, "seed": seed}
                    axes["backend"] = backend
                    values, losses = numbers(test, axes, holds)
                    cells.append(run(**axes, chance_loss=AT_CHANCE, **values))
                    column = test.measure if test.kind in ("monotone", "constant") else "loss"
                    steps += curve(losses, column=column, **axes)
    if test.kind == "places_agree":
        away = [{**cell, "backend": "torch" if backend == "mlx" else "mlx"} for cell in cells]
        for cell in away:
            cell["loss_final"] *= 1 if holds else 9
        cells += away
    return frame(cells), frame(steps)


def numbers(test, axes, holds):
    """(summary, curve) of one run."""
    jitter = 1 + 0.001 * axes["seed"]
    good = [3.0, 0.02 * jitter]
    if test.kind == "line_in_depth":
        slope = SLOPE if holds else -SLOPE
        return {test.measures[0]: slope * axes["depth"] * jitter}, good
    if test.kind == "near":
        unlike = {
            "gain_final": SLOPE * axes["depth"],
            "gain_first": SLOPE * axes["depth"],
            "test_accuracy": 0.7,
            "loss_first": FIRST_LOSS,
            "loss_final": AT_CHANCE,
            "mixing_row_error": 1.0,
            "mixing_column_error": 1.0,
            "gate_first_final": 0.5,
        }
        value = test.value if holds else unlike[test.measures[0]]
        # What is printed with three digits is the same at every seed.
        return {test.measures[0]: value * (1 if test.tolerance < 0.001 else jitter)}, good
    if test.kind == "between":
        edge = test.high if math.isfinite(test.high) else test.low
        inwards = -0.5 if math.isfinite(test.high) else 0.5
        value = edge + (inwards if holds else -inwards) * max(abs(edge), 0.5)
        return {test.measure: value * jitter}, good
    if test.kind == "fails":
        return {"outcome": "at chance" if holds else "learned", "loss_final": jitter}, good
    if test.kind == "diverges_at_once":
        return {"first_nonfinite_step": 0 if holds else NAN}, good
    if test.kind == "no_events":
        return {"nonfinite_total": 0 if holds else 1}, good
    if test.kind == "converges_below":
        return {"loss_final": (0.001 if holds else AT_CHANCE) * jitter}, good
    if test.kind == "stays_above":
        return {"loss_final": (3.79 if holds else 0.0016) * jitter}, good
    if test.kind == "falls":
        start, end = test.measures
        return {start: 1.0, end: (0.1 if holds else 10.0) * jitter}, good
    if test.kind == "places_agree":
        return {"loss_final": 0.02 * (1 + axes["seed"])}, good
    if test.kind == "constant":
        return {}, [-0.602, -0.602] if holds else [-0.602, 0.4]
    if test.kind == "ordered":
        small = (axes["variant"] == test.lower) == holds
        return {test.measure: (0.1 if small else 1.0) * jitter}, good
    if test.kind == "not_below":
        higher = (axes["variant"] == test.variant) == holds
        return {test.measure: (1.0 if higher else 0.1) * jitter}, good
    if test.kind == "varies_more":
        wide = (axes["variant"] == test.variant) == holds
        return {test.measure: axes["seed"] * (1.0 if wide else 0.01)}, good
    if test.kind == "reaches":
        return {test.measure: test.value if holds else 0.1 * test.value * jitter}, good
    if test.kind == "rises_with_depth":
        height = axes["depth"] if holds else -axes["depth"]
        return {test.measure: height * jitter}, good
    if test.kind == "correlates":
        one, other = test.measures
        x = axes["seed"] + axes["depth"] / 10
        return {one: x, other: x * jitter if holds else -x * jitter}, good
    if test.kind == "monotone":
        return {}, [3.0, 2.0, 1.0] if holds else [1.0, 2.0, 3.0]
    assert test.kind == "same_at_equal_steps"
    if axes["study"] == test.studies[0]:
        return {}, [3.0, 0.02 * (1 + 0.01 * (axes["seed"] - 1))]
    return {}, [3.0, 0.02 if holds else 0.2]


def shipped_verdicts(shipped, config, *, holds):
    """Each shipped test, as (claim, number of the test, kind) → verdict in such a world."""
    found = {}
    for claim in shipped.claims:
        for number, test in enumerate(claim.tests):
            home = shipped.sources[claim.source].backend or "torch"
            cells, steps = world(test, home, holds=holds)
            alone = claim.model_copy(update={"tests": [test], "control": None, "ground": {}})
            one = shipped.model_copy(update={"claims": [alone]})
            rows = claims_table(config, cells, steps, one).to_dict("records")
            (row,) = (row for row in rows if row["decides"])
            found[claim.id, number, test.kind] = row["verdict"]
    return found


def test_every_shipped_test_can_be_reproduced(shipped, default_config):
    found = shipped_verdicts(shipped, default_config, holds=True)
    assert found == dict.fromkeys(found, REPRODUCED)
    assert len(found) == 70


def test_no_tolerance_keeps_a_shipped_test_from_being_contradicted(shipped, default_config):
    found = shipped_verdicts(shipped, default_config, holds=False)
    assert found == dict.fromkeys(found, CONTRADICTED)


def test_the_shipped_claims_cover_every_kind(shipped):
    kinds = {test.kind for claim in shipped.claims for test in claim.tests}
    assert kinds == {test["kind"] for test in [*KINDS, *OF_SEEDS]} == set(RULES)
