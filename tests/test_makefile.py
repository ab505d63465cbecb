"""Makefile: arguments that `setup` passes to pip, and files that `clean` keeps."""

import re
import shutil
import subprocess

import pytest

from grid_helpers import PROJECT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


@pytest.fixture
def make(tmp_path):
    """Function that runs make in a folder with the Makefile and its inputs; returns its output."""
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(PROJECT / name, tmp_path)

    def run(*arguments):
        done = subprocess.run(
            ["make", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_help_lists_each_target_apart_from_its_purpose(make):
    targets = set(re.findall(r"^([a-z-]+):.*## ", (PROJECT / "Makefile").read_text(), re.M))
    lines = make("help").splitlines()
    assert {re.split(r"\s{2,}", line)[0] for line in lines} == targets


# --- setup ---------------------------------------------------------------------------------------

PYTHON = """\
#!/bin/sh
# Stands for Python: makes an environment whose Python is itself, and says what pip is given.
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip "*) shift 2; echo "pip $*" ;;
esac
"""


@pytest.fixture
def python(tmp_path):
    file = tmp_path / "python"
    file.write_text(PYTHON, encoding="utf-8")
    file.chmod(0o755)
    return file


def test_setup_passes_arguments_to_pip(make, python):
    lines = make("setup", f"PYTHON={python}", "PIP_ARGS=--extra-index-url URL").splitlines()
    calls = [line for line in lines if line.startswith("pip ")]
    assert len(calls) == 2
    assert all("--extra-index-url URL" in call for call in calls)


def test_setup_skips_a_complete_environment(make, python):
    make("setup", f"PYTHON={python}")
    assert "pip" not in make("setup", f"PYTHON={python}")


# --- clean ---------------------------------------------------------------------------------------

RESULTS = ("results", "results/smoke", "results/paper")
CARRIED = [
    *(f"{folder}/imported/cuda/depth/4L/mhc/torch/seed0/manifest.json" for folder in RESULTS),
    *(f"results/reference/{name}" for name in ("bundles/gpu.tar.xz", "tables/a", "RESULTS.md")),
    "config.yaml", "data/fashion-mnist/SHA256SUMS",
]  # fmt: skip
FOLDERS = ("runs", "cuts", "tables", "figures", "logs", "benchmarks", "studies", "replay")
FILES = ("RESULTS.md", "config.json", "index.html", "fathom.pdf")
MADE = [
    *(f"{folder}/{name}/a" for folder in RESULTS for name in FOLDERS),
    *(f"{folder}/{name}" for folder in RESULTS for name in FILES),
    "results/compare/comparison.png", ".snakemake/log/a.log", "report.html", "report.zip",
]  # fmt: skip


def test_clean_deletes_generated_files_and_keeps_inputs_and_imports(make, tmp_path):
    for name in [*CARRIED, *MADE]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("", encoding="utf-8")
    make("clean")
    left = {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()}
    assert left == {*CARRIED, "Makefile", "requirements.txt", "pyproject.toml"}
    assert not (tmp_path / "results/compare").exists()
