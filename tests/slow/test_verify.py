"""Damage to results that the fast tests leave out."""

from tests.report import test_verify
from tests.report.test_verify import config, made, project, results  # noqa: F401, fixtures

test_a_corruption_is_named_and_the_advice_fixes_it = (
    test_verify.test_a_corruption_is_named_and_the_advice_fixes_it.others
)
