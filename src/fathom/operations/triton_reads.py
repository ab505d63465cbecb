"""`dense_vjp.DynamicReads` on a GPU: weighted sums of many sources as kernels compiled by Triton.

Of elements C of a token, for I sources and W sums, forward moves I + W + 2: a norm and a product
with V read the last source, and one kernel reads all of them and writes the sums. Backward moves
3 I + W + 6: one kernel reads the sources and the gradients of the sums, and adds to the gradients
of the sources; three operations add what the norm and V pass on to the last one. Between these
PyTorch computes the weights [N, W, I]; backward it computes them again.

The type of sources is any float type. Sums and weights are float32.
"""

# ruff: noqa: ANN001, ANN202, arguments of kernels are pointers, and a kernel returns nothing

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812, the name that PyTorch's own documentation uses
import triton
import triton.language as tl
from torch import Tensor

from fathom.operations.ops import Array, Arrays, CustomVJP, Ops, groups
from fathom.operations.triton_boundary import b_type

HAS_TUPLES = hasattr(tl, "tuple")
"""Whether a kernel takes tuples of arrays: from Triton 3.3, which comes with PyTorch 2.7."""

GROUP = 32
"""Number of sources of a kernel's call. Triton compiles a kernel for each length of a tuple."""

BLOCK = 1024
"""Number of channels that a program has at once."""


@dataclass(frozen=True)
class DynamicReads(CustomVJP):
    """`dense_vjp.DynamicReads`."""

    eps: float

    def forward(
        self, ops: Ops, a: Array, V: Array, D: Array, *sources: Array
    ) -> tuple[Arrays, Arrays]:
        x, kind = sources[-1], b_type(sources[-1])
        squares = torch.linalg.vector_norm(x, dim=1, dtype=kind).square()
        product = F.linear(x, V.to(x.dtype)).to(kind)
        weights = self.weights(product, squares, a, D, x.shape[1])
        return (*read(weights, sources), *sources), (product, squares, weights)

    def weights(self, product: Tensor, squares: Tensor, a: Tensor, D: Tensor, C: int) -> Tensor:
        """Weights [N, W, I] from V x [N, K] and the sums of squares of x [N]."""
        hidden = F.gelu(product / torch.sqrt(squares / C + self.eps)[:, None])
        return F.linear(hidden, D.to(hidden.dtype)).view(len(product), *a.shape) + a

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (a, V, D, *sources), (product, squares, weights) = xs, saved
        x, W = sources[-1], len(a)
        of_weights, of_sources = read_backward(weights, sources, gradients[:W], gradients[W:])
        with torch.enable_grad():
            inputs = [v.detach().requires_grad_() for v in (product, squares, a, D)]
            again = self.weights(*inputs, x.shape[1])
        of_product, of_squares, of_a, of_D = torch.autograd.grad(again, inputs, of_weights)
        of_rows, of_scales = of_product.to(x.dtype), 2 * of_squares[:, None].to(x.dtype)
        last = torch.addmm(of_sources[-1], of_rows, V.to(x.dtype)).addcmul_(x, of_scales)
        return of_a, (of_rows.T @ x).to(V.dtype), of_D, *of_sources[:-1], last


def read(weights: Tensor, sources: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Σ_i w_i x_i [N, C] for each of W sums. Weights are [N, W, I]."""
    (N, W, I), C = weights.shape, sources[0].shape[1]  # noqa: E741
    reads = sources[0].new_empty((W, N, C))
    sources = tuple(x.contiguous() for x in sources)
    for first, count, xs in groups(sources, GROUP) if N else ():
        _read[(N,)](xs, weights, reads, first, count, N, I, W, C, first > 0, GROUP, block_of(C))
    return reads.unbind()


def read_backward(
    weights: Tensor, sources: Sequence[Tensor], of_reads: Sequence[Tensor], given: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the weights and of the sources, to which those `given` are added."""
    (N, W, I), C = weights.shape, sources[0].shape[1]  # noqa: E741
    of_weights, of_sources = torch.empty_like(weights), sources[0].new_empty((I, N, C))
    sources, of_reads, given = (
        tuple(x.contiguous() for x in arrays) for arrays in (sources, of_reads, given)
    )
    own = zip(groups(sources, GROUP), groups(given, GROUP), strict=True)
    for (first, count, xs), (_, _, of_xs) in own if N else ():
        _read_backward[(N,)](
            xs, of_xs, of_reads, weights, of_weights, of_sources, first, count, N, I, W, C, GROUP,
            block_of(C),
        )  # fmt: skip
    return of_weights, [*of_sources.unbind()]


def block_of(C: int) -> int:
    """Number of channels that a program has at once: a power of two."""
    return min(BLOCK, triton.next_power_of_2(C))


# --- kernels: one program for each token ----------------------------------------------------------


@triton.jit
def _read(
    xs, weights, reads, first, count, N, sources,
    W: tl.constexpr, C: tl.constexpr, adds: tl.constexpr, group: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    n, w = tl.program_id(0).to(tl.int64), tl.arange(0, W)
    kind: tl.constexpr = weights.dtype.element_ty
    for start in range(0, C, block):
        c = start + tl.arange(0, block)
        inside, at = (c < C)[None, :], (w[:, None] * N + n) * C + c[None, :]
        total = tl.zeros([W, block], kind)
        if adds:
            total += tl.load(reads + at, mask=inside, other=0.0).to(kind)
        for i in tl.static_range(group):
            if i < count:
                x = tl.load(xs[i] + n * C + c, mask=c < C, other=0.0).to(kind)
                weight = tl.load(weights + (n * W + w) * sources + first + i)
                total += weight[:, None] * x[None, :]
        tl.store(reads + at, total, mask=inside)


@triton.jit
def _read_backward(
    xs, given, of_reads, weights, of_weights, of_xs, first, count, N, sources,
    W: tl.constexpr, C: tl.constexpr, group: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    n, w, s = tl.program_id(0).to(tl.int64), tl.arange(0, W), tl.arange(0, group)
    kind: tl.constexpr = weights.dtype.element_ty
    products = tl.zeros([group, W], kind)
    for start in range(0, C, block):
        c = start + tl.arange(0, block)
        inside = c < C
        for i in tl.static_range(group):
            if i < count:
                x = tl.load(xs[i] + n * C + c, mask=inside, other=0.0).to(kind)
                of_x = tl.load(given[i] + n * C + c, mask=inside, other=0.0).to(kind)
                for j in tl.static_range(W):
                    g = tl.load(of_reads[j] + n * C + c, mask=inside, other=0.0).to(kind)
                    of_x += tl.load(weights + (n * W + j) * sources + first + i) * g
                    here = (s == i)[:, None] & (w == j)[None, :]
                    products += tl.where(here, tl.sum(g * x), 0.0)
                tl.store(of_xs + ((first + i) * N + n) * C + c, of_x, mask=inside)
    places = (n * W + w[None, :]) * sources + first + s[:, None]
    tl.store(of_weights + places, products, mask=(s < count)[:, None] & (w >= 0)[None, :])
