"""The connections of released models, compared with the releases themselves.

`make test-peers` installs these and runs this file. The releases compute in float64, without their
own casts to float32, and with our parameters. The tests compare the input of every function, the
streams before every function and after the last, the output, and the gradient of a sum over the
output with respect to the input and every parameter. Two layers of a release are four functions.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fathom.mlx
import fathom.torch
from fathom import init
from fathom.operations.torch_ops import TorchOps
from fathom_study.backends import connect
from tests.library import frameworks
from tests.peers import new_releases
from tests.support.markdown import table

import mlx.core as mx  # isort: skip, after fathom.mlx
from mlx import nn  # isort: skip
from mlx.utils import tree_flatten  # isort: skip

B, T, S, C, FUNCTIONS = 2, 3, 4, 8, 4
LAYERS = FUNCTIONS // 2
ALL = ("pre", "post", "res")


def peer(module):
    """A module of a release. Skips the test if it is missing, except in `make test-peers`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if "PEERS_ARE_THERE" in os.environ or importlib.util.find_spec(module.partition(".")[0]):
            raise
        pytest.skip(f"{error.name} is not installed; make test-peers brings it")


def transformers(name):
    peer("transformers")
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def same(x):
    return x


# --- passes --------------------------------------------------------------------------------------


@dataclass
class Pass:
    """Results of a pass through all functions."""

    inputs: list[Any] = field(default_factory=list)
    """Input of each function, [B, T, C]."""
    streams: list[Any] = field(default_factory=list)
    """Streams before each function and after the last, [B, T, S, C]; none for one stream."""
    output: Any = None
    """The output, [B, T, C]."""

    def record(self, function: Callable) -> Callable:
        """A function that also keeps its input, and ignores masks, caches and the like."""

        def recorded(x, *_, **__):
            self.inputs.append(x)
            return function(x)

        return recorded

    def through(self, layer, x, functions, *others, extra=1, **named):
        """x after the layers `layer(k)` of a release with our functions for attention and MLP."""
        for k in range(0, len(functions), 2):
            made = layer(k)
            attention, mlp = map(self.record, functions[k : k + 2])
            made.self_attn = stub(attention, extra)
            made.mlp = stub(mlp, getattr(made, "mlp_extra", 0))
            x = first_of(made(x, *others, **named))
        return x

    def arrays(self):
        return {"inputs": self.inputs, "streams": self.streams, "output": [self.output]}


rng = np.random.default_rng(0)
X = rng.standard_normal((B, T, C))
WEIGHTS = rng.standard_normal((FUNCTIONS, C, C)) / np.sqrt(C)
PROBE = rng.standard_normal((B, T, C))
"""The tests compare gradients of Σ PROBE · output."""
MORE_WEIGHTS = rng.standard_normal((10, C, C)) / np.sqrt(C)


def connection_of(settings, functions=FUNCTIONS, **site):
    return frameworks.connection_of(settings, functions, C, streams=S, per_block=2, **site)


def parameters(connection):
    """Initial parameters plus random noise, in float64."""
    rng = np.random.default_rng(1)
    return {
        name: value.astype(np.float64) + 0.5 * rng.standard_normal(value.shape)
        for name, value in init.draw(connection.parameters(), seed=0).items()
    }


def mixed(m):
    """One array from the input of a function, or from its inputs q, k and v."""
    return 0.5 * m[0] - m[1] + 2 * m[2] if isinstance(m, tuple) else m


def weights_of(connection):
    """A matrix for each function."""
    return np.concatenate([WEIGHTS, MORE_WEIGHTS])[: connection.context.layers]


def our_pass(ops, connection, params, x, functions):
    result, state = Pass(), connection.open(ops, params, x)

    def keep(state):
        if getattr(state, "streams", None) is not None:
            result.streams.append(ops.reshape(state.streams, (B, T, -1, C)))

    for k, function in enumerate(functions):
        keep(state)
        m, state = connection.read(ops, state, k)
        result.inputs += m if isinstance(m, tuple) else [m]
        state = connection.write(ops, state, k, function(mixed(m)))
    keep(state)
    result.output = connection.close(ops, state)
    return result


def on_torch(connection, release, tied=same):
    """(our, the release's) pass with its gradients in float64, from the same parameters.

    `tied`: function from these to our parameters, if the release has fewer.
    """
    ops = TorchOps(torch.device("cpu"), torch.float64)
    weights = map(torch.tensor, weights_of(connection))
    functions = [lambda x, W=W: torch.tanh(x @ W) for W in weights]

    def measured(compute):
        values = {**parameters(connection), "x": X}
        own = {n: torch.tensor(v, requires_grad=True) for n, v in values.items()}
        result = compute({n: v for n, v in own.items() if n != "x"}, own["x"], functions)
        total = (result.output * torch.tensor(PROBE)).sum()
        gradients = torch.autograd.grad(total, list(own.values()))
        return {
            **{k: [v.detach().numpy() for v in vs] for k, vs in result.arrays().items()},
            "gradients": {n: g.numpy() for n, g in zip(own, gradients, strict=True)},
        }

    ours = lambda p, x, functions: our_pass(ops, connection, tied(p), x, functions)  # noqa: E731
    return measured(ours), measured(release)


def on_mlx(connection, release=None, tied=same):
    """As `on_torch` in float32; our pass alone without a release."""
    ops = connect("mlx", device="cpu").ops
    exact = lambda values: mx.array(values.astype(np.float32))  # noqa: E731
    params = {name: exact(value) for name, value in parameters(connection).items()}
    weights = map(exact, weights_of(connection))
    functions = [lambda x, W=W: mx.tanh(x @ W) for W in weights]

    def measured(compute):
        def total(params, x):
            return (compute(params, x, functions).output * exact(PROBE)).sum()

        of_params, of_x = mx.grad(total, argnums=(0, 1))(params, exact(X))
        result = compute(params, exact(X), functions)
        return {
            **{k: [np.array(v) for v in vs] for k, vs in result.arrays().items()},
            "gradients": {n: np.array(g) for n, g in {**of_params, "x": of_x}.items()},
        }

    ours = lambda p, x, functions: our_pass(ops, connection, tied(p), x, functions)  # noqa: E731
    return measured(ours) if release is None else (measured(ours), measured(release))


def errors(result, expected):
    """The largest differences of (inputs, streams and output; gradients).

    Relative to the largest entry of the same array.
    """

    def of(a, b):
        assert a.shape == b.shape
        return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))

    forwards = [
        of(a, b)
        for part in ("inputs", "streams", "output")
        for a, b in zip(result[part], expected[part], strict=True)
    ]
    gradients = [of(g, expected["gradients"][name]) for name, g in result["gradients"].items()]
    return max(forwards), max(gradients)


# --- the releases --------------------------------------------------------------------------------


GIVEN: list[dict[str, Any]] = []
"""The tensors assigned to each module of a release, by the module's parameter names."""


def bare(cls, **parts):
    """A module of a release with these parts alone, without its own `__init__`."""
    if tensors := {n: part for n, part in parts.items() if isinstance(part, torch.Tensor)}:
        GIVEN.append(tensors)
    module = cls.__new__(cls)
    torch.nn.Module.__init__(module)
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def given(module, **tensors):
    """The module with these tensors as parameters, so that gradients reach them."""
    GIVEN.append(tensors)
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        owner = module.get_submodule(".".join(path))
        assert owner._parameters.pop(last).shape == tensor.shape, name
        setattr(owner, last, tensor)
    return module


def stub(function, extra=0):
    """A module that applies a function, and returns `extra` None after its output."""

    class Stub(torch.nn.Module):
        weight = torch.zeros((), dtype=torch.float64)

        def forward(self, hidden_states, *_, **__):
            y = function(hidden_states)
            return (y, *[None] * extra) if extra else y

    return Stub()


def first_of(value):
    return value[0] if isinstance(value, tuple) else value


def flat(p, names, k):
    """Layer k of the named parameters, flattened and concatenated."""
    return torch.cat([p[f"connection.{name}"][k].flatten() for name in names])


def stacked(p, names, k):
    return torch.cat([p[f"connection.{name}"][k] for name in names])


def hyper_connections(release, prefix, config, parts, extra, p, x, functions):
    """DeepSeek V4, GLM-5-next and Hunyuan V4: layers whose own code mixes the streams."""
    module, result = transformers(release), Pass()
    config = getattr(module, config)(hidden_size=C)
    phi, b = [f"phi_{part}" for part in parts], [f"b_{part}" for part in parts]

    def connected(k):
        hyper = getattr(module, f"{prefix}HyperConnection")(config)
        hyper.register_forward_pre_hook(lambda _, args: result.streams.append(args[0]))
        return given(
            hyper, fn=stacked(p, phi, k), base=flat(p, b, k), scale=p["connection.alpha"][k]
        )

    def layer(k):
        connections = {"attn_hc": connected(k), "ffn_hc": connected(k + 1)}
        cls = getattr(module, f"{prefix}DecoderLayer")
        return without_norms(bare(cls, **connections, block_type="attention"))

    streams = x.unsqueeze(2).expand(-1, -1, S, -1).contiguous()
    result.streams.append(streams := result.through(layer, streams, functions, extra=extra))
    head = getattr(module, f"{prefix}HyperHead")
    if "connection.readout" in p:
        head = given(
            head(config), **{theirs: p[f"connection.{ours}"] for theirs, ours in HEAD.items()}
        )
    else:
        head = head()
    result.output = head(streams)
    return result


deepseek_v4 = partial(hyper_connections, "deepseek_v4", "DeepseekV4", "DeepseekV4Config", ALL, 1)
glm5_next = partial(hyper_connections, "glm5_next", "Glm5NextText", "Glm5NextTextConfig", ALL, 2)
hy_v4 = partial(hyper_connections, "hy_v4", "HYV4", "HYV4Config", ALL[:2], 2)
hy_v4_vl = partial(hyper_connections, "hy_v4_vl", "HYV4VL", "HYV4VLTextConfig", ALL[:2], 2)


HEAD = {"hc_fn": "readout_phi", "hc_base": "readout", "hc_scale": "readout_alpha"}
QWEN4 = {
    "hc_norm.weight": "gain", "input_mix_weight_down.weight": "gate_down",
    "input_mix_weight_up.weight": "gate_up", "block_inject_weight.weight": "phi_post",
}  # fmt: skip
ALTUP = {
    "router_norm.weight": "router_gain", "modality_router.weight": "router",
    "prediction_coefs.weight": "predict", "correction_coefs.weight": "correct",
}  # fmt: skip
ZAYA = {
    f"{theirs}_{part}": f"{ours}_{part}"
    for theirs, ours in {"hidden_states": "output", "residual": "stream"}.items()
    for part in ("scale", "bias")
}
"""Our names of parameters, by the names of the releases."""


def of_layer(p, names, k):
    """Our parameters of function k by the names of a release, without missing ones."""
    own = {theirs: p[f"connection.{ours}"] for theirs, ours in names.items()}
    return {theirs: value[k] for theirs, value in own.items() if k < len(value)}


def qwen4_exp(p, x, functions):
    module, result = transformers("qwen4_exp"), Pass()
    rank = p["connection.gate_down"].shape[1]
    config = module.Qwen4ExpTextConfig(hidden_size=C, hc_lowrank=rank)

    def reader(k):
        names = of_layer(p, QWEN4, k)  # the last read writes nothing
        made = module.Qwen4ExpTextGatedResidual(config, use_combine=k < FUNCTIONS)
        made.register_forward_pre_hook(
            lambda _, args: result.streams.append(args[0].unflatten(-1, (S, C)))
        )
        return given(made, **names)

    def layer(k):
        connections = {"attn_hyper_connection": reader(k), "mlp_hyper_connection": reader(k + 1)}
        cls = module.Qwen4ExpTextDecoderLayer
        return bare(cls, ple=None, layer_type="attention", **connections)

    streams = result.through(layer, x.repeat(1, 1, S), functions, position_embeddings=None)
    result.output = reader(FUNCTIONS)(streams)
    return result


def altup(p, x, functions):
    """Gemma 3n's own text model, of four layers without attention and with our functions."""
    module, result = transformers("gemma3n"), Pass()
    root = 2**0.5
    config = module.Gemma3nTextConfig(
        hidden_size=C, num_hidden_layers=FUNCTIONS, vocab_size=4, vocab_size_per_layer_input=4,
        hidden_size_per_layer_input=2, num_attention_heads=1, num_key_value_heads=1, head_dim=C,
        intermediate_size=C, laurel_rank=1, altup_num_inputs=S, num_kv_shared_layers=0,
        layer_types=["full_attention"] * FUNCTIONS, activation_sparsity_pattern=None,
    )  # fmt: skip
    model = module.Gemma3nTextModel(config).double()
    model.norm = stub(same)

    def predicted(predict):
        """`predict`, with a record of what it returns: our streams before a layer."""

        def call(streams):
            prediction = predict(streams)
            result.streams.append(prediction.permute(1, 2, 0, 3))
            return prediction

        return call

    for k, layer in enumerate(model.layers):
        layer.input_layernorm = layer.pre_feedforward_layernorm = stub(same)
        layer.post_attention_layernorm = layer.post_feedforward_layernorm = stub(same)
        # (x + no attention + laurel) / √2 is x, and no per-layer input is added.
        layer.self_attn, layer.laurel = stub(lambda x: 0 * x, 1), stub(lambda x: (root - 1) * x)
        layer.mlp = stub(result.record(functions[k]))
        layer.post_per_layer_input_norm = stub(lambda x: 0 * x)
        given(layer.altup, **of_layer(p, ALTUP, k))
        layer.altup.predict = predicted(layer.altup.predict)
    for name in ("open", "close"):
        theirs = "altup_projections" if name == "open" else "altup_unembed_projections"
        for s, weight in enumerate(p[f"connection.{name}_projections"]):
            given(getattr(model, theirs)[s], weight=weight)
    last = model.layers[-1].register_forward_hook(
        lambda _, args, output: result.streams.append(first_of(output).permute(1, 2, 0, 3))
    )
    model.eval()
    per_layer = torch.zeros(B, T, FUNCTIONS, 2, dtype=torch.float64)
    model.get_per_layer_inputs = lambda *_: per_layer
    model.project_per_layer_inputs = lambda *_: per_layer
    ids = torch.zeros(B, T, dtype=torch.int64)
    result.output = model(
        inputs_embeds=x, per_layer_inputs=per_layer, use_cache=False, position_ids=ids[:1]
    ).last_hidden_state
    last.remove()
    return result


NORMS = tuple(
    f"{place}_layernorm"
    for place in ("input", "post_attention", "pre_feedforward", "post_feedforward")
)


def without_norms(layer):
    """The layer, with the identity for its norms."""
    for name in NORMS:
        setattr(layer, name, stub(same))
    return layer


def one_stream(layer, x, functions):
    """Pass through the layers `layer(k)` of a release with our functions and no norms."""
    result = Pass()
    result.output = result.through(
        lambda k: without_norms(layer(k)), x, functions, position_embeddings=None
    )
    return result


SMALL = {
    "hidden_size": C, "intermediate_size": C, "num_hidden_layers": LAYERS, "num_attention_heads": 1,
}  # fmt: skip


def multiplied(release, prefix, p, x, functions, **settings):
    """Pass through whole layers of a release, whose sums have constant factors."""
    module = transformers(release)
    config = getattr(module, f"{prefix}Config")(**SMALL, **settings)
    layer = getattr(module, f"{prefix}DecoderLayer")
    return one_stream(lambda k: layer(config, k // 2), x, functions)


GRANITE_SCALE = 0.22


minicpm = partial(multiplied, "minicpm3", "MiniCPM3")
granite = partial(
    multiplied, "granite", "Granite", num_key_value_heads=1, residual_multiplier=GRANITE_SCALE
)
beam = partial(
    multiplied,
    "beam",
    "Beam",
    num_key_value_heads=1,
    head_dim=C,
    mlp_layer_types=["dense"] * LAYERS,
)


def zaya(p, x, functions):
    module = transformers("zaya")

    def scaling(k):
        return given(module.ZayaResidualScaling(C), **of_layer(p, ZAYA, k))

    def layer(k):
        scales = {
            "post_attention_residual_scale": scaling(k),
            "post_mlp_residual_scale": scaling(k + 1),
        }
        return bare(module.ZayaDecoderLayer, **scales, mlp_extra=1)

    x = (x + p["connection.input_bias"]) * p["connection.input_scale"]
    return one_stream(layer, x, functions)


def muse_spark(p, x, functions):
    module, result = transformers("muse_spark"), Pass()
    config = module.MuseSparkTextConfig(hidden_size=C, num_attention_heads=1)
    eps = config.post_norm_eps

    def gate(k):
        return given(module.MuseSparkResidualGate(config), gate=p["connection.gate"][k])

    def layer(k):
        norm, gain = module.MuseSparkTextInputScaledRMSNorm, p["connection.output_gain"][k // 2]
        made = without_norms(bare(module.MuseSparkTextDecoderLayer))
        made.post_feedforward_layernorm = given(norm(C, eps=eps), weight=gain)
        made.post_attention_layernorm = module.MuseSparkRMSNorm(eps=eps, with_scale=False)
        made.post_attention_residual_gate = gate(k)
        made.post_feedforward_residual_gate = gate(k + 1)
        return made

    result.output = result.through(layer, x, functions)
    return result


def doge(p, x, functions):
    module, scale = transformers("doge"), p["connection.stream_scale"]
    config = module.DogeConfig(hidden_size=C)

    def layer(k):
        scales = {"input_residual": scale[k], "post_attention_residual": scale[k + 1]}
        return bare(module.DogeDecoderLayer, config=config, hidden_dropout=0.0, **scales)

    return one_stream(layer, x, functions)


def talkie(p, x, functions):
    """mlx-lm's own blocks, without the norm before each function."""
    module, result = peer("mlx_lm.models.talkie"), Pass()
    args = module.ModelArgs(hidden_size=C, num_hidden_layers=LAYERS, num_attention_heads=1)
    args.head_dim = args.intermediate_size = C
    norm = module.rms_norm
    first = x = norm(x, args.rms_norm_eps)
    module.rms_norm = lambda x, eps: x
    try:
        for k in range(0, FUNCTIONS, 2):
            block = module.TransformerBlock(args)
            block.attn, block.mlp = map(result.record, functions[k : k + 2])
            for j, gain in enumerate((block.attn_gain, block.mlp_gain)):
                gain.a_g = p["connection.output_gain"][k + j]
            block.embed_skip.a_g = p["connection.initial"][k // 2]
            x = block(first, x)
    finally:
        module.rms_norm = norm
    result.output = x
    return result


def neomme(p, x, functions):
    module, result = transformers("neomme"), Pass()
    config = module.NeoMMEConfig(num_hidden_layers=LAYERS)
    first = module.NeoMMERMSNorm(C, module.NeoMMEConfig().norm_eps, with_scale=False)(x)

    def layer(k):
        parts = {"lambdas": p["connection.initial"][k // 2]}
        parts["residual_multiplier"] = config.residual_multiplier
        return without_norms(bare(module.NeoMMEEncoderLayer, **parts))

    result.output = result.through(layer, first, functions, first)
    return result


class InFloat64:
    """`torch` with float64 as its `float32`, for a module that casts by name."""

    def __getattr__(self, name):
        return torch.float64 if name == "float32" else getattr(torch, name)


MINIMAX_ALPHA = 160**0.25
"""3.5566 in the released configuration: (2 · 80 layers)^¼."""


def minimax(p, x, functions, **factors):
    module, result = transformers("minimax"), Pass()
    module.torch = InFloat64()
    config = module.MiniMaxConfig(**factors)

    def norm(k):
        made = module.MiniMaxRMSNorm(C, eps=config.rms_norm_eps)
        return given(made, weight=p["connection.norm_gain"][k])

    def layer(k):
        norms = {"input_layernorm": norm(k), "post_attention_layernorm": norm(k + 1)}
        factors = {
            f"{ours}_{which}_factor": getattr(config, f"{theirs}_{which}_factor")
            for ours, theirs in (("attn", "full_attn"), ("mlp", "mlp"))
            for which in ("alpha", "beta")
        }
        return bare(module.MiniMaxDecoderLayer, **norms, **factors)

    x = result.through(layer, x, functions)
    result.output = norm(FUNCTIONS)(x)
    return result


minimax_as_released = partial(
    minimax, full_attn_alpha_factor=MINIMAX_ALPHA, mlp_alpha_factor=MINIMAX_ALPHA
)


def dory(p, x, functions):
    """Its sphere has radius 1, ours √C: inputs of functions and the output are scaled by √C."""
    module, result = transformers("dory"), Pass()
    config, root = module.DoryConfig(), C**0.5
    norm, rate = module.DoryL2Norm(), p["connection.rate"]

    def layer(k):
        scale = config.ngpt_alpha_init / config.initializer_range
        scales = {"lambda_1": rate[k], "lambda_2": rate[k + 1], "lambda_scale": scale}
        return bare(module.DoryDecoderLayer, **scales, **dict.fromkeys(NORMS, norm))

    enlarged = [lambda x, f=f: f(root * x) for f in functions]
    result.output = root * norm(result.through(layer, x, enlarged))
    result.inputs = [root * x for x in result.inputs]
    return result


def pypi_hc(p, x, functions):
    """PyPI's Hyper-Connections, which have one α for both H_pre and H_res."""
    hyper = peer("hyper_connections").HyperConnections
    result, streams = Pass(), x.repeat_interleave(S, dim=0)
    for k, function in enumerate(functions):
        pre, post, res = (p[f"connection.phi_{part}"][k] for part in ("pre", "post", "res"))
        b_pre, b_post, b_res = (p[f"connection.b_{part}"][k] for part in ("pre", "post", "res"))
        module = given(
            hyper(S, dim=C, layer_index=k),
            static_alpha=torch.cat([b_pre[:, None], b_res.T], dim=1),
            static_beta=b_post,
            dynamic_alpha_fn=torch.cat([pre, res]).T,
            dynamic_beta_fn=post[0],
            dynamic_alpha_scale=p["connection.alpha"][k, 0],
            dynamic_beta_scale=p["connection.alpha"][k, 1],
        ).double()
        result.streams.append(streams.unflatten(0, (B, S)).permute(0, 2, 1, 3))
        m, add = module(streams)
        streams = add(result.record(function)(m))
    result.streams.append(streams.unflatten(0, (B, S)).permute(0, 2, 1, 3))
    result.output = streams.unflatten(0, (B, S)).sum(dim=1)
    return result


def with_two_alphas(p):
    """Our parameters, with the α of H_pre for H_res."""
    alpha = p["connection.alpha"]
    return {**p, "connection.alpha": alpha[:, [0, 1, 0]]}


def deepseek_v41(p, x, functions):
    """mlx-lm's own layers."""
    module, result = peer("mlx_lm.models.deepseek_v41"), Pass()
    args = module.ModelArgs(hidden_size=C)

    class Recorded(module.HyperConnection):
        def __call__(self, streams):
            result.streams.append(streams)
            return super().__call__(streams)

    def connected(k):
        made = Recorded(args)
        made.fn = mx.concatenate([p[f"connection.phi_{part}"][k] for part in ALL])
        made.base = mx.concatenate([p[f"connection.b_{part}"][k].flatten() for part in ALL])
        made.scale = p["connection.alpha"][k]
        return made

    streams = mx.broadcast_to(x[:, :, None, :], (B, T, S, C))
    pre_mix = mx.broadcast_to(mx.array([1.0] + [0.0] * (S - 1)), (B, T, S))
    for k in range(0, FUNCTIONS, 2):
        layer = module.DecoderLayer.__new__(module.DecoderLayer)
        nn.Module.__init__(layer)
        layer.attn_hc, layer.ffn_hc = connected(k), connected(k + 1)
        layer.input_layernorm = layer.post_attention_layernorm = same
        layer.self_attn, layer.mlp = map(result.record, functions[k : k + 2])
        streams, pre_mix = layer(
            streams, pre_mix, start_pos=0, window_idx=None, cache=None, shared={}
        )
    result.streams.append(streams)
    result.output = module._collapse(streams, pre_mix)
    return result


# --- parity --------------------------------------------------------------------------------------

PARITY = {
    # label in the table: (our settings, the release)
    "deepseek_v4": ("deepseek_v4", deepseek_v4),
    "deepseek_v41": ("deepseek_v41", deepseek_v41),
    "glm5_next": ("glm5_next", glm5_next),
    "hy_v4": ("hy_v4", hy_v4),
    "hy_v4 as hy_v4_vl": ("hy_v4", hy_v4_vl),
    "qwen4_exp": ({"connection": "qwen4_exp", "rank": 0.5}, qwen4_exp),
    "altup": ("altup", altup),
    "scaled": ("scaled", minicpm),
    "scaled with c 0.22": (
        {"connection": "scaled", "scale": {"c": GRANITE_SCALE, "over_depth": False}}, granite,
    ),
    "depth_scaled": ("depth_scaled", beam),
    "residual_scaled": ("residual_scaled", zaya),
    "muse_spark": ("muse_spark", muse_spark),
    "doge": ("doge", doge),
    "talkie": ("talkie", talkie),
    "neomme": ("neomme", neomme),
    "minimax": ("minimax", minimax),
    "minimax with a 3.5566": (
        {"connection": "minimax", "scale": {"a": MINIMAX_ALPHA}}, minimax_as_released,
    ),
    "dory": ("dory", dory),
    # PyPI's norm adds nothing to the mean square.
    "hc_paper with eps 1e-24": (
        {"connection": "hc_paper", "coefficients": {"eps": 1e-24}}, pypi_hc,
    ),
}  # fmt: skip

MARGIN = 10
"""Factor on the errors in benchmarks/parity.csv: other processors add in another order."""
ROUNDING = {"PyTorch, float64": 2e-15, "MLX, float32": 1e-6}
"""Errors that are always tolerated, as rounding."""


@pytest.fixture(autouse=True)
def in_float64(monkeypatch):
    """Turn the releases' own casts to float32 into casts to float64."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.fixture(scope="module")
def stated(pytestconfig):
    """Table benchmarks/parity.csv: {label: {framework: (forwards, gradients)}}."""
    table = pd.read_csv(pytestconfig.rootpath / "benchmarks/parity.csv")
    return {
        scheme: {row.framework: (row.forwards, row.gradients) for row in rows.itertuples()}
        for scheme, rows in table.groupby("scheme", sort=False)
    }


def test_the_tables_have_every_comparison(stated, pytestconfig):
    text = (pytestconfig.rootpath / "docs/definitions/parity.md").read_text(encoding="utf-8")
    listed = [row[0] for row in table(text, "Parity with the releases", "#")]
    assert list(stated) == listed == list(PARITY)


@pytest.mark.parametrize("label", PARITY)
def test_parity(stated, label):
    settings, release = PARITY[label]
    connection = connection_of(settings)
    if release in (deepseek_v41, talkie):
        result = {"MLX, float32": errors(*on_mlx(connection, release))}
        assert "PyTorch, float64" not in stated[label]
    else:
        tied = with_two_alphas if release is pypi_hc else same
        ours, theirs = on_torch(connection, release, tied)
        result = {
            "PyTorch, float64": errors(ours, theirs),
            "MLX, float32": errors(on_mlx(connection, tied=tied), theirs),
        }
    print(label, *(f"{e:.0e}" for pair in result.values() for e in pair), sep=" | ")
    for framework, pair in result.items():
        for error, said in zip(pair, stated[label][framework], strict=True):
            assert error <= max(MARGIN * said, ROUNDING[framework]), (framework, pair)


def test_every_module_that_looks_like_a_connection_is_known():
    """And every known module exists in the releases."""
    result = new_releases.noticed(Path(peer("transformers").__file__).parents[1])
    assert set(result) == new_releases.known()


# --- weights of a release ------------------------------------------------------------------------

HYPER = ("layers.{}.attn_hc", "layers.{}.ffn_hc")
SCALING = ("layers.{}.post_attention_residual_scale", "layers.{}.post_mlp_residual_scale")
GATES = tuple(f"layers.{{}}.post_{of}_residual_gate" for of in ("attention", "feedforward"))
IN_RELEASES = {
    # scheme: (the release's model, its settings, names of a layer's modules, names of others),
    # modules in the order in which `PARITY` makes them
    "deepseek_v4": ("DeepseekV4ForCausalLM", {"num_hidden_layers": 2}, HYPER, ("hc_head",)),
    "glm5_next": ("Glm5NextTextModel", {"num_hidden_layers": 2}, HYPER, ()),
    "hy_v4": ("HYV4ForCausalLM", {"num_hidden_layers": 2}, HYPER, ("hc_head",)),
    "qwen4_exp": (
        "Qwen4ExpTextModel", {"num_hidden_layers": 2},
        ("layers.{}.attn_hyper_connection", "layers.{}.mlp_hyper_connection"),
        ("hyper_connection_mixer",),
    ),
    "altup": (
        "Gemma3nTextModel", {}, ("layers.{}.altup",),
        tuple(f"altup_{n}projections.{s}" for n in ("", "unembed_") for s in range(S - 1)),
    ),
    "residual_scaled": ("ZayaForCausalLM", {"num_hidden_layers": 2}, SCALING, ()),
    "muse_spark": (
        "MuseSparkTextModel", {}, ("layers.{}.post_feedforward_layernorm", *GATES), (),
    ),
    "doge": ("DogeForCausalLM", {}, ("layers.{}",), ()),
    "neomme": ("NeoMMEModel", {}, ("layers.{}",), ()),
    "minimax": (
        "MiniMaxForCausalLM", {"num_hidden_layers": 2},
        ("layers.{}.input_layernorm", "layers.{}.post_attention_layernorm"), ("norm",),
    ),
    "dory": ("DoryForCausalLM", {}, ("layers.{}",), ()),
}  # fmt: skip


def release_model(release, name, settings):
    """The state dict of a release's whole model, on the meta device."""
    module = transformers(release)
    cls = getattr(module, name)
    with torch.device("meta"):
        return cls(cls.config_class(**settings)).state_dict()


@pytest.mark.parametrize("scheme", IN_RELEASES)
def test_load_release_returns_the_parameters_of_the_release(scheme):
    """With our tensors and an asymmetric H_res, a release computes the same: `test_parity`.

    The tensors of its modules, under the names of the whole model, are a state dict. Loading it
    must return the same parameters.
    """
    name, settings, of_layer, others = IN_RELEASES[scheme]
    ours, release = PARITY[scheme]
    given_to = {n: torch.tensor(v) for n, v in parameters(connection_of(ours)).items()}
    GIVEN.clear()
    functions = [torch.tanh] * FUNCTIONS
    release(given_to, torch.tensor(X), functions)
    blocks = (len(GIVEN) - len(others)) // len(of_layer)
    made = [place.format(i) for i in range(blocks) for place in of_layer]
    state = {
        f"model.{place}.{key}": value
        for place, tensors in zip([*made, *others], GIVEN, strict=True)
        for key, value in tensors.items()
    }
    if scheme == "residual_scaled":
        for part in ("scale", "bias"):
            state[f"model.input_hidden_states_{part}"] = given_to[f"connection.input_{part}"]
    names = release_model(RENAMED.get(scheme, scheme), name, settings)
    for key in state:
        assert {key, key.removeprefix("model.")} & set(names), key
    connection = fathom.torch.ResidualConnection(
        ours, FUNCTIONS, C, per_block=2, streams=S
    ).double()
    connection.load_release(state)
    for key, value in given_to.items():
        assert torch.equal(connection.state_dict()[key.removeprefix("connection.")], value), key


RENAMED = {"altup": "gemma3n", "residual_scaled": "zaya"}


def test_the_weights_of_an_mlx_release_become_our_parameters():
    module = peer("mlx_lm.models.talkie")
    args = module.ModelArgs(
        hidden_size=C, num_hidden_layers=LAYERS, num_attention_heads=1, head_dim=C,
        intermediate_size=C, vocab_size=4,
    )  # fmt: skip
    weights = dict(tree_flatten(module.Model(args).parameters()))
    rng = np.random.default_rng(0)
    weights = {k: mx.array(rng.standard_normal(v.shape)) for k, v in weights.items()}
    connection = fathom.mlx.ResidualConnection("talkie", FUNCTIONS, C, per_block=2)
    connection.load_release(weights)
    gains = [
        float(weights[f"model.blocks.{i}.{part}_gain.a_g"][0])
        for i in range(LAYERS)
        for part in ("attn", "mlp")
    ]
    assert np.array(connection.output_gain) == pytest.approx(gains, rel=1e-6)
    skips = [float(weights[f"model.blocks.{i}.embed_skip.a_g"][0]) for i in range(LAYERS)]
    assert np.array(connection.initial) == pytest.approx(skips, rel=1e-6)
