"""Numbers as text."""

from __future__ import annotations

import math
from typing import Any


def number(value: float, digits: int = 3) -> str:
    """A number in few digits; NaN as such."""
    if value is None or math.isnan(value):
        return "NaN"
    return f"{value:.{digits}g}".replace("-", "−")


def largest(rows: list[dict[str, Any]], column: str) -> float:
    """The largest finite value of a column; NaN if there is none."""
    return max((r[column] for r in rows if not math.isnan(r[column])), default=math.nan)


def percent(share: float) -> str:
    """A share as a percentage, as in '93 %'; below half a percent as such."""
    if math.isnan(share):
        return "NaN"
    return f"{100 * share:.0f} %" if share >= 0.005 else "<0.5 %"


def plus_minus(
    mean: float, ci95_half: float, finite: int | None = None, n: int | None = None
) -> str:
    """Mean ± half the width of its interval, that in two digits and the mean to the same place.

    `finite` of `n` values were finite; fewer than all is said. Without an interval (fewer than
    three values) the mean stands alone.
    """
    note = ""
    if finite is not None and n is not None and finite < n:
        if finite == 0:
            return f"NaN ({int(n)} of {int(n)})"
        note = f" (NaN: {int(n - finite)} of {int(n)})"
    if math.isnan(mean):
        return "NaN"
    if math.isnan(ci95_half):
        return number(mean) + note
    if ci95_half == 0:  # a constant of the initialisation, say
        return f"{number(mean, 5)} ± 0{note}"
    exponent = math.floor(math.log10(abs(mean))) if mean else 0
    # At most five digits of the mean: an interval can be far below what anyone needs to read.
    decimals = min(4 - exponent, 1 - math.floor(math.log10(ci95_half)))
    scale = exponent if exponent < -3 or exponent > 4 else 0
    places = max(0, decimals + scale)
    centre, width = (f"{x / 10**scale:.{places}f}" for x in (mean, ci95_half))
    if float(width) == 0:
        width = f"<{10.0**-places:.{places}f}"
    text = f"{centre} ± {width}".replace("-", "−")
    return (f"({text})·10^{scale}".replace("^-", "^−") if scale else text) + note
