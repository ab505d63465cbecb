"""The workflow shows imported runs that a replay repeats."""

import shutil

from fathom_study.runs.folder import read_manifest as manifest_of
from tests.support.commands import contents, shell
from tests.support.runs import change_code, read_csv, shift

STUDY = "depth-mlx/2L/mhc"
CONFIGS = "-c config.yaml -c .test/config/config.yaml -c grid.yaml"


def carry(results, backend):
    """Copy a run trained here to the imported runs, as made by other code."""
    made = results / "runs" / STUDY / backend / "seed0"
    carried = results / "imported" / manifest_of(made).platform / STUDY / backend / "seed0"
    shutil.copytree(made, carried)
    change_code(carried)
    return carried


def imported_cells(results):
    rows = [row for row in read_csv(results / "tables/cells.csv") if row["reason"]]
    return {row["backend"]: (row["status"], row["reason"]) for row in rows}


def rules(jobs):
    return {rule for rule, _ in jobs}


def replay(workflow):
    shell(f"fathom replay {CONFIGS}", workflow.folder)


def test_repeated_runs_are_shown_and_differing_runs_left_out(workflow, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(workflow.folder / "src"))  # `fathom` runs the copy's code
    results = workflow.folder / "results/smoke"
    carried = {backend: carry(results, backend) for backend in ("torch", "mlx")}
    shift(carried["mlx"], step=2, by=0.001)  # the last step that a replay repeats
    inputs = contents(results / "imported")
    platform = manifest_of(carried["torch"]).platform
    assert "2 imported runs of other code are left out" in workflow.smoke("-n", "report").stderr
    replay(workflow)
    plan = workflow.planned("report")
    assert {"run_tables", "reports", "figures_depth_mlx"} <= rules(plan)
    assert "train" not in rules(plan)

    workflow.smoke("report")
    cells = imported_cells(results)
    assert cells["torch"][0] == "imported"
    assert cells["torch"][1].endswith("; today's code repeats 3 steps of seed 0")
    assert cells["mlx"][0] == "stale"
    assert cells["mlx"][1].startswith("today's code does not repeat it; code differs: ")
    figures = results / "figures/depth-mlx"
    assert {f.name for f in figures.iterdir()} == {"torch", "mlx", f"torch-{platform}"}
    assert (figures / f"torch-{platform}/loss.png").exists()
    assert "today's code does not repeat it" in (results / "RESULTS.md").read_text()
    assert workflow.planned("report") == []
    assert contents(results / "imported") == inputs  # a replay writes nothing into a run

    # Replays that are gone leave the runs out; once they are back nothing has to be made.
    (kept := results / "replays/depth-mlx/torch.json").rename(results / "kept")
    assert "run_tables" in rules(workflow.planned("tables"))
    (results / "kept").rename(kept)
    assert workflow.planned("report") == []
