"""The flow task: learn the velocity of a rectified flow in the plane (docs/definitions/flow.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from pydantic import Field

from fathom.operations.ops import Array, Ops
from fathom.settings import Positive, Registry, Settings
from fathom_study.batch import Batch
from fathom_study.metrics.scores import Oracle, Score
from fathom_study.metrics.steps import POSITIVE, StepMetric, held_out_loss
from fathom_study.models.mlp import POINT, VelocityMLP
from fathom_study.models.network import Output
from fathom_study.spec import Spec
from fathom_study.tasks import Presentation, Table, Task, Trained

# Keeps the batches' random numbers apart from those of the initial parameters.
STREAM = 0x666C6F77
HELD_OUT = 0x68656C64
"""Seed of the held-out points, which is the same for every run and which no training uses."""

HELD_OUT_POINTS = 16384
"""Number of points between noise and density, for the score."""

STARTS = 512
"""Points of N(0, I) that a flow moves for its energy distance."""

REFERENCE = 1024
"""Points of the density in that distance; the number of centres divides it."""

EULER_STEPS = (1, 2, 5, 10, 20, 50, 100)

USUAL_STEPS = 20
"""Euler steps of one flow; more steps bring the exact velocity little nearer to the density."""

UNIT_TIMES = 10
"""Number of repetitions of the flow that measure a drift of norms."""


# --- densities ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Density:
    """A mixture of equal Gaussians: centres [K, 2] with one standard deviation for all.

    Standardised: the mean is zero, and E|x|² is 2, as for N(0, I).
    """

    centres: np.ndarray
    deviation: float

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Points [count, 2], in float64."""
        chosen = rng.integers(len(self.centres), size=count)
        return self.centres[chosen] + self.deviation * rng.standard_normal((count, POINT))

    def spread(self, count: int) -> np.ndarray:
        """At least `count` points, evenly spread: equally many around each centre, in a spiral."""
        each = -(-count // len(self.centres))
        turned = [spread_normal(each, turn=k) for k in range(len(self.centres))]
        return np.concatenate(self.centres[:, None] + self.deviation * np.array(turned))

    def velocity(self, points: np.ndarray, times: np.ndarray) -> np.ndarray:
        """E[x_1 − x_0 | x_t] at points [N, 2] and times [N, 1], the optimal velocity.

        Given its centre c, x_t is N(t c, ((1−t)² + t² s²) I), jointly normal with x_1 − x_0.
        """
        centres = self.centres.astype(points.dtype)
        variance = self.deviation**2
        variances = (1 - times) ** 2 + times**2 * variance
        # −|x − t c|² / 2, without the term that all centres share.
        nearness = times * (points @ centres.T) - times**2 * (centres**2).sum(axis=1) / 2
        logits = nearness / variances
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        centre = weights @ centres / weights.sum(axis=1, keepdims=True)
        slope = (times * variance - (1 - times)) / variances
        return centre + slope * (points - times * centre)


GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


def spread_normal(count: int, turn: float = 0.0) -> np.ndarray:
    """Deterministic points [count, 2] that represent N(0, I): a spiral, turned by an angle.

    Point k, from 0, is on the circle that contains (k + ½) / count of the probability, one golden
    angle after point k − 1.
    """
    positions = np.arange(count)
    radii = np.sqrt(-2 * np.log1p(-(positions + 0.5) / count))
    angles = GOLDEN_ANGLE * positions + turn
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


@cache
def two_moons() -> Density:
    """Two half circles of radius 1, one upside down and moved by (1, 1/2); 32 centres on each.

    Scaled to mean zero and E|x|² = 2.
    """
    angles = np.pi * (np.arange(32) + 0.5) / 32
    upper = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    centres, deviation = np.concatenate([upper, np.array([1.0, 0.5]) - upper]), 0.1
    centred = centres - centres.mean(axis=0)
    size = math.sqrt((centred**2).sum(axis=1).mean() / POINT + deviation**2)
    return Density(centred / size, deviation / size)


# --- flows --------------------------------------------------------------------------------------

VelocityField = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Velocities [N, 2] at points [N, 2] and times [N, 1]."""


def learned_field(trained: Trained) -> VelocityField:
    """The velocity field of the network."""
    return lambda points, times: trained.logits({"points": points, "times": times})


def exact_field(trained: Trained) -> VelocityField:
    """The velocity field that the network should learn."""
    return two_moons().velocity


def integrate(field: VelocityField, points: np.ndarray, steps: int) -> np.ndarray:
    """The points at time 1 of points at time 0, by Euler's method with `steps` steps."""
    for step in range(steps):
        times = np.full((len(points), 1), step / steps, points.dtype)
        points = points + field(points, times) / steps
    return points


def start_points(count: int) -> np.ndarray:
    """Start points of a flow, [count, 2] in float32, the same for every network."""
    return spread_normal(count).astype(np.float32)


def mean_distance(xs: np.ndarray, ys: np.ndarray) -> float:
    """Mean distance over all pairs of points [N, 2] and [M, 2]."""
    xs, ys = xs.astype(np.float64), ys.astype(np.float64)
    squares = (xs**2).sum(axis=1)[:, None] + (ys**2).sum(axis=1) - 2 * xs @ ys.T
    return float(np.sqrt(np.maximum(squares, 0)).mean())


# --- held-out data ------------------------------------------------------------------------------


@cache
def held_out() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(points on the way [N, 2], their times [N, 1], the exact velocities there [N, 2]).

    Times are stratified: one is in each of N equal parts of [0, 1].
    """
    density, rng, N = two_moons(), np.random.default_rng(HELD_OUT), HELD_OUT_POINTS
    times = (np.arange(N)[:, None] + rng.random((N, 1))) / N
    points, _ = on_the_way(density, times, rng)
    points, times = points.astype(np.float32), times.astype(np.float32)
    return points, times, density.velocity(points.astype(np.float64), times.astype(np.float64))


def on_the_way(
    density: Density, times: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(x_t, x_1 − x_0), [N, 2] each, at times [N, 1]: along a line from noise to the density."""
    starts = rng.standard_normal((len(times), POINT))
    ends = density.sample(rng, len(times))
    return (1 - times) * starts + times * ends, ends - starts


@cache
def reference() -> tuple[np.ndarray, float]:
    """(points of the density, their mean distance from one another)."""
    points = two_moons().spread(REFERENCE)
    return points, mean_distance(points, points)


# --- metrics ------------------------------------------------------------------------------------


def excess_loss(trained: Trained) -> float:
    """E|v − E[x_1 − x_0 | x_t]|² over the held-out points."""
    points, times, exact = held_out()
    return mean_square(learned_field(trained)(points, times) - exact)


def at_rest(spec: Spec) -> float:
    """The excess loss of zero velocity: E|E[x_1 − x_0 | x_t]|² over the held-out points."""
    return mean_square(held_out()[2])


def mean_square(velocities: np.ndarray) -> float:
    """E|v|² of velocities [N, 2]."""
    return float((velocities**2).sum(axis=1).mean())


def energy_distance_after(field: VelocityField, steps: int) -> float:
    """2 E|x − y| − E|x − x'| − E|y − y'|: x moved by a field in `steps` steps, y of the density.

    Over all pairs, including each point with itself, so it is never negative. NaN if x is.
    """
    truth, apart = reference()
    points = integrate(field, start_points(STARTS), steps)
    if not np.isfinite(points).all():
        return math.nan
    return 2 * mean_distance(points, truth) - mean_distance(points, points) - apart


def energy_distance(trained: Trained) -> float:
    """Energy distance after USUAL_STEPS Euler steps."""
    return energy_distance_after(learned_field(trained), USUAL_STEPS)


def energy_distance_by_steps(
    field_of: Callable[[Trained], VelocityField],
) -> Callable[[Trained], dict[int, float]]:
    """The metric of a field's energy distance by the number of Euler steps."""

    def by_steps(trained: Trained) -> dict[int, float]:
        field = field_of(trained)
        return {steps: energy_distance_after(field, steps) for steps in EULER_STEPS}

    return by_steps


def mean_norms(field: VelocityField) -> dict[int, float]:
    """Mean |x| by time of points that begin as noise, while the flow of a field is repeated."""
    points = start_points(STARTS)
    norms = {0: mean_norm(points)}
    for time in range(1, UNIT_TIMES + 1):
        points = integrate(field, points, USUAL_STEPS)
        norms[time] = mean_norm(points)
    return norms


def mean_norm(points: np.ndarray) -> float:
    """Mean |x| of points [N, 2]."""
    return float(np.hypot(*points.T.astype(np.float64)).mean())


STEP_METRICS = Registry(
    {
        "excess_loss": held_out_loss(
            "excess loss (squared distance)",
            "mean squared distance of the learned velocity from the exact one, at held-out points: "
            "the held-out loss minus its irreducible part",
            excess_loss,
            shown="excess {:.4g}",
        ),
        "energy_distance": StepMetric(
            "energy distance",
            f"energy distance of {STARTS} points, after {USUAL_STEPS} Euler steps from noise, to "
            f"{REFERENCE} points of the density. Both sets are evenly spread",
            energy_distance,
            when="last step",
            bounds=POSITIVE,
        ),
        "energy_distance_by_steps": StepMetric(
            "energy distance",
            "energy distance of generated points to the density",
            energy_distance_by_steps(learned_field),
            when="last step",
            along="number of Euler steps",
            bounds=POSITIVE,
        ),
        "exact_energy_distance_by_steps": StepMetric(
            "energy distance of the exact velocity",
            "energy distance of the exact velocity's points to the density, equal in all runs",
            energy_distance_by_steps(exact_field),
            when="last step",
            along="number of Euler steps",
            bounds=POSITIVE,
            finite=True,
        ),
        "norm_by_time": StepMetric(
            "mean |x|",
            f"mean norm of {STARTS} points that begin as noise while the flow is repeated, with "
            f"{USUAL_STEPS} Euler steps for each repetition",
            lambda trained: mean_norms(learned_field(trained)),
            when="last step",
            along="time",
            bounds=POSITIVE,
        ),
        "exact_norm_by_time": StepMetric(
            "mean |x| of the exact velocity",
            "this mean norm for the exact velocity, equal in all runs",
            lambda trained: mean_norms(exact_field(trained)),
            when="last step",
            along="time",
            bounds=POSITIVE,
            finite=True,
        ),
    }
)


class Model(Settings):
    """The density, and the sizes of the network."""

    # Recorded specs have `density`, so no other value is allowed.
    density: Literal["two_moons"] = Field("two_moons", description="where the flow leads")
    width: Positive = Field(description="W, channels of a stream")
    hidden: Positive = Field(description="F, channels between a block's two layers")


class Flow(Task):
    """Learn the velocity."""

    Model = Model
    Network = VelocityMLP
    step_metrics = STEP_METRICS

    def batch(self, spec: Spec, step: int) -> Batch:
        """Points on straight lines from noise to the density, and the velocity of each."""
        rng = np.random.default_rng([spec.seed, STREAM, step])
        times = rng.random((spec.batch_size, 1))
        points, velocities = on_the_way(two_moons(), times, rng)
        inputs = {"points": points.astype(np.float32), "times": times.astype(np.float32)}
        return Batch(inputs, velocities.astype(np.float32))

    def loss(self, ops: Ops, output: Output, batch: Batch) -> Array:
        """Mean over the batch of the squared distance of velocities."""
        errors = output.logits - batch.targets
        return ops.mean(ops.sum(errors * errors, axis=1), axis=0)

    def chance_loss(self, spec: Spec) -> float:
        """The loss of zero velocity: E|x_1|² + E|x_0|²."""
        return 2.0 * POINT


SCORE = Score(
    metric="excess_loss",
    label="excess loss",
    unit="squared distance",
    chance=at_rest,
    oracle=Oracle("the exact velocity", 0.0),
)

PRESENTATION = Presentation(
    unit="point",
    loss_unit="squared distance",
    sizes=lambda model: f"{model.density}, W {model.width}, F {model.hidden}",
    tables=(
        Table(
            "Samples",
            ("energy_distance",),
            note="The exact velocity has a positive energy distance too, from Euler steps and "
            "finitely many points.",
        ),
    ),
    figures=("loss", "score", "distance_by_steps"),
)
