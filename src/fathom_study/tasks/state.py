"""The state task: the product of all elements of a group so far (docs/definitions/tasks.md)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from fathom.settings import Positive, Registry
from fathom_study.batch import Batch
from fathom_study.metrics.scores import Oracle, Score
from fathom_study.metrics.steps import SHARE, StepMetric, held_out_accuracy, held_out_loss
from fathom_study.models.transformer import Transformer, TransformerParts, sizes
from fathom_study.spec import Spec
from fathom_study.tasks import Presentation, Table, Task, Trained, accuracy_on, mean_loss_on

# Keep the random numbers of batches and of held-out words apart from each other and from those of
# the initial parameters.
STREAM = 0x7374617465
HELD_OUT_STREAM = 0x68656C64

HELD_OUT = 2048
"""Default number of held-out words."""

EVALUATION_BATCH = 256
"""Sequences in one forward pass of an evaluation."""

TRACKED = 0.9
"""A position with a larger accuracy is tracked, if all before it are."""

COUNT = (0.0, 2.0**53)
"""Bounds of a count with an arithmetic mean."""


class Model(TransformerParts):
    """Sizes and parts of the transformer, and the group."""

    group: Literal["S3", "A4", "S4", "A5"] = Field(
        "S3",
        description="all permutations of 3 or 4 things, or the even ones of 4 or 5; V, the number "
        "of distinct tokens, is that of its elements",
    )
    held_out: Positive = Field(
        HELD_OUT,
        exclude_if=lambda count: count == HELD_OUT,
        description="held-out words, the same for every run of a group and a length",
    )

    @property
    def vocab(self) -> int:
        """V, the number of distinct tokens."""
        return len(products(self.group))

    @model_validator(mode="after")
    def _leaves_words_for_training(self) -> Model:
        words = self.vocab**self.length
        if 2 * self.held_out > words:
            raise ValueError(
                f"held_out is {self.held_out}, but there are {words} words of length {self.length} "
                f"in {self.group}, and half of them are for training; make length larger, or "
                f"held_out {words // 2} or less"
            )
        return self


@cache
def products(group: str) -> np.ndarray:
    """Multiplication table [V, V], (g h)(i) = g(h(i)); elements are sorted: 0 is the identity."""
    degree = int(group[1:])
    permutations = list(itertools.permutations(range(degree)))
    elements = [p for p in permutations if group.startswith("S") or is_even(p)]
    number = {element: i for i, element in enumerate(elements)}
    table = [[number[tuple(g[i] for i in h)] for h in elements] for g in elements]
    return np.array(table, np.int32)


def is_even(permutation: tuple[int, ...]) -> bool:
    """Whether a permutation has an even number of pairs out of order."""
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


def word_problem(group: str, words: np.ndarray) -> Batch:
    """Inputs: words [N, T] of elements; targets: the products g_1 … g_t so far, [N, T]."""
    table, states = products(group), np.empty_like(words)
    states[:, 0] = words[:, 0]
    for t in range(1, words.shape[1]):
        states[:, t] = table[states[:, t - 1], words[:, t]]
    return Batch({"tokens": words}, states)


def draw_words(model: Model, count: int, rng: np.random.Generator) -> np.ndarray:
    """Words, int32 [N, T], of uniformly random elements."""
    return rng.integers(0, model.vocab, (count, model.length), dtype=np.int32)


@lru_cache(maxsize=2)
def held_out_words(model: Model) -> tuple[np.ndarray, frozenset[bytes]]:
    """The held-out words, int32 [N, T], and the bytes of each."""
    words = draw_words(model, model.held_out, np.random.default_rng([0, HELD_OUT_STREAM]))
    return words, frozenset(word.tobytes() for word in words)


def held_out(spec: Spec) -> Iterator[Batch]:
    """The held-out words, in the batches of an evaluation."""
    words, _ = held_out_words(spec.model)
    return word_problem(spec.model.group, words).parts(EVALUATION_BATCH)


# --- metrics ------------------------------------------------------------------------------------


def state_accuracy_by_position(trained: Trained) -> dict[int, float]:
    """The share of correct held-out products by position, from 1: the number of factors."""
    batches = held_out(trained.problem.spec)
    right = [trained.named(batch) == batch.targets for batch in batches]
    shares = np.concatenate(right).mean(axis=0)
    return {t: float(share) for t, share in enumerate(shares, start=1)}


def states_tracked(trained: Trained) -> int:
    """Length of the longest prefix with an accuracy above TRACKED at every position."""
    return tracked(np.array([*trained.value("state_accuracy_by_position").values()]))


def tracked(shares: np.ndarray) -> int:
    """Number of shares above TRACKED before the first that is not."""
    return int(np.cumprod(shares > TRACKED).sum())


STEP_METRICS = Registry(
    {
        "state_loss": held_out_loss(
            "held-out loss (nats)",
            "mean cross-entropy over all positions of the held-out words of a group, in nats",
            mean_loss_on(held_out),
            shown="held-out loss {:.4g}",
        ),
        "state_accuracy": held_out_accuracy(
            "held-out accuracy",
            "share of correct products over all positions of the held-out words; non-finite logits "
            "count as wrong",
            accuracy_on(held_out),
        ),
        "state_accuracy_by_position": StepMetric(
            "held-out accuracy",
            "share of the held-out words whose product is correct at each position",
            state_accuracy_by_position,
            when="last step",
            along="position in the sequence",
            bounds=SHARE,
            finite=True,
        ),
        "states_tracked": StepMetric(
            "states tracked",
            f"length of the longest prefix of positions with accuracies above {TRACKED}",
            states_tracked,
            when="last step",
            whole=True,
            bounds=COUNT,
        ),
    }
)


class State(Task):
    """Keep track of the product of all elements so far."""

    Model = Model
    Network = Transformer
    step_metrics = STEP_METRICS

    def batch(self, spec: Spec, step: int) -> Batch:
        """Words of uniformly random elements; a held-out word is drawn again."""
        rng = np.random.default_rng([spec.seed, STREAM, step])
        words = draw_words(spec.model, spec.batch_size, rng)
        _, excluded = held_out_words(spec.model)
        while again := [i for i, word in enumerate(words) if word.tobytes() in excluded]:
            words[again] = draw_words(spec.model, len(again), rng)
        return word_problem(spec.model.group, words)

    def classes(self, model: Model) -> int:
        return model.vocab


SCORE = Score(
    metric="state_loss",
    label="held-out loss",
    unit="nats per token",
    chance=lambda spec: math.log(spec.model.vocab),
    oracle=Oracle("the rule itself", 0.0),
)

PRESENTATION = Presentation(
    unit="token",
    sizes=lambda model: f"{model.group}, {sizes(model)}",
    tables=(
        Table("States tracked", ("states_tracked", "state_accuracy")),
        Table("Gradient norm", ("grad_norm_final", "grad_norm_max")),
    ),
    figures=("score", "state_accuracy_by_position", "states_tracked", "loss"),
    compared=("states_tracked",),
)
