"""Fashion-MNIST: fetched from wherever this machine can get it, checked, and read.

Only the official files are used, known by their SHA-256. Standard library and NumPy only; pooch
is imported where the official address is asked, and is not needed otherwise.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import shutil
import struct
import subprocess
import time
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from fathom.datasets import SUMS, DataError, folder_of
from fathom.system.files import replacing, sha256, write_text

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
"""The address that the data set's README names. It has no https: the hashes make up for that."""

CONNECT_SECONDS = 5
"""How long the official address may take to accept a connection."""

STALL_SECONDS = 10
"""How long any server may stay silent."""

UPDATE_SECONDS = 120
"""How long apt-get may take for package lists."""

DOWNLOAD_SECONDS = 300
"""How long apt-get may take for the package, which is 31 MB."""

SIDE = 28
"""Pixels along each edge of an image."""

TRAINING_EXAMPLES = 60_000

CLASSES = 10
"""Kinds of clothing, labelled from 0."""


class _Unavailable(Exception):  # noqa: N818, an outcome that is looked for, not an error
    """Why a source has nothing to give, in one line."""


class FashionMnist(NamedTuple):
    """The whole set. The arrays are shared and cannot be written to."""

    train_images: np.ndarray
    """uint8 [60000, 28, 28]"""
    train_labels: np.ndarray
    """uint8 [60000], 0 to 9"""
    test_images: np.ndarray
    """uint8 [10000, 28, 28]"""
    test_labels: np.ndarray
    """uint8 [10000], 0 to 9"""


def folder() -> Path:
    """Where the four files belong."""
    return folder_of("fashion_mnist")


# --- fetching ------------------------------------------------------------------------------------


def fetch(folder: Path, log: Callable[[str], None]) -> None:
    """Make sure that `folder` holds all four official files and their list, SHA256SUMS.

    What is missing is looked for in the system folder, at the official address and in Debian's
    package, in this order; `log` gets one line for each. A file of `folder` with other content is
    refused and left as it is. Raises DataError, after which every file that is there is whole.
    """
    tried = []

    def note(line: str) -> None:
        tried.append(line)
        log(line)

    missing = _missing(folder, note)
    sources = (
        (f"system folder {SYSTEM_FOLDER}", copy_from_system),
        (f"official address {OFFICIAL}", download_official),
        (f"apt-get download {PACKAGE}", download_package),
    )
    for name, obtain in sources:
        if not missing:
            break
        wanted, reason, started = len(missing), "", time.monotonic()
        try:
            obtain(folder, missing)
        except (_Unavailable, OSError) as error:
            reason = f": {_one_line(error)}"
        missing = [file for file in missing if not (folder / file).is_file()]
        count = f"{wanted - len(missing)} of {wanted} files in {time.monotonic() - started:.1f} s"
        note(f"{name}: {count}{reason}")
    if missing:
        raise DataError(_how_to_go_on(folder, missing, tried))

    sums = "".join(f"{digest}  {name}\n" for name, digest in FILES.items())
    listed = folder / SUMS
    if not listed.is_file() or listed.read_bytes() != sums.encode():  # keep its time if it is right
        write_text(listed, sums)


def _missing(folder: Path, note: Callable[[str], None]) -> list[str]:
    """The files that `folder` lacks. Raises DataError if it cannot be used as it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made ({error.strerror})") from error
    missing = [name for name in FILES if not (folder / name).exists()]
    present = [name for name in FILES if name not in missing]
    refused = []
    for name in present:
        problem = _difference(folder / name, name)
        if problem:
            refused.append(
                f"{folder / name}: {problem}; it is left as it is: move it away and run this again"
            )
    note(
        f"folder {folder}: {len(present) - len(refused)} of {len(FILES)} files"
        + (f", {len(refused)} refused" if refused else "")
    )
    if refused:
        raise DataError("\n".join(refused))
    return missing


def copy_from_system(folder: Path, missing: Iterable[str]) -> None:
    """Copy the missing files from where Debian's package installs them."""
    if not SYSTEM_FOLDER.is_dir():
        raise _Unavailable("there is no such folder")
    _copy(SYSTEM_FOLDER, folder, missing)


def download_official(folder: Path, missing: Iterable[str]) -> None:
    """Download the missing files from the official address, each once, up to the first failure."""
    try:
        import pooch
        import requests
    except ImportError as error:
        raise _Unavailable("pooch is not installed here (pip install pooch)") from error

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
                raise _Unavailable(_cause(error)) from error
            except ValueError as error:
                raise _Unavailable(f"what it gives as {name} is not the official file") from error
            _copy(Path(temporary), folder, [name])


def download_package(folder: Path, missing: Iterable[str]) -> None:
    """Take the missing files out of Debian's package, downloaded and unpacked without root.

    Where the system's package lists do not lead to it, lists of our own are fetched. Nothing of
    the system is touched: lists, caches and package live in a temporary folder.
    """
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise _Unavailable(f"{tool} is not installed here")

    with TemporaryDirectory(prefix="fathom-") as name:
        temporary = Path(name)
        if _apt_get(temporary, "download", PACKAGE, seconds=DOWNLOAD_SECONDS):
            stale = _apt_get(temporary, "update", seconds=UPDATE_SECONDS, own=True)
            problem = _apt_get(temporary, "download", PACKAGE, seconds=DOWNLOAD_SECONDS, own=True)
            if problem:
                raise _Unavailable(f"{stale}; {problem}" if stale else problem)
        packages = list(temporary.glob(f"{PACKAGE}_*.deb"))
        if not packages:
            raise _Unavailable("apt-get left no package")
        tree = temporary / "tree"
        command = ["dpkg-deb", "-x", str(packages[0]), str(tree)]
        problem = _run("dpkg-deb", command, temporary, DOWNLOAD_SECONDS)
        if problem:
            raise _Unavailable(problem)
        _copy(tree / SYSTEM_FOLDER.relative_to("/"), folder, missing)


APT_CONFIG = """\
Dir::Cache "{folder}/cache";
Acquire::Retries "0";
Acquire::http::Timeout "{seconds}";
Acquire::https::Timeout "{seconds}";
Acquire::Languages "none";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""
"""Read after the system's own configuration: mirrors and proxies stay as they are there."""

OWN_LISTS = 'Dir::State::Lists "{folder}/lists";\n'


def _apt_get(folder: Path, *arguments: str, seconds: float, own: bool = False) -> str | None:
    """Run apt-get inside `folder`, with package lists of our own or the system's; the problem."""
    for part in ("cache/archives/partial", "lists/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    config = folder / "apt.conf"
    text = APT_CONFIG + (OWN_LISTS if own else "")
    config.write_text(text.format(folder=folder, seconds=STALL_SECONDS), encoding="utf-8")
    command = ["apt-get", "-qq", "-c", str(config), *arguments]
    return _run(f"apt-get {arguments[0]}", command, folder, seconds)


def _run(name: str, command: list[str], folder: Path, seconds: float) -> str | None:
    """Run a command inside `folder`; what went wrong, in one line, or None.

    `apt-get update` reports success though it reached no mirror, so a failed fetch that it only
    warns of counts as a problem too.
    """
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return f"{name} took longer than {seconds:g} s"
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    failures = [line for line in lines if line.startswith(("E: ", "W: Failed to fetch"))]
    if result.returncode == 0 and not failures:
        return None
    said = (failures or lines[-1:] or [f"exit status {result.returncode}"])[0]
    return f"{name}: {said.removeprefix('E: ').removeprefix('W: ')}"


def _copy(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Copy the official files among `names` that `source` has; each appears whole or not at all.

    Raises _Unavailable, after all that can be copied is, if one was missing or not official.
    """
    problems = []
    for name in names:
        try:
            with replacing(folder / name) as temporary:
                shutil.copyfile(source / name, temporary)
                problem = _difference(temporary, name)
                if problem:
                    raise _Unavailable(f"{name} there is {problem}")
        except FileNotFoundError:
            problems.append(f"no {name} there")
        except _Unavailable as error:
            problems.append(str(error))
    if problems:
        raise _Unavailable("; ".join(problems))


def _difference(file: Path, name: str) -> str | None:
    """Why `file` is not the official file of that name, or None if it is."""
    try:
        found = sha256(file)
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return _digest_difference(found, name)


def _digest_difference(found: str, name: str) -> str | None:
    if found == FILES[name]:
        return None
    return f"not the official file (its SHA-256 is {found[:12]}…, not {FILES[name][:12]}…)"


def _cause(error: OSError) -> str:
    """What is at the bottom of an error of requests, without the layers around it."""
    cause: object = error.args[0] if error.args else error
    for layer in ("reason", "original_error"):  # urllib3's retries, then its proxy
        cause = getattr(cause, layer, cause)
    return str(cause).split(": ", 1)[-1]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _how_to_go_on(folder: Path, missing: list[str], tried: list[str]) -> str:
    return "\n".join(
        [
            f"Fashion-MNIST is unavailable here: {len(missing)} of {len(FILES)} files are missing",
            *(f"tried {line}" for line in tried),
            f"to go on, put these files into {folder.absolute()} and run this again: "
            + ", ".join(missing),
            f"they are at {OFFICIAL} and in the Debian package {PACKAGE}",
        ]
    )


# --- reading -------------------------------------------------------------------------------------


def load(folder: Path, verify: bool = True) -> FashionMnist:
    """The set in `folder`, read once. Raises DataError, one line that names the file.

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
    problem = verify and _digest_difference(hashlib.sha256(packed).hexdigest(), file.name)
    if problem:
        raise DataError(f"{file}: {problem}; move it away and run: fathom fetch")
    try:
        content = gzip.decompress(packed)
    except EOFError as error:
        raise DataError(f"{file}: truncated (the compressed data ends too early)") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{file}: damaged ({_one_line(error)})") from error

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
