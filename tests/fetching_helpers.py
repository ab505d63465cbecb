"""What the tests of data sets share: files that stand in for a set, and what is in a folder."""

import gzip
import hashlib
import struct


def contents(folder):
    """Every file of a folder, hidden ones too."""
    return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.exists() else {}


def put_texts(folder, **texts):
    """Write texts, or bytes, as NAME.txt; the folder."""
    folder.mkdir(exist_ok=True)
    for name, content in texts.items():
        content = content if isinstance(content, bytes) else content.encode()
        (folder / f"{name}.txt").write_bytes(content)
    return folder


def put_idx(folder, names, *arrays):
    """Write arrays as packed IDX files; their hashes by name."""
    folder.mkdir()
    for name, array in zip(names, arrays, strict=True):
        header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
        (folder / name).write_bytes(gzip.compress(header + array.tobytes(), mtime=0))
    return {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names}
