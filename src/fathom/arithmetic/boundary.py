"""What streams compute between two functions, as one function with compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fathom.arithmetic.custom_vjp import Adding, Mixing, WeightedSum
from fathom.arithmetic.forms import Form, MatrixForm, WeightForm
from fathom.arithmetic.sinkhorn import has_triton
from fathom.operations.ops import Array, Arrays, Composed, CustomVJP, Ops


class WeightMap(Protocol):
    """A map from logits to S weights (`components.Weights`)."""

    form: WeightForm | None
    """None: no loop computes it."""

    def shape(self, S: int) -> tuple[int, ...]: ...

    def weights(self, ops: Ops, logits: Array) -> Array: ...


class MatrixMap(Protocol):
    """A map from logits to matrices (`constraints.MixingMatrix`)."""

    form: MatrixForm | None

    def matrix(self, ops: Ops, logits: Array, S: int, layers: int) -> Array: ...


class Logits(Protocol):
    """Logits computed from streams (`components.FromStreams`)."""

    per_stream: bool
    """Whether each stream is normed, and determines its own logits through a tanh."""
    eps: float

    def logits(
        self, ops: Ops, phi: Array, alpha: Array, b: Array, x: Array
    ) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class Boundary(Composed):
    """x, y, c, φ, b, α → (streams, m, coefficients).

    Streams x [N, S, M] become H x + w y with the output y [N, M] of a function, and c [N, ·] of its
    weights, one after the other: pre [S], post w [S], H [S·S]. Then the next coefficients are
    computed: pre, post and the logits of H, or H itself. m [N, M] is the sum of the streams with
    the weights pre.
    """

    streams: int
    """S"""
    channels: int
    """C: logits depend on means over the M/C positions."""
    computed: Logits | None
    """How logits depend on streams; None: they are b, for all alike."""
    pre: WeightMap
    post: WeightMap | None
    """None: no function follows, so there are no further coefficients."""
    H: MatrixMap | None
    """None: the logits of H are returned, if there are any."""
    writes: bool = True
    """Whether streams are updated."""
    mixes: bool = False
    """Whether c has an H; without, it is the identity."""
    late: bool = False
    """Whether m is the sum with the weights of c."""

    def plain(
        self, ops: Ops, x: Array, y: Array, c: Array, phi: Array, b: Array, alpha: Array
    ) -> Arrays:
        (N, S, M), C = x.shape, self.channels
        if self.writes and self.mixes:
            _, post, H = ops.split(c, (S, S, S * S))
            (x,) = ops.custom_vjp(Mixing(), ops.reshape(H, (N, S, S)), post, x, y)
        elif self.writes:
            (x,) = ops.custom_vjp(Adding(), c[:, S : 2 * S], x, y)
        logits = ops.broadcast(b, (N, b.shape[0]))
        if self.computed and M == C:
            logits, x = self.computed.logits(ops, phi, alpha, b, x)
        elif self.computed:
            means = ops.mean(ops.reshape(x, (N, S, M // C, C)), axis=2)
            logits, _ = self.computed.logits(ops, phi, alpha, b, means)
        coefficients = self.coefficients(ops, logits)
        weights = (c if self.late else coefficients)[:, :S]
        m, x = ops.custom_vjp(WeightedSum(), weights, x)
        return x, m, coefficients

    def coefficients(self, ops: Ops, logits: Array) -> Array:
        """Logits [N, K] → coefficients [N, ·]."""
        (N, K), S = logits.shape, self.streams
        if K == 0:
            return logits
        maps = [self.pre] if self.post is None else [self.pre, self.post]
        parts, first = [], 0
        for one in maps:
            shape = one.shape(S)
            last = first + S ** len(shape)
            parts.append(one.weights(ops, ops.reshape(logits[:, first:last], (N, *shape))))
            first = last
        rest = logits[:, first:]
        if self.H is not None:
            H = self.H.matrix(ops, ops.reshape(rest, (N, S, S)), S, 1)
            rest = ops.reshape(H, (N, S * S))
        return ops.concatenate([*parts, *([rest] if first < K else [])], axis=1)

    @cached_property
    def form(self) -> Form | None:
        """The boundary as numbers; None if no loops compute a part of it."""
        pre, post = self.pre.form, WeightForm() if self.post is None else self.post.form
        if pre is None or post is None:
            return None
        per_stream, eps = (self.computed.per_stream, self.computed.eps) if self.computed else (0, 0)
        H = MatrixForm() if self.H is None else self.H.form
        flags = (self.writes, self.writes and self.mixes, self.late, bool(per_stream))
        return Form(*flags, self.streams, self.channels, float(eps), pre, post, H)

    def compiled(self) -> CustomVJP | None:
        return self.loops

    @cached_property
    def loops(self) -> CustomVJP | None:
        if self.form is None:
            return None
        from fathom.arithmetic import boundary_loops

        return boundary_loops.Boundary(self.form)

    def fused(self, *shapes: Sequence[int]) -> CustomVJP | None:
        _, S, M = shapes[0]
        if self.channels != M or S not in (2, 4, 8) or not has_triton():
            return None
        from fathom.operations import triton_boundary

        return triton_boundary.Boundary(self)
