"""Parameters: of tests, by name, and of networks."""

from collections.abc import Mapping
from typing import Any

import pytest

from fathom.backends.numpy import NumpyOps
from fathom.tasks import Problem, Trained

OF_EACH_KIND = (
    "plain", "hc_causal", "mhc_static", "hc_paper", "mhc_paper", "mhc_gated_dynamic",
    "deepseek_v41", "qwen4_exp", "altup", "residual_scaled", "muse_spark", "dory", "laurel",
    "frac", "inkling2", "muddformer",
)  # fmt: skip
"""Schemes of each kind of connection and of coefficients."""


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


def end_of(spec, params):
    """The end of a training with these parameters, as the oracle sees it."""
    ops = NumpyOps()
    exact = {name: ops.asarray(value) for name, value in params.items()}
    return Trained(
        Problem(spec),
        ops,
        lambda function, x: function(exact, {name: ops.asarray(v) for name, v in x.items()}),
    )
