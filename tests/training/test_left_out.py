"""Networks without one of their blocks, and the number of blocks that matter."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest

from fathom.operations.numpy_ops import NumpyOps
from fathom_study.models.network import without_block
from fathom_study.tasks import Problem, Trained, example_batch
from fathom_study.train import train
from tests.support import naive
from tests.support.specs import exact_loss, make_spec, parameters_off_symmetry

NETWORKS = {
    "transformer, whole blocks": {"wrap": "block"},
    "transformer, sub-layers": {"wrap": "sublayer"},
    "convnet": {"task": "fashion"},
}
LAST = ("attention_out", "down", "conv2")
"""Last layers of a block's functions, with parameters `block.NAME.weight` and `.bias`."""


def logits(network, params, inputs):
    return network.forward(NumpyOps(), params, inputs).logits


def without_output(params, block):
    """Parameters with the last layers of a block's functions set to zero."""
    zeroed = copy.deepcopy(params)
    for name in zeroed:
        if name.split(".")[0] == "block" and name.split(".")[1] in LAST:
            zeroed[name][block] = 0
    return zeroed


@pytest.mark.parametrize("variant", ["plain", "mhc", "hc_paper", "mhc_causal", "altup"])
@pytest.mark.parametrize("network", NETWORKS)
def test_leaving_a_block_out_equals_zeroing_its_last_layers(network, variant):
    spec = make_spec(batch_size=2, **NETWORKS[network], variant=variant)
    problem, params = Problem(spec), naive.exact(parameters_off_symmetry(spec))
    inputs = {n: v for n, v in example_batch(spec).inputs.items() if n != "keep"}
    whole = logits(problem.network, params, inputs)
    for block in range(3):
        left_out = logits(without_block(problem.network, block), params, inputs)
        zeroed = without_output(params, block)
        assert left_out == pytest.approx(logits(problem.network, zeroed, inputs), abs=1e-12)
        assert np.abs(left_out - whole).max() > 1e-6
        # Leaving out a block that adds nothing changes nothing.
        again = logits(without_block(problem.network, block), zeroed, inputs)
        assert again == pytest.approx(left_out, abs=1e-12)
    assert logits(problem.network, params, inputs).tolist() == whole.tolist()  # it is unchanged


def rows_of(spec, backend):
    """(rows of a training, its parameters in float64)."""
    *_, chunk = train(Problem(spec), backend)
    return chunk.rows, naive.exact(chunk.trainer.parameters())


def test_a_run_has_the_score_without_each_block_if_its_study_asks(backend):
    settings = {"backend": backend.device.framework, "steps": 12, "lr": 0.01}
    spec = make_spec(leave_out_blocks=True, **settings)
    rows, params = rows_of(spec, backend)
    last = rows[-1]
    scores = {name: value for name, value in last.items() if name.startswith("score_without_block")}
    assert list(scores) == [f"score_without_block[{block}]" for block in (1, 2, 3)]
    expected = [exact_loss(spec, without_output(params, block)) for block in range(3)]
    assert list(scores.values()) == pytest.approx(expected, rel=1e-5)
    border = 0.01 * (math.log(spec.model.vocab) - last["exact_loss"])
    assert last["layers_that_matter"] == sum(
        score > last["exact_loss"] + border for score in expected
    )
    # Losses do not change, and a study that does not ask has no such metric.
    others, _ = rows_of(make_spec(**settings), backend)
    assert "layers_that_matter" not in others[-1]
    assert [row["loss"] for row in others] == [row["loss"] for row in rows]


def matter(spec, whole, parts):
    """Number of layers that matter, from scores of the whole network and without each block."""
    trained = SimpleNamespace(problem=Problem(spec), score=lambda: whole)
    trained.scores_without_block = dict(enumerate(parts, start=1))
    return Trained.layers_that_matter.fget(trained)


def test_a_block_matters_from_1_percent_of_the_way_to_chance():
    spec = make_spec(vocab=16)
    whole, chance = 1.0, math.log(16)
    one = 0.01 * (chance - whole)
    parts = [whole + 1.01 * one, whole + 0.99 * one, whole - 9 * one, math.nan, math.inf]
    assert matter(spec, whole, parts) == 3
    assert matter(spec, math.nan, parts) is None
    # A lower accuracy is worse, and chance is a tenth.
    images = make_spec(task="fashion")
    assert matter(images, 0.9, [0.891, 0.893, 0.95, 0.89]) == 2
