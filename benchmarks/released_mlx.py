"""The training step of our network, wrapped by mlx-lm's code of a released model.

The models are DeepSeek V4.1 and Kimi K3. Training starts with the parameters of our
network, and so at the same loss.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.optimizers import AdamW
from wrapped import coefficients, network_in

from fathom.connections.connection import Connection
from fathom_study import tasks
from fathom_study.backends.mlx import MlxBackend
from fathom_study.config import Spec

IS_INSTALLED = importlib.util.find_spec("mlx_lm") is not None

VARIANTS = ("deepseek_v41", "attn_res_block") if IS_INSTALLED else ()
"""Schemes with these modules' formulas."""

State = tuple[mx.array, ...]


@dataclass(frozen=True)
class Released(Connection):
    """Modules of the package around the sub-layers."""

    release: Any
    modules: list

    def parameters(self) -> dict:
        return {}


class DeepseekV41(Released):
    """The state is the streams [B, T, S, C] and the next weights `pre`; between `read` and `write`
    also post and comb."""

    def open(self, ops: Any, params: dict, x: mx.array, noise: None = None) -> State:
        streams = mx.repeat(x[:, :, None], self.modules[0].hc, axis=2)
        return streams, mx.broadcast_to(mx.arange(streams.shape[2]) == 0, streams.shape[:3])

    def read(self, ops: Any, state: State, k: int) -> tuple[mx.array, State]:
        streams, before = state
        pre, *mixing = self.modules[k](streams)
        return self.release._collapse(streams, before), (streams, pre, *mixing)

    def write(self, ops: Any, state: State, k: int, y: mx.array) -> State:
        streams, pre, *mixing = state
        return self.release._expand(y, streams, *mixing), pre

    def close(self, ops: Any, state: State) -> mx.array:
        return self.release._collapse(*state)


class Weights(nn.Module):
    """Weights of a read, as in a layer of Kimi K3."""

    def __init__(self, query: np.ndarray, gain: np.ndarray) -> None:
        super().__init__()
        self.query, self.gain = mx.array(query), mx.array(gain)


@dataclass(frozen=True)
class KimiK3(Released):
    """The state is the package's finished blocks and the open sum [B, T, C], which is None in the
    function that begins a block. The first sub-layer reads the input unchanged."""

    group: int
    """Number of sub-layers in a block."""
    eps: float

    def open(self, ops: Any, params: dict, x: mx.array, noise: None = None) -> tuple[Any, mx.array]:
        return self.release.ResidualBlocks(self.eps), x

    def read(self, ops: Any, state: tuple, k: int) -> tuple[mx.array, tuple]:
        blocks, total = state
        read = self.mixed(blocks, total, self.modules[k - 1]) if k else total
        if k % self.group == 0:
            blocks.append(total)
            total = None
        return read, (blocks, total)

    def write(self, ops: Any, state: tuple, k: int, y: mx.array) -> tuple:
        blocks, total = state
        return blocks, y if total is None else total + y

    def close(self, ops: Any, state: tuple) -> mx.array:
        return self.mixed(*state, self.modules[-1])

    def mixed(self, blocks: Any, total: mx.array, weights: Weights) -> mx.array:
        """A read by the package."""
        own = weights.gain * weights.query
        return self.release._attn_res_mix(blocks, total, own, self.eps, use_kernel=False)


def connection(spec: Spec) -> Released:
    """The package's connections for a spec, with the parameters of our connection."""
    return {"deepseek_v41": deepseek_v41, "attn_res_block": kimi_k3}[spec.variant](spec)


def deepseek_v41(spec: Spec) -> DeepseekV41:
    """A module around every sub-layer."""
    from mlx_lm.models import deepseek_v41 as release

    problem = tasks.Problem(spec)
    args = release.ModelArgs(hidden_size=spec.model.width, hc_mult=spec.connection.streams)
    args.rms_norm_eps = spec.connection.coefficients.eps
    modules = []
    for values in coefficients(problem.initial_parameters()):
        module = release.HyperConnection(args)
        module.update({name: mx.array(value) for name, value in values.items()})
        modules.append(module)
    return DeepseekV41(spec.connection, problem.network.connection.context, release, modules)


def kimi_k3(spec: Spec) -> KimiK3:
    """Weights for the read of every sub-layer but the first, and for the read at the end."""
    from mlx_lm.models import kimi_k3 as release

    problem = tasks.Problem(spec)
    ours, params = problem.network.connection, problem.initial_parameters()
    pairs = zip(params["connection.query"], params["connection.key_gain"], strict=True)
    modules = [Weights(*pair) for pair in pairs]
    return KimiK3(ours.settings, ours.context, release, modules, ours.group, ours.settings.eps)


class Steps:
    """A network and its optimiser."""

    def __init__(self, spec: Spec) -> None:
        self.ops = MlxBackend("cpu").ops
        self.connection = connection(spec)
        self.network = network_in(self.connection, spec)
        ours = tasks.Problem(spec).initial_parameters().items()
        own = {name: mx.array(x) for name, x in ours if not name.startswith("connection.")}
        theirs = [module.trainable_parameters() for module in self.connection.modules]
        self.params = {"own": own, "theirs": theirs}
        o = spec.optimizer
        self.adamw = AdamW(o.lr, [o.beta1, o.beta2], o.eps, o.weight_decay)
        self.value_and_grad = mx.value_and_grad(self.loss)

    def loss(self, params: dict, tokens: mx.array, targets: mx.array) -> mx.array:
        """The loss at these parameters, which the modules then hold."""
        for module, values in zip(self.connection.modules, params["theirs"], strict=True):
            module.update(values)
        logits = self.network.forward(self.ops, params["own"], {"tokens": tokens}).logits
        return self.ops.cross_entropy(logits, targets)

    def step(self, tokens: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """One step and its loss."""
        tokens, targets = (self.ops.asarray(x) for x in (tokens, targets))
        loss, grads = self.value_and_grad(self.params, tokens, targets)
        self.params = self.adamw.apply_gradients(grads, self.params)
        mx.eval(loss, self.params, self.adamw.state)
        return {"loss": loss.item()}
