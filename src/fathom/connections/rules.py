"""Rules of a few operations for a single stream; each is a row of `RULES`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import Field, create_model

from fathom.arithmetic.one_stream_vjp import OrthogonalUpdate
from fathom.connections.connection import by_row, rms_norm
from fathom.init import Constant, Normal, Parameter, Stacked, Uniform
from fathom.operations.ops import Array, Ops
from fathom.settings import Number, Registry, Settings, validate

Numbers = Mapping[str, float]
Values = dict[str, Array]
"""The parameters of one function, or of one point, by name."""

Pair = tuple[Array, Array]

EPS = 1e-6
Eps = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
"""Share of the blocks."""


class Place(NamedTuple):
    """A function, or a point of a network: before block `index`, or the end if it is `count`."""

    index: int
    count: int
    """Number of functions, or of blocks."""
    width: int
    per_block: int

    @property
    def is_attention(self) -> bool:
        """Whether function `index` begins a block; every other one, if blocks are one function."""
        return self.index % max(2, self.per_block) == 0

    def between(self, first: float, last: float) -> float:
        """`first` at the first place, `last` at the last one."""
        return first + (last - first) * self.index / max(1, self.count - 1)


Declare = Callable[[Place, Numbers], dict[str, Parameter]]


def _none(at: object, n: Numbers) -> dict[Any, Any]:
    return {}


def _added(ops: Ops, p: Values, x: Array, y: Array, n: Numbers) -> Array:
    return x + y


@dataclass(frozen=True)
class Rule:
    """x ← update(x, f(read(x))), and at some points x ← enter(x, X_j).

    X_j is the stream after j of B blocks, before it enters block j; X_0 is the embedded input.
    """

    numbers: Mapping[str, tuple[Any, float]]
    """Type and default of each of its numbers, by name."""
    at_functions: Declare = _none
    """Parameters of one function."""
    update: Callable[[Ops, Values, Array, Array, Numbers], Array] = _added
    """The stream after a function, from the stream and the output of the function."""
    points: Callable[[int, Numbers], dict[int, int]] = _none
    """From the number of blocks: by point, in order, the j of the X_j that enters there."""
    at_points: Declare = _none
    """Parameters of one point."""
    enter: Callable[[Ops, Values, Array, Array], Array] | None = None
    """The stream at a point, from the stream and X_j."""
    read: Callable[[Ops, Place, Array, Array | None], Array] | None = None
    """Input of a function, from the stream and, in the blocks after the first X_j, that X_j."""
    warm_up: Callable[[Place, float, Numbers], float] | None = None
    """In training, a factor of each function's output, from the share of the steps done."""
    plain: Mapping[str, float] = field(default_factory=dict)
    """Numbers with which it starts as the plain network; empty if numbers do not decide that."""

    @cached_property
    def model(self) -> type[Settings]:
        """Settings with the numbers as keys."""
        return create_model("Numbers", __base__=Settings, **self.numbers)

    def filled_in(self, given: object) -> Numbers:
        """All numbers, from those given. Raises ConfigError."""
        return validate(self.model, given, place=["numbers"]).model_dump()

    @property
    def needs_own_sum(self) -> bool:
        """Whether functions must not add their input to their output."""
        return self.update is not _added or self.read is not None or self.warm_up is not None


# --- the sum of the stream and the output of a function ------------------------------------------


def _scalar(value: float, **options: Any) -> Parameter:  # noqa: ANN401, fields of Parameter
    return Parameter((), Constant(value), **options)


def _grown(ops: Ops, p: Values, x: Array, y: Array, n: Numbers) -> Array:
    return p["resid"] * x + y


def _orthogonal(ops: Ops, p: Values, x: Array, y: Array, n: Numbers) -> Array:
    return by_row(ops, OrthogonalUpdate(n["eps"]), x, y)


def _gru(ops: Ops, p: Values, x: Array, y: Array, n: Numbers) -> Array:
    C = x.shape[-1]
    of_y = ops.split(ops.linear(y, p["output_gates"]) + p["output_bias"], (C, C, C))
    of_x = ops.split(ops.linear(x, p["stream_gates"]) + p["stream_bias"], (C, C, C))
    reset, keep = (ops.sigmoid(a + b) for a, b in zip(of_y[:2], of_x[:2], strict=True))
    new = ops.tanh(of_y[2] + reset * of_x[2])
    return new + keep * (x - new)


def _gru_parameters(place: Place, n: Numbers) -> dict[str, Parameter]:
    C = place.width
    start = Uniform(1 / math.sqrt(C))
    return {
        f"{side}_{part}": Parameter(shape, start, is_matrix=part == "gates", parts=3)
        for side in ("output", "stream")
        for part, shape in (("gates", (3 * C, C)), ("bias", (3 * C,)))
    }


def _reviewed(ops: Ops, p: Values, x: Array, y: Array, n: Numbers) -> Array:
    both = ops.concatenate([rms_norm(ops, x, n["eps"]), rms_norm(ops, y, n["eps"])], axis=-1)
    return x + ops.sigmoid(ops.linear(both, p["gate"]) + p["gate_bias"]) * y


def _review_parameters(place: Place, n: Numbers) -> dict[str, Parameter]:
    C = place.width
    return {
        "gate": Parameter((C, 2 * C), Constant(0.0), is_matrix=True),
        "gate_bias": Parameter((C,), Constant(0.0)),
    }


def _delta(ops: Ops, p: Values, x: Array, y: Array, n: Numbers) -> Array:
    k = y / ops.sqrt(ops.sum(y * y, axis=-1, keepdims=True) + n["eps"] ** 2)
    logit = ops.sum(rms_norm(ops, x, EPS) * p["gate"], axis=-1, keepdims=True) + p["gate_bias"]
    beta = 2 * ops.sigmoid(logit)
    return x + beta * (n["value"] - ops.sum(k * x, axis=-1, keepdims=True)) * k


def _delta_parameters(place: Place, n: Numbers) -> dict[str, Parameter]:
    C = place.width
    return {
        "gate": Parameter((C,), Normal(0.5 / math.sqrt(C)), is_matrix=True),
        "gate_bias": _scalar(math.log(n["beta"] / (2 - n["beta"]))),
    }


def _warmed_up(place: Place, done: float, n: Numbers) -> float:
    block, blocks = place.index // place.per_block, place.count // place.per_block
    return min(1.0, done / (n["share"] * (block + 1) / blocks))


# --- earlier streams that enter again ------------------------------------------------------------


def _all_points(blocks: int, n: Numbers) -> dict[int, int]:
    return dict.fromkeys(range(blocks), 0)


def _mirrored(blocks: int, n: Numbers) -> dict[int, int]:
    return {b: blocks - b for b in range((blocks + 1) // 2, blocks)}


def _mirrored_inputs(blocks: int, n: Numbers) -> dict[int, int]:
    return {b: j - 1 for b, j in _mirrored(blocks, n).items()}


def _one_skip(blocks: int, n: Numbers) -> dict[int, int]:
    to = max(1, round(n["to"] * blocks))
    return {to: min(round(n["from"] * blocks), to - 1)}


def _at_the_end(blocks: int, n: Numbers) -> dict[int, int]:
    return {blocks: min(round(n["after"] * blocks), blocks - 1)}


def _x0_parameters(place: Place, n: Numbers) -> dict[str, Parameter]:
    resid = place.between(n["resid_first"], n["resid_last"])
    x0 = place.between(n["x0_first"], n["x0_last"])
    return {"resid": _scalar(resid, rate=n["resid_rate"]), "x0": _scalar(x0, decays=False)}


def _both(ops: Ops, p: Values, x: Array, earlier: Array) -> Array:
    return p["resid"] * x + p["x0"] * earlier


def _skipped(ops: Ops, p: Values, x: Array, earlier: Array) -> Array:
    return x + p["skip"] * earlier


def _combined(ops: Ops, p: Values, x: Array, earlier: Array) -> Array:
    return ops.linear(ops.concatenate([earlier, x], axis=-1), p["combine"])


def _combine_parameters(place: Place, n: Numbers) -> dict[str, Parameter]:
    C = place.width
    return {"combine": Parameter((C, 2 * C), Uniform(1 / math.sqrt(2 * C)), is_matrix=True)}


def _gated(ops: Ops, p: Values, x: Array, earlier: Array) -> Array:
    return x + ops.sigmoid(p["skip_gate"]) * earlier


def _backed_out(ops: Ops, p: Values, x: Array, earlier: Array) -> Array:
    return x - p["backout"] * earlier


def _backout_parameter(place: Place, n: Numbers) -> dict[str, Parameter]:
    return {"backout": _scalar(n["backout"], decays=False)}


def _late_attention_reads(ops: Ops, place: Place, x: Array, saved: Array | None) -> Array:
    return x if saved is None or not place.is_attention else saved


# --- two lanes in late blocks: the stream is a pair there -----------------------------------------


def _first_in_lanes(blocks: int, n: Numbers) -> int:
    return min(round(n["from"] * blocks), blocks - 1)


def _lane_points(blocks: int, n: Numbers) -> dict[int, int]:
    first = _first_in_lanes(blocks, n)
    return {first: first, blocks: first}


def _lanes(ops: Ops, p: Values, x: Array | Pair, earlier: Array) -> Array | Pair:
    return (x[0] + x[1]) * 0.5 if isinstance(x, tuple) else (x, x)


def _read_lane(ops: Ops, place: Place, x: Array | Pair, saved: Array | None) -> Array:
    if not isinstance(x, tuple):
        return x
    return x[0] if place.is_attention else x[1]


def _in_lanes(ops: Ops, p: Values, x: Array | Pair, y: Array, n: Numbers) -> Array | Pair:
    if not isinstance(x, tuple):
        return p["resid"] * x + p["post"][0] * y
    return tuple(p["resid"] * lane + p["post"][s] * y for s, lane in enumerate(x))


def _lane_parameters(place: Place, n: Numbers) -> dict[str, Parameter]:
    block, blocks = place.index // place.per_block, place.count // place.per_block
    is_across = place.is_attention and block >= _first_in_lanes(blocks, n)
    other = n["across"] if is_across else 1.0
    post = Stacked((Constant(1.0), Constant(other)))
    return {"resid": _scalar(n["resid"], decays=False), "post": Parameter((2,), post, decays=False)}


RULES: Registry[Rule] = Registry(
    {
        "resid_growth": Rule(
            {"resid": (Number, math.sqrt(1.1))},
            at_functions=lambda place, n: {"resid": _scalar(n["resid"], decays=False)},
            update=_grown,
            plain={"resid": 1.0},
        ),
        "orthogonal": Rule({"eps": (Eps, EPS)}, update=_orthogonal),
        "gru_gate": Rule({}, at_functions=_gru_parameters, update=_gru),
        "review": Rule({"eps": (Eps, 1e-5)}, at_functions=_review_parameters, update=_reviewed),
        "deep_delta": Rule(
            {
                "value": (Number, 2.0),
                "beta": (Annotated[Number, Field(gt=0, lt=2)], 1.0),
                "eps": (Eps, EPS),
            },
            at_functions=_delta_parameters,
            update=_delta,
        ),
        "prores": Rule({"share": (Annotated[Number, Field(gt=0, le=1)], 0.12)}, warm_up=_warmed_up),
        "x0_lambda": Rule(
            {
                "resid_first": (Number, 1.0),
                "resid_last": (Number, 1.0),
                "resid_rate": (Annotated[Number, Field(ge=0)], 0.01),
                "x0_first": (Number, 0.0),
                "x0_last": (Number, 0.0),
            },
            points=_all_points,
            at_points=_x0_parameters,
            enter=_both,
            plain={"resid_first": 1.0, "resid_last": 1.0, "x0_first": 0.0, "x0_last": 0.0},
        ),
        "unet": Rule(
            {"skip": (Number, 1.0)},
            points=_mirrored,
            at_points=lambda place, n: {"skip": _scalar(n["skip"], decays=False)},
            enter=_skipped,
            plain={"skip": 0.0},
        ),
        "unet_concatenated": Rule(
            {}, points=_mirrored_inputs, at_points=_combine_parameters, enter=_combined
        ),
        "one_skip": Rule(
            {"gate": (Number, -1.5), "from": (Share, 4 / 11), "to": (Share, 6 / 11)},
            points=_one_skip,
            at_points=lambda place, n: {"skip_gate": _scalar(n["gate"], decays=False)},
            enter=_gated,
        ),
        "backout": Rule(
            {"backout": (Number, 0.5), "after": (Share, 0.75)},
            points=_at_the_end,
            at_points=_backout_parameter,
            enter=_backed_out,
            plain={"backout": 0.0},
        ),
        "late_read": Rule(
            {"backout": (Number, 0.5), "after": (Share, 8 / 11)},
            points=_at_the_end,
            at_points=_backout_parameter,
            enter=_backed_out,
            read=_late_attention_reads,
        ),
        "two_lanes": Rule(
            {"resid": (Number, math.sqrt(1.1)), "across": (Number, 1.5), "from": (Share, 7 / 11)},
            at_functions=_lane_parameters,
            update=_in_lanes,
            points=_lane_points,
            enter=_lanes,
            read=_read_lane,
            plain={"resid": 1.0, "across": 1.0},
        ),
    }
)
