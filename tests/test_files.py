"""Writing files: nothing but a file is replaced, and an error names the file."""

import errno
import os
import socket
from pathlib import Path

import pytest

from fathom.system.errors import UserError
from fathom.system.files import atomic_write, write_text


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


KINDS = {"folder": Path.mkdir, "pipe": os.mkfifo, "socket": make_socket}


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_not_replaced(tmp_path, monkeypatch, kind, is_linked):
    monkeypatch.chdir(tmp_path)  # the name of a socket may not be long
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


def test_a_full_disk_names_the_file(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the source")
    with pytest.raises(OSError, match="No space left on device") as raised:  # noqa: SIM117
        with atomic_write(tmp_path / "table.csv"):
            raise full
    assert raised.value.filename == str(tmp_path / "table.csv")
    assert not list(tmp_path.iterdir())
