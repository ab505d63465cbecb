"""Parameters of tests, by name."""

from collections.abc import Mapping
from typing import Any

import pytest

from fathom.tasks import Problem


def quick_ones(cases: Mapping[str, tuple[Any, ...]], *quick: str) -> list[Any]:
    """All cases, of which only those named are run by `make test`."""
    unknown = set(quick) - set(cases)
    assert not unknown, unknown
    return [
        pytest.param(*values, id=name, marks=() if name in quick else pytest.mark.slow)
        for name, values in cases.items()
    ]


def parameters_of(spec):
    """The initial parameters of a spec, float32 by name."""
    return Problem(spec).initial_parameters()
