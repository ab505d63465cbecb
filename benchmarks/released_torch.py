"""The training step of our network, wrapped by transformers' modules of a released model.

The modules are those of DeepSeek V4 and Inkling 2. Training starts with the parameters of our
network, and so at the same loss.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial

import torch
from pypi import Steps as WrappedSteps
from torch import Tensor, nn
from wrapped import coefficients

from fathom.connections.connection import Apart, Connection
from fathom.operations.torch_ops import TorchOps
from fathom_study import tasks
from fathom_study.config import Spec

IS_INSTALLED = importlib.util.find_spec("transformers") is not None

VARIANTS = ("deepseek_v4", "inkling2") if IS_INSTALLED else ()
"""Schemes with these modules' formulas."""

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Released(Connection):
    """Modules of the package around the sub-layers, and one that reads at the end."""

    modules: nn.ModuleList

    def parameters(self) -> dict:
        return {}


class DeepseekV4(Released):
    """The state is the streams [B, T, S, C]; between `read` and `write` also post and comb."""

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


@dataclass(frozen=True)
class Inkling2(Released):
    """The state is the finished sums [B, T, I, C] and the open sum [B, T, C]: the two arguments of
    the package's reads. The first sub-layer has no such read."""

    group: int
    """Number of sub-layers in a sum."""

    def open(
        self, ops: TorchOps, params: dict[str, Tensor], x: Tensor, noise: None = None
    ) -> State:
        return x[:, :, None][:, :, :0], x

    def read(self, ops: TorchOps, state: State, k: int) -> tuple[Tensor | Apart, State]:
        blocks, total = state
        reads = self.modules[k - 1](blocks, total) if k else (total,)
        if k % self.group == 0:
            state = (torch.cat([blocks, total[:, :, None]], dim=2),)
        return Apart(*reads) if len(reads) > 1 else reads[0], state

    def write(self, ops: TorchOps, state: State, k: int, y: Tensor) -> State:
        blocks, *total = state
        return blocks, sum(total, y)

    def close(self, ops: TorchOps, state: State) -> Tensor:
        return self.modules[-1](*state)[0]


def connection(spec: Spec) -> Released:
    """The package's connections for a spec, with the parameters of our connection."""
    return {"deepseek_v4": deepseek_v4, "inkling2": inkling2}[spec.variant](spec)


def deepseek_v4(spec: Spec) -> DeepseekV4:
    """A module around every sub-layer, and one that reads the streams at the end."""
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
    return DeepseekV4(spec.connection, problem.network.connection.context, nn.ModuleList(modules))


def inkling2(spec: Spec) -> Inkling2:
    """A module for the reads of every sub-layer but the first, and one for the end."""
    from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig
    from transformers.models.inkling2.modeling_inkling2 import Inkling2BlockAttentionResidual

    problem = tasks.Problem(spec)
    ours, config = problem.network.connection, Inkling2TextConfig(hidden_size=spec.model.width)
    config._attn_implementation = "sdpa"  # as the package's models choose
    queries, modules = problem.initial_parameters()["connection.query"], []
    for rows in ours.rows[1:]:
        module = Inkling2BlockAttentionResidual(config, len(rows))
        own = torch.tensor(queries[rows.start : rows.stop]).reshape(module.query.shape)
        module.load_state_dict({"query": own})
        modules.append(module)
    return Inkling2(ours.settings, ours.context, nn.ModuleList(modules), ours.group)


Steps = partial(WrappedSteps, wrap=connection)
