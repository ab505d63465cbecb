"""`fathom compare`: what a task has published, changed where asked, and what it leaves behind."""

import json
import math

import pytest

from fathom import cli
from fathom.config import Compute
from fathom.report import compare
from fathom.report.compare import SMALL, compare_variants, comparison, outlook
from fathom.runs import training
from fathom.runs.estimate import assumed_seconds
from fathom.settings import ConfigError
from run_helpers import config_with, metric_rows, write_run

NAN = math.nan


def specs_of(**changes):
    config = comparison("fashion", {"backends": ["torch"], **changes})
    return [config.spec(cell) for cell in config.cells()]


def test_without_changes_it_is_what_the_source_published():
    specs = specs_of()
    assert [spec.variant for spec in specs] == ["resnet", "hc_causal", "mhc_causal", "hc", "mhc"]
    for spec in specs:
        assert (spec.depth, spec.seed, spec.steps, spec.batch_size) == (100, 42, 500, 64)
        assert (spec.model.width, spec.model.dropout, spec.weights) == (64, 0.1, True)
        o = spec.optimizer
        assert (o.lr, o.weight_decay, o.schedule) == (8e-4, 0.1, "cosine")


def test_changes_are_laid_over_it_setting_by_setting():
    (spec,) = specs_of(
        variants=["mhc_causal"],
        depths=[3],
        steps=None,
        seeds=None,
        model={"width": 8, "dropout": None},
        optimizer={"lr": 0.01, "schedule": "constant", "weight_decay": None},
    )
    assert (spec.depth, spec.steps, spec.seed) == (3, 500, 42)
    assert (spec.model.width, spec.model.dropout) == (8, 0.1)
    assert (spec.optimizer.lr, spec.optimizer.schedule) == (0.01, "constant")
    assert spec.optimizer.weight_decay == 0.1
    assert specs_of()[0].model.width == 64  # nothing of it has stayed


@pytest.mark.parametrize(
    ("task", "changes", "said"),
    [
        ("tokens", {}, "compare knows no task 'tokens' (known: fashion)"),
        ("fashoin", {}, "compare knows no task 'fashoin' (known: fashion)"),
        ("fashion", {"variants": ["mhc_casual"]}, "unknown connection 'mhc_casual'"),
        ("fashion", {"model": {"width": 0}}, "compare: studies.compare.model.width: "),
    ],
)
def test_what_cannot_be_compared_is_one_line(task, changes, said):
    with pytest.raises(ConfigError) as caught:
        comparison(task, {"backends": ["torch"], **changes})
    (line,) = str(caught.value).splitlines()
    assert said in line


def test_the_options_of_the_command_become_settings(monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr(compare, "compare_variants", lambda *given: found.append(given))
    command = (
        "compare fashion --mode mhc --mode hc --depth 3 --steps 7 --width 16 --batch-size 5 "
        "--seed 1 --streams 2 --lr 0.5 --weight-decay 0.25 --warmup-steps 2 --dropout 0.5 "
        f"--no-schedule --backend mlx --device cpu --threads 3 --out {tmp_path}"
    )
    cli.main(command.split())
    ((specs, compute, out),) = found
    assert [spec.variant for spec in specs] == ["mhc", "hc"]
    spec = specs[0]
    assert (spec.depth, spec.steps, spec.batch_size, spec.seed) == (3, 7, 5, 1)
    assert (spec.backend, spec.connection.streams) == ("mlx", 2)
    assert (spec.model.width, spec.model.dropout) == (16, 0.5)
    o = spec.optimizer
    assert (o.lr, o.weight_decay, o.warmup_steps, o.schedule) == (0.5, 0.25, 2, "constant")
    assert (compute.device, compute.threads, out) == ("cpu", 3, tmp_path)


# --- what is left behind -------------------------------------------------------------------------

LOSSES = {"resnet": [2.0, 1.5, 1.0], "mhc_causal": [2.0, NAN, NAN], "hc": [2.3, 2.3, 2.3]}
ACCURACY = {"resnet": 0.75, "mhc_causal": 0.1, "hc": 0.125}


@pytest.fixture
def compared(monkeypatch, tmp_path, capsys):
    """(folder, the JSON file's content, what was printed) of three runs made by hand."""
    done = []

    def train(spec, folder, compute, on_chunk):
        assert compute.threads == 2
        done.append(spec.variant)
        rows = metric_rows(LOSSES[spec.variant], grad_norm_stem=[0.5, 0.25, 0.125])
        rows[-1]["test_accuracy"] = ACCURACY[spec.variant]
        write_run(folder, spec, rows)

    monkeypatch.setattr(compare, "run_cell", train)
    monkeypatch.setattr(compare, "time_step", lambda spec, compute: 2.0)
    monkeypatch.setattr(compare, "time_measurements", lambda spec, compute: (1.0, 4.0))
    monkeypatch.setattr(compare.datasets, "fetch", lambda name, say: done.append(name))
    sizes = {"depths": [3], "steps": 3, "model": {"width": 8}, "batch_size": 2}
    specs = specs_of(variants=list(LOSSES), **sizes)
    compare_variants(specs, Compute(threads=2), tmp_path)
    assert done == ["fashion_mnist", *LOSSES]
    (file,) = tmp_path.glob("metrics_*.json")
    return tmp_path, json.loads(file.read_text(encoding="utf-8")), capsys.readouterr().err


def test_runs_figures_and_numbers_are_left(compared):
    folder, record, printed = compared
    drawn = {file.name for file in folder.glob("*.png")}
    assert drawn == {
        "grad_norm_stem.png", "loss_comparison.png", "mixing_matrix.png", "score.png",
    }  # fmt: skip
    for variant in LOSSES:
        run = folder / f"runs/compare/3L/{variant}/torch/seed42"
        assert (run / "manifest.json").is_file()
        assert (run / "weights.safetensors").is_file()

    assert list(record) == ["config", "summary", "history"]
    assert record["config"]["resnet"]["model"]["width"] == 8
    names = ("loss_final", "test_accuracy", "outcome", "diverged")
    assert {variant: [found[n] for n in names] for variant, found in record["summary"].items()} == {
        "resnet": [1.0, 0.75, "learned", False],
        "mhc_causal": [None, 0.1, "diverged", True],
        "hc": [2.3, 0.125, "at chance", False],
    }
    history = record["history"]["mhc_causal"]
    assert history["loss"] == [2.0, None, None]
    assert history["grad_norm_stem"] == [0.5, 0.25, 0.125]
    assert history["test_accuracy"] == [None, None, 0.1]
    assert "stream_similarity" not in history

    # Each: a second before the first step, three steps of 2 s, and an evaluation of 4 s.
    total = "3 variants of 3 steps: about 33 seconds in all, evaluations included"
    assert total in printed.splitlines()

    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines()]
    assert [row for row in rows if row] == [
        ["resnet", "0.7500", "3.0000", "learned", "10"],
        ["mhc_causal", "0.1000", "3.0000", "diverged", "10"],
        ["hc", "0.1250", "3.0000", "at chance", "10"],
    ]


# --- before anything is trained ------------------------------------------------------------------


def test_the_time_is_estimated_first_and_a_small_size_is_named(monkeypatch):
    """An evaluation is timed on 4 layers, where a step takes 0.5 s: it is as long as 100 steps."""
    steps = {("resnet", 100): 10.0, ("mhc", 100): 20.0, ("resnet", 4): 0.5}
    monkeypatch.setattr(compare, "time_step", lambda spec, _: steps[spec.variant, spec.depth])
    monkeypatch.setattr(compare, "time_measurements", lambda spec, _: (spec.depth, 50.0))
    specs = specs_of(variants=["resnet", "mhc"], evaluate_every=200)
    first, small, timing, *each, total = outlook(specs, Compute())
    assert first.startswith("2 variants of 500 steps: a guess ")
    assert small.endswith(f": fathom compare fashion {SMALL}")
    assert timing.startswith("timing")
    # 500 steps and 3 evaluations: 8000 s and 16000 s.
    assert each == [
        "resnet: 10 s a step, about 2.2 hours",
        "mhc: 20 s a step, about 4.4 hours",
    ]
    assert total == "2 variants of 500 steps: about 6.7 hours in all, evaluations included"


def test_the_estimate_is_of_steps_after_the_first_which_compiles(backend, monkeypatch):
    """A clock by hand: the first step takes 100 s, each other one 3 s."""
    name = backend.device.framework
    sizes = {"variants": ["baseline"], "depths": [2], "seeds": [0], "backends": [name]}
    config = config_with(**sizes, a={"steps": 9})
    (spec,) = [config.spec(cell) for cell in config.cells()]
    clock = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])

    def take(problem, trainer, step):
        clock[0] += 3.0 if step else 100.0
        real(problem, trainer, step)

    real = training.take_step
    monkeypatch.setattr(training, "take_step", take)
    assert training.time_step(spec, Compute(device="cpu")) == 3.0


def test_the_small_size_is_small_and_then_none_is_named(monkeypatch, tmp_path):
    """And it trains on one thread, as on a machine where others compute it is fastest."""
    found = []
    threads = []

    def record(specs, compute, out):
        found.extend(specs)
        threads.append(compute.threads)

    monkeypatch.setattr(compare, "compare_variants", record)
    cli.main(["compare", "fashion", *SMALL.split(), "--out", str(tmp_path)])
    assert len(found) == len(specs_of())
    assert threads == [1]
    assert assumed_seconds(found) < 60
    monkeypatch.setattr(compare, "time_step", lambda spec, compute: 0.1)
    monkeypatch.setattr(compare, "time_measurements", lambda spec, compute: (0.1, 0.1))
    assert not [line for line in outlook(found, Compute()) if "fathom compare" in line]
