"""`fathom contribute`: its commands as the page gives them, at a tiny scale, and their output."""

import shutil

import pytest
import yaml

from command_helpers import exit_status
from fathom.config import installed_backends
from run_helpers import TINY

PRESET = "workflow/presets/reference.yaml"
PATTERN = "depth-torch/12L/mhc/torch/*"
STUDY = {**TINY, "depths": [12], "backends": ["torch"], "seeds": [0, 1, 2]}

pytestmark = pytest.mark.skipif("torch" not in installed_backends(), reason="torch is missing")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project with a tiny study and a tiny reference, and the current folder."""
    files = {
        "config.yaml": {"studies": {"depth-torch": STUDY}, "compute": {"device": "cpu"}},
        PRESET: {"results": "results/reference", "studies": {"depth-torch": {"steps": 10}}},
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(yaml.safe_dump(data), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fathom(capfd):
    """A function that runs a command here: (exit status, lines of both outputs)."""

    def run(*arguments):
        status = exit_status(arguments)
        printed = capfd.readouterr()
        return status, [*printed.err.splitlines(), *printed.out.splitlines()]

    return run


@pytest.mark.slow
def test_the_same_command_again_goes_on_where_it_was(folder, fathom):
    fathom("contribute", PATTERN, "--out", "mine.tar.xz")
    kept = folder / "results/reference/runs/depth-torch/12L/mhc/torch/seed1/manifest.json"
    before = kept.stat().st_mtime_ns
    shutil.rmtree(folder / "results/reference/runs/depth-torch/12L/mhc/torch/seed0")
    status, printed = fathom("contribute", PATTERN, "--out", "mine.tar.xz")
    assert status == 0
    assert "1 cells to train; timing a few steps of the longest" in printed
    assert kept.stat().st_mtime_ns == before
    assert any(line.startswith("mine.tar.xz: 3 runs, ") for line in printed)

    status, printed = fathom("contribute", PATTERN, "--out", "mine.tar.xz")
    assert status == 0
    assert printed[0] == "fathom: nothing to be done: every chosen cell is trained"
    assert any("counts: " in line for line in printed)
    status, printed = fathom("bundle", "check", "mine.tar.xz", "-c", "config.yaml", "-c", PRESET)
    assert status == 0
    assert any("counts: " in line for line in printed)


REFUSED = {
    "": "--out FILE.tar.xz is missing: the bundle to write (or --estimate)",
    "--out none/b.tar.xz": "--out none/b.tar.xz: there is no folder none",
    "dept-torch/* --out b.tar.xz": "no cell matches 'dept-torch/*'; a pattern is like ",
    "--out config.yaml": "config.yaml: is there and is no bundle; name another file",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_a_mistake_is_one_line_before_anything_is_trained(folder, fathom, arguments):
    before = (folder / "config.yaml").read_bytes()
    status, (line,) = fathom("contribute", PATTERN, *arguments.split())
    assert (status, line.startswith(f"fathom: {REFUSED[arguments]}")) == (1, True)
    assert (folder / "config.yaml").read_bytes() == before
    assert not (folder / "results").exists()
