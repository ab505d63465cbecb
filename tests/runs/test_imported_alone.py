"""`train: false`: nothing is trained here, and only imported runs count."""

import json

import pytest

from fathom_study.analysis.run_tables import write_tables
from fathom_study.analysis.tables import read_table
from fathom_study.config import ConfigError, check_config, installed_backends
from fathom_study.runs.folder import RunError, read_spec
from fathom_study.runs.train_all import specs_left
from fathom_study.runs.validate import find_runs
from tests.support.runs import GPU, GPU_PLATFORM, config_with, write_cell

LOSSES = [4.0, 2.0, 1.0]


@pytest.fixture
def config(tmp_path):
    """One study of two cells, seeds 0 and 1, with `train: false`."""
    made = config_with(tmp_path / "results", variants=["mhc"], depths=[4], backends=["torch"],
                       seeds=[0, 1])  # fmt: skip
    return check_config({**made.model_dump(mode="json"), "train": False})


@pytest.fixture
def command(config, tmp_path, fathom):
    """Function that runs a command on the config: (exit status, output, lines of errors)."""
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(config.model_dump(mode="json")), encoding="utf-8")
    return lambda *arguments: fathom(*arguments, "-c", file)


def test_runs_trained_here_are_ignored(config, tmp_path):
    one, other = config.cells()
    write_cell(config, one, LOSSES)  # a current run
    broken = write_cell(config, other, LOSSES)
    (broken / "metrics.jsonl").write_text("")  # which would stop the tables if it counted
    write_cell(config, one, [8.0, 8.0, 2.0], GPU_PLATFORM, GPU)
    runs = find_runs(config)
    assert [(run.cell, run.status, run.platform) for run in runs] == [
        (one, "imported", GPU_PLATFORM),
        (other, "missing", ""),
    ]
    write_tables(config, tmp_path / "tables")
    cells = read_table(tmp_path / "tables/cells.csv")
    assert cells["loss_final"].tolist()[:1] == [2.0]
    assert cells["status"].tolist() == ["imported", "missing"]
    (row,) = read_table(tmp_path / "tables/summary.csv").to_dict("records")
    assert (row["n"], row["platform"], row["loss_final_mean"]) == (1, f"torch-{GPU_PLATFORM}", 2.0)


def test_nothing_is_trained(config, command):
    with pytest.raises(ConfigError, match="set train: true"):
        specs_left(config, ())
    for words in (["train-all"], ["train", "a", "--seed", "0"]):
        status, _, errors = command(*words)
        assert status == 1
        assert errors == ["fathom: the config has train: false; set train: true to train cells"]


@pytest.mark.skipif("torch" not in installed_backends(), reason="torch is not installed")
def test_a_cell_can_be_trained_into_a_folder_outside_the_results(config, command, tmp_path):
    status, _, errors = command("train", "a", "--seed", "0", "--out", str(tmp_path / "again"))
    assert status == 0, errors
    assert str(tmp_path / "again") in errors[-1]
    assert read_spec(tmp_path / "again").seed == 0
    with pytest.raises(RunError):
        find_runs(config)


@pytest.mark.parametrize("words", [["status"], ["verify"]])
def test_commands_without_imported_runs_print_one_line(config, command, words):
    for cell in config.cells():
        write_cell(config, cell, LOSSES)
    with pytest.raises(RunError):
        find_runs(config)
    status, said, errors = command(*words)
    assert (status, said) == (1, "")
    (line,) = errors
    assert line.startswith(f"fathom: {config.results}/imported: contains no run of this config, ")
    assert line.endswith("import runs first: fathom bundle import FILE.tar.xz")
