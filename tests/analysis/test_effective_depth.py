"""Effective depth: number of layers at which a plain network reaches a variant's score."""

import math

import numpy as np
import pytest

from fathom_study.analysis.effective_depth import Point, effective_depth_table, read_depth
from tests.support.runs import config_with
from tests.support.tables import T975, frame, run

PLAIN, OURS = "baseline", "mhc"


def config_of(depths=(1, 2, 4, 8), **changes):
    return config_with(a={"variants": [PLAIN, OURS], "depths": list(depths), **changes})


def runs(variant, depth, scores):
    """One run per seed with these scores; NaN marks a diverged run."""
    return [
        run(variant=variant, depth=depth, seed=seed, score=score,
            outcome="diverged" if math.isnan(score) else "learned")
        for seed, score in enumerate(scores)
    ]  # fmt: skip


def read(plain, ours, depth=8, **changes):
    """Table row of a variant with scores `ours`; `plain` has scores of plain networks by depth."""
    cells = runs(OURS, depth, ours)
    for at, scores in plain.items():
        cells += runs(PLAIN, at, scores)
    table = effective_depth_table(config_of(tuple(plain), **changes), frame(cells))
    rows = table[(table["variant"] == OURS) & (table["depth"] == depth)].to_dict("records")
    assert len(rows) <= 1
    return rows[0] if rows else None


def test_log_score_is_interpolated_over_log_depth():
    # The loss halves from 2 to 8 layers. A quarter of that way, in logarithms, is at 2·4^¼ = 2√2.
    plain = {2: [4.0] * 3, 8: [2.0] * 3, 16: [1.0] * 3}
    row = read(plain, [4.0 * 2**-0.25] * 3)
    assert row["effective_depth"] == pytest.approx(2 * math.sqrt(2))
    assert (row["answer"], row["seeds"]) == ("at", 3)
    # Identical seeds give an interval of zero width.
    assert (row["low"], row["high"]) == pytest.approx((2 * math.sqrt(2),) * 2)
    assert not (row["low_open"] or row["high_open"])


def test_the_scores_of_a_plain_depth_give_that_depth():
    plain = {1: [4.0, 5.0, 6.0], 4: [2.0, 3.0, 2.5], 8: [1.0, 1.5, 1.2]}
    row = read(plain, plain[4])
    assert row["effective_depth"] == 4
    # All differences to that depth are zero, so the interval has zero width.
    assert row["low"] == row["high"] == 4


def test_the_interval_is_students_t_on_paired_seeds():
    # In log10, plain less ours, by seed: at 1 layer 0.3 ± 0.1, at 4 layers −0.5 ± 0.1, then −0.9.
    noise = np.array([-0.1, 0.0, 0.1])
    ours = np.array([0.2, 0.5, 0.1])  # common to both sides, so it cancels
    plain = {
        depth: list(10 ** (ours + gap + noise)) for depth, gap in ((1, 0.3), (4, -0.5), (16, -0.9))
    }
    row = read(plain, list(10**ours))
    half = T975[2] * 0.1 / math.sqrt(3)
    assert row["effective_depth"] == pytest.approx(4 ** (0.3 / 0.8))
    assert row["low"] == pytest.approx(4 ** ((0.3 - half) / 0.8))
    assert row["high"] == pytest.approx(4 ** ((0.3 + half) / 0.8))


def test_scores_outside_the_plain_range_are_below_or_beyond():
    plain = {1: [4.0, 4.1, 3.9], 4: [2.0, 2.1, 1.9], 8: [1.0, 1.1, 0.9]}
    below, beyond = read(plain, [8.0, 8.1, 7.9]), read(plain, [0.5, 0.6, 0.4])
    assert (below["answer"], below["effective_depth"]) == ("below", 1)
    assert (beyond["answer"], beyond["effective_depth"]) == ("beyond", 8)
    assert math.isnan(below["low"]) and math.isnan(beyond["high"])
    assert below["plain_best"] == 8


COUNTING = {1: 0.00034, 2: 0.00048, 3: 0.00059, 6: 0.00097, 12: 0.002, 24: 0.024, 48: 0.22}
"""Scores of plain networks by depth that worsen with depth, as on the counting task."""


def spread(mean, share=0.05):
    return [mean * (1 - share), mean, mean * (1 + share)]


def test_if_layers_do_harm_the_score_of_one_layer_gives_depth_one():
    plain = {depth: [mean * f for f in (1.0, 0.97, 1.04)] for depth, mean in COUNTING.items()}
    row = read(plain, spread(0.00034, 0.1), depth=48)
    assert (row["answer"], row["effective_depth"], row["plain_best"]) == ("at", 1, 1)
    assert row["low_open"] and not row["high_open"]
    assert 1 <= row["high"] < 2  # two layers are significantly worse


def test_if_layers_do_harm_the_best_score_of_all_has_no_depth():
    plain = {depth: spread(mean) for depth, mean in COUNTING.items()}
    row = read(plain, spread(0.0001), depth=48)
    assert row["answer"] == "unknown" and math.isnan(row["effective_depth"])
    # It equals 12 layers, but one layer is significantly better.
    assert read(plain, spread(0.002), depth=48)["answer"] == "below"


def test_a_plain_run_that_diverged_is_worse_than_any_score():
    nan = math.nan
    plain = {1: [4.0] * 3, 2: [1.0, nan, 1.0], 4: [1.0] * 3, 8: [nan] * 3}
    row = read(plain, [2.0] * 3)
    # Between a diverged depth and a good one nothing is known, so the deeper one is used.
    assert (row["answer"], row["effective_depth"]) == ("at", 4)
    assert (row["plain_depths"], row["plain_diverged"]) == ("1 2 4 8", "2 8")


def test_a_depth_uses_the_seeds_common_to_both_networks():
    # Plain has three of five seeds at 8 layers. Our other two are worse and would bias the depth.
    plain = {1: [8.0] * 5, 4: [4.0] * 5, 8: [2.0] * 3}
    ours = [2.0, 2.0, 2.0, 4.0, 4.0]
    row = read(plain, ours)
    assert (row["plain_depths"], row["deepest"], row["seeds"]) == ("1 4 8", 8, 3)
    assert (row["effective_depth"], row["high_open"]) == (8, True)


def test_a_depth_with_too_few_common_seeds_for_an_interval_is_ignored():
    plain = {1: [4.0] * 3, 2: [1.0], 4: [2.0] * 3, 8: [1.0] * 3}
    row = read(plain, [2.0] * 3)
    assert (row["plain_depths"], row["effective_depth"]) == ("1 4 8", 4)
    assert read({1: [4.0] * 3, 2: [1.0], 4: [2.0] * 3}, [2.0] * 3) is None  # two depths remain


@pytest.mark.parametrize(
    "changes",
    [
        {"depths": [1, 2]},
        {"variants": [OURS, "hc"]},
        {"variants": [{"slow": {"connection": "plain", "optimizer": {"lr": 0.0001}}}, OURS]},
    ],
)
def test_a_study_without_a_plain_curve_has_no_effective_depth(changes):
    config = config_of(**changes)
    assert config.depth_control("a") is None
    cells = frame(runs(OURS, 8, [1.0] * 3), *(runs(PLAIN, d, [1.0] * 3) for d in (1, 2, 4)))
    assert effective_depth_table(config, cells).empty


def test_the_plain_network_is_found_by_its_connection_and_not_by_its_name():
    variants = [
        {"slow": {"connection": "plain", "optimizer": {"lr": 0.0001}}},
        {"ordinary": {"kind": "plain"}},
        OURS,
        {"longer": {"connection": "mhc", "steps": 4}},
    ]
    config = config_of(variants=variants)
    assert config.depth_control("a") == "ordinary"
    cells = [runs("ordinary", depth, [8.0 / depth] * 3) for depth in (1, 2, 4)]
    cells += [runs(label, 8, [4.0] * 3) for label in ("slow", OURS, "longer")]
    table = effective_depth_table(config, frame(*cells))
    # Variants trained differently from the plain network are not compared with it.
    assert table[["variant", "against", "effective_depth"]].values.tolist() == [
        [OURS, "ordinary", 2]
    ]


def test_the_interval_contains_the_depth_for_random_curves():
    rng = np.random.default_rng(0)
    for _ in range(500):
        means = rng.normal(size=5)
        halves = rng.exponential(0.5, size=5)
        curve = [
            Point(2**i, mean, mean - half, mean + half)
            for i, (mean, half) in enumerate(zip(means, halves, strict=True))
        ]
        result = read_depth(curve, interval=True)
        assert 1 <= result.effective_depth <= 16
        if result.answer == "at":
            assert result.low <= result.effective_depth <= result.high
        else:
            told_apart = [p.high < 0 for p in curve[:1]] + [all(p.low > 0 for p in curve)]
            assert any(told_apart)
