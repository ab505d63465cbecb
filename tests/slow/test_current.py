"""All programs agree on which runs are current."""

import json
import os
import shutil
import sys
from dataclasses import astuple
from pathlib import Path

import pytest

from fathom_study import cli
from fathom_study.analysis.claims import load_published
from fathom_study.analysis.run_tables import write_tables
from fathom_study.config import Cell, load_config
from fathom_study.report.integrity.verify import verify
from fathom_study.runs import folder as runs
from fathom_study.runs.status import status_of
from tests.support.commands import shell
from tests.support.runs import change_code, read_csv, shift
from tests.workflow.conftest import SMOKE, own_lines

FILES = ("config.yaml", *SMOKE[1:])
OPTIONS = [word for name in FILES for word in ("-c", name)]
AXES = ("depth", "variant", "backend", "seed")


def run_of(cell):
    return Path("results/smoke/runs") / cell


def train(cell, *options):
    """Run `fathom train` for a cell."""
    study, *values = astuple(Cell.parse(cell))
    axes = [f"--{axis}={v}" for axis, v in zip(AXES, values, strict=True)]
    cli.main(["train", study, *axes, *OPTIONS, *options])


# --- situations: changes to a run of a finished `snakemake all` ----------------------------------


def nothing(cell):
    pass


def never_trained(cell):
    shutil.rmtree(run_of(cell))


def another_spec_by_hand(cell):
    train(cell, "--set", f"studies.{cell.partition('/')[0]}.optimizer.lr=0.5", "--replace")


def trained_again_by_hand(cell):
    train(cell, "--replace")


def other_code(cell):
    change_code(run_of(cell))


def truncated_with_its_old_time(cell):
    file = run_of(cell) / "metrics.jsonl"
    before = file.stat()
    file.write_bytes(file.read_bytes()[:-200])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def touched(cell):
    for file in run_of(cell).iterdir():
        os.utime(file, (1, 1) if file.name == "spec.json" else None)


def killed_half_way(cell):
    (run_of(cell) / "manifest.json").unlink()
    (run_of(cell) / ".partial").mkdir()


def as_imported(cell):
    """Move the run to the imported ones of its platform; none is left here."""
    platform = runs.read_manifest(run_of(cell)).platform
    target = Path("results/smoke/imported", platform, cell)
    target.parent.mkdir(parents=True)
    run_of(cell).rename(target)
    return target


def imported_and_not_repeated(cell):
    """Import the run with another first loss, which today's code does not repeat."""
    shift(as_imported(cell), step=0, by=0.1)
    cli.main(["replay", *OPTIONS])


SITUATIONS = {
    "depth-mlx/2L/hc/mlx/seed0": (nothing, "measured"),
    "depth-mlx/2L/hc/torch/seed0": (never_trained, "missing"),
    "depth-mlx/2L/mhc/mlx/seed0": (another_spec_by_hand, "stale"),
    "depth-mlx/2L/mhc/torch/seed0": (trained_again_by_hand, "measured"),
    "depth-mlx/3L/hc/mlx/seed0": (other_code, "stale"),
    "depth-mlx/3L/hc/torch/seed0": (truncated_with_its_old_time, "corrupt"),
    "depth-mlx/3L/mhc/mlx/seed0": (touched, "measured"),
    "depth-mlx/3L/mhc/torch/seed0": (killed_half_way, "failed"),
    "depth-torch/2L/mhc/mlx/seed0": (as_imported, "imported"),
    "depth-torch/2L/mhc/torch/seed0": (imported_and_not_repeated, "stale"),
}
"""By cell: the change to its run, and the status after it. Runs that are neither measured nor
imported do not count; cells that are not measured are trained here."""

CURRENT = {cell for cell, (_, status) in SITUATIONS.items() if status == "measured"}


@pytest.fixture
def here(workflow, monkeypatch):
    monkeypatch.chdir(workflow.folder)
    monkeypatch.setenv("PYTHONPATH", str(workflow.folder / "src"))
    return workflow


def to_train(workflow):
    """Cells to train, by the program that is asked."""
    status = json.loads(shell(f"fathom status --json {' '.join(OPTIONS)}", workflow.folder))
    trained = [cell for rule, cell in workflow.planned("all") if rule == "train"]
    program = (
        "from fathom_study.config import load_config;"
        "from fathom_study.runs.train_all import specs_left;"
        f"print(*(spec.cell for spec in specs_left(load_config({FILES}), ())))"
    )
    return {
        "status": set(status["left"]),
        "train-all": set(shell(f'{sys.executable} -c "{program}"', workflow.folder).split()),
        "snakemake": set(trained),
    }


def left_out():
    """Status of runs that do not count, by the program that is asked, then by folder."""
    config = load_config(FILES)
    published = load_published(Path("report/published.yaml"), config)
    checks = verify(config, published, Path("report/templates")).checks
    problems = {check.path: check.problem.partition(":")[0] for check in checks if check.problem}
    listed = [run for run in status_of(config).runs if run.status != "missing"]
    return {
        "status": {run.folder: run.status for run in listed if not run.counts},
        "verify": {
            path: status for path, status in problems.items() if (path / "spec.json").exists()
        },
    }


def tree(folder):
    """(time, content) of every file, except those that Snakemake and Python keep."""
    own = (".snakemake", "__pycache__")
    files = [f for f in folder.rglob("*") if f.is_file() and not set(f.parts) & set(own)]
    return {f: (f.stat().st_mtime_ns, f.read_bytes()) for f in files}


def everyone(cells):
    return {name: set(cells) for name in ("status", "train-all", "snakemake")}


def test_all_programs_agree_on_current_runs(here):
    for cell, (befall, _) in SITUATIONS.items():
        befall(cell)
    before = tree(here.folder)
    assert to_train(here) == everyone(SITUATIONS.keys() - CURRENT)
    out = left_out()
    assert out["verify"] == out["status"]
    unfit = [s for _, s in SITUATIONS.values() if s not in ("measured", "imported", "missing")]
    assert sorted(out["status"].values()) == sorted(unfit)
    assert tree(here.folder) == before  # asking changes nothing

    # Tables name only the damaged run; without it they take the runs that count.
    config, damaged = load_config(FILES), run_of("depth-mlx/3L/hc/torch/seed0")
    with pytest.raises(runs.RunError) as refused:
        write_tables(config, Path("tables"))
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == [str(damaged)]
    kept = damaged.rename("kept")
    write_tables(config, Path("tables"))
    kept.rename(damaged)
    for row in read_csv(Path("tables/cells.csv")):
        cell = f"{row['study']}/{row['depth']}L/{row['variant']}/{row['backend']}/seed{row['seed']}"
        _, status = SITUATIONS[cell]
        assert row["status"] == ("missing" if status == "corrupt" else status), cell

    # The announced cells are trained, and none is left.
    said = here.smoke("all").stderr
    (line,) = [line for line in said.splitlines() if "are not current" in line]
    assert line.startswith("3 runs are not current and will be retrained: ")
    for reason in ("optimizer.lr 0.5 → ", "fathom_study.train:train", "corrupt: metrics.jsonl"):
        assert reason in line
    assert to_train(here) == everyone([])


@pytest.mark.parametrize(
    ("name", "target"),
    [("spec.json", "tables"), ("mixing.safetensors", "figures"), ("manifest.json", "report"),
     (".", "page")],
)  # fmt: skip
def test_a_run_that_lost_a_file_or_all_is_trained_again_for_any_target(here, name, target):
    """No target but `all` requests these files, and its tables are there."""
    cell = "depth-mlx/2L/mhc/torch/seed0"
    lost = run_of(cell) / name
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    assert {name for rule, name in here.planned(target) if rule == "train"} == {cell}


def test_reports_of_another_config_are_not_replaced(here):
    """A config with other studies needs another `results:` folder."""
    study = """  mine: {task: tokens, recipe: torch-defaults, variants: [baseline, mhc],
    depths: [2], seeds: [0], backends: [torch], steps: 4, batch_size: 2, optimizer: {lr: 0.01},
    model: {vocab: 16, length: 4, width: 8, heads: 2, hidden: 16}}
"""
    (here.folder / "mine.yaml").write_text(f"results: results/smoke\nstudies:\n{study}")
    own = ("--replace-workflow-config", "--configfile", "mine.yaml")
    before = tree(here.folder)
    result = here.snakemake("all", *own)
    assert result.returncode == 1
    (line,) = own_lines(result)
    assert line.startswith("fathom: results/smoke/config.json: belongs to a config with other ")
    assert "results: results/smoke/NAME" in line
    for command in ("tables", "claims", "report", "page", "paper"):
        with pytest.raises(SystemExit, match="1"):
            cli.main([command, "-c", "mine.yaml"])
    assert tree(here.folder) == before
