"""`boundary.Boundary` on a GPU: passes over the streams as kernels compiled by Triton.

Of elements C of a token, forward moves 4 S + 2: one kernel mixes and writes streams and sums their
squares (2 S + 1), a product with φ reads them (S), one kernel reads the input (S + 1). Backward
moves 7 S + 4: the gradient of the read's weights (S + 1), two products with φ (2 S), and one kernel
for everything else (4 S + 3), which computes the new streams again. Between the passes, PyTorch
computes coefficients [N, K] from the products and squares; backward it computes them again.

The type of streams is any float type. Sums and coefficients are float32.
"""

# ruff: noqa: ANN001, ANN202, arguments of kernels are pointers, and a kernel returns nothing

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812, the name that PyTorch's own documentation uses
import triton
import triton.language as tl
from torch import Tensor

from fathom.operations.ops import Array, Arrays, CustomVJP, Ops

ENTRIES = 4096
"""Number of products of matrix and streams that a program has at once."""


@dataclass(frozen=True)
class Boundary(CustomVJP):
    """`boundary.Boundary` with C channels for each set of coefficients, and S a power of two."""

    of: Any
    """A `boundary.Boundary`, whose module imports this one."""

    def forward(
        self, ops: Ops, x: Array, y: Array, c: Array, phi: Array, b: Array, alpha: Array
    ) -> tuple[Arrays, Arrays]:
        of = self.of
        new, squares = write(x, y, c, of.writes, of.writes and of.mixes)
        products = self.products(new, phi)
        coefficients = self.coefficients(ops, products, squares, b, alpha)
        weights = (c if of.late else coefficients)[:, : of.streams]
        return (new, read(weights, new), coefficients), (new, products, squares, weights)

    def products(self, x: Tensor, phi: Tensor) -> Tensor:
        """φ times streams, [N, R], or times each stream, [N, S, R]."""
        rows = x if self.of.computed and self.of.computed.per_stream else x.flatten(1)
        return F.linear(rows, phi.to(x.dtype)).to(b_type(x)) if self.of.computed else x[:, 0, :0]

    def coefficients(
        self, ops: Ops, products: Array, squares: Array, b: Array, alpha: Array
    ) -> Array:
        """Coefficients [N, K] from products of φ and the sums of squares of each stream [N, S]."""
        computed, (N, S), C = self.of.computed, squares.shape, self.of.channels
        if computed is None:
            logits = ops.broadcast(b, (N, b.shape[0]))
        elif computed.per_stream:
            scale = 1 / ops.sqrt(squares / C + computed.eps)
            values = ops.transpose(ops.tanh(products * scale[:, :, None]), (0, 2, 1))
            logits = b + alpha * ops.reshape(values, (N, b.shape[0]))
        else:
            squares = ops.sum(squares, axis=1, keepdims=True)
            logits = b + alpha * (products / ops.sqrt(squares / (S * C) + computed.eps))
        return self.of.coefficients(ops, logits)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        of, (x, y, c, phi, b, alpha) = self.of, xs
        (new, products, squares, weights), (of_new, of_m, of_coefficients) = saved, gradients
        S, of_c, of_phi, of_z = of.streams, torch.zeros_like(c), torch.zeros_like(phi), None
        of_weights = read_backward(of_m, new)
        if of.late:
            of_c[:, :S] = of_weights
        else:
            of_coefficients = of_coefficients.clone()
            of_coefficients[:, :S] += of_weights
        with torch.enable_grad():
            inputs = [v.detach().requires_grad_() for v in (products, squares, b, alpha)]
            again = self.coefficients(ops, *inputs)
        of_products, of_squares, of_b, of_alpha = torch.autograd.grad(
            again, inputs, of_coefficients, materialize_grads=True
        )
        if of.computed:
            of_rows = of_products.to(x.dtype)
            of_z = torch.matmul(of_rows, phi.to(x.dtype)).view_as(new)
            of_phi = (of_rows.flatten(0, -2).T @ new.view(-1, phi.shape[1])).to(phi.dtype)
        mixes = of.writes and of.mixes
        of_x, of_y = write_backward(
            x, y, c, (of_new, of_m, of_z), weights, of_squares, of_c, of.writes, mixes
        )
        return of_x, of_y, of_c, of_phi, of_b, of_alpha


def b_type(x: Tensor) -> torch.dtype:
    """Type of sums and coefficients, for streams x."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def write(x: Tensor, y: Tensor, c: Tensor, writes: bool, mixes: bool) -> tuple[Tensor, Tensor]:
    """(The new streams, or x itself; their sums of squares [N, S])."""
    x, y, c = x.contiguous(), y.contiguous(), c.contiguous()
    (N, S, M), squares = x.shape, x.new_empty(x.shape[:2], dtype=b_type(x))
    new = torch.empty_like(x) if writes else x
    if N:
        _write[(N,)](x, y, c, new, squares, c.shape[1], S, M, writes, mixes, ENTRIES // S**2)
    return new, squares


def read(weights: Tensor, x: Tensor) -> Tensor:
    """Σ_s w_s x_s [N, M]."""
    (N, S, M), m = x.shape, x.new_empty((x.shape[0], x.shape[2]))
    if N:
        _read[(N,)](weights.contiguous(), x, m, S, M, ENTRIES // S**2)
    return m


def read_backward(of_m: Tensor, x: Tensor) -> Tensor:
    """Gradient of the weights [N, S] of a read."""
    (N, S, M), of_weights = x.shape, x.new_empty(x.shape[:2], dtype=b_type(x))
    if N:
        _read_backward[(N,)](of_m.contiguous(), x, of_weights, S, M, ENTRIES // S**2)
    return of_weights


def write_backward(
    x: Tensor, y: Tensor, c: Tensor, gradients: tuple[Tensor, Tensor, Tensor | None],
    weights: Tensor, of_squares: Tensor, of_c: Tensor, writes: bool, mixes: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of x and y; those of post and H are written into `of_c`.

    `gradients`: of the new streams, of the read, and of the new streams through φ.
    """
    x, y, c = x.contiguous(), y.contiguous(), c.contiguous()
    (N, S, M), of_x = x.shape, torch.empty_like(x)
    of_y = torch.empty_like(y) if writes else torch.zeros_like(y)
    of_new, of_m, of_z = (x if g is None else g.contiguous() for g in gradients)
    has_z = gradients[2] is not None
    if N:
        _write_backward[(N,)](
            x, y, c, of_new, of_m, of_z, weights.contiguous(), of_squares.contiguous(), of_c, of_x,
            of_y, c.shape[1], S, M, writes, mixes, has_z, ENTRIES // S**2,
        )  # fmt: skip
    return of_x, of_y


# --- kernels: one program for each set of coefficients --------------------------------------------


@triton.jit
def _mixed(H, x):
    return tl.sum(H[:, :, None] * x[None, :, :], axis=1)


@triton.jit
def _write(
    x, y, c, new, squares,
    K: tl.constexpr, S: tl.constexpr, M: tl.constexpr, writes: tl.constexpr, mixes: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    n, s = tl.program_id(0).to(tl.int64), tl.arange(0, S)
    kind: tl.constexpr = squares.dtype.element_ty
    total = tl.zeros([S], kind)
    for first in range(0, M, block):
        m = first + tl.arange(0, block)
        inside, at = m < M, (n * S + s[:, None]) * M + m[None, :]
        streams = tl.load(x + at, mask=inside[None, :], other=0.0).to(kind)
        if writes:
            row = tl.load(y + n * M + m, mask=inside, other=0.0).to(kind)
            post = tl.load(c + n * K + S + s).to(kind)
            if mixes:
                H = tl.load(c + n * K + 2 * S + s[:, None] * S + s[None, :]).to(kind)
                streams = _mixed(H, streams)
            streams += post[:, None] * row[None, :]
            tl.store(new + at, streams, mask=inside[None, :])
        total += tl.sum(streams * streams, axis=1)
    tl.store(squares + n * S + s, total)


@triton.jit
def _read(
    weights, x, read, S: tl.constexpr, M: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    n, s = tl.program_id(0).to(tl.int64), tl.arange(0, S)
    weight = tl.load(weights + n * S + s)
    for first in range(0, M, block):
        m = first + tl.arange(0, block)
        inside, at = m < M, (n * S + s[:, None]) * M + m[None, :]
        streams = tl.load(x + at, mask=inside[None, :], other=0.0).to(weight.dtype)
        tl.store(read + n * M + m, tl.sum(weight[:, None] * streams, axis=0), mask=inside)


@triton.jit
def _read_backward(
    of_read, x, of_weights, S: tl.constexpr, M: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    n, s = tl.program_id(0).to(tl.int64), tl.arange(0, S)
    kind: tl.constexpr = of_weights.dtype.element_ty
    total = tl.zeros([S], kind)
    for first in range(0, M, block):
        m = first + tl.arange(0, block)
        inside, at = m < M, (n * S + s[:, None]) * M + m[None, :]
        streams = tl.load(x + at, mask=inside[None, :], other=0.0).to(kind)
        row = tl.load(of_read + n * M + m, mask=inside, other=0.0).to(kind)
        total += tl.sum(streams * row[None, :], axis=1)
    tl.store(of_weights + n * S + s, total)


@triton.jit
def _write_backward(
    x, y, c, of_new, of_read, of_z, weights, of_squares, of_c, of_x, of_y,
    K: tl.constexpr, S: tl.constexpr, M: tl.constexpr, writes: tl.constexpr, mixes: tl.constexpr,
    has_z: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    n, s = tl.program_id(0).to(tl.int64), tl.arange(0, S)
    matrix = n * K + 2 * S + s[:, None] * S + s[None, :]
    weight, of_square = tl.load(weights + n * S + s), tl.load(of_squares + n * S + s)
    kind: tl.constexpr = of_squares.dtype.element_ty
    of_post, of_H = tl.zeros([S], kind), tl.zeros([S, S], kind)
    for first in range(0, M, block):
        m = first + tl.arange(0, block)
        inside, at = m < M, (n * S + s[:, None]) * M + m[None, :]
        streams = tl.load(x + at, mask=inside[None, :], other=0.0).to(kind)
        new = streams
        if writes:
            row = tl.load(y + n * M + m, mask=inside, other=0.0).to(kind)
            post = tl.load(c + n * K + S + s).to(kind)
            if mixes:
                H = tl.load(c + matrix).to(kind)
                new = _mixed(H, streams)
            new += post[:, None] * row[None, :]
        g = tl.load(of_new + at, mask=inside[None, :], other=0.0).to(kind)
        given = tl.load(of_read + n * M + m, mask=inside, other=0.0).to(kind)
        g += weight[:, None] * given[None, :] + 2 * of_square[:, None] * new
        if has_z:
            g += tl.load(of_z + at, mask=inside[None, :], other=0.0).to(kind)
        of_streams = g
        if writes:
            of_post += tl.sum(g * row[None, :], axis=1)
            tl.store(of_y + n * M + m, tl.sum(post[:, None] * g, axis=0), mask=inside)
            if mixes:
                of_H += tl.sum(g[:, None, :] * streams[None, :, :], axis=2)
                of_streams = tl.sum(H[:, :, None] * g[:, None, :], axis=0)
        tl.store(of_x + at, of_streams, mask=inside[None, :])
    if writes:
        tl.store(of_c + n * K + S + s, of_post)
        if mixes:
            tl.store(of_c + matrix, of_H)
