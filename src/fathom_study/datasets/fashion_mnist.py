"""Fashion-MNIST: fetched from any source that this machine can reach, checked, and read.

Only the official files are accepted, by their SHA-256.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fathom_study.datasets import _fetching
from fathom_study.datasets._fetching import debian_package, download_from, read_sums

FILES = read_sums(
    Path(__file__).with_suffix(".sha256"),
    "3b54bf44c4e1ca69a8e230067e3c393d53fe41e52aeb3ebdd51163854414cd23",
)
"""The official files, with their SHA-256, in the order of the fields of FashionMnist."""

PACKAGE = "dataset-fashion-mnist"
"""Debian's package of the same files."""

PACKAGED = "usr/share/datasets/fashion-mnist"
"""The folder of that package that holds them."""

OFFICIAL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
"""The address in the data set's README. It has no https; the hashes make up for that."""

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


# --- fetching ------------------------------------------------------------------------------------


def fetch(folder: Path, log: Callable[[str], None]) -> None:
    """Make sure that `folder` holds all four official files and SHA256SUMS. Raises DataError."""
    _fetching.fetch(
        folder,
        log,
        title="Fashion-MNIST",
        files=FILES,
        sources=(
            (f"official address {OFFICIAL}", lambda _: download_from(OFFICIAL)),
            (f"apt-get download {PACKAGE}", debian_package(PACKAGE, PACKAGED)),
        ),
        to_do=f"{', '.join(FILES)} (from {OFFICIAL} or the Debian package {PACKAGE})",
    )


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
