"""Small specs, parameters, trainers and the float64 oracle; cases that are quick."""

import numpy as np
import pytest

from fathom.connections.rules import RULES
from fathom.connections.schemes import SCHEMES
from fathom.operations.numpy_ops import NumpyOps
from fathom_study.config import check_config
from fathom_study.tasks import Problem, Trained
from fathom_study.train import trainer_for

OF_EACH_KIND = (
    "plain", "hc_causal", "mhc_static", "hc_paper", "mhc_paper", "mhc_gated_dynamic",
    "deepseek_v41", "qwen4_exp", "altup", "residual_scaled", "muse_spark", "dory", "laurel",
    "frac", "inkling2", "muddformer", "gru_gate", "x0_lambda", "two_lanes",
    "gmr_cyclic", "attn_res_state",
)  # fmt: skip
"""Schemes of each kind of connection and of coefficients."""


READ_APART = {"inkling2", "muddformer", "muddformer_last"}
OF_OWN_SUM = [name for name, rule in RULES.items() if rule.needs_own_sum]
OF_SUBLAYERS = set(OF_OWN_SUM) | {
    name
    for name, row in SCHEMES.items()
    if row.get("kind") in ("gated", "gated_multi", "scaled", "frac")
}
NOT_AROUND = {"block": OF_SUBLAYERS | READ_APART, "sublayer": set(), "images": READ_APART}
"""Schemes that each network refuses."""


def quick_cases(names, cases, *quick):
    """Parametrize a test by cases, of which those that `quick` does not name are marked slow."""
    assert set(quick) <= set(cases), set(quick) - set(cases)
    params = [
        pytest.param(*values, id=name, marks=() if name in quick else pytest.mark.slow)
        for name, values in cases.items()
    ]
    return pytest.mark.parametrize(names, params)


# --- specs ---------------------------------------------------------------------------------------

TRANSFORMER = {
    "length": 8, "width": 16, "heads": 4, "hidden": 32, "wrap": "block", "norm": "layer",
    "positions": "learned", "embedding_norm": False, "qk_norm": False, "biases": True,
    "activation": "gelu", "logit_cap": None, "values": "own",
}  # fmt: skip
MODELS = {
    "tokens": {"vocab": 32, **TRANSFORMER},
    "text": {**TRANSFORMER, "corpus": None, "validation_windows": 5},
    "state": {"group": "S3", **TRANSFORMER},
    "fashion": {"width": 8, "dropout": 0.1, "normalise": False, "augment": False},
    "flow": {"density": "two_moons", "width": 8, "hidden": 12},
    "graph": {
        "nodes": 12, "communities": 2, "degree": 2.5, "edge_signal": 1.5, "features": 3,
        "feature_signal": 1.0, "labelled": 0.25, "graphs": "fresh", "held_out": 5,
        "width": 8, "hidden": 10,
    },
    "unrolled": {
        "kind": "copy", "symbols": 10, "gap": "blank", "pairs": 4, "width": 8, "hidden": 6,
        "held_out": 512,
    },
}  # fmt: skip
OPTIMIZER = {
    "lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0,
    "schedule": "constant", "warmup_steps": 0, "final_share": 0.2, "decay": "all", "clip": None,
    "muon": None,
}  # fmt: skip


def make_spec(**changes):
    """A small spec; `changes` set any field by its name, in whichever section it is.

    `variant` names a connection; with `connection`, its settings, it is only a label.
    """
    cell = {"study": "small", "depth": 3, "variant": "mhc", "backend": "torch", "seed": 0}
    top = {
        "task": "tokens", "recipe": "torch-defaults", "streams": 4, "steps": 3,
        "batch_size": 4, "weights": False, "accumulate": 1, "evaluate_every": None,
        "leave_out_blocks": False,
    }  # fmt: skip
    model = dict(MODELS[changes.get("task", "tokens")])
    study = {**top, "model": model, "optimizer": dict(OPTIMIZER)}
    label, connection = changes.pop("variant", "mhc"), changes.pop("connection", None)
    for name, value in changes.items():
        sections = ((cell, cell), (top, study), (OPTIMIZER, study["optimizer"]))
        matches = (to for known, to in sections if name in known)
        next(matches, model)[name] = value
    variant = label if connection is None else {label: connection}
    axes = {f"{axis}s": [cell[axis]] for axis in ("depth", "backend", "seed")}
    config = check_config({"studies": {cell["study"]: {**study, **axes, "variants": [variant]}}})
    return config.spec(config.cells()[0])


def arrays_of(batch):
    """The inputs and targets of a batch, by name."""
    return {**batch.inputs, "targets": batch.targets}


def assert_depends_on_seed_and_step(drawn, **others):
    """Check that arrays `drawn(step, **changes)` by name change with the seed and with the step.

    Neither `others`, changes of a spec, nor earlier draws have an effect.
    """
    first = drawn(17, seed=4)
    drawn(3, seed=4)
    again = drawn(17, seed=4, **others)
    for name, array in first.items():
        assert (array == again[name]).all(), name
        for other in (drawn(18, seed=4), drawn(17, seed=5)):
            assert (array != other[name]).any(), name


# --- parameters ----------------------------------------------------------------------------------


def parameters_of(spec):
    """The initial parameters of a spec, float32 by name."""
    return Problem(spec).initial_parameters()


def parameters_off_symmetry(spec):
    """Initial parameters of a spec, each plus random noise.

    At the initial values, mixing matrices are symmetric, streams equal and many biases zero, so a
    transposed matrix or a missing bias would change nothing.
    """

    def amount(name):
        # Large enough to matter, and too small for 24 layers of hc to overflow float32.
        return 0.5 if name.startswith("connection.") else 0.2

    rng = np.random.default_rng(12345)
    return {
        name: (value + amount(name) * rng.standard_normal(value.shape)).astype(np.float32)
        for name, value in parameters_of(spec).items()
    }


def trainer_on(backend, spec, params=None):
    """A trainer for the spec on a backend, at its initial parameters or at given ones."""
    problem = Problem(spec)
    return trainer_for(problem, backend, problem.initial_parameters() if params is None else params)


# --- the float64 oracle --------------------------------------------------------------------------


def oracle_forward(spec, params, inputs):
    """Output of the spec's forward pass on given parameters."""
    ops = NumpyOps()
    exact = {name: ops.asarray(value) for name, value in params.items()}
    return Problem(spec).network.forward(ops, exact, inputs)


def oracle_loss(spec, params, batch):
    """The float64 loss at the given parameters."""
    output = oracle_forward(spec, params, batch.inputs)
    return float(Problem(spec).task.loss(NumpyOps(), output, batch))


def check_oracle(spec, batch, loss=None):
    """Compare the oracle's outputs and loss on a batch with the textbook code, naive.py."""
    from tests.support import naive  # it loads SciPy

    params = parameters_off_symmetry(spec)
    expected = naive.NETWORKS[spec.task](spec, params, **batch.inputs)
    # Both are float64: only the order of their sums differs.
    logits = oracle_forward(spec, params, batch.inputs).logits
    assert logits == pytest.approx(expected, abs=1e-11 * np.abs(expected).max())
    asked = slice(None) if batch.weights is None else batch.weights == 1
    exact = (loss or naive.cross_entropy)(expected[asked], batch.targets[asked])
    assert oracle_loss(spec, params, batch) == pytest.approx(exact, rel=1e-11)


def exact_loss(spec, params):
    """Loss of the token task in float64, over all sequences that count up modulo V."""
    model = spec.model
    counted = (np.arange(model.vocab)[:, None] + np.arange(model.length + 1)) % model.vocab
    logits = oracle_forward(spec, params, {"tokens": counted[:, :-1]}).logits
    return float(NumpyOps().cross_entropy(logits, counted[:, 1:]))


def end_of(spec, params):
    """The end of a training with these parameters, on the oracle."""
    ops = NumpyOps()
    exact = {name: ops.asarray(value) for name, value in params.items()}
    return Trained(
        Problem(spec),
        ops,
        lambda function, x: function(exact, {name: ops.asarray(v) for name, v in x.items()}),
    )
