"""Fashion-MNIST: fetched from any source that this machine can reach, checked, and read.

Only the official files are accepted, by their SHA-256.
"""

from __future__ import annotations

import gzip
import struct
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fathom.datasets import _fetching, folder_of
from fathom.datasets._fetching import STALL_SECONDS, Download, copy_from, read_sums, run

FILES = read_sums(
    Path(__file__).with_suffix(".sha256"),
    "3b54bf44c4e1ca69a8e230067e3c393d53fe41e52aeb3ebdd51163854414cd23",
)
"""The official files, with their SHA-256, in the order of the fields of FashionMnist."""

PACKAGE = "dataset-fashion-mnist"
"""Debian's package of the same files."""

SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Folder where that package installs them."""

OFFICIAL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
"""The address in the data set's README. It has no https; the hashes make up for that."""

CONNECT_SECONDS = 5
"""Time limit for a connection to the official address, in seconds."""

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
            (f"system folder {SYSTEM_FOLDER}", lambda _: copy_from(SYSTEM_FOLDER)),
            (f"official address {OFFICIAL}", _official),
            (f"apt-get download {PACKAGE}", _package),
        ),
        to_do=f"{', '.join(FILES)} (from {OFFICIAL} or the Debian package {PACKAGE})",
    )


def _official(_: Path) -> Download:
    """A downloader from the official address."""
    from pooch import HTTPDownloader

    timeouts = (CONNECT_SECONDS, STALL_SECONDS)
    download = HTTPDownloader(timeout=timeouts, progressbar=sys.stderr.isatty())
    return lambda name, output, pooch: download(OFFICIAL + name, output, pooch)


def _package(temporary: Path) -> Download:
    """Download Debian's package and unpack it, without root; returns a downloader that copies.

    Package lists, caches and the package are in the temporary folder, so the system stays
    unchanged.
    """
    for part in ("cache/archives/partial", "lists/partial"):
        (temporary / part).mkdir(parents=True)
    settings = APT_CONFIG.format(folder=temporary, seconds=STALL_SECONDS)
    (temporary / "apt.conf").write_text(settings, encoding="utf-8")
    for arguments in (["update"], ["download", PACKAGE]):
        run(f"apt-get {arguments[0]}", ["apt-get", *arguments, "-qq", "-c", "apt.conf"], temporary)
    (package,) = temporary.glob(f"{PACKAGE}_*.deb")
    run("dpkg-deb", ["dpkg-deb", "-x", package.name, "tree"], temporary)
    return copy_from(temporary / "tree" / SYSTEM_FOLDER.relative_to("/"))


APT_CONFIG = """\
Dir::Cache "{folder}/cache";
Dir::State::Lists "{folder}/lists";
Acquire::Retries "0";
Acquire::http::Timeout "{seconds}";
Acquire::https::Timeout "{seconds}";
Acquire::Languages "none";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""
"""Read after the system's configuration, whose mirrors and proxies stay in use."""


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
