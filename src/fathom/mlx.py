"""Residual connections as an MLX module for your own networks: docs/library.md.

On Linux, import this before MLX: MLX then uses a faster matrix product (`fathom.system.blas`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fathom.operations.mlx_ops import MlxOps  # before MLX: it chooses the BLAS that MLX binds to

# isort: split
import mlx.core as mx
from mlx import nn

from fathom.attach import place
from fathom.library import Verbs, connection_for

__all__ = ["ResidualConnection", "attach"]


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
    ) -> None:
        """Arguments and errors: see `fathom.torch.ResidualConnection`."""
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
            start=start,
        )
        initial = self._initial(seed)
        # Not by assignment, which registers lists and mappings as parameters.
        vars(self).update(scheme=scheme, _names=list(initial))
        for name, value in initial.items():
            setattr(self, name, mx.array(value))

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Groups for optimisers of MLX: names as `params`, `lr` and `weight_decay` each.

        Some schemes train parameters at a fraction of `lr`; only matrices decay.
        `mlx.optimizers.MultiOptimizer` takes an optimiser for each group.
        """
        return self._groups(lr, weight_decay)

    __call__ = Verbs.through

    def _set(self, values: Mapping[str, mx.array]) -> None:
        self.update({name: v.astype(self[name].dtype) for name, v in values.items()})

    def _ops(self, dtype: str, device: None) -> MlxOps:
        return MlxOps(dtype=getattr(mx, dtype))

    def _cast(self, x: mx.array, dtype: str) -> mx.array:
        return x.astype(getattr(mx, dtype))

    def _extra_repr(self) -> str:
        return self._sizes()


def attach(
    model: nn.Module,
    scheme: str | Mapping[str, Any],
    *,
    start: str | None = None,
    streams: int = 4,
    seed: int = 0,
) -> ResidualConnection:
    """Put a connection in place of the residual additions of mlx-lm's Llama or Qwen.

    Otherwise as `fathom.torch.attach`. The model's `save_weights` includes the connection.
    """
    connection = partial(
        ResidualConnection,
        scheme,
        width=model.args.hidden_size,
        streams=streams,
        seed=seed,
        start=start,
    )
    model.connection = place(model.layers, model.layers[0].children(), connection, "__call__")
    return model.connection
