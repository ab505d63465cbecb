"""Fashion-MNIST: fetched from any source that this machine can reach, checked, and read.

Only the official files are accepted, by their SHA-256. Needs the standard library and NumPy; pooch
only for a download from the official address.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from fathom.datasets import DataError, _fetching, folder_of
from fathom.datasets._fetching import (
    DOWNLOAD_SECONDS,
    STALL_SECONDS,
    Unavailable,
    copy,
    digest_difference,
    one_line,
    run,
)

TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TRAIN_LABELS = "train-labels-idx1-ubyte.gz"
TEST_IMAGES = "t10k-images-idx3-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"

FILES = {
    TRAIN_IMAGES: "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    TRAIN_LABELS: "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    TEST_IMAGES: "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    TEST_LABELS: "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
"""The official files, with their SHA-256."""

PACKAGE = "dataset-fashion-mnist"
"""Debian's package of the same files."""

SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where that package puts them."""

OFFICIAL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
"""The address in the data set's README. It has no https; the hashes make up for that."""

CONNECT_SECONDS = 5
"""How long the official address may take to accept a connection."""

UPDATE_SECONDS = 120
"""How long apt-get may take for package lists."""

SIDE = 28
"""Pixels along each edge of an image."""

TRAINING_EXAMPLES = 60_000

CLASSES = 10
"""Kinds of clothing, labelled from 0."""


class FashionMnist(NamedTuple):
    """The whole data set. The arrays are shared and read-only."""

    train_images: np.ndarray
    """uint8 [60000, 28, 28]"""
    train_labels: np.ndarray
    """uint8 [60000], 0 to 9"""
    test_images: np.ndarray
    """uint8 [10000, 28, 28]"""
    test_labels: np.ndarray
    """uint8 [10000], 0 to 9"""


def folder() -> Path:
    """The folder of the four files."""
    return folder_of("fashion_mnist")


# --- fetching ------------------------------------------------------------------------------------


def fetch(folder: Path, log: Callable[[str], None]) -> None:
    """Make sure that `folder` holds all four official files and their list, SHA256SUMS.

    Missing files come from the system folder, the official address or Debian's package, in this
    order. Raises DataError.
    """
    _fetching.fetch(
        folder,
        log,
        title="Fashion-MNIST",
        files=FILES,
        sources=(
            (f"system folder {SYSTEM_FOLDER}", copy_from_system),
            (f"official address {OFFICIAL}", download_official),
            (f"apt-get download {PACKAGE}", download_package),
        ),
        elsewhere=f"they are at {OFFICIAL} and in the Debian package {PACKAGE}",
    )


def copy_from_system(folder: Path, missing: Iterable[str]) -> None:
    """Copy the missing files from where Debian's package installs them."""
    if not SYSTEM_FOLDER.is_dir():
        raise Unavailable("there is no such folder")
    copy(SYSTEM_FOLDER, folder, _official(missing))


def download_official(folder: Path, missing: Iterable[str]) -> None:
    """Download the missing files from the official address; stops at the first failure."""
    try:
        import pooch
        import requests
    except ImportError as error:
        raise Unavailable("pooch is not installed here (pip install pooch)") from error

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(timeout=(CONNECT_SECONDS, STALL_SECONDS))
    with TemporaryDirectory(prefix="fathom-") as temporary:
        for name in missing:
            try:
                pooch.retrieve(
                    OFFICIAL + name,
                    known_hash=f"sha256:{FILES[name]}",
                    fname=name,
                    path=temporary,
                    downloader=downloader,
                )
            except (requests.ConnectionError, requests.Timeout) as error:
                raise Unavailable(_cause(error)) from error
            except ValueError as error:
                raise Unavailable(f"what it gives as {name} is not the official file") from error
            copy(Path(temporary), folder, _official([name]))


def download_package(folder: Path, missing: Iterable[str]) -> None:
    """Extract the missing files from Debian's package, downloaded and unpacked without root.

    Downloads package lists of its own if the system's do not have the package. Lists, caches and
    package are in a temporary folder; nothing of the system is changed.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed here")

    with TemporaryDirectory(prefix="fathom-") as name:
        temporary = Path(name)
        if _apt_get(temporary, "download", PACKAGE, seconds=DOWNLOAD_SECONDS):
            stale = _apt_get(temporary, "update", seconds=UPDATE_SECONDS, own=True)
            problem = _apt_get(temporary, "download", PACKAGE, seconds=DOWNLOAD_SECONDS, own=True)
            if problem:
                raise Unavailable(f"{stale}; {problem}" if stale else problem)
        packages = list(temporary.glob(f"{PACKAGE}_*.deb"))
        if not packages:
            raise Unavailable("apt-get left no package")
        tree = temporary / "tree"
        command = ["dpkg-deb", "-x", str(packages[0]), str(tree)]
        problem = run("dpkg-deb", command, temporary, DOWNLOAD_SECONDS)
        if problem:
            raise Unavailable(problem)
        copy(tree / SYSTEM_FOLDER.relative_to("/"), folder, _official(missing))


APT_CONFIG = """\
Dir::Cache "{folder}/cache";
Acquire::Retries "0";
Acquire::http::Timeout "{seconds}";
Acquire::https::Timeout "{seconds}";
Acquire::Languages "none";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""
"""Read after the system's configuration, whose mirrors and proxies stay in use."""

OWN_LISTS = 'Dir::State::Lists "{folder}/lists";\n'


def _apt_get(folder: Path, *arguments: str, seconds: float, own: bool = False) -> str | None:
    """Run apt-get inside `folder`, with lists of its `own` or the system's; returns the problem."""
    for part in ("cache/archives/partial", "lists/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    config = folder / "apt.conf"
    text = APT_CONFIG + (OWN_LISTS if own else "")
    config.write_text(text.format(folder=folder, seconds=STALL_SECONDS), encoding="utf-8")
    command = ["apt-get", "-qq", "-c", str(config), *arguments]
    return run(f"apt-get {arguments[0]}", command, folder, seconds)


def _official(names: Iterable[str]) -> dict[str, str]:
    return {name: FILES[name] for name in names}


def _cause(error: OSError) -> str:
    """The root cause of an error of requests."""
    cause: object = error.args[0] if error.args else error
    for layer in ("reason", "original_error"):  # urllib3's retries, then its proxy
        cause = getattr(cause, layer, cause)
    return str(cause).split(": ", 1)[-1]


# --- reading -------------------------------------------------------------------------------------


def load(folder: Path, verify: bool = True) -> FashionMnist:
    """Read the data set in `folder`, once. Raises DataError, one line that names the file.

    Without `verify` the files need not be the official ones, and may hold any number of images.
    """
    return _load(folder.absolute(), verify)


@cache
def _load(folder: Path, verify: bool) -> FashionMnist:
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise DataError(f"{folder}: has no {', '.join(missing)}; run: fathom fetch")
    return FashionMnist(
        *_read_pair(folder, TRAIN_IMAGES, TRAIN_LABELS, verify),
        *_read_pair(folder, TEST_IMAGES, TEST_LABELS, verify),
    )


def _read_pair(
    folder: Path, images_name: str, labels_name: str, verify: bool
) -> tuple[np.ndarray, np.ndarray]:
    images = _read_idx(folder / images_name, 3, verify)
    if images.shape[1:] != (SIDE, SIDE) or not len(images):
        shape = " × ".join(map(str, images.shape))
        raise DataError(f"{folder / images_name}: holds {shape}, not images of {SIDE} × {SIDE}")
    labels = _read_idx(folder / labels_name, 1, verify)
    if len(labels) != len(images):
        raise DataError(
            f"{folder / labels_name}: {len(labels)} labels for the {len(images)} images of "
            f"{images_name}"
        )
    if labels.max() >= CLASSES:
        raise DataError(
            f"{folder / labels_name}: holds the label {labels.max()}; the last is {CLASSES - 1}"
        )
    return images, labels


def _read_idx(file: Path, dimensions: int, verify: bool) -> np.ndarray:
    """The array of unsigned bytes in a gzipped IDX file."""
    try:
        packed = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error
    problem = verify and digest_difference(hashlib.sha256(packed).hexdigest(), FILES[file.name])
    if problem:
        raise DataError(f"{file}: {problem}; move it away and run: fathom fetch")
    try:
        content = gzip.decompress(packed)
    except EOFError as error:
        raise DataError(f"{file}: truncated (the compressed data ends too early)") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file}: damaged ({one_line(error)})") from error

    header = struct.Struct(f">{1 + dimensions}I")
    if len(content) < header.size:
        raise DataError(f"{file}: truncated ({len(content)} bytes are no IDX file)")
    magic, *shape = header.unpack_from(content)
    expected = 0x0800 + dimensions  # 08: unsigned bytes
    if magic != expected:
        raise DataError(f"{file}: not IDX data (it starts with {magic:#06x}, not {expected:#06x})")
    size, wanted = len(content) - header.size, math.prod(shape)
    if size != wanted:
        raise DataError(f"{file}: holds {size} bytes of data where its header says {wanted}")
    return np.frombuffer(content, np.uint8, offset=header.size).reshape(shape)
