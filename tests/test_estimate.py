"""Estimates by hand; and the lines of progress that a training prints."""

import pytest

from fathom.config import Compute
from fathom.runs import estimate, train_all, training
from fathom.runs.estimate import LAYER_SECONDS, OPERATIONS_PER_SECOND, assumed_step_seconds
from fathom.runs.training import time_step
from run_helpers import config_with


def specs_of(**changes):
    config = config_with(variants=["baseline"], seeds=[0], **changes)
    return [config.spec(cell) for cell in config.cells()]


def test_a_step_is_assumed_to_take_its_layers_and_its_products():
    (spec,) = specs_of(depths=[4], backends=["torch"])
    # 8 sequences of 8 tokens. A layer: 4 D² + 2 D F + 2 T D with D 16, F 32, T 8; then 16 × 64.
    forward = 2 * 64 * (4 * (1024 + 1024 + 256) + 1024)
    assert assumed_step_seconds(spec) == pytest.approx(
        4 * LAYER_SECONDS + 3 * forward / OPERATIONS_PER_SECOND
    )


def test_timed_steps_and_evaluations_say_how_long_all_cells_take(monkeypatch):
    for module in (estimate, train_all):
        monkeypatch.setattr(module, "assumed_step_seconds", lambda spec: float(spec.depth))
    steps = {("torch", 8): 2.0, ("torch", 4): 1.0, ("mlx", 8): 16.0, ("mlx", 4): 8.0}
    monkeypatch.setattr(train_all, "time_step", lambda spec, _: steps[spec.backend, spec.depth])
    measured = {("torch", 4): (0.5, 2.0), ("mlx", 4): (1.0, 4.0)}
    monkeypatch.setattr(
        train_all, "time_measurements", lambda spec, _: measured[spec.backend, spec.depth]
    )
    specs = specs_of(depths=[8, 4], backends=["torch", "mlx"])
    # An evaluation is two steps on torch, half a step on MLX. Each cell has three steps and one
    # evaluation: 0.5 + 2 · 5, 0.5 + 1 · 5, 1 + 16 · 3.5, 1 + 8 · 3.5 seconds.
    assert train_all.estimate_by_timing(specs, Compute()) == pytest.approx(10.5 + 5.5 + 57 + 29)


def test_a_timed_step_is_not_the_first_which_compiles(backend, monkeypatch):
    """A clock by hand: the first step takes 100 s, each other one 3 s."""
    name = backend.device.framework
    (spec,) = specs_of(depths=[2], backends=[name], a={"steps": 9})
    clock = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])

    def take(problem, trainer, step):
        clock[0] += 3.0 if step else 100.0
        real(problem, trainer, step)

    real = training.take_step
    monkeypatch.setattr(training, "take_step", take)
    assert time_step(spec, Compute(device="cpu")) == 3.0


# --- progress ------------------------------------------------------------------------------------
