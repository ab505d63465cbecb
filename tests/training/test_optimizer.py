"""AdamW of the trainers against the textbook in float64, decayed parameters, and schedules."""

import math

import numpy as np
import pytest

from fathom_study import tasks
from fathom_study.config import Optimizer
from fathom_study.optimizers import OptimizerConfig, ParamGroup, optimizer_config, schedule_at
from tests.support import naive
from tests.support.gradients import STEADY
from tests.support.specs import make_spec, parameters_of

# eps and decay are not negligible, so that their places in the formula are tested.
OPTIMIZER = Optimizer(lr=0.05, beta1=0.8, beta2=0.95, eps=0.03, weight_decay=0.4)
START = {
    # In column-major order, as an orthogonal draw.
    "w": np.array([[1.0, -2.0, 0.5], [3.0, 0.1, -0.7]], dtype=np.float32, order="F"),
    "b": np.array([0.3, -0.2, 0.9], dtype=np.float32),
}
FLOAT32 = 1e-6
"""Error of three steps on numbers of order one: a dozen roundings of 6e-8 each."""


def batch(step):
    """Inputs and targets of a step, float32 [3] each."""
    rng = np.random.default_rng(step)
    return rng.normal(size=3).astype(np.float32), rng.normal(size=3).astype(np.float32)


def take_step(trainer, *steps):
    """Take one training step on the batches of `steps`."""
    batches = [tasks.Batch({"x": inputs}, targets) for inputs, targets in map(batch, steps)]
    trainer.step(batches, STEADY)


def quadratic(ops):
    """½ Σ (w·input + b − target)², over two rows of w that share b."""

    def objective(params, batch):
        error = params["w"] * batch.inputs["x"] + params["b"] - batch.targets
        loss = ops.sum(ops.sum(error * error, axis=-1), axis=-1) / 2
        return loss, {"logits_finite": ops.all_finite(error)}

    return objective


def quadratic_gradient(params, inputs, targets):
    """The gradient of `quadratic`, by hand."""
    error = params["w"] * inputs + params["b"] - targets
    return {"w": error * inputs, "b": error.sum(axis=0)}


def update_of(bias_correction=True, hyper=OPTIMIZER, decayed=("w", "b")):
    """AdamW of both parameters, with decay of those in `decayed`."""
    decays = {name: hyper.weight_decay if name in decayed else 0.0 for name in START}
    groups = tuple(ParamGroup((name,), "adamw", hyper.lr, decay) for name, decay in decays.items())
    betas = {"beta1": hyper.beta1, "beta2": hyper.beta2, "eps": hyper.eps}
    return OptimizerConfig(groups, **betas, bias_correction=bias_correction, clip=hyper.clip)


def trainer_of(backend, update):
    return backend.trainer(START, quadratic(backend.ops), update)


def trained(backend, steps, update):
    trainer = trainer_of(backend, update)
    for step in range(steps):
        take_step(trainer, step)
    return trainer


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize(
    ("steps", "decayed", "clip"),
    [
        (1, ("w", "b"), None),
        (3, ("w", "b"), None),
        (3, ("w",), None),
        (3, ("b",), None),
        (3, ("w", "b"), 0.5),  # the norm of the first step is 4.9
        (3, ("w", "b"), 1e3),
    ],
)
def test_first_steps_equal_the_textbook(backend, steps, bias_correction, decayed, clip):
    update = update_of(bias_correction, OPTIMIZER.model_copy(update={"clip": clip}), decayed)
    gradients_at = lambda step, params: quadratic_gradient(params, *batch(step))  # noqa: E731
    expected = naive.optimised(START, update, gradients_at, [STEADY] * steps)
    trainer = trained(backend, steps, update)
    state = trainer.state()
    for kind, values in zip(("param", "m", "v"), expected, strict=True):
        for name, value in values.items():
            allowed = 5 * FLOAT32 * (1 + np.abs(value).max())
            assert state[f"{kind}.{name}"] == pytest.approx(value, abs=allowed), (kind, name)
    # Reported norms are those before clipping.
    norms = [np.linalg.norm(g) for g in quadratic_gradient(START, *batch(0)).values()]
    assert trainer.collect()["grad_norms"][0] == pytest.approx(norms, rel=1e-5)


# --- weight decay --------------------------------------------------------------------------------

MATRICES = {
    "embedding.token", "embedding.position", "block.qkv.weight", "block.attention_out.weight",
    "block.up.weight", "block.down.weight", "head.weight",
}  # fmt: skip
OF_IMAGES = {"stem.weight", "block.conv1.weight", "block.conv2.weight", "head.weight"}
PHI = {"connection.phi_pre", "connection.phi_post", "connection.phi_res"}


@pytest.mark.parametrize(
    ("task", "variant", "expected"),
    [
        ("tokens", "mhc_demo", MATRICES),
        ("tokens", "mhc_paper", MATRICES | PHI),
        ("tokens", "mhc_gated_static", MATRICES | {"connection.stream_embedding"}),
        ("tokens", "mhc_identity", MATRICES | PHI - {"connection.phi_res"}),
        ("tokens", "deepseek_v4", MATRICES | PHI | {"connection.readout_phi"}),
        ("fashion", "residual_scaled", OF_IMAGES),
        ("fashion", "mhc_static", OF_IMAGES),
    ],
)
def test_which_parameters_are_matrices(task, variant, expected):
    """All other parameters are biases, gains, gates, α, b, scales and logits of mixing."""
    spec = make_spec(task=task, variant=variant, decay="matrices", weight_decay=0.1)
    assert decayed(spec) == expected
    every = make_spec(task=task, variant=variant, decay="all", weight_decay=0.1)
    assert decayed(every) == set(parameters_of(spec))


def decayed(spec):
    return {
        name
        for group in optimizer_config(spec, tasks.Problem(spec).network.parameters()).groups
        if group.decay
        for name in group.names
    }


def test_outputs_of_a_trainer_are_current_and_do_not_change_later(backend):
    trainer = trained(backend, 2, update_of())
    assert trainer.collect()["loss"].shape == (2,)
    state, params = trainer.state(), trainer.parameters()
    before = {name: value.copy() for name, value in state.items()}
    inputs = {"x": np.array([2.0], np.float32)}
    output = trainer.infer(lambda params, inputs: params["w"] * inputs["x"], inputs)
    assert int(state["step"]) == 2
    assert list(params) == list(START)
    assert all((value == state[f"param.{name}"]).all() for name, value in params.items())
    assert output == pytest.approx(2 * params["w"], rel=FLOAT32)
    take_step(trainer, 2)
    assert trainer.collect()["loss"].shape == (1,)  # each step once
    assert all((state[name] == before[name]).all() for name in before)
    assert int(trainer.state()["step"]) == 3


def test_the_learning_rate_by_hand():
    cosine = make_spec(schedule="cosine", warmup_steps=2, steps=10, lr=8e-4)
    rates = [schedule_at(cosine, step).rate for step in range(10)]
    assert rates[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert rates[6] == pytest.approx(0.5)  # half of the eight steps after the warm-up
    assert rates[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    constant = make_spec(warmup_steps=4, steps=10, lr=8e-4)
    rates = [schedule_at(constant, step).rate for step in range(10)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, *[1.0] * 7])
    (group,) = optimizer_config(constant, tasks.Problem(constant).network.parameters()).groups
    assert group.lr == 8e-4


def test_a_rate_that_falls_linearly_over_the_final_share():
    """The last 20 % of 20 steps are four, and the first of these still has the full rate."""
    rates = [1.0] * 16 + [1.0, 0.75, 0.5, 0.25]
    spec = make_spec(steps=20, schedule="linear_end")
    assert [schedule_at(spec, step).rate for step in range(20)] == pytest.approx(rates)
    spec = make_spec(steps=8, schedule="linear_end", final_share=0.5, warmup_steps=2)
    expected = [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert [schedule_at(spec, step).rate for step in range(8)] == pytest.approx(expected)


# --- several batches in one step -----------------------------------------------------------------


def test_batches_of_one_step_are_averaged(backend):
    """Loss and gradients of a step are the means over its batches, by hand."""
    trainer = trainer_of(backend, update_of())
    take_step(trainer, 0, 1, 2)
    losses, gradients = [], []
    for step in range(3):
        inputs, targets = batch(step)
        error = START["w"].astype(np.float64) * inputs + START["b"] - targets
        losses.append((error**2).sum() / 2)
        gradients.append(quadratic_gradient(START, inputs, targets))
    mean = {name: np.mean([g[name] for g in gradients], axis=0) for name in START}
    measured, state = trainer.collect(), trainer.state()
    assert measured["loss"] == pytest.approx([np.mean(losses)], rel=FLOAT32)
    norms = [np.linalg.norm(mean[name]) for name in START]
    assert measured["grad_norms"][0] == pytest.approx(norms, rel=FLOAT32)
    for name, gradient in mean.items():
        assert state[f"m.{name}"] == pytest.approx((1 - 0.8) * gradient, abs=FLOAT32)
    assert int(state["step"]) == 1


def test_clipping_applies_to_the_mean_of_the_batches(backend):
    hyper = OPTIMIZER.model_copy(update={"clip": 0.5, "beta1": 0.0})
    trainer = trainer_of(backend, update_of(hyper=hyper))
    take_step(trainer, 0, 1, 2)
    state = trainer.state()
    norm = math.sqrt(sum((state[f"m.{name}"] ** 2).sum() for name in START))
    assert norm == pytest.approx(0.5, rel=1e-5)


def test_nonfinite_logits_of_one_batch_are_detected(backend):
    """Each batch is tested, also if the last batch of the step is finite."""
    for k in range(3):
        trainer = trainer_of(backend, update_of())
        batches = [tasks.Batch({"x": inputs}, targets) for inputs, targets in map(batch, range(3))]
        batches[k].inputs["x"][0] = np.inf
        trainer.step(batches, STEADY)
        assert not trainer.collect()["logits_finite"][0]
