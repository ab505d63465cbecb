"""Fetching and reading the Fashion-MNIST files, and refusal of wrong files.

Nothing is downloaded. Small generated files replace the official ones, a local server replaces
the official address, and two scripts replace apt-get and dpkg-deb.
"""

import functools
import hashlib
import http.server
import math
import shutil
import threading

import numpy as np
import pytest

from fathom_study.datasets import DataError, _fetching, folder_of
from fathom_study.datasets import fashion_mnist as data
from tests.support.commands import contents, refusal
from tests.support.datasets import put_idx, random_images

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = data.FILES


@pytest.fixture
def arrays():
    return random_images(6, 4)


@pytest.fixture
def official(tmp_path, monkeypatch, arrays):
    """Folder of small IDX files in place of the official ones; no source has them."""
    folder = tmp_path / "official"
    monkeypatch.setattr(data, "FILES", put_idx(folder, data.FILES, *arrays))
    monkeypatch.setattr(data, "OFFICIAL", "http://127.0.0.1:9/")  # no server listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("apt-get", "dpkg-deb"):
        script(programs / name, "echo E: no network >&2; exit 100")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return folder


def script(file, text):
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o700)


@pytest.fixture
def folder(tmp_path):
    """Folder to fetch the data set into."""
    return tmp_path / "data" / "fashion-mnist"


# --- sources --------------------------------------------------------------------------------------


@pytest.fixture
def server(official, monkeypatch):
    """Serve the small files from a local address."""
    serve = functools.partial(http.server.SimpleHTTPRequestHandler, directory=official)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(data, "OFFICIAL", f"http://127.0.0.1:{running.server_port}/")
        yield
        running.shutdown()
        thread.join()


@pytest.fixture
def debian(official, tmp_path):
    """Put the small files in a package, which apt-get knows once its lists are there."""
    script(
        tmp_path / "bin/apt-get",
        'if [ "$1" = update ]; then touch lists/known; else mv lists/known "$2_1_all.deb"; fi',
    )
    tree = f"tree/{data.PACKAGED}"
    script(tmp_path / "bin/dpkg-deb", f"mkdir -p {tree} && cp {official}/* {tree}")


SOURCES = ("official address ", "apt-get download ")
PLACES = dict(zip(("server", "debian"), SOURCES, strict=True))


@pytest.mark.parametrize("place", PLACES)
def test_missing_files_come_from_the_first_source_that_has_them(request, place, official, folder):
    request.getfixturevalue(place)
    folder.mkdir(parents=True)
    shutil.copyfile(official / TEST_LABELS, folder / TEST_LABELS)
    log = []
    data.fetch(folder, log.append)
    (line,) = log
    assert line.startswith(f"Fashion-MNIST: 4 files in {folder}, {PLACES[place]}")
    assert [start for start in SOURCES if start in line] == [PLACES[place]]
    data.fetch(folder, log.append)
    assert not [start for start in SOURCES if start in log[1]]
    files = contents(folder)
    listed = files.pop("SHA256SUMS").decode().splitlines()
    assert listed == [f"{digest}  {name}" for name, digest in data.FILES.items()]
    assert files == contents(official)
    assert (folder / TRAIN_IMAGES).stat().st_mode & 0o044  # others can read it


@pytest.mark.parametrize("place", PLACES)
def test_wrong_or_missing_files_of_a_source_are_not_used(request, place, official, folder):
    request.getfixturevalue(place)
    (official / TRAIN_LABELS).write_bytes(b"<html>Please log in</html>")
    (official / TEST_IMAGES).unlink()
    with pytest.raises(DataError, match="does not match the known hash"):
        data.fetch(folder, lambda line: None)
    assert set(contents(folder)) == {TRAIN_IMAGES}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_partially_written_files_are_removed(debian, official, folder, monkeypatch, error):
    whole = shutil.copyfile

    def break_off(source, target):
        if source.name != TRAIN_LABELS:
            return whole(source, target)
        data.Path(target).write_bytes(source.read_bytes()[:10])
        raise error

    monkeypatch.setattr(shutil, "copyfile", break_off)
    with pytest.raises(DataError if isinstance(error, OSError) else KeyboardInterrupt) as caught:
        data.fetch(folder, lambda line: None)
    assert contents(folder) == {TRAIN_IMAGES: (official / TRAIN_IMAGES).read_bytes()}
    assert isinstance(error, KeyboardInterrupt) or "No space left on device" in str(caught.value)


# --- the folder -----------------------------------------------------------------------------------


def test_wrong_user_files_are_refused_by_name_and_kept(official):
    for name in (TRAIN_IMAGES, TEST_LABELS):
        (official / name).write_bytes(b"mine")
    before = contents(official)
    with pytest.raises(DataError) as caught:
        data.fetch(official, lambda line: None)
    lines = str(caught.value).splitlines()
    for line, name in zip(lines, (TRAIN_IMAGES, TEST_LABELS), strict=True):
        assert line.startswith(f"{official / name}: not the official file (its SHA-256 is ")
    assert contents(official) == before
    for name in data.FILES:
        (official / name).unlink(missing_ok=True)
    official.rmdir()
    official.write_text("in the way")
    assert refusal(data.fetch, official / "x", print).startswith(
        f"{official / 'x'}: cannot be created"
    )


# --- reading --------------------------------------------------------------------------------------


def test_files_are_read_once_into_read_only_arrays(official, arrays):
    loaded = data.load(official)
    assert loaded._fields == ("train_images", "train_labels", "test_images", "test_labels")
    for read, written in zip(loaded, arrays, strict=True):
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, written)
        with pytest.raises(ValueError, match="read-only"):
            read[0] = 0
    shutil.rmtree(official)
    assert data.load(official) is loaded


def test_unreadable_files_are_refused_by_name_until_repaired(official, arrays):
    whole = (official / TEST_LABELS).read_bytes()
    (official / TEST_LABELS).unlink()
    said = f"{official}: lacks 1 of 4 files, such as {TEST_LABELS}; run: fathom fetch --data "
    assert refusal(data.load, official) == said + str(official.parent)
    (official / TEST_LABELS).mkdir()
    assert refusal(data.load, official).startswith(f"{official / TEST_LABELS}: unreadable (")
    (official / TEST_LABELS).rmdir()
    (official / TEST_LABELS).write_bytes(whole[:-1])
    said = refusal(data.load, official)
    assert said.startswith(f"{official / TEST_LABELS}: not the official file")
    assert data.FILES[TEST_LABELS][:12] in said
    (official / TEST_LABELS).write_bytes(whole)
    np.testing.assert_array_equal(data.load(official).test_labels, arrays[3])


def test_a_list_of_hashes_must_have_the_hash_in_the_code(tmp_path):
    """An edited list is refused, because the code holds the hash of the list."""
    (tmp_path / "list").write_text("ab  one_file.gz\n")
    digest = hashlib.sha256((tmp_path / "list").read_bytes()).hexdigest()
    assert _fetching.read_sums(tmp_path / "list", digest) == {"one_file.gz": "ab"}
    (tmp_path / "list").write_text("cd  one_file.gz\n")
    assert "not the official file" in refusal(_fetching.read_sums, tmp_path / "list", digest)


@pytest.mark.data
def test_the_official_set_has_the_published_shapes_counts_and_moments():
    folder = folder_of("fashion_mnist")
    if missing := [name for name in data.FILES if not (folder / name).exists()]:
        pytest.skip(f"{folder} has no {', '.join(missing)}; `fathom fetch` brings them")
    train_images, train_labels, test_images, test_labels = data.load(folder)
    assert (train_images.shape, test_images.shape) == ((60000, 28, 28), (10000, 28, 28))
    assert np.bincount(train_labels).tolist() == [6000] * 10
    assert np.bincount(test_labels).tolist() == [1000] * 10
    # Mean and standard deviation that the task normalises by.
    from fathom_study.tasks import fashion

    values, counts = np.arange(256) / 255, np.bincount(train_images.ravel(), minlength=256)
    mean = np.average(values, weights=counts)
    variance = np.average((values - mean) ** 2, weights=counts)
    assert round(mean, 4) == fashion.MEAN
    assert round(math.sqrt(variance), 4) == fashion.STD
