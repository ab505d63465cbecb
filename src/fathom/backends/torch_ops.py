"""PyTorch's array primitives, and gradients of functions that have their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812, the name that PyTorch's own documentation uses
from torch import Tensor
from torch.autograd import forward_ad

from fathom.backends.numpy import NumpyOps
from fathom.models.ops import CustomVJP

Tensors = tuple[Tensor, ...]


class TorchOps:
    """Ops in a float type. Docstrings: `fathom.models.ops`."""

    reshape = staticmethod(torch.reshape)
    transpose = staticmethod(torch.permute)
    broadcast = staticmethod(torch.broadcast_to)
    concatenate = staticmethod(torch.concatenate)
    stack = staticmethod(torch.stack)
    contiguous = staticmethod(Tensor.contiguous)
    unstack = staticmethod(torch.unbind)
    exp = staticmethod(torch.exp)
    relu = staticmethod(torch.relu)
    tanh = staticmethod(torch.tanh)
    sigmoid = staticmethod(torch.sigmoid)
    sqrt = staticmethod(torch.sqrt)
    abs = staticmethod(torch.abs)
    tril = staticmethod(torch.tril)
    max = staticmethod(torch.max)
    maximum = staticmethod(torch.clamp_min)
    sum = staticmethod(torch.sum)
    mean = staticmethod(torch.mean)
    matmul = staticmethod(torch.matmul)
    add_product = staticmethod(torch.addcmul)
    stop_gradient = staticmethod(Tensor.detach)
    gelu = staticmethod(F.gelu)
    linear = staticmethod(F.linear)

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.device = device
        self.dtype = dtype
        self.constants: dict[tuple[tuple[int, ...], bytes], Tensor] = {}

    def asarray(self, x: np.ndarray) -> Tensor:
        dtype = torch.int64 if np.issubdtype(x.dtype, np.integer) else self.dtype
        return torch.tensor(x, dtype=dtype, device=self.device)

    def constant(self, x: np.ndarray) -> Tensor:
        if not runs_eagerly():
            # The recorder's or the transform's own, not to be kept; and float: a compiler cannot
            # ask NumPy for the type.
            return torch.as_tensor(x, dtype=self.dtype, device=self.device)
        # Kept: while a graph is captured nothing may be copied from the host.
        key = (x.shape, x.tobytes())
        if key not in self.constants:
            with torch.inference_mode(False):  # gradients may need it later
                self.constants[key] = self.asarray(x)
        return self.constants[key]

    def split(self, x: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return x.split(list(sizes), dim=-1)

    # Not partial(…), which PyTorch's compiler does not take.

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1)

    def logsumexp(self, x: Tensor, axis: int) -> Tensor:
        return torch.logsumexp(x, axis, keepdim=True)

    def largest(self, x: Tensor, axis: int) -> Tensor:
        return x.amax(axis, keepdim=True)

    def l2_norm(self, x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1, keepdim=True)

    def tensordot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tensordot(a, b, dims=1)

    def clip(self, x: Tensor, bound: float) -> Tensor:
        return x.clamp(-bound, bound)

    def identity_like(self, x: Tensor) -> Tensor:
        return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)

    def add_matmul(self, c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if not runs_eagerly():
            return c + torch.matmul(a, b)  # a transform may know more axes of a than of c
        return c.baddbmm_(a, b) if c.ndim == 3 else c.addmm_(a, b)

    def sum_of_products(self, a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(dim=1)

    def sum_of_outer_products(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        return (torch.stack(tuple(a))[:, :, None] * torch.stack(tuple(b))[:, None]).sum(dim=0)

    def weighted_sum(self, weights: Tensor, x: Tensor) -> Tensor:
        return torch.matmul(weights[:, None], x)[:, 0]

    def row_products(self, row: Tensor, x: Tensor) -> Tensor:
        # A row times xᵀ is faster than x times a column.
        return torch.matmul(row[:, None], x.mT)[:, 0]

    def custom_vjp(self, function: CustomVJP, *xs: Tensor) -> tuple[Tensor, ...]:
        if not runs_eagerly():
            return function.plain(self, *xs)
        loops = function.compiled() if all(map(is_on_host, xs)) else None
        return CustomVJPFunction.apply(self, function, OnHost(loops) if loops else function, *xs)

    def embedding(self, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps=1e-5)

    def conv2d(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int = 1) -> Tensor:
        # Views: the memory stays channels-last, which the kernels take as it is.
        y = F.conv2d(x.movedim(-1, 1), weight.movedim(-1, 1), bias, stride=stride, padding=1)
        return y.movedim(1, -1)

    def group_norm(self, x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
        return F.group_norm(x.movedim(-1, 1), groups, weight, bias, eps=1e-5).movedim(1, -1)

    def causal_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def cross_entropy(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        reduction = "mean" if weights is None else "none"
        losses = F.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE_NONE, reduction=reduction
        )
        if weights is None:
            return losses
        shares = weights.flatten()
        return (losses * shares).sum() / shares.sum()

    def to_numpy(self, x: Tensor) -> np.ndarray:
        return x.detach().cpu().numpy()

    def all_finite(self, x: Tensor) -> Tensor:
        return x.isfinite().all()


class CustomVJPFunction(torch.autograd.Function):
    """A `CustomVJP` as PyTorch takes it: `way` computes it, and its gradient unless that is None.

    Where its gradient will be differentiated, and without a `way`, that is taken of `plain`.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        ops: TorchOps,
        function: CustomVJP,
        way: CustomVJP | None,
        *xs: Tensor,
    ) -> tuple[Tensor, ...]:
        outputs, saved = (way or function).forward(ops, *xs)
        ctx.ops, ctx.function, ctx.way, ctx.count = ops, function, way, len(xs)
        # Inputs as they are: PyTorch notices where one is changed before it is used again.
        ctx.save_for_backward(*xs, *saved)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        kept, ops = ctx.saved_tensors, ctx.ops
        xs, saved = kept[: ctx.count], kept[ctx.count :]
        with without_autocast(ops.device):
            if torch.is_grad_enabled() or ctx.way is None:
                wanted = ctx.needs_input_grad[3:]
                found = gradient_of_plain(ops, ctx.function, xs, gradients, wanted)
            else:
                found = ctx.way.backward(ops, xs, saved, gradients)
        return None, None, None, *found


def gradient_of_plain(
    ops: TorchOps,
    function: CustomVJP,
    xs: Sequence[Tensor],
    gradients: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The gradient of each x that is wanted, differentiable itself if gradients are recorded."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that one x that was computed from another is not followed back to it.
        views = [x.view_as(x) if again else x.detach() for x in xs]
        asked = [
            x.requires_grad_() for x, is_wanted in zip(views, wanted, strict=True) if is_wanted
        ]
        outputs = function.plain(ops, *views)
        found = torch.autograd.grad(
            outputs, asked, gradients, create_graph=again, materialize_grads=True
        )
    of_asked = iter(found)
    return [next(of_asked) if is_wanted else None for is_wanted in wanted]


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Where no operation is moved to another type than that of its arguments."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


def is_autocast(device: torch.device) -> bool:
    """Whether operations on this device may be moved to another type."""
    kind = device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def runs_eagerly() -> bool:
    """Whether operations run as they are called, and nothing records or transforms them."""
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
    )


@dataclass(frozen=True)
class Product(CustomVJP):
    """A product of PyTorch's, whose gradient is taken without autocast."""

    of: Callable[..., Tensor]

    def forward(self, ops: TorchOps, *xs: Tensor) -> tuple[tuple[Tensor], tuple[()]]:
        return (self.of(*xs),), ()


class OpsAmidAutocast(TorchOps):
    """Ops whose gradients have the digits that they have outside of autocast.

    PyTorch's own products would take their gradient in 16 bits if `backward` is called inside.
    """

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return CustomVJPFunction.apply(self, Product(torch.matmul), None, a, b)[0]

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return CustomVJPFunction.apply(self, Product(F.linear), None, x, weight)[0]

    def tensordot(self, a: Tensor, b: Tensor) -> Tensor:
        of = partial(torch.tensordot, dims=1)
        return CustomVJPFunction.apply(self, Product(of), None, a, b)[0]


class HostOps(NumpyOps):
    """Ops of NumPy arrays, with PyTorch's matrix products: NumPy's have threads of their own."""

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy()


HOST_OPS = HostOps()


@dataclass(frozen=True)
class OnHost(CustomVJP):
    """A compiled `CustomVJP`, on the memory of tensors."""

    loops: CustomVJP

    @np.errstate(all="ignore")  # PyTorch does not warn of infinities and NaN either
    def forward(self, ops: TorchOps, *xs: Tensor) -> tuple[Tensors, Tensors]:
        outputs, saved = self.loops.forward(HOST_OPS, *map(on_host, xs))
        return tuple(map(torch.from_numpy, outputs)), tuple(map(torch.from_numpy, saved))

    @np.errstate(all="ignore")
    def backward(self, ops: TorchOps, xs: Tensors, saved: Tensors, gradients: Tensors) -> Tensors:
        kept, given = (tuple(x.contiguous().numpy() for x in part) for part in (saved, gradients))
        # One by one, as they are asked for: not every function needs what it was given.
        found = self.loops.backward(HOST_OPS, map(on_host, xs), kept, given)
        return tuple(map(torch.from_numpy, found))


def is_on_host(x: Tensor) -> bool:
    """Whether NumPy can read the memory of `x`, and no other thread would share the work."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and (x.numel() <= SHARED or torch.get_num_threads() == 1)
    )


def on_host(x: Tensor) -> np.ndarray:
    """The same memory in NumPy; a copy where that is not contiguous, or a parameter's.

    PyTorch does not resize memory any more that NumPy has seen, and FSDP resizes parameters.
    """
    owner = x if x._base is None else x._base
    # Not isinstance, which takes as long as all the rest.
    x = x.detach().clone() if type(owner) is torch.nn.Parameter else x.detach()
    return x.contiguous().numpy()


SHARED = 2**16
"""PyTorch gives each thread at least 2¹⁵ numbers of an operation."""


IGNORE_NONE = torch.iinfo(torch.int64).min
"""PyTorch leaves out targets of −100 unless it is told of another number."""
