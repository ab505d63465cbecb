"""Hand-written gradients in PyTorch: how and when a `CustomVJP` is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812, the name that PyTorch's own documentation uses
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor as is_batched
from torch.autograd import forward_ad

from fathom.operations.numpy_ops import NumpyOps
from fathom.operations.ops import CustomVJP, Ops

Tensors = tuple[Tensor, ...]


class CustomVJPFunction(torch.autograd.Function):
    """A `CustomVJP` as an autograd function: `way` computes the outputs and the gradient.

    If the gradient will be differentiated, is one of a batch of gradients (`is_grads_batched`), or
    `way` is None, it is taken of `plain`.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        ops: Ops,
        function: CustomVJP,
        way: CustomVJP | None,
        *xs: Tensor,
    ) -> tuple[Tensor, ...]:
        outputs, saved = (way or function).forward(ops, *xs)
        ctx.ops, ctx.function, ctx.way, ctx.count = ops, function, way, len(xs)
        # The inputs themselves: PyTorch detects if one is changed before `backward` uses it.
        ctx.save_for_backward(*xs, *saved)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        kept, ops = ctx.saved_tensors, ctx.ops
        xs, saved = kept[: ctx.count], kept[ctx.count :]
        with without_autocast(xs[0].device):
            if torch.is_grad_enabled() or ctx.way is None or any(map(is_batched, gradients)):
                wanted = ctx.needs_input_grad[3:]
                of_xs = gradient_of_plain(ops, ctx.function, xs, gradients, wanted)
            else:
                of_xs = ctx.way.backward(ops, xs, saved, gradients)
        return None, None, None, *of_xs


def gradient_of_plain(
    ops: Ops,
    function: CustomVJP,
    xs: Sequence[Tensor],
    gradients: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Gradient of each wanted x, else None; differentiable itself if gradients are recorded."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that an x computed from another x is not traced back to it.
        views = [x.view_as(x) if again else x.detach() for x in xs]
        asked = [
            x.requires_grad_() for x, is_wanted in zip(views, wanted, strict=True) if is_wanted
        ]
        outputs = zip(function.plain(ops, *views), gradients, strict=True)
        pairs = [(x, g) for x, g in outputs if x.requires_grad]
        of_asked = [torch.zeros_like(x) for x in asked]
        if pairs:  # an x may affect none of the outputs
            depend, of_depend = zip(*pairs, strict=True)
            of_asked = torch.autograd.grad(
                depend, asked, of_depend, create_graph=again, materialize_grads=True
            )
    remaining = iter(of_asked)
    return [next(remaining) if is_wanted else None for is_wanted in wanted]


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Context in which every operation runs in the type of its arguments."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


def is_autocast(device: torch.device) -> bool:
    """Whether autocast may change the type of operations on this device."""
    kind = device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def runs_eagerly() -> bool:
    """Whether operations run eagerly: nothing records or transforms them."""
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
    )


@dataclass(frozen=True)
class Product(CustomVJP):
    """A product by PyTorch, with a gradient that is computed without autocast."""

    of: Callable[..., Tensor]

    def forward(self, ops: Ops, *xs: Tensor) -> tuple[tuple[Tensor], tuple[()]]:
        return (self.of(*xs),), ()


class HostOps(NumpyOps):
    """Ops of NumPy arrays with PyTorch's matrix products, since NumPy's start their own threads.

    And with its GELU, since NumPy has none.
    """

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy()

    def gelu(self, x: np.ndarray) -> np.ndarray:
        return F.gelu(torch.from_numpy(x)).numpy()


HOST_OPS = HostOps()


@dataclass(frozen=True)
class OnHost(CustomVJP):
    """A compiled `CustomVJP` that works on the memory of tensors, while no gradient is recorded."""

    loops: CustomVJP
    copied: tuple[bool, ...]
    """Whether an input is copied. For `backward` too: checkpointing gives it tensors anew, which do
    not tell that a parameter owns their memory."""

    @np.errstate(all="ignore")  # PyTorch does not warn of infinities and NaN either
    def forward(self, ops: Ops, *xs: Tensor) -> tuple[Tensors, Tensors]:
        outputs, saved = self.loops.forward(HOST_OPS, *map(on_host, xs, self.copied))
        # An array that is both is one tensor, whose changes PyTorch detects.
        tensors = {id(x): torch.from_numpy(x) for x in (*outputs, *saved)}
        return tuple(tuple(tensors[id(x)] for x in part) for part in (outputs, saved))

    @np.errstate(all="ignore")
    def backward(self, ops: Ops, xs: Tensors, saved: Tensors, gradients: Tensors) -> Tensors:
        kept, given = (tuple(x.contiguous().numpy() for x in part) for part in (saved, gradients))
        # Converted lazily: not every function needs its inputs.
        of_xs = self.loops.backward(HOST_OPS, map(on_host, xs, self.copied), kept, given)
        return tuple(map(torch.from_numpy, of_xs))


def is_on_host(x: Tensor) -> bool:
    """Whether NumPy can read the memory of `x`, and one thread is enough for its size."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and (x.numel() <= SHARED or torch.get_num_threads() == 1)
    )


def is_parameter(x: Tensor) -> bool:
    """Whether a parameter owns the memory of `x`.

    FSDP resizes parameters, and PyTorch cannot resize memory that NumPy shares.
    """
    owner = x if x._base is None else x._base
    return type(owner) is torch.nn.Parameter  # isinstance takes as long as the rest


def on_host(x: Tensor, is_copied: bool) -> np.ndarray:
    """`x` as a NumPy array in the same memory; a copy if `is_copied`, or if not contiguous."""
    return (x.clone() if is_copied else x.contiguous()).numpy()


SHARED = 2**16
"""Maximum size for one thread: PyTorch splits arrays into at least 2¹⁵ numbers per thread."""
