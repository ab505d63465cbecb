"""Functions with custom gradients: inputs are kept, and loops equal the plain formula."""

import numpy as np
import pytest

from fathom.arithmetic import boundary, boundary_loops, dense_loops, loops
from fathom.arithmetic.custom_vjp import Adding, Mixing, MixingAndSum, NormedProduct, WeightedSum
from fathom.arithmetic.dense_vjp import DynamicReads
from fathom.arithmetic.depth_vjp import InverseRms, SoftmaxRead
from fathom.arithmetic.forms import PredictionForm
from fathom.arithmetic.gated_vjp import GatedMean, NormedStreams
from fathom.arithmetic.one_stream_vjp import OrthogonalUpdate
from fathom.arithmetic.prediction import Prediction
from fathom.arithmetic.sinkhorn import Passes, alternating_sides
from fathom.connections.components import (
    Dynamic,
    DynamicPerStream,
    RawWeights,
    SigmoidWeights,
    SoftmaxWeights,
)
from fathom.connections.constraints import KernelSinkhorn, Sinkhorn

N, M = 5, 3


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


S, R, I = 4, 2, 3  # noqa: E741
FUNCTIONS = [
    (NormedProduct(0.1), arrays((N, S * M), (7, S * M))),
    (WeightedSum(), arrays((N, S), (N, S, M))),
    (Mixing(), arrays((N, S, S), (N, S), (N, S, M), (N, M))),
    (Adding(), arrays((N, S), (N, S, M), (N, M))),
    (MixingAndSum(), arrays((S + 1, S + 1), (S, M), (M,))),
    (InverseRms(0.1), arrays((N, M))),
    (SoftmaxRead(1, True), arrays((R, M), (I, N, M), (I, N))),
    (SoftmaxRead(3, False), arrays((R, M), (I, N, M), (I, N), (R, N, M), (R, 3, N))),
    (OrthogonalUpdate(0.1), arrays((N, M), (N, M))),
    (Passes(alternating_sides(4, "rows"), 1e-12, 0.0), [np.exp(arrays((N, S, S))[0])]),
]
"""Functions and their inputs. test_library compares values and gradients with the oracle."""


@pytest.mark.parametrize(("function", "inputs"), FUNCTIONS)
def test_inputs_are_not_overwritten(backend, function, inputs):
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
    K = S if one.post is None else 2 * S + S * S * one.mixes
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
def test_prediction_loops(connect_cpu, N, S, positions, has_residual, writes, reads):
    C = 3
    one = Prediction(PredictionForm(C, 0.1, has_residual, writes, reads))
    shapes = (N, S, positions * C), (N * writes, positions * C), (S, C), (S, S), (S, C), (S * S, S)
    assert_loops_equal_plain(connect_cpu("torch").ops, one, arrays(*shapes))


@pytest.mark.parametrize(("N", "S"), SETS)
def test_gated_loops_equal_their_plain_formulas(connect_cpu, N, S):
    ops, streams = connect_cpu("torch").ops, (N, S, 3)
    assert_loops_equal_plain(ops, NormedStreams(0.1), arrays(streams, streams[1:]))
    assert_loops_equal_plain(ops, GatedMean(), arrays(streams, streams))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_loops_of_one_stream_equal_their_plain_formulas(connect_cpu, rows):
    ops, pair = connect_cpu("torch").ops, ((rows, 7), (rows, 7))
    assert_loops_equal_plain(ops, OrthogonalUpdate(0.1), arrays(*pair))
    assert_loops_equal_plain(ops, NormedStreams(0.1), arrays((rows, 1, 7), (1, 7)))


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("reads", [1, 4])
@pytest.mark.parametrize("sources", [1, dense_loops.GROUP, dense_loops.GROUP + 1])
def test_loops_of_dynamic_reads_equal_their_plain_formula(connect_cpu, rows, reads, sources):
    weights = ((reads, sources), (3, 7), (reads * sources, 3))
    inputs = arrays(*weights, *[(rows, 7)] * sources)
    assert_loops_equal_plain(connect_cpu("torch").ops, DynamicReads(0.1), inputs)


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


@pytest.mark.parametrize(
    "values", [[True, False], [1, 2], [0.5, 2.0]], ids=["bool", "int", "float"]
)
def test_arrays_have_the_same_type_where_a_transform_records(connect_cpu, values):
    ops, seen = connect_cpu("torch").ops, []
    import torch

    torch.func.vmap(lambda x: seen.append(ops.asarray(np.array(values))) or x)(torch.zeros(2))
    eager = ops.asarray(np.array(values))
    assert seen[0].dtype == eager.dtype
    assert seen[0].tolist() == eager.tolist()
