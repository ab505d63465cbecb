"""Parameters: of tests, by name, and of networks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fathom.backends.numpy import NumpyOps
from fathom.models.connections.schemes import SCHEMES
from fathom.tasks import Problem, Trained

OF_EACH_KIND = (
    "plain", "hc_causal", "mhc_static", "hc_paper", "mhc_paper", "mhc_gated_dynamic",
    "deepseek_v41", "qwen4_exp", "altup", "residual_scaled", "muse_spark", "dory", "laurel",
    "frac", "inkling2", "muddformer",
)  # fmt: skip
"""Schemes of each kind of connection and of coefficients."""


READ_APART = {"inkling2", "muddformer", "muddformer_normed"}
OF_SUBLAYERS = {
    name for name, row in SCHEMES.items() if row.get("kind") in ("gated", "scaled", "frac")
}
NOT_AROUND = {"block": OF_SUBLAYERS | READ_APART, "sublayer": set(), "images": READ_APART}
"""By network, the schemes that it refuses."""


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


def exact_loss(spec, params):
    """Of the token task, in float64: over every sequence, which counts up modulo V."""
    ops, model = NumpyOps(), spec.model
    counted = (np.arange(model.vocab)[:, None] + np.arange(model.length + 1)) % model.vocab
    exact = {name: ops.asarray(value) for name, value in params.items()}
    logits = Problem(spec).network.forward(ops, exact, {"tokens": counted[:, :-1]}).logits
    return float(ops.cross_entropy(logits, counted[:, 1:]))


def end_of(spec, params):
    """The end of a training with these parameters, as the oracle sees it."""
    ops = NumpyOps()
    exact = {name: ops.asarray(value) for name, value in params.items()}
    return Trained(
        Problem(spec),
        ops,
        lambda function, x: function(exact, {name: ops.asarray(v) for name, v in x.items()}),
    )
