"""The second corpus: which modules of the archive become texts."""

import pytest

from fathom_study.datasets import DataError, _fetching, python_sources
from fathom_study.datasets.shakespeare import own
from fathom_study.system.files import sha256
from tests.support.datasets import put_archive

MEMBERS = {
    "django/__init__.py": "a = 1\n",
    "django/db/models.py": "b = 2\n",
    "django/db/copy.py": "b = 2\n",
    "django/empty.py": "",
    "django/words.py": "c = 'ä'\n",
    "django/page.html": "<p>",
    "tests/test_db.py": "d = 3\n",
}


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """An archive with MEMBERS, which pip would download."""
    file = tmp_path / "index" / python_sources.ARCHIVE
    put_archive(file, {f"{python_sources.ROOT}/{n}": text.encode() for n, text in MEMBERS.items()})
    monkeypatch.setattr(python_sources, "ARCHIVE_SHA256", sha256(file))
    monkeypatch.setattr(_fetching, "download_by_pip", lambda *_: _fetching.copy_from(file.parent))
    return file


def test_modules_are_texts_without_copies_and_others(tmp_path, archive):
    folder, lines = tmp_path / "texts", []
    python_sources.fetch(folder, lines.append)
    texts = {file.name: file.read_text() for file in folder.glob("*.txt")}
    assert texts == {"django.__init__.txt": "a = 1\n", "django.db.models.txt": "b = 2\n"}
    assert own(folder).characters == "\n 12=ab"
    (folder / "django.__init__.txt").write_text("edited")
    archive.unlink()
    python_sources.fetch(folder, lines.append)  # from the copy that it keeps
    assert (folder / "django.__init__.txt").read_text() == "a = 1\n"
    assert [line.rpartition(", ")[2] for line in lines] == [
        "pip download Django==5.2",
        "already there",
    ]


def test_another_archive_is_refused(tmp_path, archive):
    archive.write_bytes(b"another")
    with pytest.raises(DataError, match="Python sources is unavailable here"):
        python_sources.fetch(tmp_path / "texts", print)
    assert not list((tmp_path / "texts").glob("*.txt"))
