"""The flow task: its densities, exact velocities, batches, loss, metrics and network."""

import math
from functools import partial

import numpy as np
import pytest

from fathom_study import tasks
from fathom_study.metrics.scores import outcome
from fathom_study.tasks import flow
from tests.support.specs import end_of, make_spec

task = tasks.load("flow")
spec_of = partial(make_spec, task="flow", variant="baseline")


def at(field, *points, time):
    """Values of a field at points, all at one time."""
    return field(np.array(points, float), np.full((len(points), 1), float(time)))


# --- densities and their velocities --------------------------------------------------------------


def test_the_density_has_mean_zero_and_the_size_of_the_noise():
    density = flow.two_moons()
    assert density.centres.shape == (64, 2)
    assert density.centres.mean(axis=0) == pytest.approx([0, 0], abs=1e-12)
    # E|x|² of a mixture: the mean over its centres, plus s² for each coordinate.
    size = (density.centres**2).sum(axis=1).mean() + 2 * density.deviation**2
    assert size == pytest.approx(2)


def test_two_moons_are_two_half_circles_by_hand():
    """Before standardisation the upper one's top is (0, 1), the lower one's bottom (1, −1/2)."""
    density = flow.two_moons()
    size = 0.1 / density.deviation
    upper, lower = np.split(density.centres * size + [0.5, 0.25], 2)
    assert np.hypot(*upper.T) == pytest.approx(np.ones(32))
    assert np.hypot(*(lower - [1, 0.5]).T) == pytest.approx(np.ones(32))
    assert upper[:, 1].min() > 0
    assert lower[:, 1].max() < 0.5


def by_quadrature(density, point, time):
    """E[x_1 − x_0 | x_t] by a sum over a fine grid of x_1, with x_0 = (x_t − t x_1) / (1 − t)."""
    line = np.linspace(-3.5, 3.5, 351)
    ends = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    starts = (point - time * ends) / (1 - time)
    weights = np.zeros(len(ends))
    for centre in density.centres:
        weights += np.exp(-((ends - centre) ** 2).sum(axis=1) / (2 * density.deviation**2))
    weights *= np.exp(-(starts**2).sum(axis=1) / 2)
    return (weights[:, None] * (ends - starts)).sum(axis=0) / weights.sum()


@pytest.mark.parametrize(("point", "time"), [((0.3, -0.8), 0.35), ((1.1, 0.4), 0.9)])
def test_exact_velocity_is_the_mean_over_all_lines_through_a_point(point, time):
    density = flow.two_moons()
    (result,) = at(density.velocity, point, time=time)
    expected = by_quadrature(density, np.array(point), time)
    assert result == pytest.approx(expected, abs=1e-9)


def test_spread_points_have_the_radii_of_a_normal_distribution():
    points = flow.spread_normal(400)
    radii = np.sort(np.hypot(*points.T))
    assert 1 - np.exp(-(radii**2) / 2) == pytest.approx((np.arange(400) + 0.5) / 400)
    assert points.mean(axis=0) == pytest.approx([0, 0], abs=0.01)  # 0.05 for random points
    assert np.cov(points.T) == pytest.approx(np.eye(2), abs=0.02)


# --- batches and the loss ------------------------------------------------------------------------


def test_a_batch_lies_on_lines_from_noise_to_the_density():
    spec = spec_of(batch_size=512)
    batch = task.batch(spec, 0)
    points, times = batch.inputs["points"], batch.inputs["times"]
    assert {x.dtype for x in (points, times, batch.targets)} == {np.dtype("float32")}
    assert (points.shape, times.shape, batch.targets.shape) == ((512, 2), (512, 1), (512, 2))
    density = flow.two_moons()
    ends, starts = points + (1 - times) * batch.targets, points - times * batch.targets
    apart = np.linalg.norm(ends[:, None] - density.centres, axis=2).min(axis=1)
    assert apart.max() < 6 * density.deviation
    # Five standard errors of 512 numbers.
    assert starts.mean(axis=0) == pytest.approx([0, 0], abs=5 / math.sqrt(512))
    assert starts.std(axis=0) == pytest.approx([1, 1], abs=5 / math.sqrt(2 * 512))
    assert (times.min() >= 0) & (times.max() < 1)


def test_zero_velocity_has_the_chance_loss_and_score():
    """Its excess loss is the score's chance level."""
    spec = spec_of(batch_size=100_000)
    targets = task.batch(spec, 0).targets
    # E|x_1 − x_0|² = 4; its standard error here is 0.01.
    assert task.chance_loss(spec) == pytest.approx((targets**2).sum(axis=1).mean(), abs=0.05)
    params = tasks.Problem(spec).initial_parameters()
    still = {n: v * 0 if n.startswith("head.") else v for n, v in params.items()}
    result = flow.excess_loss(end_of(spec, still))
    assert result == pytest.approx(flow.SCORE.chance(spec))
    assert outcome(False, flow.SCORE, result, flow.SCORE.chance(spec)) == "at chance"


# --- metrics -------------------------------------------------------------------------------------


def test_euler_steps_by_hand():
    """dx/dt = x gives (1 + 1/N)^N after N steps, dx/dt = t gives (0 + 1/4 + 1/2 + 3/4) / 4."""
    start = np.ones((1, 2))
    for steps in (1, 2, 10):
        result = flow.integrate(lambda x, t: x, start, steps)
        assert result == pytest.approx(start * (1 + 1 / steps) ** steps)
    assert flow.integrate(lambda x, t: t + 0 * x, 0 * start, 4) == pytest.approx(start * 3 / 8)


def test_the_energy_distance_by_loops(monkeypatch):
    rng = np.random.default_rng(5)
    xs, ys = rng.standard_normal((7, 2)), rng.standard_normal((5, 2)) + 1
    monkeypatch.setattr(flow, "reference", lambda: (ys, flow.mean_distance(ys, ys)))
    monkeypatch.setattr(flow, "start_points", lambda count: xs - 2)
    result = flow.energy_distance_after(lambda x, t: 2 + 0 * x, steps=3)

    def mean(a, b):
        return sum(math.dist(x, y) for x in a for y in b) / (len(a) * len(b))

    assert result == pytest.approx(2 * mean(xs, ys) - mean(xs, xs) - mean(ys, ys))
    assert math.isnan(flow.energy_distance_after(lambda x, t: math.nan * x, steps=1))


def test_the_exact_velocity_leads_to_the_density_in_many_steps():
    """One step leads to the mean, since at time 0 nothing is known of the end."""
    velocity = flow.two_moons().velocity
    after = {n: flow.energy_distance_after(velocity, n) for n in (1, 5, 50)}
    truth, apart = flow.reference()
    collapsed = 2 * flow.mean_distance(np.zeros((1, 2)), truth) - apart
    assert after[1] == pytest.approx(collapsed)
    assert after[50] < 1e-3 < after[5] < after[1]
    # Random samples of these sizes are farther apart: (1/512 + 1/1024) E|y − y'| = 0.005.
    assert after[50] < 0.2 * apart * (1 / 512 + 1 / 1024)


def test_norms_of_a_repeated_flow_by_hand():
    """dx/dt = x: each of ten time units stretches norms by (1 + 1/20)^20."""
    result = flow.mean_norms(lambda x, t: x)
    assert list(result) == list(range(11))
    first = result[0]
    assert first == pytest.approx(math.sqrt(math.pi / 2), rel=1e-3)  # E|x| of N(0, I)
    expected = [first * 1.05 ** (20 * time) for time in range(11)]
    assert list(result.values()) == pytest.approx(expected, rel=1e-5)  # points are float32


# --- the network ---------------------------------------------------------------------------------


def test_operations_count_the_matrix_products():
    network = tasks.Problem(spec_of(depth=5, width=6, hidden=10)).network
    per_point = 3 * 6 + 5 * (6 * 10 + 10 * 6) + 6 * 2
    assert network.forward_flops(7) == 2 * 7 * per_point
