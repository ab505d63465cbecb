"""Stream updates and reads with a custom VJP.

Each function reads the streams once. A function that only reads them returns them as its last
output, for the next reader to use. Gradients of all readers are then accumulated in one pass each,
from the last reader to the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fathom.operations.ops import Array, Arrays, CustomVJP, Ops


@dataclass(frozen=True)
class NormedProduct(CustomVJP):
    """x [N, F], φ [K, F] → (RMSNorm(x) φᵀ [N, K], x)."""

    eps: float
    """Added to the mean square."""

    def forward(self, ops: Ops, x: Array, phi: Array) -> tuple[Arrays, Arrays]:
        norm = ops.l2_norm(x)
        scale = 1 / ops.sqrt(norm * norm / x.shape[1] + self.eps)
        product = ops.linear(x, phi) * scale
        return (product, x), (scale, product)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (x, phi), (scale, product), (of_product, of_x) = xs, saved, gradients
        scaled = of_product * scale
        along_x = ops.sum(of_product * product, axis=-1, keepdims=True) * scale * scale / x.shape[1]
        of_x = ops.add_matmul(ops.add_product(of_x, -along_x, x), scaled, phi)
        return of_x, ops.matmul(ops.transpose(scaled, (1, 0)), x)

    def plain(self, ops: Ops, x: Array, phi: Array) -> Arrays:
        # Not the norm, which has no second derivative at zero. And x is divided by a constant of
        # its size, which cancels: x⁴ of a large x would overflow in a second derivative.
        size = ops.sqrt(ops.sum(x * x, axis=-1, keepdims=True) / x.shape[1] + self.eps)
        size = ops.stop_gradient(size)
        scaled = x / size
        squares = ops.sum(scaled * scaled, axis=-1, keepdims=True) / x.shape[1]
        return ops.linear(scaled, phi) / ops.sqrt(squares + self.eps / (size * size)), x


class WeightedSum(CustomVJP):
    """Weights [N, S], streams [N, S, M] → (Σ_s w_s x_s [N, M], streams)."""

    def forward(self, ops: Ops, weights: Array, x: Array) -> tuple[Arrays, Arrays]:
        return (ops.weighted_sum(weights, x), x), ()

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (weights, x), (of_sum, of_x) = xs, gradients
        N, S, M = x.shape
        row = ops.reshape(of_sum, (N, 1, M))
        of_x = ops.add_product(of_x, ops.reshape(weights, (N, S, 1)), row)
        return ops.row_products(of_sum, x), of_x


class Mixing(CustomVJP):
    """H [N, S, S], weights [N, S], streams [N, S, M], y [N, M] → (H x + w y [N, S, M],)."""

    def forward(
        self, ops: Ops, H: Array, weights: Array, x: Array, y: Array
    ) -> tuple[Arrays, Arrays]:
        N, S, M = x.shape
        written = ops.reshape(weights, (N, S, 1)) * ops.reshape(y, (N, 1, M))
        return (ops.add_matmul(written, H, x),), ()

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (H, weights, x, y), (g,) = xs, gradients
        return (
            ops.matmul(g, ops.transpose(x, (0, 2, 1))),
            ops.row_products(y, g),
            ops.matmul(ops.transpose(H, (0, 2, 1)), g),
            ops.weighted_sum(weights, g),
        )


class Adding(CustomVJP):
    """Weights [N, S], streams [N, S, M], y [N, M] → (x + w y [N, S, M],).

    `Mixing` with the identity as H, in a third of the time.
    """

    def forward(self, ops: Ops, weights: Array, x: Array, y: Array) -> tuple[Arrays, Arrays]:
        N, S, M = x.shape
        streams = ops.add_product(x, ops.reshape(weights, (N, S, 1)), ops.reshape(y, (N, 1, M)))
        return (streams,), ()

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (weights, _, y), (g,) = xs, gradients
        return ops.row_products(y, g), g, ops.weighted_sum(weights, g)


class MixingAndSum(CustomVJP):
    """A [S+1, S+1], streams [S, M], y [M] → (the next streams [S, M], the next sum [M]).

    [x'; m'] = A [x; y]: the updated streams, and the next layer's input.
    """

    def forward(self, ops: Ops, A: Array, x: Array, y: Array) -> tuple[Arrays, Arrays]:
        S, M = x.shape
        written = A[:, S:] * ops.reshape(y, (1, M))
        product = ops.add_matmul(written, A[:, :S], x)
        return (product[:S], product[S]), ()

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (A, x, y), (of_x, of_sum) = xs, gradients
        S, M = x.shape
        row, column = ops.reshape(of_sum, (1, M)), ops.reshape(y, (M, 1))
        below = ops.transpose(A[S:], (1, 0)) * row
        of_xy = ops.add_matmul(below, ops.transpose(A[:S], (1, 0)), of_x)
        across = ops.transpose(x, (1, 0))
        upper = (ops.matmul(of_x, across), ops.matmul(of_x, column))
        lower = (ops.matmul(row, across), ops.matmul(row, column))
        of_A = ops.concatenate([ops.concatenate(part, 1) for part in (upper, lower)], 0)
        return of_A, of_xy[:S], of_xy[S]
