"""`one_stream`: a rule of a few operations for a single stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from fathom.connections.connection import Connection, ConnectionContext, Scheme
from fathom.connections.rules import RULES, Pair, Place, Rule, Values
from fathom.connections.scales import unstacked
from fathom.init import Parameter, Stacked
from fathom.operations.ops import Array, Arrays, Ops, Params
from fathom.settings import ConfigError, Number, Text, one_of


class OneStream(Scheme):
    """A rule for a single stream."""

    kind: Literal["one_stream"] = "one_stream"
    rule: Annotated[Text, one_of("rule", RULES)]
    numbers: dict[str, Number] = Field({}, description="numbers of the rule")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_numbers(cls, data: object) -> object:
        """Add the rule's defaults. Raises ValueError for an unknown or unfit number."""
        if not isinstance(data, Mapping) or data.get("rule") not in RULES:
            return data
        return {**data, "numbers": RULES[data["rule"]].filled_in(data.get("numbers", {}))}

    def at(self, context: ConnectionContext) -> OneStreamConnection:
        """The connection in a network. Raises ConfigError if f keeps its own residual."""
        if context.has_residual and RULES[self.rule].needs_own_sum:
            raise ConfigError(
                f"one_stream: a block already adds its input, but rule {self.rule} takes the "
                "output alone; use model.wrap: sublayer"
            )
        return OneStreamConnection(self, context)

    def without_starts(self) -> dict[str, Any]:
        fixed = {n: v for n, v in self.numbers.items() if n not in RULES[self.rule].plain}
        return super().without_starts() | {"numbers": fixed}


class OneStreamState(NamedTuple):
    """A pass up to a function."""

    functions: tuple[Values, ...]
    """Parameters of each function."""
    points: dict[int, Values]
    """Parameters of each point."""
    x: Array | Pair
    """[…, C], or a pair of them."""
    saved: dict[int, Array]
    """X_j by j, for the points still to come."""
    factors: Arrays = ()
    """Factor of each function's output; empty outside of a warm-up."""


class OneStreamConnection(Connection):
    """Formula: `Rule`."""

    settings: OneStream

    @property
    def rule(self) -> Rule:
        return RULES[self.settings.rule]

    @cached_property
    def sources(self) -> dict[int, int]:
        """By point, in order, the j of the X_j that enters there."""
        return self.rule.points(self.context.blocks, self.settings.numbers)

    @cached_property
    def declared(self) -> tuple[list[dict[str, Parameter]], list[dict[str, Parameter]]]:
        """Parameters of each function and of each point."""
        n, context = self.settings.numbers, self.context
        functions = [self.rule.at_functions(self.place(k), n) for k in range(context.layers)]
        points = [
            self.rule.at_points(Place(b, context.blocks, context.width, context.per_block), n)
            for b in self.sources
        ]
        return functions, points

    def place(self, k: int) -> Place:
        """The place of function k."""
        context = self.context
        return Place(k, context.layers, context.width, context.per_block)

    def parameters(self) -> dict[str, Parameter]:
        return {
            f"connection.{name}": replace(
                one,
                shape=(len(places), *one.shape),
                distribution=Stacked(tuple(place[name].distribution for place in places)),
            )
            for places in self.declared
            for name, one in (places[0] if places else {}).items()
        }

    @staticmethod
    def values(ops: Ops, params: Params, places: list[dict[str, Parameter]]) -> list[Values]:
        """The parameters of each place, by their short names."""
        names = list(places[0]) if places else []
        own = {name: params[f"connection.{name}"] for name in names}
        return unstacked(ops, own, names, len(places))

    def open(
        self, ops: Ops, params: Params, x: Array, noise: Array | None = None
    ) -> OneStreamState:
        functions, points = (self.values(ops, params, places) for places in self.declared)
        factors = () if noise is None else tuple(ops.unstack(noise))
        of_points = dict(zip(self.sources, points, strict=True))
        return OneStreamState(tuple(functions), of_points, x, {}, factors)

    def read(self, ops: Ops, state: OneStreamState, k: int) -> tuple[Array, OneStreamState]:
        block, within = divmod(k, self.context.per_block)
        if within == 0:
            state = self.entered(ops, state, block)
        if self.rule.read is None:
            return state.x, state
        saved = next(iter(state.saved.values()), None)
        return self.rule.read(ops, self.place(k), state.x, saved), state

    def write(self, ops: Ops, state: OneStreamState, k: int, y: Array) -> OneStreamState:
        if self.context.has_residual:
            return state._replace(x=y)
        if state.factors:
            y = y * state.factors[k]
        n = self.settings.numbers
        return state._replace(x=self.rule.update(ops, state.functions[k], state.x, y, n))

    def close(self, ops: Ops, state: OneStreamState) -> Array:
        return self.entered(ops, state, self.context.blocks).x

    def entered(self, ops: Ops, state: OneStreamState, b: int) -> OneStreamState:
        """The state at point b: X_b is saved if a point needs it, and an earlier one enters."""
        later = {j for point, j in self.sources.items() if point >= b}
        saved = {j: x for j, x in state.saved.items() if j in later}
        if b in later:
            saved = {**saved, b: state.x}
        if b not in self.sources:
            return state._replace(saved=saved)
        x = self.rule.enter(ops, state.points[b], state.x, saved[self.sources[b]])
        return state._replace(x=x, saved=saved)

    def sample_noise(self, rng: np.random.Generator, progress: float) -> np.ndarray | None:
        """Factors [L] of the outputs of functions in a step of training, if they warm up."""
        if self.rule.warm_up is None:
            return None
        n = self.settings.numbers
        factors = [
            self.rule.warm_up(self.place(k), progress, n) for k in range(self.context.layers)
        ]
        return np.array(factors)
