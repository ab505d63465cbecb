"""Makefile: files that `clean` keeps."""

import re
import shutil
import subprocess

import pytest

from tests.support.project import PROJECT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


@pytest.fixture(autouse=True)
def _outside_of_make(monkeypatch):
    """`make test` hands its options to every make below it."""
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        monkeypatch.delenv(name, raising=False)


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


# --- reference ---------------------------------------------------------------------------------

COUNTED = """\
#!/bin/sh
# Kills every process of this make at its call number $KILL_AT, and else does the work.
calls=$(($(cat "$CALLS") + 1))
echo $calls > "$CALLS"
[ $calls != "$KILL_AT" ] || kill -9 0
name=$(basename "$0")
case "$name $1" in
  "snakemake report") mkdir -p results/reference/tables && echo new > results/reference/tables/a
    echo new > results/reference/RESULTS.md ;;
  "python benchmarks/record.py") echo new > results/reference/SHA256SUMS ;;
  mv* | rm*) PATH=${PATH#*:} exec "$name" "$@" ;;
esac
"""
FORMER = {"tables/a": "old", "tables/gone": "old", "RESULTS.md": "old", "SHA256SUMS": "old"}
RENDERED = {"tables/a": "new", "RESULTS.md": "new", "SHA256SUMS": "new"}


@pytest.fixture
def rendering(make, tmp_path, monkeypatch):
    """Function that starts `make TARGET`, killed at a call of a command; whether it ended."""
    for name in (".venv/bin/snakemake", ".venv/bin/fathom", ".venv/bin/python", "bin/mv", "bin/rm"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(COUNTED, encoding="utf-8")
        file.chmod(0o755)
    (tmp_path / ".venv/.complete").touch()
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def run(target, kill_at=0):
        (tmp_path / "calls").write_text("0")
        monkeypatch.setenv("KILL_AT", str(kill_at))
        done = subprocess.run(
            ["make", target], cwd=tmp_path, capture_output=True, start_new_session=True, check=False
        )
        return done.returncode == 0

    return run


def test_a_reference_killed_at_any_moment_is_the_former_or_the_new_one(rendering, tmp_path):
    folder = tmp_path / "results/reference"

    def former():
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        for name, text in FORMER.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text}\n")

    def contents():
        files = (file for file in folder.rglob("*") if file.is_file())
        return {str(file.relative_to(folder)): file.read_text().strip() for file in files}

    for call in range(1, 40):
        former()
        ended = rendering("reference", call)
        at_first = int((tmp_path / "calls").read_text())
        for again in (call % 4, 0):  # the next start may be killed too
            rendering("test", again)
        assert contents() in ([RENDERED] if ended else [FORMER, RENDERED])
        assert not (tmp_path / "results/.reference").exists()
        if ended:
            break
    assert ended
    assert at_first > 8
    former()
    rendering("reference", 9)
    assert rendering("reference")
    assert contents() == RENDERED


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
