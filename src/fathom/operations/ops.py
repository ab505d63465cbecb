"""The array primitives that a backend implements; models use a framework only through them.

The protocol has the functions whose names differ between PyTorch, MLX and NumPy. Arithmetic
(`+ - * /`), broadcasting, slicing and `.shape` are the same in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

Array = Any
"""A tensor of the framework that runs the model."""

Arrays = tuple[Array, ...]

Params = dict[str, Array]
"""Parameters by their name in a network, such as `connection.alpha`."""

LARGE = 2**18
"""Minimum array size for compiled loops on MLX.

Inside a gradient the wait grows with the number of pending operations: at 48 layers, loops over
arrays of half the size cost more than they save.
"""

Layers = Sequence[Callable[[Array], Array]]
"""Functions […, C] → […, C] that a network passes to its connection."""


class CustomVJP(Protocol):
    """A function with a hand-written vector-Jacobian product, the same code for all frameworks.

    Its purpose is speed: automatic differentiation of `plain` gives the same gradient up to
    rounding. Derivatives of that gradient are those of `plain`.
    """

    loops_from: ClassVar[float] = math.inf
    """Minimum array size for compiled loops when they force pending lazy work."""
    is_composed: ClassVar[bool] = False
    """Whether `plain` is made of such functions, so that without loops it is what is computed."""

    def forward(self, ops: Ops, *xs: Array) -> tuple[Arrays, Arrays]:
        """(Outputs, arrays that `backward` needs in addition to `xs`)."""

    def backward(self, ops: Ops, xs: Iterable[Array], saved: Arrays, gradients: Arrays) -> Arrays:
        """The gradient of each x, from the gradients of the outputs."""

    def plain(self, ops: Ops, *xs: Array) -> Arrays:
        """The outputs, by operations that a framework can differentiate any number of times."""
        return self.forward(ops, *xs)[0]

    def compiled(self) -> CustomVJP | None:
        """The same function of contiguous NumPy arrays in compiled loops; None without one."""
        return None

    def fused(self, *shapes: Sequence[int]) -> CustomVJP | None:
        """The same function in compiled CUDA kernels for these shapes; None without one."""
        return None


class Composed(CustomVJP):
    """Base of functions with loops whose `plain` is made of faster functions."""

    is_composed = True
    loops_from = LARGE

    def forward(self, ops: Ops, *xs: Array) -> tuple[Arrays, Arrays]:
        return self.plain(ops, *xs), ()


class Ops(Protocol):
    """Primitives with the semantics of their NumPy namesakes, differentiable in the frameworks."""

    def asarray(self, x: np.ndarray) -> Array:
        """Copy `x` to the device; floats and booleans become the backend's float type."""

    def constant(self, x: np.ndarray) -> Array:
        """Like `asarray`, for arrays that never change: each is copied to the device once."""

    def unstack(self, x: Array) -> Sequence[Array]:
        """Split [L, …] into L arrays […]."""

    def split(self, x: Array, sizes: Sequence[int]) -> Sequence[Array]:
        """Split the last axis into parts of these sizes."""

    def reshape(self, x: Array, shape: Sequence[int]) -> Array: ...

    def transpose(self, x: Array, axes: Sequence[int]) -> Array: ...

    def broadcast(self, x: Array, shape: Sequence[int]) -> Array: ...

    def concatenate(self, xs: Sequence[Array], axis: int) -> Array: ...

    def contiguous(self, x: Array) -> Array:
        """`x`, laid out in memory in the order of its axes; `transpose` may return a view."""

    def exp(self, x: Array) -> Array: ...

    def relu(self, x: Array) -> Array: ...

    def tanh(self, x: Array) -> Array: ...

    def sigmoid(self, x: Array) -> Array: ...

    def clip(self, x: Array, bound: float) -> Array:
        """Limit every entry to ±bound."""

    def tril(self, x: Array) -> Array:
        """Zero above the diagonal of the last two axes."""

    def identity_like(self, x: Array) -> Array:
        """Identity matrix [n, n], where n is the length of the last axis of `x`."""

    def sqrt(self, x: Array) -> Array: ...

    def abs(self, x: Array) -> Array: ...

    def largest_size(self, x: Array) -> Array:
        """The largest |x|, a scalar, for metrics: it need not have a gradient."""

    def largest(self, x: Array, axis: int) -> Array:
        """The largest entries along an axis, which is kept with size 1."""

    def maximum(self, x: Array, floor: float | Array) -> Array: ...

    def sum(self, x: Array, axis: int, keepdims: bool = False) -> Array: ...

    def mean(self, x: Array, axis: int) -> Array: ...

    def logsumexp(self, x: Array, axis: int) -> Array:
        """log Σ exp(x) over an axis, which is kept with size 1."""

    def l2_norm(self, x: Array) -> Array:
        """√Σx² over the last axis, which is kept with size 1."""

    def softmax(self, x: Array) -> Array:
        """Softmax over the last axis."""

    def stack(self, xs: Sequence[Array]) -> Array:
        """Arrays […] along a new first axis."""

    def matmul(self, a: Array, b: Array) -> Array:
        """Matrix product over the last two axes; other axes are batch axes."""

    def add_matmul(self, c: Array, a: Array, b: Array) -> Array:
        """c + a b. May overwrite `c`, so only a `CustomVJP` may call it, on a `c` of its own."""

    def add_product(self, a: Array, b: Array, c: Array) -> Array:
        """a + b·c, entry by entry, with broadcasting."""

    def sum_of_products(self, a: Array, b: Array) -> Array:
        """Σ_s a_rs·b_s for each n: [R, S, N] and [S, N] → [R, N]."""

    def sum_of_outer_products(self, a: Sequence[Array], b: Sequence[Array]) -> Array:
        """Σ_t a_t b_tᵀ for each n: T arrays [R, N] and T arrays [S, N] → [R, S, N]."""

    def weighted_sum(self, weights: Array, x: Array) -> Array:
        """Σ_s w_s x_s for each n: [N, S] and [N, S, M] → [N, M]."""

    def row_products(self, row: Array, x: Array) -> Array:
        """Σ_m r_m x_sm for each n: [N, M] and [N, S, M] → [N, S]."""

    def custom_vjp(self, function: CustomVJP, *xs: Array) -> Arrays:
        """The function's outputs, differentiated with its `backward`; compiled where possible.

        Second derivatives are those of `plain`, or raise an error.
        """

    def tensordot(self, a: Array, b: Array) -> Array:
        """Contract the last axis of `a` with the first of `b`."""

    def embedding(self, table: Array, ids: Array) -> Array:
        """Rows of a table by id: [V, D], [B, T] → [B, T, D]."""

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """x Wᵀ + b over the last axis, W of shape [out, in]."""

    def gelu(self, x: Array) -> Array:
        """Exact GELU, x Φ(x), with the error function."""

    def layer_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        """Layer norm over the last axis, eps 1e-5, affine.

        If the variance overflows, each framework follows its own convention (NaN or zeros). That
        difference is under study (docs/definitions/language-model.md).
        """

    def conv2d(self, x: Array, weight: Array, bias: Array, stride: int = 1) -> Array:
        """3×3 convolution, zero padding of 1: [B, H, W, I], [O, 3, 3, I] → [B, …, …, O]."""

    def group_norm(self, x: Array, groups: int, weight: Array, bias: Array) -> Array:
        """Group norm of [B, H, W, C] with groups of consecutive channels, eps 1e-5, affine."""

    def causal_attention(self, q: Array, k: Array, v: Array) -> Array:
        """Causal attention, [B, H, T, D/H] each → the same; scores are scaled by 1/√(D/H)."""

    def cross_entropy(self, logits: Array, targets: Array, weights: Array | None = None) -> Array:
        """Mean of −log softmax(logits […, V])[target] over targets […], in nats.

        With weights […], the weighted mean Σ w·x / Σ w. A target outside [0, V) is an error, or NaN
        if only the host could raise one; `fathom_study.batch.Batch.check` refuses it before a step.
        """

    def stop_gradient(self, x: Array) -> Array:
        """`x`, with no gradient through it."""

    def to_numpy(self, x: Array) -> np.ndarray:
        """Copy `x` to the host without changing its type; waits for the device."""

    def all_finite(self, x: Array) -> Array:
        """Scalar: whether no entry is NaN or infinite."""


def groups(arrays: Sequence[Array], size: int) -> Iterator[tuple[int, int, Arrays]]:
    """(Its first index, its length, `size` arrays) of each group; the last array fills a group."""
    for first in range(0, len(arrays), size):
        group = tuple(arrays[first : first + size])
        yield first, len(group), group + group[-1:] * (size - len(group))
