"""Effects: a study's contrasts, compared seed by seed."""

import math
from fractions import Fraction

import pytest
from scipy import stats

from fathom.analysis.effects import AGAINST_PLAIN, AT_BEST_RATE, effects_table
from fathom.analysis.established import seeds_to_tell
from fathom.config import ConfigError, check_config
from run_helpers import config_with
from tables_helpers import CHANCE, T975, TOLD, frame, half_width, run, seeds

QUESTION = "Does it matter?"


def config_of(pairs, question=QUESTION):
    """A study `a` of baseline, hc and mhc with one question."""
    data = config_with(studies=("a",)).model_dump(mode="json")
    data["studies"]["a"] |= {
        "variants": ["baseline", "hc", "mhc"],
        "contrasts": [{"question": question, "pairs": pairs}],
    }
    return check_config(data)


def effect_of(*rows, metric="score"):
    """The only row of a metric for mhc against hc."""
    table = effects_table(config_of([["mhc", "hc"]]), frame(*rows))
    (row,) = table[table["metric"] == metric].to_dict("records")
    return row


def test_an_effect_on_a_positive_score_is_the_mean_log_ratio_over_common_seeds():
    ours, theirs = [1.0, 1.5, 2.25], [2.0, 2.25, 3.5]
    found = effect_of(
        seeds("score", ours, variant="mhc"),
        seeds("score", theirs, variant="hc")[::-1],  # by seed, and not by row
        run(variant="hc", seed=7, score=100.0),  # no mhc of this seed
    )
    ratios = [math.log10(a / b) for a, b in zip(ours, theirs, strict=True)]
    assert found["seeds"] == 3
    assert found["effect"] == pytest.approx(sum(ratios) / 3, rel=TOLD)
    assert found["ci95_half"] == pytest.approx(half_width(ratios), rel=TOLD)
    assert (found["by"], found["verdict"], found["better"]) == ("ratio", "lower", True)


@pytest.mark.parametrize(("ours", "verdict", "better"), [([0.7, 0.71, 0.72], "higher", True)])
def test_a_share_is_compared_by_its_difference_and_the_higher_one_is_better(ours, verdict, better):
    data = config_of([["mhc", "hc"]]).model_dump(mode="json")
    images = {"task": "fashion", "variants": ["resnet", "hc_causal"], "model": {"width": 8}}
    contrast = {"question": QUESTION, "pairs": [["hc_causal", "resnet"]]}
    data["studies"]["a"] |= {**images, "contrasts": [contrast]}
    theirs = [0.6, 0.61, 0.62]
    rows = seeds("score", ours, variant="hc_causal") + seeds("score", theirs, variant="resnet")
    (row,) = effects_table(check_config(data), frame(rows)).to_dict("records")
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    assert (row["by"], row["verdict"], row["better"]) == ("difference", verdict, better)
    assert row["effect"] == pytest.approx(sum(differences) / 3)


def test_the_mean_beside_an_effect_is_of_the_same_seeds_and_geometric_for_ratios_alone():
    ours = seeds("score", [1.0, 1.0, 1.0], variant="mhc")
    theirs = seeds("score", [0.1, 1.0, 10.0, 1e6], variant="hc")  # seed 3 has no mhc
    for row, distance in zip(ours + theirs, [1.0] * 3 + [0.1, 1.0, 10.0, 1e6], strict=True):
        row["H_res_distance_final"] = distance
    score, distance = (
        effect_of(ours, theirs, metric=name) for name in ("score", "H_res_distance_final")
    )
    assert (score["against_mean"], score["seed_sd"]) == (pytest.approx(1), pytest.approx(1))
    assert distance["against_mean"] == pytest.approx(11.1 / 3)  # the arithmetic one


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0, 1.1, 0.9], "higher"),
        ([1.0, -0.5, 0.25], "cannot be told"),
        ([5.0, 5.0], "cannot be told"),  # two seeds have no interval
        ([9e-6, 9.1e-6, 8.9e-6], "the same"),  # its interval excludes zero: it is rounding
        ([9e-6, 1.1e-5, 1e-5], "too small to matter"),
        ([0.0, 0.0], "cannot be told"),
    ],
)
def test_an_effect_is_established_where_its_interval_excludes_zero_and_it_matters(
    differences, expected
):
    found = effect_of(
        seeds("score", [1 + d for d in differences], variant="mhc"),
        seeds("score", [1.0] * len(differences), variant="hc"),
    )
    assert found["verdict"] == expected


def test_a_seed_that_diverged_on_one_side_is_left_out():
    found = effect_of(
        seeds("score", [1.0, math.nan, 1.0, 1.0], variant="mhc"),
        seeds("score", [2.0, 9.0, 2.0, 2.0], variant="hc"),
    )
    assert (found["seeds"], found["effect"]) == (3, pytest.approx(-math.log10(2)))


def test_a_contrast_that_names_seeds_leaves_the_others_out():
    rows = frame(
        seeds("score", [1.0, 1.5, 2.25, 90.0], variant="mhc"),
        seeds("score", [2.0, 3.0, 4.5, 1.0], variant="hc"),
    )
    data = config_of([["mhc", "hc"]]).model_dump(mode="json")
    data["studies"]["a"]["seeds"] = [0, 1, 2, 3]
    (contrast,) = data["studies"]["a"]["contrasts"]
    effects = {}
    for named in ([], [0, 1, 2], [3]):
        contrast["seeds"] = named
        table = effects_table(check_config(data), rows)
        (row,) = table[table["metric"] == "score"].to_dict("records")
        effects[len(named)] = row["seeds"], row["effect"]
    half = -math.log10(2)
    assert effects[3] == (3, pytest.approx(half))
    assert effects[1] == (1, pytest.approx(math.log10(90)))
    assert effects[0] == (4, pytest.approx((3 * half + math.log10(90)) / 4))
    contrast["seeds"] = [7]
    with pytest.raises(ConfigError, match=r"contrasts\.0\.seeds: unknown seed '?7"):
        check_config(data)


def test_platforms_and_depths_are_compared_apart():
    table = effects_table(
        config_of([["mhc", "hc"]]),
        frame(
            run(variant="mhc", score=1.0), run(variant="hc", score=2.0),
            run(variant="mhc", score=4.0, depth=16),
            run(variant="hc", score=2.0, depth=16),
            run(variant="mhc", score=9.0, backend="mlx"),
        ),
    )  # fmt: skip
    rows = table[table["metric"] == "score"]
    found = {(r.platform, r.depth): r.effect for r in rows.itertuples()}
    two = math.log10(2)
    assert found == {("torch", 8): pytest.approx(-two), ("torch", 16): pytest.approx(two)}


def test_extra_variants_join_the_questions_of_a_study():
    data = config_of([["mhc", "hc"]]).model_dump(mode="json")
    data["studies"]["a"]["extra_variants"] = [{"mine": {"connection": "mhc", "gate": "learned"}}]
    labels = ("baseline", "hc", "mhc", "mine")
    cells = frame(*(seeds("score", [1.0, 1.1, 1.2], variant=label) for label in labels))
    found = effects_table(check_config(data), cells)
    pairs = [(r.question, r.variant, r.against) for r in found.itertuples()]
    assert pairs == [(QUESTION, "mhc", "hc"), (AGAINST_PLAIN, "mine", "baseline")]
    # Without questions of the study's own, it is one of the variants.
    data["studies"]["a"]["contrasts"] = []
    found = effects_table(check_config(data), cells)
    assert list(found["variant"]) == ["hc", "mhc", "mine"]


# --- what matters, what depends on the steps, what many contrasts cost --------------------------


def test_an_effect_of_nearly_equal_scores_keeps_its_digits():
    # The processors that this runs on differ in the last digit of a logarithm, of 1e-16.
    ours, theirs = [0.5 * (1 + k * 1e-9) for k in (3, 4, 5)], [0.5, 0.5, 0.5]
    found = effect_of(seeds("score", ours, variant="mhc"), seeds("score", theirs, variant="hc"))
    exact = sum(Fraction(value) - Fraction(0.5) for value in ours) / 3
    assert found["of_chance"] == pytest.approx(float(exact) / CHANCE, rel=1e-11)
    assert found["effect"] == pytest.approx(float(exact) / 0.5 / math.log(10), rel=1e-8)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.0101] * 3, "higher"),
        ([-0.0101] * 3, "lower"),
        ([0.0099] * 3, "too small to matter"),
        # Its interval, ±0.004, excludes zero, and holds a hundredth.
        ([0.0064, 0.008, 0.0096], "cannot be told"),
    ],
)
def test_an_effect_matters_from_a_hundredth_of_that_distance_on(shares, expected):
    found = effect_of(
        seeds("score", [1 + share * CHANCE for share in shares], variant="mhc"),
        seeds("score", [1.0, 1.0, 1.0], variant="hc"),
    )
    assert found["verdict"] == expected


def test_a_small_effect_with_a_wide_interval_is_not_said_to_be_small():
    found = effect_of(
        seeds("score", [1.0, 1.05, 0.96], variant="mhc"),
        seeds("score", [1.0, 1.0, 1.0], variant="hc"),
    )
    assert abs(found["of_chance"]) < 0.01 < found["of_chance_high"]
    assert found["verdict"] == "cannot be told"
    assert found["visible"] == pytest.approx(
        (10 ** half_width([math.log10(x) for x in (1.0, 1.05, 0.96)]) - 1) / CHANCE, rel=TOLD
    )


@pytest.mark.parametrize(
    ("midway", "expected"),
    [
        ([2.0, 2.1, 1.9], "depends on the steps"),
        ([0.5, 0.52, 0.48], "lower"),  # the same sign
        ([2.0, 0.4, 1.9], "lower"),  # the other sign, but it is not told from none
        ([math.nan] * 3, "lower"),  # not evaluated then
    ],
)
def test_an_order_that_turns_in_the_last_half_depends_on_the_steps(midway, expected):
    ours = [
        run(variant="mhc", seed=i, score=0.5 + i / 100, score_midway=midway[i]) for i in range(3)
    ]
    theirs = [run(variant="hc", seed=i, score=1.0, score_midway=1.0) for i in range(3)]
    found = effect_of(ours, theirs)
    assert found["verdict"] == expected
    if expected == "depends on the steps":
        assert found["midway"] == pytest.approx(sum(map(math.log10, midway)) / 3)


def test_of_many_contrasts_each_takes_stronger_evidence():
    """Holm: a p of 0.03 is enough for one question, and not for two beside a p of 0.04."""
    half = T975[2] / math.sqrt(3)

    def table(pairs):
        cells = frame(
            *(
                # On a scale twice as wide p is the same.
                seeds("score", [10 ** (k * (half * 1.2 + d)) for d in (-1, 0, 1)], variant=variant)
                for k, variant in ((1, "mhc"), (2, "baseline"))
            ),
            seeds("score", [1.0, 1.0, 1.0], variant="hc"),
        )
        found = effects_table(config_of(pairs), cells)
        return found[found["metric"] == "score"].to_dict("records")

    (alone,) = table([["mhc", "hc"]])
    assert alone["p"] == alone["p_holm"] < 0.05
    assert alone["verdict"] == "higher"
    both = table([["mhc", "hc"], ["baseline", "hc"]])
    assert [row["p"] for row in both] == pytest.approx([alone["p"]] * 2)
    assert [row["p_holm"] for row in both] == pytest.approx([2 * alone["p"]] * 2)
    assert [row["verdict"] for row in both] == ["cannot be told"] * 2
    assert both[0]["visible"] > alone["visible"]
    twice = table([["mhc", "hc"], ["mhc", "hc"]])  # one comparison, asked for by two questions
    assert [row["p_holm"] for row in twice] == [alone["p"]] * 2


def test_a_single_stream_has_no_effect_on_numbers_of_matrices():
    values = {"score": [1.0, 1.1, 1.2], "amax_backward_log10_final": [0.0, 0.0, 0.0]}
    rows = [
        run(seed=seed, variant=variant, **{name: found[seed] for name, found in values.items()})
        for variant in ("baseline", "hc", "mhc")
        for seed in range(3)
    ]
    table = effects_table(config_of([["mhc", "baseline"], ["mhc", "hc"]]), frame(rows))
    beside_score = table[table["metric"] != "score"]
    assert list(beside_score["against"]) == ["hc"]


def test_how_many_seeds_would_tell():
    """By the formula: the first n whose quantile times sd / √n is below the mean."""
    sd, mean = 0.1, 0.08
    expected = next(
        n for n in range(3, 100) if stats.t.ppf(0.975, n - 1) * sd / math.sqrt(n) < mean
    )
    assert seeds_to_tell(mean, sd, 0.05, 1) == expected
    assert seeds_to_tell(mean, sd, 0.05, 10) > expected
    assert seeds_to_tell(1e-6, 1.0, 1e-3, 1) is None
    assert seeds_to_tell(0.0, 0.001, 0.05, 1) == 3  # enough to show that it is below what matters


RATES = (0.001, 0.002, 0.004)


def at_best_rates(rates=RATES, **scores):
    """Rows at the best rates, of scores by connection, rate by rate and seed by seed."""
    data = config_with(studies=("a",)).model_dump(mode="json")
    data["studies"]["a"]["variants"] = [
        {f"{connection}_{k}": {"connection": connection, "optimizer": {"lr": rate}}}
        for connection in scores
        for k, rate in enumerate(rates)
    ]
    rows = [
        seeds("score", of_seeds, variant=f"{connection}_{k}")
        for connection, by_rate in scores.items()
        for k, of_seeds in enumerate(by_rate)
    ]
    table = effects_table(check_config(data), frame(*rows))
    return table[table["question"] == AT_BEST_RATE].to_dict("records")


def test_each_connection_is_compared_at_the_best_of_its_own_rates():
    plain = [[2.0, 2.2, 2.1], [1.0, 1.1, 1.2], [3.0, 3.0, 3.0]]
    lower_but_diverged = [0.1, 0.1, math.nan]
    (row,) = at_best_rates(
        baseline=plain, mhc=[lower_but_diverged, [2.0, 2.0, 2.0], [0.5, 0.55, 0.6]]
    )
    assert (row["variant"], row["against"]) == ("mhc_2", "baseline_1")
    assert row["effect"] == pytest.approx(math.log10(0.5))
    assert row["at_edge"] == "mhc_2"
    assert row["verdict"] == "lower"


def test_the_best_rate_is_chosen_over_seeds_that_all_rates_have():
    five = [1.0, 1.0, 1.0, 9.0, 9.0]  # worse in the mean over all of its seeds
    (row,) = at_best_rates(
        baseline=[[2.0] * 3, five, [3.0] * 3], mhc=[[2.0] * 3, [1.5] * 3, [3.0] * 3]
    )
    assert (row["against"], row["at_edge"]) == ("baseline_1", "")


def test_two_rates_have_no_best_one():
    assert not at_best_rates((0.001, 0.002), baseline=[[1.0] * 3] * 2, mhc=[[2.0] * 3] * 2)


def test_nothing_is_compared_where_the_plain_network_has_one_rate():
    assert not at_best_rates(hc=[[1.0] * 3] * 3, mhc=[[2.0] * 3] * 3)
