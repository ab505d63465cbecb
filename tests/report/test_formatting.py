"""Numbers as text."""

import math
import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathom_study.report.tables.formatting import number, percent, plus_minus, with_interval

NAN, INF = math.nan, math.inf
of_share = partial(with_interval, bounds=(0, 1))


@pytest.mark.parametrize(
    ("function", "values", "text"),
    [
        (plus_minus, (0.5, 0.012), "0.500 ± 0.012"),
        (plus_minus, (1.7115, 1.4), "1.7 ± 1.4"),
        (plus_minus, (-0.59718, 0.00158), "−0.5972 ± 0.0016"),
        (plus_minus, (-13.59, 0.183), "−13.59 ± 0.18"),
        (plus_minus, (0.0, 0.1), "0.00 ± 0.10"),
        # Wider than the mean.
        (plus_minus, (0.5, 30.0), "0 ± 30"),
        (plus_minus, (0.012, 0.34), "0.01 ± 0.34"),
        # Far narrower: at most five digits of the mean.
        (plus_minus, (-0.602059, 1e-9), "−0.60206 ± <0.00001"),
        # A constant.
        (plus_minus, (0.0, 0.0), "0"),
        # Powers of ten for very large and very small numbers.
        (plus_minus, (0.0034, 0.00051), "0.00340 ± 0.00051"),
        (plus_minus, (1234567.0, 1000.0), "(1.2346 ± 0.0010)·10⁶"),
        (plus_minus, (-0.0009, 0.168), "0.00 ± 0.17"),
        (plus_minus, (-9e-6, 1.7e-5), "(−0.9 ± 1.7)·10⁻⁵"),
        # No interval: fewer than three values.
        (plus_minus, (0.0034567, NAN), "0.00346"),
        # No mean.
        (plus_minus, (NAN, NAN), "NaN"),
        # Sides that differ by a factor of at most 1.2: the longer one.
        (with_interval, (3.0, 2.0, 4.0), "3.0 ± 1.0"),
        (with_interval, (1.0, 1 / 1.19, 1.19), "1.00 ± 0.19"),
        (with_interval, (0.0, 0.0, 0.0), "0"),
        # Both ends.
        (with_interval, (1.0, 1 / 1.21, 1.21), "1.0 (0.83 to 1.2)"),
        (with_interval, (7.1, 2.9, 17.0), "7.1 (2.9 to 17)"),
        (with_interval, (1e-5, 1e-7, 1e-3), "1.0·10⁻⁵ (1.0·10⁻⁷ to 0.0010)"),
        (with_interval, (2e5, 9.96e4, 4e5), "2.0·10⁵ (1.0·10⁵ to 4.0·10⁵)"),
        # At most the digits of plus_minus.
        (with_interval, (1.0, 0.99995, 1.0), "1.0000 ± <0.0001"),
        # Not all finite, or no interval.
        (with_interval, (7.1, 2.9, 17.0, 3, 5), "7.1 (2.9 to 17) (NaN: 2 of 5)"),
        (with_interval, (7.1, NAN, NAN, 2, 2), "7.1"),
        (with_interval, (NAN, NAN, NAN, 0, 3), "NaN (3 of 3)"),
        # An interval that ends at a bound: ± 0.018, or 0.02, would exceed 1.
        (of_share, (0.98, 0.962, 1.0), "0.980 (0.962 to 1.00)"),
        (of_share, (0.5, 0.48, 0.52), "0.500 ± 0.020"),
        (of_share, (1.0, 1.0, 1.0), "1 ± 0"),
        (of_share, (0.02, 0.0, 0.04), "0.020 (0 to 0.040)"),
        (number, (3.14159, 3), "3.14"), (number, (0.5, 3), "0.5"),
        (number, (1234.5, 3), "1.23·10³"), (number, (3.3e-07, 2), "3.3·10⁻⁷"),
        (number, (-1e-08, 3), "−10⁻⁸"), (number, (1.1e-07, 3), "1.1·10⁻⁷"),
        (number, (1e10, 3), "10¹⁰"), (number, (48, 3), "48"), (number, (INF, 3), "inf"),
        (number, (NAN, 3), "NaN"), (number, (None, 3), "NaN"),
        (percent, (1.0,), "100 %"), (percent, (0.996,), "100 %"), (percent, (0.934,), "93 %"),
        (percent, (0.0151,), "2 %"), (percent, (0.0051,), "1 %"), (percent, (0.0049,), "<0.5 %"),
        (percent, (1e-12,), "<0.5 %"), (percent, (0.0,), "<0.5 %"), (percent, (-1e-17,), "<0.5 %"),
        (percent, (NAN,), "NaN"),
    ],
)  # fmt: skip
def test_numbers_as_text_by_hand(function, values, text):
    assert function(*values) == text


SHOWN = re.compile(r"\(?([−0-9.]+) ± (<?)([0-9.]+)\)?(?:·10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?")
LOWERED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
mantissas = st.floats(1, 9.999)
exponents = st.integers(-30, 30)


@given(mantissas, exponents, mantissas, st.integers(-12, 0), st.sampled_from([1, -1]))
def test_the_text_is_the_rounded_mean_and_interval(m, e, width, below, sign):
    mean, half = sign * m * 10.0**e, width * 10.0 ** (e + below)
    centre, less, shown, power = SHOWN.fullmatch(plus_minus(mean, half)).groups()
    scale = 10.0 ** int((power or "0").translate(LOWERED))
    unit = 10.0 ** -len(centre.partition(".")[2]) * scale
    # Half a unit of the last digit, and a margin for the rounding of decimal fractions.
    rounding = 0.5001 * unit
    assert abs(float(centre.replace("−", "-")) * scale - mean) <= rounding
    if less:
        assert half < float(shown) * scale
    else:
        assert abs(float(shown) * scale - half) <= rounding
