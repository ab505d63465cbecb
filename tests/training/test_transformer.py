"""The transformer's parts: textbook, float64 oracle and both backends agree."""

import pytest

from fathom.operations.numpy_ops import NumpyOps
from fathom_study.tasks import Problem, Untrained, example_batch
from tests.support.specs import check_oracle, make_spec

NANOCHAT = {
    "norm": "rms", "positions": "rotary", "embedding_norm": True, "qk_norm": True,
    "biases": False, "activation": "relu2",
}  # fmt: skip
# Logits are of order one here, so only a small cap changes them.
PARTS = {
    "as the demos have it": {},
    "rms": {"norm": "rms"},
    "rotary": {"positions": "rotary"},
    "qk_norm": {"qk_norm": True},
    "embedding_norm": {"embedding_norm": True},
    "no biases": {"biases": False},
    "relu2": {"activation": "relu2"},
    "logit_cap": {"logit_cap": 0.5},
    "value residual": {"values": "residual"},
    "value embeddings": {"values": "embeddings"},
    "nanochat": {**NANOCHAT, "logit_cap": 15},
    "nanochat, low cap": {**NANOCHAT, "logit_cap": 0.5},
}
SCHEMES = {
    "plain": {"variant": "plain"},
    "mhc_gated_static": {"variant": "mhc_gated_static", "wrap": "sublayer"},
    "mhc_gated_dynamic": {"variant": "mhc_gated_dynamic", "wrap": "sublayer"},
}


def spec_with(part, scheme, recipe="unit-variance"):
    """A small spec with a part and a scheme; a head has four channels."""
    return make_spec(
        **PARTS[part], **SCHEMES[scheme], recipe=recipe, depth=2, batch_size=2, length=5, heads=2,
        width=8, beta1=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("recipe", ["unit-variance", "nanochat"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_oracle_equals_the_textbook(part, recipe, scheme):
    spec = spec_with(part, scheme, recipe)
    check_oracle(spec, example_batch(spec))


@pytest.mark.parametrize(
    ("part", "scheme"),
    [
        *((part, "plain") for part in PARTS if part != "as the demos have it"),
        ("nanochat", "mhc_gated_static"),
        ("nanochat", "mhc_gated_dynamic"),
    ],
)
def test_the_first_step_on_each_backend_equals_the_oracle(check_first_step, part, scheme):
    spec = spec_with(part, scheme)
    check_first_step(spec, example_batch(spec))


@pytest.mark.parametrize("part", ["value residual", "value embeddings"])
def test_one_layer_has_values_too(part):
    spec = make_spec(**PARTS[part], depth=1, variant="plain")
    check_oracle(spec, example_batch(spec))


def test_functions_that_read_apart_are_measured():
    """Metrics of an untrained network read the inputs of all functions."""
    spec = make_spec(variant="muddformer", wrap="sublayer", depth=2)
    problem = Problem(spec)
    inputs = Untrained(problem, NumpyOps(), problem.initial_parameters()).block_inputs
    B = spec.batch_size
    assert [len(x) for x in inputs] == [B, B, 3 * B, B]  # the first function has one source
