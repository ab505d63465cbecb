"""A faster matrix product for MLX on Linux.

MLX's CPU wheel for Linux multiplies matrices with a reference BLAS, ten to a hundred times slower
than a tuned one. Its `sgemm_` is an ordinary dynamic symbol, so a tuned library that is loaded
first replaces it.
"""

import ctypes
import ctypes.util
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

SWITCH = "FATHOM_MLX_BLAS"
"""Environment variable: `off` keeps MLX's own library."""


def preload() -> str | None:
    """Load the first tuned BLAS that is installed; call it before `mlx.core` is imported.

    Returns its name, `reference` if there is none or it is switched off, and None on systems where
    MLX has its own tuned BLAS.
    """
    if sys.platform != "linux":
        return None
    if os.environ.get(SWITCH, "auto") != "off":
        for name, file in _candidates():
            try:
                library = ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue  # present but not loadable: try the next
            if hasattr(library, "sgemm_"):
                return name
    return "reference"


def _candidates() -> Iterator[tuple[str, str]]:
    """(name, file) of libraries with a tuned `sgemm_`, the quickest to load first."""
    for name in ("openblas", "mkl_rt"):
        file = ctypes.util.find_library(name)
        if file:
            yield name, file
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:  # its CPU library has a tuned BLAS inside
        yield "torch", str(Path(torch.origin).parent / "lib" / "libtorch_cpu.so")
