"""Operations and bytes of a training step, counted in PyTorch's graph; nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fathom.operations.torch_ops import TorchOps
from fathom_study.batch import Batch
from fathom_study.tasks import Problem


class Count(NamedTuple):
    """Operations and bytes of a computation."""

    products: int
    """Floating-point operations of matrix products and convolutions alone."""
    operations: int
    """Floating-point operations: 2 n m k of a matrix product; for other kernels the number of
    floats read or written, whichever is larger."""
    bytes: int
    """Bytes that kernels read and write, kernel by kernel; a fused kernel would move fewer."""


class Counting(TorchDispatchMode):
    """Counts every kernel that runs while it is active. Views run none."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.operations = self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401, an operator of PyTorch
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        if _runs_no_kernel(func):
            return out
        read, written = (list(_tensors(side)) for side in ((args, kwargs), out))
        self.bytes += sum(x.numel() * x.itemsize for x in (*read, *written))
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            done = formula(*args, **(kwargs or {}), out_val=out)
            self.products += done
        else:
            sides = ([x.numel() for x in side if x.is_floating_point()] for side in (read, written))
            done = max(map(sum, sides))
        self.operations += done
        return out


def _tensors(values: object) -> Iterator[Tensor]:
    """The tensors in nested values, each once."""
    seen = {id(x): x for x in tree_leaves(values) if isinstance(x, Tensor)}
    return iter(seen.values())


def _runs_no_kernel(func: Any) -> bool:  # noqa: ANN401
    """Whether an operator runs no kernel: it returns a view, or uninitialised memory."""
    if func.namespace == "aten" and func.overloadpacket.__name__.startswith(("empty", "new_empty")):
        return True
    returned = [r.alias_info for r in func._schema.returns]
    return bool(returned) and all(a is not None and not a.is_write for a in returned)


def count(function: Callable[[], object]) -> Count:
    """Total work of the kernels that a function runs."""
    with Counting() as counting:
        function()
    return Count(counting.products, counting.operations, counting.bytes)


def count_step(problem: Problem) -> Count:
    """The work of the forward and backward pass of one batch. Nothing is computed."""
    ops = TorchOps(torch.device("meta"))
    arrays = problem.batches(0)[0].arrays(ops.asarray)
    params = {
        name: torch.empty(p.shape, device="meta", requires_grad=True)
        for name, p in problem.network.parameters().items()
    }

    def step() -> None:
        batch = Batch.of_arrays(arrays)
        loss = problem.task.loss(ops, problem.network.forward(ops, params, batch.inputs), batch)
        torch.autograd.grad(loss, list(params.values()), materialize_grads=True)

    return count(step)


def work_over(problem: Problem, plain: Problem) -> tuple[float, float]:
    """Operations and bytes of a step over those of another problem.

    Raises RuntimeError or NotImplementedError for a pass that reads numbers.
    """
    ours, theirs = count_step(problem), count_step(plain)
    return ours.operations / theirs.operations, ours.bytes / theirs.bytes
