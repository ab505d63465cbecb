"""When a difference counts: against hand-computed values and SciPy's own t-test."""

import math

import pytest
from scipy import stats

from fathom import tasks
from fathom.analysis.established import holm, p_value, share_of_chance
from fathom.analysis.statistics import t_interval
from fathom.metrics.scores import outcome


def test_p_values_are_those_of_the_paired_t_test():
    differences = [0.11, 0.14, 0.08, 0.2, -0.03]
    expected = stats.ttest_1samp(differences, 0).pvalue
    assert p_value(t_interval(differences)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "expected"), [([0.5] * 3, 0), ([0.0] * 3, 1), ([0.1, 0.2], math.nan), ([], math.nan)]
)
def test_values_without_a_spread_and_too_few_of_them(values, expected):
    assert p_value(t_interval(values)) == pytest.approx(expected, nan_ok=True)


def test_holm_multiplies_the_smallest_by_their_number_and_never_falls():
    # By hand: 4 × 0.01, 3 × 0.02, 2 × 0.03 and 1 × 0.04, which may not lie below the one before.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, math.nan, 0.6]) == pytest.approx([1, math.nan, 1], nan_ok=True)
    assert holm([]) == []


def test_where_chance_is_perfect_nothing_is_learned_and_nothing_is_a_share():
    loss = tasks.score_of("tokens", "held_out")
    assert outcome(diverged=False, score=loss, value=0.0, chance=0.0) == "at chance"
    assert math.isnan(share_of_chance(0.1, 0.0, loss, 0.0, "difference"))


def test_a_share_of_the_distance_to_chance():
    loss = tasks.score_of("tokens", "held_out")
    chance = math.log(64)
    # Twice 0.02 nats is 0.02 more.
    twice = share_of_chance(math.log10(2), 0.02, loss, chance, "ratio")
    assert twice == pytest.approx(0.02 / chance)
    accuracy = tasks.score_of("fashion", "held_out")
    assert share_of_chance(-0.09, 0.5, accuracy, 0.1, "difference") == pytest.approx(-0.1)
