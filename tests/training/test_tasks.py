"""Refused specs; the token task against (start + t) mod V; metrics of untrained networks."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from fathom.operations.numpy_ops import NumpyOps
from fathom.settings import ConfigError
from fathom_study import tasks
from fathom_study.tasks import example_batch
from tests.support import naive
from tests.support.commands import refusal
from tests.support.specs import (
    arrays_of,
    assert_depends_on_seed_and_step,
    check_oracle,
    make_spec,
    parameters_of,
)

tokens = tasks.load("tokens")


def batch(spec, step):
    """(inputs, targets), [B, T] each."""
    batch = tokens.batch(spec, step)
    return batch.inputs["tokens"], batch.targets


MISTAKES = [
    # the demo's mhc, with static coefficients and 4 streams
    ("tokens", {"pre": {"kind": "softmax", "start": {"stream": 4}}}, "pre.start.stream is 4, but"),
    ("tokens", {"streams": 0}, "streams: input should be greater than 0"),
    ("tokens", {"streams": 6, "H_res": "kronecker"}, "take 4 or 8 streams"),
    ("tokens", {"streams": 8, "H_res": "permutations"}, "have 40320 permutations; take at most"),
    ("tokens", {"H_res": "sinkhron"}, "unknown constraint 'sinkhron'; did you mean 'sinkhorn'?"),
    ("tokens", {"coefficients": "dynamic_per_stream"}, "row_softmax_mean has no logits per str"),
    ("tokens", {"read": "late"}, "read: late needs weights that depend on the streams; use coeff"),
    # other connections
    ("tokens", {"connection": "scaled", "scale": "depths"}, "scale: unknown scale 'depths'; did y"),
    ("tokens", {"connection": "muddformer"}, "model.wrap: sublayer"),
    ("tokens", {"connection": "inkling2"}, "model.wrap: sublayer"),
    ("fashion", {"connection": "muddformer"}, "use apart: false"),
    ("fashion", {"connection": "inkling2"}, "use apart: null"),
    ("tokens", {"connection": "mhar", "heads": 3}, "use heads: 1"),
    ("tokens", {"connection": "attn_res", "gate": 0}, "a factor only with stream: true"),
    ("tokens", {"connection": "delta_attn_res", "block_size": 2}, "block_size: with stream: true"),
    ("tokens", {"connection": "denseformer", "apart": True}, "need weights: dynamic; use false"),
]
REFUSED = [
    *((task, {"connection": {"connection": "mhc", **own}}, said) for task, own, said in MISTAKES),
    ("tokens", {"decay": "weights"}, "optimizer.decay: "),
    ("tokens", {"muon": {"momentum": 1}}, "optimizer.muon.momentum: "),
    ("tokens", {"evaluate_every": 4}, "evaluate_every is 4 of 3 steps; it must not be above steps"),
    ("tokens", {"positions": "rotary", "width": 12, "heads": 4}, "rotary positions need pairs"),
    ("text", {"vocab": 65}, "the corpus has 84 distinct"),
    ("tokens", {"variant": "qwen4_exp"}, "for blocks of a transformer use model.wrap: subl"),
    ("tokens", {"variant": "scaled"}, "scaled: a block already adds its input"),
    ("graph", {"edge_signal": -1.6}, "it must lie between -1.581 and 1.581"),
    ("graph", {"degree": 9, "nodes": 10}, "degree 9 needs probabilities above 1"),
    ("graph", {"features": 1}, "features 1 must be at least communities, 2"),
    ("graph", {"labelled": 0.01}, "labelled 0.01 is 0 of 12 nodes"),
    ("state", {"group": "S5"}, "group: input should be 'S3', 'A4'"),
    ("state", {"length": 4}, "there are 1296 words of length 4"),
    ("flow", {"density": "two_moon"}, "input should be 'two_moons'"),
]


@pytest.mark.parametrize(("task", "changes", "message"), REFUSED)
def test_invalid_spec_is_refused_in_one_line(task, changes, message):
    said = refusal(make_spec, task=task, **changes, error=ConfigError)
    place = "studies.small.variants.mhc" if "connection" in changes else "studies.small"
    assert said.startswith(f"config: {place}")
    assert message in said


def test_sequences_count_up_modulo_v_and_targets_continue():
    spec = make_spec(vocab=5, length=12, batch_size=9)  # longer than V, so every row wraps
    inputs, targets = batch(spec, 3)
    assert inputs.shape == targets.shape == (9, 12)
    assert inputs.dtype == targets.dtype == np.int32
    for row, following in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert row == [(row[0] + t) % 5 for t in range(12)]
        assert following == [*row[1:], (row[-1] + 1) % 5]
    assert set(batch(make_spec(vocab=5, batch_size=99), 3)[0][:, 0]) == set(range(5))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *((name, {}) for name in ("tokens", "flow", "state", "graph")),
        *(("unrolled", {"gap": gap, "depth": 12}) for gap in ("blank", "symbols")),
    ],
)
def test_a_batch_depends_on_seed_and_step_alone(name, sizes):
    def drawn(step, **changes):
        spec = make_spec(**{"task": name, "batch_size": 8, **sizes, **changes})
        return arrays_of(tasks.load(name).batch(spec, step))

    others = {"backend": "mlx", "variant": "hc_paper", "lr": 0.5}
    assert_depends_on_seed_and_step(drawn, **others, **({} if sizes else {"depth": 9}))


SMALL = {"depth": 1, "wrap": "sublayer"}
RECURRENT = ("plain", "hc_paper_static", "mhc_paper", "hc_causal", "mhc_causal", "layer_scaled")
NETWORKS = [
    # (task, scheme, other settings, whether also on the backends: there, the other schemes have no
    # code of their own)
    ("text", "mhc_gated_dynamic", {"wrap": "sublayer", "length": 6, "width": 8}, True),
    ("state", "mhc_paper", {**SMALL, "length": 5}, True),
    *(("flow", s, {"batch_size": 3}, True)
      for s in ("plain", "hc_demo", "mhc_paper", "mhc_causal", "qwen4_exp")),
    *(("graph", s, {}, s in ("plain", "mhc_paper"))
      for s in ("plain", "mhc_paper", "hc_paper", "qwen4_exp", "hc_causal")),
    *(("unrolled", s, {"depth": 5, "gap": "symbols"}, True) for s in RECURRENT),
]  # fmt: skip
UNNAMED = {"layer_scaled": {"kind": "scaled", "scale": "layer"}}
"""Settings of the scheme without a name."""


@pytest.mark.parametrize(("task", "scheme", "changes", "on_backends"), NETWORKS)
def test_networks_equal_the_textbook(check_first_step, task, scheme, changes, on_backends):
    settings = UNNAMED.get(scheme, {"connection": scheme})
    changes = {"batch_size": 2, "beta1": 0.0, **changes}
    spec = make_spec(task=task, variant=scheme, connection=settings, **changes)
    batch = example_batch(spec) if task == "text" else tasks.load(task).batch(spec, 0)
    check_oracle(spec, batch, naive.squared_distance if task == "flow" else naive.cross_entropy)
    if on_backends:
        check_first_step(spec, batch, **({"rel": 1e-4, "loss": 1e-5} if task == "flow" else {}))


# --- metrics of the untrained network -------------------------------------------------------------


def measured(*arrays):
    """First-step metrics of a network with these inputs of its blocks."""
    start = SimpleNamespace(block_inputs=list(map(np.array, arrays)))
    return {n: m.compute(start) for n, m in tokens.step_metrics.items() if m.when == "first step"}


def test_activations_within_float32_overflow_no_layer():
    result = measured([[1.0, -1e3]], [[1e2, 2.0]])
    assert result["activation_max_log10"] == pytest.approx(3)
    assert result["overflow_layer"] is None
    assert result["overflow_activation_log10"] is None


def test_overflow_layer_is_the_first_with_variance_beyond_float32():
    # The variance of (x, −x) is x²: beyond 3.4e38 from x = 1.85e19 on.
    result = measured([[[1e19, -1e19]]], [[[3.0, -2e19], [2e19, -2e19]]], [[[1e30, 0.0]]])
    assert result["overflow_layer"] == 1
    assert result["overflow_activation_log10"] == pytest.approx(math.log10(2e19))
    assert result["activation_max_log10"] == pytest.approx(30)


@pytest.mark.parametrize(("wrap", "functions"), [("block", 3), ("sublayer", 6)])
@pytest.mark.parametrize("variant", ["baseline", "mhc"])
def test_inputs_of_the_wrapped_functions(variant, wrap, functions):
    """The first is the embedded batch, since streams are copies; the second differs from it."""
    spec, ops = make_spec(variant=variant, wrap=wrap), NumpyOps()
    params = parameters_of(spec)
    first, second, *others = tasks.Untrained(tasks.Problem(spec), ops, params).block_inputs
    assert len(others) == functions - 2
    inputs, _ = batch(spec, 0)
    embedded = params["embedding.token"].astype(float)[inputs] + params["embedding.position"]
    assert first.shape == second.shape == embedded.shape
    assert first == pytest.approx(embedded, rel=1e-6)
    assert (second != first).all()
