"""Time of a training step: the assumed one by hand, and the timed one with a fake clock."""

import pytest

from fathom_study.config import Compute
from fathom_study.runs import training
from fathom_study.runs.estimate import LAYER_SECONDS, OPERATIONS_PER_SECOND, assumed_step_seconds
from fathom_study.runs.training import connect, time_problem
from fathom_study.tasks import Problem
from tests.support.runs import config_with


def specs_of(**changes):
    config = config_with(variants=["baseline"], seeds=[0], **changes)
    return [config.spec(cell) for cell in config.cells()]


def test_the_assumed_time_of_a_step_counts_layers_and_products():
    (spec,) = specs_of(depths=[4], backends=["torch"])
    # Products of each of 64 tokens: 4 D² + 2 D F + 2 T D per layer (D 16, F 32, T 8), then 16 × 64.
    forward = 2 * 64 * (4 * (1024 + 1024 + 256) + 1024)
    assert assumed_step_seconds(spec) == pytest.approx(
        4 * LAYER_SECONDS + 3 * forward / OPERATIONS_PER_SECOND
    )


def test_timing_skips_steps_that_compile_or_run_without_a_graph(backend, monkeypatch):
    """Fake clock: the first step takes 100 s, the next three 0.5 s, all others 0.25 s."""
    name = backend.device.framework
    (spec,) = specs_of(depths=[2], backends=[name], a={"steps": 9})
    clock = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])

    def take(problem, trainer, step):
        clock[0] += (100.0, 0.5, 0.5, 0.5)[step] if step < 4 else 0.25
        real(problem, trainer, step)

    real = training.take_step
    monkeypatch.setattr(training, "take_step", take)
    compute = Compute(device="cpu")
    assert time_problem(Problem(spec), connect(spec, compute)) == 0.25
