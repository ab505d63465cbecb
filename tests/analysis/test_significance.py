"""Significance of differences, against values by hand and SciPy's t-test."""

import math

import numpy as np
import pytest
from scipy import stats

from fathom_study.analysis.significance import (
    correct,
    holm,
    moderate,
    score_verdict,
    seeds_to_decide,
)
from fathom_study.analysis.statistics import t_interval
from fathom_study.metrics.scores import Spread

DIFFERENCES = [0.11, 0.14, 0.08, 0.2, -0.03]


def test_p_and_interval_without_a_known_spread_are_the_paired_t_tests():
    expected = stats.ttest_1samp(DIFFERENCES, 0)
    mean = moderate(t_interval(DIFFERENCES), None)
    assert mean.p == pytest.approx(expected.pvalue, rel=1e-12)
    interval = expected.confidence_interval(0.99)
    assert mean.ends(0.01) == pytest.approx((interval.low, interval.high), rel=1e-12)


@pytest.mark.parametrize(
    ("values", "expected"), [([0.5] * 3, 0), ([0.0] * 3, 1), ([0.1, 0.2], math.nan), ([], math.nan)]
)
def test_p_value_of_too_few_values_or_without_spread(values, expected):
    assert moderate(t_interval(values), None).p == pytest.approx(expected, nan_ok=True)


def test_moderated_t():
    """By hand: s² = 0.0075 · … over 4 degrees of freedom and 0.05² over 2.5, one mean."""
    variance = (2.5 * 0.05**2 + 4 * stats.tvar(DIFFERENCES)) / 6.5
    mean = moderate(t_interval(DIFFERENCES), Spread(df=2.5, sd=0.05))
    t = 0.1 / math.sqrt(variance / 5)
    assert mean.p == pytest.approx(2 * stats.t.sf(t, 6.5), rel=1e-12)
    half = stats.t.ppf(0.975, 6.5) * math.sqrt(variance / 5)
    assert mean.ends(0.05) == pytest.approx((0.1 - half, 0.1 + half), rel=1e-12)
    # A spread that is known for certain gives the z-test; one that is not known, Student's t.
    certain = moderate(t_interval(DIFFERENCES), Spread(df=1e9, sd=0.05))
    assert certain.p == pytest.approx(2 * stats.norm.sf(0.1 / math.sqrt(0.05**2 / 5)), rel=1e-6)
    unknown = moderate(t_interval(DIFFERENCES), Spread(df=1e-9, sd=0.05))
    assert unknown.p == pytest.approx(stats.ttest_1samp(DIFFERENCES, 0).pvalue, rel=1e-6)


def test_two_seeds_have_no_verdict_even_if_the_spread_is_known():
    assert math.isnan(moderate(t_interval([0.1, 0.2]), Spread(df=2.5, sd=0.05)).p)


def test_one_level_of_a_family_excludes_zero_exactly_where_holm_rejects():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p_values = dict(enumerate(rng.uniform(size=rng.integers(1, 9)) ** 4))
        looks = {test: int(rng.integers(1, 5)) for test in p_values}
        corrected = correct(p_values, looks)
        for test, one in corrected.items():
            assert one.tests == len(p_values)
            assert (p_values[test] < one.level) == (one.p_holm < 0.05)


def test_a_test_without_p_is_in_no_family():
    corrected = correct({"a": math.nan, "b": 0.02}, {"a": 1, "b": 2})
    assert corrected == {"b": (0.04, 0.025, 1)}


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
    sd, mean = stats.tstd(DIFFERENCES), 0.1
    own = moderate(t_interval(DIFFERENCES), None)
    for level in (0.05, 0.005):
        expected = next(
            n for n in range(3, 100) if stats.t.isf(level / 2, n - 1) * sd / math.sqrt(n) < mean
        )
        assert seeds_to_decide(own, level) == expected
    assert seeds_to_decide(own._replace(value=1e-6), 0.05) is None
    assert seeds_to_decide(own._replace(value=0.0, error=0.0), 0.05) is None
