"""Deep token networks: values, gradients and overflow of both backends against the oracle."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from fathom.operations.ops import LARGE
from fathom_study import tasks
from fathom_study.models.gain import composite_gain
from fathom_study.tasks import example_batch
from tests.support import naive
from tests.support.gradients import first_row
from tests.support.specs import (
    make_spec,
    oracle_forward,
    parameters_of,
    parameters_off_symmetry,
    trainer_on,
)

GAINS = (
    "gain_proxy_log10_max_entry", "amax_forward_log10", "amax_backward_log10",
    "row_error_log10", "column_error_log10",
)  # fmt: skip
VARIANTS = ["baseline", "hc", "mhc"]


def backend_forward(backend, spec, params, inputs):
    """Logits and H_res (None for the baseline), as float64 arrays."""
    ops = backend.ops
    arrays = {name: ops.asarray(value) for name, value in params.items()}
    on_device = {name: ops.asarray(x) for name, x in inputs.items()}
    output = tasks.Problem(spec).network.forward(ops, arrays, on_device)
    return [
        None if values is None else ops.to_numpy(values).astype(np.float64)
        for values in (output.logits, mixing_of(output))
    ]


def mixing_of(output):
    return None if output.mixed is None else output.mixed.H_res


# --- both backends against the oracle, deep ------------------------------------------------------

DEEP = 24


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("recipe", "moved"),
    [("mlx-defaults", False), ("torch-defaults", False), ("mlx-defaults", True)],
)
def test_a_deep_network_equals_the_oracle(backends_here, variant, recipe, moved):
    spec = make_spec(variant=variant, recipe=recipe, depth=DEEP)
    params = parameters_off_symmetry(spec) if moved else parameters_of(spec)
    batch = example_batch(spec)
    expected = oracle_forward(spec, params, batch.inputs)
    mixing = mixing_of(expected)
    gain = composite_gain(np.ones((1, 1, 1)) if mixing is None else mixing)
    loss = naive.cross_entropy(expected.logits, batch.targets)
    for backend in backends_here.values():
        logits, H_res = backend_forward(backend, spec, params, batch.inputs)
        # Float32 rounds by 6e-8; over dozens of normalised layers this grows to about 5e-7.
        assert logits == pytest.approx(expected.logits, abs=3e-6 * np.abs(expected.logits).max())
        assert (H_res is None) == (variant == "baseline")
        if H_res is not None:
            assert H_res == pytest.approx(mixing, rel=3e-6)
        row = first_row(trainer_on(backend, spec, params), tasks.Problem(spec), [batch])
        # A mean over 32 tokens of numbers near 4: a few roundings of float32.
        assert row["loss"] == pytest.approx(loss, rel=1e-6)
        # A relative error of 2e-7 in each of 24 factors is 2e-6 in the logarithm of the product.
        gains = [row[name] for name in GAINS]
        assert gains == pytest.approx(list(map(float, gain)), abs=3e-6)
        assert row["nonfinite_event"] == 0


@pytest.mark.parametrize(
    ("variant", "depth"),
    [
        ("baseline", 12),
        ("mhc", 12),
        ("hc", DEEP),  # activations reach 1e14, where MLX's own layer norm is wrong
    ],
)
def test_gradients_of_a_deep_network_equal_the_oracle(check_first_step, variant, depth):
    spec = make_spec(variant=variant, depth=depth, beta1=0.0, batch_size=2)
    check_first_step(spec, example_batch(spec), rel=1e-5, floor=1e-7)


# --- overflow of hc at 48 layers -----------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["mlx-defaults", "torch-defaults"])
def test_hc_at_48_layers_overflows_to_nan_on_torch_and_to_chance_on_mlx(backend, recipe):
    """The variance overflows: NaN on PyTorch, chance level on MLX; the gain stays finite."""
    spec = make_spec(variant="hc", depth=48, recipe=recipe)
    params, batch = parameters_of(spec), example_batch(spec)
    row = first_row(trainer_on(backend, spec, params), tasks.Problem(spec), [batch])
    logits, H_res = backend_forward(backend, spec, params, batch.inputs)
    if backend.device.framework == "torch":
        assert math.isnan(row["loss"])
        assert row["nonfinite_event"] == 1
    else:
        assert row["loss"] == pytest.approx(math.log(spec.model.vocab), abs=1e-4)
        assert row["nonfinite_event"] == 0
        assert (logits == 0).all()  # the last layer norm gives its bias, zero at the start
    assert np.isfinite(H_res).all()
    assert row["gain_proxy_log10_max_entry"] == pytest.approx(27.35, abs=0.01)
    assert math.isfinite(row["amax_forward_log10"])
    assert math.isfinite(row["amax_backward_log10"])


# --- MLX's GELU and attention: large arrays in loops, GELU of others from arithmetic alone --------


@pytest.fixture
def gelu_and_derivative(connect_cpu):
    """Function that returns MLX's GELU and its derivative, from a cotangent of 3."""
    ops = connect_cpu("mlx").ops
    import mlx.core as mx

    def evaluate(x):
        x = mx.array(x.astype(np.float32))
        (y,), (gradient,) = mx.vjp(ops.gelu, [x], [mx.full(x.shape, 3.0)])
        return np.asarray(y), np.asarray(gradient) / 3

    return evaluate


@pytest.mark.parametrize("size", [2**16, LARGE])
@pytest.mark.parametrize("reach", [1e-3, 1, 6, 14])
def test_mlx_gelu_and_its_derivative_to_one_millionth(gelu_and_derivative, reach, size):
    x = np.linspace(-reach, reach, size, dtype=np.float32)
    y, derivative = gelu_and_derivative(x)
    x = x.astype(np.float64)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    assert np.abs(y - x * ndtr(x)).max() <= 1e-6
    assert np.abs(derivative - (ndtr(x) + x * density)).max() <= 1e-6


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rows", [8, LARGE // 6 + 1])
def test_mlx_gelu_of_huge_and_nonfinite_inputs(gelu_and_derivative, rows):
    """Values are x Φ(x), but NaN at −∞, where 0·∞ is undefined, as in the native product."""
    kinds = [0.0, 1e30, -1e30, math.inf, -math.inf, math.nan]
    y, derivative = gelu_and_derivative(np.tile(kinds, (rows, 1)))
    assert y[0] == pytest.approx([0, 1e30, 0, math.inf, math.nan, math.nan], nan_ok=True)
    assert derivative[0, :5] == pytest.approx([0.5, 1, 0, 1, 0], abs=1e-6)
    assert math.isnan(derivative[0, 5])


@pytest.fixture
def attention_and_gradients(connect_cpu):
    """Function: causal attention in MLX and its gradients for ones, [4, B, H, T, D/H]."""
    ops = connect_cpu("mlx").ops
    import mlx.core as mx

    def evaluate(*parts):
        q, k, v = map(ops.asarray, parts)
        (out,), gradients = mx.vjp(ops.causal_attention, [q, k, v], [mx.ones(q.shape)])
        return np.stack([np.asarray(x) for x in (out, *gradients)])

    return evaluate


def test_mlx_attention_is_exact_up_to_float32(attention_and_gradients, connect_cpu):
    """Against PyTorch in float64; gradients are for a cotangent of ones."""
    connect_cpu("torch")
    import torch

    parts = np.random.default_rng(0).standard_normal((3, 2, 2, 256, 4)) * 3
    parts = parts.astype(np.float32).astype(np.float64)
    assert LARGE == 2 * 2 * 256 * 256  # scores
    q, k, v = (torch.tensor(part, requires_grad=True) for part in parts)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    exact = [out.detach(), *torch.autograd.grad(out.sum(), (q, k, v))]
    for result, expected in zip(attention_and_gradients(*parts), exact, strict=True):
        # A score near 50, a sum of four products, is rounded by 6 · 50 · 2⁻²⁴ = 2e-5, and so is its
        # exponential, relative; sums of 256 of them have another 256 · 2⁻²⁴ = 2e-5.
        assert result == pytest.approx(expected.numpy(), abs=4e-5 * float(expected.abs().max()))


@pytest.mark.filterwarnings("error")
def test_mlx_attention_with_a_nan_key(attention_and_gradients):
    parts = np.random.default_rng(0).standard_normal((3, 1, 1, 512, 4))
    parts[1, 0, 0, 200] = np.nan  # a key that rows 200 and later see
    out, *_ = attention_and_gradients(*parts)
    assert np.isfinite(out[0, 0, :200]).all()
    assert np.isnan(out[0, 0, 200:]).all()
