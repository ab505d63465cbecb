"""Fashion-MNIST: fetched from any source that this machine can reach, checked, and read.

Only the official files are accepted, by their SHA-256. Needs the standard library and NumPy; pooch
only for a download from the official address.
"""

from __future__ import annotations

import gzip
import shutil
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fathom.datasets import _fetching, folder_of
from fathom.datasets._fetching import DOWNLOAD_SECONDS, STALL_SECONDS, Unavailable, read_sums, run

FILES = read_sums(
    Path(__file__).with_suffix(".sha256"),
    "3b54bf44c4e1ca69a8e230067e3c393d53fe41e52aeb3ebdd51163854414cd23",
)
"""The official files, with their SHA-256, in the order of the fields of FashionMnist."""

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
            (f"system folder {SYSTEM_FOLDER}", system_folder),
            (f"official address {OFFICIAL}", download_official),
            (f"apt-get download {PACKAGE}", download_package),
        ),
        elsewhere=f"they are at {OFFICIAL} and in the Debian package {PACKAGE}",
    )


def system_folder(temporary: Path, missing: list[str]) -> Path:
    """Where Debian's package installs the files."""
    if not SYSTEM_FOLDER.is_dir():
        raise Unavailable("there is no such folder")
    return SYSTEM_FOLDER


def download_official(temporary: Path, missing: list[str]) -> Path:
    """Download the missing files from the official address; stops at the first failure."""
    try:
        import pooch
    except ImportError as error:
        raise Unavailable("pooch is not installed here (pip install pooch)") from error

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(timeout=(CONNECT_SECONDS, STALL_SECONDS))
    for name in missing:  # whoever asks for them checks their hashes
        pooch.retrieve(OFFICIAL + name, None, fname=name, path=temporary, downloader=downloader)
    return temporary


def download_package(temporary: Path, missing: list[str]) -> Path:
    """Download Debian's package and unpack it, without root.

    Downloads package lists of its own if the system's do not have the package. Lists, caches and
    package are in the temporary folder; nothing of the system is changed.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not installed here")

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
    if problem := run("dpkg-deb", command, temporary, DOWNLOAD_SECONDS):
        raise Unavailable(problem)
    return tree / SYSTEM_FOLDER.relative_to("/")


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


# --- reading -------------------------------------------------------------------------------------


def load(folder: Path) -> FashionMnist:
    """Read the data set in `folder`, once. Raises DataError, one line that names the file."""
    return _load(folder.absolute())


@cache
def _load(folder: Path) -> FashionMnist:
    return FashionMnist(*map(_array, _fetching.read(folder, FILES).values()))


def _array(packed: bytes) -> np.ndarray:
    """The array of unsigned bytes in a gzipped IDX file: its last header byte counts dimensions."""
    content = gzip.decompress(packed)
    header = struct.Struct(f">4x{content[3]}I")
    return np.frombuffer(content, np.uint8, offset=header.size).reshape(header.unpack_from(content))
