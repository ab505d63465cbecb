"""Starts that equal the plain network: what `start="plain"` changes in a scheme.

Streams start as copies of the input, and stay copies before the first step of training if reads sum
to one, writes are one, and rows of H_res sum to one. Their mean then is the plain network. Function
k reads mostly stream k mod S, so gradients differ between streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fathom import init
from fathom.connections.connection import ConnectionContext
from fathom.connections.plain import Plain
from fathom.connections.rules import RULES
from fathom.connections.schemes import Scheme
from fathom.operations.numpy_ops import NumpyOps
from fathom.settings import ConfigError, deep_merge, validate

FAVOURED = 0.75
"""Weight of the stream that a function mostly reads."""

ROUNDING = 1e-6
"""Largest relative difference from the plain network: initial logits are rounded to float32."""


def plain_start(scheme: Scheme, context: ConnectionContext) -> Scheme:
    """The scheme with a start that equals the plain network. Raises ConfigError if it has none."""
    if scheme.kind == "module":
        raise ConfigError("start: an own module sets its initial values itself; name a connection")
    settings = scheme.model_dump()
    changes = CHANGES[scheme.kind](settings) if scheme.kind in CHANGES else {}
    started = validate(type(scheme), deep_merge(settings, changes, kinds=True))
    if distance(started, context) > ROUNDING:
        fix = "use another connection, or no start (start=None)"
        raise ConfigError(f"start: {_reason(started, context)}; {fix}")
    return started


def distance(scheme: Scheme, context: ConnectionContext) -> float:
    """Largest difference of an untrained network from the plain one, relative to its output.

    Both have functions without norms, which would hide a factor. Float64; at most three blocks.
    """
    ops, few = NumpyOps(), min(context.layers, 3 * context.per_block)
    context = replace(context, layers=few)
    rng = np.random.default_rng(0)
    factors = rng.uniform(0.5, 1.5, (few, context.width))
    x = rng.standard_normal((1, *[2] * max(1, context.pooled_axes), context.width))

    def function(k: int, x: Any) -> np.ndarray:  # noqa: ANN401, one array or three
        mixed = x.q + x.k - x.v if hasattr(x, "q") else x
        y = np.tanh(factors[k] * np.roll(mixed, k + 1, axis=-1))
        return y + mixed if context.has_residual else y

    def output(scheme: Scheme) -> np.ndarray:
        connection = scheme.at(context)
        drawn = init.draw(connection.parameters(), seed=0)
        params = {name: ops.asarray(value) for name, value in drawn.items()}
        layers = [lambda x, k=k: function(k, x) for k in range(few)]
        noise = connection.sample_noise(np.random.default_rng(0), 0.0)  # as in the first step
        return connection.through(ops, params, x, layers, noise)[0]

    plain = output(Plain())
    return float(np.abs(output(scheme) - plain).max() / np.abs(plain).max())


def _reason(scheme: Scheme, context: ConnectionContext) -> str:
    """Why a scheme has no start that equals the plain network."""
    if context.has_residual:
        return (
            "functions that have a residual of their own (has_residual; in a study model.wrap: "
            "block, so use sublayer) leave it no start that equals the plain network"
        )
    if scheme.kind == "depth_attention":
        return "depth_attention reads means of its sources, and the plain network reads their sum"
    if scheme.kind == "streams" and scheme.post.kind == "softmax":
        return "softmax writes sum to one over the streams, and the plain network needs one each"
    return f"no initial values of this {scheme.kind} connection equal the plain network"


def _of_depth_attention(settings: dict[str, Any]) -> dict[str, Any]:
    """Reads that are added to a stream get a learned factor, which starts at zero."""
    return {"gate": 0.0} if settings["stream"] else {}


def _of_one_stream(settings: dict[str, Any]) -> dict[str, Any]:
    """Numbers of a rule whose learned values start where they have no effect."""
    return {"numbers": RULES[settings["rule"]].plain}


def _of_streams(settings: dict[str, Any]) -> dict[str, Any]:
    """Changes of `Streams`, by key."""
    S = settings["streams"]
    changes: dict[str, Any] = {
        "open": {"scale": 0.0} if settings["open"]["kind"] == "stream_embedding" else "copies",
        "pre": _weights(settings["pre"], S, FAVOURED if S > 1 else 1.0, 1.0, "cycle"),
        "post": _weights(settings["post"], S, 1.0, S, 0),
        "H_res": _matrix(settings["H_res"], S),
        "close": settings["close"],
    }
    if settings["coefficients"]["kind"] != "static":
        changes["coefficients"] = {"phi": 0.0}
    if settings["close"]["kind"] == "sum":
        changes["close"] = "mean"
    if settings["close"]["kind"] == "readout":
        changes["close"] = {"map": _weights(settings["close"]["map"], S, 1 / S, 1.0, 0)}
        if settings["close"].get("coefficients", {}).get("kind", "static") != "static":
            changes["close"]["coefficients"] = {"phi": 0.0}
    return changes


def _weights(
    settings: dict[str, Any], S: int, favoured: float, total: float, stream: int | str
) -> dict[str, Any]:
    """Start of S weights with this total, of which one is `favoured`; of softmaxes if they can."""
    kind = settings["kind"]
    if kind.startswith("row_softmax"):  # their totals are fixed; noise only makes reads differ
        return {"start": {"noise": 1.0 if kind == "row_softmax_mean" else 0.0}}
    others = (total - favoured) / max(S - 1, 1)
    if kind == "sigmoid":
        shares = ((w - settings["added"]) / settings["scale"] for w in (favoured, others))
        logits = [math.log(p / (1 - p)) if 0 < p < 1 else 0.0 for p in shares]
    else:
        logits = [favoured, others] if kind == "raw" else [math.log(favoured / (others or 1)), 0.0]
    return {"start": {"on": logits[0], "off": logits[1], "stream": stream}}


def _matrix(settings: dict[str, Any], S: int) -> dict[str, Any]:
    """Start of H_res whose rows sum to one; logits of normalised matrices keep theirs."""
    if settings["kind"] == "raw":
        return {"start": {"diagonal": 1.0, "off_diagonal": 0.0, "noise": 0.0}}
    if settings["kind"] == "exp":
        near, rest = 0.9 if S > 1 else 1.0, 0.1 / max(S - 1, 1)
        return {"start": {"diagonal": math.log(near), "off_diagonal": math.log(rest), "noise": 0.0}}
    # What keeps sums of rows from one: noise, and constants that are added to sums.
    changes = {key: 0.0 for key in ("added", "eps") if key in settings}
    return changes | ({"start": {"noise": 0.0}} if "noise" in settings["start"] else {})


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "streams": _of_streams,
    "depth_attention": _of_depth_attention,
    "one_stream": _of_one_stream,
}
"""Function from the settings of a kind of connection to those that change."""
