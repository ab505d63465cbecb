"""N-gram models against probabilities by hand, and against the recursive definition."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from fathom_study.models import ngrams
from fathom_study.models.ngrams import bits_per_character


def one_by_one(training, validation, characters, order):
    """Bits per character of each order, by the recursive definition."""
    followers = defaultdict(Counter)
    for length in range(order):
        for i in range(length, len(training)):
            followers[training[i - length : i]][training[i]] += 1

    def probability(context, character, length):
        if length < 0:
            return 1 / len(characters)
        after = followers.get(context[len(context) - length :])
        lower = probability(context, character, length - 1)
        if after is None:
            return lower
        return (after[character] + len(after) * lower) / (after.total() + len(after))

    return [
        -sum(
            math.log2(probability(validation[:i], character, min(i, length)))
            for i, character in enumerate(validation)
        )
        / len(validation)
        for length in range(order)
    ]


@pytest.mark.parametrize(
    ("training", "validation"),
    [
        ("abracadabra, abracadabra; a cad", "a bad cab; crab, dab"),
        ("to be or not to be", "z"),
        ("a", "ab"),
        ("ab", "ba"),
    ],
)
@pytest.mark.parametrize("table", [ngrams.TABLE, 0], ids=["counted", "sorted"])
def test_bits_equal_the_recursive_definition(training, validation, table, monkeypatch):
    monkeypatch.setattr(ngrams, "TABLE", table)
    characters = "".join(sorted({*training, *validation}))
    expected = one_by_one(training, validation, characters, 5)
    texts = (np.array([*map(characters.index, text)], np.uint8) for text in (training, validation))
    # Sums of at most 20 logarithms.
    assert bits_per_character(*texts, len(characters), 5) == pytest.approx(expected, rel=1e-12)
