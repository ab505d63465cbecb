"""The unrolled task: its sequences, its cell, and the gradient of its first state."""

import math
from functools import partial

import numpy as np
import pytest

from fathom_study import tasks
from fathom_study.tasks import example_batch, unrolled
from fathom_study.train import step_rows
from tests.support.specs import end_of, make_spec, parameters_of

task = tasks.load("unrolled")
spec_of = partial(make_spec, task="unrolled", variant="baseline")


def drawn(spec, steps=20):
    """(tokens [N, T], answers [N]) of many batches."""
    batches = [task.batch(spec, step) for step in range(steps)]
    for batch in batches:
        assert batch.inputs["tokens"].dtype == batch.targets.dtype == np.int32
    tokens = np.concatenate([batch.inputs["tokens"] for batch in batches])
    return tokens, np.concatenate([batch.targets for batch in batches])


# --- sequences ----------------------------------------------------------------------------------


def test_a_copy_is_a_symbol_then_blanks_and_the_answer_is_the_symbol():
    tokens, answers = drawn(spec_of(symbols=5, depth=7, batch_size=8))
    assert tokens.shape == (160, 7)
    assert (tokens[:, 0] == answers).all()
    assert (tokens[:, 1:] == 5).all()
    assert set(answers.tolist()) == set(range(5))


def test_the_gap_of_a_copy_may_hold_other_symbols():
    tokens, answers = drawn(spec_of(symbols=5, depth=7, batch_size=8, gap="symbols"))
    assert (tokens[:, 0] == answers).all()
    # 960 draws among five: each is near 192, standard deviation 12.
    assert np.bincount(tokens[:, 1:].ravel(), minlength=5) == pytest.approx(192, abs=70)
    # If they were the answer more often than 1 in 5, the first need not be remembered.
    assert (tokens[:, 1:] == answers[:, None]).mean() == pytest.approx(0.2, abs=0.07)


def test_held_out_sequences_are_equal_for_all_seeds():
    (blank,) = unrolled.held_out(spec_of(symbols=5, depth=4))
    assert blank.inputs["tokens"].tolist() == [[symbol, 5, 5, 5] for symbol in range(5)]
    spec = spec_of(gap="symbols", depth=10, held_out=30)
    (batch,) = unrolled.held_out(spec)
    (again,) = unrolled.held_out(spec_of(gap="symbols", depth=10, held_out=30, seed=7))
    assert batch.inputs["tokens"].shape == (30, 10)
    assert (batch.inputs["tokens"] == again.inputs["tokens"]).all()
    sizes = [len(part.targets) for part in unrolled.held_out(spec_of(gap="symbols"))]
    assert sizes == [256, 256]


# --- the cell (test_tasks compares it with a textbook) --------------------------------------------


def test_the_gradient_of_the_first_state_is_measured(check_first_step):
    spec = spec_of(variant="mhc_paper", gap="symbols", depth=6, beta1=0.0)
    for name, (measured, gradients) in check_first_step(spec, example_batch(spec)).items():
        (row,) = step_rows(tasks.Problem(spec), {k: v[None] for k, v in measured.items()})
        length = np.linalg.norm(gradients["state.start"])
        assert row["grad_norm_start"] == pytest.approx(length, rel=1e-5), name


def test_scale_per_step_starts_as_the_plain_cell_with_one_number_each():
    params = parameters_of(spec_of(connection={"kind": "scaled", "scale": "layer"}, depth=5))
    assert params["connection.output_scale"].tolist() == [[1.0]] * 5


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_of_a_constant_answer():
    spec = spec_of(symbols=4, depth=3)
    params = parameters_of(spec)
    params["norm.weight"][:], params["norm.bias"][:] = 0, 1  # for every state
    params["head.weight"][:] = np.log([0.5, 0.25, 0.125, 0.125])[:, None] / 8
    trained = end_of(spec, params)
    # −(ln ½ + ln ¼ + 2 ln ⅛)/4 = 9 ln 2 / 4
    assert trained.value("answer_loss") == pytest.approx(9 / 4 * math.log(2))
    assert trained.value("answer_accuracy") == 0.25
