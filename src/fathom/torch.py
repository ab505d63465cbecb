"""Residual connections as a PyTorch module, for networks of one's own: docs/library.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fathom.backends.torch_gradients import is_autocast, runs_eagerly, without_autocast
from fathom.backends.torch_ops import OpsAmidAutocast, TorchOps
from fathom.library import PREFIX, Verbs, connection_for

__all__ = ["ResidualConnection"]


class ResidualConnection(Verbs, nn.Module):
    """The parameters of a residual connection around `layers` functions, and its verbs.

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`scheme`: a name of docs/schemes.md, or settings, as a study has in `connection`.

        `layers`: how many functions are wrapped. `width`: channels, the last axis. `streams`: S,
        where the settings have none. `seed`: of the initial parameters. `per_block`: how many
        functions make a block; `layers` is a multiple of it. `pooled_axes`: how many axes before
        the channels a dynamic connection averages over, 2 for images [B, H, W, C]. `has_residual`:
        whether branches do add their input, which connections without streams have to know.
        `takes_apart`: whether the branch that begins a block is an attention, branch(q, k, v) where
        the connection `reads_apart`.

        Raises ConfigError, a ValueError, with the key and the fix.
        """
        super().__init__()
        self.connection = connection_for(
            scheme,
            layers=layers,
            width=width,
            streams=streams,
            seed=seed,
            per_block=per_block,
            pooled_axes=pooled_axes,
            has_residual=has_residual,
            takes_apart=takes_apart,
        )
        self.scheme, self.seed = scheme, seed
        declared = self.connection.parameters()
        self._names = [name.removeprefix(PREFIX) for name in declared]
        for name, parameter in zip(self._names, declared.values(), strict=True):
            empty = torch.empty(parameter.shape, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(empty))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every parameter to its initial value again."""
        with torch.no_grad():
            for name, value in self._initial(self.seed).items():
                fill(self.get_parameter(name), torch.from_numpy(value))

    forward = Verbs.through

    def _arrays(self) -> dict[str, Tensor]:
        # Each by its name, as a parametrisation, a pruned or a replicated module has it.
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                fill(self.get_parameter(name), value)

    def _ops(self, dtype: str, device: torch.device) -> TorchOps:
        of = getattr(torch, dtype)
        if not runs_eagerly():
            return (ExportedOps if torch.compiler.is_exporting() else TorchOps)(device, of)
        return kept_ops(OpsAmidAutocast if is_autocast(device) else TorchOps, device, of)

    def _cast(self, x: Tensor, dtype: str) -> Tensor:
        return x.to(getattr(torch, dtype))

    def _exactly(self, device: torch.device) -> AbstractContextManager[None]:
        return without_autocast(device)

    def extra_repr(self) -> str:
        return self._sizes()


def fill(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter a value of its shape, also where FSDP2 has spread it over processes."""
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor  # it takes half a second to load

        value = value.to(parameter.device, parameter.dtype)
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
    parameter.copy_(value)


class ExportedOps(TorchOps):
    """Ops for `torch.export`, which takes any number of tokens with them."""

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        found = torch.reshape(x, shape)
        # Of axes T and C that are joined PyTorch writes the stride as Min(C, C·T). It then cannot
        # tell that memory is contiguous, and fixes T. A copy has the plain stride.
        joins = len(shape) < x.ndim
        return found.clone(memory_format=torch.contiguous_format) if joins else found


@cache
def kept_ops(kind: type[TorchOps], device: torch.device, dtype: torch.dtype) -> TorchOps:
    """Primitives of a device in a float type: kept, as they keep its constants."""
    return kind(device, dtype)
