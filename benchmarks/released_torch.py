"""The training step of our network, wrapped by transformers' module of DeepSeek V4.

It starts with the parameters of ours, and so at the same loss.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial

import torch
from pypi import Steps as WrappedSteps
from torch import Tensor, nn
from wrapped import coefficients

from fathom import tasks
from fathom.backends.torch_ops import TorchOps
from fathom.config import Spec
from fathom.models.connections.connection import Connection, ConnectionContext

IS_INSTALLED = importlib.util.find_spec("transformers") is not None

VARIANTS = ("deepseek_v4",) if IS_INSTALLED else ()
"""Schemes with this module's formulas."""

State = tuple[Tensor, ...]
"""The streams [B, T, S, C]; between `read` and `write` also post and comb."""


@dataclass(frozen=True)
class Released(Connection):
    """A module of the package around every sub-layer, and one that reads the streams at the end."""

    context: ConnectionContext
    modules: nn.ModuleList

    def parameters(self) -> dict:
        return {}

    def open(
        self, ops: TorchOps, params: dict[str, Tensor], x: Tensor, noise: None = None
    ) -> State:
        return (x[:, :, None].repeat(1, 1, self.modules[0].hc_mult, 1),)

    def read(self, ops: TorchOps, state: State, k: int) -> tuple[Tensor, State]:
        post, comb, read = self.modules[k](*state)
        return read, (*state, post, comb)

    def write(self, ops: TorchOps, state: State, k: int, y: Tensor) -> State:
        streams, post, comb = state
        return (post[..., None] * y[..., None, :] + comb.transpose(-1, -2) @ streams,)

    def close(self, ops: TorchOps, state: State) -> Tensor:
        return self.modules[-1](*state)


def connection(spec: Spec) -> Released:
    """The package's connections for a spec, with the parameters of ours."""
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
        DeepseekV4HyperConnection,
        DeepseekV4HyperHead,
    )

    problem = tasks.Problem(spec)
    config = DeepseekV4Config(hidden_size=spec.model.width, hc_mult=spec.connection.streams)
    params, modules = problem.initial_parameters(), []
    head = {
        "hc_fn": params["connection.readout_phi"],
        "hc_base": params["connection.readout"],
        "hc_scale": params["connection.readout_alpha"],
    }
    kinds = [*[DeepseekV4HyperConnection] * problem.network.connection.context.layers]
    for kind, values in zip(
        [*kinds, DeepseekV4HyperHead], [*coefficients(params), head], strict=True
    ):
        module = kind(config)
        module.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
        modules.append(module)
    return Released(problem.network.connection.context, nn.ModuleList(modules))


Steps = partial(WrappedSteps, wrap=connection)
