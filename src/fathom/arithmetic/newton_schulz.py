"""Newton–Schulz iteration: moves a matrix towards the nearest orthogonal one."""

from __future__ import annotations

from fathom.operations.ops import Array, Ops


def newton_schulz(
    ops: Ops, matrices: Array, coefficients: tuple[float, float, float], iterations: int
) -> Array:
    """Iterate X ← a X + (b X Xᵀ + c (X Xᵀ)²) X from matrices [N, rows, columns] / their norms."""
    a, b, c = coefficients
    N, rows, columns = matrices.shape
    norm = ops.l2_norm(ops.reshape(matrices, (N, rows * columns)))
    X = matrices / (ops.reshape(norm, (N, 1, 1)) + 1e-7)
    for _ in range(iterations):
        A = ops.matmul(X, ops.transpose(X, (0, 2, 1)))
        X = a * X + ops.matmul(b * A + c * ops.matmul(A, A), X)
    return X
