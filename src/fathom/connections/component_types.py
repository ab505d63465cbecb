"""Types of components as written in YAML, by name or with `kind` and settings; initial logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args

from pydantic import BeforeValidator, Field, SerializeAsAny, WrapValidator

from fathom.init import Distribution, OneStream, ScaledIdentity
from fathom.settings import NO_BOOL, NonNegative, Number, Registry, Settings, unknown

SeveralStreams = Annotated[int, Field(ge=2, le=2**53, description="S"), NO_BOOL]
"""S of connections that need at least two streams."""


def one_of_registry(what: str, registry: Registry[type[Settings]]) -> Any:  # noqa: ANN401, a type
    """A pydantic type for one of the registry's classes, by name or as a mapping with `kind`."""

    def parse(value: object, _: object) -> Settings:
        if isinstance(value, Settings):
            return value
        settings = {"kind": value} if isinstance(value, str) else value
        if not isinstance(settings, Mapping) or not isinstance(settings.get("kind"), str):
            raise ValueError(f"must be the name of a {what}, or a mapping with 'kind'")
        kind = settings["kind"]
        if kind not in registry:
            raise ValueError(unknown(what, kind, registry))
        return registry[kind].model_validate(settings)

    # The schema and the serialiser use the union; `parse` gives clearer errors.
    return Annotated[
        SerializeAsAny[Union[tuple(registry.values())]],  # noqa: UP007, made at run time
        WrapValidator(parse),
    ]


def _a_stream(value: object) -> object:
    """Check a stream before the union does, whose error would list each alternative."""
    if value not in get_args(Cycle) and (type(value) is not int or value < 0):
        raise ValueError(f"must be 0 or more, cycle or cycle_blocks, but is {value!r}")
    return value


def _a_logit(value: object) -> object:
    """Check a logit before the union does, whose error would list each alternative."""
    if isinstance(value, str) and value != "share":
        raise ValueError(f"must be a number, or share, but is {value!r}")
    return value


Logit = Annotated[Number | Literal["share"], BeforeValidator(_a_logit)]
"""A number, or `share`: the logit with σ(logit) = 1/S."""


Cycle = Literal["cycle", "cycle_blocks"]
"""A different stream for each layer, or for each block."""


class VectorStart(Settings):
    """Initial logits of weights: `on` for one of them, `off` for the others."""

    on: Logit = 0.0
    off: Logit = 0.0
    stream: Annotated[NonNegative | Cycle, BeforeValidator(_a_stream)] = Field(
        0,
        description="index of the one that is on; cycle: l mod S in layer l; cycle_blocks: b mod S "
        "in all layers of block b",
    )

    def distribution(self, S: int, per_block: int = 1) -> Distribution:
        """Distribution, equal in all layers except with a cycle. `per_block`: layers per block."""
        on, off = (
            -math.log(max(S - 1, 1e-9)) if value == "share" else value
            for value in (self.on, self.off)
        )
        if isinstance(self.stream, int):
            return OneStream(on, off, self.stream)
        return OneStream(on, off, None, layers=per_block if self.stream == "cycle_blocks" else 1)


class MatrixStart(Settings):
    """Initial logits of a square matrix, plus N(0, noise²) everywhere."""

    diagonal: Number = 0.0
    off_diagonal: Number = 0.0
    noise: Annotated[Number, Field(ge=0)] = 0.0

    def distribution(self, S: int, per_block: int = 1) -> Distribution:
        """Distribution, equal in all layers except for the noise."""
        return ScaledIdentity(self.diagonal - self.off_diagonal, self.off_diagonal, self.noise)
