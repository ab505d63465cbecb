"""PyTorch's array primitives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812, the name that PyTorch's own documentation uses
from torch import Tensor

from fathom.operations.ops import CustomVJP
from fathom.operations.torch_gradients import (
    CustomVJPFunction,
    OnHost,
    Product,
    is_on_host,
    is_parameter,
    runs_eagerly,
)


class TorchOps:
    """Ops in a float type. Docstrings: `fathom.operations.ops`."""

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
        if not runs_eagerly():  # a compiler cannot ask NumPy for the type
            array = torch.as_tensor(x, device=self.device)
            is_whole = not array.is_floating_point() and array.dtype != torch.bool
            return array.to(torch.int64 if is_whole else self.dtype, copy=True)
        dtype = torch.int64 if np.issubdtype(x.dtype, np.integer) else self.dtype
        return torch.tensor(x, dtype=dtype, device=self.device)

    def constant(self, x: np.ndarray) -> Tensor:
        if not runs_eagerly():  # not cached, since the recorder or transform owns it
            return self.asarray(x)
        # Cached: nothing may be copied from the host while a graph is captured.
        key = (x.shape, x.tobytes())
        if key not in self.constants:
            with torch.inference_mode(False):  # gradients may need it later
                self.constants[key] = self.asarray(x)
        return self.constants[key]

    def split(self, x: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
        return x.split(list(sizes), dim=-1)

    # Not partial(…), which PyTorch's compiler does not support.

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1)

    def logsumexp(self, x: Tensor, axis: int) -> Tensor:
        return torch.logsumexp(x, axis, keepdim=True)

    def largest(self, x: Tensor, axis: int) -> Tensor:
        return x.amax(axis, keepdim=True)

    def largest_size(self, x: Tensor) -> Tensor:
        least, most = torch.aminmax(x)  # one pass, which stores no |x|
        return torch.maximum(most, -least)

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
            return c + torch.matmul(a, b)  # in a transform, a may have more axes than c
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
        way = function
        if all(map(is_on_host, xs)) and (loops := function.compiled()):
            way = OnHost(loops, tuple(map(is_parameter, xs)))
        elif (
            is_float32_on_gpu(*xs)
            and uses_kernels()
            and (kernels := function.fused(*(x.shape for x in xs)))
        ):
            way = kernels
        elif function.is_composed:
            return function.plain(self, *xs)
        return CustomVJPFunction.apply(self, function, way, *xs)

    def embedding(self, table: Tensor, ids: Tensor) -> Tensor:
        return F.embedding(ids, table)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps=1e-5)

    def conv2d(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int = 1) -> Tensor:
        # Views: the memory stays channels-last, which the kernels accept.
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


def is_float32_on_gpu(*xs: Tensor) -> bool:
    """Whether kernels compiled by Triton can take these arrays."""
    return all(x.device.type == "cuda" and x.dtype == torch.float32 for x in xs)


def uses_kernels() -> bool:
    """Whether these kernels are used; FATHOM_TORCH_KERNELS=off: never."""
    return os.environ.get("FATHOM_TORCH_KERNELS") != "off"


class OpsAmidAutocast(TorchOps):
    """Ops whose gradients have the same precision as outside of autocast.

    PyTorch's own products would compute gradients in 16 bits if `backward` is called in autocast.
    """

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return CustomVJPFunction.apply(self, Product(torch.matmul), None, a, b)[0]

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return CustomVJPFunction.apply(self, Product(F.linear), None, x, weight)[0]

    def tensordot(self, a: Tensor, b: Tensor) -> Tensor:
        of = partial(torch.tensordot, dims=1)
        return CustomVJPFunction.apply(self, Product(of), None, a, b)[0]


IGNORE_NONE = torch.iinfo(torch.int64).min
"""Ignored target, which never occurs; PyTorch's default ignores targets of −100."""
