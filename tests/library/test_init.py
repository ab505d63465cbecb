"""Initial parameters: distributions against formulas, and dependence on seed and name."""

import math
from functools import partial

import numpy as np
import pytest

from fathom.connections.schemes import SCHEMES
from fathom.init import Normal, Orthogonal, Parameter, Uniform, draw
from tests.support import naive
from tests.support.specs import READ_APART, make_spec, parameters_of

V, T, D, F, L = 256, 64, 48, 96, 12

# Kind of each parameter of mhc in a recipe, with standard deviation, bound or constant.
IN_BOTH_RECIPES = {
    "embedding.position": ("normal", 0.01),
    "block.norm1.weight": ("constant", 1),
    "block.norm1.bias": ("constant", 0),
    "block.attention_out.weight": ("uniform", 1 / math.sqrt(D)),
    "block.norm2.weight": ("constant", 1),
    "block.norm2.bias": ("constant", 0),
    "block.up.weight": ("uniform", 1 / math.sqrt(D)),
    "block.up.bias": ("uniform", 1 / math.sqrt(D)),
    "block.down.weight": ("uniform", 1 / math.sqrt(F)),
    "block.down.bias": ("uniform", 1 / math.sqrt(F)),
    "norm.weight": ("constant", 1),
    "norm.bias": ("constant", 0),
    "head.weight": ("uniform", 1 / math.sqrt(D)),
    "connection.H_pre": ("identity", None),
    "connection.H_post": ("identity", None),
    "connection.H_res": ("identity", None),
}
NO_BIAS = {f"block.{name}.bias": ("constant", 0) for name in ("qkv", "attention_out", "up", "down")}
SPREADS = {
    "mlx-defaults": {
        **IN_BOTH_RECIPES,
        "embedding.token": ("normal", 1 / math.sqrt(D)),
        "block.qkv.weight": ("uniform", 1 / math.sqrt(D)),
        "block.qkv.bias": ("uniform", 1 / math.sqrt(D)),
        "block.attention_out.bias": ("uniform", 1 / math.sqrt(D)),
    },
    "torch-defaults": {
        **IN_BOTH_RECIPES,
        "embedding.token": ("normal", 1),
        "block.qkv.weight": ("uniform", math.sqrt(6 / (4 * D))),
        "block.qkv.bias": ("constant", 0),
        "block.attention_out.bias": ("constant", 0),
    },
    "unit-variance": {
        **IN_BOTH_RECIPES,
        **NO_BIAS,
        "embedding.token": ("normal", 1),
        "block.qkv.weight": ("normal", 1 / math.sqrt(D)),
        "block.attention_out.weight": ("normal", 1 / math.sqrt(2 * L * D)),
        "block.up.weight": ("normal", 1 / math.sqrt(D)),
        "block.down.weight": ("normal", 1 / math.sqrt(2 * L * F)),
        "head.weight": ("normal", 1 / math.sqrt(D)),
    },
    "nanochat": {
        **IN_BOTH_RECIPES,
        **NO_BIAS,
        "embedding.token": ("normal", 1),
        "block.qkv.weight": ("uniform", math.sqrt(3 / D)),
        "block.attention_out.weight": ("constant", 0),
        "block.up.weight": ("uniform", math.sqrt(3 / D)),
        "block.down.weight": ("constant", 0),
        "head.weight": ("normal", 0.001),
    },
}


spec_of = partial(make_spec, vocab=V, length=T, width=D, hidden=F, depth=L)


def assert_normal(x, std):
    # Standard errors are std/√(2n) for the standard deviation and std/√n for the mean: allow six.
    assert x.std() == pytest.approx(std, rel=6 / math.sqrt(2 * x.size))
    assert abs(x.mean()) < 6 * std / math.sqrt(x.size)
    # Seven of 100 normal draws lie beyond 1.8 standard deviations; a uniform ends at √3.
    assert (np.abs(x) > 1.8 * std).any()


def assert_uniform(x, bound):
    assert np.abs(x).max() <= bound * (1 + 1e-6)  # the bound itself is rounded to float32
    # The largest of n draws falls short of the bound by about bound/n.
    assert np.abs(x).max() > bound * (1 - 20 / x.size)
    # Mean 0 with variance bound²/3n; mean square bound²/3 with relative error √(4/5n).
    assert abs(x.mean()) < 6 * bound / math.sqrt(3 * x.size)
    assert (x**2).mean() == pytest.approx(bound**2 / 3, rel=6 * math.sqrt(0.8 / x.size))


def assert_spreads(drawn, spreads):
    assert set(drawn) == set(spreads)
    checks = {"normal": assert_normal, "uniform": assert_uniform}
    for name, (kind, value) in spreads.items():
        x = drawn[name].astype(np.float64)
        if kind in checks:
            checks[kind](x, value)
        else:
            expected = value if kind == "constant" else np.stack([2 * np.eye(4) - 1] * L)
            assert (x == expected).all(), name


@pytest.mark.parametrize("recipe", SPREADS)
def test_every_parameter_has_the_distribution_of_its_recipe(recipe):
    assert_spreads(parameters_of(spec_of(recipe=recipe)), SPREADS[recipe])
    plain = {name for name in SPREADS[recipe] if not name.startswith("connection.")}
    assert set(parameters_of(spec_of(recipe=recipe, variant="baseline"))) == plain


# --- the image network and its connections --------------------------------------------------------

W = 16

IMAGE_SPREADS = {
    **{f"{norm}.weight": ("constant", 1) for norm in ("block.norm1", "block.norm2", "norm")},
    **{f"{norm}.bias": ("constant", 0) for norm in ("block.norm1", "block.norm2", "norm")},
    **{f"{of}.bias": ("constant", 0) for of in ("stem", "block.conv1", "block.conv2", "head")},
    "stem.weight": ("normal", math.sqrt(2 / 9)),
    "block.conv1.weight": ("normal", math.sqrt(2 / (9 * W))),
    "block.conv2.weight": ("normal", math.sqrt(2 / (9 * W)) / math.sqrt(L)),
    "head.weight": ("normal", math.sqrt(2 / W)),
}


@pytest.mark.parametrize("recipe", ["mlx-defaults", "torch-defaults"])
def test_the_image_network_has_he_initialisation_in_every_recipe(recipe):
    spec = make_spec(task="fashion", variant="resnet", recipe=recipe, width=W, depth=L)
    drawn = parameters_of(spec)
    assert_spreads(drawn, IMAGE_SPREADS)
    assert drawn["stem.weight"].shape == (W, 3, 3, 1)
    assert drawn["block.conv1.weight"].shape == (L, W, 3, 3, W)


FIRST = np.array([1, 0, 0, 0])
DIAGONAL = np.eye(4)
STATIC_STARTS = {
    "H_pre": (5 * FIRST, 0),
    "H_post": (5 * FIRST, 0),
    "H_res": (4 * DIAGONAL, 0.05),
    "readout": (5 * FIRST, 0),
}
CYCLE = np.tile(DIAGONAL, (L // 4, 1))
"""Row l selects stream l mod S, [L, S]."""


def dynamic(phi, pre, post, res):
    """Starts of a dynamic connection: standard deviation `phi`, and b of each part."""
    parts = {"pre": pre, "post": post} | ({} if res is None else {"res": res})
    starts = {f"phi_{part}": (0, phi) for part in parts}
    return starts | {f"b_{part}": (b, 0) for part, b in parts.items()} | {"alpha": (0.01, 0)}


DYNAMIC_STARTS = {
    **dynamic(1 / math.sqrt(4 * W), 10 * FIRST - 5, 10 * FIRST - 5, 0),
    "b_res": (10 * DIAGONAL - 5, 0.01),
    "readout": (10 * FIRST - 5, 0),
}


def drawn(*names):
    """Starts of weights that the releases draw with standard deviation 0.02."""
    return dict.fromkeys(names, (0, 0.02))


DENSE = {f"weights_{i}": (np.eye(i + 1)[i], 0) for i in range(1, L + 1)}
"""Sums over the outputs of all blocks so far, of which the last one alone counts at first."""
MUDD = DENSE | {
    f"{name}_{i}": (0, std)
    for i in range(1, L + 1)
    for name, std in (("dynamic", 0), ("hidden", 1 / math.sqrt(W)))
}


RANK = W // 16
LAUREL = {
    "up": (0, 0),
    # Channel c goes to row c mod r, so that rows are orthogonal.
    "down": (np.tile(np.eye(RANK), W // RANK) / math.sqrt(RANK * W), 0),
}
MHC_AVERAGED = dynamic(0.02, 0, 0, 0)
ACROSS = np.array([[1, 1.5 if k % 2 == 0 and k >= round(7 * L / 11) else 1] for k in range(L)])
"""In late blocks, every other function writes 1.5 to the lane that it does not read."""
DEEPSEEK = {**MHC_AVERAGED, "alpha": (1, 0)}
GATED = {"gate": (-4.6, 0), "stream_embedding": (0, 0.02 / math.sqrt(W))}
DEPTH_STARTS = {"query": (0, 0), "key_gain": (1, 0)}
STARTS = {
    "plain": {},
    "hc_causal": {"mixing": (4 * np.eye(L), 0.05)},
    "mhc_causal": {"mixing": (4 * np.eye(L), 0.05)},
    "hc_demo": dict.fromkeys(("H_pre", "H_post", "H_res"), (2 * DIAGONAL - 1, 0)),
    "mhc_demo": dict.fromkeys(("H_pre", "H_post", "H_res"), (2 * DIAGONAL - 1, 0)),
    "hc_static": STATIC_STARTS,
    "mhc_static": {**STATIC_STARTS, "gate": (math.log(0.01 / 0.99), 0)},
    "hc_dynamic": DYNAMIC_STARTS,
    "mhc_dynamic": DYNAMIC_STARTS,
    "hc_paper_static": {"H_pre": (CYCLE, 0), "H_post": (1, 0), "H_res": (DIAGONAL, 0)},
    "hc_paper": dynamic(0, CYCLE, 1, DIAGONAL),
    "mhc_paper": dynamic(0, 6 * CYCLE - 3, 0, 6 * DIAGONAL - 3),
    "mhc_averaged": MHC_AVERAGED,
    "mhc_cycle": dynamic(0.02, 2 * CYCLE - 1, 2 * CYCLE - 1, 8 * DIAGONAL - 8),
    "mhc_identity_cycle": dynamic(0.02, 2 * CYCLE - 1, 2 * CYCLE - 1, None),
    "mhc_identity": dynamic(0.02, 0, 0, None),
    "mhc_uniform": dynamic(0.02, 0, 0, None),
    "mhc_lite": dynamic(0, 2 * CYCLE - 1, 2 * CYCLE - 1, 8.0 * np.eye(24)[0] - 8),
    "krom_hc": dynamic(0, 2 * CYCLE - 1, 2 * CYCLE - 1, np.array([[0, -8], [0, -8]])),
    "circulant_mhc": dynamic(0.02 / math.sqrt(4 * W), math.log(1 / 3), 0, 0),  # σ of it is 1/4
    "orthostochastic_mhc": dynamic(0.02, 0, 0, 16 * DIAGONAL - 8),
    "mhc_gated_static": {
        **GATED, "H_pre": (8 * CYCLE - 8, 0), "H_post": (0, 0), "H_res": (8 * DIAGONAL - 8, 0),
    },
    "mhc_gated_dynamic": {
        **GATED,
        **{k: v for k, v in dynamic(0.01, FIRST, 0, 3 * DIAGONAL - 3).items() if k != "alpha"},
    },
    "deepseek_v4": {
        **DEEPSEEK, "readout": (0, 0), "readout_phi": (0, 0.02), "readout_alpha": (1, 0),
    },
    "deepseek_v41": DEEPSEEK,
    "glm5_next": DEEPSEEK,
    "hy_v4": {
        **dynamic(0.006, math.log(1 / 3), 0, None),
        "readout": (math.log(1 / 3), 0), "readout_phi": (0, 0.006), "readout_alpha": (0.01, 0),
    },
    "qwen4_exp": {"gain": (0, 0), **drawn("gate_down", "gate_up", "phi_post")},
    "altup": {
        "router_gain": (1, 0),
        **drawn("router", "predict", "correct", "open_projections", "close_projections"),
    },
    "scaled": {},
    "depth_scaled": {},
    "residual_scaled": {
        f"{side}_{part}": (value, 0)
        for side in ("input", "stream", "output")
        for part, value in (("scale", 1), ("bias", 0))
    },
    "muse_spark": {"gate": (0, 0.02), "output_gain": (0, 0)},
    "doge": {"stream_scale": (1, 0)},
    "talkie": {"output_gain": (1 / math.sqrt(L), 0), "initial": (0, 0)},
    "neomme": {"initial": (np.array([1, 0]), 0)},
    "minimax": {"norm_gain": (1, 0)},
    "dory": {"rate": (0.0177, 0)},
    "laurel": {"weights": (0, 0), **LAUREL},
    "frac": dynamic(0, np.eye(2), 1, np.eye(2)),
    "attn_res": DEPTH_STARTS,
    "attn_res_block": DEPTH_STARTS,
    "inkling2": {"query": (0, 0)},
    "mhar": DEPTH_STARTS,
    "delta_attn_res": DEPTH_STARTS,
    "denseformer": DENSE,
    "muddformer": MUDD,
    "muddformer_last": {n: v for n, v in MUDD.items() if n.endswith((f"_{L - 1}", f"_{L}"))},
    "gmr_cyclic": {
        "gain": (1, 0), "read_bias": (CYCLE[:, :, None] * np.ones(W), 0), "write_bias": (0, 0),
        "down": (0, 1 / math.sqrt(3 * 4 * W)), "up_read": (0, 0), "up_write": (0, 0),
        "gate_scale": (0.01, 0), "stream_embedding": (0, 0), "end_gain": (1, 0),
    },
    "attn_res_state": {
        **dict.fromkeys(("key_gain", "query_gain", "input_gain"), (1, 0)),
        "down": (0, 1 / math.sqrt(3 * W)), "up": (0, 0),
    },
    "resid_growth": {"resid": (math.sqrt(1.1), 0)},
    "orthogonal": {},
    "gru_gate": {
        f"{side}_{part}": (0, 1 / math.sqrt(3 * W))  # uniform within 1/√W
        for side in ("output", "stream")
        for part in ("gates", "bias")
    },
    "review": {"gate": (0, 0), "gate_bias": (0, 0)},
    "deep_delta": {"gate": (0, 0.5 / math.sqrt(W)), "gate_bias": (0, 0)},
    "prores": {},
    "x0_lambda": {"resid": (1, 0), "x0": (0, 0)},
    "unet": {"skip": (1, 0)},
    "unet_concatenated": {"combine": (0, 1 / math.sqrt(6 * W))},
    "one_skip": {"skip_gate": (-1.5, 0)},
    "backout": {"backout": (0.5, 0)},
    "late_read": {"backout": (0.5, 0)},
    "two_lanes": {"resid": (math.sqrt(1.1), 0), "post": (ACROSS, 0)},
}  # fmt: skip
"""(mean, standard deviation) of each parameter at the start, by scheme."""


@pytest.mark.parametrize("scheme", STARTS)
def test_connections_start_as_published(scheme):
    # L functions, or L blocks of two if q, k and v are read apart.
    network = {"wrap": "sublayer"} if scheme in READ_APART else {"task": "fashion"}
    spec = make_spec(variant=scheme, width=W, depth=L, **network)
    drawn = naive.connection_of(naive.exact(parameters_of(spec)))
    assert set(drawn) == set(STARTS[scheme])
    for name, (mean, std) in STARTS[scheme].items():
        rest = drawn[name] - mean
        assert rest.shape == drawn[name].shape
        if std:
            assert rest.std() == pytest.approx(std, rel=6 / math.sqrt(2 * rest.size)), name
            assert abs(rest.mean()) < 6 * std / math.sqrt(rest.size), name
        else:
            # The scheme has σ(−4.6) with three digits.
            assert rest == pytest.approx(0, abs=5e-4 if name == "gate" else 1e-6), name


@pytest.mark.parametrize(
    ("wrap", "first"), [("sublayer", [0, 0, 1, 1, 2, 2, 3, 3, 0, 0]), ("block", [0, 1, 2, 3, 0])]
)
def test_attention_and_mlp_of_a_gated_block_read_the_same_stream(wrap, first):
    spec = make_spec(variant="mhc_gated_static", wrap=wrap, depth=5)
    assert parameters_of(spec)["connection.H_pre"].argmax(axis=1).tolist() == first


def test_every_scheme_has_its_starts_in_this_file():
    assert set(STARTS) == set(SCHEMES)


# --- the draw ------------------------------------------------------------------------------------


def test_seed_and_name_alone_determine_every_number():
    first, again, other = (
        parameters_of(spec_of(recipe="mlx-defaults", seed=seed)) for seed in (7, 7, 8)
    )
    for name, (kind, _) in SPREADS["mlx-defaults"].items():
        assert first[name].dtype == np.float32
        assert (first[name] == again[name]).all(), name
        if kind in ("normal", "uniform"):
            assert_uncorrelated(first[name], other[name])
    assert_uncorrelated(*first["block.up.weight"][:2])  # of the first two layers
    same = Parameter((1000,), Normal(1.0))
    drawn = draw({"zero": Parameter((9,), Uniform(1.0)), "one": same, "two": same}, seed=3)
    assert_uncorrelated(drawn["one"], drawn["two"])
    assert (drawn["one"] == draw({"one": same}, seed=3)["one"]).all()


def assert_uncorrelated(x, y):
    # The correlation of two independent samples has standard deviation 1/√n.
    assert abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 6 / math.sqrt(x.size)


@pytest.mark.parametrize("recipe", ["mlx-defaults", "torch-defaults"])
def test_a_deeper_network_starts_with_the_layers_of_a_shallower_one(recipe):
    shallow = parameters_of(spec_of(recipe=recipe, depth=3))
    deep = parameters_of(spec_of(recipe=recipe, depth=L))
    for name, value in shallow.items():
        stacked = name.startswith(("block.", "connection."))
        assert (value == (deep[name][:3] if stacked else deep[name])).all(), name


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (4, 4)])
def test_orthogonal_rows_or_columns(shape):
    drawn = draw({"one": Parameter(shape, Orthogonal(0.5))}, seed=0)["one"].astype(np.float64)
    short = drawn if shape[0] <= shape[1] else drawn.T
    assert short @ short.T == pytest.approx(0.25 * np.eye(len(short)), abs=1e-6)


def test_orthogonal_draws_have_no_favoured_sign():
    """QR alone would give every diagonal the same sign."""
    drawn = draw({str(i): Parameter((2, 2), Orthogonal(1.0)) for i in range(200)}, seed=0)
    positive = np.mean([value[0, 0] > 0 for value in drawn.values()])
    assert abs(positive - 0.5) < 6 * 0.5 / math.sqrt(200)
