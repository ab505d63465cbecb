"""The interface of networks, and what they share."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

from fathom.connections.connection import Apart, Connection, ConnectionContext, MixingTrace
from fathom.connections.schemes import Scheme
from fathom.init import Constant, Parameter
from fathom.operations.ops import Array, Layers, Ops
from fathom.settings import Registry
from fathom_study.models.recipes import Recipe

TRAINING_ONLY = ("keep", "noise")
"""Inputs of training steps only: the mask of dropout, and the connection's noise."""


def inference_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs without dropout and noise."""
    return {name: value for name, value in inputs.items() if name not in TRAINING_ONLY}


class Output(NamedTuple):
    """The result of a forward pass, for the loss and the metrics."""

    logits: Array
    """The input of the task's loss: [B, …, classes] for cross-entropy."""
    mixed: MixingTrace | None
    """How the streams were mixed; None for a single stream."""


PUBLISHED_NAMES = Registry({"baseline": "plain", "hc": "hc_demo", "mhc": "mhc_demo"})
"""Names of the demo's connections, on its transformer and on networks that no source has."""


@dataclass(frozen=True)
class Network(ABC):
    """Embedding, layers in a connection, head."""

    names: ClassVar[Mapping[str, str]] = PUBLISHED_NAMES
    """Connection that each published name of a variant stands for on this network."""
    pooled_axes: ClassVar[int] = 0
    """Number of axes before the channels that dynamic coefficients average over: one set each of
    the others, as for each token."""

    model: Any
    """The settings of the task's model."""
    depth: int
    recipe: Recipe
    scheme: Scheme

    @cached_property
    def connection(self) -> Connection:
        """The scheme around each of `depth` blocks, which have no residual."""
        context = ConnectionContext(
            layers=self.depth,
            width=self.model.width,
            pooled_axes=self.pooled_axes,
            has_residual=False,
            optional_norms=True,
        )
        return self.scheme.at(context)

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """Declare every parameter; parameters of blocks, `block.*`, are stacked over layers."""

    @abstractmethod
    def forward(self, ops: Ops, params: dict[str, Array], inputs: Mapping[str, Array]) -> Output:
        """Forward pass on inputs by name; TRAINING_ONLY inputs appear in training only."""

    @abstractmethod
    def forward_flops(self, batch_size: int) -> float:
        """Floating-point operations of the matrix products of a forward pass."""


Function = Callable[[Array | Apart], Array]
"""A function that a connection wraps."""


def with_functions(
    network: Network, called: Callable[[int, Function, Array | Apart], Array]
) -> Network:
    """The network, with `called(k, f, x)` in place of f(x), the output of the k-th function."""
    whole = network.connection

    def through(
        ops: Ops, params: dict[str, Array], x: Array, layers: Layers, noise: Array | None
    ) -> tuple[Array, MixingTrace | None]:
        functions = [partial(called, k, layer) for k, layer in enumerate(layers)]
        return whole.through(ops, params, x, functions, noise)

    altered, connection = copy.copy(network), copy.copy(whole)
    vars(connection)["through"] = through
    vars(altered)["connection"] = connection
    return altered


def without_block(network: Network, block: int) -> Network:
    """The network in which the functions of block `block`, from 0, add nothing to the streams."""
    context = network.connection.context

    def called(k: int, layer: Function, x: Array | Apart) -> Array:
        y = layer(x)  # also for a block that is left out: later ones may use its values
        if k // context.per_block != block:
            return y
        x = x.q if isinstance(x, Apart) else x
        return x if context.has_residual else 0 * x

    return with_functions(network, called)


def recording(network: Network, block_inputs: list[Array]) -> Network:
    """The network whose passes append the input of each wrapped function to `block_inputs`."""

    def called(k: int, layer: Function, x: Array | Apart) -> Array:
        block_inputs.append(x)
        return layer(x)

    return with_functions(network, called)


def norm_parameters(name: str, shape: tuple[int, ...]) -> dict[str, Parameter]:
    """Gain and bias of a norm."""
    starts = {"weight": Constant(1.0), "bias": Constant(0.0)}
    return {f"{name}.{part}": Parameter(shape, start) for part, start in starts.items()}


def layer_norm(ops: Ops, x: Array, params: dict[str, Array], name: str) -> Array:
    """Layer norm with the parameters `name`; x unchanged if there are none."""
    if f"{name}.weight" not in params:
        return x
    return ops.layer_norm(x, params[f"{name}.weight"], params[f"{name}.bias"])


def stacked_layers(ops: Ops, params: dict[str, Array]) -> list[dict[str, Array]]:
    """Unstack the parameters `block.*` once: one dict of arrays […] per layer."""
    prefix = "block."
    names = [name for name in params if name.startswith(prefix)]
    stacks = (ops.unstack(params[name]) for name in names)
    keys = [name.removeprefix(prefix) for name in names]
    return [dict(zip(keys, layer, strict=True)) for layer in zip(*stacks, strict=True)]
