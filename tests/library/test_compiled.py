"""`fathom.system.compiled`: kept machine code is that of the program, and may be damaged."""

import importlib
import shutil
import sys

import numpy as np
import pytest

from tests.support.commands import finished

pytest.importorskip("numba")

from numba import config

FILES = {
    "__init__": "",
    "constants": "STEP = 3.0\n",
    "helper": "from fathom.system.compiled import compiled\nFACTOR, SHIFT = 2.0, 5.0\n\n"
    "@compiled\ndef scaled(x):\n    return x * FACTOR\n",
    "loop": "from fathom.system.compiled import compiled\nfrom looping import constants\n"
    "from looping.helper import SHIFT, scaled\n\n"
    "@compiled\ndef total(x):\n    found = SHIFT\n    for n in range(len(x)):\n"
    "        found += scaled(x[n]) + constants.STEP\n    return found\n",
}
"""A package whose loop reads a constant, an attribute of a module, and a helper in other files."""

X = np.array([1.0, 2.0])


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Function that writes FILES, edited, and returns the loop, imported anew."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)

    def make(file=None, old="", new=""):
        folder = tmp_path / "looping"
        folder.mkdir(exist_ok=True)
        for name, text in FILES.items():
            assert name != file or old in text
            edited = text.replace(old, new) if name == file else text
            (folder / f"{name}.py").write_text(edited, encoding="utf-8")
        for name in [n for n in sys.modules if n.partition(".")[0] == "looping"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return importlib.import_module("looping.loop").total

    return make


def taken(loop):
    """Whether the loop's machine code came from a file."""
    assert len(loop.stats.cache_hits) + len(loop.stats.cache_misses) == 1
    return bool(loop.stats.cache_hits)


def kept(tmp_path):
    return sorted((tmp_path / "kept").rglob("*total*.nbc"))


def test_machine_code_of_the_same_program_is_taken_from_the_folder_of_the_user(package, tmp_path):
    assert [(loop(X), taken(loop)) for loop in (package(), package())] == [(17, False), (17, True)]
    assert len(kept(tmp_path)) == 1
    assert not [*(tmp_path / "looping").rglob("*.nb*")]


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("loop", "SHIFT, scaled", "SHIFT, scaled as scaled", 17),  # the same program
        ("loop", "import compiled", "import compiled_in_order as compiled", 17),
        ("helper", "import compiled", "import compiled_in_order as compiled", 17),
        ("helper", "5.0", "6.0", 18),
        ("helper", "2.0", "4.0", 23),
        ("helper", "x * FACTOR", "x - FACTOR", 10),
        ("constants", "3.0", "1.0", 13),
    ],
    ids=[
        "same",
        "options",
        "options of helper",
        "constant",
        "constant of helper",
        "helper",
        "module",
    ],
)
def test_an_edit_of_any_file_compiles_again(package, file, old, new, expected):
    package()(X)
    loop = package(file, old, new)
    assert loop(X) == expected
    assert taken(loop) == ("as scaled" in new)


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def folder_instead(file):
    file.unlink()
    file.mkdir()


def file_instead_of_its_folder(file):
    shutil.rmtree(file.parent)
    file.parent.write_bytes(b"")


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:100]),
        lambda file: file.write_bytes(b"\x80\x04garbage." * 100),
        flipped,
        folder_instead,
        file_instead_of_its_folder,
    ],
    ids=["empty", "cut", "garbage", "one bit", "a folder", "no folder"],
)
def test_damaged_machine_code_is_compiled_again_and_repaired(package, tmp_path, damage):
    package()(X)
    (file,) = kept(tmp_path)
    loop = package()
    damage(file)
    assert (loop(X), taken(loop)) == (17, False)
    if file.is_file():
        again = package()
        assert (again(X), taken(again)) == (17, True)


def test_without_a_folder_loops_compile_in_each_process(package, monkeypatch):
    def none(**named):
        raise PermissionError(13, "Permission denied", named["dir"])

    monkeypatch.setattr("tempfile.TemporaryFile", none)
    assert [(loop(X), taken(loop)) for loop in (package(), package())] == [(17, False)] * 2


def test_a_process_with_kept_machine_code_does_not_load_the_compiler(tmp_path):
    """The compiler takes most of the time of the first pass in a process."""
    code = (
        "import sys; from fathom.arithmetic import loops; loops.load(); "
        "print('numba.typed.dictimpl' in sys.modules)"
    )
    run = lambda: finished(sys.executable, "-c", code, NUMBA_CACHE_DIR=str(tmp_path))  # noqa: E731
    assert [run().stdout.strip() for _ in range(2)] == ["True", "False"]
