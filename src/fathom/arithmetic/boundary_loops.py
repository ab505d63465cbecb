"""`boundary.Boundary` on the CPU: one pass over a tile of tokens, in loops compiled by numba.

Arrays are contiguous NumPy arrays of one float type. N sets of coefficients (of tokens, or of
images), S streams of M entries; a set's streams stay in the cache from their update to the read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fathom.arithmetic.forms import SIGMOID, SOFTMAX, Form, MatrixForm, WeightForm
from fathom.arithmetic.loops import (
    add_to_streams,
    exponentials,
    mix,
    mix_backward,
    normed_products,
    normed_products_backward,
    passes_backward,
    row_products,
    scales_of_passes,
    tangents,
    weighted_sum,
)
from fathom.arithmetic.sinkhorn import LARGEST, MIN_ENTRY
from fathom.operations.ops import Array, Arrays, CustomVJP, Ops
from fathom.system.compiled import compiled

TILE = 128
"""Sets in a tile: their streams fit a core's second cache, and Sinkhorn's loops fill vectors."""


@compiled
def _exponentials_below(x: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Replace x [K, T] by e^(x − shift), with shift [T]; returns the sums [T] over K."""
    K, T = x.shape
    total = np.zeros(T, x.dtype)
    for k in range(K):
        for t in range(T):
            x[k, t] -= shift[t]
    exponentials(x)
    for k in range(K):
        for t in range(T):
            total[t] += x[k, t]
    return total


@compiled
def _map(kind: int, x: np.ndarray) -> None:
    """Replace logits [K, T] by their map over K."""
    K, T = x.shape
    if kind == SOFTMAX:
        largest = x[0].copy()
        for k in range(1, K):
            for t in range(T):
                largest[t] = max(largest[t], x[k, t])
        total = _exponentials_below(x, largest)
        for k in range(K):
            for t in range(T):
                x[k, t] /= total[t]
    elif kind == SIGMOID:
        for k in range(K):
            for t in range(T):
                x[k, t] = -x[k, t]
        exponentials(x)
        for k in range(K):
            for t in range(T):
                x[k, t] = 1 / (1 + x[k, t])


@compiled
def _map_backward(kind: int, x: np.ndarray, g: np.ndarray) -> None:
    """Replace the gradient `g` of a map's values x [K, T] by that of its logits."""
    K, T = x.shape
    along = np.zeros(T, x.dtype)
    if kind == SIGMOID:
        for k in range(K):
            for t in range(T):
                g[k, t] *= (1 - x[k, t]) * x[k, t]
    elif kind == SOFTMAX:
        for k in range(K):
            for t in range(T):
                along[t] += g[k, t] * x[k, t]
        for k in range(K):
            for t in range(T):
                g[k, t] = x[k, t] * (g[k, t] - along[t])


@compiled
def _start(H: MatrixForm, x: np.ndarray) -> None:
    """Replace the logits [S·S, T] of matrices by the positive matrices that the passes divide."""
    (K, T), of = x.shape, x.dtype.type
    S = int(math.sqrt(K))
    if H.kind == SOFTMAX:
        for i in range(0, K, S):
            _map(SOFTMAX, x[i : i + S])
        x += of(H.start)
        return
    shift = np.zeros(T, x.dtype)
    for k in range(K):
        for t in range(T):
            x[k, t] = min(max(x[k, t], of(-H.clip)), of(H.clip)) / of(H.tau)
            shift[t] = max(shift[t], x[k, t] - of(LARGEST))
    total = _exponentials_below(x, shift)
    for k in range(K):
        for t in range(T):
            x[k, t] /= max(total[t] * of(math.exp(-LARGEST)), of(1))


@compiled
def _start_backward(H: MatrixForm, K: np.ndarray, logits: np.ndarray, g: np.ndarray) -> None:
    """Replace the gradient `g` [S·S, T] of K by that of the logits."""
    S, of = int(math.sqrt(len(K))), K.dtype.type
    if H.kind == SOFTMAX:
        for i in range(0, S * S, S):
            _map_backward(SOFTMAX, K[i : i + S] - of(H.start), g[i : i + S])
        return
    for k in range(len(K)):
        for t in range(K.shape[1]):
            slope = K[k, t] / of(H.tau)
            g[k, t] *= slope if abs(logits[k, t]) <= of(H.clip) else of(0)


@compiled
def _entry(S: int, is_turned: bool, i: int, j: int) -> int:
    """Place in a matrix [S·S] of its entry i, j, or of j, i."""
    return j * S + i if is_turned else i * S + j


@compiled
def _laid_out(H: MatrixForm, started: np.ndarray) -> np.ndarray:
    """Started matrices [S·S, T] → K [S, S, T], the side that is divided first as its rows."""
    S, T = int(math.sqrt(len(started))), started.shape[1]
    K = np.empty((S, S, T), started.dtype)
    for i in range(S):
        for j in range(S):
            entry = _entry(S, H.columns_first, i, j)
            for t in range(T):
                K[i, j, t] = max(started[entry, t], K.dtype.type(MIN_ENTRY))
    return K


@compiled
def means_of(x: np.ndarray, C: int, means: np.ndarray) -> None:
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
def add_means_backward(of_means: np.ndarray, C: int, of_x: np.ndarray) -> None:
    """Add to the gradient of streams [T, S, P·C] that of their means [T, S·C]."""
    T, S, M = of_x.shape
    share = of_x.dtype.type(C) / of_x.dtype.type(M)
    for n in range(T):
        for s in range(S):
            for p in range(0, M, C):
                for k in range(C):
                    of_x[n, s, p + k] += share * of_means[n, s * C + k]


@compiled
def _logits(
    form: Form, values: np.ndarray, alpha: np.ndarray, b: np.ndarray, logits: np.ndarray
) -> None:
    """b + α·values, or b + α tanh(values): [K, T] → [K, T]; b without values [0, T]."""
    K, T = logits.shape
    for k in range(K):
        for t in range(T):
            logits[k, t] = b[k]
    if len(values):
        bent = values
        if form.per_stream:
            bent = np.empty_like(values)
            tangents(values, bent)
        for k in range(K):
            for t in range(T):
                logits[k, t] += alpha[k] * bent[k, t]


@compiled
def _logits_backward(
    form: Form, values: np.ndarray, alpha: np.ndarray, g: np.ndarray, of_alpha: np.ndarray
) -> None:
    """Replace the gradient `g` [K, T] of logits by that of values, and add that of α."""
    K, T = g.shape
    bent = values
    if form.per_stream:
        bent = np.empty_like(values)
        tangents(values, bent)
    for k in range(K):
        total = values.dtype.type(0)
        for t in range(T):
            total += g[k, t] * bent[k, t]
            g[k, t] *= alpha[k]
        of_alpha[k] += total
        if form.per_stream:
            for t in range(T):
                g[k, t] *= 1 - bent[k, t] * bent[k, t]


@compiled
def _coefficients(form: Form, maps: np.ndarray, coefficients: np.ndarray) -> None:
    """Replace logits [K, T] by their maps, and write the coefficients [T, K]."""
    (K, T), S, of = maps.shape, form.streams, maps.dtype.type
    if K == 0:
        return
    _map(form.pre.kind, maps[:S])
    rest = maps[2 * S :]
    if K > S:
        _map(form.post.kind, maps[S : 2 * S])
        if form.H.passes:
            _start(form.H, rest)
            rest = _normalised(form, rest)
    for t in range(T):
        for k in range(S):
            coefficients[t, k] = of(form.pre.scale) * maps[k, t] + of(form.pre.added)
        for k in range(S, min(2 * S, K)):
            coefficients[t, k] = of(form.post.scale) * maps[k, t] + of(form.post.added)
        for k in range(2 * S, K):
            coefficients[t, k] = rest[k - 2 * S, t]


@compiled
def _coefficients_backward(form: Form, maps: np.ndarray, logits: np.ndarray, g: np.ndarray) -> None:
    """Replace the gradient `g` [K, T] of coefficients by that of logits."""
    K, S, of = len(maps), form.streams, maps.dtype.type
    if K == 0:
        return
    g[:S] *= of(form.pre.scale)
    _map_backward(form.pre.kind, maps[:S], g[:S])
    if K > S:
        g[S : 2 * S] *= of(form.post.scale)
        _map_backward(form.post.kind, maps[S : 2 * S], g[S : 2 * S])
        if form.H.passes:
            _normalised_backward(form, maps[2 * S :], logits[2 * S :], g[2 * S :])


@compiled
def _normalised(form: Form, started: np.ndarray) -> np.ndarray:
    """Started matrices → H_res, [S·S, T] each."""
    S, passes, K = form.streams, form.H.passes, _laid_out(form.H, started)
    scales = scales_of_passes(K, passes, form.H.floor, form.H.added)
    rows, columns = scales[passes - 1 + passes % 2], scales[passes - passes % 2]
    result = np.empty_like(started)
    for i in range(S):
        for j in range(S):
            entry = _entry(S, form.H.columns_first != form.H.transposed, i, j)
            for t in range(started.shape[1]):
                result[entry, t] = rows[i, t] * K[i, j, t] * columns[j, t]
    return result


@compiled
def _normalised_backward(
    form: Form, started: np.ndarray, logits: np.ndarray, g: np.ndarray
) -> None:
    """Replace the gradient `g` of H_res by that of its logits, [S·S, T] each."""
    S, K = form.streams, _laid_out(form.H, started)
    of_H = np.empty_like(K)
    for i in range(S):
        for j in range(S):
            of_H[i, j] = g[_entry(S, form.H.columns_first != form.H.transposed, i, j)]
    scales = scales_of_passes(K, form.H.passes, form.H.floor, form.H.added)
    of_K = passes_backward(K, scales, of_H, form.H.added)
    for i in range(S):
        for j in range(S):
            g[_entry(S, form.H.columns_first, i, j)] = of_K[i, j]
    _start_backward(form.H, started, logits, g)


@compiled
def _parts(
    kept: np.ndarray, first: int, last: int, K: int, R: int, G: int, inputs: int
) -> tuple[np.ndarray, ...]:
    """What `forward` keeps of a tile: maps [K, T], values [R·G, T], scales [T·G], means."""
    T, width = last - first, K + R * G + G + inputs
    tile = kept[first * width : last * width]
    a, b, c = K * T, (K + R * G) * T, (K + R * G + G) * T
    return tile[:a].reshape(K, T), tile[a:b].reshape(R * G, T), tile[b:c], tile[c:]


@compiled
def _form(n: np.ndarray) -> Form:
    """The form that has these numbers."""
    first = (n[0] != 0, n[1] != 0, n[2] != 0, n[3] != 0, int(n[4]), int(n[5]), n[6])
    pre, post = WeightForm(int(n[7]), n[8], n[9]), WeightForm(int(n[10]), n[11], n[12])
    of_H = (int(n[13]), n[14], n[15], n[16], int(n[17]), n[18] != 0, n[19] != 0, n[20], n[21])
    return Form(*first, pre, post, MatrixForm(*of_H))


@compiled
def forward(
    x: np.ndarray, y: np.ndarray, c: np.ndarray, phi: np.ndarray, b: np.ndarray, alpha: np.ndarray,
    numbers: np.ndarray,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """(streams, reads [N, M], coefficients, `kept` for `backward`). `numbers`: of a form."""
    form = _form(numbers)
    (N, S, M), (R, W), kind = x.shape, phi.shape, x.dtype
    K, G = len(b), S if form.per_stream else 1
    inputs = S * form.channels if form.channels < M else 0
    streams = np.empty_like(x) if form.writes else x
    reads, coefficients = np.empty((N, M), kind), np.empty((N, K), kind)
    kept = np.empty(N * (K + R * G + G + inputs), kind)
    for first in range(0, N, TILE):
        last = min(first + TILE, N)
        new, given, made = streams[first:last], c[first:last], coefficients[first:last]
        maps, values, scales, means = _parts(kept, first, last, K, R, G, inputs)
        if form.mixes:
            mix(given[:, 2 * S :], given[:, S : 2 * S], x[first:last], y[first:last], new)
        elif form.writes:
            add_to_streams(x[first:last], given[:, S : 2 * S], y[first:last], new)
        if inputs:
            means_of(new, form.channels, means.reshape(last - first, inputs))
        if R:
            rows = (means if inputs else new.reshape(-1)).reshape((last - first) * G, W)
            normed_products(rows, phi, form.eps, scales, values)
        _logits(form, values, alpha, b, maps)
        _coefficients(form, maps, made)
        weighted_sum(given[:, :S] if form.late else made[:, :S], new, reads[first:last])
    return streams, reads, coefficients, kept


@compiled
def backward(
    x: np.ndarray, y: np.ndarray, c: np.ndarray, phi: np.ndarray, b: np.ndarray, alpha: np.ndarray,
    streams: np.ndarray, coefficients: np.ndarray, kept: np.ndarray,
    of_streams: np.ndarray, of_reads: np.ndarray, of_coefficients: np.ndarray,
    numbers: np.ndarray,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """The gradients of x, y, c, φ, b and α."""
    form = _form(numbers)
    (N, S, M), (R, W), kind = x.shape, phi.shape, x.dtype
    K, G = len(b), S if form.per_stream else 1
    inputs = S * form.channels if form.channels < M else 0
    of_x, of_y, of_c = np.empty_like(x), np.empty_like(y), np.zeros_like(c)
    of_phi, of_b, of_alpha = np.zeros_like(phi), np.zeros_like(b), np.zeros_like(alpha)
    of_weights = np.empty((TILE, S), kind)
    scratch = np.empty((TILE if form.mixes else 0, S, M), kind)
    for first in range(0, N, TILE):
        last = min(first + TILE, N)
        T, new, given = last - first, streams[first:last], c[first:last]
        maps, values, scales, means = _parts(kept, first, last, K, R, G, inputs)
        of_read, g, logits = of_reads[first:last], np.empty((K, T), kind), np.empty((K, T), kind)
        row_products(of_read, new, of_weights[:T])
        for k in range(K):
            for t in range(T):
                g[k, t] = of_coefficients[first + t, k]
        if form.late:
            of_c[first:last, :S] = of_weights[:T]
        else:
            g[:S] += of_weights[:T].T
        if form.H.passes:
            _logits(form, values, alpha, b, logits)
        _coefficients_backward(form, maps, logits, g)
        for k in range(K):
            of_b[k] += g[k].sum()
        of_new = scratch[:T] if form.mixes else of_x[first:last]
        weights = given[:, :S] if form.late else coefficients[first:last, :S]
        add_to_streams(of_streams[first:last], weights, of_read, of_new)
        if R:
            _logits_backward(form, values, alpha, g, of_alpha)
            rows = (means if inputs else new.reshape(-1)).reshape(T * G, W)
            spread = np.zeros((T if inputs else 0) * inputs, kind)
            of_rows = (spread if inputs else of_new.reshape(-1)).reshape(T * G, W)
            normed_products_backward(rows, phi, scales, values, g, of_rows, of_phi)
            if inputs:
                add_means_backward(spread.reshape(T, inputs), form.channels, of_new)
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

    @cached_property
    def numbers(self) -> np.ndarray:
        return self.form.numbers()

    def forward(self, ops: Ops, *xs: Array) -> tuple[Arrays, Arrays]:
        streams, reads, coefficients, kept = forward(*xs, self.numbers)
        return (streams, reads, coefficients), (streams, coefficients, kept)

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        return backward(*xs, *saved, *gradients, self.numbers)
