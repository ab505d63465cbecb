"""Numbers and tables as text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any


def number(value: float, digits: int = 3) -> str:
    """A number in `digits` significant digits, as in 3.14 or 1.2·10⁻⁷; 'NaN' for NaN and None."""
    if value is None or math.isnan(value):
        return "NaN"
    return raise_powers(f"{value:.{digits}g}").replace("-", "−")


RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
EXPONENT = re.compile(r"(?:(?<![\d.])1|(?<=\d))e([-+]?\d+)\b")


def raise_powers(text: str) -> str:
    """The text with exponents of numbers raised: 10⁻⁸ for 1e-08, 2.5·10³ for 2.5e+03."""

    def power(match: re.Match[str]) -> str:
        times = "·" if match[0].startswith("e") else ""
        return f"{times}10{str(int(match[1])).translate(RAISED)}"

    return EXPONENT.sub(power, text)


def count_layers(depth: int, unit: str = "layer") -> str:
    """A depth in words: '1 layer', '2 layers', or in the unit of a task's depth: '2 time steps'."""
    return f"{depth} {unit}{'' if depth == 1 else 's'}"


def list_words(words: Sequence[Any]) -> str:
    """Words joined as in 'a, b and c'."""
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table in Markdown; the last `numbers` columns are right-aligned."""
    rulers = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    cells = ([re.sub(r"(?<!\\)\|", r"\|", cell) for cell in row] for row in rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, rulers, *cells))


def largest(rows: list[dict[str, Any]], column: str) -> float:
    """The largest finite value of a column; NaN if there is none."""
    return max((r[column] for r in rows if math.isfinite(r[column])), default=math.nan)


def percent(share: float) -> str:
    """A share as a percentage, as in '93 %'; '<0.5 %' below half a percent."""
    if math.isnan(share):
        return "NaN"
    return f"{100 * share:.0f} %" if share >= 0.005 else "<0.5 %"


EVEN = 1.2
"""Maximum ratio of an interval's longer side to its shorter for it to be shown as ±.

For a geometric interval the ratio is its upper end over the mean.
"""


def with_interval(
    mean: float,
    low: float,
    high: float,
    finite: float | None = None,
    n: float | None = None,
    bounds: Sequence[float] = (-math.inf, math.inf),
) -> str:
    """A mean and its interval: as `plus_minus` with the longer side, or with both ends.

    Both ends, as in '7.1 (2.9 to 17)', if the sides differ too much, or if an end is one of the
    `bounds`, which ± would exceed; in two digits, or more if the interval is narrow. `finite` of
    `n` values were finite; a note counts the others. Without an interval (fewer than three values)
    the mean stands alone.
    """
    shorter, longer = sorted((mean - low, high - mean))
    # An interval below 1e-4 of the mean is invisible in five digits of the mean.
    is_cut = longer > 1e-4 * abs(mean) and (low == bounds[0] or high == bounds[1])
    if not (is_cut or longer > EVEN * shorter + 1e-4 * abs(mean)):
        return plus_minus(mean, longer, finite, n)
    digits = 2 + (max(0, math.floor(math.log10(abs(mean) / longer))) if mean else 0)
    centre, *ends = (plain_number(value, digits) for value in (mean, low, high))
    return f"{centre} ({' to '.join(ends)}){_note(finite, n)}"


def plus_minus(
    mean: float, half: float, finite: float | None = None, n: float | None = None
) -> str:
    """Mean ± half-width of its interval: this in two digits, the mean to the same decimal place.

    `finite` of `n` values were finite; a note counts the others. Without an interval (fewer than
    three values) the mean stands alone.
    """
    if finite == 0 and n:
        return f"NaN ({int(n)} of {int(n)})"
    if math.isnan(mean):
        return "NaN"
    note = _note(finite, n)
    if math.isnan(half):
        return number(mean) + note
    if half == 0:  # a count that is 0, or a constant of the initialisation
        return f"{number(mean, 5)}{' ± 0' if mean else ''}{note}"
    exponent = math.floor(math.log10(max(abs(mean), half)))
    # At most five digits of the mean, however narrow the interval.
    decimals = min(4 - exponent, 1 - math.floor(math.log10(half)))
    scale = _power(exponent)
    places = max(0, decimals + scale)
    centre, width = (f"{x / 10**scale:z.{places}f}" for x in (mean, half))
    if float(width) == 0:
        width = f"<{10.0**-places:.{places}f}"
    text = f"{centre} ± {width}".replace("-", "−")
    return (f"({text})·{raise_powers(f'1e{scale}')}" if scale else text) + note


def _note(finite: float | None, n: float | None) -> str:
    if finite is None or n is None or finite == n:
        return ""
    return f" (NaN: {int(n - finite)} of {int(n)})"


def _power(exponent: int) -> int:
    """The exponent if a number of that size is written with a power of ten; else 0."""
    return exponent if exponent < -3 or exponent > 4 else 0


def plain_number(value: float, digits: int) -> str:
    """A number in `digits` significant digits, as in 120, 1.0, 0.0034, 1.2·10⁻⁷."""
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if _power(power):
        text = f"{mantissa}·{raise_powers(f'1e{power}')}"
    else:
        text = f"{float(f'{mantissa}e{power}'):.{max(0, digits - 1 - power)}f}"
    return text.replace("-", "−")
