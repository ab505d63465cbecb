"""The oracle: the same models in NumPy float64, forward only, written for clarity."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from fathom.operations.ops import CustomVJP


class NumpyOps:
    """Ops in float64. Docstrings: `fathom.operations.ops`."""

    unstack = staticmethod(list)
    reshape = staticmethod(np.reshape)
    transpose = staticmethod(np.transpose)
    broadcast = staticmethod(np.broadcast_to)
    concatenate = staticmethod(np.concatenate)
    stack = staticmethod(np.stack)
    contiguous = staticmethod(np.ascontiguousarray)
    exp = staticmethod(np.exp)
    tanh = staticmethod(np.tanh)
    sqrt = staticmethod(np.sqrt)
    abs = staticmethod(np.abs)
    tril = staticmethod(np.tril)
    largest = staticmethod(partial(np.max, keepdims=True))
    maximum = staticmethod(np.maximum)
    sum = staticmethod(np.sum)
    mean = staticmethod(np.mean)
    matmul = staticmethod(np.matmul)
    tensordot = staticmethod(partial(np.tensordot, axes=1))
    stop_gradient = staticmethod(np.asarray)
    to_numpy = staticmethod(np.asarray)

    def asarray(self, x: np.ndarray) -> np.ndarray:
        return x if np.issubdtype(x.dtype, np.integer) else x.astype(np.float64)

    constant = asarray

    def split(self, x: np.ndarray, sizes: Sequence[int]) -> Sequence[np.ndarray]:
        return np.split(x, np.cumsum(list(sizes))[:-1], axis=-1)

    def relu(self, x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0)

    def largest_size(self, x: np.ndarray) -> np.ndarray:
        return np.max(np.abs(x))

    def sigmoid(self, x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    def clip(self, x: np.ndarray, bound: float) -> np.ndarray:
        return np.clip(x, -bound, bound)

    def identity_like(self, x: np.ndarray) -> np.ndarray:
        return np.eye(x.shape[-1])

    def logsumexp(self, x: np.ndarray, axis: int) -> np.ndarray:
        largest = x.max(axis=axis, keepdims=True)
        return largest + np.log(np.exp(x - largest).sum(axis=axis, keepdims=True))

    def l2_norm(self, x: np.ndarray) -> np.ndarray:
        return np.sqrt((x * x).sum(axis=-1, keepdims=True))

    def softmax(self, x: np.ndarray) -> np.ndarray:
        weights = np.exp(x - x.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)

    def add_matmul(self, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return c + a @ b

    def add_product(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return a + b * c

    def sum_of_products(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("rsn,sn->rn", a, b)

    def weighted_sum(self, weights: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.einsum("ns,nsm->nm", weights, x)

    def custom_vjp(self, function: CustomVJP, *xs: np.ndarray) -> tuple[np.ndarray, ...]:
        return function.forward(self, *xs)[0]

    def embedding(self, table: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return table[ids]

    def linear(
        self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None
    ) -> np.ndarray:
        y = x @ weight.T
        return y if bias is None else y + bias

    def gelu(self, x: np.ndarray) -> np.ndarray:
        return x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2

    def layer_norm(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True)
        return centred / np.sqrt(variance + 1e-5) * weight + bias

    def conv2d(
        self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int = 1
    ) -> np.ndarray:
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        return np.einsum("bhwiyx,oyxi->bhwo", windows[:, ::stride, ::stride], weight) + bias

    def group_norm(
        self, x: np.ndarray, groups: int, weight: np.ndarray, bias: np.ndarray
    ) -> np.ndarray:
        B, H, W, C = x.shape
        grouped = x.reshape(B, H * W, groups, C // groups)
        centred = grouped - grouped.mean(axis=(1, 3), keepdims=True)
        variance = (centred**2).mean(axis=(1, 3), keepdims=True)
        return (centred / np.sqrt(variance + 1e-5)).reshape(x.shape) * weight + bias

    def causal_attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        *_, T, head_width = q.shape
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(head_width)
        future = np.triu(np.ones((T, T), dtype=bool), k=1)
        return self.softmax(np.where(future, -np.inf, scores)) @ v

    def cross_entropy(
        self, logits: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None
    ) -> np.ndarray:
        if targets.min() < 0 or targets.max() >= logits.shape[-1]:
            raise IndexError(f"targets must be in [0, {logits.shape[-1]})")
        log_probabilities = logits - self.logsumexp(logits, axis=-1)
        losses = -np.take_along_axis(log_probabilities, targets[..., None], axis=-1).squeeze(-1)
        return np.average(losses, weights=weights)

    def all_finite(self, x: np.ndarray) -> np.ndarray:
        return np.isfinite(x).all()
