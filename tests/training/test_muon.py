"""Muon: steps against loops in float64, parameter groups, and the momentum schedule."""

import math

import numpy as np
import pytest

from fathom_study import tasks
from fathom_study.optimizers import (
    OptimizerConfig,
    ParamGroup,
    ScheduledValues,
    optimizer_config,
    schedule_at,
)
from fathom_study.spec import Muon
from tests.support import naive
from tests.support.specs import make_spec, parameters_of


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# --- whole steps ---------------------------------------------------------------------------------

START = {
    "tall": random(2, 9, 3, seed=1),
    "wide": random(1, 3, 6, seed=2),
    "qkv": random(2, 12, 4, seed=3),
    "b": random(4, seed=4),
    "head": random(3, 4, seed=5),
}
START = {name: value.astype(np.float32) for name, value in START.items()}
UPDATE = OptimizerConfig(
    groups=(
        ParamGroup(("tall", "wide"), "muon", lr=0.02, decay=0.0),
        ParamGroup(("qkv",), "muon", lr=0.02, decay=0.0, parts=3),
        ParamGroup(("b",), "adamw", lr=0.3, decay=0.0),
        ParamGroup(("head",), "adamw", lr=0.05, decay=0.2),
    ),
    beta1=0.8, beta2=0.95, eps=1e-3, bias_correction=True, clip=2.0,
)  # fmt: skip
PACES = [ScheduledValues(1.0, 0.85), ScheduledValues(0.5, 0.9), ScheduledValues(0.25, 0.95)]


def gradients_at(step, params=None):
    rng = np.random.default_rng([9, step])
    return {name: rng.standard_normal(value.shape) for name, value in START.items()}


def trained(backend, steps):
    """Trainer after `steps` on a loss whose gradients are the inputs."""
    ops = backend.ops

    def objective(params, batch):
        products = [
            ops.sum(ops.reshape(params[name] * x, (-1,)), axis=0)
            for name, x in batch.inputs.items()
        ]
        loss = sum(products[1:], products[0])
        return loss, {"logits_finite": ops.all_finite(loss)}

    trainer = backend.trainer(START, objective, UPDATE)
    for step in steps:
        inputs = {k: g.astype(np.float32) for k, g in gradients_at(step).items()}
        trainer.step([tasks.Batch(inputs, np.zeros(1, np.float32))], PACES[step])
    return trainer


@pytest.mark.parametrize("steps", [1, 3])
def test_a_step_equals_the_textbook(backend, steps):
    params, averages, _ = naive.optimised(START, UPDATE, gradients_at, PACES[:steps])
    state = trained(backend, range(steps)).state()
    for name in START:
        assert state[f"param.{name}"] == pytest.approx(params[name], abs=5e-6), name
        assert state[f"m.{name}"] == pytest.approx(averages[name], abs=1e-6), name
    assert {name for name in state if name.startswith("v.")} == {"v.b", "v.head"}


# --- parameter groups -----------------------------------------------------------------------------

OF_BLOCKS = {
    "block.qkv.weight", "block.attention_out.weight", "block.up.weight", "block.down.weight",
}  # fmt: skip
STUDY = {
    "recipe": "nanochat", "wrap": "sublayer", "norm": "rms", "positions": "rotary",
    "embedding_norm": True, "qk_norm": True, "biases": False, "activation": "relu2",
    "logit_cap": 15, "lr": 0.2, "beta1": 0.8, "beta2": 0.95, "eps": 1e-10, "clip": 1.0,
    "muon": {"lr": 0.02}, "schedule": "linear_end",
}  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "by_muon", "by_adamw"),
    [
        ("baseline", set(), set()),
        (
            "mhc_gated_dynamic",
            {"phi_pre", "phi_post", "phi_res", "b_res"},
            {"stream_embedding", "gate", "b_pre", "b_post"},
        ),
        ("mhc_gated_static", {"H_res"}, {"stream_embedding", "gate", "H_pre", "H_post"}),
    ],
)
def test_parameter_groups_of_the_study(variant, by_muon, by_adamw):
    """As in the source: matrices of layers, mixing included, go to Muon, the rest to AdamW."""
    spec = make_spec(variant=variant, **STUDY)
    update = optimizer_config(spec, tasks.Problem(spec).network.parameters())
    own = {kind: {f"connection.{n}" for n in s} for kind, s in (("muon", by_muon), ("a", by_adamw))}
    groups = {}
    for group in update.groups:
        assert group.decay == 0
        groups.setdefault((group.rule, round(group.lr, 12)), set()).update(group.names)
    scale = math.sqrt(768 / 16)
    assert groups == {
        ("muon", 0.02): OF_BLOCKS | own["muon"],
        ("adamw", round(0.2 * scale, 12)): {"embedding.token"} | own["a"],
        ("adamw", round(0.004 * scale, 12)): {"head.weight"},
    }
    every = [name for group in update.groups for name in group.names]
    assert sorted(every) == sorted(parameters_of(spec))
    parts = {name: group.parts for group in update.groups for name in group.names}
    assert {name: of for name, of in parts.items() if of > 1} == {"block.qkv.weight": 3}
    assert (update.beta1, update.beta2, update.eps, update.clip) == (0.8, 0.95, 1e-10, 1.0)


def test_the_momentum_rises_linearly():
    spec = make_spec(steps=1000, muon={})
    momenta = [schedule_at(spec, step).momentum for step in (0, 150, 300, 301, 999)]
    assert momenta == pytest.approx([0.85, 0.9, 0.95, 0.95, 0.95])
    assert (Muon().lr, Muon().head_lr, Muon().reference_width) == (0.02, 0.004, 768)
    spec = make_spec(steps=9, muon={"momentum": 0.5, "first_momentum": 0.1, "momentum_steps": 4})
    momenta = [schedule_at(spec, step).momentum for step in range(6)]
    assert momenta == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])
