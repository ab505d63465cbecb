"""Depth attention, compared with the releases themselves: Inkling 2 and Kimi K3.

`make test-peers` installs these and runs this file, as `test_peers`. Seven layers of a release are
14 functions: sources of two layers each, and one layer that reads q, k and v apart. The tests
compare the input of every function, the output, and the gradient of a sum over the output with
respect to the input and every parameter.
"""

import numpy as np
import torch

import fathom.mlx
import fathom.torch
from tests.peers.test_peers import (
    B,
    C,
    Pass,
    T,
    bare,
    connection_of,
    errors,
    given,
    mixed,
    on_mlx,
    on_torch,
    peer,
    same,
    stub,
    transformers,
)
from tests.peers.test_peers import in_float64 as in_float64

import mlx.core as mx  # isort: skip, after fathom.mlx
from mlx.utils import tree_flatten  # isort: skip

LAYERS, BLOCK = 7, 2
FUNCTIONS = 2 * LAYERS
APART = 10
"""The function that reads q, k and v apart: the attention of the sixth layer."""
# A read has ten operations and there are 14 functions in sequence: 140 roundings, and 140 more in
# the gradient.
ROUNDINGS = 2 * 140


def connection(scheme):
    return connection_of(scheme, FUNCTIONS, takes_apart=True)


# --- Inkling 2, in PyTorch ------------------------------------------------------------------------


def inkling2(p, x, functions):
    """The release's own layers and last read, with our functions."""
    module, result, queries = transformers("inkling2"), Pass(), iter(p["connection.query"])
    config = module.Inkling2TextConfig(hidden_size=C, n_layers_per_attn_res_block=BLOCK)
    config._attn_implementation = "sdpa"  # the other one has a softmax in float32

    def reader(count=1):
        rows = [next(queries) for _ in range(count)]
        read = module.Inkling2BlockAttentionResidual(config, count)
        return given(read, query=torch.stack(rows) if count > 1 else rows[0])

    def function_of(k):
        def function(hidden_states, key_hidden_states=None, value_hidden_states=None, **_):
            parts = (hidden_states, key_hidden_states, value_hidden_states)
            inputs = hidden_states if key_hidden_states is None else parts
            result.inputs += inputs if isinstance(inputs, tuple) else [inputs]
            return functions[k](mixed(inputs)), None

        return function

    def layer(index):
        attention, is_full = 2 * index, 2 * index == APART
        norms = [f"{part}_" for part in "qkv"] if is_full else [""]
        kind = "Full" if is_full else "Sliding"
        return bare(
            getattr(module, f"Inkling2{kind}DecoderLayer"),
            is_block_boundary=index % BLOCK == 0,
            attention_input=reader(3 if is_full else 1) if index else None,
            mlp_input=reader(),
            self_attn=called(function_of(attention)),
            mlp=called(lambda x: function_of(attention + 1)(x)[0]),
            post_attention_layernorm=stub(same),
            post_attention_convolution=stub(same),
            post_mlp_convolution=stub(same),
            **{f"{part}input_layernorm": stub(same) for part in norms},
        )

    blocks = x.new_zeros(B, T, 0, C)
    for index in range(LAYERS):
        made = layer(index)
        after = made(x, blocks)
        if made.is_block_boundary:
            blocks = torch.cat([blocks, x.unsqueeze(-2)], dim=-2)
        x = after
    result.output = reader()(blocks, x)[0]
    assert next(queries, None) is None
    return result


def called(function):
    """A module that applies a function to all its arguments."""

    class Called(torch.nn.Module):
        def forward(self, *given, **named):
            return function(*given, **named)

    return Called()


def test_inkling2_equals_the_release():
    ours, theirs = on_torch(connection("inkling2"), inkling2)
    assert len(ours["inputs"]) == FUNCTIONS + 2
    assert max(errors(ours, theirs)) <= ROUNDINGS * 2.0**-53


def test_the_weights_of_inkling2_become_our_parameters():
    """Names are of its whole model; some layers read once, others read q, k and v apart."""
    module = transformers("inkling2")
    sizes = {"hidden_size": C, "num_hidden_layers": LAYERS, "moe_intermediate_size": C}
    config = module.Inkling2TextConfig(vocab_size=4, n_routed_experts=8, **sizes)
    with torch.device("meta"):
        shapes = {n: v.shape for n, v in module.Inkling2ForCausalLM(config).state_dict().items()}
    rng = np.random.default_rng(2)
    state = {
        name: torch.tensor(rng.standard_normal(shape), dtype=torch.float32)
        for name, shape in shapes.items()
        if name.endswith("_input.query")
    }
    ours = fathom.torch.ResidualConnection("inkling2", FUNCTIONS, C, per_block=2, takes_apart=True)
    ours.load_release(state)
    reads = [
        state[f"model.layers.{i}.{part}_input.query"].reshape(-1, C)
        for i in range(LAYERS)
        for part in ("attention", "mlp")
        if i or part == "mlp"
    ]
    expected = torch.cat([*reads, state["model.final_input.query"][None]])
    assert len(expected) == FUNCTIONS + 2
    assert torch.equal(ours.query, expected)


# --- Kimi K3, in MLX ------------------------------------------------------------------------------


def kimi_k3(p, x, functions):
    """The release's own layers and last read, with our functions; its first read has no effect."""
    module, result = peer("mlx_lm.models.kimi_k3"), Pass()
    args = kimi_k3_args(module)
    queries, gains = p["connection.query"], p["connection.key_gain"]
    first = (mx.zeros((C,)), mx.ones((C,)))
    rows = [first, *zip(queries, gains, strict=True)]

    blocks = module.ResidualBlocks(args.rms_norm_eps)
    for index in range(LAYERS):
        layer = module.KimiK3DecoderLayer(args, index)
        layer.input_layernorm = layer.post_attention_layernorm = same
        layer.self_attn, layer.mlp = map(result.record, functions[2 * index : 2 * index + 2])
        for part, k in (("self_attention", 2 * index), ("mlp", 2 * index + 1)):
            query, gain = rows[k]
            getattr(layer, f"{part}_res_proj").weight = query[None]
            getattr(layer, f"{part}_res_norm").weight = gain
        layer.train()
        x, blocks = layer(x, blocks=blocks)
    query, gain = rows[-1]
    result.output = module._attn_res_mix(blocks, x, query * gain, args.rms_norm_eps, False)
    return result


def kimi_k3_args(module):
    """Settings of a small model of the release."""
    return module.TextArgs(
        hidden_size=C, num_hidden_layers=LAYERS, num_attention_heads=1, intermediate_size=C,
        attn_res_block_size=BLOCK, q_lora_rank=C, kv_lora_rank=C, qk_nope_head_dim=C,
        qk_rope_head_dim=C, v_head_dim=C, vocab_size=4,
        linear_attn_config={
            "kda_layers": [], "num_heads": 1, "head_dim": C, "short_conv_kernel_size": 2,
        },
    )  # fmt: skip


def test_attn_res_block_equals_kimi_k3():
    assert max(errors(*on_mlx(connection("attn_res_block"), kimi_k3))) <= ROUNDINGS * 2.0**-24


def test_the_weights_of_kimi_k3_become_our_parameters():
    """Its first read has weights without effect; ours has no weights for it."""
    module, rng = peer("mlx_lm.models.kimi_k3"), np.random.default_rng(2)
    shapes = tree_flatten(module.KimiK3TextModel(kimi_k3_args(module)).parameters())
    weights = {f"model.{k}": mx.array(rng.standard_normal(v.shape)) for k, v in shapes}
    ours = fathom.mlx.ResidualConnection("attn_res_block", FUNCTIONS, C, per_block=2)
    ours.load_release(weights)
    for own, theirs in (("query", "proj"), ("key_gain", "norm")):
        expected = [
            np.array(weights[f"model.layers.{i}.{of}_res_{theirs}.weight"]).ravel()
            for i in range(LAYERS)
            for of in ("self_attention", "mlp")
        ]
        expected.append(np.array(weights[f"model.output_attn_res_{theirs}.weight"]).ravel())
        assert np.array_equal(np.array(ours[own]), expected[1:])
