"""The token network at depth: both backends against the oracle, values, gradients and overflow."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

import naive
from fathom import tasks
from fathom.config import Cell
from fathom.models.gain import composite_gain
from fathom.models.ops import LARGE
from fathom.train import step_rows, train
from gradients import STEADY
from param_helpers import parameters_of

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


def first_row(start, backend, spec, params, batch):
    """The metrics of step 0, as metrics.jsonl would hold them."""
    trainer = start(backend, spec, params)
    trainer.step([batch], STEADY)
    (row,) = step_rows(tasks.Problem(spec), trainer.collect())
    return row


def test_a_token_sees_no_later_token(make_spec, parameters_off_symmetry, first_batch, backend):
    # Nor does a connection whose weights come from the streams: it is one of each kind.
    for variant in ("mhc", "mhc_dynamic"):
        spec = make_spec(variant=variant)
        params = parameters_off_symmetry(spec)
        inputs = first_batch(spec).inputs["tokens"]
        changed = inputs.copy()
        changed[:, 5:] = (changed[:, 5:] + 7) % spec.model.vocab
        before, after = (
            backend_forward(backend, spec, params, {"tokens": x})[0] for x in (inputs, changed)
        )
        assert (before[:, :5] == after[:, :5]).all()
        assert (before[:, 5:] != after[:, 5:]).any(axis=-1).all()


# --- both backends against the oracle, deep ------------------------------------------------------

DEEP = 24


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("recipe", "moved"),
    [("mlx-defaults", False), ("torch-defaults", False), ("mlx-defaults", True)],
)
def test_a_deep_network_equals_the_oracle(
    backends_here, start, make_spec, parameters_off_symmetry, first_batch, oracle_forward,
    variant, recipe, moved,
):  # fmt: skip
    spec = make_spec(variant=variant, recipe=recipe, depth=DEEP)
    params = parameters_off_symmetry(spec) if moved else parameters_of(spec)
    batch = first_batch(spec)
    expected = oracle_forward(spec, params, batch.inputs)
    mixing = mixing_of(expected)
    gain = composite_gain(np.ones((1, 1, 1)) if mixing is None else mixing)
    loss = naive.cross_entropy(expected.logits, batch.targets)
    for backend in backends_here.values():
        logits, H_res = backend_forward(backend, spec, params, batch.inputs)
        # Float32 rounds by 6e-8; dozens of layers, each normalised anew, leave it at some 5e-7.
        assert logits == pytest.approx(expected.logits, abs=3e-6 * np.abs(expected.logits).max())
        assert (H_res is None) == (variant == "baseline")
        if H_res is not None:
            assert H_res == pytest.approx(mixing, rel=3e-6)
        row = first_row(start, backend, spec, params, batch)
        # A mean over 32 tokens of numbers near 4: a few roundings of float32.
        assert row["loss"] == pytest.approx(loss, rel=1e-6)
        # A relative error of 2e-7 in each of 24 factors is 2e-6 in the logarithm of the product.
        assert row["gain_proxy_log10_max_entry"] == pytest.approx(gain.max_entry, abs=3e-6)
        assert row["amax_forward_log10"] == pytest.approx(gain.amax_forward, abs=3e-6)
        assert row["amax_backward_log10"] == pytest.approx(gain.amax_backward, abs=3e-6)
        assert row["row_error_log10"] == pytest.approx(gain.row_error, abs=3e-6)
        assert row["column_error_log10"] == pytest.approx(gain.column_error, abs=3e-6)
        assert row["nonfinite_event"] == 0


@pytest.mark.parametrize(
    ("variant", "depth"),
    [
        ("baseline", 12),
        ("mhc", 12),
        ("hc", DEEP),  # activations reach 1e14: where MLX's own layer norm goes wrong
    ],
)
def test_gradients_of_a_deep_network_equal_those_of_the_oracle(
    make_spec, first_batch, check_first_step, variant, depth
):
    spec = make_spec(variant=variant, depth=depth, beta1=0.0, batch_size=2)
    check_first_step(spec, first_batch(spec), rel=1e-5, floor=1e-7)


# --- the two backends against each other, at the default scale of config.yaml --------------------

DEFAULT_CELLS = [
    ("depth-mlx", "baseline", 48),
    ("depth-mlx", "mhc", 48),
    ("depth-mlx", "hc", 24),  # at 48 it overflows: see below
    ("depth-torch", "mhc", 24),
]


@pytest.mark.parametrize(("study", "variant", "depth"), DEFAULT_CELLS)
def test_step_0_is_the_same_on_both_backends(
    both_backends, default_config, first_batch, oracle_loss, start, study, variant, depth
):
    spec = default_config.spec(Cell(study, depth, variant, "torch", seed=0))
    params, batch = parameters_of(spec), first_batch(spec)
    rows = {
        name: first_row(start, backend, spec, params, batch)
        for name, backend in both_backends.items()
    }
    assert rows["torch"]["loss"] == pytest.approx(oracle_loss(spec, params, batch), rel=2e-6)
    # Two float32 computations that sum in different orders. Measured: 5e-7 and 6e-6 at most.
    assert rows["torch"]["loss"] == pytest.approx(rows["mlx"]["loss"], rel=5e-6)
    assert rows["torch"]["grad_norm"] == pytest.approx(rows["mlx"]["grad_norm"], rel=5e-5)


@pytest.mark.parametrize("study", ["depth-mlx", "depth-torch"])
def test_eight_steps_of_mhc_stay_together_on_both_backends(both_backends, default_config, study):
    losses = {}
    for name, backend in both_backends.items():
        spec = default_config.spec(Cell(study, 12, "mhc", name, seed=0))
        short = spec.model_copy(update={"steps": 8})
        losses[name] = [
            row["loss"] for chunk in train(tasks.Problem(short), backend) for row in chunk.rows
        ]
    # Training amplifies rounding; in so few steps from 4e-7 to some 2e-6.
    assert losses["torch"] == pytest.approx(losses["mlx"], rel=1e-5)
    assert losses["mlx"][-1] < losses["mlx"][0] - 0.3  # and it does learn


# --- hc at 48 layers: one event, two conventions -------------------------------------------------


@pytest.mark.parametrize("recipe", ["mlx-defaults", "torch-defaults"])
def test_hc_at_48_layers_is_one_event_and_two_conventions(
    backend, make_spec, first_batch, start, recipe
):
    """The variance overflows: not a number on PyTorch, chance level on MLX; the gain is known."""
    spec = make_spec(variant="hc", depth=48, recipe=recipe)
    params, batch = parameters_of(spec), first_batch(spec)
    row = first_row(start, backend, spec, params, batch)
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


def test_in_float64_hc_at_48_layers_does_not_overflow(make_spec, first_batch, oracle_loss):
    spec = make_spec(variant="hc", depth=48)
    assert math.isfinite(oracle_loss(spec, parameters_of(spec), first_batch(spec)))


@pytest.mark.parametrize(("name", "expected"), [("torch", np.nan), ("mlx", 0.5)])
def test_layer_norm_of_an_overflowing_variance(connect_cpu, name, expected):
    ops = connect_cpu(name).ops
    x, weight, bias = np.array([[1e25, -1e25, 2e25, 0]]), np.ones(4), np.full(4, 0.5)
    out = ops.to_numpy(ops.layer_norm(*(ops.asarray(a) for a in (x, weight, bias))))
    assert out == pytest.approx(np.full((1, 4), expected), nan_ok=True)


# --- MLX's GELU and attention: large arrays in loops, GELU of others from arithmetic alone --------


@pytest.fixture
def gelu_and_derivative(connect_cpu):
    """Values of MLX's GELU and, by a cotangent of 3, its derivative."""
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
def test_mlx_gelu_of_what_is_huge_or_not_a_number(gelu_and_derivative, rows):
    """As x Φ(x) says, but at −∞, where 0·∞ has no value: the native product gives NaN too."""
    kinds = [0.0, 1e30, -1e30, math.inf, -math.inf, math.nan]
    y, derivative = gelu_and_derivative(np.tile(kinds, (rows, 1)))
    assert y[0] == pytest.approx([0, 1e30, 0, math.inf, math.nan, math.nan], nan_ok=True)
    assert derivative[0, :5] == pytest.approx([0.5, 1, 0, 1, 0], abs=1e-6)
    assert math.isnan(derivative[0, 5])


@pytest.fixture
def attention_and_gradients(connect_cpu):
    """[4, B, H, T, D/H]: MLX's causal attention, and its gradients by a cotangent of ones."""
    ops = connect_cpu("mlx").ops
    import mlx.core as mx

    def evaluate(*parts):
        q, k, v = map(ops.asarray, parts)
        (out,), gradients = mx.vjp(ops.causal_attention, [q, k, v], [mx.ones(q.shape)])
        return np.stack([np.asarray(x) for x in (out, *gradients)])

    return evaluate


def attention_and_rounding(q, k, v):
    """([4, B, H, T, D] in float64, a bound of float32's errors in any order of sums).

    Attention, and its gradients by a cotangent of ones. A sum of n products errs by at most n ε
    times the sum of their sizes, with ε = 2⁻²⁴; an exponential by 4 ε, relative. To first order.
    """
    *_, T, D = q.shape
    eps, scale = 2.0**-24, D**-0.5
    turned = lambda x: x.swapaxes(-1, -2)  # noqa: E731
    seen = np.tril(np.ones((T, T), bool))
    scores = np.where(seen, scale * q @ turned(k), -np.inf)
    below = scores - scores.max(-1, keepdims=True)
    p = np.exp(below)
    p /= p.sum(-1, keepdims=True)
    relative = np.where(seen, (D + 2) * eps * scale * np.abs(q) @ turned(np.abs(k)), 0)
    relative += eps * (4 + np.where(seen, np.abs(below), 0))
    of_p = p * (relative + (p * relative).sum(-1, keepdims=True) + (T + 2) * eps)
    sizes = np.abs(v).sum(-1)[..., None, :]
    dp = np.ones_like(q) @ turned(v)
    of_dp = D * eps * sizes
    along = (p * dp).sum(-1, keepdims=True)
    of_along = (of_p * np.abs(dp) + p * of_dp + T * eps * p * np.abs(dp)).sum(-1, keepdims=True)
    ds = p * (dp - along)
    of_ds = of_p * np.abs(dp - along)
    of_ds += p * (of_dp + of_along + 2 * eps * (np.abs(dp) + np.abs(along)))
    summed = of_ds + (T + 2) * eps * np.abs(ds)
    of_written = of_p + T * eps * p
    exact = (p @ v, scale * ds @ k, scale * turned(ds) @ q, turned(p) @ np.ones_like(q))
    bounds = (
        of_written @ np.abs(v),
        scale * summed @ np.abs(k),
        scale * turned(summed) @ np.abs(q),
        turned(of_written) @ np.ones_like(q),
    )
    return np.stack(exact), np.stack(bounds)


def test_mlx_attention_and_its_gradients_are_exact_up_to_float32(
    attention_and_gradients, connect_cpu
):
    connect_cpu("torch")
    import torch

    parts = np.random.default_rng(0).standard_normal((3, 2, 2, 256, 4)) * 3
    parts = parts.astype(np.float32).astype(np.float64)
    assert LARGE == 2 * 2 * 256 * 256  # scores
    exact, bounds = attention_and_rounding(*parts)
    q, k, v = (torch.tensor(part, requires_grad=True) for part in parts)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    of_torch = [out.detach(), *torch.autograd.grad(out.sum(), (q, k, v))]
    assert exact == pytest.approx(np.stack(of_torch), abs=1e-10)
    found = attention_and_gradients(*parts)
    assert (np.abs(found - exact) <= bounds).all()
    # The bound is no wider than a thousandth of what it bounds: an error of that size is seen.
    for one, bound in zip(exact, bounds, strict=True):
        assert np.median(bound) < 1e-3 * np.abs(one).max()


@pytest.mark.filterwarnings("error")
def test_mlx_attention_of_what_is_not_a_number(attention_and_gradients):
    parts = np.random.default_rng(0).standard_normal((3, 1, 1, 512, 4))
    parts[1, 0, 0, 200] = np.nan  # a key that the rows from there on see
    out, *_ = attention_and_gradients(*parts)
    assert np.isfinite(out[0, 0, :200]).all()
    assert np.isnan(out[0, 0, 200:]).all()


# --- why MLX has a layer norm of its own here ----------------------------------------------------


def layer_norm_gradient_error(mlx_layer_norm, scale):
    """Largest error of the gradient with respect to x against float64, relative to its size."""
    import mlx.core as mx

    rng = np.random.default_rng(0)
    x = (scale * rng.standard_normal((8, 32))).astype(np.float32)
    cotangent = rng.standard_normal((8, 32)).astype(np.float32)
    weight = rng.standard_normal(32).astype(np.float32)
    bias = np.zeros(32, np.float32)

    primals = [mx.array(value) for value in (x, weight, bias)]
    _, (gradient, _, _) = mx.vjp(mlx_layer_norm, primals, [mx.array(cotangent)])

    x, g = x.astype(np.float64), cotangent.astype(np.float64) * weight
    centred = x - x.mean(1, keepdims=True)
    std = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    normed = centred / std
    along = (g * normed).mean(1, keepdims=True)
    expected = (g - g.mean(1, keepdims=True) - normed * along) / std
    return np.abs(np.asarray(gradient) - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("scale", [1e-3, 1, 1e6, 1e14, 1e17])
def test_gradient_of_exact_layer_norm_at_any_scale(connect_cpu, scale):
    connect_cpu("mlx")
    from fathom.backends.mlx_ops import exact_layer_norm

    # Some roundings of float32. The variance overflows only from scale 1e19.
    assert layer_norm_gradient_error(exact_layer_norm, scale) < 1e-6


@pytest.mark.parametrize(
    ("scale", "error"),
    [
        (1e14, 1e-5),  # 1/σ³ has few digits left: a hundred times the error of rounding …
        (1e17, 0.05),  # … and none
    ],
)
def test_gradient_of_mlx_own_layer_norm_is_wrong_at_large_scale(connect_cpu, scale, error):
    connect_cpu("mlx")
    import mlx.core as mx

    def native(x, weight, bias):
        return mx.fast.layer_norm(x, weight, bias, 1e-5)

    assert layer_norm_gradient_error(native, 1.0) < 1e-6  # so the comparison is fair
    if layer_norm_gradient_error(native, scale) < error:
        pytest.skip("MLX's own layer norm is right here: exact_layer_norm may not be needed now")
