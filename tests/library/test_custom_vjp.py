"""Functions with custom gradients: values and gradients equal those of the plain formula."""

from functools import partial

import numpy as np
import pytest

from fathom.arithmetic import boundary, boundary_loops, loops
from fathom.arithmetic.custom_vjp import (
    Adding,
    Mixing,
    MixingAndSum,
    NormedProduct,
    WeightedSum,
)
from fathom.arithmetic.depth_vjp import InverseRms, SoftmaxRead
from fathom.arithmetic.forms import PredictionForm
from fathom.arithmetic.gated_vjp import GatedMean, NormedStreams
from fathom.arithmetic.prediction import Prediction
from fathom.arithmetic.sinkhorn import BoundedExp, Passes, Softmax, alternating_sides
from fathom.connections.components import (
    Dynamic,
    DynamicPerStream,
    RawWeights,
    SigmoidWeights,
    SoftmaxWeights,
)
from fathom.connections.constraints import KernelSinkhorn, Sinkhorn, normalize

N, M = 5, 3

FUNCTIONS = (NormedProduct, WeightedSum, Mixing, Adding, MixingAndSum, InverseRms, SoftmaxRead)


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


# The plain formulas on PyTorch tensors. A function that only reads x returns it too.


def normed_product(x, phi):
    rms = ((x * x).mean(dim=-1, keepdim=True) + 0.1).sqrt()
    return (x / rms) @ phi.T, x


def weighted_sum(weights, x):
    return (weights[:, :, None] * x).sum(dim=1), x


def mixing(H, weights, x, y):
    return ((H[:, :, :, None] * x[:, None]).sum(dim=2) + weights[:, :, None] * y[:, None],)


def adding(weights, x, y):
    return (x + weights[:, :, None] * y[:, None],)


def mixing_and_sum(A, x, y):
    sums = (A[:, :-1, None] * x).sum(dim=1) + A[:, -1:] * y
    return sums[:-1], sums[-1]


def inverse_rms(x):
    return ((x * x).mean(dim=-1) + 0.1) ** -0.5, x


def softmax_read(heads, values_normed):
    """Reads and log-sums over all sources; further ones enter by their read and log-sum."""

    def function(queries, v, s, read=None, log_sum=None):
        (R, C), (I, N, _) = queries.shape, v.shape  # noqa: E741
        logits, values = [], []
        for i in range(I):
            by_head = (queries[:, None] * v[i]).reshape(R, N, heads, -1).sum(dim=-1)
            logits.append(by_head * s[i, :, None])
            values.append((v[i] * s[i, :, None] if values_normed else v[i]).expand(R, N, C))
        if read is not None:
            logits.append(log_sum.permute(0, 2, 1))
            values.append(read)
        logits = stacked(logits)
        shares = logits.softmax(dim=0).repeat_interleave(C // heads, dim=-1)
        sums = logits.logsumexp(dim=0).permute(0, 2, 1)
        return (shares * stacked(values)).sum(dim=0), sums, v

    return function


def stacked(tensors):
    import torch

    return torch.stack(tensors)


def sinkhorn(sides, floor, added, start=lambda Z: Z):
    def function(K):
        K = start(K)
        for side in sides:
            axis = 2 if side == "rows" else 1
            K = K / (K.sum(dim=axis, keepdim=True).clamp_min(floor) + added)
        return (K,)

    return function


def cases():
    for S in (1, 4):
        of_norm = NormedProduct(0.1), normed_product, arrays((N, S * M), (7, S * M))
        yield f"normed-product-{S}", *of_norm
        yield f"weighted-sum-{S}", WeightedSum(), weighted_sum, arrays((N, S), (N, S, M))
        yield f"mixing-{S}", Mixing(), mixing, arrays((N, S, S), (N, S), (N, S, M), (N, M))
        yield f"adding-{S}", Adding(), adding, arrays((N, S), (N, S, M), (N, M))
        yield (
            f"mixing-and-sum-{S}", MixingAndSum(), mixing_and_sum,
            arrays((S + 1, S + 1), (S, M), (M,)),
        )  # fmt: skip
    yield "inverse-rms", InverseRms(0.1), inverse_rms, arrays((N, M))
    R, I, C = 2, 3, 6  # noqa: E741
    for heads, values_normed in ((1, False), (1, True), (3, False), (2, True)):
        settings = (heads, values_normed)
        for others in ((), ((R, N, C), (R, heads, N))):
            name = f"softmax-read-{heads}-{values_normed}-{len(others)}"
            given = arrays((R, C), (I, N, C), (I, N), *others)
            yield name, SoftmaxRead(*settings), softmax_read(*settings), given


def sinkhorns():
    """Cases of matrices [N, S, S]."""
    for S in (1, 3, 4):
        for sides in (
            alternating_sides(4, "rows"),
            alternating_sides(4, "columns"),
            alternating_sides(1, "rows"),
            alternating_sides(3, "columns")[1:],  # as in kernels: softmax is the first
        ):
            for floor, added in ((1e-12, 0.0), (0.0, 0.05)):
                name = f"sinkhorn-{S}-{len(sides)}-{sides[-1]}-{added}"
                K = np.exp(arrays((N, S, S))[0])
                settings = (sides, floor, added)
                yield pytest.param(Passes(*settings), sinkhorn(*settings), [K], id=name)
    sides, logits = alternating_sides(3, "columns"), arrays((N, 3, 3))
    for name, start, plain in (
        ("exp", BoundedExp(), lambda Z: Z.exp()),
        ("softmax", Softmax(0.05), lambda Z: Z.softmax(dim=-1) + 0.05),
    ):
        settings = (sides, 1e-12, 0.02)
        passes = Passes(*settings, start)
        yield pytest.param(passes, sinkhorn(*settings, plain), logits, id=name)


CASES = [pytest.param(*case, id=name) for name, *case in cases()]


def values_and_gradients(torch, function, inputs, cotangents):
    """Outputs, and gradients of Σ cotangent · output with respect to inputs, in float64."""
    xs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs]
    outputs = function(*xs)
    pairs = zip(outputs, cotangents, strict=True)
    used = [(output, c) for output, c in pairs if c.any() or not c.size]
    loss = sum((output * torch.tensor(c)).sum() for output, c in used)
    gradients = torch.autograd.grad(loss, xs, materialize_grads=True)
    return [output.detach().numpy() for output in outputs], [g.numpy() for g in gradients]


def assert_plain_in_float64(torch, function, plain, inputs):
    outputs = plain(*map(torch.tensor, inputs))
    all_used = arrays(*(output.shape for output in outputs), seed=1)
    # Also with only one output used: the others then have no gradient.
    alone = [[c * (i == k) for i, c in enumerate(all_used)] for k in range(len(outputs))]
    for used in (all_used, *alone):
        values, gradients = values_and_gradients(torch, plain, inputs, used)
        fused = values_and_gradients(torch, function, inputs, used)
        for value, expected in zip((*fused[0], *fused[1]), (*values, *gradients), strict=True):
            assert value == pytest.approx(expected, rel=1e-10, abs=1e-12)


def assert_plain_on_mlx(torch, mx, function, plain, inputs):
    inputs = [x.astype(np.float32) for x in inputs]
    outputs = plain(*map(torch.tensor, inputs))
    cotangents = arrays(*(output.shape for output in outputs), seed=1)
    values, gradients = values_and_gradients(torch, plain, inputs, cotangents)
    xs = [mx.array(x) for x in inputs]
    given = [mx.array(c.astype(np.float32)) for c in cotangents]
    results, slopes = mx.vjp(function, xs, given)
    for one, expected in zip((*results, *slopes), (*values, *gradients), strict=True):
        assert np.array(one) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.fixture(params=["compiled", "as on a GPU"])
def ways(request, connect_cpu, monkeypatch):
    """Ops of PyTorch and MLX, with compiled loops or with the frameworks' operations."""
    monkeypatch.setattr(Mixing, "loops_from", 0)  # MLX loops over large arrays only
    if request.param != "compiled":
        for function in (*FUNCTIONS, Passes):
            monkeypatch.setattr(function, "compiled", lambda self: None)
    return connect_cpu("torch").ops, connect_cpu("mlx").ops


@pytest.mark.parametrize(("function", "plain", "inputs"), [*CASES, *sinkhorns()])
def test_custom_function_equals_the_plain_formula(ways, function, plain, inputs):
    import mlx.core as mx
    import torch

    on_torch, on_mlx = (partial(applied, ops, function) for ops in ways)
    assert_plain_in_float64(torch, on_torch, plain, inputs)
    assert_plain_on_mlx(torch, mx, on_mlx, plain, inputs)


def applied(ops, function, *xs):
    """Outputs of a function, or of Sinkhorn passes, on arrays of a framework."""
    if isinstance(function, Passes):
        return (normalize(ops, *xs, function),)
    return ops.custom_vjp(function, *xs)


@pytest.mark.parametrize(("function", "plain", "inputs"), [*CASES, next(sinkhorns())])
def test_inputs_are_not_overwritten(backend, function, plain, inputs):
    """Products may overwrite the array they are added to, which must never be an input."""
    xs = [backend.ops.asarray(x) for x in inputs]
    outputs, saved = function.forward(backend.ops, *xs)
    kept = [backend.ops.to_numpy(x).copy() for x in (*xs, *outputs, *saved)]
    cotangents = [backend.ops.asarray(np.ones(output.shape)) for output in outputs]
    function.backward(backend.ops, tuple(xs), saved, tuple(cotangents))
    for x, before in zip((*xs, *outputs, *saved), kept, strict=True):
        assert np.array_equal(backend.ops.to_numpy(x), before)
    assert all((backend.ops.to_numpy(c) == 1).all() for c in cotangents)
    for x, given in zip(xs, inputs, strict=True):
        assert np.array_equal(backend.ops.to_numpy(x), given.astype(np.float32))


# --- boundaries between functions -----------------------------------------------------------------

BOUNDARIES = {
    "identity": {},
    "sinkhorn": {"mixes": True, "H": Sinkhorn(iterations=3, last="rows", clip=0.5, tau=0.7)},
    "columns last": {"mixes": True, "H": Sinkhorn(iterations=2, added=0.05, floor=0.0)},
    "kernel": {"mixes": True, "H": KernelSinkhorn(iterations=3, eps=0.01)},
    "logits of H": {"mixes": True, "pre": SoftmaxWeights(), "post": RawWeights()},
    "per stream": {"mixes": True, "computed": DynamicPerStream(eps=0.1)},
    "first": {"writes": False},
    "last": {"computed": None, "pre": RawWeights(), "post": None},
    "last, computed": {"post": None},
    "late": {"late": True},
}


def boundary_case(name, N, S, P, C=3):
    """(Boundary, its inputs in float64) for N sets of S streams with P positions of C channels."""
    settings = {
        "computed": Dynamic(eps=0.1), "pre": SigmoidWeights(added=0.1),
        "post": SigmoidWeights(scale=2.0), "H": None, **BOUNDARIES[name],
    }  # fmt: skip
    one = boundary.Boundary(S, C, **settings)
    has_matrix = one.mixes or name == "sinkhorn"
    K = S if one.post is None else 2 * S + S * S * has_matrix
    rows, inputs = (K // S, C) if name == "per stream" else (K, S * C)
    c = 2 * S + S * S * one.mixes
    shapes = (N, S, P * C), (N, P * C), (N, c), (rows, inputs), (K,), (K,)
    x, y, *rest = arrays(*shapes)
    rest[1] = np.zeros((0, inputs)) if one.computed is None else rest[1]
    return one, [x, y if one.writes else y[:0], *rest]


SETS = [(0, 4), (1, 4), (boundary_loops.TILE + 3, 4), (5, 3), (7, 2)]
"""N and S; sets fill no tile, or are none."""


@pytest.mark.parametrize("name", BOUNDARIES)
@pytest.mark.parametrize(("N", "S"), SETS)
@pytest.mark.parametrize("positions", [1, 2])
def test_boundary_loops_equal_its_plain_formula(connect_cpu, name, N, S, positions):
    one, inputs = boundary_case(name, N, S, positions)
    assert_loops_equal_plain(connect_cpu("torch").ops, one, inputs)


@pytest.mark.parametrize(("N", "S"), SETS)
@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize(("writes", "reads"), [(True, True), (False, True), (True, False)])
def test_prediction_loops_equal_its_plain_formula(
    connect_cpu, N, S, positions, has_residual, writes, reads
):
    C = 3
    one = Prediction(PredictionForm(C, 0.1, has_residual, writes, reads))
    shapes = (N, S, positions * C), (N * writes, positions * C), (S, C), (S, S), (S, C), (S * S, S)
    assert_loops_equal_plain(connect_cpu("torch").ops, one, arrays(*shapes))


@pytest.mark.parametrize(("N", "S"), SETS)
def test_gated_loops_equal_their_plain_formulas(connect_cpu, N, S):
    ops, streams = connect_cpu("torch").ops, (N, S, 3)
    assert_loops_equal_plain(ops, NormedStreams(0.1), arrays(streams, streams[1:]))
    assert_loops_equal_plain(ops, GatedMean(), arrays(streams, streams))


def assert_loops_equal_plain(ops, one, inputs):
    """Values and gradients in float64, and in float32 those of the same numbers in float64.

    A result is a chain of sums, of at most as many numbers as all inputs have along an axis. Each
    addition has a relative error of eps/2, of a number about as large as the largest.
    """
    import torch

    assert one.compiled() is not None
    inputs = [x.astype(np.float32) for x in inputs]
    exact = type(ops)(ops.device, torch.float64)
    given = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs]
    outputs = one.plain(exact, *given)
    all_used = arrays(*(output.shape for output in outputs), seed=1)
    all_used = [torch.tensor(c.astype(np.float32)).double() for c in all_used]
    alone = [[c * (i == k) for i, c in enumerate(all_used)] for k in range(len(outputs))]
    for used in (all_used, *alone):
        gradients = torch.autograd.grad(
            outputs, given, used, retain_graph=True, materialize_grads=True, allow_unused=True
        )
        expected = [x.detach() for x in (*outputs, *gradients)]
        count = sum(size for x in inputs for size in x.shape)
        sizes = (float(x.detach().abs().max()) for x in (*expected, *given, *used) if x.numel())
        largest = max(sizes, default=0.0)
        for dtype in (torch.float64, torch.float32):
            xs = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in inputs]
            found = type(ops)(ops.device, dtype).custom_vjp(one, *xs)
            slopes = torch.autograd.grad(
                found, xs, [c.to(dtype) for c in used], materialize_grads=True, allow_unused=True
            )
            bound = count * torch.finfo(dtype).eps / 2 * largest
            for x, y in zip((*found, *slopes), expected, strict=True):
                assert x.dtype == dtype
                assert torch.allclose(x.double(), y, rtol=0, atol=bound)


@pytest.mark.parametrize(("loop", "exact", "units"), [("exp", np.exp, 1), ("tanh", np.tanh, 2)])
def test_exponentials_are_as_exact_as_said(loop, exact, units):
    """Errors in units in the last place; overflow, underflow and NaN as in NumPy."""
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-30, 88.8, -104.0]
    x = np.concatenate([np.linspace(-110, 95, 200_001), np.linspace(-1, 1, 200_001), special])
    x = x.astype(np.float32)[None]
    found = x.copy()
    if loop == "exp":
        loops.exponentials(found)
    else:
        loops.tangents(x, found)
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.float64))
        rounded = expected.astype(np.float32)
        error = np.abs(found - expected) / np.spacing(np.abs(rounded))
    is_finite = np.isfinite(rounded)
    assert np.array_equal(np.isfinite(found), is_finite)
    assert error[is_finite].max() < units
    assert np.array_equal(found[~is_finite], rounded[~is_finite], equal_nan=True)
