"""Makefile: files that `clean` keeps."""

import shutil
import subprocess

import pytest

from tests.support.project import PROJECT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


# --- clean ---------------------------------------------------------------------------------------

RESULTS = ("results", "results/smoke", "results/paper")
CARRIED = [
    *(f"{folder}/imported/cuda/depth/4L/mhc/torch/seed0/manifest.json" for folder in RESULTS),
    *(f"results/reference/{name}" for name in ("bundles/gpu.tar.xz", "tables/a", "RESULTS.md")),
    "config.yaml", "data/fashion-mnist/SHA256SUMS",
]  # fmt: skip
FOLDERS = ("runs", "cuts", "tables", "figures", "logs", "benchmarks", "studies", "replays")
FILES = ("RESULTS.md", "config.json", "index.html", "fathom.pdf")
MADE = [
    *(f"{folder}/{name}/a" for folder in RESULTS for name in FOLDERS),
    *(f"{folder}/{name}" for folder in RESULTS for name in FILES),
    "results/compare/comparison.png", ".snakemake/log/a.log", "report.html", "report.zip",
]  # fmt: skip


def test_clean_deletes_generated_files_and_keeps_inputs_and_imports(tmp_path):
    shutil.copy(PROJECT / "Makefile", tmp_path)
    for name in [*CARRIED, *MADE]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("", encoding="utf-8")
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    left = {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()}
    assert left == {*CARRIED, "Makefile"}
    assert not (tmp_path / "results/compare").exists()
