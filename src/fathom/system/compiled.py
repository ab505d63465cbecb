"""Functions of NumPy arrays in loops, which numba compiles.

The first call in a process takes half a second, and the first call ever a few tenths more for each
function: what was compiled is kept beside its file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from numba import njit


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:  # noqa: ANN401
    """The function compiled at its first call; kept in a file, if there is a folder for it."""
    try:
        return njit(function, cache=True, error_model="numpy", **options)
    except RuntimeError:  # no folder that this user may write to
        return njit(function, error_model="numpy", **options)


compiled = partial(_compile, fastmath={"reassoc", "contract"})
"""Options of numba: sums in any order, as in a matrix product; infinities and NaN kept."""

compiled_in_order = partial(_compile, fastmath=False)
"""Options of numba: operations in the written order."""
