"""What AltUp computes between two functions, as one function with compiled loops."""

from __future__ import annotations

from dataclasses import dataclass

from fathom.arithmetic.forms import PredictionForm
from fathom.operations.ops import Array, Arrays, Composed, CustomVJP, Ops


@dataclass(frozen=True)
class Prediction(Composed):
    """x, y, R, B, R', A → (streams, m, I + P). Formula: `altup.AltUp`.

    The predicted streams x [N, S, M] are corrected by the output y [N, M] of a function, with R
    [S, C] and B [S, S]. Then the streams before the next function are predicted, with its R' [S, C]
    and A [S·S, S]. m [N, M] is the first of them, and I + P is [N, S·S].
    """

    form: PredictionForm

    def plain(
        self, ops: Ops, x: Array, y: Array, route: Array, correct: Array, ahead: Array,
        predict: Array,
    ) -> Arrays:  # fmt: skip
        N, S, M = x.shape
        if self.form.writes:
            first = x[:, 0]
            whole, added = (y, y - first) if self.form.has_residual else (first + y, y)
            weights = 1 + ops.linear(self.routed(ops, route, whole), correct)
            x = x + ops.reshape(weights, (N, S, 1)) * ops.reshape(added, (N, 1, M))
        H = ops.reshape(x, (N, S * M))[:, :0]
        if self.form.reads:
            P = ops.reshape(ops.linear(self.routed(ops, ahead, x[:, 0]), predict), (N, S, S))
            H = ops.identity_like(P) + P
            x, H = ops.matmul(H, x), ops.reshape(H, (N, S * S))
        return x, x[:, 0], H

    def routed(self, ops: Ops, route: Array, z: Array) -> Array:
        """tanh(R RMSNorm(z)) [N, S] of z [N, M]; if positions are pooled, of its mean over them."""
        (N, M), C = z.shape, self.form.channels
        if M > C:
            z = ops.mean(ops.reshape(z, (N, M // C, C)), axis=1)
        squares = ops.sum(z * z, axis=-1, keepdims=True)
        return ops.tanh(ops.linear(z / ops.sqrt(squares / C + self.form.eps), route))

    def compiled(self) -> CustomVJP:
        from fathom.arithmetic import prediction_loops

        return prediction_loops.Prediction(self.form)
