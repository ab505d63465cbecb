"""Helpers for tests of data sets: files that stand in for a set."""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np


def put_texts(folder, **texts):
    """Write texts or bytes as NAME.txt and return the folder."""
    folder.mkdir(exist_ok=True)
    for name, content in texts.items():
        content = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}.txt").write_bytes(content)
    return folder


def put_archive(file, members):
    """Write members, content by name, as a gzipped tar archive in a new folder."""
    file.parent.mkdir()
    with tarfile.open(file, mode="w:gz") as packed:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))


def random_images(*counts):
    """Noise images and labels for each count (training, test), in the order of the files."""
    rng = np.random.default_rng(8)
    return [
        rng.integers(0, high, size, dtype=np.uint8)
        for count in counts
        for high, size in ((256, (count, 28, 28)), (10, count))
    ]


def put_idx(folder, names, *arrays):
    """Write arrays as gzipped IDX files and return their SHA-256 hashes by name."""
    folder.mkdir(parents=True)
    for name, array in zip(names, arrays, strict=True):
        header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
        (folder / name).write_bytes(gzip.compress(header + array.tobytes(), mtime=0))
    return {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names}
