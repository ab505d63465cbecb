"""A full disk: a clear error, no partial files, and no loss of older files."""

import os
import shutil
import subprocess

import pytest

from fathom_study.config import installed_backends
from tests.faults.projects import quickest_backend, tiny_project
from tests.support.runs import ARRIVED

pytestmark = pytest.mark.skipif(not installed_backends(), reason="needs torch or mlx")

KIB = 1024
DISK = 512 * KIB
STEP = 80 * KIB


@pytest.fixture
def disk(tmp_path):
    """The folder of a small file system; skips if mounting fails."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("this system has no mount")
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk, free):
    """Fill the disk up to `free` bytes."""
    (disk / "ballast").unlink(missing_ok=True)
    status = os.statvfs(disk)
    size = status.f_bavail * status.f_frsize - free
    (disk / "ballast").write_bytes(bytes(max(size, 0)))


def assert_full(status, printed):
    """Check that a command failed on a full disk with one error line, and return the line."""
    assert status == 1, printed
    assert "Traceback" not in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("fathom: ")]
    assert "No space left on device" in line
    return line


def contents(folder):
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def half_written(folder):
    """Temporary files, which an error, unlike a kill, must not leave."""
    return list(folder.rglob("*.tmp"))


def project_of_two(folder, **changes):
    backends = [quickest_backend()]
    return tiny_project(folder, backends=backends, seeds=[0, 1], steps=100, **changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project in which one of two cells is trained."""
    project = project_of_two(tmp_path_factory.mktemp("made"))
    project.train_all("*/seed0")
    return project


@pytest.fixture
def trained(made, disk, tmp_path):
    """The same, with results on the small disk."""
    shutil.copytree(made.results, disk / "results")
    return project_of_two(tmp_path / "project", results=disk / "results")


def test_training_that_fills_the_disk_reports_it_and_spoils_nothing(trained, disk):
    """The free space grows, so that each file in turn is the first that does not fit."""
    first, second = trained.config.cells()
    earlier = contents(trained.cell_folder(first))
    too_small = 0
    for free in range(0, DISK, STEP):
        fill(disk, free)
        status, printed = trained.run("-m", "fathom_study", "train-all")
        if status == 0:
            break
        too_small += 1
        assert assert_full(status, printed).startswith(f"fathom: {second}: ")
        assert contents(trained.cell_folder(first)) == earlier
        assert trained.validate(first).status == "measured"
        assert trained.validate(second).status in ("failed", "missing")
        assert half_written(disk) == []
    else:
        pytest.fail("the training fits on no disk")
    print(f"\n{too_small} disks too small, the last with {(free - STEP) // KIB} KiB")
    assert too_small >= 3
    assert trained.validate(second).status == "measured"
    assert {file.name for file in trained.cell_folder(second).iterdir()} == ARRIVED

    # Training resumed after every failure gives the numbers of an uninterrupted training.
    in_pieces = trained.numbers(second)
    shutil.rmtree(trained.cell_folder(second))
    (disk / "ballast").unlink()
    trained.train_all()
    assert trained.numbers(second) == in_pieces


def test_an_import_that_does_not_fit_leaves_nothing(trained, disk, tmp_path):
    bundle = str(tmp_path / "b.tar.xz")
    assert trained.run("-m", "fathom_study", "bundle", "create", "-o", bundle)[0] == 0
    fill(disk, 20 * KIB)
    before = contents(disk)
    assert_full(*trained.run("-m", "fathom_study", "bundle", "import", bundle))
    assert contents(disk) == before
    assert not any((disk / "results/imported").rglob("*"))

    (disk / "ballast").unlink()
    assert trained.run("-m", "fathom_study", "bundle", "import", bundle)[0] == 0
