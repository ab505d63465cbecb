"""The training step of our network, wrapped by PyPI's hyper-connections: the extra `bench`.

Sub-layers, their initial parameters and the optimiser are ours. It reports only the loss.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from wrapped import network_in

from fathom.connections.connection import Connection
from fathom.operations.torch_ops import TorchOps
from fathom_study import tasks
from fathom_study.config import Spec

IS_INSTALLED = importlib.util.find_spec("hyper_connections") is not None

VARIANTS = ("hc_paper", "mhc_paper") if IS_INSTALLED else ()
"""Schemes that correspond to these modules; their mHC is a smaller function than the paper's."""

Writing = Callable[[Tensor], Tensor]
"""From a sub-layer's output to the new streams: the state between `read` and `write`."""


@dataclass(frozen=True)
class Pypi(Connection):
    """A module of the package around every sub-layer."""

    modules: nn.ModuleList
    streams: int

    def parameters(self) -> dict:
        return {}

    def open(
        self, ops: TorchOps, params: dict[str, Tensor], x: Tensor, noise: None = None
    ) -> Tensor:
        return x.repeat_interleave(self.streams, dim=0)

    def read(self, ops: TorchOps, state: Tensor, k: int) -> tuple[Tensor, Writing]:
        return self.modules[k](state)

    def write(self, ops: TorchOps, state: Writing, k: int, y: Tensor) -> Tensor:
        return state(y)

    def close(self, ops: TorchOps, state: Tensor) -> Tensor:
        return state.unflatten(0, (-1, self.streams)).sum(dim=1)


def connection(spec: Spec) -> Pypi:
    """The package's connections for a spec."""
    import hyper_connections

    kind = {"hc_paper": hyper_connections.HyperConnections, "mhc_paper": hyper_connections.mHC}
    S, sublayers = spec.connection.streams, 2 * spec.depth
    modules = [
        kind[spec.variant](S, dim=spec.model.width, layer_index=layer) for layer in range(sublayers)
    ]
    context = tasks.Problem(spec).network.connection.context
    return Pypi(spec.connection, context, nn.ModuleList(modules), S)


class Steps:
    """A network and its optimiser; `wrap` makes the connection, by default the package's."""

    def __init__(self, spec: Spec, wrap: Callable[[Spec], Connection] | None = None) -> None:
        torch.manual_seed(spec.seed)
        self.ops = TorchOps(torch.device("cpu"))
        self.params = {
            name: self.ops.asarray(value).requires_grad_()
            for name, value in tasks.Problem(spec).initial_parameters().items()
            if not name.startswith("connection.")
        }
        self.connection = (wrap or connection)(spec)
        self.network = network_in(self.connection, spec)
        o = spec.optimizer
        self.adamw = torch.optim.AdamW(
            [*self.params.values(), *self.connection.modules.parameters()],
            o.lr, (o.beta1, o.beta2), o.eps, o.weight_decay, fused=True,
        )  # fmt: skip

    def step(self, tokens: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """One step and its loss."""
        tokens, targets = (self.ops.asarray(x) for x in (tokens, targets))
        logits = self.network.forward(self.ops, self.params, {"tokens": tokens}).logits
        loss = self.ops.cross_entropy(logits, targets)
        self.adamw.zero_grad()
        loss.backward()
        self.adamw.step()
        return {"loss": loss.item()}
