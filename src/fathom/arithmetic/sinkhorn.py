"""Sinkhorn normalisation with a custom VJP: docs/definitions/connections.md.

A matrix K whose rows and columns are alternately divided by their sums keeps the form u_i K_ij v_j,
so a pass updates only u or v: without `floor` and `added`, u ← 1/(K v). The index of the matrix is
the last axis, for vectorisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Literal

from fathom.operations.ops import Array, Arrays, CustomVJP, Ops
from fathom.system.packages import is_installed

Side = Literal["rows", "columns"]

MIN_ENTRY = 1e-30
"""Minimum entry, because the scale of a row of zeros would overflow float32."""

TO_LAST, TO_FIRST = (1, 2, 0), (2, 0, 1)
"""Axes that move the index of the matrix to the end, and back."""

LARGEST = 16.0
"""Logarithm of the maximum sum: with entries of at least MIN_ENTRY, float32 does not overflow."""


class Start:
    """A map of Z [S, S, N] to positive matrices K, and its derivative; here the identity."""

    def values(self, ops: Ops, Z: Array) -> Array:
        """The matrices K."""
        return Z

    def backward(self, ops: Ops, K: Array, of_K: Array) -> Array:
        """The gradient of Z."""
        return of_K


START = Start()


class BoundedExp(Start):
    """exp of logits, each matrix scaled down to a sum of at most exp(LARGEST).

    A common factor has no effect on the normalised matrix, except through `floor` and `added`. A
    matrix with a smaller sum is unchanged, to the last digit.
    """

    def values(self, ops: Ops, Z: Array) -> Array:
        largest = ops.largest(ops.largest(ops.stop_gradient(Z), axis=0), axis=1)
        K = ops.exp(Z - ops.maximum(largest - LARGEST, 0.0))
        sums = ops.sum(ops.sum(ops.stop_gradient(K), axis=0, keepdims=True), axis=1, keepdims=True)
        return K / ops.maximum(sums * math.exp(-LARGEST), 1.0)

    def backward(self, ops: Ops, K: Array, of_K: Array) -> Array:
        return of_K * K


@dataclass(frozen=True)
class Softmax(Start):
    """Softmax of each row, plus `added`."""

    added: float

    def values(self, ops: Ops, Z: Array) -> Array:
        K = ops.exp(Z - ops.largest(ops.stop_gradient(Z), axis=1))
        return K / ops.sum(K, axis=1, keepdims=True) + self.added

    def backward(self, ops: Ops, K: Array, of_K: Array) -> Array:
        of_logs = of_K * (K - self.added)
        return of_logs - (K - self.added) * ops.sum(of_logs, axis=1, keepdims=True)


@dataclass(frozen=True)
class Passes(CustomVJP):
    """Z [N, S, S] → (K normalised [N, S, S],), where `start` maps Z to positive matrices K.

    Each pass divides by `max(sum, floor) + added`. Below, "rows" are the side of the first pass: it
    updates the scales of rows, the next pass the scales of columns, and so on.
    """

    loops_from = 0

    sides: Sequence[Side]
    """The side that each pass divides, in order: rows and columns in turn."""
    floor: float
    added: float
    start: Start = START
    """Map from Z to K."""

    def forward(self, ops: Ops, Z: Array) -> tuple[Arrays, Arrays]:
        started, K = self.begin(ops, Z)
        turned = (K, ops.transpose(K, (1, 0, 2)))
        ones = 0 * K[0] + 1
        # Pass k computes scales[k + 1] from scales[k], which are of the other side.
        scales, inverses = [ones], [ones, ones]
        for k in range(len(self.sides)):
            inverse = ops.sum_of_products(turned[k % 2], scales[k])
            if self.floor:
                inverse = ops.maximum(inverse, self.floor * inverses[k])
            if self.added:
                inverse = inverse + self.added * inverses[k]
            inverses.append(inverse)
            scales.append(1 / inverse)
        return (self.end(ops, K, scales[-1], scales[-2]),), (started, K, *scales)

    def begin(self, ops: Ops, Z: Array) -> tuple[Array, Array]:
        """(The values of `start` at Z, K), both [S, S, N]."""
        started = self.start.values(ops, ops.contiguous(ops.transpose(Z, TO_LAST)))
        return started, self.by_first_side(ops, ops.maximum(started, MIN_ENTRY))

    def end(self, ops: Ops, K: Array, last: Array, other: Array) -> Array:
        """The normalised matrices [N, S, S], from K and the scales of both sides."""
        u, v = self.rows_and_columns(last, other)
        matrices = self.by_first_side(ops, u[:, None] * K * v)
        return ops.contiguous(ops.transpose(matrices, TO_FIRST))

    def by_first_side(self, ops: Ops, x: Array) -> Array:
        """x [S, S, N], transposed if columns are divided first; its own inverse."""
        return x if self.sides[0] == "rows" else ops.transpose(x, (1, 0, 2))

    def rows_and_columns(self, last: Array, other: Array) -> tuple[Array, Array]:
        """(u, v) from the values of the last pass's side and the other side, or the reverse."""
        return (last, other) if len(self.sides) % 2 else (other, last)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        """The gradient of Z, correct if no sum was below the floor."""
        started, K, *scales = saved
        u, v = self.rows_and_columns(scales[-1], scales[-2])
        g = self.laid_out(ops, gradients[0])
        # `down` are negative gradients of scales, so that no pass has to change a sign.
        down_K = -g * K
        down_u = ops.sum_of_products(down_K, v)
        down_v = ops.sum_of_products(ops.transpose(down_K, (1, 0, 2)), u)
        down, other = self.rows_and_columns(down_u, down_v)
        turned = (-K, ops.transpose(-K, (1, 0, 2)))
        of_inverses: list[Array] = []  # from the last pass to the first
        for k in reversed(range(len(self.sides))):
            of_inverse = down * scales[k + 1] * scales[k + 1]
            if self.added and len(of_inverses) > 1:
                of_inverse = of_inverse + self.added * of_inverses[-2]
            of_inverses.append(of_inverse)
            down = ops.sum_of_products(turned[(k + 1) % 2], of_inverse)
            if len(of_inverses) == 1:
                down = down + other
        # Each pass adds an outer product to the gradient of K; all are added at once.
        columns, rows = list(reversed(of_inverses)), list(scales[:-1])
        columns[1::2], rows[1::2] = rows[1::2], columns[1::2]
        of_K = g * u[:, None] * v + ops.sum_of_outer_products(columns, rows)
        return (self.of_start(ops, started, of_K),)

    def laid_out(self, ops: Ops, g: Array) -> Array:
        """[N, S, S] → [S, S, N], in the layout of K."""
        return self.by_first_side(ops, ops.contiguous(ops.transpose(g, TO_LAST)))

    def of_start(self, ops: Ops, started: Array, of_K: Array) -> Array:
        """The gradient of Z from the gradient of K."""
        of_Z = self.start.backward(ops, started, self.by_first_side(ops, of_K))
        return ops.contiguous(ops.transpose(of_Z, TO_FIRST))

    def compiled(self) -> CompiledPasses:
        from fathom.arithmetic import loops

        return CompiledPasses(self.sides, self.floor, self.added, self.start, functions=loops)

    def fused(self, *shapes: Sequence[int]) -> CompiledPasses | None:
        S = shapes[0][-1]
        if S & (S - 1) or not has_triton():
            return None
        from fathom.arithmetic import fused

        return CompiledPasses(self.sides, self.floor, self.added, self.start, functions=fused)


@dataclass(frozen=True)
class CompiledPasses(Passes):
    """Each direction as one compiled function; the scales are one array."""

    functions: ModuleType = field(kw_only=True)
    """`loops` or `fused`."""

    def forward(self, ops: Ops, Z: Array) -> tuple[Arrays, Arrays]:
        started, K = self.begin(ops, Z)
        K = ops.contiguous(K)
        scales = self.functions.scales_of_passes(K, len(self.sides), self.floor, self.added)
        return (self.end(ops, K, scales[-1], scales[-2]),), (started, K, scales)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        started, K, scales = saved
        g = ops.contiguous(self.laid_out(ops, gradients[0]))
        of_K = self.functions.passes_backward(K, scales, g, self.added)
        return (self.of_start(ops, started, of_K),)


@cache
def has_triton() -> bool:
    """Whether Triton is installed, which compiles kernels for GPUs."""
    return is_installed("triton")


def alternating_sides(iterations: int, last: Side) -> tuple[Side, ...]:
    """The sides of `iterations` passes over both, ending with `last`."""
    return (("columns", "rows") if last == "rows" else ("rows", "columns")) * iterations
