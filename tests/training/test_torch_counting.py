"""Counted work of a step, against counts by hand and PyTorch's own counter of products."""

import pytest

from fathom.connections.schemes import SCHEMES
from fathom_study.batch import Batch
from fathom_study.config import installed_backends
from fathom_study.tasks import Problem
from tests.support.specs import make_spec

if "torch" not in installed_backends():
    # Not importorskip, which imports the empty folder that an uninstall leaves.
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fathom.operations.torch_ops import TorchOps
from fathom_study.backends.torch_counting import count, count_step
from tests.support.specs import quick_cases

A, B, ROW, W = (torch.empty(shape, device="meta") for shape in [(4, 6), (4, 6), (1, 6), (6, 7)])


@pytest.mark.parametrize(
    ("function", "operations", "numbers"),
    [
        (lambda: A @ W, 2 * 4 * 6 * 7, 4 * 6 + 6 * 7 + 4 * 7),
        (lambda: A + B, 48, 72),
        (lambda: A * ROW, 30, 54),  # a broadcast factor is read once
        (lambda: A * A, 24, 48),  # so is the factor of a square
        (lambda: A.sum(), 24, 25),
        (lambda: A.mT.contiguous(), 24, 48),
        (lambda: A.reshape(6, 4).mT[1:], 0, 0),  # a view
        (lambda: torch.empty(9, device="meta"), 0, 0),
    ],
)
def test_kernels_by_hand(function, operations, numbers):
    assert count(function)[1:] == (operations, 4 * numbers)


def products_of_a_real_step(problem):
    """Operations of matrix products in a forward and backward pass, by PyTorch's own counter."""
    ops = TorchOps(torch.device("cpu"), torch.float16)  # in a type that no compiled loop takes
    batch = problem.batches(0)[0]
    params = {
        name: torch.zeros(p.shape, dtype=ops.dtype, requires_grad=True)
        for name, p in problem.network.parameters().items()
    }
    # The fused attention of a CPU is one kernel, which that counter does not know.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        given = Batch.of_arrays(batch.arrays(ops.asarray))
        output = problem.network.forward(ops, params, given.inputs)
        loss = problem.task.loss(ops, output, given)
        torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
    return counter.get_total_flops()


# One of each kind of connection; Sinkhorn passes have no product, and are slow on this device.
QUICK = "plain", "hc_causal", "hc_paper", "mhc_static", "altup", "dory", "laurel", "inkling2"


@quick_cases("scheme", {name: (name,) for name in SCHEMES}, *QUICK)
def test_counted_products_equal_a_real_step(scheme):
    problem = Problem(make_spec(task="state", variant=scheme, wrap="sublayer"))
    result = count_step(problem)
    assert result.products == products_of_a_real_step(problem) > 0
    # A parameter is read in both passes, and its gradient written.
    parameters = sum(torch.Size(p.shape).numel() for p in problem.network.parameters().values())
    assert result.bytes > 4 * 3 * parameters
    assert result.operations > result.products
