"""Reads over depth with a custom VJP: a softmax over sources, and their norms.

A function that only reads the sources returns them as its last output, as in `custom_vjp`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fathom.operations.ops import Array, Arrays, CustomVJP, Ops


@dataclass(frozen=True)
class InverseRms(CustomVJP):
    """x [N, C] → (1/√(mean of x² + eps) [N], x)."""

    eps: float

    def forward(self, ops: Ops, x: Array) -> tuple[Arrays, Arrays]:
        mean = ops.sum(x * x, axis=-1) / x.shape[1]
        scale = 1 / ops.sqrt(mean + self.eps)
        return (scale, x), (scale,)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (x,), (scale,), (of_scale, of_x) = xs, saved, gradients
        factor = of_scale * scale * scale * scale / x.shape[1]
        return (ops.add_product(of_x, -factor[:, None], x),)

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import depth_loops

        return depth_loops.InverseRms(self.eps)


class Sizes(NamedTuple):
    """Numbers of reads R, heads H, sources I, tokens N, and channels of a head c."""

    R: int
    H: int
    I: int  # noqa: E741
    N: int
    c: int


@dataclass(frozen=True)
class SoftmaxRead(CustomVJP):
    """R reads of I sources, each a softmax over sources for each token and each of H heads.

    Queries [R, C], sources v [I, N, C], their scales s [I, N] → (reads [R, N, C], the logarithms of
    the softmax's sums [R, H, N], sources). Logits are s (q·v) over a head's channels; a read is
    Σ p v, or Σ p s v if `values_normed`.

    With the reads and logarithms of other sources as fourth and fifth input, the softmax also
    covers these: a softmax in two phases.
    """

    loops_from = 0

    heads: int = 1
    values_normed: bool = False

    def forward(
        self, ops: Ops, queries: Array, v: Array, s: Array, *others: Array
    ) -> tuple[Arrays, Arrays]:
        z = self.sizes(queries, v)
        flat = ops.reshape(v, (z.I * z.N, z.H * z.c))
        products = ops.reshape(ops.linear(flat, self.by_head(ops, queries)), (z.I, z.N, z.R, z.H))
        products = ops.transpose(products, (2, 3, 0, 1))
        logits = products * s
        if others:
            read, log_sum = others
            logits = ops.concatenate([logits, log_sum[:, :, None]], axis=2)
        log_sums = ops.logsumexp(logits, axis=2)
        p = ops.exp(logits - log_sums)
        weights = p[:, :, : z.I]
        reads = self.weighted(ops, weights * s if self.values_normed else weights, v)
        if others:
            reads = reads + self.spread(ops, p[:, :, z.I], z) * read
        return (reads, ops.reshape(log_sums, (z.R, z.H, z.N)), v), (products, p)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        (queries, v, s, *others), (products, p) = xs, saved
        of_read, of_log_sum, of_v = gradients
        z, Q = self.sizes(queries, v), self.by_head(ops, queries)
        of_values = self.products(ops, of_read, v)  # gradient of p, or of p s
        of_p = of_values * s if self.values_normed else of_values
        if others:
            read, _ = others
            of_other = ops.sum(ops.reshape(of_read * read, (z.R, z.N, z.H, z.c)), axis=-1)
            of_other = ops.transpose(of_other, (0, 2, 1))
            of_p = ops.concatenate([of_p, of_other[:, :, None]], axis=2)
        along = ops.sum(p * of_p, axis=2) - of_log_sum
        of_logits = p * (of_p - along[:, :, None])
        weights, of_products = p[:, :, : z.I], of_logits[:, :, : z.I]
        of_s = of_products * products
        if self.values_normed:
            of_s, weights = of_s + weights * of_values, weights * s
        scaled = ops.reshape(of_products * s, (z.R * z.H, z.I * z.N))
        of_queries = ops.matmul(scaled, ops.reshape(v, (z.I * z.N, z.H * z.c)))
        of_queries = self.of_queries(ops, of_queries, z)
        through_logits = ops.matmul(ops.transpose(scaled, (1, 0)), Q)
        of_v = of_v + ops.reshape(through_logits, v.shape) + self.values(ops, weights, of_read)
        of_s = ops.sum(ops.reshape(of_s, (z.R * z.H, z.I, z.N)), axis=0)
        if not others:
            return of_queries, of_v, of_s
        of_read = self.spread(ops, p[:, :, z.I], z) * of_read
        return of_queries, of_v, of_s, of_read, of_logits[:, :, z.I]

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import depth_loops

        return depth_loops.SoftmaxRead(self.heads, self.values_normed)

    def sizes(self, queries: Array, v: Array) -> Sizes:
        """The sizes of queries [R, C] and sources [I, N, C]."""
        (R, C), (I, N, _), H = queries.shape, v.shape, self.heads  # noqa: E741
        return Sizes(R, H, I, N, C // H)

    def by_head(self, ops: Ops, queries: Array) -> Array:
        """[R, C] → [R·H, C]: for each head the query on its channels, and zero elsewhere."""
        (R, C), H = queries.shape, self.heads
        if H == 1:
            return queries
        own = ops.constant(np.repeat(np.eye(H), C // H, axis=1))
        return ops.reshape(ops.reshape(queries, (R, 1, C)) * own, (R * H, C))

    def of_queries(self, ops: Ops, of_heads: Array, z: Sizes) -> Array:
        """The gradient [R, C] of queries, from the gradient [R·H, C] of `by_head`."""
        if z.H == 1:
            return of_heads
        own = ops.constant(np.repeat(np.eye(z.H), z.c, axis=1))
        return ops.sum(ops.reshape(of_heads, (z.R, z.H, z.H * z.c)) * own, axis=1)

    def spread(self, ops: Ops, weights: Array, z: Sizes) -> Array:
        """[R, H, N] → [R, N, C], or [R, N, 1] with one head."""
        by_token = ops.transpose(weights, (0, 2, 1))
        if z.H == 1:
            return by_token
        wide = ops.broadcast(by_token[..., None], (z.R, z.N, z.H, z.c))
        return ops.reshape(wide, (z.R, z.N, z.H * z.c))

    def weighted(self, ops: Ops, weights: Array, v: Array) -> Array:
        """Σ_i w_i v_i: [R, H, I, N] and [I, N, C] → [R, N, C]."""
        (R, H, I, N), C = weights.shape, v.shape[-1]  # noqa: E741
        weights = ops.reshape(ops.transpose(weights, (3, 1, 0, 2)), (N * H, R, I))
        sums = ops.matmul(weights, self.by_token(ops, v))
        return ops.reshape(ops.transpose(sums, (1, 0, 2)), (R, N, C))

    def values(self, ops: Ops, weights: Array, reads: Array) -> Array:
        """Σ_r w_ri g_r: [R, H, I, N] and [R, N, C] → [I, N, C]."""
        return self.weighted(ops, ops.transpose(weights, (2, 1, 0, 3)), reads)

    def products(self, ops: Ops, reads: Array, v: Array) -> Array:
        """g_r·v_i over each head's channels: [R, N, C] and [I, N, C] → [R, H, I, N]."""
        R, (I, N, _), H = reads.shape[0], v.shape, self.heads  # noqa: E741
        sources = ops.transpose(self.by_token(ops, v), (0, 2, 1))
        products = ops.reshape(ops.matmul(self.by_token(ops, reads), sources), (N, H, R, I))
        return ops.transpose(products, (2, 1, 3, 0))

    def by_token(self, ops: Ops, x: Array) -> Array:
        """[I, N, C] → [N·H, I, C/H]."""
        I, N, C = x.shape  # noqa: E741
        return ops.transpose(ops.reshape(x, (I, N * self.heads, C // self.heads)), (1, 0, 2))
