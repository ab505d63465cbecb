"""The training step of our network, wrapped by PyPI's hyper-connections: the extra `bench`.

Sub-layers, their initial parameters and the optimiser are ours. It reports only the loss.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn

from fathom import tasks
from fathom.backends.torch import TorchOps
from fathom.config import Spec
from fathom.models.connections.connection import Connection
from fathom.models.ops import Layers
from fathom.models.transformer import Transformer

IS_INSTALLED = importlib.util.find_spec("hyper_connections") is not None

VARIANTS = ("hc_paper", "mhc_paper") if IS_INSTALLED else ()
"""What `fathom bench` measures."""


@dataclass(frozen=True)
class Pypi(Connection):
    """A module of the package around every sub-layer."""

    modules: nn.ModuleList
    streams: int

    def parameters(self) -> dict:
        return {}

    def through(
        self, ops: TorchOps, params: dict[str, Tensor], x: Tensor, layers: Layers, noise: None
    ) -> tuple[Tensor, None]:
        streams = x.repeat_interleave(self.streams, dim=0)
        for module, layer in zip(self.modules, layers, strict=True):
            read, write = module(streams)
            streams = write(layer(read))
        return streams.unflatten(0, (-1, self.streams)).sum(dim=1), None


def connection(spec: Spec) -> Pypi:
    """The package's connections for a spec."""
    import hyper_connections

    kind = {"hc_paper": hyper_connections.HyperConnections, "mhc_paper": hyper_connections.mHC}
    S, sublayers = spec.connection.streams, 2 * spec.depth
    modules = [
        kind[spec.variant](S, dim=spec.model.width, layer_index=layer) for layer in range(sublayers)
    ]
    return Pypi(nn.ModuleList(modules), S)


def network_in(connection: Connection, spec: Spec) -> Transformer:
    """The spec's transformer in this connection."""
    ours = tasks.Problem(spec).network
    network = Transformer(**{field.name: getattr(ours, field.name) for field in fields(ours)})
    vars(network)["connection"] = connection  # where `cached_property` looks first
    return network


class Steps:
    """A network and its optimiser."""

    def __init__(self, spec: Spec) -> None:
        torch.manual_seed(spec.seed)
        self.ops = TorchOps(torch.device("cpu"))
        self.params = {
            name: self.ops.asarray(value).requires_grad_()
            for name, value in tasks.Problem(spec).initial_parameters().items()
            if not name.startswith("connection.")
        }
        self.connection = connection(spec)
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
