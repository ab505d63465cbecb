"""Sinkhorn's passes on a GPU, each direction as one kernel compiled by Triton.

As tensor operations, 20 iterations are 280 kernels forward and backward, and launching them takes
most of a step. The formulas are those of `loops`, on PyTorch tensors K [S, S, N]. The first pass
divides rows.
"""

# ruff: noqa: ANN001, ANN202, arguments of kernels are pointers, and a kernel returns nothing

from __future__ import annotations

import triton
import triton.language as tl

from fathom.operations.ops import Array

BLOCK = 32
"""Number of matrices that one program normalises."""


def scales_of_passes(K: Array, passes: int, floor: float, added: float) -> Array:
    """Scales [passes + 1, S, N]: ones, then the result of each pass. S is a power of two."""
    S, _, N = K.shape
    scales = K.new_empty((passes + 1, S, N))
    _scales[(triton.cdiv(N, BLOCK),)](K, scales, N, floor, added, S, passes, BLOCK, num_warps=1)
    return scales


def passes_backward(K: Array, scales: Array, g: Array, added: float) -> Array:
    """The gradient of K [S, S, N], from the gradient `g` of the normalised matrices."""
    S, _, N = K.shape
    of_K, passes = K.new_empty(K.shape), len(scales) - 1
    grid = (triton.cdiv(N, BLOCK),)
    _backward[grid](K, scales, g, of_K, N, added, S, passes, BLOCK, num_warps=1)
    return of_K


@triton.jit
def _scales(K, scales, N, floor, added, S: tl.constexpr, passes: tl.constexpr, block: tl.constexpr):
    n = tl.program_id(0) * block + tl.arange(0, block)
    s = tl.arange(0, S)
    rows = s[:, None] * N + n[None, :]  # [S, block], within the scales of one pass
    whole = (s[:, None, None] * S + s[None, :, None]) * N + n[None, None, :]
    inside, whole_inside = (n < N)[None, :], (n < N)[None, None, :]
    k = tl.load(K + whole, mask=whole_inside, other=1.0)
    scale = tl.zeros([S, block], k.dtype) + 1
    of_rows, of_columns = scale, scale  # the sums of the last pass over each side
    tl.store(scales + rows, scale, mask=inside)
    for t in range(passes):
        if t % 2 == 0:
            total = tl.sum(k * scale[None, :, :], axis=1)
            least = floor * of_rows
            of_rows = tl.where(total < least, least, total) + added * of_rows
            scale = 1 / of_rows
        else:
            total = tl.sum(k * scale[:, None, :], axis=0)
            least = floor * of_columns
            of_columns = tl.where(total < least, least, total) + added * of_columns
            scale = 1 / of_columns
        tl.store(scales + (t + 1) * S * N + rows, scale, mask=inside)


@triton.jit
def _backward(
    K, scales, g, of_K, N, added, S: tl.constexpr, passes: tl.constexpr, block: tl.constexpr
):
    n = tl.program_id(0) * block + tl.arange(0, block)
    s = tl.arange(0, S)
    rows = s[:, None] * N + n[None, :]
    whole = (s[:, None, None] * S + s[None, :, None]) * N + n[None, None, :]
    inside, whole_inside = (n < N)[None, :], (n < N)[None, None, :]
    k = tl.load(K + whole, mask=whole_inside, other=1.0)
    given = tl.load(g + whole, mask=whole_inside, other=0.0)
    last = tl.load(scales + passes * S * N + rows, mask=inside, other=1.0)
    before = tl.load(scales + (passes - 1) * S * N + rows, mask=inside, other=1.0)
    if passes % 2 == 0:
        u, v = before, last
    else:
        u, v = last, before
    gradient = given * u[:, None, :] * v[None, :, :]
    of_u = tl.sum(given * k * v[None, :, :], axis=1)
    of_v = tl.sum(given * k * u[:, None, :], axis=0)
    of_rows = tl.zeros([S, block], k.dtype)  # gradients of the sums of the last pass over each side
    of_columns = of_rows
    for step in range(passes):
        t = passes - 1 - step
        scale = tl.load(scales + (t + 1) * S * N + rows, mask=inside, other=1.0)
        other = tl.load(scales + t * S * N + rows, mask=inside, other=1.0)
        # The second-to-last scale is also a factor of the normalised matrices.
        keep = tl.where(step == 0, 1.0, 0.0).to(k.dtype)
        if t % 2 == 0:
            of_rows = added * of_rows - of_u * scale * scale
            gradient += of_rows[:, None, :] * other[None, :, :]
            of_v = keep * of_v + tl.sum(k * of_rows[:, None, :], axis=0)
        else:
            of_columns = added * of_columns - of_v * scale * scale
            gradient += other[:, None, :] * of_columns[None, :, :]
            of_u = keep * of_u + tl.sum(k * of_columns[None, :, :], axis=1)
    tl.store(of_K + whole, gradient, mask=whole_inside)
