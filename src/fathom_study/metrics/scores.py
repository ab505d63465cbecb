"""Scores: the held-out metric that a task is judged by, and the outcome of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fathom_study.metrics.runs import RunMetric, value_of
from fathom_study.metrics.steps import Row


@dataclass(frozen=True)
class Oracle:
    """A reference level for a score, from theory or counting."""

    label: str
    """As in 'a trigram model'."""
    level: float | str
    """The level, or the run metric that holds it."""


@dataclass(frozen=True)
class Spread:
    """Standard deviation of paired differences over seeds, known before the runs (Smyth 2004).

    Variances of pairs scatter as `sd`² times `df` / χ²(`df`).
    """

    df: float
    """Degrees of freedom that it counts for."""
    sd: float
    """On the scale of comparison: log10 for a positive score."""


@dataclass(frozen=True)
class Score:
    """The number of a run by which its results are judged."""

    metric: str
    """The run metric, measured on held-out data."""
    label: str
    """Label for an axis and a sentence, as in 'validation loss'."""
    unit: str
    """As in 'bits per character'; empty for a share."""
    chance: Callable[[Any], float]
    """Function of the spec: the score of a model that has learned nothing."""
    better: Literal["lower", "higher"] = "lower"
    perfect: float = 0.0
    """The best possible score on any data."""
    oracle: Oracle | None = None
    spread: Spread | None = None
    """Spread between two trainings of a task, if other trainings have shown it."""

    @property
    def sign(self) -> int:
        """1 where lower scores are better, else −1."""
        return 1 if self.better == "lower" else -1

    def progress(self, value: float, chance: float) -> float:
        """Position of a score between chance (0) and perfect (1); 0 if these are equal."""
        way = self.perfect - chance
        return (value - chance) / way if way else 0.0


def measure_score(rows: Sequence[Row], metric: RunMetric) -> float | None:
    """A run's value of the metric that judges it: NaN if not finite, None if not measured."""
    if not any(metric.of in row for row in rows):
        return None
    value = value_of(metric, rows)
    return math.nan if value is None else value


OUTCOMES = ("learned", "at chance", "diverged", "not scored")

LEARNED = 0.05
"""Minimum progress from chance (0) to perfect (1) of a run that counts as learned."""


def outcome(diverged: bool, score: Score, value: float | None, chance: float) -> str:
    """The outcome of a run, one of OUTCOMES.

    `diverged`: the result of its task's test; `value`: its score, None if it was not measured. A
    run whose score is not finite has diverged.
    """
    if diverged or (value is not None and not math.isfinite(value)):
        return "diverged"
    if value is None:
        return "not scored"
    return "learned" if score.progress(value, chance) >= LEARNED else "at chance"
