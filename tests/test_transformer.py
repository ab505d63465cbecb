"""The transformer's parts: a textbook ↔ the float64 oracle ↔ both backends, and each by hand."""

import pytest

NANOCHAT = {
    "norm": "rms", "positions": "rotary", "embedding_norm": True, "qk_norm": True,
    "biases": False, "activation": "relu2",
}  # fmt: skip
# Logits are of order one here: only a small cap bends them.
PARTS = {
    "as the demos have it": {},
    "rms": {"norm": "rms"},
    "rotary": {"positions": "rotary"},
    "qk_norm": {"qk_norm": True},
    "embedding_norm": {"embedding_norm": True},
    "no biases": {"biases": False},
    "relu2": {"activation": "relu2"},
    "logit_cap": {"logit_cap": 0.5},
    "nanochat": {**NANOCHAT, "logit_cap": 15},
    "nanochat, low cap": {**NANOCHAT, "logit_cap": 0.5},
}
SCHEMES = {
    "plain": {"variant": "plain"},
    "mhc_gated_static": {"variant": "mhc_gated_static", "wrap": "sublayer"},
    "mhc_gated_dynamic": {"variant": "mhc_gated_dynamic", "wrap": "sublayer"},
}


@pytest.fixture
def spec_with(make_spec):
    """A function from a part and a scheme to a small spec; width over heads is four."""

    def make(part, scheme="plain", recipe="unit-variance", **changes):
        return make_spec(
            **PARTS[part], **SCHEMES[scheme], recipe=recipe, depth=2, batch_size=2, length=5,
            heads=2, width=8, beta1=0.0, **changes,
        )  # fmt: skip

    return make


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("recipe", ["unit-variance", "nanochat"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_oracle_equals_the_textbook(spec_with, first_batch, check_oracle, part, recipe, scheme):
    spec = spec_with(part, scheme, recipe)
    check_oracle(spec, first_batch(spec))


@pytest.mark.parametrize(
    ("part", "scheme"),
    [
        *((part, "plain") for part in PARTS if part != "as the demos have it"),
        ("nanochat", "mhc_gated_static"),
        ("nanochat", "mhc_gated_dynamic"),
    ],
)
def test_the_first_step_on_each_backend_equals_the_oracle(
    spec_with, first_batch, check_first_step, part, scheme
):
    spec = spec_with(part, scheme)
    check_first_step(spec, first_batch(spec))
