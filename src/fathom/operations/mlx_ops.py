"""MLX's array primitives, and functions with hand-written gradients.

Imports MLX after `blas.preload`: MLX binds to the first BLAS in the process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fathom.operations.mlx_loops import FAR, SLOPE, TAIL, CausalSoftmax, Gelu
from fathom.operations.numpy_ops import NumpyOps
from fathom.operations.ops import LARGE, CustomVJP
from fathom.system import blas

BLAS = blas.preload()

import mlx.core as mx  # noqa: E402
from mlx.core import array  # noqa: E402

Arrays = tuple[array, ...]


def with_vjp(
    forward: Callable[..., tuple[Arrays, Arrays]],
    backward: Callable[[Arrays, Arrays, Arrays], Arrays],
    plain: Callable[..., Arrays],
    *xs: array,
    once: bool = False,
) -> Arrays:
    """plain(*xs), with its value from `forward` and its gradient from `backward`.

    `forward(*xs)` → (outputs, saved); `backward(xs, saved, gradients of outputs)` → the gradient of
    each x. Its derivatives are those of `plain`, since MLX would treat saved arrays as constants.
    `once`: none are needed, as in training, and nothing is prepared for them, which saves time.
    """
    count, outputs = len(xs), 0

    @mx.custom_function
    def whole(*xs: array) -> Arrays:
        nonlocal outputs
        values, saved = forward(*xs)
        outputs = len(values)
        return *values, *saved

    @whole.vjp
    def gradient(primals: array | Arrays, cotangents: Arrays, results: Arrays) -> Arrays:
        xs = primals if isinstance(primals, tuple) else (primals,)  # a single array comes without
        saved, given = results[outputs:], cotangents[:outputs]
        if once:
            return backward(xs, saved, given)
        first = mx.custom_function(lambda *both: backward(both[:count], saved, both[count:]))

        @first.vjp
        def further(both: Arrays, cotangents: Arrays, results: Arrays) -> Arrays:
            def gradient_of_plain(*both: array) -> Arrays:
                return tuple(mx.vjp(plain, both[:count], both[count:])[1])

            return tuple(mx.vjp(gradient_of_plain, both, cotangents)[1])

        return first(*xs, *given)

    return whole(*xs)[:outputs]


def exact_layer_norm(x: array, weight: array, bias: array, once: bool = False) -> array:
    """Layer norm over the last axis with an exact gradient for x of any size.

    MLX's own gradient on the CPU cubes 1/σ, which loses precision and then underflows as σ passes
    1e14: at 24 layers of hc the gradients of norm weights are wrong by 11 to 19 %, and that of
    H_res by a factor of 60. If the variance overflows, 1/σ and the output are zero. This convention
    of MLX is kept, because it is under study here.
    """
    plain = lambda *xs: _layer_norm(*xs)[0]  # noqa: E731
    return with_vjp(_layer_norm, _layer_norm_vjp, plain, x, weight, bias, once=once)[0]


def _layer_norm(x: array, weight: array, bias: array) -> tuple[Arrays, Arrays]:
    """((the output,), (the normalised x, 1/σ))."""
    centred = x - mx.mean(x, axis=-1, keepdims=True)
    reciprocal_std = mx.rsqrt(mx.mean(mx.square(centred), axis=-1, keepdims=True) + 1e-5)
    normed = centred * reciprocal_std
    return (normed * weight + bias,), (normed, reciprocal_std)


def _layer_norm_vjp(xs: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
    (_, weight, _), (normed, reciprocal_std), (cotangent,) = xs, saved, cotangents
    g = cotangent * weight
    along = mx.mean(g * normed, axis=-1, keepdims=True)
    rows = tuple(range(normed.ndim - 1))
    return (
        reciprocal_std * (g - mx.mean(g, axis=-1, keepdims=True) - normed * along),
        mx.sum(cotangent * normed, axis=rows),
        mx.sum(cotangent, axis=rows),
    )


def quick_exp(x: array) -> array:
    """e^x for −87 ≤ x ≤ 87 with a relative error of 3e-7, by arithmetic alone.

    MLX's own is not vectorised on the CPU, and fifty times slower than a product. Here
    x = k ln 2 + r with an integer k; a polynomial gives e^r and the bits of a float give 2^k.
    """
    # Adding 1.5·2²³ rounds to an integer, which is then in the low bits.
    shifted = x * (1 / math.log(2)) + 12582912.0
    k = shifted - 12582912.0
    r = (x - k * 0.693359375) + k * 2.12194440e-4  # ln 2 in two parts, the first exact in k
    power = r * (1 / 720) + 1 / 120
    for coefficient in (1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        power = power * r + coefficient
    exponent = mx.left_shift(mx.view(shifted, mx.int32), 23) + (127 << 23)
    return power * mx.view(exponent, mx.float32)


def quick_gelu(x: array, once: bool = False) -> array:
    """Exact GELU with an absolute error of 1e-6, without MLX's slow erf and exp.

    The formula of `mlx_loops.gelu`, for arrays whose wait would cost more than a loop saves.
    """
    backward = lambda _, slope, g: (g[0] * slope[0],)  # noqa: E731
    return with_vjp(_quick_gelu, backward, exact_gelu, x, once=once)[0]


def exact_gelu(x: array) -> Arrays:
    """x Φ(x), by MLX's error function."""
    return (x * (1 + mx.erf(x * math.sqrt(0.5))) * 0.5,)


def _quick_gelu(x: array) -> tuple[Arrays, Arrays]:
    """((GELU,), (its derivative,)), both with an absolute error of 1e-6."""
    near = mx.clip(x, -FAR, FAR)
    exponential = quick_exp(near * near * -0.5)
    t = mx.reciprocal(mx.abs(near) * SLOPE + 1)
    tail = t * TAIL[0] + TAIL[1]
    for coefficient in TAIL[2:]:
        tail = tail * t + coefficient
    tail = tail * t * exponential * 0.5
    # 1 − tail above zero and tail below it: a product, since `where` is slow here too.
    side = mx.sign(x)
    cdf = side * (0.5 - tail) + 0.5
    return (x * cdf,), (cdf + near * exponential * (1 / math.sqrt(2 * math.pi)),)


def causal_softmax(scores: array) -> Arrays:
    """Scores [B, H, T, T] → the softmax of each row up to the diagonal, and zeros after it."""
    seen = mx.tril(mx.ones(scores.shape[-2:], mx.bool_))
    return (mx.softmax(mx.where(seen, scores, -math.inf), axis=-1),)


class MlxOps:
    """Ops in a float type. Docstrings: `fathom.operations.ops`."""

    reshape = staticmethod(mx.reshape)
    transpose = staticmethod(mx.transpose)
    broadcast = staticmethod(mx.broadcast_to)
    concatenate = staticmethod(mx.concatenate)
    stack = staticmethod(mx.stack)
    contiguous = staticmethod(mx.contiguous)
    exp = staticmethod(mx.exp)
    tanh = staticmethod(mx.tanh)
    sigmoid = staticmethod(mx.sigmoid)
    sqrt = staticmethod(mx.sqrt)
    abs = staticmethod(mx.abs)
    tril = staticmethod(mx.tril)
    largest = staticmethod(partial(mx.max, keepdims=True))
    maximum = staticmethod(mx.maximum)
    sum = staticmethod(mx.sum)
    mean = staticmethod(mx.mean)
    softmax = staticmethod(partial(mx.softmax, axis=-1))
    matmul = staticmethod(mx.matmul)
    tensordot = staticmethod(partial(mx.tensordot, axes=1))
    add_matmul = staticmethod(mx.addmm)
    stop_gradient = staticmethod(mx.stop_gradient)
    to_numpy = staticmethod(np.array)

    def __init__(
        self, dtype: mx.Dtype = mx.float32, on_host: bool = False, once: bool = False
    ) -> None:
        """`on_host`: whether NumPy can read the values of arrays at any time.

        It can on the CPU, in a step that is not compiled. `once`: whether no gradient will be
        differentiated.
        """
        self.on_host, self.once = on_host, once
        self.dtype = dtype

    def asarray(self, x: np.ndarray) -> array:
        return mx.array(x, dtype=mx.int32 if np.issubdtype(x.dtype, np.integer) else self.dtype)

    constant = asarray

    def unstack(self, x: array) -> Sequence[array]:
        if x.shape[0] > SPLIT_AT_ONCE:
            halves = mx.split(x, [x.shape[0] // 2], axis=0)
            return [part for half in halves for part in self.unstack(half)]
        # Not x[i]: the gradient of every such slice is as large as all of x.
        return [part.squeeze(0) for part in mx.split(x, x.shape[0], axis=0)]

    def split(self, x: array, sizes: Sequence[int]) -> Sequence[array]:
        return mx.split(x, list(itertools.accumulate(sizes))[:-1], axis=-1)

    def logsumexp(self, x: array, axis: int) -> array:
        # MLX refuses an empty array, such as of no tokens.
        return (mx.logsumexp if x.size else mx.sum)(x, axis=axis, keepdims=True)

    def relu(self, x: array) -> array:
        return mx.maximum(x, 0)

    def clip(self, x: array, bound: float) -> array:
        return mx.clip(x, -bound, bound)

    def largest_size(self, x: array) -> array:
        return mx.max(mx.abs(x))

    def identity_like(self, x: array) -> array:
        return mx.eye(x.shape[-1], dtype=x.dtype)

    def l2_norm(self, x: array) -> array:
        return mx.sqrt(mx.sum(mx.square(x), axis=-1, keepdims=True))

    def add_product(self, a: array, b: array, c: array) -> array:
        return a + b * c

    def sum_of_products(self, a: array, b: array) -> array:
        return mx.sum(a * b, axis=1)

    def sum_of_outer_products(self, a: Sequence[array], b: Sequence[array]) -> array:
        return mx.sum(mx.stack(a)[:, :, None] * mx.stack(b)[:, None], axis=0)

    def weighted_sum(self, weights: array, x: array) -> array:
        return (weights[:, None] @ x)[:, 0]

    def row_products(self, row: array, x: array) -> array:
        return (row[:, None] @ x.swapaxes(1, 2))[:, 0]

    def custom_vjp(self, function: CustomVJP, *xs: array) -> tuple[array, ...]:
        if self._takes_loops(*xs, least=function.loops_from) and (loops := function.compiled()):
            return self._host_vjp(loops, partial(function.plain, self), *xs)
        if function.is_composed:
            return function.plain(self, *xs)
        ways = (partial(way, self) for way in (function.forward, function.backward, function.plain))
        return with_vjp(*ways, *xs, once=self.once)

    def _takes_loops(self, *xs: array, least: float = LARGE) -> bool:
        """Whether the largest array has at least `least` numbers, and NumPy can read all arrays."""
        readable = self.on_host and all(x.dtype == mx.float32 for x in xs)
        return readable and max(x.size for x in xs) >= least

    def _host_vjp(self, function: CustomVJP, plain: Callable[..., Arrays], *xs: array) -> Arrays:
        """`with_vjp` of a compiled function."""
        saved: tuple[np.ndarray, ...] = ()

        @np.errstate(all="ignore")  # MLX does not warn of infinities and NaN either
        def forward(*xs: array) -> tuple[Arrays, Arrays]:
            nonlocal saved
            outputs, saved = function.forward(HOST_OPS, *map(np.ascontiguousarray, xs))
            return tuple(map(mx.array, outputs)), ()

        @np.errstate(all="ignore")
        def backward(xs: Arrays, _: Arrays, gradients: Arrays) -> Arrays:
            # Converted lazily: not every function needs its inputs.
            given, of_outputs = (map(np.ascontiguousarray, part) for part in (xs, gradients))
            of_xs = function.backward(HOST_OPS, given, saved, tuple(of_outputs))
            return tuple(map(mx.array, of_xs))

        return with_vjp(forward, backward, plain, *xs, once=self.once)

    def embedding(self, table: array, ids: array) -> array:
        return table[ids]

    def linear(self, x: array, weight: array, bias: array | None = None) -> array:
        return x @ weight.T if bias is None else mx.addmm(bias, x, weight.T)

    def gelu(self, x: array) -> array:
        if self._takes_loops(x):
            return self._host_vjp(Gelu(), exact_gelu, x)[0]
        return quick_gelu(x, self.once) if self.on_host else exact_gelu(x)[0]

    def layer_norm(self, x: array, weight: array, bias: array) -> array:
        return exact_layer_norm(x, weight, bias, self.once)

    def conv2d(self, x: array, weight: array, bias: array, stride: int = 1) -> array:
        return mx.conv2d(x, weight, stride=stride, padding=1) + bias

    def group_norm(self, x: array, groups: int, weight: array, bias: array) -> array:
        B, H, W, C = x.shape

        def mean(values: array) -> array:
            """[B, H·W, C] → the mean of each channel's group, [B, 1, C].

            Sums over positions, then over the channels of a group; one sum over both takes longer.
            """
            sums = mx.sum(values, axis=1).reshape(B, groups, C // groups)
            means = mx.sum(sums, axis=-1, keepdims=True) / (H * W * C // groups)
            return mx.broadcast_to(means, sums.shape).reshape(B, 1, C)

        pixels = x.reshape(B, H * W, C)
        centred = pixels - mean(pixels)
        scale = mx.rsqrt(mean(mx.square(centred)) + 1e-5) * weight
        return (centred * scale + bias).reshape(x.shape)

    def causal_attention(self, q: array, k: array, v: array) -> array:
        scale = q.shape[-1] ** -0.5
        scores = (q * scale) @ k.swapaxes(-1, -2)  # not computed unless it is used
        if self._takes_loops(scores):
            return self._host_vjp(CausalSoftmax(), causal_softmax, scores)[0] @ v
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")

    def cross_entropy(self, logits: array, targets: array, weights: array | None = None) -> array:
        picked = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
        # MLX reads arbitrary memory at an invalid index, and no device can raise an error.
        is_class = (targets >= 0) & (targets < logits.shape[-1])
        losses = mx.logsumexp(logits, axis=-1) - mx.where(is_class, picked, math.nan)
        if weights is None:
            return mx.mean(losses)
        return mx.sum(losses * weights) / mx.sum(weights)

    def all_finite(self, x: array) -> array:
        return mx.all(mx.isfinite(x))


HOST_OPS = NumpyOps()


SPLIT_AT_ONCE = 64
"""Maximum parts of one split. Each part keeps all others, so time and memory grow with the square
of their number. With splits by halves, a cell of 2048 time steps takes a sixth of the memory."""
