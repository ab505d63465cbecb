"""Estimates by hand; and the lines of progress that a training prints."""

import pytest

from fathom.config import Compute, installed_backends
from fathom.runs import estimate, progress, train_all
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


def test_a_timed_step_of_each_backend_says_how_long_all_of_its_cells_take(monkeypatch):
    for module in (estimate, train_all):
        monkeypatch.setattr(module, "assumed_step_seconds", lambda spec: float(spec.depth))
    timed = {("torch", 8): 2.0, ("mlx", 8): 16.0}
    monkeypatch.setattr(train_all, "time_step", lambda spec, _: timed[spec.backend, spec.depth])
    specs = specs_of(depths=[8, 4], backends=["torch", "mlx"])
    # torch: 2 s for 8 layers, so 1 s for 4. MLX: 16 s, so 8 s. Three steps each.
    assert train_all.estimate_by_timing(specs, Compute()) == pytest.approx(3 * (2 + 1 + 16 + 8))


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
