"""The token task, against its definition: (start + t) mod V."""

import math

import numpy as np
import pytest

from fathom import tasks
from fathom.tasks import tokens


def test_the_task_is_found_by_its_name():
    assert tasks.load("tokens") is tokens


def test_a_batch_is_int32_of_shape_batch_by_length(make_spec):
    inputs, targets = tokens.batch(make_spec(batch_size=5, length=7), 0)
    assert inputs.shape == targets.shape == (5, 7)
    assert inputs.dtype == targets.dtype == np.int32


def test_each_sequence_counts_up_modulo_the_vocabulary(make_spec):
    spec = make_spec(vocab=5, length=12, batch_size=9)  # longer than V, so every row wraps
    inputs, _ = tokens.batch(spec, 3)
    for row in inputs.tolist():
        assert row == [(row[0] + t) % 5 for t in range(12)]


def test_the_target_is_the_next_token(make_spec):
    inputs, targets = tokens.batch(make_spec(vocab=5, length=12), 3)
    assert (targets[:, :-1] == inputs[:, 1:]).all()
    assert (targets[:, -1] == (inputs[:, -1] + 1) % 5).all()


def test_tokens_stay_within_the_vocabulary(make_spec):
    spec = make_spec(vocab=6, batch_size=64)
    tokens_seen = np.concatenate([np.stack(tokens.batch(spec, step)) for step in range(20)])
    assert set(tokens_seen.ravel().tolist()) == set(range(6))


def test_a_batch_depends_on_seed_and_step_alone(make_spec):
    spec = make_spec(seed=4)
    again, _ = tokens.batch(make_spec(seed=4, backend="mlx", variant="hc", depth=9), 17)
    tokens.batch(spec, 3)  # whatever was drawn before
    inputs, _ = tokens.batch(spec, 17)
    assert (inputs == again).all()


@pytest.mark.parametrize("other", [{"seed": 4, "step": 18}, {"seed": 5, "step": 17}])
def test_another_seed_or_step_is_another_batch(make_spec, other):
    inputs, _ = tokens.batch(make_spec(seed=4, batch_size=32), 17)
    others, _ = tokens.batch(make_spec(seed=other["seed"], batch_size=32), other["step"])
    # Of 32 starts among 32 tokens about one agrees by chance; six would be rarer than 1 in 1000.
    assert (inputs[:, 0] == others[:, 0]).sum() < 6


def test_starts_are_uniform(make_spec):
    spec = make_spec(vocab=32, batch_size=64)
    starts = np.concatenate([tokens.batch(spec, step)[0][:, 0] for step in range(200)])
    expected = len(starts) / 32
    chi_square = ((np.bincount(starts, minlength=32) - expected) ** 2 / expected).sum()
    # 31 degrees of freedom: mean 31, standard deviation 7.9. Six of those above, or far too
    # even (below 8), would be a fault and not chance.
    assert 8 < chi_square < 31 + 6 * math.sqrt(2 * 31)


@pytest.mark.parametrize(("vocab", "nats"), [(256, 5.545), (64, 4.159)])
def test_chance_loss_is_ln_v(make_spec, vocab, nats):
    # The source prints 5.54 for V = 256.
    assert tokens.chance_loss(make_spec(vocab=vocab)) == pytest.approx(nats, abs=5e-4)
