"""Constraints of H_res: families of mixing matrices, parametrised by logits.

Sizes: S streams, matrices [S, S]. Formulas: docs/definitions/connections.md. To add a
constraint, add a class here and a line in CONSTRAINTS.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fathom.arithmetic.forms import EXP, SOFTMAX, MatrixForm
from fathom.arithmetic.newton_schulz import newton_schulz
from fathom.arithmetic.sinkhorn import (
    TO_FIRST,
    TO_LAST,
    BoundedExp,
    Passes,
    Side,
    Softmax,
    alternating_sides,
)
from fathom.connections.component_types import MatrixStart, VectorStart, one_of_registry
from fathom.operations.ops import Array, Ops
from fathom.settings import Number, Positive, Registry, Settings

FromZero = Annotated[Number, Field(ge=0)]
Above0 = Annotated[Number, Field(gt=0)]


class MixingMatrix(Settings):
    """A family of matrices [S, S] with logits of a given shape."""

    is_identity: ClassVar[bool] = False
    """Whether every matrix is the identity, so that no product is needed."""

    form: ClassVar[MatrixForm | None] = None
    """The map from logits as numbers, for compiled loops; None if they do not compute it."""

    start: MatrixStart | VectorStart

    def shape(self, S: int) -> tuple[int, ...]:
        """Shape of one matrix's logits; empty if it has none."""
        raise NotImplementedError

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        """Logits [N, *shape] → matrices [N, S, S]. `layers`: number of wrapped functions."""
        raise NotImplementedError

    def refusal(self, S: int) -> str | None:
        """Reason why no such matrix of size S exists, and the fix; None if one exists."""
        return None


class OfLogits(MixingMatrix):
    """A matrix with one logit per entry."""

    start: MatrixStart = MatrixStart()

    def shape(self, S: int) -> tuple[int, ...]:
        return (S, S)


class Raw(OfLogits):
    """The logits themselves."""

    kind: Literal["raw"] = "raw"

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        return logits


class Exp(OfLogits):
    """exp(logits): positive, unbounded."""

    kind: Literal["exp"] = "exp"

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        return ops.exp(logits)


# --- Sinkhorn -----------------------------------------------------------------------------------


class Sinkhorn(OfLogits):
    """Sinkhorn(exp(logits / τ)): rows and columns alternately divided by their sums."""

    kind: Literal["sinkhorn"] = "sinkhorn"
    iterations: Positive = Field(20, description="passes over both sides")
    last: Side = Field("columns", description="the side that sums to one exactly")
    tau: Above0 = Field(1.0, description="τ, temperature")
    floor: FromZero = Field(1e-12, description="sums below it count as this")
    added: FromZero = Field(0.0, description="added to every sum")
    clip: Above0 | None = Field(None, description="logits are limited to ± this")

    @property
    def form(self) -> MatrixForm:
        return MatrixForm(
            EXP, self.tau, math.inf if self.clip is None else self.clip,
            passes=2 * self.iterations, columns_first=self.last == "rows",
            floor=self.floor, added=self.added,
        )  # fmt: skip

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        bounded = logits if self.clip is None else ops.clip(logits, self.clip)
        sides = alternating_sides(self.iterations, self.last)
        scaled = bounded / self.tau if self.tau != 1 else bounded
        return normalize(ops, scaled, Passes(sides, self.floor, self.added, BoundedExp()))


class LogSinkhorn(OfLogits):
    """Sinkhorn in the log domain: nothing underflows before the final exponential."""

    kind: Literal["log_sinkhorn"] = "log_sinkhorn"
    iterations: Positive = Field(20, description="passes over both sides")
    last: Side = Field("columns", description="the side that sums to one exactly")
    tau: Above0 = Field(1.0, description="τ, temperature")

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        Z = ops.contiguous(ops.transpose(logits, TO_LAST)) / self.tau
        u = v = 0 * Z[:1, :1]
        for side in alternating_sides(self.iterations, self.last):
            if side == "rows":
                u = -ops.logsumexp(Z + v, axis=1)
            else:
                v = -ops.logsumexp(Z + u, axis=0)
        return ops.transpose(ops.exp(Z + u + v), TO_FIRST)


class KernelSinkhorn(OfLogits):
    """Sinkhorn as in DeepSeek's kernels, which apply it transposed: columns act as rows.

    Row softmax + ε, columns, then `iterations` − 1 times rows and columns; ε is added to each sum.
    """

    kind: Literal["kernel_sinkhorn"] = "kernel_sinkhorn"
    iterations: Positive = Field(20, description="passes over both sides, the softmax counted")
    eps: FromZero = Field(1e-6, description="ε")

    @property
    def form(self) -> MatrixForm:
        return MatrixForm(
            SOFTMAX, start=self.eps, passes=2 * self.iterations - 1, columns_first=True,
            transposed=True, added=self.eps,
        )  # fmt: skip

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        sides = alternating_sides(self.iterations, "columns")[1:]
        transposed = normalize(ops, logits, Passes(sides, 0.0, self.eps, Softmax(self.eps)))
        return ops.transpose(transposed, (0, 2, 1))


def normalize(ops: Ops, Z: Array, passes: Passes) -> Array:
    """Matrices [N, S, S] from Z [N, S, S] by the passes."""
    if Z.shape[-1] > 1:
        return ops.custom_vjp(passes, Z)[0]
    # x / x is exactly one; u x v would be one only up to rounding.
    K = ops.transpose(passes.start.values(ops, ops.transpose(Z, TO_LAST)), TO_FIRST)
    for _ in passes.sides:
        K = K / (ops.maximum(K, passes.floor) + passes.added)
    return K


# --- constants ----------------------------------------------------------------------------------


class Fixed(MixingMatrix):
    """A matrix that is not learned."""

    start: VectorStart = VectorStart()

    def shape(self, S: int) -> tuple[int, ...]:
        return ()

    def matrix(self, ops: Ops, logits: None, S: int, layers: int) -> Array:
        return ops.constant(self.constant(S)[None])

    def constant(self, S: int) -> np.ndarray:
        """The matrix [S, S]."""
        raise NotImplementedError


class Identity(Fixed):
    """I: streams are not mixed."""

    is_identity = True

    kind: Literal["identity"] = "identity"

    def constant(self, S: int) -> np.ndarray:
        return np.eye(S)


class Uniform(Fixed):
    """1/S everywhere: every stream becomes the mean of all."""

    kind: Literal["uniform"] = "uniform"

    def constant(self, S: int) -> np.ndarray:
        return np.full((S, S), 1 / S)


# --- convex combinations of permutations: doubly stochastic by construction -----------------------


@cache  # used in every layer of every step
def permutations(S: int) -> np.ndarray:
    """All permutation matrices [S!, S, S], the identity first."""
    return np.stack([np.eye(S)[list(order)] for order in itertools.permutations(range(S))])


@cache  # used in every layer of every step
def shifts(S: int) -> np.ndarray:
    """All powers of the cyclic shift [S, S, S], the identity first."""
    return np.stack([np.roll(np.eye(S), k, axis=0) for k in range(S)])


class Permutations(MixingMatrix):
    """Σ_r softmax(logits)_r P_r over all S! permutations; the first is the identity."""

    LARGEST: ClassVar[int] = 5

    kind: Literal["permutations"] = "permutations"
    start: VectorStart = VectorStart(on=0.0, off=-8.0)

    def shape(self, S: int) -> tuple[int, ...]:
        return (math.factorial(S),)

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        return ops.tensordot(ops.softmax(logits), ops.constant(permutations(S)))

    def refusal(self, S: int) -> str | None:
        if S <= self.LARGEST:
            return None
        count = math.factorial(S) if S <= 20 else f"{S}!"  # beyond that it has too many digits
        return f"{S} streams have {count} permutations; take at most {self.LARGEST}"


class Kronecker(MixingMatrix):
    """⊗_k [[p_k, 1 − p_k], [1 − p_k, p_k]], (p_k, 1 − p_k) = softmax(logits_k)."""

    kind: Literal["kronecker"] = "kronecker"
    start: VectorStart = VectorStart(on=0.0, off=-8.0)

    def shape(self, S: int) -> tuple[int, ...]:
        return (S.bit_length() - 1, 2)

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        N, K, _ = logits.shape
        flip = ops.constant(np.array([[1, 0, 0, 1], [0, 1, 1, 0]], dtype=np.float64))
        factors = ops.reshape(ops.tensordot(ops.softmax(logits), flip), (N, K, 2, 2))
        product = ops.constant(np.ones((1, 1, 1)))
        for k in range(K):
            n = 2**k
            outer = (
                ops.reshape(product, (product.shape[0], n, 1, n, 1))
                * factors[:, k, None, :, None, :]
            )
            product = ops.reshape(outer, (N, 2 * n, 2 * n))
        return product if K else ops.broadcast(product, (N, 1, 1))

    def refusal(self, S: int) -> str | None:
        if S & (S - 1) == 0:
            return None
        below = 2 ** (S.bit_length() - 1)
        return f"{S} is not a power of two; take {below} or {2 * below} streams"


class Circulant(MixingMatrix):
    """Σ_k c_k shiftᵏ, c = (1 − γ) e_0 + γ softmax(logits)."""

    kind: Literal["circulant"] = "circulant"
    start: VectorStart = VectorStart()
    gamma: Annotated[Number, Field(gt=0, le=1)] | None = Field(
        None, description="γ; null: 2 / wrapped functions, and at most 1"
    )

    def shape(self, S: int) -> tuple[int, ...]:
        return (S,)

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        gamma = min(1.0, 2 / layers) if self.gamma is None else self.gamma
        learned = ops.tensordot(ops.softmax(logits), ops.constant(shifts(S)))
        return learned * gamma + ops.constant((1 - gamma) * np.eye(S))


# --- from orthogonal matrices ---------------------------------------------------------------------


class Orthostochastic(OfLogits):
    """Squared entries of the orthogonal matrix to which the Newton–Schulz iteration converges.

    X ← a X + (b X Xᵀ + c (X Xᵀ)²) X, starting at the logits over their Frobenius norm. Row and
    column sums are one as far as the iteration has converged.
    """

    COEFFICIENTS: ClassVar[tuple[float, float, float]] = (3.0, -3.2, 1.2)
    """a, b, c: they sum to one, so an orthogonal matrix is a fixed point."""

    kind: Literal["orthostochastic"] = "orthostochastic"
    start: MatrixStart = MatrixStart(diagonal=8.0, off_diagonal=-8.0)
    iterations: Positive = Field(5, description="steps")

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array:
        X = newton_schulz(ops, logits, self.COEFFICIENTS, self.iterations)
        return X * X


CONSTRAINTS = Registry(
    {
        "raw": Raw,
        "exp": Exp,
        "sinkhorn": Sinkhorn,
        "log_sinkhorn": LogSinkhorn,
        "kernel_sinkhorn": KernelSinkhorn,
        "identity": Identity,
        "uniform": Uniform,
        "permutations": Permutations,
        "kronecker": Kronecker,
        "circulant": Circulant,
        "orthostochastic": Orthostochastic,
    }
)
Constraint = one_of_registry("constraint", CONSTRAINTS)
