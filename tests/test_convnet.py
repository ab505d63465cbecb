"""The image network: what its connections start as, and where it overflows.

That it equals a textbook, with every connection: test_schemes.
"""

import math

import numpy as np
import pytest
from scipy.signal import correlate

from fathom import tasks
from param_helpers import parameters_of


@pytest.fixture
def image_spec(make_spec):
    return lambda variant, **changes: make_spec(
        task="fashion", variant=variant, **{"batch_size": 3, "depth": 5, **changes}
    )


FLOAT32_MAX = float(np.finfo(np.float32).max)


@pytest.fixture
def blank_files(monkeypatch, first_batch):
    """Batches of noise where the task would read its files."""
    fashion = type(tasks.load("fashion"))
    monkeypatch.setattr(fashion, "batch", lambda self, spec, step: first_batch(spec))


def test_where_untrained_networks_of_the_published_depth_overflow(
    backend, image_spec, first_batch, blank_files
):
    """One raw stream of size x₀ enters block i as 5^(i+1)·x₀; the residual network stays small."""
    spec = image_spec("hc_dynamic", streams=1)
    params = parameters_of(spec)
    images = first_batch(spec).inputs["images"]
    x = np.array([
        [correlate(image[..., 0], weight[..., 0], "same")[::2, ::2]
         for weight in params["stem.weight"].astype(np.float64)]
        for image in images.astype(np.float64)
    ])  # fmt: skip
    if backend.device.framework == "torch":  # where a variance overflows, NaN enters the next block
        deviation = x.reshape(3, 2, -1).std(axis=-1).max()  # two groups of four channels
        expected = math.ceil(math.log(math.sqrt(FLOAT32_MAX) / deviation, 5))
    else:
        expected = math.ceil(math.log(FLOAT32_MAX / np.abs(x).max(), 5)) - 1
    found = tasks.Problem(spec).at_start(backend.ops, params)["overflow_depth"]
    # α·(x̄ φ) makes the five a little more or less; the first block, where f(x) is as large as x,
    # adds up to a layer's growth.
    assert expected - 2 <= found <= expected + 1
    for variant in ("resnet", "hc_paper_static"):
        spec = image_spec(variant)
        row = tasks.Problem(spec).at_start(backend.ops, parameters_of(spec))
        assert row == {"overflow_depth": None}
