"""Runs trained in one folder, packed, and rendered in another that trains nothing."""

import os
import subprocess
import sys

import pandas as pd
import pytest

from reference_helpers import pixels_apart

pytestmark = pytest.mark.slow

CONFIG = ("config.yaml", ".test/config/config.yaml", "grid.yaml")
ALONE = ("--config", "train=false")


def fathom(workflow, *arguments):
    """A command of the copy, on the configs of its workflow."""
    options = [word for file in CONFIG for word in ("--config", file)]
    return subprocess.run(
        [sys.executable, "-m", "fathom", *arguments, *options],
        cwd=workflow.folder,
        env={**os.environ, "PYTHONPATH": str(workflow.folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def pack(workflow, pattern, other):
    """Pack runs of a workflow into the folder of another."""
    made = fathom(workflow, "bundle", "create", pattern, "-o", str(other.folder / "b.tar.xz"))
    assert made.returncode == 0, made.stderr


def rows(file):
    """Of a table as it is written, without what says where its numbers are from."""
    table = pd.read_csv(file, dtype=str, keep_default_na=False)
    return table.drop(columns=["platform", "machine", "status"], errors="ignore").to_dict("records")


def test_imported_runs_are_rendered_alone(finished, fresh):
    made = finished.folder / "results/smoke"
    # One study of two: the other is missing there.
    pack(finished, "depth-mlx/*", fresh)
    imported = fathom(fresh, "bundle", "import", "b.tar.xz")
    assert imported.stdout.splitlines()[-1].endswith("it renders only what was imported")
    assert "train" in {rule for rule, _ in fresh.planned("all")}

    plan = fresh.planned("all", *ALONE)
    assert not {"train", "fetch"} & {rule for rule, _ in plan}
    said = fresh.smoke("all", *ALONE).stderr
    assert "unavailable" not in said
    results = fresh.folder / "results/smoke"
    assert not (results / "runs").exists()
    assert fresh.planned("all", *ALONE) == []

    def carried(table):
        return [row for row in rows(made / "tables" / table) if row["study"] == "depth-mlx"]

    for table in ("studies/depth-mlx/steps.csv.gz", "summary.csv"):
        assert carried(table)
        assert rows(results / "tables" / table) == carried(table)

    def losses(cells):
        return {row["key"]: row["loss_final"] for row in cells if row["outcome"]}

    found = rows(results / "tables/cells.csv")
    assert losses(found) == losses(carried("cells.csv"))
    assert {row["study"] for row in found if not row["outcome"]} == {"depth-torch"}
    assert "nothing was trained" in (results / "RESULTS.md").read_text()
    pictures = sorted((made / "figures/depth-mlx/torch").glob("*.png"))
    (drawn,) = (results / "figures/depth-mlx").glob("torch-*")
    assert [p.name for p in sorted(drawn.glob("*.png"))] == [p.name for p in pictures]
    assert pixels_apart(pictures[0], drawn / pictures[0].name) < 0.05  # but for its title

    verified = fathom(fresh, "verify", "--set", "train=false")
    assert verified.returncode == 0, verified.stderr
    asked = "results/smoke/runs/depth-torch/2L/mhc/torch/seed0/metrics.jsonl"
    refused = fresh.snakemake("-n", asked, "--configfile", *CONFIG[1:], *ALONE)
    assert "fathom: the config says train: false, so no cell is trained here" in refused.stderr


def test_every_imported_run_is_replayed_on_request_and_nothing_is_changed(finished, fresh):
    pack(finished, "depth-torch/*", fresh)
    fathom(fresh, "bundle", "import", "b.tar.xz")
    before = sorted(fresh.folder.rglob("results/**/*"))
    replayed = fathom(fresh, "replay", "--all")
    assert replayed.returncode == 0, replayed.stderr
    *groups, total = replayed.stdout.splitlines()
    assert total == f"{len(groups)} agrees"
    assert {line.partition(": ")[2].partition(",")[0] for line in groups} == {
        f"depth-torch/2L/mhc/{backend}" for backend in ("mlx", "torch")
    }
    assert sorted(fresh.folder.rglob("results/**/*")) == before
