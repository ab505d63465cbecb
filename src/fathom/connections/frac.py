"""`frac`: one stream cut into parts that are mixed like streams, without widening."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fathom.connections.component_types import MatrixStart
from fathom.connections.components import AnyCoefficients, DynamicPerStream, FromStreams
from fathom.connections.connection import (
    Connection,
    ConnectionContext,
    MixingTrace,
    Scheme,
    by_example,
)
from fathom.init import Constant, Parameter
from fathom.operations.ops import Array, Arrays, Ops, Params
from fathom.settings import NO_BOOL, ConfigError


class Frac(Scheme):
    """x is m parts x_s of C/m channels: x_s ← Σ_t (H_res)_st x_t + (H_post)_s f(H_pre x)_s.

    H_pre is m × m. f reads the parts of H_pre x concatenated, and its output is cut in the same
    way. Initially H_pre and H_res are the identity, and H_post is 1 in each part.
    """

    kind: Literal["frac"] = "frac"
    fractions: Annotated[int, Field(ge=2, le=2**53, description="m"), NO_BOOL] = 2
    coefficients: AnyCoefficients = DynamicPerStream(phi=0.0)

    def at(self, context: ConnectionContext) -> FracConnection:
        """The connection in a network.

        Raises ConfigError for a width that m does not divide, and if f adds its input itself.
        """
        if context.width % self.fractions:
            raise ConfigError(
                f"frac: width {context.width} cannot be cut into {self.fractions} equal parts; "
                "use a multiple, or other fractions"
            )
        if context.has_residual:
            raise ConfigError(
                "frac: a block already adds its input, which would count twice; use "
                "model.wrap: sublayer"
            )
        return FracConnection(self, context)


class Coefficients(NamedTuple):
    """The parameters of one layer; None if absent."""

    b: Array
    """[logits]: entries of H_pre, H_res and H_post, concatenated; the only field if static."""
    phi: Array | None = None
    """[rows, inputs]"""
    alpha: Array | None = None
    """[logits]"""


class FracState(NamedTuple):
    """A pass up to a layer: N sets of coefficients; M covers all other axes of a part."""

    per_layer: tuple[Coefficients, ...]
    x: Array
    """[N, m, M]; already mixed after the layer has read"""
    shape: tuple[int, ...]
    """[…, C]: the shape of an input."""
    post: Array | None = None
    """[N or 1, m, 1]: weights for the output of the layer that has read."""
    passed: Arrays = ()
    """H_res [N or 1, m, m] of every layer that has read, for the trace: without gradients."""


PARTS = ("pre", "res", "post")
"""Parts in order; H_pre and H_res are adjacent, since both are multiplied with the same x."""


class FracConnection(Connection):
    """Formula: `Frac`."""

    settings: Frac

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one layer's logits, by part."""
        m = self.settings.fractions
        return {"pre": (m, m), "res": (m, m), "post": (m,)}

    def parameters(self) -> dict[str, Parameter]:
        m, computed = self.settings.fractions, self.settings.coefficients
        identity = MatrixStart(diagonal=1.0).distribution(m)
        prefix, parameters = "H", {}
        if isinstance(computed, FromStreams):
            of_a_part = replace(self.context, width=self.context.width // m)
            parameters, prefix = computed.parameters(self.shapes(), m, of_a_part), "b"
        starts = {"pre": identity, "res": identity, "post": Constant(1.0)}
        for part, shape in self.shapes().items():
            start = Parameter((self.context.layers, *shape), starts[part])
            parameters[f"connection.{prefix}_{part}"] = start
        return parameters

    def per_layer(self, ops: Ops, params: Params) -> tuple[Coefficients, ...]:
        """The parameters of each layer."""
        L, computed = self.context.layers, self.settings.coefficients
        prefix = "b" if isinstance(computed, FromStreams) else "H"
        sizes = [math.prod(shape) for shape in self.shapes().values()]
        flat = [
            ops.reshape(params[f"connection.{prefix}_{part}"], (L, size))
            for part, size in zip(PARTS, sizes, strict=True)
        ]
        stacks = [ops.concatenate(flat, axis=1)]
        if prefix == "b":
            phis = [params[f"connection.phi_{part}"] for part in PARTS]
            stacks.append(ops.concatenate(phis, axis=1))
        if "connection.alpha" in params:
            stacks.append(computed.repeated(ops, params["connection.alpha"], sizes))
        return tuple(Coefficients(*layer) for layer in zip(*map(ops.unstack, stacks), strict=True))

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> FracState:
        return FracState(self.per_layer(ops, params), self.cut(ops, x), x.shape)

    def read(self, ops: Ops, state: FracState, k: int) -> tuple[Array, FracState]:
        m = self.settings.fractions
        logits, x = self.logits(ops, state.per_layer[k], state.x)
        matrices, post = ops.split(logits, (2 * m * m, m))
        matrices = ops.reshape(matrices, (logits.shape[0], 2 * m, m))
        mixed = ops.matmul(matrices, x)
        state = state._replace(
            x=mixed[:, m:],
            post=ops.reshape(post, (logits.shape[0], m, 1)),
            passed=(*state.passed, ops.stop_gradient(matrices[:, m:])),
        )
        return self.joined(ops, mixed[:, :m], state.shape), state

    def write(self, ops: Ops, state: FracState, k: int, y: Array) -> FracState:
        x = ops.add_product(state.x, state.post, self.cut(ops, y))
        return state._replace(x=x, post=None)

    def close(self, ops: Ops, state: FracState) -> Array:
        return self.joined(ops, state.x, state.shape)

    def trace(self, ops: Ops, params: Params, state: FracState) -> MixingTrace:
        m, of_one = self.settings.fractions, None
        if isinstance(self.settings.coefficients, FromStreams):
            of_one = ops.stack([by_example(ops, H, state.shape, m)[0] for H in state.passed])
        *axes, C = state.shape
        parts = ops.reshape(self.joined(ops, state.x, state.shape), (*axes, m, C // m))
        last = len(axes)
        return MixingTrace(
            H_res=ops.stack([ops.mean(H, axis=0) for H in state.passed]),
            H_res_of_one=of_one,
            streams=ops.transpose(parts, (last, *range(last), last + 1)),
        )

    def logits(self, ops: Ops, layer: Coefficients, x: Array) -> tuple[Array, Array]:
        """(The entries of H_pre, H_res and H_post [N or 1, logits], the parts [N, m, M])."""
        computed, (N, m, M) = self.settings.coefficients, x.shape
        if not isinstance(computed, FromStreams):
            return ops.reshape(layer.b, (1, layer.b.shape[0])), x
        if self.context.pooled_axes == 0:
            return computed.logits(ops, layer.phi, layer.alpha, layer.b, x)
        width = self.context.width // m
        means = ops.mean(ops.reshape(x, (N, m, M // width, width)), axis=2)
        return computed.logits(ops, layer.phi, layer.alpha, layer.b, means)[0], x

    def cut(self, ops: Ops, x: Array) -> Array:
        """[…, C] → [N, m, M]."""
        m, C = self.settings.fractions, self.context.width
        N, positions = self.context.sets(x.shape), self.context.set_size(x.shape) // C
        if self.context.pooled_axes == 0:
            return ops.reshape(x, (N, m, C // m))
        parts = ops.transpose(ops.reshape(x, (N, positions, m, C // m)), (0, 2, 1, 3))
        return ops.reshape(parts, (N, m, positions * (C // m)))

    def joined(self, ops: Ops, x: Array, shape: tuple[int, ...]) -> Array:
        """The inverse of `cut`, to shape `shape`."""
        (N, m, M), C = x.shape, self.context.width
        if self.context.pooled_axes:
            x = ops.reshape(x, (N, m, M // (C // m), C // m))
            x = ops.transpose(x, (0, 2, 1, 3))
        return ops.reshape(x, shape)
