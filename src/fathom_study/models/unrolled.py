"""The unrolled cell: one function with one set of weights, applied once per token.

The layers of the connection are the time steps, so a study's depth is T, the length of a sequence.
Formulas: docs/definitions/unrolled.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fathom.init import Normal, Parameter
from fathom.operations.ops import Array, Ops
from fathom_study.models.network import Network, Output, norm_parameters


class Unrolled(Network):
    """Tokens [B, T] → logits [B, V] of one answer, read from the last state."""

    def parameters(self) -> dict[str, Parameter]:
        """Parameters by name; the cell's are not stacked, since all time steps share them."""
        recipe, D, F, V = self.recipe, self.model.width, self.model.hidden, self.model.symbols
        unit = Normal(1.0 if recipe.embedding == "unit" else D**-0.5)
        head = Normal(0.001) if recipe.head == "small" else recipe.weights(D)

        def norm(name: str) -> dict[str, Parameter]:
            return {} if self.connection.reads_normed else norm_parameters(name, (D,))

        return {
            "embedding.token": Parameter((V + 1, D), unit, is_matrix=True),
            "state.start": Parameter((D,), unit),
            **norm("cell.norm"),
            "cell.state.weight": Parameter((F, D), recipe.weights(D), is_matrix=True),
            "cell.input.weight": Parameter((F, D), recipe.weights(D), is_matrix=True),
            "cell.input.bias": Parameter((F,), recipe.biases(D)),
            "cell.out.weight": Parameter(
                (D, F), recipe.output_weights(F, self.depth), is_matrix=True
            ),
            "cell.out.bias": Parameter((D,), recipe.biases(F)),
            **norm("norm"),
            "head.weight": Parameter((V, D), head, is_matrix=True),
            **self.connection.parameters(),
        }

    def forward(self, ops: Ops, params: dict[str, Array], inputs: Mapping[str, Array]) -> Output:
        """Inputs: `tokens`, int32 [B, T]."""
        tokens = inputs["tokens"]
        # Each token's term inside the cell: one product per distinct token, not per time step.
        added = ops.linear(
            params["embedding.token"], params["cell.input.weight"], params["cell.input.bias"]
        )
        by_time = ops.unstack(ops.embedding(added, ops.transpose(tokens, (1, 0))))
        is_normed = self.connection.reads_normed
        cell_ = partial(cell, ops, params, is_normed)
        layers = [partial(cell_, token) for token in by_time]
        start = params["state.start"]
        state = ops.broadcast(start, (tokens.shape[0], start.shape[0]))
        state, mixed = self.connection.through(ops, params, state, layers, inputs.get("noise"))
        if not is_normed:
            state = ops.layer_norm(state, params["norm.weight"], params["norm.bias"])
        return Output(ops.linear(state, params["head.weight"]), mixed)

    def forward_flops(self, batch_size: int) -> float:
        D, F, V = self.model.width, self.model.hidden, self.model.symbols
        of_states = batch_size * (self.depth * 2 * D * F + D * V)
        return 2 * (of_states + (V + 1) * D * F)


def cell(ops: Ops, params: dict[str, Array], is_normed: bool, token: Array, state: Array) -> Array:
    """Update of the state [B, D] in a time step; `token` [B, F]: its term inside the cell."""
    if not is_normed:
        state = ops.layer_norm(state, params["cell.norm.weight"], params["cell.norm.bias"])
    hidden = ops.tanh(ops.linear(state, params["cell.state.weight"]) + token)
    return ops.linear(hidden, params["cell.out.weight"], params["cell.out.bias"])
