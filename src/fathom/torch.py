"""Residual connections as a PyTorch module for your own networks: docs/library.md."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.checkpoint import checkpoint

from fathom.attach import BY_HAND, functions_of, place
from fathom.library import PREFIX, Verbs
from fathom.operations.ops import Ops
from fathom.operations.torch_gradients import is_autocast, runs_eagerly, without_autocast
from fathom.operations.torch_ops import OpsAmidAutocast, TorchOps

__all__ = ["ResidualConnection", "attach", "oracle_vectors", "reattach"]


class ResidualConnection(Verbs, nn.Module):
    """Parameters and verbs of a residual connection around `layers` functions.

        c = ResidualConnection("mhc_paper", layers=24, width=128)
        state = c.open(x)  # x […, 128]
        for k, branch in enumerate(branches):
            state = c.wrap(branch, k)(state)  # or c.read and c.write
        x = c.close(state)

    Parameters are stacked over layers, [layers, …]. A branch does not add its input to its output:
    the connection does.
    """

    def __init__(
        self,
        scheme: str | Mapping[str, Any],
        layers: int,
        width: int,
        *,
        streams: int = 4,
        seed: int = 0,
        per_block: int = 1,
        pooled_axes: int = 0,
        has_residual: bool = False,
        takes_apart: bool = False,
        start: str | None = None,
        recompute: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`scheme`: a name from docs/schemes.md, or settings as in a study's `connection`.

        `layers`: number of wrapped functions. `width`: channels, the last axis. `streams`: S, if
        the settings have none. `seed`: seed of the initial parameters. `per_block`: number of
        functions in a block; divides `layers`. `pooled_axes`: number of axes before the channels
        over which a dynamic connection averages, 2 for images [B, H, W, C]. `has_residual`: whether
        branches add their input to their output themselves; some connections depend on it.
        `takes_apart`: whether the first branch of a block is an attention, called as
        branch(q, k, v) if the connection `reads_apart`. `start`: `plain` for initial values that
        equal the plain network; docs/library.md lists the schemes that have them. `recompute`:
        whether the backward pass computes coefficients, norms and gates again, in place of memory
        that keeps them from the forward pass.

        Raises ConfigError, a ValueError, that names the key and the fix.
        """
        super().__init__()
        self._prepare(
            scheme,
            layers=layers,
            width=width,
            streams=streams,
            seed=seed,
            per_block=per_block,
            pooled_axes=pooled_axes,
            has_residual=has_residual,
            takes_apart=takes_apart,
            start=start,
        )
        self.recompute = recompute
        declared = self.connection.parameters().values()
        for name, parameter in zip(self._names, declared, strict=True):
            empty = torch.empty(parameter.shape, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset every parameter to its initial value."""
        self._set({n: torch.from_numpy(v) for n, v in self._initial(self.seed).items()})

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Groups for an optimiser of `torch.optim`: `params`, `lr` and `weight_decay` each.

        Some schemes train parameters at a fraction of `lr`; only matrices decay.
        """
        groups = self._groups(lr, weight_decay)
        return [{**g, "params": [p for n in g["params"] for p in self._trained(n)]} for g in groups]

    def _trained(self, name: str) -> list[nn.Parameter]:
        """What is trained for a parameter that may be parametrised, pruned or a buffer."""
        if is_parametrized(self, name):
            return list(self.parametrizations[name].parameters())
        trained = self._parameters.get(name, self._parameters.get(f"{name}_orig"))
        return [] if trained is None else [trained]

    _array_kind = Tensor
    forward = Verbs.through

    def _set(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                if is_parametrized(self, name):
                    setattr(self, name, value)
                else:
                    (of,) = self._trained(name) or [getattr(self, name)]
                    fill(of, value)

    def _ops(self, dtype: str, device: torch.device) -> TorchOps:
        of = getattr(torch, dtype)
        if not runs_eagerly():
            return (ExportedOps if torch.compiler.is_exporting() else TorchOps)(device, of)
        return kept_ops(OpsAmidAutocast if is_autocast(device) else TorchOps, device, of)

    def _cast(self, x: Tensor, dtype: str) -> Tensor:
        return x.to(getattr(torch, dtype))

    def _records(self) -> bool:
        return torch.is_grad_enabled() and any(p.requires_grad for p in self._arrays().values())

    def _exactly(self, device: torch.device) -> AbstractContextManager[None]:
        return without_autocast(device)

    def _run(self, verb: Callable[..., Any], ops: Ops, state: Any, *given: object) -> Any:  # noqa: ANN401
        is_kept = not self.recompute or self.connection.is_plain
        if is_kept or not torch.is_grad_enabled() or not runs_eagerly():
            return verb(ops, state, *given)
        # As arguments, so that hooks of saved tensors see them. Not those within tuples, mostly
        # parameters of all layers: handing them over takes longer than the connection.
        arrays = {name: x for name, x in state._asdict().items() if isinstance(x, Tensor)}
        bare = state._replace(**dict.fromkeys(arrays))

        def again(*values: object) -> Any:  # noqa: ANN401
            whole = bare._replace(**dict(zip(arrays, values, strict=False)))
            return verb(ops, whole, *values[len(arrays) :])

        return checkpoint(
            again, *arrays.values(), *given, use_reentrant=False, preserve_rng_state=False
        )

    # Settings are metadata of a state dict, as a module's version is: strict loading of files
    # without them, and files of safetensors, stay as they are.

    def _settings(self) -> dict[str, Any]:
        return self.connection.settings.without_starts() | asdict(self.connection.context)

    def _save_to_state_dict(
        self, destination: MutableMapping[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["connection"] = self._settings()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        *others: Any,  # noqa: ANN401
    ) -> None:
        """Warn of a state dict of other settings, which may have the same names and shapes."""
        saved = local_metadata.get("connection")
        differ = list(differences(saved, self._settings())) if saved else []
        if differ:
            warnings.warn(
                f"the state dict is of another connection than {self!r}: {', '.join(differ)}",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)

    def extra_repr(self) -> str:
        return self._sizes()


def attach(
    model: nn.Module,
    scheme: str | Mapping[str, Any],
    *,
    start: str | None = None,
    streams: int = 4,
    seed: int = 0,
) -> ResidualConnection:
    """Put a connection in place of a decoder's residual additions, in place, and return it.

    `model`: a decoder of transformers. Its connection becomes its module `connection`; names of its
    other parameters stay. Other arguments: see `ResidualConnection`; with `start="plain"` the model
    computes what it did before. Raises ValueError for a model that is not known, with the fix.
    """
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
    blocks = max(lists, key=lambda blocks: sum(p.numel() for p in blocks.parameters()), default=())
    if len({type(block) for block in blocks}) != 1:
        raise ValueError(f"attach finds no blocks of one kind in {type(model).__name__}; {BY_HAND}")
    if "forward" in vars(blocks[0]):
        raise ValueError("attach first: another package has replaced the blocks' forward")
    functions = functions_of(blocks[0], [name for name, _ in blocks[0].named_children()])

    connection = partial(
        ResidualConnection,
        scheme,
        width=model.config.get_text_config().hidden_size,
        streams=streams,
        seed=seed,
        start=start,
        device=next(blocks.parameters()).device,
    )
    c = place(model, blocks, functions, connection, "forward")
    shared, config = model.config, copy.deepcopy(model.config)
    config.fathom = {"scheme": c.scheme, "start": start, "streams": streams, "seed": c.seed}
    for module in model.modules():  # a config may be that of other models too
        if getattr(module, "config", None) is shared:
            module.config = config
    return c


def reattach(model: nn.Module, folder: str | Path) -> ResidualConnection:
    """Give a model that `from_pretrained` has read from a folder the connection saved there.

    Raises ValueError for a model saved without one, and for a folder without its parameters.
    """
    if not (settings := getattr(model.config, "fathom", None)):
        raise ValueError(f"{folder}: its config names no connection; use attach")
    values = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            names = [name for name in tensors.keys() if name.startswith(PREFIX)]  # noqa: SIM118
            values |= {name.removeprefix(PREFIX): tensors.get_tensor(name) for name in names}
    if not values:  # before the model changes
        raise ValueError(f"{folder}: no file *.safetensors in it has parameters {PREFIX}*")
    c = attach(model, **settings)
    if missing := sorted(c.state_dict().keys() - values.keys()):
        raise ValueError(f"{folder}: no file *.safetensors in it has {PREFIX}{missing[0]}")
    c.load_state_dict(values)
    return c


def oracle_vectors(c: ResidualConnection, seed: int = 0) -> dict[str, Tensor]:
    """Float64 numbers of a pass and its gradient, by name, to test another implementation with.

    c: a connection in float64, whose parameters get N(0, 0.1²) more. x, probe and output [2, 3, C].
    parameters.*. weights [L, C, C]: function k is tanh(read @ weights[k]), and tanh((q + k - v) @
    weights[k]) for a read of q, k and v apart. reads.K, outputs.K: input and output of function K,
    [2, 3, C]; reads apart are [3, 2, 3, C]. With streams: streams [S, 2, 3, C] after the last
    function, H_res [L, S, S], the mean over positions. gradients.*: of Σ probe · output.
    """
    L, C = c.connection.context.layers, c.connection.context.width
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for p in c.parameters():
            p += 0.1 * draw(p.shape)
    x, weights = draw(2, 3, C).requires_grad_(), (draw(L, C, C) / C**0.5).requires_grad_()
    numbers = {"probe": draw(2, 3, C), "x": x, "weights": weights}

    def function(k: int, *inputs: Tensor) -> Tensor:
        read = inputs[0] if len(inputs) == 1 else inputs[0] + inputs[1] - inputs[2]
        y = torch.tanh(read @ weights[k])
        numbers[f"reads.{k}"] = inputs[0] if len(inputs) == 1 else torch.stack(inputs)
        numbers[f"outputs.{k}"] = y
        return y

    state = c.open(x)
    for k in range(L):
        state = c.wrap(partial(function, k), k)(state)
    numbers |= {"output": c.close(state), **(c.trace(state) or {})}
    leaves = {"x": x, "weights": weights}
    leaves |= {f"parameters.{name}": p for name, p in c.named_parameters()}
    gradients = torch.autograd.grad(
        (numbers["probe"] * numbers["output"]).sum(), list(leaves.values())
    )
    numbers |= leaves | {f"gradients.{n}": g for n, g in zip(leaves, gradients, strict=True)}
    # Copies: reads may be views of one array, which safetensors refuses.
    return {n: v.detach().clone(memory_format=torch.contiguous_format) for n, v in numbers.items()}


INITIAL = {"start", "phi", "phi_per_input", "alpha"}
"""Settings of initial values, which loading replaces."""


def differences(saved: Mapping[str, Any], own: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """Settings with other values, such as `H_res.iterations is 20, here 5`.

    Two of one kind lack only what has its default; those of two kinds are compared in what both
    have.
    """
    are_alike = saved.get("kind") == own.get("kind")
    keys = saved.keys() | own.keys() if are_alike else saved.keys() & own.keys()
    for key in sorted(keys - INITIAL):
        before, now = saved.get(key, "the default"), own.get(key, "the default")
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from differences(before, now, f"{at}{key}.")
        elif before != now:
            yield f"{at}{key} is {before}, here {now}"


def fill(parameter: Tensor, value: Tensor) -> None:
    """Set a parameter to a value of its shape, also if FSDP2 has sharded it over processes."""
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor  # importing takes half a second

        value = value.to(parameter.device, parameter.dtype)
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
    parameter.copy_(value)


class ExportedOps(TorchOps):
    """Ops for `torch.export` with a dynamic number of tokens."""

    def constant(self, x: np.ndarray) -> Tensor:
        # One without elements would be stored with strides of zero, which cannot be saved.
        if x.size == 0:
            return torch.zeros(x.shape, dtype=self.dtype, device=self.device)
        return super().constant(x)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        reshaped = torch.reshape(x, shape)
        # PyTorch writes the stride of joined axes T and C as Min(C, C·T). It then cannot prove
        # that memory is contiguous, and fixes T. A copy has the plain stride.
        joins = len(shape) < x.ndim
        return reshaped.clone(memory_format=torch.contiguous_format) if joins else reshaped


@cache
def kept_ops(kind: type[TorchOps], device: torch.device, dtype: torch.dtype) -> TorchOps:
    """Cached primitives of a device in a float type; they cache the device's constants."""
    return kind(device, dtype)
