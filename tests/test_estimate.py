"""Estimates by hand; and the lines of progress that a training prints."""

import pytest

from fathom.config import Compute, installed_backends
from fathom.runs import estimate, progress, train_all, training
from fathom.runs.estimate import LAYER_SECONDS, OPERATIONS_PER_SECOND, assumed_step_seconds
from fathom.runs.progress import log_lines
from fathom.runs.training import time_step
from fathom.train import Chunk
from run_helpers import config_with, metric_rows


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


def test_each_of_a_few_variants_is_timed_by_itself(monkeypatch):
    monkeypatch.setattr(train_all, "assumed_step_seconds", lambda spec: 1.0)
    monkeypatch.setattr(
        train_all, "time_step", lambda spec, _: {"baseline": 1.0, "mhc": 5.0}[spec.variant]
    )
    monkeypatch.setattr(train_all, "time_measurements", lambda spec, _: (0.0, 0.0))
    config = config_with(variants=["baseline", "mhc"], depths=[4], backends=["torch"], seeds=[0])
    specs = [config.spec(cell) for cell in config.cells()]
    assert train_all.estimate_by_timing(specs, Compute()) == pytest.approx(3 * (1 + 5))


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


def test_the_longest_cell_is_the_one_of_most_operations_and_not_the_deepest(tmp_path, monkeypatch):
    """Products of the wide one: 4 × 12 × 512² × 4096 × 6, over a minute; the deep one: a second."""
    monkeypatch.setattr(train_all, "installed_backends", lambda: ("torch",))
    wide = {"vocab": 64, "length": 64, "width": 512, "heads": 4, "hidden": 2048}
    config = config_with(
        tmp_path, ("deep", "wide"), variants=["baseline"], backends=["torch"], seeds=[0],
        deep={"depths": [64, 128]}, wide={"depths": [4], "model": wide, "batch_size": 64},
    )  # fmt: skip
    left = train_all.specs_left(config, ())
    assert [(spec.study, spec.depth) for spec in left] == [
        ("wide", 4), ("deep", 128), ("deep", 64),
    ]  # fmt: skip


@pytest.mark.parametrize("backend", installed_backends())
def test_a_step_can_be_timed_on_every_backend(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (spec,) = specs_of(depths=[4], backends=[backend])
    assert 0 < time_step(spec, Compute(device="cpu")) < 60
    assert list(tmp_path.iterdir()) == []


# --- progress ------------------------------------------------------------------------------------


@pytest.fixture
def said(monkeypatch, capsys):
    """A function that gives the steps of the lines, where ten steps take so many seconds."""

    def lines(seconds, steps=1000):
        (spec,) = specs_of(depths=[4], backends=["torch"], a={"steps": steps})
        clock = [0.0]
        monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
        report = log_lines(spec)
        rows = metric_rows([1.0] * steps, step_seconds=seconds / 10)
        for first in range(0, steps, 10):
            clock[0] += seconds
            report(Chunk(rows[first : first + 10], None))
        return [line.split()[2] for line in capsys.readouterr().err.splitlines()]

    return lines


def test_a_quick_training_leaves_about_ten_lines(said):
    assert said(0.1) == ["1/1000", *(f"{n}/1000" for n in range(100, 1001, 100))]


def test_a_slow_training_leaves_a_line_every_half_a_minute(said):
    assert said(20.0, steps=100) == [f"{n}/100" for n in (1, *range(10, 101, 10))]
    # A tenth of a thousand steps takes 200 s here: in between there is a line every 40 s.
    assert said(20.0)[:7] == [f"{n}/1000" for n in (1, 30, 50, 70, 90, 100, 120)]
