"""Sinkhorn normalisation with a custom VJP: docs/definitions.md, "Sinkhorn".

A matrix K whose rows and columns are alternately divided by their sums keeps the form u_i K_ij v_j,
so a pass updates only u or v. The index of the matrix is the last axis, for vectorisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fathom.models.ops import Array, Arrays, Ops

Side = Literal["rows", "columns"]

SMALLEST = 1e-30
"""Smaller entries are raised to this: the scale of a row of zeros would overflow float32."""

OTHER: dict[Side, Side] = {"rows": "columns", "columns": "rows"}


@dataclass(frozen=True)
class Passes:
    """Positive K [N, S, S] → (the normalised matrices [N, S, S],).

    Each pass divides by `max(sum, floor) + added`.
    """

    sides: Sequence[Side]
    """The side that each pass divides, in order."""
    floor: float
    added: float

    def forward(self, ops: Ops, K: Array) -> tuple[Arrays, Arrays]:
        K = ops.maximum(K, SMALLEST)
        by_row = ops.contiguous(ops.transpose(K, (1, 2, 0)))
        by_column = ops.contiguous(ops.transpose(K, (2, 1, 0)))
        # Sums run over the first axis: for a column over rows, for a row over columns.
        summed = {"columns": ops.rows(by_row), "rows": ops.rows(by_column)}
        ones = 0 * by_row[0] + 1
        scales = {"rows": ones, "columns": ones}
        before = []
        for side in self.sides:
            before.append(scales[side])
            sums = ops.sum_of_products(summed[side], ops.rows(scales[OTHER[side]]))
            scales[side] = self.divide(ops, scales[side], sums)
        u, v = scales["rows"], scales["columns"]
        found = ops.contiguous(ops.transpose(u[:, None] * by_row * v, (2, 0, 1)))
        return (found,), (by_row, by_column, u, v, *before)

    def divide(self, ops: Ops, scale: Array, product: Array) -> Array:
        """Divide a scale [S, N] by the sums `scale · product` that it gives."""
        sums = ops.maximum(scale * product, self.floor)
        return scale / (sums + self.added if self.added else sums)

    def backward(self, ops: Ops, saved: Arrays, gradients: Arrays) -> Arrays:
        by_row, by_column, u, v, *before = saved
        g = ops.contiguous(ops.transpose(gradients[0], (1, 2, 0)))
        of_K = g * u[:, None] * v
        # `down` are gradients times −1, so that no pass has a sign to change.
        down_K = -g * by_row
        down = {
            "rows": ops.sum(down_K * v, axis=1),
            "columns": ops.sum_of_products(ops.rows(down_K), ops.rows(u)),
        }
        summed = {"columns": ops.rows(-by_row), "rows": ops.rows(-by_column)}
        scales = {"rows": u, "columns": v}
        for side, scale in zip(reversed(self.sides), reversed(before), strict=True):
            other = OTHER[side]
            down_scale, of_sums = self.divide_backward(scale, scales[side], down[side])
            scales[side] = scale
            if side == "rows":
                of_K = ops.add_product(of_K, of_sums[:, None], scales[other])
            else:
                of_K = ops.add_product(of_K, scales[other][:, None], of_sums)
            down_other = ops.sum_of_products(summed[other], ops.rows(of_sums))
            down[other] = down_other if down[other] is None else down[other] + down_other
            down[side] = down_scale
        return (ops.transpose(of_K, (2, 0, 1)),)

    def divide_backward(
        self, scale: Array, divided: Array, down: Array
    ) -> tuple[Array | None, Array]:
        """Gradients of `divide`'s arguments if no sum was below the floor.

        (That of `scale`, times −1 as `down` is, or None for zeros; that of `product`.)
        """
        of_product = down * divided * divided
        if not self.added:
            return None, of_product
        share = divided / scale
        return down * share * share * self.added, of_product


def alternating_sides(iterations: int, last: Side) -> tuple[Side, ...]:
    """The sides of `iterations` passes over both, ending with `last`."""
    return (("columns", "rows") if last == "rows" else ("rows", "columns")) * iterations
