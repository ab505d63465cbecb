"""The state task: its groups against their axioms, its words against products of matrices."""

import itertools
import math
from functools import partial

import numpy as np
import pytest

from fathom.operations.numpy_ops import NumpyOps
from fathom_study import tasks
from fathom_study.config import parse_spec
from fathom_study.tasks import state as module
from tests.support.specs import make_spec

state = tasks.load("state")
small = partial(make_spec, task="state")


# --- groups --------------------------------------------------------------------------------------

# Number of elements of each order; no other group of these sizes has the same numbers.
ORDERS = {
    "S3": {1: 1, 2: 3, 3: 2},
    "A4": {1: 1, 2: 3, 3: 8},
    "S4": {1: 1, 2: 9, 3: 8, 4: 6},
    "A5": {1: 1, 2: 15, 3: 20, 5: 24},
}


@pytest.mark.parametrize("group", ORDERS)
def test_table_of_products_is_the_named_group(group):
    table = module.products(group)
    every = np.arange(len(table))
    assert (table[0] == every).all()  # 0 is the identity
    assert (table[:, 0] == every).all()
    assert (table[table] == table[:, table]).all()  # (g h) k = g (h k)
    result: dict[int, int] = {}
    for g in every:
        power, order = g, 1
        while power != 0:
            power, order = table[power, g], order + 1
        result[order] = result.get(order, 0) + 1
    assert result == ORDERS[group]


def matrices(group):
    """The permutation matrices of a group, in lexicographic order of their permutations."""
    degree = int(group[1])
    every = [np.eye(degree)[:, list(p)] for p in itertools.permutations(range(degree))]
    return [m for m in every if group[0] == "S" or np.linalg.det(m) > 0]


@pytest.mark.parametrize("group", ORDERS)
def test_targets_are_products_of_all_elements_so_far(group):
    spec = small(group=group, batch_size=5, length=7)
    batch, elements = state.batch(spec, 3), matrices(group)
    words = batch.inputs["tokens"]
    assert words.shape == batch.targets.shape == (5, 7)
    assert words.dtype == batch.targets.dtype == np.int32
    assert batch.weights is None
    for word, targets in zip(words, batch.targets, strict=True):
        product = np.eye(int(group[1]))
        for g, target in zip(word, targets, strict=True):
            product = product @ elements[g]
            assert (product == elements[target]).all()


# --- batches and held-out words ------------------------------------------------------------------


def words_of(batches):
    """The words of some batches, each as a tuple."""
    return [tuple(word) for batch in batches for word in batch.inputs["tokens"].tolist()]


def test_held_out_words_are_the_same_for_every_run():
    result = words_of(module.held_out(small(group="S4")))
    assert len(result) == module.HELD_OUT
    assert result == words_of(module.held_out(small(group="S4", seed=9, variant="hc", depth=2)))


@pytest.mark.parametrize(("length", "count"), [(4, 648), (6, 1024)])
def test_training_never_has_a_held_out_word(length, count):
    spec = small(length=length, held_out=count, batch_size=32)
    trained = words_of(state.batch(spec, step) for step in range(400))
    assert len(trained) == 400 * 32
    assert not set(trained) & set(words_of(module.held_out(spec)))
    # All other words occur: of 1296 words, each one left is drawn about 20 times.
    if length == 4:
        assert len(set(trained)) == 6**4 - len(set(words_of(module.held_out(spec))))


def test_long_words_come_unchanged_from_the_generator():
    # Among 6^16 words none is drawn twice, so excluding held-out words left runs of this length
    # unchanged.
    spec = small(length=16, batch_size=32)
    for step in range(400):
        drawn = np.random.default_rng([0, 0x7374617465, step]).integers(0, 6, (32, 16))
        assert (state.batch(spec, step).inputs["tokens"] == drawn).all()


# --- metrics -------------------------------------------------------------------------------------


def trained(spec, logits_of):
    """A network that gives these logits for words."""
    return tasks.Trained(
        tasks.Problem(spec), NumpyOps(), lambda _, inputs: logits_of(inputs["tokens"])
    )


def names(group, shares):
    """Logits that name the product at position t for `shares[t]` of the words, else another."""

    def logits(words):
        products = module.word_problem(group, words).targets
        wrong = np.arange(len(words))[:, None] >= np.array(shares) * len(words)
        size = len(module.products(group))
        return np.eye(size)[(products + wrong) % size]

    return logits


def test_accuracies_of_a_network_that_tracks_three_states():
    shares = [1, 0.9375, 0.90625, 0.875, 1, 0.5]  # shares of an evaluation's 256 words
    known = trained(small(group="S4", length=6), names("S4", shares))
    assert module.state_accuracy_by_position(known) == dict(zip(range(1, 7), shares, strict=True))
    assert module.states_tracked(known) == 3
    assert known.value("state_accuracy") == pytest.approx(np.mean(shares))


def test_nonfinite_logits_are_wrong_answers():
    lost = trained(small(length=2, held_out=18), lambda words: np.full((*words.shape, 6), math.nan))
    assert module.state_accuracy_by_position(lost) == {1: 0, 2: 0}
    assert (module.states_tracked(lost), lost.value("state_accuracy")) == (0, 0)


# --- the network and its settings ----------------------------------------------------------------


def test_vocabulary_is_the_size_of_each_variants_group():
    larger = small(connection={"connection": "baseline", "model": {"group": "A5"}})
    assert [small().model.vocab, larger.model.vocab] == [6, 60]
    assert parse_spec(larger.model_dump(), "spec").model.vocab == 60
