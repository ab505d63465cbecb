"""The image network: the depth at which it overflows.

test_schemes compares the network with a textbook, for every connection.
"""

import math
from functools import partial

import numpy as np
from scipy.signal import correlate

from fathom_study import tasks
from fathom_study.tasks import example_batch
from tests.support.specs import make_spec, parameters_of

image_spec = partial(make_spec, task="fashion", batch_size=3, depth=5)
FLOAT32_MAX = float(np.finfo(np.float32).max)


def test_overflow_depth_of_untrained_networks(backend, monkeypatch):
    """One raw stream of size x₀ enters block i as 5^(i+1)·x₀; the residual network stays small."""
    # Batches of noise instead of the files of the task.
    fashion = type(tasks.load("fashion"))
    monkeypatch.setattr(fashion, "batch", lambda self, spec, step: example_batch(spec))
    spec = image_spec(variant="hc_dynamic", streams=1)
    params = parameters_of(spec)
    images = example_batch(spec).inputs["images"]
    x = np.array([
        [correlate(image[..., 0], weight[..., 0], "same")[::2, ::2]
         for weight in params["stem.weight"].astype(np.float64)]
        for image in images.astype(np.float64)
    ])  # fmt: skip
    if backend.device.framework == "torch":  # an overflow of variance is NaN in the next block
        deviation = x.reshape(3, 2, -1).std(axis=-1).max()  # two groups of four channels
        expected = math.ceil(math.log(math.sqrt(FLOAT32_MAX) / deviation, 5))
    else:
        expected = math.ceil(math.log(FLOAT32_MAX / np.abs(x).max(), 5)) - 1
    depth = tasks.Problem(spec).at_start(backend.ops, params)["overflow_depth"]
    # α·(x̄ φ) changes the factor 5 slightly. The first block, where f(x) is as large as x, adds up
    # to a layer's growth.
    assert expected - 2 <= depth <= expected + 1
    for variant in ("resnet", "hc_paper_static"):
        spec = image_spec(variant=variant)
        row = tasks.Problem(spec).at_start(backend.ops, parameters_of(spec))
        assert row == {"overflow_depth": None}
