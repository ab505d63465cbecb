"""The textbook steps of `benchmarks/` compute what the models compute: another implementation."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest

from fathom import bench, tasks
from fathom.train import initial_parameters, step_metrics

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
VARIANTS = ("baseline", "hc", "mhc")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def spec_of(variant, backend):
    spec = bench.spec_for("default", variant, backend, depth=3)
    return spec.model_copy(update={"batch_size": 2})


def our_step(trainer, spec):
    params = initial_parameters(spec)
    tokens, targets = tasks.load("tokens").batch(spec, 0)
    trainer.step((tokens,), targets, spec.optimizer.lr)
    (row,) = step_metrics(spec, trainer.collect(), list(params))
    return params, (tokens, targets), row


def flattened(params, depth):
    """Our stacked parameters under the names of PyTorch's and MLX's own modules."""
    names = {
        "norm1.weight": "norm1.weight", "norm1.bias": "norm1.bias",
        "norm2.weight": "norm2.weight", "norm2.bias": "norm2.bias",
        "qkv.weight": "attention.in_proj_weight", "qkv.bias": "attention.in_proj_bias",
        "attention_out.weight": "attention.out_proj.weight",
        "attention_out.bias": "attention.out_proj.bias",
        "up.weight": "mlp.0.weight", "up.bias": "mlp.0.bias",
        "down.weight": "mlp.2.weight", "down.bias": "mlp.2.bias",
    }  # fmt: skip
    found = {
        "embedding.weight": params["embedding.token"], "position": params["embedding.position"],
        "norm.weight": params["norm.weight"], "norm.bias": params["norm.bias"],
        "head.weight": params["head.weight"],
    }  # fmt: skip
    mixes = "connection.H_pre" in params
    for layer in range(depth):
        inside = f"layers.{layer}.block" if mixes else f"layers.{layer}"
        for ours, theirs in names.items():
            found[f"{inside}.{theirs}"] = params[f"block.{ours}"][layer]
        for name in ("pre", "post", "res") if mixes else ():
            found[f"layers.{layer}.{name}"] = params[f"connection.H_{name}"][layer]
    return found


def load_torch(network, weights):
    import torch

    network.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()})


def load_mlx(network, weights):
    import mlx.core as mx

    named = {}
    for name, value in weights.items():
        parts = {name: value}
        if ".in_proj_" in name:
            start, kind = name.split("in_proj_")
            three = np.split(value, 3)
            letters = ("query", "key", "value")
            parts = {
                f"{start}{letter}_proj.{kind}": v for letter, v in zip(letters, three, strict=True)
            }
        named |= {k.replace("mlp.", "mlp.layers."): mx.array(v) for k, v in parts.items()}
    network.load_weights(list(named.items()))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_a_textbook_step_from_the_same_weights_has_the_same_metrics(
    name, variant, connect_cpu, start
):
    spec, backend = spec_of(variant, name), connect_cpu(name)
    params, batch, ours = our_step(start(backend, spec), spec)
    textbook = importlib.import_module(f"textbook.{name}").Textbook(spec)
    {"torch": load_torch, "mlx": load_mlx}[name](textbook.network, flattened(params, spec.depth))
    theirs = textbook.step(*batch)
    assert math.isclose(theirs["loss"], ours["loss"], rel_tol=1e-5)
    assert math.isclose(theirs["grad_norm"], ours["grad_norm"], rel_tol=1e-4)
    assert math.isclose(
        theirs["gain"], ours["gain_proxy_log10_max_entry"], rel_tol=1e-5, abs_tol=1e-6
    )
    assert theirs["nonfinite"] == ours["nonfinite_event"] == 0


def test_flops_are_those_of_a_network_counted_by_hand():
    """One layer, D 32, F 128, T 16, B 8, V 64: 3·2·128 tokens · (12 288 + 1 024 + 2 048)."""
    spec = bench.spec_for("default", "baseline", "torch", depth=1)
    assert bench.flops_per_step(spec) == 3 * 2 * 128 * (12_288 + 1_024 + 2_048)


@pytest.mark.parametrize(
    ("value", "target", "met"),
    [(2.6, ">= 2.5", "yes"), (2.4, ">= 2.5", "no"), (1.3, "<= 1.2", "no"), (1.0, "", "")],
)
def test_a_target_is_met_or_missed(value, target, met):
    assert bench.Row("steps", "m", "demo", "torch", "mhc", value, "×", target=target).met == met


def test_both_sides_run_and_every_ratio_follows(tmp_path, monkeypatch):
    monkeypatch.chdir(BENCHMARKS.parent)
    monkeypatch.setattr(bench, "installed_backends", lambda: ("torch",))
    tiny = {"depth": 2, "width": 8, "length": 4, "batch": 2, "vocab": 16}
    monkeypatch.setattr(bench, "SIZES", {"demo": tiny})
    # Every side of every variant is a process that starts a framework: as few as have a ratio.
    monkeypatch.setattr(bench, "VARIANTS", ("baseline", "mhc"))
    monkeypatch.setattr(bench, "TEXTBOOK", {"torch": ("mhc",)})
    out = tmp_path / "bench.csv"
    rows = bench.write_bench(out, ["steps"], ["demo"], turns=2, threads=1, say=lambda line: None)
    found = {(r.measure, r.variant): r.value for r in rows}
    assert found["over baseline", "mhc"] == pytest.approx(
        found["ours step", "mhc"] / found["ours step", "baseline"]
    )
    assert found["textbook over ours", "mhc"] > 0
    assert ("textbook over ours", "baseline") not in found
    flops = bench.flops_per_step(bench.spec_for("demo", "mhc", "torch"))
    seconds = found["ours step", "mhc"] / 1e3
    assert found["share of matmul rate", "mhc"] == pytest.approx(
        flops / seconds / (found["matmul rate", ""] * 1e9)
    )
    assert len(out.read_text().splitlines()) == len(rows) + 1
    assert ">= 2.5" in out.read_text()
