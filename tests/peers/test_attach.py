"""`attach` on small random decoders of transformers: `make test-peers` runs it."""

import copy
import re
import runpy
from pathlib import Path

import pytest
import torch

import fathom.mlx
from fathom.torch import attach, reattach
from tests.peers.test_peers import peer

import mlx.core as mx  # isort: skip, after fathom.mlx
from mlx import nn  # isort: skip
from mlx.utils import tree_flatten  # isort: skip

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "attach.py"

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 64,
    "max_position_embeddings": 64, "eos_token_id": None, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "intermediate_size": 48}
MODELS = {
    "Llama": GROUPED,
    "Mistral": GROUPED,
    "Qwen2": GROUPED,
    "Qwen3": {**GROUPED, "head_dim": 8},
    "Olmo": GROUPED,
    "Olmo2": GROUPED,
    "Olmo3": GROUPED,
    "GPT2": {},
    "GPTNeoX": {"intermediate_size": 48},
    "GPTNeoX in sequence": {"intermediate_size": 48, "use_parallel_residual": False},
}


def decoder(name, **settings):
    """A random decoder in evaluation mode."""
    transformers, kind = peer("transformers"), name.partition(" ")[0]
    settings = {**SIZES, **MODELS.get(name, GROUPED), **settings}
    config = getattr(transformers, f"{kind}Config")(**settings)
    torch.manual_seed(0)
    model = getattr(transformers, kind + ("LMHeadModel" if kind == "GPT2" else "ForCausalLM"))
    return model(config).eval()


def tokens():
    return torch.randint(64, (2, 10), generator=torch.Generator().manual_seed(1))


def attached(name="Llama", scheme="mhc_cycle", **arguments):
    """A decoder with a connection whose parameters are far from any special value."""
    model = decoder(name)
    connection = attach(model, scheme, **arguments)
    torch.manual_seed(2)
    with torch.no_grad():
        for p in connection.parameters():
            p += 0.3 * torch.randn_like(p)
    return model


def assert_equal(result, expected, roundings=200):
    """float32 values, each the result of that many roundings, relative to the largest."""
    assert (result - expected).abs().max() <= roundings * 2**-24 * expected.abs().max()


SCHEMES = ("mhc_cycle", "hc_paper", "delta_attn_res", "denseformer", "laurel")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", MODELS)
def test_logits_with_a_plain_start_are_those_of_the_model(name, scheme):
    model, ids = decoder(name), tokens()
    before, names = model(ids).logits, set(model.state_dict())
    connection = attach(model, scheme, start="plain")
    assert_equal(model(ids).logits, before)
    own = {f"connection.{name}" for name in connection.state_dict()}
    assert set(model.state_dict()) == names | own


BY_HAND = {
    "GPT2": ("transformer.h", ("ln_1", "attn"), ("ln_2", "mlp")),
    "Olmo2": ("model.layers", ("self_attn", "post_attention_layernorm"),
              ("mlp", "post_feedforward_layernorm")),
}  # fmt: skip
LLAMA = ("model.layers", ("input_layernorm", "self_attn"), ("post_attention_layernorm", "mlp"))


@pytest.mark.parametrize("scheme", ["mhc_cycle", "attn_res"])
@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Olmo2", "GPT2"])
def test_blocks_compute_the_connection_written_by_hand(name, scheme):
    """Up to the final norm, for one token, whose attention is its value."""
    model = attached(name, scheme)
    where, *paths = BY_HAND.get(name, LLAMA)
    base, c = model.get_submodule(where.partition(".")[0]), model.connection
    x = torch.randn(1, 1, 32)
    outputs = []
    final = base.ln_f if name == "GPT2" else base.norm
    final.register_forward_pre_hook(lambda _, args: outputs.append(args[0]))
    base(inputs_embeds=x, use_cache=False)

    def branch(block, path):
        def call(x):
            for part in path:
                module = getattr(block, part)
                # Attention to one token at position zero returns its value.
                x = value_of(name, module, x) if part.endswith("attn") else module(x)
            return x

        return call

    if name == "GPT2":
        x = x + base.wpe.weight[0]
    state = c.open(x)
    branches = [branch(block, path) for block in model.get_submodule(where) for path in paths]
    for k, one in enumerate(branches):
        state = c.wrap(one, k)(state)
    assert_equal(outputs[0], c.close(state))


def value_of(name, attention, x):
    """Output of an attention to one token: its values, each head's repeated for its queries."""
    if name == "GPT2":
        return attention.c_proj(attention.c_attn(x).chunk(3, -1)[2])
    values = attention.v_proj(x).unflatten(-1, (2, 1, -1)).expand(-1, -1, -1, 2, -1)
    return attention.o_proj(values.flatten(2))


@pytest.mark.parametrize("name", MODELS)
def test_generation_with_a_cache_equals_generation_without(name):
    model, ids = attached(name), tokens()
    made = [
        model.generate(ids, max_new_tokens=8, do_sample=False, use_cache=use_cache)
        for use_cache in (True, False)
    ]
    assert made[0].shape == (2, 18)
    assert (made[0] == made[1]).all()


@pytest.mark.parametrize("name", MODELS)
def test_saved_model_comes_back_with_its_connection(name, tmp_path):
    model, ids = attached(name, {"connection": "mhc_cycle", "H_res": {"iterations": 3}}), tokens()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    again = type(model).from_pretrained(tmp_path)
    reattach(again, tmp_path)
    assert (again(ids).logits == model(ids).logits).all()


def test_folder_without_the_connections_parameters_is_refused(tmp_path):
    attached().save_pretrained(tmp_path)
    again = type(decoder("Llama")).from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no file \*\.safetensors in it has parameters"):
        reattach(again, tmp_path)
    attached().save_pretrained(tmp_path)
    reattach(again, tmp_path)  # the error left the model as it was


def test_models_of_one_config_and_one_mapping_are_saved_each_with_its_own_connection(tmp_path):
    transformers, scheme = peer("transformers"), {"connection": "hc_paper", "streams": 2}
    config = transformers.LlamaConfig(**SIZES, **GROUPED)
    models = [transformers.LlamaForCausalLM(config).eval() for _ in range(2)]
    attach(models[0], scheme)
    scheme["streams"] = 3
    attach(models[1], scheme)
    models[0].save_pretrained(tmp_path)
    again = type(models[0]).from_pretrained(tmp_path)
    reattach(again, tmp_path)
    assert (again(tokens()).logits == models[0](tokens()).logits).all()
    assert not hasattr(config, "fathom")


def test_replaced_connection_is_the_one_that_computes():
    model = attached()
    model.connection = copy.deepcopy(model.connection)
    model(tokens(), labels=tokens()).loss.backward()
    assert all(p.grad is not None for p in model.connection.parameters())


def test_16_bit_models_keep_their_type_and_generate():
    model, ids = attached().bfloat16(), tokens()
    assert model(ids).logits.dtype == torch.bfloat16
    assert model.generate(ids, max_new_tokens=4, do_sample=False).shape == (2, 14)


def gradients(model, ids, **arguments):
    loss = model(ids, **arguments).logits.logsumexp(-1).sum()
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("name", ["Llama", "GPT2", "GPTNeoX"])
def test_checkpointed_gradients_are_equal(name):
    model, ids = attached(name).train(), tokens()
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0  # dropout
    plain = gradients(model, ids, use_cache=False)
    calls = []
    block = model.get_submodule({"GPT2": "transformer.h.1", "GPTNeoX": "gpt_neox.layers.1"}.get(
        name, "model.layers.1"))  # fmt: skip
    block.mlp.register_forward_hook(lambda *_: calls.append(1))
    model.gradient_checkpointing_enable()
    result = gradients(model, ids)
    assert len(calls) == 2  # forward, and again for the gradient
    for one, other in zip(result, plain, strict=True):
        assert_equal(one, other)


def test_compiled_model_computes_the_same():
    model = attached("Llama", {"connection": "mhc_cycle", "H_res": {"iterations": 2}})
    ids, parameters = tokens(), list(model.parameters())

    def logits_and_gradients(model):
        logits = model(ids, use_cache=False).logits
        return logits, *torch.autograd.grad(logits.logsumexp(-1).sum(), parameters)

    expected = logits_and_gradients(model)
    result = logits_and_gradients(torch.compile(model, backend="aot_eager", fullgraph=True))
    for one, other in zip(result, expected, strict=True):
        assert_equal(one, other, 2000)


def test_hidden_states_are_inputs_of_the_blocks():
    model, ids = attached(), tokens()
    inputs = []
    for block in model.model.layers:
        block.input_layernorm.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    first, *others = model(ids, output_hidden_states=True).hidden_states
    assert (first == model.model.embed_tokens(ids)).all()
    assert all((a == b).all() for a, b in zip(others[:2], inputs[1:], strict=True))


def test_copies_keep_their_own_connection():
    model, ids = attached(), tokens()
    twin, before = copy.deepcopy(model), model(tokens()).logits
    assert (twin(ids).logits == before).all()
    twin.connection.b_pre.data += 1
    assert (model(ids).logits == before).all()
    assert (twin(ids).logits != before).any()


@pytest.mark.parametrize(
    ("name", "settings", "scheme", "message"),
    [
        ("Gemma2", {"head_dim": 8}, "mhc_cycle", "does not know Gemma2DecoderLayer"),
        ("Granite", {}, "mhc_cycle", "does not know GraniteDecoderLayer"),
        ("GPT2", {"add_cross_attention": True}, "mhc_cycle", "crossattention, ln_cross_attn"),
        ("Llama", {}, "qwen4_exp", "'qwen4_exp' norms inputs itself"),
        ("Llama", {}, "prores", "'prores' needs `noise` in training"),
    ],
)
def test_unknown_models_are_refused_with_the_lines_to_write(name, settings, scheme, message):
    with pytest.raises(ValueError, match=message) as refused:
        attach(decoder(name, **settings), scheme)
    assert "c.open(x)" in str(refused.value)


def test_second_connection_is_refused():
    with pytest.raises(ValueError, match="has a connection already"):
        attach(attached(), "hc_paper")
    with pytest.raises(ValueError, match="names no connection"):
        reattach(decoder("Llama"), ".")


def test_example_of_the_documents_runs(capsys):
    peer("transformers")
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", printed)]
    assert losses[0] > losses[1] > losses[3]
    assert float(re.search("differ by (.*)", printed)[1]) < 1e-4
    assert "writes the same: True" in printed


# --- mlx-lm --------------------------------------------------------------------------------------


def mlx_decoder(name, **settings):
    module = peer(f"mlx_lm.models.{name}")
    sizes = {key: SIZES[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size")}
    args = {"num_attention_heads": 4, "rms_norm_eps": 1e-6, **GROUPED, **sizes, **settings}
    mx.random.seed(0)
    return module.Model(module.ModelArgs(model_type=name, **args))


OF_QWEN3 = {"head_dim": 8, "max_position_embeddings": 64, "rope_theta": 1e4,
            "tie_word_embeddings": True}  # fmt: skip


@pytest.mark.parametrize(("name", "settings"), [("llama", {}), ("qwen2", {}), ("qwen3", OF_QWEN3)])
def test_mlx_logits_with_a_plain_start_are_those_of_the_model(name, settings, tmp_path):
    model, ids = mlx_decoder(name, **settings), mx.arange(20).reshape(2, 10)
    before, names = model(ids), {name for name, _ in tree_flatten(model.parameters())}
    c = fathom.mlx.attach(model, "mhc_cycle", start="plain")
    assert_equal(model(ids), before)
    own = {f"connection.{name}" for name in c.parameters()}
    assert {name for name, _ in tree_flatten(model.parameters())} == names | own
    c.update({name: value + 0.3 for name, value in c.parameters().items()})
    assert abs(model(ids) - before).max() > 1e-3
    file = str(tmp_path / "model.safetensors")
    model.save_weights(file)
    again = mlx_decoder(name, **settings)
    fathom.mlx.attach(again, "mhc_cycle", start="plain")
    again.load_weights(file)
    assert (again(ids) == model(ids)).all()


def test_mlx_generation_with_a_cache_equals_generation_without():
    model = mlx_decoder("llama")
    fathom.mlx.attach(model, "mhc_cycle")
    ids, cache = mx.arange(10)[None], peer("mlx_lm.models.cache").make_prompt_cache(model)
    whole = model(ids)
    parts = [model(part, cache=cache) for part in (ids[:, :6], ids[:, 6:9], ids[:, 9:])]
    assert_equal(mx.concatenate(parts, axis=1), whole)


def test_mlx_checkpointed_gradients_are_equal():
    model, ids = mlx_decoder("llama"), mx.arange(20).reshape(2, 10)
    fathom.mlx.attach(model, "mhc_cycle")

    def loss(model, ids):
        return nn.losses.cross_entropy(model(ids)[:, :-1], ids[:, 1:]).mean()

    gradients = nn.value_and_grad(model, loss)
    whole = dict(tree_flatten(gradients(model, ids)[1]))
    peer("mlx_lm.tuner.trainer").grad_checkpoint(model.layers[0])
    again = dict(tree_flatten(gradients(model, ids)[1]))
    assert whole.keys() == again.keys()
    for name, gradient in whole.items():
        assert_equal(again[name], gradient)
    assert abs(again["connection.alpha"]).max() > 0


def test_mlx_models_that_are_not_known_are_refused():
    with pytest.raises(ValueError, match="finds no blocks in Linear"):
        fathom.mlx.attach(nn.Linear(2, 2), "mhc_cycle")
    with pytest.raises(ValueError, match="does not know TransformerBlock of mlx_lm"):
        fathom.mlx.attach(mlx_decoder("gemma", head_dim=8), "mhc_cycle")
