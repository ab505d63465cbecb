"""Fashion-MNIST's files: how they are fetched, and what is refused.

Nothing is downloaded: small files of our own stand in for the official ones, a server on this
machine for the official address, and two scripts for apt-get and dpkg-deb.
"""

import gzip
import hashlib
import http.server
import math
import shutil
import socket
import stat
import struct
import sys
import threading
import time

import numpy as np
import pytest

from fathom import datasets
from fathom.datasets import DataError, _fetching
from fathom.datasets import fashion_mnist as data
from fathom.datasets._fetching import Unavailable
from fetching_helpers import contents, refusal

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = data.FILES

OTHERS = {  # for each file, one that is not the same
    TRAIN_IMAGES: TEST_IMAGES,
    TRAIN_LABELS: TEST_LABELS,
    TEST_IMAGES: TRAIN_IMAGES,
    TEST_LABELS: TRAIN_LABELS,
}


def idx(array, magic=None):
    """An array of bytes as IDX: magic number, sizes, data, all big-endian."""
    array = np.asarray(array)
    magic = 0x0800 + array.ndim if magic is None else magic
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def packed(content):
    return gzip.compress(content, mtime=0)


@pytest.fixture
def arrays():
    """Six training and four test images, with their labels, in the order of the files."""
    rng = np.random.default_rng(5)
    return tuple(
        rng.integers(0, high, size, dtype=np.uint8)
        for count in (6, 4)
        for high, size in ((256, (count, 28, 28)), (10, count))
    )


@pytest.fixture
def official(tmp_path, monkeypatch, arrays):
    """A folder of small files, which are the official ones for the length of a test."""
    folder = tmp_path / "official"
    folder.mkdir()
    for name, array in zip(data.FILES, arrays, strict=True):
        (folder / name).write_bytes(packed(idx(array)))
    digests = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in data.FILES}
    monkeypatch.setattr(data, "FILES", digests)
    monkeypatch.setattr(data, "SYSTEM_FOLDER", tmp_path / "no-system-folder")
    return folder


@pytest.fixture
def folder(tmp_path):
    """Where the data set shall go."""
    return tmp_path / "data" / "fashion-mnist"


# --- reading -------------------------------------------------------------------------------------


def test_what_was_written_is_read_back(official, arrays):
    loaded = data.load(official)
    assert loaded._fields == ("train_images", "train_labels", "test_images", "test_labels")
    for read, written in zip(loaded, arrays, strict=True):
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, written)


def test_nobody_can_write_to_the_shared_arrays(official):
    for array in data.load(official):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_files_are_read_once(official):
    first = data.load(official)
    shutil.rmtree(official)
    assert data.load(official) is first


@pytest.mark.parametrize("name", OTHERS)
def test_an_unofficial_file_is_refused_by_name(official, name):
    (official / name).write_bytes(gzip.compress(gzip.decompress((official / name).read_bytes()), 1))
    message = refusal(data.load, official)
    assert message.startswith(f"{official / name}: not the official file")
    found = hashlib.sha256((official / name).read_bytes()).hexdigest()
    assert found[:12] in message
    assert data.FILES[name][:12] in message


def test_missing_files_are_counted_with_the_command_that_brings_them(official):
    (official / TRAIN_LABELS).unlink()
    (official / TEST_IMAGES).unlink()
    expected = f"{official}: lacks 2 of 4 files, such as {TRAIN_LABELS}; run: fathom fetch"
    assert refusal(data.load, official) == expected


def test_a_file_that_cannot_be_read_is_refused_by_name(official):
    (official / TEST_LABELS).unlink()
    (official / TEST_LABELS).mkdir()
    assert refusal(data.load, official).startswith(f"{official / TEST_LABELS}: unreadable (")


def test_a_refused_set_is_read_anew_once_it_is_mended(official, arrays):
    whole = (official / TEST_LABELS).read_bytes()
    (official / TEST_LABELS).write_bytes(whole[:-1])
    refusal(data.load, official)
    (official / TEST_LABELS).write_bytes(whole)
    np.testing.assert_array_equal(data.load(official).test_labels, arrays[3])


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("/big/disk", "/big/disk/fashion-mnist"),
        ("", "data/fashion-mnist"),
        (None, "data/fashion-mnist"),
    ],
)
def test_the_environment_says_where_the_data_is(monkeypatch, value, place):
    monkeypatch.delenv("FATHOM_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("FATHOM_DATA", value)
    assert data.folder().as_posix() == place


def test_a_list_of_hashes_must_have_the_one_that_the_code_names(tmp_path):
    """So no edit of a list escapes the hash of the code."""
    (tmp_path / "list").write_text("ab  one_file.gz\n")
    digest = hashlib.sha256((tmp_path / "list").read_bytes()).hexdigest()
    assert _fetching.read_sums(tmp_path / "list", digest) == {"one_file.gz": "ab"}
    (tmp_path / "list").write_text("cd  one_file.gz\n")
    assert "not the official file" in refusal(_fetching.read_sums, tmp_path / "list", digest)


def test_a_data_set_is_fetched_by_its_name(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path))
    monkeypatch.setattr(data, "fetch", lambda folder, log: asked.append((folder, log)))
    assert "fashion_mnist" in datasets.DATASETS
    datasets.fetch("fashion_mnist", print)
    assert asked == [(tmp_path / "fashion-mnist", print)]
    assert datasets.folder_of("fashion_mnist", "elsewhere").as_posix() == "elsewhere/fashion-mnist"


# --- the order of the sources --------------------------------------------------------------------

SOURCES = ("system_folder", "download_official", "download_package")


@pytest.fixture
def sources(monkeypatch, official):
    """A function that lets each source give certain files; returns the list of what was asked."""

    def replace(**given):
        asked = []

        def source(name):
            def obtain(temporary, missing):
                asked.append((name, list(missing)))
                if name not in given:
                    raise Unavailable(f"{name} had\n no more")
                for file in given[name]:
                    shutil.copyfile(official / file, temporary / file)
                return temporary

            return obtain

        for name in SOURCES:
            monkeypatch.setattr(data, name, source(name))
        return asked

    return replace


def test_files_that_are_there_are_fetched_from_nowhere(official, sources):
    asked, log = sources(), []
    data.fetch(official, log.append)
    assert asked == []
    assert log == [f"folder {official}: 4 of 4 files"]


def test_sources_are_asked_in_order_and_each_leaves_one_line(folder, sources):
    asked, log = sources(), []
    with pytest.raises(DataError):
        data.fetch(folder, log.append)
    assert asked == [(name, list(data.FILES)) for name in SOURCES]
    starts = (
        f"folder {folder}: 0 of 4 files",
        f"system folder {data.SYSTEM_FOLDER}: 0 of 4 files in 0.",
        "official address http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/: 0 of 4",
        "apt-get download dataset-fashion-mnist: 0 of 4 files in 0.",
    )
    assert len(log) == len(starts)
    for line, start in zip(log, starts, strict=True):
        assert line.startswith(start)
        assert "\n" not in line
    for line, name in zip(log[1:], SOURCES, strict=True):
        assert line.endswith(f"s: {name} had no more")


def test_no_source_is_asked_once_all_files_are_there(folder, official, sources):
    asked, log = sources(download_official=data.FILES), []
    data.fetch(folder, log.append)
    assert [name for name, _ in asked] == ["system_folder", "download_official"]
    assert ": 4 of 4 files in " in log[-1]
    assert {name: contents(folder)[name] for name in data.FILES} == contents(official)


def test_each_source_is_asked_for_what_is_still_missing(folder, official, sources):
    asked = sources(
        system_folder=[TRAIN_IMAGES],
        download_official=[TRAIN_LABELS],
        download_package=[TEST_IMAGES],
    )
    folder.mkdir(parents=True)
    shutil.copyfile(official / TEST_LABELS, folder / TEST_LABELS)
    log = []
    data.fetch(folder, log.append)
    assert asked == [
        ("system_folder", [TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES]),
        ("download_official", [TRAIN_LABELS, TEST_IMAGES]),
        ("download_package", [TEST_IMAGES]),
    ]
    assert log[0] == f"folder {folder}: 1 of 4 files"
    for line, count in zip(log[1:], ("1 of 3", "1 of 2", "1 of 1"), strict=True):
        assert f": {count} files in " in line
    assert "No such file" in log[1]
    data.load(folder)


def test_when_all_fail_one_message_says_what_was_tried_and_what_to_do(folder, sources):
    sources(system_folder=[TRAIN_IMAGES])
    log = []
    with pytest.raises(DataError) as caught:
        data.fetch(folder, log.append)
    first, *rest = str(caught.value).splitlines()
    assert first == "Fashion-MNIST is unavailable here: 3 of 4 files are missing"
    assert rest[:4] == [f"tried {line}" for line in log]
    assert str(folder) in rest[4]
    assert rest[4].endswith(f": {TRAIN_LABELS}, {TEST_IMAGES}, {TEST_LABELS}")
    assert data.OFFICIAL in rest[5]
    assert data.PACKAGE in rest[5]
    assert set(contents(folder)) == {TRAIN_IMAGES}  # what was had stays, and no list of all four


def test_the_list_of_sums_keeps_its_time_while_it_is_right(folder, sources):
    sources(system_folder=data.FILES)
    data.fetch(folder, lambda line: None)
    sums = folder / "SHA256SUMS"
    assert sums.read_text().splitlines() == [f"{d}  {name}" for name, d in data.FILES.items()]
    before = sums.stat()
    data.fetch(folder, lambda line: None)
    assert (sums.stat().st_mtime_ns, sums.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    sums.write_text("something else")
    data.fetch(folder, lambda line: None)
    assert sums.stat().st_size == before.st_size


@pytest.mark.parametrize("name", OTHERS)
def test_a_wrong_file_of_the_user_is_refused_by_name_and_left(official, sources, name):
    asked, log = sources(), []
    shutil.copyfile(official / OTHERS[name], official / name)
    before = contents(official)
    message = refusal(data.fetch, official, log.append)
    assert message.startswith(f"{official / name}: not the official file (its SHA-256 is ")
    assert "it is left as it is" in message
    assert log == [f"folder {official}: 3 of 4 files, 1 refused"]
    assert asked == []
    assert contents(official) == before


def test_every_wrong_file_is_named(official, sources):
    sources()
    for name in (TRAIN_IMAGES, TEST_LABELS):
        (official / name).write_bytes(b"")
    with pytest.raises(DataError) as caught:
        data.fetch(official, lambda line: None)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        str(official / name) for name in (TRAIN_IMAGES, TEST_LABELS)
    ]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, sources):
    asked = sources()
    (tmp_path / "file").write_text("in the way")
    message = refusal(data.fetch, tmp_path / "file" / "fashion-mnist", lambda line: None)
    assert message.startswith(f"{tmp_path / 'file' / 'fashion-mnist'}: cannot be made (")
    assert asked == []


# --- the system folder ---------------------------------------------------------------------------


@pytest.fixture
def system_folder(official, monkeypatch):
    """The small files as a system folder."""
    monkeypatch.setattr(data, "SYSTEM_FOLDER", official)
    return official


def test_files_are_copied_from_the_system_folder(system_folder, folder):
    log = []
    data.fetch(folder, log.append)
    assert log[1].startswith(f"system folder {system_folder}: 4 of 4 files in ")
    assert len(log) == 2
    assert set(contents(folder)) == {*data.FILES, "SHA256SUMS"}
    assert {name: contents(folder)[name] for name in data.FILES} == contents(system_folder)


@pytest.fixture
def alone(monkeypatch):
    """A function that leaves one source; it gives why this has not given all files."""

    def unavailable(source, folder):
        def nothing(temporary, missing):
            raise Unavailable("nothing")

        for name in SOURCES:
            if name != source:
                monkeypatch.setattr(data, name, nothing)
        log = []
        with pytest.raises(DataError):
            data.fetch(folder, log.append)
        return log[1 + SOURCES.index(source)].partition(" s: ")[2]

    return unavailable


@pytest.mark.parametrize(
    ("place", "source"), [*zip(("system_folder", "server", "debian"), SOURCES, strict=True)]
)
def test_a_wrong_file_is_never_used(request, official, folder, monkeypatch, alone, place, source):
    request.getfixturevalue(place)
    monkeypatch.setenv("APT_KNOWS", "system")
    (official / TRAIN_LABELS).write_bytes(b"<html>Please log in</html>")
    message = alone(source, folder)
    assert message.startswith(f"{TRAIN_LABELS} there is not the official file")
    assert set(contents(folder)) == {TRAIN_IMAGES}


def test_a_system_folder_may_lack_files(system_folder, folder, alone):
    (system_folder / TRAIN_LABELS).unlink()
    assert "No such file" in alone("system_folder", folder)
    assert set(contents(folder)) == {TRAIN_IMAGES}


def test_a_machine_may_have_no_system_folder(official, folder, alone):
    assert alone("system_folder", folder) == "there is no such folder"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_half_written_is_left(system_folder, folder, monkeypatch, error):
    whole = shutil.copyfile

    def break_off(source, target):
        if source.name != TRAIN_LABELS:
            return whole(source, target)
        target.write_bytes(source.read_bytes()[:10])
        raise error

    monkeypatch.setattr(shutil, "copyfile", break_off)
    monkeypatch.setattr(data, "download_official", lambda to, _: to)
    monkeypatch.setattr(data, "download_package", lambda to, _: to)
    log = []
    with pytest.raises(DataError if isinstance(error, OSError) else KeyboardInterrupt):
        data.fetch(folder, log.append)
    assert contents(folder) == {TRAIN_IMAGES: (system_folder / TRAIN_IMAGES).read_bytes()}
    if isinstance(error, OSError):
        full = f"[Errno 28] No space left on device: '{folder / TRAIN_LABELS}'"
        assert log[1].endswith(f"s: {full}")


# --- the official address ------------------------------------------------------------------------


@pytest.fixture
def server(official, monkeypatch):
    """The small files at an address of this machine; returns the list of what was asked for."""
    pytest.importorskip("pooch")
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=official)

        def log_message(self, *_):
            asked.append(self.path.removeprefix("/"))

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(data, "OFFICIAL", f"http://127.0.0.1:{running.server_port}/")
        yield asked
        running.shutdown()
        thread.join()


def test_missing_files_are_downloaded_from_the_official_address(server, official, folder):
    folder.mkdir(parents=True)
    for name in (TRAIN_IMAGES, TEST_LABELS):
        shutil.copyfile(official / name, folder / name)
    data.fetch(folder, lambda line: None)
    assert server == [TRAIN_LABELS, TEST_IMAGES]
    assert {name: contents(folder)[name] for name in data.FILES} == contents(official)


def test_an_address_without_the_file_is_reported(server, official, folder, alone):
    (official / TRAIN_IMAGES).unlink()
    assert "404" in alone("download_official", folder)
    assert contents(folder) == {}
    assert set(server) == {TRAIN_IMAGES}  # and no more after the failure


def test_an_address_that_nobody_answers_is_reported(server, folder, monkeypatch, alone):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and not listening
        monkeypatch.setattr(data, "OFFICIAL", f"http://127.0.0.1:{closed.getsockname()[1]}/")
        message = alone("download_official", folder)
    assert "Failed to establish a new connection" in message
    assert contents(folder) == {}


def test_a_server_that_stays_silent_is_not_waited_for(server, folder, monkeypatch, alone):
    monkeypatch.setattr(data, "STALL_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(data, "OFFICIAL", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        message = alone("download_official", folder)
    assert "Read timed out. (read timeout=0.1)" in message


def test_without_pooch_the_address_is_not_asked(official, folder, monkeypatch, alone):
    monkeypatch.setitem(sys.modules, "pooch", None)
    expected = "pooch is not installed here (pip install pooch)"
    assert alone("download_official", folder) == expected


# --- Debian's package ----------------------------------------------------------------------------

APT_GET = r"""#!/bin/sh
# What `apt-get -qq -c FILE download PACKAGE` and `apt-get -qq -c FILE update` do to the world.
lists=system
grep -q '^Dir::State::Lists ' "$3" && lists=own
[ "$1 $2" = "-qq -c" ] || exit 2
echo "$4 $lists $5" | sed 's/ *$//' >> "$CALLS"
cp "$3" "$CALLS.conf"
case "$4 $lists" in
  "update own") [ -z "$APT_OFFLINE" ] || echo "W: Failed to fetch http://mirror/ No route" >&2 ;;
  "download $APT_KNOWS") touch "$5_1.0_all.deb" ;;
  *) echo "E: Unable to locate package $5" >&2; exit 100 ;;
esac
"""

DPKG_DEB = r"""#!/bin/sh
[ "$1" = "-x" ] && [ -e "$2" ] || exit 2
mkdir -p "$3/usr/share/datasets/fashion-mnist"
cp "$PACKAGED"/* "$3/usr/share/datasets/fashion-mnist"
"""


@pytest.fixture
def debian(tmp_path, official, monkeypatch):
    """Scripts in place of apt-get and dpkg-deb; returns a function that lists apt-get's calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in (("apt-get", APT_GET), ("dpkg-deb", DPKG_DEB)):
        (programs / name).write_text(script)
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PACKAGED", str(official))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)  # so that TMPDIR is looked at again
    monkeypatch.setattr(data, "SYSTEM_FOLDER", data.Path("/usr/share/datasets/fashion-mnist"))
    (tmp_path / "tmp").mkdir()
    yield lambda: (tmp_path / "calls").read_text().splitlines()
    assert list((tmp_path / "tmp").iterdir()) == []  # whatever happened, nothing is left there


@pytest.mark.parametrize(
    ("knows", "offline", "calls"),
    [
        ("system", "", ["download system dataset-fashion-mnist"]),
        # Without lists, own ones are fetched first; a mirror that fails does not matter.
        *(
            ("own", offline, [
                "download system dataset-fashion-mnist",
                "update own",
                "download own dataset-fashion-mnist",
            ])
            for offline in ("", "yes")
        ),
    ],
)  # fmt: skip
def test_the_package_is_found_by_the_lists_of_the_system_or_own_ones(
    debian, official, tmp_path, monkeypatch, knows, offline, calls
):
    monkeypatch.setenv("APT_KNOWS", knows)
    monkeypatch.setenv("APT_OFFLINE", offline)
    temporary = tmp_path / "fathom-1"
    temporary.mkdir()
    assert contents(data.download_package(temporary, list(data.FILES))) == contents(official)
    assert debian() == calls
    lines = (tmp_path / "calls.conf").read_text().splitlines()
    settings = dict(line.rstrip(";").split(maxsplit=1) for line in lines if line[0] != "#")
    for key in ("Dir::State::Lists", "Dir::Cache") if knows == "own" else ("Dir::Cache",):
        assert settings[key].startswith(f'"{temporary}/')
    assert settings["Acquire::Retries"] == '"0"'
    assert settings["Acquire::http::Timeout"] == f'"{data.STALL_SECONDS}"'


@pytest.mark.parametrize(
    ("offline", "reason"),
    [
        ("", "apt-get download: Unable to locate package dataset-fashion-mnist"),
        (
            "yes",
            "apt-get update: Failed to fetch http://mirror/ No route; "
            "apt-get download: Unable to locate package dataset-fashion-mnist",
        ),
    ],
)
def test_what_apt_complains_about_is_reported(debian, folder, monkeypatch, alone, offline, reason):
    monkeypatch.setenv("APT_OFFLINE", offline)
    assert alone("download_package", folder) == reason
    assert contents(folder) == {}


def test_a_package_that_cannot_be_unpacked_is_reported(debian, folder, monkeypatch, alone):
    monkeypatch.setenv("APT_KNOWS", "system")
    monkeypatch.setenv("PACKAGED", "/nowhere")
    assert alone("download_package", folder).startswith("dpkg-deb: cp: ")


def test_apt_that_hangs_is_ended(debian, folder, monkeypatch, tmp_path, alone):
    (tmp_path / "bin" / "apt-get").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(data, "DOWNLOAD_SECONDS", 0.1)
    monkeypatch.setattr(data, "UPDATE_SECONDS", 0.2)
    started = time.monotonic()
    assert alone("download_package", folder) == (
        "apt-get update took longer than 0.2 s; apt-get download took longer than 0.1 s"
    )
    assert time.monotonic() - started < 20  # three sleeps of a minute, cut short


@pytest.mark.parametrize("tool", ["apt-get", "dpkg-deb"])
def test_without_a_tool_the_package_is_not_asked_for(
    debian, folder, monkeypatch, tmp_path, alone, tool
):
    (tmp_path / "bin" / tool).unlink()
    (tmp_path / "calls").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert alone("download_package", folder) == f"{tool} is not installed here"
    assert debian() == []


# --- the real thing ------------------------------------------------------------------------------


@pytest.mark.data
def test_the_official_set_is_what_its_authors_say():
    folder = data.folder()
    missing = [name for name in data.FILES if not (folder / name).exists()]
    if missing:
        pytest.skip(f"{folder} has no {', '.join(missing)}; `fathom fetch` brings them")
    train_images, train_labels, test_images, test_labels = data.load(folder)
    assert train_images.shape == (60000, 28, 28)
    assert test_images.shape == (10000, 28, 28)
    assert np.bincount(train_labels).tolist() == [6000] * 10
    assert np.bincount(test_labels).tolist() == [1000] * 10
    # The mean and the standard deviation that the task divides by, from integer sums.
    from fathom.tasks import fashion

    counts = np.bincount(train_images.ravel(), minlength=256).tolist()
    total = sum(counts)
    mean = sum(value * count for value, count in enumerate(counts)) / total
    variance = sum((value - mean) ** 2 * count for value, count in enumerate(counts)) / total
    assert round(mean / 255, 4) == fashion.MEAN
    assert round(math.sqrt(variance) / 255, 4) == fashion.STD
