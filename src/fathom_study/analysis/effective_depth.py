"""Effective depth: the depth of the plain network that reaches another network's score.

Definitions: docs/definitions/worth.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import gt, le, lt
from typing import Any, Literal, NamedTuple

import pandas as pd

from fathom_study.analysis.significance import FLOAT32_TOLERANCE
from fathom_study.analysis.statistics import (
    MIN_SEEDS,
    differences,
    finite_scores,
    is_ratio,
    t_interval,
)
from fathom_study.analysis.tables import counted, scores_of
from fathom_study.config import CONTROL_DEPTHS, Config
from fathom_study.metrics.scores import Score

AT, BELOW, BEYOND, UNKNOWN = "at", "below", "beyond", "unknown"
"""Answers: a depth; worse than the shallowest plain network; better than every plain network; and
better than every one where the best is not the deepest, so more layers may not help."""

COLUMNS = [
    "study", "platform", "depth", "variant", "against", "seeds", "diverged", "answer",
    "effective_depth", "low", "high", "low_open", "high_open", "shallowest", "deepest",
    "plain_best", "plain_depths", "plain_diverged",
]  # fmt: skip


def effective_depth_table(config: Config, cells: pd.DataFrame) -> pd.DataFrame:
    """A row per variant, depth and platform of the studies with a plain network at enough depths.

    `against` is the plain network. `effective_depth` is the shallowest plain depth if `answer` is
    BELOW, the deepest if it is BEYOND, NaN if it is UNKNOWN. `low` and `high`, the ends of its
    interval, are NaN below MIN_SEEDS seeds. Other columns: docs/definitions/worth.md.
    """
    valid, scores, rows = counted(cells), scores_of(config), []
    for name, study in config.studies.items():
        control = config.depth_control(name)
        if control is None:
            continue
        alike = [label for label in study.labels if not study.changes_plain(label)]
        alike.remove(control)
        for platform, runs in valid[valid["study"] == name].groupby("platform", sort=False):
            of = {key: seeds.set_index("seed") for key, seeds in runs.groupby(["variant", "depth"])}
            plain = {depth: group for (variant, depth), group in of.items() if variant == control}
            for depth, variant in itertools.product(sorted(runs["depth"].unique()), alike):
                if (variant, depth) not in of:
                    continue
                new_rows = _row(of[variant, depth], plain, scores[name])
                labels = {"study": name, "platform": platform, "depth": depth, "variant": variant}
                rows += [{**labels, "against": control, **row} for row in new_rows]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    ours: pd.DataFrame, plain: Mapping[int, pd.DataFrame], score: Score
) -> Iterator[dict[str, Any]]:
    """The other columns of a row; none without finite scores or with too few plain depths."""
    values = finite_scores(ours)
    if values.empty:
        return
    least = min(MIN_SEEDS, len(values))
    common = {
        depth: runs[runs.index.isin(values.index) & (runs["outcome"] != "not scored")]
        for depth, runs in plain.items()
    }
    counts = {depth: runs for depth, runs in common.items() if len(runs) >= least}
    if len(counts) < CONTROL_DEPTHS:
        return
    finite = {depth: finite_scores(runs) for depth, runs in counts.items()}
    whole = {depth: scores for depth, scores in finite.items() if len(scores) == len(counts[depth])}
    if not whole:
        return
    ratio = is_ratio(score.metric) and all((v > 0).all() for v in [values, *whole.values()])
    curve = [
        Point(depth, *_worse_by(whole[depth], values[whole[depth].index], score.sign, ratio=ratio))
        if depth in whole
        else Point(depth, math.inf, math.inf, math.inf)
        for depth in sorted(counts)
    ]
    depths = [point.depth for point in curve]
    yield {
        "seeds": min(map(len, counts.values())),
        "diverged": int((ours["outcome"] == "diverged").sum()),
        **read_depth(curve, interval=len(values) >= MIN_SEEDS)._asdict(),
        "shallowest": depths[0],
        "deepest": depths[-1],
        "plain_best": min(curve, key=lambda point: point.mean).depth,
        "plain_depths": " ".join(map(str, depths)),
        "plain_diverged": " ".join(str(depth) for depth in depths if depth not in whole),
    }


def _worse_by(
    theirs: pd.Series, ours: pd.Series, sign: int, *, ratio: bool
) -> tuple[float, float, float]:
    """(mean, low, high) over seeds of the amount by which a plain network is worse (< 0: better).

    Below MIN_SEEDS seeds the interval is the mean alone.
    """
    if (theirs - ours).abs().max() < FLOAT32_TOLERANCE:
        return 0.0, 0.0, 0.0
    interval = t_interval(sign * differences(theirs, ours, ratio=ratio))
    if math.isnan(interval.half):
        return interval.mean, interval.mean, interval.mean
    return interval.mean, interval.low, interval.high


# --- reading a depth from a curve -----------------------------------------------------------------


class Point(NamedTuple):
    """The amount by which the plain network ends worse at a depth; negative: better."""

    depth: int
    mean: float
    low: float
    """`low` and `high` are the ends of its interval; all three are infinite if a run diverged."""
    high: float


class Reading(NamedTuple):
    """The answer that a curve gives: see `effective_depth_table`."""

    answer: Literal["at", "below", "beyond", "unknown"]
    effective_depth: float = math.nan
    low: float = math.nan
    high: float = math.nan
    low_open: bool = False
    high_open: bool = False


def read_depth(curve: Sequence[Point], *, interval: bool) -> Reading:
    """The depth at which the plain network reaches the variant's score, with its interval.

    `curve`: points by ascending depth, whose three values are interpolated linearly in log depth.
    `interval`: whether low and high are the ends of an interval over seeds.
    """
    shallowest, deepest = float(curve[0].depth), float(curve[-1].depth)
    alike = [point for point in curve if point.low <= 0]
    if curve[0].high < 0:
        return Reading(BELOW, shallowest)
    if not alike:
        gains = min(curve, key=lambda point: point.mean) is curve[-1]
        return Reading(BEYOND, deepest) if gains else Reading(UNKNOWN)
    # If no mean reaches the score: the depth of the smallest mean whose interval includes 0.
    nearest = min(alike, key=lambda point: point.mean)
    depth = _first(curve, "mean", le) or float(nearest.depth)
    if not interval:
        return Reading(AT, depth)
    # The interval ends where the two differ significantly again, in either direction.
    ends = _first(curve, "high", lt, depth), _first(curve, "low", gt, depth)
    high = min((max(end, depth) for end in ends if end is not None), default=None)
    return Reading(
        AT,
        depth,
        _first(curve, "low", le) or depth,
        deepest if high is None else high,
        low_open=curve[0].low <= 0,
        high_open=high is None,
    )


def _first(
    curve: Sequence[Point], line: str, holds: Callable[[float, float], bool], after: float = 0
) -> float | None:
    """The depth at which a line of the curve first satisfies `holds(value, 0)`; None if nowhere.

    Skips segments up to `after`. A segment with a diverged run gives its deeper end.
    """
    if after <= curve[0].depth and holds(getattr(curve[0], line), 0):
        return float(curve[0].depth)
    for a, b in itertools.pairwise(curve):
        start, end = getattr(a, line), getattr(b, line)
        if b.depth > after and holds(end, 0):
            share = start / (start - end) if math.isfinite(start - end) else 1.0
            return a.depth * (b.depth / a.depth) ** share
    return None
