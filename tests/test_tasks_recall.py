"""The recall task: its sequences, read pair by pair, and metrics of its answers."""

import math
from functools import partial

import numpy as np
import pytest

from fathom import tasks
from fathom.backends.numpy import NumpyOps
from fathom.tasks import recall as module
from param_helpers import end_of, make_spec, parameters_of

recall = tasks.load("recall")

V, K = 16, 5  # a blank, the keys 1 to 7, the values 8 to 15
small = partial(make_spec, task="recall", vocab=V, length=3 * K)


def check_sequence(tokens, targets, weights, pairs):
    """Check one sequence from left to right against the definition."""
    known = dict(zip(tokens[: 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
    assert len(known) == len(set(known.values())) == pairs
    assert all(1 <= key < V // 2 <= value < V for key, value in known.items())
    queries = tokens[2 * pairs : 3 * pairs]
    assert sorted(queries) == sorted(known)  # every key once
    assert targets[2 * pairs : 3 * pairs] == [known[query] for query in queries]
    assert not any(tokens[3 * pairs :])  # blanks
    asked = range(2 * pairs, 3 * pairs)
    assert weights == [float(place in asked) for place in range(len(tokens))]


def test_sequences_are_pairs_then_queries_then_blanks():
    batch = recall.batch(small(batch_size=200), 0)
    tokens, numbers = batch.inputs["tokens"], []
    assert tokens.dtype == batch.targets.dtype == np.int32
    assert batch.weights.dtype == np.float32
    for sequence in zip(tokens, batch.targets, batch.weights, strict=True):
        rows = [row.tolist() for row in sequence]
        numbers.append(int(sum(rows[2])))
        check_sequence(*rows, numbers[-1])
    # 40 of each number are expected; 6 standard deviations away would be 6 or 74.
    counts = np.bincount(numbers, minlength=K + 1)
    assert counts[0] == 0
    assert all(6 < count < 74 for count in counts[1:])


def test_held_out_sequences_have_the_requested_pairs():
    for pairs in (1, 3, K):
        batches = module.held_out(small().model, pairs)
        again = module.held_out(small(seed=9, variant="hc", batch_size=1).model, pairs)
        assert sum(len(batch.targets) for batch in batches) == module.HELD_OUT
        assert (batches[0].inputs["tokens"] != batches[1].inputs["tokens"]).any()
        for batch, same in zip(batches, again, strict=True):
            assert (batch.inputs["tokens"] == same.inputs["tokens"]).all()
            for sequence in zip(batch.inputs["tokens"], batch.targets, batch.weights, strict=True):
                check_sequence(*(row.tolist() for row in sequence), pairs)


def rows_of(batches):
    """The sequences of some batches, each as a tuple."""
    return {tuple(row) for batch in batches for row in batch.inputs["tokens"].tolist()}


def test_training_never_has_a_held_out_sequence():
    # Of 5 · 4 · 6 · 5 · 2 = 1200 sequences of two pairs, each one left is drawn about 8 times.
    spec = small(vocab=12, length=6, batch_size=32)
    batches = [recall.batch(spec, step) for step in range(400)]
    judged = rows_of(module.held_out(spec.model, 2))
    full = {row for row in rows_of(batches) if row[-1] != module.BLANK}
    assert len(full) > 0.98 * (1200 - len(judged))
    assert not full & judged
    # The 30 sequences of one pair are all trained on, as docs/definitions.md says.
    assert rows_of(module.held_out(spec.model, 1)) <= rows_of(batches)


# --- metrics -------------------------------------------------------------------------------------


def name_the_last_value(tokens):
    """Logits [N, T, V] that name the value of the last pair for every query."""
    pairs = (tokens >= V // 2).sum(axis=1)
    last = np.take_along_axis(tokens, 2 * pairs[:, None] - 1, axis=1)
    return np.eye(V)[np.broadcast_to(last, tokens.shape)]


def test_constant_answer_is_right_once_in_each_sequence():
    guess = tasks.Trained(
        tasks.Problem(small()), NumpyOps(), lambda _, inputs: name_the_last_value(inputs["tokens"])
    )
    assert module.recall_accuracy(guess) == pytest.approx(1 / K)
    found = module.recall_accuracy_by_pairs(guess)
    assert found == pytest.approx({1: 1, 2: 1 / 2, 4: 1 / 4, 5: 1 / 5})


def test_loss_counts_only_answers(monkeypatch):
    """The network gives all values equal probability and all other tokens none."""
    spec = small(variant="baseline")
    forward = type(tasks.Problem(spec).network).forward

    def knows_values(self, *arguments, **options):
        output = forward(self, *arguments, **options)
        return output._replace(logits=0 * output.logits + np.where(np.arange(V) < V // 2, -99, 0))

    monkeypatch.setattr(type(tasks.Problem(spec).network), "forward", knows_values)
    assert module.recall_loss(end_of(spec, parameters_of(spec))) == pytest.approx(math.log(8))
    assert tasks.score_of("recall").chance(spec) == pytest.approx(math.log(8))
