"""Makefile: files that `clean` keeps, and a rendering of the reference that was killed."""

import os
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


# --- reference -----------------------------------------------------------------------------------

COMMAND = """\
#!/bin/sh
# Renders the reference in place of every command, and kills its make at the command $KILL_AT.
case "$1" in
  report) mkdir results/reference/tables && echo new | tee results/reference/tables/a \\
    > results/reference/RESULTS.md ;;
  benchmarks/record.py) echo new > results/reference/SHA256SUMS ;;
esac
[ "$1" != "$KILL_AT" ] || kill -9 0
"""
NAMES = ("tables/a", "RESULTS.md", "SHA256SUMS")


@pytest.mark.parametrize("kill_at", ["bundle", "replay", "report", "benchmarks/record.py"])
def test_the_next_make_puts_the_reference_back_if_its_rendering_was_killed(tmp_path, kill_at):
    folder, programs = tmp_path / "results/reference", tmp_path / ".venv/bin"
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(PROJECT / name, tmp_path)
    programs.mkdir(parents=True)
    for name in ("snakemake", "fathom", "python"):
        (programs / name).write_text(COMMAND, encoding="utf-8")
        (programs / name).chmod(0o755)
    (tmp_path / ".venv/.complete").touch()
    (folder / "tables").mkdir(parents=True)
    for name in NAMES:
        (folder / name).write_text("old\n", encoding="utf-8")

    def make(target, kill_at=""):
        """(whether it ended, content of the reference); `make test` hands down its options."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(
            ["make", target], cwd=tmp_path, env={**own, "KILL_AT": kill_at}, capture_output=True,
            start_new_session=True, check=False,
        )  # fmt: skip
        files = (file for file in folder.rglob("*") if file.is_file())
        return done.returncode == 0, {str(f.relative_to(folder)): f.read_text() for f in files}

    ended, _ = make("reference", kill_at)
    assert not ended
    assert make("test") == (True, dict.fromkeys(NAMES, "old\n"))
    assert not (tmp_path / "results/.reference").exists()
    assert make("reference") == (True, dict.fromkeys(NAMES, "new\n"))
