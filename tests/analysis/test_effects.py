"""Effects: a study's contrasts, compared seed by seed."""

import math
from fractions import Fraction
from functools import partial

import pytest

from fathom_study.analysis.pairs import AGAINST_PLAIN, AT_BEST_RATE
from fathom_study.analysis.tables import read_table, save_tables
from fathom_study.config import ConfigError
from tests.support.runs import config_with
from tests.support.tables import T975, T_ROUNDING, frame, half_width, run, seeds, table_of_effects

QUESTION = "Does it matter?"


def config_of(pairs, named_seeds=(), **changes):
    """A study `a` of baseline, hc and mhc with one question, on all seeds or on `named_seeds`."""
    contrast = {"question": QUESTION, "pairs": pairs, "seeds": named_seeds}
    return config_with(a={"contrasts": [contrast], **changes})


def effect_of(*rows, metric="score"):
    """The only row of a metric for mhc against hc."""
    table = table_of_effects(config_of([["mhc", "hc"]]), frame(*rows))
    (row,) = table[table["metric"] == metric].to_dict("records")
    return row


def test_an_effect_on_a_positive_score_is_the_mean_log_ratio_over_common_seeds():
    ours, theirs = [1.0, 1.5, 2.25], [2.0, 2.25, 3.5]
    row = effect_of(
        seeds("score", ours, variant="mhc"),
        seeds("score", theirs, variant="hc")[::-1],  # matched by seed, not by row
        run(variant="hc", seed=7, score=100.0),  # mhc has no run of this seed
    )
    ratios = [math.log10(a / b) for a, b in zip(ours, theirs, strict=True)]
    assert row["seeds"] == 3
    mean, half = sum(ratios) / 3, half_width(ratios)
    expected = {"effect": mean, "low": mean - half, "high": mean + half}
    for name, log in expected.items():
        assert row[name] == pytest.approx(100 * (10**log - 1), rel=T_ROUNDING)
    assert (row["unit"], row["verdict"]) == ("%", "better")


def test_two_equal_networks_differ_in_no_setting_also_when_the_table_is_read(tmp_path):
    variants = ["baseline", {"again": {"connection": "baseline"}}]
    config = config_of([["again", "baseline"]], variants=variants)
    rows = [seeds("score", [2.0, 2.1, 2.2], variant=name) for name in ("again", "baseline")]
    save_tables({"effects.csv": table_of_effects(config, frame(*rows))}, tmp_path)
    assert read_table(tmp_path / "effects.csv")["differs_in"].tolist() == [""]


def effect_of_accuracies(ours, theirs):
    """The only row of hc_causal against resnet, with these accuracies by seed."""
    images = {"task": "fashion", "variants": ["resnet", "hc_causal"], "model": {"width": 8}}
    config = config_of([["hc_causal", "resnet"]], **images)
    rows = seeds("score", ours, variant="hc_causal") + seeds("score", theirs, variant="resnet")
    (row,) = table_of_effects(config, frame(rows)).to_dict("records")
    return row


@pytest.mark.parametrize(
    ("ours", "verdict"), [([0.7, 0.72, 0.74], "better"), ([0.5, 0.52, 0.54], "worse")]
)
def test_an_accuracy_is_compared_in_points_and_the_higher_one_is_better(ours, verdict):
    theirs = [0.6, 0.61, 0.62]
    row = effect_of_accuracies(ours, theirs)
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    assert (row["unit"], row["verdict"]) == ("points", verdict)
    assert row["effect"] == pytest.approx(100 * sum(differences) / 3)
    assert row["high"] - row["effect"] == pytest.approx(
        100 * half_width(differences), rel=T_ROUNDING
    )


def test_intervals_stay_within_the_range_of_the_score():
    # The second side's mean is 60 %, so no difference is below −60 or above 40 points.
    row = effect_of_accuracies([0.1, 0.9, 0.5], [0.6, 0.6, 0.6])
    assert half_width([-0.5, 0.3, -0.1]) > 0.9
    assert (row["low"], row["high"]) == (pytest.approx(-60), pytest.approx(40))
    # No loss falls by more than 100 %.
    loss_row = effect_of(
        seeds("score", [1e-3, 5.0, 1e-6], variant="mhc"),
        seeds("score", [1.0, 1.0, 1.0], variant="hc"),
    )
    assert -100 < loss_row["low"] < loss_row["effect"] < loss_row["high"]


def test_the_other_sides_mean_is_over_common_seeds_and_geometric_only_for_ratios():
    ours = seeds("score", [1.0, 1.0, 1.0], variant="mhc")
    theirs = seeds("score", [0.1, 1.0, 10.0, 1e6], variant="hc")  # seed 3 has no mhc
    for row, distance in zip(ours + theirs, [1.0] * 3 + [0.1, 1.0, 10.0, 1e6], strict=True):
        row["H_res_distance_final"] = distance
    score, distance = (
        effect_of(ours, theirs, metric=name) for name in ("score", "H_res_distance_final")
    )
    assert score["against_mean"] == pytest.approx(1)
    assert score["seed_sd"] == pytest.approx(900)  # a standard deviation of a factor of ten
    assert distance["against_mean"] == pytest.approx(11.1 / 3)  # the arithmetic mean


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0, 1.1, 0.9], "worse"),
        ([1.0, -0.5, 0.25], "undecided"),
        ([5.0, 5.0], "undecided"),  # two seeds have no interval
        ([9e-6, 9.1e-6, 8.9e-6], "the same"),  # rounding, although its interval excludes zero
        ([9e-6, 1.1e-5, 1e-5], "worse"),  # significant, although small
        ([0.0, 0.0], "undecided"),
    ],
)
def test_an_effect_is_significant_if_its_interval_excludes_zero(differences, expected):
    row = effect_of(
        seeds("score", [1 + d for d in differences], variant="mhc"),
        seeds("score", [1.0] * len(differences), variant="hc"),
    )
    assert row["verdict"] == expected


def test_a_seed_that_diverged_on_one_side_is_left_out():
    row = effect_of(
        seeds("score", [1.0, math.nan, 1.0, 1.0], variant="mhc"),
        seeds("score", [2.0, 9.0, 2.0, 2.0], variant="hc"),
    )
    assert (row["seeds"], row["effect"]) == (3, pytest.approx(-50))


def test_sides_without_a_common_score_are_not_compared():
    table = table_of_effects(
        config_of([["mhc", "hc"], ["mhc", "baseline"]]),
        frame(
            seeds("score", [math.nan, math.nan], variant="mhc"),
            seeds("score", [math.nan, math.nan], variant="hc"),
            seeds("score", [1.0, 1.0], variant="baseline"),
        ),
    )
    assert table.empty


def test_a_contrast_uses_only_its_named_seeds():
    rows = frame(
        seeds("score", [1.0, 1.5, 2.25, 90.0], variant="mhc"),
        seeds("score", [2.0, 3.0, 4.5, 1.0], variant="hc"),
    )
    contrasted = partial(config_of, [["mhc", "hc"]], seeds=[0, 1, 2, 3])
    effects = {}
    for named in ([], [0, 1, 2], [3]):
        table = table_of_effects(contrasted(named), rows)
        (row,) = table[table["metric"] == "score"].to_dict("records")
        effects[len(named)] = row["seeds"], row["effect"]
    assert effects[3] == (3, pytest.approx(-50))  # in % of the other side, which is twice as large
    assert effects[1] == (1, pytest.approx(8900))
    assert effects[0] == (4, pytest.approx(100 * (90 / 8) ** 0.25 - 100))  # the geometric mean
    with pytest.raises(ConfigError, match=r"contrasts\.0\.seeds: unknown seed '?7"):
        contrasted([7])


def test_platforms_and_depths_are_compared_separately():
    table = table_of_effects(
        config_of([["mhc", "hc"]]),
        frame(
            run(variant="mhc", score=1.0), run(variant="hc", score=2.0),
            run(variant="mhc", score=4.0, depth=16),
            run(variant="hc", score=2.0, depth=16),
            run(variant="mhc", score=9.0, backend="mlx"),
        ),
    )  # fmt: skip
    rows = table[table["metric"] == "score"]
    effects = {(r.platform, r.depth): r.effect for r in rows.itertuples()}
    assert effects == {("torch", 8): pytest.approx(-50), ("torch", 16): pytest.approx(100)}


def test_extra_variants_join_the_questions_of_a_study():
    extra = {"extra_variants": [{"mine": {"connection": "mhc", "gate": "learned"}}]}
    labels = ("baseline", "hc", "mhc", "mine")
    cells = frame(*(seeds("score", [1.0, 1.1, 1.2], variant=label) for label in labels))
    table = table_of_effects(config_of([["mhc", "hc"]], **extra), cells)
    pairs = [(r.question, r.variant, r.against) for r in table.itertuples()]
    assert pairs == [(QUESTION, "mhc", "hc"), (AGAINST_PLAIN, "mine", "baseline")]
    # Without questions in the study, an extra variant is compared like any other.
    table = table_of_effects(config_with(a=extra), cells)
    assert list(table["variant"]) == ["hc", "mhc", "mine"]


# --- precision, and several contrasts -------------------------------------------------------------


def test_an_effect_of_nearly_equal_scores_keeps_its_digits():
    # Processors differ in the last digit of a logarithm, 1e-16.
    ours, theirs = [0.5 * (1 + k * 1e-9) for k in (3, 4, 5)], [0.5, 0.5, 0.5]
    row = effect_of(seeds("score", ours, variant="mhc"), seeds("score", theirs, variant="hc"))
    exact = sum(Fraction(value) - Fraction(0.5) for value in ours) / 3
    assert row["effect"] == pytest.approx(100 * float(exact) / 0.5, rel=1e-8)


def test_a_pair_trained_on_another_platform_does_not_escape_the_correction():
    """MLX has one of the two pairs of PyTorch, at the same scores; `mhc` − `hc` counts once."""
    half = T975[2] / math.sqrt(3)
    scores = {"mhc": [10 ** (half * 1.2 + d) for d in (-1, 0, 1)], "hc": [1.0, 1.0, 1.0]}
    scores["baseline"] = [10 ** (2 * (half * 1.2 + d)) for d in (-1, 0, 1)]

    def on(platform, *variants):
        return [seeds("score", scores[v], variant=v, backend=platform) for v in variants]

    cells = frame(*on("torch", "mhc", "hc", "baseline"), *on("mlx", "mhc", "hc"))
    table = table_of_effects(config_of([["mhc", "hc"], ["baseline", "hc"]]), cells)
    rows = table[table["metric"] == "score"].to_dict("records")
    assert [(row["platform"], row["variant"]) for row in rows] == [
        ("torch", "mhc"), ("torch", "baseline"), ("mlx", "mhc"),
    ]  # fmt: skip
    assert rows[0]["p"] < 0.05
    assert [row["p_holm"] for row in rows] == pytest.approx([2 * row["p"] for row in rows])
    assert {row["verdict"] for row in rows} == {"undecided"}


def test_a_single_stream_is_not_compared_on_metrics_of_matrices():
    values = {"score": [1.0, 1.1, 1.2], "amax_backward_log10_final": [0.0, 0.0, 0.0]}
    rows = [
        run(seed=seed, variant=variant, **{name: by_seed[seed] for name, by_seed in values.items()})
        for variant in ("baseline", "hc", "mhc")
        for seed in range(3)
    ]
    table = table_of_effects(config_of([["mhc", "baseline"], ["mhc", "hc"]]), frame(rows))
    beside_score = table[table["metric"] != "score"]
    assert list(beside_score["against"]) == ["hc"]


# --- equivalence, by a ladder of the plain network ------------------------------------------------


RATES = (0.001, 0.002, 0.004)


def at_best_rates(rates=RATES, **scores):
    """Comparisons at the best rates; `scores` are by connection, then by rate and seed.

    `wide` is the plain network with a wider MLP.
    """
    networks = {name: {"connection": name} for name in scores}
    if "wide" in scores:
        networks["wide"] = {"connection": "baseline", "model": {"hidden": 64}}
    variants = [
        {f"{connection}_{k}": {**networks[connection], "optimizer": {"lr": rate}}}
        for connection in scores
        for k, rate in enumerate(rates)
    ]
    rows = [
        seeds("score", of_seeds, variant=f"{connection}_{k}")
        for connection, by_rate in scores.items()
        for k, of_seeds in enumerate(by_rate)
    ]
    table = table_of_effects(config_with(a={"variants": variants}), frame(*rows))
    return table[table["question"] == AT_BEST_RATE].to_dict("records")


def test_each_connection_is_compared_at_its_own_best_rate():
    plain = [[2.0, 2.2, 2.1], [1.0, 1.1, 1.2], [3.0, 3.0, 3.0]]
    lower_but_diverged = [0.1, 0.1, math.nan]
    (row,) = at_best_rates(
        baseline=plain, mhc=[lower_but_diverged, [2.0, 2.0, 2.0], [0.5, 0.55, 0.6]]
    )
    assert (row["variant"], row["against"]) == ("mhc_2", "baseline_1")
    assert row["effect"] == pytest.approx(-50)
    assert row["at_edge"] == "mhc_2"
    assert row["verdict"] == "better"


def test_the_rate_of_a_seed_is_chosen_from_the_other_seeds():
    # Geometric means of the other two seeds by rate: 4, 3, 9 for seed 0, so it takes rate 1;
    # 2, √24, 9 for seeds 1 and 2, so they take rate 0.
    mhc = [[1.0, 4.0, 4.0], [8.0, 3.0, 3.0], [9.0, 9.0, 9.0]]
    plain = [[9.0] * 3, [2.0, 2.0, 2.0], [9.0] * 3]
    (row,) = at_best_rates(baseline=plain, mhc=mhc)
    ratios = [8.0 / 2, 4.0 / 2, 4.0 / 2]  # the chosen runs of seeds 0, 1, 2
    assert row["effect"] == pytest.approx(100 * (math.prod(ratios) ** (1 / 3) - 1))
    assert (row["variant"], row["against"]) == ("mhc_0", "baseline_1")  # the choice of most seeds
    assert row["at_edge"] == "mhc_0"
    # The rate with the best mean over all seeds, mhc_0, would give a ratio of ∛2.
    assert row["effect"] != pytest.approx(100 * (2.0 ** (1 / 3) - 1))


def test_the_best_rate_is_chosen_over_seeds_common_to_all_rates():
    five = [1.0, 1.0, 1.0, 9.0, 9.0]  # a worse mean over all five seeds
    (row,) = at_best_rates(
        baseline=[[2.0] * 3, five, [3.0] * 3], mhc=[[2.0] * 3, [1.5] * 3, [3.0] * 3]
    )
    assert (row["against"], row["at_edge"], row["seeds"]) == ("baseline_1", "", 3)


def test_a_wider_plain_network_is_not_compared_as_a_connection():
    plain, wide = [[2.0] * 3, [1.0] * 3, [3.0] * 3], [[0.5] * 3] * 3
    (row,) = at_best_rates(baseline=plain, wide=wide, mhc=[[1.5] * 3] * 3)
    assert (row["variant"], row["against"]) == ("mhc_0", "baseline_1")


def test_one_seed_two_rates_or_no_plain_network_give_no_comparison():
    assert not at_best_rates(baseline=[[2.0]] * 3, mhc=[[1.0]] * 3)
    assert not at_best_rates((0.001, 0.002), baseline=[[1.0] * 3] * 2, mhc=[[2.0] * 3] * 2)
    assert not at_best_rates(hc=[[1.0] * 3] * 3, mhc=[[2.0] * 3] * 3)
