"""Compile functions that loop over NumPy arrays, with numba, and keep their machine code in files.

They are in the `__pycache__` beside the function's file, in NUMBA_CACHE_DIR if that is set, or in
the user's cache folder. Compiling takes some tenths of a second for each function, and reading its
machine code milliseconds.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba import njit
from numba.core import config
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from fathom.system.text import digits

SWITCHES = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "USING_SVML", "BOUNDSCHECK")
"""Settings of numba that change machine code and are not a function's own."""


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:  # noqa: ANN401
    """The function compiled at its first call; kept in a file, if there is a folder for it."""
    result = njit(function, error_model="numpy", **options)
    if isinstance(result, Dispatcher):  # NUMBA_DISABLE_JIT leaves the function as it is
        with suppress(RuntimeError):  # no folder that this user may write to
            result._cache = MachineCode(result)
    return result


class MachineCode(FunctionCache):
    """Files of a function's machine code, each with the hash of all that was compiled in its name.

    numba's own files are found by the function's file and bytecode alone, and errors of reading and
    writing them end the program. Here an unreadable or damaged file counts as absent, and one that
    cannot be written is left out.
    """

    def __init__(self, function: Dispatcher) -> None:
        super().__init__(function.py_func)
        self._function = function

    def load_overload(self, sig: Any, target_context: Any) -> Any:  # noqa: ANN401
        # Enough to run machine code. numba loads what compiling needs, five times as much, later.
        rtsys.initialize(target_context)
        with suppress(OSError):
            content = self._file(sig, target_context.codegen()).read_bytes()
            if content[:32] == sha256(content[32:]).digest():
                return self._impl.rebuild(target_context, pickle.loads(content[32:]))  # noqa: S301
        return None

    def save_overload(self, sig: Any, data: Any) -> None:  # noqa: ANN401
        if not self._impl.check_cachable(data):
            return
        content = dumps(self._impl.reduce(data))
        with suppress(OSError):
            self._impl.locator.ensure_cache_path()
            with self._cache_file._open_for_write(self._file(sig, data.codegen)) as file:
                file.write(sha256(content).digest() + content)

    def _file(self, sig: Any, codegen: Any) -> Path:  # noqa: ANN401
        function = self._function.py_func
        package = function.__module__.partition(".")[0]
        made_of = (
            [module.__version__ for module in (numba, llvmlite, np)],
            [str(getattr(config, name)) for name in SWITCHES],
            self._index_key(sig, codegen),
            _program(self._function, frozenset(), package, []),
        )
        return Path(self.cache_path, f"{self._impl.filename_base}.{digits(repr(made_of))}.nbc")


def _program(value: Any, names: frozenset[str], package: str, seen: list[Any]) -> object:  # noqa: ANN401
    """All of a package that machine code is made of: a function, and what its global names mean.

    That is bytecode and options of the function and of those that it calls, and constants. `names`:
    those that are read from a module. `seen`: functions and modules so far.
    """
    function = getattr(value, "py_func", value)
    origin = getattr(function, "__module__", None) or getattr(function, "__name__", "")
    if origin.partition(".")[0] != package or not isinstance(function, FunctionType | ModuleType):
        return dumps(value)
    if (function, names) in seen:
        return seen.index((function, names))
    seen.append((function, names))
    if isinstance(function, ModuleType):
        content, namespace = [], vars(function)
    else:
        codes, namespace = [*_codes(function.__code__)], function.__globals__
        names = frozenset(name for code in codes for name in code.co_names)
        options = sorted(getattr(value, "targetoptions", {}).items())
        content = [
            *((key, sorted(o) if isinstance(o, set) else o) for key, o in options),
            *((code.co_code, code.co_names) for code in codes),
            *(c for code in codes for c in code.co_consts if not isinstance(c, CodeType)),
            function.__defaults__,
        ]
    read = sorted(names & namespace.keys())
    return content, [(name, _program(namespace[name], names, package, seen)) for name in read]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


compiled = partial(_compile, fastmath={"reassoc", "contract"})
"""Decorator: sums in any order, as in a matrix product; infinities and NaN are kept."""

compiled_in_order = partial(_compile, fastmath=False)
"""Decorator: operations in the written order."""
