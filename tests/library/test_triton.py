"""CUDA kernels against plain formulas or the CPU's loops; interpreted without a GPU."""

import os

import numpy as np
import pytest

from fathom_study.config import installed_backends

if "torch" not in installed_backends():  # not importorskip: an empty folder would be imported
    pytest.skip("torch is not installed", allow_module_level=True)
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="needs Triton, which PyTorch for CUDA installs")

from fathom.arithmetic import fused, loops, sinkhorn
from fathom.arithmetic.dense_vjp import DynamicReads
from fathom.operations import torch_ops, triton_boundary, triton_reads
from fathom.operations.torch_gradients import CustomVJPFunction
from fathom.operations.torch_ops import TorchOps
from fathom.torch import ResidualConnection
from tests.library.frameworks import connection_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_tuples = pytest.mark.skipif(not triton_reads.HAS_TUPLES, reason="needs Triton 3.3")
SINKHORN, IDENTITY = "mhc_paper", "mhc_identity_cycle"

# --- Sinkhorn ------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [1, 2, 3, 40])
@pytest.mark.parametrize("floor, added", [(0.0, 0.0), (1e-6, 0.0), (0.3, 0.0), (0.0, 1e-3)])
@pytest.mark.parametrize("streams, matrices", [(4, 70), (2, 32), (8, 5)])
def test_kernels_equal_loops(passes, floor, added, streams, matrices):
    rng = np.random.default_rng(0)
    K = np.exp(rng.normal(size=(streams, streams, matrices))).astype(np.float32)
    g = rng.normal(size=K.shape).astype(np.float32)
    scales = loops.scales_of_passes(K, passes, floor, added)
    on_device = torch.tensor(K, device=DEVICE)
    device_scales = fused.scales_of_passes(on_device, passes, floor, added)
    # A pass adds `streams` products and divides once; scales accumulate rounding over passes.
    rounding = (streams + 2) * passes * np.finfo(np.float32).eps
    np.testing.assert_allclose(device_scales.cpu(), scales, rtol=rounding)
    of_K = loops.passes_backward(K, scales, g, added)
    of_device = fused.passes_backward(
        on_device, device_scales, torch.tensor(g, device=DEVICE), added
    )
    np.testing.assert_allclose(of_device.cpu(), of_K, atol=rounding * np.abs(of_K).max())


# --- the boundary --------------------------------------------------------------------------------


class PlainOps(TorchOps):
    """Every function by its plain formulas, which PyTorch differentiates."""

    def custom_vjp(self, function, *xs):
        return function.plain(self, *xs)


def boundary_of(scheme, streams, width, name="between"):
    return getattr(connection_of(scheme, 2, width, streams=streams), name)


def arguments(boundary, tokens):
    """x, y, c, φ, b and α in float64, at random."""
    S, M = boundary.streams, boundary.channels
    draw = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    parts = [boundary.pre, *([boundary.post] if boundary.post else [])]
    logits = sum(S ** len(part.shape(S)) for part in parts)
    logits += S * S if boundary.H is not None else 0
    rows = 0 if boundary.computed is None else logits
    if rows and boundary.computed.per_stream:
        rows //= S
    inputs = M if boundary.computed and boundary.computed.per_stream else S * M
    c = random(tokens, 2 * S + S * S if boundary.mixes else 2 * S)
    return [
        random(tokens, S, M), random(tokens, M), c, random(rows, inputs) / inputs**0.5,
        random(logits), random(logits),
    ]  # fmt: skip


def results(run, xs, types, probes):
    """(Outputs, gradients of all arguments of Σ probe · output), in float64."""
    leaves = [x.to(DEVICE, kind).requires_grad_() for x, kind in zip(xs, types, strict=True)]
    outputs = run(*leaves)
    loss = sum((out.double() * p.to(DEVICE)).sum() for out, p in zip(outputs, probes, strict=True))
    gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
    return [v.detach().double().cpu() for part in (outputs, gradients) for v in part]


def compare(function, way, xs, types, factor):
    """Compare kernels with plain formulas of the same rounded arguments.

    Of the largest entry of each result, `factor` roundings: a result is a sum of products of a few
    hundred rounded numbers, whose errors have either sign.
    """
    xs = [x.to(kind).double() for x, kind in zip(xs, types, strict=True)]
    exact_ops, ops = PlainOps(DEVICE, torch.float64), TorchOps(DEVICE, torch.float32)
    sizes = [v.shape for v in function.plain(exact_ops, *(x.to(DEVICE) for x in xs))]
    draw = torch.Generator().manual_seed(1)
    dtype = max(types, key=lambda kind: torch.finfo(kind).eps)
    probes = [torch.randn(size, generator=draw).to(dtype).double() for size in sizes]
    exact = results(
        lambda *xs: function.plain(exact_ops, *xs), xs, [torch.float64] * len(xs), probes
    )
    found = results(lambda *xs: CustomVJPFunction.apply(ops, function, way, *xs), xs, types, probes)
    rounding = factor * torch.finfo(dtype).eps
    for own, expected in zip(found, exact, strict=True):
        assert own.shape == expected.shape
        if expected.numel():
            bound = rounding * max(float(expected.abs().max()), 1e-3)
            assert float((own - expected).abs().max()) <= bound


def check(boundary, tokens, dtype=torch.float32, factor=64):
    types = [dtype, dtype, *[torch.promote_types(dtype, torch.float32)] * 4]
    way = triton_boundary.Boundary(boundary)
    compare(boundary, way, arguments(boundary, tokens), types, factor)


@pytest.mark.parametrize("streams", [2, 4, 8])
@pytest.mark.parametrize("scheme", [SINKHORN, IDENTITY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_values_and_gradients(scheme, streams, dtype):
    check(boundary_of(scheme, streams, 24), 5, dtype, 64 if dtype == torch.float32 else 4)


@pytest.mark.parametrize("tokens, width", [(1, 1), (3, 5), (2, 67), (0, 8)])
@pytest.mark.parametrize("scheme", [SINKHORN, IDENTITY])
def test_odd_sizes_and_no_tokens(scheme, tokens, width, monkeypatch):
    monkeypatch.setattr(triton_boundary, "ENTRIES", 16 * 32)  # the last block is never full
    check(boundary_of(scheme, 4, width), tokens)


@pytest.mark.parametrize("scheme", ["hc_paper", "mhc_lite", "deepseek_v41", "deepseek_v4"])
@pytest.mark.parametrize("name", ["opening", "between", "closing"])
def test_other_parts_and_places(scheme, name):
    """Logits of each stream, late reads, matrices after the boundary, the ends of a network."""
    check(boundary_of(scheme, 4, 6, name), 3)


# --- sums of many sources -------------------------------------------------------------------------


def check_reads(tokens, width, sources, sums, dtype=torch.float32, factor=64):
    draw = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    xs = [random(sums, sources), random(8, width) / width**0.5, random(sums * sources, 8) / 3]
    xs += [random(width, tokens).T for _ in range(sources)]  # columns are contiguous
    types = [torch.float32] * 3 + [dtype] * sources
    compare(DynamicReads(1e-6), triton_reads.DynamicReads(1e-6), xs, types, factor)


@needs_tuples
@pytest.mark.parametrize("sums", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_sums_and_gradients(sums, dtype):
    check_reads(3, 24, 5, sums, dtype, 64 if dtype == torch.float32 else 4)


@needs_tuples
@pytest.mark.parametrize("tokens, width, sources", [(1, 1, 1), (3, 5, 2), (2, 67, 3), (0, 8, 2)])
@pytest.mark.parametrize("sums", [1, 4])
def test_odd_sizes_and_several_groups(tokens, width, sources, sums, monkeypatch):
    monkeypatch.setattr(triton_reads, "GROUP", 2)
    monkeypatch.setattr(triton_reads, "BLOCK", 16)  # the last block is never full
    check_reads(tokens, width, sources, sums)


# --- a network ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheme, kernels, name, calls",
    [
        ("mhc_paper", triton_boundary, "write", 3),  # the opening, and after each function
        pytest.param(
            {"kind": "dense", "weights": "dynamic"}, triton_reads, "read", 2, marks=needs_tuples
        ),
    ],
)
def test_a_network_is_run_by_them_unless_a_variable_says_off(
    scheme, kernels, name, calls, monkeypatch
):
    """Output and gradients of a whole pass are those of plain formulas."""
    monkeypatch.setattr(sinkhorn, "has_triton", lambda: False)  # boundaries alone
    monkeypatch.setattr(torch_ops, "is_on_host", lambda x: False)
    monkeypatch.setattr(torch_ops, "is_float32_on_gpu", lambda *xs: True)
    for module in ("boundary", "dense_vjp"):
        monkeypatch.setattr(f"fathom.arithmetic.{module}.has_triton", lambda: True)
    c, runs = ResidualConnection(scheme, layers=2, width=6, device=DEVICE), []
    run = getattr(kernels, name)
    monkeypatch.setattr(kernels, name, lambda *given: runs.append(given) or run(*given))

    def passed():
        x = torch.linspace(-1, 1, 18, device=DEVICE).view(3, 6).requires_grad_()
        output = c(x, [torch.tanh, torch.sin])
        return output.detach(), *torch.autograd.grad(output.square().sum(), [x, *c.parameters()])

    by_kernels = passed()
    assert len(runs) == calls
    monkeypatch.setenv("FATHOM_TORCH_KERNELS", "off")
    by_formulas = passed()
    assert len(runs) == calls
    # Entries of a gradient are differences of terms as large as the largest of all gradients.
    bound = 64 * torch.finfo(torch.float32).eps * max(float(v.abs().max()) for v in by_formulas)
    for own, expected in zip(by_kernels, by_formulas, strict=True):
        assert float((own - expected).abs().max()) <= bound
