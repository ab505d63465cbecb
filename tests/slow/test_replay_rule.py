"""The workflow replays imported runs, and goes on with those that agree."""

import json
import shutil

from fathom_study.runs.folder import read_manifest as manifest_of
from tests.support.commands import shell
from tests.support.runs import read_csv, read_manifest, seal, write_manifest

STUDY = "depth-mlx/2L/mhc"
CONFIGS = "-c config.yaml -c .test/config/config.yaml -c grid.yaml"


def carry(results, backend):
    """Copy a run trained here to the imported runs, as made by other code."""
    made = results / "runs" / STUDY / backend / "seed0"
    carried = results / "imported" / manifest_of(made).platform / STUDY / backend / "seed0"
    shutil.copytree(made, carried)
    manifest = read_manifest(carried)
    manifest["code"]["fathom_study.train:train"] = "0" * 16
    write_manifest(carried, manifest)
    return carried


def falsify(run):
    """Add a thousandth to the loss of the last step that a replay repeats."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[2]["loss"] += 0.001
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal(run)


def imported_cells(results):
    rows = [row for row in read_csv(results / "tables/cells.csv") if row["reason"]]
    return {row["backend"]: (row["status"], row["reason"]) for row in rows}


def rules(jobs):
    return {rule for rule, _ in jobs}


def replays(jobs):
    return [output for rule, output in jobs if rule == "replay_runs"]


def test_repeated_runs_are_shown_and_differing_runs_left_out(workflow):
    results = workflow.folder / "results/smoke"
    carried = {backend: carry(results, backend) for backend in ("torch", "mlx")}
    falsify(carried["mlx"])
    platform = manifest_of(carried["torch"]).platform
    plan = workflow.planned("report")
    assert replays(plan) == ["replay/depth-mlx/mlx.txt", "replay/depth-mlx/torch.txt"]
    assert {"run_tables", "reports"} <= rules(plan)
    assert "train" not in rules(plan)

    said = workflow.smoke("report").stderr
    numbered = [line.partition("]")[0] for line in said.splitlines() if line.startswith("[")]
    assert numbered[-1] == f"[{len(numbered)}/{len(numbered)}"
    assert "checkpoint" not in said
    found = imported_cells(results)
    assert found["torch"][0] == "imported"
    assert found["torch"][1].endswith("; today's code repeats 3 steps of seed 0")
    assert found["mlx"][0] == "stale"
    assert found["mlx"][1].startswith("today's code does not repeat it; code differs: ")
    figures = results / "figures/depth-mlx"
    assert {f.name for f in figures.iterdir()} == {"torch", "mlx", f"torch-{platform}"}
    assert (figures / f"torch-{platform}/loss.png").exists()
    assert "today's code does not repeat it" in (results / "RESULTS.md").read_text()
    assert workflow.planned("report") == []

    # A verdict that is gone is made again, and so are the tables that were made without it.
    (carried["torch"] / "verdict.json").unlink()
    (results / "tables/cells.csv").unlink()
    shell(f"fathom tables {CONFIGS}", workflow.folder)
    assert imported_cells(results)["torch"][0] == "stale"
    workflow.smoke("tables")
    assert imported_cells(results)["torch"][0] == "imported"
    assert workflow.planned("tables") == []

    # An edit of code that the runs use makes their replays void.
    file = "src/fathom/connections/constraints.py"
    workflow.edit(file, "else bounded", "else 2 * bounded")
    plan = workflow.planned("replay")
    assert replays(plan) == ["replay/depth-mlx/mlx.txt", "replay/depth-mlx/torch.txt"]
    assert "train" not in rules(plan)
    workflow.smoke("replay")
    verdict = json.loads((carried["torch"] / "verdict.json").read_text())
    assert verdict["replay"]["outcome"] == "differs"
    assert "today's code does not repeat it" in (results / "replay/depth-mlx/torch.txt").read_text()
