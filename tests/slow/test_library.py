"""Connections under PyTorch's compilers and tracers, and each scheme's gradients."""

import copy
import io
import math
import sys
from functools import partial

import numpy as np
import pytest

from tests.library.frameworks import (
    INPUT,
    LAYERS,
    SHAPE,
    WIDTH,
    branches,
    mixture,
    moved,
    stepped,
)
from tests.library.test_library import EXAMPLES
from tests.support.commands import finished


def test_torch_moves_a_module_to_the_meta_device_and_back(torch):
    from fathom.torch import ResidualConnection

    module = ResidualConnection("mhc_paper", LAYERS, WIDTH, seed=3)
    empty = copy.deepcopy(module).to("meta")
    linear = torch.nn.Linear(WIDTH, WIDTH, device="meta")
    assert empty(torch.ones(SHAPE, device="meta"), [linear] * LAYERS).shape == SHAPE
    back = empty.to_empty(device="cpu")
    back.reset_parameters()
    for name, value in module.state_dict().items():
        assert torch.equal(back.state_dict()[name], value)


TRANSFORMED = ["plain", "hc_static", "mhc_paper", "altup", "deepseek_v4", "hy_v4", "qwen4_exp"]


def functional_uses(torch, call, x):
    """(name of a PyTorch tool, its result for a call, expected result)."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    other, along, h = x + 1, torch.ones_like(x), 1e-6
    yield "functionalize", torch.func.functionalize(call)(x), call(x)
    yield "vmap", torch.func.vmap(call)(x), call(x)
    yield "make_fx", make_fx(call)(x)(other), call(other)
    yield "jit.trace", torch.jit.trace(call, x)(other), call(other)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = call(mode.from_tensor(x))
    assert fake.shape == x.shape
    yield "after fake tensors", call(x), call(x)
    slope = (call(x + h * along) - call(x - h * along)) / (2 * h)
    yield "jvp", torch.func.jvp(call, (x,), (along,))[1], slope
    with torch.autograd.forward_ad.dual_level() as _:
        dual = call(torch.autograd.forward_ad.make_dual(x, along))
        yield "forward mode", torch.autograd.forward_ad.unpack_dual(dual).tangent, slope
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad((call(leaf) ** 2).sum(), leaf)
    yield "func.grad", torch.func.grad(lambda x: (call(x) ** 2).sum())(x), expected
    out = call(leaf)
    of = torch.stack([2 * out, torch.ones_like(out)]).detach()
    (batch,) = torch.autograd.grad(out, leaf, of, is_grads_batched=True)
    yield "is_grads_batched", batch[0], expected
    (of_sum,) = torch.autograd.grad(call(leaf).sum(), leaf)
    yield "another gradient of the batch", batch[1], of_sum


@pytest.mark.parametrize("scheme", TRANSFORMED)
@pytest.mark.filterwarnings("ignore")
def test_tracing_and_transforms_are_correct_and_leave_no_state(torch, on_torch, scheme):
    from fathom.torch import kept_ops

    kept_ops.cache_clear()
    module, _ = moved(on_torch, scheme, "float64")
    module.requires_grad_(False)  # jit.trace refuses closed-over parameters that require gradients
    functions = branches(on_torch, "float64")
    x = on_torch.array(INPUT, "float64")
    # Each tool starts with an empty cache, and an ordinary call follows it.
    for name, result, expected in functional_uses(torch, lambda x: module(x, functions), x):
        size = float(expected.abs().max())
        assert result.detach().numpy() == pytest.approx(
            expected.detach().numpy(), abs=1e-6 * size
        ), name
        kept_ops.cache_clear()


@pytest.mark.parametrize("scheme", ["hc_causal", "mhc_static", "mhc_paper"])
def test_checkpointing_keeps_output_and_gradients(framework, scheme):
    from torch.utils.checkpoint import checkpoint

    module, _ = moved(framework, scheme)
    functions = branches(framework)
    expected = stepped(framework, module, functions)
    ways = {
        "torch": partial(checkpoint, use_reentrant=False),
        "mlx": lambda f, state: framework.library.checkpoint(f)(state),
    }
    checkpointed = stepped(framework, module, functions, step=ways[framework.name])
    for name, value in expected.items():
        assert checkpointed[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_a_compiled_pass_in_autocast_is_exact_with_the_documented_setting(torch, on_torch):
    module, _ = moved(on_torch, "hc_paper")
    x, functions = on_torch.array(INPUT), [lambda *x: torch.tanh(mixture(*x))] * LAYERS
    loss = lambda x: (module(x, functions) ** 2).sum()  # noqa: E731

    def gradients(function):
        torch._dynamo.reset()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = function(x)
        return torch.autograd.grad(value, list(module.parameters()))

    compiled = torch.compile(loss, backend="aot_eager")
    with torch._functorch.config.patch({"backward_pass_autocast": "off"}):
        exact = gradients(compiled)
    for gradient, expected in zip(exact, gradients(loss), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


# Tracing takes a second or more for every ten passes of Sinkhorn.
FEW = {"H_res": {"iterations": 2}}


COMPILED = {
    "attn_res": "attn_res",
    "frac": "frac",
    "inkling2": {"connection": "inkling2", "block_size": 1, "apart": 2},
    "muddformer": "muddformer",
    "hc_causal": "hc_causal",
    "hc_paper": "hc_paper",
    "mhc_paper": {"connection": "mhc_paper", **FEW},
}


@pytest.mark.parametrize("scheme", COMPILED.values(), ids=list(COMPILED))
@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_torch_compile_takes_a_pass_as_one_graph(torch, on_torch, scheme):
    """The compiler traces forward and backward; its operations run one by one.

    In float64, because uncompiled float32 runs partly in NumPy, which adds in another order.
    """
    module, _ = moved(on_torch, scheme, "float64")
    functions = branches(on_torch, "float64")
    expected = stepped(on_torch, module, functions, dtype="float64")
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: module(x, functions), fullgraph=True, backend="aot_eager")
    x, loss_of = on_torch.array(INPUT, "float64"), lambda x: (compiled(x) ** 2).sum()
    result = on_torch.gradients(module, x, loss_of)
    result["out"] = on_torch.numpy(compiled(x))
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, rel=1e-9, abs=1e-10 * np.abs(value).max()), name


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_a_compiled_pass_takes_noise(torch, on_torch):
    module, functions = on_torch.module("prores", 2, WIDTH), [torch.tanh] * 2
    noise, x = module.connection.sample_noise(np.random.default_rng(0), 0.05), torch.ones(2, WIDTH)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, n: module(x, functions, n), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, noise), module(x, functions, noise))
    assert not torch.equal(compiled(x, noise), module(x, functions))


@pytest.mark.parametrize("scheme", COMPILED.values(), ids=list(COMPILED))
@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_a_compiled_pass_takes_many_lengths_with_at_most_two_graphs(torch, on_torch, scheme):
    """No pass runs before the compilation."""
    graphs = []
    module, _ = moved(on_torch, scheme)
    functions = branches(on_torch)
    torch._dynamo.reset()

    def counted(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda x: module(x, functions), fullgraph=True, dynamic=True, backend=counted
    )
    passes = {T: (compiled(x), x) for T in range(3, 16) for x in [torch.randn(2, T, WIDTH)]}
    assert len(graphs) <= 2
    for out, x in passes.values():
        torch.testing.assert_close(out, module(x, functions), rtol=1e-5, atol=1e-4)


def test_compiling_only_the_branches_keeps_output_and_gradients(torch, on_torch):
    module, _ = moved(on_torch, "mhc_paper")
    functions, compiled = branches(on_torch), partial(torch.compile, backend="aot_eager")
    expected = stepped(on_torch, module, functions)
    result = stepped(on_torch, module, [compiled(function) for function in functions])
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_the_example_learns(framework):
    file = EXAMPLES / f"library_{framework.name}.py"
    done = finished(sys.executable, file, OPENBLAS_NUM_THREADS="1")  # other tests run in parallel
    assert done.returncode == 0, done.stderr
    said = done.stdout
    first, last = (float(line.rpartition(" ")[2]) for line in said.splitlines())
    vocab = len(set(file.read_text(encoding="utf-8")))
    assert abs(first - math.log(vocab)) < 1  # chance
    assert last < 3.2 < first


@pytest.mark.parametrize(
    "scheme",
    [
        *("hc_static", "hc_causal", "hc_paper", "altup", "frac", "dory", "laurel"),
        *("attn_res_block", "muddformer", "inkling2", "altup", "mhc_identity_cycle"),
        pytest.param({"connection": "mhc_paper", **FEW}, id="mhc_paper"),
        pytest.param({"connection": "deepseek_v41", **FEW}, id="deepseek_v41"),
    ],
)
def test_an_exported_pass_takes_any_length(torch, on_torch, scheme):
    module, _ = moved(on_torch, scheme)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.connection, self.functions = module, branches(on_torch)

        def forward(self, x):
            return self.connection(x, self.functions)

    network, length = Network(), torch.export.Dim("length", min=2, max=64)
    x = torch.randn(2, 8, WIDTH)
    program = torch.export.export(network, (x,), dynamic_shapes={"x": {1: length}})
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    exported = torch.export.load(file).module()
    for T in (3, 21):
        x = torch.randn(2, T, WIDTH)
        expected = network(x).detach()
        size = float(expected.abs().max())
        assert exported(x).detach().numpy() == pytest.approx(expected.numpy(), abs=1e-5 * size)
