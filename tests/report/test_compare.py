"""`fathom compare`: published settings of a task, changes by options, and files written."""

import json
import math

import pytest

from fathom_study import cli
from fathom_study.report.drawing.compare import comparison
from fathom_study.runs import train_all
from tests.support.runs import metric_rows, write_run

NAN = math.nan
LOSSES = {"resnet": [2.0, 1.5, 1.0], "mhc_causal": [2.0, NAN, NAN], "hc": [2.3, 2.3, 2.3]}
ACCURACY = {"resnet": 0.75, "mhc_causal": 0.1, "hc": 0.125}


@pytest.fixture
def compare(monkeypatch, tmp_path):
    """Function that compares with options, on runs by hand: {variant: (spec, compute)}."""
    asked = []

    def train(specs, folder_of, compute, jobs, logs=None):
        for spec in specs:
            asked.append((spec, compute))
            rows = metric_rows(LOSSES[spec.variant], grad_norm_stem=[0.5, 0.25, 0.125])
            rows[0] = {name: rows[0][name] for name in rows[1]}  # images have no trace of layers
            rows[-1]["test_accuracy"] = ACCURACY[spec.variant]
            write_run(folder_of(spec.cell), spec, rows)
            yield spec, ""

    monkeypatch.setattr(train_all, "train_each", train)
    monkeypatch.setattr(train_all, "installed_backends", lambda: ("mlx", "torch"))
    monkeypatch.setattr(train_all, "estimate_by_timing", lambda specs, compute: 7200.0 * len(specs))
    fetched = "fathom_study.datasets.fetch"
    monkeypatch.setattr(fetched, lambda name, data, log: log(f"fetched {name}"))

    def run(options):
        cli.main(["compare", "fashion", *options.split(), "--out", str(tmp_path)])
        return {spec.variant: (spec, compute) for spec, compute in asked}

    return run


def test_defaults_are_the_settings_that_the_source_published(tmp_path):
    config = comparison("fashion", {"backends": ["torch"]}, tmp_path)
    specs = [config.spec(cell) for cell in config.cells()]
    assert [spec.variant for spec in specs] == ["resnet", "hc_causal", "mhc_causal", "hc", "mhc"]
    for spec in specs:
        assert (spec.depth, spec.seed, spec.steps, spec.batch_size) == (100, 42, 500, 64)
        assert (spec.model.width, spec.model.dropout, spec.weights) == (64, 0.1, True)
        o = spec.optimizer
        assert (o.lr, o.weight_decay, o.schedule) == (8e-4, 0.1, "cosine")


def test_results_of_a_config_are_not_replaced(compare, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SystemExit, match="1"):
        compare("--depth 2")
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_runs_of_other_settings_are_replaced_only_if_asked(compare, capsys):
    compare("--mode hc --depth 3 --steps 3 --lr 0.5")
    with pytest.raises(SystemExit):
        compare("--mode hc --depth 3 --steps 3 --lr 0.25")
    assert "contains a run of another spec" in capsys.readouterr().err
    replaced = compare("--mode hc --depth 3 --steps 3 --lr 0.25 --replace")
    assert replaced["hc"][0].optimizer.lr == 0.25


def test_options_change_the_specs_and_all_files_are_written(compare, tmp_path, capsys):
    runs = compare(
        "--mode resnet --mode hc --mode mhc_causal --depth 3 --steps 3 --width 16 --batch-size 5 "
        "--seed 1 --streams 2 --lr 0.5 --weight-decay 0.25 --warmup-steps 2 --dropout 0.5 "
        "--no-schedule --backend torch --device cpu"
    )
    assert set(runs) == set(LOSSES)
    spec, compute = runs["hc"]
    assert (spec.depth, spec.steps, spec.batch_size, spec.seed) == (3, 3, 5, 1)
    assert (spec.connection.streams, spec.model.width, spec.model.dropout) == (2, 16, 0.5)
    o = spec.optimizer
    assert (o.lr, o.weight_decay, o.warmup_steps, o.schedule) == (0.5, 0.25, 2, "constant")
    assert (compute.device, compute.threads) == ("cpu", 1)

    printed = capsys.readouterr()
    assert "fetched fashion_mnist" in printed.err
    assert "about 6.0 hours for 3 cells" in printed.err
    assert {file.name for file in tmp_path.glob("*.png")} == {
        "grad_norm_stem.png", "loss.png", "score.png",
    }  # fmt: skip
    for variant in LOSSES:
        assert (tmp_path / f"runs/compare/3L/{variant}/torch/seed1/weights.safetensors").is_file()
    (file,) = tmp_path.glob("metrics_*.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    assert list(record) == ["config", "summary", "history"]
    assert record["config"]["resnet"]["model"]["width"] == 16
    names = ("loss_final", "test_accuracy", "outcome", "diverged")
    assert {variant: [row[n] for n in names] for variant, row in record["summary"].items()} == {
        "resnet": [1.0, 0.75, "learned", False],
        "mhc_causal": [None, None, "diverged", True],
        "hc": [2.3, 0.125, "at chance", False],
    }
    history = record["history"]["mhc_causal"]
    assert history["loss"] == [2.0, None, None]
    assert history["grad_norm_stem"] == [0.5, 0.25, 0.125]
    assert history["test_accuracy"] == [None, None, 0.1]
    assert "stream_similarity" not in history
    rows = [line.split() for line in printed.out.splitlines()]
    assert ["resnet", "0.750", "0.750", "3.0", "learned", "10.0"] in rows
