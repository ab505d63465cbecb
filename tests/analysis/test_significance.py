"""Significance of differences, against values by hand and SciPy's t-test."""

import math

import pytest
from scipy import stats

from fathom_study.analysis.significance import holm, p_value, score_verdict, seeds_to_decide
from fathom_study.analysis.statistics import t_interval


def test_p_value_equals_the_paired_t_test():
    differences = [0.11, 0.14, 0.08, 0.2, -0.03]
    expected = stats.ttest_1samp(differences, 0).pvalue
    assert p_value(t_interval(differences)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "expected"), [([0.5] * 3, 0), ([0.0] * 3, 1), ([0.1, 0.2], math.nan), ([], math.nan)]
)
def test_p_value_of_too_few_values_or_without_spread(values, expected):
    assert p_value(t_interval(values)) == pytest.approx(expected, nan_ok=True)


def test_holm_scales_p_by_rank_and_never_decreases():
    # By hand: 4 × 0.01, 3 × 0.02, 2 × 0.03 and 1 × 0.04, which may not lie below the one before.
    assert holm({"a": 0.03, "b": 0.01, "c": 0.04, "d": 0.02}) == pytest.approx(
        {"a": 0.06, "b": 0.04, "c": 0.06, "d": 0.06}
    )
    assert holm({"a": 0.9, "b": math.nan, "c": 0.6}) == {"a": 1, "c": 1}
    assert holm({}) == {}


@pytest.mark.parametrize(
    ("p", "is_better", "is_equivalent", "expected"),
    [
        (0.049, True, False, "better"),
        (0.049, False, True, "worse"),  # significant, however small
        (0.05, True, True, "equivalent"),
        (0.05, True, False, "undecided"),
        (math.nan, True, False, "undecided"),
    ],
)
def test_verdict_uses_corrected_p_before_equivalence(p, is_better, is_equivalent, expected):
    assert score_verdict(p, is_better=is_better, is_equivalent=is_equivalent) == expected


def test_seeds_to_decide():
    """By the formula: the smallest n whose quantile times sd / √n is below the mean."""
    sd, mean = 0.1, 0.08
    expected = next(
        n for n in range(3, 100) if stats.t.ppf(0.975, n - 1) * sd / math.sqrt(n) < mean
    )
    assert seeds_to_decide(mean, sd, 1) == expected
    assert seeds_to_decide(mean, sd, 10) > expected
    assert seeds_to_decide(1e-6, 1.0, 1) is None
    assert seeds_to_decide(0.0, 0.0, 1) is None
