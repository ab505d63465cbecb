"""Compile functions that loop over NumPy arrays, with numba.

The first call in a process takes half a second, and the first call ever a few tenths more for each
function: compiled code is kept beside the function's file.
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
"""Decorator: sums in any order, as in a matrix product; infinities and NaN are kept."""

compiled_in_order = partial(_compile, fastmath=False)
"""Decorator: operations in the written order."""
