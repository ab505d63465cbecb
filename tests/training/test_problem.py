"""Batches by name, weights of targets, and the inputs of every backend from a problem."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax

from fathom.operations.numpy_ops import NumpyOps
from fathom_study import tasks
from fathom_study.batch import Batch, TaskError
from fathom_study.tasks import Problem
from fathom_study.train import train
from tests.support.commands import refusal
from tests.support.specs import exact_loss, make_spec, trainer_on

LOGITS = np.array([[2.0, 0.0, -1.0], [0.5, 0.5, 0.0], [0.0, 3.0, 1.0]])
TARGETS = np.array([0, 2, 1], np.int32)
WEIGHTS = np.array([1.0, 0.0, 3.0])


@pytest.fixture(params=["oracle", "torch", "mlx"])
def ops(request, connect_cpu):
    return NumpyOps() if request.param == "oracle" else connect_cpu(request.param).ops


def cross_entropy(ops, targets, weights=None):
    given = () if weights is None else (ops.asarray(weights.astype(np.float32)),)
    logits = ops.asarray(LOGITS.astype(np.float32))
    return float(ops.to_numpy(ops.cross_entropy(logits, ops.asarray(targets), *given)))


def test_cross_entropy_is_the_mean_or_weighted_mean_over_targets(ops):
    one, two, three = -log_softmax(LOGITS, axis=1)[range(3), TARGETS]
    assert cross_entropy(ops, TARGETS) == pytest.approx((one + two + three) / 3, rel=1e-6)
    assert cross_entropy(ops, TARGETS, WEIGHTS) == pytest.approx((one + 3 * three) / 4, rel=1e-6)
    # A target of weight zero has no effect.
    other = np.array([0, 1, 1], np.int32)
    assert cross_entropy(ops, other, WEIGHTS) == cross_entropy(ops, TARGETS, WEIGHTS)


@pytest.mark.parametrize("strange", [-100, -1, 3])
def test_target_outside_the_classes_raises_or_gives_nan(ops, strange):
    targets = np.array([0, strange, 1], np.int32)
    try:
        result = cross_entropy(ops, targets)
    except IndexError:
        return
    assert np.isnan(result)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": np.array([0, -100, 1])}, "targets are -100 to 1, but classes are 0 to 2"),
        ({"weights": np.ones(2)}, "weights of shape (2,) do not match targets of shape (3,)"),
        ({"weights": np.array([1, -1, 1.0])}, "weights must be finite, not negative"),
        ({"weights": np.array([1, np.nan, 1.0])}, "weights must be finite, not negative"),
        ({"weights": np.zeros(3)}, "not all zero"),
    ],
)
def test_batch_without_a_defined_loss_is_refused(changes, message):
    good = Batch({"x": LOGITS}, TARGETS, WEIGHTS)
    good.check(3)
    assert message in refusal(replace(good, **changes).check, 3, error=TaskError)


def test_the_exact_loss_is_over_every_sequence_once(connect_cpu):
    """All V sequences, in parts of 64; the oracle takes all at once."""
    spec = make_spec(vocab=70, length=5)
    problem, backend = Problem(spec), connect_cpu("torch")
    trained = tasks.Trained(problem, backend.ops, trainer_on(backend, spec).infer)
    result = problem.task.step_metrics["exact_loss"].compute(trained)
    assert result == pytest.approx(exact_loss(spec, problem.initial_parameters()), rel=1e-5)


@pytest.mark.parametrize("task", ["tokens", "graph", "unrolled"])
def test_diverging_run_raises_no_warning(backend, task):
    spec = make_spec(task=task, variant="mhc_paper", lr=1e18, steps=5, depth=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = [row for chunk in train(Problem(spec), backend) for row in chunk.rows]
    assert len(rows) == 5
    assert not rows[-1]["loss"] < 2 * rows[0]["loss"]
