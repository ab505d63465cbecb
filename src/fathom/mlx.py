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

from fathom.attach import BY_HAND, functions_of, place
from fathom.library import Verbs

__all__ = ["ResidualConnection", "attach"]

CONNECTION = "connection"
"""Key of the connection's parameters among those of the first block."""


class ResidualConnection(Verbs, nn.Module):
    """`fathom.torch.ResidualConnection` for MLX; its description has an example."""

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
        for name, value in self._initial(self.seed).items():
            setattr(self, name, mx.array(value))

    def parameter_groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Groups for optimisers of MLX: names as `params`, `lr` and `weight_decay` each.

        Some schemes train parameters at a fraction of `lr`; only matrices decay.
        `mlx.optimizers.MultiOptimizer` takes an optimiser for each group.
        """
        return self._groups(lr, weight_decay)

    _array_kind = mx.array
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
    if not getattr(model, "layers", None):
        raise ValueError(f"attach finds no blocks in {type(model).__name__}; {BY_HAND}")
    functions = functions_of(model.layers[0], model.layers[0].children())
    connection = partial(
        ResidualConnection,
        scheme,
        width=model.args.hidden_size,
        streams=streams,
        seed=seed,
        start=start,
    )
    return place(
        model,
        model.layers,
        functions,
        connection,
        "__call__",
        trainable_parameters=_with_connection,
        update=_update_with_connection,
    )


# mlx-lm's checkpointing hands `mx.checkpoint` a block's trainable parameters. The first block also
# computes with those of the connection, which would get no gradient.


def _with_connection(block: nn.Module) -> dict[str, Any]:
    own = nn.Module.trainable_parameters(block)
    if block.site.first == 0:
        own[CONNECTION] = block.site.owner.connection.trainable_parameters()
    return own


def _update_with_connection(block: nn.Module, values: dict[str, Any], **named: Any) -> nn.Module:  # noqa: ANN401
    own = dict(values)
    if CONNECTION in own:
        block.site.owner.connection.update(own.pop(CONNECTION))
    return nn.Module.update(block, own, **named)
