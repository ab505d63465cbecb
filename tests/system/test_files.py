"""Writing files: only files are replaced, and errors name the file. Locks of folders."""

import errno
import multiprocessing
import os
import socket
import time
from pathlib import Path

import pytest

from fathom.system.errors import UserError
from fathom_study.system.files import atomic_write, locked, write_text


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


KINDS = {"folder": Path.mkdir, "pipe": os.mkfifo, "socket": make_socket}


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_write_refuses_folders_pipes_and_sockets(tmp_path, monkeypatch, kind, is_linked):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path("x")
    KINDS[kind](path)
    if is_linked:
        (path := Path("link")).symlink_to("x")
    before = Path("x").stat()
    with pytest.raises(
        UserError, match=f"^{path}: is a {kind}, which is not replaced; name a file$"
    ):
        write_text(path, "new")
    assert Path("x").stat() == before
    assert {file.name for file in tmp_path.iterdir()} == {"x", str(path)}


def test_a_link_is_followed_to_its_file(tmp_path):
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there/file", tmp_path / "link"
    file.write_text("old", encoding="utf-8")
    link.symlink_to("second")
    (tmp_path / "second").symlink_to("there/file")
    write_text(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "second").is_symlink()
    assert file.read_text(encoding="utf-8") == "new"
    assert [each.name for each in file.parent.iterdir()] == ["file"]


def test_the_error_of_a_full_disk_names_the_file(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the source")
    with pytest.raises(OSError, match="No space left on device") as raised:  # noqa: SIM117
        with atomic_write(tmp_path / "table.csv"):
            raise full
    assert raised.value.filename == str(tmp_path / "table.csv")
    assert not list(tmp_path.iterdir())


# --- the lock of a folder ------------------------------------------------------------------------

TIMES = 40


def count_up(folder):
    for _ in range(TIMES):
        with locked(folder):
            counted = int((folder / "count").read_text("utf-8"))
            time.sleep(0.001)  # without a lock another process would read the same number
            (folder / "count").write_text(str(counted + 1), "utf-8")


def test_one_process_at_a_time_holds_the_lock_of_a_folder(tmp_path):
    """This holds for processes that waited for a lock file which its holder then deleted."""
    (tmp_path / "count").write_text("0", "utf-8")
    processes = [multiprocessing.Process(target=count_up, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (tmp_path / "count").read_text("utf-8") == str(len(processes) * TIMES)
    assert {file.name for file in tmp_path.iterdir()} == {"count"}
