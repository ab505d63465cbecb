"""Points that are named by numbers: a number beside each point, and a list of names at the side.

With many points, lines from names to points would cross each other and the data. A number stands
beside its point; where there is no room, a short line leads to it, which crosses no other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fathom.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT = 11
"""Size of numbers and names, in points, as all lengths here."""

LINE, DIGIT, HEIGHT = 17.0, 7.2, 9.0
"""The distance of two names, the width of a bold digit, the height of a number."""

RADIUS = 5.5
"""Of the mark of a point."""

TOUCHING = 3.0
"""Points that are nearer to each other have one text with all of their numbers."""

DISTANCES = (2.0, 5.0, 9.0, 14.0, 20.0, 27.0, 35.0, 44.0, 54.0, 66.0, 80.0)
"""Tried distances of a number from the mark; beyond the first, a line leads to it."""

DIRECTIONS = tuple(
    math.tau * k / 16 for k in (0, 8, 2, 6, 14, 10, 4, 12, 1, 7, 15, 9, 3, 5, 11, 13)
)
"""Tried directions, the preferred ones first: right, left, and upwards of them."""

ON_LINE, OVER_MARK = 8.0, 25.0
"""What it costs, as distance, that a number stands on a line, or that its own passes a mark."""

MOST_TRIES = 12
"""Maximum number of orders in which texts are placed."""

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle along the axes."""

    left: float
    low: float
    right: float
    high: float

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.low < other.high
            and other.low < self.high
        )


def _around(at: Point, width: float, height: float) -> Box:
    x, y = at
    return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


class Place(NamedTuple):
    """Where the text of a group of points stands."""

    at: Point
    box: Box
    line: tuple[Point, Point] | None
    """The short line from the text to the point, where it stands farther off."""


def list_names(ax: Axes, variants: Sequence[str], pale: Collection[str] = ()) -> None:
    """Write numbers and names of variants in a column at the right of a panel, from above."""
    for i, variant in enumerate(variants):
        looks = {
            "xycoords": "axes fraction", "textcoords": "offset points", "fontsize": FONT,
            "color": style.PALE if variant in pale else style.colour_of(variant), "va": "center",
            "annotation_clip": False,
        }  # fmt: skip
        down = -LINE * (i + 0.5)
        ax.annotate(f"{i + 1}", (1, 1), (30, down), ha="right", fontweight="bold", **looks)
        ax.annotate(style.label_of(variant), (1, 1), (38, down), ha="left", **looks)


def number_points(
    page: Figure,
    axes: Sequence[Axes],
    points: Sequence[Mapping[str, Point]],
    variants: Sequence[str],
    pale: Collection[str] = (),
) -> Figure:
    """Write the number of each variant beside its point, in every panel; returns the figure.

    `points`: of each panel, by variant. `variants`: as `list_names` has them. The figure is laid
    out here, as distances on paper count: all else has to be drawn before.
    """
    with style.in_style():
        page.draw_without_rendering()
        if layout := page.get_layout_engine():
            layout.execute(page)
    for ax, own in zip(axes, points, strict=True):
        _number_panel(ax, own, variants, pale)
    return page


def _number_panel(
    ax: Axes, points: Mapping[str, Point], variants: Sequence[str], pale: Collection[str]
) -> None:
    from matplotlib.patheffects import withStroke

    scale = 72 / ax.figure.dpi
    at = {
        variant: tuple(scale * ax.transData.transform(points[variant]))
        for variant in variants
        if variant in points and np.isfinite(points[variant]).all()
    }
    groups = group_touching(at)
    texts = [", ".join(str(1 + variants.index(v)) for v in group) for group in groups]
    centres = [at[group[0]] for group in groups]
    marks, lines = _obstacles(ax, scale)
    frame = Box(*(scale * ax.get_window_extent().extents))
    placed = place_texts(centres, [DIGIT * len(text) for text in texts], marks, lines, frame)
    for group, text, centre, place in zip(groups, texts, centres, placed, strict=True):
        colours = {style.PALE if v in pale else style.colour_of(v) for v in group}
        colour = colours.pop() if len(colours) == 1 else style.GREY
        line = {"arrowstyle": "-", "lw": 0.8, "shrinkA": 0, "shrinkB": 4, "color": colour}
        note = ax.annotate(
            text, points[group[0]], (place.at[0] - centre[0], place.at[1] - centre[1]),
            textcoords="offset points", ha="center", va="center_baseline", color=colour,
            fontsize=FONT, fontweight="bold", zorder=5, arrowprops=line if place.line else None,
        )  # fmt: skip
        note.set_in_layout(False)
        note.set_path_effects([withStroke(linewidth=2.5, foreground="white")])


def group_touching(at: Mapping[str, Point]) -> list[list[str]]:
    """Points by name, those together that lie on each other."""
    groups: list[list[str]] = []
    for name, point in at.items():
        for group in groups:
            if math.dist(at[group[0]], point) < TOUCHING:
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _obstacles(ax: Axes, scale: float) -> tuple[list[Box], list[Box]]:
    """The marks and the lines of a panel, as boxes; a slanting line is cut into short ones."""
    marks: list[Box] = []
    lines: list[Box] = []
    paths = [(line.get_xydata(), line.get_transform(), line) for line in ax.lines]
    for collection in ax.collections:
        paths += [(path.vertices, ax.transData, None) for path in collection.get_paths()]
    for vertices, transform, line in paths:
        at = scale * transform.transform(np.asarray(vertices, float))
        at = at[np.isfinite(at).all(axis=1)]
        if line is not None and line.get_marker() not in ("", " ", "None", None):
            size = line.get_markersize() + 2
            marks += [_around(tuple(point), size, size) for point in at]
        if line is None or line.get_linestyle() not in ("", " ", "None", None):
            for a, b in itertools.pairwise(at):
                lines += _cut(a, b)
    return marks, lines


def _cut(a: np.ndarray, b: np.ndarray) -> Iterator[Box]:
    """A line as boxes: one, if it is along an axis."""
    pieces = 1 if min(abs(b - a)) < 1 else 1 + int(math.dist(a, b) / 6)
    ends = np.linspace(a, b, pieces + 1)
    for (x, y), (u, v) in itertools.pairwise(ends):
        yield Box(min(x, u) - 0.5, min(y, v) - 0.5, max(x, u) + 0.5, max(y, v) + 0.5)


def place_texts(
    points: Sequence[Point],
    widths: Sequence[float],
    marks: Sequence[Box],
    lines: Sequence[Box],
    frame: Box,
) -> list[Place]:
    """Where the text of each point stands: in the frame, on no mark, text or line to a text.

    Each as near to its point as those before it leave room. A point without room is placed first
    in the next try. One without room in the best of MOST_TRIES stands on others, at the right of
    its point.
    """
    order, best = list(range(len(points))), {}
    for _ in range(MOST_TRIES):
        found: dict[int, Place] = {}
        stuck = []
        for i in order:
            own = _best_place(points[i], widths[i], list(found.values()), marks, lines, frame)
            if own is None:
                stuck.append(i)
            else:
                found[i] = own
        best = max(best, found, key=len)
        if not stuck:
            break
        order = [*stuck, *(i for i in order if i not in stuck)]
    nearest = (next(_options(*one))[1] for one in zip(points, widths, strict=True))
    return [best.get(i, place) for i, place in enumerate(nearest)]


def _best_place(
    point: Point,
    width: float,
    placed: Sequence[Place],
    marks: Sequence[Box],
    lines: Sequence[Box],
    frame: Box,
) -> Place | None:
    best, least = None, math.inf
    for distance, place in sorted(_options(point, width), key=lambda option: option[0]):
        if distance >= least:
            break
        cost = _cost(point, distance, place, placed, marks, lines, frame)
        if cost is not None and cost < least:
            best, least = place, cost
    return best


def _options(point: Point, width: float) -> Iterator[tuple[float, Place]]:
    """Places around a point, with their distances; the preferred directions first."""
    for distance in DISTANCES:
        for preference, angle in enumerate(DIRECTIONS):
            reach = RADIUS + distance
            x = point[0] + math.cos(angle) * (reach + width / 2)
            y = point[1] + math.sin(angle) * (reach + HEIGHT / 2)
            line = None if distance == DISTANCES[0] else (point, (x, y))
            place = Place((x, y), _around((x, y), width, HEIGHT), line)
            yield distance + 0.1 * preference, place


def _cost(
    point: Point,
    distance: float,
    place: Place,
    found: Sequence[Place],
    marks: Sequence[Box],
    lines: Sequence[Box],
    frame: Box,
) -> float | None:
    """How far off and how much on lines a place is; None where it cannot be."""
    box = place.box
    inside = box.left > frame.left and box.right < frame.right
    if not (inside and box.low > frame.low and box.high < frame.high):
        return None
    if any(box.meets(mark) for mark in marks) or any(box.meets(other.box) for other in found):
        return None
    if any(other.line and _passes(other.line, box) for other in found):
        return None
    cost = distance + ON_LINE * any(box.meets(line) for line in lines)
    if place.line:
        if any(_passes(place.line, other.box) for other in found):
            return None
        if any(other.line and cross(place.line, other.line) for other in found):
            return None
        others = [mark for mark in marks if not mark.meets(_around(point, 1, 1))]
        cost += OVER_MARK * any(_passes(place.line, mark) for mark in others)
    return cost


def _passes(line: tuple[Point, Point], box: Box) -> bool:
    """Whether a line passes through a box, by points on it a point apart."""
    (x, y), (u, v) = line
    steps = 2 + int(math.dist(*line))
    at = ((x + (u - x) * i / steps, y + (v - y) * i / steps) for i in range(steps + 1))
    return any(box.left < p < box.right and box.low < q < box.high for p, q in at)


def cross(one: tuple[Point, Point], other: tuple[Point, Point]) -> bool:
    """Whether two lines cross."""

    def side(line: tuple[Point, Point], point: Point) -> float:
        (x, y), (u, v) = line
        return (u - x) * (point[1] - y) - (v - y) * (point[0] - x)

    return (
        side(one, other[0]) * side(one, other[1]) < 0
        and side(other, one[0]) * side(other, one[1]) < 0
    )
