"""`prediction.Prediction` on the CPU: one pass over a tile of tokens, in loops compiled by numba.

With w = 1 + B r, predicted streams are H (x + w a) = H x + (H w) a, where a is what y adds. So the
corrected streams are never stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fathom.arithmetic.boundary_loops import TILE, add_means_backward, means_of
from fathom.arithmetic.forms import PredictionForm
from fathom.arithmetic.loops import (
    add_product,
    add_to_streams,
    mix,
    mix_backward,
    normed_products,
    normed_products_backward,
    product_with_rows,
    row_products,
    tangents,
    weighted_sum,
)
from fathom.operations.ops import Array, Arrays, CustomVJP, Ops
from fathom.system.compiled import compiled


@compiled
def _pooled(form: PredictionForm, z: np.ndarray) -> np.ndarray:
    """The means [T, C] over positions of z [T, M]."""
    (T, M), C = z.shape, form.channels
    if C == M:
        return z
    means = np.empty((T, C), z.dtype)
    means_of(z.reshape(T, 1, M), C, means)
    return means


@compiled
def _routed(
    form: PredictionForm, z: np.ndarray, route: np.ndarray, weight: np.ndarray,
    scales: np.ndarray, values: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The router's tanh at z [T, M], times `weight` [K, S]: [K, T]. Sets scales and values."""
    bent = np.empty_like(values)
    normed_products(_pooled(form, z), route, form.eps, scales, values)
    tangents(values, bent)
    result = np.zeros((len(weight), len(z)), z.dtype)
    add_product(weight, bent, result)
    return result


@compiled
def _routed_backward(
    form: PredictionForm, z: np.ndarray, route: np.ndarray, weight: np.ndarray,
    scales: np.ndarray, values: np.ndarray, g: np.ndarray, of_route: np.ndarray,
    of_weight: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The gradient of z; adds those of the router and `weight`."""
    (T, M), (S, C) = z.shape, route.shape
    bent, of_values = np.empty_like(values), np.zeros_like(values)
    tangents(values, bent)
    product = np.empty_like(weight)
    product_with_rows(g, bent, product)
    of_weight += product
    add_product(np.ascontiguousarray(weight.T), g, of_values)
    for s in range(S):
        for t in range(T):
            of_values[s, t] *= 1 - bent[s, t] * bent[s, t]
    of_pooled = np.zeros((T, C), z.dtype)
    rows = _pooled(form, z)
    normed_products_backward(rows, route, scales, values, of_values, of_pooled, of_route)
    if C == M:
        return of_pooled
    of_z = np.zeros((T, 1, M), z.dtype)
    add_means_backward(of_pooled, C, of_z)
    return of_z.reshape(T, M)


@compiled
def _added(form: PredictionForm, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(The function's input plus what it adds, what it adds), [T, M] each."""
    other = np.empty_like(y)
    for t in range(len(y)):
        for m in range(y.shape[1]):
            first = x[t, 0, m]
            other[t, m] = y[t, m] - first if form.has_residual else first + y[t, m]
    return (y, other) if form.has_residual else (other, y)


@compiled
def _written(H: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """H w: [T, S·S], [T, S] → [T, S]."""
    T, S = weights.shape
    result = np.zeros_like(weights)
    for t in range(T):
        for i in range(S):
            for j in range(S):
                result[t, i] += H[t, i * S + j] * weights[t, j]
    return result


@compiled
def _of_tile(
    first: int, last: int, S: int, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What `forward` keeps of a tile: weights [T, S]; scales [T] and values [S, T] of routers."""
    T = last - first
    tile = kept[first * (3 * S + 2) : last * (3 * S + 2)]
    a, b = T * S, 2 * T * S
    c = b + T * S
    return (
        tile[:a].reshape(T, S), tile[c : c + T], tile[a:b].reshape(S, T), tile[c + T :],
        tile[b:c].reshape(S, T),
    )  # fmt: skip


@compiled
def forward(
    x: np.ndarray, y: np.ndarray, route: np.ndarray, correct: np.ndarray, ahead: np.ndarray,
    predict: np.ndarray, form: PredictionForm,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """(streams, m, I + P, `kept` for `backward`)."""
    (N, S, M), kind = x.shape, x.dtype
    streams, first_streams = np.empty_like(x), np.empty((N, M), kind)
    matrices = np.empty((N, S * S if form.reads else 0), kind)
    kept = np.empty(N * (3 * S + 2), kind)
    for first in range(0, N, TILE):
        last = min(first + TILE, N)
        T, old, new, H = last - first, x[first:last], streams[first:last], matrices[first:last]
        weights, scales, values, scales_ahead, values_ahead = _of_tile(first, last, S, kept)
        weights[:] = 0
        added = np.zeros((T, M), kind)
        if form.writes:
            whole, added = _added(form, old, y[first:last])
            corrections = _routed(form, whole, route, correct, scales, values)
            for t in range(T):
                for s in range(S):
                    weights[t, s] = 1 + corrections[s, t]
        if form.reads:
            z = np.empty((T, M), kind)
            add_to_streams(old[:, :1], weights[:, :1], added, z.reshape(T, 1, M))
            P = _routed(form, z, ahead, predict, scales_ahead, values_ahead)
            for t in range(T):
                for k in range(S * S):
                    H[t, k] = P[k, t] + kind.type(k % (S + 1) == 0)
            mix(H, _written(H, weights), old, added, new)
        else:
            add_to_streams(old, weights, added, new)
        first_streams[first:last] = new[:, 0]
    return streams, first_streams, matrices, kept


@compiled
def backward(
    x: np.ndarray, y: np.ndarray, route: np.ndarray, correct: np.ndarray, ahead: np.ndarray,
    predict: np.ndarray, matrices: np.ndarray, kept: np.ndarray, of_streams: np.ndarray,
    of_first: np.ndarray, of_matrices: np.ndarray, form: PredictionForm,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """The gradients of x, y, R, B, R' and A."""
    (N, S, M), kind = x.shape, x.dtype
    of_x, of_y = np.empty_like(x), np.zeros_like(y)
    of_route, of_correct = np.zeros_like(route), np.zeros_like(correct)
    of_ahead, of_predict = np.zeros_like(ahead), np.zeros_like(predict)
    for first in range(0, N, TILE):
        last = min(first + TILE, N)
        T, old, H, of_old = last - first, x[first:last], matrices[first:last], of_x[first:last]
        weights, scales, values, scales_ahead, values_ahead = _of_tile(first, last, S, kept)
        whole = added = np.zeros((T, M), kind)
        if form.writes:
            whole, added = _added(form, old, y[first:last])
        g = of_streams[first:last].copy()
        g[:, 0] += of_first[first:last]
        of_weights, of_added = np.zeros((T, S), kind), np.empty((T, M), kind)
        if form.reads:
            of_H, of_written = np.empty((T, S * S), kind), np.empty((T, S), kind)
            mix_backward(H, old, g, of_H, of_old)
            row_products(added, g, of_written)
            weighted_sum(_written(H, weights), g, of_added)
            of_P = np.empty((S * S, T), kind)
            for t in range(T):
                for i in range(S):
                    for j in range(S):
                        k = i * S + j
                        of_weights[t, j] += H[t, k] * of_written[t, i]
                        of_P[k, t] = (
                            of_H[t, k]
                            + of_written[t, i] * weights[t, j]
                            + of_matrices[first + t, k]
                        )
            z = np.empty((T, M), kind)
            add_to_streams(old[:, :1], weights[:, :1], added, z.reshape(T, 1, M))
            of_z = _routed_backward(
                form, z, ahead, predict, scales_ahead, values_ahead, of_P, of_ahead, of_predict
            )
            for t in range(T):
                along = kind.type(0)
                for m in range(M):
                    of_old[t, 0, m] += of_z[t, m]
                    along += of_z[t, m] * added[t, m]
                    of_added[t, m] += weights[t, 0] * of_z[t, m]
                of_weights[t, 0] += along
        else:
            of_old[:] = g
            row_products(added, g, of_weights)
            weighted_sum(weights, g, of_added)
        if form.writes:
            of_corrections = np.ascontiguousarray(of_weights.T)
            of_whole = _routed_backward(
                form, whole, route, correct, scales, values, of_corrections, of_route, of_correct
            )
            of_y[first:last] = of_added + of_whole
            of_old[:, 0] += -of_added if form.has_residual else of_whole
    return of_x, of_y, of_route, of_correct, of_ahead, of_predict


@dataclass(frozen=True)
class Prediction(CustomVJP):
    """`prediction.Prediction`."""

    form: PredictionForm

    def forward(self, ops: Ops, *xs: Array) -> tuple[Arrays, Arrays]:
        streams, first, matrices, kept = forward(*xs, self.form)
        return (streams, first, matrices), (matrices, kept)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        return backward(*xs, *saved, *gradients, self.form)
