"""What docs/artifact.md says of an archive, on the results of the real workflow."""

import json
import shutil

import pytest

from conftest import SMOKE as WITH_SMOKE
from grid_helpers import PROJECT
from test_artifact import commands, shell

pytest.importorskip("rocrate")

pytestmark = pytest.mark.slow

OF_THE_PROJECT = ("CITATION.cff", "LICENSE", "README.md", "docs", "tests")
SMOKE = " ".join(
    f"--config {file}" for file in ("config.yaml", "workflow/presets/smoke.yaml", "grid.yaml")
)


def on_the_grid(block):
    """The commands of the page, on the small config that was run here."""
    return "\n".join(f"{line} {SMOKE}" for line in block.splitlines())


def test_the_archive_is_a_project_in_which_everything_is_verified(workflow):
    for name in OF_THE_PROJECT:
        source = PROJECT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, workflow.folder / name)
    made = workflow.snakemake("page", *WITH_SMOKE)  # it has the documents of docs too
    assert made.returncode == 0, made.stderr
    said = shell(on_the_grid(commands("export")), workflow.folder)
    assert ", 10 runs" in said
    archive = workflow.folder / "archive"
    graph = json.loads((archive / "ro-crate-metadata.json").read_text())["@graph"]
    assert sum(entity["@type"] == "CreateAction" for entity in graph) == 10 + 1
    assert {entity["name"] for entity in graph if entity["@type"] == "SoftwareApplication"} >= {
        "torch", "mlx", "numpy", "python", "snakemake",
    }  # fmt: skip
    shutil.copy(workflow.folder / "grid.yaml", archive)
    verified = shell(f"fathom verify {SMOKE}", archive)
    assert verified.startswith("verified: 10 runs")
    deposit = json.loads((workflow.folder / ".zenodo.json").read_text())
    assert deposit["title"] == "fathom"
