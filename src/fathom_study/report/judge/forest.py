"""The figure of a judgement: step multipliers with intervals, an SVG for a phone's width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Literal, NamedTuple

WIDTH, LEFT, RIGHT, ROW, TOP = 360, 150, 350, 20, 24
"""Places in pixels: a phone is 390 wide."""

LETTERS = 24
"""Letters of a label that fit left of the plot."""

TICKS = (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4)


class Place(NamedTuple):
    """A connection in the figure. Without an interval its ends are NaN."""

    label: str
    multiplier: float
    low: float
    high: float
    is_own: bool
    towards: Literal[-1, 0, 1] = 0
    """The side on which a multiplier outside of the ladder lies; 0 for one on it."""


def forest(places: Sequence[Place]) -> str:
    """An SVG with a row for each connection; empty without one."""
    shown = [place for place in places if math.isfinite(place.multiplier)]
    if not shown:
        return ""
    values = [v for p in shown for v in p[1:4] if math.isfinite(v) and v > 0]
    low, high = min(0.9, *values), max(1.1, *values)

    def x(value: float) -> float:
        share = math.log(min(max(value, low), high) / low) / math.log(high / low)
        return LEFT + share * (RIGHT - LEFT)

    height = TOP + ROW * len(shown) + 8
    title = "Step multipliers with their intervals; the line at 1 is the plain network"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{title}" width="100%" font-family="system-ui, sans-serif" font-size="12" '
        'fill="currentColor" style="max-width: 34rem; margin-bottom: 1rem">',
        '<text x="0" y="12">step multiplier</text>',
    ]
    ticks = [tick for tick in TICKS if low <= tick <= high]
    ticks = ticks if len(ticks) <= 5 else [ticks[0], 1, ticks[-1]]
    for tick in ticks:
        bold = 1.5 if tick == 1 else 0.3
        lines.append(f'<text x="{x(tick):.1f}" y="12" text-anchor="middle">{tick:g}</text>')
        lines.append(
            f'<path d="M{x(tick):.1f} {TOP - 6}V{height}" stroke="currentColor" '
            f'stroke-width="{bold}"/>'
        )
    for number, place in enumerate(shown):
        lines += _row(place, TOP + ROW * number + ROW / 2, x)
    return "\n".join([*lines, "</svg>\n"])


def _row(place: Place, y: float, x: Callable[[float], float]) -> Iterator[str]:
    half = LETTERS // 2  # names of a family differ at their ends
    short = f"{place.label[:half]}…{place.label[1 - half :]}"
    label = place.label if len(place.label) <= LETTERS else short
    weight, stroke, radius = ("700", 3, 5) if place.is_own else ("400", 1.2, 3)
    yield f'<text x="0" y="{y + 4:.0f}" font-weight="{weight}">{escape(label)}</text>'
    if math.isfinite(place.low):
        yield (
            f'<path d="M{x(place.low):.1f} {y:.0f}H{x(place.high):.1f}" stroke="currentColor" '
            f'stroke-width="{stroke}"/>'
        )
    middle = x(place.multiplier)
    if place.towards:
        tip, base = middle + 2 * radius * place.towards, middle
        yield f'<path d="M{tip:.1f} {y:.0f}L{base:.1f} {y - radius:.0f}V{y + radius:.0f}Z"/>'
    else:
        yield f'<circle cx="{middle:.1f}" cy="{y:.0f}" r="{radius}"/>'
