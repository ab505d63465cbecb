"""`boundary.Boundary` on the CPU: one pass over a tile of tokens, in loops compiled by numba.

Arrays are contiguous NumPy arrays of one float type. N sets of coefficients (of tokens, or of
images), S streams of M entries; a set's streams stay in the cache from their update to the read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fathom.arithmetic.forms import SIGMOID, SOFTMAX, Form, MatrixForm
from fathom.arithmetic.loops import (
    add_product,
    add_to_streams,
    mix,
    mix_backward,
    passes_backward,
    product_with_rows,
    row_products,
    scales_of_passes,
    weighted_sum,
)
from fathom.arithmetic.sinkhorn import LARGEST, MIN_ENTRY
from fathom.operations.ops import CustomVJP
from fathom.system.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fathom.operations.ops import Array, Arrays, Ops

TILE = 128
"""Sets in a tile: their streams fit a core's second cache, and Sinkhorn's loops fill vectors."""


@compiled
def _map(kind: int, x: np.ndarray) -> None:
    """Replace logits [K] by their map."""
    if kind == SIGMOID:
        for k in range(len(x)):
            x[k] = 1 / (1 + np.exp(-x[k]))
    elif kind == SOFTMAX:
        largest, total = x.max(), x.dtype.type(0)
        for k in range(len(x)):
            x[k] = np.exp(x[k] - largest)
            total += x[k]
        for k in range(len(x)):
            x[k] /= total


@compiled
def _map_backward(kind: int, x: np.ndarray, g: np.ndarray) -> None:
    """Replace the gradient `g` of a map's values x [K] by that of its logits."""
    if kind == SIGMOID:
        for k in range(len(x)):
            g[k] *= (1 - x[k]) * x[k]
    elif kind == SOFTMAX:
        along = x.dtype.type(0)
        for k in range(len(x)):
            along += g[k] * x[k]
        for k in range(len(x)):
            g[k] = x[k] * (g[k] - along)


@compiled
def _start(H: MatrixForm, x: np.ndarray) -> None:
    """Replace the logits [S·S] of a matrix by the positive matrix that the passes divide."""
    S, of = int(math.sqrt(len(x))), x.dtype.type
    if H.kind == SOFTMAX:
        for i in range(S):
            _map(SOFTMAX, x[i * S : (i + 1) * S])
        x += of(H.start)
        return
    for k in range(len(x)):
        x[k] = min(max(x[k], of(-H.clip)), of(H.clip)) / of(H.tau)
    shift, total = max(x.max() - of(LARGEST), of(0)), of(0)
    for k in range(len(x)):
        x[k] = np.exp(x[k] - shift)
        total += x[k]
    x /= max(total * of(math.exp(-LARGEST)), of(1))


@compiled
def _start_backward(H: MatrixForm, K: np.ndarray, logits: np.ndarray, g: np.ndarray) -> None:
    """Replace the gradient `g` [S·S] of K by that of the logits."""
    S, of = int(math.sqrt(len(K))), K.dtype.type
    if H.kind == SOFTMAX:
        for i in range(0, S * S, S):
            _map_backward(SOFTMAX, K[i : i + S] - of(H.start), g[i : i + S])
        return
    for k in range(len(K)):
        g[k] *= K[k] / of(H.tau) if abs(logits[k]) <= of(H.clip) else of(0)


@compiled
def _laid_out(H: MatrixForm, started: np.ndarray, K: np.ndarray) -> None:
    """Started matrices [T, S·S] → K [S, S, T], the side that is divided first as its rows."""
    S = len(K)
    for t in range(len(started)):
        for i in range(S):
            for j in range(S):
                entry = max(started[t, i * S + j], K.dtype.type(MIN_ENTRY))
                if H.columns_first:
                    K[j, i, t] = entry
                else:
                    K[i, j, t] = entry


@compiled
def _entry(H: MatrixForm, S: int, i: int, j: int) -> int:
    """Place among coefficients of the entry that row i and column j of the passes' result is."""
    return 2 * S + (j * S + i if H.columns_first != H.transposed else i * S + j)


@compiled
def _means(x: np.ndarray, C: int, means: np.ndarray) -> None:
    """Streams [T, S, P·C] → their means [T, S·C] over P positions."""
    T, S, M = x.shape
    share = x.dtype.type(C) / x.dtype.type(M)
    means[:] = 0
    for n in range(T):
        for s in range(S):
            for p in range(0, M, C):
                for k in range(C):
                    means[n, s * C + k] += share * x[n, s, p + k]


@compiled
def _add_means_backward(of_means: np.ndarray, C: int, of_x: np.ndarray) -> None:
    """Add to the gradient of streams [T, S, P·C] that of their means [T, S·C]."""
    T, S, M = of_x.shape
    share = of_x.dtype.type(C) / of_x.dtype.type(M)
    for n in range(T):
        for s in range(S):
            for p in range(0, M, C):
                for k in range(C):
                    of_x[n, s, p + k] += share * of_means[n, s * C + k]


@compiled
def _add_to_logits(
    z: np.ndarray, values: np.ndarray, alpha: np.ndarray, form: Form, scales: np.ndarray,
    logits: np.ndarray,
) -> None:  # fmt: skip
    """Divide products φ z by the root mean square of z, and add α times these values to logits.

    z [T·G, W] and products [T·G, R], which become the values, → scales [T·G]; logits [T, K].
    """
    (I, W), R, of = z.shape, values.shape[1], z.dtype.type  # noqa: E741
    G = I // max(1, len(logits))
    for i in range(I):
        total = of(0)
        for w in range(W):
            total += z[i, w] * z[i, w]
        scale = 1 / np.sqrt(total / of(W) + of(form.eps))
        scales[i] = scale
        for r in range(R):
            value = values[i, r] * scale
            values[i, r] = value
            k = r * G + i % G
            logits[i // G, k] += alpha[k] * (np.tanh(value) if form.per_stream else value)


@compiled
def _logits_backward(
    z: np.ndarray, values: np.ndarray, alpha: np.ndarray, form: Form, scales: np.ndarray,
    of_logits: np.ndarray, of_products: np.ndarray, of_z: np.ndarray, of_alpha: np.ndarray,
) -> None:  # fmt: skip
    """Gradients of `_add_to_logits`: of products, and added to those of z and α."""
    (I, W), R, of = z.shape, values.shape[1], z.dtype.type  # noqa: E741
    G = I // max(1, len(of_logits))
    for i in range(I):
        along, scale = of(0), scales[i]
        for r in range(R):
            k, value = r * G + i % G, values[i, r]
            of_logit, slope = of_logits[i // G, k], of(1)
            if form.per_stream:
                bent = np.tanh(value)
                of_alpha[k] += of_logit * bent
                slope -= bent * bent
            else:
                of_alpha[k] += of_logit * value
            of_value = of_logit * alpha[k] * slope
            along += of_value * value
            of_products[i, r] = of_value * scale
        along *= scale * scale / of(W)
        for w in range(W):
            of_z[i, w] -= along * z[i, w]


@compiled
def _map_tile(form: Form, x: np.ndarray, coefficients: np.ndarray) -> None:
    """Replace logits [T, K] by their maps, and write the coefficients except H_res."""
    (T, K), S, of = x.shape, form.streams, x.dtype.type
    for n in range(T if K else 0):
        _map(form.pre.kind, x[n, :S])
        for s in range(S):
            coefficients[n, s] = of(form.pre.scale) * x[n, s] + of(form.pre.added)
        if K > S:
            _map(form.post.kind, x[n, S : 2 * S])
            for s in range(S, 2 * S):
                coefficients[n, s] = of(form.post.scale) * x[n, s] + of(form.post.added)
            if form.H.passes:
                _start(form.H, x[n, 2 * S :])
            else:
                coefficients[n, 2 * S :] = x[n, 2 * S :]


@compiled
def _map_tile_backward(form: Form, maps: np.ndarray, g: np.ndarray) -> None:
    """Replace the gradient `g` [T, K] of coefficients by that of logits, except of H_res."""
    (T, K), S, of = maps.shape, form.streams, maps.dtype.type
    for n in range(T if K else 0):
        for s in range(S):
            g[n, s] *= of(form.pre.scale)
        _map_backward(form.pre.kind, maps[n, :S], g[n, :S])
        if K > S:
            for s in range(S, 2 * S):
                g[n, s] *= of(form.post.scale)
            _map_backward(form.post.kind, maps[n, S : 2 * S], g[n, S : 2 * S])


@compiled
def _normalise(form: Form, started: np.ndarray, coefficients: np.ndarray) -> None:
    """Write H_res [T, S·S] into coefficients, from the started matrices."""
    S, T, passes = form.streams, len(started), form.H.passes
    K = np.empty((S, S, T), started.dtype)
    _laid_out(form.H, started, K)
    scales = scales_of_passes(K, passes, form.H.floor, form.H.added)
    rows, columns = scales[passes - 1 + passes % 2], scales[passes - passes % 2]
    for i in range(S):
        for j in range(S):
            entry = _entry(form.H, S, i, j)
            for t in range(T):
                coefficients[t, entry] = rows[i, t] * K[i, j, t] * columns[j, t]


@compiled
def _normalise_backward(form: Form, started: np.ndarray, logits: np.ndarray, g: np.ndarray) -> None:
    """Replace the gradient `g` [T, K] of H_res by that of its logits [T, S·S]."""
    S, T, passes = form.streams, len(started), form.H.passes
    K, of_H = np.empty((S, S, T), started.dtype), np.empty((S, S, T), started.dtype)
    _laid_out(form.H, started, K)
    for i in range(S):
        for j in range(S):
            entry = _entry(form.H, S, i, j)
            for t in range(T):
                of_H[i, j, t] = g[t, entry]
    scales = scales_of_passes(K, passes, form.H.floor, form.H.added)
    of_K = passes_backward(K, scales, of_H, form.H.added)
    for i in range(S):
        for j in range(S):
            entry = 2 * S + (j * S + i if form.H.columns_first else i * S + j)
            for t in range(T):
                g[t, entry] = of_K[i, j, t]
    for t in range(T):
        _start_backward(form.H, started[t], logits[t], g[t, 2 * S :])


@compiled
def _parts(kept: np.ndarray, N: int, K: int, R: int, G: int) -> tuple[np.ndarray, ...]:
    """What `forward` keeps: logits and maps [N, K], values [N·G, R], scales [N·G], means."""
    a, b = N * K, 2 * N * K + N * G * R
    parts = kept[:a].reshape(N, K), kept[a : 2 * a].reshape(N, K), kept[2 * a : b].reshape(N * G, R)
    return parts[0], parts[1], parts[2], kept[b : b + N * G], kept[b + N * G :]


@compiled
def forward(
    x: np.ndarray, y: np.ndarray, c: np.ndarray, phi: np.ndarray, b: np.ndarray, alpha: np.ndarray,
    form: Form,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """(streams, reads [N, M], coefficients, `kept` for `backward`)."""
    (N, S, M), (R, W), kind = x.shape, phi.shape, x.dtype
    K, G, has_means = len(b), S if form.per_stream else 1, form.channels < M
    streams = np.empty_like(x) if form.writes else x
    reads, coefficients = np.empty((N, M), kind), np.empty((N, K), kind)
    inputs = S * form.channels if has_means else 0
    kept = np.empty(N * (2 * K + G * R + G + inputs), kind)
    logits, maps, values, scales, flat = _parts(kept, N, K, R, G)
    means = flat.reshape(N, inputs)
    z = (flat if has_means else streams.reshape(-1)).reshape(N * G, W)
    for first in range(0, N, TILE):
        last = min(first + TILE, N)
        new, given, made = streams[first:last], c[first:last], coefficients[first:last]
        if form.mixes:
            mix(given[:, 2 * S :], given[:, S : 2 * S], x[first:last], y[first:last], new)
        elif form.writes:
            add_to_streams(x[first:last], given[:, S : 2 * S], y[first:last], new)
        if has_means:
            _means(new, form.channels, means[first:last])
        logits[first:last] = b
        if R:
            rows, found = z[first * G : last * G], values[first * G : last * G]
            product_with_rows(rows, phi, found)
            _add_to_logits(
                rows, found, alpha, form, scales[first * G : last * G], logits[first:last]
            )
        maps[first:last] = logits[first:last]
        _map_tile(form, maps[first:last], made)
        if form.H.passes and K > S:
            _normalise(form, maps[first:last, 2 * S :], made)
        weighted_sum(given[:, :S] if form.late else made[:, :S], new, reads[first:last])
    return streams, reads, coefficients, kept


@compiled
def backward(
    x: np.ndarray, y: np.ndarray, c: np.ndarray, phi: np.ndarray, b: np.ndarray, alpha: np.ndarray,
    streams: np.ndarray, coefficients: np.ndarray, kept: np.ndarray,
    of_streams: np.ndarray, of_reads: np.ndarray, of_coefficients: np.ndarray, form: Form,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """The gradients of x, y, c, φ, b and α."""
    (N, S, M), (R, W), kind = x.shape, phi.shape, x.dtype
    K, G, has_means = len(b), S if form.per_stream else 1, form.channels < M
    logits, maps, values, scales, flat = _parts(kept, N, K, R, G)
    z = (flat if has_means else streams.reshape(-1)).reshape(N * G, W)
    of_x, of_y, of_c = np.empty_like(x), np.empty_like(y), np.zeros_like(c)
    of_phi, of_b, of_alpha = np.zeros_like(phi), np.zeros_like(b), np.zeros_like(alpha)
    of_weights, scratch = (
        np.empty((TILE, S), kind),
        np.empty((TILE if form.mixes else 0, S, M), kind),
    )
    for first in range(0, N, TILE):
        last = min(first + TILE, N)
        T, new, given = last - first, streams[first:last], c[first:last]
        g, of_read = of_coefficients[first:last].copy(), of_reads[first:last]
        weights = given[:, :S] if form.late else coefficients[first:last, :S]
        row_products(of_read, new, of_weights[:T])
        if form.late:
            of_c[first:last, :S] = of_weights[:T]
        else:
            g[:, :S] += of_weights[:T]
        _map_tile_backward(form, maps[first:last], g)
        if form.H.passes and K > S:
            _normalise_backward(form, maps[first:last, 2 * S :], logits[first:last, 2 * S :], g)
        for t in range(T):
            for k in range(K):
                of_b[k] += g[t, k]
        of_new = scratch[:T] if form.mixes else of_x[first:last]
        add_to_streams(of_streams[first:last], weights, of_read, of_new)
        if R:
            rows, found = z[first * G : last * G], values[first * G : last * G]
            of_products = np.empty((T * G, R), kind)
            spread = np.zeros((T if has_means else 0) * S * form.channels, kind)
            of_z = (spread if has_means else of_new.reshape(-1)).reshape(T * G, W)
            _logits_backward(
                rows,
                found,
                alpha,
                form,
                scales[first * G : last * G],
                g,
                of_products,
                of_z,
                of_alpha,
            )
            add_product(of_products, phi, of_z)
            add_product(np.ascontiguousarray(of_products.T), rows, of_phi)
            if has_means:
                _add_means_backward(of_z.reshape(T, S * form.channels), form.channels, of_new)
        if form.writes:
            row_products(y[first:last], of_new, of_c[first:last, S : 2 * S])
            weighted_sum(given[:, S : 2 * S], of_new, of_y[first:last])
        if form.mixes:
            of_H = of_c[first:last, 2 * S :]
            mix_backward(given[:, 2 * S :], x[first:last], of_new, of_H, of_x[first:last])
    return of_x, of_y, of_c, of_phi, of_b, of_alpha


@dataclass(frozen=True)
class Boundary(CustomVJP):
    """`boundary.Boundary`."""

    form: Form

    def forward(self, ops: Ops, *xs: Array) -> tuple[Arrays, Arrays]:
        streams, reads, coefficients, kept = forward(*xs, self.form)
        return (streams, reads, coefficients), (streams, coefficients, kept)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        return backward(*xs, *saved, *gradients, self.form)
