"""The image network and its connections: both backends against the oracle, and by other means."""

import math

import numpy as np
import pytest
from scipy.signal import correlate

from fathom.models import vision
from fathom.models.connections import VARIANTS, PlainCausalConnection
from fathom.study import Spec
from fathom.train import (
    connection_of,
    initial_parameters,
    learning_rate,
    objective,
    training_batch,
    where_untrained_overflows,
)

IMAGE_VARIANTS = sorted(name for name, kind in VARIANTS.items() if kind.task == "fashion")


def image_spec(variant="resnet", depth=5, streams=3, **optimizer):
    return Spec(
        study="images", depth=depth, variant=variant, backend="torch", seed=0, task="fashion",
        recipe="mlx", steps=10, batch_size=3, model={"width": 8, "streams": streams},
        optimizer={"lr": 8e-4, "beta1": 0.0, **optimizer},
    )  # fmt: skip


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return rng.random((3, 28, 28, 1), dtype=np.float32), rng.integers(0, 10, 3).astype(np.int32)


def keep_mask(spec):
    rng = np.random.default_rng(1)
    return rng.random((spec.depth, 3, 14, 14, spec.model.width)) > 0.1


def moved(spec):
    """Initial parameters, each moved a little: no zero bias, no symmetric matrix."""
    rng = np.random.default_rng(2)
    return {
        name: (value + 0.05 * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in initial_parameters(spec).items()
    }


def oracle(spec, params, images, keep):
    from fathom.backends.numpy import NumpyOps

    ops = NumpyOps()
    exact = {name: ops.asarray(value) for name, value in params.items()}
    return ops, exact, (ops.asarray(images), ops.asarray(keep))


def first_step(backend, spec, params, inputs, targets, start):
    trainer = start(backend, spec, params)
    trainer.step(inputs, targets, spec.optimizer.lr)
    return trainer


@pytest.mark.parametrize("variant", IMAGE_VARIANTS)
def test_loss_and_logits_equal_the_oracle(backend, variant, images, start):
    spec = image_spec(variant)
    params, keep = moved(spec), keep_mask(spec)
    ops, exact, inputs = oracle(spec, params, images[0], keep)
    expected = vision.forward(ops, spec.model, connection_of(spec), exact, *inputs).logits
    arrays = {name: backend.ops.asarray(value) for name, value in params.items()}
    found = vision.forward(
        backend.ops, spec.model, connection_of(spec), arrays,
        backend.ops.asarray(images[0]), backend.ops.asarray(keep),
    ).logits  # fmt: skip
    # Float32 through some forty operations; raw hc multiplies by five in every layer.
    assert backend.ops.to_numpy(found) == pytest.approx(expected, rel=2e-4, abs=2e-4)

    trainer = first_step(backend, spec, params, (images[0], keep), images[1], start)
    expected_loss = objective(spec, ops)(exact, inputs, images[1]).loss
    assert trainer.collect()["loss"][0] == pytest.approx(expected_loss, rel=2e-5)


@pytest.mark.parametrize("variant", IMAGE_VARIANTS)
def test_gradients_equal_finite_differences_of_the_oracle(backend, variant, images, start):
    spec = image_spec(variant, depth=3)
    params, keep = moved(spec), keep_mask(spec)
    state = first_step(backend, spec, params, (images[0], keep), images[1], start).state()
    ops, exact, inputs = oracle(spec, params, images[0], keep)
    loss = objective(spec, ops)
    rng = np.random.default_rng(3)
    for name, value in exact.items():
        gradient = state[f"m.{name}"].astype(np.float64)  # AdamW's first moment, as β1 is 0
        direction = rng.standard_normal(value.shape)
        direction /= np.linalg.norm(direction)
        step = 1e-5
        sides = [
            loss({**exact, name: value + sign * step * direction}, inputs, images[1]).loss
            for sign in (1, -1)
        ]
        expected = (sides[0] - sides[1]) / (2 * step)
        scale = max(np.linalg.norm(gradient), 1e-3)
        # ReLU's kinks and float32 leave a few 1e-4 of the gradient's length.
        assert (gradient * direction).sum() == pytest.approx(expected, abs=2e-3 * scale), name


@pytest.mark.parametrize("variant", ["hc_causal", "mhc_causal"])
@pytest.mark.parametrize("depth", [1, 2, 7, 16, 33])
def test_sums_over_finished_blocks_equal_the_plain_sum(variant, depth, images):
    spec = image_spec(variant, depth=depth)
    params, keep = moved(spec), keep_mask(spec)
    ops, exact, inputs = oracle(spec, params, images[0], keep)
    connection = connection_of(spec)

    class Plain(type(connection)):
        read = PlainCausalConnection.read

    plain = Plain(connection.streams, connection.sinkhorn_iterations)
    logits = [
        vision.forward(ops, spec.model, c, exact, *inputs).logits for c in (connection, plain)
    ]
    assert logits[0] == pytest.approx(logits[1], rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("depth", [7, 33])
def test_gradients_through_blocks_equal_those_of_the_plain_sum(backend, depth, images, monkeypatch):
    from fathom.backends import Objective
    from fathom.recipes import RECIPES

    spec = image_spec("mhc_causal", depth=depth)
    params, keep = moved(spec), keep_mask(spec)
    connection = connection_of(spec)

    class Plain(type(connection)):
        read = PlainCausalConnection.read

    def gradients(c):
        def loss(p, inputs, targets):
            output = vision.forward(backend.ops, spec.model, c, p, *inputs)
            return Objective(backend.ops.cross_entropy(output.logits, targets), {})

        trainer = backend.trainer(params, loss, spec.optimizer, RECIPES["mlx"])
        trainer.step((images[0], keep), images[1], 1e-3)
        return {k: v for k, v in trainer.state().items() if k.startswith("m.")}

    chunked = gradients(connection)
    plain = gradients(Plain(connection.streams, connection.sinkhorn_iterations))
    for name, expected in plain.items():
        largest = np.abs(expected).max()
        assert chunked[name] == pytest.approx(expected, abs=float(1e-4 * largest) + 1e-7), name


def test_causal_weights_are_convex_and_look_at_the_past_only():
    spec = image_spec("mhc_causal", depth=9)
    ops, exact, _ = oracle(spec, moved(spec), np.zeros((1, 28, 28, 1)), keep_mask(spec))
    weights = connection_of(spec).coefficients(ops, exact)
    assert weights.sum(axis=1) == pytest.approx(np.ones(9))
    assert (weights >= 0).all()
    assert (np.triu(weights, k=1) == 0).all()


def test_convolution_equals_scipy(backend):
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((2, 9, 9, 3)), rng.standard_normal((4, 3, 3, 3))
    b = rng.standard_normal(4)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = (
        np.stack(
            [[correlate(image, kernel, mode="valid")[..., 0] for kernel in w] for image in padded]
        ).transpose(0, 2, 3, 1)
        + b
    )
    ops = backend.ops
    for stride in (1, 2):
        found = ops.conv2d(*(ops.asarray(a.astype(np.float32)) for a in (x, w, b)), stride=stride)
        assert ops.to_numpy(found) == pytest.approx(expected[:, ::stride, ::stride], abs=1e-4)


def test_group_norm_takes_consecutive_channels(backend):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 3, 3, 6)) * 4 + 1
    weight, bias = rng.standard_normal(6), rng.standard_normal(6)
    expected = np.empty_like(x)
    for image in range(2):
        for first in (0, 3):
            part = x[image, :, :, first : first + 3]
            expected[image, :, :, first : first + 3] = (part - part.mean()) / math.sqrt(
                part.var() + 1e-5
            )
    expected = expected * weight + bias
    ops = backend.ops
    arrays = [ops.asarray(a.astype(np.float32)) for a in (x, weight, bias)]
    assert ops.to_numpy(ops.group_norm(arrays[0], 2, *arrays[1:])) == pytest.approx(
        expected, abs=1e-5
    )


def test_hc_as_its_paper_starts_it_is_the_residual_network(images):
    """One stream is read, all are written to, none are mixed: each stream is the residual one."""
    logits = {}
    for variant in ("resnet", "hc_paper"):
        spec = image_spec(variant)
        ops, exact, inputs = oracle(spec, initial_parameters(spec), images[0], keep_mask(spec))
        logits[variant] = vision.forward(
            ops, spec.model, connection_of(spec), exact, *inputs
        ).logits
    # The sum of S equal streams is S times the residual state: the last group norm removes S.
    assert logits["hc_paper"] == pytest.approx(logits["resnet"], rel=1e-4)


def test_one_raw_stream_grows_fivefold_in_every_layer():
    """`hc_dynamic` at S = 1: H̃ starts at 5 for reading and mixing, plus α·(x̄ φ) of order 0.01."""
    spec = image_spec("hc_dynamic", depth=4, streams=1)
    ops, exact, _ = oracle(
        spec, initial_parameters(spec), np.zeros((1, 28, 28, 1)), keep_mask(spec)
    )
    connection = connection_of(spec)
    x = np.random.default_rng(6).standard_normal((2, 14, 14, 8))
    streams = connection.open(ops, x)
    for c in connection.per_layer(ops, connection.coefficients(ops, exact), 4):
        streams = connection.update(ops, c, streams, 0 * x)
    ratio = np.abs(streams[0]).max() / np.abs(x).max()
    assert ratio == pytest.approx(5**4, rel=0.05)


def test_a_step_reports_the_mixing_before_its_own_update(backend, images, start):
    """`hc_paper` mixes by its parameter as it is: H_res = I at first, and 0.9 moves it."""
    spec = image_spec("hc_paper", lr=0.9)
    trainer = start(backend, spec)
    for _ in range(2):
        trainer.step((images[0],), images[1], 0.9)
    before, after = trainer.collect()["H_res"]
    assert np.array_equal(before, np.broadcast_to(np.eye(3), (5, 3, 3)))
    assert np.abs(after - before).max() > 0.1


FLOAT32_MAX = float(np.finfo(np.float32).max)


def test_where_untrained_networks_of_the_published_depth_overflow(backend, images, monkeypatch):
    """One raw stream of size x₀ enters block i as 5^(i+1)·x₀; the residual network stays small."""
    monkeypatch.setattr("fathom.tasks.fashion.batch", lambda spec, step: images)
    spec = image_spec("hc_dynamic", streams=1)
    stem = initial_parameters(spec)["stem.weight"].astype(np.float64)
    x = np.array([
        [correlate(image[..., 0], weight[..., 0], "same")[::2, ::2] for weight in stem]
        for image in images[0].astype(np.float64)
    ])  # fmt: skip
    if backend.device.framework == "torch":  # where a variance overflows, NaN enters the next block
        deviation = x.reshape(3, 2, -1).std(axis=-1).max()  # two groups of four channels
        expected = math.ceil(math.log(math.sqrt(FLOAT32_MAX) / deviation, 5))
    else:
        expected = math.ceil(math.log(FLOAT32_MAX / np.abs(x).max(), 5)) - 1
    found = where_untrained_overflows(spec, backend.ops)["overflow_depth"]
    # α·(x̄ φ) makes the five a little more or less; the first block, where f(x) is as large as x,
    # adds up to a layer's growth.
    assert expected - 2 <= found <= expected + 1
    for variant in ("resnet", "hc_paper", "mhc_causal"):
        row = where_untrained_overflows(image_spec(variant), backend.ops)
        assert row == {"overflow_depth": None}


def test_dropout_drops_its_share_and_is_the_same_for_every_backend(monkeypatch):
    from fathom.tasks import fashion

    spec = image_spec(depth=8)
    blank = (np.zeros((3, 28, 28, 1), np.float32), np.zeros(3, np.int32))
    monkeypatch.setattr(fashion, "batch", lambda spec, step: blank)
    (_, keep), _ = training_batch(spec, 0)
    assert keep.shape == (8, 3, 14, 14, 8)
    # 37 632 draws: the share's standard deviation is 0.0015.
    assert 1 - keep.mean() == pytest.approx(0.1, abs=0.008)
    assert (training_batch(spec, 0)[0][1] == keep).all()
    assert (training_batch(spec, 1)[0][1] != keep).any()


def test_the_learning_rate_by_hand():
    cosine = image_spec(schedule="cosine", warmup_steps=2)
    rates = [learning_rate(cosine, step) / 8e-4 for step in range(10)]
    assert rates[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert rates[6] == pytest.approx(0.5)  # half of the eight steps after the warm-up
    assert rates[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert learning_rate(image_spec(), 9) == 8e-4
