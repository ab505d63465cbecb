"""`fathom.torch` and `fathom.mlx`: connections as modules for users' networks."""

import copy
import importlib
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fathom.connections.schemes import SCHEMES
from fathom.library import type_name
from fathom.operations.numpy_ops import NumpyOps
from fathom.settings import ConfigError
from fathom_study import tasks
from tests.library.frameworks import (
    INPUT,
    LAYERS,
    SHAPE,
    WEIGHTS,
    WIDTH,
    Mlx,
    branches,
    installed,
    mixture,
    moved,
    stepped,
)
from tests.support import naive
from tests.support.commands import refusal
from tests.support.gradients import assert_gradients
from tests.support.specs import OF_EACH_KIND, make_spec, parameters_of, quick_cases

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


# --- both frameworks under one interface ----------------------------------------------------------


def oracle(module, values, x, end="close"):
    """Output of the connection around `tanh(x @ WEIGHTS[k])`, in float64; or its trace."""
    ops, connection = NumpyOps(), module.connection
    params = {f"connection.{name}": value for name, value in values.items()}
    state = connection.open(ops, params, x)
    for k, weight in enumerate(WEIGHTS):
        read, state = connection.read(ops, state, k)
        read = mixture(*read) if connection.reads_apart(k) else read
        state = connection.write(ops, state, k, np.tanh(read @ weight))
    return connection.close(ops, state) if end == "close" else connection.trace(ops, params, state)


def state_after(framework, module, x, dtype="float32"):
    """State of a pass after all branches."""
    state = module.open(framework.array(x, dtype))
    for k, branch in enumerate(branches(framework, dtype)):
        state = module.wrap(branch, k)(state)
    return state


# --- the same function ----------------------------------------------------------------------------

PRECISION = {
    "torch": ("float64", 1e-12, 1e-6, 1e-8),
    "mlx": ("float32", 3e-5, 1e-3, 1e-4),  # its float64 has constants and exponentials of float32
}
"""(dtype, tolerance of outputs, relative and absolute tolerance of gradients)."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_outputs_equal_the_oracle(framework, scheme):
    dtype, tolerance, *_ = PRECISION[framework.name]
    module, values = moved(framework, scheme, dtype)
    output = module(framework.array(INPUT, dtype), branches(framework, dtype))
    expected = oracle(module, values, INPUT)
    size = np.abs(expected).max()
    assert framework.numpy(output) == pytest.approx(expected, rel=tolerance, abs=tolerance * size)


@quick_cases("scheme", {name: (name,) for name in SCHEMES}, *OF_EACH_KIND)
def test_trace_equals_the_oracle(framework, scheme):
    dtype, tolerance, *_ = PRECISION[framework.name]
    module, values = moved(framework, scheme, dtype)
    trace = module.trace(state_after(framework, module, INPUT, dtype))
    expected = oracle(module, values, INPUT, "trace")
    assert (trace is None) == (expected is None)
    for name, value in (trace or {}).items():
        exact = getattr(expected, name)
        bound = tolerance * np.abs(exact).max()
        assert framework.numpy(value) == pytest.approx(exact, rel=tolerance, abs=bound)


@pytest.mark.parametrize("scheme", OF_EACH_KIND)
def test_trace_of_one_position_without_a_batch_axis(framework, scheme):
    module, _ = moved(framework, scheme, "float32")
    if module.connection.context.pooled_axes:
        pytest.skip("it averages over positions, so it needs their axis")
    alone, batch = (
        module.trace(state_after(framework, module, x)) for x in (INPUT[0, 0], INPUT[:1, :1])
    )
    for name in alone or ():
        expected = framework.numpy(batch[name])
        assert framework.numpy(alone[name]) == pytest.approx(expected.reshape(alone[name].shape))


def test_trace_without_positions_is_one_line(framework):
    module = framework.module("mhc_paper", LAYERS, WIDTH)
    said = refusal(module.trace, state_after(framework, module, INPUT[:0]), error=ValueError)
    assert said == "the input has no positions to average over: [0, 3, 4]"


ADDED = {"connection": "mhc_causal", "constraint": {"added": 0.05}}
"""A pass of Sinkhorn with a term that the schemes' own, 1e-6, leaves below every tolerance."""


@quick_cases(
    "scheme", {"added": (ADDED,), **{name: (name,) for name in SCHEMES}}, "added", *OF_EACH_KIND
)
def test_gradients_equal_the_oracle(framework, scheme):
    dtype = PRECISION[framework.name][0]
    module, values = moved(framework, scheme, dtype)
    exact = lambda params: oracle(module, params, params["x"])  # noqa: E731
    check_gradients(framework, module, branches(framework, dtype), values, exact)


@pytest.mark.parametrize(
    "scheme", [ADDED, "mhar", "attn_res_block", "mhc_identity", *OF_EACH_KIND], ids=str
)
def test_gradients_of_operations_equal_the_oracle(on_torch, monkeypatch, scheme):
    """Without compiled loops, as on a GPU."""
    monkeypatch.setattr("fathom.operations.torch_ops.is_on_host", lambda x: False)
    test_gradients_equal_the_oracle(on_torch, scheme)


def check_gradients(framework, module, functions, values, exact):
    """Check gradients of a random projection of the output against float64 slopes of `exact`."""
    dtype, _, rel, floor = PRECISION[framework.name]
    params = {**values, "x": INPUT}
    direction = np.random.default_rng(3).standard_normal(SHAPE) / np.abs(exact(params)).max()
    x, along = framework.array(INPUT, dtype), framework.array(direction, dtype)
    gradients = framework.gradients(module, x, lambda x: (module(x, functions) * along).sum())
    assert set(gradients) == set(params)
    loss = lambda params: float((exact(params) * direction).sum())  # noqa: E731
    assert_gradients(loss, params, {framework.name: gradients}, rel, floor)


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("scheme", ["attn_res_block", "inkling2"])
def test_a_source_is_the_sum_of_block_size_blocks(framework, scheme, block_size):
    """Against the textbook with 7 blocks, so the last sum has fewer than 2 or 4 blocks.

    The attention at the start of a block still reads the sum before it, which is then complete.
    """
    dtype, tolerance, *_ = PRECISION[framework.name]
    layers, settings = 14, {"connection": scheme, "block_size": block_size}
    module, values = moved(framework, settings, dtype, layers=layers, per_block=2)
    functions = [lambda *x, w=WEIGHTS[k % LAYERS]: np.tanh(mixture(*x) @ w) for k in range(layers)]
    functions = [lambda x, f=f: f(*x) if isinstance(x, tuple) else f(x) for f in functions]

    def textbook(params):
        x = params["x"]
        return naive.through_depth_attention(scheme, params, x, functions, 2, False, block_size)

    expected, x = textbook({**values, "x": INPUT}), framework.array(INPUT, dtype)
    branch, size = branches(framework, dtype, layers), np.abs(expected).max()
    assert framework.numpy(module(x, branch)) == pytest.approx(expected, abs=tolerance * size)
    check_gradients(framework, module, branch, values, textbook)


def moved_little(framework, scheme, dtype):
    """Module of two layers moved by 0.1, so exponentials of hc_dynamic do not overflow float32."""
    return moved(framework, scheme, dtype, by=0.1, layers=2)[0]


def smooth_branches(framework, dtype):
    """Two smooth functions; not tanh, whose second derivative in MLX is NaN from 89 on."""

    def bounded(*x, w):
        y = mixture(*x) @ w
        return y / (1 + y * y)

    return [partial(bounded, w=framework.array(w, dtype)) for w in WEIGHTS[:2]]


def of_some_channels(out):
    """Sum of squares without channel 0; over all channels it is constant on a sphere."""
    return (out[..., 1:] ** 2).sum()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("way", ["loops", "operations"])
def test_second_derivatives_in_torch_are_slopes_of_the_first(on_torch, monkeypatch, scheme, way):
    """Derivative of a gradient penalty along a random direction, against differences of it."""
    if way == "operations":  # as on a GPU
        monkeypatch.setattr("fathom.operations.torch_ops.is_on_host", lambda x: False)
    module = moved_little(on_torch, scheme, "float64")
    functions, x = smooth_branches(on_torch, "float64"), on_torch.array(INPUT, "float64")
    loss = lambda x: of_some_channels(module(x, functions))  # noqa: E731
    second = on_torch.second(module, x, loss)
    rng = np.random.default_rng(5)
    along = {name: rng.standard_normal(value.shape) for name, value in second.items()}

    def penalty(h):
        values = {name: value.copy() for name, value in on_torch.values(module).items()}
        on_torch.load(module, {k: v + h * along[k] for k, v in values.items()})
        gradients = on_torch.gradients(module, x + h * on_torch.array(along["x"], "float64"), loss)
        on_torch.load(module, values)
        return sum((g**2).sum() for g in gradients.values()) / 2

    h = 1e-6  # an error of h² from curvature, and of 1e-16/h from rounding
    slope = (penalty(h) - penalty(-h)) / (2 * h)
    size = math.sqrt(sum((g**2).sum() for g in second.values()))
    assert sum((second[n] * along[n]).sum() for n in second) == pytest.approx(
        slope, abs=1e-6 * size
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_second_derivatives_in_mlx_equal_those_of_torch(on_torch, scheme):
    second = {}
    for framework, dtype in ((on_torch, "float64"), (installed(Mlx), "float32")):
        module = moved_little(framework, scheme, dtype)
        functions = smooth_branches(framework, dtype)
        loss = partial(lambda m, f, x: of_some_channels(m(x, f)), module, functions)
        second[framework.name] = framework.second(module, framework.array(INPUT, dtype), loss)
    size = max(np.abs(expected).max() for expected in second["torch"].values())
    for name, expected in second["torch"].items():
        # Sums of over a hundred products as large as `size`, each rounded by 6e-8 in float32.
        allowed = 1e-5 * size + 1e-4 * np.abs(expected).max()
        assert second["mlx"][name] == pytest.approx(expected, abs=allowed), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_empty_and_zero_inputs_have_finite_gradients(framework, scheme):
    """Idle ranks pass an empty batch, and padding is zeros."""
    for shape, pooled in (((0, 3, 4), 0), ((2, 0, 4), 0), ((0, 2, 2, 4), 2), ((1, 2, 4), 0)):
        module, _ = moved(framework, scheme, pooled_axes=pooled)
        out, functions = [], branches(framework)

        def loss(x, module=module, functions=functions, out=out):
            out.append(module(x, functions))
            return (out[-1] ** 2).sum()

        gradients = framework.gradients(module, framework.array(np.zeros(shape)), loss)
        assert tuple(out[0].shape) == shape
        assert all(np.isfinite(g).all() for g in gradients.values()), shape
        if 0 in shape:
            assert not any(g.any() for g in gradients.values())


@pytest.mark.parametrize("scheme", ["plain", "hc_causal", "mhc_static", "mhc_paper"])
def test_read_write_wrap_and_call_have_the_digits_of_through(framework, scheme):
    module, _ = moved(framework, scheme)
    functions, x = branches(framework), framework.array(INPUT)
    params = {f"connection.{name}": value for name, value in module._arrays().items()}
    ops = module._ops("float32", getattr(x, "device", None))
    expected = framework.numpy(module.connection.through(ops, params, x, functions, None)[0])
    by_hand = wrapped = module.open(x)
    for k, function in enumerate(functions):
        module.wrap(lambda *x: 7 * mixture(*x), k)(wrapped)  # does not change its input state
        read, by_hand = module.read(by_hand, k)
        by_hand = module.write(by_hand, k, function(read))
        wrapped = module.wrap(lambda x, f, times: f(x) * times, k)(wrapped, function, times=1)
    for out in (module.close(by_hand), module.close(wrapped), module(x, functions)):
        assert (framework.numpy(out) == expected).all()


@pytest.mark.parametrize(
    ("scheme", "shape", "pooled"),
    [
        *((scheme, shape, 0)
          for scheme in ("hc_causal", "mhc_static", "mhc_paper")
          for shape in ((WIDTH,), (5, WIDTH), (2, 2, 3, WIDTH))),
        ("mhc_paper", (2, 3, 3, WIDTH), 2),
    ],
)  # fmt: skip
def test_inputs_have_any_shape_and_images_may_be_pooled(framework, scheme, shape, pooled):
    module, values = moved(framework, scheme, pooled_axes=pooled)
    x = np.random.default_rng(4).standard_normal(shape)
    output = framework.numpy(module(framework.array(x), branches(framework)))
    assert output == pytest.approx(oracle(module, values, x), rel=1e-4, abs=1e-4)
    if pooled:
        said = refusal(module.open, framework.array(x[0, 0]), error=ValueError)
        assert "must have shape […, …, …, 4], but has [3, 4]" in said


def test_functions_with_a_residual_path_of_their_own(framework):
    module = framework.module("plain", 2, WIDTH, has_residual=True)
    out = module(framework.array(np.ones(SHAPE)), [lambda x: 3 * x] * 2)
    assert (framework.numpy(out) == 9).all()


# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["mhc_paper", "mhc_gated_static", "hc_causal"])
def test_parameters_start_as_in_a_network_and_have_plain_names(framework, scheme):
    spec = make_spec(variant=scheme, wrap="sublayer", depth=2, seed=5)
    context = tasks.Problem(spec).network.connection.context
    module = framework.module(scheme, context.layers, context.width, per_block=2, seed=5)
    network = parameters_of(spec)
    parameters = framework.values(module)
    assert parameters
    for name, value in parameters.items():
        assert (value == network[f"connection.{name}"]).all()
    assert len(parameters) == sum(name.startswith("connection.") for name in network)


def test_files_of_either_framework_are_read_by_both(framework, tmp_path):
    module, values = moved(framework, "mhc_paper")
    framework.save_file(module, tmp_path / "own.safetensors")
    kept = load_file(tmp_path / "own.safetensors")
    assert {name: value.dtype.name for name, value in kept.items()} == dict.fromkeys(
        values, "float32"
    )
    save_file({k: np.ascontiguousarray(v) for k, v in kept.items()}, tmp_path / "other.safetensors")
    other = framework.module("mhc_paper", LAYERS, WIDTH, seed=9)
    framework.load_file(other, tmp_path / "other.safetensors")
    x, functions = framework.array(INPUT), branches(framework)
    output = framework.numpy(other(x, functions))
    assert (output == framework.numpy(module(x, functions))).all()


# --- types and devices ----------------------------------------------------------------------------

ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-24}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("scheme", ["mhc_causal", "mhc_static", "mhc_paper", "mhc_lite"])
def test_a_16_bit_network_has_streams_in_float32(framework, scheme, dtype):
    """The error comes only from the branches; no sum over layers is rounded to 16 bits."""
    module, values = moved(framework, scheme, dtype)
    x = framework.array(INPUT, dtype)
    state = module.open(x)
    assert state.computed == ("float64" if dtype == "float64" else "float32")
    read, _ = module.read(state, 0)
    out = module(x, branches(framework, dtype))
    assert {type_name(read), type_name(out)} == {dtype}
    expected = oracle(module, values, framework.numpy(x))
    size = np.abs(expected).max()
    # Roundings of three branches, their inputs and the output, each up to three times as large.
    assert framework.numpy(out) == pytest.approx(expected, abs=20 * ROUNDING[dtype] * size)


# --- inside a training step -----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_change_in_place_after_a_write_raises_or_is_harmless(torch, on_torch, scheme):
    """PyTorch raises its own error, or gradients do not change."""
    module, _ = moved(on_torch, scheme)
    x = on_torch.array(INPUT)

    def gradient(change):
        leaf, state = x.clone().requires_grad_(), None
        state = module.open(leaf)
        for k, function in enumerate(branches(on_torch)):
            read, state = module.read(state, k)
            y = function(*read) if module.reads_apart(k) else function(read)
            y = y * 1  # tanh itself would raise
            state = module.write(state, k, y)
            change(y.detach())
        return torch.autograd.grad((module.close(state) ** 2).sum(), leaf)[0]

    expected = gradient(lambda y: None)
    try:
        changed = gradient(lambda y: y.zero_())
    except RuntimeError as error:
        assert re.search("modified (by an )?inplace", str(error))
    else:
        # The address of a tensor decides which kernel multiplies it.
        torch.testing.assert_close(changed, expected)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_backward_inside_autocast_equals_backward_outside(torch, on_torch, scheme):
    """Tests the connection alone: its branches have no product that could be rounded."""
    module, _ = moved(on_torch, scheme)
    x, wanted = on_torch.array(INPUT).requires_grad_(), list(module.parameters())
    take = partial(torch.autograd.grad, inputs=[x, *wanted], materialize_grads=True)
    loss = lambda: (module(x, [lambda *x: torch.tanh(mixture(*x))] * LAYERS) ** 2).sum()  # noqa: E731
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = take(loss())
    for gradient, expected in zip(inside, take(loss()), strict=True):
        size = float(expected.abs().max())
        # Products add the same terms in another order.
        assert gradient.numpy() == pytest.approx(expected.numpy(), abs=1e-5 * size)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_parameters_are_found_by_their_names_and_their_memory_stays_resizable(
    torch, on_torch, scheme
):
    """They may be parametrised or buffers. FSDP frees and reallocates a parameter's memory."""
    module, values = moved(on_torch, scheme)
    x, functions = on_torch.array(INPUT), branches(on_torch)
    expected = module(x, functions)
    expected.sum().backward() if expected.requires_grad else None
    assert all(p.untyped_storage().resizable() for p in module.parameters())
    for name in values:
        torch.nn.utils.parametrize.register_parametrization(module, name, torch.nn.Identity())
    # The address of a parameter decides which kernel multiplies it.
    size = float(expected.detach().abs().max())
    same = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5 * size)
    same(module(x, functions), expected)
    plain, _ = moved(on_torch, scheme)
    for name in values:
        kept = getattr(plain, name).detach()
        delattr(plain, name)
        plain.register_buffer(name, kept)
    same(plain(x, functions), expected)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_is_refused(on_torch):
    from torch.utils.checkpoint import checkpoint

    module, _ = moved(on_torch, "mhc_paper")
    state = module.open(on_torch.array(INPUT).requires_grad_())
    state = checkpoint(module.wrap(branches(on_torch)[0], 0), state, use_reentrant=True)
    with pytest.raises(TypeError, match=r"unless use_reentrant=False$"):
        module.read(state, 1)


def test_parameters_that_fsdp_has_sharded_are_initialised(torch):
    """The module is made on the meta device, like large models."""
    from torch.distributed import HashStore, destroy_process_group, init_process_group
    from torch.distributed.fsdp import fully_shard

    from fathom.torch import ResidualConnection

    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        module = ResidualConnection("mhc_paper", LAYERS, WIDTH, device="meta")
        fully_shard(module, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        module.to_empty(device="cpu").reset_parameters()
        expected = dict(ResidualConnection("mhc_paper", LAYERS, WIDTH).named_parameters())
        for name, p in module.named_parameters():
            assert torch.equal(p.full_tensor(), expected[name]), name
    finally:
        destroy_process_group()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_decay_lists_all_parameters_that_are_not_matrices(framework, scheme):
    module, values = moved(framework, scheme)
    assert set(module.no_decay) <= values.keys()
    assert not [name for name in module.no_decay if name.startswith(("phi", "b_phi"))]
    assert {n for n in values if n[:2] == "b_" or n in ("alpha", "gain")} <= {*module.no_decay}


@pytest.mark.parametrize("kind", ["numpy", "framework"])
def test_a_gate_takes_noise_in_training(framework, kind):
    scheme = {"connection": "mhc_paper", "gate": {"kind": "learned", "noise": True}}
    module, x = framework.module(scheme, LAYERS, WIDTH), framework.array(INPUT)
    noise = module.connection.sample_noise(np.random.default_rng(0), 1.0)
    assert noise.shape == (LAYERS, 3)
    given = noise if kind == "numpy" else framework.array(noise)
    quiet, loud = (framework.numpy(module(x, branches(framework), n)) for n in (None, given))
    assert not np.array_equal(quiet, loud)


def test_constants_cached_in_inference_mode_work_in_training(torch, on_torch):
    from fathom.torch import ResidualConnection, kept_ops

    kept_ops.cache_clear()
    module = ResidualConnection("mhc_uniform", LAYERS, WIDTH)
    with torch.inference_mode():
        module(on_torch.array(INPUT), branches(on_torch))
    result = stepped(on_torch, module, branches(on_torch))
    assert all(np.isfinite(value).all() for value in result.values())


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mhc_papr", 2, 8), "connection: unknown connection 'mhc_papr'; did you mean 'mhc"),
        (("mhc_paper", 0, 8), "layers: input should be greater than 0, but is 0"),
        (({"connection": "mhc_paper", "H_rez": "exp"}, 2, 8), "connection: unknown key 'H_rez'"),
        (({"connection": "krom_hc", "streams": 3}, 2, 8), "connection: H_res: kronecker: 3 is not"),
        (({"module": "own.py:Own"}, 2, 8), "connection: your own module is not a scheme"),
    ],
)
def test_a_wrong_scheme_or_size_is_one_line(framework, arguments, said):
    assert refusal(framework.module, *arguments, error=ConfigError).startswith(said)


def test_a_wrong_input_or_turn_is_one_line(framework):
    module = framework.module("mhc_paper", 2, WIDTH)
    x = framework.array(INPUT)
    opened, one = module.open(x), [lambda x: x]
    _, state = module.read(opened, 0)
    for call, said in (
        (lambda: module.open(framework.array(np.ones((2, 5)))),
         "the input must have shape […, 4], but has [2, 5]"),
        (lambda: module.open(framework.array(np.ones(4), "int32")),
         "the input must be of a float type, but is int32; embed it first"),
        (lambda: module.wrap(one[0], 2), "k is 2, but functions are numbered from 0 to 1"),
        (lambda: module.read(opened, 1), "read 1 is out of turn; next is read 0"),
        (lambda: module.trace(opened), "trace is out of turn; next is read 0"),
        (lambda: module.write(opened, 0, x), "write 0 is out of turn; next is read 0"),
        (lambda: module.write(state, 0, x[..., :1]),
         "function 0 must return the shape of its input, [2, 3, 4], but returned [2, 3, 1]"),
        (lambda: module(x, one), "layers=2 needs 2 branches, but has 1"),
        (lambda: module(x, iter(one)), "layers=2 needs 2 branches, but has 1"),
        (lambda: module.open(x, np.ones((2, 3))), "'mhc_paper' takes no noise; leave it out"),
        (lambda: framework.module("mhc_paper", 2, WIDTH).read(opened, 0),
         "the state is of another connection; open, read and write with one"),
        (lambda: copy.deepcopy(module).read(opened, 0),
         "the state is of another connection; open, read and write with one"),
    ):  # fmt: skip
        assert refusal(call, error=ValueError) == said
    for nothing in (None, (x, x)):  # MultiheadAttention returns (output, weights)
        said = refusal(module.write, state, 0, nothing, error=TypeError)
        assert said.startswith(
            f"function 0 must return an array, but returned a {type(nothing).__name__}; "
        )
    foreign = np.ones(SHAPE, np.float32)
    for call, what in (
        (lambda: module.open(foreign), "the input"),
        (lambda: module.write(state, 0, foreign), "what function 0 returns"),
    ):
        said = refusal(call, error=TypeError)
        assert said.startswith(f"{what} must be a ") and said.endswith("but is a numpy.ndarray")


@pytest.mark.parametrize("scheme", ["mhc_cycle", "attn_res", "x0_lambda"])
def test_a_state_that_fsdp_has_cast_is_refused(torch, on_torch, scheme):
    module = on_torch.module(scheme, 2, WIDTH)
    tree_map_only = importlib.import_module("torch.utils._pytree").tree_map_only
    state = module.open(torch.ones(2, WIDTH, dtype=torch.bfloat16))
    cast = tree_map_only(torch.Tensor, torch.Tensor.bfloat16, state)
    said = refusal(module.read, cast, 0, error=ValueError)
    assert said.startswith("the state was cast from float32 to bfloat16; for FSDP2 use ")


def test_noise_of_another_shape_is_one_line(framework):
    module = framework.module("prores", 6, WIDTH, per_block=2)
    sample = module.connection.sample_noise(np.random.default_rng(0), 0.0)
    said = refusal(module.open, framework.array(INPUT), sample[:-1], error=ValueError)
    wanted, found = list(sample.shape), list(sample[:-1].shape)
    assert said == (
        f"noise must have the shape {wanted} of connection.sample_noise(…), but has {found}"
    )


def test_a_pass_that_began_without_gradients_does_not_lose_them_silently(torch, on_torch):
    """Lower layers that are frozen: the parameters of later layers would get no gradient."""
    module, x = on_torch.module("mhc_paper", 2, WIDTH), torch.ones(2, WIDTH)
    with torch.no_grad():
        state = module.wrap(torch.tanh, 0)(module.open(x))
        whole = module.wrap(torch.tanh, 1)(state)
    said = refusal(module.wrap(torch.tanh, 1), state, error=ValueError)
    assert said.startswith("the pass began without gradients (torch.no_grad)")
    state = module.open(x)
    with torch.no_grad():
        y = torch.tanh(module.read(state, 0)[0])
    state = module.write(module.read(state, 0)[1], 0, y)
    module.close(module.wrap(torch.tanh, 1)(state)).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    for p in module.parameters():
        p.requires_grad_(False)
    module.close(whole)


# --- documents and examples -----------------------------------------------------------------------


def linear_branches(framework, width, layers):
    """Modules of the framework, […, width] → the same."""
    nn = importlib.import_module({"torch": "torch.nn", "mlx": "mlx.nn"}[framework.name])
    return [nn.Linear(width, width) for _ in range(layers)]


def test_every_block_of_code_of_the_documents_runs(framework):
    """In their order. The own class is that of `test_own_connection`."""
    pages = [EXAMPLES.parent / name for name in ("library.md", "library-details.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    blocks = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    weights = {name: framework.array(value) for name, value in release_weights().items()}
    x = framework.array(np.random.default_rng(0).standard_normal((2, 3, 128)))
    scope = {
        "x": x, "branches": linear_branches(framework, 128, 24), "state_dict": weights,
        "attention": lambda y, cache: (2 * y, cache), "cache": {},
    }  # fmt: skip
    scope[framework.name] = framework.library
    ran = 0
    for block in blocks:
        if "class " in block or "attach(" in block:  # tests of peers attach
            continue
        if framework.name == "mlx" and "torch." in block.split("\n", 1)[1]:
            continue
        block = block.replace("fathom.torch", f"fathom.{framework.name}")
        block = block.replace("2 * 43, width=4096", f"4, width={WIDTH}, streams=2")
        if "c.read(" in block:
            exec(block, {**scope, "state": scope["c"].open(x), "k": 0})  # noqa: S102
        elif "c.trace(" in block:
            state = scope["c"].open(x)
            for k, branch in enumerate(scope["branches"]):
                state = scope["c"].wrap(branch, k)(state)
            exec(block, {**scope, "state": state})  # noqa: S102
        else:
            exec(block, scope)  # noqa: S102
        ran += 1
    assert ran >= {"torch": 6, "mlx": 4}[framework.name]
    loaded = framework.values(scope["c"])["readout"]
    assert np.array_equal(loaded, framework.numpy(weights["model.hc_head.hc_base"]))


@pytest.mark.parametrize("scheme", ["muddformer", "inkling2"])
def test_the_error_for_q_k_and_v_apart_names_arguments_that_work(framework, scheme):
    said = refusal(framework.module, scheme, 4, WIDTH, error=ConfigError)
    named = dict(re.findall(r"(\w+)=(\w+)", said))
    assert named == {"takes_apart": "True", "per_block": "2"}
    module = framework.module(scheme, 4, WIDTH, takes_apart=True, per_block=2)
    attention, mlp = (lambda q, k, v: q + k * v), (lambda x: 2 * x)
    either = lambda *x: attention(*x) if len(x) == 3 else mlp(*x)  # noqa: E731
    out = module(framework.array(INPUT), [either, mlp] * 2)
    assert np.isfinite(framework.numpy(out)).all()
    assert not any(module.reads_apart(k) for k in (1, 3))


# --- weights of releases (test_peers.py compares with the releases' own modules) ------------------


def release_weights(layers=2, rows=8, scales=3):
    """Random state dict with the names and shapes of DeepSeek V4, for 2 streams.

    Without a dynamic H_res there are 4 rows and 2 scales.
    """
    rng, weights = np.random.default_rng(0), {}
    for i in range(layers):
        for part in ("attn_hc", "ffn_hc"):
            for name, shape in {
                "fn": (rows, 2 * WIDTH),
                "base": (rows,),
                "scale": (scales,),
            }.items():
                weights[f"model.layers.{i}.{part}.{name}"] = rng.standard_normal(shape)
    for name, shape in {"fn": (2, 2 * WIDTH), "base": (2,), "scale": (1,)}.items():
        weights[f"model.hc_head.hc_{name}"] = rng.standard_normal(shape)
    return weights


def test_weights_of_a_release_by_hand(framework):
    module = framework.module("deepseek_v4", 4, WIDTH, streams=2)
    weights = release_weights()
    module.load_release({name: framework.array(value) for name, value in weights.items()})
    values = framework.values(module)
    second = weights["model.layers.0.ffn_hc.fn"].astype(np.float32)
    assert np.array_equal(values["phi_pre"][1], second[:2])
    assert np.array_equal(values["phi_post"][1], second[2:4])
    assert np.array_equal(values["phi_res"][1], second[4:])
    base = weights["model.layers.1.attn_hc.base"].astype(np.float32)
    assert np.array_equal(values["b_res"][2], [[base[4], base[5]], [base[6], base[7]]])
    assert np.array_equal(values["readout"], weights["model.hc_head.hc_base"].astype(np.float32))


def hyper(head=True, **names):
    """DeepSeek's names in transformers → names in a release's own files, for two layers."""
    parts = {"attn_hc.": "hc_attn_", "ffn_hc.": "hc_ffn_", "hc_head.hc_": "hc_head_"}
    renamed = {}
    for name in release_weights():
        own = name.removeprefix("model.") if not names else name
        for theirs, part in {**parts, **names}.items():
            own = own.replace(theirs, part)
        renamed[name] = own
    return {name: own for name, own in renamed.items() if head or "hc_head" not in name}


IN_FILES = {
    "deepseek_v4": hyper(),
    "deepseek_v41": hyper(head=False),
    "glm5_next": hyper(head=False),
    "hy_v4": hyper(**{
        "attn_hc.": "hc_attn_layer.hc_pre.hc_", "ffn_hc.": "hc_mlp_layer.hc_",
        "hc_head.hc_": "hc_head.hc_head_",
    }),
    "dory": {
        "layers.0.lambda_1": "backbone.layers.0.attn_alpha",
        "layers.0.lambda_2": "backbone.layers.1.mlp_alpha",
        "layers.1.lambda_1": "backbone.layers.2.attn_alpha",
        "layers.1.lambda_2": "backbone.layers.3.mlp_alpha",
    },
    "attn_res_block": {
        f"model.{place}_{part}.weight": f"language_model.model.{place}.{part}_weight"
        for place in (
            *(f"layers.{i}.{of}_res" for i in range(2) for of in ("self_attention", "mlp")),
            "output_attn_res",
        )
        for part in ("proj", "norm")
    },
    "inkling2": {
        "model.layers.0.mlp_input.query": "model.llm.attn_res.mlp_queries.0",
        "model.layers.1.attention_input.query": "model.llm.attn_res.attn_queries.0",
        "model.layers.1.mlp_input.query": "model.llm.attn_res.mlp_queries.1",
        "model.final_input.query": "model.llm.attn_res.output_query",
    },
}  # fmt: skip
"""Name in transformers or MLX → name in the release's own files, as their loaders convert them."""

OF_EXTRA_BLOCKS = (
    "mtp.0.hc_attn_fn", "mtp.layers.0.attn_hc.fn", "model.mtp.layers.0.attn_hc.fn",
    "model.mtp_layers.0.hc_attn_layer.hc_fn", "layers.2.shared_head.norm.weight",
    "layers.2.hc_attn_fn", "model.layers.2.eh_proj.weight", "model.layers.2.attn_hc.fn",
    "backbone.mtp.layers.0.attn_alpha", "mtp.layers.0.self_attention_res_proj.weight",
)  # fmt: skip


@pytest.mark.parametrize("scheme", IN_FILES)
def test_names_of_the_own_files_of_a_release_load_the_same_parameters(framework, scheme):
    """Also with blocks that predict further tokens, and with some names as in transformers."""
    sizes = (2, 4, 2) if scheme == "hy_v4" else ()
    shapes = {name: value.shape for name, value in release_weights(*sizes).items()}
    rng, weights = np.random.default_rng(0), {}
    for name in IN_FILES[scheme]:
        shape = shapes.get(name, (1, WIDTH) if name.endswith("proj.weight") else (WIDTH,))
        weights[name] = framework.array(rng.standard_normal(shape))
    own = {IN_FILES[scheme][name]: value for name, value in weights.items()}
    last = next(reversed(weights))
    mixed = {**weights, **dict.fromkeys(OF_EXTRA_BLOCKS, weights[last])}
    loaded = []
    for given in (weights, own, mixed, {**own, **dict.fromkeys(OF_EXTRA_BLOCKS, weights[last])}):
        module = framework.module(
            scheme, 4, WIDTH, streams=2, per_block=2, takes_apart=True, seed=len(loaded)
        )
        module.load_release(given)
        loaded.append(framework.values(module))
    for values in loaded[1:]:
        assert all(np.array_equal(values[name], value) for name, value in loaded[0].items())
    assert any(np.ptp(value) for value in loaded[0].values())


@pytest.mark.parametrize(
    ("scheme", "layers", "change", "message"),
    [
        ("mhc_paper", 4, {}, "no weights of a release are known for 'mhc_paper' (known: deep"),
        ("scaled", 4, {}, "no weights of a release are known for 'scaled'"),  # no parameters
        ("deepseek_v4", 2, {}, "the weights have 2 layers, each of 2 functions; build .*=4"),
        ("deepseek_v4", 6, {}, "the weights lack model.layers.2.attn_hc.fn"),
        ("muse_spark", 4, {}, "the weights have no layers.0.post_attention_residual_gate.gate"),
        (
            "deepseek_v4", 4, {"draft.layers.0.attn_hc.fn": np.zeros((8, 8))},
            "several layers.0.attn_hc.fn; name one of the prefixes 'model.', 'draft.'",
        ),
        (
            "deepseek_v4", 4, {"model.hc_head.hc_fn": np.zeros((2, 6))},
            r"readout_phi has shape \[2, 6\] in the release, but \[2, 8\] in this connection",
        ),
    ],
)  # fmt: skip
def test_weights_of_another_model_are_refused_in_a_line(framework, scheme, layers, change, message):
    module = framework.module(scheme, layers, WIDTH, streams=2)
    before = framework.values(module)
    weights = {n: framework.array(v) for n, v in {**release_weights(), **change}.items()}
    said = refusal(module.load_release, weights, error=ValueError)
    assert re.search(message.replace("(", r"\("), said)
    after = framework.values(module)
    assert all(np.array_equal(after[name], value) for name, value in before.items())


def test_parametrised_and_pruned_parameters_are_trained_and_reset(torch):
    from torch.nn.utils import parametrizations, prune

    from fathom.torch import ResidualConnection

    weight_norm = partial(parametrizations.weight_norm, name="phi_pre")
    pruned = partial(prune.l1_unstructured, name="phi_pre", amount=0.5)
    for change, count in ((weight_norm, 2), (pruned, 1)):
        c = ResidualConnection("mhc_averaged", 2, 8)
        plain = len([*c.parameters()])
        start = c.phi_pre.detach().clone()
        change(c)
        groups = c.parameter_groups(0.1, 0.1)
        trained = [p for group in groups for p in group["params"]]
        assert len(trained) == plain - 1 + count
        assert len(c.parameter_groups(torch.tensor(0.1), 0.1)) == len(groups)
        with torch.no_grad():
            for p in trained:
                p.mul_(2)
        c.reset_parameters()
        whole = c.phi_pre[c.phi_pre != 0]
        assert torch.allclose(whole, start[c.phi_pre != 0], rtol=1e-6)


def test_second_derivative_of_a_parameter_that_opens_nothing(torch):
    from fathom.torch import ResidualConnection

    c = ResidualConnection("altup", 2, 8)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))

    def gradient(*wanted):
        output = c(x, [torch.tanh] * 2).pow(2).sum()
        return torch.autograd.grad(output, wanted, create_graph=True)[-1]

    of_all = gradient(c.predict, c.correct)
    c.requires_grad_(False)
    c.correct.requires_grad_()
    assert torch.equal(gradient(c.correct), of_all)
