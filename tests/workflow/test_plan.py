"""Plans of the workflow, without Snakemake: cells, and files of runs, data sets and figures."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fathom.system.text import format_duration
from fathom_study import datasets
from fathom_study.analysis.platforms import Platform
from fathom_study.config import Cell, Compute, ConfigError, check_config
from fathom_study.config.entries import RESERVED_NAMES
from fathom_study.config.load import check_start, is_resolved, write_resolved
from fathom_study.report.drawing.figure_manifest import places_of
from fathom_study.report.pages.reports import check_folder, kept_tables, why_left_out
from fathom_study.runs.estimate import startup_seconds
from fathom_study.runs.plan import DATA_READY, STARTED, Plan, shell_prefix
from fathom_study.runs.run import Run
from fathom_study.runs.status import trainable
from fathom_study.runs.validate import summarize_reasons, why_again
from tests.support.runs import (
    CPU_PLATFORM,
    STUDY,
    config_with,
    read_manifest,
    write_cell,
    write_manifest,
)
from tests.support.tables import step_times

BOTH = ("torch", "mlx")
WILDCARDS = {"study": "a", "depth": "4", "variant": "mhc", "backend": "torch", "seed": "1"}
CELL = Cell("a", 4, "mhc", "torch", 1)
TEXT = {
    **STUDY, "task": "text", "batch_size": 2, "evaluate_every": 1,
    "model": {"length": 4, "width": 8, "heads": 2, "hidden": 16, "validation_windows": 4},
}  # fmt: skip


def test_wildcards_name_a_cell_or_are_refused():
    config = config_with()
    assert Plan(config, BOTH).cell(**WILDCARDS) == CELL
    with pytest.raises(ConfigError, match="no study 'b'; the config has a"):
        Plan(config, BOTH).cell(**{**WILDCARDS, "study": "b"})
    with pytest.raises(ConfigError, match="backend mlx is not installed here"):
        Plan(config, ["torch"]).cell(**{**WILDCARDS, "backend": "mlx"})


def test_no_study_has_the_name_of_a_rule(pytestconfig):
    rules = [*pytestconfig.rootpath.glob("Snakefile")]
    rules += (pytestconfig.rootpath / "workflow").rglob("Snakefile")
    rules += (pytestconfig.rootpath / "workflow").rglob("*.smk")
    text = "".join(file.read_text(encoding="utf-8") for file in rules)
    names = set(re.findall(r"^(?:rule|checkpoint) ([a-z]+):", text, re.MULTILINE))
    assert {"all", "everything", "fetch"} <= names <= RESERVED_NAMES  # a study has no underscore


@pytest.mark.parametrize(
    "words",
    [["--config", "train=false", "--config", "seeds=[0]"], ["--configfile=a", "--configfiles", "b"],
     ["-C", "train=false", "--cores", "1", "--config=seeds=[0]"]],
)  # fmt: skip
def test_an_option_that_snakemake_would_drop_is_refused(words, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["snakemake", "all", *words])
    with pytest.raises(SystemExit):
        check_start()
    assert "2 times, but Snakemake uses only the last" in capsys.readouterr().err


def test_config_files_are_read_before_snakemake_reads_them(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("seeds: [0]\n")
    bad.write_text("seeds: [0\n")
    words = ["snakemake", "all", "--config", "train=false", "--configfile", str(good)]
    monkeypatch.setattr(sys, "argv", words)
    check_start()
    monkeypatch.setattr(sys, "argv", [*words, str(bad)])
    with pytest.raises(SystemExit):
        check_start()
    assert capsys.readouterr().err.startswith(f"fathom: {bad}: ")


def test_a_finished_run_is_trained_again_only_if_it_is_not_current(tmp_path):
    config = config_with(tmp_path)
    plan = Plan(config, BOTH)
    assert why_again(plan.run(CELL)) == ""
    folder = write_cell(config, CELL, [3.0, 2.0, 1.0])
    assert why_again(plan.run(CELL)) == ""
    other = config_with(tmp_path, optimizer={"lr": 0.5})
    assert "optimizer.lr 0.002 → 0.5" in why_again(Plan(other, BOTH).run(CELL))
    (folder / "metrics.jsonl").write_text("")
    assert why_again(plan.run(CELL)).startswith("corrupt: ")
    (folder / "metrics.jsonl").unlink()
    assert why_again(plan.run(CELL)) == "corrupt: metrics.jsonl: missing"
    write_cell(config, CELL, [3.0, 2.0, 1.0], platform=CPU_PLATFORM)
    imported = Plan(config.model_copy(update={"train": False}), BOTH)
    with pytest.raises(ConfigError, match="train: false"):
        imported.spec(CELL)


def test_trainings_wait_for_their_data_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = check_config({"studies": {"a": STUDY, "b": TEXT}, "compute": {"data": "d"}})
    cell = Cell("b", 4, "mhc", "torch", 0)
    write_cell(config, CELL, [3.0, 2.0, 1.0], platform=CPU_PLATFORM)
    plan = Plan(config, BOTH)
    text = DATA_READY.format(dataset="shakespeare")
    assert plan.datasets == ["shakespeare"]
    assert plan.data_files([CELL]) == []
    assert plan.data_files([CELL, cell, cell]) == [text]

    plan.mark_start()
    before = Path(STARTED).read_text()
    assert not Path(text).exists()
    folder = datasets.folder_of("shakespeare", "d")
    folder.mkdir(parents=True)
    (folder / datasets.UNAVAILABLE).write_text("nothing answered\n")
    assert plan.data_files([cell]) == [text]  # a request for the cell tries again
    (folder / datasets.SUMS).write_text("")
    plan.mark_start()
    assert Path(text).exists()
    assert Path(STARTED).read_text() != before
    (folder / datasets.SUMS).unlink()
    plan.mark_start()
    assert not Path(text).exists()


def test_imported_runs_count_and_change_the_key_of_tables(tmp_path):
    config = config_with(tmp_path, studies=("a", "b"))
    cells = [CELL, Cell("a", 4, "hc", "torch", 0), Cell("b", 4, "hc", "mlx", 0)]
    folders = [write_cell(config, cell, [3.0, 2.0, 1.0], CPU_PLATFORM) for cell in cells]
    plan = Plan(config.model_copy(update={"train": False}), ())
    assert plan.studies == ["a", "b"]
    assert plan.cells == []
    write_cell(config, CELL, [3.0, 2.5, 1.0], CPU_PLATFORM)
    again = Plan(plan.config, ())
    assert {(run.platform, run.cell) for run in plan.imported} == {
        (CPU_PLATFORM, cell) for cell in cells
    }
    (folders[1] / "metrics.jsonl").write_text("")
    damaged = Plan(plan.config, ())
    # A table also names a run of another spec, though nothing replays it.
    shutil.copytree(folders[0], folders[0].with_name("seed2"))
    plans = plan, again, damaged, Plan(plan.config, ()), Plan(plan.config, ())
    assert len({p.imported_key for p in plans}) == 4


def imported(*cells):
    return [SimpleNamespace(cell=cell, platform=CPU_PLATFORM) for cell in cells]


def test_a_platform_of_ladder_trainings_alone_has_no_figures():
    config = config_with(a={"ladder": {"baseline": [2]}})
    rung = next(cell for cell in config.cells() if cell.variant == "baseline_x200")
    assert places_of(config, [rung], imported(rung)) == {}
    there = ("a", Platform("torch", CPU_PLATFORM))
    assert [*places_of(config, [], imported(rung, CELL, CELL))] == [there]
    assert [*places_of(config, [rung, CELL])] == [("a", Platform("torch"))]


def test_figures_of_step_multipliers_need_a_ladder_and_step_times_of_their_platform(tmp_path):
    model = TEXT["model"] | {"wrap": "sublayer"}
    config = config_with(a={**TEXT, "ladder": {"baseline": [2]}, "model": model})
    rung = next(cell for cell in config.cells() if cell.variant == "baseline_x200")

    def names(machine, cells, *runs, seconds=1.0):
        row = {"variant": "mhc", "seconds": seconds, "machine": machine, "width": 8}
        times = machine and step_times(tmp_path, row)
        known = config.model_copy(update={"step_times": times})
        (figures,) = places_of(known, cells, imported(*runs)).values()
        return {figure.name for figure in figures} & {"answer", "worth", "ladder"}

    assert names(CPU_PLATFORM, [], CELL) == set()
    assert names("another", [], CELL, rung) == {"worth", "ladder"}
    assert names(CPU_PLATFORM, [], CELL, rung) == {"answer", "worth", "ladder"}
    only_counted = names(CPU_PLATFORM, [], CELL, rung, seconds=math.nan)
    assert only_counted == {"worth", "ladder"}
    # A cell to train here is in a study whose whole ladder is trained, timed on this machine.
    assert names("", [CELL]) == {"worth", "ladder"}
    assert names("another", [CELL]) == {"answer", "worth", "ladder"}


def test_a_forecast_has_the_time_and_why_runs_are_trained_again(tmp_path):
    config = config_with(tmp_path)
    timed, *left = config.cells()
    folder = write_cell(config, timed, [3.0, 2.0, 1.0])
    manifest = read_manifest(folder)
    write_manifest(folder, {**manifest, "seconds": 60.0})
    plan = Plan(config, BOTH)
    alike = Run(timed, folder, "", "stale", "spec differs: steps 3 → 4", None)
    lines = [*plan.forecast([alike, alike], [plan.run(timed)], at_once=2)]
    seconds = 60 + startup_seconds(config.compute)
    time = format_duration(seconds)
    assert lines == [
        f"2 cells to train take about {time} with 2 at once, an estimate from 1 finished cell",
        "2 runs are not current and will be retrained: spec differs: steps 3 → 4 (2)",
    ]
    missing = [plan.run(cell) for cell in left]
    (line,) = plan.forecast(missing, [], at_once=1)
    assert line.startswith(f"{len(left)} cells to train take about ")
    assert line.endswith(", a guess from the size of the networks: nothing was timed here yet")


def test_is_resolved_compares_the_content_of_the_config_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_with(str(tmp_path))
    assert not is_resolved(config)
    shutil.copy(write_resolved(config), tmp_path / "config.json")
    assert json.loads((tmp_path / "config.json").read_text()) == config.resolved()
    assert is_resolved(config)
    assert not is_resolved(config.model_copy(update={"train": False}))


def test_reports_of_other_studies_are_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, two, other = (config_with(str(tmp_path), studies=s) for s in (("a",), ("a", "b"), ("c",)))
    check_folder(one)  # there is nothing yet
    shutil.copy(write_resolved(one), tmp_path / "config.json")
    check_folder(two)  # it was edited
    with pytest.raises(ConfigError, match=r"other studies \(a\)"):
        check_folder(other)


def test_a_document_without_its_package_is_left_out(monkeypatch):
    assert why_left_out("index.html") == ""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "typst" else name)
    assert why_left_out("index.html") == ""
    assert why_left_out("fathom.pdf").startswith("typst is not installed here: fathom.pdf is left")


def test_tables_of_a_kept_result_are_read_if_there_are_any(tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/verdicts.csv").write_text("")
    config = config_with().model_copy(update={"reference": str(tmp_path)})
    assert kept_tables(config) == [str(tmp_path / "tables/verdicts.csv")]
    assert kept_tables(config.model_copy(update={"reference": None})) == []


# --- what is left out, why a run is made again, and the shell code of jobs ------------------------


def test_the_three_most_frequent_reasons_are_named():
    assert summarize_reasons(["a", "b", "b"]) == (
        "3 runs are not current and will be retrained: b (2); a (1)"
    )
    line = summarize_reasons(["a", "b", "c", "d", "d"])
    assert line.startswith("5 runs are not current and will be retrained: d (2); a (1); b (1); ")
    assert "fathom status" in line
    assert "c (1)" not in line


def test_cells_without_data_or_backend_are_left_out_with_one_line(tmp_path):
    plain = config_with(studies=("a", "b"))
    both = {"torch", "mlx"}
    assert trainable(plain, both) == (list(plain.cells()), [])
    cells, (line,) = trainable(plain, {"torch"})
    assert {cell.backend for cell in cells} == {"torch"}
    left = len(plain.cells()) - len(cells)
    assert f"backend mlx is not installed here: {left} cells" in line

    data = {"studies": {"a": STUDY, "b": TEXT}, "compute": {"data": str(tmp_path)}}
    config = check_config(data)
    assert trainable(config, both)[1] == []
    folder = datasets.folder_of("shakespeare", str(tmp_path))
    folder.mkdir()
    (folder / datasets.UNAVAILABLE).write_text("nothing answered\n")
    cells, (line,) = trainable(config, both)
    assert {cell.study for cell in cells} == {"a"}
    assert str(folder / datasets.UNAVAILABLE) in line
    (folder / datasets.SUMS).write_text("")  # fetched since then
    assert trainable(config, both) == (list(config.cells()), [])
    imported_only = check_config({**data, "train": False})
    assert trainable(imported_only, set()) == ([], [])


def test_job_imports_its_own_fathom_first_and_reports_a_kill(tmp_path):
    source = tmp_path / "it's here"
    (source / "fathom_study").mkdir(parents=True)
    (source / "fathom_study/__main__.py").write_text(
        "import os, sys\n"
        "print(os.environ['PYTHONPATH'], os.environ['FATHOM_DATA'])\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    prefix = shell_prefix("python3", source, Compute(data="my data"))

    def run(status):
        return subprocess.run(
            ["bash", "-c", f"{prefix}fathom {status}"],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": "/mine"},
            capture_output=True,
            text=True,
            check=False,
        )

    failed, killed = run(1), run(137)
    assert (failed.returncode, killed.returncode) == (1, 137)
    assert failed.stdout == f"{source}:/mine my data\n"
    assert failed.stderr == ""
    assert killed.stderr.startswith("fathom: killed")
