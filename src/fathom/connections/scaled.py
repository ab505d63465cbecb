"""`scaled`: a single stream, with scales on the stream or on its updates."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from fathom.connections.connection import Connection, ConnectionContext, Scheme
from fathom.connections.scales import AnyInitial, AnyNorm, AnyScale, Layer, NoInitial, NoNorm
from fathom.init import Parameter
from fathom.operations.ops import Array, Arrays, Ops, Params
from fathom.settings import ConfigError


class Scaled(Scheme):
    """x ← scale(norm(x), f(norm(x))): x + f(x), with a scale on either term."""

    kind: Literal["scaled"] = "scaled"
    scale: AnyScale = "constant"
    norm: AnyNorm = Field(
        NoNorm(),
        exclude_if=lambda value: value.kind == "none",
        description="of the stream before each function, and of the output; functions and network "
        "then leave out their own",
    )
    initial: AnyInitial = Field(
        NoInitial(),
        exclude_if=lambda value: value.kind == "none",
        description="where the embedded input is read or added again",
    )

    def at(self, context: ConnectionContext) -> ScaledConnection:
        """The connection in a network. Raises ConfigError if f keeps its own residual or norm."""
        if context.has_residual:
            raise ConfigError(
                "scaled: a block already adds its input, so no sum is left to scale; use "
                "model.wrap: sublayer"
            )
        if self.norm.kind != "none" and not context.optional_norms:
            raise ConfigError(
                "scaled: with a norm of the stream, functions must omit their own, which this "
                "network's cannot; use norm: none"
            )
        return ScaledConnection(self, context)


class ScaledState(NamedTuple):
    """A pass up to a layer."""

    per_layer: tuple[Layer, ...]
    gains: Arrays
    """Gains [C] of the norm of each layer and of the output; empty without gains."""
    initial: Arrays
    """Weights of the first stream in each block; empty if it is not used again."""
    first: Array
    """[…, C]: the first stream."""
    x: Array
    """[…, C]"""


class ScaledConnection(Connection):
    """Formula: `Scaled` and its scale."""

    settings: Scaled

    @property
    def reads_normed(self) -> bool:
        return self.settings.norm.kind != "none"

    def parameters(self) -> dict[str, Parameter]:
        s, context = self.settings, self.context
        return {
            **s.scale.parameters(context),
            **s.scale.opening(context),
            **s.norm.parameters(context),
            **s.initial.parameters(context),
        }

    def open(self, ops: Ops, params: Params, x: Array, noise: Array | None = None) -> ScaledState:
        s, context = self.settings, self.context
        gains, initial = (
            tuple(ops.unstack(params[name]) if (name := f"connection.{part}") in params else ())
            for part in ("norm_gain", "initial")
        )
        first = s.initial.opened(ops, s.scale.opened(params, x))
        return ScaledState(
            tuple(s.scale.per_layer(ops, params, context)), gains, initial, first, first
        )

    def read(self, ops: Ops, state: ScaledState, k: int) -> tuple[Array, ScaledState]:
        block, place = divmod(k, self.context.per_block)
        state = state._replace(x=self.normed(ops, state, k))
        x = self.settings.norm.shown(state.x)
        if place == 0 and state.initial:
            x = self.settings.initial.read(state.initial[block], x, state.first)
        return x, state

    def write(self, ops: Ops, state: ScaledState, k: int, y: Array) -> ScaledState:
        block, place = divmod(k, self.context.per_block)
        x = self.settings.scale.sum(ops, state.per_layer[k], state.x, y)
        if place == self.context.per_block - 1 and state.initial:
            x = self.settings.initial.written(state.initial[block], x, state.first)
        return state._replace(x=x)

    def close(self, ops: Ops, state: ScaledState) -> Array:
        return self.settings.norm.shown(self.normed(ops, state, self.context.layers))

    def normed(self, ops: Ops, state: ScaledState, k: int) -> Array:
        """The stream before function k, or for the output."""
        return self.settings.norm.normed(ops, state.gains[k] if state.gains else None, state.x)
