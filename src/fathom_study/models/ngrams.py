"""n-gram language models: baselines that a network has to beat on text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TABLE = 2**22
"""n-grams encoded by numbers below this are counted in a table; others are sorted."""


def bits_per_character(
    training: np.ndarray, validation: np.ndarray, characters: int, order: int = 3
) -> tuple[float, ...]:
    """Mean −log2 probability of `validation` under the unigram, bigram, … model up to `order`.

    Both are arrays [N] of integers below `characters`. The models are counted on `training`, with
    Witten–Bell back-off (docs/definitions/tasks.md). `characters ** order` must be below
    2^63. At the start of `validation`, a character is predicted from the part of its context that
    exists.
    """
    bits = []
    probability = np.full(len(validation), 1 / characters)
    # A context is encoded as the number that its characters spell in base `characters`.
    counted = np.zeros(len(training), np.int64)
    asked = np.zeros(len(validation), np.int64)
    for length in range(order):  # of the context
        counted = counted * characters + training[length:]
        asked = asked * characters + validation[length:]
        probability[length:] = _witten_bell(counted, asked, characters, probability[length:])
        bits.append(float(-np.log2(probability).mean()))
        counted, asked = counted[:-1], asked[:-1]
    return tuple(bits)


def _witten_bell(
    counted: np.ndarray, asked: np.ndarray, characters: int, backoff: np.ndarray
) -> np.ndarray:
    """(n(hc) + t(h) p(c | h')) / (n(h) + t(h)) of each n-gram hc in `asked`; p(c | h') if n(h) = 0.

    h' is h without its first character, n counts n-grams of the training text, t counts distinct
    characters that follow h there.
    """
    if not len(counted):
        return backoff
    ngrams, counts = _count(counted)  # sorted, so by context
    contexts, first, kinds = np.unique(ngrams // characters, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first)
    (n_ngram,) = _look_up(ngrams, [counts], asked)
    n_context, t_context = _look_up(contexts, [totals, kinds], asked // characters)
    seen = np.maximum(n_context + t_context, 1)
    return np.where(n_context > 0, (n_ngram + t_context * backoff) / seen, backoff)


def _count(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Distinct numbers, sorted; number of occurrences of each)."""
    if numbers.max() >= TABLE:
        return np.unique(numbers, return_counts=True)
    counts = np.bincount(numbers)  # ten times as fast as sorting a million of them
    distinct = np.flatnonzero(counts)
    return distinct, counts[distinct]


def _look_up(
    keys: np.ndarray, columns: Sequence[np.ndarray], wanted: np.ndarray
) -> list[np.ndarray]:
    """Values of the wanted keys in each column; 0 for keys not among the sorted `keys`."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    is_there = keys[place] == wanted
    return [np.where(is_there, values[place], 0) for values in columns]
