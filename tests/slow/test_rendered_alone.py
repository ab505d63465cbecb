"""Runs trained in one folder, packed, and rendered in another that trains nothing.

test_reference covers reports and pictures of imported runs alone.
"""

import sys

from tests.support.commands import finished as ended
from tests.support.runs import read_csv

CONFIG = ("config.yaml", ".test/config/config.yaml", "grid.yaml")
ALONE = ("--config", "train=false")


def fathom(workflow, *arguments):
    """Lines printed by a command of the copy on its workflow's configs; it must not fail."""
    options = [word for file in CONFIG for word in ("--config", file)]
    command = (sys.executable, "-m", "fathom_study", *arguments, *options)
    done = ended(*command, folder=workflow.folder, PYTHONPATH=str(workflow.folder / "src"))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def rows(file):
    """Rows of the imported study, without the columns that name their origin."""
    places = ("platform", "machine", "status")
    return [
        {name: value for name, value in row.items() if name not in places}
        for row in read_csv(file)
        if row["study"] == "depth-mlx"
    ]


def test_imported_runs_are_tabulated_alone(finished, fresh):
    """One study of two is imported; the other is missing."""
    fathom(finished, "bundle", "create", "depth-mlx/*", "-o", str(fresh.folder / "b.tar.xz"))
    fathom(fresh, "bundle", "import", "b.tar.xz")
    assert fathom(fresh, "replay")[-1].endswith(" agrees")
    assert "train" in {rule for rule, _ in fresh.planned("all")}
    assert not {"train", "fetch"} & {rule for rule, _ in fresh.planned("all", *ALONE)}
    assert "unavailable" not in fresh.smoke("tables", *ALONE).stderr
    results, made = (w.folder / "results/smoke" for w in (fresh, finished))
    assert not (results / "runs").exists()
    assert fresh.planned("tables", *ALONE) == []
    for table in ("studies/depth-mlx/steps.csv.gz", "summary.csv"):
        assert rows(made / "tables" / table)
        assert rows(results / "tables" / table) == rows(made / "tables" / table)
    cells = read_csv(results / "tables/cells.csv")
    assert {row["study"] for row in cells if not row["outcome"]} == {"depth-torch"}
