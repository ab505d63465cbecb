"""Schemes of x-transformers, compared with its own decoder.

`make test-peers` installs it. The decoder runs with our functions in place of attention and MLP,
and without their norms. The tests compare the input of every function, the output, and the
gradient of a sum over the output with respect to the input and every parameter.
"""

from functools import partial

import pytest
import torch

from fathom.operations.numpy_ops import NumpyOps
from fathom_study.models.transformer import attention
from tests.peers.test_peers import (
    B,
    C,
    Pass,
    S,
    T,
    connection_of,
    errors,
    given,
    on_mlx,
    on_torch,
    peer,
    stub,
)
from tests.peers.test_peers import in_float64 as in_float64
from tests.support.specs import make_spec

BLOCKS, RANK = 4, 2
FUNCTIONS = 2 * BLOCKS
# A read or a sum has ten operations and there are 8 functions in sequence: 80 roundings, and 80
# more in the gradient. Ten terms of order one in a sum of C channels cancel.
ROUNDINGS = 10 * 160
EPS = 2.0**-52  # torch.nn.RMSNorm's, in float64


def decoder(**options):
    """A decoder without norms of functions, in float64."""
    made = peer("x_transformers").Decoder(
        dim=C, depth=BLOCKS, heads=1, attn_dim_head=C, pre_norm_has_final_norm=True, **options
    )
    return made.double()


def passed(made, x, functions):
    """The pass of a decoder around our functions."""
    found = Pass()
    for k, (function, (norms, _, _)) in enumerate(zip(functions, made.layers, strict=True)):
        # Around gated multi residuals the decoder also norms each stream after every function: it
        # takes the missing norm of the input for a sign of post-norm.
        norms[0] = norms[2] = None
        made.layers[k][1] = stub(found.record(function), extra=1 - k % 2)
    found.output = made(x)
    return found


def parts_of(made, name):
    """By our parameter's name, where the decoder has it: (module, its parameter), by row."""
    residuals = [layer[2] for layer in made.layers]
    match name:
        case "gru_gate":
            names = {"output_gates": "gru.weight_ih", "stream_gates": "gru.weight_hh",
                     "output_bias": "gru.bias_ih", "stream_bias": "gru.bias_hh"}  # fmt: skip
            return {ours: [(r, theirs) for r in residuals] for ours, theirs in names.items()}
        case "unet_concatenated":
            combines = [made.skip_combines[2 * b] for b in range(BLOCKS // 2, BLOCKS)]
            return {"combine": [(one, "combine.weight") for one in combines]}
        case "gmr_cyclic":
            names = {"gain": "read_gain", "read_bias": "static_read_logit",
                     "write_bias": "static_write_logit", "down": "to_bottleneck.weight",
                     "up_read": "to_read_gate.weight", "up_write": "to_write_gate.weight",
                     "gate_scale": "dynamic_gate_scale"}  # fmt: skip
            return {ours: [(r, theirs) for r in residuals] for ours, theirs in names.items()}
        case "attn_res_state":
            names = {"key_gain": "to_keys.weight", "query_gain": "norm.weight",
                     "input_gain": "to_query.0.weight", "down": "to_query.1.down.weight",
                     "up": "to_query.1.up.weight"}  # fmt: skip
            reads = made.layer_integrators[1:]
            return {ours: [(r, theirs) for r in reads] for ours, theirs in names.items()}
    return {}


OPTIONS = {
    "orthogonal": {"orthog_residual": True},
    "gru_gate": {"gate_residual": True},
    "unet_concatenated": {"unet_skips": True},
    "gmr_cyclic": {
        "gated_multi_residual": True,
        "num_residual_streams": S,
        "residual_fn_kwargs": {"read_gate_rank": RANK},
    },
    "attn_res_state": {
        "attn_aggregated_residuals": True,
        "attn_aggregated_residual_kwargs": {"lora_rank": RANK},
    },
}
OURS = {
    "orthogonal": {"connection": "orthogonal", "numbers": {"eps": 0.0}},
    "gmr_cyclic": {"connection": "gmr_cyclic", "eps": EPS, "rank": RANK / C},
    "attn_res_state": {"connection": "attn_res_state", "eps": EPS, "rank": RANK},
}


def release(name, p, x, functions):
    """The decoder's pass with our parameters."""
    made = decoder(**OPTIONS[name])
    for ours, places in parts_of(made, name).items():
        rows = p[f"connection.{ours}"].unbind()
        for (module, theirs), row in zip(places, rows, strict=True):
            *path, last = theirs.split(".")
            shape = module.get_submodule(".".join(path))._parameters[last].shape
            given(module, **{theirs: row.reshape(shape)})
    made.final_norm = torch.nn.Identity()
    if name == "gmr_cyclic":
        given(made, stream_emb=p["connection.stream_embedding"])
        made.final_norm = given(torch.nn.RMSNorm(C).double(), weight=p["connection.end_gain"])
    # Sequences of one token: its orthogonal update would mix tokens.
    if name == "orthogonal":
        x = x.reshape(B * T, 1, C)
    found = passed(made, x, functions)
    found.inputs = [one.reshape(B, T, C) for one in found.inputs]
    found.output = found.output.reshape(B, T, C)
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_a_scheme_equals_the_decoder(name):
    connection = connection_of(OURS.get(name, name), FUNCTIONS)
    ours, theirs = on_torch(connection, lambda *given: release(name, *given))
    ours["streams"] = theirs["streams"] = []
    assert len(ours["inputs"]) == FUNCTIONS
    assert max(errors(ours, theirs)) <= ROUNDINGS * 2.0**-53
    of_mlx = on_mlx(connection)
    of_mlx["streams"] = []
    assert max(errors(of_mlx, theirs)) <= ROUNDINGS * 2.0**-24


def test_a_value_residual_equals_the_attention():
    heads, model = 2, make_spec(heads=2, width=C, values="residual").model
    sizes = {"dim": C, "heads": heads, "dim_head": C // heads, "causal": True}
    attentions = [
        peer("x_transformers.x_transformers")
        .Attention(**sizes, learned_value_residual_mix=is_later)
        .double()
        for is_later in (False, True)
    ]
    for module in attentions:  # theirs is a softmax in float32
        module.attend.attn_fn = partial(torch.softmax, dim=-1)
    x = torch.randn(2, B, T, C, dtype=torch.float64)
    _, kept = attentions[0](x[0], return_intermediates=True)
    theirs = attentions[1](x[1], value_residual=kept.values)

    def ours_of(module):
        parts = {"qkv.weight": [module.to_q.weight, module.to_k.weight, module.to_v.weight]}
        parts["attention_out.weight"] = [module.to_out.weight]
        return {name: torch.cat(rows).detach().numpy() for name, rows in parts.items()}

    first, second = map(ours_of, attentions)
    share = attentions[1].to_value_residual_mix[0]
    # Their share is that of a layer's own values, so ours has the opposite sign.
    for name, value in share.named_parameters():
        second[f"values.share.{name}"] = -value.detach().numpy()
    values: list = []
    for layer, of_x in zip((first, second), x.numpy(), strict=True):
        ours = attention(NumpyOps(), layer, model, of_x, first_values=values, is_normed=True)
    assert ours == pytest.approx(theirs.detach().numpy(), rel=0, abs=ROUNDINGS * 2.0**-53)
